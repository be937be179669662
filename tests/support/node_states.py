# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node as the twin's reader tells it, made of words. Python 3.8."""

from __future__ import annotations

import ipaddress
import struct
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import ipsets, links, node_state
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.legacy import LegacyTable
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.neighbours import Neighbours
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.routing import Routing

_BRIDGE = links.Link(3, "cni0", "bridge", 1, 1500, b"\2\0\0\0\0\3", 0, 0, False, True)
_UPLINK = links.Link(2, "eth0", "", 1, 1500, b"\2\0\0\0\0\2", 0, 0, False, True)
_DOCKER = links.Link(4, "docker0", "bridge", 1, 1500, b"\2\0\0\0\0\4", 0, 0, False, True)
_PODS = [
    links.Link(10 + n, "cali%d" % n, "veth", 1, 1500, b"\2\0\0\0\1" + bytes((n,)), 0, 0, False, True) for n in (0, 1)
]


def _address(text: str, link: int) -> bytes:
    network = ipaddress.ip_interface(text)
    packed = network.ip.packed
    return (
        struct.pack("=BBBBI", 2, network.network.prefixlen, 0, 0, link)
        + netlink.attribute(2, packed)
        + (netlink.attribute(1, packed))
    )


def route(network: str, link: int, gateway: str = "", kind: int = 1) -> bytes:
    value = ipaddress.ip_network(network)
    family = 2 if value.version == 4 else 10
    body = struct.pack("=BBBBBBBBI", family, value.prefixlen, 0, 0, 254, 3, 0, kind, 0)
    body += netlink.attribute(1, value.network_address.packed) + netlink.word(4, link)
    return body + (netlink.attribute(5, ipaddress.ip_address(gateway).packed) if gateway else b"")


def state(*lines: str, routes: t.Sequence[bytes] = (), sets: t.Sequence[ipsets.IpSet] = ()) -> node_state.State:
    """Return a node with pods on a bridge, docker, an uplink, and rules of iptables-legacy by table."""
    tables: t.Dict[str, t.List[str]] = {}
    for line in lines:
        table, rule = line.split(" ", 1)
        tables.setdefault(table, []).append(rule)
    legacy = []
    for table, rules in tables.items():
        chains = sorted({rule.split()[1] for rule in rules})
        listing = "\n".join(["*" + table, *(":%s - [0:0]" % chain for chain in chains), *rules, "COMMIT"])
        legacy.append(LegacyTable("ip", table, listing))
    return node_state.State(
        links=(_UPLINK, _BRIDGE, _DOCKER, *_PODS),
        routing=Routing(
            (_address("198.51.100.1/24", 2), _address("10.244.1.1/24", 3), _address("172.17.0.1/16", 4)),
            (),
            (),
            (
                route("10.244.1.0/24", 3),
                route("172.17.0.0/16", 4),
                route("198.51.100.0/24", 2),
                route("0.0.0.0/0", 2, "198.51.100.2"),
                *routes,
            ),
        ),
        neighbours=Neighbours({}, {}),
        settings={},
        sets=tuple(sets),
        tables=(),
        legacy=tuple(legacy),
        services="",
        unseen=(),
    )
