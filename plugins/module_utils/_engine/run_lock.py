# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock that lets one run of this collection at a time plan and write rules on a node."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import typing as t

from .._errors import LockHeld
from .._system.xtables_lock import find_holder

#: The agent's runtime directory, which only root may open: the lock is on the directory itself, since a file system
#: that is full or read-only gives that too.
LOCK_PATH = "/run/ip-masq-agent"


@contextlib.contextmanager
def lock(timeout: float, path: t.Optional[str] = "") -> t.Iterator[str]:
    """Hold the lock: the module and the timer must not plan against each other.

    The directory is removed on release unless it holds other files. If the lock cannot be created, the run continues
    without it: every write is an atomic transaction and is verified.

    :param timeout: seconds to wait.
    :param path: of the directory; empty: the default; None: without a lock.
    :returns: why no lock was taken; empty if one was.
    :raises LockHeld: another run held it for longer.
    """
    if path is None:
        yield ""
        return
    path = path or LOCK_PATH
    try:
        handle = _acquire(path, timeout)
    except OSError as exc:
        yield "concurrent runs of ip_masq are not excluded: cannot create or open the lock directory %s: %s" % (
            path,
            exc.strerror,
        )
        return
    try:
        yield ""
    finally:
        with contextlib.suppress(OSError):
            # Stays where the agent keeps files in it.
            os.rmdir(path)
        os.close(handle)


def _acquire(path: str, timeout: float) -> int:
    """Create and lock a directory, and return its file descriptor; raise OSError if that fails."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # Another run removed it when it released the lock.
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another run may have removed it between our opening and our locking it.
            if _is_same_file(handle, path):
                return handle
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(handle)
                raise LockHeld(
                    "timed out after %g s waiting for another run of ip_masq, %s, which holds the lock on %s; wait for "
                    "it to end, or raise lock_timeout" % (timeout, find_holder(path) or "an unknown process", path)
                ) from None
            time.sleep(0.02)
        os.close(handle)


def _is_same_file(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
