# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packets that have met the same rules so far, and how they are divided, joined and compared.

A flow is a product of spans with a state; it is never changed, only replaced.
"""

from __future__ import annotations

import itertools
import typing as t

from ..._rules import regions, rules
from ..._rules.regions import Region
from ..._rules.rules import ALL_BITS, CT_MARK, DECIDED, DNAT, MARK, PICKED_UP, RELATED, SENT, UNTRACKED, Ref
from ..._system import intervals
from ..._system.intervals import Spans
from ..routing.routing_lookups import RouteOutcome, Unknown

#: The values that are tracked, by their place in a state: first what is known of each, then the bits that are not.
SUBJECTS = {MARK: 0, CT_MARK: 1, DNAT: 2, UNTRACKED: 3, DECIDED: 4, RELATED: 5, PICKED_UP: 6, SENT: 7}
COUNT = len(SUBJECTS)

#: source, destination, service, source port; destination and service after a translation, or None; state
Flow = t.Tuple[t.Any, ...]
AT_SOURCE, AT_DESTINATION, AT_SERVICE, AT_PORT, AT_NEW_DESTINATION, AT_NEW_SERVICE, AT_STATE = range(7)
#: A destination or service that was not translated is the one with which the packet came in.
BEFORE = AT_NEW_DESTINATION - AT_DESTINATION

#: a way through the rules that chance opens: destination, service, rules
Choice = t.Tuple[t.Optional[Spans], t.Optional[Spans], t.Tuple[int, ...]]


class FlowState(t.NamedTuple):
    """What packets of a flow have in common besides their fields. Equal ones are the same object."""

    values: t.Tuple[int, ...]
    #: the rules that were met: a place in the engine's list
    met: int = 0
    #: the same at the place where chance, or what is unknown, decided first; -1: it did not
    fork: int = -1
    #: whether it was chance
    chance: bool = False
    unknown: t.Tuple[Unknown, ...] = ()
    outcome: t.Optional[RouteOutcome] = None
    source: t.Optional[Ref] = None
    choices: t.Tuple[Choice, ...] = ()
    tied: bool = False
    end: str = ""
    declared: int = -1
    given: t.Optional[rules.RuleAction] = None
    history: t.Tuple[Unknown, ...] = ()
    #: what the route back to the source is like
    back: t.Tuple[t.Any, ...] = ()


class Flows:
    """The flows of one run: their states, and the rules that they met."""

    def __init__(self) -> None:
        #: of each sequence of met rules: the one before, and the last rule
        self._met: t.List[t.Tuple[int, int]] = [(-1, -1)]
        self._states: t.Dict[FlowState, FlowState] = {}

    def _state(self, state: FlowState) -> FlowState:
        return self._states.setdefault(state, state)

    def _changed(self, flow: Flow, **fields: t.Any) -> Flow:
        """Return a flow with other values in its state."""
        return (*flow[:AT_STATE], self._state(flow[AT_STATE]._replace(**fields)))

    def _end(self, flow: Flow, end: str) -> Flow:
        return self._changed(flow, end=end)

    def _path(self, met: int, until: int) -> t.Tuple[int, ...]:
        """Return the rules that were met, from a place on."""
        found = []
        while met > 0 and met != until:
            met, rule = self._met[met]
            found.append(rule)
        return tuple(found[::-1])

    def _doubted(self, flow: Flow, unknown: t.Tuple[Unknown, ...]) -> Flow:
        """Return a flow that may be wrong from here on."""
        if not unknown:
            return flow
        state = flow[AT_STATE]
        known = union(state.unknown, unknown)
        fork = state.met if state.fork < 0 else state.fork
        return self._changed(flow, unknown=known, fork=fork)

    def _by_chance(self, flow: Flow, history: t.Tuple[Unknown, ...] = ()) -> Flow:
        state = flow[AT_STATE]
        if state.chance and state.fork >= 0 and not history:
            return flow
        fork = state.met if state.fork < 0 else state.fork
        history = union(state.history, history)
        return self._changed(flow, chance=True, fork=fork, history=history)

    def _join(self, flows: t.List[Flow]) -> t.List[Flow]:
        """Join flows into as few as it takes: ways of chance that meet again, parts that differ in one field.

        Two flows of the same packets, in the same state, that differ only in the rules by which chance led to it
        behave alike from here on, but for the translated destination: that becomes the union of theirs, and is divided
        again where a rule or route differs for it. Two flows in the same state that differ in one field alone are one
        product, because the union of that field with the same other fields is one.
        """
        if len(flows) < 2:
            return flows
        forked = [flow for flow in flows if flow[AT_STATE].fork >= 0]
        if len(forked) > 1:
            flows = [flow for flow in flows if flow[AT_STATE].fork < 0] + self._join_forks(forked)
        for place in (AT_DESTINATION, AT_SERVICE, AT_SOURCE):
            if len(flows) < 2:
                break
            groups: t.Dict[t.Any, t.List[Flow]] = {}
            for flow in flows:
                key = (*flow[:place], *flow[place + 1 : AT_STATE], id(flow[AT_STATE]))
                groups.setdefault(key, []).append(flow)
            if len(groups) < len(flows):
                flows = [
                    members[0]
                    if len(members) == 1
                    else replaced(members[0], place, intervals.of(span for one in members for span in one[place]))
                    for members in groups.values()
                ]
        return flows

    def _join_forks(self, flows: t.List[Flow]) -> t.List[Flow]:
        groups: t.Dict[t.Any, t.List[Flow]] = {}
        for flow in flows:
            state = flow[AT_STATE]
            common = state._replace(met=0, choices=(), unknown=(), history=())
            key = (
                flow[:AT_NEW_DESTINATION],
                flow[AT_NEW_DESTINATION] is None,
                flow[AT_NEW_SERVICE],
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
            choices: t.Dict[t.Tuple[t.Any, t.Any], Choice] = {}
            for flow in members:
                for choice in self._choices(flow):
                    choices.setdefault(choice[:2], choice)
            destination = first[AT_NEW_DESTINATION]
            if destination is not None:
                destination = intervals.of(span for flow in members for span in flow[AT_NEW_DESTINATION])
            state = first[AT_STATE]
            history = union(*(flow[AT_STATE].history for flow in members))
            state = self._state(state._replace(met=state.fork, choices=tuple(choices.values()), history=history))
            found.append((*first[:AT_NEW_DESTINATION], destination, first[AT_NEW_SERVICE], state))
        return found

    def _choices(self, flow: Flow) -> t.List[Choice]:
        """Return the ways by which chance led a flow to where it is."""
        state = flow[AT_STATE]
        late = self._path(state.met, state.fork)
        if not state.choices:
            return [(flow[AT_NEW_DESTINATION], flow[AT_NEW_SERVICE], late)]
        found = []
        for destination, service, path in state.choices:
            if destination is None:
                found.append((flow[AT_NEW_DESTINATION], flow[AT_NEW_SERVICE], path + late))
            else:
                mine = regions.meet(destination, flow[AT_NEW_DESTINATION])
                if mine:
                    found.append((mine, service, path + late))
        return found

    def _combined(self, results: t.List[t.List[Flow]]) -> t.List[Flow]:
        """Combine what came out of several orders: packets with one outcome are certain, the others are tied.

        An outcome does not include the order in which the same rules were met.
        """
        if len(results) == 1:
            return results[0]
        outcomes: t.Dict[FlowState, FlowState] = {}

        def outcome(flow: Flow) -> t.Any:
            state = flow[AT_STATE]
            if state not in outcomes:
                outcomes[state] = self._state(state._replace(met=0))
            return (flow[AT_NEW_DESTINATION], flow[AT_NEW_SERVICE], id(outcomes[state]))

        alike: t.List[t.Dict[t.Any, t.List[Flow]]] = []
        for result in results:
            groups: t.Dict[t.Any, t.List[Flow]] = {}
            for flow in result:
                groups.setdefault(outcome(flow), []).append(flow)
            alike.append(groups)
        found: t.Dict[Flow, None] = {}
        for number, result in enumerate(results):
            others = alike[:number] + alike[number + 1 :]
            for flow in result:
                key = outcome(flow)
                certain = [flow]
                for groups in others:
                    same = groups.get(key, ())
                    if any(one[:AT_NEW_DESTINATION] == flow[:AT_NEW_DESTINATION] for one in same):
                        continue
                    certain = [both for one in certain for other in same for both in [meet(one, other)] if both]
                if number == 0:
                    found.update(dict.fromkeys(certain))
                if len(certain) == 1 and certain[0] is flow:
                    continue
                found.update(dict.fromkeys(minus(self._changed(flow, tied=True), certain)))
        return list(found)


def union(*some: t.Tuple[Unknown, ...]) -> t.Tuple[Unknown, ...]:
    found = {one for each in some for one in each}
    return tuple(sorted(found, key=repr)) if found else ()


def current(flow: Flow, field: int) -> int:
    """Return the place of a field as the packets have it now: before a translation, where they came in with it."""
    return field - BEFORE if field >= AT_NEW_DESTINATION and flow[field] is None else field


def replaced(flow: Flow, place: int, value: t.Any) -> Flow:
    """Return a flow with another value of a field."""
    return (*flow[:place], value, *flow[place + 1 :])


def divided(flow: Flow, field: int, index: regions.Partition[regions.T]) -> t.Iterator[t.Tuple[regions.T, Flow]]:
    """Divide a flow by the values that a partition has for a field."""
    place = current(flow, field)
    for value, part in index.divide(flow[place]):
        yield value, flow if part is flow[place] else replaced(flow, place, part)


def meet(one: Flow, other: Flow) -> t.Optional[Flow]:
    """Return the packets of the first, as they came in, that are also in the second."""
    parts = [regions.meet(mine, yours) for mine, yours in zip(one[:AT_NEW_DESTINATION], other)]
    return (*parts, *one[AT_NEW_DESTINATION:]) if all(parts) else None


def minus(one: Flow, others: t.Iterable[Flow]) -> t.List[Flow]:
    """Return the packets of the first, as they came in, that are in none of the others."""
    cut = [Region(0, *other[:AT_NEW_DESTINATION]) for other in others]
    left = regions.subtract_all(Region(0, *one[:AT_NEW_DESTINATION]), cut)
    return [(*region[1:], *one[AT_NEW_DESTINATION:]) for region in left]


def those_before(flows: t.Iterable[Flow], found: t.Iterable[Flow]) -> t.List[Flow]:
    """Return the packets of flows, as they were, that became the others, which went on to the same destination."""
    before: t.Dict[t.Any, t.List[Flow]] = {}
    for flow in flows:
        before.setdefault(flow[AT_NEW_DESTINATION:AT_STATE], []).append(flow)
    return [
        both
        for one in found
        for flow in before.get(one[AT_NEW_DESTINATION:AT_STATE], ())
        for both in [meet(flow, one)]
        if both
    ]


def same_but_for_rules(one: Flow, other: Flow) -> bool:
    """Return whether packets of two flows are in the same state, whatever rules led there."""
    if one[AT_NEW_DESTINATION:AT_STATE] != other[AT_NEW_DESTINATION:AT_STATE]:
        return False
    mine, yours = (t.cast(FlowState, flow[AT_STATE]._replace(met=0, fork=0, unknown=())) for flow in (one, other))
    return mine == yours


def is_many(one: Spans) -> bool:
    return len(one) > 1 or one[0][0] != one[0][1]


def with_value(values: t.Tuple[int, ...], subject: str, value: int) -> t.Tuple[int, ...]:
    """Return tracked values with one that is known."""
    changed = list(values)
    changed[SUBJECTS[subject]], changed[SUBJECTS[subject] + COUNT] = value, 0
    return tuple(changed)


def values_after(values: t.Tuple[int, ...], action: rules.RuleAction) -> t.Tuple[int, ...]:
    place = SUBJECTS[action.subject]
    changed = list(values)
    if action.origin is None:
        changed[place], changed[place + COUNT] = 0, ALL_BITS
        return tuple(changed)
    origin = SUBJECTS[action.origin]
    unknown = values[origin + COUNT] & action.keep | values[place + COUNT] & action.own
    changed[place] = ((values[origin] & action.keep) ^ (values[place] & action.own) ^ action.flip) & ~unknown
    changed[place + COUNT] = unknown
    return tuple(changed)


def is_possible(test: rules.Test, value: int, unknown: int) -> bool:
    """Return whether a value with unknown bits can be one of those that are allowed."""
    known = value & test.mask & ~unknown
    # Between the lowest and the highest of them; where the bits in between are too many to be tried, that is enough.
    if not intervals.intersection(test.allowed, ((known, known | unknown),)):
        return False
    bits = [1 << bit for bit in range(32) if unknown >> bit & 1]
    if len(bits) > 8:
        return True
    return any(
        intervals.contains(test.allowed, known | sum(chosen))
        for number in range(len(bits) + 1)
        for chosen in itertools.combinations(bits, number)
    )
