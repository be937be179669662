# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reference daemon, ip-masq-agent, where the environment names its binary. It knows no single run: it is given a
short resyncInterval, and its CPU time is counted from one reading of its configuration to another."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import subprocess
import time
import typing as t

from . import meter, rules
from .inside import Inside

VARIABLE = "IP_MASQ_AGENT_BIN"
#: Where it reads its configuration; it has no option for that.
_CONFIG = "/etc/config/ip-masq-agent"
_PROGRAMS = "/run/bench-programs"
_CLOSED_UNWRITTEN = 0x10  # IN_CLOSE_NOWRITE, inotify(7)
#: Seconds in which a resync must follow another.
_PATIENCE = 60.0

_running: t.Dict[str, t.Any] = {}


def binary() -> t.Optional[str]:
    """Return its path; None if the environment does not name it.

    :raises RuntimeError: what it names cannot be run.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    if not os.access(path, os.X_OK):
        raise RuntimeError("%s names %s, which is no program" % (VARIABLE, path))
    return os.path.abspath(path)


class Ticks:
    """The daemon at work on a node of its own; stopped while others are measured."""

    def __init__(self, node: Inside) -> None:
        self._node = node

    def spend(self, times: int) -> meter.Cost:
        """Return what one resync cost on average, over so many."""
        return t.cast(meter.Cost, self._node.call(_spend, times))

    def resident(self) -> int:
        """Return the bytes of memory that it holds between two resyncs."""
        return t.cast(int, self._node.call(_resident))


@contextlib.contextmanager
def running(path: t.Optional[str], backend: str, size: int) -> t.Iterator[t.Optional[Ticks]]:
    """Run the daemon at ``path`` with a policy of so many ranges; None if there is none."""
    if path is None:
        yield None
        return
    with Inside() as node:
        node.call(_start, path, backend, size)
        try:
            yield Ticks(node)
        finally:
            node.call(_end)


def _start(path: str, backend: str, size: int) -> None:
    os.makedirs(os.path.dirname(_CONFIG), exist_ok=True)
    policy = {"nonMasqueradeCIDRs": rules.cidrs(size), "cidrLimit": max(size, 64), "resyncInterval": "20ms"}
    with open(_CONFIG, "w", encoding="ascii") as handle:
        json.dump(policy, handle)
    # It runs what is called iptables.
    os.makedirs(_PROGRAMS, exist_ok=True)
    for action in ("", "-save", "-restore"):
        for name in ("iptables", "ip6tables"):
            os.symlink(rules.iptables(backend, action).replace("iptables", name), "%s/%s%s" % (_PROGRAMS, name, action))
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if watch < 0 or libc.inotify_add_watch(watch, _CONFIG.encode(), _CLOSED_UNWRITTEN) < 0:
        raise OSError(ctypes.get_errno(), "inotify: cannot watch " + _CONFIG)
    env = dict(meter.ENV, PATH=_PROGRAMS + ":" + meter.ENV["PATH"])
    process = subprocess.Popen(
        [path], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _running.update(process=process, watch=watch)
    _wait_for_ticks(2)
    process.send_signal(signal.SIGSTOP)


def _wait_for_ticks(count: int) -> None:
    watch = _running["watch"]
    while count > 0:
        ready = select.select([watch], [], [], _PATIENCE)[0]
        if not ready or _running["process"].poll() is not None:
            raise RuntimeError("the reference agent does not resync (exit status %s)" % _running["process"].returncode)
        data = os.read(watch, 4096)
        while data:
            data = data[16 + struct.unpack_from("=iIII", data)[3] :]
            count -= 1


def _spend(times: int) -> meter.Cost:
    process = _running["process"]
    process.send_signal(signal.SIGCONT)
    # From the start of one resync to the start of another.
    _wait_for_ticks(1)
    started, before = time.perf_counter(), meter.cpu_so_far(process.pid)
    # For the clock of cpu_so_far.
    times = max(times, 10)
    _wait_for_ticks(times)
    cost = meter.Cost((meter.cpu_so_far(process.pid) - before) / times, (time.perf_counter() - started) / times)
    process.send_signal(signal.SIGSTOP)
    return cost


def _resident() -> int:
    with open("/proc/%d/status" % _running["process"].pid, encoding="ascii", errors="replace") as handle:
        for line in handle:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("the reference agent has ended")


def _end() -> None:
    process, watch = _running.pop("process"), _running.pop("watch")
    process.kill()
    process.wait()
    os.close(watch)
