# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of a path: each a context manager that has the fault there, and takes it away."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
import typing as t

from . import fuse

#: Where file systems of a single file are.
_ELSEWHERE = "/run/faults/full"
_NOBODY = 65534
#: What is copied onto a full disk: the content of our own directories.
_SMALL = 1 << 20

Fault = t.Callable[["Place"], t.ContextManager[None]]


class Place(t.NamedTuple):
    """A path, and what is there on a node in order."""

    path: str
    directory: bool = False

    def make(self) -> None:
        """Create it, empty."""
        if self.directory:
            os.mkdir(self.path)
        else:
            with open(self.path, "wb"):
                pass


def remove(path: str) -> None:
    """Remove whatever is at a path. The agent may replace files below it meanwhile."""
    while os.path.lexists(path):
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


def put_back(kept: str, path: str) -> None:
    """Rename something to a path, and remove what is there. At no time is nothing there: the agent might fill it."""
    if os.path.lexists(path):
        fuse.exchange(kept, path)
        remove(kept)
    else:
        os.rename(kept, path)


@contextlib.contextmanager
def _aside(path: str) -> t.Iterator[None]:
    """Take away what is at a path, and what the agent makes there meanwhile."""
    kept, mounted = path + ".kept", os.path.ismount(path)
    if mounted:
        fuse.unmount(path)
    there = os.path.lexists(path)
    if there:
        os.rename(path, kept)
    try:
        yield
    finally:
        if there:
            put_back(kept, path)
        else:
            remove(path)
        if mounted:
            fuse.mount("tmpfs", path, "tmpfs", fuse.MS_NOSUID | fuse.MS_NODEV)


@contextlib.contextmanager
def _there(place: Place) -> t.Iterator[None]:
    """Have something at a path."""
    if os.path.lexists(place.path):
        yield
        return
    place.make()
    try:
        yield
    finally:
        remove(place.path)


@contextlib.contextmanager
def missing(place: Place) -> t.Iterator[None]:
    """Nothing is there."""
    with _aside(place.path):
        yield


@contextlib.contextmanager
def _link(target: str, place: Place) -> t.Iterator[None]:
    with _aside(place.path):
        os.symlink(target or os.path.basename(place.path), place.path)
        yield


@contextlib.contextmanager
def other_kind(place: Place) -> t.Iterator[None]:
    """A file in place of a directory, or the other way round."""
    with _aside(place.path):
        place._replace(directory=not place.directory).make()
        yield


@contextlib.contextmanager
def fifo(place: Place) -> t.Iterator[None]:
    """A FIFO that nobody reads or writes."""
    with _aside(place.path):
        os.mkfifo(place.path)
        yield


@contextlib.contextmanager
def mode_0(place: Place) -> t.Iterator[None]:
    """Nobody may do anything, but root."""
    with _there(place):
        before = os.stat(place.path)
        os.chmod(place.path, 0)
        try:
            yield
        finally:
            if os.path.lexists(place.path):
                os.chmod(place.path, stat.S_IMODE(before.st_mode))


@contextlib.contextmanager
def other_owner(place: Place) -> t.Iterator[None]:
    """It belongs to somebody else."""
    with _there(place):
        before = os.stat(place.path)
        os.chown(place.path, _NOBODY, _NOBODY)
        try:
            yield
        finally:
            if os.path.lexists(place.path):
                os.chown(place.path, before.st_uid, before.st_gid)


@contextlib.contextmanager
def read_only(place: Place) -> t.Iterator[None]:
    """A read-only mount."""
    with _there(place):
        fuse.mount(place.path, place.path, flags=fuse.MS_BIND)
        try:
            fuse.mount("", place.path, flags=fuse.MS_BIND | fuse.MS_REMOUNT | fuse.MS_RDONLY)
            yield
        finally:
            fuse.unmount(place.path)


@contextlib.contextmanager
def _on_disk(inodes: int, exhaust: t.Callable[[str], None], place: Place) -> t.Iterator[None]:
    """Have the path on a disk of its own, with its content if that is little, and exhaust it."""
    disk = place.path if place.directory else _ELSEWHERE
    with _there(place):
        content = HELD + "/content"
        _copy(place, content)
        os.makedirs(disk, exist_ok=True)
        fuse.mount("tmpfs", disk, "tmpfs", data="size=4m,nr_inodes=%d,mode=755" % inodes)
        try:
            if place.directory:
                shutil.copytree(content, disk, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(content, disk + "/file")
                fuse.mount(disk + "/file", place.path, flags=fuse.MS_BIND)
            exhaust(disk)
            try:
                yield
            finally:
                if not place.directory:
                    fuse.unmount(place.path)
        finally:
            fuse.unmount(disk)
            remove(content)


#: Where content waits to be copied.
HELD = "/run/faults/held"


def _copy(place: Place, content: str) -> None:
    os.makedirs(HELD, exist_ok=True)
    remove(content)
    if not place.directory:
        shutil.copy2(place.path, content)
        return
    for _attempt in range(100):
        try:
            shutil.copytree(place.path, content, symlinks=True, ignore=None if _is_small(place.path) else _all)
            return
        except (shutil.Error, FileNotFoundError):  # a file that the agent has just replaced
            remove(content)
    raise AssertionError("%s changes all the time" % place.path)


def _is_small(folder: str) -> bool:
    paths = [os.path.join(below, name) for below, _folders, names in os.walk(folder) for name in names]
    return len(paths) < 100 and sum(os.lstat(path).st_size for path in paths) < _SMALL


def _all(_folder: str, names: t.List[str]) -> t.List[str]:
    return names


def _fill(disk: str) -> None:
    with contextlib.suppress(OSError), open(disk + "/filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def _use_inodes(disk: str) -> None:
    number = 0
    with contextlib.suppress(OSError):
        while True:
            os.mknod("%s/filler%d" % (disk, number))
            number += 1


@contextlib.contextmanager
def _served(answer: int, place: Place) -> t.Iterator[None]:
    with _there(place):
        served = fuse.Fuse(place.path, answer)
        try:
            yield
        finally:
            served.close()


FAULTS: t.Dict[str, Fault] = {
    "missing": missing,
    #: a link to itself, to a name that no file can have, and below a file
    "loop": functools.partial(_link, ""),
    "ENAMETOOLONG": functools.partial(_link, "x" * 300),
    "ENOTDIR": functools.partial(_link, "/proc/version/x"),
    "other kind": other_kind,
    "FIFO": fifo,
    "mode 0": mode_0,
    "other owner": other_owner,
    "read-only": read_only,
    #: a disk without space, and one with space and no inodes
    "full": functools.partial(_on_disk, 1000, _fill),
    "no inodes": functools.partial(_on_disk, 200, _use_inodes),
    #: a file system that refuses everything, also to root; whose server is gone; that does not answer: who has asked it
    #: cannot be killed
    "FUSE EACCES": functools.partial(_served, errno.EACCES),
    "FUSE ENOTCONN": functools.partial(_served, fuse.GONE),
    "FUSE never": functools.partial(_served, fuse.NEVER),
}
