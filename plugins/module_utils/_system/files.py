# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on the node. The one place that writes them: a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import typing as t

from .._errors import NodeError

#: ST_RDONLY of statvfs(3), for which PyPy has no name.
_READ_ONLY = 1


@contextlib.contextmanager
def failing_to(action: str, path: str) -> t.Iterator[None]:
    """Raise NodeError in place of an OSError: "cannot ACTION PATH" with the reason."""
    try:
        yield
    except OSError as exc:
        raise NodeError("cannot %s %s: %s" % (action, path, exc.strerror or exc)) from None


class NotRegularFile(OSError):
    """There is something else than a regular file, such as a named pipe or a directory."""


def open_regular(path: str, follow: bool = True) -> t.BinaryIO:
    """Open a regular file for reading. A named pipe is refused, not waited for.

    :param follow: whether the path may be a symbolic link.
    :raises NotRegularFile: it is something else. OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularFile(errno.EINVAL, "not a regular file", path)
    return os.fdopen(descriptor, "rb")


def status(path: str) -> t.Optional[os.stat_result]:
    """Return what the file system says of a file; None if there is none. Symbolic links are not followed."""
    with contextlib.suppress(OSError):
        return os.lstat(path)
    return None


def mode(path: str) -> int:
    """Return the type of a file and its permission bits; 0 if there is none. Symbolic links are not followed."""
    found = status(path)
    return found.st_mode if found else 0


def is_directory(path: str) -> bool:
    """Return whether there is a directory. A symbolic link is none."""
    return stat.S_ISDIR(mode(path))


def read(path: str) -> t.Optional[bytes]:
    """Read the bytes of a file; None if it does not exist.

    :raises NodeError: it exists and cannot be read, or is not a regular file.
    """
    with failing_to("read", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with open_regular(path) as handle:
            return handle.read()
    return None


def read_json(path: str, largest: int) -> t.Tuple[t.Any, float]:
    """Return what a file of JSON has, and when it was written: seconds since the epoch. No link is followed.

    :param largest: bytes; one that is larger is damaged.
    :raises OSError, ValueError, RecursionError: there is none, or it is damaged.
    """
    with open_regular(path, follow=False) as handle:
        written, content = os.fstat(handle.fileno()).st_mtime, handle.read(largest + 1)
    if len(content) > largest:
        raise ValueError
    return json.loads(content.decode("utf-8")), written


def lines(path: str, most: int = 1 << 20) -> t.List[str]:
    """Return the lines of a file of the kernel; none if it cannot be read.

    :param most: bytes that are read.
    """
    try:
        with open_regular(path) as handle:
            return handle.read(most).decode("ascii", "replace").splitlines()
    except OSError:
        return []


def write(
    path: str,
    content: bytes,
    mode: int = 0o600,
    owner: t.Optional[t.Tuple[int, int]] = None,
    attributes: t.Iterable[t.Tuple[str, bytes]] = (),
    folder: t.Optional[int] = None,
) -> None:
    """Put a file in place with one rename. What was there, a symbolic link too, is replaced and not followed.

    :param mode: permission bits, independent of the umask.
    :param owner: user id and group id; None means those of this process.
    :param attributes: extended attributes; those that this process may not set are left out.
    :param folder: mode of the directory, which is created if it is missing; None: it is there.
    :raises NodeError: naming the path and the reason; the previous file is still there.
    """
    if folder is not None:
        make_directory(os.path.dirname(path), folder)
    # Neither *.yaml nor *.env matches the name.
    draft = os.path.join(os.path.dirname(path), ".%s.%s.tmp" % (os.path.basename(path), os.urandom(8).hex()))
    with failing_to("write", path):
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(content)
                if owner is not None:
                    os.fchown(out.fileno(), *owner)
                os.fchmod(out.fileno(), mode)
                _set_attributes(out.fileno(), attributes)
                out.flush()
                os.fsync(out.fileno())
            os.rename(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise


def _set_attributes(descriptor: int, attributes: t.Iterable[t.Tuple[str, bytes]]) -> None:
    for name, value in attributes:
        # Some labels only the kernel may set; the default of the directory then applies.
        with contextlib.suppress(OSError):
            os.setxattr(descriptor, name, value)


def touch(path: str, moment: t.Optional[float] = None) -> None:
    """Set the modification time of a file. Nothing is done if it does not exist.

    :param moment: seconds since the epoch; None: now.
    :raises NodeError: naming the path and the reason.
    """
    with failing_to("write", path), contextlib.suppress(FileNotFoundError):
        os.utime(path, None if moment is None else (moment, moment), follow_symlinks=False)


def flush_directory(path: str) -> None:
    """Flush a directory to the disk, which makes renames in it durable. Failing to is ignored: the files are there."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_read_only(path: str) -> bool:
    """Return whether a path is on a file system that is mounted read-only. The path need not exist."""
    folder = os.path.dirname(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return bool(os.statvfs(folder).f_flag & _READ_ONLY)


def remove(path: str, how: t.Callable[[str], None] = os.unlink) -> None:
    """Remove a file, or a symbolic link; one that does not exist is not an error.

    :param how: of a directory ``os.rmdir``, or ``shutil.rmtree``, which does not follow symbolic links.
    :raises NodeError: naming the path and the reason.
    """
    with failing_to("remove", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        how(path)


def make_directory(path: str, mode: int) -> None:
    """Create a directory and its parents; one that exists keeps its mode.

    :raises NodeError: naming the path and the reason.
    """
    with failing_to("create directory", path):
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
            # The umask may have taken bits away that the agent, or an operator, needs.
            os.chmod(path, mode)
        if not os.path.isdir(path):
            raise NodeError("%s exists and is not a directory" % path)
