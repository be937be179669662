# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of nf_tables, by nft or iptables-nft, as values.

A rule is a list of expressions that load parts of a packet into registers, compare them, and act. Attribute numbers:
linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import struct
import typing as t

from .._system import intervals, netlink, nf_tables, nft_expressions, xtables
from .._system.backend_names import IPTABLES_NFT, NFTABLES
from .._system.families import BY_NUMBER, FAMILIES, IPV4, IPV6, TCP, Family
from .._system.intervals import Spans
from .._system.netlink import number
from .._system.nft_expressions import CT_KEYS, META_KEYS, Named
from . import conditions, nft_sets, xt_rules
from .reading import Conditions, Reading, UnknownError, finished, joined, unreadable
from .referenced_objects import Known
from .registers import (
    CHANCE,
    ICMP_TYPE,
    NOTHING,
    SIZE,
    STATUS_SNAT,
    TCP_FLAGS,
    ZERO,
    Cell,
    Piece,
    Values,
    constant,
    host,
    not_known,
    of_states,
    packet,
    pieces,
    place_of,
)
from .rules import (
    ALL_BITS,
    CONTINUE,
    CT_MARK,
    DESTINATION,
    DROP,
    MARK,
    SENT,
    SENT_BY_SOCKET,
    SET,
    SOURCE,
    UNTRACKED,
    BaseChain,
    Rule,
    RuleAction,
    RuleTable,
)

#: families of tables that see packets of IPv4 and of IPv6
_INET = 1
_FAMILIES = {_INET: FAMILIES, **{number: (family,) for number, family in BY_NUMBER.items()}}
_BELOW = {5: "a table that sees packets before any other (netdev)", 7: "a table that sees packets inside of a bridge"}
_ETHERTYPE = {IPV4: b"\x08\x00", IPV6: b"\x86\xdd"}

_CHAIN_TYPES = ("filter", "nat", "route")
#: offset in the header of IP, length, field
NETWORK = {
    IPV4: ((12, 4, "source"), (16, 4, "destination"), (9, 1, "protocol")),
    IPV6: ((8, 16, "source"), (24, 16, "destination")),  # other headers may come before that of the protocol
}
_TRANSPORT = ((0, 2, "source_port"), (2, 2, "port"))
_BYTES = "bytes of a packet"

_TUPLE = frozenset(("src", "dst", "src_ip", "dst_ip", "src_ip6", "dst_ip6", "proto_src", "proto_dst"))
#: NFT_EXTHDR_OP_TCPOPT
_TCP_OPTION = 1
#: NFT_FIB_RESULT_ADDRTYPE; NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR
_ADDRESS_TYPE = 3
_ADDRESSES_OF_FIB = {1: "source type", 2: "destination type"}

_OWNERS = frozenset(("skuid", "skgid"))
_EQUAL, _NOT_EQUAL, _LESS, _LESS_OR_EQUAL, _GREATER, _GREATER_OR_EQUAL = range(6)
#: NFT_DYNSET_OP_DELETE
_DELETE = 2
_LIMITED = "packets seen before (an expression at the elements of a set)"
_VERDICT_REGISTER = 0
_TRANSLATION = ("reg_addr_min", "reg_addr_max", "reg_proto_min", "reg_proto_max")
_NAT_NETMAP = 0x40
_LENGTH = struct.Struct("=H")
_CHANCE_CELLS = host(CHANCE, 4)


def read(table: nf_tables.NftTable, known: Known) -> t.Optional[RuleTable]:
    """Return a table as it treats packets of one family; None if it does not see them."""
    if nf_tables.is_dormant(table):
        return None
    if table.family in _BELOW:
        if not table.rules or nf_tables.filters_frames(table):
            return None
        return RuleTable(NFTABLES, table.title, {}, {}, (_BELOW[table.family],))
    if not sees(table, known.family):
        return None
    return _Reader(table, known).read()


def sees(table: nf_tables.NftTable, family: Family) -> bool:
    """Return whether packets of a family come to a table behind those of links and bridges."""
    return family in _FAMILIES.get(table.family, ())


#: expressions that are hardly ever the same
_VARIED = frozenset(("cmp", "immediate", "match"))
#: bytes of a comparison, and of a constant for a register, in front of the value: many have the same
_HEAD = 32


class _Reader:
    """Reads one table: what it knows of the table stays, what it knows of a rule begins with each."""

    def __init__(self, table: nf_tables.NftTable, known: Known) -> None:
        self.table = table
        self.known = known
        self.family = known.family
        self.sets = nft_sets.Sets(table)
        self.values = Values(known)
        self.aware = False
        self.parsed: t.Dict[bytes, t.Tuple[str, Named]] = {}
        #: of expressions by what is in front of the value: name, attributes, which of them is the value
        self.heads: t.Dict[bytes, t.Tuple[str, Named, str]] = {}
        self.plans: t.Dict[t.Tuple[Cell, ...], t.List[Piece]] = {}
        self.loads: t.Dict[t.Tuple[int, int], t.List[Cell]] = {}
        #: bytes of the keys of sets
        self.lengths: t.Dict[str, int] = {}
        #: results of looking cells up in a set: many rules share one large set
        self.asked: t.Dict[t.Tuple[str, t.Tuple[Cell, ...]], t.List[Conditions]] = {}
        size, number_of_family = self.family.size, bytes((self.family.number,))
        source, destination = packet("source", size), packet("original_destination", size)
        mine = "ip" if self.family == IPV4 else "ip6"
        self.of_meta = {
            "mark": host(MARK, 4),
            "l4proto": packet("protocol", 1),
            "nfproto": constant(number_of_family),
            "protocol": constant(_ETHERTYPE[self.family]),
            **{name: packet(name, 16) for name in ("iifname", "oifname")},
            **{name: host(name, 4) for name in ("iif", "oif")},
        }
        #: in the direction of the first packet
        self.of_ct = {
            "state": host("ct state", 4),
            "status": host("ct status", 4),
            "mark": host(CT_MARK, 4),
            "direction": constant(b"\0"),
            "l3protocol": constant(number_of_family),
            "protocol": packet("protocol", 1),
            "proto_src": packet("source_port", 2),
            "proto_dst": packet("original_port", 2),
            **dict.fromkeys(("src", "src_" + mine), source),
            **dict.fromkeys(("dst", "dst_" + mine), destination),
        }
        self._begin()

    def _begin(self) -> None:
        self.reading = Reading(self.family)
        self.held: t.List[Cell] = [NOTHING] * SIZE
        self.modulus = self.offset = self.maps = 0

    def read(self) -> RuleTable:
        """Return it."""
        unknown: t.List[str] = []
        base: t.Dict[str, BaseChain] = {}
        names = (netlink.attributes(body).get(nf_tables.CHAIN_NAME, b"") for body in self.table.chains)
        chains: t.Dict[str, t.List[Rule]] = {netlink.name(name): [] for name in names}
        for name, hook, priority, kind, drops in nf_tables.base_chains(self.table):
            if hook > 4:
                unknown.append("a chain at the hook %s" % ("ingress" if hook == 5 else hook))
                continue
            base[name] = BaseChain(kind, hook, priority, drops)
            if kind not in _CHAIN_TYPES:
                unknown.append("a chain of type %s" % kind)
        if any(one.hook in (1, 4) and one.kind != "nat" and one.priority >= 100 for one in base.values()):
            self.values.status &= ~STATUS_SNAT  # the source may be translated
        self.sets.filled = nf_tables.filled_sets(self.table)
        counts: t.Dict[str, int] = {}
        extra: t.Dict[str, t.Tuple[Rule, ...]] = {}
        for body in self.table.rules:
            known = netlink.attributes(body)
            chain = netlink.name(known.get(nf_tables.RULE_CHAIN, b""))
            place = counts[chain] = counts.get(chain, 0) + 1
            expressions = known.get(nf_tables.RULE_EXPRESSIONS, b"")
            try:
                found, more = self._rule(expressions, chain, place)
            except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error):
                found, more = [unreadable(place)], {}
            chains.setdefault(chain, []).extend(found)
            extra.update(more)
        extra.update((name, tuple(members)) for name, members in chains.items())
        backend = NFTABLES
        if xtables.is_table_of_nft(self.table.family, self.table.name):
            backend = IPTABLES_NFT
        return finished(backend, self.table.title, base, extra, unknown, self.aware)

    def _rule(
        self, expressions: bytes, chain: str, place: int
    ) -> t.Tuple[t.List[Rule], t.Dict[str, t.Tuple[Rule, ...]]]:
        self._begin()
        parsed = self.parsed
        position, end = 0, len(expressions)
        while position + 4 <= end:
            length = _LENGTH.unpack_from(expressions, position)[0]
            if length < 4:
                break
            element = expressions[position + 4 : position + length]
            position += (length + 3) & ~3
            # Counters differ from rule to rule; the name of the expression comes first.
            if element[4:12] == b"counter\0":
                continue
            self.take(*(parsed.get(element) or self._parsed(element)))
            if self.reading.over:
                break
        return self.reading.rules(chain, place)

    def _parsed(self, element: bytes) -> t.Tuple[str, Named]:
        """Return the name and the attributes of an expression."""
        known = self.heads.get(element[:_HEAD])
        if known is not None:
            name, others, varied = known
            return name, {**others, varied: element[_HEAD:]}
        name, data = nft_expressions.parse(element)
        if name not in _VARIED:
            self.parsed[element] = (name, data)
        elif len(data) > 1 and name != "match":
            last = list(data)[-1]
            if element[_HEAD:] == data[last]:
                self.heads[element[:_HEAD]] = (name, data, last)
        return name, data

    def take(self, name: str, data: Named) -> None:
        """Follow the next expression."""
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, data)
            return
        if conditions.is_irrelevant(conditions.EXPRESSION, name):
            return
        reason = conditions.because(conditions.EXPRESSION, name)
        if name in _ASKING:
            self.reading.not_known(reason)
        elif name in _LOADING:
            self.load(data.get("dreg"), not_known(reason, 16))
        else:  # an expression that is not known may do anything
            self.reading.act_unknown(reason)
            self.reading.not_known(reason)
            self.held = [("?" + reason, 0, 0xFF, 0)] * SIZE

    # registers

    def load(self, register: t.Optional[bytes], cells: t.Sequence[Cell]) -> None:
        """Put something into registers."""
        start = place_of(register)
        if start >= 0:
            padded = list(cells) + [ZERO] * (-len(cells) % 4)
            self.held[start : start + len(padded)] = padded
            del self.held[SIZE:]

    def holding(self, register: t.Optional[bytes], length: int) -> t.List[Cell]:
        """Return what registers hold."""
        start = place_of(register)
        found = self.held[start : start + length] if start >= 0 else []
        return found + [NOTHING] * (length - len(found))

    def plan(self, cells: t.Sequence[Cell]) -> t.List[Piece]:
        """Return the fields that registers hold."""
        key = tuple(cells)
        found = self.plans.get(key)
        if found is None:
            found = self.plans[key] = pieces(cells)
        return found

    def forget(self, subject: str) -> None:
        """Forget what registers hold of a tracked value that is changed."""
        self.held = [("?a value that has changed since", 0, 0xFF, 0) if one[0] == subject else one for one in self.held]

    # what is loaded

    def payload(self, data: Named) -> None:
        """Follow part of a header into a register, or back into the packet."""
        base, offset, length = (number(data.get(key)) for key in ("base", "offset", "len"))
        if "sreg" in data:
            self.reading.act_unknown("a rule that writes bytes of a packet")
            return
        if base == 1:  # most rules load addresses
            key = (offset, length)
            known = self.loads.get(key)
            if known is None:
                known = self.loads[key] = self._header(base, offset, length)
            self.load(data.get("dreg"), known)
            return
        self.load(data.get("dreg"), self._header(base, offset, length))

    def _header(self, base: int, offset: int, length: int) -> t.List[Cell]:
        """Return part of a header."""
        fields = NETWORK[self.family] if base == 1 else _TRANSPORT if base == 2 else ()
        if length > SIZE:
            raise ValueError(length)
        cells = not_known(_BYTES, length)
        for start, size, field in fields:
            for place in range(max(start, offset), min(start + size, offset + length)):
                cells[place - offset] = (field, size - 1 - (place - start), 0xFF, 0)
        if base == 2 and offset <= 13 < offset + length and self._only(TCP):
            cells[13 - offset] = (TCP_FLAGS, 0, 0xFF, 0)
        if base == 2 and any(cell[0] in ("port", "source_port") for cell in cells):
            if self._only(self.family.icmp):
                cells = not_known(_BYTES, length)
                if not offset:
                    cells[0] = (ICMP_TYPE, 0, 0xFF, 0)
        return cells

    def _only(self, protocol: int) -> bool:
        """Return whether packets of no other protocol come this far."""
        protocols = [one.get("protocol") for one in self.reading.alternatives]
        return bool(protocols) and all(one == ((protocol, protocol),) for one in protocols)

    def meta(self, data: Named) -> None:
        """Follow what the kernel knows of a packet into a register, or the other way round."""
        key = number(data.get("key"))
        name = META_KEYS[key] if key < len(META_KEYS) else str(key)
        if "sreg" in data:
            if name == "mark":
                self.set_value(MARK, data["sreg"], 4)
                return
            if not conditions.is_irrelevant(conditions.META_SET, name):
                self.reading.act_unknown(conditions.because(conditions.META_SET, name))
            return
        if name in _OWNERS:  # without a socket the rule ends
            self.reading.test(SENT, SENT_BY_SOCKET, ((SENT_BY_SOCKET, SENT_BY_SOCKET),))
        self.load(data.get("dreg"), self.of_meta.get(name) or not_known(conditions.because(conditions.META, name), 16))

    def ct(self, data: Named) -> None:
        """Follow what conntrack knows into a register, or the other way round."""
        key = number(data.get("key"))
        name = CT_KEYS[key] if key < len(CT_KEYS) else str(key)
        self.aware = True
        if "sreg" in data:
            if name == "mark":
                self.set_value(CT_MARK, data["sreg"], 4)
            elif not conditions.is_irrelevant(conditions.CT_SET, name):
                self.reading.act_unknown(conditions.because(conditions.CT_SET, name))
            return
        if name != "state":  # there is no connection, and the rule ends
            self.reading.test(UNTRACKED, ALL_BITS, ((0, 0),))
        cells = self.of_ct.get(name)
        if name in _TUPLE and number(data.get("direction")):
            cells = not_known("the addresses and ports with which answers come", 16)
        elif name in _TUPLE and cells is None:  # of the other family
            self.reading.never()
        self.load(data.get("dreg"), cells or not_known(conditions.because(conditions.CT, name), 16))

    def fib(self, data: Named) -> None:
        """Follow a lookup of an address in the routing tables."""
        result, flags = number(data.get("result")), number(data.get("flags"))
        if result == _ADDRESS_TYPE and flags in _ADDRESSES_OF_FIB:
            cells = host(_ADDRESSES_OF_FIB[flags], 4)
        else:
            cells = not_known(conditions.because(conditions.EXPRESSION, "fib"), 16)
        self.load(data.get("dreg"), cells)

    def exthdr(self, data: Named) -> None:
        """Follow an option or extension header, read or written."""
        reason = "an option or extension header of a packet"
        if "dreg" in data:
            self.load(data["dreg"], not_known(reason, 16))
            if not number(data.get("flags")) & 1:
                self.reading.not_known(reason)
        elif number(data.get("op")) != _TCP_OPTION:  # written, or taken away
            self.reading.act_unknown(reason)

    def numgen(self, data: Named) -> None:
        """Follow a number by chance."""
        self.modulus, self.offset = number(data.get("modulus")), number(data.get("offset"))
        self.load(data.get("dreg"), _CHANCE_CELLS)

    def bitwise(self, data: Named) -> None:
        """Follow a mask over registers, and bits turned over."""
        length = number(data.get("len"))
        if length > SIZE:
            raise ValueError(length)
        source = self.holding(data.get("sreg"), length)
        if number(data.get("op")):
            cells = not_known("a value that is shifted, or two values in one", length)
        else:
            mask, flips = nft_sets.value(data.get("mask")), nft_sets.value(data.get("xor"))
            cells = [
                (field, place, bits & mask[index], (old & mask[index]) ^ flips[index])
                for index, (field, place, bits, old) in enumerate(source)
            ]
            # What the mask leaves nothing of need not be known.
            cells = [("", 0, 0, one[3]) if not one[2] and one[0][:1] == "?" else one for one in cells]
        self.load(data.get("dreg"), cells)

    def byteorder(self, data: Named) -> None:
        """Follow the other order of bytes."""
        length, size = number(data.get("len")), number(data.get("size"))
        if length > SIZE or size not in (2, 4, 8):
            raise ValueError(size)
        source = self.holding(data.get("sreg"), length)
        cells: t.List[Cell] = []
        for start in range(0, length, size):
            part = source[start : start + size]
            cells += part[::-1] if host("", 2) != packet("", 2) else part
        self.load(data.get("dreg"), cells)

    def immediate(self, data: Named) -> None:
        """Follow a verdict, or a constant into a register."""
        if number(data.get("dreg")) == _VERDICT_REGISTER:
            action = nft_sets.verdict(data["data"])
            if action is None:
                raise ValueError("verdict")
            if action.kind != CONTINUE:
                self.reading.act(action)
            self.reading.over = True
            return
        self.load(data["dreg"], constant(nft_sets.value(data.get("data"))))

    # conditions

    def cmp(self, data: Named) -> None:
        """Follow the comparison of a register with a value."""
        value = nft_sets.value(data.get("data"))
        operator = number(data.get("op"))
        if operator > _GREATER_OR_EQUAL or not value:
            raise ValueError(operator)
        if operator in (_EQUAL, _NOT_EQUAL):  # most are
            self._compare(data.get("sreg"), value, value, operator == _NOT_EQUAL)
            return
        whole, top = int.from_bytes(value, "big"), (1 << 8 * len(value)) - 1
        first = {_GREATER: whole + 1, _GREATER_OR_EQUAL: whole}.get(operator, 0)
        last = {_LESS: whole - 1, _LESS_OR_EQUAL: whole}.get(operator, top)
        if first > last:
            self.reading.never()
        elif (first, last) != (0, top):
            size = len(value)
            self._compare(data.get("sreg"), first.to_bytes(size, "big"), last.to_bytes(size, "big"), False)

    def range(self, data: Named) -> None:
        """Follow the test whether a register is between two values, or not between them."""
        first, last = nft_sets.value(data.get("from_data")), nft_sets.value(data.get("to_data"))
        self._compare(data.get("sreg"), first, last, number(data.get("op")) == _NOT_EQUAL)

    def _compare(self, register: t.Optional[bytes], first: bytes, last: bytes, inverted: bool) -> None:
        cells = self.holding(register, len(first))
        if cells[0][0] == CHANCE and _is_whole(cells):
            self._chance(cells, first, last, inverted)
            return
        plan = self.plan(cells)
        if first == last and len(plan) == 1 and plan[0].field == "ct state":
            order: t.Any = "big" if plan[0].big else "little"
            wanted = int.from_bytes(first, order) << plan[0].shift ^ plan[0].flip
            self.reading.of_connection(of_states(plan[0].mask, wanted, inverted))
            return
        try:
            found = self.values.conditions(plan, first, last)
            if first != last and len(plan) > 1:
                raise UnknownError("a range over several fields")
            narrow = self.reading.of_connection if _is_tracked(plan) else self.reading.any_of
            narrow([] if found is None else [found], inverted)
        except UnknownError as exc:
            self.reading.not_known(str(exc))

    def _chance(self, cells: t.Sequence[Cell], first: bytes, last: bytes, inverted: bool) -> None:
        """Follow a choice by chance: which numbers pass."""
        numbers = (_number(cells, first, last),)
        top = self.offset + self.modulus - 1 if self.modulus else ALL_BITS
        below = self.offset if self.modulus else 0
        passing = intervals.intersection(numbers, ((below, top),))
        if inverted:
            passing = intervals.difference(((below, top),), passing)
        if not passing:
            self.reading.never()
        elif passing != ((below, top),):
            self.reading.chance = True

    def lookup(self, data: Named) -> None:
        """Follow the lookup of a register in a set or map."""
        name = netlink.name(data.get("set", b""))
        known = self.sets.of(name)
        if name in self.sets.filled and "dreg" not in data:
            self.reading.by_history(known.unknown[0])
            return
        inverted = bool(number(data.get("flags")) & 1)
        for reason in known.unknown:
            self.reading.not_known(reason)
        if name not in self.lengths:
            lengths = (len(one.first) for one in known.elements if one.first is not None)
            self.lengths[name] = max(lengths, default=0)
        length = self.lengths[name]
        cells = self.holding(data.get("sreg"), length)
        target = data.get("dreg")
        key = None
        if target is not None:
            if place_of(target) >= 0:
                self.maps += 1
                key = "@%d" % self.maps
            else:
                key = "@verdict"
        plan = None if cells and cells[0][0] == CHANCE and _is_whole(cells) else self.plan(cells)
        place = (name, tuple(cells))
        shared = key is None and plan is not None and not known.unknown
        if shared and place in self.asked:
            self.reading.any_of(self.asked[place], inverted)
            return
        drawn: t.List[t.Tuple[int, int]] = []
        last: t.Optional[Conditions] = None
        try:
            if known.unknown and (inverted or name in self.sets.filled or not known.elements):
                raise UnknownError(known.unknown[0])
            alternatives, last = self._elements(known, cells, plan, key, drawn)
        except UnknownError as exc:
            self.reading.not_known(str(exc))
            if key is None:
                return
            if name in self.sets.filled or not known.elements:  # nor is what the elements hold
                if key == "@verdict":
                    self.reading.act_unknown(str(exc))
                    self.reading.over = True
                self.load(target, not_known(str(exc), 16))
                return
            # Which element is met is not known: any of them may be.
            alternatives = [{key: one.verdict if key == "@verdict" else one.data} for one in known.elements]
        if last is not None:
            # The element for all others stands behind the rest: packets take the first branch.
            alternatives = [*alternatives, last] if last else [{}]
        if plan is None:
            self._drawn(drawn, last is not None, inverted)
            if key is None:
                alternatives = [{}] if alternatives else []
            inverted = False
        if shared and last is None:
            alternatives = self.asked[place] = joined(alternatives)
        self.reading.any_of(alternatives, inverted)
        if key == "@verdict":
            self._verdicts(alternatives)
        elif key is not None:
            size = max((len(one.data) for one in known.elements), default=0)
            self.load(target, [(key, place, 0xFF, 0) for place in range(size)])

    def _elements(
        self,
        known: nft_sets.Set,
        cells: t.Sequence[Cell],
        plan: t.Optional[t.List[Piece]],
        key: t.Optional[str],
        drawn: t.List[t.Tuple[int, int]],
    ) -> t.Tuple[t.List[Conditions], t.Optional[Conditions]]:
        """Return which packets have an element, and all others if there is an element for those.

        :param plan: the fields that are looked up; None: a number by chance, and what is met of it goes to ``drawn``.
        :param key: for the value of a map.
        """
        found: t.List[Conditions] = []
        last: t.Optional[Conditions] = None
        for one in known.elements:
            made: t.Optional[Conditions] = {}
            if one.first is not None and plan is None:
                drawn.append(_number(cells, one.first, one.last))
            elif one.first is not None and plan is not None:
                made = self.values.conditions(plan, one.first, one.last)
            if made is None or not all(made.values()):
                if one.verdict is not None and one.verdict.chain and _is_tracked(plan):
                    self.reading.act_later(one.verdict)
                continue
            if key is not None:
                made[key] = one.verdict if key == "@verdict" else one.data
            if one.first is None:
                last = made
            else:
                found.append(made)
        return found, last

    def dynset(self, data: Named) -> None:
        """Follow an element into a set, or out of it: the packet goes on, unless the set is full."""
        if "expr" in data or "expressions" in data:  # an expression of the element decides
            self.reading.not_known(_LIMITED)
        elif number(data.get("op")) != _DELETE:
            self.reading.by_history("how full the set %s is" % netlink.name(data.get("set_name", b"")))

    def _drawn(self, drawn: t.Sequence[t.Tuple[int, int]], rest: bool, inverted: bool) -> None:
        """Follow the lookup of a number by chance: whether every number is there."""
        below = self.offset
        whole = ((below, below + self.modulus - 1),) if self.modulus else ((0, ALL_BITS),)
        covered = rest or intervals.intersection(intervals.of(drawn), whole) == whole
        self.reading.chance = True
        self.reading.exhaustive = covered
        if inverted:
            self.reading.exhaustive = False
            if covered:
                self.reading.never()

    def _verdicts(self, alternatives: t.Sequence[Conditions]) -> None:
        if not alternatives:
            return

        def verdict(of: Conditions) -> RuleAction:
            return t.cast(RuleAction, of["@verdict"])

        reading = self.reading
        # What goes on behind the rule stands first, so that the element for all others does not take it.
        passing = [one for one in reading.alternatives if verdict(one).kind == CONTINUE]
        if passing:
            acting = [one for one in reading.alternatives if verdict(one).kind != CONTINUE]
            if not reading.chance:
                plain = [{key: value for key, value in one.items() if key != "@verdict"} for one in passing]
                if all(plain):
                    reading.exclusions += tuple(plain)
                reading.alternatives = acting
        reading.act(verdict)
        reading.over = not passing and not reading.exclusions

    # what is done

    def set_value(self, subject: str, register: bytes, size: int) -> None:
        """Follow a register into a value that is tracked."""
        cells = self.holding(register, size)
        self.reading.act(_set(subject, cells))
        self.forget(subject)

    def masq(self, _data: Named) -> None:
        """Follow a translation to the address of the link."""
        self._end(RuleAction(SOURCE, local=True))

    def nat(self, data: Named) -> None:
        """Follow a translation to a new source or destination."""
        family = number(data.get("family"))
        if family not in (self.family.number, 1):
            return
        if number(data.get("flags")) & _NAT_NETMAP:
            self.reading.act_unknown("a translation of whole networks")
            self.reading.over = True
            return
        kind = DESTINATION if number(data.get("type")) else SOURCE
        size = self.family.size
        places = ((data.get(key), size if "addr" in key else 2) for key in _TRANSLATION)
        cells = [None if register is None else self.holding(register, length) for register, length in places]
        if kind == SOURCE and cells[0] == packet("source", size) and cells[1] in (None, cells[0]):
            self._end(RuleAction(SOURCE, origin=SOURCE))  # our own table keeps sources so
            return

        def action(of: Conditions) -> RuleAction:
            return RuleAction(kind, addresses=_extent(cells[0], cells[1], of), ports=_extent(cells[2], cells[3], of))

        self._translate(cells, action)

    def redir(self, data: Named) -> None:
        """Follow a translation to the node itself as destination."""
        cells = [self.holding(data[key], 2) if key in data else None for key in _TRANSLATION[2:]]
        self._translate(cells, lambda of: RuleAction(DESTINATION, ports=_extent(cells[0], cells[1], of), local=True))

    def _translate(
        self, cells: t.Sequence[t.Optional[t.List[Cell]]], action: t.Callable[[Conditions], RuleAction]
    ) -> None:
        varied = any(cell[0][:1] == "@" for one in cells if one for cell in one)
        try:
            found = [action(one) for one in (self.reading.alternatives if varied else [{}])]
        except UnknownError as exc:
            self.reading.act_unknown(str(exc))
            self.reading.over = True
            return
        self._end(action if varied else found[0])

    def _end(self, acts: t.Any) -> None:
        self.reading.act(acts)
        self.reading.over = True

    def reject(self, _data: Named) -> None:
        """Follow an error to the sender."""
        self._end(RuleAction(DROP))

    def notrack(self, _data: Named) -> None:
        """Keep conntrack from the packet."""
        self.aware = True
        xt_rules.untrack(self.reading)

    def objref(self, data: Named) -> None:
        """Follow a named object."""
        if "imm_type" in data:
            kind = number(data["imm_type"])
        else:
            found = self.sets.of(netlink.name(data.get("set_name", b"")))
            kind = found.objects
        name = nf_tables.OBJECTS[kind] if kind < len(nf_tables.OBJECTS) else str(kind)
        if not conditions.is_irrelevant(conditions.OBJECT, name):
            reason = conditions.because(conditions.OBJECT, name)
            if name not in _ASKING:
                self.reading.act_unknown(reason)
            self.reading.not_known(reason)

    def match(self, data: Named) -> None:
        """Follow a match of xtables."""
        name = netlink.name(data.get("name", b""))
        if xt_rules.match(self.reading, name, number(data.get("rev")), data.get("info", b""), self.known):
            self.aware = True

    def target(self, data: Named) -> None:
        """Follow an extension of xtables that acts."""
        name = netlink.name(data.get("name", b""))
        if xt_rules.target(self.reading, name, number(data.get("rev")), data.get("info", b""), self.known):
            self.aware = True


def _is_tracked(plan: t.Optional[t.Sequence[Piece]]) -> bool:
    """Return whether conntrack knows one of the fields."""
    return any(piece.field[:3] == "ct " for piece in plan or ())


def _number(cells: t.Sequence[Cell], first: bytes, last: bytes) -> t.Tuple[int, int]:
    """Return a range of numbers by chance. Where nft compares more than one, it has their bytes turned over before."""
    order: t.Any = "little" if cells[0][1] == 0 else "big"
    if order == "little" and first != last:
        raise ValueError("a range")
    return int.from_bytes(first, order), int.from_bytes(last, order)


def _is_whole(cells: t.Sequence[Cell]) -> bool:
    """Return whether registers hold a number by chance as it was drawn, and nothing else."""
    return all(field == CHANCE and bits == 0xFF and not flips for field, _place, bits, flips in cells)


def _constant(cells: t.Sequence[Cell], of: Conditions) -> bytes:
    """Return what registers hold for packets of some conditions.

    :raises UnknownError: it is not known, or part of the packet.
    """
    found = bytearray()
    for field, place, bits, flips in cells:
        if not field:
            found.append(flips)
        elif field[0] == "@":
            value = of.get(field)
            if not isinstance(value, bytes) or place >= len(value):
                raise UnknownError("a value that a map does not hold")
            found.append(value[place] & bits ^ flips)
        else:
            raise UnknownError(field[1:] if field[0] == "?" else "a translation to a part of the packet")
    return bytes(found)


def _extent(
    first: t.Optional[t.Sequence[Cell]], last: t.Optional[t.Sequence[Cell]], of: Conditions
) -> t.Optional[Spans]:
    """Return the addresses or ports of a translation; None if it changes none."""
    if first is None:
        return None
    low = int.from_bytes(_constant(first, of), "big")
    high = low if last is None else int.from_bytes(_constant(last, of), "big")
    return ((min(low, high), max(low, high)),)


def _set(subject: str, cells: t.Sequence[Cell]) -> RuleAction:
    """Return what a value becomes that is set from registers."""
    keep = flip = 0
    origin: t.Optional[str] = None
    size = len(cells)
    order = [one[1] for one in host("", size)]
    for (field, place, bits, flips), here in zip(cells, order):
        flip |= flips << 8 * here
        if not field:
            continue
        if field not in (MARK, CT_MARK) or place != here or origin not in (None, field):
            return RuleAction(SET, subject=subject)
        origin = field
        keep |= bits << 8 * here
    if origin is None:
        return RuleAction(SET, subject=subject, origin=subject, keep=0, flip=flip)
    return RuleAction(SET, subject=subject, origin=origin, keep=keep, flip=flip)


_HANDLERS: t.Mapping[str, t.Callable[[_Reader, Named], None]] = {
    "payload": _Reader.payload,
    "meta": _Reader.meta,
    "ct": _Reader.ct,
    "fib": _Reader.fib,
    "exthdr": _Reader.exthdr,
    "numgen": _Reader.numgen,
    "bitwise": _Reader.bitwise,
    "byteorder": _Reader.byteorder,
    "immediate": _Reader.immediate,
    "cmp": _Reader.cmp,
    "range": _Reader.range,
    "lookup": _Reader.lookup,
    "dynset": _Reader.dynset,
    "masq": _Reader.masq,
    "nat": _Reader.nat,
    "redir": _Reader.redir,
    "reject": _Reader.reject,
    "notrack": _Reader.notrack,
    "objref": _Reader.objref,
    "match": _Reader.match,
    "target": _Reader.target,
}
#: what is not understood and only loads a register, or only matches
_LOADING = frozenset(("rt", "hash", "socket"))
_ASKING = frozenset(("limit", "quota", "connlimit"))
