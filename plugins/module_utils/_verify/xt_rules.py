# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What matches and targets of xtables mean: as bytes in rules of iptables-nft, and as ``legacy_rules`` reads them.

The layout of the bytes is that of linux/netfilter/xt_*.h and linux/netfilter/nf_nat.h.
"""

from __future__ import annotations

import re
import struct
import typing as t

from .._system import intervals, netlink
from .._system.families import IPV4, IPV6
from .._system.intervals import Spans
from .._twin import nf_tables
from .._twin.ipsets import IpSet
from .._twin.legacy import LegacyTable
from . import conditions, ipset_rules
from .reading import NETMAP, Conditions, Reading, UnknownError
from .referenced_objects import Known
from .registers import STATUS, STATUS_KNOWN, scattered
from .rules import (
    ACCEPT,
    ALL_BITS,
    BY_NOTRACK,
    BY_TEMPLATE,
    CT_MARK,
    CT_ZONE,
    DESTINATION,
    DNAT,
    DROP,
    INVALID,
    MARK,
    MAX_PORT,
    RETURN,
    SET,
    SOURCE,
    UNTRACKED,
    Action,
)

#: XT_CONNTRACK_STATE_*: bits of states, and of what the first packet of a connection has
STATE_INVALID, STATE_NEW, STATE_DNAT, STATE_UNTRACKED = 0x1, 0x8, 0x80, 0x100
#: xt_state
_OLD_UNTRACKED = 0x40
_TYPES = 12
_SEEN = "packets seen before (recent)"
#: XT_RECENT_SET
_RECENT_SET = 0x2
_FILLS = re.compile(r"--(?:add|del)-set (\S+)")
#: a copy of a mark of so many bits is followed value by value
_FEW_BITS = 5
_TCP_FLAGS, _TCP_OPTION = 0x4, 0x8
#: flags of the packet that opens a connection: SYN, among FIN, SYN, RST, PSH, ACK and URG
_SYN, _ALL_FLAGS = 0x02, 0x3F


# matches; those that legacy_rules shares take values


def ports(reading: Reading, key: str, low: int, high: int, inverted: bool) -> None:
    """Read ports from one to another."""
    if (low, high) != (0, MAX_PORT) or inverted:
        reading.narrow(key, ((low, high),) if low <= high else (), inverted)


def multiport(reading: Reading, keys: t.Sequence[str], found: Spans, inverted: bool) -> None:
    """Read any of several ports, in one or either place."""
    reading.any_of([{key: found} for key in keys], inverted)


def flags(reading: Reading, mask: int, wanted: int, inverted: bool) -> None:
    """Read flags of TCP: a packet that opens a connection has SYN alone."""
    if ((_SYN & mask) == wanted & _ALL_FLAGS) == inverted:
        reading.never()


def address_types(reading: Reading, key: str, mask: int, inverted: bool, known: Known) -> None:
    """Read types of addresses as a mask of RTN_*."""
    try:
        reading.narrow(key, _of_types(mask, known), inverted)
    except UnknownError as exc:
        reading.not_known(str(exc))


def _of_types(mask: int, known: Known) -> Spans:
    """Return the addresses of several types.

    :raises UnknownError: they are not known.
    """
    numbers = [number for number in range(_TYPES) if mask >> number & 1]
    if known.family == IPV6:  # ip6_tables tests the scope of the address for these two, and knows several only together
        if numbers == [5]:
            return ((0xFF << 120, (1 << 128) - 1),)
        if numbers == [1]:
            mapped = 0xFFFF << 32
            return intervals.complement(
                ((0, 0), (mapped, mapped | ALL_BITS), (0xFF << 120, (1 << 128) - 1)), (1 << 128) - 1
            )
        if numbers != [2]:
            raise UnknownError("the type of an address")
    found: t.List[t.Tuple[int, int]] = []
    for number in numbers:
        if number not in known.types:
            raise UnknownError("the type of an address")
        found += known.types[number]
    return intervals.of(found)


class Connection(t.NamedTuple):
    """A rule's conditions on conntrack: masks (None: nothing), conditions, and whether each is inverted."""

    states: t.Optional[t.Tuple[int, bool]] = None
    statuses: t.Optional[t.Tuple[int, bool]] = None
    protocol: t.Optional[t.Tuple[int, bool]] = None
    source: t.Optional[t.Tuple[Spans, bool]] = None
    destination: t.Optional[t.Tuple[Spans, bool]] = None
    source_port: t.Optional[t.Tuple[Spans, bool]] = None
    port: t.Optional[t.Tuple[Spans, bool]] = None
    #: whether the original direction is compared, or the reply
    original: t.Optional[bool] = None
    unknown: t.Tuple[str, ...] = ()


def connection(reading: Reading, asked: Connection) -> None:
    """Read conditions of conntrack."""
    tracked: Conditions = {(UNTRACKED, ALL_BITS): ((0, 0),)}
    alternatives: t.List[Conditions] = []
    if asked.states is None:
        alternatives = [tracked]
    else:
        mask, inverted = asked.states
        beside = []
        for value, bit in ((1, STATE_UNTRACKED), (INVALID, STATE_INVALID)):
            if bool(mask & bit) != inverted:
                beside.append((value, value))
        by_dnat = bool(mask & STATE_DNAT)
        if mask & STATE_NEW:
            if not inverted:
                alternatives = [tracked]
        elif by_dnat:
            wanted = 0 if inverted else 1
            alternatives = [dict(tracked)]
            alternatives[0][(DNAT, ALL_BITS)] = ((wanted, wanted),)
        elif inverted:
            alternatives = [tracked]
    rest = Reading(reading.family)
    rest.alternatives = alternatives
    for key, part in (
        ("source", asked.source),
        ("original_destination", asked.destination),
        ("source_port", asked.source_port),
        ("original_port", asked.port),
    ):
        if part is not None:
            rest.narrow(key, *part)
    if asked.protocol is not None:
        number, inverted = asked.protocol
        rest.narrow("protocol", ((number, number),), inverted)
    if asked.statuses is not None:
        mask, inverted = asked.statuses
        if mask & ~STATUS_KNOWN:
            reading.not_known("the status of a connection")
        else:
            found = [(value, value) for value, bits in STATUS.items() if bool(bits & mask) != inverted]
            rest.test(DNAT, ALL_BITS, intervals.of(found))
    if asked.original is False:
        rest.never()
    for reason in asked.unknown:
        reading.not_known(reason)
    alternatives = list(rest.alternatives)
    if asked.states is not None and beside:
        # The kernel looks at nothing else of a packet without a connection.
        alternatives.append({(UNTRACKED, ALL_BITS): intervals.of(beside)})
    if not alternatives:
        reading.never()
    else:
        reading.any_of(alternatives)


def statistic(reading: Reading, share: t.Optional[float], inverted: bool) -> None:
    """Read a choice by chance; ``share`` None: every n-th packet."""
    if share is not None:
        share = 1 - share if inverted else share
        if share <= 0:
            reading.never()
            return
        if share >= 1:
            return
    reading.chance = True


def recent(reading: Reading, fills: bool, inverted: bool) -> None:
    """Read a list of addresses seen before.

    :param fills: ``--set``, which fits every packet.
    """
    if not fills:
        reading.by_history(_SEEN)
    elif inverted:
        reading.never()


def match_set(reading: Reading, name: str, sources: t.Sequence[bool], inverted: bool, known: Known) -> None:
    """Read a set of ipset by its name."""
    found = [one for one in known.ipsets if one.name == name]
    if not found:
        reading.not_known("the set %s of ipset, which cannot be read" % name)
        return
    try:
        reading.any_of(ipset_rules.read(found[0], sources, known), inverted)
    except UnknownError as exc:
        reading.not_known(str(exc))


# targets


def socket(reading: Reading, wildcard: bool, restores: bool, known: Known) -> None:
    """Read the test for a socket that would take the packet.

    The first packet of a connection is of no other socket than one that listens; the match looks at one that listens on
    any address only if it is told to.
    """
    if not wildcard and known.bound is not None:
        reading.narrow("destination", known.bound)
    if reading.alternatives:
        reading.not_known(conditions.because(conditions.EXPRESSION, "socket"))
        if restores:  # the mark of the socket
            reading.act(Action(SET, subject=MARK))


def set_mark(reading: Reading, subject: str, value: int, mask: int) -> None:
    """Read ``--set-xmark``: bits of the mask become 0, then those of the value are turned over."""
    reading.act(Action(SET, subject=subject, origin=subject, keep=ALL_BITS & ~mask, flip=value))


def copy_mark(reading: Reading, target: str, source: str, target_mask: int, source_mask: int) -> None:
    """Read ``--save-mark``, ``--restore-mark``: target = (target & ~target_mask) ^ (source & source_mask)."""
    keep = ALL_BITS & ~target_mask
    if not keep:
        reading.act(Action(SET, subject=target, origin=source, keep=source_mask))
        return
    bits = [1 << place for place in range(32) if source_mask >> place & 1]
    before = reading.alternatives
    values = [0]
    if len(bits) <= _FEW_BITS:
        for bit in bits:
            values += [one | bit for one in values]
    key = (source, source_mask)
    alternatives: t.List[Conditions] = [{key: ((value, value),), "@mark": value} for value in values] if bits else [{}]
    if len(bits) > _FEW_BITS:
        alternatives.append({"@mark": None})
    reading.any_of(alternatives)

    def action(of: Conditions) -> Action:
        value = of.get("@mark", 0)
        if value is None:
            return Action(SET, subject=target)
        return Action(SET, subject=target, origin=target, keep=keep, flip=t.cast(int, value))

    reading.act(action)
    reading.alternatives = before


def untrack(reading: Reading) -> None:
    """Read ``NOTRACK``, ``CT --notrack``, and ``notrack`` of nft.

    Of these and of other CT rules the first counts: xt_ct_target() in net/netfilter/xt_CT.c.
    """
    reading.decide(BY_NOTRACK, Action(SET, subject=UNTRACKED, origin=UNTRACKED, flip=1))


def set_zone(reading: Reading, zone: t.Optional[int]) -> None:
    """Read ``CT --zone``; None: the mark is the zone; 0: the rule sets no zone, but a helper or the like."""
    if zone is None:
        reading.decide(BY_TEMPLATE, Action(SET, subject=CT_ZONE, origin=MARK, keep=0xFFFF))
    else:
        reading.decide(BY_TEMPLATE, Action(SET, subject=CT_ZONE, origin=CT_ZONE, flip=zone))


def translate(
    reading: Reading, kind: str, addresses: t.Optional[Spans], found: t.Optional[Spans], local: bool = False
) -> None:
    """Read a new source or destination."""
    reading.act(Action(kind, addresses=addresses, ports=found, local=local))
    reading.over = True


VERDICTS = {"ACCEPT": ACCEPT, "DROP": DROP, "RETURN": RETURN, "REJECT": DROP}


def other_match(reading: Reading, name: str) -> None:
    """Read a match no further."""
    found = conditions.treatment(conditions.MATCH, name)
    if found.kind != conditions.IRRELEVANT:
        reading.not_known(found.text if found.kind == conditions.UNKNOWN else "the match %s" % name)


def other_target(reading: Reading, name: str, known: Known) -> None:
    """Read a target no further."""
    found = conditions.treatment(conditions.TARGET, name)
    if found.kind == conditions.IRRELEVANT:
        if name in ("TOS", "DSCP") and known.tos_routed:
            reading.act_unknown("a rule that writes the TOS, which a routing rule matches")
        return
    reading.act_unknown(found.text if found.kind == conditions.UNKNOWN else "the target %s" % name)


# bytes


def match(reading: Reading, name: str, revision: int, info: bytes, known: Known) -> bool:
    """Read a match.

    :returns: whether its meaning depends on the hook.
    """
    handler = _MATCHES.get(name)
    if handler is None:
        other_match(reading, name)
        return False
    handler(reading, revision, info, known)
    return name in ("conntrack", "state", "connmark")


def _tcp(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    low, high, first, last, option, mask, wanted, inverted = struct.unpack_from("=HHHHBBBB", info)
    ports(reading, "source_port", low, high, bool(inverted & 1))
    ports(reading, "port", first, last, bool(inverted & 2))
    if mask or inverted & _TCP_FLAGS:
        flags(reading, mask, wanted, bool(inverted & _TCP_FLAGS))
    if option or inverted & _TCP_OPTION:
        reading.not_known("an option of TCP")


def _udp(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    low, high, first, last, inverted = struct.unpack_from("=HHHHB", info)
    ports(reading, "source_port", low, high, bool(inverted & 1))
    ports(reading, "port", first, last, bool(inverted & 2))


def _sctp(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    first, last, low, high = struct.unpack_from("=HHHH", info)
    # The bits of chunks take four times the room that they need (256 / sizeof(__u32) words).
    asked, inverted = struct.unpack_from("=II", info, 284)
    if asked & 1:
        ports(reading, "source_port", low, high, bool(inverted & 1))
    if asked & 2:
        ports(reading, "port", first, last, bool(inverted & 2))
    if asked & 4:
        reading.not_known("a chunk of SCTP")


def _multiport(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    kind, count = info[0], info[1]
    listed = struct.unpack_from("=15H", info, 2)[:count]
    marks = info[32:47] if len(info) >= 48 else bytes(15)
    found: t.List[t.Tuple[int, int]] = []
    low: t.Optional[int] = None
    for port, goes_on in zip(listed, marks):
        if low is None and goes_on:
            low = port
            continue
        found.append((port if low is None else low, port))
        low = None
    keys = {0: ("source_port",), 1: ("port",), 2: ("source_port", "port")}[kind]
    multiport(reading, keys, intervals.of(found), len(info) >= 48 and bool(info[47]))


def _iprange(reading: Reading, _revision: int, info: bytes, known: Known) -> None:
    size = known.family.size
    bounds = [int.from_bytes(info[place : place + size], "big") for place in (0, 16, 32, 48)]
    asked = info[64]
    if asked & 0x1:
        reading.narrow("source", ((bounds[0], bounds[1]),), bool(asked & 0x10))
    if asked & 0x2:
        reading.narrow("destination", ((bounds[2], bounds[3]),), bool(asked & 0x20))


def _addrtype(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    source, destination, first = struct.unpack_from("=HHI", info)
    if revision == 0:
        inverted = (bool(first), bool(struct.unpack_from("=I", info, 8)[0]))
    else:
        inverted = (bool(first & 1), bool(first & 2))
        if first & 0xC:
            reading.not_known(conditions.because(conditions.FIB_FLAG, "iif"))
            return
    if source:
        address_types(reading, "source", source, inverted[0], known)
    if destination:
        address_types(reading, "destination", destination, inverted[1], known)


def _masked(info: bytes, place: int, size: int) -> Spans:
    """Return the addresses of an address and a mask."""
    address = int.from_bytes(info[place : place + size], "big")
    mask = int.from_bytes(info[place + 16 : place + 16 + size], "big")
    return masked(address, mask, size * 8)


def masked(address: int, mask: int, bits: int) -> Spans:
    """Return the addresses that agree with one under a mask.

    :raises UnknownError: the bits of the mask lie apart.
    """
    free = (1 << bits) - 1 & ~mask
    return () if address & free else scattered(address, free)  # the kernel compares the address as it is


def _conntrack(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    size = known.family.size
    protocol, *four = struct.unpack_from("=H" + ("4H" if revision == 3 else ""), info, 136)
    if revision == 3:
        lows = list(four)
        asked, inverted, states, statuses = struct.unpack_from("=HHHH", info, 146)
        highs = list(struct.unpack_from("=4H", info, 154))
    else:
        lows = list(struct.unpack_from("!4H", info, 138))
        highs = lows
        asked, inverted = struct.unpack_from("=HH", info, 146)
        states, statuses = struct.unpack_from("=BB" if revision == 1 else "=HH", info, 150)

    def part(bit: int, value: t.Any) -> t.Any:
        return (value, bool(inverted & bit)) if asked & bit else None

    unknown = []
    if asked & (0x10 | 0x20 | 0x400 | 0x800):
        unknown.append("the addresses and ports with which answers come")
    if asked & 0x80:
        unknown.append(conditions.because(conditions.CT, "expiration"))
    if asked & 0x40 and statuses & 0x10:
        statuses &= ~0x10  # SNAT: not before the source is translated
    source = destination = None
    try:
        source = part(0x4, _masked(info, 0, size)) if asked & 0x4 else None
        destination = part(0x8, _masked(info, 32, size)) if asked & 0x8 else None
    except UnknownError as exc:
        unknown.append(str(exc))
    connection(
        reading,
        Connection(
            part(0x1, states),
            part(0x40, statuses),
            part(0x2, protocol),
            source,
            destination,
            part(0x100, ((lows[0], highs[0]),)),
            part(0x200, ((lows[1], highs[1]),)),
            not inverted & 0x1000 if asked & 0x1000 else None,
            tuple(unknown),
        ),
    )


def _state(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    (mask,) = struct.unpack_from("=I", info)
    states = mask & 0x3F | (STATE_UNTRACKED if mask & _OLD_UNTRACKED else 0)
    connection(reading, Connection(states=(states, False)))


def _mark(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    value, mask, inverted = struct.unpack_from("=IIB", info)
    mark(reading, MARK, value, mask, bool(inverted))


def mark(reading: Reading, subject: str, value: int, mask: int, inverted: bool) -> None:
    """Read ``--mark``."""
    if value & ~mask:
        if not inverted:
            reading.never()
        return
    if mask:
        reading.test(subject, mask, ((value, value),), inverted)
    elif inverted:
        reading.never()


def _connmark(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    value, mask, inverted = struct.unpack_from("=IIB", info)
    tracked(reading)
    mark(reading, CT_MARK, value, mask, bool(inverted))


def tracked(reading: Reading) -> None:
    """Read that there is a connection: the kernel lets nothing else match."""
    reading.test(UNTRACKED, ALL_BITS, ((0, 0),))


def _devgroup(reading: Reading, _revision: int, info: bytes, known: Known) -> None:
    asked, source, source_mask, destination, destination_mask = struct.unpack_from("=5I", info)
    if asked & 1:
        group(reading, "incoming", source, source_mask, bool(asked & 2), known)
    if asked & 4:
        group(reading, "outgoing", destination, destination_mask, bool(asked & 8), known)


def group(reading: Reading, key: str, value: int, mask: int, inverted: bool, known: Known) -> None:
    """Read a group of links."""
    names = [one.name for one in known.links.values() if one.group & mask == value]
    reading.link(key, names, inverted)


def _socket(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    flags_of = 2 if revision == 0 else info[0]
    socket(reading, bool(flags_of & 2), bool(flags_of & 4), known)


def _statistic(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    mode, inverted, value = struct.unpack_from("=HHI", info)
    if mode == 0:
        statistic(reading, value / (1 << 31), bool(inverted & 1))
    else:  # every n-th; 0 is every one
        statistic(reading, 1.0 if value == 0 else None, bool(inverted & 1))


def _recent(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    asked, inverted = struct.unpack_from("=8xBB", info)
    recent(reading, bool(asked & _RECENT_SET), bool(inverted))


def _cluster(reading: Reading, _revision: int, _info: bytes, _known: Known) -> None:
    tracked(reading)
    reading.chance = True


def _ipset(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    index, dimensions, asked = struct.unpack_from("=HBB", info)
    if revision == 0:
        (index,) = struct.unpack_from("=H", info)
        dimensions, asked = info[28], info[29]
    if revision >= 3:
        # counters that are compared, and flags of the lookup
        if info[8] or info[24]:
            reading.not_known("counters of a set of ipset")
        if struct.unpack_from("=I", info, 40)[0] & 0x80:
            reading.not_known("entries of a set of ipset that are no match")
    found = [one.name for one in known.ipsets if one.index == index]
    if not found:
        reading.not_known("a set of ipset that cannot be read")
        return
    sources = [bool(asked & 1 << number) for number in range(1, dimensions + 1)]
    match_set(reading, found[0], sources, bool(asked & 1), known)


_Handler = t.Callable[[Reading, int, bytes, Known], None]
_MATCHES: t.Mapping[str, _Handler] = {
    "tcp": _tcp,
    "udp": _udp,
    "udplite": _udp,
    "sctp": _sctp,
    "multiport": _multiport,
    "iprange": _iprange,
    "addrtype": _addrtype,
    "conntrack": _conntrack,
    "state": _state,
    "mark": _mark,
    "connmark": _connmark,
    "devgroup": _devgroup,
    "statistic": _statistic,
    "recent": _recent,
    "cluster": _cluster,
    "set": _ipset,
    "socket": _socket,
}


def target(reading: Reading, name: str, revision: int, info: bytes, known: Known) -> bool:
    """Read a target.

    :returns: whether its meaning depends on the hook.
    """
    if not name or name == "standard":  # never in rules of iptables-nft
        raise ValueError(name)
    if name in VERDICTS:
        reading.act(Action(VERDICTS[name]))
        reading.over = True
        return False
    handler = _TARGETS.get(name)
    if handler is None:
        other_target(reading, name, known)
        return False
    handler(reading, revision, info, known)
    return name in ("NETMAP", "CT", "NOTRACK", "CONNMARK")


def _set_mark(reading: Reading, revision: int, info: bytes, _known: Known) -> None:
    value, mask = struct.unpack_from("=II", info)
    if revision != 2:
        raise ValueError(revision)
    set_mark(reading, MARK, value, mask)


def _set_connmark(reading: Reading, revision: int, info: bytes, _known: Known) -> None:
    value, mask, other = struct.unpack_from("=III", info)
    mode, shifted = (info[12], 0) if revision < 2 else (info[14], info[13])
    tracked(reading)
    if mode == 0:
        if shifted:
            reading.act(Action(SET, subject=CT_MARK))
        else:
            set_mark(reading, CT_MARK, value, mask)
    elif shifted:
        reading.act(Action(SET, subject=CT_MARK if mode == 1 else MARK))
    elif mode == 1:
        copy_mark(reading, CT_MARK, MARK, mask, other)
    else:
        copy_mark(reading, MARK, CT_MARK, other, mask)


def _ct(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    asked, zone = struct.unpack_from("=HH", info)
    if asked & 1:
        untrack(reading)
    elif asked & 0x10:
        set_zone(reading, None)
    else:
        set_zone(reading, zone)


def _notrack(reading: Reading, _revision: int, _info: bytes, _known: Known) -> None:
    untrack(reading)


def _translation(name: str, revision: int, info: bytes, known: Known) -> t.Tuple[t.Optional[Spans], t.Optional[Spans]]:
    """Read the addresses and ports of a translation."""
    if revision == 0 and (name in ("DNAT", "SNAT") or known.family == IPV4):  # nf_nat_ipv4_multi_range_compat
        asked = struct.unpack_from("=I", info, 4)[0]
        low, high, first, last = struct.unpack_from("!IIHH", info, 8)
    else:
        size = known.family.size
        asked = struct.unpack_from("=I", info)[0]
        low = int.from_bytes(info[4 : 4 + size], "big")
        high = int.from_bytes(info[20 : 20 + size], "big")
        first, last = struct.unpack_from("!HH", info, 36)
    addresses = ((low, high),) if asked & 1 else None
    return addresses, ((first, last),) if asked & 2 else None


def _nat(kind: str, name: str) -> _Handler:
    def handler(reading: Reading, revision: int, info: bytes, known: Known) -> None:
        translate(reading, kind, *_translation(name, revision, info, known))

    return handler


def _masquerade(reading: Reading, _revision: int, _info: bytes, _known: Known) -> None:
    translate(reading, SOURCE, None, None, True)


def _redirect(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    translate(reading, DESTINATION, None, _translation("REDIRECT", revision, info, known)[1], True)


def _netmap(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    translate(reading, NETMAP, _translation("NETMAP", revision, info, known)[0], None)


def _hmark(reading: Reading, _revision: int, _info: bytes, _known: Known) -> None:
    reading.act(Action(SET, subject=MARK))


def _set_target(reading: Reading, revision: int, info: bytes, _known: Known) -> None:
    if revision == 3 and struct.unpack_from("=H", info, 8)[0] != 0xFFFF:
        reading.act_unknown("a mark that a set of ipset gives")


_TARGETS: t.Mapping[str, _Handler] = {
    "MARK": _set_mark,
    "CONNMARK": _set_connmark,
    "CT": _ct,
    "NOTRACK": _notrack,
    "DNAT": _nat(DESTINATION, "DNAT"),
    "SNAT": _nat(SOURCE, "SNAT"),
    "MASQUERADE": _masquerade,
    "REDIRECT": _redirect,
    "NETMAP": _netmap,
    "HMARK": _hmark,
    "SET": _set_target,
}


def filled(
    tables: t.Iterable[nf_tables.Table], legacy: t.Iterable[LegacyTable], sets: t.Iterable[IpSet]
) -> t.FrozenSet[str]:
    """Return the names of the sets of ipset that rules fill or empty."""
    names = {one.index: one.name for one in sets}
    found = {name for table in legacy for name in _FILLS.findall(table.listing)}
    for table in tables:
        for body in table.rules:
            if b"SET\0" not in body:  # checked for every rule
                continue
            expressions = netlink.attributes(body).get(nf_tables.RULE_EXPRESSIONS, b"")
            for kind, data in nf_tables.parse_expressions(expressions):
                known = netlink.attributes(data)
                if kind == "target" and netlink.name(known.get(1, b"")) == "SET":
                    info = known.get(3, b"")
                    indices = [struct.unpack_from("=H", info, place)[0] for place in (0, 4) if len(info) >= place + 2]
                    found.update(names[one] for one in indices if one in names)
    return frozenset(found)
