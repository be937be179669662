# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the answer to a packet is what the packet's way leads to, as far as rules and routes tell."""

from __future__ import annotations

import ipaddress
import typing as t

from ..._rules.rules import SOURCE, Ref
from ..._system import intervals
from ..._system.services import unpack
from ..._twin import routing
from ..._twin.twin import Twin
from ..._twin.values import DELIVERED, SENT, Answer, MetRule
from ..routing.routing_lookups import LEAVES
from ..ways.node_model import NodeModel
from ..ways.ways import DELIVERED as TO_NODE
from ..ways.ways import POLICY_TABLE, Target, Way
from .judge import is_silent, owner


class Expected:
    """The ends of ways, and the rules that they meet, as their tools print them."""

    def __init__(self, twin: Twin, model: NodeModel) -> None:
        self._twin = twin
        self._model = model
        self._own = routing.local_addresses(twin.state.routing)
        #: addresses that rules give without asking for those of a link
        self._fixed = model.fixed()
        #: rules whose answers look like those of other rules: only the trace shows which
        self._alike: t.Set[t.Optional[Ref]] = set()
        self._rules: t.Dict[Ref, t.Optional[MetRule]] = {}

    def needs_trace(self, ways: t.Iterable[Way]) -> bool:
        """Return whether answers about ways have to say which rules decided."""
        return any(way.source in self._alike for way in ways)

    def fits(self, way: Way, answer: Answer) -> bool:
        """Return whether an answer is what a way leads to."""
        possible = (answer, *answer.alternatives) if way.tied else (answer,)
        return any(_is_end(way, one) and self._is_given(way, one) for one in possible)

    def _is_given(self, way: Way, answer: Answer) -> bool:
        """Return whether a packet has the source that a way gives it, and not the same by chance of another way."""
        if answer.outcome != SENT or answer.source is None:
            return True
        kept = answer.source == answer.question.source
        if way.source is None or way.given is None:
            return kept
        given = way.given
        number = int(ipaddress.ip_address(answer.source))
        if given.addresses is not None:
            return intervals.contains(given.addresses, number)
        if given.origin == SOURCE:
            return kept
        if given.local and kept:
            # The node's own address may be the one that the link has.
            return answer.source in self._own
        if not way.chance or (given.local and not intervals.contains(self._fixed, number)):
            return True
        # Another rule may have given that address.
        self._alike.add(way.source)
        return answer.decided_by is not None and answer.decided_by == self.rule(way.source)

    def rule(self, ref: Ref) -> t.Optional[MetRule]:
        """Return a rule as its tool prints it; None if it is no rule of a table."""
        if ref not in self._rules:
            step = self._model.step(ref)
            self._rules[ref] = None if step is None else self._twin.rules([step])[0]
        return self._rules[ref]

    def place(self, place: t.Any) -> str:
        """Return what is not understood, in words: a rule, a table, or what the words say already."""
        if isinstance(place, str):
            return place
        if place.table == POLICY_TABLE:
            return "skip_marks"
        rule = self.rule(place)
        if rule is None:
            return "table %s" % self._model.tables[place.table].title if place.table >= 0 else "a service of IPVS"
        return "rule of %s (%s, table %s, chain %s: %s)" % (
            owner(rule).name,
            rule.backend,
            rule.table,
            rule.chain,
            rule.text,
        )


def _is_end(way: Way, answer: Answer) -> bool:
    if is_silent(answer):
        return True  # rules that only let pass or not are looked at if nothing comes out
    if way.end == TO_NODE:
        return answer.outcome == DELIVERED
    if way.end != LEAVES or answer.outcome != SENT or way.outcome is None:
        return False
    if answer.interface != way.outcome.link:
        return False
    return any(_is_target(one, answer) for one in way.targets or (Target(None, None, ()),))


def _is_target(target: Target, answer: Answer) -> bool:
    question = answer.question
    destination = ipaddress.ip_address(t.cast(str, answer.destination))
    if target.destination is None:
        same = str(destination) == question.destination
    else:
        same = intervals.contains(target.destination, int(destination))
    port = answer.destination_port
    if port is None:
        return same
    if target.service is None:
        return same and port == question.port
    return same and any(unpack(first)[1] <= port <= unpack(last)[1] for first, last in target.service)
