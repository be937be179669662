# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the log: the one that ulogd writes, and those that were rotated.

The log belongs to root, but it is read with limits: other programs may write there, and a disk may damage it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import re
import stat
import typing as t

from .._system import files

#: The file that ulogd writes, and the time of the last line, or a later one, in the name of one that was rotated.
CURRENT = "connections.log"
_ROTATED = re.compile(r"connections-([0-9]{1,15})(?:-[0-9]{1,3})?\.log(\.gz)?", re.ASCII)


class LogFile(t.NamedTuple):
    """One file of the log."""

    path: str
    #: of the last line, or when it was written; seconds since the epoch
    ended: float
    size: int
    is_compressed: bool
    is_current: bool


@contextlib.contextmanager
def locked(folder: str, to_write: bool) -> t.Iterator[bool]:
    """Keep the files of the log from being renamed, compressed and removed, or from being read meanwhile.

    :param to_write: if so, others are not waited for, and the value is whether there are none.
    :raises NodeError: the directory cannot be opened.
    """
    with files.failing_to("read", folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if to_write else fcntl.LOCK_SH)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def parts(folder: str) -> t.List[LogFile]:
    """Return the files of the log, the oldest first. What is not a regular file is left out.

    :raises NodeError: the directory cannot be read.
    """
    with files.failing_to("read", folder):
        names = os.listdir(folder)
    found: t.Dict[str, LogFile] = {}
    for name in names:
        rotated = _ROTATED.fullmatch(name)
        part = _part(os.path.join(folder, name), rotated) if rotated or name == CURRENT else None
        if part is not None:
            stem = name[: -len(".gz")] if part.is_compressed else name
            # If both are there, a compression was interrupted.
            if not part.is_compressed or stem not in found:
                found[stem] = part
    return sorted(found.values(), key=lambda part: (part.is_current, part.ended, part.path))


def _part(path: str, rotated: t.Optional[t.Match[str]]) -> t.Optional[LogFile]:
    status = files.status(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    ended = float(rotated.group(1)) if rotated else status.st_mtime
    return LogFile(path, ended, status.st_size, bool(rotated and rotated.group(2)), not rotated)


def opened(part: LogFile) -> t.BinaryIO:
    """Open a file of the log for reading, uncompressed.

    :raises OSError: it cannot be opened.
    """
    handle = files.open_regular(part.path, follow=False)
    if not part.is_compressed:
        return handle
    # The file is closed with the last reference to it.
    return t.cast(t.BinaryIO, gzip.GzipFile(fileobj=handle, mode="rb"))
