# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All ways that packets of pods can take through a node: its rules and routes, run forward over regions of packets.

A region is divided where a rule that can be reached tells its packets apart, and nowhere else. Packets that met the
same rules, with the same effects and the same outcome, are one way.
"""

from __future__ import annotations

import ipaddress
import itertools
import shlex
import time
import typing as t

from .._system import spans
from .._system.families import SCTP, TCP, UDP
from .._system.spans import Spans
from . import regions, rules
from .lookups import LEAVES, TO_NODE, Lookups, Outcome, Unknown
from .regions import Packet, Partition, Region
from .rules import (
    ACCEPT,
    ALL_BITS,
    CONTINUE,
    CT_MARK,
    CT_ZONE,
    DECIDED,
    DESTINATION,
    DNAT,
    DROP,
    FORWARD,
    GOTO,
    INPUT,
    JUMP,
    MARK,
    MAX_PORT,
    OUTPUT,
    POSTROUTING,
    PREROUTING,
    RETURN,
    SET,
    SOURCE,
    UNTRACKED,
    WITH_PORTS,
    Match,
)

#: Where a way ends, besides the kinds of an outcome that lead nowhere.
DELIVERED = "delivered"
DROPPED = "dropped"
#: of packets that the node itself sends
TRANSLATED = "translated"

#: Of conntrack, and of chains of type nat, whatever their own priority (linux/netfilter_ipv4.h).
_CONNTRACK = -200
_NAT = {PREROUTING: -100, OUTPUT: -100, POSTROUTING: 100}
#: IPVS takes packets in the hook INPUT with this priority.
_IPVS = 98
#: The table of rules that services of IPVS are.
IPVS_TABLE = -1

#: How deep chains may lead into each other. Each takes some calls of Python's stack.
_DEPTH = 100
#: From so many rules or branches on they are looked up instead of tried.
_MANY = 10
#: How many rules without a condition on a field may be between others that are looked up by it.
_GAP = 4
#: Of how many flows that an unknown rule divided it is asked whether it makes a difference.
_DOUBTED = 300
#: How many chains of one priority are tried in all orders.
_TIED = 3
#: How many of the ways that chance can take are listed where no destination tells them apart.
_SUBJECTS = {MARK: 0, CT_MARK: 1, CT_ZONE: 2, DNAT: 3, UNTRACKED: 4, DECIDED: 5}
_COUNT = len(_SUBJECTS)
_OF_CONNTRACK = (CT_MARK, CT_ZONE)
_NAMES = {
    MARK: "a mark that is not known",
    CT_MARK: "a mark of a connection that is not known",
    CT_ZONE: "a zone of conntrack that is not known",
}


class Ref(t.NamedTuple):
    """A rule: the place of its table in the list of tables, its chain, and its number in it."""

    table: int
    chain: str
    number: int


class Start(t.NamedTuple):
    """Packets that come in over a link, or (``own``) that the node itself sends."""

    link: str
    source: Spans
    destination: Spans
    service: Spans
    source_port: Spans = ((1, MAX_PORT),)
    #: what conntrack makes of them, as rules.UNTRACKED has it
    untracked: int = 0
    #: what else treats packets of the link differently; links whose traits differ are no class
    traits: t.Any = None
    own: bool = False


class StartClass(t.NamedTuple):
    """Links that nothing tells apart, with the packets that come in over all of them."""

    links: t.Tuple[str, ...]
    region: Region
    untracked: int = 0
    own: bool = False


class Target(t.NamedTuple):
    """A translated destination; of the service None: unchanged. ``met`` are the rules by which chance leads there."""

    destination: t.Optional[Spans]
    service: t.Optional[Spans]
    met: t.Tuple[Ref, ...]


class Way(t.NamedTuple):
    """Packets that take the same way.

    ``met`` are the rules that all of them match, in order, without those that only count; ``source`` that which gives
    them another source address, ``given`` how it does. With ``chance`` some of the packets, or some connections of the
    same, may take another way; ``history`` has the rules whose earlier packets decide it. ``tied`` says that it is so
    with one of the orders of chains of the same priority. ``unknown`` is what may make all of this wrong: packets of
    such a way are not tested.
    """

    start: int
    regions: t.Tuple[Region, ...]
    met: t.Tuple[Ref, ...]
    end: str
    outcome: t.Optional[Outcome]
    declared: t.Any
    source: t.Optional[Ref]
    targets: t.Tuple[Target, ...] = ()
    unknown: t.Tuple[Unknown, ...] = ()
    chance: bool = False
    tied: bool = False
    given: t.Optional[rules.Action] = None
    history: t.Tuple[Unknown, ...] = ()

    @property
    def size(self) -> int:
        """How many packets there are."""
        return sum(map(regions.size, self.regions))


class Ways(t.NamedTuple):
    """All of them. ``rest`` is what was left when the time was over, and ``share`` how much of all packets that is."""

    starts: t.Tuple[StartClass, ...]
    ways: t.Tuple[Way, ...]
    rest: t.Tuple[Region, ...] = ()
    share: float = 0.0


class Declared(t.NamedTuple):
    """What a policy says of packets that leave. Of several that match the first counts."""

    match: Match
    value: t.Any


class Node(t.NamedTuple):
    """What decides about packets. ``services`` is text of ``ipvsadm --save --numeric``.

    With ``ready`` several runs share what has been made of the rules.
    """

    tables: t.Sequence[rules.RuleTable]
    lookups: Lookups
    services: str = ""
    #: net.ipv4.vs.conntrack
    ipvs_conntrack: bool = False
    ready: t.Optional[Ready] = None


#: source, destination, service, source port; destination and service after a translation, or None; state
_Flow = t.Tuple[t.Any, ...]
_SOURCE, _DESTINATION, _SERVICE, _PORT, _NEW_DESTINATION, _NEW_SERVICE, _STATE = range(7)
#: A destination or service that was not translated is the one with which the packet came in.
_BEFORE = _NEW_DESTINATION - _DESTINATION

#: a way through the rules that chance opens: destination, service, rules
_Choice = t.Tuple[t.Optional[Spans], t.Optional[Spans], t.Tuple[int, ...]]


class _State(t.NamedTuple):
    """What packets of a flow have in common besides their fields. Equal ones are the same object."""

    values: t.Tuple[int, ...]
    #: the rules that were met: a place in the engine's list
    met: int = 0
    #: the same at the place where chance, or what is unknown, decided first; -1: it did not
    fork: int = -1
    #: whether it was chance
    chance: bool = False
    unknown: t.Tuple[Unknown, ...] = ()
    outcome: t.Optional[Outcome] = None
    source: t.Optional[Ref] = None
    choices: t.Tuple[_Choice, ...] = ()
    tied: bool = False
    end: str = ""
    declared: int = -1
    given: t.Optional[rules.Action] = None
    history: t.Tuple[Unknown, ...] = ()
    #: what the route back to the source is like
    back: t.Tuple[t.Any, ...] = ()


class _Branch:
    """One branch of a rule, ready to be used."""

    __slots__ = ("action", "conditions", "declares", "effect", "incoming", "kind", "outgoing", "tests")

    def __init__(self, match: Match, action: rules.Action, effect: int, declares: int = -1) -> None:
        self.conditions = tuple(
            (place, allowed)
            for place, allowed in (
                (_NEW_DESTINATION, match.destination),
                (_NEW_SERVICE, match.service),
                (_SOURCE, match.source),
                (_PORT, match.source_port),
                (_DESTINATION, match.original_destination),
                (_SERVICE, match.original_service),
            )
            if allowed is not None
        )
        self.incoming = match.incoming
        self.outgoing = match.outgoing
        self.tests = match.tests
        self.kind = action.kind
        self.action = action
        self.effect = effect
        self.declares = declares

    def allowed(self, place: int) -> t.Optional[Spans]:
        """Return the condition on a field."""
        for field, allowed in self.conditions:
            if field == place:
                return allowed
        return None


class _Rule:
    """One rule, ready to be used. ``index`` looks branches up where there are many."""

    __slots__ = ("branches", "chance", "exhaustive", "history", "index", "number", "ref", "unknown")

    def __init__(self, number: int, ref: Ref, branches: t.List[_Branch], rule: rules.Rule) -> None:
        self.number = number
        self.ref = ref
        self.branches = branches
        self.chance = rule.chance
        self.exhaustive = rule.exhaustive
        self.unknown = tuple(Unknown(ref, reason) for reason in rule.unknown)
        self.history = tuple(Unknown(ref, reason) for reason in rule.history)
        self.index: t.Optional[t.Tuple[int, Partition[t.Tuple[int, ...]]]] = None
        if len(branches) >= _MANY and not rule.chance:
            for place in (_NEW_DESTINATION, _NEW_SERVICE, _SOURCE):
                allowed = [branch.allowed(place) for branch in branches]
                if sum(one is None for one in allowed) <= _GAP:
                    self.index = (place, regions.partition(allowed))
                    break

    def allowed(self, place: int) -> t.Optional[Spans]:
        """Return all values of a field that a branch lets match; None if one lets any."""
        if len(self.branches) == 1:
            return self.branches[0].allowed(place)
        found: t.List[t.Tuple[int, int]] = []
        for branch in self.branches:
            allowed = branch.allowed(place)
            if allowed is None:
                return None
            found.extend(allowed)
        return spans.of(found)


class _Block:
    """Rules that follow each other: those that can match a packet are looked up by one of its fields, or all tried."""

    __slots__ = ("children", "index", "place", "rules", "used")

    def __init__(self, members: t.Sequence[_Rule], place: int = -1, used: t.FrozenSet[int] = frozenset()) -> None:
        self.rules = members
        self.place = place
        self.used = used
        self.children: t.Optional[t.Dict[t.Tuple[int, ...], t.List[_Block]]] = None
        self.index: t.Optional[Partition[t.Tuple[int, ...]]] = None
        if place >= 0:
            self.used = used | {place}
            self.children = {}
            self.index = regions.partition([rule.allowed(place) for rule in members])

    def child(self, places: t.Tuple[int, ...]) -> t.List[_Block]:
        """Return some of the rules, as blocks."""
        children = t.cast("t.Dict[t.Tuple[int, ...], t.List[_Block]]", self.children)
        if places not in children:
            children[places] = _blocks([self.rules[place] for place in places], self.used)
        return children[places]


def _blocks(members: t.Sequence[_Rule], used: t.FrozenSet[int] = frozenset()) -> t.List[_Block]:
    """Divide a list of rules into runs of those that a field tells apart."""
    if len(members) < _MANY:
        return [_Block(members)] if members else []
    fields = [place for place in (_NEW_DESTINATION, _NEW_SERVICE, _SOURCE, _PORT) if place not in used]
    has = {place: [rule.allowed(place) is not None for rule in members] for place in fields}
    found: t.List[_Block] = []
    plain: t.List[_Rule] = []
    start = 0
    while start < len(members):
        best, until, chosen = 0, start, -1
        for place in fields:
            hits, gaps, last = 0, 0, start
            for number in range(start, len(members)):
                if has[place][number]:
                    hits, gaps, last = hits + 1, 0, number + 1
                else:
                    gaps += 1
                    if gaps > _GAP or not hits:
                        break
            if hits > best:
                best, until, chosen = hits, last, place
        if best >= _MANY:
            if plain:
                found.append(_Block(plain))
                plain = []
            found.append(_Block(members[start:until], chosen, used))
            start = until
        else:
            plain.append(members[start])
            start += 1
    if plain:
        found.append(_Block(plain))
    return found


class _Tree(t.NamedTuple):
    """A base chain with all chains that it leads to."""

    table: int
    name: str
    base: rules.BaseChain
    chains: t.Tuple[str, ...]
    tested: t.Mapping[str, int]
    #: what is set, and from which values
    sets: t.Tuple[t.Tuple[str, int, t.Optional[str]], ...]
    anything: bool
    #: what is asked of the link that packets come in over
    incoming: t.Tuple[rules.Names, ...]
    #: whether a rule leads packets to the node itself
    redirects: bool
    #: whether neither chance nor what is unknown decides
    certain: bool


class Ready:
    """What is made of the rules of a node, for all runs over them."""

    def __init__(self, tables: t.Sequence[rules.RuleTable]) -> None:
        self.trees = [tree for number, table in enumerate(tables) for tree in _trees(number, table)]
        self._compiled: t.Dict[t.FrozenSet[t.Tuple[str, int]], _Compiled] = {}

    def compiled(self, tested: t.Mapping[str, int]) -> _Compiled:
        """Return the rules of runs in which the same bits of values are tested: what sets others has no effect."""
        return self._compiled.setdefault(frozenset(tested.items()), _Compiled([], {}, set()))


class _Compiled(t.NamedTuple):
    """Rules, ready to be used. Chains are made ready when a packet comes to them."""

    refs: t.List[Ref]
    chains: t.Dict[t.Tuple[int, str], t.List[_Block]]
    #: what is unknown of rules whose effect is unknown, not only the packets that they are about
    unknown_effects: t.Set[Unknown]


def ways(
    node: Node,
    starts: t.Sequence[Start],
    policy: t.Sequence[Declared] = (),
    seconds: t.Optional[float] = None,
    filters: bool = False,
) -> Ways:
    """Return all ways of packets.

    :param seconds: how long this may take; what is not done then is the rest.
    :param filters: whether packets are also divided by what only lets them pass or not.
    """
    return _Engine(node, policy, seconds, filters, any(start.own for start in starts)).ways(starts)


class _Engine:
    """Runs rules over flows. A flow is a product of spans with a state; it is never changed, only replaced."""

    def __init__(
        self, node: Node, policy: t.Sequence[Declared], seconds: t.Optional[float], filters: bool, own: bool = False
    ) -> None:
        """:param own: whether it is about packets that the node itself sends."""
        self._own = own
        self._node = node
        self._lookups = node.lookups
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._late = False
        self._checks = 0
        #: of each sequence of met rules: the one before, and the last rule
        self._met: t.List[t.Tuple[int, int]] = [(-1, -1)]
        self._next: t.Dict[t.Tuple[int, int, int], int] = {}
        self._states: t.Dict[_State, _State] = {}
        self._tables: t.List[rules.RuleTable] = list(node.tables)
        self._services = _services(node.services, node.lookups.version)
        self._filters = filters
        ready = node.ready or Ready(node.tables)
        self._trees = self._deciding(ready.trees, filters)
        self._refs, self._compiled, self._unknown_effects = ready.compiled(self._tested)
        self._values = [declared.value for declared in policy]
        self._policy = self._policy_blocks(policy)
        self._link = ""
        self._divides_back = False
        self._tracked = False
        self._accepted: t.List[_Flow] = []
        self._translated: t.List[_Flow] = []
        self._ended: t.List[_Flow] = []
        self._left: t.List[Region] = []
        self._start = 0

    # what is run

    def _deciding(self, trees: t.List[_Tree], filters: bool) -> t.List[_Tree]:
        """Return the trees that can change an address: of type nat, or setting what such a one or a route tests."""
        hooks = {PREROUTING, FORWARD, POSTROUTING} | ({INPUT, OUTPUT} if self._services else set())
        translating = {PREROUTING, POSTROUTING}
        if self._own:
            hooks = translating = {OUTPUT, POSTROUTING}
        trees = [
            tree
            for tree in trees
            if tree.base.hook in hooks and (tree.base.kind != "nat" or tree.base.hook in translating)
        ]
        self._tested = {MARK: self._lookups.marks_tested}
        if any(service.mark is not None for service in self._services):
            self._tested[MARK] = ALL_BITS
        chosen: t.List[_Tree] = []
        waiting = trees
        while True:
            found = [tree for tree in waiting if filters or tree.base.kind == "nat" or self._decides(tree)]
            if not found:
                break
            waiting = [tree for tree in waiting if tree not in found]
            chosen += found
            for tree in found:
                for subject, bits in tree.tested.items():
                    self._tested[subject] = self._tested.get(subject, 0) | bits
                # What is copied from another value depends on that.
                for subject, bits, origin in tree.sets:
                    if origin is not None and origin != subject and bits & self._tested.get(subject, 0):
                        self._tested[origin] = ALL_BITS
        return [tree for tree in trees if tree in chosen]

    def _decides(self, tree: _Tree) -> bool:
        return tree.anything or any(
            subject == UNTRACKED or bits & self._tested.get(subject, 0) for subject, bits, _origin in tree.sets
        )

    def _blocks_of(self, table: int, chain: str) -> t.Optional[t.List[_Block]]:
        key = (table, chain)
        if key not in self._compiled:
            listed = self._tables[table].chains.get(chain)
            if listed is None:
                return None
            members = [self._rule(Ref(table, chain, rule.number), rule) for rule in listed if self._matters(rule)]
            self._compiled[key] = _blocks(members)
        return self._compiled[key]

    def _matters(self, rule: rules.Rule) -> bool:
        return bool(rule.unknown) or any(self._has_effect(branch.action) for branch in rule.branches)

    def _has_effect(self, action: rules.Action) -> bool:
        if action.kind == SET and action.subject != UNTRACKED:
            return bool(_changed(action) & self._tested.get(action.subject, 0))
        return action.kind != CONTINUE

    def _rule(self, ref: Ref, rule: rules.Rule) -> _Rule:
        effects: t.Dict[rules.Action, int] = {}
        branches = []
        nothing = rules.Action(CONTINUE)
        for branch in rule.branches:
            action = branch.action if self._has_effect(branch.action) else nothing
            branches.append(_Branch(branch.match, action, effects.setdefault(action, len(effects))))
        self._refs.append(ref)
        ready = _Rule(len(self._refs) - 1, ref, branches, rule)
        if rules.does_unknown(rule):
            self._unknown_effects.update(ready.unknown)
        return ready

    def _policy_blocks(self, policy: t.Sequence[Declared]) -> t.List[_Block]:
        members = []
        for number, declared in enumerate(policy):
            same = next(place for place in range(number + 1) if self._values[place] == declared.value)
            branch = _Branch(declared.match, rules.Action(ACCEPT), 0, same)
            members.append(_Rule(-1, Ref(0, "", number), [branch], rules.Rule(number, ())))
        return _blocks(members)

    # the course of packets

    def ways(self, starts: t.Sequence[Start]) -> Ways:
        """Run all rules."""
        classes = self._classes(starts)
        merged: t.Dict[t.Any, _Merged] = {}
        for number, one in enumerate(classes):
            self._start = number
            self._link = one.links[0]
            for flow in self._run_own(one) if one.own else self._run(one):
                self._add(merged, flow)
        found = tuple(self._way(key, members) for key, members in merged.items())
        left = tuple(dict.fromkeys(self._left))
        share = 0.0
        if left:
            everything = sum(regions.size(one.region) for one in classes)
            share = min(sum(map(regions.size, left)) / everything, 1.0)
        return Ways(tuple(classes), found, left, share)

    def _classes(self, starts: t.Sequence[Start]) -> t.List[StartClass]:
        """Return classes of links that no rule tells apart: a packet of any of them takes the same way."""
        patterns = self._incoming_patterns()
        found: t.Dict[t.Any, t.Tuple[t.List[str], t.List[Start]]] = {}
        for start in starts:
            key = (
                tuple(names.match(start.link) for names in patterns),
                self._lookups.signature(start.link),
                self._local_key(start.link),
                start.destination,
                start.service,
                start.source_port,
                start.untracked,
                start.traits,
                self._way_back(start.link, start.source),
                start.own,
            )
            links, members = found.setdefault(key, ([], []))
            if start.link not in links:
                links.append(start.link)
            members.append(start)
        result = []
        for number, (links, members) in enumerate(found.values()):
            source = spans.of(span for start in members for span in start.source)
            first = members[0]
            region = Region(number, source, first.destination, first.service, first.source_port)
            if all(region[1:]):
                result.append(StartClass(tuple(links), region, first.untracked, first.own))
        return [one._replace(region=one.region._replace(start=number)) for number, one in enumerate(result)]

    def _incoming_patterns(self) -> t.List[rules.Names]:
        found = dict.fromkeys(names for tree in self._trees for names in tree.incoming)
        for block in self._policy:
            for member in block.rules:
                found.update(dict.fromkeys(member.branches[0].incoming))
        return list(found)

    def _local_key(self, link: str) -> t.Any:
        """Return what a rule that redirects to the node makes of a link."""
        return self._lookups.addresses_of(link) if any(tree.redirects for tree in self._trees) else None

    def _first(self, start: StartClass) -> t.List[_Flow]:
        """Return all packets of a class as they come in."""
        values = [0] * (2 * _COUNT)
        values[_SUBJECTS[UNTRACKED]] = start.untracked
        state = self._state(_State(tuple(values)))
        unknown = tuple(
            Unknown(Ref(number, "", 0), reason) for number, table in enumerate(self._tables) for reason in table.unknown
        )
        if unknown:
            state = self._state(state._replace(unknown=unknown))
        return [(*start.region[1:], None, None, state)]

    def _run_own(self, start: StartClass) -> t.Iterator[_Flow]:
        """Run packets of the node itself. Those to a destination that is translated are not followed."""
        flows: t.List[_Flow] = []
        for flow in self._routed(self._first(start)):
            kind = flow[_STATE].outcome.kind
            if kind == LEAVES:
                flows.append(flow)
            else:
                yield self._end(flow, DELIVERED if kind == TO_NODE else kind)
        flows, ended = self._hook(OUTPUT, self._join(flows))
        yield from ended
        marked = _SUBJECTS[MARK]
        again: t.List[_Flow] = []
        for flow in flows:
            values = flow[_STATE].values
            if not values[marked] and not values[marked + _COUNT]:
                again.append(flow)
                continue
            # A mark that is set leads to another lookup.
            for routed in self._forward(flow):
                kind = routed[_STATE].outcome.kind
                if kind == LEAVES:
                    again.append(routed)
                else:
                    yield self._end(routed, DELIVERED if kind == TO_NODE else kind)
        flows, ended = self._hook(POSTROUTING, again)
        yield from ended
        for flow in self._declare(flows):
            yield self._end(flow, LEAVES)

    def _routed(self, flows: t.Iterable[_Flow]) -> t.Iterator[_Flow]:
        for flow in flows:
            yield from self._forward(flow)

    def _run(self, start: StartClass) -> t.Iterator[_Flow]:
        flows, ended = self._hook(PREROUTING, self._first(start))
        yield from ended
        forwarded: t.List[_Flow] = []
        local: t.List[_Flow] = []
        self._divides_back = self._way_back(self._link, start.region.source) == self._link
        for flow in flows:
            for routed in self._route(flow):
                kind = routed[_STATE].outcome.kind
                if kind == LEAVES:
                    forwarded.append(routed)
                elif kind == TO_NODE:
                    local.append(routed)
                else:
                    yield self._end(routed, kind)
        if local and self._services:
            local, served, ended = self._serve(self._join(local))
            yield from ended
            flows, ended = self._hook(OUTPUT, served)
            yield from ended
            forwarded_late = flows
        else:
            forwarded_late = []
        for flow in local:
            yield self._end(flow, DELIVERED)
        flows, ended = self._hook(FORWARD, self._join(forwarded))
        yield from ended
        flows, ended = self._hook(POSTROUTING, flows + forwarded_late)
        yield from ended
        for flow in self._declare(flows):
            yield self._end(flow, LEAVES)

    def _end(self, flow: _Flow, end: str) -> _Flow:
        return self._with(flow, self._state(flow[_STATE]._replace(end=end)))

    def _state(self, state: _State) -> _State:
        return self._states.setdefault(state, state)

    @staticmethod
    def _with(flow: _Flow, state: _State) -> _Flow:
        return (*flow[:_STATE], state)

    # hooks

    def _hook(self, hook: int, flows: t.List[_Flow]) -> t.Tuple[t.List[_Flow], t.List[_Flow]]:
        """Run the chains of a hook in their order. Returns what goes on, and what was dropped."""
        units: t.Dict[int, t.List[t.Tuple[_Tree, ...]]] = {}
        nat = tuple(tree for tree in self._trees if tree.base.hook == hook and tree.base.kind == "nat")
        for tree in self._trees:
            if tree.base.hook == hook and tree.base.kind != "nat":
                # What comes behind the last translation finds nothing more to decide, unless it may do anything.
                if hook == POSTROUTING and tree.base.priority > _NAT[hook] and nat and not tree.anything:
                    continue
                if hook == INPUT and tree.base.priority >= _IPVS:
                    continue
                units.setdefault(tree.base.priority, []).append((tree,))
        if nat and hook in _NAT:
            units.setdefault(_NAT[hook], []).append(nat)
        ended: t.List[_Flow] = []
        for priority in sorted(units):
            early = hook == PREROUTING or (hook == OUTPUT and self._own)
            self._tracked = not early or priority >= _CONNTRACK
            results = []
            for order in _orders(units[priority]):
                live = flows
                gone: t.List[_Flow] = []
                for unit in order:
                    if unit is nat:
                        live, dropped = self._nat(unit, live)
                    else:
                        live, _translated, dropped = self._base(unit[0], live)
                    gone = gone + dropped
                results.append((live, gone))
            flows = self._combined([live for live, _gone in results])
            ended += self._combined([gone for _live, gone in results])
        return flows, ended

    def _nat(self, trees: t.Sequence[_Tree], flows: t.List[_Flow]) -> t.Tuple[t.List[_Flow], t.List[_Flow]]:
        """Run chains of type nat, in the order of their own priority: the first that translates ends them all."""
        place = _SUBJECTS[UNTRACKED]
        by_priority: t.Dict[int, t.List[_Tree]] = {}
        for tree in trees:
            by_priority.setdefault(tree.base.priority, []).append(tree)
        live: t.List[_Flow] = []
        done: t.List[_Flow] = []
        ended: t.List[_Flow] = []
        for flow in flows:
            values = flow[_STATE].values
            (done if values[place] and not values[place + _COUNT] else live).append(flow)
        for priority in sorted(by_priority):
            first, *others = _orders(by_priority[priority])
            now, translated, dropped = self._in_turn(first, live)
            results = [(translated, dropped)]
            if others and self._is_certain(first, live):
                # What all chains let through in one order they let through in any.
                changed = _those(live, translated + dropped)
                results += [self._in_turn(order, changed)[1:] for order in others]
                live = now
            else:
                more = [self._in_turn(order, live) for order in others]
                results += [one[1:] for one in more]
                live = self._combined([now, *(one[0] for one in more)])
            done += self._combined([one[0] for one in results])
            ended += self._combined([one[1] for one in results])
        return self._join(live + done), ended

    def _in_turn(
        self, order: t.Iterable[_Tree], flows: t.List[_Flow]
    ) -> t.Tuple[t.List[_Flow], t.List[_Flow], t.List[_Flow]]:
        """Run chains of type nat after each other: each sees what those before it did not translate."""
        translated: t.List[_Flow] = []
        dropped: t.List[_Flow] = []
        for tree in order:
            flows, more, gone = self._base(tree, flows)
            translated = translated + more
            dropped = dropped + gone
        return flows, translated, dropped

    def _is_certain(self, trees: t.Sequence[_Tree], flows: t.Iterable[_Flow]) -> bool:
        """Return whether nothing but the rules of chains decides what each does with a packet, none gives it another
        destination, and none sets a value that another tests or sets.
        """
        if not all(tree.certain and tree.base.hook == POSTROUTING for tree in trees):
            return False
        if any(_disturbs(one, other) for one, other in itertools.permutations(trees, 2)):
            return False
        states = {id(flow[_STATE]): flow[_STATE] for flow in flows}
        return not any(any(state.values[_COUNT:]) for state in states.values())

    def _base(self, tree: _Tree, flows: t.List[_Flow]) -> t.Tuple[t.List[_Flow], t.List[_Flow], t.List[_Flow]]:
        """Run one base chain. Returns what goes on, what was translated, and what was dropped."""
        self._accepted, self._translated, self._ended = [], [], []
        through = self._chain(tree.table, tree.name, flows, ())
        accepted, translated, ended = self._accepted, self._translated, self._ended
        if tree.base.drops:
            ended = ended + [self._end(flow, DROPPED) for flow in through]
            through = []
        through += accepted
        if tree.base.kind != "nat" and not self._filters:
            through = self._without_idle_doubts(flows, through)
        return self._join(through), self._join(translated), self._join(ended)

    def _without_idle_doubts(self, before: t.List[_Flow], after: t.List[_Flow]) -> t.List[_Flow]:
        """Take away what is unknown of a chain and makes no difference: packets that pass are the same in any case.

        A packet that is dropped has no source address, and one that passes was not dropped. So an unknown condition
        decides nothing if all flows of a packet that came through the chain are in the same state. A rule whose effect
        on packets is unknown stays in doubt.
        """
        old = self._unknown_effects.union(one for flow in before for one in flow[_STATE].unknown)
        doubted = [flow for flow in after if not old.issuperset(flow[_STATE].unknown)]
        if not doubted or len(doubted) > _DOUBTED:
            return after
        kept = [flow for flow in after if old.issuperset(flow[_STATE].unknown)]
        for flow in doubted:
            new = set(flow[_STATE].unknown) - old
            if all(
                _same_but_for_rules(flow, other)
                for other in doubted
                if new.intersection(other[_STATE].unknown) and _meet(flow, other)
            ):
                state = flow[_STATE]
                state = state._replace(unknown=tuple(one for one in state.unknown if one in old))
                if not state.chance and not state.unknown:
                    state = state._replace(met=state.fork, fork=-1)
                kept.append(self._with(flow, self._state(state)))
            else:
                kept.append(flow)
        return kept

    def _combined(self, results: t.List[t.List[_Flow]]) -> t.List[_Flow]:
        """Combine what came out of several orders: packets with one outcome are certain, the others are tied.

        In which order the same rules were met is no part of an outcome.
        """
        if len(results) == 1:
            return results[0]
        outcomes: t.Dict[_State, _State] = {}

        def outcome(flow: _Flow) -> t.Any:
            state = flow[_STATE]
            known = outcomes.get(state)
            if known is None:
                known = outcomes[state] = self._state(state._replace(met=0))
            return (flow[_NEW_DESTINATION], flow[_NEW_SERVICE], id(known))

        alike: t.List[t.Dict[t.Any, t.List[_Flow]]] = []
        for result in results:
            groups: t.Dict[t.Any, t.List[_Flow]] = {}
            for flow in result:
                groups.setdefault(outcome(flow), []).append(flow)
            alike.append(groups)
        found: t.Dict[_Flow, None] = {}
        for number, result in enumerate(results):
            others = alike[:number] + alike[number + 1 :]
            for flow in result:
                key = outcome(flow)
                certain = [flow]
                for groups in others:
                    same = groups.get(key, ())
                    if any(one[:_NEW_DESTINATION] == flow[:_NEW_DESTINATION] for one in same):
                        continue
                    certain = [both for one in certain for other in same for both in [_meet(one, other)] if both]
                if number == 0:
                    found.update(dict.fromkeys(certain))
                if len(certain) == 1 and certain[0] is flow:
                    continue
                tied = self._with(flow, self._state(flow[_STATE]._replace(tied=True)))
                found.update(dict.fromkeys(_minus(tied, certain)))
        return list(found)

    # rules

    def _over(self) -> bool:
        """Return whether the time is over."""
        if self._deadline is not None and not self._late:
            self._checks += 1
            if self._checks % 64 == 0:
                self._late = time.monotonic() >= self._deadline
        return self._late

    def _leave(self, flows: t.Iterable[_Flow]) -> None:
        self._left.extend(Region(self._start, *flow[:_NEW_DESTINATION]) for flow in flows)

    def _chain(self, table: int, chain: str, flows: t.List[_Flow], stack: t.Tuple[str, ...]) -> t.List[_Flow]:
        """Run a chain, and return the flows that come to its end or return from it."""
        blocks = self._blocks_of(table, chain)
        doubt = ""
        if blocks is None:
            doubt = "the chain %s, which is not there" % chain
        elif chain in stack:
            doubt = "the chain %s, which leads to itself" % chain
        elif len(stack) >= _DEPTH:
            doubt = "chains that lead to each other more than %d times" % _DEPTH
        if blocks is None or doubt:
            return [self._doubted(flow, (Unknown(Ref(table, chain, 0), doubt),)) for flow in flows]
        returned: t.List[_Flow] = []
        flows = self._blocks(blocks, flows, returned, (table, (*stack, chain)))
        return self._join(flows + returned) if returned else flows

    def _blocks(
        self, blocks: t.List[_Block], flows: t.List[_Flow], returned: t.List[_Flow], context: t.Any
    ) -> t.List[_Flow]:
        for block in blocks:
            if not flows:
                break
            if block.index is None:
                flows = self._tried(block.rules, flows, returned, context)
            else:
                flows = self._looked_up(block, flows, returned, context)
        return flows

    def _tried(
        self, members: t.Sequence[_Rule], flows: t.List[_Flow], returned: t.List[_Flow], context: t.Any
    ) -> t.List[_Flow]:
        for rule in members:
            if not flows:
                break
            if self._over():
                self._leave(flows)
                return []
            out: t.List[_Flow] = []
            for flow in flows:
                self._apply(rule, flow, out, returned, context)
            forked = rule.chance or rule.unknown
            flows = self._join(out) if len(out) > 1 and (forked or len(out) > len(flows) + 3) else out
        return flows

    def _looked_up(self, block: _Block, flows: t.List[_Flow], returned: t.List[_Flow], context: t.Any) -> t.List[_Flow]:
        index = t.cast("Partition[t.Tuple[int, ...]]", block.index)
        out: t.List[_Flow] = []
        for flow in flows:
            place = block.place
            if place >= _NEW_DESTINATION and flow[place] is None:
                place -= _BEFORE
            for places, part in index.divide(flow[place]):
                some = flow if part is flow[place] else (*flow[:place], part, *flow[place + 1 :])
                if self._over():
                    self._leave([some])
                elif places:
                    out += self._blocks(block.child(places), [some], returned, context)
                else:
                    out.append(some)
        return self._join(out)

    def _match(self, branch: _Branch, flow: _Flow) -> t.Tuple[t.Optional[_Flow], t.List[_Flow], t.Tuple[str, ...]]:
        """Divide a flow: the packets that match, those that do not, and why the first may not match after all."""
        doubt: t.Tuple[str, ...] = ()
        if branch.tests or branch.incoming or branch.outgoing:
            fits, doubt = self._fits(branch, flow[_STATE])
            if not fits:
                return None, [flow], ()
        parts = []
        for field, allowed in branch.conditions:
            place = field - _BEFORE if field >= _NEW_DESTINATION and flow[field] is None else field
            have = flow[place]
            both = regions.meet(have, allowed)
            if not both:
                return None, [flow], ()
            if both is not have:
                parts.append((place, both))
        if not parts:
            return flow, [], doubt
        fields = list(flow)
        pieces: t.List[_Flow] = []
        for place, both in parts:
            # Two conditions may be about the same field: the destination before and after a translation.
            inside = regions.meet(fields[place], both)
            if not inside:
                return None, [flow], ()
            outside = regions.minus(fields[place], inside)
            if outside:
                pieces.append((*fields[:place], outside, *fields[place + 1 :]))
                fields[place] = inside
        return tuple(fields), pieces, doubt

    def _fits(self, branch: _Branch, state: _State) -> t.Tuple[bool, t.Tuple[str, ...]]:
        """Return whether what a flow has in common matches, and what is not known of that."""
        if not all(names.match(self._link) for names in branch.incoming):
            return False, ()
        if branch.outgoing:
            # Before a route is known a condition on its link never matches.
            if state.outcome is None or not all(names.match(state.outcome.link) for names in branch.outgoing):
                return False, ()
        doubt: t.Tuple[str, ...] = ()
        for test in branch.tests:
            place = _SUBJECTS[test.subject]
            value, unknown = state.values[place], state.values[place + _COUNT]
            if test.subject in _OF_CONNTRACK:
                # Without a connection there is nothing to compare, whatever is asked.
                if not self._has_connection(state):
                    return False, ()
            unknown &= test.mask
            if not unknown:
                if not spans.contains(test.allowed, value & test.mask):
                    return False, ()
            elif not _possible(test, value, unknown):
                return False, ()
            else:
                doubt += (_NAMES.get(test.subject, "%s that is not known" % test.subject),)
        return True, doubt

    def _apply(self, rule: _Rule, flow: _Flow, out: t.List[_Flow], returned: t.List[_Flow], context: t.Any) -> None:
        if rule.chance:
            self._apply_by_chance(rule, flow, out, returned, context)
            return
        if rule.index is not None:
            place, index = rule.index
            if place >= _NEW_DESTINATION and flow[place] is None:
                place -= _BEFORE
            for places, part in index.divide(flow[place]):
                some = flow if part is flow[place] else (*flow[:place], part, *flow[place + 1 :])
                if places:
                    self._try_branches(rule, [rule.branches[one] for one in places], some, out, returned, context)
                else:
                    out.append(some)
        else:
            self._try_branches(rule, rule.branches, flow, out, returned, context)

    def _try_branches(
        self,
        rule: _Rule,
        branches: t.Iterable[_Branch],
        flow: _Flow,
        out: t.List[_Flow],
        returned: t.List[_Flow],
        context: t.Any,
    ) -> None:
        rest = [flow]
        for branch in branches:
            others: t.List[_Flow] = []
            for one in rest:
                matched, pieces, doubt = self._match(branch, one)
                others += pieces
                if matched is not None:
                    unknown = rule.unknown
                    if doubt:
                        unknown += tuple(Unknown(rule.ref, text) for text in doubt)
                    if unknown:
                        doubted = self._doubted(matched, unknown)
                        if branch.kind != CONTINUE:
                            out.append(doubted)
                        if branch.kind != DROP:  # what is dropped is dropped; that it may go on is said of the rest
                            matched = doubted
                    self._act(rule, branch, matched, out, returned, context)
            rest = others
            if not rest:
                break
        out += rest

    def _apply_by_chance(
        self, rule: _Rule, flow: _Flow, out: t.List[_Flow], returned: t.List[_Flow], context: t.Any
    ) -> None:
        rest = [flow]
        for branch in rule.branches:
            matched, _pieces, doubt = self._match(branch, flow)
            if matched is None:
                continue
            unknown = rule.unknown + tuple(Unknown(rule.ref, text) for text in doubt)
            matched = self._by_chance(self._doubted(matched, unknown), rule.history)
            self._act(rule, branch, matched, out, returned, context)
            others: t.List[_Flow] = []
            for one in rest:
                same, pieces, _doubt = self._match(branch, one)
                others += pieces
                if same is not None and (unknown or not rule.exhaustive):
                    out.append(self._by_chance(self._doubted(same, unknown), rule.history))
            rest = others
        out += rest

    def _doubted(self, flow: _Flow, unknown: t.Tuple[Unknown, ...]) -> _Flow:
        """Return a flow that may be wrong from here on."""
        if not unknown:
            return flow
        state = flow[_STATE]
        known = _union(state.unknown, unknown)
        fork = state.met if state.fork < 0 else state.fork
        return self._with(flow, self._state(state._replace(unknown=known, fork=fork)))

    def _by_chance(self, flow: _Flow, history: t.Tuple[Unknown, ...] = ()) -> _Flow:
        state = flow[_STATE]
        fork = state.met if state.fork < 0 else state.fork
        history = _union(state.history, history)
        return self._with(flow, self._state(state._replace(chance=True, fork=fork, history=history)))

    def _act(
        self,
        rule: _Rule,
        branch: _Branch,
        flow: _Flow,
        out: t.List[_Flow],
        returned: t.List[_Flow],
        context: t.Any,
    ) -> None:
        kind = branch.kind
        if kind == CONTINUE:
            out.append(flow)
            return
        state = flow[_STATE]
        if branch.declares >= 0:
            self._accepted.append(self._with(flow, self._state(state._replace(declared=branch.declares))))
            return
        key = (state.met, rule.number, branch.effect)
        met = self._next.get(key)
        if met is None:
            met = self._next[key] = len(self._met)
            self._met.append((state.met, rule.number))
        values = _set(state.values, branch.action) if kind == SET else state.values
        source, given = (rule.ref, branch.action) if kind == SOURCE else (state.source, state.given)
        if kind == SET and not self._can_set(branch.action.subject, state):
            values = state.values
        flow = self._with(flow, self._state(state._replace(met=met, values=values, source=source, given=given)))
        if kind == SET:
            out.append(flow)
        elif kind == JUMP:
            out += self._chain(context[0], branch.action.chain, [flow], context[1])
        elif kind == GOTO:
            returned += self._chain(context[0], branch.action.chain, [flow], context[1])
        elif kind == RETURN:
            returned.append(flow)
        elif kind == ACCEPT:
            self._accepted.append(flow)
        elif kind == DROP:
            self._ended.append(self._end(flow, DROPPED))
        elif kind == SOURCE:
            self._translated.append(flow)
        elif kind == DESTINATION:
            self._translate(branch.action, flow)

    def _can_set(self, subject: str, state: _State) -> bool:
        """Return whether there is what a rule sets: a decision that conntrack has not made yet, or a connection."""
        if subject in (UNTRACKED, CT_ZONE, DECIDED):
            return not self._tracked
        return subject != CT_MARK or self._has_connection(state)

    def _has_connection(self, state: _State) -> bool:
        place = _SUBJECTS[UNTRACKED]
        return self._tracked and (not state.values[place] or bool(state.values[place + _COUNT]))

    def _translate(self, action: rules.Action, flow: _Flow) -> None:
        """Give a flow another destination."""
        state = flow[_STATE]
        if self._own:
            apart = self._state(_State((0,) * len(state.values), unknown=state.unknown, end=TRANSLATED))
            self._ended.append(self._with(flow, apart))
            return
        values = list(state.values)
        values[_SUBJECTS[DNAT]] = 1
        state = self._state(state._replace(values=tuple(values)))
        destination = flow[_NEW_DESTINATION]
        if action.addresses is not None:
            destination = action.addresses
        elif action.local:
            # The first address of the link for IPv4; of IPv6 the kernel chooses one.
            listed = self._lookups.addresses_of(self._link)
            listed = listed[:1] if self._lookups.version == 4 else listed
            if not listed:
                self._ended.append(self._end(self._with(flow, state), DROPPED))
                return
            destination = spans.of((one, one) for one in listed)
        several = destination is not None and destination is not flow[_NEW_DESTINATION] and _many(destination)
        if action.ports is None:
            pieces: t.List[t.Tuple[t.Any, t.Any]] = [(flow[_SERVICE], flow[_NEW_SERVICE])]
        else:
            several = several or _many(action.ports)
            pieces = []
            rest = flow[_SERVICE]
            for protocol in WITH_PORTS:
                whole: Spans = ((protocol << 16, protocol << 16 | MAX_PORT),)
                mine = regions.meet(rest, whole)
                if mine:
                    ports = tuple((protocol << 16 | first, protocol << 16 | last) for first, last in action.ports)
                    pieces.append((mine, ports))
                    rest = regions.minus(rest, whole)
            if rest:
                pieces.append((rest, None))
        for service, new in pieces:
            one: _Flow = (flow[_SOURCE], flow[_DESTINATION], service, flow[_PORT], destination, new, state)
            for part in self._marked(one, flow) if self._tested.get(DNAT) else [one]:
                self._translated.append(self._by_chance(part) if several else part)

    def _marked(self, flow: _Flow, before: _Flow) -> t.List[_Flow]:
        """Divide what is translated by whether conntrack's status says so: not if the destination stays as it was
        (nf_nat_setup_info in the kernel's nf_nat_core.c). Of a choice that may leave it so, both are followed.
        """
        same = flow
        chosen = False
        for place in (_NEW_DESTINATION, _NEW_SERVICE):
            new = flow[place]
            if new is before[place]:
                continue
            both = regions.meet(before[place - _BEFORE if before[place] is None else place], new)
            if not both:
                return [flow]
            chosen = chosen or _many(new)
            if before[place] is None:
                same = (*same[: place - _BEFORE], both, *same[place - _BEFORE + 1 :])
            else:
                chosen = True
        state = flow[_STATE]
        values = list(state.values)
        values[_SUBJECTS[DNAT]] = 0
        found = [*_minus(flow, [same]), self._with(same, self._state(state._replace(values=tuple(values))))]
        return [*found, same] if chosen else found

    # routing, IPVS, the policy

    def _way_back(self, link: str, source: Spans) -> t.Any:
        """Return what the routes back to sources are like, if it matters; the link if they differ."""
        if self._own or not self._lookups.filters_sources(link):
            return None
        everything: Spans = ((0, rules.highest(self._lookups.version)),)
        found = self._lookups.back(source, everything, 0, ALL_BITS, link)
        return link if any(one.unknown or one.like != found[0].like for one in found) else found[0].like

    def _route(self, flow: _Flow) -> t.Iterator[_Flow]:
        if not self._divides_back:
            yield from self._forward(flow)
            return
        state = flow[_STATE]
        mark = _SUBJECTS[MARK]
        place = _DESTINATION if flow[_NEW_DESTINATION] is None else _NEW_DESTINATION
        known = state.values[mark], state.values[mark + _COUNT]
        for source, destination, like, unknown in self._lookups.back(flow[_SOURCE], flow[place], *known, self._link):
            fields = list(flow)
            fields[_SOURCE], fields[place] = source, destination
            fields[_STATE] = self._state(state._replace(back=like))
            yield from self._forward(self._doubted(tuple(fields), unknown))

    def _forward(self, flow: _Flow) -> t.Iterator[_Flow]:
        state = flow[_STATE]
        destination = _DESTINATION if flow[_NEW_DESTINATION] is None else _NEW_DESTINATION
        service = _SERVICE if flow[_NEW_SERVICE] is None else _NEW_SERVICE
        if self._over():
            self._leave([flow])
            return
        mark = _SUBJECTS[MARK]
        box = (flow[_SOURCE], flow[destination], flow[service], flow[_PORT])
        link = "lo" if self._own else self._link
        for part in self._lookups.forward(box, state.values[mark], state.values[mark + _COUNT], link):
            fields = list(flow)
            fields[_SOURCE], fields[_PORT] = part.source, part.source_port
            fields[destination], fields[service] = part.destination, part.service
            fields[_STATE] = self._state(state._replace(outcome=part.outcome))
            one = self._doubted(tuple(fields), part.unknown)
            yield self._by_chance(one) if part.chance else one

    def _serve(self, flows: t.List[_Flow]) -> t.Tuple[t.List[_Flow], t.List[_Flow], t.List[_Flow]]:
        """Run services of IPVS. Return what the node itself receives, what goes on to a server, and what is dropped."""
        flows, ended = self._hook(INPUT, flows)
        self._accepted, self._translated, self._ended = [], [], []
        members = []
        for number, service in enumerate(self._services, 1):
            ref = Ref(IPVS_TABLE, "", number)
            rule = service.rule(number)
            branches = [_Branch(one.match, one.action, place) for place, one in enumerate(rule.branches)]
            self._refs.append(ref)
            members.append(_Rule(len(self._refs) - 1, ref, branches, rule))
        local = self._blocks(_blocks(members), flows, [], (IPVS_TABLE, ()))
        ended = ended + self._ended
        translated = self._join(self._translated)
        served: t.List[_Flow] = []
        for flow in translated:
            state = flow[_STATE]
            values = list(state.values)
            # It is IPVS that translates, not conntrack.
            values[_SUBJECTS[DNAT]] = 0
            if not self._node.ipvs_conntrack:
                values[_SUBJECTS[UNTRACKED]] = 1
                values[_SUBJECTS[UNTRACKED] + _COUNT] = 0
            for part in self._lookups.output(flow[_NEW_DESTINATION]):
                routed = state._replace(values=tuple(values), outcome=part.outcome)
                one: _Flow = (*flow[:_NEW_DESTINATION], part.destination, flow[_NEW_SERVICE], self._state(routed))
                one = self._doubted(one, part.unknown)
                if part.outcome.kind == LEAVES:
                    served.append(self._by_chance(one) if part.chance else one)
                elif part.outcome.kind == TO_NODE:
                    local.append(one)
                else:
                    ended.append(self._end(one, part.outcome.kind))
        return local, served, ended

    def _declare(self, flows: t.List[_Flow]) -> t.List[_Flow]:
        """Divide what leaves by the policy."""
        if not self._policy:
            return flows
        self._accepted = []
        rest = self._blocks(self._policy, flows, [], (0, ()))
        return self._accepted + rest

    # merging

    def _join(self, flows: t.List[_Flow]) -> t.List[_Flow]:
        """Join flows into as few as it takes: ways of chance that meet again, parts that differ in one field.

        Two flows of the same packets, in the same state, that differ only in the rules by which chance led to it
        behave alike from here on, but for the translated destination: that becomes the union of theirs, and is divided
        again where a rule or route tells it apart. Two flows in the same state that differ in one field alone are one
        product, because the union of that field with the same other fields is one.
        """
        if len(flows) < 2:
            return flows
        forked = [flow for flow in flows if flow[_STATE].fork >= 0]
        if len(forked) > 1:
            flows = [flow for flow in flows if flow[_STATE].fork < 0] + self._join_forks(forked)
        for place in (_DESTINATION, _SERVICE, _SOURCE):
            if len(flows) < 2:
                break
            groups: t.Dict[t.Any, t.List[_Flow]] = {}
            for flow in flows:
                key = (*flow[:place], *flow[place + 1 : _STATE], id(flow[_STATE]))
                groups.setdefault(key, []).append(flow)
            if len(groups) < len(flows):
                flows = [
                    members[0]
                    if len(members) == 1
                    else (
                        *members[0][:place],
                        spans.of(span for member in members for span in member[place]),
                        *members[0][place + 1 :],
                    )
                    for members in groups.values()
                ]
        return flows

    def _join_forks(self, flows: t.List[_Flow]) -> t.List[_Flow]:
        groups: t.Dict[t.Any, t.List[_Flow]] = {}
        for flow in flows:
            state = flow[_STATE]
            common = state._replace(met=0, choices=(), unknown=(), history=())
            key = (
                flow[:_NEW_DESTINATION],
                flow[_NEW_DESTINATION] is None,
                flow[_NEW_SERVICE],
                id(self._state(common)),
                state.unknown,
            )
            groups.setdefault(key, []).append(flow)
        found = []
        for members in groups.values():
            first = members[0]
            if len(members) == 1:
                found.append(first)
                continue
            choices: t.Dict[t.Tuple[t.Any, t.Any], _Choice] = {}
            for flow in members:
                for choice in self._choices(flow):
                    choices.setdefault(choice[:2], choice)
            destination = first[_NEW_DESTINATION]
            if destination is not None:
                destination = spans.of(span for flow in members for span in flow[_NEW_DESTINATION])
            state = first[_STATE]
            history = _union(*(flow[_STATE].history for flow in members))
            state = self._state(state._replace(met=state.fork, choices=tuple(choices.values()), history=history))
            found.append((*first[:_NEW_DESTINATION], destination, first[_NEW_SERVICE], state))
        return found

    def _choices(self, flow: _Flow) -> t.List[_Choice]:
        """Return the ways by which chance led a flow to where it is."""
        state = flow[_STATE]
        late = self._path(state.met, state.fork)
        if not state.choices:
            return [(flow[_NEW_DESTINATION], flow[_NEW_SERVICE], late)]
        found = []
        for destination, service, path in state.choices:
            if destination is None:
                found.append((flow[_NEW_DESTINATION], flow[_NEW_SERVICE], path + late))
            else:
                mine = regions.meet(destination, flow[_NEW_DESTINATION])
                if mine:
                    found.append((mine, service, path + late))
        return found

    def _targets(self, choices: t.Iterable[_Choice], flow: _Flow) -> t.Iterator[Target]:
        """Return the choices that are left of those by which a flow came to be: some went another way since."""
        for destination, service, path in choices:
            left = destination
            if destination is not None and flow[_NEW_DESTINATION] is not None:
                left = regions.meet(destination, flow[_NEW_DESTINATION])
                if not left:
                    continue
            yield Target(left, service, tuple(self._refs[rule] for rule in path))

    def _path(self, met: int, until: int) -> t.Tuple[int, ...]:
        """Return the rules that were met, from a place on."""
        found = []
        while met > 0 and met != until:
            met, rule = self._met[met]
            found.append(rule)
        return tuple(found[::-1])

    def _add(self, merged: t.Dict[t.Any, _Merged], flow: _Flow) -> None:
        """Put a flow that came to its end to those of the same way.

        That is sound: what a packet is given on its way, and where it ends, follows from the rules that it matches,
        their effects and their order, and from nothing else; rules that it does not match do nothing. All of that is
        in the key. What a packet is compared with on its way is in the regions.
        """
        state = flow[_STATE]
        key = (self._start, self._state(state._replace(choices=())))
        known = merged.get(key)
        if known is None:
            known = merged[key] = _Merged({}, {})
        region = Region(self._start, *flow[:_NEW_DESTINATION])
        if flow[_NEW_DESTINATION] is not None or flow[_NEW_SERVICE] is not None or state.choices:
            choices = state.choices or ((flow[_NEW_DESTINATION], flow[_NEW_SERVICE], ()),)
            for target in self._targets(choices, flow):
                known.targets[target] = None
        known.regions[region] = None

    def _way(self, key: t.Any, members: _Merged) -> Way:
        start, state = key
        found = list(members.regions)
        if state.tied and len(found) > 1:
            # Two orders may divide the same packets differently.
            apart: t.List[Region] = []
            for region in found:
                apart += regions.subtract_all(region, list(apart))
            found = apart
        return Way(
            start=start,
            regions=tuple(found),
            met=tuple(self._refs[rule] for rule in self._path(state.met, 0)),
            end=state.end,
            outcome=state.outcome,
            declared=self._values[state.declared] if state.declared >= 0 else None,
            source=state.source,
            targets=tuple(members.targets),
            unknown=state.unknown,
            chance=state.chance,
            tied=state.tied,
            given=state.given,
            history=state.history,
        )


class _Merged(t.NamedTuple):
    """The parts of a way; the keys of both are in order, their values mean nothing."""

    regions: t.Dict[Region, None]
    targets: t.Dict[Target, None]


def _union(*some: t.Tuple[Unknown, ...]) -> t.Tuple[Unknown, ...]:
    found = {one for each in some for one in each}
    return tuple(sorted(found, key=repr)) if found else ()


def _meet(one: _Flow, other: _Flow) -> t.Optional[_Flow]:
    """Return the packets of the first, as they came in, that are also in the second."""
    parts = [regions.meet(mine, yours) for mine, yours in zip(one[:_NEW_DESTINATION], other)]
    return (*parts, *one[_NEW_DESTINATION:]) if all(parts) else None


def _disturbs(one: _Tree, other: _Tree) -> bool:
    """Return whether a chain sets what another tests or sets."""
    touched = dict(other.tested)
    for subject, bits, origin in other.sets:
        touched[subject] = touched.get(subject, 0) | bits
        if origin is not None and origin != subject:
            touched[origin] = ALL_BITS
    return any(bits & touched.get(subject, 0) for subject, bits, _origin in one.sets)


def _those(flows: t.Iterable[_Flow], found: t.Iterable[_Flow]) -> t.List[_Flow]:
    """Return the packets of flows, as they were, that became the others, which went on to the same destination."""
    before: t.Dict[t.Any, t.List[_Flow]] = {}
    for flow in flows:
        before.setdefault(flow[_NEW_DESTINATION:_STATE], []).append(flow)
    return [
        both
        for one in found
        for flow in before.get(one[_NEW_DESTINATION:_STATE], ())
        for both in [_meet(flow, one)]
        if both
    ]


def _same_but_for_rules(one: _Flow, other: _Flow) -> bool:
    """Return whether packets of two flows are in the same state, whatever rules led there."""
    if one[_NEW_DESTINATION:_STATE] != other[_NEW_DESTINATION:_STATE]:
        return False
    mine, yours = (t.cast(_State, flow[_STATE]._replace(met=0, fork=0, unknown=())) for flow in (one, other))
    return mine == yours


def _minus(one: _Flow, others: t.Iterable[_Flow]) -> t.List[_Flow]:
    """Return the packets of the first, as they came in, that are in none of the others."""
    cut = [Region(0, *other[:_NEW_DESTINATION]) for other in others]
    left = regions.subtract_all(Region(0, *one[:_NEW_DESTINATION]), cut)
    return [(*region[1:], *one[_NEW_DESTINATION:]) for region in left]


def _many(one: Spans) -> bool:
    return len(one) > 1 or one[0][0] != one[0][1]


def _changed(action: rules.Action) -> int:
    """Return the bits of a value that an action may change."""
    if action.origin == action.subject:
        return (ALL_BITS & ~action.keep) | action.flip
    return ALL_BITS


def _set(values: t.Tuple[int, ...], action: rules.Action) -> t.Tuple[int, ...]:
    place = _SUBJECTS[action.subject]
    changed = list(values)
    if action.origin is None:
        changed[place], changed[place + _COUNT] = 0, ALL_BITS
        return tuple(changed)
    origin = _SUBJECTS[action.origin]
    unknown = values[origin + _COUNT] & action.keep
    changed[place] = ((values[origin] & action.keep) ^ action.flip) & ~unknown
    changed[place + _COUNT] = unknown
    return tuple(changed)


def _possible(test: rules.Test, value: int, unknown: int) -> bool:
    """Return whether a value with unknown bits can be one of those that are allowed."""
    known = value & test.mask & ~unknown
    # Between the lowest and the highest of them; where the bits in between are too many to be tried, that is enough.
    if not spans.intersection(test.allowed, ((known, known | unknown),)):
        return False
    bits = [1 << bit for bit in range(32) if unknown >> bit & 1]
    if len(bits) > 8:
        return True
    return any(
        spans.contains(test.allowed, known | sum(chosen))
        for number in range(len(bits) + 1)
        for chosen in itertools.combinations(bits, number)
    )


def _orders(units: t.Sequence[t.Any]) -> t.Iterable[t.Sequence[t.Any]]:
    """Return the orders in which the kernel may ask chains of the same priority."""
    if len(units) < 2:
        return [units]
    if len(units) <= _TIED:
        return list(itertools.permutations(units))
    # Which of them comes first is what matters most.
    return [[*units[number:], *units[:number]] for number in range(len(units))] + [list(units)[::-1]]


def reachable(table: rules.RuleTable, start: str) -> t.Tuple[str, ...]:
    """Return a chain and all chains that it leads to."""
    found = {start: None}
    work = [start]
    while work:
        for rule in table.chains.get(work.pop(), ()):
            for branch in rule.branches:
                target = branch.action.chain
                if branch.action.kind in (JUMP, GOTO) and target not in found:
                    found[target] = None
                    work.append(target)
    return tuple(found)


def _trees(number: int, table: rules.RuleTable) -> t.Iterator[_Tree]:
    for name, base in table.base.items():
        chains = reachable(table, name)
        tested: t.Dict[str, int] = {}
        sets: t.Dict[t.Tuple[str, int, t.Optional[str]], None] = {}
        anything = False
        effect = False
        certain = True
        incoming: t.Dict[rules.Names, None] = {}
        redirects = False
        for chain in chains:
            certain = certain and chain in table.chains
            for rule in table.chains.get(chain, ()):
                certain = certain and not (rule.chance or rule.unknown or rule.history)
                for branch in rule.branches:
                    for test in branch.match.tests:
                        tested[test.subject] = tested.get(test.subject, 0) | test.mask
                    if branch.match.incoming:
                        incoming.update(dict.fromkeys(branch.match.incoming))
                    action = branch.action
                    redirects = redirects or (action.local and action.kind == DESTINATION)
                    if action.kind == SET:
                        sets[(action.subject, _changed(action), action.origin)] = None
                    effect = effect or action.kind != CONTINUE
                    anything = anything or bool(rule.unknown and action.kind == CONTINUE)
                effect = effect or bool(rule.unknown)
        if effect or base.drops:
            yield _Tree(number, name, base, chains, tested, tuple(sets), anything, tuple(incoming), redirects, certain)


class _Service(t.NamedTuple):
    """A service of IPVS, with the addresses, services and ways of its servers."""

    service: t.Optional[t.Tuple[int, int]]
    mark: t.Optional[int]
    servers: t.Tuple[t.Tuple[int, int], ...]
    unknown: t.Tuple[str, ...]

    def rule(self, number: int) -> rules.Rule:
        """Return it as a rule."""
        match = Match()
        if self.service is not None:
            address, service = self.service
            match = Match(destination=((address, address),), service=((service, service),))
        elif self.mark is not None:
            match = Match(tests=(rules.Test(MARK, ALL_BITS, ((self.mark, self.mark),)),))
        branches = [
            rules.Branch(
                match,
                rules.Action(DESTINATION, addresses=((address, address),), ports=((port, port),) if port else None),
            )
            for address, port in self.servers
        ]
        if not branches:
            return rules.Rule(number, (rules.Branch(match, rules.Action(DROP)),), self.unknown)
        several = len(branches) > 1
        return rules.Rule(number, tuple(branches), self.unknown, chance=several, exhaustive=several)


_FLAGS = {"-t": TCP, "--tcp-service": TCP, "-u": UDP, "--udp-service": UDP, "--sctp-service": SCTP}


def _services(saved: str, version: int) -> t.List[_Service]:
    """Read what ``ipvsadm --save --numeric`` prints, as far as it is about an IP version."""
    found: t.Dict[t.Any, t.List[t.Any]] = {}
    unknown: t.Dict[t.Any, t.Dict[str, None]] = {}
    for line in saved.splitlines():
        words = shlex.split(line)
        if len(words) < 3:
            continue
        key: t.Any = None
        if words[1] in _FLAGS:
            address = _endpoint(words[2], version)
            if address is not None:
                key = (address[0], _FLAGS[words[1]] << 16 | address[1])
        elif words[1] in ("-f", "--fwmark-service") and ("-6" in words or "--ipv6" in words) == (version == 6):
            key = int(words[2])
        if key is None:
            # A server of a service by mark does not say its version again.
            if words[0] not in ("-a", "--add-server") or words[1] not in ("-f", "--fwmark-service"):
                continue
            key = int(words[2])
            if key not in found:
                continue
        servers = found.setdefault(key, [])
        if words[0] in ("-a", "--add-server"):
            weight = words[words.index("-w") + 1] if "-w" in words else "1"
            server = _endpoint(words[words.index("-r") + 1], version) if "-r" in words else None
            if server is None:
                unknown.setdefault(key, {})["a server of another IP version"] = None
            elif weight != "0":
                servers.append(server)
            if "-m" not in words:
                unknown.setdefault(key, {})["a server that IPVS does not masquerade to"] = None
    return [
        _Service(
            key if isinstance(key, tuple) else None,
            None if isinstance(key, tuple) else key,
            tuple(servers),
            tuple(unknown.get(key, ())),
        )
        for key, servers in found.items()
    ]


def _endpoint(text: str, version: int) -> t.Optional[t.Tuple[int, int]]:
    """Return address and port, if it is of that version."""
    host, _colon, port = text.rpartition(":")
    if text.endswith("]") or not _colon:
        host, port = text, "0"
    address = ipaddress.ip_address(host.strip("[]"))
    return (int(address), int(port)) if address.version == version else None


__all__ = [
    "Declared",
    "Node",
    "Packet",
    "Ref",
    "Start",
    "StartClass",
    "Target",
    "Way",
    "Ways",
    "ways",
]
