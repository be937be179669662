# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether verify blames the right program, and none without cause: each with real rules in the shape it gives them."""

from __future__ import annotations

import functools
import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import Answer, Question
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import explanation, judge, verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing import guest_networks, senders
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways import packet_policy
from support.actor_rules import IPTABLES, NFT, SHAPES, Shape
from support.topology import ADDRESSES, Topology
from support.twins import build, exempt
from support.unnamed_namespaces import inside

_OURS = """*nat
:IP-MASQ-AGENT - [0:0]
-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
-A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN
-A IP-MASQ-AGENT -d 172.16.0.0/12 -j RETURN
-A IP-MASQ-AGENT -d 192.168.0.0/16 -j RETURN
-A IP-MASQ-AGENT -j MASQUERADE --random-fully
COMMIT
"""
_EXEMPT = [ipaddress.ip_network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
_PODS = ipaddress.ip_network("10.244.1.0/24")
_POD = ADDRESSES["ipv4"].pod
_NODE = ADDRESSES["ipv4"].node
_ASKED = (*ADDRESSES["ipv4"].exempt, *ADDRESSES["ipv4"].outside)

_CASES = [
    pytest.param(shape, variant, id="%s-%s" % (shape.title, variant))
    for shape in SHAPES
    for variant in (("nft", "legacy") if shape.backend == IPTABLES else ("nft",))
]


@pytest.fixture(scope="module")
def shared() -> t.Iterator[Topology]:
    """A pod, a node and the world outside, for all tests here."""
    made = Topology()
    yield made
    made.delete()


@pytest.fixture
def node(shared: Topology) -> t.Iterator[Topology]:
    """The same, without rules and sets afterwards."""
    yield shared
    shared.node.run("nft", "flush", "ruleset")
    for table in shared.node.read("/proc/net/ip_tables_names").split():
        shared.node.run("iptables-legacy", "-t", table, "-F")
        shared.node.run("iptables-legacy", "-t", table, "-X")
    shared.node.run("ipset", "destroy")


def _verify(pods: t.Sequence[t.Any] = (_PODS,)) -> t.Tuple[verification.Report, t.List[Answer]]:
    with build() as made:
        questions = [Question(destination, _POD, port=8080) for destination in _ASKED]
        return verification.verify(made, exempt(_EXEMPT, pods)), made.ask(questions, explain=True)


@pytest.mark.parametrize(("shape", "variant"), _CASES)
def test_owner(node: Topology, shape: Shape, variant: str, show_table: t.Callable[..., None]) -> None:
    node.node.run("iptables-%s-restore" % variant, stdin=_OURS)
    shape.load(node.node, variant)
    real = node.ask(*_ASKED)
    report, answers = inside(node.node, _verify)
    assert {answer.question.destination: answer.source for answer in answers} == real
    assert not report.left_out
    hidden = [one for one in ADDRESSES["ipv4"].exempt if real[one] != _POD]
    found = {one for one in hidden for conflict in report.conflicts if _covers(conflict, one)}
    assert set(hidden) == found
    assert bool(hidden) == (shape.owner is not None)
    assert {conflict.owner for conflict in report.conflicts} == ({shape.owner} if shape.owner else set())
    for conflict in report.conflicts:
        assert (conflict.policy, conflict.seen, conflict.severity) == (
            packet_policy.POD,
            packet_policy.NODE,
            verification.ERROR,
        )
        assert conflict.decided_by is not None and conflict.decided_by.text and conflict.remedy
    tool = "nft" if shape.backend == NFT else "iptables-" + variant
    seen = "node" if hidden else "pod"
    blamed = "%d ranges: %s" % (sum(len(one.ranges) for one in report.conflicts), shape.owner) if hidden else "none"
    cells = (tool, seen, blamed, report.conflicts[0].remedy if hidden else "")
    show_table("program", ("rules of", "exempt destination sees", "conflict", "remedy"), [(shape.name, cells)])


def _covers(conflict: verification.Conflict, address: str) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(one) for one in conflict.ranges)


def test_all_at_once_without_a_conflict(node: Topology) -> None:
    """kube-proxy, portmap and others that are needed, together."""
    for shape in SHAPES:
        # In its IPVS mode kube-proxy has chains of the same names.
        if shape.owner is None and shape.name != "kube-proxy-ipvs":
            shape.load(node.node)
    node.node.run("iptables-nft-restore", "--noflush", stdin=_OURS)
    report, _answers = inside(node.node, _verify)
    assert report.conflicts == ()


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_what_docker_needs_for_packets_of_the_node(node: Topology, variant: str) -> None:
    """Without its proxy, the node reaches a container with an address of the bridge. Any other rule hides it."""
    node.node.run("ip", "-batch", "-", stdin="link add docker0 type bridge\naddr add 172.17.0.1/16 dev docker0\n")
    try:
        node.node.run("ip", "link", "set", "docker0", "up")
        needed = "-A POSTROUTING -o docker0 -m addrtype --src-type LOCAL -j MASQUERADE"
        for rule, owners in ((needed, set()), (needed.replace(" -m addrtype --src-type LOCAL", ""), {"unknown"})):
            node.node.run("iptables-%s-restore" % variant, stdin="*nat\n%s\nCOMMIT\n" % rule)
            node.node.run("iptables-%s-restore" % variant, "--noflush", stdin=_OURS)
            report, _answers = inside(node.node, functools.partial(_verify, ()))
            # IPv6 has no rules of ours: there no rule is to blame.
            assert {one.owner for one in report.conflicts} - {judge.NOBODY} == owners
    finally:
        node.node.run("ip", "link", "delete", "docker0")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_explain_names_what_keeps_packets_from_conntrack(node: Topology, variant: str) -> None:
    """Such as Cilium without conntrack for pods. No rule of ours sees them, so sync would change nothing."""
    rules = "*raw\n:CILIUM_PRE_raw - [0:0]\n-A PREROUTING -j CILIUM_PRE_raw\n-A CILIUM_PRE_raw -s 10.244.0.0/16 "
    node.node.run("iptables-%s-restore" % variant, stdin=rules + "-j CT --notrack\nCOMMIT\n" + _OURS)
    ((decided,),) = [one.decided for one in inside(node.node, _explained, ADDRESSES["ipv4"].outside[0])]
    assert decided.answer.decided_by is not None and "--notrack" in decided.answer.decided_by.text
    assert decided.cause is not None and decided.cause.owner == "Cilium"
    assert "connection tracking" in decided.cause.remedy and "sync" not in decided.cause.remedy


@pytest.mark.parametrize("also", [False, True])
def test_a_chain_that_is_in_both_variants(node: Topology, also: bool) -> None:
    """A program that changed from one to the other leaves its rules behind, and its own remedy does not end these."""
    shape = next(one for one in SHAPES if (one.name, one.backend) == ("aws-vpc-cni", IPTABLES))
    node.node.run("iptables-legacy-restore", stdin=_OURS)
    shape.load(node.node, "legacy")
    if also:
        node.node.run("iptables-nft-restore", stdin="*nat\n:AWS-SNAT-CHAIN-0 - [0:0]\nCOMMIT\n")
    report, _answers = inside(node.node, _verify)
    assert report.conflicts
    for one in report.conflicts:
        assert ("nothing makes this rule any more" in one.remedy) == also
        assert not also or "this rule is in iptables_legacy" in one.remedy


def _explained(destination: str) -> t.List[explanation.Explained]:
    with build() as made:
        return explanation.explain(made, exempt(_EXEMPT), [Question(destination, _POD, "pods")])


#: A program that keeps guests, the network of its rules in the shape, the variant of iptables, and whether that is
#: found when no other rules are read.
_GUESTS = [
    ("networkmanager-shared", NFT, "10.244.1.0/24", "nft", True),
    ("lxc-net-over-pods", NFT, "10.244.1.0/24", "nft", True),
    ("incus-over-pods", NFT, "10.244.1.0/24", "nft", True),
    ("systemd-networkd", NFT, "10.244.1.0/24", "nft", True),
    ("libvirt-over-pods", NFT, "10.244.1.0/24", "nft", True),
    ("docker-over-pods", NFT, "10.244.0.0/16", "nft", True),
    ("podman-beside-pods", NFT, "10.88.0.0/16", "nft", True),
    ("libvirt-beside-pods", IPTABLES, "192.168.122.0/24", "nft", False),
    ("libvirt-beside-pods", IPTABLES, "192.168.122.0/24", "legacy", False),
]


def _links(found: t.Sequence[senders.Sender]) -> t.Set[str]:
    return {one.link for one in found}


def _kept(others: t.Sequence[t.Any] = ()) -> t.List[t.Tuple[t.Set[str], t.Set[str]]]:
    """Pods and guests by all that a node has, and by its links, routes and few tables."""
    states = (node_state.read(run), node_state.read_network(guest_networks.is_wanted))
    return [(_links(senders.senders(state, IPV4, others)), _links(senders.guests(state, IPV4))) for state in states]


@pytest.mark.parametrize(("name", "backend", "network", "variant", "always"), _GUESTS)
def test_guests_by_the_rules_of_their_program(
    node: Topology, name: str, backend: str, network: str, variant: str, always: bool
) -> None:
    """A bridge of any name is theirs if they masquerade exactly its network; the policy may say otherwise."""
    shape = next(one for one in SHAPES if (one.name, one.backend) == (name, backend))
    node.node.run("ip", "-batch", "-", stdin="link add br7 type bridge\naddr add 10.42.0.1/24 dev br7\n")
    try:
        node.node.run("ip", "link", "set", "br7", "up")
        pods: t.Tuple[t.Set[str], t.Set[str]] = ({"br7", "pods"}, set())
        assert inside(node.node, _kept) == [pods, pods]
        for text, theirs in (("10.42.0.0/16", False), ("10.42.0.0/24", True)):
            node.node.run("nft", "flush", "ruleset")
            node.node.run("iptables-legacy", "-t", "nat", "-F")
            shape._replace(rules=shape.rules.replace(network, text)).load(node.node, variant)
            found = ({"pods"}, {"br7"}) if theirs else pods
            assert inside(node.node, _kept) == [found, found if always else pods]
        named = functools.partial(_kept, [ipaddress.ip_network("10.42.0.0/16")])
        assert [pods for pods, _guests in inside(node.node, named)] == [{"br7"}, {"br7"}]
    finally:
        node.node.run("ip", "link", "delete", "br7")
