# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network namespaces that always go away again."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import time
import typing as t
from pathlib import Path

#: Every namespace of a test run is called ``ipmasq-<pid of the run>-<number>``.
PREFIX = "ipmasq"
_numbers = itertools.count(1)

#: Gives the namespace a /run of its own, says so, and keeps it alive. The locks of iptables-legacy and the module lie
#: there, and test runs must not wait for each other. The names of the namespaces stay visible.
_ANCHOR = """
mount --bind /run/netns /mnt
mount -t tmpfs none /run
mkdir /run/netns
mount --move /mnt /run/netns
echo ready
exec sleep infinity
"""


def _remove(name: str) -> None:
    """End what runs in the namespace ``name`` and delete it."""
    pids = subprocess.run(["ip", "netns", "pids", name], stdout=subprocess.PIPE, check=False).stdout.split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], check=False)


def sweep() -> None:
    """Delete the namespaces of runs that were killed: those named after a process that is no more."""
    for path in Path("/run/netns").glob(PREFIX + "-*-*"):
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
    """One network namespace with a /run of its own. Delete it with :meth:`delete`, or use it in ``with``."""

    def __init__(self) -> None:
        self.name = "%s-%d-%d" % (PREFIX, os.getpid(), next(_numbers))
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        self._anchor = subprocess.Popen(
            ["ip", "netns", "exec", self.name, "sh", "-ec", _ANCHOR], stdout=subprocess.PIPE
        )
        assert self._anchor.stdout is not None
        if self._anchor.stdout.readline() != b"ready\n":
            self.delete()
            raise RuntimeError("cannot set up a network namespace: the tests of the kernel need root")
        self.run("ip", "link", "set", "lo", "up")

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.delete()

    def delete(self) -> None:
        """End what still runs inside and delete the namespace. Never fails."""
        _remove(self.name)
        self._anchor.wait()
        if self._anchor.stdout is not None:
            self._anchor.stdout.close()

    def argv(self, *argv: str) -> t.List[str]:
        """The command line that runs ``argv`` inside. The process id is that of ``argv`` itself; it starts in /."""
        return ["nsenter", "--target", str(self._anchor.pid), "--net", "--mount", "--", *argv]

    def enter(self, *kinds: str) -> None:
        """Move this thread inside, for good: in a process that was just forked, or of C(net) alone, in any thread.

        :raises OSError: the kernel refused.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        for kind in kinds or ("net", "mnt"):
            with open("/proc/%d/ns/%s" % (self._anchor.pid, kind), "rb") as entrance:
                if libc.setns(entrance.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns %s" % kind)

    def run(self, *argv: str, stdin: t.Optional[str] = None, check: bool = True) -> str:
        """Run a program inside to its end and return its standard output.

        :raises AssertionError: it failed, and ``check`` is set.
        """
        done = subprocess.run(
            self.argv(*argv), input=stdin or "", capture_output=True, text=True, check=False, env=_plain_env()
        )
        if check:
            assert done.returncode == 0, "%s: exit status %d: %s" % (" ".join(argv), done.returncode, done.stderr)
        return done.stdout

    def popen(self, *argv: str) -> subprocess.Popen[str]:
        """Start a program inside, with pipes for its standard input and output."""
        return subprocess.Popen(
            self.argv(*argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_plain_env()
        )

    def pids(self) -> t.Set[int]:
        """The processes inside, other than the one that holds the namespace."""
        out = subprocess.run(["ip", "netns", "pids", self.name], stdout=subprocess.PIPE, check=True).stdout
        return {int(pid) for pid in out.split()} - {self._anchor.pid}

    def read(self, path: str) -> str:
        """A file as seen inside (``/proc/net/...`` differs); nothing where it does not exist."""
        return self.run("cat", path, check=False)


def _plain_env() -> t.Dict[str, str]:
    """The environment without what would change the programs' language."""
    return dict(os.environ, LC_ALL="C", LANGUAGE="C")
