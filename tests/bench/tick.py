# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the timer costs the node: a start of the agent's unit with nothing to do, and of a unit that runs /bin/true.

On systemd nodes of two releases, with few and with many mounts, as pods bring them. CPU is that of PID 1 and of all
processes that it has waited for (``/proc/1/stat``, proc(5)) over up to 40 starts with ``systemctl start``: systemd's
work for the unit, its sandbox, and what it runs; units that it starts too. Timer and path unit are stopped meanwhile.
The reference daemon has no unit; it resyncs in a namespace on this machine, as for the resync.
"""

from __future__ import annotations

import functools
import time
import typing as t

from . import lab, meter, reference_agent, rules
from .figures import Row, Sample, Target
from .plan import Costs, Plan, in_turns, say

TITLE = "a tick as the node pays for it: PID 1 and what it waits for, a start of the unit"

#: More than the node has.
_MOUNTS = (0, 300, 1000, 2000)
_NODES = {"Debian 12": "node-bookworm", "Debian 13": "node-trixie"}
#: Ranges of the policy.
_SIZE = 4
#: What a tick may take beyond the plain unit, in seconds of CPU; and with metrics.
_BEYOND, _BEYOND_WITH_METRICS = Target(0.010), Target(0.040)

_UNIT, _PLAIN = "ip-masq-agent.service", "ip-masq-bench.service"
_METRICS = "/var/lib/ip-masq-bench"
#: Seconds that a batch of starts may take, the CPU time of PID 1 being counted in hundredths of a second; and in which
#: PID 1 must have read of all mounts.
_BATCH_SECONDS, _PATIENCE = 8.0, 120

_PREPARE = """
mkdir -p "$1"
printf '[Unit]\\nStartLimitIntervalSec=0\\n[Service]\\nType=oneshot\\nExecStart=/bin/true\\n' >/run/systemd/system/$2
systemctl daemon-reload
"""
_PAUSE = """
systemctl stop ip-masq-agent.timer ip-masq-agent.path
rm -f "$1/ip_masq_agent.prom"
"""
#: Below one mount that takes all others with it. mount(8) would read of all of them each time.
_MOUNT = """
import ctypes, os, sys

libc = ctypes.CDLL(None, use_errno=True)
for number in range(*map(int, sys.argv[1:])):
    place = b"/run/ip_masq_bench" + (b"/%d" % number if number else b"")
    os.mkdir(place)
    arguments = (place, place, None, 4096, None) if number else (b"tmpfs", place, b"tmpfs", 0, None)  # MS_BIND
    if libc.mount(*arguments):
        raise OSError(ctypes.get_errno(), "mount", place)
"""
_END = """
umount --lazy /run/ip_masq_bench
rmdir /run/ip_masq_bench
[ -z "$1" ] || ls "$1/ip_masq_agent.prom"  # or nothing has been measured
"""
_AWAIT = 'while [ "$(systemctl is-active "$1")" != "$2" ]; do sleep 0.1; done'
_START = 'for number in $(seq "$1"); do systemctl start "$2" || exit; done'


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part; one that says why where no node can be had."""
    # Of a batch of quick programs there are 40 starts, unless told otherwise.
    plan = plan._replace(rounds=plan.slow_rounds, batch=4 * plan.batch)
    try:
        with lab.booted("tick"):
            for node in _NODES.values():
                lab.inside(lab.init(node), "sh", "-ec", _PREPARE, "sh", _METRICS, _PLAIN)
            for backend in plan.backends:
                agent = reference_agent.binary() if backend != rules.NFTABLES else None
                with reference_agent.running(agent, backend, _SIZE) as ticks:
                    yield from _of_policy(plan, backend, "", ticks)
            yield from _of_policy(plan, plan.backends[0], _METRICS, None)
    except lab.NodeError as exc:
        yield Row("a tick", note="not measured: %s" % exc)


def _of_policy(plan: Plan, backend: str, metrics: str, ticks: t.Optional[reference_agent.Ticks]) -> t.Iterator[Row]:
    name = backend + ", metrics" * bool(metrics)
    say("tick, %s: installing the agent" % name)
    policy = {"bench_cidrs": rules.cidrs(_SIZE), "ip_masq_agent_backend": backend}
    lab.play("role", list(_NODES.values()), ip_masq_agent_metrics_dir=metrics, **policy)
    for release, node in _NODES.items():
        init = lab.init(node)
        lab.inside(init, "sh", "-ec", _PAUSE, "sh", metrics)
        for mounts, more in zip(_MOUNTS, (*_MOUNTS[1:], None)):
            say("tick, %s, %s, %d mounts" % (release, name, mounts))
            series = {unit: functools.partial(_spend, init, unit) for unit in (_UNIT, _PLAIN)}
            costs = in_turns(plan, {**series, **({"agent": ticks.spend} if ticks else {})}, _BATCH_SECONDS)
            yield from _rows("%s, %s, %4d mounts" % (release, name, mounts), costs, bool(metrics))
            if more is not None:
                lab.inside(init, "python3", "-c", _MOUNT, str(mounts), str(more))
                _await(init, "run-ip_masq_bench-%d.mount" % (more - 1), "active")
        lab.inside(init, "sh", "-ec", _END, "sh", metrics)
        _await(init, "run-ip_masq_bench-1.mount", "inactive")


def _await(init: int, unit: str, state: str) -> None:
    lab.inside(init, "timeout", str(_PATIENCE), "sh", "-c", _AWAIT, "sh", unit, state)


def _spend(init: int, unit: str, times: int) -> meter.Cost:
    """Start a unit so often, and return what one start cost the node on average."""
    started, before = time.perf_counter(), meter.cpu_so_far(init)
    lab.inside(init, "sh", "-c", _START, "sh", str(times), unit)
    return meter.Cost((meter.cpu_so_far(init) - before) / times, (time.perf_counter() - started) / times)


def _rows(name: str, costs: t.Mapping[str, Costs], metrics: bool) -> t.Iterator[Row]:
    ours, plain = costs[_UNIT].cpu, costs[_PLAIN].cpu
    yield Row(name, ours, "a unit that runs true", plain)
    beyond = Sample(tuple(mine - its for mine, its in zip(ours.values, plain.values)), "s")
    yield Row(name + ": beyond that unit", beyond, target=_BEYOND_WITH_METRICS if metrics else _BEYOND)
    if "agent" in costs:
        yield Row(name, ours, "reference agent", costs["agent"].cpu)
