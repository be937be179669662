# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that hang, crash or lie, and locks that are held."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import shutil
import signal
import subprocess
import time
import typing as t

from .fuse import end_with_parent
from .node import AGENT, Node
from .scenario import Scenario

_HEAD = "#!/bin/sh\n"
WAYS = {
    "hangs": "exec sleep 3600",
    "crashes": "kill -SEGV $$",
    "prints garbage": "head -c 100000 /dev/urandom; exit 0",
    "does nothing": "exit 0",
}
_TABLES = [tool + variant for tool in ("iptables", "ip6tables") for variant in ("", "-legacy", "-nft")]
PROGRAMS = (
    *(tool + what for tool in _TABLES for what in ("", "-save", "-restore")),
    *("nft", "conntrack", "modprobe", "systemctl", "ip", "firewall-cmd", "ulogd", "sleep", "timeout"),
    *("b2sum", "cksum", "sha256sum", "stat", "cat", "cut", "tr", "grep", "sed", "awk"),
    *("mkdir", "chmod", "touch", "rm", "ls"),
)


def used(node: Node, program: str) -> bool:
    """Whether rules cannot be repaired without a program: its family and variant are those of the node."""
    if node.rules.native:
        return program == "nft"
    variant = "-legacy" if node.rules.legacy else "-nft"
    names = ("iptables", "iptables" + variant)
    return program in [name + what for name in names for what in ("", "-save", "-restore")]


#: What the script between two repairs is made of: with one that lies it cannot tell that anything differs.
_OF_THE_SCRIPT = {"sleep", "timeout", "b2sum", "cksum", "sha256sum", "stat", "cat", "cut", "tr", "grep", "sed", "awk"}


@contextlib.contextmanager
def _replaced(program: str, text: str, _node: Node) -> t.Iterator[None]:
    path = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert path is not None
    os.rename(path, path + ".kept")
    try:
        with open(path, "w", encoding="utf-8") as script:
            script.write(_HEAD + text + "\n")
        os.chmod(path, 0o755)
        yield
    finally:
        os.rename(path + ".kept", path)


def programs(node: Node) -> t.Iterator[Scenario]:
    """Each program in each way."""
    for program in PROGRAMS:
        if not shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin"):
            continue
        needed = used(node, program) or program in _OF_THE_SCRIPT
        for way, text in WAYS.items():
            fault = functools.partial(_replaced, program, text)
            yield Scenario("used program" if needed else "program", "%s %s" % (program, way), fault, during=not needed)


@contextlib.contextmanager
def process(
    work: t.Callable[[], object], user: int = 0, name: str = "", forever: t.Callable[[], object] = signal.pause
) -> t.Iterator[int]:
    """Have a process that has done something, and does something else again and again until this ends."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            end_with_parent()
            if name:
                ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                end_with_parent()
            kept = work()
            os.write(told, b"!")
            while kept is not child:  # what is open stays open
                forever()
        finally:
            os._exit(1)
    os.close(told)
    try:
        if os.read(ready, 1) != b"!":
            raise RuntimeError("the process of the test ended")
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def locked(path: str, kind: int) -> t.Callable[[], object]:
    """Return what locks a file or directory by flock(2)."""

    def work() -> int:
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(descriptor, kind)
        return descriptor

    return work


def _record(path: str) -> t.Callable[[], object]:
    """Return what locks a record of a file by fcntl(2)."""

    def work() -> int:
        descriptor = os.open(path, os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        return descriptor

    return work


@contextlib.contextmanager
def _holder(work: t.Callable[[], object], _node: Node) -> t.Iterator[None]:
    with process(work):
        yield


@contextlib.contextmanager
def _stopped_sync(_node: Node) -> t.Iterator[None]:
    """A sync that was stopped while it held the lock of all runs."""
    number = os.stat("/run/ip-masq-agent").st_ino
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        sync = subprocess.Popen([AGENT, "sync"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while sync.poll() is None:
            with open("/proc/locks", encoding="utf-8") as locks:
                held = [line.split() for line in locks]
            if any(
                words[1] == "FLOCK" and words[4] == str(sync.pid) and words[5].endswith(":%d" % number)
                for words in held
            ):
                os.kill(sync.pid, signal.SIGSTOP)
                break
        if sync.poll() is None:
            break
    else:
        raise RuntimeError("no sync was seen to hold the lock")
    try:
        yield
    finally:
        sync.kill()
        sync.wait()


#: A lock may be held for three ticks before it is passed over.
PATIENT = 5
_RUN_LOCK, _XTABLES_LOCK = "/run/ip-masq-agent", "/run/xtables.lock"


def locks() -> t.Iterator[Scenario]:
    """Locks of root that are never released."""
    yield Scenario("lock", "a stopped sync holds the lock of all runs", _stopped_sync, ticks=PATIENT)
    for path in (_RUN_LOCK, _XTABLES_LOCK, "/etc/ip-masq-agent/config", "/var/lib/ip-masq-agent/state.json"):
        for name, kind in (("%s is locked", fcntl.LOCK_EX), ("%s is locked, shared", fcntl.LOCK_SH)):
            fault = functools.partial(_holder, locked(path, kind))
            yield Scenario("lock", name % path, fault, ticks=PATIENT)
    for path in (_XTABLES_LOCK, "/etc/ip-masq-agent/config"):
        fault = functools.partial(_holder, _record(path))
        yield Scenario("lock", "a record of %s is locked" % path, fault, ticks=PATIENT)
