# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work with a time limit, in a child process: a path may be on a file system that never answers.

A process that waits for such a file system (FUSE, NFS) waits in the kernel, where no signal but SIGKILL reaches it, and
sometimes not even that. The child is left behind then, and the caller goes on.
"""

from __future__ import annotations

import marshal
import os
import select
import time

from .._errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    # To load it takes 17 ms, more than a start of Python.
    import typing as t

#: SIGKILL; to load ``signal`` takes 8 ms.
_KILL = 9

#: Bytes read from a pipe at a time.
_PIECE = 65536


def limited(work: t.Callable[[], t.Any], seconds: float, what: str) -> t.Any:
    """Return what a function returns, which must consist of Python's own simple types (those of ``marshal``).

    :param seconds: until it is given up.
    :param what: it does, for the error: ``read /etc/example``.
    :raises NodeError: it took too long, or raised an exception, whose text the error has.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _do(work, writing)
    os.close(writing)
    with open(reading, "rb", buffering=0) as answers:
        answer = _read(answers.fileno(), time.monotonic() + seconds)
    if answer is None:
        os.kill(child, _KILL)
    # Not waited for: one that the kernel does not end is left to PID 1.
    os.waitpid(child, os.WNOHANG)
    if answer is None:
        raise NodeError("cannot %s: no answer within %g seconds" % (what, seconds))
    try:
        done, result = marshal.loads(answer)  # noqa: S302 - our own child wrote it
    except (EOFError, ValueError, TypeError):
        done, result = False, "cannot %s: the process ended without an answer" % what
    if not done:
        raise NodeError(result)
    return result


def _do(work: t.Callable[[], t.Any], writing: int) -> t.NoReturn:
    """Do the work in the child, and write what came of it. Whatever it does, the child does nothing else."""
    try:
        try:
            answer = marshal.dumps((True, work()))
        except BaseException as exc:
            answer = marshal.dumps((False, str(exc) or type(exc).__name__))
        with open(writing, "wb") as out:
            out.write(answer)
    finally:
        os._exit(0)


def _read(pipe: int, deadline: float) -> t.Optional[bytes]:
    """Read a pipe to its end; None if that does not come before the deadline."""
    pieces: list[bytes] = []
    while True:
        ready = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]
        if not ready:
            return None
        piece = os.read(pipe, _PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
