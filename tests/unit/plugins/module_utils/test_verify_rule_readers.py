# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules as values, from hand-made messages and printed lines; tests/kernel/test_rule_readers.py has the rest."""

from __future__ import annotations

import struct
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import (
    ipset_rules,
    nft_rules,
    rules,
    xt_rules,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.reading import Reading, UnknownError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.referenced_objects import Known
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import (
    ACCEPT,
    ALL_BITS,
    BY_SOCKET,
    DECIDED,
    GOTO,
    JUMP,
    RETURN,
    SET,
    SOURCE,
    UNTRACKED,
    Branch,
    Match,
    Rule,
    RuleAction,
    RuleTable,
    chain_of,
    does_unknown,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import Test as Tested
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals, netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.ipsets import IpSet
from hypothesis import given
from hypothesis import strategies as st
from support import nft_messages as nft
from support.nft_messages import address, span

KNOWN = Known(
    IPV4,
    {2: (span("127.0.0.0/8"), span("198.51.100.1/32"))},
    {1: "lo", 2: "eth0", 3: "cali1"},
)
MASQ = nft.expression("masq")
DADDR, SADDR = nft.payload(nft.NETWORK, 16, 4), nft.payload(nft.NETWORK, 12, 4)
TCP = (nft.meta(nft.L4PROTO), nft.compare(b"\x06"))
_WORD = netlink.network_word


def _table(
    *expressions: bytes, base: t.Tuple[str, int, int] = ("nat", 4, 100), family: int = nft.IP, **sets: t.Sequence[bytes]
) -> RuleTable:
    made = nft.table(family, "t", {"c": base}, [("c", expressions)], t.cast(t.Any, sets) or None)
    found = nft_rules.read(made, KNOWN)
    assert found is not None
    return found


def _rules(*expressions: bytes, **options: t.Any) -> t.Tuple[Rule, ...]:
    return _table(*expressions, **options).chains["c"]


def _match(*expressions: bytes, **options: t.Any) -> Match:
    (rule,) = _rules(*expressions, MASQ, **options)
    assert not rule.unknown
    ((match, action),) = rule.branches
    assert action == RuleAction(SOURCE, local=True)
    return match


def _unknown(*expressions: bytes, **options: t.Any) -> t.Tuple[str, ...]:
    (rule,) = _rules(*expressions, MASQ, **options)
    assert rule.branches
    return rule.unknown


# conditions of nft


def test_conntrack_knows_where_a_packet_was_going() -> None:
    def ct(key: int, direction: int = 0) -> bytes:
        return nft.expression("ct", _WORD(1, 1), _WORD(2, key), netlink.attribute(3, bytes((direction,))))

    tracked = (rules.Test(UNTRACKED, 0xFFFFFFFF, ((0, 0),)),)
    assert _match(*TCP, ct(12), nft.compare(b"\0\x50")) == Match(
        service=((6 << 16, 6 << 16 | 0xFFFF),), original_service=((6 << 16 | 80, 6 << 16 | 80),), tests=tracked
    )
    assert _match(*TCP, ct(11), nft.compare(b"\x04\0")).source_port == ((1024, 1024),)
    assert _match(ct(9), nft.compare(address("10.96.0.1"))) == Match(
        original_destination=(span("10.96.0.1/32"),), tests=tracked
    )
    assert _unknown(ct(9, 1), nft.compare(address("10.96.0.1"))) == ("the addresses and ports with which answers come",)
    assert _unknown(ct(6), nft.compare(b"ftp\0")) == ("ct helper",)


def test_conntrack_before_it_sees_a_packet() -> None:
    state = nft.expression("ct", _WORD(1, 1), _WORD(2, 0))
    new = [state, nft.bitwise(struct.pack("=I", 8), bytes(4)), nft.compare(bytes(4), nft.NOT_EQUAL)]
    jump = nft.jump("c")
    (rule,) = _rules(*new, jump, base=("filter", 0, -300))
    assert rule.unknown == ("what conntrack knows, matched before it sees the packet",)
    (rule,) = _rules(*new, jump, base=("filter", 0, -150))
    assert not rule.unknown


def test_untracked_only_in_front_of_conntrack_and_if_nothing_was_decided() -> None:
    found = _rules(nft.expression("notrack"), base=("filter", 0, -300))
    undecided = Match(tests=(Tested(DECIDED, ALL_BITS, ((0, 0),)),))
    assert [rule.branches for rule in found] == [
        (Branch(undecided, RuleAction(SET, subject=subject, origin=subject, flip=1)),)
        for subject in (UNTRACKED, DECIDED)
    ]
    late = _rules(nft.expression("notrack"), base=("filter", 0, -150))
    assert not any(rule.branches for rule in late)


def test_large_set_is_read_once_for_all_rules_that_ask_it() -> None:
    members = [nft.element(address("10.0.0.%d" % number)) for number in range(0, 200, 2)]
    asks = (DADDR, nft.lookup("s"), MASQ)
    made = nft.table(
        nft.IP, "t", {"c": ("nat", 4, 100)}, [("c", asks), ("c", (SADDR, *asks[1:])), ("c", asks)], {"s": members}
    )
    found = nft_rules.read(made, KNOWN)
    assert found is not None
    first, other, last = (rule.branches[0].match for rule in found.chains["c"])
    expected = tuple(span("10.0.0.%d/32" % number) for number in range(0, 200, 2))
    assert first == last == Match(destination=expected) and other == Match(source=expected)
    assert first.destination is last.destination


# what rules of nft do


def test_tested_and_changed() -> None:
    """What a rule does behind a test of a value that it changes does not ask again."""
    mask = struct.pack("=I", 0x4000)
    table = _table(
        nft.meta(nft.MARK),
        nft.bitwise(mask, bytes(4)),
        nft.compare(bytes(4), nft.NOT_EQUAL),
        nft.meta(nft.MARK),
        nft.bitwise(b"\xff" * 4, mask),
        nft.set_meta(nft.MARK),
        MASQ,
    )
    (rule,) = table.chains["c"]
    ((match, action),) = rule.branches
    assert match.tests == (rules.Test("mark", 0x4000, ((1, 0x4000),)),)
    assert action.kind == JUMP and chain_of(action.chain) == "c"
    assert [one.branches[0].action for one in table.chains[action.chain]] == [
        RuleAction(SET, subject="mark", origin="mark", keep=0xFFFFFFFF, flip=0x4000),
        RuleAction(SOURCE, local=True),
    ]


def test_tested_and_changed_before_it_returns() -> None:
    verdict = nft.expression("immediate", _WORD(1, 0), netlink.nest(2, netlink.nest(2, _WORD(1, 0xFFFFFFFB))))
    table = _table(nft.meta(nft.MARK), nft.compare(bytes(4)), nft.set_meta(nft.MARK), verdict)
    (rule,) = table.chains["c"]
    assert rule.branches[0].action.kind == GOTO
    assert [one.branches[0].action.kind for one in table.chains[rule.branches[0].action.chain]] == [SET, RETURN]


def test_what_is_not_known_may_do_anything() -> None:
    (rule,) = _rules(nft.expression("mystery"))
    assert does_unknown(rule) and rule.unknown == ("the expression mystery",)
    first, second = _rules(nft.expression("mystery"), MASQ)
    assert does_unknown(first) and second.unknown
    (rule,) = _rules(nft.expression("meta", b"\0"))
    assert rule.branches == ()  # loads something that nothing asks
    (rule,) = _rules(nft.expression("match", netlink.text(1, "conntrack"), netlink.attribute(3, b"")), MASQ)
    assert does_unknown(rule) and rule.unknown == ("it cannot be read",)


def test_tables_that_see_packets_elsewhere() -> None:
    netdev = nft.table(5, "t", {}, [("c", [nft.jump("d")])])
    read = nft_rules.read(netdev, KNOWN)
    assert read is not None and read.unknown == ("a table that sees packets before any other (netdev)",)
    assert nft_rules.read(nft.table(nft.IP6, "t", {}), KNOWN) is None
    assert nft_rules.read(nft.table(3, "t", {}), KNOWN) is None
    assert nft_rules.read(nft.table(nft.IP, "t", {"c": ("nat", 4, 100)}, dormant=True), KNOWN) is None
    ingress = nft_rules.read(nft.table(nft.INET, "t", {"c": ("filter", 5, 0)}), KNOWN)
    assert ingress is not None and ingress.base == {} and ingress.unknown == ("a chain at the hook ingress",)


_NAMES = ("payload", "meta", "ct", "fib", "cmp", "range", "bitwise", "byteorder", "lookup", "immediate", "nat", "redir",
          "match", "target", "numgen", "hash", "objref", "exthdr", "dynset", "masq", "notrack")  # fmt: skip
_EXPRESSIONS = st.tuples(
    st.sampled_from(_NAMES), st.lists(st.tuples(st.integers(0, 8), st.binary(max_size=24)), max_size=5)
).map(lambda one: nft.expression(one[0], *(netlink.attribute(kind, value) for kind, value in one[1])))


@given(st.lists(_EXPRESSIONS, max_size=4))
def test_damage_is_read_as_unknown(expressions: t.List[bytes]) -> None:
    table = _table(*expressions, nft.jump("c"), s=[nft.element(address("10.0.0.1"))])
    assert len(table.chains["c"]) >= 1


@given(st.sampled_from(sorted([*xt_rules._MATCHES, *xt_rules._TARGETS])), st.integers(0, 4), st.binary(max_size=200))
def test_damaged_extensions(name: str, revision: int, info: bytes) -> None:
    body = (netlink.text(1, name), _WORD(2, revision), netlink.attribute(3, info))
    kind = "target" if name in xt_rules._TARGETS else "match"
    assert _rules(nft.expression(kind, *body), nft.jump("c"))


# extensions of xtables, and tables of iptables-legacy


def _match_of(name: str, info: bytes, revision: int = 0) -> bytes:
    return nft.expression("match", netlink.text(1, name), _WORD(2, revision), netlink.attribute(3, info))


def test_a_socket_may_have_a_mark_for_the_packet() -> None:
    def read(flags: int) -> t.Tuple[Rule, ...]:
        return _rules(_match_of("socket", bytes((flags,)), 3), MASQ)

    (rule,) = read(1)
    assert rule.unknown == (BY_SOCKET,)
    marked, rule = read(1 | 4)
    assert marked.branches[0].action == RuleAction(SET, subject="mark") and rule.unknown == (BY_SOCKET,)


# sets of ipset


def _set(kind: str, *entries: bytes, name: str = "s", header: bytes = b"", family: int = 2) -> IpSet:
    body = netlink.attribute(5, bytes((family,))) + netlink.nest(7, header)
    return IpSet(name, kind, 0, body, tuple(entries))


def _ip(kind: int, text: str) -> bytes:
    return netlink.nest(kind, netlink.attribute(1, address(text)))


def test_sets_of_ipset() -> None:
    net = _set("hash:net", _ip(1, "10.0.0.0") + netlink.attribute(3, b"\x08"), name="nets")
    assert ipset_rules.read(net, [False], KNOWN) == [{"destination": (span("10.0.0.0/8"),)}]
    assert ipset_rules.read(net, [True], KNOWN) == [{"source": (span("10.0.0.0/8"),)}]
    assert ipset_rules.read(net._replace(header=netlink.attribute(5, b"\x0a")), [True], KNOWN) == []
    timed = _set("hash:ip", _ip(1, "10.0.0.1") + _WORD(6, 0), header=_WORD(6, 300))
    assert ipset_rules.read(timed, [True], KNOWN) == [{"source": (span("10.0.0.1/32"),)}]
    with pytest.raises(UnknownError):
        ipset_rules.read(timed._replace(entries=(_ip(1, "10.0.0.1") + _WORD(6, 7),)), [True], KNOWN)
    with pytest.raises(UnknownError):
        ipset_rules.read(_set("hash:mac"), [True], KNOWN)
    with pytest.raises(UnknownError):
        ipset_rules.read(net, [True], KNOWN._replace(filled=frozenset(("nets",))))
    missing = struct.pack("=HBB", 7, 1, 0)
    assert _unknown(_match_of("set", missing, 1)) == ("a set of ipset that cannot be read",)


# conditions that are joined


_SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(intervals.of)
_CONDITIONS = st.fixed_dictionaries({}, optional={"source": _SPANS, "destination": _SPANS})


def _means(conditions: t.Mapping[t.Any, t.Any], source: int, destination: int) -> bool:
    values = {"source": source, "destination": destination}
    return all(intervals.contains(allowed, values[key]) for key, allowed in conditions.items())


def _reads(reading: Reading, source: int, destination: int) -> bool:
    reading.statements.clear()
    reading.act(RuleAction(ACCEPT))
    (rule,) = reading.rules("c", 1)[0]
    for match, action in rule.branches:
        fields = {key: getattr(match, key) for key in ("source", "destination") if getattr(match, key) is not None}
        if _means(fields, source, destination):
            return action.kind == ACCEPT
    return False


@given(st.lists(st.tuples(st.lists(_CONDITIONS, max_size=3), st.booleans()), max_size=3))
def test_conditions_that_all_hold(groups: t.List[t.Tuple[t.List[t.Any], bool]]) -> None:
    reading = Reading(IPV4)
    for alternatives, inverted in groups:
        reading.any_of(alternatives, inverted)
    for source in range(10):
        for destination in range(10):
            wanted = all(
                any(_means(one, source, destination) for one in alternatives) != inverted
                for alternatives, inverted in groups
            )
            assert _reads(reading, source, destination) == wanted


def test_what_a_rule_remembers_of_packets() -> None:
    def read(asked: int, inverted: bool = False) -> Rule:
        (rule,) = _rules(_match_of("recent", struct.pack("=8xBB", asked, inverted)), MASQ)
        return rule

    fills = read(2)
    assert (
        fills.branches == (Branch(Match(), RuleAction(SOURCE, local=True)),) and not fills.chance and not fills.unknown
    )
    assert not read(2, True).branches
    for rule in (read(1), read(4, True), read(8)):
        assert (rule.chance, rule.exhaustive, rule.unknown) == (True, False, ())
        assert rule.history == ("packets seen before (recent)",)
