# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file system of FUSE that fails, spoken by hand: see fuse(4) and linux/fuse.h.

It ends with its server: where that is killed, whatever waits for an answer gets an error, and so does all that comes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import typing as t

LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1

_REQUEST = struct.Struct("=IIQQIIII")
_ANSWER = struct.Struct("=IiQ")
_FORGET, _INIT, _INTERRUPT, _BATCH_FORGET = 2, 26, 36, 42
#: version 7.31, no feature; the rest of the structure is left at 0
_INIT_ANSWER = struct.pack("=IIIIHHII", 7, 31, 4096, 0, 12, 9, 4096, 1) + bytes(36)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2)."""
    if LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def unmount(target: str) -> None:
    """Take away the mount on top, also where somebody uses it."""
    if LIBC.umount2(target.encode(), _MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def exchange(one: str, other: str) -> None:
    """Exchange two files or directories, or do nothing if there are not two."""
    LIBC.renameat2(-100, one.encode(), -100, other.encode(), 2)  # AT_FDCWD, RENAME_EXCHANGE


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


#: What the server does with requests: an error number that it answers, or one of these.
NEVER, GONE = 0, -1


class Fuse:
    """A mount on a file or directory, and its server.

    :param answer: see above. ``GONE``: the server ends at once, and each access gets ENOTCONN.
    :param user: who made the mount and runs the server.
    :param everyone: whether others may use it; root too gets EACCES otherwise.
    """

    def __init__(self, path: str, answer: int, user: int = 0, everyone: bool = True) -> None:
        self._path = path
        device = os.open("/dev/fuse", os.O_RDWR)
        kind = stat.S_IFMT(os.stat(path).st_mode)
        data = "fd=%d,rootmode=%o,user_id=%d,group_id=%d" % (device, kind | 0o755, user, user)
        try:
            mount("fuse", path, "fuse", MS_NOSUID | MS_NODEV, data + ",allow_other" * everyone)
            ready, told = os.pipe()
            self._server = os.fork()
            if self._server == 0:
                _serve(device, answer, user, told)
            os.close(told)
            os.read(ready, 1)
            os.close(ready)
        finally:
            os.close(device)

    def close(self) -> None:
        """End the server, and with it every request; then take the mount away."""
        os.kill(self._server, signal.SIGKILL)
        os.waitpid(self._server, 0)
        unmount(self._path)


def _serve(device: int, answer: int, user: int, told: int) -> t.NoReturn:
    try:
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        end_with_parent()
        while True:
            try:
                request = os.read(device, 1 << 17)
            except OSError as exc:
                if exc.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):  # a request was taken back
                    continue
                os._exit(0)
            _reply(device, answer, _REQUEST.unpack_from(request), told)
    finally:
        os._exit(1)


def _reply(device: int, answer: int, request: t.Tuple[int, ...], told: int) -> None:
    operation, unique = request[1], request[2]
    if operation == _INIT:
        os.write(device, _ANSWER.pack(_ANSWER.size + len(_INIT_ANSWER), 0, unique) + _INIT_ANSWER)
        if answer == GONE:
            os.close(device)
        os.write(told, b"!")
        if answer == GONE:
            signal.pause()
    elif answer != NEVER and operation not in (_FORGET, _INTERRUPT, _BATCH_FORGET):
        os.write(device, _ANSWER.pack(_ANSWER.size, -answer, unique))
