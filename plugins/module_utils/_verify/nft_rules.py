# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of nf_tables, by nft or iptables-nft, as values.

A rule is a list of expressions that load parts of a packet into registers, compare them, and act. Attribute numbers:
linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import functools
import struct
import typing as t

from .._system import intervals, netlink
from .._system.families import BY_NUMBER, FAMILIES, IPV4, IPV6, TCP
from .._system.intervals import Spans
from .._system.netlink import number
from .._twin import nf_tables
from .._twin.values import IPTABLES_NFT, NFTABLES
from . import conditions, nft_sets, xt_rules
from .reading import Conditions, Reading, UnknownError, finished, joined, unreadable
from .referenced_objects import Known
from .registers import (
    CHANCE,
    NOTHING,
    PART_OF_CHANCE,
    SIZE,
    ZERO,
    Cell,
    Piece,
    Values,
    constant,
    host,
    not_known,
    packet,
    pieces,
)
from .rules import (
    ALL_BITS,
    BY_NOTRACK,
    BY_TEMPLATE,
    CONTINUE,
    CT_MARK,
    CT_ZONE,
    DECIDED,
    DESTINATION,
    DROP,
    MARK,
    SET,
    SOURCE,
    UNTRACKED,
    Action,
    BaseChain,
    Rule,
    RuleTable,
)

#: families of tables that see packets of IPv4 and of IPv6
_INET = 1
_FAMILIES = {_INET: FAMILIES, **{number: (family,) for number, family in BY_NUMBER.items()}}
_BELOW = {5: "netdev", 7: "bridge"}
_ETHERTYPE = {IPV4: b"\x08\x00", IPV6: b"\x86\xdd"}
_TABLES_OF_IPTABLES = frozenset(("nat", "filter", "mangle", "raw", "security"))

_CHAIN_POLICY = 5
#: offset in the header of IP, length, field
_NETWORK = {
    IPV4: ((12, 4, "source"), (16, 4, "destination"), (9, 1, "protocol")),
    IPV6: ((8, 16, "source"), (24, 16, "destination"), (6, 1, "protocol")),
}
_TRANSPORT = ((0, 2, "source_port"), (2, 2, "port"))
_BASES = ("ll_header", "network_header", "transport_header", "inner_header", "tun_header")
_BYTES = "bytes of a packet"
_TCP_FLAGS = "?flags of TCP"

_META = (
    "len protocol priority mark iif oif iifname oifname iiftype oiftype skuid skgid nftrace rtclassid secmark nfproto "
    "l4proto bri_iifname bri_oifname pkttype cpu iifgroup oifgroup cgroup prandom secpath iifkind oifkind bri_iifpvid "
    "bri_iifvproto time_ns time_day time_hour sdif sdifname bri_broute bri_iifhwaddr"
).split()
_CT = (
    "state direction status mark secmark expiration helper l3protocol src dst protocol proto_src proto_dst labels pkts "
    "bytes avgpkt zone eventmask src_ip dst_ip src_ip6 dst_ip6 id"
).split()
_OBJECTS = ("unspec counter quota ct_helper limit connlimit tunnel ct_timeout secmark ct_expect synproxy").split()
_EXTHDRS = ("ipv6", "tcpopt", "ipv4", "sctp", "dccp")
_KINDS = {"iifkind": "incoming", "oifkind": "outgoing"}
_SADDR, _DADDR, _FIB_IIF, _FIB_OIF, _FIB_PRESENT = 1, 2, 8, 16, 32
_ADDRESS_TYPE = 3

_EQUAL, _NOT_EQUAL, _LESS, _LESS_OR_EQUAL, _GREATER, _GREATER_OR_EQUAL = range(6)
_NAT_NETMAP = 0x40
#: NFT_DYNSET_OP_DELETE
_DELETE = 2
_LIMITED = "packets seen before (an expression at the elements of a set)"
_TRACKED_AGAIN = "a zone for packets that a rule has made untracked"
_VERDICT_REGISTER = 0
_LENGTH = struct.Struct("=H")
_CHANCE_CELLS: t.List[Cell] = [(CHANCE, place, 0xFF, 0) for place in range(4)]


def read(table: nf_tables.Table, known: Known) -> t.Optional[RuleTable]:
    """Return a table as it treats packets of one family; None if it does not see them."""
    if nf_tables.is_dormant(table):
        return None
    if table.family in _BELOW:
        if not table.rules:
            return None
        unknown = (conditions.because(conditions.FAMILY, _BELOW[table.family]),)
        return RuleTable(NFTABLES, table.title, {}, {}, unknown)
    if known.family not in _FAMILIES.get(table.family, ()):
        return None
    return _Table(table, known).read()


class _Table:
    """One table while it is read."""

    def __init__(self, table: nf_tables.Table, known: Known) -> None:
        self.table = table
        self.known = known
        self.sets = nft_sets.Sets(table)
        self.values = Values(known)
        self.aware = False
        self.parsed: t.Dict[bytes, t.Tuple[str, t.Dict[int, bytes]]] = {}
        #: of expressions by what is in front of the value: name, attributes, which of them is the value
        self.heads: t.Dict[bytes, t.Tuple[str, t.Dict[int, bytes], int]] = {}
        self.plans: t.Dict[t.Tuple[Cell, ...], t.List[Piece]] = {}
        self.loads: t.Dict[t.Tuple[int, int], t.List[Cell]] = {}
        #: bytes of the keys of sets
        self.lengths: t.Dict[str, int] = {}
        #: results of looking cells up in a set: many rules share one large set
        self.asked: t.Dict[t.Tuple[str, t.Tuple[Cell, ...]], t.List[Conditions]] = {}
        self.objects: t.Dict[bytes, int] = {}
        for body in table.objects:
            found = netlink.attributes(body)
            self.objects[found.get(2, b"")] = number(found.get(3))
        self.after_nat = False

    def read(self) -> RuleTable:
        """Return it."""
        unknown: t.List[str] = []
        base: t.Dict[str, BaseChain] = {}
        chains: t.Dict[str, t.List[Rule]] = {}
        for body in self.table.chains:
            known = netlink.attributes(body)
            name = netlink.name(known.get(nf_tables.CHAIN_NAME, b""))
            chains[name] = []
            if nf_tables.CHAIN_HOOK not in known:
                continue
            hook = netlink.attributes(known[nf_tables.CHAIN_HOOK])
            place = number(hook.get(1))
            if place > 4:
                unknown.append(conditions.because(conditions.HOOK, "ingress" if place == 5 else str(place)))
                continue
            (priority,) = struct.unpack("!i", hook.get(2, bytes(4)))
            kind = netlink.name(known.get(nf_tables.CHAIN_TYPE, b"filter"))
            base[name] = BaseChain(kind, place, priority, number(known.get(_CHAIN_POLICY, b"\1")) == 0)
            if conditions.treatment("chain type", kind).kind == conditions.UNKNOWN:
                unknown.append(conditions.because("chain type", kind))
        self.after_nat = any(one.hook in (1, 4) and one.kind != "nat" and one.priority >= 100 for one in base.values())
        rules = [netlink.attributes(body) for body in self.table.rules]
        self.sets.filled = nf_tables.filled_sets(self.table)
        counts: t.Dict[str, int] = {}
        extra: t.Dict[str, t.Tuple[Rule, ...]] = {}
        for known in rules:
            chain = netlink.name(known.get(nf_tables.RULE_CHAIN, b""))
            place = counts[chain] = counts.get(chain, 0) + 1
            try:
                found, more = self._rule(known.get(nf_tables.RULE_EXPRESSIONS, b""), chain, place)
            except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error):
                found, more = [unreadable(place)], {}
            chains.setdefault(chain, []).extend(found)
            extra.update(more)
        extra.update((name, tuple(members)) for name, members in chains.items())
        backend = NFTABLES
        if self.table.family != 1 and self.table.name in _TABLES_OF_IPTABLES:
            backend = IPTABLES_NFT
        return finished(backend, self.table.title, base, extra, unknown, self.aware)

    def _rule(
        self, expressions: bytes, chain: str, place: int
    ) -> t.Tuple[t.List[Rule], t.Dict[str, t.Tuple[Rule, ...]]]:
        reader = _Reader(self)
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
            reader.take(*(parsed.get(element) or self._parsed(element)))
            if reader.reading.over:
                break
        return reader.reading.rules(chain, place)

    def _parsed(self, element: bytes) -> t.Tuple[str, t.Dict[int, bytes]]:
        """Return the name and the attributes of an expression."""
        known = self.heads.get(element[:_HEAD])
        if known is not None:
            name, others, varied = known
            return name, {**others, varied: element[_HEAD:]}
        parts = netlink.attributes(element)
        name, inner = netlink.name(parts.get(1, b"")), parts.get(2, b"")
        data = netlink.attributes(inner)
        if name not in _VARIED:
            self.parsed[element] = (name, data)
        elif len(data) > 1 and name != "match":
            last, begin, _end = list(netlink.spans(inner, 0, len(inner)))[-1]
            if element[_HEAD:] == inner[begin:] == data[last]:
                self.heads[element[:_HEAD]] = (name, data, last)
        return name, data


#: expressions that are hardly ever the same
_VARIED = frozenset(("cmp", "immediate", "match"))
#: bytes of a comparison, and of a constant for a register, in front of the value: many have the same
_HEAD = 32


@functools.lru_cache(maxsize=64)  # called for each expression
def _place(register: t.Optional[bytes]) -> int:
    """Return where a register begins: those from 8 on have four bytes, those before sixteen."""
    which = number(register)
    return (which - 8) * 4 if which >= 8 else (which - 1) * 16


class _Reader:
    """Follows the expressions of one rule."""

    def __init__(self, table: _Table) -> None:
        self.table = table
        self.values = table.values
        self.family = table.known.family
        self.reading = Reading(self.family)
        self.held: t.List[Cell] = [NOTHING] * SIZE
        self.modulus = 0
        self.offset = 0
        self.maps = 0

    def take(self, name: str, data: t.Dict[int, bytes]) -> None:
        """Follow the next expression."""
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, data)
            return
        found = conditions.treatment(conditions.EXPRESSION, name)
        if found.kind == conditions.IRRELEVANT:
            return
        if found.kind == conditions.DIVIDED:
            raise ValueError(name)
        if name in _ACTING:
            self.reading.act_unknown(found.text)
        elif name in _LOADING:
            self.load(data.get(_LOADING[name]), not_known(found.text, 16))
        elif name in _ASKING:
            self.reading.not_known(found.text)
        else:  # an expression that is not known may do anything
            self.reading.act_unknown(found.text)
            self.reading.not_known(found.text)
            self.held = [("?" + found.text, 0, 0xFF, 0)] * SIZE

    # registers

    def load(self, register: t.Optional[bytes], cells: t.Sequence[Cell]) -> None:
        """Put something into registers."""
        start = _place(register)
        if start >= 0:
            padded = list(cells) + [ZERO] * (-len(cells) % 4)
            self.held[start : start + len(padded)] = padded
            del self.held[SIZE:]

    def holding(self, register: t.Optional[bytes], length: int) -> t.List[Cell]:
        """Return what registers hold."""
        start = _place(register)
        found = self.held[start : start + length] if start >= 0 else []
        return found + [NOTHING] * (length - len(found))

    def plan(self, cells: t.Sequence[Cell]) -> t.List[Piece]:
        """Return the fields that registers hold."""
        key = tuple(cells)
        found = self.table.plans.get(key)
        if found is None:
            found = self.table.plans[key] = pieces(cells)
        return found

    def forget(self, subject: str) -> None:
        """Forget what registers hold of a tracked value that is changed."""
        self.held = [("?a value that has changed since", 0, 0xFF, 0) if one[0] == subject else one for one in self.held]

    # what is loaded

    def payload(self, data: t.Dict[int, bytes]) -> None:
        """Follow part of a header into a register, or back into the packet."""
        base, offset, length = (number(data.get(kind)) for kind in (2, 3, 4))
        if 5 in data:
            self.write(base, offset, length)
            return
        if base == 1:  # most rules load addresses
            key = (offset, length)
            known = self.table.loads.get(key)
            if known is None:
                known = self.table.loads[key] = self._header(base, offset, length)
            self.load(data.get(1), known)
            return
        self.load(data.get(1), self._header(base, offset, length))

    def _header(self, base: int, offset: int, length: int) -> t.List[Cell]:
        """Return part of a header."""
        fields = _NETWORK[self.family] if base == 1 else _TRANSPORT if base == 2 else ()
        if length > SIZE:
            raise ValueError(length)
        name = _BASES[base] if base < len(_BASES) else str(base)
        found = conditions.treatment(conditions.PAYLOAD, name)
        reason = found.text if found.kind == conditions.UNKNOWN else self._bytes(base, offset)
        cells = not_known(reason, length)
        for start, size, field in fields:
            for place in range(max(start, offset), min(start + size, offset + length)):
                cells[place - offset] = (field, size - 1 - (place - start), 0xFF, 0)
        if base == 2 and offset <= 13 < offset + length and self._only(TCP):
            cells[13 - offset] = (_TCP_FLAGS, 0, 0xFF, 0)
        if base == 1 and self.family == IPV4 and offset == 0 and length:
            cells[0] = ("", 0, 0, 0x45)  # tested packets have no options
        if base == 2 and any(cell[0] in ("port", "source_port") for cell in cells):
            if self._only(self.family.icmp):
                text = "the type of an ICMP message" if offset < 2 else _BYTES
                cells = not_known(text, length)
        return cells

    def _only(self, protocol: int) -> bool:
        """Return whether packets of no other protocol come this far."""
        protocols = [one.get("protocol") for one in self.reading.alternatives]
        return bool(protocols) and all(one == ((protocol, protocol),) for one in protocols)

    def _bytes(self, base: int, offset: int) -> str:
        """Name bytes of a packet that are not read."""
        if base == 1:
            names = {IPV4: {1: "TOS", 8: "TTL"}, IPV6: {7: "hop limit", 0: "TOS", 1: "TOS"}}[self.family]
            if offset in names:
                return "the %s of a packet" % names[offset]
            if offset == 2 + 2 * (self.family == IPV6):
                return "the length of a packet"
            if self.family == IPV4 and offset in (6, 7):
                return "a fragment"
        return _BYTES

    def write(self, base: int, offset: int, length: int) -> None:
        """Follow a register into the packet."""
        touched = set()
        for place in range(offset, offset + length):
            touched.add(self._field(base, place))
        for field in sorted(touched):
            found = conditions.treatment(conditions.FIELD, field)
            if found.kind == conditions.UNKNOWN:
                self.reading.act_unknown(found.text)
            elif field == "tos" and self.table.known.tos_routed:
                self.reading.act_unknown("a rule that writes the TOS, which a routing rule matches")

    def _field(self, base: int, place: int) -> str:
        if base == 2:
            return "port" if place < 4 else "other"
        if base != 1:
            return "other"
        four = self.family == IPV4
        for start, size, field in _NETWORK[self.family]:
            if start <= place < start + size:
                return "protocol" if field == "protocol" else "address"
        if place == (8 if four else 7):
            return "ttl"
        if place == 1 or (place == 0 and not four):
            return "tos"
        if four and place in (0, 10, 11):
            return "checksum" if place else "tos"
        return "id" if four and place in (4, 5) else "other"

    def meta(self, data: t.Dict[int, bytes]) -> None:
        """Follow what the kernel knows of a packet into a register, or the other way round."""
        key = number(data.get(2))
        name = _META[key] if key < len(_META) else str(key)
        if 3 in data:
            if name == "mark":
                self.set_value(MARK, data[3], 4)
                return
            found = conditions.treatment(conditions.META_SET, name)
            if found.kind == conditions.UNKNOWN:
                self.reading.act_unknown(found.text)
            return
        self.load(data.get(1), self._meta(name))

    def _meta(self, name: str) -> t.List[Cell]:
        if name == "mark":
            return host(MARK, 4)
        if name == "l4proto":
            return packet("protocol", 1)
        if name in ("iifname", "oifname"):
            return packet(name, 16)
        if name == "nfproto":
            return constant(bytes((self.family.number,)))
        if name == "protocol":
            return constant(_ETHERTYPE[self.family])
        if name in ("iif", "oif", "iifgroup", "oifgroup"):
            return host(name, 4)
        if name in _KINDS:
            return packet(name, 16)
        if name == "prandom":
            self.modulus = 0
            return _CHANCE_CELLS
        if name in ("sdif", "sdifname"):
            if any(one.kind == "vrf" for one in self.table.known.links.values()):
                return not_known("a link that is a VRF", 16)
            return constant(bytes(4 if name == "sdif" else 16))
        return not_known(conditions.because(conditions.META, name), 16)

    def ct(self, data: t.Dict[int, bytes]) -> None:
        """Follow what conntrack knows into a register, or the other way round."""
        key = number(data.get(2))
        name = _CT[key] if key < len(_CT) else str(key)
        self.table.aware = True
        if 4 in data:
            if name == "mark":
                self.set_value(CT_MARK, data[4], 4)
            elif name == "zone":
                self.set_zone(data[4])
            else:
                found = conditions.treatment(conditions.CT_SET, name)
                if found.kind == conditions.UNKNOWN:
                    self.reading.act_unknown(found.text)
            return
        if name != "state":  # there is no connection, and the rule ends
            self.reading.test(UNTRACKED, ALL_BITS, ((0, 0),))
        direction = number(data[3]) if 3 in data else 0
        self.load(data.get(1), self._ct(name, direction))

    def _ct(self, name: str, direction: int) -> t.List[Cell]:
        size = self.family.size
        if name in ("state", "status"):
            if name == "status" and self.table.after_nat:
                return not_known("the status of a connection", 4)
            return host("ct " + name, 4)
        if name == "mark":
            return host(CT_MARK, 4)
        if name == "zone":
            return host(CT_ZONE, 2)
        if name == "direction":
            return constant(b"\0")
        if name == "l3protocol":
            return constant(bytes((self.family.number,)))
        if name == "protocol":
            return packet("protocol", 1)
        if name in ("src", "dst", "src_ip", "dst_ip", "src_ip6", "dst_ip6", "proto_src", "proto_dst"):
            if direction:
                return not_known("the addresses and ports with which answers come", 16)
            if name in ("proto_src", "proto_dst"):
                return packet("source_port" if name == "proto_src" else "original_port", 2)
            if name[4:] in ("ip", "ip6") and (name[4:] == "ip6") == (self.family == IPV4):
                self.reading.never()
            return packet("source" if name.startswith("src") else "original_destination", size)
        return not_known(conditions.because(conditions.CT, name), 16)

    def fib(self, data: t.Dict[int, bytes]) -> None:
        """Follow a lookup of an address in the routing tables."""
        result, flags = number(data.get(2)), number(data.get(3))
        if result != _ADDRESS_TYPE:
            name = {1: "oif", 2: "oifname"}.get(result, str(result))
            cells = not_known(conditions.because(conditions.FIB, name), 16)
        elif flags & _FIB_PRESENT:
            cells = not_known(conditions.because(conditions.FIB_FLAG, "present"), 4)
        elif flags & ~(_SADDR | _DADDR) or flags & (_SADDR | _DADDR) not in (_SADDR, _DADDR):
            name = "iif" if flags & (_FIB_IIF | _FIB_OIF) else "mark"
            cells = not_known(conditions.because(conditions.FIB_FLAG, name), 4)
        else:
            cells = host("source type" if flags & _SADDR else "destination type", 4)
        self.load(data.get(1), cells)

    def rt(self, data: t.Dict[int, bytes]) -> None:
        """Follow a property of the route."""
        names = ("classid", "nexthop4", "nexthop6", "tcpmss", "xfrm")
        key = number(data.get(2))
        name = names[key] if key < len(names) else str(key)
        self.load(data.get(1), not_known(conditions.because(conditions.RT, name), 16))

    def exthdr(self, data: t.Dict[int, bytes]) -> None:
        """Follow an option or extension header, read or written."""
        kind = number(data.get(6))
        name = _EXTHDRS[kind] if kind < len(_EXTHDRS) else str(kind)
        if 1 in data:
            text = conditions.because(conditions.EXTHDR, name).partition(";")[0]
            self.load(data[1], not_known(text, 16))
            self.reading.not_known(text) if not number(data.get(5)) & 1 else None
        elif name != "tcpopt":  # written, or taken away
            self.reading.act_unknown(conditions.because(conditions.EXTHDR, name))

    def numgen(self, data: t.Dict[int, bytes]) -> None:
        """Follow a number by chance."""
        self.modulus, self.offset = number(data.get(2)), number(data.get(4))
        self.load(data.get(1), _CHANCE_CELLS)

    def hash(self, data: t.Dict[int, bytes]) -> None:
        """Follow a number from a hash."""
        self.modulus, self.offset = number(data.get(4)), number(data.get(6))
        self.load(data.get(2), _CHANCE_CELLS)

    def bitwise(self, data: t.Dict[int, bytes]) -> None:
        """Follow a mask over registers, and bits turned over."""
        length = number(data.get(3))
        if length > SIZE:
            raise ValueError(length)
        source = self.holding(data.get(1), length)
        if number(data.get(6)):
            cells = not_known("a value that is shifted, or two values in one", length)
            if number(data.get(6)) in (1, 2) and all(one[:3] == ("", 0, 0) for one in source):
                pass  # constants are never shifted by nft
        else:
            mask, flips = nft_sets.value(data.get(4)), nft_sets.value(data.get(5))
            cells = [
                (field, place, bits & mask[index], (old & mask[index]) ^ flips[index])
                for index, (field, place, bits, old) in enumerate(source)
            ]
            # What the mask leaves nothing of need not be known.
            cells = [("", 0, 0, one[3]) if not one[2] and one[0][:1] == "?" else _flags(one) for one in cells]
        self.load(data.get(2), cells)

    def byteorder(self, data: t.Dict[int, bytes]) -> None:
        """Follow the other order of bytes."""
        length, size = number(data.get(4)), number(data.get(5))
        if length > SIZE or size not in (2, 4, 8):
            raise ValueError(size)
        source = self.holding(data.get(1), length)
        cells: t.List[Cell] = []
        for start in range(0, length, size):
            part = source[start : start + size]
            cells += part[::-1] if host("", 2) != packet("", 2) else part
        self.load(data.get(2), cells)

    def immediate(self, data: t.Dict[int, bytes]) -> None:
        """Follow a verdict, or a constant into a register."""
        if number(data.get(1)) == _VERDICT_REGISTER:
            action = nft_sets.verdict(data[2])
            if action is None:
                raise ValueError("verdict")
            if action.kind != CONTINUE:
                self.reading.act(action)
            self.reading.over = True
            return
        self.load(data[1], constant(nft_sets.value(data.get(2))))

    # conditions

    def cmp(self, data: t.Dict[int, bytes]) -> None:
        """Follow the comparison of a register with a value."""
        value = nft_sets.value(data.get(3))
        operator = number(data.get(2))
        if operator > _GREATER_OR_EQUAL:
            raise ValueError(operator)
        length = len(value)
        if operator in (_EQUAL, _NOT_EQUAL):
            self._compare(data.get(1), value, value, operator == _NOT_EQUAL)
            return
        whole = int.from_bytes(value, "big")
        highest = (1 << 8 * length) - 1
        if operator in (_LESS, _GREATER_OR_EQUAL):
            if not whole:
                if operator == _LESS:
                    self.reading.never()
                return
            whole -= 1
        last = whole.to_bytes(length, "big")
        inverted = operator in (_GREATER, _GREATER_OR_EQUAL)
        if whole == highest:
            if inverted:
                self.reading.never()
            return
        self._compare(data.get(1), bytes(length), last, inverted)

    def range(self, data: t.Dict[int, bytes]) -> None:
        """Follow the test whether a register is between two values, or not between them."""
        first, last = nft_sets.value(data.get(3)), nft_sets.value(data.get(4))
        self._compare(data.get(1), first, last, number(data.get(2)) == _NOT_EQUAL)

    def _compare(self, register: t.Optional[bytes], first: bytes, last: bytes, inverted: bool) -> None:
        cells = self.holding(register, len(first))
        name = cells[0][0]
        if name == CHANCE:
            if _is_whole(cells):
                self._chance(first, last, inverted)
            else:
                self.reading.not_known(PART_OF_CHANCE)
            return
        if name[:1] == "@":
            self._compare_map(cells, first, last, inverted)
            return
        try:
            if name in _KINDS:
                self.reading.link(_KINDS[name], self.values.of_kind(netlink.name(first)), inverted)
                return
            found = self.values.conditions(self.plan(cells), first, last)
            if first != last and len(self.plan(cells)) > 1:
                raise UnknownError("a range over several fields")
            self.reading.any_of([] if found is None else [found], inverted)
        except UnknownError as exc:
            self.reading.not_known(str(exc))

    def _chance(self, first: bytes, last: bytes, inverted: bool) -> None:
        """Follow a choice by chance: which numbers pass."""
        numbers = self._numbers(first, last)
        top = self.offset + self.modulus - 1 if self.modulus else ALL_BITS
        below = self.offset if self.modulus else 0
        passing = intervals.intersection(numbers, ((below, top),))
        if inverted:
            passing = intervals.difference(((below, top),), passing)
        if not passing:
            self.reading.never()
        elif passing != ((below, top),):
            self.reading.chance = True

    def _numbers(self, first: bytes, last: bytes) -> Spans:
        # The number is in the order of the machine; where ranges are compared it was turned over before.
        order: t.Any = "big"
        cells = [one for one in self.held if one[0] == CHANCE][:4]
        if cells and cells[0][1] == host(CHANCE, 4)[0][1]:
            order = "little" if host(CHANCE, 4) != packet(CHANCE, 4) else "big"
        if order == "little" and first != last:
            raise ValueError("a range")
        return ((int.from_bytes(first, order), int.from_bytes(last, order)),)

    def _compare_map(self, cells: t.Sequence[Cell], first: bytes, last: bytes, inverted: bool) -> None:
        """Follow the comparison of a map's value: known for each of its elements."""
        found = []
        for one in self.reading.alternatives:
            try:
                held = _constant(cells, one)
            except UnknownError as exc:
                self.reading.not_known(str(exc))
                return
            if (first <= held <= last) != inverted:
                found.append(one)
        self.reading.alternatives = found

    def lookup(self, data: t.Dict[int, bytes]) -> None:
        """Follow the lookup of a register in a set or map."""
        name = netlink.name(data.get(1, b""))
        known = self.table.sets.of(name)
        if name in self.table.sets.filled and 3 not in data:
            self.reading.by_history(known.unknown[0])
            return
        inverted = bool(number(data.get(5)) & 1)
        for reason in known.unknown:
            self.reading.not_known(reason)
        if name not in self.table.lengths:
            lengths = (len(one.first) for one in known.elements if one.first is not None)
            self.table.lengths[name] = max(lengths, default=0)
        length = self.table.lengths[name]
        cells = self.holding(data.get(2), length)
        target = data.get(3)
        key = None
        if target is not None:
            if _place(target) >= 0:
                self.maps += 1
                key = "@%d" % self.maps
            else:
                key = "@verdict"
        chance = bool(cells) and cells[0][0] == CHANCE and _is_whole(cells)
        alternatives: t.List[Conditions] = []
        last: t.Optional[Conditions] = None
        plan = None if chance else self.plan(cells)
        place = (name, tuple(cells))
        shared = key is None and plan is not None and not known.unknown
        if shared and place in self.table.asked:
            self.reading.any_of(self.table.asked[place], inverted)
            return
        drawn: t.List[t.Tuple[int, int]] = []
        try:
            if known.unknown and (inverted or name in self.table.sets.filled or not known.elements):
                raise UnknownError(known.unknown[0])
            for one in known.elements:
                if one.first is None:
                    made: t.Optional[Conditions] = {}
                elif plan is None:
                    made = {}
                    drawn += self._numbers(one.first, one.last)
                elif len(plan) == 1 and plan[0].field in _KINDS:
                    made = self._kind(plan[0].field, one.first)
                else:
                    made = self.values.conditions(plan, one.first, one.last)
                if made is None:
                    continue
                if key == "@verdict":
                    made[key] = one.verdict
                elif key is not None:
                    made[key] = one.data
                if one.first is None:
                    last = made
                else:
                    alternatives.append(made)
        except UnknownError as exc:
            self.reading.not_known(str(exc))
            if key is None:
                return
            # Which element is met is not known: any of them may be.
            alternatives = [{key: one.verdict if key == "@verdict" else one.data} for one in known.elements]
            last = None
        if last is not None:
            alternatives = self._with_rest(alternatives, last)
        if chance:
            self._drawn(drawn, last is not None, inverted)
            if key is None:
                alternatives = [{}] if alternatives else []
            inverted = False
        if shared and last is None:
            alternatives = self.table.asked[place] = joined(alternatives)
        self.reading.any_of(alternatives, inverted)
        if key == "@verdict":
            self._verdicts(alternatives)
        elif key is not None:
            size = max((len(one.data) for one in known.elements), default=0)
            self.load(target, [(key, place, 0xFF, 0) for place in range(size)])

    def dynset(self, data: t.Dict[int, bytes]) -> None:
        """Follow an element into a set, or out of it: the packet goes on, unless the set is full."""
        if 7 in data or 10 in data:  # an expression of the element decides
            self.reading.not_known(_LIMITED)
        elif number(data.get(3)) != _DELETE:
            self.reading.by_history("how full the set %s is" % netlink.name(data.get(1, b"")))

    def _kind(self, field: str, value: bytes) -> Conditions:
        reading = Reading(self.family)
        reading.link(_KINDS[field], self.values.of_kind(netlink.name(value)))
        return reading.alternatives[0]

    def _with_rest(self, alternatives: t.List[Conditions], last: Conditions) -> t.List[Conditions]:
        """Put the element for all others behind the rest: packets take the first branch."""
        return [*alternatives, last] if last else [{}]

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

        def verdict(of: Conditions) -> Action:
            return t.cast(Action, of["@verdict"])

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
        self.reading.act(self._set_action(subject, cells))
        self.forget(subject)

    def set_zone(self, register: bytes) -> None:
        """Follow a register into the zone, unless a rule has chosen one before (nft_ct_set_zone_eval() in nft_ct.c)."""
        before = self.reading.alternatives
        self.reading.test(DECIDED, ALL_BITS, ((BY_NOTRACK, BY_NOTRACK),))
        self.reading.act_unknown(_TRACKED_AGAIN)
        self.reading.alternatives = before
        self.reading.decide(BY_TEMPLATE, self._set_action(CT_ZONE, self.holding(register, 2)))
        self.forget(CT_ZONE)

    def _set_action(self, subject: str, cells: t.List[Cell]) -> t.Any:
        if any(one[0][:1] == "@" for one in cells):

            def by_map(of: Conditions) -> Action:
                try:
                    return _set(subject, constant(_constant(cells, of)))
                except UnknownError:
                    return Action(SET, subject=subject)

            return by_map
        return _set(subject, cells)

    def masq(self, _data: t.Dict[int, bytes]) -> None:
        """Follow a translation to the address of the link."""
        self._end(Action(SOURCE, local=True))

    def nat(self, data: t.Dict[int, bytes]) -> None:
        """Follow a translation to a new source or destination."""
        family = number(data.get(2))
        if family not in (self.family.number, 1):
            return
        kind = DESTINATION if number(data.get(1)) else SOURCE
        size = self.family.size
        places = [data.get(one) for one in (3, 4, 5, 6)]
        cells = [
            None if one is None else self.holding(one, size if which < 2 else 2) for which, one in enumerate(places)
        ]
        netmap = bool(number(data.get(7)) & _NAT_NETMAP)
        reading = self.reading

        def action(of: Conditions) -> Action:
            return Action(
                kind, addresses=_extent(cells[0], cells[1], of, netmap), ports=_extent(cells[2], cells[3], of)
            )

        varied = any(cell[0][:1] == "@" for one in cells if one for cell in one)
        try:
            for one in reading.alternatives if varied else [{}]:
                action(one)
        except UnknownError as exc:
            if kind == SOURCE:  # which address it is, the kernel reports
                own = cells[0] == packet("source", size) and cells[1] in (None, cells[0])
                self._end(Action(SOURCE, origin=SOURCE if own else None))
                return
            reading.act_unknown(str(exc))
            reading.over = True
            return
        self._end(action if varied else action({}))

    def redir(self, data: t.Dict[int, bytes]) -> None:
        """Follow a translation to the node itself as destination."""
        cells = [self.holding(data[one], 2) if one in data else None for one in (1, 2)]

        def action(of: Conditions) -> Action:
            return Action(DESTINATION, ports=_extent(cells[0], cells[1], of), local=True)

        try:
            for one in self.reading.alternatives:
                action(one)
        except UnknownError as exc:
            self.reading.act_unknown(str(exc))
            self.reading.over = True
            return
        self._end(action if any(cell[0][:1] == "@" for one in cells if one for cell in one) else action({}))

    def _end(self, acts: t.Any) -> None:
        self.reading.act(acts)
        self.reading.over = True

    def reject(self, _data: t.Dict[int, bytes]) -> None:
        """Follow an error to the sender."""
        self._end(Action(DROP))

    def notrack(self, _data: t.Dict[int, bytes]) -> None:
        """Keep conntrack from the packet."""
        self.table.aware = True
        xt_rules.untrack(self.reading)

    def objref(self, data: t.Dict[int, bytes]) -> None:
        """Follow a named object."""
        if 1 in data:
            kind = number(data[1])
        else:
            found = self.table.sets.of(netlink.name(data.get(4, b"")))
            kind = found.objects
        name = _OBJECTS[kind] if kind < len(_OBJECTS) else str(kind)
        found_treatment = conditions.treatment(conditions.OBJECT, name)
        if found_treatment.kind != conditions.UNKNOWN:
            return
        if name in ("limit", "quota", "connlimit"):
            self.reading.not_known(found_treatment.text)
        else:
            self.reading.act_unknown(found_treatment.text)

    def match(self, data: t.Dict[int, bytes]) -> None:
        """Follow a match of xtables."""
        name = netlink.name(data.get(1, b""))
        if xt_rules.match(self.reading, name, number(data.get(2)), data.get(3, b""), self.table.known):
            self.table.aware = True

    def target(self, data: t.Dict[int, bytes]) -> None:
        """Follow an extension of xtables that acts."""
        name = netlink.name(data.get(1, b""))
        if xt_rules.target(self.reading, name, number(data.get(2)), data.get(3, b""), self.table.known):
            self.table.aware = True


def _is_whole(cells: t.Sequence[Cell]) -> bool:
    """Return whether registers hold a number by chance as it was drawn, and nothing else."""
    return all(field == CHANCE and bits == 0xFF and not flips for field, _place, bits, flips in cells)


def _flags(cell: Cell) -> Cell:
    """Return flags of TCP: of those that do not speak of congestion, a packet that opens a connection has SYN alone."""
    field, _place, bits, flips = cell
    if field == _TCP_FLAGS and not bits & ~0x3F:
        return ("", 0, 0, bits & 0x02 ^ flips)
    return cell


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
    first: t.Optional[t.Sequence[Cell]], last: t.Optional[t.Sequence[Cell]], of: Conditions, netmap: bool = False
) -> t.Optional[Spans]:
    """Return the addresses or ports of a translation; None if it changes none."""
    if first is None:
        return None
    if netmap and any(one[0] and one[0][0] not in "?@" for one in first):
        # the bits of the network are constant, the rest stays
        low = int.from_bytes(bytes(one[3] & ~one[2] & 0xFF for one in first), "big")
        high = int.from_bytes(bytes((one[3] & ~one[2] & 0xFF) | one[2] for one in first), "big")
        return ((low, high),)
    low = int.from_bytes(_constant(first, of), "big")
    high = low if last is None else int.from_bytes(_constant(last, of), "big")
    return ((min(low, high), max(low, high)),)


def _set(subject: str, cells: t.Sequence[Cell]) -> Action:
    """Return what a value becomes that is set from registers."""
    keep = flip = 0
    origin: t.Optional[str] = None
    size = len(cells)
    order = [one[1] for one in host("", size)]
    for (field, place, bits, flips), here in zip(cells, order):
        flip |= flips << 8 * here
        if not field:
            continue
        if field not in (MARK, CT_MARK, CT_ZONE) or place != here or origin not in (None, field):
            return Action(SET, subject=subject)
        origin = field
        keep |= bits << 8 * here
    if origin is None:
        return Action(SET, subject=subject, origin=subject, keep=0, flip=flip)
    return Action(SET, subject=subject, origin=origin, keep=keep, flip=flip)


_HANDLERS: t.Mapping[str, t.Callable[[_Reader, t.Dict[int, bytes]], None]] = {
    "payload": _Reader.payload,
    "meta": _Reader.meta,
    "ct": _Reader.ct,
    "fib": _Reader.fib,
    "rt": _Reader.rt,
    "exthdr": _Reader.exthdr,
    "numgen": _Reader.numgen,
    "hash": _Reader.hash,
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
#: what is not understood and acts, matches, or loads a register (by its attribute)
_ACTING = frozenset(("tproxy", "queue", "fwd", "synproxy"))
_ASKING = frozenset(("limit", "quota", "connlimit"))
_LOADING = {"socket": 2, "osf": 1, "xfrm": 1, "tunnel": 2, "inner": 5}
