# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network namespaces without names, in a process of their own: quick to make, and gone with the process.

``carry_out`` runs a function in such a process. Inside, ``Net`` is one namespace; ``with net:`` moves the
process there, with all programs and sockets that it starts meanwhile.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import traceback
import typing as t

from .namespaces import Namespace, call

_FORK = multiprocessing.get_context("fork")
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_REC_PRIVATE = 0x44000
_PR_SET_PDEATHSIG = 1

T = t.TypeVar("T")


def carry_out(work: t.Callable[..., T], *arguments: t.Any) -> T:
    """Call a function in a process of its own, with a /run of its own, and return what it returns.

    :raises AssertionError: it raised an exception; the message has the traceback.
    """
    return _in_process(_private_run, work, arguments)


def inside(ns: Namespace, work: t.Callable[..., T], *arguments: t.Any) -> T:
    """Call a function in a process in a namespace, and return what it returns.

    :raises AssertionError: it raised an exception; the message has the traceback.
    """
    return _in_process(ns.enter, work, arguments)


def _in_process(prepare: t.Callable[[], None], work: t.Callable[..., T], arguments: t.Tuple[t.Any, ...]) -> T:
    ours, theirs = _FORK.Pipe()
    pid = os.fork()
    if pid == 0:
        try:
            call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
            ours.close()
            prepare()
            outcome: t.Tuple[bool, t.Any] = (True, work(*arguments))
        except BaseException:
            outcome = (False, traceback.format_exc())
        with contextlib.suppress(OSError):
            theirs.send(outcome)
        os._exit(0)
    theirs.close()
    try:
        done, value = ours.recv()
    except EOFError:
        done, value = False, "the process ended without a word"
    finally:
        ours.close()
        os.waitpid(pid, 0)
    assert done, value
    return t.cast(T, value)


def _private_run() -> None:
    call("unshare", _CLONE_NEWNS)
    call("mount", b"none", b"/", None, _MS_REC_PRIVATE, None)
    call("mount", b"none", b"/run", b"tmpfs", 0, None)


class Net:
    """One network namespace of this process."""

    def __init__(self) -> None:
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        call("unshare", _CLONE_NEWNET)
        self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        call("setns", here, _CLONE_NEWNET)
        os.close(here)
        self._before: t.List[int] = []
        self.batch("link set lo up")

    def __enter__(self) -> Net:
        self._before.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        call("setns", self.fd, _CLONE_NEWNET)
        return self

    def __exit__(self, *_exc: object) -> None:
        before = self._before.pop()
        call("setns", before, _CLONE_NEWNET)
        os.close(before)

    def run(self, *argv: str, stdin: str = "") -> str:
        """Run a program to its end and return its standard output.

        :raises AssertionError: it failed.
        """
        env = dict(os.environ, LC_ALL="C", PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        with self:
            done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, env=env)
        said = "%s: exit status %d: %s\n%s" % (" ".join(argv), done.returncode, done.stderr, stdin)
        assert done.returncode == 0, said
        return done.stdout

    def batch(self, *lines: str, version: int = 4) -> None:
        """Give lines to ``ip -batch``."""
        self.run("ip", "-%d" % version, "-batch", "-", stdin="".join(line + "\n" for line in lines))

    def set(self, **settings: t.Any) -> None:
        """Set kernel settings; in their names __ stands for a slash."""
        with self:
            for name, value in settings.items():
                with open("/proc/sys/net/" + name.replace("__", "/"), "w", encoding="ascii") as opened:
                    opened.write(str(value))

    def cable(self, name: str, other: Net, other_name: str) -> None:
        """Join two namespaces."""
        line = "link add %s type veth peer name %s netns /proc/%d/fd/%d"
        self.batch(line % (name, other_name, os.getpid(), other.fd), "link set %s up" % name)
        other.batch("link set %s up" % other_name)
