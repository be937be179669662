# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Routing rules and tables as values: the result of the kernel's lookup for a whole region of packets.

The order of things is that of fib_rules_lookup() (net/core/fib_rules.c): a rule that a packet matches names a table; a
table without a route for it, a route of type throw and a suppressed route lead on to the next rule.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
import typing as t

from ..._rules import conditions, regions
from ..._rules.regions import Partition
from ..._rules.rules import ALL_BITS
from ..._system import intervals, netlink
from ..._system.families import IPV4, Family
from ..._system.intervals import Spans
from ..._system.routes import (
    ANYCAST,
    BLACKHOLE,
    BROADCAST,
    LOCAL,
    MULTICAST,
    PROHIBIT,
    TABLE_LOCAL,
    TABLE_MAIN,
    THROW,
    UNICAST,
    UNREACHABLE,
)
from ..._twin.links import NOARP, Link, ports
from ..._twin.routing import RTA_GATEWAY, RTA_PREFERRED, Path, Route, Routing, addresses, routes

#: FRA_* (linux/fib_rules.h)
_FRA_DST, _FRA_SRC, _FRA_IIF, _FRA_PRIORITY, _FRA_MARK = 1, 2, 3, 6, 10
_FRA_SUPPRESS_GROUP, _FRA_SUPPRESS_LENGTH, _FRA_TABLE, _FRA_MASK, _FRA_OIF, _FRA_L3MDEV = 13, 14, 15, 16, 17, 19
#: in the order of the header: the place is the number
_OF_RULES = (
    "unspec dst src iifname goto unused2 priority unused3 unused4 unused5 fwmark flow tun_id suppress_ifgroup "
    "suppress_prefixlen table fwmask oifname pad l3mdev uid_range protocol ip_proto sport_range dport_range dscp"
).split()
#: FR_ACT_*
_TO_TABLE, _BLACKHOLE, _UNREACHABLE, _PROHIBIT = 1, 6, 7, 8
_INVERT = 0x2
#: FIB_RULE_PERMANENT, FIB_RULE_UNRESOLVED (a goto), a link that is not there (in, out); FIB_RULE_FIND_SADDR is about
#: packets without a source
_OTHER_FLAGS = 0x1 | 0x4 | 0x8 | 0x10 | 0x10000

#: RTA_* (linux/rtnetlink.h)
_RTA_PRIORITY = 6
#: in the order of the header: the place is the number
_OF_ROUTES = (
    "unspec dst src iif oif gateway priority prefsrc metrics multipath protoinfo flow cacheinfo session mp_algo table "
    "mark mfc_stats via newdst pref encap_type encap expires pad uid ttl_propagate ip_proto sport dport nh_id flowlabel"
).split()

_HEADER = struct.Struct("=BBBBBBBBI")
#: RTNH_F_DEAD, RTM_F_CLONED
_DEAD, _CLONED = 0x1, 0x200
_SECONDARY = 0x01

#: What becomes of a packet. A packet without a route in any rule has none.
LEAVES = "leaves"
TO_NODE = "local"
NO_ROUTE = "none"
#: It waits for a neighbour at the port of a bridge, which hears no answer.
UNANSWERED = "unanswered"
_KINDS = {
    UNICAST: LEAVES,
    LOCAL: TO_NODE,
    BROADCAST: TO_NODE,
    ANYCAST: TO_NODE,
    MULTICAST: TO_NODE,
    BLACKHOLE: "blackhole",
    UNREACHABLE: "unreachable",
    PROHIBIT: "prohibit",
}
_AT_PORT = "its neighbours at %s, a port of a bridge: route over the bridge"
_ACTIONS = {_BLACKHOLE: "blackhole", _UNREACHABLE: "unreachable", _PROHIBIT: "prohibit"}


class Unknown(t.NamedTuple):
    """What is not understood. ``place`` is a rule of netfilter (``rules.Ref``), or words for another thing."""

    place: t.Any
    reason: str


class RouteOutcome(t.NamedTuple):
    """Where a route leads. ``link`` is a name; ``preferred`` the source that the route prefers.

    ``selected`` is the address that MASQUERADE takes because the gateway is in its network; None if that is not so
    simple.
    """

    kind: str
    link: str = ""
    preferred: t.Optional[int] = None
    selected: t.Optional[int] = None


class RoutePart(t.NamedTuple):
    """Some of the packets of a lookup, and what becomes of them. With ``chance`` others are possible too."""

    source: Spans
    destination: Spans
    outcome: RouteOutcome
    chance: bool = False
    unknown: t.Tuple[Unknown, ...] = ()


class Back(t.NamedTuple):
    """Some packets, and what the route back to their source is like."""

    source: Spans
    destination: Spans
    like: t.Tuple[t.Any, ...]
    unknown: t.Tuple[Unknown, ...] = ()


class _Entry(t.NamedTuple):
    """One route, or all to one prefix: what they lead to, one of which is taken. ``kind`` is RTN_*."""

    kind: int
    outcomes: t.Tuple[RouteOutcome, ...]
    unknown: t.Tuple[Unknown, ...]
    #: of one route
    priority: int = 0
    #: of the prefix; 0 where no routing rule compares it, so that equal entries are the same
    length: int = 0


class _Selector(t.NamedTuple):
    """One routing rule. Without ``incoming`` it is for all links."""

    place: str
    source: Spans
    destination: Spans
    mark: int
    mask: int
    incoming: str
    inverted: bool
    action: int
    table: int
    suppress: int
    unknown: t.Tuple[Unknown, ...]


#: source, destination
_Box = t.Tuple[Spans, Spans]
_Doubt = t.Tuple[Unknown, ...]


class Lookups:
    """The routing of a node, for one family."""

    def __init__(
        self,
        routing: Routing,
        links: t.Sequence[Link],
        family: Family,
        settings: t.Optional[t.Mapping[str, str]] = None,
        neighbours: t.Iterable[t.Tuple[int, str]] = (),
    ) -> None:
        """Read the routing of a node.

        :param neighbours: that are known, each as a link and an address.
        """
        self.family = family
        self._top = family.highest
        self._all: Spans = ((0, family.highest),)
        self._links = {link.index: link for link in links}
        self._by_name = {link.name: link for link in links}
        self._settings = settings or {}
        self._ports = ports(links)
        #: by the port of a bridge
        self._neighbours: t.Dict[int, t.List[t.Any]] = {}
        for link, address in neighbours:
            if link in self._ports:
                self._neighbours.setdefault(link, []).append(ipaddress.ip_address(address))
        self._all_addresses: t.Dict[int, t.List[int]] = {}
        self._addresses = self._read_addresses(routing)
        self._selectors = [self._selector(body) for body in routing.rules if body[0] == family.number]
        self._tables = self._read_routes(routing)
        self._partition = functools.lru_cache(maxsize=None)(self._partitioned)

    # what others need to know

    @property
    def marks_tested(self) -> int:
        """The bits of marks that routing rules test."""
        found = 0
        for selector in self._selectors:
            found |= selector.mask
        return found

    def signature(self, link: str) -> t.Tuple[t.Any, ...]:
        """Return by which properties of a link the routing rules differ."""
        return tuple(selector.incoming == link for selector in self._selectors if selector.incoming)

    def addresses_of(self, link: str) -> t.Tuple[int, ...]:
        """Return the addresses of a link, in their order."""
        known = self._by_name.get(link)
        return tuple(one[0] for one in self._addresses.get(known.index, ())) if known else ()

    def accepted(self, outcome: t.Optional[RouteOutcome]) -> Spans:
        """Return the addresses that count as the node's for what a route leads to: of the link, or preferred.

        :param outcome: None: all addresses count, as for packets of the node itself.
        """
        found = [] if outcome is None or outcome.preferred is None else [outcome.preferred]
        for index, listed in self._all_addresses.items():
            if outcome is None or (index in self._links and self._links[index].name == outcome.link):
                found += listed
        return intervals.of((one, one) for one in found)

    def types(self) -> t.Dict[int, Spans]:
        """Return the addresses of each type of inet_addr_type(): RTN_LOCAL, RTN_BROADCAST and so on.

        The rest of the addresses is RTN_UNICAST. A type of IPv6 that needs a lookup (RTN_UNREACHABLE) is not there.
        """
        found: t.Dict[int, t.List[t.Tuple[int, int]]] = {LOCAL: [], BROADCAST: [], ANYCAST: []}
        found[MULTICAST] = [(0xE0000000, 0xEFFFFFFF) if self.family == IPV4 else (0xFF << 120, self._top)]
        if self.family == IPV4:
            # Before Linux 5.3 all of 0.0.0.0/8, which no node forwarded then.
            found[BROADCAST] += [(0, 0), (self._top, self._top)]
        others = intervals.complement(intervals.of(span for one in found.values() for span in one), self._top)
        for entry, part in self._partition(TABLE_LOCAL).divide(others):
            if entry is not None and entry.kind in found:
                found[entry.kind] += part
        result = {kind: intervals.of(parts) for kind, parts in found.items()}
        taken = intervals.of(span for one in result.values() for span in one)
        result[UNICAST] = intervals.complement(taken, self._top)
        return result

    def compared(self) -> t.Iterator[Spans]:
        """Return the addresses that routing rules compare."""
        for selector in self._selectors:
            yield from (selector.source, selector.destination)

    def starts(self) -> t.Set[int]:
        """Return the addresses from which on the tables may have something else."""
        return {start for table in self._tables for start in self._partition(table).starts}

    def entries(self, address: int) -> t.Tuple[int, ...]:
        """Return what the tables have for an address: numbers that are equal where they have the same."""
        return tuple(id(self._partition(table).of(address)) for table in self._tables)

    # lookups

    def forward(self, source: Spans, destination: Spans, mark: int, mark_unknown: int, link: str) -> t.List[RoutePart]:
        """Look up packets that came in over a link, with what they have after a translation of their destination."""
        found: t.List[RoutePart] = []
        work: t.List[t.Tuple[int, _Box, _Doubt]] = [(0, (source, destination), ())]
        while work:
            place, box, unknown = work.pop()
            if place >= len(self._selectors):
                found.append(RoutePart(*box, RouteOutcome(NO_ROUTE), False, unknown))
                continue
            selector = self._selectors[place]
            meant, others = self._divide(selector, box, mark, mark_unknown, link)
            passed = [(one, unknown) for one in others]
            for one, doubt in meant:
                goes_on = list(self._act(selector, one, unknown + doubt, found))
                passed += [(one, unknown + doubt)] if doubt else goes_on
            work += [(place + 1, *one) for one in passed]
        return found

    def output(self, destination: Spans) -> t.List[RoutePart]:
        """Look up packets that the node itself sends on, without a source of their own: those of IPVS."""
        return self.forward(((0, 0),), destination, 0, 0, "lo")

    def filters_sources(self, link: str) -> bool:
        """Return whether packets that come in over a link are dropped by the route back to their source (rp_filter)."""
        if self.family != IPV4:
            return False
        # The higher value of both counts (IN_DEV_RPFILTER in linux/inetdevice.h).
        return any(self._settings.get("ipv4/conf/%s/rp_filter" % one, "0") != "0" for one in (link, "all"))

    def back(self, source: Spans, destination: Spans, mark: int, mark_unknown: int, link: str) -> t.List[Back]:
        """Divide packets by the route back to their source, as fib_validate_source() looks it up.

        Packets of one part are treated alike, with any setting of the filter.
        """
        if all(self._settings.get("ipv4/conf/%s/src_valid_mark" % one, "0") == "0" for one in (link, "all")):
            mark = mark_unknown = 0
        found: t.Dict[_Box, t.List[RoutePart]] = {}
        for part in self.forward(destination, source, mark, mark_unknown, "lo"):
            found.setdefault((part.destination, part.source), []).append(part)
        result = []
        for (mine, receivers), parts in found.items():
            kinds = {part.outcome.kind for part in parts}
            comes_back = any(part.outcome.link == link for part in parts)
            unknown = tuple(one for part in parts for one in part.unknown)
            result.append(Back(mine, receivers, (tuple(sorted(kinds)), comes_back), unknown))
        return result

    def _divide(
        self, selector: _Selector, box: _Box, mark: int, mark_unknown: int, link: str
    ) -> t.Tuple[t.List[t.Tuple[_Box, _Doubt]], t.List[_Box]]:
        """Return the packets that a rule means, each with why it may not mean them after all, and the others."""
        doubt = selector.unknown
        source, destination = box
        # Most rules are for all addresses: of many spans that is not to be found out one by one.
        mine = source if selector.source == self._all else regions.meet(source, selector.source)
        whole = selector.destination == self._all
        receivers = destination if whole else regions.meet(destination, selector.destination)
        differs = (mark ^ selector.mark) & selector.mask & ~mark_unknown
        meant: t.List[_Box] = []
        others: t.List[_Box] = [box]
        if mine and receivers and not differs and selector.incoming in ("", link):
            meant = [(mine, receivers)]
            others = [] if mine is source else [(regions.minus(source, mine), destination)]
            others += [] if receivers is destination else [(mine, regions.minus(destination, receivers))]
        if selector.mask & mark_unknown and not differs:
            doubt += (Unknown(selector.place, "a mark that is not known"),)
        if not selector.inverted:
            return [(one, doubt) for one in meant], others
        # What fails a condition is meant by the inversion, whatever the mark is.
        certain = [(one, selector.unknown) for one in others]
        return (certain + [(one, doubt) for one in meant], []) if doubt else (certain, meant)

    def _act(
        self, selector: _Selector, box: _Box, unknown: _Doubt, found: t.List[RoutePart]
    ) -> t.Iterator[t.Tuple[_Box, _Doubt]]:
        """Add what becomes of packets that a rule means. Return those that go on to the next rule."""
        source, destination = box
        if selector.action in _ACTIONS:
            found.append(RoutePart(*box, RouteOutcome(_ACTIONS[selector.action]), False, unknown))
            return
        for entry, part in self._partition(selector.table).divide(destination):
            if entry is None:
                yield (source, part), unknown
                continue
            known = unknown + entry.unknown
            suppressed = entry.length <= selector.suppress and entry.kind not in (BLACKHOLE, UNREACHABLE, PROHIBIT)
            passes = entry.kind == THROW or suppressed
            if passes or entry.unknown:
                yield (source, part), known
            if not passes:
                several = len(entry.outcomes) > 1
                found.extend(RoutePart(source, part, outcome, several, known) for outcome in entry.outcomes)

    # reading

    def _read_addresses(self, routing: Routing) -> t.Dict[int, t.List[t.Tuple[int, int]]]:
        """Read the addresses of each link, each with its prefix length; of IPv4 without secondary addresses."""
        found: t.Dict[int, t.List[t.Tuple[int, int]]] = {}
        for one in addresses(routing):
            if one.address.version == self.family.version:
                self._all_addresses.setdefault(one.link, []).append(int(one.address))
                if self.family != IPV4 or not one.flags & _SECONDARY:
                    found.setdefault(one.link, []).append((int(one.address), one.network.prefixlen))
        return found

    def _read_routes(self, routing: Routing) -> t.Dict[int, t.List[t.Tuple[Spans, _Entry]]]:
        """Read the entries of each table, the most specific last."""
        alike: t.Dict[t.Tuple[int, int, int], t.List[_Entry]] = {}
        for route in routes(routing):
            prefix = route.destination
            # A path that is passed over for lack of a carrier is called dead too.
            if prefix.version == self.family.version and not route.flags & (_CLONED | _DEAD):
                read = self._route(route)
                if read is not None:
                    key = (prefix.prefixlen, int(prefix.network_address), route.table)
                    alike.setdefault(key, []).append(read)
        # Suppression compares the length of the prefix: only there can a length make a difference.
        lengths = any(selector.suppress >= 0 for selector in self._selectors)
        kept: t.Dict[_Entry, _Entry] = {}
        # Until the first routing rule is added the kernel has one tree for main and local: the narrowest route counts.
        shared: t.List[Spans] = []
        found: t.Dict[int, t.List[t.Tuple[Spans, _Entry]]] = {}
        for (bits, first, table), members in sorted(alike.items(), key=lambda one: one[0]):
            entry = self._entry(members, bits if lengths else 0)
            prefix = self._prefix(first, bits)
            found.setdefault(table, []).append((prefix, kept.setdefault(entry, entry)))
            if table == TABLE_MAIN and self.family == IPV4 and any(intervals.contains(wide, first) for wide in shared):
                doubt = Unknown("the route to %s/%d" % (self.family.address(first), bits), "a wider local route")
                found[TABLE_LOCAL].append((prefix, entry._replace(unknown=(*entry.unknown, doubt))))
            elif table == TABLE_LOCAL and entry.kind == LOCAL and bits < 32 and len(self._selectors) == 3:
                shared.append(prefix)
        if self.family == IPV4:
            # No route has the address of all hosts on any link: a node receives it.
            everybody = _Entry(BROADCAST, (RouteOutcome(TO_NODE),), ())
            found.setdefault(TABLE_LOCAL, []).append((((self._top, self._top),), everybody))
        return found

    def _route(self, route: Route) -> t.Optional[_Entry]:
        """Return a route that can be taken; None if all its paths are dead."""
        reasons = list(_strange(route.attributes, conditions.ROUTE, _OF_ROUTES))
        if route.tos:
            reasons.append("the TOS of a route")
        if not UNICAST <= route.kind <= THROW:
            reasons.append("the type %d" % route.kind)
        outcomes: t.Dict[RouteOutcome, None] = {}
        if route.kind != UNICAST:
            outcomes[RouteOutcome(_KINDS.get(route.kind, NO_ROUTE))] = None
        elif not route.paths:
            reasons.append("a route without a link")
        else:
            for path in route.paths:
                if path.attributes is not route.attributes:
                    reasons += _strange(path.attributes, conditions.ROUTE, _OF_ROUTES)
                kind = LEAVES
                if path.link in self._ports:
                    known = self._is_known(path, route.destination)
                    reasons += [_AT_PORT % self._links[path.link].name] if known else []
                    kind = LEAVES if known else UNANSWERED
                if not path.flags & _DEAD:
                    outcomes[self._outcome(kind, path, route.attributes.get(RTA_PREFERRED))] = None
        if not outcomes and not reasons:
            return None
        # What is not understood may be asked for before the priority, as a TOS and a source are.
        priority = -1 if reasons else netlink.native(route.attributes.get(_RTA_PRIORITY))
        place = "the route to %s in table %d" % (route.destination, route.table)
        unknown = tuple(Unknown(place, reason) for reason in reasons)
        return _Entry(route.kind, tuple(outcomes), unknown, priority)

    def _is_known(self, path: Path, destination: t.Any) -> bool:
        """Return whether packets may leave by the port of a bridge: to a neighbour that is known there already."""
        known = self._neighbours.get(path.link, ())
        near = known if path.has_gateway else [address for address in known if address in destination]
        return bool(near or self._links[path.link].flags & NOARP)

    def _outcome(self, kind: str, path: Path, preferred: t.Optional[bytes]) -> RouteOutcome:
        selected: t.Optional[int] = None
        if self.family == IPV4 and RTA_GATEWAY in path.attributes:
            gateway = int.from_bytes(path.attributes[RTA_GATEWAY], "big")
            known = self._addresses.get(path.link, ())
            selected = next((one for one, bits in known if (one ^ gateway) >> (32 - bits) == 0), None)
        name = self._links[path.link].name if path.link in self._links else "#%d" % path.link
        return RouteOutcome(kind, name, int.from_bytes(preferred, "big") if preferred else None, selected)

    def _entry(self, routes: t.Sequence[_Entry], length: int) -> _Entry:
        """Unite the routes to the same prefix: those with the lowest metric count, for IPv4 the first of them."""
        lowest = min(route.priority for route in routes)
        best = [route for route in routes if route.priority == lowest]
        if self.family == IPV4:
            best = best[:1]
        outcomes = dict.fromkeys(outcome for route in best for outcome in route.outcomes)
        unknown = tuple(one for route in best for one in route.unknown)
        return _Entry(best[0].kind, tuple(outcomes) or (RouteOutcome(NO_ROUTE),), unknown, length=length)

    def _partitioned(self, table: int) -> Partition[t.Optional[_Entry]]:
        """Return the entry of a table that an address is looked up in; equal ones are the same."""
        entries = self._tables.get(table, ())
        places = regions.partition([prefix for prefix, _entry in entries])
        return Partition(places.starts, [entries[each[-1]][1] if each else None for each in places.values])

    def _prefix(self, first: int, bits: int) -> Spans:
        # Of a routing rule the kernel keeps the bits behind the prefix, and does not compare them.
        behind = (1 << (self.family.bits - bits)) - 1
        return ((first & ~behind, first | behind),)

    def _selector(self, body: bytes) -> _Selector:
        _family, to_bits, from_bits, tos, table, _one, _two, action, flags = _HEADER.unpack_from(body)
        known = netlink.attributes(body[_HEADER.size :])
        place = "the routing rule %d" % netlink.native(known.get(_FRA_PRIORITY))
        if netlink.native(known.get(_FRA_SUPPRESS_GROUP)) == ALL_BITS:  # it is not set
            del known[_FRA_SUPPRESS_GROUP]
        reasons = list(_strange(known, conditions.RULE, _OF_RULES))
        if tos:
            reasons.append("the TOS of a packet")
        if flags & ~(_INVERT | _OTHER_FLAGS):
            reasons.append("the flags 0x%x" % flags)
        if action != _TO_TABLE and action not in _ACTIONS:
            reasons.append("the action %d" % action)
        mark = netlink.native(known.get(_FRA_MARK))
        source, destination = (
            self._prefix(int.from_bytes(known.get(number, b""), "big"), bits)
            for number, bits in ((_FRA_SRC, from_bits), (_FRA_DST, to_bits))
        )
        # A forwarded packet has no link yet to leave by; with a VRF, which is not in the copy, all is unknown anyway.
        never = _FRA_OIF in known or any(known.get(_FRA_L3MDEV, b""))
        return _Selector(
            place=place,
            source=() if never else source,
            destination=destination,
            mark=mark,
            mask=netlink.native(known[_FRA_MASK]) if _FRA_MASK in known else (ALL_BITS if mark else 0),
            incoming=netlink.name(known[_FRA_IIF]) if _FRA_IIF in known else "",
            inverted=bool(flags & _INVERT),
            action=action,
            table=netlink.native(known.get(_FRA_TABLE)) or table,
            suppress=struct.unpack("=i", known.get(_FRA_SUPPRESS_LENGTH, b"\xff" * 4))[0],
            unknown=tuple(Unknown(place, reason) for reason in reasons),
        )


def _strange(known: t.Iterable[int], area: str, names: t.Sequence[str]) -> t.Iterator[str]:
    """Return the attributes that are not understood."""
    for number in known:
        name = names[number] if number < len(names) else str(number)
        if not conditions.is_known(area, name):
            yield conditions.because(area, name)
