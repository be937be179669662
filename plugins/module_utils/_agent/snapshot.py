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
import time
import typing as t

from .._errors import NodeError
from .._system import files
from .._system.process import Outcome, Runner
from .paths import RUN_DIR

_EXPECTED = os.path.join(RUN_DIR, "expected")
_COMMANDS = os.path.join(RUN_DIR, "commands")
_DUE = os.path.join(RUN_DIR, "due")
LAST_SYNC = os.path.join(RUN_DIR, "last-sync")

#: seconds after which the agent looks at everything again: left-overs in other variants, a changed choice of backend
FULL_CHECK_EVERY = 3600


class Listener:
    """A L(Runner) that keeps what each program said last."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._heard: t.Dict[t.Tuple[str, ...], Outcome] = {}

    def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        done = self._heard[tuple(argv)] = self._run(argv, stdin=stdin, timeout=timeout)
        return done

    def heard(self, commands: t.Iterable[t.Sequence[str]]) -> t.Optional[str]:
        """What the script sees when it runs these commands; none where one of them was not run."""
        said = [self._heard.get(tuple(command)) for command in commands]
        # A shell reports a signal as 128 and its number.
        return (
            None
            if None in said
            else "".join(
                "%sstatus %d\n" % (done.stdout, done.rc if done.rc >= 0 else 128 - done.rc) for done in said if done
            )
        )


def discard() -> None:
    """Forget the snapshot, so that the next resync starts the agent.

    Where the file cannot be removed, the script cannot note that it found nothing to do, and starts the agent, too.
    """
    with contextlib.suppress(NodeError):
        files.remove(_EXPECTED)


def record(
    run: Runner,
    script: str,
    commands: t.Sequence[t.Sequence[str]],
    heard: t.Optional[str],
    is_current: t.Callable[[], bool],
) -> None:
    """Take a snapshot of what was verified.

    :param script: the installed resync script.
    :param commands: programs whose output must stay the same; no word of them may hold white space.
    :param heard: what they said when the rules were verified.
    :param is_current: whether the files, asked again, are still those of the policy in force.
    :raises NodeError: it cannot be written, or the script cannot be run.
    """
    if heard is None or any(len(word.split()) != 1 for command in commands for word in command):
        return
    taken = run([script, "checksums"], stdin=heard)
    # A file that cannot be read has no checksum, and would never be missed.
    if taken.rc != 0 or not taken.stdout or not is_current():
        return
    files.make_directory(RUN_DIR, 0o700)
    files.write(_COMMANDS, "".join(" ".join(command) + "\n" for command in commands).encode("utf-8"))
    with open("/proc/uptime", encoding="ascii") as uptime:
        now = int(float(uptime.read().split()[0]))
    files.write(_DUE, b"%d\n" % (now + FULL_CHECK_EVERY))
    files.write(_EXPECTED, taken.stdout.encode("utf-8", "surrogateescape"))


def mark_sync() -> None:
    """Note that a resync ended well just now.

    :raises NodeError: it cannot be written. OSError: nor touched.
    """
    files.make_directory(RUN_DIR, 0o700)
    files.write(LAST_SYNC, b"")
    # The kernel's own time of a file lags behind the clock by some milliseconds.
    now = time.time()
    os.utime(LAST_SYNC, (now, now))


def last_sync() -> t.Optional[float]:
    """When a resync last ended well: seconds since the epoch; none if none did since the boot."""
    try:
        return os.stat(LAST_SYNC).st_mtime
    except OSError:
        return None
