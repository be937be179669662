# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a question to the twin of a node costs, where other programs have many rules."""

from __future__ import annotations

import functools
import typing as t

from . import installed, meter, rules
from .figures import Row, Target
from .inside import Inside
from .plan import Plan, in_turns, say

TITLE = "the twin of a node"

#: Seconds until a question is answered.
_ANSWERED = Target(3.0)


def measure(plan: Plan) -> t.Iterator[Row]:
    """The rows of this part, as they come."""
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
