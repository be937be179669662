# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all rules of a node together tell apart: which addresses, ports and senders, and for which destinations.

A rule in a chain concerns only the packets that get there, so each condition is noted with the destinations for which
its rule can be reached: those of the jumps to its chain, all of them together.
"""

from __future__ import annotations

import typing as t

from .._policy import spans
from .._policy.spans import Spans
from .._twin import routing
from .._twin.node_state import State
from . import legacy_matches, nft_matches
from .matches import RANDOM, Rule, RuleTable, highest


class Named(t.NamedTuple):
    """A condition, and the destinations for which it is asked.

    ``deciding`` is set where it can change an address or a route; else it can only let a packet pass or not.
    ``chance`` is set where the same packet may go one way or another.
    """

    destination: Spans
    source: t.Optional[Spans]
    service: t.Optional[Spans]
    source_port: t.Optional[Spans]
    deciding: bool
    chance: bool


class Survey(t.NamedTuple):
    """All conditions of one version of IP. ``features`` has an example of a rule's place for each thing it asks for."""

    version: int
    named: t.Tuple[Named, ...]
    interfaces: t.FrozenSet[str]
    features: t.Mapping[str, str]
    #: bits of marks that deciding rules or routing rules test, and that no rule sets
    foreign_marks: int


def survey(state: State, version: int) -> Survey:
    """Look at all rules of a node."""
    tables = [nft_matches.read(table, state.sets, version) for table in state.tables]
    tables += [legacy_matches.read(table, state.sets) for table in state.legacy if _VERSIONS[table.family] == version]
    trees = [tree for table in tables if table is not None for tree in _trees(table)]
    tested = routing.marks_tested(state.routing)
    for tree in trees:
        if tree.translates:
            tested |= tree.marks_tested
    deciding = [tree for tree in trees if tree.translates]
    waiting = [tree for tree in trees if not tree.translates]
    while True:
        found = [tree for tree in waiting if tree.untracked or tree.marks_set & tested]
        if not found:
            break
        deciding += found
        waiting = [tree for tree in waiting if tree not in found]
        for tree in found:
            tested |= tree.marks_tested
    marks_set = 0
    for tree in trees:
        marks_set |= tree.marks_set
    features: t.Dict[str, str] = {}
    interfaces: t.Set[str] = set()
    for tree in deciding:
        for rule in (rule for rules in tree.rules.values() for rule in rules):
            interfaces.update(rule.interfaces)
            for feature in rule.features:
                features.setdefault(feature, "%s, chain %s" % (tree.title, rule.chain))
    named = [one for tree in deciding for one in _named(tree, version, True)]
    named += [one for tree in waiting for one in _named(tree, version, False)]
    return Survey(version, tuple(dict.fromkeys(named)), frozenset(interfaces), features, tested & ~marks_set)


_VERSIONS = {"ip": 4, "ip6": 6}


class _Tree(t.NamedTuple):
    """A base chain and all chains that it leads to, each after those that lead to it."""

    title: str
    translates: bool
    rules: t.Mapping[str, t.Sequence[Rule]]
    marks_tested: int
    marks_set: int
    untracked: bool


def _trees(table: RuleTable) -> t.Iterator[_Tree]:
    by_chain: t.Dict[str, t.List[Rule]] = {}
    for rule in table.rules:
        by_chain.setdefault(rule.chain, []).append(rule)
    for name, chain in table.base.items():
        rules = {one: by_chain.get(one, []) for one in _order(name, by_chain)}
        tested = marks = 0
        untracked = False
        for members in rules.values():
            for rule in members:
                tested |= rule.marks_tested
                marks |= rule.marks_set
                untracked = untracked or rule.untracked
        yield _Tree(table.title, chain.kind == "nat", rules, tested, marks, untracked)


def _order(start: str, rules: t.Mapping[str, t.Sequence[Rule]]) -> t.List[str]:
    """The chains that can be reached from one, each after all that lead to it; the kernel lets no loops be."""
    found: t.List[str] = []
    seen: t.Set[str] = set()
    work: t.List[t.Tuple[str, bool]] = [(start, False)]
    while work:
        chain, done = work.pop()
        if done:
            found.append(chain)
        elif chain not in seen:
            seen.add(chain)
            work.append((chain, True))
            targets = {branch.chain for rule in rules.get(chain, ()) for branch in rule.branches}
            work += [(target, False) for target in targets if target is not None]
    return found[::-1]


def _named(tree: _Tree, version: int, deciding: bool) -> t.Iterator[Named]:
    everything: Spans = ((0, highest(version)),)
    reach: t.Dict[str, t.List[Spans]] = {}
    for number, (chain, rules) in enumerate(tree.rules.items()):
        here = everything if number == 0 else spans.of(span for part in reach.pop(chain, []) for span in part)
        for rule in rules:
            chance = bool(rule.features & RANDOM)
            for branch in rule.branches:
                match = branch.match
                destination = here if match.destination is None else spans.intersection(match.destination, here)
                if not destination:
                    continue
                if branch.chain is not None:
                    reach.setdefault(branch.chain, []).append(destination)
                service = match.service
                if chance or match.destination or match.source or service or match.source_port:
                    yield Named(destination, match.source, service, match.source_port, deciding, chance)
