# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running processes, by the name of their program: proc(5)."""

from __future__ import annotations

import contextlib
import os
import typing as t

#: Bytes of a command line, more than any of these has.
_LONGEST = 1 << 16


class Process(t.NamedTuple):
    """A process of a program, and the words that it was started with, which may hold anything."""

    pid: int
    program: str
    words: t.List[str]


def running(programs: t.Container[str], proc: str = "/proc") -> t.Iterator[Process]:
    """Yield the processes of these programs in this network namespace, in containers too."""
    own = _network(proc, "self")
    for pid in sorted(filter(str.isdigit, os.listdir(proc)), key=int):
        try:
            with open(os.path.join(proc, pid, "cmdline"), "rb") as cmdline:
                words = cmdline.read(_LONGEST).decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
        except OSError:
            continue
        program = os.path.basename(words[0])
        if program in programs and (own is None or _network(proc, pid) == own):
            yield Process(int(pid), program, words)


def _network(proc: str, pid: str) -> t.Optional[t.Tuple[int, int]]:
    """Return what identifies the network namespace of a process; None if it is not known.

    That is the directory net/stat, one for each namespace. To look at ns/net takes as many
    capabilities as the process has, and the agent's service has few.
    """
    with contextlib.suppress(OSError):
        found = os.stat(os.path.join(proc, pid, "net", "stat"))
        return found.st_dev, found.st_ino
    return None
