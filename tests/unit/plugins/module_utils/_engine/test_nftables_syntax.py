# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A table is read as it was written, whatever spelling nft chooses, and nothing else is taken for it."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_syntax as text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_ruleset import from_ruleset, to_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Masquerade, from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import PortRange
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, IPV4, IPV6
from hypothesis import given
from hypothesis import strategies as st
from support import engine

exemptions = st.sampled_from(["return", "accept", "enforce"])
policies = st.builds(lambda config, exemption: config._replace(exemption=exemption), engine.configs, exemptions)

#: What nft 0.9.8, 1.0.6 and 1.1.3 print, byte for byte, with -n -s.
PRINTED = """\
table ip ip_masq_agent {
	set exempt_ranges {
		typeof ip daddr
		flags interval
		auto-merge
		elements = { 1.2.3.4, 10.0.0.0-13.255.255.255,
			     169.254.0.0/16, 172.16.0.0/12 }
	}

	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		fib daddr type 2 counter return comment "ip-masq-agent: for the node itself"
		ip daddr @exempt_ranges counter return comment "ip-masq-agent: exempt, keeps its source address"
		meta l4proto 6 numgen random mod 2147483648 < 1007802837 counter masquerade to :1024-29999 fully-random
		meta l4proto 6 counter masquerade to :32768-65535
		meta l4proto 132 counter masquerade to :42 fully-random
		counter masquerade
	}

	chain enforce {
		type nat hook postrouting priority 50; policy accept;
		ct status 0x20 counter return
		meta mark & 0x00006000 != 0x00000000 counter return
		ip saddr 127.0.0.0/8 counter return
		fib daddr type 2 counter return
		ip daddr @exempt_ranges counter snat to ip saddr
	}
}
"""  # noqa: E101


def test_what_nft_prints_is_understood() -> None:
    table = text.parse(PRINTED, IPV4)
    assert table.foreign == ()
    ruleset = to_ruleset(table)
    assert ruleset is not None
    assert [str(network) for network in ruleset.exempt] == [
        "1.2.3.4/32",
        "10.0.0.0/7",
        "12.0.0.0/7",
        "169.254.0.0/16",
        "172.16.0.0/12",
    ]
    assert ruleset.verdict == "ENFORCE"
    assert ruleset.masquerade == (
        Masquerade("tcp", PortRange(1024, 29999), 1007802837, True),
        Masquerade("tcp", PortRange(32768, 65535), None, False),
        Masquerade("sctp", PortRange(42, 42), None, True),
        Masquerade(None, None, None, False),
    )


@pytest.mark.parametrize("family, nft", [(IPV4, "ip"), (IPV6, "ip6")])
def test_only_a_set_that_every_nft_can_read_is_in_sync(family: str, nft: str) -> None:
    table = from_ruleset(from_config(build({"enable_ipv6": True}), family), family)
    written = text.render(table)
    by_type = written.replace("typeof %s daddr" % nft, "type %s_addr" % family)
    assert by_type != written
    found = text.parse(by_type, family)
    assert found.foreign == ("set exempt_ranges",) and not found.means(table)


def test_people_are_shown_names_and_one_range_a_line() -> None:
    lines = text.listing(PRINTED, IPV4)
    assert lines[0] == "table ip ip_masq_agent {"
    assert lines[-1] == "}"
    assert "            10.0.0.0-13.255.255.255," in lines
    assert "        type nat hook postrouting priority srcnat; policy accept;" in lines
    assert '        fib daddr type local counter return comment "ip-masq-agent: for the node itself"' in lines
    assert not [line for line in lines if "\t" in line]


@given(policies, engine.families)
def test_what_is_written_is_read_back_as_the_same_rules(config: t.Any, family: str) -> None:
    wanted = from_config(config, family)
    table = from_ruleset(wanted, family)
    read = text.parse(text.render(table), family)
    assert read == table
    assert read.means(table)
    ruleset = to_ruleset(read)
    assert ruleset is not None
    assert engine.same(ruleset, wanted)
    assert ruleset.verdict == wanted.verdict


@given(policies, policies, engine.families)
def test_tables_mean_the_same_only_where_the_rules_do(one: t.Any, other: t.Any, family: str) -> None:
    first, second = from_config(one, family), from_config(other, family)
    same = from_ruleset(first, family).means(from_ruleset(second, family))
    assert same == (engine.same(first, second) and first.verdict == second.verdict)


@given(policies, engine.families, st.data())
def test_no_line_of_a_table_can_go_unnoticed(config: t.Any, family: str, data: t.Any) -> None:
    table = from_ruleset(from_config(config, family), family)
    lines = text.render(table).splitlines()
    telling = [i for i, line in enumerate(lines[1:-1], 1) if line not in ("auto-merge", "}")]
    gone = data.draw(st.sampled_from(telling))
    assert not text.parse("\n".join(lines[:gone] + lines[gone + 1 :]), family).means(table), lines[gone]


@given(policies, engine.families, st.data())
def test_no_line_can_be_slipped_in(config: t.Any, family: str, data: t.Any) -> None:
    table = from_ruleset(from_config(config, family), family)
    lines = text.render(table).splitlines()
    place = data.draw(st.integers(1, len(lines) - 1))
    new = data.draw(
        st.sampled_from(
            ["flags dormant", "masquerade", "accept", "elements = { 9.9.9.9 timeout 3s }", "size 3", "chain x {\n}"]
        )
    )
    assert not text.parse("\n".join(lines[:place] + [new] + lines[place:]), family).means(table)


@given(policies, engine.families, st.data())
def test_comments_and_counters_say_nothing(config: t.Any, family: str, data: t.Any) -> None:
    table = from_ruleset(from_config(config, family), family)
    spelled = []
    for line in text.render(table).splitlines():
        form = line.partition(' comment "')[0] if data.draw(st.booleans()) else line
        counter = "counter packets 7 bytes 420 " if data.draw(st.booleans()) else ""
        spelled.append(form.replace("counter ", counter))
    assert text.parse("\n".join(spelled), family).means(table)


spans = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(lambda pair: (min(pair), max(pair)))


@given(spans)
def test_any_span_is_read_as_it_is_written(span: t.Tuple[int, int]) -> None:
    for family in FAMILIES:
        written = text.render_span(span, family)
        table = text.parse("table x {\nset exempt_ranges {\nelements = { %s }\n}\n}" % written, family)
        assert table.sets[text.SET] == (span,)


@pytest.mark.parametrize("family, everything", [(IPV4, "0.0.0.0/0"), (IPV6, "::/0")])
def test_everything_is_one_element(family: str, everything: str) -> None:
    network = ipaddress.ip_network(everything)
    halves = [str(half) for half in network.subnets(1)]
    config = build({"non_masquerade_cidrs": halves, "enable_ipv6": True})
    assert "elements = { %s }" % everything in text.render(from_ruleset(from_config(config, family), family))


@given(st.text() | st.text('table{}\n\t ,;-/:.0123456789abcdefsetchainexempt="@'), engine.families)
def test_no_text_is_too_strange_to_read(strange: str, family: str) -> None:
    table = text.parse(strange, family)
    to_ruleset(table)
    text.listing(strange, family)


@given(
    st.lists(
        st.sampled_from(
            PRINTED.split("\n") + ["}", "elements = {", "elements = { 1.2.3.4-::1, 1/2/3, x }", "set exempt_ranges {"]
        )
    )
)
def test_no_mixture_of_lines_is_too_strange_to_read(lines: t.List[str]) -> None:
    strange = "\n".join(["table ip ip_masq_agent {"] + lines)
    table = text.parse(strange, IPV4)
    ruleset = to_ruleset(table)
    assert ruleset is None or from_ruleset(ruleset, IPV4).means(table)
    text.listing(strange, IPV4)


@pytest.mark.parametrize("exemption", ["return", "accept"])
def test_a_table_that_lost_one_of_its_rules_is_read_as_what_is_left_or_not_at_all(exemption: str) -> None:
    entries = [{"action": action, "destinations": ["10.0.0.0/8"]} for action in ("masquerade", "skip", "exempt")]
    snat = [{"address": "192.0.2.7", "source_cidrs": ["10.244.0.0/16"]}]
    config = build({"rules": entries, "snat": snat, "to_ports": ["1024-2048"], "exemption": exemption})
    table = from_ruleset(from_config(config, IPV4), IPV4)
    rules = table.rules(text.CHAIN) or ()
    for number in range(len(rules)):
        damaged = table._replace(chains=((text.CHAIN, rules[:number] + rules[number + 1 :]),))
        ruleset = to_ruleset(damaged)
        assert ruleset is None or from_ruleset(ruleset, IPV4).means(damaged)
