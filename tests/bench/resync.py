# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the timer costs: a resync with nothing to do, and what others do in its place.

The agent's program is replaced by one that fails, so that a successful resync has provably not used it. CPU is user and
system time of all processes (``wait4(2)``), without systemd's start of a unit; one measurement is the mean of up to ten
runs. Beside it: the chain or table read alone, output discarded; the three processes by which the reference daemon
resyncs, without the daemon; the daemon itself with ``resyncInterval`` 20 ms, stopped while others are measured; and the
hourly full check. Kernel writes are counted by the generation number of nf_tables or, with iptables-legacy, by lost
counters.

With 10,000 ranges almost all of it is reading the chain, so the target is a multiple of that. A full node has 50,000
nat rules of others in 5,000 chains, as kube-proxy writes them: iptables-legacy always fetches the whole table, nft the
names of all chains.
"""

from __future__ import annotations

import functools
import typing as t

from . import installed, meter, reference_agent, rules
from .figures import Row, Sample, Target
from .inside import Inside
from .plan import Costs, Plan, in_turns, say

TITLE = "no-op resync, started by the timer"

#: Seconds of CPU time, for the default list: what the reference daemon spends.
_DEFAULT_LIST = Target(0.008)
#: For 10,000 ranges 60 ms, where reading the chain alone took 48, 16 and 31 ms: so many times as much, on any machine.
_READ_ALONE = {rules.NFT: 60 / 48, rules.LEGACY: 60 / 16, rules.NFTABLES: 60 / 31}
_FULL_NODE = Target(1.10, of_ratio=True)
_REFERENCE = Target(1.00, of_ratio=True)
#: Runs over which writes are counted.
_WATCHED = 20


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part."""
    for backend in plan.backends:
        with Inside() as empty, Inside() as full:
            say("resync, %s: loading %d rules of others on one of two nodes" % (backend, plan.others))
            full.call(installed.load_others, backend, plan.others)
            for size in plan.sizes:
                say("resync, %s, %d CIDRs" % (backend, size))
                yield from _of_size(plan, backend, size, empty, full)
    if reference_agent.binary() is None:
        yield Row("no-op resync, reference agent", note="not measured: %s is not set" % reference_agent.VARIABLE)


def _of_size(plan: Plan, backend: str, size: int, empty: Inside, full: Inside) -> t.Iterator[Row]:
    paths = {node: node.call(installed.setup, backend, size) for node in (empty, full)}
    resync = (meter.Step((paths[empty]["resync"],)),)
    read = installed.read_alone(backend)
    commands: t.Dict[str, t.Tuple[Inside, meter.Command]] = {
        "ours": (empty, resync),
        "read": (empty, read),
        "ours, full node": (full, resync),
        "whole table, full node": (full, installed.read_whole_table(backend)),
    }
    if backend != rules.NFTABLES:
        commands["rewrite"] = (empty, empty.call(installed.rewrite, backend))
    series: t.Dict[str, t.Callable[[int], meter.Cost]] = {
        name: functools.partial(node.call, meter.spend, command) for name, (node, command) in commands.items()
    }
    agent = reference_agent.binary() if backend != rules.NFTABLES else None
    for node in (empty, full):
        node.call(installed.without_agent, paths[node], True)
    with reference_agent.running(agent, backend, size) as ticks:
        if ticks is not None:
            series["agent"] = ticks.spend
        costs = in_turns(plan, series)
        memory = None if ticks is None else Sample((ticks.resident(),), "B")
    target = {4: _DEFAULT_LIST, 10000: Target(_READ_ALONE[backend], of_ratio=True)}.get(size)
    yield from _time_rows("%s, %5d CIDRs" % (backend, size), target, costs)
    if size in (min(plan.sizes), max(plan.sizes)):
        yield from _other_rows("%s, %5d CIDRs" % (backend, size), backend, empty, commands, memory)
    for node in (empty, full):
        node.call(installed.without_agent, paths[node], False)
    if size in (min(plan.sizes), max(plan.sizes)):
        sync = (meter.Step((paths[empty]["program"], "sync")),)
        hourly = in_turns(
            plan._replace(rounds=min(plan.rounds, 5)),
            {
                "sync": functools.partial(empty.call, meter.spend, sync),
                "ours": functools.partial(empty.call, meter.spend, resync),
            },
        )
        yield Row(
            "%s, %5d CIDRs: full look by the agent, hourly, CPU" % (backend, size),
            hourly["sync"].cpu,
            "resync beside it",
            hourly["ours"].cpu,
        )


def _time_rows(name: str, target: t.Optional[Target], costs: t.Mapping[str, Costs]) -> t.Iterator[Row]:
    ours = costs["ours"]
    yield Row(name + ": CPU", ours.cpu, "chain read alone", costs["read"].cpu, target)
    if "rewrite" in costs:
        yield Row(name + ": CPU", ours.cpu, "rewrite each time", costs["rewrite"].cpu)
    if "agent" in costs:
        yield Row(name + ": CPU", ours.cpu, "reference agent", costs["agent"].cpu, _REFERENCE)
    full = costs["ours, full node"].cpu
    # iptables-legacy can only read a table whole, and nft asks for the names of all chains: there, no target.
    yield Row(name + ", full node: CPU", full, "empty node", ours.cpu, _FULL_NODE if rules.NFT in name else None)
    yield Row(name + ", full node: CPU", full, "whole table read", costs["whole table, full node"].cpu)


def _other_rows(
    name: str,
    backend: str,
    node: Inside,
    commands: t.Mapping[str, t.Tuple[Inside, meter.Command]],
    agent_memory: t.Optional[Sample],
) -> t.Iterator[Row]:
    ours, peer_name = commands["ours"][1], "rewrite" if "rewrite" in commands else "read"
    peer = commands[peer_name][1]
    shown = {"rewrite": "rewrite each time", "read": "chain read alone"}[peer_name]

    yield Row(name + ": kernel writes in %d runs" % _WATCHED, *_writes(backend, node, ours, peer, shown), Target(0))
    yield Row(
        name + ": resident between resyncs",
        Sample((0,), "B"),
        "reference agent" if agent_memory else "",
        agent_memory,
        Target(0),
    )


def _writes(
    backend: str, node: Inside, ours: meter.Command, peer: meter.Command, shown: str
) -> t.Tuple[Sample, str, Sample]:
    found = []
    for command in (ours, peer):
        if backend == rules.LEGACY:
            written = 0
            for _number in range(_WATCHED):
                node.call(installed.count_something, backend)
                before = node.call(installed.state, backend)
                node.call(meter.spend, command)
                written += node.call(installed.state, backend) != before
        else:
            before = node.call(installed.state, backend)
            node.call(meter.spend, command, _WATCHED)
            written = node.call(installed.state, backend) - before
        found.append(Sample((written,), "writes"))
    return found[0], shown, found[1]
