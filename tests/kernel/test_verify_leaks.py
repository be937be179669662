# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verification says of packets that nat does not see, beside what the world outside sees of them."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
from support import leak_packets
from support.agent_node import AgentNode
from support.modules import apply, info, run_module
from support.topology import ADDRESSES, Topology
from support.variants import Nftables, Variant

PODS = ["10.244.0.0/16", "fd00:10:244::/48"]
POLICY: t.Dict[str, t.Any] = {
    "enable_ipv6": True,
    "non_masquerade_cidrs": ["10.0.0.0/8", "fc00::/7"],
    "source_cidrs": PODS,
}
_INVALID = ("-m", "conntrack", "--ctstate", "INVALID")
_A = ADDRESSES["ipv4"]
_SHOWN = " match the policy; packets of no connection leave with the pod's address, and are counted: set leaks to drop"


def _tool(variant: Variant, family: str = "ipv4") -> str:
    if isinstance(variant, Nftables):
        return "iptables-nft" if family == "ipv4" else "ip6tables-nft"
    return variant.tool(family)


def _verify(topology: Topology, variant: Variant, **options: t.Any) -> t.Dict[str, t.Any]:
    wanted = {**POLICY, "backend": variant.backend, **options}
    found = info(topology.node, **wanted, verify=True)
    assert not found.get("failed"), found["msg"]
    assert found["untested"] == []
    return found


def _leaks(found: t.Mapping[str, t.Any]) -> t.List[t.Tuple[str, str]]:
    return [(one["severity"], one["remedy"]) for one in found["health"] if one["code"] == "leaks"]


def _outside(topology: Topology, destination: str) -> t.Set[str]:
    """The names of packets that the world outside saw with the pod's address."""
    a = ADDRESSES["ipv6" if ":" in destination else "ipv4"]
    mac = topology.node.run("cat", "/sys/class/net/pods/address").strip()
    sent = leak_packets.strays(a.pod, destination)
    seen = leak_packets.seen(topology.pod, mac, topology.outside, sent, (a.pod, a.exempt[-1]))
    return {one.name for one in sent if a.pod in seen.get(one.number, ())}


@pytest.mark.parametrize(
    ("leaks", "words", "remedy"),
    [
        ("ignore", ", all match the policy", None),
        ("count", _SHOWN, "set leaks to drop"),
        ("drop", ", all match the policy", None),
    ],
)
def test_one_line_says_whether_they_leave_where_leaks_is_set(
    topology: Topology, variant: Variant, leaks: str, words: str, remedy: t.Optional[str]
) -> None:
    apply(topology.node, backend=variant.backend, leaks=leaks, **POLICY)
    found = _verify(topology, variant, leaks=leaks)
    assert found["verified"] is True and found["conflicts"] == []
    assert re.match(r"\d+ kinds of packets%s$" % re.escape(words), found["summary"])
    assert _leaks(found) == ([] if remedy is None else [("info", remedy)])
    for one in (_A.outside[0], ADDRESSES["ipv6"].outside[0]):
        assert ("TCP RST" in _outside(topology, one)) == (leaks != "drop")


def test_nothing_is_said_where_the_node_drops_them_itself(topology: Topology, variant: Variant) -> None:
    """As kube-proxy does with iptables, and firewalls do."""
    apply(topology.node, backend=variant.backend, leaks="count", **POLICY)
    for family in ("ipv4", "ipv6"):
        topology.node.run(_tool(variant, family), "-A", "FORWARD", *_INVALID, "-j", "DROP")
    found = _verify(topology, variant, leaks="count")
    assert found["summary"].endswith("kinds of packets, all match the policy") and _leaks(found) == []
    # To some destinations, and of one protocol: others still leave.
    tool = _tool(variant)
    topology.node.run(tool, "-F", "FORWARD")
    for condition in (("-d", "0.0.0.0/1"), ("-d", "192.0.0.0/2"), ("-p", "icmp")):
        topology.node.run(tool, "-A", "FORWARD", *condition, *_INVALID, "-j", "DROP")
    found = _verify(topology, variant, leaks="count")
    assert found["summary"].endswith(_SHOWN) and len(_leaks(found)) == 1


def test_what_another_rule_lets_pass_breaks_the_promise_to_drop(topology: Topology, variant: Variant) -> None:
    """With iptables, where a rule in front of the jump takes packets past it; with nftables no rule can."""
    apply(topology.node, backend=variant.backend, leaks="drop", **POLICY)
    rule = ("-d", "203.0.113.0/24", "-p", "tcp", "-j", "ACCEPT")
    topology.node.run(_tool(variant), "-t", "mangle", "-I", "POSTROUTING", *rule)
    leaking = _outside(topology, _A.outside[0])
    found = _verify(topology, variant, leaks="drop")
    if isinstance(variant, Nftables):
        assert not leaking and found["verified"] is True
        return
    assert "TCP RST" in leaking and "ICMP 3/1" not in leaking
    assert found["verified"] is False and found["in_sync"] is True
    (one,) = found["conflicts"]
    assert (one["range"], one["services"]) == ("203.0.113.0/24", ["tcp without a connection"])
    assert (one["policy"], one["seen"], one["severity"]) == ("node", "pod", "error")
    assert (one["decided_by"]["chain"], one["decided_by"]["table"]) == ("POSTROUTING", "ip mangle")
    assert "-d 203.0.113.0/24" in one["decided_by"]["rule"] and "before the rules about leaks" in one["remedy"]


#: Rules in front of the rules about leaks, the name of a packet that conntrack calls invalid and each lets pass, if it
#: is sent here, and of these in a conflict.
_LETTING = [
    ("-p udp", "UDP with a wrong checksum", "udp with a wrong checksum"),
    ("-p sctp", "SCTP abort", "sctp with a wrong checksum"),
    ("-p udplite", "", "protocol 136 that conntrack calls invalid"),
    ("-p gre", "", "protocol 47 that conntrack calls invalid"),
    ("-p tcp --tcp-flags ALL SYN,ACK", "TCP SYN+ACK", "tcp without a connection"),
    ("-p tcp --tcp-flags RST RST", "TCP RST", "tcp without a connection"),
    ("-p tcp ! --tcp-flags RST RST --dport 9", "TCP FIN", "tcp without a connection"),
    ("-p tcp --tcp-flags SYN,ACK SYN", "TCP with a wrong checksum", "tcp without a connection"),
]


@pytest.mark.parametrize("xtables", ["iptables_nft", "iptables_legacy"])
def test_a_rule_that_lets_few_of_them_pass_breaks_it_too(topology: Topology, xtables: str) -> None:
    """Each is found by a packet that the rule means, with the rule and every range that is masqueraded."""
    options = {"non_masquerade_cidrs": ["10.0.0.0/8"], "source_cidrs": PODS[:1], "backend": xtables, "leaks": "drop"}
    apply(topology.node, **options)
    tool = "iptables-nft" if xtables == "iptables_nft" else "iptables-legacy"
    for rule, packet, service in _LETTING:
        topology.node.run(tool, "-t", "mangle", "-I", "POSTROUTING", *rule.split(), "-j", "ACCEPT")
        leaking = _outside(topology, _A.outside[0])
        assert packet in (*leaking, "") and "ICMP 3/1" not in leaking
        found = info(topology.node, **options, verify=True)
        topology.node.run(tool, "-t", "mangle", "-D", "POSTROUTING", *rule.split(), "-j", "ACCEPT")
        assert (found["verified"], found["untested"]) == (False, []), rule
        assert {"8.0.0.0/7", "192.0.0.0/2"} <= {one["range"] for one in found["conflicts"]}, rule
        for one in found["conflicts"]:
            assert (one["services"], one["severity"]) == ([service], "error"), rule
            assert "ACCEPT" in one["decided_by"]["rule"] and one["decided_by"]["chain"] == "POSTROUTING"
    found = info(topology.node, **options, verify=True)
    assert (found["verified"], found["untested"]) == (True, [])


def test_a_rule_whose_packets_cannot_be_sent_is_not_tested(topology: Topology) -> None:
    """Of ICMP errors one type is sent; whether a flag of TCP is set that says nothing is not understood."""
    options = {"non_masquerade_cidrs": ["10.0.0.0/8"], "source_cidrs": PODS[:1], "backend": "iptables_nft"}
    options["leaks"] = "drop"
    apply(topology.node, **options)
    for rule, packet, code in (
        ("icmp type time-exceeded accept", "ICMP 11/0", "unpredicted"),
        ("tcp flags & psh == psh accept", "TCP RST+PSH", "unknown_rule"),
    ):
        topology.node.run("nft", "insert", "rule", "ip", "mangle", "POSTROUTING", *rule.split())
        assert packet in _outside(topology, _A.outside[0])
        found = info(topology.node, **options, verify=True)
        topology.node.run("iptables-nft", "-t", "mangle", "-D", "POSTROUTING", "1")
        assert (found["verified"], found["conflicts"]) == (None, []), rule
        assert {one["code"] for one in found["untested"]} == {code}, rule


def test_what_another_rule_lets_pass_by_chance_breaks_it_too(topology: Topology) -> None:
    apply(topology.node, backend="iptables_nft", leaks="drop", **POLICY)
    rule = "-d 203.0.113.0/24 -p tcp -m statistic --mode random --probability 0.01 -j ACCEPT"
    topology.node.run("iptables-nft", "-t", "mangle", "-I", "POSTROUTING", *rule.split())
    wanted = {**POLICY, "backend": "iptables_nft", "leaks": "drop"}
    found = info(topology.node, **wanted, verify=True)
    shown = [(one["range"], one["severity"]) for one in found["conflicts"]]
    assert shown == [("203.0.113.0/24", "warning")], found["summary"]


def test_a_missing_chain_breaks_the_promise_to_drop(topology: Topology, variant: Variant) -> None:
    apply(topology.node, backend=variant.backend, **POLICY)
    found = _verify(topology, variant, leaks="drop")
    assert found["verified"] is False and found["in_sync"] is False
    assert {one["remedy"] for one in found["conflicts"]} == {
        "no rule drops packets without a connection: ip-masq-agent sync"
    }
    assert {tuple(one["services"]) for one in found["conflicts"]} == {
        ("tcp without a connection", "icmp errors of no connection")
    }


def test_what_the_option_is_not_about_is_no_conflict(topology: Topology, variant: Variant) -> None:
    """Sources beside those of the policy, which a rule of it masquerades: they are not dropped, and not promised."""
    entry = {"action": "masquerade", "destinations": ["203.0.113.0/24"]}
    options = {"leaks": "drop", "source_cidrs": ["10.244.1.2/32", PODS[1]], "rules": [entry]}
    apply(topology.node, backend=variant.backend, **{**POLICY, **options})
    found = _verify(topology, variant, **options)
    assert found["verified"] is True and found["conflicts"] == []
    shown = "; packets of no connection leave with the pod's address: add the networks of these pods to source_cidrs"
    assert found["summary"].endswith(shown)
    assert _leaks(found) == [("info", "add the networks of these pods to source_cidrs")]
    for options in ({"leaks": "drop", "skip_marks": ["0"]}, {"leaks": "drop", "except_interfaces": ["eth0"]}):
        apply(topology.node, backend=variant.backend, **{**POLICY, **options})
        assert _verify(topology, variant, **options)["conflicts"] == []


def test_packets_that_a_rule_does_not_track_are_a_conflict_unless_they_are_dropped(
    topology: Topology, variant: Variant
) -> None:
    place = "PREROUTING"
    if isinstance(variant, Nftables):
        place = "c"
        chain = "type filter hook prerouting priority -300;\nudp dport 5353 notrack\n"
        topology.node.run("nft", "-f", "-", stdin="table inet not_tracked {\nchain c {\n%s}\n}\n" % chain)
    else:
        for family in ("ipv4", "ipv6"):
            rule = "-t raw -A PREROUTING -p udp --dport 5353 -j CT --notrack"
            topology.node.run(variant.tool(family), *rule.split())
    for leaks in ("ignore", "count", "drop"):
        apply(topology.node, backend=variant.backend, leaks=leaks, **POLICY)
        one_packet = {"destinations": [_A.outside[0]], "protocol": "udp", "port": 5353}
        found = _verify(topology, variant, leaks=leaks, **one_packet)
        assert found["verified"] is (leaks == "drop")
        assert [one["agrees"] for one in found["explanations"]] == [None if leaks == "drop" else False]
        for one in found["conflicts"] + (found["explanations"] if leaks != "drop" else []):
            assert (one["seen"], one["decided_by"]["chain"]) == ("pod", place)
            assert one.get("services", ["udp/5353"]) == ["udp/5353"]
            assert "keeps packets from connection tracking" in one["remedy"] and "set leaks to drop" in one["remedy"]


def test_what_is_not_tracked_between_pods_is_found_though_the_rest_is_dropped(topology: Topology) -> None:
    """Between hidden addresses nothing is dropped: they are a small part of all that the rule keeps from NAT."""
    for backend in ("nftables", "iptables_nft"):
        wanted = {"backend": backend, "leaks": "drop", "source_cidrs": PODS[:1], "non_masquerade_cidrs": []}
        apply(topology.node, **wanted)
        topology.node.run("iptables-nft", "-t", "raw", "-F")
        topology.node.run("iptables-nft", "-t", "raw", "-A", "PREROUTING", "-j", "CT", "--notrack")
        found = info(topology.node, verify=True, **wanted)
        pods = {one["range"] for one in found["conflicts"] if one["policy"] == "node"}
        assert pods == {PODS[0]}, found["summary"]
        apply(topology.node, state="absent", backend=backend)


def test_the_agent_says_it_again_from_what_it_stored(topology: Topology, tmp_path: Path) -> None:
    node = AgentNode(topology.node, tmp_path)
    policy = {
        "nonMasqueradeCIDRs": ["10.0.0.0/8", "fd00::/8"],
        "sourceCIDRs": PODS,
        "enableIPv6": True,
        "leaks": "count",
    }
    node.synced(backend="nftables", **policy)
    first = node.command("verify", "--json")
    again = node.command("verify", "--if-changed", "--json")
    assert first.returncode == again.returncode == 0
    told = [json.loads(done.stdout) for done in (first, again)]
    assert told[0]["tested_at"] == told[1]["tested_at"] and _leaks(told[0]) == _leaks(told[1]) != []
    shown = node.command("verify", "--if-changed").stdout
    assert shown.count("\n") == 1 and (_SHOWN + " (tested at ") in shown
    assert _SHOWN in node.command("status").stdout
    topology.node.run("iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
    lines = node.command("verify").stdout.splitlines()
    assert lines[-1].startswith("info: packets that conntrack calls invalid") and "remedy: set leaks" in lines[-1]


def test_a_result_is_not_used_again_for_another_value_of_the_option(topology: Topology, tmp_path: Path) -> None:
    """The rules of the node are the same: those about leaks are missing, and that nobody repaired."""
    node = AgentNode(topology.node, tmp_path)
    node.synced(backend="nftables", nonMasqueradeCIDRs=["10.0.0.0/8"], sourceCIDRs=PODS[:1])
    assert node.command("verify").returncode == 0
    node.configure(backend="nftables", nonMasqueradeCIDRs=["10.0.0.0/8"], sourceCIDRs=PODS[:1], leaks="drop")
    done = node.command("verify", "--if-changed")
    assert done.returncode == 5 and "no rule drops packets without a connection" in done.stdout


def test_check_mode_promises_what_a_run_keeps(topology: Topology, variant: Variant) -> None:
    wanted = {**POLICY, "backend": variant.backend, "leaks": "drop"}
    planned = run_module(topology.node, check=True, **wanted)
    assert planned["changed"]
    apply(topology.node, **wanted)
    assert _verify(topology, variant, leaks="drop")["verified"] is True
