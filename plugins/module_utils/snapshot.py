# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the resync script compares, so that a resync with nothing to do starts no Python.

The script takes checksums of the configuration files and of what the commands of C(commands) say; while they are those
of C(expected), all is as the agent verified it. These files lie in the runtime directory and are gone after a boot.
"""

from __future__ import annotations

import contextlib
import os
import typing as t

from . import files
from .errors import NodeError
from .layout import RUN_DIR
from .runner import Runner

_EXPECTED = os.path.join(RUN_DIR, "expected")
_COMMANDS = os.path.join(RUN_DIR, "commands")
_DUE = os.path.join(RUN_DIR, "due")
LAST_SYNC = os.path.join(RUN_DIR, "last-sync")

#: seconds after which the agent looks at everything again: left-overs in other variants, a changed choice of backend
FULL_CHECK_EVERY = 3600


def discard() -> None:
    """Forget the snapshot, so that the next resync starts the agent.

    Where the file cannot be removed, the script cannot note that it found nothing to do, and starts the agent, too.
    """
    with contextlib.suppress(NodeError):
        files.remove(_EXPECTED)


def record(run: Runner, script: str, commands: t.Sequence[t.Sequence[str]], in_sync: t.Callable[[], bool]) -> None:
    """Take a snapshot of what is in force, if ``in_sync`` confirms it.

    It is read before and after the confirmation; only what did not move in between is kept.

    :param script: the installed resync script.
    :param commands: programs whose output must stay the same; no word of them may hold white space.
    """
    if any(len(word.split()) != 1 for command in commands for word in command):
        return
    files.make_directory(RUN_DIR, 0o700)
    files.write(_COMMANDS, "".join(" ".join(command) + "\n" for command in commands).encode("utf-8"))
    try:
        before = run([script, "observe"])
        # A file that cannot be read has no checksum, and would never be missed.
        if before.rc == 0 and before.stdout and in_sync() and run([script, "observe"]) == before:
            with open("/proc/uptime", encoding="ascii") as uptime:
                now = int(float(uptime.read().split()[0]))
            files.write(_DUE, b"%d\n" % (now + FULL_CHECK_EVERY))
            files.write(_EXPECTED, before.stdout.encode("utf-8", "surrogateescape"))
    except NodeError:
        # Without a snapshot the next resync is slower, and right.
        discard()


def mark_sync() -> None:
    """Note that a resync ended well just now."""
    files.make_directory(RUN_DIR, 0o700)
    files.write(LAST_SYNC, b"")


def last_sync() -> t.Optional[float]:
    """When a resync last ended well: seconds since the epoch; none if none did since the boot."""
    try:
        return os.stat(LAST_SYNC).st_mtime
    except OSError:
        return None
