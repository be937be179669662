# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running agents of other makers that write rules of this node: proc(5)."""

from __future__ import annotations

import os
import typing as t

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
    own = _network(proc, "self")
    for pid in sorted(filter(str.isdigit, os.listdir(proc)), key=int):
        try:
            with open(os.path.join(proc, pid, "cmdline"), "rb") as cmdline:
                words = cmdline.read(4096).decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        program = os.path.basename(words[0])
        if program in _NAMES and (own is None or _network(proc, pid) == own):
            yield Agent(program, " ".join(words).strip())


def _network(proc: str, pid: str) -> t.Optional[t.Tuple[int, int]]:
    """Return what identifies the network namespace of a process; None if it is not known.

    That is the directory net/stat, one for each namespace. To look at ns/net takes as many
    capabilities as the process has, and the agent's service has few.
    """
    try:
        found = os.stat(os.path.join(proc, pid, "net", "stat"))
    except OSError:
        return None
    return found.st_dev, found.st_ino
