# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a packet for each way that packets of pods can take through a node, and compare the answers with the policy.

What is not understood, not copied or not tested is returned as ``Untested``, never as something that agrees.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import time
import typing as t

from .._engine.ruleset import DROP
from .._system import intervals
from .._system.families import IPV4, Family
from .._system.intervals import Spans
from .._twin.twin import Twin
from .._twin.values import NOT_TESTED, QUESTION_PROTOCOLS, Answer, Question, Rule, Unseen
from . import regions
from .expected import Expected
from .judge import Addresses, Blame, Verdict, blame, is_silent, judge, judge_own, passed, untracked
from .leak_packets import Leak, LeakPackets
from .model import Model
from .packet_policy import NODE, OWN, POD, Policy
from .regions import Region
from .routing_lookups import Unknown
from .rules import WITH_PORTS
from .time_limit import TimeOverError, left, limited
from .ways import DROPPED as BY_FILTER
from .ways import TRANSLATED, Way, Ways

#: A packet leaves with another address than the policy's: always; or sometimes, by chance.
ERROR = "error"
WARNING = "warning"

#: Limits of a verification: questions for each family, and seconds.
QUESTIONS = 100000
SECONDS = 60
#: Seconds beyond the limit that may be spent on an end: to interrupt what takes too long, to find which rule decided.
_GRACE = 5.0
#: How many packets are sent at a time: after each part progress is reported and the time checked.
_AT_A_TIME = 500
#: How often a question is put until chance has chosen the way that it is about.
_TRIES = 64
#: How many times a question is put at once, if its first answer was another one.
_AT_ONCE = 16
#: How often another random packet is taken, if it is one that was sent already.
_ATTEMPTS = 4
#: Two verifications of one node send the same packets.
_SEED = 20240229

_NAMES = {number: name for name, number in QUESTION_PROTOCOLS.items()}
_ALL_PORTS: Spans = ((1, 0xFFFF),)


class Conflict(t.NamedTuple):
    """Packets that do not match the policy.

    ``ranges`` are the destinations, as networks; ``services`` and ``sources`` the protocols with their ports, and the
    pods, if it concerns only some of them. ``seen`` is what the other side sees.
    """

    ranges: t.Tuple[str, ...]
    policy: str
    seen: str
    decided_by: t.Optional[Rule]
    owner: str
    severity: str
    remedy: str
    services: t.Tuple[str, ...]
    sources: t.Tuple[str, ...]


class Untested(t.NamedTuple):
    """Why not all packets are tested. ``code`` is stable; ``ranges`` are the destinations, empty for all."""

    code: str
    text: str
    ranges: t.Tuple[str, ...] = ()


class Report(t.NamedTuple):
    """The outcome. ``left_out`` counts questions beyond a limit.

    ``leaked`` counts packets without a connection that left with an address that the policy hides, where it does not
    say that they are dropped: that would be a conflict.
    """

    questions: int
    left_out: int
    conflicts: t.Tuple[Conflict, ...]
    untested: t.Tuple[Untested, ...]
    leaked: int = 0


class Limits(t.NamedTuple):
    """Of a verification: questions for each family, and seconds; 0: no limit."""

    questions: int = QUESTIONS
    seconds: float = SECONDS


DEFAULT = Limits()


#: Called with the number of questions that were put, and of those that will be.
Progress = t.Callable[[int, int], None]


def no_progress(_asked: int, _all: int) -> None:
    """Tell nobody."""


@contextlib.contextmanager
def _uncollected() -> t.Iterator[None]:
    """Do without Python's search for cycles of objects: a verification makes none.

    Beside 5,000 Services a verification takes 6.3 s of CPU time, with the search 7.6 s.
    """
    searches = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searches:
            gc.enable()


@_uncollected()
def verify(twin: Twin, policy: Policy, limits: Limits = DEFAULT, progress: Progress = no_progress) -> Report:
    """Ask the copy of a node all that matters, as far as the limits allow.

    :param progress: called with how far it is.
    :raises NodeError: the copy does not answer.
    """
    until = time.monotonic() + limits.seconds if limits.seconds else None
    untested = [_not_copied(unseen) for unseen in twin.unseen if unseen.code not in HARMLESS]
    models = [_read(twin, policy, family, until) for family in sorted(policy.entries)]
    if None in models:
        untested.append(Untested("time", _TEXTS["time"]))
    runs = [_Run(twin, policy, model, limits.questions, until, progress) for model in models if model is not None]
    conflicts: t.List[Conflict] = []
    for run in runs:
        run.ask()
        conflicts += run.conflicts()
        untested += run.untested()
    return Report(
        sum(run.asked for run in runs),
        sum(run.left_out for run in runs),
        tuple(conflicts),
        tuple(dict.fromkeys(untested)),
        sum(run.leaked for run in runs),
    )


def _read(twin: Twin, policy: Policy, family: Family, until: t.Optional[float]) -> t.Optional[Model]:
    """Return the node as values and ways, which may take half of the time; None if it takes longer."""
    whole = left(until)
    seconds = None if whole is None else whole / 2  # the other half is for the questions
    try:
        with limited(seconds, _GRACE):
            return Model(twin.state, family, policy, seconds)
    except TimeOverError:
        return None


#: What a copy may lack without a wrong source address, and why.
HARMLESS = {
    "trace": "only the rule that decides is not shown",
    "offload": "a connection is offloaded once its first packet has passed the rules",
}


def _not_copied(unseen: Unseen) -> Untested:
    return Untested(unseen.code, "not in the copy: %s" % unseen.text)


class _Finding(t.NamedTuple):
    """An answer about a way that does not agree with the policy."""

    way: Way
    answer: Answer
    verdict: Verdict


class _Reason(t.NamedTuple):
    """Why packets are not tested: a stable code, and what is not understood of a rule or route."""

    code: str
    unknown: t.Optional[Unknown] = None


class _Run:
    """Asks about one family."""

    def __init__(
        self, twin: Twin, policy: Policy, model: Model, limit: int, until: t.Optional[float], progress: Progress
    ) -> None:
        self.asked = self.left_out = self.leaked = 0
        self._twin = twin
        self._policy = policy
        self._family = model.family
        self._limit = limit
        self._until = until
        self._progress = progress
        self._addresses = Addresses(twin.state)
        self._random = random.Random(_SEED)  # noqa: S311 (no secret)
        self._model = model
        self._expected = Expected(twin, model)
        #: whether packets that were sent before decide about a finding
        self._remembers = False
        self._findings: t.List[_Finding] = []
        self._leak_packets = LeakPackets(twin, policy, model, self._expected, self._addresses)
        #: ways that meet the policy in one order of chains of the same priority, and not in another
        self._tied: t.Dict[t.Any, t.List[t.Tuple[Way, Answer]]] = {}
        self._untested: t.Dict[_Reason, t.List[Region]] = {}
        #: an answer for each promise and link of what is masqueraded
        self._masqueraded: t.Dict[t.Tuple[str, t.Optional[str]], Answer] = {}

    def _is_late(self, grace: float = 0.0) -> bool:
        return self._until is not None and time.monotonic() >= self._until + grace

    def _miss(self, code: str, missed: t.Iterable[Region], unknown: t.Optional[Unknown] = None) -> None:
        self._untested.setdefault(_Reason(code, unknown), []).extend(missed)

    def ask(self) -> None:
        """Ask about every way that packets can take."""
        for found in (self._model.found, self._model.own):
            silent = self._about(found)
            if silent:
                # Of these nothing came out: something may be let through beside what was sent.
                seconds = left(self._until)
                try:
                    with limited(seconds, _GRACE):
                        divided = self._model.divided(found, silent, seconds)
                except TimeOverError:
                    self._miss("time", [region for way in silent for region in way.regions])
                else:
                    self._about(divided)
        self._compare_orders()
        self._ask_leak_packets()

    def _about(self, found: Ways) -> t.List[Way]:
        """Ask about ways. Return those without a packet that came out, although no rule that was run drops them."""
        if found.rest:
            self._miss("time", found.rest)
        for way in found.ways:
            for unknown in way.unknown:
                self._miss("unknown_rule", way.regions, unknown)
        silent = []
        waiting = [way for way in found.ways if way.end not in (BY_FILTER, TRANSLATED)]
        for attempt in range(_TRIES):
            again = []
            for way, answers in self._put(waiting, found):
                fitting = [answer for answer in answers if way.unknown or self._expected.fits(way, answer)]
                self._judge(way, answers)
                if not fitting and way.chance:
                    again.append(way)
                elif len(fitting) < len(answers) and not way.chance:
                    self._miss("unpredicted", way.regions)
                elif all(map(is_silent, fitting)):
                    silent.append(way)
            waiting = again
            if not waiting or attempt == _TRIES - 1:
                break
        for way in waiting:
            for unknown in way.history:
                self._miss("unknown_rule", way.regions, unknown)
            if not way.history:
                self._miss("chance", way.regions)
        return silent

    # questions

    def _put(self, some: t.Sequence[Way], found: Ways) -> t.Iterator[t.Tuple[Way, t.List[Answer]]]:
        """Put the questions of ways, as far as the limits allow, and return the answers."""
        pairs = [(way, questions) for way in some for questions in [self._questions(way, found)] if questions]
        total = self.asked + sum(len(questions) for _way, questions in pairs)
        for start in range(0, len(pairs), _AT_A_TIME):
            part = []
            room = self._limit - self.asked if self._limit else total
            late = self._is_late()
            for way, questions in pairs[start : start + _AT_A_TIME]:
                room -= len(questions)
                if late or room < 0:
                    self.left_out += len(questions)
                    self._miss("time" if late else "limit", way.regions)
                else:
                    part.append((way, questions))
            if any(way.history for way, _questions in part):
                self._twin.forget()
            explain = self._expected.needs_trace(way for way, _questions in part)
            for in_turns in (True, False):
                chosen = [(way, questions) for way, questions in part if self._is_certain(way, questions) is in_turns]
                asked = [question for _way, questions in chosen for question in questions]
                answers = iter(self._twin.ask(asked, explain, in_turns) if asked else ())
                for way, questions in chosen:
                    self.asked += len(questions)
                    yield way, list(itertools.islice(answers, len(questions)))
            self._progress(self.asked, total)

    def _is_certain(self, way: Way, questions: t.Sequence[Question]) -> bool:
        """Return whether no order of chains makes a difference to a way, so each needs only one of its questions."""
        return self._twin.orders == len(questions) and not (way.tied or way.unknown or way.history)

    def _questions(self, way: Way, found: Ways) -> t.List[Question]:
        """Return a packet from the middle of a way's largest region, and a random one of any region.

        A packet of a pod to itself passes the node only if a Service translates it: without that, one to another.
        """
        choose = regions.packet if way.targets else regions.packet_to_another
        parts = [part for part in way.regions if choose(part)]
        if not parts:
            return []
        largest = max(parts, key=regions.size)
        chosen = [(largest, choose(largest))]
        for _attempt in range(_ATTEMPTS):
            part = self._random.choice(parts)
            another = choose(part, self._random)
            if another != chosen[0][1]:
                chosen.append((part, another))
                break
        return [
            self._question(one, self._model.link_of(found, way, one.source), part.source_port == _ALL_PORTS)
            for part, one in chosen
            if one is not None
        ]

    def _question(self, packet: regions.Packet, link: t.Optional[str], any_port: bool) -> Question:
        protocol, port = packet.service >> 16, packet.service & 0xFFFF
        name = _NAMES[protocol] if protocol in WITH_PORTS else "icmp"
        return Question(
            destination=str(self._family.address(packet.destination)),
            source=str(self._family.address(packet.source)),
            interface=link,
            protocol=name,
            port=port,
            source_port=None if any_port else packet.source_port,
        )

    # answers

    def _verdict(self, answer: Answer) -> t.Optional[Verdict]:
        compare = judge_own if self._is_own(answer.question) else judge
        return compare(self._policy, self._addresses, answer)

    def _is_own(self, question: Question) -> bool:
        return question.source is not None and question.source in self._addresses

    def _judge(self, way: Way, answers: t.Sequence[Answer]) -> None:
        """Compare answers about a way with the policy."""
        for answer in answers:
            if answer.outcome == NOT_TESTED:
                self._miss("not_asked", way.regions)
                continue
            possible = (answer, *answer.alternatives)
            verdicts = [(one, self._verdict(one)) for one in possible]
            broken = [(one, verdict) for one, verdict in verdicts if verdict is not None and not verdict.agrees]
            if broken and len(broken) < len(possible):
                key = (tuple(verdict for _one, verdict in verdicts), self._model.late(way))
                self._tied.setdefault(key, []).append((way, answer))
            elif broken:
                self._findings.append(_Finding(way, *broken[0]))
            for one, verdict in verdicts:
                if verdict is None or verdict.promise is None or not verdict.agrees:
                    continue
                if verdict.promise.kind == NODE:
                    self._masqueraded.setdefault((str(verdict.promise), one.interface), one)

    def _ask_leak_packets(self) -> None:
        """Send packets that conntrack calls invalid for each group that is masqueraded."""
        if self._is_late():
            if self._policy.leaks == DROP:
                self._miss("time", ())
            return
        known = [
            answer.question
            for answer in self._masqueraded.values()
            if answer.destination == answer.question.destination and not self._is_own(answer.question)
        ]
        asking = self._leak_packets
        asking.ask(known, left(self._until))
        self.asked += asking.asked
        self.leaked = asking.leaked
        for code, missed, unknown in asking.missed:
            self._miss(code, missed, unknown)

    def _compare_orders(self) -> None:
        """Note ways whose source address depends on an order of chains that the kernel does not report."""
        for members in self._tied.values():
            if self._is_late(_GRACE):
                self._miss("time", [region for way, _answer in members for region in way.regions])
            elif self._depends_on_order(members[0][1]):
                self._miss("order", [region for way, _answer in members for region in way.regions])

    def _depends_on_order(self, known: Answer) -> bool:
        """Return whether the policy does not hold in an order, and not because of a translation that has to be."""
        for _attempt in range(_TRIES):
            (answer,) = self._twin.ask([known.question], explain=True)
            broken = [
                (verdict, one)
                for one in (answer, *answer.alternatives)
                for verdict in [self._verdict(one)]
                if verdict is not None and not verdict.agrees
            ]
            if broken:
                return any(blame(verdict, one) is not None for verdict, one in broken)
        return True  # chance does not show it again

    def conflicts(self) -> t.Iterator[Conflict]:
        """Return what does not agree with the policy: for each cause, and for each group of pods and services."""
        groups: t.Dict[t.Any, t.List[_Finding]] = {}
        for finding in self._findings:
            certain = not finding.way.chance and not finding.way.unknown
            groups.setdefault((finding.verdict, self._model.late(finding.way), certain), []).append(finding)
            self._remembers = self._remembers or bool(finding.way.history)
        causes: t.Dict[t.Any, t.List[Region]] = {}
        for number, ((verdict, _late, certain), members) in enumerate(groups.items()):
            if number and self._is_late(_GRACE):  # no time to find out which rule decided
                self._miss("time", [region for finding in members for region in finding.way.regions])
                continue
            answer = self._explained(members[0].answer)
            cause = blame(verdict, answer)
            unseen = self._untracking(members[0].way) if verdict.seen in (POD, OWN) else None
            if unseen is not None and answer.decided_by is None:
                answer, cause = answer._replace(decided_by=unseen), untracked(unseen)
            if cause is None or any(map(self._policy.leaves, answer.passed)):
                continue
            key = (verdict, certain, answer.decided_by, cause)
            causes.setdefault(key, []).extend(region for finding in members for region in finding.way.regions)
        for (verdict, certain, rule, cause), affected in causes.items():
            for part in regions.joined(affected):
                yield self._conflict(part, verdict, certain, rule, cause, self._services(part))
        yield from self._leaks()

    def _leaks(self) -> t.Iterator[Conflict]:
        """Return what leaves without a connection although the policy drops it."""
        groups: t.Dict[t.Any, t.Dict[str, t.List[Leak]]] = {}
        for leak in self._leak_packets.broken:
            kinds = groups.setdefault((leak.verdict, leak.certain, leak.rule), {})
            kinds.setdefault(leak.answer.question.protocol, []).append(leak)
        for (verdict, certain, rule), kinds in groups.items():
            alike: t.Dict[t.Tuple[Region, ...], t.List[str]] = {}
            for kind, leaks in kinds.items():
                # The name of a kind does not include the ports that it was sent to.
                plain = (region._replace(service=(), source_port=()) for leak in leaks for region in leak.regions)
                alike.setdefault(tuple(regions.joined(plain)), []).append(kind)
            for parts, names in alike.items():
                services = tuple(_WITHOUT_CONNECTION[name] for name in names)
                for part in parts:
                    yield self._conflict(part, verdict, certain, rule, passed(rule), services)

    def _conflict(
        self,
        part: Region,
        verdict: Verdict,
        certain: bool,
        rule: t.Optional[Rule],
        cause: Blame,
        services: t.Tuple[str, ...],
    ) -> Conflict:
        return Conflict(
            ranges=self._ranges([part]),
            policy=str(verdict.promise),
            seen=verdict.seen,
            decided_by=rule,
            owner=cause.owner,
            severity=ERROR if certain else WARNING,
            remedy=cause.remedy,
            services=services,
            sources=self._sources([part]),
        )

    def _untracking(self, way: Way) -> t.Optional[Rule]:
        """Return the rule of a way that keeps its packets from conntrack."""
        found = next((ref for ref in way.met if self._model.untracks(ref)), None)
        return None if found is None else self._expected.rule(found)

    def _explained(self, wanted: Answer) -> Answer:
        """Return an answer once more, with the rules that decided."""
        for attempt in range(_TRIES):
            if self._remembers:
                self._twin.forget()
            # Chance may show it seldom.
            answers = self._twin.ask([wanted.question] * (_AT_ONCE if attempt else 1), explain=True)
            for possible in (one for answer in answers for one in (answer, *answer.alternatives)):
                if possible.outside == wanted.outside:
                    return possible
        return wanted

    def _ranges(self, affected: t.Iterable[Region]) -> t.Tuple[str, ...]:
        distinct = {id(region.destination): region.destination for region in affected}
        union = intervals.of(span for destination in distinct.values() for span in destination)
        found = intervals.networks(union, self._family)
        # Addresses to which nothing is sent on may be in it if it is shorter then.
        wide = intervals.networks(intervals.of((*union, *self._model.nowhere)), self._family)
        wide = [network for network in wide if intervals.intersection((intervals.of_network(network),), union)]
        return tuple(map(str, wide if len(wide) < len(found) else found))

    def _services(self, part: Region) -> t.Tuple[str, ...]:
        """Return the protocols and ports that are affected; empty: all."""
        suffix = ""
        if part.source_port != _ALL_PORTS:
            suffix = " from port %s" % ",".join(_span_text(first, last) for first, last in part.source_port)
        elif part.service == self._model.services:
            return ()
        return tuple(_service_text(first, last) + suffix for first, last in _by_protocol(part.service))

    def _sources(self, affected: t.Sequence[Region]) -> t.Tuple[str, ...]:
        """Return the pods that are affected; empty: all."""
        everything = intervals.of(span for sender in self._model.senders for span in sender.addresses)
        union = intervals.of(span for region in affected for span in region.source)
        return () if union == everything else tuple(map(str, intervals.networks(union, self._family)))

    def untested(self) -> t.Iterator[Untested]:
        """Return why not all packets are tested."""
        if not self._model.senders and (self._family == IPV4 or self._addresses.has_global_ipv6):
            yield Untested("no_pods", _NO_PODS % self._family.version)
        for reason, missed in self._untested.items():
            text = _TEXTS[reason.code]
            if reason.unknown is not None:
                text %= (self._expected.place(reason.unknown.place), reason.unknown.reason)
            yield Untested(reason.code, text, self._ranges(missed))


_WITHOUT_CONNECTION = {"tcp": "tcp without a connection", "icmp": "icmp errors of no connection"}
_NO_PODS = (
    "IPv%d: no route of the node shows where its pods are: list their networks (--pod-cidrs, pod_cidrs), or verify "
    "again when a pod runs"
)
_TEXTS = {
    "unknown_rule": "%s, because of %s",
    "time": "the time was over: raise --max-seconds (max_seconds)",
    "limit": "there are more questions than the limit: raise --max-questions (max_questions)",
    "chance": "a way that is taken by chance was not taken by %d packets" % (2 * _TRIES),
    "unpredicted": "packets took another way than by the rules and routes that were read",
    "not_asked": "the copy cannot send such packets",
    "order": "two chains have the same priority: in one order the policy holds, in the other it does not, and the "
    "kernel does not show which it has",
}


def _by_protocol(services: Spans) -> t.Iterator[t.Tuple[int, int]]:
    for start, last in services:
        first = start
        while first >> 16 != last >> 16:
            yield first, first | 0xFFFF
            first = ((first >> 16) + 1) << 16
        yield first, last


def _service_text(first: int, last: int) -> str:
    name = _NAMES.get(first >> 16, str(first >> 16))
    low, high = first & 0xFFFF, last & 0xFFFF
    if first >> 16 not in WITH_PORTS or (low <= 1 and high == 0xFFFF):
        return name
    return "%s/%s" % (name, _span_text(low, high))


def _span_text(first: int, last: int) -> str:
    return str(first) if first == last else "%d-%d" % (first, last)
