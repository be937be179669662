# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where more than one answer is possible: which backend, which path, which chain first, which source port."""

from __future__ import annotations

import shlex
import typing as t

import pytest
from bench import kube_proxy
from support.modules import apply, info
from support.namespaces import Namespace
from support.rule_shapes import Service
from support.topology import ADDRESSES, Topology

_A = ADDRESSES["ipv4"]
_SERVICE = "10.96.0.10"
_OTHER_POD = "10.244.1.9"
_TEN: t.Dict[str, t.Any] = {"backend": "iptables_nft", "non_masquerade_cidrs": ["10.0.0.0/8"]}


@pytest.fixture
def node(topology: Topology) -> Namespace:
    """A node with the policy ``_TEN``."""
    apply(topology.node, **_TEN)
    return topology.node


def _iptables_rule(node: Namespace, *words: str) -> None:
    node.run("iptables-nft", "-t", "nat", "-I", "POSTROUTING", *words)


def _look(node: Namespace, **options: t.Any) -> t.Dict[str, t.Any]:
    return info(node, **{"backend": "iptables_nft", **options})


def test_what_only_chance_masquerades_is_a_conflict(node: Namespace) -> None:
    """One packet of twenty: an answer of the other way is none of this one."""
    rule = "POSTROUTING -d %s -m statistic --mode nth --every 20 --packet 19 -j MASQUERADE" % _A.exempt[0]
    node.run("iptables-nft", "-t", "nat", "-I", *rule.split())
    found = _look(node, verify=True, **_TEN)
    assert [(one["range"], one["severity"]) for one in found["conflicts"]] == [(_A.exempt[0] + "/32", "warning")]


def test_each_address_that_chance_gives_is_looked_at(topology: Topology) -> None:
    wanted = {"snat": [{"address": _A.node}], "backend": "iptables_nft"}
    apply(topology.node, **wanted)
    topology.node.run("ip", "address", "add", "198.51.100.77/24", "dev", "eth0")
    addresses = ", ".join("%d : %s" % (n, _A.node if n < 19 else "198.51.100.77") for n in range(20))
    rule = "ip daddr %s snat to numgen inc mod 20 map { %s }" % (_A.outside[0], addresses)
    table = "table ip other {\nchain c {\ntype nat hook postrouting priority 90;\n%s\n}\n}\n" % rule
    topology.node.run("nft", "-f", "-", stdin=table)
    found = _look(topology.node, verify=True, **wanted)
    # The link has both addresses; the policy names one of them.
    # What the node itself sends from the other address keeps it.
    seen = {(one["seen"], one["severity"]) for one in found["conflicts"]}
    assert ("node", "warning") in seen and seen <= {("node", "warning"), ("own", "warning")}


def test_what_only_packets_seen_before_meet_is_named(node: Namespace) -> None:
    _iptables_rule(node, "-d", _A.exempt[0], "-m", "recent", "--name", "x", "--rcheck", "-j", "MASQUERADE")
    found = _look(node, verify=True, **_TEN)
    assert found["verified"] is None
    (one,) = found["untested"]
    assert (one["code"], one["ranges"]) == ("unknown_rule", [_A.exempt[0] + "/32"])
    assert "--rcheck" in one["text"] and "because of packets seen before (recent)" in one["text"]


_MARKED = "iptables-nft -t raw -I PREROUTING -s 10.244.0.0/16 -d %s -j MARK --set-xmark 0x200/0xf00; " % _A.outside[0]
#: What another program does with packets of its mark, before our rules see them.
_OF_ITS_MARK = (
    "iptables-nft -t nat -I POSTROUTING -m mark --mark 0x200/0xf00 -j SNAT --to-source 198.51.100.77",
    "iptables-nft -t raw -A PREROUTING -m mark --mark 0x200/0xf00 -j NOTRACK",
)


@pytest.mark.parametrize("rule", _OF_ITS_MARK)
def test_packets_with_a_mark_are_left_to_a_rule_in_front_of_ours(topology: Topology, rule: str) -> None:
    for marks, judged in (("0x200/0xf00", (True, None)), ("0x300/0xf00", (False, "node"))):
        wanted = {**_TEN, "source_cidrs": ["10.244.0.0/16"], "skip_marks": [marks]}
        apply(topology.node, **wanted)
        if judged[0]:
            topology.node.run("sh", "-c", _MARKED + rule)
        found = _look(topology.node, verify=True, destinations=[_A.outside[0]], **wanted)
        (explained,) = found["explanations"]
        assert (found["verified"], explained["policy"]) == judged, found["conflicts"]
        assert explained["seen"] == ("pod" if "NOTRACK" in rule else "198.51.100.77")


def test_guests_that_the_policy_names_are_pods(topology: Topology) -> None:
    """A bridge may have a name as Docker's, and pods behind it; an entry of ``rules`` is about all sources."""
    topology.node.run("ip", "link", "add", "docker0", "up", "type", "bridge")
    topology.node.run("ip", "address", "add", "10.42.0.1/24", "dev", "docker0")
    for named, hidden in (([], []), ([_A.pods], []), (["10.42.0.0/16"], ["172.16.0.0/12"])):
        wanted = {**_TEN, "source_cidrs": named, "rules": [{"action": "exempt", "destinations": ["172.16.0.0/12"]}]}
        apply(topology.node, **wanted)
        _iptables_rule(topology.node, "-s", "10.42.0.0/24", "-d", "172.16.0.0/12", "-j", "MASQUERADE")
        assert [one["range"] for one in _look(topology.node, verify=True, **wanted)["conflicts"]] == hidden


def _serve(node: Namespace, endpoints: t.Sequence[str], mode: str = "iptables-nft-restore") -> None:
    """Have kube-proxy's rules for a Service."""
    known = [Service(_SERVICE, 80, tuple(endpoints))]
    if mode == "nft":
        node.run("nft", "-f", "-", stdin=kube_proxy.nftables(known))
    else:
        node.run(mode, "--noflush", stdin=kube_proxy.iptables(known))


def _explain(node: Namespace, destination: str, **options: t.Any) -> t.Dict[str, t.Any]:
    (one,) = _look(node, destinations=[destination], **dict({"source": _A.pod}, **options))["explanations"]
    return t.cast(t.Dict[str, t.Any], one)


def _seen(one: t.Mapping[str, t.Any]) -> t.Set[str]:
    return {each["seen_address"] for each in (one, *one["alternatives"])}


def test_one_answer_has_no_alternatives(node: Namespace) -> None:
    one = _explain(node, _A.exempt[0], **_TEN)
    assert (one["agrees"], one["alternatives"], one["depends_on"], one["not_understood"]) == (True, [], [], [])


def test_both_orders_of_chains_of_the_same_priority_are_told(node: Namespace) -> None:
    for name, address in (("one", "192.0.2.1"), ("two", "192.0.2.3")):
        chain = "type nat hook postrouting priority 90;\nip daddr %s snat to %s" % (_A.outside[0], address)
        node.run("nft", "-f", "-", stdin="table ip %s {\nchain c {\n%s\n}\n}\n" % (name, chain))
    one = _explain(node, _A.outside[0], **_TEN)
    assert _seen(one) == {"192.0.2.1", "192.0.2.3"}
    (depends,) = one["depends_on"]
    assert "two chains have the same priority" in depends and "does not show" in depends
    assert {each["decided_by"]["table"] for each in (one, *one["alternatives"])} == {"ip one", "ip two"}


def test_agreement_that_depends_on_an_order_is_not_told_as_certain(node: Namespace) -> None:
    """In one order the pod's address is kept, in the other it is masqueraded."""
    for name, verdict in (("one", "snat to ip saddr"), ("two", "masquerade")):
        chain = "type nat hook postrouting priority 90;\nip daddr %s %s" % (_A.exempt[0], verdict)
        node.run("nft", "-f", "-", stdin="table ip %s {\nchain c {\n%s\n}\n}\n" % (name, chain))
    one = _explain(node, _A.exempt[0], **_TEN)
    assert one["agrees"] is None and {each["agrees"] for each in one["alternatives"]} <= {True, False}
    assert _seen(one) == {_A.pod, _A.node}


@pytest.mark.parametrize(
    ("rule", "depends"),
    [
        (("-p", "tcp", "--sport", "2000:2015"), "the source port, by the rule of unknown"),
        (("-m", "statistic", "--mode", "random", "--probability", "0.3"), "chance, by the rule of unknown"),
        (("-m", "statistic", "--mode", "nth", "--every", "7", "--packet", "0"), "chance, by the rule of unknown"),
    ],
)
def test_what_the_source_port_or_chance_decides_has_two_answers(
    node: Namespace, rule: t.Sequence[str], depends: str
) -> None:
    _iptables_rule(node, "-d", _A.exempt[0], *rule, "-j", "MASQUERADE")
    one = _explain(node, _A.exempt[0], **_TEN)
    assert _seen(one) == {_A.pod, _A.node} and one["agrees"] is None and one["remedy"]
    assert [text.partition(" (")[0] for text in one["depends_on"]] == [depends]


def test_a_route_of_several_paths_has_several_answers(node: Namespace) -> None:
    node.run("ip", "link", "add", "eth1", "type", "veth", "peer", "name", "far")
    for words in ("address add 192.0.2.129/25 dev eth1", "link set eth1 up", "link set far up"):
        node.run("ip", *words.split())
    paths = "nexthop via %s dev eth0 nexthop via 192.0.2.130 dev eth1" % _A.peer
    node.run("ip", "route", "add", _A.outside[0], *paths.split())
    node.run("sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1")
    one = _explain(node, _A.outside[0], **_TEN)
    assert _seen(one) == {_A.node, "192.0.2.129"}
    assert one["depends_on"] == ["the path that the kernel chooses, of a route with several"]


def test_a_routing_rule_that_asks_for_the_source_port_is_not_understood(node: Namespace) -> None:
    node.run("ip", "link", "add", "eth1", "type", "veth", "peer", "name", "far")
    for words in ("address add 192.0.2.129/25 dev eth1", "link set eth1 up", "link set far up"):
        node.run("ip", *words.split())
    node.run("ip", "route", "add", "default", "via", "192.0.2.130", "dev", "eth1", "table", "77")
    node.run("ip", "rule", "add", "ipproto", "tcp", "sport", "2000-2010", "table", "77")
    one = _explain(node, _A.outside[0], **_TEN)
    assert one["agrees"] is None
    assert [text.partition(", ")[2] for text in one["not_understood"]] == [
        "because of the selector ip_proto",
        "because of the selector sport_range",
    ]


def test_each_question_finds_the_only_port_of_a_translation_free(node: Namespace) -> None:
    _iptables_rule(node, *("-p udp --dport 53 -j SNAT --to-source %s:1024-1024" % _A.node).split())
    asked = {"destinations": [_A.outside[0]] * 2, "source": _A.pod, "protocol": "udp", "port": 53}
    found = _look(node, verify=True, **asked, **_TEN)
    assert [(one["agrees"], one["alternatives"]) for one in found["explanations"]] == [(True, [])] * 2
    assert found["conflicts"] and all(one["services"] == ["udp/53"] for one in found["conflicts"])


def test_connections_of_the_node_itself_are_tried(node: Namespace) -> None:
    rule = "-m statistic --mode nth --every 2 --packet 0 -j SNAT --to-source 192.0.2.1"
    _iptables_rule(node, "-d", _A.outside[0], *rule.split())
    one = _explain(node, _A.outside[0], source=_A.node)
    assert _seen(one) == {_A.node, "192.0.2.1"} and "source port, or chance" in one["depends_on"][0]


def test_either_backend_of_a_service_is_one_answer(node: Namespace) -> None:
    _serve(node, [_A.exempt[0], "10.99.0.7"])
    one = _explain(node, _SERVICE, **_TEN)
    assert (one["agrees"], one["alternatives"], one["depends_on"], one["not_understood"]) == (True, [], [], [])


def _narrow_way_back(node: Namespace, mode: int) -> None:
    """Most addresses behind the link of the pods have their route over the uplink; few are routed back to the link."""
    for network in ("10.244.0.0/17", "10.244.128.0/17"):
        node.run("ip", "route", "add", network, "via", _A.peer)
    node.run("ip", "route", "add", "10.244.0.0/16", "dev", "pods")
    node.run("ip", "route", "replace", _A.pod + "/32", "dev", "pods")
    node.run("ip", "route", "del", _A.pods, "dev", "pods")
    node.run("sysctl", "-qw", "net.ipv4.conf.pods.rp_filter=%d" % mode, "net.ipv4.conf.all.rp_filter=0")


def test_sources_that_the_reverse_path_filter_lets_pass_are_asked(node: Namespace, topology: Topology) -> None:
    """Of 65,536 addresses only the pod's own passes: a packet of any other one says nothing about it."""
    _narrow_way_back(node, 1)
    _iptables_rule(node, "-s", "10.244.0.0/16", "-d", _A.exempt[0], "-j", "MASQUERADE")
    assert topology.ask(_A.exempt[0]) == {_A.exempt[0]: _A.node}
    found = _look(node, verify=True, **_TEN)
    assert found["verified"] is False and found["conflicts"][0]["range"] == _A.exempt[0] + "/32", found["summary"]
    assert found["conflicts"][0]["sources"] == [_A.pod + "/32"]


def test_packets_that_the_reverse_path_filter_drops_are_no_conflict(node: Namespace) -> None:
    _narrow_way_back(node, 1)
    found = _look(node, verify=True, **_TEN)
    assert (found["verified"], found["conflicts"], found["untested"]) == (True, [], []), found["summary"]


def test_one_cause_is_told_in_few_networks(node: Namespace) -> None:
    """Without our jump nothing is masqueraded: that is everything but what is exempt."""
    (jump,) = (
        line
        for line in node.run("iptables-nft", "-t", "nat", "-S", "POSTROUTING").splitlines()
        if "-j IP-MASQ-AGENT" in line
    )
    node.run("iptables-nft", "-t", "nat", *shlex.split(jump.replace("-A", "-D", 1)))
    found = _look(node, verify=True, **_TEN)
    assert found["summary"].startswith("0.0.0.0/0 except 10.0.0.0/8, 169.254.0.0/16 sees the pod")
    assert len(found["conflicts"]) < 25


def test_the_source_port_is_that_of_the_packets_region(node: Namespace) -> None:
    """One way has a large region with any source port, and small ones with a single source port each."""
    pairs = ["10.65.0.0/16 . 0-65535"] + ["10.99.0.%d . %d" % (number, 7000 + number) for number in range(1, 20, 2)]
    rule = "ip daddr . tcp sport { %s } masquerade" % ", ".join(pairs)
    table = "table ip other {\nchain c {\ntype nat hook postrouting priority 90;\n%s\n}\n}\n" % rule
    node.run("nft", "-f", "-", stdin=table)
    found = _look(node, verify=True, **_TEN)
    assert found["untested"] == []
    assert {"10.65.0.0/16", "10.99.0.1/32"} <= {one["range"] for one in found["conflicts"]}


@pytest.mark.parametrize("address", (_A.pod, _OTHER_POD))
def test_a_rule_for_a_pod_that_reaches_itself_is_no_conflict(node: Namespace, address: str) -> None:
    """As dockershim and others write it for host ports: without it a pod could not reach itself through a Service."""
    _serve(node, [address, _A.exempt[0]])
    _iptables_rule(node, "-s", address, "-d", address, "-p", "tcp", "--dport", "8080", "-j", "MASQUERADE")
    found = _look(node, verify=True, **_TEN)
    assert (found["verified"], found["conflicts"], found["untested"]) == (True, [], []), found["summary"]


def test_pods_of_one_bridge_that_routing_rules_treat_differently(node: Namespace) -> None:
    lines = (
        "link add name cbr0 type bridge",
        "link set cbr0 up",
        "address flush dev pods",
        "address add %s/24 dev cbr0" % _A.gateway,
        "link set pods master cbr0",
        "link add eth1 type veth peer name far",
        "address add 192.0.2.129/25 dev eth1",
        "link set eth1 up",
        "link set far up",
        "route add default via 192.0.2.130 dev eth1 table 77",
        "rule add from %s table 77" % _OTHER_POD,
    )
    node.run("ip", "-batch", "-", stdin="\n".join(lines))
    before = _look(node, verify=True, **_TEN)
    assert (before["verified"], before["untested"]) == (True, []), before["summary"]
    _iptables_rule(node, "-o", "eth1", "-d", _A.outside[0], "-j", "ACCEPT")
    found = _look(node, verify=True, **_TEN)
    assert [(one["range"], one["sources"]) for one in found["conflicts"]] == [
        (_A.outside[0] + "/32", [_OTHER_POD + "/32"])
    ]


def test_rules_of_ebtables_are_copied_and_named(node: Namespace) -> None:
    node.run("ebtables-nft", "-t", "nat", "-A", "PREROUTING", "-p", "IPv4", "-j", "mark", "--mark-set", "7")
    found = _look(node, verify=True, **_TEN)
    assert found["verified"] is None and found["limits"] == []
    (one,) = found["untested"]
    assert one["code"] == "unknown_rule" and "table bridge nat, because of" in one["text"]


def test_an_unnumbered_link_with_a_fixed_address(topology: Topology) -> None:
    """The conflict names the address, its link and the remedy, and with the remedy all is as the policy says."""
    node = topology.node
    apply(node, **_TEN)
    lines = (
        "address flush dev eth0",
        "link add lo1 type veth peer name lo2",
        "link set lo1 up",
        "address add %s/32 dev lo" % _A.node,
        "route add default via %s dev eth0 onlink" % _A.peer,
    )
    node.run("ip", "-4", "-batch", "-", stdin="\n".join(lines))
    found = _look(node, verify=True, **_TEN)
    seen = {one["seen"] for one in found["conflicts"]}
    assert found["verified"] is False and seen <= {_A.node, _A.gateway} and seen
    (remedy,) = {one["remedy"] for one in found["conflicts"]}
    link = "pods" if seen == {_A.gateway} else "lo"
    assert remedy.startswith("the link eth0 has no address") and "%s of %s: set snat" % (*seen, link) in remedy
    wanted = dict(_TEN, snat=[{"address": _A.node}])
    apply(node, **wanted)
    found = _look(node, verify=True, **wanted)
    assert (found["verified"], found["untested"]) == (True, []), found["summary"]
    assert topology.ask(_A.outside[0]) == {_A.outside[0]: _A.node}


_LOOPBACK = "192.0.2.200"


def _speaker(node: Namespace) -> None:
    """An address to which a BGP speaker of the node is bound."""
    node.run("ip", "address", "add", _LOOPBACK + "/32", "dev", "lo")


def test_connections_of_the_node_itself_are_judged(node: Namespace) -> None:
    _speaker(node)
    found = _look(node, verify=True, **_TEN)
    assert (found["verified"], found["untested"]) == (True, []), found["summary"]
    _iptables_rule(node, "-s", _LOOPBACK, "-d", _A.exempt[0], "-o", "eth0", "-j", "MASQUERADE")
    one = _explain(node, _A.exempt[0], **_TEN, source=_LOOPBACK)
    assert (one["policy"], one["seen"], one["seen_address"], one["agrees"]) == ("own", "node", _A.node, False)
    one = _explain(node, _A.exempt[0], **_TEN, source=_A.node)
    assert (one["policy"], one["seen"], one["seen_address"], one["agrees"]) == ("own", "own", _A.node, True)
    found = _look(node, verify=True, **_TEN)
    (one,) = found["conflicts"]
    assert (one["range"], one["policy"], one["seen"], one["sources"]) == (
        _A.exempt[0] + "/32",
        "own",
        "node",
        [_LOOPBACK + "/32"],
    )
    assert one["services"] == []  # all that a program of the node can send


@pytest.mark.parametrize("target", ("MASQUERADE", "SNAT --to-source " + _A.node))
def test_addresses_of_the_node_are_told_apart_by_the_one_that_they_get(node: Namespace, target: str) -> None:
    """Of two, one keeps itself."""
    _speaker(node)
    rule = "-d %s -m addrtype --src-type LOCAL -j %s" % (_A.exempt[0], target)
    _iptables_rule(node, *rule.split())
    (one,) = _look(node, verify=True, **_TEN)["conflicts"]
    assert (one["range"], one["policy"], one["sources"]) == (_A.exempt[0] + "/32", "own", [_LOOPBACK + "/32"])


def test_a_policy_of_other_sources_says_nothing_of_the_node_itself(topology: Topology) -> None:
    wanted = dict(_TEN, source_cidrs=[_A.pods])
    apply(topology.node, **wanted)
    _speaker(topology.node)
    _iptables_rule(topology.node, "-s", _LOOPBACK, "-d", _A.exempt[0], "-j", "MASQUERADE")
    found = _look(topology.node, verify=True, **wanted)
    assert (found["verified"], found["conflicts"], found["untested"]) == (True, [], []), found["summary"]


def test_a_fixed_address_of_connections_of_the_node_itself(topology: Topology) -> None:
    _speaker(topology.node)
    wanted = dict(_TEN, snat=[{"address": _LOOPBACK}])
    apply(topology.node, **wanted)
    assert _look(topology.node, verify=True, **wanted)["verified"] is True
    _iptables_rule(topology.node, "-s", _A.node, "-d", _A.outside[0], "-p", "tcp", "-j", "ACCEPT")
    (one,) = _look(topology.node, verify=True, **wanted)["conflicts"]
    assert (one["range"], one["policy"], one["seen"], one["sources"]) == (
        _A.outside[0] + "/32",
        _LOOPBACK,
        "own",
        [_A.node + "/32"],
    )


def test_a_condition_about_the_program_that_sends_is_named(node: Namespace) -> None:
    _speaker(node)
    node.run("iptables-nft", "-t", "mangle", "-A", "OUTPUT", "-m", "owner", "--uid-owner", "0", "-j", "ACCEPT")
    assert _look(node, verify=True, **_TEN)["untested"] == []
    rule = ("-m", "owner", "--uid-owner", "7", "-d", _A.exempt[0], "-j", "SNAT", "--to-source", "192.0.2.9")
    _iptables_rule(node, *rule)
    found = _look(node, verify=True, **_TEN)
    assert found["verified"] is None
    assert any("(owner)" in one["text"] for one in found["untested"])
    _iptables_rule(node, *rule[:2], "--socket-exists", *rule[4:])
    found = _look(node, verify=True, **_TEN)
    assert {(one["range"], one["policy"]) for one in found["conflicts"]} == {(_A.exempt[0] + "/32", "own")}


def test_connections_of_the_node_to_services_are_not_asked(node: Namespace) -> None:
    _speaker(node)
    _serve(node, [_A.pod, _A.exempt[0]])
    found = _look(node, verify=True, **_TEN)
    assert (found["verified"], found["untested"]) == (True, []), found["summary"]


@pytest.mark.parametrize("mode", ("iptables-nft-restore", "nft"))
def test_each_endpoint_of_a_large_service_is_met(topology: Topology, mode: str) -> None:
    """Pods of the node are endpoints, and each reaches itself by one choice of 400: chance would not show it."""
    endpoints = ["10.244.%d.%d" % (1 + number % 40, 2 + number // 40) for number in range(400)]
    apply(topology.node, backend="iptables_nft")
    _serve(topology.node, endpoints, mode)
    found = _look(topology.node, verify=True)
    assert (found["verified"], found["untested"]) == (True, []), found["summary"]
    assert found["questions"] < 400
