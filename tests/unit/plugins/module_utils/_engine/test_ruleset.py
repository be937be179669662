# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy becomes rules in the reference agent's order; rulesets are compared by what packets can tell."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.masquerade_ports import SHARE_UNIT
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import (
    EXEMPT,
    LOOPBACK,
    MASQUERADE,
    REDIRECTED,
    SERVICE_MARKS,
    SKIP,
    Decision,
    Guard,
    Masquerade,
    OwnRule,
    PolicyMatch,
    Ruleset,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset_of_rules import from_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, IPV4, IPV6
from hypothesis import given
from hypothesis import strategies as st
from support import engine, random_policies

RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
RESERVED = RFC1918 + ["100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15"]
RESERVED += ["198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"]
MIXED: t.Dict[str, t.Any] = {"non_masquerade_cidrs": ["10.244.0.0/16", "fc00::/7"], "enable_ipv6": True}


MARKED = Guard(marks=SERVICE_MARKS)
TEN, EVERYTHING = OwnRule(EXEMPT, ipaddress.ip_network("10.0.0.0/8")), OwnRule(MASQUERADE, way=Masquerade())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "exemption, expected",
    [
        ("return", []),
        ("accept", [Guard(dnat=True), MARKED, "loopback"]),
        ("enforce", [Guard(dnat=True), MARKED, "loopback"]),
    ],
)
def test_what_must_leave_as_the_node_is_left_to_later_rules(
    family: str, exemption: str, expected: t.List[t.Any]
) -> None:
    """With ``return`` later rules see all packets."""
    config = build(dict(MIXED, exemption=exemption))
    guards = [Guard(source=LOOPBACK[family]) if guard == "loopback" else guard for guard in expected]
    assert list(from_config(config, family).guards) == guards
    if exemption == "accept":  # which spares redirected connections to exempt destinations alone
        guards = guards[1:]
    assert from_config(config, family).rules[: len(guards)] == tuple(guards)


def test_accept_spares_no_connection_whose_destination_was_changed() -> None:
    """One to a destination that is not exempt is masqueraded all the same."""
    config = build(
        {"exemption": "accept", "non_masquerade_cidrs": ["10.0.0.0/8", "0.0.0.0/0"], "masq_link_local": True}
    )
    ten, everything = (ipaddress.ip_network(cidr) for cidr in ("10.0.0.0/8", "0.0.0.0/0"))
    wanted = from_config(config, IPV4)
    rules = wanted.rules[2:]
    skipped, accepted = OwnRule(SKIP, state=REDIRECTED), OwnRule(EXEMPT, everything, verdict="ACCEPT")
    assert rules == (skipped, accepted, OwnRule(MASQUERADE, way=Masquerade(random_fully=True)))
    narrow = from_config(config._replace(non_masquerade_cidrs=(ten,)), IPV4)
    assert narrow.rules[2:4] == (skipped._replace(network=ten), accepted._replace(network=ten))
    assert engine.same(narrow, from_rules(narrow.rules))
    guards = narrow.rules[:2]
    pair, last = narrow.rules[2:4], narrow.rules[4]
    earlier = from_rules((*guards, pair[1], last))
    assert earlier is not None and earlier.exempt == (ten,), "a chain of an earlier release is read"
    assert not engine.same(narrow, earlier)
    for other in ([*pair[::-1]], [pair[0]], [*pair, pair[1]], [skipped, pair[1]]):
        assert from_rules((*guards, *other, last)) is None


@given(st.lists(random_policies.port_ranges, min_size=1, max_size=6))
def test_every_range_gets_its_share_of_all_connections(ranges: t.List[str]) -> None:
    config = build({"to_ports": ranges})
    total, left = sum(ports.size for ports in config.to_ports), 1.0
    for rule, ports in zip(from_config(config, IPV4).masquerade, config.to_ports):
        share = left * (1 if rule.share is None else rule.share / SHARE_UNIT)
        assert share == pytest.approx(ports.size / total, abs=1e-8)
        left -= share


def exempt(*cidrs: str, verdict: str = "RETURN") -> Ruleset:
    ranges = Decision(EXEMPT, PolicyMatch(destinations=tuple(ipaddress.ip_network(cidr) for cidr in cidrs)))
    return Ruleset((ranges,) * bool(cidrs) + (Decision(MASQUERADE),), verdict, (Masquerade(random_fully=True),))


@given(engine.configs, engine.families)
def test_covered_ranges_go_and_no_address_changes_its_verdict(config: t.Any, family: str) -> None:
    ruleset = from_config(config, family)
    version = {"ipv4": 4, "ipv6": 6}[family]
    asked = [network for network in config.non_masquerade_cidrs if network.version == version]
    if not (config.masq_link_local if version == 4 else config.masq_link_local_ipv6):
        asked.append(ipaddress.ip_network("169.254.0.0/16" if version == 4 else "fe80::/10"))
    assert list(ipaddress.collapse_addresses(ruleset.exempt)) == list(ipaddress.collapse_addresses(asked))
    assert len(set(ruleset.exempt)) == len(ruleset.exempt)
    assert not any(a != b and a.subnet_of(b) for a in ruleset.exempt for b in ruleset.exempt)


@pytest.mark.parametrize(
    "rules",
    [
        [EVERYTHING, TEN],
        [TEN, OwnRule(EXEMPT, ipaddress.ip_network("11.0.0.0/8"), verdict="ACCEPT")],
        [TEN._replace(verdict="ACCEPT"), MARKED, EVERYTHING],
        [EVERYTHING, MARKED],
    ],
)
def test_rules_of_another_shape_are_no_ruleset(rules: t.List[t.Any]) -> None:
    assert from_rules(rules) is None


def _rules(family: str = IPV4, **options: t.Any) -> t.List[t.Any]:
    """The rules of a policy in one family."""
    return list(from_config(build(options), family).rules)


@pytest.mark.parametrize(
    ("entry", "families"),
    [
        ({"action": "snat", "address": "192.0.2.7"}, [IPV4]),
        ({"action": "exempt", "destinations": ["10.9.0.0/16"]}, [IPV4]),
        ({"action": "exempt", "sources": ["fd00::/8"]}, [IPV6]),
        ({"action": "exempt", "sources": ["fd00::/8"], "destinations": ["10.9.0.0/16"]}, []),
        ({"action": "exempt", "sources": [], "destinations": [], "out_interfaces": [], "protocols": ["tcp"]}, FAMILIES),
    ],
)
def test_an_entry_acts_in_the_families_of_its_addresses(entry: t.Dict[str, t.Any], families: t.Sequence[str]) -> None:
    acts = [
        family
        for family in FAMILIES
        if _rules(family, enable_ipv6=True, rules=[entry]) != _rules(family, enable_ipv6=True)
    ]
    assert acts == list(families)
