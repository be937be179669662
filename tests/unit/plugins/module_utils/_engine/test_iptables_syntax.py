# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules as text: what iptables prints is what we mean, and nothing else is."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counters, Managed, total
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_backend import Iptables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import (
    nat_jump,
    parse_postrouting,
    parse_rule,
    printed_rules,
    render_rule,
    rule_conditions,
    tokenise,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import (
    EXEMPT,
    LOOPBACK,
    MASQUERADE,
    SERVICE_MARKS,
    SKIP,
    Guard,
    Masquerade,
    OwnRule,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import PortRange
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.printable import shown
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from hypothesis import given
from hypothesis import strategies as st
from support import engine

TEN = OwnRule(EXEMPT, ipaddress.ip_network("10.0.0.0/8"))
PORTS = PortRange(1024, 29999)
ALL = ipaddress.ip_network("0.0.0.0/0")
EVERYTHING_OF_TEN = OwnRule(EXEMPT, ALL, TEN.network)
TO_42 = OwnRule(MASQUERADE, None, TEN.network, "eth0", way=Masquerade("tcp", PortRange(42, 42)))


def masquerade(*way: t.Any, **more: t.Any) -> OwnRule:
    """A rule that masquerades everything."""
    return OwnRule(MASQUERADE, way=Masquerade(*way, **more))


@given(engine.configs, engine.families)
def test_every_rule_is_read_back_from_how_it_is_written(config: t.Any, family: str) -> None:
    rules = from_config(config, family).rules
    assert tuple(parse_rule(render_rule("C", rule), family) for rule in rules) == rules


@pytest.mark.parametrize(
    "line, rule",
    [
        # releases of ip-masq-agent, GCE's scripts, a person
        ('-A C -d 10.0.0.0/8 -m comment --comment "ip-masq-agent: local traffic" -j RETURN', TEN),
        (
            '-A C -d 10.0.0.0/8 -m comment --comment "non-masquerade: x" -m addrtype ! --dst-type LOCAL -j RETURN',
            TEN,
        ),
        ("-A C -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j RETURN", TEN),
        ('-A C -d 10.0.0.0/8 -m comment --comment "\\"ip-masq-agent: quoted\\"" -j RETURN', TEN),
        ("-A C -d 10.0.0.0/8 -m comment --comment one -m comment --comment two -j RETURN", TEN),
        ("-A C -d 10.1.2.3/32 -j RETURN", OwnRule(EXEMPT, ipaddress.ip_network("10.1.2.3/32"))),
        ("-A C -s 127.0.0.0/8 -m comment --comment x -j RETURN", Guard(source=LOOPBACK[IPV4])),
        ("-A C -m mark ! --mark 0x0/0x6000 -j RETURN", Guard(marks=SERVICE_MARKS)),
        ("-A C -m addrtype ! --dst-type LOCAL -m mark ! --mark 0x0/0x6000 -j RETURN", Guard(marks=SERVICE_MARKS)),
        ("-A C -o eth0 -j RETURN", OwnRule(SKIP, interface="eth0")),
        ("-A C -s 10.0.0.0/8 -j RETURN", EVERYTHING_OF_TEN),
        (
            "-A C -s 127.0.0.1/32 -o eth+ -j ACCEPT",
            OwnRule(EXEMPT, ALL, ipaddress.ip_network("127.0.0.1"), "eth+", verdict="ACCEPT"),
        ),
        ("-A C -s 10.0.0.0/8 -d 10.0.0.0/8 -o eth+ -j RETURN", TEN._replace(source=TEN.network, interface="eth+")),
        ("-A C -d 10.0.0.0/8 -j MASQUERADE", masquerade()._replace(network=TEN.network)),
        ("-A C -s 10.0.0.0/8 -o eth0 -p tcp -j MASQUERADE --to-ports 42", TO_42),
        ("-A C -j MASQUERADE", masquerade()),
        ("-A C -m addrtype ! --dst-type LOCAL -j MASQUERADE --random-fully", masquerade(random_fully=True)),
        ("-A C -p sctp -j MASQUERADE --to-ports 42", masquerade("sctp", PortRange(42, 42))),
        (
            "-A C -p udp -m statistic --mode random --probability 0.46929256292 -j MASQUERADE --to-ports 1024-29999"
            " --random-fully",
            masquerade("udp", PORTS, int(0.469292562840114 * 2**31 + 0.5), True),
        ),
    ],
)
def test_rules_of_others_that_mean_the_same_are_read(line: str, rule: t.Any) -> None:
    assert parse_rule(line, IPV4) == rule


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "-j",
        "-j LOG",
        "-j OTHER",
        "-g RETURN",
        "! -s 10.0.0.0/8 -j RETURN",
        "-d 10.0.0.0/8 -d 11.0.0.0/8 -j RETURN",
        "-d 10.0.0.0/8 ! -o eth0 -j RETURN",
        "-d 10.0.0.0/8 -i eth0 -j RETURN",
        "-d 10.0.0.0/8 -p gre -j RETURN",
        "-d 10.0.0.1/8 -j RETURN",
        "-d fc00::/7 -j RETURN",
        "-d 10.0.0.0/8 -m addrtype --dst-type LOCAL -j RETURN",
        "-d 10.0.0.0/8 -m addrtype ! --src-type LOCAL -j RETURN",
        "-m mark --mark 0x5/0x4 -j RETURN",
        "-m mark ! --mark 0x0/0x6000 -j ACCEPT",
        "-m mark ! --mark 0x0/0x6000 -d 10.0.0.0/8 -j RETURN",
        "! -s 127.0.0.0/8 -j RETURN",
        "-s ::1/128 -j RETURN",
        "-d 10.0.0.0/8 -s 10.0.0.0/8 -s 10.0.0.0/8 -j RETURN",
        "-j MASQUERADE --random",
        "-p tcp -j MASQUERADE --to-ports x",
        "-m statistic --mode nth --every 2 --packet 0 -j MASQUERADE",
        "-m statistic --mode random --probability inf -j MASQUERADE",
        "-j SNAT --to-source 192.0.2.1 --persistent",
    ],
)
def test_what_we_could_not_have_meant_is_no_rule(spec: str) -> None:
    assert parse_rule("-A C " + spec, IPV4) is None


def test_every_rule_and_the_jump_say_whose_they_are() -> None:
    guards = [render_rule("C", Guard(marks=SERVICE_MARKS)), render_rule("C", Guard(source=LOOPBACK[IPV6]))]
    for line in [render_rule("C", TEN), render_rule("C", masquerade()), nat_jump("C").line] + guards:
        words = tokenise(line)
        assert words[words.index("--comment") + 1].startswith("ip-masq-agent: ")
        assert line.count("-A ") == 1 and "\n" not in line


@pytest.mark.parametrize(
    "spec, target, is_jump, final",
    [
        ("-m addrtype ! --dst-type LOCAL -j C", "C", True, False),
        ('-m addrtype ! --dst-type LOCAL -m comment --comment "any" -j C', "C", True, False),
        ('-m comment --comment "first" -m addrtype ! --dst-type LOCAL -j C', "C", True, False),
        ("-j C", "C", False, False),
        ("-m addrtype ! --dst-type LOCAL -g C", "C", False, False),
        ("-m addrtype --dst-type LOCAL -j C", "C", False, False),
        ("-m addrtype ! --src-type LOCAL -j C", "C", False, False),
        ("-s 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j C", "C", False, False),
        ("-m addrtype ! --dst-type LOCAL -m mark --mark 0x1 -j C", "C", False, False),
        ("-m addrtype ! --dst-type LOCAL -j CC", "CC", False, False),
        ("-g C", "C", False, True),
        ("-j ACCEPT", "ACCEPT", False, True),
        ("-j RETURN", "RETURN", False, True),
        ('-m comment --comment "all" -j MASQUERADE --random-fully', "MASQUERADE", False, True),
        ("-j SNAT --to-source 192.0.2.1 --persistent", "SNAT", False, True),
        ("-p tcp -j ACCEPT", "ACCEPT", False, False),
        ("-o eth0 -j MASQUERADE", "MASQUERADE", False, False),
        ("-j OTHER", "OTHER", False, False),
        ("-m comment --comment -j", "", False, False),
        ("-p tcp", "", False, False),
    ],
)
def test_what_a_rule_of_postrouting_does_to_our_jump(spec: str, target: str, is_jump: bool, final: bool) -> None:
    (rule,) = parse_postrouting(["-A POSTROUTING " + spec])
    assert (rule.target, rule.is_jump(nat_jump("C")), rule.shuts_out_the_rest) == (target, is_jump, final)


def test_counters_separate_exempt_and_masqueraded_and_omit_the_rest() -> None:
    """Packets that are left to later rules are neither."""
    config = build({"non_masquerade_cidrs": ["10.0.0.0/8"], "to_ports": [str(PORTS)], "exemption": "accept"})
    rules = from_config(config, IPV4).rules
    counted = ["-N C"]
    for number, rule in enumerate(rules):
        counted.append(render_rule("C", rule).replace(" -j ", " -c %d %d -j " % (10**number, 2 * 10**number)))
    listing = Outcome(0, "\n".join(counted) + "\n", "")
    backend = Iptables(engine.iptables(lambda argv, **_how: listing, "iptables_nft", IPV4, "iptables"), Managed("C"))
    kinds = [getattr(rule, "kind", None) for rule in rules]
    assert kinds == [None] * 2 + [SKIP, EXEMPT] * 2 + [MASQUERADE] * 4
    assert total(backend.counted()) == Counters(101000, 202000, 1111000000, 2222000000)


@given(st.lists(st.text(), max_size=4))
def test_a_rule_ends_where_iptables_ends_it_whatever_its_comment_holds(comments: t.List[str]) -> None:
    rules = []
    for comment in comments:
        quoted = comment.replace("\\", "\\\\").replace('"', '\\"').replace("'", "\\'")
        rules.append('-A POSTROUTING -m comment --comment "%s" -j OTHER' % quoted)
    listing = "\n".join(["-P POSTROUTING ACCEPT", *rules, ""])
    assert printed_rules(listing) == tuple(rules)
    assert [rule.comment for rule in parse_postrouting(rules)] == comments


@given(st.text())
def test_what_is_shown_of_a_rule_is_one_line_that_any_terminal_can_print(line: str) -> None:
    told = shown(line)
    assert told.isprintable() and len(told.splitlines()) <= 1
    told.encode("utf-8")
    assert told == line or not line.isprintable()


@pytest.mark.parametrize(
    "line, conditions",
    [
        ("-A C -d 10.0.0.0/8 -j RETURN", ["-d", "-j RETURN"]),
        ('-A C -d 10.0.0.0/8 -m comment --comment "-s x -m y" -j RETURN', ["-d", "-j RETURN"]),
        ("-A C -s 10.0.0.0/8 ! -d 10.0.0.0/8 -o eth0 -j X", ["-d", "-j X", "-o", "-s"]),
        ("-A C -p tcp -m comment --comment x -m statistic --mode random -g X", ["-g X", "-m statistic", "-p"]),
        ("-A C", []),
    ],
)
def test_the_conditions_of_a_rule_are_listed_without_their_values(line: str, conditions: t.List[str]) -> None:
    assert rule_conditions(line) == tuple(conditions)
