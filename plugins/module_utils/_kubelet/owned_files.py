# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that belong to the operator or to another program: read one, and replace it in one step.

Owner, mode and labels stay. A file that cannot be replaced without side effects is refused before anything is written.
"""

from __future__ import annotations

import os
import stat
import typing as t

from .._errors import ConfigError, NodeError
from .._system import files

#: Larger than any file of arguments, small enough to read in one go (bytes).
LARGEST = 1 << 20

#: Mode of a new file, as /etc/default/kubelet has it.
NEW_MODE = 0o644


class FileVersion(t.NamedTuple):
    """A file as it was at one moment. ``data`` is None if there was no file."""

    path: str
    data: t.Optional[bytes]
    mode: int = NEW_MODE
    uid: int = 0
    gid: int = 0
    attributes: t.Tuple[t.Tuple[str, bytes], ...] = ()
    #: what tells this state of the file from a later one
    identity: t.Tuple[int, ...] = ()

    @property
    def text(self) -> t.Optional[str]:
        """The content.

        :raises ConfigError: it is not UTF-8 text.
        """
        if self.data is None:
            return None
        try:
            text = self.data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise ConfigError(
                "%s is not UTF-8 text (byte %d), and systemd would ignore parts of it; file unchanged; fix it"
                % (self.path, exc.start)
            ) from None
        if "\0" in text:
            raise ConfigError("%s contains a NUL byte; file unchanged; fix it" % self.path)
        return text


def read_version(path: str) -> FileVersion:
    """Read a regular file; one that does not exist is a version without data.

    :raises ConfigError: something else than a regular file is there, or the file is too large.
    :raises NodeError: it cannot be read.
    """
    try:
        with files.open_regular(path) as handle:
            status = os.fstat(handle.fileno())
            if status.st_size > LARGEST:
                raise ConfigError("%s is larger than %d bytes; file unchanged" % (path, LARGEST))
            return FileVersion(
                path,
                handle.read(LARGEST + 1),
                stat.S_IMODE(status.st_mode),
                status.st_uid,
                status.st_gid,
                _attributes(handle.fileno()),
                _identity(status),
            )
    except files.NotRegularFile:
        raise ConfigError("%s is not a regular file; file unchanged" % path) from None
    except (FileNotFoundError, NotADirectoryError):
        return FileVersion(path, None)
    except OSError as exc:
        raise NodeError("cannot read %s: %s; file unchanged" % (path, exc.strerror)) from None


def _identity(status: os.stat_result) -> t.Tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _attributes(descriptor: int) -> t.Tuple[t.Tuple[str, bytes], ...]:
    """Read SELinux label, ACLs and the like; empty on file systems without them."""
    try:
        return tuple((name, os.getxattr(descriptor, name)) for name in sorted(os.listxattr(descriptor)))
    except OSError:
        return ()


def check_replaceable(version: FileVersion) -> None:
    """Refuse a file whose replacement would not be what its owner expects.

    :raises ConfigError: it is a symbolic link (another program keeps the real file), has other hard links (they would
        keep the old content), or changed since it was read.
    """
    path = version.path
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        status = None
    except OSError as exc:
        raise NodeError("cannot check %s: %s; file unchanged" % (path, exc.strerror)) from None
    if status is not None and stat.S_ISLNK(status.st_mode):
        raise ConfigError(
            "%s is a symlink to %s, a file managed elsewhere; file unchanged; edit that file, or replace the symlink "
            "with a regular file" % (path, os.readlink(path))
        )
    if status is not None and status.st_nlink > 1:
        raise ConfigError(
            "%s has %d hard links, and the others would keep the old content; file unchanged; replace it with a copy "
            "that has no other links" % (path, status.st_nlink)
        )
    if (() if status is None else _identity(status)) != version.identity:
        raise ConfigError("%s was changed by another program during this run; that change is kept; run again" % path)


def replace(version: FileVersion, data: t.Optional[bytes]) -> FileVersion:
    """Put new content in place of what was read, in one step; with None, remove the file.

    Mode, owner and extended attributes stay. The new content is on the disk before it takes the old one's name.

    :returns: the file as it is now.
    :raises ConfigError: see ``check_replaceable``.
    :raises NodeError: the file system refuses (read-only, full, immutable file); the old file is still there.
    """
    check_replaceable(version)
    directory = os.path.dirname(version.path)
    try:
        if data is not None:
            if not os.path.isdir(directory):
                os.mkdir(directory, 0o755)
            files.write(version.path, data, version.mode, (version.uid, version.gid), version.attributes)
        elif version.data is not None:
            files.remove(version.path)
    except NodeError as exc:
        raise NodeError("%s; file unchanged" % exc) from None
    except OSError as exc:
        raise NodeError("cannot create directory %s: %s; file unchanged" % (directory, exc.strerror)) from None
    files.flush_directory(directory)
    return read_version(version.path)
