# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains of other programs that traffic meets in POSTROUTING: named by status and the modules."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from support.actor_rules import IPTABLES, SHAPES
from support.agent_node import AgentNode
from support.namespaces import Namespace
from support.variants import VARIANTS, Variant

CHAINS = {
    "cali-POSTROUTING": "Calico",
    "FLANNEL-POSTRTG": "flannel",
    "CNI-0123456789abcdef01234567": "CNI plugin bridge or ptp",
    "CILIUM_POST_nat": "Cilium",
    "OVN-KUBE-EGRESS-SVC": "OVN-Kubernetes",
    "ANTREA-POSTROUTING": "Antrea",
    "KUBE-ROUTER-SERVICES": "kube-router",
    "WEAVE": "Weave Net",
}


def jump_to(variant: Variant, ns: Namespace, *chains: str) -> None:
    """Have POSTROUTING jump to chains."""
    variant.load(ns, "ipv4", *(":%s - [0:0]" % chain for chain in chains))
    variant.load(ns, "ipv4", *("-I POSTROUTING -j %s" % chain for chain in chains))
    variant.load(ns, "ipv4", *("-A %s -j MASQUERADE" % chain for chain in chains))


@pytest.fixture
def node(ns: Namespace, tmp_path: Path) -> AgentNode:
    """A node with the agent on it."""
    return AgentNode(ns, tmp_path)


def other_nat(node: AgentNode, **options: t.Any) -> t.List[str]:
    """What the module ip_masq returns about them."""
    return t.cast(t.List[str], node.module("ip_masq", options)["other_nat"])


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))
def test_jumps_to_chains_of_other_programs_are_named(node: AgentNode, variant: Variant) -> None:
    chains = dict(CHAINS, **{"MY-CHAIN": "an unknown program"})
    jump_to(variant, node.ns, *chains, "KUBE-POSTROUTING")
    node.synced(backend=variant.backend, masqChain="OUR-CHAIN")
    status = node.status()
    assert status["in_sync"]
    notes = [note for note in status["notes"] if "POSTROUTING jumps to" in note]
    for chain, program in chains.items():
        start = "ipv4, %s: POSTROUTING jumps to %s of %s, which may masquerade" % (variant.backend, chain, program)
        assert len([note for note in notes if note.startswith(start)]) == 1, notes
    assert len(notes) == len(chains)
    assert other_nat(node, backend=variant.backend, masq_chain="OUR-CHAIN") == notes


#: Programs whose rules are not about pods, and one that writes the same chain about them.
_BESIDE = [shape for shape in SHAPES if shape.owner is None]


@pytest.mark.parametrize("place", range(len(_BESIDE)), ids=[shape.title for shape in _BESIDE])
def test_what_is_not_about_pods_is_not_named(node: AgentNode, place: int) -> None:
    node.wire()
    shape = _BESIDE[place]
    # The variants in turn.
    shape.load(node.ns, "legacy" if shape.backend == IPTABLES and place % 2 else "nft")
    node.synced(backend="iptables_nft", sourceCIDRs=["10.244.0.0/16"])
    assert [note for note in node.status()["notes"] if "masquerade exempt traffic" in note] == []


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_the_same_chain_is_named_once_it_is_about_pods(node: AgentNode, variant: str) -> None:
    """Also behind another chain."""
    node.wire()
    beside = next(one for one in SHAPES if (one.name, one.backend) == ("libvirt-beside-pods", IPTABLES))
    beside.load(node.ns, variant)
    node.synced(backend="iptables_nft", sourceCIDRs=["10.244.0.0/16"])
    tool = ("iptables-" + variant, "-t", "nat")
    node.ns.run(*tool, "-N", "MORE")
    node.ns.run(*tool, *"-I LIBVIRT_PRT -j MORE".split())
    assert not any("LIBVIRT_PRT" in note for note in node.status()["notes"])
    node.ns.run(*tool, *"-A MORE -s 10.244.1.0/24 -j MASQUERADE".split())
    assert any("jumps to LIBVIRT_PRT of libvirt" in note for note in node.status()["notes"])


def test_nat_chains_of_other_tables_are_named(node: AgentNode) -> None:
    node.ns.run(
        "nft",
        "add table inet firewalld;"
        "add chain inet firewalld nat_POST { type nat hook postrouting priority 100; };"
        "add chain inet firewalld nat_PRE { type nat hook prerouting priority -100; };"
        "add chain inet firewalld mangle_POST { type filter hook postrouting priority 10; };"
        "add chain inet firewalld regular;"
        "add rule inet firewalld nat_POST oifname eth0 masquerade; add rule inet firewalld nat_PRE drop;"
        "add table ip6 other; add chain ip6 other six { type nat hook postrouting priority 100; };"
        "add rule ip6 other six masquerade",
    )
    node.synced(backend="nftables")
    notes = [note for note in node.status()["notes"] if "of nftables has the nat chain" in note]
    assert [note.partition(",")[0] for note in notes] == ["table inet firewalld of nftables has the nat chain nat_POST"]
    assert not any("policy" in note for note in notes)
    node.configure(backend="nftables", enableIPv6=True)
    notes = [note for note in node.status()["notes"] if "of nftables has the nat chain" in note]
    assert {note.partition(",")[0] for note in notes} == {
        "table inet firewalld of nftables has the nat chain nat_POST",
        "table ip6 other of nftables has the nat chain six",
    }


#: Tables of programs that keep guests, as they write them: Incus, netavark 1.12, Docker 29.
GUESTS = """
table inet incus {
    chain pstrt.incusbr0 {
        type nat hook postrouting priority 100; policy accept;
        ip saddr 10.61.58.0/24 ip daddr != 10.61.58.0/24 masquerade
    }
}
table inet netavark {
    chain nv_10_88_0_0_nm16 {
        ip daddr 10.88.0.0/16 accept
        ip daddr != 224.0.0.0/4 masquerade
    }
    chain POSTROUTING {
        type nat hook postrouting priority 100; policy accept;
        meta mark & 0x00002000 == 0x00002000 masquerade
        ip saddr 10.88.0.0/16 jump nv_10_88_0_0_nm16
    }
}
table ip docker-bridges {
    chain nat-postrouting-in__docker0 {
        fib saddr type local counter masquerade
    }
    chain nat-postrouting-out__docker0 {
        oifname != "docker0" ip saddr 172.17.0.0/16 counter masquerade
    }
    chain nat-POSTROUTING {
        type nat hook postrouting priority 100; policy accept;
        iifname "docker0" jump nat-postrouting-out__docker0
        oifname "docker0" jump nat-postrouting-in__docker0
    }
}
"""


@pytest.mark.parametrize("sources", [[], ["10.244.0.0/16"]])
def test_tables_for_guests_alone_are_not_named_until_a_rule_is_about_pods(
    node: AgentNode, sources: t.List[str]
) -> None:
    node.wire()
    node.ns.run("nft", "-f", "-", stdin=GUESTS)
    node.synced(backend="nftables", sourceCIDRs=sources)
    assert [note for note in node.status()["notes"] if "of nftables has the nat chain" in note] == []
    others = "add rule inet netavark nv_10_88_0_0_nm16 masquerade; add rule ip docker-bridges nat-POSTROUTING ip saddr "
    others += "10.0.0.0/8 jump nat-postrouting-out__docker0; add rule inet incus pstrt.incusbr0 masquerade"
    node.ns.run("nft", others)
    (note,) = [note for note in node.status()["notes"] if "of nftables has the nat chain" in note]
    assert note.startswith("table inet incus of nftables has the nat chain pstrt.incusbr0, which may masquerade")


def test_a_policy_of_drop_is_named(node: AgentNode) -> None:
    node.ns.run(
        "nft",
        "add table inet theirs;"
        "add chain inet theirs post { type nat hook postrouting priority 110; policy drop; };"
        "add table ip nat; add chain ip nat POSTROUTING { type nat hook postrouting priority 100; policy drop; };",
    )
    node.synced(backend="iptables_nft")
    notes = [note for note in node.status()["notes"] if "policy" in note and "source_cidrs" not in note]
    assert [note.partition(",")[0].partition(":")[0] for note in notes] == [
        "the policy of POSTROUTING is DROP",
        "table inet theirs of nftables has the nat chain post",
    ]
    VARIANTS["iptables_legacy"].load(node.ns, "ipv4", ":POSTROUTING DROP [0:0]")
    assert any("POSTROUTING of iptables_legacy is DROP" in note for note in node.status()["notes"])


def test_nothing_is_named_and_no_table_created_where_there_is_nothing(node: AgentNode) -> None:
    node.synced(backend="nftables", enableIPv6=True)
    tables = node.ns.run("nft", "list", "tables")
    assert not [note for note in node.status()["notes"] if "may masquerade exempt traffic" in note]
    assert node.ns.run("nft", "list", "tables") == tables
    assert not node.call("cat", "/proc/net/ip_tables_names").stdout.split()
