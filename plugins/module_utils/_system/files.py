# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on the node, written so that a reader sees the old one or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import stat
import typing as t

from .._errors import NodeError


def read(path: str) -> t.Optional[bytes]:
    """The bytes of a file; none where it is not there.

    :raises NodeError: it is there and cannot be read, or is something else, such as a named pipe, which is not waited
        for.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise NodeError("cannot read %s: it is not a regular file" % path)
            return handle.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise NodeError("cannot read %s: %s" % (path, exc.strerror or exc)) from None


def write(path: str, content: bytes, mode: int = 0o600) -> None:
    """Put a file in place by one rename. What was there, a symbolic link too, is replaced and not followed.

    :param mode: permission bits, independent of the umask; the owner is whoever runs this.
    :raises NodeError: naming the path and the reason; what was there is still there.
    """
    folder = os.path.dirname(path)
    try:
        # As tempfile does it, whose import takes longer than a sync writes.
        draft = os.path.join(folder, ".%s.%s" % (os.path.basename(path), os.urandom(8).hex()))
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(content)
                os.fchmod(out.fileno(), mode)
                out.flush()
                os.fsync(out.fileno())
            os.rename(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
    except OSError as exc:
        raise NodeError("cannot write %s: %s" % (path, exc.strerror or exc)) from None


def remove(path: str) -> None:
    """Remove a file, or a symbolic link; it is no error if it is not there.

    :raises NodeError: naming the path and the reason.
    """
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as exc:
        raise NodeError("cannot remove %s: %s" % (path, exc.strerror or exc)) from None


def make_directory(path: str, mode: int) -> None:
    """Make a directory, and those above it; one that is there keeps its mode.

    :raises NodeError: naming the path and the reason.
    """
    try:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
        if not os.path.isdir(path):
            raise NodeError("%s is in the way: it is not a directory" % path)
    except OSError as exc:
        raise NodeError("cannot make the directory %s: %s" % (path, exc.strerror or exc)) from None
