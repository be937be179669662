# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of systemd that hang, and what the timer may meet."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
import typing as t

from .node import AGENT, INTERVAL, PATH, RECOVER, SERVICE, TIMER, Node, must, properties, run, systemctl, until
from .scenario import PERIOD, Scenario

FIREWALLS = ("ufw", "nftables", "netfilter-persistent", "firewalld", "iptables", "ip6tables")
#: Seconds in which a kubelet is to be restarted, also on a busy machine; one that waits for a hung job takes minutes.
AT_ONCE = 15.0
_RUNTIME = "/run/systemd/system"
_HANGS = "/bin/sleep 3600"
_UNIT = """[Unit]
Description=A firewall of the test

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=%s
ExecReload=%s
ExecStop=%s
TimeoutSec=infinity
"""


@contextlib.contextmanager
def unit_file(path: str, text: str) -> t.Iterator[None]:
    """Have a unit file, or a drop-in, for a while."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    systemctl("daemon-reload")
    try:
        yield
    finally:
        os.unlink(path)
        systemctl("daemon-reload")


@contextlib.contextmanager
def _hanging(firewall: str, verb: str, _node: Node) -> t.Iterator[None]:
    unit = firewall + ".service"
    programs = (_HANGS if verb == one else "/bin/true" for one in ("start", "reload", "stop"))
    with unit_file("%s/%s" % (_RUNTIME, unit), _UNIT % tuple(programs)):
        try:
            if verb != "start":
                systemctl("start", unit)
            systemctl("--no-block", verb, unit)
            if not until(lambda: properties(unit, "Unit", "Job")[0].startswith("("), 1) and not _job(unit):
                raise RuntimeError("the job does not hang")
            yield
        finally:
            for job in _job(unit):
                run("systemctl", "cancel", job)
            run("systemctl", "kill", "--signal=KILL", unit)
            run("systemctl", "stop", unit)
            run("systemctl", "reset-failed", unit)


def _job(unit: str) -> t.List[str]:
    lines = run("systemctl", "list-jobs", "--no-legend").stdout
    return re.findall(r"(?m)^\s*(\d+) %s .* running" % re.escape(unit), lines)


def _kubelet(_node: Node) -> str:
    before = properties("kubelet.service", "Service", "ExecMainStartTimestampMonotonic")
    started = time.monotonic()
    done = run("systemctl", "restart", "kubelet", seconds=AT_ONCE)
    after = properties("kubelet.service", "Service", "ExecMainStartTimestampMonotonic")
    if done.returncode == 0 and after != before:
        return ""
    return "THE KUBELET DOES NOT START: %.0f s, %s" % (
        time.monotonic() - started,
        "/".join(properties("kubelet.service", "Unit", "ActiveState", "SubState")),
    )


def scenarios() -> t.Iterator[Scenario]:
    """Each verb of each firewall hangs; a kubelet is restarted beside it."""
    for firewall in FIREWALLS:
        for verb in ("start", "stop", "reload"):
            fault = functools.partial(_hanging, firewall, verb)
            yield Scenario("job", "%s of %s hangs; a kubelet restarts" % (verb, firewall), fault, check=_kubelet)


def _done(times: int, words: t.Sequence[str], _node: Node) -> t.ContextManager[None]:
    """Run systemctl so often before."""
    for _time in range(times):
        run("systemctl", *words)
    return contextlib.nullcontext()


def _edits(_node: Node) -> t.ContextManager[None]:
    path = "/etc/ip-masq-agent/config.d/90-edit.json"
    for _time in range(20):
        with open(path, "w", encoding="utf-8") as file:
            file.write("{}")
        os.unlink(path)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _service_file(text: t.Optional[str], node: Node) -> t.Iterator[None]:
    """Have systemd without the file of the service, or with another text, for a tick."""
    path = "/etc/systemd/system/" + SERVICE
    os.rename(path, path + ".kept")
    try:
        if text == "/dev/null":
            os.symlink(text, path)
        elif text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        systemctl("daemon-reload")
        # The timer finds it so, or is dead.
        started = time.monotonic()
        until(lambda: properties(TIMER, "Unit", "ActiveState") != ["active"], 2 * PERIOD)
        yield
        assert time.monotonic() > started
    finally:
        os.rename(path + ".kept", path)
        systemctl("daemon-reload")
        node.rules.flush()


_BROKEN = {
    "missing": None,
    "empty": "",
    "masked": "/dev/null",
    "without a program": "[Service]\nType=oneshot\n",
    "of garbage": "\x01\x02[[[\nExecStart\n",
    "of a program that is missing": "[Service]\nType=oneshot\nExecStart=/nonexistent\n",
}


@contextlib.contextmanager
def _stopped(unit: str, _node: Node) -> t.Iterator[None]:
    systemctl("stop", unit)
    try:
        yield
    finally:
        systemctl("start", unit)


def _stays_stopped(node: Node) -> str:
    """What is started by hand, and an edit, repair; the timer stays as it is."""
    drop_in = "/etc/ip-masq-agent/config.d/90-stopped.json"
    run(AGENT, "sync", seconds=60)
    if not node.good():
        return "SYNC DOES NOT REPAIR"
    node.rules.flush()
    with open(drop_in, "w", encoding="utf-8") as file:
        json.dump({"resyncInterval": "%ds" % INTERVAL}, file)
    try:
        if not until(node.good, 30):
            return "AN EDIT DOES NOT REPAIR"
        must("systemctl", "start", SERVICE)
    finally:
        os.unlink(drop_in)
    if properties(TIMER, "Unit", "ActiveState") != ["inactive"]:
        return "THE TIMER IS BACK ALTHOUGH IT WAS STOPPED"
    return ""


@contextlib.contextmanager
def _drop_in(unit: str, text: str, _node: Node) -> t.Iterator[None]:
    with unit_file("%s/%s.d/99-faults.conf" % (_RUNTIME, unit), text):
        yield


@contextlib.contextmanager
def _recovery_after_next_tick(node: Node) -> t.Iterator[None]:
    """Have each tick hang, and the unit that recovers begin when the next tick has begun: a busy node."""
    late = "[Service]\nExecStartPre=\nExecStartPre=/bin/sleep %d\nExecStartPre=-%s recover\n" % (2 * PERIOD, AGENT)
    with _drop_in(RECOVER, late, node), _drop_in(SERVICE, "[Service]\nExecStart=\nExecStart=%s\n" % _HANGS, node):
        yield


#: Limits that are too small for what a tick is, and the controller that they need.
LIMITS = {
    "TasksMax=1": "pids",
    "TasksMax=2": "pids",
    "MemoryMax=2M": "memory",
    "MemoryMax=8M": "memory",
    "MemoryHigh=2M": "memory",
    "CPUQuota=5%": "cpu",
    "LimitNOFILE=3": "",
    "LimitNOFILE=6": "",
    "LimitAS=12M": "",
    "LimitDATA=2M": "",
    "LimitFSIZE=0": "",
    "LimitNPROC=1": "",
    "LimitCPU=1": "",
}
#: What TasksMax=1 does, without its controller: no process can be started.
_NO_PROCESS = "SystemCallFilter=~clone clone3 fork vfork\nSystemCallErrorNumber=EAGAIN"


def limits() -> t.Iterator[Scenario]:
    """Drop-ins of the service with limits."""
    for name, controller in LIMITS.items():
        fault = functools.partial(_drop_in, SERVICE, "[Service]\n%s\n" % name)
        yield Scenario("limit", name, fault, controller=controller)
    yield Scenario("limit", "no process", functools.partial(_drop_in, SERVICE, "[Service]\n%s\n" % _NO_PROCESS))


def timer() -> t.Iterator[Scenario]:
    """What stops a timer, and what must not start one."""
    for what, times, words in (
        ("nothing", 0, ()),
        ("six restarts of the timer at once", 6, ("restart", TIMER)),
        ("six restarts of the service at once", 6, ("restart", SERVICE)),
        ("systemd is executed again", 1, ("daemon-reexec",)),
    ):
        yield Scenario("timer", what, functools.partial(_done, times, words))
    yield Scenario("timer", "twenty edits at once", _edits)
    yield Scenario("timer", "the path unit is stopped", functools.partial(_stopped, PATH))
    for what, text in _BROKEN.items():
        fault = functools.partial(_service_file, text)
        yield Scenario("timer", "the file of the service is %s for a tick" % what, fault, during=False)
    yield Scenario("timer", "ticks hang, and the recovery is late", _recovery_after_next_tick)
    stopped = functools.partial(_stopped, TIMER)
    yield Scenario("timer", "stopped: stays stopped", stopped, during=False, check=_stays_stopped)


#: What root may have set for all services, and what that would do to programs that heed it.
_ENVIRONMENT = (
    "XTABLES_LIBDIR=/nonexistent",
    "XTABLES_LOCKFILE=/nonexistent/lock",
    "LD_LIBRARY_PATH=/nonexistent",
    "LD_PRELOAD=/nonexistent.so",
    "PYTHONHOME=/nonexistent",
    "PYTHONWARNINGS=error",
    "PATH=/nonexistent",
    "IFS=/",
    "ENV=/nonexistent",
    "LC_ALL=ru_RU.KOI8-R",
    "SYSTEMD_LOG_LEVEL=debug",
    "TMPDIR=/nonexistent",
)


@contextlib.contextmanager
def _environment(variable: str, _node: Node) -> t.Iterator[None]:
    systemctl("set-environment", variable)
    try:
        yield
    finally:
        systemctl("unset-environment", variable.partition("=")[0])


def environment() -> t.Iterator[Scenario]:
    """What services have in their environment."""
    for variable in _ENVIRONMENT:
        yield Scenario("environment", variable, functools.partial(_environment, variable))
