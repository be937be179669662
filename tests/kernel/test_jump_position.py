# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option jump_position over real tables: where the jump is, whose rules packets meet first, and who moves it."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.flood import Flood
from support.marks import iptables_only
from support.modules import apply, info, run_module, run_modules
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import NFT_FAMILIES, PODS, Variant

CHAIN = "IP-MASQ-AGENT"
#: Rules of other programs: kube-proxy's, Calico's, an administrator's.
OTHERS = (
    ":KUBE-POSTROUTING - [0:0]",
    ":cali-POSTROUTING - [0:0]",
    "-A POSTROUTING -m comment --comment kubernetes -j KUBE-POSTROUTING",
    "-A POSTROUTING -m comment --comment cali:x -j cali-POSTROUTING",
    "-A POSTROUTING -o eth9 -j MASQUERADE",
)
#: By the option's value, the targets of the rules of POSTROUTING in their order.
PLACES = {
    "keep": "KUBE-POSTROUTING cali-POSTROUTING MASQUERADE " + CHAIN,
    "first": CHAIN + " KUBE-POSTROUTING cali-POSTROUTING MASQUERADE",
    "last": "KUBE-POSTROUTING cali-POSTROUTING MASQUERADE " + CHAIN,
    "before:cali-POSTROUTING": "KUBE-POSTROUTING %s cali-POSTROUTING MASQUERADE" % CHAIN,
    "after:cali-POSTROUTING": "KUBE-POSTROUTING cali-POSTROUTING %s MASQUERADE" % CHAIN,
}


def targets(ns: Namespace, variant: Variant, family: str) -> str:
    """The targets of POSTROUTING."""
    return " ".join(rule.split()[-1] for rule in variant.rules(ns, family, "POSTROUTING") or [])


@iptables_only
@pytest.mark.parametrize("position", PLACES)
def test_places_in_both_families(ns: Namespace, variant: Variant, position: str) -> None:
    options = {"backend": variant.backend, "enable_ipv6": True, "jump_position": position}
    for family in NFT_FAMILIES:
        variant.load(ns, family, *OTHERS)
    planned = run_module(ns, check=True, diff=True, **options)
    assert planned["changed"] and CHAIN not in targets(ns, variant, "ipv4")
    done = apply(ns, diff=True, **options)
    assert (done["actions"], done["diff"]) == (planned["actions"], planned["diff"])
    assert [targets(ns, variant, family) for family in NFT_FAMILIES] == [PLACES[position]] * 2
    assert not apply(ns, **options)["changed"]


PRIORITIES = {"keep": 100, "first": -199, "last": 2147483647}


def priorities(ns: Namespace) -> t.Dict[str, int]:
    """By family and chain of our tables."""
    listed = json.loads(ns.run("nft", "-j", "list", "ruleset"))["nftables"]
    return {
        "%s %s" % (chain["family"], chain["name"]): chain["prio"]
        for one in listed
        for kind, chain in one.items()
        if kind == "chain" and chain["table"] == "ip_masq_agent"
    }


@pytest.mark.parametrize("exemption", ["return", "enforce"])
def test_with_nftables_the_priority_is_the_place(ns: Namespace, exemption: str) -> None:
    enforcer = {"ip enforce": 50, "ip6 enforce": 50} if exemption == "enforce" else {}
    options = {"backend": "nftables", "exemption": exemption, "enable_ipv6": True}
    options.update(non_masquerade_cidrs=["10.0.0.0/8", "fd00::/8"], source_cidrs=PODS)
    for position in ("first", "last", "keep", "first"):
        planned = run_module(ns, check=True, jump_position=position, **options)
        done = apply(ns, jump_position=position, **options)
        assert done["changed"] and done["actions"] == planned["actions"]
        number = PRIORITIES[position]
        assert priorities(ns) == {"ip postrouting": number, "ip6 postrouting": number, **enforcer}
        assert not apply(ns, jump_position=position, **options)["changed"]
    apply(ns, state="absent")
    assert priorities(ns) == {}


def explained(node: Namespace, pod: str, destination: str) -> str:
    """The source address that the module ip_masq_info says a destination sees."""
    found = info(node, destinations=[destination], source=pod)
    return t.cast(str, found["explanations"][0]["seen_address"])


def second_address(node: Namespace, family: str) -> str:
    """Give the node one more address, which masquerading does not choose."""
    address, length = ("198.51.100.77", 24) if family == "ipv4" else ("2001:db8:1::77", 64)
    node.run("ip", "address", "add", "%s/%d" % (address, length), "dev", "eth0", "preferred_lft", "0")
    return address


@pytest.mark.parametrize("own", [-100, 0, 99, 101])
def test_packets_meet_the_nftables_chain_first_or_last(topology: Topology, family: str, own: int) -> None:
    """Another program gives packets an address of its own: whose chain they meet first decides."""
    nft, a = NFT_FAMILIES[family], ADDRESSES[family]
    theirs = second_address(topology.node, family)
    rules = "table %s theirs { chain post { type nat hook postrouting priority %d; oifname eth0 snat to %s; }; }"
    topology.node.run("nft", rules % (nft, own, theirs))
    for position, seen in (("first", a.node), ("last", theirs), ("keep", theirs if own < 100 else a.node)):
        apply(topology.node, backend="nftables", enable_ipv6=True, jump_position=position)
        assert topology.ask(a.outside[0]) == {a.outside[0]: seen}, position
        assert explained(topology.node, a.pod, a.outside[0]) == seen


@iptables_only
@pytest.mark.parametrize("position, seen", [("first", "node"), ("last", "theirs")])
def test_packets_meet_the_jump_first_or_last(
    topology: Topology, variant: Variant, family: str, position: str, seen: str
) -> None:
    a = ADDRESSES[family]
    theirs = second_address(topology.node, family)
    apply(topology.node, backend=variant.backend, enable_ipv6=True)
    for verb in ("-I POSTROUTING 1", "-A POSTROUTING"):
        variant.load(topology.node, family, "%s -o eth0 -s %s -j SNAT --to-source %s" % (verb, a.pods, theirs))
    apply(topology.node, backend=variant.backend, enable_ipv6=True, jump_position=position)
    address = {"node": a.node, "theirs": theirs}[seen]
    assert topology.ask(a.outside[0]) == {a.outside[0]: address}
    assert explained(topology.node, a.pod, a.outside[0]) == address


def test_no_connection_notices_a_move(topology: Topology, variant: Variant) -> None:
    a, node = ADDRESSES["ipv4"], topology.node
    apply(node, backend=variant.backend)
    variant.load(node, "ipv4", *OTHERS)
    with Flood(topology, a.exempt[0], a.outside[0]) as flood:
        runs = [{"backend": variant.backend, "jump_position": position} for position in ("last", "first")]
        results = run_modules(node, runs * 40)
    assert all(result["changed"] for result in results)
    assert flood.sources == {a.exempt[0]: {a.pod}, a.outside[0]: {a.node}}
    assert flood.least > 1000


#: What a program does that insists on being first.
INSISTS = ("-D POSTROUTING -j cali-POSTROUTING", "-I POSTROUTING 1 -j cali-POSTROUTING")


@pytest.fixture
def node(ns: Namespace, tmp_path: Path, variant: Variant) -> AgentNode:
    """A node in sync whose jump is first, and a chain of Calico behind it."""
    made = AgentNode(ns, tmp_path, metrics=True)
    variant.load(ns, "ipv4", ":cali-POSTROUTING - [0:0]", "-A POSTROUTING -j cali-POSTROUTING")
    made.synced(backend=variant.backend, jumpPosition="first")
    return made


@iptables_only
def test_moves_that_the_operator_asks_for_do_not_count(node: AgentNode, variant: Variant) -> None:
    for _again in range(3):
        for position in ("last", "first"):
            node.synced(backend=variant.backend, jumpPosition=position)
            places = [CHAIN, "cali-POSTROUTING"]
            assert targets(node.ns, variant, "ipv4") == " ".join(places if position == "first" else places[::-1])
    variant.load(node.ns, "ipv4", *INSISTS)
    done = node.sync()
    assert "jump moved to its position" in done.stdout, "the first move of another program"
    assert node.status()["repairs_undone"] == []
