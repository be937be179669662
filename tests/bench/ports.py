# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it costs to count source ports: ``ip-masq-agent ports`` beside ``conntrack -L``, which lists the same table.

Pods have connections to two destinations, a third of the ports of an address each; no packet is sent.
"""

from __future__ import annotations

import functools
import typing as t

from support import tracked

from . import installed, meter, rules
from .figures import Row, Sample, Target
from .inside import Inside
from .plan import Plan, in_turns, say

TITLE = "source ports in use"

_CONNECTIONS, _A_DESTINATION = 100000, 50000
#: Seconds of CPU time, start of Python included.
_WITHIN = Target(1.0)


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part."""
    with Inside() as node:
        say("source ports: %d connections" % _CONNECTIONS)
        paths = node.call(installed.setup, rules.NFT if rules.NFT in plan.backends else plan.backends[0], 4)
        tracked.insert(node.ns, map(_connection, range(_CONNECTIONS)))
        ports = (meter.Step((paths["program"], "ports")),)
        listing = (meter.Step((rules.program("conntrack"), "-L")),)
        series = {"ports": ports, "list": listing}
        costs = in_turns(plan, {name: functools.partial(node.call, meter.spend, what) for name, what in series.items()})
        peak = Sample((float(node.call(meter.peak_memory, ports)),), "B")
    named = "ports, %d connections: " % _CONNECTIONS
    yield Row(named + "CPU", costs["ports"].cpu, "conntrack -L", costs["list"].cpu, _WITHIN)
    yield Row(named + "peak memory", peak)


def _connection(number: int) -> tracked.Tracked:
    port = 1024 + number % _A_DESTINATION
    pod = "10.244.1.%d" % (2 + number % 100)
    return tracked.Tracked(6, pod, port, "198.51.100.1", port, "203.0.113.%d" % (1 + number // _A_DESTINATION), 443)
