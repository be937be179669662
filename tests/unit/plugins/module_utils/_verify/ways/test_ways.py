# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways, held against an interpreter of single packets that knows nothing of regions."""

from __future__ import annotations

import itertools
import random
import typing as t
from unittest import mock

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import regions, rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.regions import Packet
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import (
    BaseChain,
    Branch,
    Match,
    Names,
    Ref,
    Rule,
    RuleAction,
    RuleTable,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import families, intervals, services
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.routing import Routing
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing.routing_lookups import Lookups
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways import ways
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.ways import Declared, RulesAndRoutes, Start
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import rule_shapes as shapes

# A small world: addresses 0 to 15, services of UDP with port 0 to 3 and ICMP, source ports 1 and 2.
TOP = 15
UDP, ICMP = 17, 1
SERVICES = ((ICMP << 16, ICMP << 16), (UDP << 16, UDP << 16 | 3))
EVERYTHING = ((0, TOP),)
PORTS = ((1, 2),)
LINKS = (shapes.link(1, "lo"), shapes.link(2, "eth0"), shapes.link(3, "cbr0"), shapes.link(4, "eth1"))


# an interpreter of single packets


class Route(t.NamedTuple):
    """A route of the small world."""

    first: int
    bits: int  # of 4
    table: int
    kind: int
    links: t.Tuple[int, ...]


class Selector(t.NamedTuple):
    """A routing rule of the small world."""

    priority: int
    table: int
    source: t.Optional[t.Tuple[int, int]] = None
    to: t.Optional[t.Tuple[int, int]] = None
    mark: t.Optional[t.Tuple[int, int]] = None
    incoming: str = ""
    outgoing: str = ""
    inverted: bool = False
    suppress: int = -1
    action: int = 1
    unknown: bool = False


class World(t.NamedTuple):
    """A node of the small world."""

    tables: t.Tuple[RuleTable, ...]
    routes: t.Tuple[Route, ...]
    selectors: t.Tuple[Selector, ...]
    policy: t.Tuple[Declared, ...] = ()


class Seen(t.NamedTuple):
    """What became of a packet."""

    met: t.Tuple[Ref, ...]
    end: str
    link: str
    declared: t.Any
    source: t.Optional[Ref]
    unknown: t.FrozenSet[t.Any]
    values: t.Tuple[t.Tuple[str, int], ...]


class P(t.NamedTuple):
    """A packet on its way."""

    packet: Packet
    link: str
    destination: int
    service: int
    out: str = ""
    values: t.Tuple[t.Tuple[str, int], ...] = ()
    met: t.Tuple[Ref, ...] = ()
    unknown: t.FrozenSet[t.Any] = frozenset()
    source: t.Optional[Ref] = None

    def value(self, subject: str) -> int:
        return dict(self.values).get(subject, 0)

    def with_value(self, subject: str, value: int) -> P:
        known = dict(self.values)
        known[subject] = value
        return self._replace(values=tuple(sorted((one, number) for one, number in known.items() if number)))


def is_in(allowed: t.Optional[t.Any], number: int) -> bool:
    return allowed is None or any(first <= number <= last for first, last in allowed)


def fits(match: Match, p: P, tracked: bool) -> bool:
    for names in match.incoming:
        if not names.match(p.link):
            return False
    for names in match.outgoing:
        if not p.out or not names.match(p.out):
            return False
    for test in match.tests:
        if test.subject == rules.CT_MARK and (not tracked or p.value(rules.UNTRACKED)):
            return False
        if not is_in(test.allowed, p.value(test.subject) & test.mask):
            return False
    return (
        is_in(match.source, p.packet.source)
        and is_in(match.destination, p.destination)
        and is_in(match.service, p.service)
        and is_in(match.source_port, p.packet.source_port)
        and is_in(match.original_destination, p.packet.destination)
        and is_in(match.original_service, p.packet.service)
    )


#: what a chain comes to: ``end``, ``accept``, ``drop``, ``translated``, each with the packet
Verdicts = t.Iterator[t.Tuple[str, P]]


class Walker:
    """Follows one packet through all that can become of it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def chain(self, table: int, name: str, p: P, tracked: bool) -> Verdicts:
        yield from self.rules(table, name, 0, p, tracked)

    def rules(self, table: int, name: str, start: int, p: P, tracked: bool) -> Verdicts:
        listed = self.world.tables[table].chains[name]
        if start == len(listed):
            yield "end", p
            return
        rule = listed[start]
        ref = Ref(table, name, rule.number)
        matching = [branch for branch in rule.branches if fits(branch.match, p, tracked)]
        taken: t.List[t.Tuple[t.Optional[Branch], P]] = []
        if not matching:
            taken = [(None, p)]
        else:
            if rule.unknown:
                p = p._replace(unknown=p.unknown | {(ref, reason) for reason in rule.unknown})
            if rule.chance:
                taken = [(branch, p) for branch in matching]
                if not rule.exhaustive or rule.unknown:
                    taken.append((None, p))
            else:
                taken = [(matching[0], p)]
                if rule.unknown:
                    taken.append((None, p))
        for branch, before in taken:
            if branch is None or branch.action.kind == rules.CONTINUE:
                yield from self.rules(table, name, start + 1, before, tracked)
                continue
            action = branch.action
            one = before._replace(met=(*before.met, ref))
            if action.kind == rules.SET:
                origin = one.value(action.origin or "")
                ok = tracked != (action.subject == rules.UNTRACKED)
                if action.subject == rules.CT_MARK:
                    ok = tracked and not one.value(rules.UNTRACKED)
                ok = ok or action.subject == rules.MARK
                after = one.with_value(action.subject, (origin & action.keep) ^ action.flip) if ok else one
                yield from self.rules(table, name, start + 1, after, tracked)
            elif action.kind == rules.JUMP:
                for verdict, other in self.chain(table, action.chain, one, tracked):
                    if verdict == "end":
                        yield from self.rules(table, name, start + 1, other, tracked)
                    else:
                        yield verdict, other
            elif action.kind == rules.GOTO:
                yield from self.chain(table, action.chain, one, tracked)
            elif action.kind == rules.RETURN:
                yield "end", one
            elif action.kind == rules.ACCEPT:
                yield "accept", one
            elif action.kind == rules.DROP:
                yield "drop", one
            elif action.kind == rules.SOURCE:
                yield "translated", one._replace(source=ref)
            else:
                assert action.kind == rules.DESTINATION
                numbers = [None] if action.addresses is None else _numbers(action.addresses)
                ports = [None] if action.ports is None or one.service >> 16 != UDP else _numbers(action.ports)
                numbers = [one.destination if number is None else number for number in numbers]
                services = [one.service if port is None else UDP << 16 | port for port in ports]
                stays = one.destination in numbers and one.service in services
                marks = ([0] if len(numbers) == len(services) == 1 else [0, 1]) if stays else [1]
                for number, service, mark in itertools.product(numbers, services, marks):
                    new = one._replace(destination=number, service=service)
                    yield "translated", new.with_value(rules.DNAT, mark)

    def base(self, table: int, name: str, p: P, tracked: bool) -> Verdicts:
        drops = self.world.tables[table].base[name].drops
        for verdict, one in self.chain(table, name, p, tracked):
            if verdict == "end":
                yield ("drop" if drops else "accept"), one
            else:
                yield verdict, one

    def units(self, units: t.Sequence[t.Any], p: P, tracked: bool) -> Verdicts:
        """Chains after each other; a tuple is all chains of type nat."""
        if not units:
            yield "accept", p
            return
        first = units[0]
        found = self.nat(first, p) if isinstance(first, list) else self.base(*first, p, tracked)
        for verdict, one in found:
            if verdict == "drop":
                yield verdict, one
            else:
                yield from self.units(units[1:], one, tracked)

    def nat(self, bases: t.Sequence[t.Tuple[int, str]], p: P) -> Verdicts:
        if p.value(rules.UNTRACKED):
            yield "accept", p
            return
        groups: t.Dict[int, t.List[t.Tuple[int, str]]] = {}
        for table, name in bases:
            groups.setdefault(self.world.tables[table].base[name].priority, []).append((table, name))
        for orders in itertools.product(*(itertools.permutations(groups[one]) for one in sorted(groups))):
            yield from self.first_of([one for order in orders for one in order], p)

    def first_of(self, bases: t.Sequence[t.Tuple[int, str]], p: P) -> Verdicts:
        if not bases:
            yield "accept", p
            return
        for verdict, one in self.base(*bases[0], p, True):
            if verdict == "accept":
                yield from self.first_of(bases[1:], one)
            else:
                yield verdict, one

    def hook(self, hook: int, p: P, bases: t.Sequence[t.Tuple[int, str]]) -> Verdicts:
        mine = [one for one in bases if self.world.tables[one[0]].base[one[1]].hook == hook]
        nat = [one for one in mine if self.world.tables[one[0]].base[one[1]].kind == "nat"]
        places: t.Dict[int, t.List[t.Any]] = {}
        at = {rules.PREROUTING: -100, rules.POSTROUTING: 100}.get(hook, 0)
        for table, name in mine:
            base = self.world.tables[table].base[name]
            if base.kind == "nat" or (nat and hook == rules.POSTROUTING and base.priority > at):
                continue
            places.setdefault(base.priority, []).append((table, name))
        if nat and hook != rules.FORWARD:
            places.setdefault(at, []).append(nat)
        ordered = sorted(places)
        early = [one for one in ordered if hook == rules.PREROUTING and one < -200]
        late = [one for one in ordered if one not in early]
        for orders in itertools.product(*(itertools.permutations(places[one]) for one in early)):
            for verdict, one in self.units([unit for order in orders for unit in order], p, False):
                if verdict == "drop":
                    yield verdict, one
                    continue
                for others in itertools.product(*(itertools.permutations(places[place]) for place in late)):
                    yield from self.units([unit for order in others for unit in order], one, True)

    def run(self, p: P, bases: t.Sequence[t.Tuple[int, str]]) -> t.Iterator[Seen]:
        for verdict, one in self.hook(rules.PREROUTING, p, bases):
            if verdict == "drop":
                yield self.seen(one, "dropped")
                continue
            for kind, link, unknown in self.route(one):
                routed = one._replace(out=link, unknown=one.unknown | unknown)
                if kind != "leaves":
                    yield self.seen(routed, "delivered" if kind == "local" else kind)
                    continue
                for verdict2, two in self.hook(rules.FORWARD, routed, bases):
                    if verdict2 == "drop":
                        yield self.seen(two, "dropped")
                        continue
                    for verdict3, three in self.hook(rules.POSTROUTING, two, bases):
                        yield self.seen(three, "dropped" if verdict3 == "drop" else "leaves")

    def seen(self, p: P, end: str) -> Seen:
        declared = None
        if end == "leaves":
            for one in self.world.policy:
                if fits(one.match, p, True):
                    declared = one.value
                    break
        return Seen(p.met, end, p.out, declared, p.source, p.unknown, p.values)

    def route(self, p: P) -> t.Iterator[t.Tuple[str, str, t.FrozenSet[t.Any]]]:
        yield from self.select(0, p, frozenset())

    def select(
        self, place: int, p: P, unknown: t.FrozenSet[t.Any]
    ) -> t.Iterator[t.Tuple[str, str, t.FrozenSet[t.Any]]]:
        known = self.world.selectors
        if place == len(known):
            yield "none", "", unknown
            return
        one = known[place]
        plain = (
            (one.source is None or _inside(one.source, p.packet.source))
            and (one.to is None or _inside(one.to, p.destination))
            and (one.mark is None or (p.value(rules.MARK) ^ one.mark[0]) & one.mark[1] == 0)
            and (not one.incoming or one.incoming == p.link)
            and not one.outgoing
        )
        if one.unknown and (plain or one.inverted):
            # It may or may not match.
            unknown = unknown | {"the routing rule %d" % one.priority}
            yield from self.select(place + 1, p, unknown)
        elif plain == one.inverted:
            yield from self.select(place + 1, p, unknown)
            return
        if one.action != 1:
            yield {6: "blackhole", 7: "unreachable", 8: "prohibit"}[one.action], "", unknown
        else:
            found = [
                route
                for route in self.world.routes
                if route.table == one.table and _inside((route.first, route.bits), p.destination)
            ]
            best = max(found, key=lambda route: route.bits, default=None)
            if best is None or best.kind == 9 or (best.kind < 6 and best.bits + 28 <= one.suppress):
                yield from self.select(place + 1, p, unknown)
            elif best.kind == 1:
                for number in best.links:
                    yield "leaves", LINKS[number - 1].name, unknown
            else:
                kinds = {2: "local", 3: "local", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
                yield kinds[best.kind], "", unknown


def _numbers(allowed: t.Any) -> t.List[t.Any]:
    return [number for first, last in allowed for number in range(first, last + 1)]


def _inside(prefix: t.Tuple[int, int], number: int) -> bool:
    first, bits = prefix
    return first >> (4 - bits) == number >> (4 - bits)


# random worlds

_ADDRESSES = st.lists(st.tuples(st.integers(0, TOP), st.integers(0, TOP)), min_size=1, max_size=2).map(intervals.of)
_ALLOWED = _ADDRESSES.filter(bool)
_SERVICES = st.sampled_from(
    [
        ((UDP << 16 | 1, UDP << 16 | 1),),
        ((UDP << 16 | 1, UDP << 16 | 2),),
        ((ICMP << 16, ICMP << 16 | 0xFFFF),),
        ((UDP << 16, UDP << 16 | 0xFFFF),),
        ((ICMP << 16, ICMP << 16), (UDP << 16 | 3, UDP << 16 | 3)),
    ]
)
_TESTS = st.builds(
    lambda subject, mask, inverted: rules.Test(subject, mask, ((0, 0),) if inverted else ((1, mask),)),
    st.sampled_from([rules.MARK, rules.MARK, rules.CT_MARK, rules.DNAT, rules.UNTRACKED]),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
)
_NAMES = st.builds(Names, st.sampled_from([("eth0",), ("eth+",), ("cbr0",)]), st.booleans())


def _maybe(strategy: t.Any, weight: int = 3) -> t.Any:
    return st.one_of(*[st.none()] * weight, strategy)


def _match(**fields: t.Any) -> Match:
    # Of a named tuple itself hypothesis would choose the fields that are not given too.
    return Match(**fields)


def _selector(**fields: t.Any) -> Selector:
    return Selector(**fields)


MATCHES = st.builds(
    _match,
    source=_maybe(_ALLOWED),
    destination=_maybe(_ALLOWED, 1),
    service=_maybe(_SERVICES),
    source_port=_maybe(st.just(((1, 1),)), 6),
    original_destination=_maybe(_ALLOWED, 6),
    original_service=_maybe(_SERVICES, 6),
    incoming=st.one_of(st.just(()), st.just(()), st.just(()), st.tuples(_NAMES)),
    outgoing=st.one_of(st.just(()), st.just(()), st.just(()), st.tuples(_NAMES)),
    tests=st.one_of(st.just(()), st.just(()), st.tuples(_TESTS)),
)
_SETS = st.builds(
    lambda subject, origin, keep, flip: RuleAction(rules.SET, subject=subject, origin=origin, keep=keep, flip=flip),
    st.sampled_from([rules.MARK, rules.MARK, rules.CT_MARK]),
    st.sampled_from([rules.MARK, rules.CT_MARK]),
    st.sampled_from([0, 1, rules.ALL_BITS]),
    st.sampled_from([0, 1, 2]),
)
_NOTRACK = RuleAction(rules.SET, subject=rules.UNTRACKED, origin=rules.UNTRACKED, flip=1)
_NEW = st.builds(
    lambda addresses, ports: RuleAction(rules.DESTINATION, addresses=addresses, ports=ports),
    st.sampled_from([((3, 3),), ((9, 9),), ((4, 5),)]),
    st.sampled_from([None, None, ((2, 2),), ((1, 2),)]),
)


def _actions(later: t.Sequence[str], hook: int, nat: bool) -> t.Any:
    plain = [RuleAction(rules.RETURN), RuleAction(rules.ACCEPT), RuleAction(rules.CONTINUE), RuleAction(rules.DROP)]
    strategies = [st.sampled_from(plain), _SETS]
    if later:
        leads = [RuleAction(kind, chain=name) for kind in (rules.JUMP, rules.GOTO) for name in later]
        strategies += [st.sampled_from(leads)] * 2
    if nat:
        strategies += [_NEW if hook == rules.PREROUTING else st.just(RuleAction(rules.SOURCE))] * 2
    elif hook == rules.PREROUTING:
        strategies.append(st.just(_NOTRACK))
    return st.one_of(*strategies)


_BASES = st.sampled_from(
    [
        BaseChain("nat", rules.PREROUTING, -100),
        BaseChain("nat", rules.PREROUTING, -90),
        BaseChain("nat", rules.POSTROUTING, 100),
        BaseChain("nat", rules.POSTROUTING, 50),
        BaseChain("filter", rules.PREROUTING, -300),
        BaseChain("filter", rules.PREROUTING, -150),
        BaseChain("filter", rules.FORWARD, 0),
        BaseChain("filter", rules.FORWARD, 0, True),
        BaseChain("filter", rules.POSTROUTING, -150),
    ]
)


@st.composite
def tables(draw: t.Any, chance: bool, unknown: bool, bases: t.Any = _BASES) -> RuleTable:
    """A table with one base chain and chains behind it."""
    base = draw(bases)
    names = ["A", "B", "C"]
    chains = {}
    for place, name in enumerate(names):
        actions = _actions(names[place + 1 :], base.hook, base.kind == "nat")
        listed = []
        for number in range(1, draw(st.integers(1 if name == "A" else 0, 4)) + 1):
            branches = draw(st.lists(st.builds(Branch, MATCHES, actions), min_size=1, max_size=3))
            listed.append(
                Rule(
                    number,
                    tuple(branches),
                    unknown=("x",) if unknown and draw(st.integers(0, 5)) == 0 else (),
                    chance=chance and draw(st.integers(0, 3)) == 0,
                    exhaustive=draw(st.booleans()),
                )
            )
        chains[name] = tuple(listed)
    return RuleTable("nftables", "ip x", {"A": base}, chains)


_PREFIXES = st.integers(0, 4).flatmap(
    lambda bits: st.integers(0, (1 << bits) - 1).map(lambda number: (number << (4 - bits), bits))
)
_ROUTES = st.lists(
    st.builds(
        lambda prefix, table, kind, links: Route(*prefix, table, kind, links),
        _PREFIXES,
        st.sampled_from([254, 254, 100]),
        st.sampled_from([1, 1, 1, 1, 2, 6, 9]),
        st.sampled_from([(2,), (2,), (3,), (4,)]),
    ),
    max_size=6,
    unique_by=lambda route: (route.first, route.bits, route.table),
)
_SELECTORS = st.lists(
    st.builds(
        _selector,
        priority=st.just(0),
        table=st.sampled_from([254, 100]),
        source=_maybe(_PREFIXES, 2),
        to=_maybe(_PREFIXES, 4),
        mark=_maybe(st.sampled_from([(1, 1), (0, 2), (2, 3)])),
        incoming=st.sampled_from(["", "", "cbr0", "eth1"]),
        outgoing=st.sampled_from(["", "", "", "", "eth0"]),
        inverted=st.booleans(),
        suppress=st.sampled_from([-1, -1, 28, 30]),
        action=st.sampled_from([1, 1, 1, 6, 7]),
    ),
    max_size=3,
)
_POLICY = st.lists(
    st.builds(
        Declared,
        st.builds(
            _match,
            source=_maybe(_ALLOWED),
            destination=_maybe(_ALLOWED, 1),
            service=_maybe(_SERVICES),
            outgoing=st.one_of(st.just(()), st.tuples(_NAMES)),
        ),
        st.sampled_from(["pod", "node"]),
    ),
    max_size=3,
)


def worlds(chance: bool = False, unknown: bool = False, several: int = 3, tied: t.Any = None) -> t.Any:
    """Random nodes; tied: all base chains have the same hook and priority, one of these."""

    def make(found: t.Any, routes: t.Any, selectors: t.Any, policy: t.Any, doubted: t.Any) -> World:
        numbered = [one._replace(priority=place) for place, one in enumerate(selectors, 1)]
        if unknown and numbered and doubted:
            numbered[0] = numbered[0]._replace(unknown=True)
        usual = [Selector(32766, 254), Selector(32767, 100)]
        routed = (*routes, Route(0, 0, 253, 1, (2,)))
        return World(tuple(found), routed, (*numbered, *usual, Selector(32768, 253)), tuple(policy))

    return st.builds(
        make,
        tied.flatmap(lambda base: st.lists(tables(chance, unknown, st.just(base)), min_size=2, max_size=several))
        if tied is not None
        else st.lists(tables(chance, unknown), min_size=1, max_size=several),
        _ROUTES,
        _SELECTORS,
        _POLICY,
        st.booleans(),
    )


def _net(prefix: t.Tuple[int, int]) -> str:
    return "0.0.0.%d/%d" % (prefix[0], prefix[1] + 28)


def node_of(world: World) -> RulesAndRoutes:
    """Return the same as the kernel would list it."""
    routes = tuple(
        shapes.route(
            _net((one.first, one.bits)),
            0 if one.kind != 1 or len(one.links) > 1 else one.links[0],
            table=one.table,
            kind=one.kind,
            **({"paths": [(link, "") for link in one.links]} if len(one.links) > 1 else {}),
        )
        for one in world.routes
    )
    selectors = []
    for one in world.selectors:
        more: t.Dict[str, t.Any] = {}
        for name in ("source", "to"):
            if getattr(one, name) is not None:
                more[name] = _net(getattr(one, name))
        for name in ("mark", "incoming", "outgoing"):
            if getattr(one, name):
                more[name] = getattr(one, name)
        if one.unknown:
            more["extra"] = shapes.netlink.attribute(20, b"\0" * 8)
        flags = 2 if one.inverted else 0
        selectors.append(
            shapes.selector(one.priority, one.table, one.action, suppress=one.suppress, flags=flags, **more)
        )
    known = Lookups(Routing((), tuple(selectors), routes), LINKS, IPV4)
    return RulesAndRoutes(world.tables, known)


STARTS = (Start("cbr0", EVERYTHING, EVERYTHING, SERVICES, PORTS), Start("eth1", ((0, 3),), EVERYTHING, SERVICES, PORTS))


def deciding(node: RulesAndRoutes) -> t.List[t.Tuple[int, str]]:
    """The base chains that are run: the choice itself has a test of its own."""
    engine = ways._Engine(node, (), (), None, False)
    return [(tree.table, tree.name) for tree in engine._trees]


def relevant(met: t.Iterable[Ref], node: RulesAndRoutes) -> t.List[Ref]:
    """Without what sets values of which nobody asks."""
    engine = ways._Engine(node, (), (), None, False)
    found = []
    for ref in met:
        (rule,) = [one for one in node.tables[ref.table].chains[ref.chain] if one.number == ref.number]
        if all(engine._has_effect(branch.action) for branch in rule.branches):
            found.append(ref)
    return sorted(found)


def compare(world: World, seed: int, exact: bool, count: int = 12) -> None:
    """Hold the ways of a world against single packets."""
    node = node_of(world)
    found = ways.ways(node, STARTS, world.policy)
    assert not found.rest
    bases = deciding(node)
    walker = Walker(world)
    chosen = random.Random(seed)
    if exact:
        everything = sum(regions.size(start.region) for start in found.starts)
        assert sum(way.size for way in found.ways) == everything
    for _number in range(count):
        start = chosen.choice(found.starts)
        packet = regions.packet(start.region, chosen)
        link = chosen.choice(start.links)
        place = found.starts.index(start)
        mine = [
            way
            for way in found.ways
            if way.start == place and any(shapes.contains(region, packet) for region in way.regions)
        ]
        seen = list(walker.run(P(packet, link, packet.destination, packet.service), bases))
        if exact:
            assert len(mine) == 1 and len(seen) == 1
            assert sum(shapes.contains(region, packet) for region in mine[0].regions) == 1
        assert {_short_of(way) for way in mine} == {_short_of_seen(one) for one in seen}
        doubted = {
            one.place if isinstance(one.place, str) else (one.place, one.reason) for way in mine for one in way.unknown
        }
        idle = {one for each in seen for one in each.unknown} - doubted
        assert doubted <= {one for each in seen for one in each.unknown}
        if idle and not any(way.chance for way in mine):
            # What is unknown and not said makes no difference to what leaves.
            leaving = [one for one in seen if one.end != ways.DROPPED and idle.issuperset(one.unknown)]
            assert len({_short_of_seen(one) for one in leaving}) <= 1
            # Of what a rule does nobody knows that it makes none.
            effects = {one for one in idle if isinstance(one, tuple) and _effect(world, one[0])}
            assert not any(effects & one.unknown for one in leaving)
        for way in mine:
            like = [one for one in seen if _short_of_seen(one) == _short_of(way)]
            if way.chance or any(one.unknown for one in seen):
                sure = set(relevant(way.met, node))
                assert any(sure <= set(one.met) for one in like)
            else:
                assert any(relevant(way.met, node) == relevant(one.met, node) for one in like)


def _effect(world: World, place: Ref) -> bool:
    """Return whether it is unknown what a rule does."""
    (rule,) = [one for one in world.tables[place.table].chains[place.chain] if one.number == place.number]
    return rules.does_unknown(rule)


def _short_of(way: ways.Way) -> t.Tuple[t.Any, ...]:
    link = way.outcome.link if way.outcome is not None else ""
    return way.end, link, way.declared, way.source


def _short_of_seen(one: Seen) -> t.Tuple[t.Any, ...]:
    return one.end, one.link, one.declared, one.source


def _no_ties(world: World) -> bool:
    places = []
    for table in world.tables:
        (base,) = table.base.values()
        places.append((base.hook, base.priority))
    return len(set(places)) == len(places)


EXAMPLES = settings.default.max_examples
#: Fewer examples than elsewhere, because each compares a dozen packets. Some sorts of worlds are rare.
fewer = settings(max_examples=EXAMPLES * 2 // 5, suppress_health_check=list(HealthCheck))


@fewer
@given(worlds().filter(_no_ties), st.integers(0, 999))
def test_each_packet_has_one_way(world: World, seed: int) -> None:
    if any(
        branch.action.kind == rules.DESTINATION
        and (regions.count(branch.action.addresses) > 1 or regions.count(branch.action.ports or ((0, 0),)) > 1)
        for table in world.tables
        for chain in table.chains.values()
        for rule in chain
        for branch in rule.branches
    ):
        compare(world, seed, False)
    else:
        compare(world, seed, True)


@fewer
@given(worlds(chance=True, several=2).filter(_no_ties), st.integers(0, 999))
def test_what_chance_can_do(world: World, seed: int) -> None:
    compare(world, seed, False)


def _told(found: ways.Ways) -> t.Set[t.Any]:
    return {one._replace(regions=frozenset(one.regions), targets=frozenset(one.targets)) for one in found.ways}


@fewer
@given(worlds(chance=True, several=2))
def test_what_chance_chooses_together_is_what_it_chooses_one_by_one(world: World) -> None:
    together = _told(ways.ways(node_of(world), STARTS, world.policy))
    with mock.patch.object(ways._Engine, "_is_chosen", return_value=False):
        assert together == _told(ways.ways(node_of(world), STARTS, world.policy))


@fewer
@given(worlds(several=2, tied=_BASES), st.integers(0, 999))
def test_both_orders_of_ties(world: World, seed: int) -> None:
    compare(world, seed, False)


@fewer
@given(worlds(several=3, tied=st.just(BaseChain("nat", rules.POSTROUTING, 100))), st.integers(0, 999))
def test_all_orders_of_chains_that_translate_the_source(world: World, seed: int) -> None:
    compare(world, seed, False, 30)


@fewer
@given(worlds(unknown=True, several=2).filter(_no_ties), st.integers(0, 999))
def test_unknown_is_what_reaches_an_unknown_rule(world: World, seed: int) -> None:
    compare(world, seed, False)


@settings(max_examples=EXAMPLES // 5)
@given(_NEW, _maybe(_ALLOWED), st.sampled_from([0, 1]))
def test_a_destination_that_stays_is_no_status_dnat(new: RuleAction, allowed: t.Any, wanted: int) -> None:
    translated = Rule(1, (Branch(Match(destination=allowed), new),))
    asked = Rule(1, (Branch(Match(tests=(rules.Test(rules.DNAT, 1, ((wanted, wanted),)),)), RuleAction(rules.SOURCE)),))
    found = (
        RuleTable("nftables", "ip x", {"A": BaseChain("nat", rules.PREROUTING, -100)}, {"A": (translated,)}),
        RuleTable("nftables", "ip x", {"A": BaseChain("nat", rules.POSTROUTING, 100)}, {"A": (asked,)}),
    )
    compare(World(found, (Route(0, 0, 253, 1, (2,)),), (Selector(32768, 253),)), 0, False, 100)


# shapes of kube-proxy

UNIVERSE = intervals.complement(
    intervals.of(span for text in ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3") for span in shapes.net(text)),
    IPV4.highest,
)
ALL_SERVICES = intervals.of(
    (one << 16, one << 16 | (services.MAX_PORT if one in families.WITH_PORTS else 0)) for one in (1, 6, 17, 132)
)
POD = Start("cbr0", intervals.difference(shapes.net(shapes.PODS), shapes.net("10.244.1.1/32")), UNIVERSE, ALL_SERVICES)
EXEMPT = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
PRIVATE = intervals.of(span for text in EXEMPT for span in shapes.net(text))
SAYS = (Declared(Match(destination=PRIVATE), "pod"), Declared(Match(), "node"))
SHAPES = [pytest.param(shapes.iptables, id="iptables"), pytest.param(shapes.nftables, id="nftables")]


def node(*known: RuleTable, services: str = "", **more: t.Any) -> RulesAndRoutes:
    """Return a node with the routing of one whose pods are behind a bridge."""
    return RulesAndRoutes(known, Lookups(shapes.routing(), shapes.LINKS, IPV4), services, **more)


def covered(found: ways.Ways) -> int:
    """Return the number of packets that have a way, each counted once."""
    apart: t.Dict[regions.Region, None] = {}
    sure = 0
    for way in found.ways:
        if way.chance:
            for region in way.regions:
                left = [region]
                for other in apart:
                    if regions.meet(region.destination, other.destination):
                        left = [part for one in left for part in regions.subtract(one, other)]
                apart.update(dict.fromkeys(left))
        else:
            sure += way.size
    return sure + sum(map(regions.size, apart))


@pytest.mark.parametrize("shape", SHAPES)
def test_ways_through_kube_proxy_cover_everything(shape: t.Callable[..., RuleTable]) -> None:
    known = shapes.services(60, 12, nodes=4)
    found = ways.ways(node(shape(known), shapes.agent(EXEMPT)), [POD], SAYS)
    assert covered(found) == regions.size(found.starts[0].region)
    assert len(found.ways) < 300
    assert not any(way.unknown or way.tied for way in found.ways)
    for number, service in enumerate(known):
        packet = Packet(POD.source[0][0], int(shapes.net(service.address)[0][0]), 6 << 16 | service.port, 4000)
        mine = [way for way in found.ways if any(shapes.contains(region, packet) for region in way.regions)]
        reached = {number for way in mine for target in way.targets for number in _numbers(target.destination)}
        assert reached == {int(shapes.net(pod)[0][0]) for pod in service.pods}, number
        assert all(way.declared == "pod" and way.end == "leaves" and way.source is None for way in mine)
        if service.node_port:
            packet = packet._replace(destination=shapes.net(shapes.NODE)[0][0], service=6 << 16 | service.node_port)
            mine = [way for way in found.ways if any(shapes.contains(region, packet) for region in way.regions)]
            assert mine and all(way.source is not None and way.source.table == 0 for way in mine)


def test_many_rules_are_looked_up_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of comparisons grows with the number of Services, not with its square."""
    matched = []
    match = ways._Engine._match
    monkeypatch.setattr(ways._Engine, "_match", lambda self, *args: (matched.append(1), match(self, *args))[1])
    counts = []
    for count in (200, 400):
        del matched[:]
        for shape in (shapes.iptables, shapes.nftables):
            ways.ways(node(shape(shapes.services(count, count // 10)), shapes.agent(EXEMPT)), [POD], SAYS)
        counts.append(len(matched))
    assert counts[1] < counts[0] * 2.2


def test_what_time_leaves_over_is_said() -> None:
    tables = (shapes.iptables(shapes.services(300, 30)), shapes.agent(EXEMPT))
    found = ways.ways(node(*tables), [POD], SAYS, seconds=0.0)
    assert found.rest
    whole = found.starts[0].region
    for _number in range(200):
        packet = regions.packet(whole, random.Random(_number))
        assert any(
            shapes.contains(region, packet)
            for region in (*found.rest, *(region for way in found.ways for region in way.regions))
        )
    assert not ways.ways(node(*tables), [POD], SAYS, seconds=600).rest


# what is run, and what is not


def _table(kind: str, hook: int, priority: int, *pairs: t.Tuple[Match, RuleAction], drops: bool = False) -> RuleTable:
    return RuleTable("nftables", "ip x", {"A": BaseChain(kind, hook, priority, drops)}, {"A": shapes.chain(*pairs)})


MASQUERADE = _table("nat", rules.POSTROUTING, 100, (Match(tests=shapes.IS_MARKED), RuleAction(rules.SOURCE)))
MARKS = _table("filter", rules.FORWARD, 0, (Match(destination=PRIVATE), shapes.MARKED))
CT_FROM_MARK = _table(
    "filter",
    rules.PREROUTING,
    -150,
    (Match(), RuleAction(rules.SET, subject=rules.CT_MARK, origin=rules.MARK, keep=rules.ALL_BITS)),
)
BY_CT_MARK = _table(
    "nat", rules.POSTROUTING, 90, (Match(tests=(rules.Test(rules.CT_MARK, 1, ((1, 1),)),)), RuleAction(rules.SOURCE))
)
MARKS_EARLY = _table(
    "filter",
    rules.PREROUTING,
    -200,
    (Match(source_port=((5, 5),)), RuleAction(rules.SET, subject=rules.MARK, origin=rules.MARK, keep=0, flip=1)),
)
FILTER = _table("filter", rules.FORWARD, 5, (Match(destination=shapes.net("8.0.0.0/8")), RuleAction(rules.DROP)))
COUNTS = _table("filter", rules.FORWARD, 5, (Match(destination=shapes.net("8.0.0.0/8")), RuleAction(rules.CONTINUE)))


def test_only_what_can_decide_is_run() -> None:
    def run(*tables: RuleTable) -> t.List[int]:
        return [tree.table for tree in ways._Engine(node(*tables), (), (), None, False)._trees]

    assert run(MASQUERADE, MARKS, FILTER) == [0, 1]
    assert run(MARKS, FILTER) == []
    assert run(BY_CT_MARK, CT_FROM_MARK, MARKS_EARLY, FILTER, COUNTS) == [0, 1, 2]
    strange = FILTER._replace(chains={"A": (Rule(1, (Branch(Match(), RuleAction(rules.CONTINUE)),), ("a target",)),)})
    assert run(strange) == [0]
    doubtful = FILTER._replace(chains={"A": (Rule(1, (Branch(Match(), RuleAction(rules.DROP)),), ("the time",)),)})
    assert run(doubtful) == []


def test_a_way_is_divided_by_filters_when_asked() -> None:
    known = node(FILTER)
    found = ways.ways(known, [POD], SAYS)
    inside = Packet(POD.source[0][0], shapes.net("8.8.8.8/32")[0][0], 6 << 16 | 443, 4000)
    (way,) = [way for way in found.ways if any(shapes.contains(region, inside) for region in way.regions)]
    starts = [POD._replace(destination=region.destination, service=region.service) for region in way.regions]
    parts = ways.ways(known, starts, SAYS, filters=True).ways
    assert sum(part.size for part in parts) == way.size
    assert {part.end for part in parts} == {"leaves", "dropped"}
    for part in parts:
        for region in part.regions:
            assert bool(regions.meet(region.destination, shapes.net("8.0.0.0/8"))) == (part.end == "dropped")


def test_a_mark_that_is_not_known_makes_its_test_unknown() -> None:
    unknown = RuleAction(rules.SET, subject=rules.MARK)
    marks = _table("filter", rules.FORWARD, 0, (Match(destination=PRIVATE), unknown))
    found = ways.ways(node(MASQUERADE, marks), [POD])
    for way in found.ways:
        if way.end == "leaves":
            inside = [bool(regions.meet(region.destination, PRIVATE)) for region in way.regions]
            assert all(one == bool(way.unknown) for one in inside)
    assert {one for way in found.ways for one in way.unknown} == {
        ways.Unknown(Ref(0, "A", 1), "a mark that is not known")
    }


@pytest.mark.parametrize(
    ("action", "where", "counts"),
    [
        (rules.DROP, "0.0.0.0/0", False),  # what leaves was not dropped
        (rules.ACCEPT, "10.0.0.0/8", False),  # the mark is set for others alone
        (rules.ACCEPT, "0.0.0.0/0", True),
    ],
)
def test_an_unknown_rule_counts_only_if_it_makes_a_difference(action: str, where: str, counts: bool) -> None:
    unknown = Rule(1, (Branch(Match(destination=shapes.net("8.0.0.0/8")), RuleAction(action)),), ("the time",))
    mark = Rule(2, (Branch(Match(destination=shapes.net(where)), shapes.MARKED),))
    marks = RuleTable("iptables_nft", "ip mangle", {"A": BaseChain("filter", rules.FORWARD, 0)}, {"A": (unknown, mark)})
    found = ways.ways(node(MASQUERADE, marks), [POD])
    assert {one.reason for way in found.ways for one in way.unknown} == ({"the time"} if counts else set())


def test_a_table_that_is_not_understood_leaves_nothing_tested() -> None:
    found = ways.ways(node(MASQUERADE._replace(unknown=("its flags",))), [POD])
    assert found.ways and all(way.unknown == (ways.Unknown(Ref(0, "", 0), "its flags"),) for way in found.ways)


@pytest.mark.parametrize("target", ["A", "gone"])
def test_loops_and_missing_chains_are_unknown(target: str) -> None:
    looped = _table("nat", rules.POSTROUTING, 100, (Match(destination=PRIVATE), shapes.jump(target)))
    found = ways.ways(node(looped), [POD])
    for way in found.ways:
        if way.end == "leaves":
            assert bool(way.unknown) == all(
                regions.meet(region.destination, PRIVATE) == region.destination for region in way.regions
            )


def test_chains_may_lead_deep() -> None:
    chains = {str(depth): shapes.chain((Match(), shapes.jump(str(depth + 1)))) for depth in range(1000)}
    chains["1000"] = ()
    table = RuleTable("iptables_legacy", "ip nat", {"0": BaseChain("nat", rules.POSTROUTING, 100)}, chains)
    assert any(way.unknown for way in ways.ways(node(table), [POD]).ways)


def test_unknown_rules_do_not_multiply() -> None:
    """Forty rules of which nothing is known, each with a jump, are still a few ways."""
    chains = {"A": tuple(shapes.rule(one, Match(), shapes.jump("B"), unknown=("x",)) for one in range(1, 41))}
    chains["B"] = shapes.chain((Match(service=shapes.tcp(80)), RuleAction(rules.RETURN)))
    table = RuleTable("iptables_legacy", "ip nat", {"A": BaseChain("nat", rules.POSTROUTING, 100)}, chains)
    found = ways.ways(node(table), [POD])
    assert len(found.ways) < 20
    assert max(len(way.unknown) for way in found.ways) == 40


# links and IPVS


def test_links_that_nothing_tells_apart_are_one_class() -> None:
    links = (*shapes.LINKS, *(shapes.link(10 + one, "veth%d" % one) for one in range(4)), shapes.link(20, "tap0"))
    by_link = shapes.selector(5, 254, incoming="veth3")
    known = RulesAndRoutes(
        (_table("nat", rules.POSTROUTING, 100, (Match(incoming=(Names(("tap+",)),)), RuleAction(rules.SOURCE))),),
        Lookups(shapes.routing()._replace(rules=(by_link, *shapes.selectors())), links, IPV4),
    )
    names = ("veth0", "veth1", "veth2", "veth3", "tap0")
    starts = [Start(name, ((place, place),), UNIVERSE, ALL_SERVICES) for place, name in enumerate(names, 100)]
    found = ways.ways(known, starts)
    assert [one.links for one in found.starts] == [("veth0", "veth1", "veth2"), ("veth3",), ("tap0",)]
    assert found.starts[0].region.source == ((100, 102),)
    assert {way.start for way in found.ways if way.source is not None} == {2}


IPVS = """\
-A -t 198.51.100.1:30080 -s rr
-a -t 198.51.100.1:30080 -r 10.244.2.2:8080 -m -w 1
-a -t 198.51.100.1:30080 -r 10.244.1.7:8080 -m -w 1
-a -t 198.51.100.1:30080 -r 10.244.3.3:8080 -m -w 0
-A -t 10.244.1.1:443 -s sh -p 300
-a -t 10.244.1.1:443 -r 10.244.4.4:443 -g -w 1
-A -u 198.51.100.1:53 -s rr
-A -t [2001:db8::1]:80 -s rr
-a -t [2001:db8::1]:80 -r [2001:db8::2]:80 -m -w 1
"""


@pytest.mark.parametrize("tracked", [True, False])
def test_services_of_ipvs_lead_on(tracked: bool) -> None:
    known = node(shapes.agent(EXEMPT), services=IPVS, ipvs_conntrack=tracked)
    found = ways.ways(known, [POD], SAYS)

    def reached(address: str, service: int) -> t.Set[t.Tuple[t.Any, ...]]:
        packet = Packet(POD.source[0][0], shapes.net(address)[0][0], service, 4000)
        mine = [way for way in found.ways if any(shapes.contains(region, packet) for region in way.regions)]
        return {(way.end, way.outcome.link if way.outcome else "", bool(way.unknown), bool(way.met)) for way in mine}

    assert reached("198.51.100.1/32", 6 << 16 | 30080) == {
        ("leaves", "eth0", False, tracked),
        ("leaves", "cbr0", False, tracked),
    }
    assert {one[2] for one in reached("10.244.1.1/32", 6 << 16 | 443)} == {True}
    assert {one[0] for one in reached("198.51.100.1/32", 17 << 16 | 53)} == {"dropped"}
    assert {one[0] for one in reached("198.51.100.1/32", 6 << 16 | 22)} == {"delivered"}


def test_ties_have_both_answers() -> None:
    """One chain lets pass what the other one marks; which is asked first decides."""
    first = _table(
        "filter", rules.FORWARD, 0, (Match(destination=PRIVATE, tests=shapes.IS_NOT_MARKED), RuleAction(rules.DROP))
    )
    found = ways.ways(node(MASQUERADE, MARKS, first), [POD], filters=True)
    inside = Packet(POD.source[0][0], shapes.net("10.200.0.1/32")[0][0], 6 << 16 | 443, 4000)
    mine = [way for way in found.ways if any(shapes.contains(region, inside) for region in way.regions)]
    assert {way.end for way in mine} == {"leaves", "dropped"} and all(way.tied for way in mine)
    outside = inside._replace(destination=shapes.net("1.1.1.1/32")[0][0])
    mine = [way for way in found.ways if any(shapes.contains(region, outside) for region in way.regions)]
    assert [way.tied for way in mine] == [False]


def test_only_packets_of_which_the_order_decides_are_tied() -> None:
    """Two chains translate; those packets that only one of them means have one answer."""
    pod = shapes.net("10.244.1.2/32")
    one = _table("nat", rules.POSTROUTING, 0, (Match(destination=PRIVATE), RuleAction(rules.SOURCE)))
    other = _table("nat", rules.POSTROUTING, 0, (Match(source=pod), RuleAction(rules.SOURCE)))
    found = ways.ways(node(one, other), [POD])
    leaving = [(way.tied, region) for way in found.ways if way.end == "leaves" for region in way.regions]
    assert {tied for tied, _region in leaving} == {False, True}
    for tied, region in leaving:
        both = regions.meet(region.source, pod) and regions.meet(region.destination, PRIVATE)
        assert bool(both) == tied
        assert not tied or (region.source == pod and not regions.minus(region.destination, PRIVATE))


def test_the_order_of_rules_that_change_nothing_is_no_tie() -> None:
    """Two chains let packets pass by a rule each; one translates what is left."""
    one = _table("nat", rules.POSTROUTING, 0, (Match(destination=PRIVATE), RuleAction(rules.RETURN)))
    other = _table(
        "nat",
        rules.POSTROUTING,
        0,
        (Match(destination=PRIVATE), RuleAction(rules.RETURN)),
        (Match(), RuleAction(rules.SOURCE)),
    )
    found = ways.ways(node(one, other), [POD])
    leaving = [way for way in found.ways if way.end == "leaves"]
    assert {way.source is None for way in leaving} == {False, True}
    assert not any(way.tied for way in leaving)
