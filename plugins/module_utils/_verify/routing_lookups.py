# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Routing rules and tables as values: the result of the kernel's lookup for a whole region of packets.

The order of things is that of fib_rules_lookup() (net/core/fib_rules.c): a rule that a packet matches names a table; a
table without a route for it, a route of type throw and a suppressed route lead on to the next rule.
"""

from __future__ import annotations

import struct
import typing as t

from .._system import intervals, netlink
from .._system.families import IPV4, Family
from .._system.intervals import Spans
from .._system.routes import ANYCAST, BLACKHOLE, BROADCAST, LOCAL, MULTICAST, PROHIBIT, THROW, UNICAST, UNREACHABLE
from .._twin.links import Link
from .._twin.routing import Routing
from . import conditions, regions
from .regions import Partition
from .rules import ALL_BITS, MAX_PORT, MAX_SERVICE, PROTOCOL_NUMBERS, WITH_PORTS

#: FRA_* (linux/fib_rules.h)
_FRA_DST, _FRA_SRC, _FRA_IIF, _FRA_GOTO, _FRA_PRIORITY, _FRA_MARK = 1, 2, 3, 4, 6, 10
_FRA_SUPPRESS_GROUP, _FRA_SUPPRESS_LENGTH, _FRA_TABLE, _FRA_MASK, _FRA_OIF, _FRA_L3MDEV = 13, 14, 15, 16, 17, 19
_FRA_IP_PROTO, _FRA_SPORT, _FRA_DPORT, _FRA_DSCP, _FRA_SPORT_MASK, _FRA_DPORT_MASK = 22, 23, 24, 25, 28, 29
_OF_RULES = tuple(conditions.AREAS[conditions.RULE].entries.values())
#: FR_ACT_*
_TO_TABLE, _GOTO, _NOP, _BLACKHOLE, _UNREACHABLE, _PROHIBIT = 1, 2, 3, 6, 7, 8
_INVERT, _UNRESOLVED, _IIF_DETACHED = 0x2, 0x4, 0x8
#: FIB_RULE_PERMANENT, FIB_RULE_OIF_DETACHED; FIB_RULE_FIND_SADDR is about packets without a source
_OTHER_FLAGS = 0x1 | 0x10 | 0x10000

#: RTA_* (linux/rtnetlink.h)
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_MULTIPATH = 1, 2, 4, 5, 6, 7, 9
_RTA_FLOW, _RTA_TABLE, _RTA_VIA, _RTA_PAD, _RTA_NH_ID = 11, 15, 18, 24, 30
#: the attributes of a route that are understood
_OF_ROUTES = frozenset(
    number
    for number, found in enumerate(conditions.AREAS[conditions.ROUTE].entries.values())
    if found.kind != conditions.UNKNOWN
)
#: of a path of a route
_PATH_ATTRIBUTES = frozenset((_RTA_GATEWAY, _RTA_VIA, _RTA_FLOW, _RTA_PAD))

#: A lookup that comes to these finds nothing.
_NO_TYPES = frozenset((BLACKHOLE, UNREACHABLE, PROHIBIT, THROW))

#: NHA_* (linux/nexthop.h)
_NHA_ID, _NHA_GROUP, _NHA_BLACKHOLE, _NHA_OIF, _NHA_GATEWAY = 1, 2, 4, 5, 6
#: those above, how a member of a group is chosen (3, 12), and how often each was used (14 to 17)
_OF_NEXTHOPS = frozenset((1, 2, 3, 4, 5, 6, 12, 14, 15, 16, 17))

_HEADER = struct.Struct("=BBBBBBBBI")
_IFA = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NEXTHOP = struct.Struct("=HBBi")
_NHM_SIZE = 8
#: RTNH_F_DEAD, RTNH_F_LINKDOWN, RTM_F_CLONED
_DEAD, _LINK_DOWN, _CLONED = 0x1, 0x10, 0x200
_TABLE_LOCAL = 255
_SECONDARY = 0x01

#: What becomes of a packet. A packet without a route in any rule has none.
LEAVES = "leaves"
TO_NODE = "local"
NO_ROUTE = "none"
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
_FILTER = "the reverse path filter (rp_filter)"
_ACTIONS = {_BLACKHOLE: "blackhole", _UNREACHABLE: "unreachable", _PROHIBIT: "prohibit"}


class Unknown(t.NamedTuple):
    """What is not understood. ``place`` is a rule of netfilter (``rules.Ref``), or words for another thing."""

    place: t.Any
    reason: str


class Outcome(t.NamedTuple):
    """Where a route leads. ``link`` is a name; ``preferred`` the source that the route prefers.

    ``selected`` is the address that MASQUERADE takes because the gateway is in its network; None if that is not so
    simple. ``gateway`` is an example: routes that differ in nothing else are one outcome.
    """

    kind: str
    link: str = ""
    preferred: t.Optional[int] = None
    selected: t.Optional[int] = None
    gateway: t.Optional[int] = None


class Part(t.NamedTuple):
    """Some of the packets of a lookup, and what becomes of them. With ``chance`` others are possible too."""

    source: Spans
    destination: Spans
    service: Spans
    source_port: Spans
    outcome: Outcome
    chance: bool = False
    unknown: t.Tuple[Unknown, ...] = ()


class Back(t.NamedTuple):
    """Some packets, and what the route back to their source is like."""

    source: Spans
    destination: Spans
    like: t.Tuple[t.Any, ...]
    unknown: t.Tuple[Unknown, ...] = ()


class _Entry(t.NamedTuple):
    """The routes to one prefix from one prefix of sources: what they lead to, one of which is taken."""

    length: int
    outcomes: t.Tuple[Outcome, ...]
    #: None: all
    source: t.Optional[Spans]
    on: bool = False
    fails: bool = False
    unknown: t.Tuple[Unknown, ...] = ()
    #: RTN_*
    kind: int = UNICAST


class _Selector(t.NamedTuple):
    """One routing rule. ``conditions`` are pairs of a place in a box and spans."""

    place: str
    conditions: t.Tuple[t.Tuple[int, Spans], ...]
    mark: int
    mask: int
    incoming: t.Optional[str]
    never: bool
    inverted: bool
    by_vrf: bool
    action: int
    table: int
    goto: int
    suppress: int
    priority: int
    unknown: t.Tuple[Unknown, ...]


#: source, destination, service, source port
_Box = t.Tuple[Spans, Spans, Spans, Spans]


class Lookups:
    """The routing of a node, for one family."""

    def __init__(
        self,
        routing: Routing,
        links: t.Sequence[Link],
        family: Family,
        settings: t.Optional[t.Mapping[str, str]] = None,
    ) -> None:
        self.family = family
        self._top = family.highest
        self._links = {link.index: link for link in links}
        self._by_name = {link.name: link for link in links}
        self._settings = settings or {}
        self._nexthops = {}
        for body in routing.nexthops:
            known = netlink.attributes(body[_NHM_SIZE:])
            if _NHA_ID in known:
                self._nexthops[_word(known[_NHA_ID])] = (known, struct.unpack_from("=I", body, 4)[0])
        self._addresses = self._read_addresses(routing)
        self._outcomes: t.Dict[t.Tuple[t.Any, ...], Outcome] = {}
        self._routes = self._read_routes(routing)
        self._rules = [body for body in routing.rules if body[0] == self.family.number]
        self._selectors = list(map(self._selector, self._rules))
        self._partitions: t.Dict[int, Partition[t.Tuple[_Entry, ...]]] = {}

    # what others need to know

    @property
    def marks_tested(self) -> int:
        """The bits of marks that routing rules test."""
        found = 0
        for selector in self._selectors:
            found |= selector.mask
        return found

    @property
    def tos_tested(self) -> bool:
        """Whether a routing rule matches the TOS or DSCP of packets."""
        return any(body[3] or _FRA_DSCP in netlink.attributes(body[_HEADER.size :]) for body in self._rules)

    def signature(self, link: str) -> t.Tuple[t.Any, ...]:
        """Return by which properties of a link the routing rules differ."""
        vrf = self._vrf(link)
        named = tuple(self._comes_over(selector.incoming, link) for selector in self._selectors if selector.incoming)
        return (*named, vrf.index if vrf else 0)

    def addresses_of(self, link: str) -> t.Tuple[int, ...]:
        """Return the addresses of a link, in their order."""
        known = self._by_name.get(link)
        return tuple(one[0] for one in self._addresses.get(known.index, ())) if known else ()

    def types(self) -> t.Dict[int, Spans]:
        """Return the addresses of each type of inet_addr_type(): RTN_LOCAL, RTN_BROADCAST and so on.

        The rest of the addresses is RTN_UNICAST. A type of IPv6 that needs a lookup (RTN_UNREACHABLE) is not there.
        """
        found: t.Dict[int, t.List[t.Tuple[int, int]]] = {}
        everything: Spans = ((0, self._top),)
        fixed: t.Dict[int, Spans]
        if self.family == IPV4:
            fixed = {BROADCAST: ((0, 0xFFFFFF), (self._top, self._top)), MULTICAST: ((0xE0000000, 0xEFFFFFFF),)}
        else:
            fixed = {MULTICAST: ((0xFF << 120, self._top),)}
        closed = intervals.of(span for one in fixed.values() for span in one)
        for number, one in fixed.items():
            found.setdefault(number, []).extend(one)
        for entries, part in self._partition(_TABLE_LOCAL).divide(regions.minus(everything, closed)):
            kind = self._kind_of(entries)
            if kind is not None and kind != UNICAST and kind not in _NO_TYPES:
                found.setdefault(kind, []).extend(part)
        result = {kind: intervals.of(parts) for kind, parts in found.items()}
        taken = intervals.of(span for one in result.values() for span in one)
        result[UNICAST] = intervals.complement(taken, self._top)
        for kind in (LOCAL, BROADCAST, ANYCAST, MULTICAST):
            result.setdefault(kind, ())
        return result

    @staticmethod
    def _kind_of(entries: t.Tuple[_Entry, ...]) -> t.Optional[int]:
        for entry in entries:
            if entry.source is None:
                return entry.kind
        return None

    # lookups

    def forward(self, box: _Box, mark: int, mark_unknown: int, link: str) -> t.List[Part]:
        """Look up packets that came in over a link, with what they have after a translation of their destination."""
        return self._look_up(box, mark, mark_unknown, link)

    def output(self, destination: Spans) -> t.List[Part]:
        """Look up packets that the node itself sends on, without a source of their own: those of IPVS."""
        nothing: Spans = ((0, 0),)
        return self._look_up((nothing, destination, nothing, nothing), 0, 0, "lo")

    def filters_sources(self, link: str) -> bool:
        """Return whether packets that come in over a link are dropped by the route back to their source (rp_filter)."""
        if self.family != IPV4:
            return False
        # The higher value of both counts (IN_DEV_RPFILTER in linux/inetdevice.h).
        return any(self._settings.get("ipv4/conf/%s/rp_filter" % one, "0") != "0" for one in (link, "all"))

    def back(self, source: Spans, destination: Spans, mark: int, mark_unknown: int, link: str) -> t.List[Back]:
        """Divide packets by the route back to their source, as fib_validate_source() looks it up.

        Packets of one part are treated alike, with any setting of the filter. Ports and protocols count only where a
        routing rule matches them; a packet may then be treated one way or the other.
        """
        if self._settings.get("ipv4/conf/%s/src_valid_mark" % link, "0") == "0":
            if self._settings.get("ipv4/conf/all/src_valid_mark", "0") == "0":
                mark = mark_unknown = 0
        everything: Spans = ((0, MAX_SERVICE),)
        found: t.Dict[t.Tuple[Spans, Spans], t.List[Part]] = {}
        for part in self._look_up((destination, source, everything, ((0, MAX_PORT),)), mark, mark_unknown, "lo"):
            found.setdefault((part.destination, part.source), []).append(part)
        result = []
        for (mine, receivers), parts in found.items():
            unknown = tuple(one for part in parts for one in part.unknown)
            by_path = all(part.chance for part in parts)
            kinds = {part.outcome.kind for part in parts}
            links = {part.outcome.link for part in parts}
            if self._vrf(link) is not None:
                unknown += (Unknown(_FILTER, "a VRF"),)
            elif len(parts) > 1 and not by_path:
                unknown += (Unknown(_FILTER, "a routing rule that matches ports or protocols"),)
            result.append(Back(mine, receivers, (tuple(sorted(kinds)), link in links), unknown))
        return result

    def _look_up(self, box: _Box, mark: int, mark_unknown: int, link: str) -> t.List[Part]:
        found: t.List[Part] = []
        vrf = self._vrf(link)
        work: t.List[t.Tuple[int, _Box, t.Tuple[Unknown, ...]]] = [(0, box, ())]
        while work:
            place, now, unknown = work.pop()
            if place >= len(self._selectors):
                found.append(Part(*now, self._outcome(NO_ROUTE), False, unknown))
                continue
            selector = self._selectors[place]
            meant, others = self._divide(selector, now, mark, mark_unknown, link, vrf)
            for one in others:
                work.append((place + 1, one, unknown))
            for one, doubt in meant:
                if doubt:
                    work.append((place + 1, one, unknown + doubt))
                self._act(selector, place, one, unknown + doubt, vrf, found, work)
        return found

    def _divide(
        self,
        selector: _Selector,
        box: _Box,
        mark: int,
        mark_unknown: int,
        link: str,
        vrf: t.Optional[Link],
    ) -> t.Tuple[t.List[t.Tuple[_Box, t.Tuple[Unknown, ...]]], t.List[_Box]]:
        """Return the packets that a rule means, each with why it may not mean them after all, and the others."""
        doubt = selector.unknown
        may = not selector.never
        if (mark ^ selector.mark) & selector.mask & ~mark_unknown:
            may = False
        elif selector.mask & mark_unknown:
            doubt += (Unknown(selector.place, "a mark that is not known"),)
        if selector.incoming is not None:
            comes = self._comes_over(selector.incoming, link)
            may = may and comes is not False
            if comes is None:
                doubt += (Unknown(selector.place, "the interface of a port of a VRF"),)
        if selector.by_vrf and vrf is None:
            may = False
        meant: t.List[_Box] = []
        others: t.List[_Box] = [box]
        if may:
            fields = list(box)
            pieces = []
            for field, allowed in selector.conditions:
                both = regions.meet(fields[field], allowed)
                if not both:
                    break
                if both is not fields[field]:
                    rest = list(fields)
                    rest[field] = regions.minus(fields[field], allowed)
                    pieces.append(tuple(rest))
                    fields[field] = both
            else:
                meant = [t.cast(_Box, tuple(fields))]
                others = t.cast(t.List[_Box], pieces)
        if not selector.inverted:
            return [(one, doubt) for one in meant], others
        # What fails a condition that is understood is meant for certain by the inversion.
        certain: t.List[t.Tuple[_Box, t.Tuple[Unknown, ...]]] = [(one, ()) for one in others]
        return (certain + [(one, doubt) for one in meant], []) if doubt else (certain, meant)

    def _act(
        self,
        selector: _Selector,
        place: int,
        box: _Box,
        unknown: t.Tuple[Unknown, ...],
        vrf: t.Optional[Link],
        found: t.List[Part],
        work: t.List[t.Tuple[int, _Box, t.Tuple[Unknown, ...]]],
    ) -> None:
        action = selector.action
        if action == _GOTO:
            # A target that is not there is passed over.
            target = place + 1
            for number, other in enumerate(self._selectors):
                if number > place and other.priority == selector.goto:
                    target = number
                    break
            work.append((target, box, unknown))
        elif action == _NOP:
            work.append((place + 1, box, unknown))
        elif action in _ACTIONS:
            found.append(Part(*box, self._outcome(_ACTIONS[action]), False, unknown))
        elif action == _TO_TABLE:
            table = vrf.vrf_table if selector.by_vrf and vrf is not None else selector.table
            self._ask_table(table, selector.suppress, place, box, unknown, found, work)
        else:
            unknown += (Unknown(selector.place, "the action %d" % action),)
            work.append((place + 1, box, unknown))

    def _ask_table(
        self,
        table: int,
        suppress: int,
        place: int,
        box: _Box,
        unknown: t.Tuple[Unknown, ...],
        found: t.List[Part],
        work: t.List[t.Tuple[int, _Box, t.Tuple[Unknown, ...]]],
    ) -> None:
        for entries, destination in self._partition(table).divide(box[1]):
            source = box[0]
            for entry in entries:
                mine = source if entry.source is None else regions.meet(source, entry.source)
                if not mine:
                    continue
                here = (mine, destination, box[2], box[3])
                known = unknown + entry.unknown
                if entry.unknown:
                    work.append((place + 1, here, known))
                if entry.on or (entry.length <= suppress and not entry.fails):
                    work.append((place + 1, here, known))
                else:
                    several = len(entry.outcomes) > 1
                    found.extend(Part(*here, outcome, several, known) for outcome in entry.outcomes)
                source = () if entry.source is None else regions.minus(source, entry.source)
                if not source:
                    break
            if source:
                work.append((place + 1, (source, destination, box[2], box[3]), unknown))

    def _vrf(self, link: str) -> t.Optional[Link]:
        known = self._by_name.get(link)
        master = self._links.get(known.master) if known is not None and known.master else None
        return master if master is not None and master.kind == "vrf" else None

    def _comes_over(self, selected: str, link: str) -> t.Optional[bool]:
        """Return whether a selector means a link. Kernels differ about ports of a VRF: None if it names one."""
        vrf = self._vrf(link)
        if vrf is not None and selected in (link, vrf.name):
            return None
        return selected == link

    # reading

    def _read_addresses(self, routing: Routing) -> t.Dict[int, t.List[t.Tuple[int, int]]]:
        """Read the addresses of each link, each with its prefix length; of IPv4 without secondary addresses."""
        found: t.Dict[int, t.List[t.Tuple[int, int]]] = {}
        for body in routing.addresses:
            family, bits, flags, _scope, link = _IFA.unpack_from(body)
            if family != self.family.number or (self.family == IPV4 and flags & _SECONDARY):
                continue
            known = netlink.attributes(body[_IFA.size :])
            value = known.get(_IFA_LOCAL, known.get(_IFA_ADDRESS))
            if value:
                found.setdefault(link, []).append((int.from_bytes(value, "big"), bits))
        return found

    def _read_routes(self, routing: Routing) -> t.Dict[int, t.Dict[t.Tuple[int, int], t.List[_Entry]]]:
        """Read the entries of each table by first address and prefix length, the most specific sources first."""
        listed: t.Dict[int, t.Dict[t.Tuple[int, int], t.Dict[t.Tuple[int, int], t.List[_Route]]]] = {}
        for body in routing.routes:
            if body[0] != self.family.number:
                continue
            route = self._route(body)
            if route is not None:
                prefixes = listed.setdefault(route.table, {})
                prefixes.setdefault(route.destination, {}).setdefault(route.source, []).append(route)
        found: t.Dict[int, t.Dict[t.Tuple[int, int], t.List[_Entry]]] = {}
        for table, prefixes in listed.items():
            for prefix, sources in prefixes.items():
                entries = [
                    self._entry(prefix, source, sources[source]) for source in sorted(sources, key=lambda one: -one[1])
                ]
                found.setdefault(table, {})[prefix] = entries
        return found

    def _route(self, body: bytes) -> t.Optional[_Route]:
        _family, bits, source_bits, tos, table, _protocol, _scope, kind, flags = _HEADER.unpack_from(body)
        if flags & _CLONED:
            return None
        known = netlink.attributes(body[_HEADER.size :])
        destination = int.from_bytes(known.get(_RTA_DST, b""), "big")
        table = _word(known[_RTA_TABLE]) if _RTA_TABLE in known else table
        place = "the route to %s in table %d" % (self._network(destination, bits), table)
        unknown = [Unknown(place, "the attribute %d" % number) for number in known if number not in _OF_ROUTES]
        if not UNICAST <= kind <= THROW:
            unknown.append(Unknown(place, "the type %d" % kind))
        outcomes: t.List[Outcome] = []
        preferred = int.from_bytes(known[_RTA_PREFSRC], "big") if _RTA_PREFSRC in known else None
        if kind != UNICAST:
            if flags & _DEAD:
                return None
            outcomes = [self._outcome(_KINDS.get(kind, NO_ROUTE))]
        else:
            for outcome, doubt in self._paths(known, flags, preferred):
                if outcome is not None:
                    outcomes.append(outcome)
                if doubt:
                    unknown.append(Unknown(place, doubt))
            if not outcomes and not unknown:
                return None  # all paths are dead: the kernel looks for another route
        return _Route(
            (destination, bits),
            (int.from_bytes(known.get(_RTA_SRC, b""), "big"), source_bits),
            table,
            kind,
            _word(known[_RTA_PRIORITY]) if _RTA_PRIORITY in known else 0,
            tos,
            tuple(dict.fromkeys(outcomes)) or (self._outcome(NO_ROUTE),),
            tuple(unknown),
        )

    def _paths(
        self, known: netlink.Attributes, flags: int, preferred: t.Optional[int]
    ) -> t.Iterator[t.Tuple[t.Optional[Outcome], str]]:
        """Return the outcome of each path that is alive, and what is not understood of it."""
        if _RTA_NH_ID in known:
            yield from self._by_nexthop(_word(known[_RTA_NH_ID]), preferred, 0)
        elif _RTA_MULTIPATH in known:
            data = known[_RTA_MULTIPATH]
            place = 0
            while place + _NEXTHOP.size <= len(data):
                length, path_flags, _weight, link = _NEXTHOP.unpack_from(data, place)
                if length < _NEXTHOP.size:
                    break
                path = netlink.attributes(data[place + _NEXTHOP.size : place + length])
                strange = [number for number in path if number not in _PATH_ATTRIBUTES]
                doubt = "the attribute %d of a path" % strange[0] if strange else ""
                if self._alive(path_flags, link):
                    yield self._leaves(link, path, preferred), doubt
                place += (length + 3) & ~3
        elif _RTA_OIF in known:
            link = _word(known[_RTA_OIF])
            if self._alive(flags, link):
                yield self._leaves(link, known, preferred), ""
        else:
            yield None, "a route without a link"

    def _by_nexthop(
        self, number: int, preferred: t.Optional[int], depth: int
    ) -> t.Iterator[t.Tuple[t.Optional[Outcome], str]]:
        if number not in self._nexthops or depth > 1:
            yield None, "the nexthop %d" % number
            return
        known, flags = self._nexthops[number]
        strange = [one for one in known if one not in _OF_NEXTHOPS]
        if strange:
            yield None, "the attribute %d of the nexthop %d" % (strange[0], number)
        if _NHA_GROUP in known:
            for (member,) in struct.iter_unpack("=I4x", known[_NHA_GROUP]):
                yield from self._by_nexthop(member, preferred, depth + 1)
        elif _NHA_BLACKHOLE in known:
            yield self._outcome("blackhole"), ""
        elif _NHA_OIF in known:
            link = _word(known[_NHA_OIF])
            if self._alive(flags, link):
                gateway = {_RTA_GATEWAY: known[_NHA_GATEWAY]} if _NHA_GATEWAY in known else {}
                yield self._leaves(link, gateway, preferred), ""
        elif not strange:
            yield None, "the nexthop %d" % number

    def _alive(self, flags: int, link: int) -> bool:
        if flags & _DEAD:
            return False
        if not flags & _LINK_DOWN:
            return True
        known = self._links.get(link)
        name = known.name if known is not None else "all"
        setting = "%s/conf/%%s/ignore_routes_with_linkdown" % self.family
        return "1" not in (self._settings.get(setting % name, "0"), self._settings.get(setting % "all", "0"))

    def _leaves(self, link: int, known: netlink.Attributes, preferred: t.Optional[int]) -> Outcome:
        gateway: t.Optional[int] = None
        selected: t.Optional[int] = None
        if _RTA_GATEWAY in known:
            gateway = int.from_bytes(known[_RTA_GATEWAY], "big")
            if self.family == IPV4 and len(known[_RTA_GATEWAY]) == 4:
                selected = next(
                    (
                        address
                        for address, bits in self._addresses.get(link, ())
                        if (address ^ gateway) >> (32 - bits) == 0
                    ),
                    None,
                )
        elif _RTA_VIA in known:
            gateway = int.from_bytes(known[_RTA_VIA][2:], "big")
        known_link = self._links.get(link)
        name = known_link.name if known_link is not None else "#%d" % link
        return self._outcome(LEAVES, name, preferred, selected, gateway)

    def _outcome(
        self,
        kind: str,
        link: str = "",
        preferred: t.Optional[int] = None,
        selected: t.Optional[int] = None,
        gateway: t.Optional[int] = None,
    ) -> Outcome:
        return self._outcomes.setdefault(
            (kind, link, preferred, selected), Outcome(kind, link, preferred, selected, gateway)
        )

    def _entry(self, prefix: t.Tuple[int, int], source: t.Tuple[int, int], routes: t.List[_Route]) -> _Entry:
        """Unite the routes from and to the same prefixes: those with the lowest metric count."""
        unknown: t.Tuple[Unknown, ...] = ()
        table = routes[0].table
        place = "the route to %s in table %d" % (self._network(*prefix), table)
        plain = [route for route in routes if not (self.family == IPV4 and route.tos)]
        if len(plain) < len(routes):
            unknown += (Unknown(place, "the TOS of a route"),)
        best = [route for route in plain if route.priority == min(one.priority for one in plain)]
        if self.family == IPV4:
            best = best[:1]
        outcomes: t.Dict[Outcome, None] = {}
        for route in best:
            unknown += route.unknown
            outcomes.update(dict.fromkeys(route.outcomes))
        first = best[0] if best else None
        kind = first.kind if first is not None else THROW
        first_address, bits = source
        width = self.family.bits
        return _Entry(
            prefix[1],
            tuple(outcomes) or (self._outcome(NO_ROUTE),),
            None if not bits else ((first_address, first_address | ((1 << (width - bits)) - 1)),),
            kind == THROW,
            kind in (BLACKHOLE, UNREACHABLE, PROHIBIT),
            unknown,
            kind,
        )

    def _partition(self, table: int) -> Partition[t.Tuple[_Entry, ...]]:
        """Return the entries of a table that an address is looked up in, in turn; equal ones are the same."""
        if table not in self._partitions:
            self._partitions[table] = self._make_partition(table)
        return self._partitions[table]

    def _make_partition(self, table: int) -> Partition[t.Tuple[_Entry, ...]]:
        width = self.family.bits
        # Suppression compares the length of the prefix: only there can a length make a difference.
        lengths = any(selector.suppress >= 0 for selector in self._selectors)
        kept: t.Dict[t.Tuple[t.Any, ...], t.Tuple[_Entry, ...]] = {}

        def same(entries: t.Tuple[_Entry, ...]) -> t.Tuple[_Entry, ...]:
            key = entries if lengths else tuple(entry._replace(length=0) for entry in entries)
            return kept.setdefault(key, entries)

        nothing = same(())
        starts: t.List[int] = [0]
        values: t.List[t.Tuple[_Entry, ...]] = [nothing]

        def begin(at: int, value: t.Tuple[_Entry, ...]) -> None:
            if at > self._top or value is values[-1]:
                return
            if starts[-1] == at:
                values[-1] = value
                if len(values) > 1 and values[-2] is value:
                    starts.pop()
                    values.pop()
            else:
                starts.append(at)
                values.append(value)

        around: t.List[t.Tuple[int, t.Tuple[_Entry, ...]]] = []
        for (first, bits), entries in sorted(self._routes.get(table, {}).items()):
            last = first | ((1 << (width - bits)) - 1)
            while around and around[-1][0] < first:
                end, _value = around.pop()
                begin(end + 1, around[-1][1] if around else nothing)
            below = around[-1][1] if around else ()
            mine = tuple(entries)
            value = same(mine if mine[-1].source is None else mine + below)
            begin(first, value)
            around.append((last, value))
        while around:
            end, _value = around.pop()
            begin(end + 1, around[-1][1] if around else nothing)
        return Partition(starts, values)

    def _network(self, first: int, bits: int) -> str:
        address = self.family.address(first)
        return "%s/%d" % (address, bits)

    def _selector(self, body: bytes) -> _Selector:
        _family, to_bits, from_bits, tos, table, _one, _two, action, flags = _HEADER.unpack_from(body)
        known = netlink.attributes(body[_HEADER.size :])
        priority = _word(known[_FRA_PRIORITY]) if _FRA_PRIORITY in known else 0
        place = "the routing rule %d" % priority
        unknown = []
        for number in known:
            if number >= len(_OF_RULES):
                unknown.append(Unknown(place, "the attribute %d" % number))
                continue
            unset = number == _FRA_SUPPRESS_GROUP and _word(known[number]) == ALL_BITS
            if _OF_RULES[number].kind == conditions.UNKNOWN and not unset:
                unknown.append(Unknown(place, _OF_RULES[number].text))
        if tos:
            unknown.append(Unknown(place, "the TOS of a packet"))
        if flags & ~(_INVERT | _UNRESOLVED | _IIF_DETACHED | _OTHER_FLAGS):
            unknown.append(Unknown(place, "the flags 0x%x" % flags))
        suppress = _signed(known[_FRA_SUPPRESS_LENGTH]) if _FRA_SUPPRESS_LENGTH in known else -1
        mark = _word(known[_FRA_MARK]) if _FRA_MARK in known else 0
        mask = _word(known[_FRA_MASK]) if _FRA_MASK in known else (ALL_BITS if mark else 0)
        return _Selector(
            place=place,
            conditions=tuple(self._conditions(known, from_bits, to_bits)),
            mark=mark,
            mask=mask,
            incoming=netlink.name(known[_FRA_IIF]) if _FRA_IIF in known else None,
            never=bool(flags & _IIF_DETACHED) or _FRA_OIF in known,
            inverted=bool(flags & _INVERT),
            by_vrf=known.get(_FRA_L3MDEV, b"\0")[:1] != b"\0",
            action=action,
            table=_word(known[_FRA_TABLE]) if _FRA_TABLE in known else table,
            goto=_word(known[_FRA_GOTO]) if _FRA_GOTO in known and not flags & _UNRESOLVED else -1,
            suppress=suppress,
            priority=priority,
            unknown=tuple(unknown),
        )

    def _conditions(self, known: netlink.Attributes, from_bits: int, to_bits: int) -> t.Iterator[t.Tuple[int, Spans]]:
        width = self.family.bits
        for field, number, bits in ((0, _FRA_SRC, from_bits), (1, _FRA_DST, to_bits)):
            if bits:
                first = int.from_bytes(known.get(number, b""), "big")
                yield field, ((first, first | ((1 << (width - bits)) - 1)),)
        protocols: t.Tuple[int, ...] = PROTOCOL_NUMBERS
        chosen = known.get(_FRA_IP_PROTO, b"\0")[0]
        if chosen:
            protocols = (chosen,)
        ports = _ports(known, _FRA_DPORT, _FRA_DPORT_MASK)
        source_ports = _ports(known, _FRA_SPORT, _FRA_SPORT_MASK)
        if ports is not None or source_ports is not None:
            protocols = tuple(one for one in protocols if one in WITH_PORTS)
        elif not chosen:
            return
        wanted: Spans = ((0, MAX_PORT),) if ports is None else ports
        yield 2, intervals.of((one << 16 | first, one << 16 | last) for one in protocols for first, last in wanted)
        if source_ports is not None:
            yield 3, source_ports


class _Route(t.NamedTuple):
    """One route of a list. Prefixes are first address and length."""

    destination: t.Tuple[int, int]
    source: t.Tuple[int, int]
    table: int
    kind: int
    priority: int
    tos: int
    outcomes: t.Tuple[Outcome, ...]
    unknown: t.Tuple[Unknown, ...]


def _ports(known: netlink.Attributes, number: int, mask_number: int) -> t.Optional[Spans]:
    if number not in known:
        return None
    first, last = struct.unpack("=HH", known[number][:4])
    mask = struct.unpack("=H", known[mask_number][:2])[0] if mask_number in known else MAX_PORT
    if mask in (0, MAX_PORT):
        return ((first, last),)
    return intervals.of((port, port) for port in range(MAX_PORT + 1) if (port ^ first) & mask == 0)


def _word(value: bytes) -> int:
    return int(struct.unpack("=I", value[:4])[0])


def _signed(value: bytes) -> int:
    return int(struct.unpack("=i", value[:4])[0])
