# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether verify blames the right program, and none without cause: each with real rules in the shape it gives them."""

from __future__ import annotations

import functools
import ipaddress
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink, pod_names, xtables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import Answer, Question
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import explanation, judge, verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing import senders
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
def test_owner(node: Topology, shape: Shape, variant: str) -> None:
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


#: in a table of nft's own
_NATIVE = "native"
#: Rules that a program left, their variant, the rules that it writes now, and what removes the old ones.
_LEFT = [
    ("aws-vpc-cni", "legacy", "aws-vpc-cni", "nft", "iptables-legacy -t nat -F AWS-SNAT-CHAIN-0"),
    ("openshift-sdn", "nft", "openshift-sdn", "legacy", "iptables-nft -t nat -F OPENSHIFT-MASQUERADE-2"),
    (
        "kube-ovn-before-1.9",
        "legacy",
        "kube-ovn",
        _NATIVE,
        "iptables-legacy -t nat -D POSTROUTING -m set --match-set ovn40",
    ),
    ("flannel", "nft", "flannel", _NATIVE, "iptables-nft -t nat -F FLANNEL-POSTRTG"),
    ("flannel", _NATIVE, "flannel", "legacy", "nft delete table ip flannel-ipv4"),
    ("cni-ipmasq", "legacy", "cni-ipmasq", _NATIVE, "iptables-legacy -t nat -F CNI-d4f4a0f1b0a5d2d57e3fd8ea"),
    (
        "docker-over-pods",
        "legacy",
        "docker-over-pods",
        _NATIVE,
        "iptables-legacy -t nat -D POSTROUTING -s 10.244.0.0/16",
    ),
]


@pytest.mark.parametrize(("old", "where", "new", "there", "command"), _LEFT, ids=["%s-%s" % one[:2] for one in _LEFT])
def test_leftovers_of_a_program_that_writes_elsewhere_now(
    node: Topology, old: str, where: str, new: str, there: str, command: str
) -> None:
    """Its own remedy does not end what it left behind."""
    node.node.run("iptables-legacy-restore", stdin=_OURS)
    _shape(old, where).load(node.node, where)
    for left in (False, True):
        if left:  # without rules that would be blamed themselves
            harmless = re.sub(r"(?m)^.*(\bmasquerade\b|-j (MASQUERADE|SNAT)).*$", "", _shape(new, there).rules)
            _shape(new, there)._replace(rules=harmless).load(node.node, there)
        report, _answers = inside(node.node, _verify)
        assert report.conflicts
        for one in report.conflicts:
            assert (command in one.remedy) == ("nobody makes this rule any more" in one.remedy) == left, one.remedy


def _shape(name: str, where: str) -> Shape:
    backend = NFT if where == _NATIVE else IPTABLES
    return next(one for one in SHAPES if (one.name, one.backend) == (name, backend))


def _explained(destination: str) -> t.List[explanation.Explained]:
    with build() as made:
        return explanation.explain(made, exempt(_EXEMPT), [Question(destination, _POD, "pods")])


#: A program that keeps guests, the network of its rules in the shape, and the variant of iptables.
_GUESTS = [
    ("libvirt-over-pods", NFT, "10.244.1.0/24", "nft"),
    ("docker-over-pods", NFT, "10.244.0.0/16", "nft"),
    ("podman-beside-pods", NFT, "10.88.0.0/16", "nft"),
    ("libvirt-beside-pods", IPTABLES, "192.168.122.0/24", "nft"),
    ("libvirt-beside-pods", IPTABLES, "192.168.122.0/24", "legacy"),
]
#: Rules of POSTROUTING, and whether what is behind br7 are guests of the program that made it.
_POSTROUTING = [
    ("-s 10.42.0.0/24 ! -o br7 -j MASQUERADE", True),
    ("-s 10.42.0.0/24 ! -o br7 -j SNAT --to-source 198.51.100.1", True),
    ("-s 10.42.0.0/24 ! -d 10.42.0.0/24 -j MASQUERADE", True),
    ("-s 10.42.0.0/24 ! -d 10.42.0.0/24 -m comment --comment nm-shared-br7 -j MASQUERADE", True),
    ("-s 10.42.0.0/24 ! -d 10.42.0.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535", True),
    ("-s 10.42.0.0/24 -j NETAVARK-0123456789ABC", True),
    ("-s 10.42.0.0/24 -j MASQUERADE", False),
    ("-s 10.42.0.0/24 -o eth0 -j MASQUERADE", False),
    ("-s 10.42.0.0/24 ! -o br -j MASQUERADE", False),
    ("-s 10.42.0.0/24 ! -o br+ -j MASQUERADE", False),
    ("-s 10.42.0.0/24 ! -o br7 -d 203.0.113.0/24 -j MASQUERADE", False),
    ("-s 10.42.0.0/24 ! -o br7 -m mark --mark 0x8 -j MASQUERADE", False),
    ("-s 10.42.0.0/24 ! -d 10.0.0.0/8 -j MASQUERADE", False),
    ("-s 10.42.0.0/24 ! -d 10.42.0.0/24 -j RETURN", False),
    ("-s 10.42.0.0/16 ! -o br7 -j MASQUERADE", False),
    ("-s 10.42.0.0/16 ! -d 10.42.0.0/16 -j MASQUERADE", False),
    ("-s 10.42.0.0/24 -j KUBE-POSTROUTING", False),
    ("! -s 10.42.0.0/24 -j MASQUERADE", False),
]


def _links(found: t.Sequence[senders.Sender]) -> t.Set[str]:
    return {one.link for one in found}


def _kept(others: t.Sequence[t.Any] = ()) -> t.List[t.Tuple[t.Set[str], t.Set[str]]]:
    """Pods and guests by all that a node has, and by its links, routes and few tables."""
    states = (node_state.read(run), senders.read_network())
    return [(_links(senders.senders(state, IPV4, others)), _links(senders.guests(state, IPV4))) for state in states]


@pytest.fixture
def bridge(node: Topology) -> t.Iterator[Topology]:
    """A bridge besides that of the pods, with a name that no program gives it."""
    node.node.run("ip", "-batch", "-", stdin="link add br7 type bridge\naddr add 10.42.0.1/24 dev br7\n")
    node.node.run("ip", "link", "set", "br7", "up")
    yield node
    node.node.run("ip", "link", "delete", "br7")


_ALL_PODS: t.Tuple[t.Set[str], t.Set[str]] = ({"br7", "pods"}, set())
_WITH_GUESTS = ({"pods"}, {"br7"})


@pytest.mark.parametrize(("name", "backend", "network", "variant"), _GUESTS)
def test_guests_by_the_rules_of_their_program(
    bridge: Topology, name: str, backend: str, network: str, variant: str
) -> None:
    """A bridge of any name is theirs if they masquerade exactly its network; the policy may say otherwise."""
    shape = next(one for one in SHAPES if (one.name, one.backend) == (name, backend))
    assert inside(bridge.node, _kept) == [_ALL_PODS] * 2
    for text, theirs in (("10.42.0.0/16", False), ("10.42.0.0/24", True)):
        bridge.node.run("nft", "flush", "ruleset")
        bridge.node.run("iptables-legacy", "-t", "nat", "-F")
        shape._replace(rules=shape.rules.replace(network, text)).load(bridge.node, variant)
        assert inside(bridge.node, _kept) == [_WITH_GUESTS if theirs else _ALL_PODS] * 2
    named = functools.partial(_kept, [ipaddress.ip_network("10.42.0.0/16")])
    assert [pods for pods, _guests in inside(bridge.node, named)] == [{"br7"}, {"br7"}]


@pytest.mark.parametrize("variant", ["nft", "legacy"])
@pytest.mark.parametrize(("rule", "theirs"), _POSTROUTING)
def test_guests_by_rules_of_postrouting(bridge: Topology, rule: str, theirs: bool, variant: str) -> None:
    """What has no chain of its own is theirs by the form of the rule, and an operator's rule for pods is not."""
    chains = "*nat\n:NETAVARK-0123456789ABC - [0:0]\n:KUBE-POSTROUTING - [0:0]\n-A POSTROUTING %s\nCOMMIT\n"
    bridge.node.run("iptables-%s-restore" % variant, stdin=chains % rule)
    assert inside(bridge.node, _kept) == [_WITH_GUESTS if theirs else _ALL_PODS] * 2


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_pods_are_no_guests_whatever_rule_there_is(
    bridge: Topology, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge of a network plugin, and one behind which the container runtime knows a pod."""
    rule = "*nat\n-A POSTROUTING -s 10.42.0.0/24 ! -d 10.42.0.0/24 -j MASQUERADE\nCOMMIT\n"
    bridge.node.run("iptables-%s-restore" % variant, stdin=rule)
    for address, found in (("10.42.1.7", _WITH_GUESTS), ("fd00::7", _WITH_GUESTS), ("10.42.0.7", _ALL_PODS)):
        monkeypatch.setattr(pod_names, "read", lambda address=address: {address: pod_names.Pod("default/web", 0.0)})
        assert inside(bridge.node, _kept) == [found] * 2
    monkeypatch.undo()
    for name, found in (("cni7", ({"cni7", "pods"}, set())), ("br7", _WITH_GUESTS)):
        bridge.node.run(
            "ip", "-batch", "-", stdin="link set br7 down\nlink set br7 name %s\nlink set %s up" % (name, name)
        )
        assert inside(bridge.node, _kept) == [found] * 2
        bridge.node.run("ip", "link", "set", name, "name", "br7")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_only_the_chains_for_guests_are_looked_at(bridge: Topology, variant: str) -> None:
    """Of a nat table that kube-proxy fills, whether the rest can be read or not."""
    for name in ("kube-proxy", "libvirt-beside-pods"):
        next(one for one in SHAPES if (one.name, one.backend) == (name, IPTABLES)).load(bridge.node, variant)
    assert inside(bridge.node, _chains_of_nat) == {"POSTROUTING", "LIBVIRT_PRT"}


def _chains_of_nat() -> t.Set[str]:
    state = senders.read_network()
    found = {netlink.name(netlink.attributes(body)[2]) for table in state.tables for body in table.rules}
    for table in state.legacy:
        found.update(xtables.chains(table, ("POSTROUTING",), ("LIBVIRT_PRT",)))
    return found
