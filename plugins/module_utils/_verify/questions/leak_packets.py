# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask about packets that conntrack calls invalid: no rule of type nat sees them, so they may show what a policy hides.

Of each kind (a reset, an ICMP error) one is sent for each group that is masqueraded. Where the policy drops them, one
is sent for each way by which rules let some of them pass as well, of any flags of TCP, and of other protocols where
none of these left; what leaves breaks the policy. Otherwise it is enough to know that some leave.
"""

from __future__ import annotations

import ipaddress
import typing as t

from ..._engine.ruleset import DROP
from ..._rules import regions
from ..._rules.regions import Region
from ..._system import defaults_and_limits, intervals
from ..._system.intervals import Spans
from ..._twin.values import Answer, MetRule, Question
from ..routing.routing_lookups import LEAVES
from ..ways.node_model import OTHERS, RESET, STRAYS
from ..ways.packet_policy import NODE, POD
from ..ways.ways import Way, Ways
from .asking import AT_ONCE, TRIES, Asking
from .chosen_packets import ALL_PORTS
from .judge import Verdict, is_silent, judge

#: Seconds for the ways of such packets where the policy promises nothing of them.
_SECONDS = 2.0
#: Of how many ways a packet is sent then, if those before did not leave.
_TRIED = 4


class Leak(t.NamedTuple):
    """Packets that leave although the policy drops them. ``rule`` is the one that lets them pass, if one does."""

    regions: t.Tuple[Region, ...]
    answer: Answer
    verdict: Verdict
    rule: t.Optional[MetRule]
    certain: bool


class LeakPackets:
    """What was found. ``leaked`` counts packets that left without breaking the policy, ``broken`` are the others."""

    def __init__(self, asking: Asking) -> None:
        self.leaked = 0
        self.broken: t.List[Leak] = []
        self._asking = asking
        self._model = asking.model
        self._hidden: Spans = asking.policy.hidden.get(asking.model.family, ())
        self._drops = asking.policy.leaks == DROP and bool(self._hidden)

    def ask(self, masqueraded: t.Iterable[Answer]) -> None:
        """Ask about one family.

        :param masqueraded: an answer of each group that is masqueraded.
        """
        known = [
            answer.question
            for answer in masqueraded
            if answer.destination == answer.question.destination
            and answer.question.source not in self._asking.addresses
        ]
        asked = [
            one._replace(protocol=kind, port=one.port or defaults_and_limits.PORT, stray=RESET)
            for one in known
            for kind in STRAYS
        ]
        found = [(answer, verdict) for answer in self._put(asked) for verdict in [self._leaks(answer)] if verdict]
        if self._drops:
            self._ask_ways()
        elif known:
            self._look_further({answer.question.protocol for answer, _verdict in found})
        for answer, verdict in found:
            if not self._is_promised(answer):
                self.leaked += 1
            elif not any(_contains(leak, answer) for leak in self.broken):
                self.broken.append(Leak((_region(answer.question),), answer, verdict, None, True))

    def _put(self, questions: t.Sequence[Question]) -> t.List[Answer]:
        """Return the answers. What a rule may drop by chance is put again until it leaves."""
        self._asking.asked += len(questions)
        answers = self._asking.twin.ask(questions) if questions else []
        for _attempt in range(TRIES - 1 if self._model.filters_by_chance else 0):
            silent = [place for place, answer in enumerate(answers) if is_silent(answer)]
            places = [place for place in silent for _time in range(AT_ONCE)]
            if not places:
                break
            again = self._asking.twin.ask([questions[place] for place in places])
            for place, answer in zip(places, again):
                if is_silent(answers[place]):
                    answers[place] = answer
        return answers

    def _leaks(self, answer: Answer) -> t.Optional[Verdict]:
        """Return what was seen of a packet that left with a source that the policy hides."""
        verdict = judge(self._asking.policy, self._asking.addresses, answer)
        if verdict is None or verdict.promise is None or (verdict.promise.kind, verdict.seen) != (NODE, POD):
            return None
        # Between hidden addresses nothing is hidden.
        return None if intervals.contains(self._hidden, _number(answer.question.destination)) else verdict

    def _is_promised(self, answer: Answer) -> bool:
        return self._drops and intervals.contains(self._hidden, _number(t.cast(str, answer.question.source)))

    def _ask_ways(self) -> None:
        """Send packets by each way that leads out of the node."""
        found = self._model.strays(self._hidden, self._asking.limits.left())
        if found.rest:
            self._asking.miss("time", found.rest)
        for way in found.ways:
            if not self._leads_out(way):
                continue
            if not any(self._ask_way(way, found, kinds) for kinds in (STRAYS, OTHERS)):
                for unknown in way.unknown:
                    self._asking.miss("unknown_rule", way.regions, unknown)
                if way.chance:
                    self._asking.miss("chance", way.regions)

    def _ask_way(self, way: Way, found: Ways, kinds: t.Iterable[str]) -> bool:
        """Send packets of several kinds by a way, and return whether one left."""
        pairs = [(kind, question) for kind in kinds for question in self._questions(way, found, kind)]
        answers = self._put([question for _kind, question in pairs])
        verdicts = [self._leaks(answer) for answer in answers]
        ref = self._model.last_chance(way)
        rule = None if ref is None else self._asking.expected.rule(ref)
        certain = not way.chance and not way.unknown
        for (kind, _question), answer, verdict in zip(pairs, answers, verdicts):
            if verdict is not None:
                self.broken.append(Leak(self._of_kind(way, kind), answer, verdict, rule, certain))
            elif certain and is_silent(answer):
                self._asking.miss("unpredicted", self._of_kind(way, kind))
        return any(verdicts)

    def _look_further(self, leaked: t.Set[str]) -> None:
        """Find out whether some leave of those kinds whose first did not."""
        if leaked.issuperset(STRAYS):
            return
        seconds = self._asking.limits.left()
        found = self._model.strays((), _SECONDS if seconds is None else min(seconds, _SECONDS))
        leading = [way for way in found.ways if self._leads_out(way)]
        leading.sort(key=lambda way: (bool(way.unknown), way.chance, -way.size))
        for kind in STRAYS:
            if kind not in leaked:
                asked = [one for way in leading for one in self._questions(way, found, kind)]
                self.leaked += sum(self._leaks(answer) is not None for answer in self._put(asked[:_TRIED]))

    def _leads_out(self, way: Way) -> bool:
        """Return whether packets of a way leave that the policy masquerades, and does not leave to other programs."""
        return way.end == LEAVES and way.declared is not None and way.declared.kind == NODE

    def _of_kind(self, way: Way, kind: str) -> t.Tuple[Region, ...]:
        services = self._model.stray_services(kind)
        parts = [region._replace(service=regions.meet(region.service, services)) for region in way.regions]
        return tuple(region for region in parts if region.service)

    def _questions(self, way: Way, found: Ways, kind: str) -> t.Iterator[Question]:
        """Return a packet from the middle of a way's largest region."""
        parts = [part for part in self._of_kind(way, kind) if regions.packet_to_another(part)]
        largest = max(parts, key=regions.size, default=None)
        packet = regions.packet_to_another(largest) if largest else None
        if largest and packet:
            link = self._model.link_of(found, way, packet.source)
            asked = self._asking.packets.question(packet, largest, link)
            yield asked._replace(
                protocol=kind, port=asked.port or defaults_and_limits.PORT, stray=found.starts[way.start].stray
            )


def _number(address: str) -> int:
    return int(ipaddress.ip_address(address))


def _region(question: Question) -> Region:
    source, destination = _number(t.cast(str, question.source)), _number(question.destination)
    return Region(0, ((source, source),), ((destination, destination),), (), ALL_PORTS)


def _contains(leak: Leak, answer: Answer) -> bool:
    """Return whether packets that are known to leave are of the kind of an answer's, and among them its own."""
    wanted = _region(answer.question)
    return leak.answer.question.protocol == answer.question.protocol and any(
        regions.meet(region.source, wanted.source) and regions.meet(region.destination, wanted.destination)
        for region in leak.regions
    )
