# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains of endpoints: those that are alike are read alike, and of these as few stay as may."""

from __future__ import annotations

import struct
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import alike_chains, nft_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.referenced_objects import Known
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import Rule, RuleTable
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink, nf_tables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, IPV4, Family
from hypothesis import given
from hypothesis import strategies as st
from support import nft_messages as nft

_REGISTERS = st.sampled_from([1, 1, 1, 2, 8, 9, 10])


#: the last byte of the address that a chain is about, and of the one that takes its place
_OWN, _OTHER = 77, 78


def _address(family: Family, number: int) -> bytes:
    return bytes([10] + [0] * (family.size - 2) + [number])


def _constant(value: bytes, register: int) -> bytes:
    data = netlink.nest(2, netlink.attribute(1, value))
    return nft.expression("immediate", netlink.network_word(1, register), data)


def _nat(family: Family, kind: int, registers: t.Sequence[int]) -> bytes:
    words = [kind, family.number, *registers]
    return nft.expression("nat", *(netlink.network_word(place, word) for place, word in enumerate(words, 1)))


def _xt(kind: str, name: str, info: bytes, revision: int = 0) -> bytes:
    named = netlink.text(1, name), netlink.network_word(2, revision), netlink.attribute(3, info)
    return nft.expression(kind, *named)


def _translation(address: bytes, port: int) -> bytes:
    padded = address.ljust(16, b"\0")
    return struct.pack("=I", 3) + padded * 2 + struct.pack("!HHHH", port, port, 0, 0)


def _expressions(family: Family) -> t.Any:
    """Return expressions, most of which are those of endpoints, in any order."""
    places = [(12, 4), (16, 4), (9, 1)] if family == IPV4 else [(8, 16), (24, 16), (6, 1)]
    addresses = st.sampled_from([_address(family, number) for number in (_OWN, _OWN, _OWN, _OWN, 1)])
    chains = st.sampled_from(["SEP-A", "SEP-B", "MARK", "A"])
    ports = st.sampled_from([80, 443, 0x0A00])
    counts = st.integers(0, 2).map(lambda count: struct.pack("!Q", count))
    load = st.builds(
        lambda place, register: nft.payload(nft.NETWORK, *place, register), st.sampled_from(places), _REGISTERS
    )
    operators = st.sampled_from([nft.EQUAL] * 4 + [nft.NOT_EQUAL, 2, 5])
    compared = st.builds(nft.compare, addresses, operators, _REGISTERS)
    plain = st.builds(
        lambda place, *one: nft.payload(nft.NETWORK, *place) + nft.compare(*one),
        st.sampled_from([places[0], *places]),
        addresses,
        operators,
    )
    pair = st.builds(
        lambda address, port, kind, registers: (
            _constant(address, 1) + _constant(struct.pack("!H", port), 2) + _nat(family, kind, registers)
        ),
        addresses,
        ports,
        st.sampled_from([1, 1, 1, 0]),
        st.sampled_from([(1, 1, 2, 2), (1, 1, 2, 2), (1, 1), (2, 2, 1, 1), (1, 2, 2, 2), (1, 1, 2, 1)]),
    )
    return st.one_of(
        plain,
        plain,
        plain,
        pair,
        load,
        compared,
        st.builds(_constant, addresses, _REGISTERS),
        st.just(nft.meta(nft.L4PROTO) + nft.compare(b"\6")),
        st.just(nft.payload(nft.TRANSPORT, 2, 2) + nft.compare(b"\0\x50")),
        st.builds(lambda one: nft.expression("counter", netlink.attribute(1, one), netlink.attribute(2, one)), counts),
        st.builds(lambda text: _xt("match", "comment", text.encode().ljust(256, b"\0")), st.sampled_from("abc")),
        st.builds(
            lambda one: _xt("match", "statistic", struct.pack("=HHI", 0, 0, one) + bytes(16)),
            st.sampled_from([0, 1, 9]),
        ),
        st.builds(lambda one: nft.between(*sorted(one)), st.tuples(addresses, addresses)),
        st.builds(lambda address, port: _xt("target", "DNAT", _translation(address, port), 2), addresses, ports),
        st.builds(nft.jump, chains),
    )


def _read(family: Family, table: t.Any) -> RuleTable:
    return t.cast(RuleTable, nft_rules.read(table, Known(family)))


def _rules(family: Family, rules: t.Sequence[bytes]) -> t.Tuple[Rule, ...]:
    made = [("A", [one]) for one in rules]
    return tuple(_read(family, nft.table(family.number, "x", {"A": ("nat", nft.PREROUTING, -100)}, made)).chains["A"])


def _replaced(value: t.Any, old: t.Any, new: t.Any) -> t.Any:
    """Return a value with another in all places where one is in it."""
    if value == old:
        return new
    if isinstance(value, tuple):
        parts = [_replaced(one, old, new) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


@st.composite
def _chains(draw: t.Any) -> t.Tuple[Family, t.List[bytes]]:
    """The rules of a chain, most of which end with a verdict or a translation."""
    family = draw(st.sampled_from(FAMILIES))
    plain = st.lists(_expressions(family), max_size=2).map(b"".join)
    usual = nft.payload(nft.NETWORK, *((12, 4) if family == IPV4 else (8, 16))) + nft.compare(_address(family, _OWN))
    ended = st.builds(lambda some: some + nft.jump("A"), plain)
    first = draw(st.lists(st.one_of(ended, ended, st.just(usual + nft.jump("A"))), max_size=2))
    own = _address(family, _OWN)
    new = _constant(own, 1) + _constant(b"\x1f\x90", 2) + _nat(family, 1, (1, 1, 2, 2))
    return family, [*first, draw(plain) + draw(st.sampled_from([new, _xt("target", "DNAT", _translation(own, 8), 2)]))]


@given(_chains())
def test_chains_of_one_form_differ_in_an_address_alone(drawn: t.Tuple[Family, t.List[bytes]]) -> None:
    family, rules = drawn
    shapes = alike_chains._Shapes(family)  # type: ignore[attr-defined]
    found = shapes.end(rules)
    if found is None:
        return
    own, other = (_address(family, number) for number in (_OWN, _OTHER))
    numbers = [int.from_bytes(one, "big") for one in (own, other)]
    again = [one.replace(own, other) for one in rules]
    assert (found.address, shapes.end(again)) == (numbers[0], alike_chains.End(found.form, numbers[1]))
    spans = [((number, number),) for number in numbers]
    assert _replaced(_rules(family, rules), *spans) == _rules(family, again)


def _endpoint(number: int) -> t.List[bytes]:
    address = _address(IPV4, number)
    return [
        nft.payload(nft.NETWORK, 12, 4) + nft.compare(address) + nft.jump("MARK"),
        nft.meta(nft.L4PROTO)
        + nft.compare(b"\6")
        + _xt("match", "comment", bytes((97 + number,)).ljust(256, b"\0"))
        + _constant(address, 1)
        + _constant(b"\x1f\x90", 2)
        + _nat(IPV4, 1, (1, 1, 2, 2)),
    ]


_SHARE = 1 << 30
_COUNT = 6


def _numgen(count: int) -> bytes:
    drawn = [netlink.network_word(kind, value) for kind, value in ((1, 1), (2, count), (3, 1), (4, 0))]
    looked_up = netlink.text(1, "__map0"), netlink.network_word(2, 1), netlink.network_word(3, 0)
    return nft.expression("numgen", *drawn) + nft.expression("lookup", *looked_up)


def _by_share(number: int, share: int = _SHARE, inverted: int = 0, last: bool = False) -> bytes:
    info = struct.pack("=HHI", 0, inverted, share) + bytes(16)
    return (b"" if last else _xt("match", "statistic", info)) + nft.jump("SEP-%d" % number)


def _service(choice: t.Sequence[bytes], uses: int = 1, map_of: t.Sequence[int] = ()) -> nf_tables.NftTable:
    """Return a table with a Service; all its endpoints are used so often."""
    rules: t.List[t.Tuple[str, t.List[bytes]]] = [("SVC", [one]) for one in choice]
    rules += [("SEP-%d" % number, [one]) for number in range(_COUNT) for one in _endpoint(number)]
    rules.append(("MARK", [nft.jump("OTHER")]))
    elements = [nft.element(struct.pack("=I", place), chain="SEP-%d" % one) for place, one in enumerate(map_of)]
    sets = {"__map0": elements} if elements else None
    table = nft.table(IPV4.number, "x", {"A": ("nat", nft.PREROUTING, -100)}, rules, sets)
    used = netlink.network_word(nf_tables.CHAIN_USE, 2 + uses)
    return table._replace(chains=tuple(one + used for one in table.chains))


def _fewer(table: nf_tables.NftTable, place: t.Callable[[t.Any], t.Any]) -> nf_tables.NftTable:
    ends = alike_chains.Ends(table, IPV4)
    return ends.fewer(ends.kept(place))


def _left(table: nf_tables.NftTable, place: t.Callable[[t.Any], t.Any] = lambda _end: None) -> t.List[str]:
    """Return to which chains the Service leads if others go that have an equal place."""
    fewer = _fewer(table, place)
    chains = _read(IPV4, fewer).chains
    led = [branch.action.chain for rule in chains["SVC"] for branch in rule.branches]
    assert sorted(one for one in chains if one.startswith("SEP")) == sorted(set(led))
    return led


def _with_map() -> nf_tables.NftTable:
    return _service([_numgen(_COUNT)], map_of=range(_COUNT))


def _with_shares(**more: int) -> nf_tables.NftTable:
    shares = [_by_share(number, **more) for number in range(_COUNT - 1)]
    return _service([*shares, _by_share(_COUNT - 1, last=True)])


def test_one_stands_for_all() -> None:
    assert _left(_with_map()) == ["SEP-5"]
    assert _left(_with_shares()) == ["SEP-5"]
    rule = _read(IPV4, _fewer(_with_map(), lambda end: end.address % 2)).chains["SVC"][0]
    assert (rule.chance, rule.exhaustive, len(rule.branches)) == (True, True, 2)


def test_one_stays_for_each_place() -> None:
    for table in (_with_map(), _with_shares()):
        assert _left(table, lambda end: end.address % 256 == 2) == ["SEP-2", "SEP-5"]


ALL = ["SEP-%d" % number for number in range(_COUNT)]


def test_chains_that_something_else_leads_to_stay() -> None:
    assert _left(_service([_numgen(_COUNT)], 2, range(_COUNT))) == ALL


def test_a_choice_that_is_none_stays() -> None:
    assert _left(_with_shares(share=1 << 31)) == ["SEP-0", *ALL[1:]]
    assert sorted(set(_left(_with_shares(inverted=1)))) == ALL
    assert _left(_service([_numgen(_COUNT + 1)], map_of=range(_COUNT))) == ALL


def test_what_is_about_another_address_stays() -> None:
    table = _with_map()
    own, other = (_address(IPV4, number) for number in (2, 9))
    changed = [one.replace(own, other, 1) if b"SEP-2\0" in one and own in one else one for one in table.rules]
    place = next(number for number, one in enumerate(table.rules) if changed[number] != one)
    rules = (*table.rules[:place], changed[place], *table.rules[place + 1 :])
    assert _left(table._replace(rules=rules)) == ["SEP-2", "SEP-5"]
