# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put a packet for each way into the copy of a node, and keep why some are not tested.

A packet is put again until chance has chosen the way that it is about. What is not understood or not tested is kept,
never taken for something that agrees.
"""

from __future__ import annotations

import itertools
import time
import typing as t

from ..._rules import regions
from ..._rules.regions import Region
from ..._system import intervals
from ..._system.intervals import Spans
from ..._system.services import MAX_PORT, span
from ..._twin.twin import Twin
from ..._twin.values import NOT_TESTED, Answer, Question
from ..routing.routing_lookups import LEAVES, Unknown
from ..ways.cpu_time import TimeOverError, limited
from ..ways.node_model import NodeModel
from ..ways.packet_policy import Policy
from ..ways.ways import DELIVERED, DROPPED, TRANSLATED, Way, Ways
from .chosen_packets import ALL_PORTS, NAMED, ChosenPackets
from .expected import Expected
from .judge import Addresses, is_silent
from .limits import GRACE, Limits

#: How often a question is put until chance has chosen the way that it is about: first once, then more often at a time.
TRIES = 64
_FIRST, AT_ONCE = 4, 16
_PACKETS = 2 * _FIRST + (1 + AT_ONCE) * (TRIES - _FIRST)
#: How often one is put again that a rule may limit to some in a time, and how many seconds after the first time.
_LIMITED, _PAUSE = 4, 0.05
#: How many packets are sent at a time: after each part progress is reported and the time checked.
_AT_A_TIME = 500

_PORTED: Spans = intervals.of(map(span, NAMED))
#: Of equal priority, in words.
TIED = "two chains have the same priority, and the kernel does not show which comes first"
TEXTS = {
    "unknown_rule": "%s, because of %s",
    "time": "the time was over after %d questions, and %s were left: raise --max-seconds (max_seconds)",
    "limit": "there are more questions than the limit: raise --max-questions (max_questions)",
    "chance": "a way that is taken by chance was not taken by %d packets" % _PACKETS,
    "unpredicted": "packets took another way than by the rules and routes that were read",
    "not_asked": "the copy cannot send such packets",
    "order": TIED + ": in one order the policy holds, in the other it does not",
}

#: Called with the number of questions that were put, and of those that will be.
Progress = t.Callable[[int, int], None]


def no_progress(_asked: int, _all: int) -> None:
    """Tell nobody."""


class Asking:
    """Asks about one family. ``asked`` counts the questions that were put, ``left_out`` those beyond a limit."""

    def __init__(
        self,
        twin: Twin,
        policy: Policy,
        model: NodeModel,
        limits: Limits,
        progress: Progress = no_progress,
    ) -> None:
        """Prepare to ask."""
        self.asked = self.left_out = 0
        #: of those asked, how many only because chance took another way
        self.repeated = 0
        self.twin = twin
        self.policy = policy
        self.model = model
        self.limits = limits
        self.addresses = Addresses(twin.state)
        self.expected = Expected(twin, model)
        self._progress = progress
        self.packets = ChosenPackets(model)
        #: source ports whose packets take the choice of a way; those that are left
        self._steered: t.Dict[int, int] = {}
        self._steered_ports = itertools.chain(range(1024, 20000), range(60000, MAX_PORT))
        #: packets that are not tested, by a stable code, and what is not understood of a rule or route
        self._missed: t.Dict[t.Tuple[str, t.Optional[Unknown]], t.List[Region]] = {}

    def miss(self, code: str, missed: t.Iterable[Region], unknown: t.Optional[Unknown] = None) -> None:
        """Keep that packets are not tested, and why."""
        self._missed.setdefault((code, unknown), []).extend(missed)

    def missed(self) -> t.Iterator[t.Tuple[str, str, t.List[Region]]]:
        """Return why not all packets are tested: a stable code, the text, and those packets, empty for all."""
        for (code, unknown), missed in self._missed.items():
            text = TEXTS[code]
            if code == "time":
                text %= (self.asked, self.left_out or "more")  # not all are known before all ways are
            if unknown is not None:
                text %= (self.expected.place(unknown.place), unknown.reason)
            yield code, text, missed

    def about(self, found: Ways, explain: bool = False, divide: bool = True) -> t.Iterator[t.Tuple[Way, Answer]]:
        """Ask about every way, and return the answers.

        :param explain: whether to return the rules that decided.
        :param divide: whether ways of which nothing came out are divided, as something may be let through beside what
            was sent.
        """
        if found.rest:
            self.miss("time", found.rest)
        if divide:
            self._doubt(found.ways)
        silent: t.List[Way] = []
        waiting = [way for way in found.ways if way.end not in (DROPPED, TRANSLATED)]
        self._steer(waiting)
        for attempt in range(TRIES):
            again = []
            before = self.asked
            for way, answers in self._put(waiting, found, explain, attempt if divide else TRIES + attempt):
                fitting = [answer for answer in answers if way.unknown or self.expected.fits(way, answer)]
                fitting.sort(key=is_silent)
                for answer in fitting[:1] if attempt >= _FIRST else answers:
                    if answer.outcome == NOT_TESTED:
                        self.miss("not_asked", way.regions)
                    else:
                        yield way, answer
                if not fitting and way.chance:
                    again.append(way)
                elif len(fitting) < len(answers) and not way.chance:
                    self.miss("unpredicted", way.regions)
                elif way.end in (LEAVES, DELIVERED) and all(map(is_silent, fitting)):
                    # Not the routes, but a rule that only lets packets pass or not; it may let more pass later.
                    later = self.model.filters_by_chance or (way.unknown and attempt < _LIMITED)
                    (again if later and not divide else silent).append(way)
            by_chance = attempt or (self.model.filters_by_chance and not divide)
            self.repeated += self.asked - before if by_chance else 0
            waiting = again
            if not waiting:
                break
            if not divide and attempt < _LIMITED:
                time.sleep(_PAUSE * 2**attempt)
        for way in waiting:
            for unknown in way.history:
                self.miss("unknown_rule", way.regions, unknown)
            if not way.history:
                self.miss("chance", way.regions)
        if not divide:
            # What is unknown of rules that let packets pass or not decides nothing once one has passed.
            self._doubt(silent)
        elif silent:
            seconds = self.limits.left()
            try:
                with limited(seconds, GRACE):
                    divided = self.model.divided(found, silent, seconds)
            except TimeOverError:
                self.miss("time", [region for way in silent for region in way.regions])
            else:
                yield from self.about(divided, explain, False)

    def _steer(self, ways: t.Iterable[Way]) -> None:
        """Have the packets of ways take the choice by chance that they are about."""
        found = []
        for way in ways:
            free = [part.source_port == ALL_PORTS and not regions.minus(part.service, _PORTED) for part in way.regions]
            if not way.chance or way.history or not all(free):
                continue
            port = next(self._steered_ports, 0)
            steering = self.model.steering(way, port) if port else None
            if steering is not None:
                self._steered[id(way)] = port
                found.append(steering)
        if found:
            self.twin.steer(found)

    def _doubt(self, ways: t.Iterable[Way]) -> None:
        for way in ways:
            for unknown in way.unknown:
                self.miss("unknown_rule", way.regions, unknown)

    def _put(
        self, some: t.Sequence[Way], found: Ways, explain: bool, attempt: int
    ) -> t.Iterator[t.Tuple[Way, t.List[Answer]]]:
        """Put the questions of ways, as far as the limits allow, and return the answers."""
        listed = [(way, self._questions(way, found, attempt)) for way in some]
        pairs = [(way, questions) for way, questions in listed if questions]
        total = self.asked + sum(len(questions) for _way, questions in pairs)
        for start in range(0, len(pairs), _AT_A_TIME):
            part = []
            room = self.limits.questions - self.asked if self.limits.questions else total
            late = self.limits.is_late()
            for way, questions in pairs[start : start + _AT_A_TIME]:
                room -= len(questions)
                if late or room < 0:
                    self.left_out += len(questions)
                    self.miss("time" if late else "limit", way.regions)
                else:
                    part.append((way, questions))
            if any(way.history for way, _questions in part):
                self.twin.forget()
            traced = explain or self.expected.needs_trace(way for way, _questions in part)
            for in_turns in (True, False):
                chosen = [(way, questions) for way, questions in part if self._is_certain(way, questions) is in_turns]
                asked = [question for _way, questions in chosen for question in questions]
                answers = iter(self.twin.ask(asked, traced, in_turns) if asked else ())
                for way, questions in chosen:
                    self.asked += len(questions)
                    yield way, list(itertools.islice(answers, len(questions)))
            self._progress(self.asked, total)

    def _is_certain(self, way: Way, questions: t.Sequence[Question]) -> bool:
        """Return whether no order of chains makes a difference to a way, so each needs only one of its questions."""
        return self.twin.orders == len(questions) and not (way.tied or way.unknown or way.history)

    def _questions(self, way: Way, found: Ways, attempt: int) -> t.List[Question]:
        # Beside many of their own, packets would not be the first that rules see.
        times = 1 if attempt % TRIES < _FIRST or way.history else AT_ONCE
        return [self.steered(way, one) for one in self.packets.of(way, found, attempt, times)]

    def steered(self, way: Way, question: Question) -> Question:
        """Return a question whose packet takes the choice by chance that a way is about, as far as it can be had."""
        port = self._steered.get(id(way))
        return question._replace(source_port=port) if port else question
