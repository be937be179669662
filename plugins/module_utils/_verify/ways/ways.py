# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All ways that packets of pods can take through a node: its rules and routes, run forward over regions of packets.

A region is divided where a rule that can be reached tells its packets apart, and nowhere else. Packets that met the
same rules, with the same effects and the same outcome, are one way.
"""

from __future__ import annotations

import itertools
import typing as t

from ..._rules import regions, rules
from ..._rules.regions import Partition, Region
from ..._rules.rules import (
    ACCEPT,
    ALL_BITS,
    CONTINUE,
    CT_MARK,
    DECIDED,
    DESTINATION,
    DNAT,
    DROP,
    FORWARD,
    GOTO,
    INPUT,
    INVALID,
    JUMP,
    MARK,
    OUTPUT,
    PICKED_UP,
    POSTROUTING,
    PREROUTING,
    RELATED,
    RETURN,
    SENT,
    SET,
    SOURCE,
    UNTRACKED,
    Match,
    Ref,
)
from ..._system import intervals
from ..._system.families import IPV4, WITH_PORTS
from ..._system.intervals import Spans
from ..._system.services import MAX_PORT, span
from ..routing.routing_lookups import LEAVES, TO_NODE, Lookups, RouteOutcome, Unknown
from . import ipvs_services
from .cpu_time import now
from .flows import (
    AT_DESTINATION,
    AT_NEW_DESTINATION,
    AT_NEW_SERVICE,
    AT_PORT,
    AT_SERVICE,
    AT_SOURCE,
    AT_STATE,
    BEFORE,
    COUNT,
    SUBJECTS,
    Choice,
    Flow,
    Flows,
    FlowState,
    current,
    divided,
    is_many,
    is_possible,
    meet,
    minus,
    replaced,
    same_but_for_rules,
    those_before,
    values_after,
    with_value,
)
from .indexed_rules import Block, Ready, ReadyBranch, ReadyRule, Tree, blocks_of, changed_bits, disturbs

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
#: The same of what the policy says.
POLICY_TABLE = -2

#: How deep chains may lead into each other. Each takes some calls of Python's stack.
_DEPTH = 100
#: For how many flows that an unknown rule divided it is tested whether that makes a difference.
_DOUBTED = 300
#: How many chains of one priority are tried in all orders.
_TIED = 3
#: How many rules a chain has at most that gives one destination: one for packets that it gives back, and that one.
_OF_END = 2
#: what a Rule has behind its branches if nothing but these decides
_PLAIN = ((), False, False, (), False)
_NAMES = {
    MARK: "a mark that is not known",
    CT_MARK: "a mark of a connection that is not known",
    RELATED: "connections that another one has announced (RELATED)",
    PICKED_UP: "connections of TCP that begin without SYN for conntrack",
    SENT: "the socket that sends (owner)",
}


#: What packets have that nobody can send to a copy. They take ways of their own.
OF_OTHERS = frozenset((_NAMES[RELATED], _NAMES[PICKED_UP], rules.BY_SOCKET))


class Start(t.NamedTuple):
    """Packets that come in over a link, or (``own``) that the node itself sends."""

    link: str
    source: Spans
    destination: Spans
    service: Spans
    source_port: Spans = ((0, MAX_PORT),)
    #: of packets that conntrack calls invalid, as rules.PICKED_UP has it
    stray: int = 0
    #: what else treats packets of the link differently; links whose traits differ are no class
    traits: t.Any = None
    own: bool = False


class StartClass(t.NamedTuple):
    """Links that nothing tells apart, with the packets that come in over all of them."""

    links: t.Tuple[str, ...]
    region: Region
    stray: int = 0
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
    same, may take another way; ``history`` has the rules whose earlier packets decide it. ``tied``: whether it is so
    with one of the orders of chains of the same priority. ``unknown`` is what may make all of this wrong: packets of
    such a way are not tested.
    """

    start: int
    regions: t.Tuple[Region, ...]
    met: t.Tuple[Ref, ...]
    end: str
    outcome: t.Optional[RouteOutcome]
    declared: t.Any
    source: t.Optional[Ref]
    targets: t.Tuple[Target, ...] = ()
    unknown: t.Tuple[Unknown, ...] = ()
    chance: bool = False
    tied: bool = False
    given: t.Optional[rules.RuleAction] = None
    history: t.Tuple[Unknown, ...] = ()

    @property
    def is_left(self) -> bool:
        """Whether the packets leave, and the policy leaves them to other programs."""
        return self.end == LEAVES and self.declared is None

    @property
    def doubted(self) -> bool:
        """Whether what is unknown may make a difference to the packets that are sent."""
        return any(one.reason not in OF_OTHERS for one in self.unknown)

    @property
    def size(self) -> int:
        """How many packets there are."""
        return sum(map(regions.size, self.regions))


class Ways(t.NamedTuple):
    """All of them. ``rest`` is what was left when the time was over."""

    starts: t.Tuple[StartClass, ...]
    ways: t.Tuple[Way, ...]
    rest: t.Tuple[Region, ...] = ()


class Declared(t.NamedTuple):
    """What a policy says of packets that leave. Of several that match the first counts.

    ``keeps``: whether a packet that leaves as it came is what the policy says, or it says nothing; ``hides``: whether
    one that leaves with an address of the link is; ``addresses``: with which one that leaves is, if they are said.
    """

    match: Match
    value: t.Any
    keeps: bool = False
    hides: bool = False
    addresses: Spans = ()


class RulesAndRoutes(t.NamedTuple):
    """What decides about packets. ``services`` is text of ``ipvsadm --save --numeric``.

    With ``ready`` several runs share what has been made of the rules.
    """

    tables: t.Sequence[rules.RuleTable]
    lookups: Lookups
    services: str = ""
    #: net.ipv4.vs.conntrack
    ipvs_conntrack: bool = False
    ready: t.Optional[Ready] = None


def ways(
    node: RulesAndRoutes,
    starts: t.Sequence[Start],
    policy: t.Sequence[Declared] = (),
    seconds: t.Optional[float] = None,
    filters: bool = False,
) -> Ways:
    """Return all ways of packets.

    :param seconds: how long this may take; what is not done then is the rest.
    :param filters: whether packets are also divided by what only lets them pass or not.
    """
    return _Engine(node, starts, policy, seconds, filters).ways()


class _Call(t.NamedTuple):
    """One run of a chain: its table, the chains that led here, itself the last, and the flows that return from it."""

    table: int
    stack: t.Tuple[str, ...]
    returned: t.List[Flow]


class _End(t.NamedTuple):
    """A chain that gives packets of a service another destination, whose rules do nothing else unless from a source."""

    number: int
    source: t.Optional[Spans]
    service: t.Optional[Spans]
    action: rules.RuleAction


#: The ends of a choice by chance, by the ports that they give: the number of the rule that chose, its effect, the end.
_Chosen = t.Dict[t.Optional[Spans], t.List[t.Tuple[int, int, _End]]]


class _Engine(Flows):
    """Runs rules over flows."""

    def __init__(
        self,
        node: RulesAndRoutes,
        starts: t.Sequence[Start],
        policy: t.Sequence[Declared],
        seconds: t.Optional[float],
        filters: bool,
    ) -> None:
        super().__init__()
        self._starts = starts
        self._own = any(start.own for start in starts)
        self._node = node
        self._lookups = node.lookups
        self._deadline = None if seconds is None else now() + seconds
        self._late = False
        self._checks = 0
        self._next: t.Dict[t.Tuple[int, int, int], int] = {}
        self._tables: t.List[rules.RuleTable] = list(node.tables)
        self._services = ipvs_services.read(node.services, node.lookups.family)
        self._filters = filters
        ready = node.ready or Ready(node.tables)
        self._tested = {MARK: self._lookups.marks_tested}
        for test in (test for declared in policy for test in declared.match.tests):
            self._tested[test.subject] = self._tested.get(test.subject, 0) | test.mask
        self._trees = self._deciding(ready.trees, filters)
        self._refs, self._compiled, self._unknown_effects = ready.compiled(self._tested)
        self._values = [declared.value for declared in policy]
        self._keeping = {-1, *(self._values.index(declared.value) for declared in policy if declared.keeps)}
        self._hiding = {-1, *(self._values.index(declared.value) for declared in policy if declared.hides)}
        self._promised = {self._values.index(one.value): one.addresses for one in policy if one.addresses}
        self._policy = self._policy_blocks(policy)
        self._link = ""
        self._divides_back = False
        self._tracked = False
        self._accepted: t.List[Flow] = []
        self._translated: t.List[Flow] = []
        self._ends: t.Dict[t.Tuple[int, str], t.Optional[_End]] = {}
        self._chosen: t.Dict[int, t.Tuple[Flow, _Chosen]] = {}
        self._ended: t.List[Flow] = []
        self._left: t.List[Region] = []
        self._start = 0

    # what is run

    def _deciding(self, trees: t.List[Tree], filters: bool) -> t.List[Tree]:
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
        if any(branch.match.tests for service in self._services for branch in service.branches):
            self._tested[MARK] = ALL_BITS
        chosen: t.List[Tree] = []
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

    def _decides(self, tree: Tree) -> bool:
        return tree.anything or any(
            subject == UNTRACKED or bits & self._tested.get(subject, 0) for subject, bits, _origin in tree.sets
        )

    def _blocks_of(self, table: int, chain: str) -> t.Optional[t.List[Block]]:
        key = (table, chain)
        if key not in self._compiled:
            listed = self._tables[table].chains.get(chain)
            if listed is None:
                return None
            members = [self._rule(Ref(table, chain, rule.number), rule) for rule in listed if self._matters(rule)]
            self._compiled[key] = blocks_of(members)
        return self._compiled[key]

    def _matters(self, rule: rules.Rule) -> bool:
        return bool(rule.unknown) or any(self._has_effect(branch.action) for branch in rule.branches)

    def _has_effect(self, action: rules.RuleAction) -> bool:
        if action.kind == SET and action.subject != UNTRACKED:
            return bool(changed_bits(action) & self._tested.get(action.subject, 0))
        return action.kind != CONTINUE

    def _rule(self, ref: Ref, rule: rules.Rule) -> ReadyRule:
        effects: t.Dict[rules.RuleAction, int] = {}
        branches = []
        nothing = rules.RuleAction(CONTINUE)
        for branch in rule.branches:
            action = branch.action if self._has_effect(branch.action) else nothing
            branches.append(ReadyBranch(branch.match, action, effects.setdefault(action, len(effects))))
        end = self._ends.get(ref[:2])
        if end is not None and self._refs[end.number] == ref:
            number = end.number
        else:
            number = len(self._refs)
            self._refs.append(ref)
        ready = ReadyRule(number, ref, branches, rule)
        if rules.does_unknown(rule):
            self._unknown_effects.update(ready.unknown)
        return ready

    def _policy_blocks(self, policy: t.Sequence[Declared]) -> t.List[Block]:
        members = []
        for number, declared in enumerate(policy):
            branch = ReadyBranch(declared.match, rules.RuleAction(ACCEPT), 0, self._values.index(declared.value))
            members.append(ReadyRule(-1, Ref(POLICY_TABLE, "", number), [branch], rules.Rule(number, ())))
        return blocks_of(members)

    # the course of packets

    def ways(self) -> Ways:
        """Run all rules."""
        classes = self._classes()
        merged: t.Dict[t.Any, t.Tuple[t.Dict[Region, None], t.Dict[Target, None]]] = {}
        for number, one in enumerate(classes):
            self._start = number
            self._link = one.links[0]
            for flow in self._without_others(list(self._run_own(one) if one.own else self._run(one))):
                self._add(merged, flow)
        found = tuple(self._way(start, state, *parts) for (start, state), parts in merged.items())
        return Ways(tuple(classes), found, tuple(dict.fromkeys(self._left)))

    def _classes(self) -> t.List[StartClass]:
        """Return classes of links that no rule tells apart: a packet of any of them takes the same way."""
        patterns = self._incoming_patterns()
        found: t.Dict[t.Any, t.Tuple[t.List[str], t.List[Start]]] = {}
        redirects = any(tree.redirects for tree in self._trees)
        for start in self._starts:
            key = (
                tuple(names.match(start.link) for names in patterns),
                self._lookups.signature(start.link),
                self._lookups.addresses_of(start.link) if redirects else None,
                start.destination,
                start.service,
                start.source_port,
                start.stray,
                start.traits,
                self._way_back(start.link, start.source),
                start.own,
            )
            links, members = found.setdefault(key, ([], []))
            if start.link not in links:
                links.append(start.link)
            members.append(start)
        result: t.List[StartClass] = []
        for links, members in found.values():
            source = intervals.of(span for start in members for span in start.source)
            first = members[0]
            region = Region(len(result), source, first.destination, first.service, first.source_port)
            if all(region[1:]):
                result.append(StartClass(tuple(links), region, first.stray, first.own))
        return result

    def _incoming_patterns(self) -> t.List[rules.Names]:
        found = dict.fromkeys(names for tree in self._trees for names in tree.incoming)
        for block in self._policy:
            for member in block.rules:
                found.update(dict.fromkeys(member.branches[0].incoming))
        return list(found)

    def _first(self, start: StartClass) -> t.List[Flow]:
        """Return all packets of a class as they come in."""
        unknown = tuple(
            Unknown(Ref(number, "", 0), reason) for number, table in enumerate(self._tables) for reason in table.unknown
        )
        values = [0] * (2 * COUNT)
        values[SUBJECTS[PICKED_UP]] = start.stray
        values[SUBJECTS[UNTRACKED]] = INVALID if start.stray else 0
        for subject in (RELATED, PICKED_UP) if not self._filters else ():
            values[SUBJECTS[subject] + COUNT] = self._tested.get(subject, 0) & 1  # no such packet is sent to the copy
        if start.own:
            values[SUBJECTS[SENT]] = rules.SENT_BY_SOCKET
            values[SUBJECTS[SENT] + COUNT] = self._tested.get(SENT, 0) & rules.SENT_BY_OWNER
        return [(*start.region[1:], None, None, self._state(FlowState(tuple(values), unknown=unknown)))]

    def _run_own(self, start: StartClass) -> t.Iterator[Flow]:
        """Run packets of the node itself. Those to a destination that is translated are not followed."""
        flows: t.List[Flow] = []
        for first in self._first(start):
            yield from self._part(self._forward(first), flows)
        flows, ended = self._hook(OUTPUT, self._join(flows))
        yield from ended
        marked = SUBJECTS[MARK]
        again: t.List[Flow] = []
        for flow in flows:
            values = flow[AT_STATE].values
            if values[marked] or values[marked + COUNT]:
                yield from self._part(self._forward(flow), again)  # a mark that is set leads to another lookup
            else:
                again.append(flow)
        yield from self._leaving(again)

    def _part(self, routed: t.Iterable[Flow], leaving: t.List[Flow]) -> t.Iterator[Flow]:
        """Add what leaves to a list, and return the rest, which ends here."""
        for flow in routed:
            kind = flow[AT_STATE].outcome.kind
            if kind == LEAVES:
                leaving.append(flow)
            else:
                yield self._end(flow, DELIVERED if kind == TO_NODE else kind)

    def _leaving(self, flows: t.List[Flow]) -> t.Iterator[Flow]:
        """Run the last hook, and divide what leaves by the policy."""
        flows, ended = self._hook(POSTROUTING, flows)
        yield from ended
        for flow in self._declare(flows):
            for mine in self._by_own_address(flow):
                for part in self._by_address(mine):
                    yield self._end(part, LEAVES)

    def _by_own_address(self, flow: Flow) -> t.List[Flow]:
        """Divide packets of the node by whether a new source may be the one that they have: these keep it."""
        given, outcome = flow[AT_STATE].given, flow[AT_STATE].outcome
        if given is None or not self._own:
            return [flow]
        link = self._lookups.addresses_of(outcome.link) if given.local else ()
        addresses = given.addresses or intervals.of((one, one) for one in link)
        same, others = (divide(flow[AT_SOURCE], addresses) for divide in (regions.meet, regions.minus))
        if not same or not others:
            return [flow]
        kept = self._changed(flow, given=given._replace(addresses=addresses, local=True))
        return [replaced(kept, AT_SOURCE, same), replaced(flow, AT_SOURCE, others)]

    def _by_address(self, flow: Flow) -> t.List[Flow]:
        """Divide what a hash gives one of several addresses, where the policy holds with some of these alone."""
        state = flow[AT_STATE]
        given = None if state.given is None else state.given.addresses
        if given is None or not is_many(given) or not any(map(is_many, flow[:AT_SERVICE])):
            return [flow]
        promised = self._promised.get(state.declared, ())
        if not promised and state.declared in self._hiding - self._keeping:
            promised = self._lookups.accepted(None if self._own else state.outcome)
        parts = [regions.meet(given, promised), regions.minus(given, promised)]
        if not all(parts):
            return [flow]
        return [self._by_chance(self._changed(flow, given=state.given._replace(addresses=one))) for one in parts]

    def _run(self, start: StartClass) -> t.Iterator[Flow]:
        flows, ended = self._hook(PREROUTING, self._first(start))
        yield from ended
        forwarded: t.List[Flow] = []
        local: t.List[Flow] = []
        self._divides_back = self._way_back(self._link, start.region.source) == self._link
        for flow in flows:
            for routed in self._route(flow):
                kind = routed[AT_STATE].outcome.kind
                if kind == LEAVES:
                    forwarded.append(routed)
                elif kind == TO_NODE:
                    local.append(routed)
                else:
                    yield self._end(routed, kind)
        served: t.List[Flow] = []
        if local and self._services:
            local, served, ended = self._serve(self._join(local))
            yield from ended
            served, ended = self._hook(OUTPUT, served)
            yield from ended
        for flow in local:
            yield self._end(flow, DELIVERED)
        flows, ended = self._hook(FORWARD, self._join(forwarded))
        yield from ended
        yield from self._leaving(flows + served)

    # hooks

    def _hook(self, hook: int, flows: t.List[Flow]) -> t.Tuple[t.List[Flow], t.List[Flow]]:
        """Run the chains of a hook in their order. Returns what goes on, and what was dropped."""
        units: t.Dict[int, t.List[t.Tuple[Tree, ...]]] = {}
        nat = tuple(tree for tree in self._trees if tree.base.hook == hook and tree.base.kind == "nat")
        for tree in self._trees:
            if tree.base.hook == hook and tree.base.kind != "nat":
                # What comes behind the last translation finds nothing more to decide, unless it may do anything, or
                # drops what was not translated.
                if self._is_behind(hook, tree.base.priority) and nat and not tree.anything and not self._filters:
                    continue
                if hook == INPUT and tree.base.priority >= _IPVS:
                    continue
                units.setdefault(tree.base.priority, []).append((tree,))
        if nat and hook in _NAT:
            units.setdefault(_NAT[hook], []).append(nat)
        ended: t.List[Flow] = []
        for priority in sorted(units):
            early = hook == PREROUTING or (hook == OUTPUT and self._own)
            self._tracked = not early or priority >= _CONNTRACK
            results = []
            for order in _orders(units[priority]):
                live = flows
                gone: t.List[Flow] = []
                for unit in order:
                    if unit is nat:
                        live, dropped = self._nat(unit, live)
                    else:
                        hidden: t.List[Flow] = []
                        if self._filters and self._is_behind(hook, priority):
                            hidden = [flow for flow in live if flow[AT_STATE].given is not None]
                            live = [flow for flow in live if flow[AT_STATE].given is None]
                        live, _translated, dropped = self._base(unit[0], live)
                        live = live + hidden
                    gone = gone + dropped
                results.append((live, gone))
            flows = self._combined([live for live, _gone in results])
            ended += self._combined([gone for _live, gone in results])
        return flows, ended

    @staticmethod
    def _is_behind(hook: int, priority: int) -> bool:
        """Return whether a chain sees the source address that packets were given."""
        return hook == POSTROUTING and priority > _NAT[hook]

    def _nat(self, trees: t.Sequence[Tree], flows: t.List[Flow]) -> t.Tuple[t.List[Flow], t.List[Flow]]:
        """Run chains of type nat, in the order of their own priority: the first that translates ends them all."""
        place = SUBJECTS[UNTRACKED]
        by_priority: t.Dict[int, t.List[Tree]] = {}
        for tree in trees:
            by_priority.setdefault(tree.base.priority, []).append(tree)
        live: t.List[Flow] = []
        done: t.List[Flow] = []
        ended: t.List[Flow] = []
        for flow in flows:
            values = flow[AT_STATE].values
            (done if values[place] and not values[place + COUNT] else live).append(flow)
        for priority in sorted(by_priority):
            first, *others = _orders(by_priority[priority])
            now, translated, dropped = self._in_turn(first, live)
            results = [(translated, dropped)]
            if others and self._is_certain(first, live):
                # What all chains let through in one order they let through in any.
                changed = those_before(live, translated + dropped)
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
        self, order: t.Iterable[Tree], flows: t.List[Flow]
    ) -> t.Tuple[t.List[Flow], t.List[Flow], t.List[Flow]]:
        """Run chains of type nat after each other: each sees what those before it did not translate."""
        translated: t.List[Flow] = []
        dropped: t.List[Flow] = []
        for tree in order:
            flows, more, gone = self._base(tree, flows)
            translated = translated + more
            dropped = dropped + gone
        return flows, translated, dropped

    def _is_certain(self, trees: t.Sequence[Tree], flows: t.Iterable[Flow]) -> bool:
        """Return whether nothing but the rules of chains decides what each does with a packet, none gives it another
        destination, and none sets a value that another tests or sets.
        """
        if not all(tree.certain and tree.base.hook == POSTROUTING for tree in trees):
            return False
        if any(disturbs(one, other) for one, other in itertools.permutations(trees, 2)):
            return False
        states = {id(flow[AT_STATE]): flow[AT_STATE] for flow in flows}
        return not any(any(state.values[COUNT:]) for state in states.values())

    def _base(self, tree: Tree, flows: t.List[Flow]) -> t.Tuple[t.List[Flow], t.List[Flow], t.List[Flow]]:
        """Run one base chain. Returns what goes on, what was translated, and what was dropped."""
        self._accepted, self._translated, self._ended = [], [], []
        through = self._chain(tree.table, tree.name, flows, ())
        self._translate_chosen()
        accepted, translated, ended = self._accepted, self._translated, self._ended
        if tree.base.drops:
            ended = ended + [self._end(flow, DROPPED) for flow in through]
            through = []
        through += accepted
        if tree.base.kind != "nat" and not self._filters:
            through = self._without_idle_doubts(flows, through)
        elif tree.base.kind != "nat" and not self._decides(tree):
            through = self._without_idle_chance(flows, through)
        return self._join(through), self._join(translated), self._join(ended)

    def _without_idle_doubts(self, before: t.List[Flow], after: t.List[Flow]) -> t.List[Flow]:
        """Take away what is unknown of a chain and makes no difference: packets that pass are the same in any case.

        A packet that is dropped has no source address, and one that passes was not dropped. So an unknown condition
        decides nothing if all flows of a packet that came through the chain are in the same state. A rule whose effect
        on packets is unknown stays in doubt.
        """
        old = self._unknown_effects.union(one for flow in before for one in flow[AT_STATE].unknown)
        old = old.union(one for flow in after for one in flow[AT_STATE].unknown if one.reason in OF_OTHERS)
        doubted = [flow for flow in after if not old.issuperset(flow[AT_STATE].unknown)]
        if not doubted or len(doubted) > _DOUBTED:
            return after
        kept = [flow for flow in after if old.issuperset(flow[AT_STATE].unknown)]
        for flow in doubted:
            new = set(flow[AT_STATE].unknown) - old
            if all(
                same_but_for_rules(flow, other)
                for other in doubted
                if new.intersection(other[AT_STATE].unknown) and not _are_apart(flow, other) and meet(flow, other)
            ):
                state = flow[AT_STATE]
                state = state._replace(unknown=tuple(one for one in state.unknown if one in old))
                if not state.chance and not state.unknown:
                    state = state._replace(met=state.fork, fork=-1)
                kept.append(replaced(flow, AT_STATE, self._state(state)))
            else:
                kept.append(flow)
        return kept

    def _without_idle_chance(self, before: t.List[Flow], after: t.List[Flow]) -> t.List[Flow]:
        """Take chance away where it only dropped packets: those that passed are as all others would be.

        Of packets without a connection that is all that matters.
        """
        place = SUBJECTS[UNTRACKED]
        if any(flow[AT_STATE].chance or flow[AT_STATE].values[place] == INVALID for flow in before):
            return after
        return [
            self._changed(flow, chance=False, met=state.fork, fork=-1, choices=())
            if state.chance and not state.history and not state.unknown
            else flow
            for flow in after
            for state in [flow[AT_STATE]]
        ]

    def _without_others(self, flows: t.List[Flow]) -> t.List[Flow]:
        """Take away packets that nobody can send, where they leave as some that are sent, or as the policy says."""
        others = [flow for flow in flows if any(one.reason in OF_OTHERS for one in flow[AT_STATE].unknown)]
        if not others:
            return flows
        apart = set(map(id, others))
        ends = {_end_of(flow) for flow in flows if id(flow) not in apart}
        return [flow for flow in flows if id(flow) not in apart or not self._is_harmless(flow, ends)]

    def _is_harmless(self, flow: Flow, ends: t.Container[t.Any]) -> bool:
        state = flow[AT_STATE]
        if not all(one.reason in OF_OTHERS for one in state.unknown):
            return False
        given = state.given
        if given is None or given.origin == SOURCE:
            is_promised = state.declared in self._keeping
        else:
            is_promised = given.local and state.declared in self._hiding
        return state.end != LEAVES or is_promised or _end_of(flow) in ends

    # rules

    def _over(self) -> bool:
        """Return whether the time is over."""
        if self._deadline is not None and not self._late:
            self._checks += 1
            if self._checks % 64 == 0:
                self._late = now() >= self._deadline
        return self._late

    def _leave(self, flows: t.Iterable[Flow]) -> None:
        self._left.extend(Region(self._start, *flow[:AT_NEW_DESTINATION]) for flow in flows)

    def _chain(self, table: int, chain: str, flows: t.List[Flow], stack: t.Tuple[str, ...]) -> t.List[Flow]:
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
        call = _Call(table, (*stack, chain), [])
        flows = self._blocks(blocks, flows, call)
        return self._join(flows + call.returned) if call.returned else flows

    def _blocks(self, blocks: t.List[Block], flows: t.List[Flow], call: _Call) -> t.List[Flow]:
        for block in blocks:
            if not flows:
                break
            if block.index is None:
                flows = self._tried(block.rules, flows, call)
            else:
                flows = self._looked_up(block, flows, call)
        return flows

    def _tried(self, members: t.Sequence[ReadyRule], flows: t.List[Flow], call: _Call) -> t.List[Flow]:
        for rule in members:
            if not flows:
                break
            if self._over():
                self._leave(flows)
                return []
            out: t.List[Flow] = []
            for flow in flows:
                self._apply(rule, flow, out, call)
            forked = rule.chance or rule.unknown
            flows = self._join(out) if len(out) > 1 and (forked or len(out) > len(flows) + 3) else out
        return flows

    def _looked_up(self, block: Block, flows: t.List[Flow], call: _Call) -> t.List[Flow]:
        index: Partition[t.Tuple[int, ...]] = t.cast(t.Any, block.index)
        out: t.List[Flow] = []
        for flow in flows:
            for places, some in divided(flow, block.place, index):
                if self._over():
                    self._leave([some])
                elif places:
                    out += self._blocks(block.child(places), [some], call)
                else:
                    out.append(some)
        return self._join(out)

    def _match(self, branch: ReadyBranch, flow: Flow) -> t.Tuple[t.Optional[Flow], t.List[Flow], t.Tuple[str, ...]]:
        """Divide a flow: the packets that match, those that do not, and why the first may not match after all."""
        doubt: t.Tuple[str, ...] = ()
        if branch.tests or branch.incoming or branch.outgoing:
            fits, doubt = self._fits(branch, flow[AT_STATE])
            if not fits:
                return None, [flow], ()
        parts = []
        for field, allowed in branch.conditions:
            place = field - BEFORE if field >= AT_NEW_DESTINATION and flow[field] is None else field
            have = flow[place]
            both = regions.meet(have, allowed)
            if not both:
                return None, [flow], ()
            if both is not have:
                parts.append((place, both))
        if not parts:
            return flow, [], doubt
        fields = list(flow)
        pieces: t.List[Flow] = []
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

    def _fits(self, branch: ReadyBranch, state: FlowState) -> t.Tuple[bool, t.Tuple[str, ...]]:
        """Return whether what a flow has in common matches, and what is not known of that."""
        if not all(names.match(self._link) for names in branch.incoming):
            return False, ()
        if branch.outgoing:
            # Before a route is known a condition on its link never matches.
            if state.outcome is None or not all(names.match(state.outcome.link) for names in branch.outgoing):
                return False, ()
        doubt: t.Tuple[str, ...] = ()
        for test in branch.tests:
            place = SUBJECTS[test.subject]
            value, unknown = state.values[place], state.values[place + COUNT]
            if test.subject == CT_MARK and not self._has_connection(state):
                return False, ()  # nothing to compare
            unknown &= test.mask
            if unknown and _is_same(test, state):
                unknown = 0
            if not unknown:
                if not intervals.contains(test.allowed, value & test.mask):
                    return False, ()
            elif not is_possible(test, value, unknown):
                return False, ()
            else:
                doubt += (_NAMES.get(test.subject, "%s that is not known" % test.subject),)
        return True, doubt

    def _apply(self, rule: ReadyRule, flow: Flow, out: t.List[Flow], call: _Call) -> None:
        if rule.chance:
            self._apply_by_chance(rule, flow, out, call)
            return
        if rule.index is not None:
            for places, some in divided(flow, *rule.index):
                if places:
                    self._try_branches(rule, [rule.branches[one] for one in places], some, out, call)
                else:
                    out.append(some)
        else:
            self._try_branches(rule, rule.branches, flow, out, call)

    def _try_branches(
        self, rule: ReadyRule, branches: t.Iterable[ReadyBranch], flow: Flow, out: t.List[Flow], call: _Call
    ) -> None:
        rest = [flow]
        for branch in branches:
            others: t.List[Flow] = []
            for one in rest:
                matched, pieces, doubt = self._match(branch, one)
                others += pieces
                if matched is not None:
                    unknown = rule.unknown
                    if doubt or rule.by_socket:
                        matched = self._told_apart(rule, branch, matched, others)
                        unknown += tuple(Unknown(rule.ref, text) for text in doubt if text not in OF_OTHERS)
                    if unknown:
                        doubted = self._doubted(matched, unknown)
                        if branch.kind != CONTINUE:
                            out.append(doubted)
                        if branch.kind != DROP:  # what is dropped is dropped; the rest may go on
                            matched = doubted
                    self._act(rule, branch, matched, out, call)
            rest = others
            if not rest:
                break
        out += rest

    def _told_apart(self, rule: ReadyRule, branch: ReadyBranch, flow: Flow, others: t.List[Flow]) -> Flow:
        """Return what matches, where packets that nobody can send take a way of their own; the rest to ``others``."""
        for test in branch.tests:
            if self._is_of_others(test, flow[AT_STATE]):
                apart, sent = self._apart(rule, test, flow)
                matches = intervals.contains(test.allowed, 1)
                others.append(sent if matches else apart)
                flow = apart if matches else sent
        if rule.by_socket:
            others.append(flow)
            flow = self._doubted(flow, rule.by_socket)
        return flow

    @staticmethod
    def _is_of_others(test: rules.Test, state: FlowState) -> bool:
        """Return whether only packets that nobody can send fulfil a condition, or only all others."""
        unknown = state.values[SUBJECTS[test.subject] + COUNT]
        return bool(unknown) and _NAMES.get(test.subject) in OF_OTHERS and not _is_same(test, state)

    def _apart(self, rule: ReadyRule, test: rules.Test, flow: Flow) -> t.Tuple[Flow, Flow]:
        """Divide a flow into packets that nobody can send, and all others."""
        values = flow[AT_STATE].values
        apart, sent = (self._changed(flow, values=with_value(values, test.subject, value)) for value in (1, 0))
        return self._doubted(apart, (Unknown(rule.ref, _NAMES[test.subject]),)), sent

    def _apply_by_chance(self, rule: ReadyRule, flow: Flow, out: t.List[Flow], call: _Call) -> None:
        for test in (test for branch in rule.branches for test in branch.tests):
            if self._is_of_others(test, flow[AT_STATE]):
                for part in self._apart(rule, test, flow):
                    self._apply_by_chance(rule, part, out, call)
                return
        if rule.by_socket:
            out.append(flow)
            flow = self._doubted(flow, rule.by_socket)
        rest = [flow]
        taken: t.Optional[Flow] = None
        for branch in rule.branches:
            matched, _pieces, doubt = self._match(branch, flow)
            if matched is None:
                continue
            unknown = rule.unknown + tuple(Unknown(rule.ref, text) for text in doubt)
            if matched is flow and not doubt:
                # One object for all branches: by it _is_chosen knows what is followed together.
                taken = taken or self._by_chance(self._doubted(flow, unknown), rule.history)
                matched = taken
            else:
                matched = self._by_chance(self._doubted(matched, unknown), rule.history)
            self._act(rule, branch, matched, out, call)
            others: t.List[Flow] = []
            for one in rest:
                same, pieces, _doubt = self._match(branch, one)
                others += pieces
                if same is not None and (unknown or not rule.exhaustive):
                    out.append(self._by_chance(self._doubted(same, unknown), rule.history))
            rest = others
        out += rest

    def _is_chosen(self, rule: ReadyRule, branch: ReadyBranch, flow: Flow, call: _Call) -> bool:
        """Note that chance leads a flow to a chain that can do one thing with it: all such are followed together."""
        state = flow[AT_STATE]
        chain = branch.action.chain
        if not state.chance or state.choices or self._tested.get(DNAT) or chain in call.stack:
            return False
        end = self._end_of(call.table, chain)
        if end is None or len(call.stack) >= _DEPTH or (end.source and regions.meet(flow[AT_SOURCE], end.source)):
            return False
        service = flow[current(flow, AT_NEW_SERVICE)]
        if end.service is not None and regions.minus(service, end.service):
            return False
        ends = self._chosen.setdefault(id(flow), (flow, {}))[1]
        ends.setdefault(end.action.ports, []).append((rule.number, branch.effect, end))
        return True

    def _end_of(self, table: int, chain: str) -> t.Optional[_End]:
        """Return what a chain gives packets of other sources; None if it may do more, or has been made ready."""
        key = (table, chain)
        if key in self._compiled:
            return None
        if key not in self._ends:
            listed = [rule for rule in self._tables[table].chains.get(chain, ()) if self._matters(rule)]
            self._ends[key] = self._end_by(key, listed) if 0 < len(listed) <= _OF_END else None
        return self._ends[key]

    def _end_by(self, key: t.Tuple[int, str], listed: t.Sequence[rules.Rule]) -> t.Optional[_End]:
        if any(len(rule.branches) != 1 or rule[2:] != _PLAIN for rule in listed):
            return None
        match, action = listed[-1].branches[0]
        if action.kind != DESTINATION or action.addresses is None or match != Match(service=match.service):
            return None
        source: t.Optional[Spans] = None
        if len(listed) > 1:
            before = listed[0].branches[0].match
            source = before.source
            if source is None or before != Match(source):
                return None
        self._refs.append(Ref(*key, listed[-1].number))
        return _End(len(self._refs) - 1, source, match.service, action)

    def _translate_chosen(self) -> None:
        """Give flows the destinations that chance leads them to: those of one choice together, as ``_join`` does."""
        for flow, ends in self._chosen.values():
            state = flow[AT_STATE]
            before = self._path(state.met, state.fork)
            for members in ends.values():
                number, effect, end = members[0]
                if len(members) == 1:
                    met = self._met_next(self._met_next(state.met, number, effect), end.number, 0)
                    self._translate(end.action, self._changed(flow, met=met))
                    continue
                paths: t.Dict[Spans, t.Tuple[int, ...]] = {}
                for number, _effect, end in members:
                    paths.setdefault(t.cast(Spans, end.action.addresses), (*before, number, end.number))
                addresses = intervals.of(span for one in paths for span in one)
                first = len(self._translated)
                self._translate(end.action._replace(addresses=addresses), self._changed(flow, met=state.fork))
                for place, part in enumerate(self._translated[first:], first):
                    choices = tuple((address, part[AT_NEW_SERVICE], path) for address, path in paths.items())
                    self._translated[place] = self._changed(part, choices=choices)
        self._chosen = {}

    def _met_next(self, before: int, rule: int, effect: int) -> int:
        """Return the place of the rules that were met, with one more."""
        key = (before, rule, effect)
        met = self._next.get(key)
        if met is None:
            met = self._next[key] = len(self._met)
            self._met.append((before, rule))
        return met

    def _act(self, rule: ReadyRule, branch: ReadyBranch, flow: Flow, out: t.List[Flow], call: _Call) -> None:
        kind = branch.kind
        if kind == CONTINUE:
            out.append(flow)
            return
        state = flow[AT_STATE]
        if branch.declares >= 0:
            self._accepted.append(self._changed(flow, declared=branch.declares))
            return
        if kind in (JUMP, GOTO) and self._is_chosen(rule, branch, flow, call):
            return
        met = self._met_next(state.met, rule.number, branch.effect)
        values = values_after(state.values, branch.action) if kind == SET else state.values
        source, given = (rule.ref, branch.action) if kind == SOURCE else (state.source, state.given)
        if kind == SET and not self._can_set(branch.action.subject, state):
            values = state.values
        flow = self._changed(flow, met=met, values=values, source=source, given=given)
        if kind == SET:
            out.append(flow)
        elif kind == JUMP:
            out += self._chain(call.table, branch.action.chain, [flow], call.stack)
        elif kind == GOTO:
            call.returned.extend(self._chain(call.table, branch.action.chain, [flow], call.stack))
        elif kind == RETURN:
            call.returned.append(flow)
        elif kind == ACCEPT:
            self._accepted.append(flow)
        elif kind == DROP:
            self._ended.append(self._end(flow, DROPPED))
        elif kind == SOURCE:
            self._translated.append(flow)
        elif kind == DESTINATION:
            self._translate(branch.action, flow)

    def _can_set(self, subject: str, state: FlowState) -> bool:
        """Return whether there is what a rule sets: a decision that conntrack has not made yet, or a connection."""
        if subject in (UNTRACKED, DECIDED):
            return not self._tracked
        return subject != CT_MARK or self._has_connection(state)

    def _has_connection(self, state: FlowState) -> bool:
        place = SUBJECTS[UNTRACKED]
        return self._tracked and (not state.values[place] or bool(state.values[place + COUNT]))

    def _translate(self, action: rules.RuleAction, flow: Flow) -> None:
        """Give a flow another destination."""
        state = flow[AT_STATE]
        if self._own:
            apart = self._state(FlowState((0,) * len(state.values), unknown=state.unknown, end=TRANSLATED))
            self._ended.append(replaced(flow, AT_STATE, apart))
            return
        state = self._state(state._replace(values=with_value(state.values, DNAT, 1)))
        destination = flow[AT_NEW_DESTINATION]
        if action.addresses is not None:
            destination = action.addresses
        elif action.local:
            # The first address of the link for IPv4; of IPv6 the kernel chooses one.
            listed = self._lookups.addresses_of(self._link)
            listed = listed[:1] if self._lookups.family == IPV4 else listed
            if not listed:
                self._ended.append(self._end(replaced(flow, AT_STATE, state), DROPPED))
                return
            destination = intervals.of((one, one) for one in listed)
        several = destination is not None and destination is not flow[AT_NEW_DESTINATION] and is_many(destination)
        if action.ports is None:
            pieces: t.List[t.Tuple[t.Any, t.Any]] = [(flow[AT_SERVICE], flow[AT_NEW_SERVICE])]
        else:
            several = several or is_many(action.ports)
            pieces = []
            rest = flow[AT_SERVICE]
            for protocol in WITH_PORTS:
                whole: Spans = (span(protocol),)
                mine = regions.meet(rest, whole)
                if mine:
                    ports = tuple(span(protocol, *part) for part in action.ports)
                    pieces.append((mine, ports))
                    rest = regions.minus(rest, whole)
            if rest:
                pieces.append((rest, None))
        for service, new in pieces:
            one: Flow = (flow[AT_SOURCE], flow[AT_DESTINATION], service, flow[AT_PORT], destination, new, state)
            for part in self._marked(one, flow) if self._tested.get(DNAT) else [one]:
                self._translated.append(self._by_chance(part) if several else part)

    def _marked(self, flow: Flow, before: Flow) -> t.List[Flow]:
        """Divide what is translated by whether conntrack's status says so: not if the destination stays as it was
        (nf_nat_setup_info in the kernel's nf_nat_core.c). Of a choice that may leave it so, both are followed.
        """
        same = flow
        chosen = False
        for place in (AT_NEW_DESTINATION, AT_NEW_SERVICE):
            new = flow[place]
            if new is before[place]:
                continue
            both = regions.meet(before[current(before, place)], new)
            if not both:
                return [flow]
            chosen = chosen or is_many(new)
            if before[place] is None:
                same = replaced(same, place - BEFORE, both)
            else:
                chosen = True
        found = [*minus(flow, [same]), self._changed(same, values=with_value(flow[AT_STATE].values, DNAT, 0))]
        return [*found, same] if chosen else found

    # routing, IPVS, the policy

    def _way_back(self, link: str, source: Spans) -> t.Any:
        """Return what the routes back to sources are like, if it matters; the link if they differ."""
        if self._own or not self._lookups.filters_sources(link):
            return None
        everything: Spans = ((0, self._lookups.family.highest),)
        found = self._lookups.back(source, everything, 0, ALL_BITS, link)
        return link if any(one.unknown or one.like != found[0].like for one in found) else found[0].like

    def _route(self, flow: Flow) -> t.Iterator[Flow]:
        if not self._divides_back:
            yield from self._forward(flow)
            return
        state = flow[AT_STATE]
        mark = SUBJECTS[MARK]
        place = current(flow, AT_NEW_DESTINATION)
        known = state.values[mark], state.values[mark + COUNT]
        for source, destination, like, unknown in self._lookups.back(flow[AT_SOURCE], flow[place], *known, self._link):
            fields = list(flow)
            fields[AT_SOURCE], fields[place] = source, destination
            fields[AT_STATE] = self._state(state._replace(back=like))
            yield from self._forward(self._doubted(tuple(fields), unknown))

    def _forward(self, flow: Flow) -> t.Iterator[Flow]:
        state = flow[AT_STATE]
        destination = current(flow, AT_NEW_DESTINATION)
        if self._over():
            self._leave([flow])
            return
        mark = SUBJECTS[MARK]
        marks = state.values[mark], state.values[mark + COUNT]
        link = "lo" if self._own else self._link
        for part in self._lookups.forward(flow[AT_SOURCE], flow[destination], *marks, link):
            fields = list(flow)
            fields[AT_SOURCE], fields[destination] = part.source, part.destination
            fields[AT_STATE] = self._state(state._replace(outcome=part.outcome))
            one = self._doubted(tuple(fields), part.unknown)
            yield self._by_chance(one) if part.chance else one

    def _serve(self, flows: t.List[Flow]) -> t.Tuple[t.List[Flow], t.List[Flow], t.List[Flow]]:
        """Run services of IPVS. Return what the node itself receives, what goes on to a server, and what is dropped."""
        flows, ended = self._hook(INPUT, flows)
        self._accepted, self._translated, self._ended = [], [], []
        members = []
        for rule in self._services:
            ref = Ref(IPVS_TABLE, "", rule.number)
            branches = [ReadyBranch(one.match, one.action, place) for place, one in enumerate(rule.branches)]
            self._refs.append(ref)
            members.append(ReadyRule(len(self._refs) - 1, ref, branches, rule))
        local = self._blocks(blocks_of(members), flows, _Call(IPVS_TABLE, (), []))
        ended = ended + self._ended
        translated = self._join(self._translated)
        served: t.List[Flow] = []
        for flow in translated:
            state = flow[AT_STATE]
            values = with_value(state.values, DNAT, 0)  # IPVS translates, not conntrack
            if not self._node.ipvs_conntrack:
                values = with_value(values, UNTRACKED, 1)
            for part in self._lookups.output(flow[AT_NEW_DESTINATION]):
                routed = state._replace(values=values, outcome=part.outcome)
                one: Flow = (*flow[:AT_NEW_DESTINATION], part.destination, flow[AT_NEW_SERVICE], self._state(routed))
                one = self._doubted(one, part.unknown)
                if part.outcome.kind == LEAVES:
                    served.append(self._by_chance(one) if part.chance else one)
                elif part.outcome.kind == TO_NODE:
                    local.append(one)
                else:
                    ended.append(self._end(one, part.outcome.kind))
        return local, served, ended

    def _declare(self, flows: t.List[Flow]) -> t.List[Flow]:
        """Divide what leaves by the policy."""
        if not self._policy:
            return flows
        self._accepted = []
        rest = self._blocks(self._policy, flows, _Call(0, (), []))
        return self._accepted + rest

    # merging

    def _targets(self, choices: t.Iterable[Choice], flow: Flow) -> t.Iterator[Target]:
        """Return the choices that are left of those by which a flow came to be: some went another way since."""
        for destination, service, path in choices:
            left = destination
            if destination is not None and flow[AT_NEW_DESTINATION] is not None:
                left = regions.meet(destination, flow[AT_NEW_DESTINATION])
                if not left:
                    continue
            yield Target(left, service, tuple(self._refs[rule] for rule in path))

    def _add(self, merged: t.Dict[t.Any, t.Any], flow: Flow) -> None:
        """Put a flow that came to its end to those of the same way.

        That is sound: what a packet is given on its way, and where it ends, follows from the rules that it matches,
        their effects and their order, and from nothing else; rules that it does not match do nothing. All of that is
        in the key. What a packet is compared with on its way is in the regions.
        """
        state = flow[AT_STATE]
        key = (self._start, self._state(state._replace(choices=())))
        areas, targets = merged.setdefault(key, ({}, {}))
        region = Region(self._start, *flow[:AT_NEW_DESTINATION])
        if flow[AT_NEW_DESTINATION] is not None or flow[AT_NEW_SERVICE] is not None or state.choices:
            choices = state.choices or ((flow[AT_NEW_DESTINATION], flow[AT_NEW_SERVICE], ()),)
            for target in self._targets(choices, flow):
                targets[target] = None
        areas[region] = None

    def _way(self, start: int, state: FlowState, areas: t.Iterable[Region], targets: t.Iterable[Target]) -> Way:
        found = list(areas)
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
            targets=tuple(targets),
            unknown=state.unknown,
            chance=state.chance,
            tied=state.tied,
            given=state.given,
            history=state.history,
        )


def _is_same(test: rules.Test, state: FlowState) -> bool:
    """Return whether a condition means packets that nobody can send as it means all others."""
    if test.subject == RELATED:
        return bool(state.values[SUBJECTS[UNTRACKED]])
    return test.subject == PICKED_UP and len({intervals.contains(test.allowed, value) for value in (0, 1)}) == 1


def _are_apart(one: Flow, other: Flow) -> bool:
    """Return whether packets of one flow are of those that nobody can send, and packets of the other are not."""
    mine, yours = one[AT_STATE].values, other[AT_STATE].values
    places = [SUBJECTS[subject] for subject in (RELATED, PICKED_UP)]
    return any(mine[place] != yours[place] and not mine[place + COUNT] | yours[place + COUNT] for place in places)


def _end_of(flow: Flow) -> t.Any:
    """Return what packets that leave alike have in common; those that chance sends elsewhere go their own way."""
    state = flow[AT_STATE]
    where = None if state.chance else flow[AT_NEW_DESTINATION:AT_STATE]
    given = None if state.given is None else state.given._replace(ports=None)
    return where, state.outcome, given, state.end, state.declared


def _orders(units: t.Sequence[t.Any]) -> t.Iterable[t.Sequence[t.Any]]:
    """Return the orders in which the kernel may ask chains of the same priority."""
    if len(units) < 2:
        return [units]
    if len(units) <= _TIED:
        return list(itertools.permutations(units))
    # Which of them comes first is what matters most.
    return [[*units[number:], *units[:number]] for number in range(len(units))] + [list(units)[::-1]]
