# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network namespaces without names: each is held by a file descriptor of this process, and ends with it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import typing as t

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def setns(fd: int) -> None:
    """Move the calling thread into the network namespace of *fd*."""
    _checked(_libc.setns(fd, CLONE_NEWNET))


def _mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None))


def private_files() -> None:
    """Give the calling process a /run, a /var/lib and a /sys of its own."""
    _checked(_libc.unshare(CLONE_NEWNS))
    _mount("none", "/", "none", MS_REC | MS_PRIVATE)
    _mount("tmpfs", "/run", "tmpfs")
    _mount("tmpfs", "/var/lib", "tmpfs")
    os.mkdir("/run/cgroup")
    _mount("/sys/fs/cgroup", "/run/cgroup", "none", MS_BIND | MS_REC)
    _mount("sysfs", "/sys", "sysfs")
    _mount("/run/cgroup", "/sys/fs/cgroup", "none", MS_BIND | MS_REC)


class Failed(Exception):
    """A command that ended with another status than 0."""


class Namespace:
    """One network namespace. Nothing on the disk refers to it."""

    _home: t.ClassVar[int] = -1

    def __init__(self) -> None:
        if Namespace._home < 0:
            Namespace._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _checked(_libc.unshare(CLONE_NEWNET))
        try:
            self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            setns(Namespace._home)

    @property
    def path(self) -> str:
        """A name of it that ``ip link ... netns`` takes."""
        return "/proc/%d/fd/%d" % (os.getpid(), self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> None:
        setns(self.fd)

    def __exit__(self, *_exc: object) -> None:
        setns(Namespace._home)

    def run(self, argv: t.Sequence[str], text: str = "", private: bool = False) -> str:
        """Run a command in the namespace and return its output.

        :raises Failed: with what it printed.
        """

        def enter() -> None:
            setns(self.fd)
            if private:
                private_files()

        done = subprocess.run(
            argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=enter
        )
        if done.returncode != 0:
            raise Failed("%s: %d: %s%s" % (" ".join(argv), done.returncode, done.stderr[-2000:], done.stdout[-2000:]))
        return done.stdout

    def ip(self, lines: t.Sequence[str]) -> None:
        """Run lines of iproute2."""
        if lines:
            self.run(["ip", "-batch", "-"], "\n".join(lines) + "\n")

    def sysctl(self, values: t.Mapping[str, object]) -> None:
        """Write kernel settings of the namespace."""
        with self:
            for name, value in values.items():
                with open("/proc/sys/net/" + name, "w", encoding="ascii") as setting:
                    setting.write(str(value))
