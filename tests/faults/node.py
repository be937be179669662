# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node that a test runs on: its rules, its ticks, and what brings it back to order.

Nothing here starts Python, reads a file below a path that is broken, or uses a program that a test replaces.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import typing as t

SERVICE, TIMER, PATH = "ip-masq-agent.service", "ip-masq-agent.timer", "ip-masq-agent.path"
RECOVER = "ip-masq-agent-recover.service"
AGENT = "/usr/local/sbin/ip-masq-agent"
CHAIN = "IP-MASQ-AGENT"
#: The policy has it, and the defaults have not.
EXTRA_RANGE = "198.18.0.0/15"
#: Where tests keep what is theirs: no path of the agent.
HERE = "/run/faults"

#: Seconds between ticks: the configured interval, and the accuracy of the timer.
INTERVAL, ACCURACY = 1.0, 1.0
#: Seconds until a run of the unit has ended, after its TimeoutStartSec and four times its TimeoutStopSec, and the agent
#: has repaired: with ticks of a minute, within two of them. With less, a run in which much fails ends sooner.
RUN_LIMIT = float(os.environ.get("FAULTS_RUN_LIMIT", "90"))
_PAUSE = 0.1

_UNIT = "org.freedesktop.systemd1"


class Broken(Exception):
    """The node does not come back to order; no more can be tested on it."""


def run(*argv: str, seconds: float = 20.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program, whatever comes of it; the exit status of one that takes too long is 124."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "XTABLES_LOCKFILE": HERE + "/xtables.lock", "LC_ALL": "C"}
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        output, _none = process.communicate(stdin, timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()  # nobody waits: one that waits for an answer of FUSE ends only with the fault
        return subprocess.CompletedProcess(argv, 124, "", "")
    return subprocess.CompletedProcess(argv, process.returncode, output, "")


def must(*argv: str, seconds: float = 60.0) -> str:
    """Run a program that must succeed."""
    done = run(*argv, seconds=seconds)
    if done.returncode:
        raise RuntimeError("%s: exit status %d: %s" % (" ".join(argv), done.returncode, done.stdout.strip()[-300:]))
    return done.stdout


def systemctl(*words: str) -> str:
    """Run systemctl, which must succeed."""
    return must("systemctl", *words)


def until(probe: t.Callable[[], object], seconds: float) -> bool:
    """Wait until a condition holds; whether it does."""
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True


def properties(unit: str, interface: str, *names: str) -> t.List[str]:
    """Return properties of a unit; empty texts if systemd does not say.

    Not by ``systemctl show``: for that systemd looks for drop-ins, and so at paths that are broken.
    """
    escaped = re.sub("[^A-Za-z0-9]", lambda found: "_%02x" % ord(found.group()), unit)
    place = (_UNIT, "/org/freedesktop/systemd1/unit/" + escaped, _UNIT + "." + interface)
    lines = run("busctl", "get-property", *place, *names, seconds=5).stdout.splitlines()
    values = [line.partition(" ")[2].strip('"') for line in lines]
    return values if len(values) == len(names) else [""] * len(names)


class Tick(t.NamedTuple):
    """The last run of the service; microseconds since boot."""

    start: int
    end: int
    result: str


def last_tick() -> Tick:
    """Return the last run of the service."""
    start, end, result = properties(
        SERVICE, "Service", "ExecMainStartTimestampMonotonic", "ExecMainExitTimestampMonotonic", "Result"
    )
    return Tick(int(start or 0), int(end or 0), result)


def last_success() -> float:
    """Return when a resync last ended well, in seconds since boot."""
    try:
        return os.stat("/run/ip-masq-agent/last-sync").st_mtime - time.time() + time.monotonic()
    except OSError:
        return 0.0


def interval() -> float:
    """Return the seconds of the timer."""
    found = re.search(r'"OnUnitInactiveUSec" (\d+)', properties(TIMER, "Timer", "TimersMonotonic")[0])
    return int(found.group(1)) / 1e6 if found else 0.0


class Rules:
    """Our rules in the kernel.

    :param backend: what the role was told.
    """

    def __init__(self, backend: str) -> None:
        self.native = backend == "nftables"
        self.legacy = "legacy" in run("iptables", "--version").stdout
        os.makedirs(HERE, exist_ok=True)
        self._nft = HERE + "/nft"
        if not os.path.exists(self._nft):
            shutil.copy("/usr/sbin/nft", self._nft)
        multi = "/usr/sbin/xtables-%s-multi" % ("legacy" if self.legacy else "nft")
        self._iptables = (multi, "iptables", "-w", "5", "-t", "nat")

    def read(self) -> t.List[str]:
        """Return them as the program prints them, without counters."""
        if self.native:
            lines = run(self._nft, "list", "table", "ip", "ip_masq_agent").stdout.splitlines()
            return [re.sub(r" packets \d+ bytes \d+", "", line) for line in lines]
        return [line for line in run(*self._iptables, "-S").stdout.splitlines() if CHAIN in line]

    def flush(self) -> None:
        """Empty our chain."""
        command: t.Tuple[str, ...] = (*self._iptables, "-F", CHAIN)
        if self.native:
            command = (self._nft, "flush", "chain", "ip", "ip_masq_agent", "postrouting")
        # A repair may be under way.
        if not until(lambda: run(*command).returncode == 0, 5):
            raise RuntimeError("the rules cannot be flushed: %s" % run(*command).stdout)


class Node:
    """This node: how its rules are to be, and how long they may take to come back."""

    def __init__(self, backend: str) -> None:
        self.rules = Rules(backend)
        self.wanted: t.List[str] = []

    def learn(self) -> None:
        """Take the rules that there are for those that there are to be."""
        self.wanted = self.rules.read()
        if not any(EXTRA_RANGE in line for line in self.wanted):
            raise Broken("the rules are not those of the policy: %s" % self.wanted)

    def good(self, or_default: bool = False) -> bool:
        """Whether the rules are those of the policy.

        :param or_default: those of the default policy will do.
        """
        seen = self.rules.read()
        return seen == self.wanted or or_default and seen == self._default()

    def _default(self) -> t.List[str]:
        if self.rules.native:
            return [re.sub(r" %s,|, %s" % (EXTRA_RANGE, EXTRA_RANGE), "", line) for line in self.wanted]
        return [line for line in self.wanted if EXTRA_RANGE not in line]

    def heals(self, limit: float, or_default: bool = False) -> t.Tuple[bool, float, int]:
        """Wait until the rules are back. Return whether they are, after how many seconds, and in which tick."""
        started = time.monotonic()
        starts = {last_tick().start}
        while True:
            healed = self.good(or_default)
            starts.add(last_tick().start)
            took = time.monotonic() - started
            if healed or took > limit:
                return healed, took, len(starts - {0}) - 1
            time.sleep(_PAUSE)

    def disorder(self, since: float, seconds: float) -> str:
        """Wait until a tick that began after a moment ends well, the timer goes on as configured, and rules are there.

        :returns: what is not so after that time; empty if all is.
        """
        deadline, first = time.monotonic() + seconds, 0.0
        while True:
            if not first and last_tick().start > since * 1e6:
                first = last_tick().start / 1e6
            wrong = self._wrong(first)
            if not wrong or time.monotonic() > deadline:
                return wrong
            time.sleep(_PAUSE)

    def _wrong(self, tick: float) -> str:
        if not tick:
            return "NO TICK"
        if last_success() < tick:
            return "NO TICK ENDS WELL"
        if properties(TIMER, "Unit", "ActiveState") != ["active"]:
            return "THE TIMER DOES NOT GO ON"
        if interval() != INTERVAL:
            return "THE TIMER HAS AN INTERVAL OF %g s" % interval()
        return "" if self.good() else "NO RULES"

    def mend(self) -> None:
        """Bring the node back to order by hand."""
        run("systemctl", "kill", "--signal=KILL", SERVICE)
        for words in (("daemon-reload",), ("reset-failed",), ("restart", TIMER, PATH)):
            run("systemctl", *words)
        run(AGENT, "sync", seconds=60)
        wrong = self.disorder(time.monotonic(), RUN_LIMIT + 4 * (INTERVAL + ACCURACY))
        if wrong:
            raise Broken("it does not come back to order: %s; %s" % (wrong, " ".join(self.state())))

    def state(self) -> t.List[str]:
        """Return what systemd says of our units, and what the journal has last, to be read by people."""
        shown = [
            "%s: %s" % (unit, "/".join(properties(unit, "Unit", "ActiveState", "SubState"))) for unit in (TIMER, PATH)
        ]
        shown.append("last run: %s" % last_tick().result)
        lines = run("journalctl", "-u", "ip-masq-agent*", "-n", "4", "--no-pager", "-o", "cat", "-q", seconds=5).stdout
        return shown + [line[:200] for line in lines.splitlines()]
