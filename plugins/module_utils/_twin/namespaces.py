# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process in namespaces of its own, which end with it, as it ends with the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import multiprocessing.connection
import os
import signal
import time
import typing as t

from .._errors import NodeError
from .._system import libc

_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NOEXEC, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x8, 0x4, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_HERE = "/proc/thread-self/ns/net"

#: More than any process of ours has open.
_MAX_FD = 1 << 16


def stay_on_this_cpu() -> None:
    """Keep this process on the CPU that it runs on. Not every Python has os.sched_setaffinity: PyPy does not."""
    cpu, bits = ctypes.CDLL(None).sched_getcpu(), 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (cpu // bits + 1))()
    mask[cpu // bits] = 1 << cpu % bits
    libc.call("sched_setaffinity", 0, ctypes.sizeof(mask), mask)


def new_network() -> int:
    """Move this process into a new network namespace.

    :returns: a file descriptor for it.
    """
    libc.call("unshare", _CLONE_NEWNET)
    return this_network()


def this_network() -> int:
    """Open the network namespace of this process."""
    return os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)


def enter(network: int) -> None:
    """Move this process into a network namespace."""
    libc.call("setns", network, _CLONE_NEWNET)


@contextlib.contextmanager
def within(network: int) -> t.Iterator[None]:
    """Enter another network namespace for a while: sockets that are opened there stay there."""
    before = this_network()
    enter(network)
    try:
        yield
    finally:
        enter(before)
        os.close(before)


class Worker:
    """A process in new network, mount and process namespaces; it makes an object there, and calls its methods for us.

    Its processes are gone when it is, whatever they do: it is the first of its process namespace. It is killed when the
    thread that started it ends, also by SIGKILL. ``seconds`` is the CPU time of all of them, up to their last answers.
    """

    seconds = 0.0

    def __init__(self, make: t.Callable[[], t.Any], timeout: float) -> None:
        """Start it, and have it call ``make``.

        :param timeout: seconds that may take.
        :raises NodeError: the kernel does not let us make namespaces, or ``make`` raised it, or took too long.
        """
        ours, theirs = multiprocessing.connection.Pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                ours.close()
                _keep(parent, theirs, make)
            finally:
                os._exit(1)
        theirs.close()
        self._pipe = ours
        self._seconds = 0.0
        try:
            self._receive(timeout)
        except NodeError:
            self.close(kill=True)
            raise

    def call(self, method: str, *arguments: t.Any, timeout: float) -> t.Any:
        """Call a method of the object.

        :raises NodeError: the method raised it, it took longer than ``timeout`` seconds, or the process is gone.
        """
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise NodeError("the process that holds the twin of this node has ended") from None
        return self._receive(timeout)

    def _receive(self, timeout: float) -> t.Any:
        try:
            if not self._pipe.poll(timeout):
                self.close(kill=True)
                raise NodeError("the twin of this node did not answer within %g seconds" % timeout)
            kind, value, seconds = self._pipe.recv()
        except (EOFError, OSError):
            self.close(kill=True)
            raise NodeError("the process that holds the twin of this node has ended") from None
        Worker.seconds += seconds - self._seconds
        self._seconds = seconds
        if kind == "done":
            return value
        raise NodeError(value)

    def close(self, kill: bool = False) -> None:
        """End the process, and with it all that it holds."""
        if not self._pid:
            return
        pid, self._pid = self._pid, 0
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # It ends when it sees that its pipe is closed.
        self._pipe.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _keep(parent: int, pipe: multiprocessing.connection.Connection, make: t.Callable[[], t.Any]) -> None:
    """Make the namespaces, and hold the process that lives in them: the work of the child."""
    _end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal signals the whole group; the parent decides
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _close_all_but(pipe.fileno())
    try:
        libc.call("unshare", _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET)
    except OSError as exc:
        pipe.send(("failed", _reason(exc), 0.0))
        os._exit(1)
    child = os.fork()
    if child == 0:
        try:
            _end_with(0)
            _mount()
            _serve(pipe, make)
        finally:
            os._exit(1)
    pipe.close()
    os.waitpid(child, 0)
    os._exit(0)


def _reason(exc: OSError) -> str:
    why = {
        errno.EPERM: "it needs CAP_SYS_ADMIN, and a service without RestrictNamespaces=",
        errno.ENOSPC: "the limit of /proc/sys/user/max_net_namespaces is reached",
        errno.EINVAL: "the kernel has no network, mount or process namespaces",
    }.get(exc.errno or 0)
    return "cannot make namespaces: %s%s" % (exc.strerror, ": " + why if why else "")


def _end_with(parent: int) -> None:
    """End this process when its parent ends.

    :param parent: its process id; 0 where it is in another process namespace.
    """
    libc.call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _close_all_but(kept: int) -> None:
    """Hold nothing open that belongs to the parent: locks, pipes, sockets."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        if standard != kept:
            os.dup2(null, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, _MAX_FD)


def _mount() -> None:
    """Mount a /run for the locks of iptables, and a /proc of these namespaces: a container's own may be read-only."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    libc.mount(b"none", b"/run", b"tmpfs", flags, b"size=1m,mode=755")
    libc.mount(b"proc", b"/proc", b"proc", flags, None)


def _serve(pipe: multiprocessing.connection.Connection, make: t.Callable[[], t.Any]) -> None:
    kind, target = _outcome(make)
    pipe.send((kind, None if kind == "done" else target, time.process_time()))
    while kind == "done":
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        outcome = _outcome(functools.partial(getattr(target, method), *arguments))
        pipe.send((*outcome, time.process_time()))


def _outcome(work: t.Callable[[], t.Any]) -> t.Tuple[str, t.Any]:
    try:
        return "done", work()
    except NodeError as exc:
        return "failed", str(exc)
    except Exception as exc:
        return "failed", "%s: %s" % (type(exc).__name__, exc)
