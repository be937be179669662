# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory that another user may own, such as that of node_exporter's metrics: found once, and written to without
following a link on the way. Written at each resync with metrics, so this file loads little.
"""

from __future__ import annotations

import errno
import os

from .._errors import NodeError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

#: What a link in the place of a directory is to open(2).
_CHANGED = " is not the directory any more that it was when the agent was installed"

#: Links on the way to a directory, as of path_resolution(7).
_MOST_LINKS = 40


def resolve(path: str) -> str:
    """Return the path of a directory without symbolic links.

    :raises PermissionError: another user than root may set a link on the way; its text names it.
    :raises OSError: a part does not exist. NodeError: it is no directory.
    """
    done, ahead, links = "/", [part for part in path.split("/")[::-1] if part], 0
    while ahead:
        part = os.path.join(done, ahead.pop())
        if os.path.islink(part):
            links += 1
            if links > _MOST_LINKS:
                os.stat(path)  # raises the error of a loop
            if not _is_of_root(done) or os.lstat(part).st_uid != 0:
                raise PermissionError("%s is a symbolic link that another user than root can change" % part)
            target = os.readlink(part)
            done = "/" if target.startswith("/") else done
            ahead += [one for one in target.split("/")[::-1] if one not in ("", ".")]
        elif os.path.basename(part) == "..":
            done = os.path.dirname(done)
        else:
            done = part
    os.close(_open(done))
    return done


def _is_of_root(folder: str) -> bool:
    about = os.stat(folder)
    return about.st_uid == 0 and not about.st_mode & 0o022


def _open(path: str) -> int:
    folder, done = os.open("/", _FOLDER), ""
    for part in filter(None, path.split("/")):
        above, done = folder, done + "/" + part
        try:
            folder = os.open(part, _FOLDER, dir_fd=above)
        except OSError as exc:
            problem = _CHANGED if exc.errno in (errno.ELOOP, errno.ENOTDIR) else ": %s" % exc.strerror
            raise NodeError("cannot write to %s: %s%s" % (path, done, problem)) from None
        finally:
            os.close(above)
    return folder


def write(folder: str, name: str, content: bytes) -> None:
    """Put a file that everybody may read into a directory, in one rename.

    :param folder: without symbolic links; one that has come since is not followed.
    :raises NodeError: it cannot be written, or the directory is another one.
    """
    where = _open(folder)
    try:
        _put(where, name, content)
    except OSError as exc:
        raise NodeError("cannot write to %s: %s: %s" % (folder, name, exc.strerror)) from None
    finally:
        os.close(where)


def _put(where: int, name: str, content: bytes) -> None:
    draft = ".%s.%s.tmp" % (name, os.urandom(8).hex())
    handle = os.open(draft, _NEW_FILE, 0o600, dir_fd=where)
    try:
        with open(handle, "wb") as out:
            out.write(content)
            os.fchmod(handle, 0o644)
        os.rename(draft, name, src_dir_fd=where, dst_dir_fd=where)
    except BaseException:
        os.unlink(draft, dir_fd=where)
        raise
