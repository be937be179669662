# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What matches and targets of xtables mean, in rules of iptables-nft and of iptables-legacy.

The layout of the bytes is that of linux/netfilter/xt_*.h and linux/netfilter/nf_nat.h.
"""

from __future__ import annotations

import struct
import typing as t

from .._system import intervals, netlink, nf_tables, nft_expressions, xtables
from .._system.families import IPV4, IPV6, Family
from .._system.intervals import Spans
from .._system.ipsets import IpSet
from .._system.services import MAX_PORT
from . import conditions, ipset_rules
from .reading import Conditions, Reading, UnknownError
from .referenced_objects import Known
from .registers import GAPS, ICMP_ERRORS, ICMP_TYPE, STATUS, STATUS_KNOWN, STATUS_SNAT, with_flags
from .rules import (
    ACCEPT,
    ALL_BITS,
    BY_NOTRACK,
    BY_SOCKET,
    BY_TEMPLATE,
    CT_MARK,
    DESTINATION,
    DNAT,
    DROP,
    INVALID,
    MARK,
    RELATED,
    RETURN,
    SENT,
    SENT_BY_OWNER,
    SENT_BY_SOCKET,
    SET,
    SOURCE,
    UNTRACKED,
    RuleAction,
)

#: XT_CONNTRACK_STATE_*: bits of states, and of what the first packet of a connection has
STATE_INVALID, STATE_RELATED, STATE_NEW, STATE_DNAT, STATE_UNTRACKED = 0x1, 0x4, 0x8, 0x80, 0x100
#: xt_state
_OLD_UNTRACKED = 0x40
#: XT_CONNTRACK_*: what is asked
_STATE, _PROTOCOL, _FROM, _TO, _STATUS, _FROM_PORT, _TO_PORT = 0x1, 0x2, 0x4, 0x8, 0x40, 0x100, 0x200
_DIRECTION = 0x1000
#: the same: addresses and ports of answers, expiration
_NOT_KNOWN = 0x10 | 0x20 | 0x80 | 0x400 | 0x800
#: There is a connection: the kernel lets nothing else match.
_TRACKED: Conditions = {(UNTRACKED, ALL_BITS): ((0, 0),)}
_TYPES = 12
#: XT_ADDRTYPE_LIMIT_IFACE_IN, XT_ADDRTYPE_LIMIT_IFACE_OUT
_LIMITED_TO_LINK = 0xC
_SEEN = "packets seen before (recent)"
#: XT_RECENT_SET
_RECENT_SET = 0x2
_TCP_FLAGS, _TCP_OPTION = 0x4, 0x8
#: XT_PHYSDEV_OP_BRIDGED
_BRIDGED = 0x4
#: XT_CT_ZONE_MARK
_ZONE_BY_MARK = 0x10
#: XT_OWNER_SOCKET
_SOCKET_EXISTS = 0x4
#: XT_POLICY_MATCH_NONE
_NO_POLICY = 0x4
#: XT_SOCKET_RESTORESKMARK
_SOCKET_MARK = 0x4


# matches


def _ports(reading: Reading, key: str, low: int, high: int, inverted: bool) -> None:
    """Read ports from one to another."""
    if (low, high) != (0, MAX_PORT) or inverted:
        reading.narrow(key, ((low, high),) if low <= high else (), inverted)


def _flags(reading: Reading, mask: int, wanted: int, inverted: bool) -> None:
    """Read flags of TCP."""
    try:
        found = with_flags(mask, wanted)
    except UnknownError as exc:
        reading.not_known(str(exc))
    else:
        reading.any_of([] if found is None else [found], inverted)


def _address_types(reading: Reading, key: str, mask: int, inverted: bool, known: Known) -> None:
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
    if known.family == IPV6 and numbers != [2]:  # ip6_tables tests the scope of the address for others
        raise UnknownError("the type of an address")
    found: t.List[t.Tuple[int, int]] = []
    for number in numbers:
        if number not in known.types:
            raise UnknownError("the type of an address")
        found += known.types[number]
    return intervals.of(found)


# targets


def _set_bits(reading: Reading, subject: str, value: int, mask: int) -> None:
    """Read ``--set-xmark``: bits of the mask become 0, then those of the value are turned over."""
    reading.act(RuleAction(SET, subject=subject, origin=subject, keep=ALL_BITS & ~mask, flip=value))


def untrack(reading: Reading) -> None:
    """Read ``NOTRACK``, ``CT --notrack``, and ``notrack`` of nft.

    Of these and of other CT rules the first counts: xt_ct_target() in net/netfilter/xt_CT.c.
    """
    reading.decide(BY_NOTRACK, RuleAction(SET, subject=UNTRACKED, origin=UNTRACKED, flip=1))


def _translate(
    reading: Reading, kind: str, addresses: t.Optional[Spans], found: t.Optional[Spans], local: bool = False
) -> None:
    """Read a new source or destination."""
    reading.act(RuleAction(kind, addresses=addresses, ports=found, local=local))
    reading.over = True


VERDICTS = {"ACCEPT": ACCEPT, "DROP": DROP, "RETURN": RETURN, "REJECT": DROP}


def _other_match(reading: Reading, name: str) -> None:
    """Read a match no further."""
    if not conditions.is_irrelevant(conditions.MATCH, name):
        reading.not_known(conditions.because(conditions.MATCH, name))


def _other_target(reading: Reading, name: str) -> None:
    """Read a target no further."""
    if not conditions.is_irrelevant(conditions.TARGET, name):
        reading.act_unknown(conditions.because(conditions.TARGET, name))


# bytes


def match(reading: Reading, name: str, revision: int, info: bytes, known: Known) -> bool:
    """Read a match.

    :returns: whether its meaning depends on the hook.
    """
    handler = _MATCHES.get(name)
    if handler is None:
        _other_match(reading, name)
        return False
    handler(reading, revision, info, known)
    return name in ("conntrack", "state", "connmark", "icmp", "icmp6")


def _tcp(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    low, high, first, last, option, mask, wanted, inverted = struct.unpack_from("=HHHHBBBB", info)
    _ports(reading, "source_port", low, high, bool(inverted & 1))
    _ports(reading, "port", first, last, bool(inverted & 2))
    if mask or inverted & _TCP_FLAGS:
        _flags(reading, mask, wanted, bool(inverted & _TCP_FLAGS))
    if option or inverted & _TCP_OPTION:
        reading.not_known("an option of TCP")


def _udp(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    low, high, first, last, inverted = struct.unpack_from("=HHHHB", info)
    _ports(reading, "source_port", low, high, bool(inverted & 1))
    _ports(reading, "port", first, last, bool(inverted & 2))


def _sctp(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    first, last, low, high = struct.unpack_from("=HHHH", info)
    # The bits of chunks take four times the room that they need (256 / sizeof(__u32) words).
    asked, inverted = struct.unpack_from("=II", info, 284)
    if asked & 1:
        _ports(reading, "source_port", low, high, bool(inverted & 1))
    if asked & 2:
        _ports(reading, "port", first, last, bool(inverted & 2))
    if asked & 4:
        reading.not_known("a chunk of SCTP")


def _icmp(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    """Read a type of messages. Errors never begin a connection: conntrack counts them to another one, or as invalid."""
    kind, _first, _last, inverted = info[:4]
    if kind in ICMP_ERRORS[reading.family] and not inverted:
        reading.test(UNTRACKED, ALL_BITS, ((1, INVALID),))
    reading.not_known("the " + ICMP_TYPE)


def _multiport(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    kind, count = info[0], info[1]
    listed = struct.unpack_from("=15H", info, 2)[:count]
    marks = info[32:47]
    found: t.List[t.Tuple[int, int]] = []
    low: t.Optional[int] = None
    for port, goes_on in zip(listed, marks):
        if low is None and goes_on:
            low = port
            continue
        found.append((port if low is None else low, port))
        low = None
    keys = {0: ("source_port",), 1: ("port",), 2: ("source_port", "port")}[kind]
    reading.any_of([{key: intervals.of(found)} for key in keys], bool(info[47]))


def _physdev(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    inverted, asked = info[64:66]
    if asked != _BRIDGED:
        reading.not_known(conditions.because(conditions.MATCH, "physdev"))
    elif not inverted & _BRIDGED:
        reading.never()  # what is tested is routed


def _iprange(reading: Reading, _revision: int, info: bytes, known: Known) -> None:
    size = known.family.size
    bounds = [int.from_bytes(info[place : place + size], "big") for place in (0, 16, 32, 48)]
    asked = info[64]
    if asked & 0x1:
        reading.narrow("source", ((bounds[0], bounds[1]),), bool(asked & 0x10))
    if asked & 0x2:
        reading.narrow("destination", ((bounds[2], bounds[3]),), bool(asked & 0x20))


def _addrtype(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    source, destination, flags = struct.unpack_from("=HHI", info)
    if revision != 1:
        raise ValueError(revision)
    if flags & _LIMITED_TO_LINK:
        reading.not_known("the type of an address at one link")
        return
    if source:
        _address_types(reading, "source", source, bool(flags & 1), known)
    if destination:
        _address_types(reading, "destination", destination, bool(flags & 2), known)


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
    if free & (free + 1):
        raise UnknownError(GAPS)
    return () if address & free else ((address, address | free),)  # the kernel compares the address as it is


def _conntrack(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    if revision != 3:
        raise ValueError(revision)
    protocol, *firsts = struct.unpack_from("=H4H", info, 136)
    asked, inverted, states, statuses, *lasts = struct.unpack_from("=HHHH4H", info, 146)
    tracked, untracked = _of_states(states, bool(inverted & _STATE)) if asked & _STATE else ([dict(_TRACKED)], [])
    rest = Reading(known.family)
    rest.alternatives = tracked
    for bit, key, span in (
        (_PROTOCOL, "protocol", (protocol, protocol)),
        (_FROM_PORT, "source_port", (firsts[0], lasts[0])),
        (_TO_PORT, "original_port", (firsts[1], lasts[1])),
    ):
        if asked & bit:
            rest.narrow(key, (span,), bool(inverted & bit))
    for bit, key, place in ((_FROM, "source", 0), (_TO, "original_destination", 32)):
        if asked & bit:
            try:
                rest.narrow(key, _masked(info, place, known.family.size), bool(inverted & bit))
            except UnknownError as exc:
                reading.not_known(str(exc))
    if asked & _STATUS and statuses & ~STATUS_KNOWN:
        reading.not_known("the status of a connection")
    elif asked & _STATUS:
        statuses &= ~STATUS_SNAT  # not before the source is translated
        found = [(value, value) for value, bits in STATUS.items() if bool(bits & statuses) != bool(inverted & _STATUS)]
        rest.test(DNAT, ALL_BITS, intervals.of(found))
    if asked & inverted & _DIRECTION:  # the reply
        rest.never()
    if asked & _NOT_KNOWN:
        reading.not_known("how answers come, or how long conntrack keeps a connection")
    reading.of_connection([*rest.alternatives, *untracked])


def _of_states(mask: int, inverted: bool) -> t.Tuple[t.List[Conditions], t.List[Conditions]]:
    """Return which packets with a connection are in a state, and which without one: nothing else is asked of those."""
    tracked: t.List[Conditions] = []
    if mask & STATE_DNAT and not mask & STATE_NEW:
        tracked = [{**_TRACKED, (DNAT, ALL_BITS): ((0, 0),) if inverted else ((1, 1),)}]
    else:
        new, related = (bool(mask & bit) != inverted for bit in (STATE_NEW, STATE_RELATED))
        if new == related:
            tracked = [dict(_TRACKED)] if new else []
        else:
            tracked = [{**_TRACKED, (RELATED, ALL_BITS): ((0, 0),) if new else ((1, 1),)}]
    bits = ((1, STATE_UNTRACKED), (INVALID, STATE_INVALID))
    beside = intervals.of((value, value) for value, bit in bits if bool(mask & bit) != inverted)
    return tracked, [{(UNTRACKED, ALL_BITS): beside}] if beside else []


def _state(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    (mask,) = struct.unpack_from("=I", info)
    tracked, untracked = _of_states(mask & 0x3F | (STATE_UNTRACKED if mask & _OLD_UNTRACKED else 0), False)
    reading.of_connection([*tracked, *untracked])


def _mark(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    value, mask, inverted = struct.unpack_from("=IIB", info)
    _marked(reading, MARK, value, mask, bool(inverted))


def _marked(reading: Reading, subject: str, value: int, mask: int, inverted: bool) -> None:
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
    reading.all_of(_TRACKED)
    _marked(reading, CT_MARK, value, mask, bool(inverted))


def _owner(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    """Read who sends. What is forwarded belongs to no socket (ip_rcv_core() in the kernel takes it off), and matches
    where all that is asked is inverted: owner_mt() in net/netfilter/xt_owner.c.
    """
    asked, inverted = struct.unpack_from("=16xBB", info)
    bit = SENT_BY_SOCKET if asked == _SOCKET_EXISTS else SENT_BY_OWNER
    reading.test(SENT, bit, ((0, 0),) if asked == inverted else ((bit, bit),))


def _policy(reading: Reading, _revision: int, info: bytes, known: Known) -> None:
    """Read the test for IPsec. On a node without its policies no packet is treated by it."""
    if known.ipsec:
        _other_match(reading, "policy")
    elif not struct.unpack_from("=304xH", info)[0] & _NO_POLICY:
        reading.never()


def _socket(reading: Reading, revision: int, info: bytes, _known: Known) -> None:
    """Read the test for a socket that would take the packet; it may give the packet that socket's mark."""
    reading.not_known(BY_SOCKET)
    if revision and info[0] & _SOCKET_MARK:
        reading.act(RuleAction(SET, subject=MARK))


def _statistic(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    mode, inverted, value = struct.unpack_from("=HHI", info)
    always = value == 0 if mode else value >= 1 << 31  # every n-th, 0 is every one; or a share of them
    never = mode == 0 and value == 0
    if always or never:
        if always == bool(inverted & 1):
            reading.never()
    else:
        reading.chance = True


def _recent(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    asked, inverted = struct.unpack_from("=8xBB", info)
    if not asked & _RECENT_SET:
        reading.by_history(_SEEN)
    elif inverted:
        reading.never()


def _ipset(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    index, dimensions, asked = struct.unpack_from("=HBB", info)
    if revision == 0:
        raise ValueError(revision)
    if revision >= 3:
        # counters that are compared, and flags of the lookup
        if info[8] or info[24]:
            reading.not_known("counters of a set of ipset")
        if struct.unpack_from("=I", info, 40)[0] & 0x80:
            reading.not_known("entries of a set of ipset that are no match")
    found = [one for one in known.ipsets if one.index == index]
    if not found:
        reading.not_known("a set of ipset that cannot be read")
        return
    sources = [bool(asked & 1 << number) for number in range(1, dimensions + 1)]
    try:
        reading.any_of(ipset_rules.read(found[0], sources, known), bool(asked & 1))
    except UnknownError as exc:
        reading.not_known(str(exc))


_Handler = t.Callable[[Reading, int, bytes, Known], None]
_MATCHES: t.Mapping[str, _Handler] = {
    "tcp": _tcp,
    "udp": _udp,
    "udplite": _udp,
    "sctp": _sctp,
    "icmp": _icmp,
    "icmp6": _icmp,
    "multiport": _multiport,
    "iprange": _iprange,
    "physdev": _physdev,
    "addrtype": _addrtype,
    "conntrack": _conntrack,
    "state": _state,
    "mark": _mark,
    "connmark": _connmark,
    "statistic": _statistic,
    "recent": _recent,
    "set": _ipset,
    "socket": _socket,
    "owner": _owner,
    "policy": _policy,
}


def target(reading: Reading, name: str, revision: int, info: bytes, known: Known) -> bool:
    """Read a target.

    :returns: whether its meaning depends on the hook.
    """
    if not name or name == "standard":  # never in rules of iptables-nft
        raise ValueError(name)
    if name in VERDICTS:
        reading.act(RuleAction(VERDICTS[name]))
        reading.over = True
        return False
    handler = _TARGETS.get(name)
    if handler is None:
        _other_target(reading, name)
        return False
    handler(reading, revision, info, known)
    return name in ("CT", "NOTRACK", "CONNMARK")


def _set_mark(reading: Reading, revision: int, info: bytes, _known: Known) -> None:
    value, mask = struct.unpack_from("=II", info)
    if revision != 2:
        raise ValueError(revision)
    _set_bits(reading, MARK, value, mask)


def _set_connmark(reading: Reading, revision: int, info: bytes, _known: Known) -> None:
    value, mask, other = struct.unpack_from("=III", info)
    mode, shifted = (info[12], 0) if revision < 2 else (info[14], info[13])
    reading.all_of(_TRACKED)
    target, source = (MARK, CT_MARK) if mode == 2 else (CT_MARK, MARK)
    kept, copied = (other, mask) if mode == 2 else (mask, other)
    if shifted:
        reading.act(RuleAction(SET, subject=target))
    elif mode == 0:
        _set_bits(reading, CT_MARK, value, mask)
    else:
        reading.act(RuleAction(SET, subject=target, origin=source, keep=copied, own=ALL_BITS & ~kept))


def _ct(reading: Reading, _revision: int, info: bytes, _known: Known) -> None:
    asked, zone = struct.unpack_from("=HH", info)
    if asked & 1:
        untrack(reading)
        return
    if asked & _ZONE_BY_MARK or zone:
        reading.act_unknown("a zone of conntrack")
    reading.decide(BY_TEMPLATE)


def _notrack(reading: Reading, _revision: int, _info: bytes, _known: Known) -> None:
    untrack(reading)


def translation(name: str, revision: int, info: bytes, family: Family) -> t.Tuple[t.Optional[Spans], t.Optional[Spans]]:
    """Read the addresses and ports of a translation."""
    if revision == 0 and (name in ("DNAT", "SNAT") or family == IPV4):  # nf_nat_ipv4_multi_range_compat
        asked = struct.unpack_from("=I", info, 4)[0]
        low, high, first, last = struct.unpack_from("!IIHH", info, 8)
    else:
        size = family.size
        asked = struct.unpack_from("=I", info)[0]
        low = int.from_bytes(info[4 : 4 + size], "big")
        high = int.from_bytes(info[20 : 20 + size], "big")
        first, last = struct.unpack_from("!HH", info, 36)
    addresses = ((low, high),) if asked & 1 else None
    return addresses, ((first, last),) if asked & 2 else None


def _nat(kind: str, name: str) -> _Handler:
    def handler(reading: Reading, revision: int, info: bytes, known: Known) -> None:
        _translate(reading, kind, *translation(name, revision, info, known.family))

    return handler


def _masquerade(reading: Reading, _revision: int, _info: bytes, _known: Known) -> None:
    _translate(reading, SOURCE, None, None, True)


def _redirect(reading: Reading, revision: int, info: bytes, known: Known) -> None:
    _translate(reading, DESTINATION, None, translation("REDIRECT", revision, info, known.family)[1], True)


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
    "SET": _set_target,
}


def filled(
    tables: t.Iterable[nf_tables.NftTable], legacy: t.Iterable[xtables.XtTable], sets: t.Iterable[IpSet]
) -> t.FrozenSet[str]:
    """Return the names of the sets of ipset that rules fill or empty."""
    names = {one.index: one.name for one in sets}
    found = []
    for table in tables:
        for body in table.rules:
            if b"SET\0" not in body:  # checked for every rule
                continue
            expressions = netlink.attributes(body).get(nf_tables.RULE_EXPRESSIONS, b"")
            for kind, data in nft_expressions.of_rule(expressions):
                if kind == "target" and netlink.name(data.get("name", b"")) == "SET":
                    found.append(data.get("info", b""))
    for old in legacy:
        if xtables.has(old, "SET"):
            rules = (rule for chain in xtables.chains(old).values() for rule in chain.rules)
            found += [rule.target.info for rule in rules if rule.target.name == "SET"]
    indices = {struct.unpack_from("=H", info, place)[0] for info in found for place in (0, 4) if len(info) >= place + 2}
    return frozenset(names[one] for one in indices if one in names)
