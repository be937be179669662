# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running agents of other makers that write rules of this node."""

from __future__ import annotations

import typing as t

from . import processes

#: Names of the reference agent's program and of its successor on Azure. Ours is a script of Python's.
_NAMES = ("ip-masq-agent", "ip-masq-agent-v2")


def running(proc: str = "/proc") -> t.Iterator[processes.Process]:
    """Return those in this network namespace, in containers too."""
    return processes.running(_NAMES, proc)
