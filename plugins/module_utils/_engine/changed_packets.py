# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packets two rulesets treat differently: the one answer to it, for what rules mean, effects and connections.

Each decision is a bit. The sources, destinations, services and interfaces that the same decisions match are a class;
the bits that a packet has in all four classes are the decisions that match it, and the lowest of them decides.
"""

from __future__ import annotations

import itertools
import typing as t

from .._policy.values import EXEMPT, MASQUERADE, SKIP, Mark
from .._rules.regions import Partition, partition
from .._rules.rules import Match
from .._system import intervals
from .._system.families import BY_VERSION, PROTOCOLS, Family
from .._system.intervals import Spans
from .._system.services import MAX_SERVICE, span
from . import mark_sets
from .mark_sets import MarkSet
from .ruleset import DROP, MULTICAST, SERVICE_MARKS, Decision, Masquerade, PolicyMatch, Ruleset

#: Beside SKIP, EXEMPT and MASQUERADE: rules that could not be read decide; a packet does not leave.
UNKNOWN, DROPPED = "unknown", "dropped"

#: The end of an interface's name that no pattern has.
_NO_NAME = "\0"

#: More decisions, or more groups of packets, than any policy has are not compared by what they do.
_COMPARED_DECISIONS = 1000
_COMPARED_GROUPS = 10000


class ChangedVerdict(t.NamedTuple):
    """What a decision does with packets."""

    action: str
    #: first and last address of those with which MASQUERADE replaces the source; None: that of the interface
    address: t.Optional[t.Tuple[int, int]] = None
    #: of EXEMPT: how strongly
    exemption: str = ""
    #: of MASQUERADE, where ports matter: what ``ToldPorts`` returns
    ways: t.Tuple[t.Any, ...] = ()

    @property
    def applied(self) -> ChangedVerdict:
        """The same for packets: later rules see what RETURN exempts, as if no rule had matched."""
        return SKIPPED if self.exemption == "RETURN" else self


SKIPPED = ChangedVerdict(SKIP)
_UNREAD = ChangedVerdict(UNKNOWN)
_DROPPED = ChangedVerdict(DROPPED)

#: Return what counts of the ways to masquerade the same packets. None: nothing does.
ToldPorts = t.Optional[t.Callable[[t.Tuple[t.Any, ...]], t.Tuple[t.Any, ...]]]

#: In the order in which packets meet them; None: one that cannot be read.
Rulesets = t.Sequence[t.Optional[Ruleset]]

#: Several where chance decides.
Verdicts = t.FrozenSet[ChangedVerdict]


class Pair(t.NamedTuple):
    """What is done with packets before and after a change."""

    before: Verdicts
    after: Verdicts

    @property
    def differs(self) -> bool:
        """Whether a packet can tell."""
        return {one.applied for one in self.before} != {one.applied for one in self.after}

    @property
    def addresses(self) -> Pair:
        """The same without ports."""
        return Pair(*(frozenset(one._replace(ways=()) for one in side) for side in self))

    @property
    def where_ports_differ(self) -> Pair:
        """The same without ports if these change nothing, so that packets with the same change are one product."""
        ways = [[one.ways for one in side] for side in self]
        alone = len(ways[0]) == len(ways[1]) == 1
        return self.addresses if alone and (ways[0] == ways[1] or () in (*ways[0], *ways[1])) else self


class _Layer(t.NamedTuple):
    """A decision, as far as it is the same for all protocols."""

    verdict: ChangedVerdict
    match: Match
    #: whether no packet gets behind it
    final: bool = True


class Classes:
    """The numbers of one kind, by the bits of what matches them."""

    def __init__(self, members: t.Sequence[t.Optional[Spans]], highest: int) -> None:
        """Prepare the parts of a field.

        :param members: by bit; None matches all numbers.
        """
        parts = partition(members)
        bits = {places: sum(1 << place for place in places) for places in parts.values}
        classes = Partition(parts.starts, [bits[places] for places in parts.values])
        #: of a number
        self.of = classes.of
        #: the intervals of each class
        self.all: t.Dict[int, Spans] = dict(classes.divide(((0, highest),)))


class Cell(t.NamedTuple):
    """Packets of one class of sources, services and interfaces: the bits of each."""

    source: int
    service: int
    interface: int


class Product(t.NamedTuple):
    """Packets that get the same other treatment: any of the sources, services, interfaces and destinations."""

    pair: Pair
    destinations: Spans
    sources: t.FrozenSet[int]
    services: t.FrozenSet[int]
    interfaces: t.FrozenSet[int]

    def cells(self) -> t.Iterator[Cell]:
        """Return the classes of packets that it consists of."""
        return map(Cell._make, itertools.product(self.sources, self.services, self.interfaces))


class Comparison:
    """The rules of one family before and after a change. Later rules decide about what earlier ones leave."""

    def __init__(
        self, family: Family, before: Rulesets, after: Rulesets, unseen: bool = False, ports: ToldPorts = None
    ) -> None:
        """Prepare a comparison.

        :param unseen: whether to compare what is done with packets that nat does not see.
        :param ports: compares how source ports are chosen: of the ways to masquerade some packets, what counts.
        """
        self.family = family
        self._unseen = unseen
        self._layers: t.List[_Layer] = []
        #: by identity: one that is there before and after has its bits once
        rulesets = {id(one): one for one in (*before, *after) if one is not None}
        self._rulesets = tuple(rulesets.values())
        places = {
            key: self._add(_unseen_layers(one, family) if unseen else _layers(one, ports))
            for key, one in rulesets.items()
        }
        #: where first packets for a missing address are dropped, before any rule of nat could translate them
        drops = {key: self._add(_drops(one)) for key, one in rulesets.items() if one.missing and not unseen}
        self.drops = sum(map(_bits_of, drops.values()))
        self._sides: t.List[t.List[t.Optional[t.Tuple[int, int]]]] = []
        for side in (before, after):
            self._sides.append([drops[id(one)] for one in side if id(one) in drops])
            self._sides[-1] += [places.get(id(one)) for one in side]
        self.sources = Classes([layer.match.source for layer in self._layers], family.highest)
        self.destinations = Classes([layer.match.destination for layer in self._layers], family.highest)
        self.services = Classes([layer.match.service for layer in self._layers], MAX_SERVICE)
        names = (one for layer in self._layers for one in layer.match.outgoing)
        self.patterns = sorted({pattern for one in names for pattern in one.patterns})
        #: an interface of each kind that the rules treat differently
        self.names = sorted({example(name) for name in self.patterns} | {_NO_NAME})
        self._interfaces: t.Dict[str, int] = {}
        self._pairs: t.Dict[int, Pair] = {}
        #: the marks with which each ruleset leaves packets alone, by the bits of its decisions
        self._marks = {
            _bits_of(places[key]) | (_bits_of(drops[key]) if key in drops else 0): _marks(one)
            for key, one in rulesets.items()
        }
        guards = [
            {guard for one in side if one for guard in one.guards if not guard.is_option} for side in (before, after)
        ]
        #: whether both sides leave the same packets of Services and host ports alone: such packets are not compared
        self.same_guards = guards[0] == guards[1]
        marked = {1 << bit for bit in range(32) for guard in guards[0] | guards[1] if guard.marks >> bit & 1}
        #: of packets that nat does not see, those of Services are compared too
        self._service_marks = [] if unseen else [Mark(bit, bit) for bit in sorted(marked)]
        #: whether some rules leave packets of Services and host ports alone
        self.guarded = any(one.guards for one in rulesets.values())

    def _add(self, layers: t.Iterable[_Layer]) -> t.Tuple[int, int]:
        first = len(self._layers)
        self._layers += layers
        return first, len(self._layers)

    @property
    def groups(self) -> int:
        """How many groups of packets are compared, for each group of destinations."""
        return len(self.sources.all) * len(self.names) * len(self.services.all)

    def networks(self) -> t.Tuple[t.Set[t.Any], t.Set[t.Any]]:
        """Return the networks of destinations that the rules name, and those of sources."""
        hidden = [network for one in self._rulesets for network in one.hidden] if self._unseen else []
        destinations, sources = (set(hidden).union(*(one.networks[side] for one in self._rulesets)) for side in (0, 1))
        return destinations, sources

    def interface(self, name: str) -> int:
        """Return the bits of an interface."""
        if name not in self._interfaces:
            self._interfaces[name] = sum(
                1 << place
                for place, layer in enumerate(self._layers)
                if all(one.match(name) for one in layer.match.outgoing)
            )
        return self._interfaces[name]

    def pair(self, bits: int) -> Pair:
        """Return what is done with packets that these decisions match."""
        if bits not in self._pairs:
            self._pairs[bits] = Pair(*(self._verdicts(side, bits) for side in self._sides)).where_ports_differ
        return self._pairs[bits]

    def _verdicts(self, side: t.Sequence[t.Optional[t.Tuple[int, int]]], bits: int) -> Verdicts:
        """Return what several rulesets do together: the first that does not leave a packet alone decides."""
        found: t.Set[ChangedVerdict] = set()
        left = SKIPPED
        for place in side:
            if place is None:
                found.add(_UNREAD)
                continue
            here = self._decided(place, bits)
            leaving = {one for one in here if one.applied == SKIPPED}
            found |= here - leaving
            if not leaving:
                return frozenset(found)
            left = next((one for one in leaving if one != SKIPPED), left)
        return frozenset(found | {left})

    def _decided(self, place: t.Tuple[int, int], bits: int) -> t.Set[ChangedVerdict]:
        first, last = place
        rest = (bits >> first) & ((1 << (last - first)) - 1)
        found = set()
        while rest:
            lowest = rest & -rest
            layer = self._layers[first + lowest.bit_length() - 1]
            found.add(layer.verdict)
            if layer.final:
                return found
            rest ^= lowest
        return found | {SKIPPED}

    def differs(self) -> bool:
        """Return whether any packet gets another treatment than another port."""
        return any(one.pair.addresses.differs for left in self.by_marks() for one in self.products(left))

    def by_marks(self, of_services: bool = True) -> t.Dict[int, MarkSet]:
        """Return the sets of marks with which the same rules leave packets alone, by the bits of these rules.

        :param of_services: whether rules count that match packets which kube-proxy or portmap marked.
        """
        counted = {
            bits: [one for one in marks if of_services or not one.value or one.mask & ~SERVICE_MARKS]
            for bits, marks in self._marks.items()
        }
        # A ruleset without decisions leaves everything.
        counted = {bits: marks for bits, marks in counted.items() if bits and marks}
        found = mark_sets.partition(counted, self._service_marks if of_services else ())
        if of_services and self.drops and self._service_marks:
            # What nat leaves to others is dropped all the same, unless an option leaves it alone.
            nat = ((1 << len(self._layers)) - 1) & ~self.drops
            spared = {bits & self.drops: marks for bits, marks in counted.items() if bits & self.drops}
            marked = mark_sets.partition({nat: self._service_marks, **spared})
            found.update((bits, one) for bits, one in marked.items() if bits & nat and bits not in found)
        return found

    def products(self, left: int = 0) -> t.List[Product]:
        """Return all packets that are treated differently, each in one product.

        :param left: bits of rules that leave the packets alone.
        """
        names: t.Dict[int, None] = dict.fromkeys(map(self.interface, self.names))
        services = list(self.services.all)
        destinations = self.destinations.all
        painted: t.Dict[int, t.List[t.Tuple[Pair, Spans]]] = {}
        cells: t.Dict[t.Tuple[Pair, Spans], t.Dict[t.Tuple[int, int], t.Set[int]]] = {}
        for source in self.sources.all:
            # Most services are alike to what decides about one source.
            alike: t.Dict[int, t.List[int]] = {}
            for service in services:
                alike.setdefault(source & service & ~left, []).append(service)
            for both, same in alike.items():
                for name in names:
                    bits = both & name
                    if bits not in painted:
                        painted[bits] = self._painted(bits, destinations)
                    for key in painted[bits]:
                        found = cells.setdefault(key, {})
                        for service in same:
                            found.setdefault((source, service), set()).add(name)
        return [product for key, found in cells.items() for product in _joined(key, found)]

    def _painted(self, bits: int, destinations: t.Dict[int, Spans]) -> t.List[t.Tuple[Pair, Spans]]:
        """Return the destinations that are treated differently by these decisions, by how."""
        found: t.Dict[Pair, t.List[t.Tuple[int, int]]] = {}
        for number, pairs in destinations.items():
            pair = self.pair(bits & number)
            if pair.differs:
                found.setdefault(pair, []).extend(pairs)
        return [(pair, _Known(intervals.of(pairs))) for pair, pairs in found.items()]


class _Known(t.Tuple[t.Tuple[int, int], ...]):
    """Spans that are a key of several dictionaries: thousands of numbers are hashed once."""

    def __hash__(self) -> int:
        if not hasattr(self, "_hash"):
            self._hash = super().__hash__()
        return self._hash


def _joined(key: t.Tuple[Pair, Spans], found: t.Dict[t.Tuple[int, int], t.Set[int]]) -> t.Iterator[Product]:
    """Return products of classes, few and without a common packet."""
    services: t.Dict[t.Tuple[int, t.FrozenSet[int]], t.Set[int]] = {}
    for (source, service), names in found.items():
        services.setdefault((source, frozenset(names)), set()).add(service)
    sources: t.Dict[t.Tuple[t.FrozenSet[int], t.FrozenSet[int]], t.Set[int]] = {}
    for (source, names_), some in services.items():
        sources.setdefault((frozenset(some), names_), set()).add(source)
    for (some_services, names_), some in sources.items():
        yield Product(key[0], key[1], frozenset(some), some_services, names_)


def example(pattern: str) -> str:
    """Return the name of an interface that a pattern matches and no longer one does."""
    return pattern[:-1] + _NO_NAME if pattern.endswith("+") else pattern


def _marks(ruleset: Ruleset) -> t.List[Mark]:
    """Return the marks with which a ruleset leaves packets alone. One with bits outside of its mask is on no packet."""
    found = (guard.mark for guard in ruleset.guards if guard.mark is not None)
    return [one for one in found if not one.value & ~one.mask]


def _bits_of(place: t.Tuple[int, int]) -> int:
    first, last = place
    return ((1 << (last - first)) - 1) << first


def _layers(ruleset: Ruleset, ports: ToldPorts) -> t.Iterator[_Layer]:
    for place, decision in enumerate(ruleset.expanded):
        match = decision.match.spans
        if decision.action != MASQUERADE:
            exemption = ruleset.verdict if decision.action == EXEMPT else ""
            yield _Layer(ChangedVerdict(decision.action, None, exemption), match)
            continue
        verdict = ChangedVerdict(MASQUERADE, _span(decision))
        ways = ruleset.ways(decision)
        for protocol in dict.fromkeys(way.protocol for way in ways):
            if ports:
                verdict = verdict._replace(ways=ports(_ways_of(protocol, ways) or (place, id(ruleset))))
            services = match.service
            if protocol is not None:
                services = _common(services, (span(PROTOCOLS[protocol]),))
            # Whether none of these packets goes on.
            final = any(way.share is None for way in ways if way.protocol == protocol)
            yield _Layer(verdict, match._replace(service=services), final)


def _common(some: t.Optional[Spans], others: Spans) -> Spans:
    """Return what lies in both; None is everything."""
    return others if some is None else intervals.intersection(some, others)


def _drops(ruleset: Ruleset) -> t.Iterator[_Layer]:
    """Return what becomes of first packets before nat sees them: those for a missing address do not leave."""
    for decision in ruleset.expanded:
        missing = decision.address is not None and decision.address in ruleset.missing
        yield _Layer(ChangedVerdict(DROPPED, _span(decision)) if missing else SKIPPED, decision.match.spans)


def _span(decision: Decision) -> t.Optional[t.Tuple[int, int]]:
    return decision.address and (int(decision.address.first), int(decision.address.last))


def _ways_of(protocol: t.Optional[str], ways: t.Sequence[Masquerade]) -> t.Tuple[Masquerade, ...]:
    """Return how packets of a protocol are masqueraded; None: of those that no way names.

    Empty if by chance such a packet goes on to the next decision, which no ruleset that is wanted says.
    """
    found = tuple(way._replace(protocol=None) for way in ways if way.protocol in (None, protocol))
    return found if any(way.share is None for way in found) else ()


def _unseen_layers(ruleset: Ruleset, family: Family) -> t.Iterator[_Layer]:
    """Return what becomes of packets without a connection: those that would show a hidden address can be dropped."""
    if ruleset.leaks != DROP:
        return
    yield _Layer(SKIPPED, PolicyMatch(destinations=(*ruleset.hidden, MULTICAST[family])).spans)
    hidden = intervals.of_networks(ruleset.hidden)
    for decision in ruleset.expanded:
        match = decision.match.spans
        if decision.action == MASQUERADE:
            yield _Layer(_DROPPED, match._replace(source=_common(match.source, hidden)))
        else:
            yield _Layer(SKIPPED, match)


def same_meaning(one: Ruleset, other: Ruleset) -> bool:
    """Return whether no packet can tell two rulesets apart."""
    return one == other or (
        set(one.guards) == set(other.guards)
        and (one.leaks, set(one.hidden)) == (other.leaks, set(other.hidden))
        and set(one.missing) == set(other.missing)
        and _same_effect(one, other)
    )


def _same_effect(one: Ruleset, other: Ruleset) -> bool:
    """Return whether the decisions of both do the same to all packets. False if it would take too long to know."""
    matches = [decision.match for decision in (*one.expanded, *other.expanded)]
    if len(matches) > _COMPARED_DECISIONS:
        return False
    networks = (network for match in matches for network in (*match.sources, *match.destinations))
    family = BY_VERSION[next((network.version for network in networks), 4)]
    comparison = Comparison(family, [one], [other], ports=tuple)
    return comparison.groups <= _COMPARED_GROUPS and not comparison.products()
