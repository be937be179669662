# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules made like others, held against the same rules read one by one."""

from __future__ import annotations

import struct
import typing as t
from unittest import mock

from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import nft_alike, nft_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.referenced_objects import Known
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import RuleTable
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, IPV4, Family
from hypothesis import given
from hypothesis import strategies as st
from support import nft_messages as nft

_REGISTERS = st.sampled_from([1, 1, 1, 2, 8, 9, 10])


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
    size = family.size
    places = [(12, 4), (16, 4), (9, 1)] if family == IPV4 else [(8, 16), (24, 16), (6, 1)]
    addresses = st.integers(0, 3).map(lambda number: bytes([10] + [0] * (size - 2) + [number]))
    chains = st.sampled_from(["SEP-A", "SEP-B", "MARK", "A"])
    ports = st.sampled_from([80, 443, 0x0A00])
    counts = st.integers(0, 2).map(lambda count: struct.pack("!Q", count))
    load = st.builds(
        lambda place, register: nft.payload(nft.NETWORK, *place, register), st.sampled_from(places), _REGISTERS
    )
    operators = st.sampled_from([nft.EQUAL] * 4 + [nft.NOT_EQUAL, 2, 5])
    compared = st.builds(nft.compare, addresses, operators, _REGISTERS)
    plain = st.builds(
        lambda place, address: nft.payload(nft.NETWORK, *place) + nft.compare(address),
        st.sampled_from(places[:2]),
        addresses,
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


@st.composite
def _tables(draw: t.Any) -> t.Tuple[Family, t.Any]:
    """A table in which each rule is there several times, with other values."""
    family = draw(st.sampled_from(FAMILIES))
    expressions = _expressions(family)
    plain = st.lists(expressions, max_size=3)
    ends = st.builds(lambda some, end: [*some, end], plain, st.sampled_from([nft.jump("A"), nft.jump("B")]))
    kept = draw(st.lists(st.one_of(ends, plain), min_size=1, max_size=6))
    usual = [nft.payload(nft.NETWORK, *((12, 4) if family == IPV4 else (8, 16)))]
    values = [bytes([10] + [0] * (family.size - 2) + [number]) for number in range(3)]
    varied = [[*usual, nft.compare(value), *draw(st.sampled_from(kept))] for value in values]
    rules = [("A", one) for one in (*varied, *kept, *varied, *draw(st.lists(st.sampled_from(kept), max_size=4)))]
    return family, nft.table(family.number, "x", {"A": ("nat", nft.PREROUTING, -100)}, rules)


def _read(family: Family, table: t.Any) -> RuleTable:
    return t.cast(RuleTable, nft_rules.read(table, Known(family)))


@given(_tables())
def test_what_is_made_like_another_is_what_is_read(drawn: t.Tuple[Family, t.Any]) -> None:
    made = _read(*drawn)
    with mock.patch.object(nft_alike.Alike, "rule", return_value=None):
        assert made == _read(*drawn)


def test_endpoints_are_read_once() -> None:
    def endpoint(number: int) -> t.Tuple[bytes, bytes, bytes]:
        address = bytes((10, 244, 1, number))
        return (
            nft.payload(nft.NETWORK, 12, 4) + nft.compare(address) + nft.jump("MARK"),
            nft.meta(nft.L4PROTO)
            + nft.compare(b"\6")
            + _constant(address, 1)
            + _constant(b"\x1f\x90", 2)
            + _nat(IPV4, 1, (1, 1, 2, 2)),
            _xt("match", "comment", bytes((97 + number,)).ljust(256, b"\0")) + nft.jump("SEP-%d" % number),
        )

    rules = [("A", [one]) for number in range(9) for one in endpoint(number)]
    table = nft.table(IPV4.number, "x", {"A": ("nat", nft.PREROUTING, -100)}, rules)
    whole = nft_rules._Reader._rule  # type: ignore[attr-defined]
    with mock.patch.object(nft_rules._Reader, "_rule", autospec=True, side_effect=whole) as read:  # type: ignore[attr-defined]
        assert len(_read(IPV4, table).chains["A"]) == 27
    assert read.call_count == 3
