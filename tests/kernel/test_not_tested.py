# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verification does not know is said, and never counted as traffic that matches the policy."""

from __future__ import annotations

import typing as t

import pytest
from support.modules import apply, run_modules
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology

_EXEMPT = ADDRESSES["ipv4"].exempt[0]


def _verify(node: Namespace, **options: t.Any) -> t.Dict[str, t.Any]:
    (found,) = run_modules(node, [dict(options, verify=True)], module="ip_masq_info")
    assert "crashed" not in found, found["crashed"]
    return found


def test_a_condition_that_is_not_understood_is_named_with_its_rule_and_destinations(topology: Topology) -> None:
    apply(topology.node, backend="iptables_nft")
    assert _verify(topology.node, backend="iptables_nft", non_masquerade_cidrs=["10.0.0.0/8"])["untested"] == []
    rule = ("POSTROUTING", "-d", _EXEMPT, "-m", "ttl", "--ttl-eq", "5", "-j", "MASQUERADE")
    topology.node.run("iptables-nft", "-t", "nat", "-I", *rule)
    found = _verify(topology.node, backend="iptables_nft")
    assert found["verified"] is None and "; not tested: " in found["summary"]
    (one,) = found["untested"]
    assert (one["code"], one["ranges"]) == ("unknown_rule", [_EXEMPT + "/32"])
    assert "--ttl-eq 5" in one["text"] and "because of the TTL of a packet" in one["text"]


def test_a_rule_with_such_a_condition_that_only_counts_is_no_reason(topology: Topology) -> None:
    apply(topology.node, backend="iptables_nft")
    topology.node.run("iptables-nft", "-t", "nat", "-I", "POSTROUTING", "-m", "ttl", "--ttl-eq", "63")
    assert _verify(topology.node, backend="iptables_nft")["untested"] == []


def test_a_node_without_pods_is_not_tested(ns: Namespace) -> None:
    apply(ns, backend="iptables_nft")
    found = _verify(ns, backend="iptables_nft")
    assert found["verified"] is None and [one["code"] for one in found["untested"]] == ["no_pods"]
    assert "--pod-cidrs" in found["summary"]


def test_questions_beyond_the_limit_are_not_tested(topology: Topology) -> None:
    apply(topology.node, backend="iptables_nft")
    found = _verify(topology.node, backend="iptables_nft", max_questions=2)
    assert found["verified"] is None and [one["code"] for one in found["untested"]] == ["limit"]
    assert found["questions"] == 2 and found["questions_left_out"] > 0


def test_an_address_of_a_link_that_has_none_is_a_conflict(topology: Topology) -> None:
    """On an unnumbered link MASQUERADE takes an address of another one, here of the pods' link."""
    apply(topology.node, backend="iptables_nft")
    before = _verify(topology.node, backend="iptables_nft")
    assert before["verified"] is True, before["summary"]
    uplink = topology.node.run("ip", "-o", "-4", "address", "show", "to", ADDRESSES["ipv4"].node).split()[1]
    routes = topology.node.run("ip", "route", "show", "default").split()
    topology.node.run("ip", "address", "flush", "dev", uplink)
    topology.node.run("ip", "route", "add", "default", "via", routes[2], "dev", uplink, "onlink")
    found = _verify(topology.node, backend="iptables_nft")
    assert found["verified"] is False
    assert any(uplink in one["remedy"] and "snat" in one["remedy"] for one in found["conflicts"]), found["conflicts"]


def test_a_rule_that_writes_addresses_behind_the_translation_is_named(topology: Topology) -> None:
    apply(topology.node, backend="iptables_nft")
    rule = "ip daddr %s ip saddr set 192.0.2.200" % _EXEMPT
    topology.node.run("nft", "add table ip late { chain c { type filter hook postrouting priority 300; %s; }; }" % rule)
    found = _verify(topology.node, backend="iptables_nft")
    assert found["verified"] is not True, found["summary"]
    assert ["unknown_rule", [_EXEMPT + "/32"]] in [[one["code"], one["ranges"]] for one in found["untested"]]


def test_a_conflict_says_no_more_than_was_seen(topology: Topology) -> None:
    """One rule that hits one service of one range, and all services of another, is two conflicts."""
    apply(topology.node, backend="iptables_nft")
    other = ADDRESSES["ipv4"].exempt[1]
    elements = "%s . 443, %s . 0-65535" % (_EXEMPT, other)
    rule = "ip daddr . tcp dport { %s } masquerade" % elements
    topology.node.run("nft", "add table ip other { chain c { type nat hook postrouting priority 90; %s; }; }" % rule)
    found = _verify(topology.node, backend="iptables_nft")
    assert sorted((one["range"], one["services"]) for one in found["conflicts"]) == sorted(
        [(_EXEMPT + "/32", ["tcp/443"]), (other + "/32", ["tcp"])]
    )


def test_a_conflict_of_some_source_ports_says_which(topology: Topology) -> None:
    apply(topology.node, backend="iptables_nft")
    rule = ("POSTROUTING", "-d", _EXEMPT, "-p", "udp", "--sport", "4000:4010", "-j", "MASQUERADE")
    topology.node.run("iptables-nft", "-t", "nat", "-I", *rule)
    (found,) = _verify(topology.node, backend="iptables_nft")["conflicts"]
    assert (found["range"], found["services"]) == (_EXEMPT + "/32", ["udp from port 4000-4010"])


@pytest.mark.parametrize("hashed", ["iptables", "nft"])
def test_a_mark_from_a_hash_is_not_known(topology: Topology, hashed: str) -> None:
    """One of many packets has the mark for which a rule masquerades."""
    apply(topology.node, backend="iptables_nft")
    if hashed == "nft":
        rule = "ip daddr %s meta mark set jhash ip saddr . tcp dport mod 4000" % _EXEMPT
        topology.node.run(
            "nft", "add table ip m { chain c { type filter hook prerouting priority -150; %s; }; }" % rule
        )
    else:
        target = "HMARK --hmark-tuple src,dst,dport --hmark-mod 4000 --hmark-offset 1 --hmark-rnd 7"
        topology.node.run("iptables-nft", *("-t mangle -A PREROUTING -d %s -p tcp -j %s" % (_EXEMPT, target)).split())
    topology.node.run("iptables-nft", *"-t nat -I POSTROUTING -m mark --mark 0x5 -j MASQUERADE".split())
    found = _verify(topology.node, backend="iptables_nft")
    assert found["verified"] is not True, found["summary"]
    assert [_EXEMPT + "/32"] in [one["ranges"] for one in found["untested"] if "a mark" in one["text"]], found[
        "untested"
    ]
