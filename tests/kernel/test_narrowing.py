# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exceptions inside exempt ranges, and policies of some sources and interfaces: what packets see, in every backend."""

from __future__ import annotations

import typing as t

import pytest
from support.modules import apply
from support.topology import ADDRESSES, Topology
from support.variants import EXEMPT_RANGES, EXEMPTIONS, PODS

#: Addresses of the node besides that of its interface.
FIXED = {"ipv4": "198.51.100.7", "ipv6": "2001:db8:1::7"}
SNAT = [{"address": address} for address in FIXED.values()]
#: Options, and what two exempt destinations and two others see.
CASES: t.Dict[str, t.Tuple[t.Dict[str, t.Any], str]] = {
    "none of them": ({}, "pod pod node node"),
    "masquerade_cidrs": ({"masquerade_cidrs": ["10.99.0.0/16", "fd00:99::/32"]}, "node pod node node"),
    "masquerade only these": (
        {
            "non_masquerade_cidrs": ["0.0.0.0/0", "::/0"],
            "masquerade_cidrs": ["203.0.113.0/24", "2001:db8:99::/64"],
        },
        "pod pod node pod",
    ),
    "source_cidrs": (
        {"source_cidrs": ["10.244.0.0/16", "10.7.0.0/16", "fd00:10:244::/48"]},
        "pod pod node node",
    ),
    "other source_cidrs": ({"source_cidrs": ["10.7.0.0/16", "fd00:7::/64"]}, "pod pod pod pod"),
    "out_interfaces": ({"out_interfaces": ["bond0", "eth+"]}, "pod pod node node"),
    "other out_interfaces": ({"out_interfaces": ["bond+", "wlan0"]}, "pod pod pod pod"),
    "except_interfaces": ({"except_interfaces": ["et*"]}, "pod pod pod pod"),
    "skip_marks, without the mark": ({"skip_marks": ["0x4000/0x4000", "0x7"]}, "pod pod node node"),
    "skip_marks, one bit": ({"skip_marks": ["0x4000/0x4000", "0x7"]}, "pod pod pod pod"),
    "skip_marks, the whole mark": ({"skip_marks": ["0x4000/0x4000", "0x7"]}, "pod pod pod pod"),
    "skip_marks, more than the mark": ({"skip_marks": ["0x4000/0x4000", "0x7"]}, "pod pod node node"),
    "snat": ({"snat": SNAT}, "pod pod fixed fixed"),
    "snat of some ports": ({"snat": SNAT, "to_ports": "2000-4000"}, "pod pod fixed fixed"),
    "snat of a pod by an interface": (
        {
            "snat": [
                {"address": FIXED["ipv4"], "source_cidrs": ["10.7.0.0/16", "10.244.0.0/16"], "out_interface": "eth+"},
                {"address": FIXED["ipv6"], "source_cidrs": ["fd00:10:244::/48"], "out_interface": "eth0"},
            ],
            "masquerade_cidrs": ["10.99.0.0/16", "fd00:99::/32"],
            "source_cidrs": ["10.244.1.0/24", "fd00:10:244:1::/64"],
            "out_interfaces": ["eth0", "bond+"],
        },
        "fixed pod fixed fixed",
    ),
    "rules: snat": (
        {"rules": [{"action": "snat", "address": one} for one in FIXED.values()]},
        "fixed fixed fixed fixed",
    ),
    "rules: masquerade": (
        {"rules": [{"action": "masquerade", "destinations": ["10.99.0.1/32", "fd00:99::1/128"]}]},
        "node pod node node",
    ),
    "rules: exempt": (
        {"rules": [{"action": "exempt", "destinations": ["203.0.113.10/32", "2001:db8:99::1/128"]}]},
        "pod pod pod node",
    ),
    "rules: exempt a protocol": ({"rules": [{"action": "exempt", "protocols": ["tcp"]}]}, "pod pod pod pod"),
    "rules: a port": (
        {"rules": [{"action": "masquerade", "protocols": ["tcp"], "ports": [8080]}]},
        "node node node node",
    ),
    "rules: skip": (
        {
            "rules": [
                {"action": "skip", "protocols": ["udp", "icmp"]},
                {"action": "skip", "sources": ["10.244.1.2/32", "fd00:10:244:1::2/128"], "ports": ["8080"]},
            ]
        },
        "pod pod pod pod",
    ),
    "rules: the first counts": (
        {
            "rules": [
                {"action": "skip", "out_interfaces": ["bond0"]},
                {"action": "masquerade", "out_interfaces": ["eth*"], "destinations": ["172.20.0.0/16", "fc00:77::/32"]},
                {"action": "exempt"},
            ],
            "snat": SNAT,
        },
        "pod fixed pod pod",
    ),
}
#: What a program sets on all packets of the pod before they are routed.
MARKS = {
    "skip_marks, one bit": 0x14001,
    "skip_marks, the whole mark": 0x7,
    "skip_marks, more than the mark": 0x80007,
}


def mark_packets(topology: Topology, mark: int) -> None:
    """Have another program mark the packets that come from the pod."""
    commands = ["add table inet marks", "delete table inet marks", "add table inet marks"]
    commands += ["add chain inet marks prerouting { type filter hook prerouting priority mangle; }"]
    commands += ['add rule inet marks prerouting iifname "pods" meta mark set %d' % mark]
    topology.node.run("nft", "-f", "-", stdin="\n".join([*commands, ""]))


@pytest.mark.parametrize("backend, exemption", EXEMPTIONS)
def test_packet_matrix(topology: Topology, backend: str, exemption: str) -> None:
    """Each with each, by new connections from a pod. Policies follow each other on one node."""
    for address, length in zip(FIXED.values(), (24, 64)):
        # Not preferred, so that what is masqueraded keeps the other one.
        topology.node.run("ip", "address", "add", "%s/%d" % (address, length), "dev", "eth0", "preferred_lft", "0")
    for name, (given, expected) in CASES.items():
        options = {"non_masquerade_cidrs": EXEMPT_RANGES, "source_cidrs": PODS, **given}
        wanted = dict(options, backend=backend, exemption=exemption, enable_ipv6=True)
        mark_packets(topology, MARKS.get(name, 0))
        assert apply(topology.node, **wanted)["changed"] or name in MARKS
        assert not apply(topology.node, **wanted)["changed"], name
        for family, a in ADDRESSES.items():
            names = {a.pod: "pod", a.node: "node", FIXED[family]: "fixed"}
            seen = topology.ask(*a.exempt[:2], *a.outside)
            assert " ".join(names.get(address, address) for address in seen.values()) == expected, (name, family)
