# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running agents of other makers that write rules of this node."""

from __future__ import annotations

import typing as t

from . import processes

#: Names of the reference agent's program and of its successor on Azure. Ours is a script of Python's.
_NAMES = ("ip-masq-agent", "ip-masq-agent-v2")


class Agent(t.NamedTuple):
    """A process."""

    #: name of its program
    program: str
    #: as it was written: it may hold anything
    command: str


def running(proc: str = "/proc") -> t.Iterator[Agent]:
    """Yield those in this network namespace, in containers too."""
    for one in processes.running(_NAMES, proc):
        yield Agent(one.program, " ".join(one.words))
