# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is behind a connection: what the kernel says is what conntrack(8) prints."""

from __future__ import annotations

import re
import sys
import typing as t

import pytest
from support import modules
from support.modules import apply
from support.topology import ADDRESSES, Topology

_PROGRAM = (
    "import sys; sys.path.insert(0, %r)\n"
    "from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.who import parse_endpoints, who\n"
    "from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError\n"
    "try:\n"
    "    print('; '.join(who(*parse_endpoints(sys.argv[1], sys.argv[2] or None), 'udp')))\n"
    "except NodeError as exc:\n"
    "    print(exc)\n"
)


def _who(topology: Topology, seen: str, remote: str = "") -> str:
    return topology.node.run(sys.executable, "-c", _PROGRAM % str(modules.collections()), seen, remote).strip()


def _written(address: str, port: str) -> str:
    return ("[%s]:%s" if ":" in address else "%s:%s") % (address, port)


@pytest.mark.parametrize("family", ("ipv4", "ipv6"))
def test_pod_behind_a_masqueraded_connection(topology: Topology, family: str) -> None:
    a = ADDRESSES[family]
    apply(topology.node, enable_ipv6=True)
    assert topology.ask(a.outside[0], protocol="udp") == {a.outside[0]: a.node}
    listed = topology.node.run("conntrack", "-L", "-f", family, "-p", "udp", "--orig-src", a.pod)
    ports: t.List[str] = re.findall(r"[sd]port=([0-9]+)", listed)
    assert len(ports) == 4, listed
    seen, remote = _written(a.node, ports[3]), _written(a.outside[0], ports[1])
    answer = "udp %s -> %s, seen as %s" % (_written(a.pod, ports[0]), remote, seen)
    assert _who(topology, seen, remote) == answer
    assert _who(topology, seen) == answer
    other = "1" if ports[3] != "1" else "2"
    assert _who(topology, _written(a.node, other), remote).startswith("no tracked udp connection from ")
    assert _who(topology, _written(a.node, other)).startswith("no tracked udp connection from ")


@pytest.mark.parametrize("family", ("ipv4", "ipv6"))
@pytest.mark.parametrize(
    ("zone", "shown"),
    [("zone", "zone 5"), ("original zone", "zone of the opener's packets 5"), ("reply zone", "zone of the answers 5")],
)
def test_connection_in_a_zone(topology: Topology, family: str, zone: str, shown: str) -> None:
    a = ADDRESSES[family]
    node = topology.node
    device = node.run("ip", "-o", "route", "get", a.pod).split(" dev ")[1].split()[0]
    # Packets are looked for in the zone of their own direction.
    rules = {
        "zone": "ct zone set 5",
        "original zone": "iifname %s ct original zone set 5",
        "reply zone": "iifname %s ct reply zone set 5; iifname != %s ct zone set 5",
    }
    rule = rules[zone].replace("%s", device)
    node.run("nft", "table inet zones { chain pre { type filter hook prerouting priority -300; %s; }; }" % rule)
    apply(node, enable_ipv6=True)
    assert topology.ask(a.outside[0], protocol="udp") == {a.outside[0]: a.node}
    listed = node.run("conntrack", "-L", "-f", family, "-p", "udp", "--orig-src", a.pod)
    assert re.search(r" zone(-orig|-reply)?=5 ", listed), listed
    ports: t.List[str] = re.findall(r"[sd]port=([0-9]+)", listed)
    seen, remote = _written(a.node, ports[3]), _written(a.outside[0], ports[1])
    answer = "udp %s -> %s, seen as %s, conntrack %s" % (_written(a.pod, ports[0]), remote, seen, shown)
    assert _who(topology, seen, remote) == answer
    assert _who(topology, seen) == answer
