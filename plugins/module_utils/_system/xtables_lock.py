# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The xtables lock of iptables-legacy: how iptables waits for it, and which process holds it.

How long: LOCK_TIMEOUT and RESYNC_LOCK_TIMEOUT of ``defaults_and_limits``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import typing as t

from .._errors import NodeError
from . import files, selinux_labels
from .limited import limited
from .process import Runner

#: Where iptables keeps its lock, unless the environment has another path (iptables(8)).
PATH = "/run/xtables.lock"
_CHOSEN = "XTABLES_LOCKFILE"

#: That of this agent, where the other one cannot be had.
OWN = "/run/ip-masq-agent/xtables.lock"

#: Seconds for its file system to answer.
_PATIENCE = 3.0

#: iptables-legacy of these releases asks for a taken lock once a second, and finds it taken again where another program
#: takes it often, unless ``-W`` sets another interval; later ones are woken at its release, and warn about ``-W``.
_ASKS_FROM, _ASKS_UNTIL = (1, 6, 1), (1, 8, 8)
#: microseconds, as Kubernetes has it
_WAIT_INTERVAL = "100000"

#: Bytes of the list of all locks.
_MOST = 1 << 24

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_HOLDER = r"process [0-9]+ \(.*\)"


def wait(legacy: bool, version: t.Tuple[int, ...], seconds: int) -> t.List[str]:
    """Return the arguments with which iptables waits so long for the lock: a second at least.

    ``-w 0``, and in iptables-legacy no ``-w`` at all, would wait without end (seen in 1.8.9).
    """
    interval = legacy and _ASKS_FROM <= version < _ASKS_UNTIL
    return ["-w", str(max(seconds, 1))] + (["-W", _WAIT_INTERVAL] if interval else [])


def lock_file() -> str:
    """Return the path of the lock."""
    return os.environ.get(_CHOSEN) or PATH


def prepare(run: Runner) -> str:
    """Have the lock, with the label that SELinux has for it: with another one other users of it are refused.

    :returns: a note if there is something else in its place; a lock of our own is used then.
    """
    path = lock_file()
    try:
        is_new = limited(lambda: _opened(path), _PATIENCE, "open %s" % path)
    except NodeError as exc:
        use_own()
        return "%s, so iptables cannot lock it; a lock of this agent is used: remove %s" % (exc, path)
    if is_new:
        selinux_labels.restore(run, [path])
    return ""


def _opened(path: str) -> bool:
    """Open it as iptables does, and return whether it was missing."""
    mode = files.mode(path)
    if mode and not stat.S_ISREG(mode):
        raise NodeError("%s is not a regular file" % path)
    with files.failing_to("open", path):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    return not mode


def use_own() -> None:
    """Have the programs of iptables that this process starts use another lock, of this agent alone."""
    os.environ[_CHOSEN] = OWN


def holder() -> str:
    """Name the process that holds the xtables lock, for an error message."""
    return find_holder(lock_file()) or "an unknown process"


def find_holder(path: str) -> str:
    """Name the process that holds a lock on a file, as far as /proc/locks (proc(5)) shows it; empty if none does."""
    with contextlib.suppress(OSError):
        file = os.stat(path)
        # The device too: files on two tmpfs easily have the same inode number.
        wanted = "%02x:%02x:%d" % (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino)
        for line in files.lines("/proc/locks", _MOST):
            # 1: FLOCK  ADVISORY  WRITE 2345 00:19:1204 0 EOF
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted:
                return "process %s (%s)" % (words[4], _command(words[4]))
    return ""


def without_holder(message: str) -> str:
    """Return a message without the process that ``holder`` named, which differs from time to time."""
    return re.sub(_HOLDER, "a process", message)


def _command(pid: str) -> str:
    """Return the command line of a process on one line: ``without_holder`` would not find a line end in a message."""
    words = " ".join(files.lines("/proc/%s/cmdline" % pid, 4096))
    # For PyPy, split() leaves U+001C.
    return re.sub(r"[\s\0]+", " ", words).strip()[:120] or "unknown command"
