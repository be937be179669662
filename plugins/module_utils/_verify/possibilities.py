# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All answers that are possible to one question, and what decides which of them a packet gets.

For a packet of a pod these are the answers of all ways that it can take, whatever its source port is. For a packet of
the node itself some connections are tried.
"""

from __future__ import annotations

import ipaddress
import typing as t

from .._system.families import Family, of_address
from .._twin import equal_priorities, routing
from .._twin.twin import Twin
from .._twin.values import NOT_TESTED, QUESTION_PROTOCOLS, Answer, Question
from . import regions
from .expected import Expected
from .model import NodeModel
from .routing_lookups import LEAVES
from .rules import MAX_PORT, WITH_PORTS, Ref, Rule
from .ways import DROPPED, Start, Way, Ways

#: How often a question is put until chance has chosen the way that it is about.
_TRIES = 64
#: How many connections of the node itself are tried.
_OF_NODE = 16
#: seconds for the ways of one question
_SECONDS = 10.0

_BY_ORDER = "which chain comes first: %s have the same priority, and the kernel does not show their order"
_BY_PORT_OR_CHANCE = "the source port, or chance (%d connections were tried)" % _OF_NODE
_BY_ROUTING_RULE = "the source port, by a routing rule"
_BY_PATH = "the path that the kernel chooses, of a route with several"
_LATE = "the time was over before all ways were found"
_NOT_TAKEN = "a way that is taken by chance was not taken by %d packets" % _TRIES


class Possible(t.NamedTuple):
    """What one question can be answered with.

    ``others`` are answers that differ from the first in what becomes of the packet, its source or its link; ``depends``
    is what decides between them. ``unknown`` is what may change the answers, and is not understood.
    """

    others: t.Tuple[Answer, ...] = ()
    depends: t.Tuple[str, ...] = ()
    unknown: t.Tuple[str, ...] = ()


class Possibilities:
    """Asks a copy of a node."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._own = routing.local_addresses(twin.state.routing)
        self._models: t.Dict[Family, t.Tuple[NodeModel, Expected]] = {}

    def of(self, answer: Answer) -> Possible:
        """Return what else is possible beside an answer."""
        found = {_kind(answer): answer}
        depends: t.Dict[str, None] = {}
        unknown: t.Dict[str, None] = {}
        self._note(found, answer)
        if len(found) > 1:
            depends[self._tie()] = None
        before = len(found)
        question = answer.question
        if answer.outcome == NOT_TESTED:
            return Possible()
        if question.source is None or question.source in self._own:
            for one in self._twin.ask([question] * _OF_NODE, explain=True):
                self._note(found, one)
            if len(found) > before:
                depends[_BY_PORT_OR_CHANCE] = None
        else:
            link = self._link_of(question)
            if link:
                family = of_address(question.destination)
                model, expected = self._model(family)
                ways = model.ways_of([_start(question, family, link)], _SECONDS)
                unknown.update(self._ask(question, ways, expected, found))
                if len(found) > before:
                    depends.update(dict.fromkeys(_deciding(ways, model, expected)))
        return Possible(tuple(found.values())[1:], tuple(depends), tuple(unknown))

    @staticmethod
    def _note(found: t.Dict[t.Any, Answer], answer: Answer) -> None:
        for one in (answer, *answer.alternatives):
            found.setdefault(_kind(one), one)

    def _tie(self) -> str:
        tied = equal_priorities.find(self._twin.state.tables, self._twin.state.legacy)
        names = [table.title for table in tied.tables] + ["iptables-legacy"] * tied.legacy
        return _BY_ORDER % "chains of %s" % " and ".join("the table " + name for name in names)

    def _link_of(self, question: Question) -> t.Optional[str]:
        if question.interface is not None:
            return question.interface
        index = routing.link_of(self._twin.state.routing, t.cast(str, question.source))
        return next((link.name for link in self._twin.state.links if link.index == index), None)

    def _model(self, family: Family) -> t.Tuple[NodeModel, Expected]:
        if family not in self._models:
            model = NodeModel(self._twin.state, family)
            self._models[family] = (model, Expected(self._twin, model))
        return self._models[family]

    def _ask(
        self, question: Question, ways: Ways, expected: Expected, found: t.Dict[t.Any, Answer]
    ) -> t.Dict[str, None]:
        """Put the question once for each way. Return what may be wrong about the answers."""
        unknown: t.Dict[str, None] = {}
        if ways.rest:
            unknown[_LATE] = None
        for way in ways.ways:
            unknown.update(("%s, because of %s" % (expected.place(one.place), one.reason), None) for one in way.unknown)
        waiting = [way for way in ways.ways if way.end != DROPPED] if len(ways.ways) > 1 else []
        for _attempt in range(_TRIES):
            if any(way.history for way in waiting):
                self._twin.forget()
            asked = [question._replace(source_port=_port(way)) for way in waiting]
            answers = self._twin.ask(asked, explain=True) if asked else []
            again = []
            for way, answer in zip(waiting, answers):
                self._note(found, answer)
                if not way.unknown and not expected.fits(way, answer):
                    again.append(way)
            waiting = again
            if not waiting:
                break
        for way in waiting:
            reasons = ["%s, because of %s" % (expected.place(one.place), one.reason) for one in way.history]
            unknown.update(dict.fromkeys(reasons or [_NOT_TAKEN]))
        return unknown


def _kind(answer: Answer) -> t.Tuple[t.Any, ...]:
    """Return what answers differ in; one backend of a Service is as good as another."""
    return (answer.outcome, answer.source, answer.interface)


def _start(question: Question, family: Family, link: str) -> Start:
    icmp = question.protocol.startswith("icmp")
    protocol = family.icmp if icmp else QUESTION_PROTOCOLS[question.protocol]
    service = protocol << 16 | (question.port if protocol in WITH_PORTS else 0)
    source = int(ipaddress.ip_address(t.cast(str, question.source)))
    destination = int(ipaddress.ip_address(question.destination))
    return Start(link, ((source, source),), ((destination, destination),), ((service, service),))


def _port(way: Way) -> t.Optional[int]:
    """Return a source port of a way; None if any will do."""
    largest = max(way.regions, key=regions.size)
    return None if _any_port(way) else regions.packet(largest).source_port


def _any_port(way: Way) -> bool:
    return all(region.source_port == ((1, MAX_PORT),) for region in way.regions)


def _deciding(ways: Ways, model: NodeModel, expected: Expected) -> t.Iterator[str]:
    """Return what decides which way a packet takes: rules that match the source port, or choose by chance; routes."""
    met: t.Dict[Ref, None] = {}
    for way in ways.ways:
        met.update(dict.fromkeys(way.met))
        met.update((ref, None) for target in way.targets for ref in target.met)
    by_port = by_chance = False
    for ref in met:
        for rule in _rules_of(model, ref):
            asks = any(branch.match.source_port is not None for branch in rule.branches)
            by_port, by_chance = by_port or asks, by_chance or rule.chance
            what = [*(["the source port"] if asks else []), *(rule.history or ["chance"] if rule.chance else [])]
            if what:
                yield "%s, by the %s" % (" and ".join(what), expected.place(ref))
    if not by_port and not all(map(_any_port, ways.ways)):
        yield _BY_ROUTING_RULE
    links = {way.outcome for way in ways.ways if way.chance and way.outcome is not None and way.end == LEAVES}
    if len(links) > 1 and not by_chance:
        yield _BY_PATH


def _rules_of(model: NodeModel, ref: Ref) -> t.Iterator[Rule]:
    """Return the steps of a rule."""
    if 0 <= ref.table < len(model.tables):
        for rule in model.tables[ref.table].chains.get(ref.chain, ()):
            if rule.number == ref.number:
                yield rule
