# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules made ready to be run over many packets: where there are many, those that can match are looked up."""

from __future__ import annotations

import typing as t

from ..._rules import regions, rules
from ..._rules.regions import Partition
from ..._rules.rules import ALL_BITS, CONTINUE, DESTINATION, SET, Match, Ref
from ..._system import intervals
from ..._system.intervals import Spans
from ..routing.routing_lookups import Unknown
from .flows import AT_DESTINATION, AT_NEW_DESTINATION, AT_NEW_SERVICE, AT_PORT, AT_SERVICE, AT_SOURCE

#: From so many rules or branches on they are looked up instead of tried.
_MANY = 10
#: How many rules without a condition on a field may be between others that are looked up by it.
_GAP = 4


class ReadyBranch:
    """One branch of a rule, ready to be used."""

    __slots__ = ("action", "conditions", "declares", "effect", "incoming", "kind", "outgoing", "tests")

    def __init__(self, match: Match, action: rules.RuleAction, effect: int, declares: int = -1) -> None:
        self.conditions = tuple(
            (place, allowed)
            for place, allowed in (
                (AT_NEW_DESTINATION, match.destination),
                (AT_NEW_SERVICE, match.service),
                (AT_SOURCE, match.source),
                (AT_PORT, match.source_port),
                (AT_DESTINATION, match.original_destination),
                (AT_SERVICE, match.original_service),
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


class ReadyRule:
    """One rule, ready to be used. ``index`` looks branches up where there are many."""

    __slots__ = ("branches", "by_socket", "chance", "exhaustive", "history", "index", "number", "ref", "unknown")

    def __init__(self, number: int, ref: Ref, branches: t.List[ReadyBranch], rule: rules.Rule) -> None:
        self.number = number
        self.ref = ref
        self.branches = branches
        self.chance = rule.chance
        self.exhaustive = rule.exhaustive
        self.unknown = tuple(Unknown(ref, reason) for reason in rule.unknown if reason != rules.BY_SOCKET)
        self.by_socket = (Unknown(ref, rules.BY_SOCKET),) if rules.BY_SOCKET in rule.unknown else ()
        self.history = tuple(Unknown(ref, reason) for reason in rule.history)
        self.index: t.Optional[t.Tuple[int, Partition[t.Tuple[int, ...]]]] = None
        if len(branches) >= _MANY and not rule.chance:
            for place in (AT_NEW_DESTINATION, AT_NEW_SERVICE, AT_SOURCE):
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
        return intervals.of(found)


class Block:
    """Rules that follow each other: those that can match a packet are looked up by one of its fields, or all tried."""

    __slots__ = ("children", "index", "place", "rules", "used")

    def __init__(self, members: t.Sequence[ReadyRule], place: int = -1, used: t.FrozenSet[int] = frozenset()) -> None:
        self.rules = members
        self.place = place
        self.used = used
        self.children: t.Optional[t.Dict[t.Tuple[int, ...], t.List[Block]]] = None
        self.index: t.Optional[Partition[t.Tuple[int, ...]]] = None
        if place >= 0:
            self.used = used | {place}
            self.children = {}
            self.index = regions.partition([rule.allowed(place) for rule in members])

    def child(self, places: t.Tuple[int, ...]) -> t.List[Block]:
        """Return some of the rules, as blocks."""
        children = t.cast("t.Dict[t.Tuple[int, ...], t.List[Block]]", self.children)
        if places not in children:
            children[places] = blocks_of([self.rules[place] for place in places], self.used)
        return children[places]


def blocks_of(members: t.Sequence[ReadyRule], used: t.FrozenSet[int] = frozenset()) -> t.List[Block]:
    """Divide a list of rules into runs in which one field differs."""
    if len(members) < _MANY:
        return [Block(members)] if members else []
    fields = [place for place in (AT_NEW_DESTINATION, AT_NEW_SERVICE, AT_SOURCE, AT_PORT) if place not in used]
    has = {place: [rule.allowed(place) is not None for rule in members] for place in fields}
    found: t.List[Block] = []
    plain: t.List[ReadyRule] = []
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
                found.append(Block(plain))
                plain = []
            found.append(Block(members[start:until], chosen, used))
            start = until
        else:
            plain.append(members[start])
            start += 1
    if plain:
        found.append(Block(plain))
    return found


class Tree(t.NamedTuple):
    """A base chain with all chains that it leads to."""

    table: int
    name: str
    base: rules.BaseChain
    chains: t.Tuple[str, ...]
    tested: t.Mapping[str, int]
    #: what is set, and from which values
    sets: t.Tuple[t.Tuple[str, int, t.Optional[str]], ...]
    anything: bool
    #: conditions on the link that packets come in over
    incoming: t.Tuple[rules.Names, ...]
    #: whether a rule leads packets to the node itself
    redirects: bool
    #: whether neither chance nor what is unknown decides
    certain: bool


class Ready:
    """What is made of the rules of a node, for all runs over them."""

    def __init__(self, tables: t.Sequence[rules.RuleTable]) -> None:
        self.trees = [tree for number, table in enumerate(tables) for tree in _trees(number, table)]
        self._compiled: t.Dict[t.FrozenSet[t.Tuple[str, int]], Compiled] = {}

    def compiled(self, tested: t.Mapping[str, int]) -> Compiled:
        """Return the rules of runs in which the same bits of values are tested: what sets others has no effect."""
        return self._compiled.setdefault(frozenset(tested.items()), Compiled([], {}, set()))


class Compiled(t.NamedTuple):
    """Rules, ready to be used. Chains are made ready when a packet comes to them."""

    refs: t.List[Ref]
    chains: t.Dict[t.Tuple[int, str], t.List[Block]]
    #: what is unknown of rules whose effect is unknown, not only the packets that they are about
    unknown_effects: t.Set[Unknown]


def changed_bits(action: rules.RuleAction) -> int:
    """Return the bits of a value that an action may change."""
    if action.origin == action.subject:
        return (ALL_BITS & ~action.keep) | action.flip
    return (ALL_BITS & ~action.own) | action.keep | action.flip


def disturbs(one: Tree, other: Tree) -> bool:
    """Return whether a chain sets what another tests or sets."""
    touched = dict(other.tested)
    for subject, bits, origin in other.sets:
        touched[subject] = touched.get(subject, 0) | bits
        if origin is not None and origin != subject:
            touched[origin] = ALL_BITS
    return any(bits & touched.get(subject, 0) for subject, bits, _origin in one.sets)


def _trees(number: int, table: rules.RuleTable) -> t.Iterator[Tree]:
    for name, base in table.base.items():
        chains = rules.reachable(table, name)
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
                        sets[(action.subject, changed_bits(action), action.origin)] = None
                    effect = effect or action.kind != CONTINUE
                    anything = anything or bool(rule.unknown and action.kind == CONTINUE)
                effect = effect or bool(rule.unknown)
        if effect or base.drops:
            yield Tree(number, name, base, chains, tested, tuple(sets), anything, tuple(incoming), redirects, certain)
