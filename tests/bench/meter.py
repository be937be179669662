# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program costs, measured in the process that starts it. Runs inside a namespace."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
import typing as t

ENV = dict(os.environ, LC_ALL="C", LANGUAGE="C", PATH=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


class Step(t.NamedTuple):
    """One process: its command line (with the full path), its standard input, and how it may end."""

    argv: t.Tuple[str, ...]
    stdin: str = os.devnull
    expected: t.Tuple[int, ...] = (0,)


#: Processes that follow each other.
Command = t.Tuple[Step, ...]


class Cost(t.NamedTuple):
    """Seconds of CPU time, user and system, children and their children too; seconds of wall time."""

    cpu: float
    wall: float


def spend(command: Command, times: int = 1) -> Cost:
    """Run a command so often, and return what one run cost on average.

    The kernel counts a process's CPU time in nanoseconds; a batch makes up for caches that others have emptied.

    :raises RuntimeError: a process ended in another way than expected.
    """
    cpu = 0.0
    started = time.perf_counter()
    for _number in range(times):
        for step in command:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, step.stdin, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            pid = os.posix_spawn(step.argv[0], step.argv, ENV, file_actions=actions)
            _pid, status, usage = os.wait4(pid, 0)
            if os.waitstatus_to_exitcode(status) not in step.expected:
                raise RuntimeError("%s: exit status %d" % (" ".join(step.argv), os.waitstatus_to_exitcode(status)))
            cpu += usage.ru_utime + usage.ru_stime
    return Cost(cpu / times, (time.perf_counter() - started) / times)


def cpu_so_far(pid: int) -> float:
    """Return CPU seconds of a process and of all that it has waited for; this clock ticks 100 times a second."""
    with open("/proc/%d/stat" % pid, encoding="ascii", errors="replace") as handle:
        fields = handle.read().rpartition(") ")[2].split()
    # utime, stime, cutime, cstime (proc(5), fields 14 to 17)
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _script(command: Command) -> str:
    # The arguments are our own; none holds a quote.
    return "\n".join("'%s' <'%s' >/dev/null 2>&1" % ("' '".join(step.argv), step.stdin) for step in command)


def peak_memory(command: Command) -> int:
    """Return the bytes of memory that the biggest process of a command had resident at its peak.

    A process inherits the peak of the one that it was forked from, so a small shell starts them, and a program that
    takes the shell's place reads the figure.
    """
    ask = "import resource; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    argv = ["sh", "-c", _script(command) + '\nexec "$@"', "sh", sys.executable, "-I", "-S", "-c", ask]
    return int(subprocess.run(argv, env=ENV, stdout=subprocess.PIPE, check=True).stdout) * 1024


def generation() -> int:
    """Return the number of transactions that nf_tables has carried out in this namespace (NFT_MSG_GETGEN)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as link:
        # struct nlmsghdr: length, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN, NLM_F_REQUEST; then struct nfgenmsg.
        link.send(struct.pack("=IHHIIBBH", 20, 10 << 8 | 16, 1, 1, 0, socket.AF_UNSPEC, 0, 0))
        answer = link.recv(4096)
    place = 20
    while place + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, place)
        if kind & 0x3FFF == 1:  # NFTA_GEN_ID
            return t.cast(int, struct.unpack_from("!I", answer, place + 4)[0])
        place += max(length + 3 & ~3, 4)
    raise RuntimeError("the kernel does not tell the generation of its rules")
