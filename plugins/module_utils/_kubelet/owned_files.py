# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that belong to the operator or to another program: read one, and replace it in one step.

Owner, mode and labels stay. A file that cannot be replaced without side effects is refused before anything is written.
"""

from __future__ import annotations

import contextlib
import os
import stat
import typing as t

from .._errors import ConfigError, NodeError
from .._system import files

#: Mode of a new file, as /etc/default/kubelet has it.
NEW_MODE = 0o644


class FileVersion(t.NamedTuple):
    """A file as it was at one moment; without data and status there was none."""

    path: str
    data: t.Optional[bytes] = None
    status: t.Optional[os.stat_result] = None
    #: SELinux label, ACLs and the like
    attributes: t.Tuple[t.Tuple[str, bytes], ...] = ()

    @property
    def text(self) -> str:
        """The content; empty if there is no file.

        :raises ConfigError: it is not UTF-8 text, or has NUL bytes: systemd would ignore parts of it.
        """
        try:
            text = (self.data or b"").decode("utf-8")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise ConfigError("%s is not UTF-8 text without NUL bytes; file unchanged; fix it" % self.path)
        return text


def read_version(path: str) -> FileVersion:
    """Read a regular file.

    :raises ConfigError: something else than a regular file is there.
    :raises NodeError: it cannot be read.
    """
    try:
        with files.open_regular(path) as handle:
            attributes: t.List[t.Tuple[str, bytes]] = []
            with contextlib.suppress(OSError):  # a file system without them
                attributes += [(name, os.getxattr(handle.fileno(), name)) for name in os.listxattr(handle.fileno())]
            return FileVersion(path, handle.read(), os.fstat(handle.fileno()), tuple(attributes))
    except files.NotRegularFile:
        raise ConfigError("%s is not a regular file; file unchanged" % path) from None
    except (FileNotFoundError, NotADirectoryError):
        return FileVersion(path)
    except OSError as exc:
        raise NodeError("cannot read %s: %s; file unchanged" % (path, exc.strerror)) from None


def _identity(status: t.Optional[os.stat_result]) -> t.Tuple[int, ...]:
    """Return what tells this state of a file from a later one."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) if status else ()


def check_replaceable(version: FileVersion) -> None:
    """Refuse a file whose replacement would not be what its owner expects.

    :raises ConfigError: it is a symbolic link (another program keeps the real file), has other hard links (they would
        keep the old content), or changed since it was read.
    """
    status = files.status(version.path)
    why = ""
    if status and stat.S_ISLNK(status.st_mode):
        why = "is a symlink to %s, a file managed elsewhere; edit that file" % os.readlink(version.path)
    elif status and status.st_nlink > 1:
        why = "has %d hard links, and the others would keep the old content; replace it with a copy" % status.st_nlink
    elif _identity(status) != _identity(version.status):
        why = "was changed by another program during this run; run again"
    if why:
        raise ConfigError("%s %s; file unchanged" % (version.path, why))


def replace(version: FileVersion, data: t.Optional[bytes]) -> FileVersion:
    """Put new content in place of what was read, in one step; with None, remove the file.

    The new content is on the disk before it takes the old one's name.

    :returns: the file as it is now.
    :raises ConfigError: see ``check_replaceable``.
    :raises NodeError: the file system refuses (read-only, full, immutable file); the old file is still there.
    """
    check_replaceable(version)
    status = version.status
    if data is None:
        files.remove(version.path)
    elif status is None:
        files.write(version.path, data, NEW_MODE)
    else:
        owner = status.st_uid, status.st_gid
        files.write(version.path, data, stat.S_IMODE(status.st_mode), owner, version.attributes)
    files.flush_directory(os.path.dirname(version.path))
    return read_version(version.path)
