# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of nf_tables, by nft or iptables-nft, in the form of :mod:`matches`.

A rule is a list of expressions that load parts of a packet into registers and compare them. Each byte of the registers
is followed: which part of the packet it holds. Attribute numbers: linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import itertools
import struct
import sys
import typing as t

from .._policy import spans
from .._policy.spans import Spans
from .._system import netlink
from .._twin import nf_tables
from .._twin.ipsets import IpSet
from . import xt_matches
from .matches import WITH_PORTS, Branch, Chain, Match, Rule, RuleTable, any_of, both, top
from .nft_elements import Element, Elements, chain_of

#: families of tables that see packets of IPv4 and of IPv6
_VERSIONS = {1: (4, 6), 2: (4,), 10: (6,)}
_NFPROTO = {4: 2, 6: 10}

#: offset in the header of IP, length, field; and in that of the transport protocol
_NETWORK = {
    4: ((12, 4, "source"), (16, 4, "destination"), (9, 1, "protocol")),
    6: ((8, 16, "source"), (24, 16, "destination"), (6, 1, "protocol")),
}
_TRANSPORT = ((0, 2, "source_port"), (2, 2, "port"))
#: key, field, length
_META = {3: ("mark", 4), 6: ("interface", 16), 15: ("nfproto", 1), 16: ("protocol", 1)}
_META_FEATURES = {0: "length", 10: "owner", 11: "owner", 23: "cgroup", 24: "random"}
_MARK = 3
_EQUAL, _NOT_EQUAL, _LESS, _LESS_OR_EQUAL, _GREATER, _GREATER_OR_EQUAL = range(6)
_ALL_BITS = 0xFFFFFFFF

#: expressions that say nothing about which packets a rule means
_NEUTRAL = frozenset(("counter", "masq", "nat", "redir", "log", "reject", "last", "objref", "flow_offload", "synproxy"))
_FEATURES = {
    "numgen": "numgen", "hash": "hash", "queue": "queue", "xfrm": "ipsec", "limit": "limit", "quota": "quota",
    "connlimit": "connlimit", "dynset": "recent", "exthdr": "exthdr", "socket": "socket", "tproxy": "tproxy",
}  # fmt: skip

#: bytes
_REGISTERS = 16 * 4


class Held(t.NamedTuple):
    """What one byte of a register holds: a byte of a field of the packet, and those bits of it that are kept."""

    field: str
    place: int
    bits: int = 0xFF


def read(table: nf_tables.Table, sets: t.Sequence[IpSet], version: int) -> t.Optional[RuleTable]:
    """A table as it treats packets of one version of IP; none where it does not see them.

    :param sets: those of ipset.
    """
    if version not in _VERSIONS.get(table.family, ()):
        return None
    base = {}
    for known in map(netlink.attributes, table.chains):
        if nf_tables.CHAIN_HOOK in known:
            hook = netlink.attributes(known[nf_tables.CHAIN_HOOK])
            kind = netlink.name(known[nf_tables.CHAIN_TYPE])
            chain = Chain(kind, _word(hook.get(1)), struct.unpack("!i", hook[2])[0])
            base[netlink.name(known[nf_tables.CHAIN_NAME])] = chain
    elements = Elements(table)
    rules = []
    for body in table.rules:
        known = netlink.attributes(body)
        reader = _Reader(version, elements, sets)
        for name, data in nf_tables.parse_expressions(known.get(nf_tables.RULE_EXPRESSIONS, b"")):
            reader.take(name, netlink.attributes(data))
        if not reader.other_version:
            rules.append(reader.rule(netlink.name(known[nf_tables.RULE_CHAIN])))
    return RuleTable(table.title, base, tuple(rules))


def _word(value: t.Optional[bytes]) -> int:
    return struct.unpack("!I", value)[0] if value else 0


def _data(value: t.Optional[bytes]) -> bytes:
    return netlink.attributes(value or b"").get(1, b"")


def _place(register: t.Optional[bytes]) -> int:
    """Where a register begins: those from 8 on have four bytes, those before sixteen."""
    number = _word(register)
    return (number - 8) * 4 if number >= 8 else (number - 1) * 16


def _fields(
    held: t.Sequence[t.Optional[Held]], *values: bytes
) -> t.Iterator[t.Tuple[str, t.List[Held], t.List[bytes]]]:
    """The fields that registers hold, each with its bytes, and with those of each value beside them."""
    numbered = [(number, one) for number, one in enumerate(held) if one is not None]
    for field, group in itertools.groupby(numbered, key=lambda numbered_one: numbered_one[1].field):
        places = list(group)
        parts = [bytes(value[number] for number, _one in places if number < len(value)) for value in values]
        yield field, [one for _number, one in places], parts


def _mark_bits(held: t.Iterable[Held]) -> int:
    """The bits of a mark that registers hold; the mark is a number in the order of the machine."""
    return sum(one.bits << 8 * (one.place if sys.byteorder == "little" else 3 - one.place) for one in held)


class _Reader:
    """Follows the expressions of one rule."""

    def __init__(self, version: int, elements: Elements, sets: t.Sequence[IpSet]) -> None:
        self.other_version = False
        self._version = version
        self._elements = elements
        self._sets = sets
        self._held: t.List[t.Optional[Held]] = [None] * _REGISTERS
        self._branches = [Branch(Match())]
        self._features: t.Set[str] = set()
        self._marks_tested = self._marks_set = 0
        self._interfaces: t.List[str] = []
        self._untracked = False

    def rule(self, chain: str) -> Rule:
        """What was found."""
        return Rule(
            chain,
            tuple(self._branches),
            frozenset(self._features),
            self._marks_tested,
            self._marks_set,
            tuple(self._interfaces),
            self._untracked,
        )

    def take(self, name: str, data: t.Dict[int, bytes]) -> None:
        """The next expression."""
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, data)
        elif name in _FEATURES:
            self._features.add(_FEATURES[name])
            if name in ("numgen", "hash", "exthdr", "socket", "xfrm"):
                self._load(data.get(2 if name in ("hash", "socket") else 1), [None] * 4)
        elif name not in _NEUTRAL:
            self._features.add(name)

    def _narrow(self, alternatives: t.Sequence[Branch]) -> None:
        """Go on with each of these for each way through the rule so far."""
        self._branches = [
            Branch(both(branch.match, other.match), other.chain or branch.chain)
            for branch in self._branches
            for other in alternatives
        ]

    def _load(self, register: t.Optional[bytes], held: t.Sequence[t.Optional[Held]]) -> None:
        start = _place(register)
        if start >= 0:  # not the register of verdicts
            self._held[start : start + len(held)] = held
            del self._held[_REGISTERS:]

    def _holding(self, register: t.Optional[bytes], length: int) -> t.List[t.Optional[Held]]:
        start = _place(register)
        return self._held[start : start + length]

    def payload(self, data: t.Dict[int, bytes]) -> None:
        """Part of a header into a register, or back into the packet."""
        base, offset, length = (_word(data.get(kind)) for kind in (2, 3, 4))
        fields = _NETWORK[self._version] if base == 1 else _TRANSPORT if base == 2 and self._has_ports() else ()
        held: t.List[t.Optional[Held]] = [None] * length
        for start, size, name in fields:
            for place in range(max(start, offset), min(start + size, offset + length)):
                held[place - offset] = Held(name, place - start)
        if 5 in data or not any(held):
            self._features.add("payload")
        if 5 not in data:
            self._load(data.get(1), held)

    def _has_ports(self) -> bool:
        """Whether the first bytes of the transport header are ports; in ICMP they are type and code."""
        protocols = [branch.match.protocol for branch in self._branches]
        return any(one is None or any(spans.contains(one, port) for port in WITH_PORTS) for one in protocols)

    def meta(self, data: t.Dict[int, bytes]) -> None:
        """What the kernel knows of a packet into a register, or the other way round."""
        key = _word(data.get(2))
        if 3 in data:
            if key == _MARK:
                kept = _mark_bits(one for one in self._holding(data[3], 4) if one is not None and one.field == "mark")
                self._marks_set |= _ALL_BITS & ~kept
            return
        if key in _META_FEATURES:
            self._features.add(_META_FEATURES[key])
        name, size = _META.get(key, ("", 4))
        self._load(data.get(1), [Held(name, number) if name else None for number in range(size)])

    def forget(self, data: t.Dict[int, bytes]) -> None:
        """Something into a register that a question does not vary."""
        if 1 in data:
            self._load(data[1], [None] * 16)

    def notrack(self, _nothing: t.Dict[int, bytes]) -> None:
        """No connection tracking, and so no translation."""
        self._untracked = True

    def bitwise(self, data: t.Dict[int, bytes]) -> None:
        """A mask over a register, and bits turned over in it."""
        length = _word(data.get(3))
        mask = _data(data.get(4)) or b"\xff" * length
        flips = _data(data.get(5)) or b"\0" * length
        # A bit that is turned over is one that is not kept: of marks that is all that is asked.
        held = [
            one and one._replace(bits=one.bits & bits & ~flipped)
            for one, bits, flipped in zip(self._holding(data.get(1), length), mask, flips)
        ]
        self._load(data.get(2), held)

    def immediate(self, data: t.Dict[int, bytes]) -> None:
        """A verdict, or a number into a register."""
        chain = chain_of(data.get(2))
        if chain is not None:
            self._narrow([Branch(Match(), chain)])
        elif _word(data.get(1)):
            self._load(data.get(1), [None] * 4)

    def cmp(self, data: t.Dict[int, bytes]) -> None:
        """A register compared with a value."""
        value = _data(data.get(3))
        operator = _word(data.get(2))
        fields = list(_fields(self._holding(data.get(1), len(value)), value))
        for field, held, (part,) in fields:
            if field == "mark":
                self._marks_tested |= _mark_bits(held)
            elif field == "interface":
                name = netlink.name(part)
                self._interfaces.append(name if b"\0" in part else name + "+")
            elif field == "nfproto":
                same = part[0] == _NFPROTO[self._version]
                self.other_version = self.other_version or same != (operator == _EQUAL)
            elif len(fields) > 1 and operator != _EQUAL:  # one of the fields differs, whichever that is
                equal = self._allowed(field, held, _EQUAL, part)
                self._narrow([Branch(Match()), Branch(Match(**{field: equal}) if equal is not None else Match())])
            else:
                allowed = self._allowed(field, held, operator, part)
                if allowed is None:
                    self._features.add("payload")
                else:
                    self._narrow([Branch(Match(**{field: allowed}))])

    def _size(self, field: str) -> int:
        return (top(field, self._version).bit_length() + 7) // 8

    def _allowed(self, field: str, held: t.Sequence[Held], operator: int, value: bytes) -> t.Optional[Spans]:
        """The values of a field that a comparison lets through; none where they are no interval."""
        highest = top(field, self._version)
        # A field may be loaded in part: as many bytes of it as the prefix has.
        rest = self._size(field) - len(held)
        if [one.place for one in held] != list(range(len(held))):
            return None
        mask = int.from_bytes(bytes(one.bits for one in held) + b"\0" * rest, "big")
        number = int.from_bytes(value + b"\0" * rest, "big")
        free = highest ^ mask
        if free & (free + 1):  # the bits that do not matter are not all at the end
            return None
        if operator in (_EQUAL, _NOT_EQUAL):
            found: Spans = ((number, number | free),)
        elif operator in (_LESS, _GREATER_OR_EQUAL):
            found = ((0, number - 1),) if number else ()
        else:
            found = ((0, number | free),)
        inverted = operator in (_NOT_EQUAL, _GREATER, _GREATER_OR_EQUAL)
        return spans.complement(found, highest) if inverted else found

    def range(self, data: t.Dict[int, bytes]) -> None:
        """A register between two values, or not between them."""
        first, last = _data(data.get(3)), _data(data.get(4))
        match = self._between(self._holding(data.get(1), len(first)), first, last)
        inverted = _word(data.get(2)) == _NOT_EQUAL
        self._narrow([Branch(one) for one in any_of([match], inverted, self._version)])

    def _between(self, held: t.Sequence[t.Optional[Held]], first: bytes, last: bytes) -> Match:
        match = Match()
        for field, parts, (low, high) in _fields(held, first, last):
            if field in Match._fields and len(parts) == self._size(field):
                match = match.narrowed(field, ((int.from_bytes(low, "big"), int.from_bytes(high, "big")),))
        return match

    def lookup(self, data: t.Dict[int, bytes]) -> None:
        """A register looked up in a set or map."""
        elements = self._elements.of(netlink.name(data.get(1, b"")))
        inverted = bool(_word(data.get(5)) & 1)
        length = max((len(element.first) for element in elements), default=0)
        held = self._holding(data.get(2), length)
        if any(one is not None and one.bits != 0xFF for one in held):  # a part of a field: which one is not said
            held = [None] * length
        self._marks_tested |= _mark_bits(one for one in held if one is not None and one.field == "mark")
        if any(element.chain for element in elements):
            self._narrow([Branch(self._element(held, element), element.chain) for element in elements])
        else:
            matches = [self._element(held, element) for element in elements]
            self._narrow([Branch(match) for match in any_of(matches, inverted, self._version)])
        if 3 in data:  # what a map says goes into a register
            self.forget({1: data[3]})

    def _element(self, held: t.Sequence[t.Optional[Held]], element: Element) -> Match:
        return self._between(held[: len(element.first)], element.first, element.last)

    def match(self, data: t.Dict[int, bytes]) -> None:
        """An extension of xtables."""
        name, info = netlink.name(data.get(1, b"")), data.get(3, b"")
        if name == "mark" and len(info) >= 8:
            self._marks_tested |= struct.unpack_from("=II", info)[1]
            return
        found = xt_matches.read(name, info, self._version, self._sets)
        if found is None:
            self._features.add(name)
        else:
            self._narrow([Branch(match) for match in found])

    def target(self, data: t.Dict[int, bytes]) -> None:
        """An action of xtables."""
        name, info = netlink.name(data.get(1, b"")), data.get(3, b"")
        if name == "MARK" and len(info) >= 8:
            value, mask = struct.unpack_from("=II", info)
            self._marks_set |= value | mask
        elif name == "CONNMARK":
            self._marks_set |= _ALL_BITS
        elif name in ("NOTRACK", "CT"):
            self._untracked = self._untracked or name == "NOTRACK" or bool(info and info[0] & 1)
        elif name in ("NFQUEUE", "TPROXY"):
            self._features.add({"NFQUEUE": "queue", "TPROXY": "tproxy"}[name])


_HANDLERS: t.Mapping[str, t.Callable[[_Reader, t.Dict[int, bytes]], None]] = {
    "payload": _Reader.payload,
    "meta": _Reader.meta,
    "ct": _Reader.forget,
    "fib": _Reader.forget,
    "rt": _Reader.forget,
    "notrack": _Reader.notrack,
    "bitwise": _Reader.bitwise,
    "immediate": _Reader.immediate,
    "cmp": _Reader.cmp,
    "range": _Reader.range,
    "lookup": _Reader.lookup,
    "match": _Reader.match,
    "target": _Reader.target,
}
