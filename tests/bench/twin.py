# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a question to the twin of a node costs, and a whole verification, where other programs have many rules.

explain: start to answer, beside iptables-save. verify: beside kube-proxy, with 30 pods and 40 nodes; ``NOT COMPLETE``
if anything was left out. Nothing changed: ``verify --if-changed``, which the role runs,
beside a whole run and a no-op resync.
"""

from __future__ import annotations

import functools
import json
import subprocess
import typing as t

from . import installed, kube_proxy, meter, rules
from .figures import Row, Sample, Target
from .inside import Inside
from .plan import Plan, in_turns, say

TITLE = "the twin of a node"

#: Seconds until a question is answered.
_ANSWERED = Target(3.0)


class _Size(t.NamedTuple):
    services: int
    node_ports: int
    #: seconds of CPU time, bytes
    cpu: Target
    memory: t.Optional[Target]
    endpoints: int = 2

    def __str__(self) -> str:
        return "%d Services of %d endpoints (%d NodePorts)" % (self.services, self.endpoints, self.node_ports)


_SIZES = (
    _Size(16, 4, Target(0.5), None),
    _Size(1000, 100, Target(2.0), Target(80e6)),
    _Size(5000, 500, Target(8.0), Target(200e6)),
    _Size(1, 1, Target(0.5), None, 1000),
    _Size(1000, 100, Target(2.0), Target(60e6), 20),
    _Size(5000, 500, Target(8.0), Target(150e6), 10),
)


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part."""
    yield from _explain(plan)
    for size in _SIZES:
        for mode in (rules.NFTABLES, rules.NFT, rules.LEGACY):
            if mode in plan.backends:
                yield from _verify(plan, mode, size)


def _explain(plan: Plan) -> t.Iterator[Row]:
    with Inside() as empty, Inside() as full:
        say("twin: loading %d rules of others on one of two nodes" % plan.others)
        full.call(installed.load_others, rules.NFT, plan.others)
        paths = {node: node.call(installed.setup, rules.NFT, 4) for node in (empty, full)}
        series = {}
        for name, node in (("empty", empty), ("full", full)):
            explain = (meter.Step((paths[node]["program"], "explain", "203.0.113.10")),)
            series[name] = functools.partial(node.call, meter.spend, explain)
        series["table"] = functools.partial(full.call, meter.spend, installed.read_whole_table(rules.NFT))
        costs = in_turns(plan, series)
    named = "explain, iptables_nft, "
    yield Row(named + "empty node: wall", costs["empty"].wall)
    yield Row(
        named + "%d rules: wall" % plan.others, costs["full"].wall, "iptables-save", costs["table"].wall, _ANSWERED
    )
    yield Row(named + "%d rules: CPU" % plan.others, costs["full"].cpu, "iptables-save", costs["table"].cpu)


def _verify(plan: Plan, mode: str, size: _Size) -> t.Iterator[Row]:
    """Verify beside kube-proxy; the result has to be complete."""
    say("twin: verify beside %s, %s" % (size, mode))
    with Inside() as node:
        node.call(kube_proxy.make_node)
        paths = node.call(installed.setup, mode, 4)
        node.call(kube_proxy.load, mode, size.services, size.node_ports, size.endpoints)
        left_out = node.call(_left_out, paths["program"])
        whole = (meter.Step((paths["program"], "verify"), expected=(0, 6)),)
        again = (meter.Step((paths["program"], "verify", "--if-changed"), expected=(0, 6)),)
        costs = in_turns(
            plan,
            {
                "whole": functools.partial(node.call, meter.spend, whole),
                "again": functools.partial(node.call, meter.spend, again),
                "table": functools.partial(node.call, meter.spend, installed.read_whole_table(mode)),
                "resync": functools.partial(node.call, meter.spend, (meter.Step((paths["resync"],)),)),
            },
        )
        peak = Sample((float(node.call(meter.peak_memory, whole)),), "B")
    named = "verify, %s, %s: " % (mode, size)
    listing = "rules listed"
    yield Row(named + "CPU", costs["whole"].cpu, listing, costs["table"].cpu, size.cpu, note=left_out)
    yield Row(named + "peak memory", peak, target=size.memory)
    yield Row(named + "nothing changed: CPU", costs["again"].cpu, "whole", costs["whole"].cpu)
    yield Row(named + "nothing changed: CPU", costs["again"].cpu, "no-op resync", costs["resync"].cpu)


def _left_out(program: str) -> str:
    """Verify once. Return what was left out; empty if nothing was."""
    done = subprocess.run([program, "verify", "--json"], env=meter.ENV, stdout=subprocess.PIPE, check=False)
    found = json.loads(done.stdout)
    return "" if found["verified"] else "NOT COMPLETE: " + str(found["summary"])
