# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exceptions inside ranges, sources and interfaces: what each packet meets, in values and in every backend's text."""

from __future__ import annotations

import ipaddress
import re
import typing as t
from unittest import mock

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import (
    iptables_syntax,
    nftables_ruleset,
    nftables_syntax,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import (
    LEAK,
    OwnRule,
    Ruleset,
    exempt_in_the_end,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset_of_rules import from_rules, leak_fields
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config, build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.snat_and_rules import Snat
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import parse_address_range
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import engine
from support.many_ranges import many_long_ranges, many_ranges
from support.nft_tables import read_back
from support.packet_model import Packet, model, packets
from support.rule_match import applies

NUMBERS = {"tcp": 6, "udp": 17, "sctp": 132}


def met(rules: t.Iterable[t.Any], packet: Packet) -> str:
    """What a packet meets in rules, the first that applies first."""
    source, destination, interface, protocol, port = packet
    number = NUMBERS.get(protocol) or {4: 1, 6: 58}[source.version]
    for rule in rules:
        if applies(rule, destination, source, interface, number << 16 | port) and (
            rule.way is None or rule.way.protocol in (None, protocol)
        ):
            return rule.kind if rule.address is None else "to %s" % (rule.address,)
    return "skip"


def effect(found: str, config: Config) -> str:
    """What a packet can tell: nothing is done to what is exempt with RETURN."""
    return "skip" if found == "exempt" and config.exemption == "return" else found


#: With sources of one family, nothing but entries of ``rules`` decides in the other.
policies = engine.narrow_configs | st.builds(
    lambda config, sources: config._replace(source_cidrs=(sources,)),
    engine.narrow_configs,
    st.sampled_from([ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8::/64")]),
)


@given(policies, engine.families, st.data())
def test_every_packet_meets_what_the_policy_says(config: Config, family: str, data: t.Any) -> None:
    ruleset = from_config(config, family)
    read = nftables_ruleset.to_ruleset(nftables_ruleset.from_ruleset(ruleset, family))
    assert read is not None
    for _number in range(5):
        packet = data.draw(packets(config, family))
        expected = model(config, packet)
        assert met(ruleset.rules, packet) == expected
        assert effect(met(read.rules, packet), config) == effect(expected, config)


def _general_snat_first(config: Config) -> Config:
    """Return the policy with an entry of ``snat`` in each family behind which no packet gets to another one."""
    first = tuple(Snat(parse_address_range(address)) for address in ("192.0.2.20", "2001:db8::20"))
    return config._replace(snat=first + config.snat)


@given(engine.narrow_configs, engine.families)
def test_rules_about_leaks_are_read_back_from_how_iptables_prints_them(config: Config, family: str) -> None:
    for exemption in ("return", "accept"):
        ruleset = from_config(config._replace(exemption=exemption), family)
        lines = [iptables_syntax.render_rule("C", rule) for rule in ruleset.leak_rules]
        again = [iptables_syntax.parse_rule(line, family) for line in lines]
        # Exempt or skipped: to a rule with RETURN that asks for a link alone, it is the same.
        assert [_bare(iptables_syntax.render_rule("C", rule)) for rule in again if rule] == list(map(_bare, lines))


@given(policies, engine.families, st.data())
def test_what_leaks_are_and_which_addresses_are_missing_is_read_back(config: Config, family: str, data: t.Any) -> None:
    entries = [entry for entry in (*config.snat, *config.rules) if entry.address is not None]
    gone = {data.draw(st.sampled_from(entries)) for _number in range(2)} if entries else set()
    snat, rules = (tuple(one._replace(dropped=one in gone) for one in some) for some in (config.snat, config.rules))
    wanted = from_config(config._replace(snat=snat, rules=rules), family)
    printed = ([iptables_syntax.render_rule("C", rule) for rule in some] for some in (wanted.leak_rules, wanted.rules))
    leaks, nat = ([iptables_syntax.parse_rule(line, family) for line in lines] for lines in printed)
    met = {rule.address for rule in wanted.rules if isinstance(rule, OwnRule)}
    found = leak_fields(leaks, nat)
    # Of entries for all the same packets the first alone is met, and read back.
    assert set(found["missing"]) <= met & set(wanted.missing)
    assert bool(found["missing"]) <= bool(gone)
    if any(isinstance(rule, OwnRule) and rule.kind == LEAK for rule in wanted.leak_rules):
        assert (found["leaks"], found["hidden"]) == (wanted.leaks, wanted.hidden)


def _bare(line: str) -> str:
    return re.sub('--comment "[^"]*"', "", line)


#: Fewer examples than elsewhere: they read rules three times.
fewer = settings(max_examples=settings.default.max_examples * 2 // 5)


@fewer
@given(policies | policies.map(_general_snat_first), engine.families)
def test_rules_are_read_back(config: Config, family: str) -> None:
    """As values, and from how iptables prints them."""
    assume(not _repeated(config))
    for exemption in ("return", "accept"):
        assert_iptables_reads_back(from_config(config._replace(exemption=exemption), family), family)
    enforced = _of_nat(from_config(config._replace(exemption="enforce"), family))
    assert engine.same(enforced, from_rules(enforced.rules))


def _repeated(config: Config) -> bool:
    """Return whether an entry repeats an earlier one, which no packet passes, for one protocol.

    With ``to_ports`` its rules look like more ways of the earlier entry. They are replaced by the same text.
    """
    rules = [rule._replace(mapping=None) for rule in config.rules]
    plain = [rule._replace(services=()) for rule in rules]
    return bool(config.to_ports) and any(
        rule in rules[:number] and rules[number].services for number, rule in enumerate(plain)
    )


def assert_iptables_reads_back(wanted: Ruleset, family: str) -> None:
    """Check that the rules mean the policy, also as iptables prints them."""
    read = [iptables_syntax.parse_rule(iptables_syntax.render_rule("C", rule), family) for rule in wanted.rules]
    assert None not in read
    for rules in (wanted.rules, [rule for rule in read if rule is not None]):
        found = from_rules(rules)
        assert found is not None
        assert engine.same(_of_nat(wanted), found) and engine.same(found, _of_nat(wanted))


def _of_nat(ruleset: Ruleset) -> Ruleset:
    """Return a ruleset without what is not in the nat table."""
    return ruleset._replace(leaks="ignore", hidden=(), missing=())


_EDGE_CASES: t.Dict[str, t.Dict[str, t.Any]] = {
    "fixed address for all before one for some": {
        "snat": [{"address": "192.0.2.7"}, {"address": "192.0.2.8", "out_interface": "eth0"}]
    },
    "all sources in two halves": {
        "exemption": "accept",
        "snat": [{"address": "192.0.2.7", "source_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}],
    },
    "all destinations in two halves": {
        "exemption": "accept",
        "non_masquerade_cidrs": ["0.0.0.0/1", "128.0.0.0/1"],
        "masq_link_local": True,
    },
    "ports of one protocol kept, then all random": {
        "masq_link_local": True,
        "non_masquerade_cidrs": [],
        "exemption": "accept",
        "rules": [{"action": "masquerade", "protocols": ["udp"], "ports_mapping": "keep"}],
    },
    "a rule, an entry of snat and the rest map ports in turn": {
        "exemption": "accept",
        "to_ports": "1024-2048",
        "snat": [{"address": "192.0.2.7", "source_cidrs": ["10.0.0.0/8"], "ports_mapping": "keep"}],
        "rules": [
            {"action": "masquerade", "protocols": ["udp"], "ports_mapping": "random"},
            {"action": "masquerade", "protocols": ["tcp"]},
            {"action": "masquerade"},
        ],
    },
    "protocols in another order than ports": {
        "to_ports": "1024-2048",
        "enable_ipv6": True,
        "source_cidrs": ["2001:db8::/64"],
        "rules": [
            {"action": "snat", "address": "192.0.2.7", "protocols": ["udp", "tcp"]},
            {"action": "snat", "address": "192.0.2.8", "out_interfaces": ["eth0"]},
        ],
    },
}


@pytest.mark.parametrize("options", _EDGE_CASES.values(), ids=_EDGE_CASES)
def test_edge_cases_are_read_back(options: t.Dict[str, t.Any]) -> None:
    config = build(options)
    assert_iptables_reads_back(from_config(config, IPV4), IPV4)
    _is_read_back(config, IPV4)


@fewer
@given(policies | policies.map(_general_snat_first), engine.families, st.booleans())
def test_a_table_is_read_back_from_how_it_is_written(config: Config, family: str, outlined: bool) -> None:
    with mock.patch.object(nftables_ruleset, "_MANY", 1 if outlined else 1000):
        _is_read_back(config, family)


def _is_read_back(config: Config, family: str) -> None:
    wanted = from_config(config, family)
    table = nftables_ruleset.from_ruleset(wanted, family)
    read = read_back(table)
    assert read == table and not read.foreign
    found = nftables_ruleset.to_ruleset(read)
    assert found is not None
    # To exempt everything and to skip everything is the same to packets with RETURN, but compared as ranges it is not.
    if config.exemption != "return":
        assert engine.alike(wanted, found._replace(guards=wanted.guards), family)


@given(engine.narrow_configs, engine.narrow_configs, engine.families, st.data())
def test_rulesets_that_mean_the_same_do_the_same(one: Config, other: Config, family: str, data: t.Any) -> None:
    other = data.draw(st.sampled_from([other, one._replace(source_cidrs=other.source_cidrs)]))
    if not engine.same(from_config(one, family), from_config(other, family)):
        return
    for config in (one, other):
        packet = data.draw(packets(config, family))
        assert effect(model(one, packet), one) == effect(model(other, packet), other)


@pytest.mark.parametrize("options", [{}, {"except_interfaces": ["cni0"]}, {"out_interfaces": ["eth0"]}], ids=str)
def test_skipped_interfaces_leave_what_is_exempt_in_the_end(options: t.Dict[str, t.Any]) -> None:
    ranges = {"non_masquerade_cidrs": ["10.0.0.0/15"], "masquerade_cidrs": ["10.1.0.0/16"], "masq_link_local": True}
    found = exempt_in_the_end(from_config(build({**ranges, **options}), IPV4))
    assert [str(network) for network in found] == ["10.0.0.0/16"]


def outline(*cidrs: str, family: str = IPV4) -> t.List[t.Any]:
    """The networks around these exempt ranges, where the table asks them first."""
    config = build({"non_masquerade_cidrs": cidrs, "enable_ipv6": True, "cidr_limit": 2000})
    table = nftables_ruleset.from_ruleset(from_config(config, family), family)
    rule = "%s daddr @exempt_outline " % ("ip" if family == IPV4 else "ip6")
    asked = [nftables_syntax.bare(one).startswith(rule) for one in table.rules("postrouting") or ()]
    assert asked == [False, "exempt_outline" in table.sets, False]
    spans = table.sets.get("exempt_outline", ())
    return [nftables_syntax.render_span(span, family) for span in spans]


def test_many_ranges_have_an_outline() -> None:
    ranges = many_ranges()
    assert outline(*ranges) == ["10.0.0.0/8", "169.0.0.0/8"]
    assert outline(*ranges[2:]) == [], "link-local is the 999th"
    assert outline(*ranges, "11.0.0.0/24", "203.0.113.0/24") == ["10.0.0.0/7", "169.0.0.0/8", "203.0.0.0/8"]
    assert outline(*ranges, "0.0.0.0/2", "64.0.0.0/2") == [], "it would keep little out"
    scattered = ["%d.%d.0.0/16" % (number, other) for number in range(1, 126, 2) for other in range(0, 32, 2)]
    assert len(scattered) > 1000 and outline(*scattered) == [], "it would have many elements itself"
    assert outline(*many_long_ranges(), family=IPV6) == ["fd00::/16", "fe80::/10"]
