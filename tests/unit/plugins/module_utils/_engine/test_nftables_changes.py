# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A table is read as it was written, and nothing else is taken for it. With a kernel: test_nftables_steps.py."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_changes, nftables_encoding
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_syntax as text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_ruleset import from_ruleset, to_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Decision
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink, nf_tables, nft_expressions
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, IPV4, Family
from hypothesis import given
from hypothesis import strategies as st
from support import engine
from support.nft_tables import read_back, reported

exemptions = st.sampled_from(["return", "accept", "enforce"])
policies = st.builds(lambda config, exemption: config._replace(exemption=exemption), engine.configs, exemptions)


def table_of(config: t.Any, family: Family) -> text.ListedTable:
    """The table of a policy."""
    return from_ruleset(from_config(config, family), family)


def changes_of(config: t.Any, family: Family) -> t.List[netlink.Message]:
    """What is written to make it."""
    return nftables_changes.make_all(table_of(config, family))


@given(policies, policies, engine.families)
def test_tables_mean_the_same_only_where_the_rules_do(one: t.Any, other: t.Any, family: Family) -> None:
    first, second = from_config(one, family), from_config(other, family)
    same = from_ruleset(first, family).means(from_ruleset(second, family))
    assert same == (engine.same(first, second) and first.verdict == second.verdict)


@given(policies, engine.families, st.data())
def test_no_part_of_a_table_can_go_unnoticed(config: t.Any, family: Family, data: t.Any) -> None:
    first, *rest = changes_of(config, family)
    del rest[data.draw(st.integers(0, len(rest) - 1))]
    try:
        read = nftables_changes.listed(reported([first, *rest], family.number), family)
    except KeyError:  # no kernel reports elements of a set that is not there
        return
    assert not read.means(table_of(config, family))


@given(policies, engine.families, st.data())
def test_no_rule_can_be_slipped_in(config: t.Any, family: Family, data: t.Any) -> None:
    rules = ["masquerade", "accept", "counter", "meta mark 0x00000001 return", "ct state new return", "drop"]
    rule = netlink.nest(nf_tables.RULE_EXPRESSIONS, nftables_encoding.encode(data.draw(st.sampled_from(rules))))
    chain = data.draw(st.sampled_from(["postrouting", "mine"]))
    changes = changes_of(config, family)
    changes.insert(data.draw(st.integers(1, len(changes))), nf_tables.new_rule(family.number, text.TABLE, chain, rule))
    if chain == "mine":
        changes.append(nf_tables.new_chain(family.number, text.TABLE, chain, "nat", 4, 90))
    read = nftables_changes.listed(reported(changes, family.number), family)
    assert not read.means(table_of(config, family))


ATTRIBUTES = {
    "flags dormant": (nf_tables.NEW_TABLE, netlink.network_word(nf_tables.TABLE_FLAGS, 1)),
    "flags 0x2": (nf_tables.NEW_TABLE, netlink.network_word(nf_tables.TABLE_FLAGS, 2)),
    "set exempt_ranges": (nf_tables.NEW_SET, netlink.network_word(nf_tables.SET_FLAGS, 0x14)),
    "map exempt_ranges": (nf_tables.NEW_SET, netlink.network_word(nf_tables.SET_FLAGS, 0xC)),
    "chain postrouting": (nf_tables.NEW_CHAIN, netlink.network_word(5, 0)),
}


@pytest.mark.parametrize("foreign", ATTRIBUTES)
def test_what_we_would_not_write_is_foreign(foreign: str) -> None:
    kind, more = ATTRIBUTES[foreign]
    changes = [
        change._replace(body=change.body + more) if change.kind & 0xFF == kind else change
        for change in changes_of(build({}), IPV4)
    ]
    assert nftables_changes.listed(reported(changes, IPV4.number), IPV4).foreign == (foreign,)


spans = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(lambda pair: (min(pair), max(pair)))


@given(spans)
def test_any_span_is_read_as_it_is_written(span: t.Tuple[int, int]) -> None:
    for family in FAMILIES:
        table = table_of(build({}), family)._replace(sets={text.SET: (span,)})
        assert read_back(table) == table


EXPRESSIONS = [element for rule in (
    "ct status dnat counter return",
    "ip saddr 127.0.0.0/8 ip daddr 192.0.2.1-192.0.2.9 return",
    'oifname != "eth*" tcp dport @rule_1_tcp_ports meta mark & 0x00000003 == 0x00000001 accept',
    "numgen random mod 2147483648 < 5 counter masquerade to :1-5 fully-random",
    "ip daddr @exempt_ranges snat to ip saddr",
    "snat to 192.0.2.1-192.0.2.3:1-5",
) for _kind, _value, element in netlink.pieces(nftables_encoding.encode(rule))]  # fmt: skip


@given(st.lists(st.sampled_from(EXPRESSIONS), max_size=8), engine.families)
def test_no_mixture_of_expressions_is_too_strange_to_read(mixed: t.List[bytes], family: Family) -> None:
    """What is read as a rule means these expressions; the rest is unknown."""
    decoded = nftables_encoding.decode(b"".join(mixed), family)
    if not decoded.rule.startswith("unknown: "):
        again = nftables_encoding.decode(nftables_encoding.encode(decoded.rule), family)
        assert again == decoded


@pytest.mark.parametrize(
    "compared, read",
    [
        (b"eth0".ljust(16, b"\0"), 'oifname "eth0"'),
        (b"eth0\0", 'oifname "eth0"'),
        (b"eth", 'oifname "eth*"'),
        (b"eth*".ljust(16, b"\0"), "unknown: meta cmp"),
    ],
)
def test_a_device_is_not_all_devices_whose_names_begin_like_its_own(compared: bytes, read: str) -> None:
    loaded = next(netlink.pieces(nftables_encoding.encode('oifname "x"')))[2]
    compare = nft_expressions.expression("cmp", sreg=1, op=0, data=netlink.attribute(1, compared))
    assert nftables_encoding.decode(loaded + compare, IPV4).rule == read


@given(st.binary(max_size=40), engine.families)
def test_no_bytes_are_too_strange_to_read(strange: bytes, family: Family) -> None:
    nftables_encoding.decode(strange, family)


@pytest.mark.parametrize("exemption", ["return", "accept"])
def test_a_table_that_lost_one_of_its_rules_is_read_as_what_is_left(exemption: str) -> None:
    entries = [{"action": action, "destinations": ["10.0.0.0/8"]} for action in ("masquerade", "skip", "exempt")]
    snat = [{"address": "192.0.2.7", "source_cidrs": ["10.244.0.0/16"]}]
    config = build({"rules": entries, "snat": snat, "to_ports": ["1024-2048"], "exemption": exemption})
    table = table_of(config, IPV4)
    rules = table.rules(text.CHAIN) or ()
    whole = _decisions(table)
    assert len(whole) == len(rules) - 1 and to_ruleset(_without(table, 0)) is None
    for number in range(1, len(rules)):
        assert _decisions(_without(table, number)) == whole[: number - 1] + whole[number:]


def _without(table: text.ListedTable, number: int) -> text.ListedTable:
    rules = table.rules(text.CHAIN) or ()
    return table._replace(chains=((text.CHAIN, rules[:number] + rules[number + 1 :]),))


def _decisions(table: text.ListedTable) -> t.List[Decision]:
    ruleset = to_ruleset(table)
    assert ruleset is not None
    return [*ruleset.leading, *ruleset.decisions]
