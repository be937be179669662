# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network namespaces that always go away again."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import fcntl
import functools
import itertools
import os
import signal
import socket
import struct
import subprocess
import time
import typing as t
from pathlib import Path

T = t.TypeVar("T")

#: Every namespace of a test run is called ``ipmasq-<pid of the run>-<number>``.
PREFIX = "ipmasq"
_numbers = itertools.count(1)
_NAMES = Path("/run/netns")

_LIBC = ctypes.CDLL(None, use_errno=True)
# From linux/sched.h, linux/mount.h and linux/sockios.h.
_CLONE_FS, _CLONE_NEWNS, _CLONE_NEWNET = 0x200, 0x20000, 0x40000000
_MS_BIND, _MS_MOVE, _MS_REC, _MS_SLAVE = 0x1000, 0x2000, 0x4000, 0x80000
_MNT_DETACH = 2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def call(name: str, *arguments: t.Union[int, bytes, None]) -> None:
    """Call a function of the C library.

    :raises OSError: it failed.
    """
    if getattr(_LIBC, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "%s%r: %s" % (name, arguments, os.strerror(error)))


def _mount(source: str, target: str, kind: t.Optional[str] = None, flags: int = 0) -> None:
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, None)


@functools.lru_cache(maxsize=None)
def _share_names() -> None:
    """Have ip make the directory of the names a mount that every mount namespace shares, as it does on first use."""
    name = "%s-%d-0" % (PREFIX, os.getpid())
    for action in ("add", "del"):
        subprocess.run(["ip", "netns", action, name], check=True)


def _pids(name: str) -> t.Set[int]:
    """Return the processes in the network namespace ``name``."""
    inside = os.stat(_NAMES / name)
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is not ours to ask
            if os.path.samestat(inside, os.stat("/proc/%s/ns/net" % pid)):
                found.add(int(pid))
    return found


def _remove(name: str) -> None:
    """End what runs in the namespace ``name`` and delete it. Never fails."""
    with contextlib.suppress(OSError):
        for pid in _pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        call("umount2", os.fsencode(_NAMES / name), _MNT_DETACH)
    with contextlib.suppress(OSError):
        os.unlink(_NAMES / name)


def sweep() -> None:
    """Delete the namespaces of runs that were killed: those named after a process that is no more."""
    for path in _NAMES.glob(PREFIX + "-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _remove(path.name)


def until(condition: t.Callable[[], bool], what: str) -> None:
    """Return as soon as ``condition`` holds.

    :param what: what is waited for, for the message.
    :raises AssertionError: it did not come about within a minute.
    """
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain: " + what
        time.sleep(0.005)


class Namespace:
    """One network namespace with a /run of its own. Delete it with ``delete``, or use it in ``with``.

    It is made, and programs are started inside, by threads that move there. That takes a tenth of the time of tens of
    thousands of programs that do so.
    """

    def __init__(self) -> None:
        _share_names()
        self.name = "%s-%d-%d" % (PREFIX, os.getpid(), next(_numbers))
        self._network = _NAMES / self.name
        self._network.touch()
        try:
            #: holds the mounts for as long as it is open
            self._mounts = _in_thread(self._make)
        except OSError as exc:
            _remove(self.name)
            raise RuntimeError("cannot set up a namespace (the tests of the kernel need root): %s" % exc) from exc
        self._entrances = {"net": str(self._network), "mnt": "/proc/%d/fd/%d" % (os.getpid(), self._mounts)}

    def _make(self) -> int:
        call("unshare", _CLONE_NEWNET)
        _mount("/proc/thread-self/ns/net", str(self._network), flags=_MS_BIND)
        call("unshare", _CLONE_NEWNS)
        _mount("none", "/", flags=_MS_REC | _MS_SLAVE)
        # As `ip netns exec` does it; what is mounted below the other /sys is not there then.
        call("umount2", b"/sys", _MNT_DETACH)
        _mount("sysfs", "/sys", "sysfs")
        # The locks of iptables-legacy and the module lie in /run, and test runs must not wait for each other. The names
        # of the namespaces stay visible.
        _mount(str(_NAMES), "/mnt", flags=_MS_BIND | _MS_REC)
        _mount("none", "/run", "tmpfs")
        _NAMES.mkdir()
        _mount("/mnt", str(_NAMES), flags=_MS_MOVE)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
        return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.delete()

    def delete(self) -> None:
        """End what still runs inside and delete the namespace. Never fails."""
        _remove(self.name)
        if self._mounts >= 0:
            os.close(self._mounts)
            self._mounts = -1

    def argv(self, *argv: str) -> t.List[str]:
        """Return the command line that runs ``argv`` inside, in /. The process id is that of ``argv`` itself."""
        return ["nsenter", "--net=" + self._entrances["net"], "--mount=" + self._entrances["mnt"], "--", *argv]

    def enter(self, *kinds: str) -> None:
        """Move this thread inside, for good.

        :param kinds: ``net``, ``mnt``; default: both.
        :raises OSError: the kernel refused.
        """
        call("unshare", _CLONE_FS)  # threads share the root and the current directory, which mnt changes
        for entrance in [open(self._entrances[kind], "rb") for kind in kinds or ("net", "mnt")]:
            with entrance:
                call("setns", entrance.fileno(), 0)

    def inside(self, function: t.Callable[..., T], *arguments: t.Any, **keywords: t.Any) -> T:
        """Call a function in a thread that is inside. So are the programs that it starts, in /."""

        def enter_and_call() -> T:
            self.enter()
            return function(*arguments, **keywords)

        return _in_thread(enter_and_call)

    def run(self, *argv: str, stdin: t.Optional[str] = None, check: bool = True) -> str:
        """Run a program inside to its end and return its standard output.

        :raises AssertionError: it failed, and ``check`` is set.
        """
        done = self.inside(
            subprocess.run, argv, input=stdin or "", capture_output=True, text=True, check=False, env=_plain_env()
        )
        if check:
            assert done.returncode == 0, "%s: exit status %d: %s" % (" ".join(argv), done.returncode, done.stderr)
        return done.stdout

    def popen(self, *argv: str) -> subprocess.Popen[str]:
        """Start a program inside, with pipes for its standard input and output."""
        return self.inside(
            subprocess.Popen, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_plain_env()
        )

    def pids(self) -> t.Set[int]:
        """Return the processes inside."""
        return _pids(self.name)

    def read(self, path: str) -> str:
        """Return a file as seen inside (``/proc/net/...`` differs); empty if it does not exist."""
        return self.run("cat", path, check=False)


def _in_thread(function: t.Callable[[], T]) -> T:
    """Call a function in a thread of its own, which may change its namespaces: it ends with the call."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def _plain_env() -> t.Dict[str, str]:
    """Return the environment without what would change the programs' language."""
    return dict(os.environ, LC_ALL="C", LANGUAGE="C")
