# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node does what its policy declares: every group of packets is tested, and each answer compared."""

from __future__ import annotations

import ipaddress
import typing as t

from .._engine import actors
from .._policy import spans
from .._policy.spans import Spans
from .._twin import routing
from .._twin.twin import Twin
from .._twin.values import DROPPED, REJECTED, SENT, Answer, Question, Rule, Unseen
from .matches import ALIKE, BEYOND
from .questions import Boundaries, Cell, Choice
from .survey import Survey, survey

#: What a policy declares of a packet that leaves: it shows the address of the pod, or one of the node.
POD = "pod"
NODE = "node"

#: A packet leaves otherwise than declared: always; or sometimes, by chance, or by an order that the node does not tell.
ERROR = "error"
WARNING = "warning"

#: How many questions are put at most, where no other number is asked for; that takes some seconds.
LIMIT = 5000
#: How many are put at a time: after each of these parts the progress is told.
_AT_A_TIME = 1000
#: How often a question is put again until a rule that chance left out decides once more.
_RETRIES = 32
#: Into how many parts an interval is divided of which nothing came out, and how many such intervals are.
_PARTS = 64


class Declaration(t.NamedTuple):
    """What was declared.

    ``declares`` says of source, destination, protocol, port and interface of a packet that leaves the node: POD, NODE,
    or none where nothing was declared. The interface may be left out. ``pods`` are networks in which all pods of this
    node lie; none where that is not known. ``leaves`` says of a rule that let a packet pass whether it leaves the
    packet to other programs, so that nothing is declared of it.
    """

    declares: t.Callable[..., t.Optional[str]]
    boundaries: Boundaries = Boundaries()
    pods: t.Tuple[t.Any, ...] = ()
    leaves: t.Callable[[Rule], bool] = lambda _rule: False


def exempt(networks: t.Sequence[t.Any], sources: t.Sequence[t.Any] = (), others: t.Optional[str] = NODE) -> Declaration:
    """The usual policy: what goes to some ranges shows the pod, all else shows the node.

    :param networks: the ranges.
    :param sources: networks of pods that are meant; none: all.
    :param others: what is declared outside of the ranges.
    """
    exempted, meant = Addresses(networks), Addresses(sources)

    def declares(
        source: str, destination: str, _protocol: str, _port: int, _interface: t.Optional[str] = None
    ) -> t.Optional[str]:
        if sources and source not in meant:
            return None
        return POD if destination in exempted else others

    return Declaration(declares, Boundaries(tuple(networks), tuple(sources)), tuple(sources))


class Addresses:
    """The addresses of networks of both families; to look one up takes no longer where there are thousands of them."""

    def __init__(self, networks: t.Iterable[t.Any]) -> None:
        listed = list(networks)
        self._spans = {
            version: spans.of_networks(network for network in listed if network.version == version)
            for version in (4, 6)
        }

    def __contains__(self, address: str) -> bool:
        value = ipaddress.ip_address(address)
        return spans.contains(self._spans[value.version], int(value))


class Conflict(t.NamedTuple):
    """Packets that leave otherwise than declared.

    ``ranges`` are the destinations, as networks; ``services`` and ``sources`` the protocols with their ports, and the
    pods, where it concerns only some: examples of each. ``seen`` is what the other side saw.
    """

    ranges: t.Tuple[str, ...]
    declared: str
    seen: str
    decided_by: t.Optional[Rule]
    owner: str
    severity: str
    remedy: str
    services: t.Tuple[str, ...]
    sources: t.Tuple[str, ...]
    example: Answer


class Report(t.NamedTuple):
    """The outcome. ``left_out`` is the number of questions beyond the limit; ``unseen`` what makes it less certain."""

    questions: int
    left_out: int
    conflicts: t.Tuple[Conflict, ...]
    unseen: t.Tuple[Unseen, ...]


class _Finding(t.NamedTuple):
    """One answer that is not as declared."""

    cell: Cell
    answer: Answer
    declared: str
    seen: str
    always: bool


#: Called with the number of questions that were put, and of those that will be.
Progress = t.Callable[[int, int], None]


def no_progress(_asked: int, _all: int) -> None:
    """Tell nobody."""


def verify(twin: Twin, declaration: Declaration, limit: int = LIMIT, progress: Progress = no_progress) -> Report:
    """Ask the twin of a node all questions that matter.

    :param limit: of questions, for each version of IP; 0: no limit.
    :raises NodeError: the twin does not answer.
    """
    mine = routing.local_addresses(twin.state.routing)
    asked = left_out = 0
    findings: t.List[_Finding] = []
    unseen = list(twin.unseen)
    for version in (4, 6):
        surveyed = survey(twin.state, version)
        choice = Choice(twin.state, surveyed, declaration.boundaries, declaration.pods)
        checker = _Checker(twin, declaration, mine, choice, progress)
        findings += checker.findings(limit)
        asked += checker.asked
        left_out += checker.left_out
        unseen += _limits(surveyed)
    return Report(asked, left_out, tuple(_conflicts(twin, declaration, findings)), tuple(dict.fromkeys(unseen)))


class _Checker:
    """Asks about one version of IP."""

    def __init__(
        self, twin: Twin, declaration: Declaration, mine: t.Container[str], choice: Choice, progress: Progress
    ) -> None:
        self.asked = self.left_out = 0
        self._progress = progress
        self._twin = twin
        self._declaration = declaration
        self._mine = mine
        self._choice = choice

    def findings(self, limit: int) -> t.List[_Finding]:
        """All answers that are not as declared."""
        cells = self._choice.cells()
        chosen = _spread(cells, limit)
        found, silent = self._ask(chosen)
        self.left_out += sum(len(cell.questions) for cell in cells) - self.asked
        # Of these nothing came out: something may be let through beside what was asked.
        parts = [part for cell in silent for _number, part in zip(range(_PARTS), self._choice.refined(cell))]
        more, _silent = self._ask(_spread(parts, limit))
        return found + more

    def _ask(self, cells: t.Sequence[Cell]) -> t.Tuple[t.List[_Finding], t.List[Cell]]:
        """The findings, and the cells of which nothing came out."""
        answers = self._answers([question for cell in cells for question in cell.questions])
        found: t.List[_Finding] = []
        silent: t.List[Cell] = []
        for cell in cells:
            given = [next(answers) for _question in cell.questions]
            mine = [possible for answer in given for possible in (answer, *answer.alternatives)]
            judged = [(answer, _broken(self._declaration, self._mine, answer)) for answer in mine]
            broken = [(answer, verdict) for answer, verdict in judged if verdict is not None]
            if broken:
                (answer, (declared, seen)) = broken[0]
                found.append(_Finding(cell, answer, declared, seen, len(broken) == len(mine)))
            elif all(answer.outcome in (DROPPED, REJECTED) for answer in mine):
                silent.append(cell)
        return found, silent

    def _answers(self, questions: t.Sequence[Question]) -> t.Iterator[Answer]:
        for start in range(0, len(questions), _AT_A_TIME):
            part = questions[start : start + _AT_A_TIME]
            answers = self._twin.ask(part)
            self.asked += len(part)
            self._progress(start + len(part), len(questions))
            yield from answers


class Verdict(t.NamedTuple):
    """What a policy declares of a packet, and what the other side saw: POD, NODE, or another address."""

    declared: t.Optional[str]
    seen: str

    @property
    def agrees(self) -> bool:
        """Whether nothing else was declared."""
        return self.declared in (None, self.seen)


def judge(declaration: Declaration, mine: t.Container[str], answer: Answer) -> t.Optional[Verdict]:
    """Hold an answer against a policy; none where the packet did not leave the node.

    :param mine: the addresses of the node.
    """
    if answer.outcome != SENT or answer.source is None or answer.destination is None:
        return None
    question = answer.question
    seen = answer.source
    if seen in mine:
        seen = NODE
    elif seen == question.source:
        seen = POD
    if question.source is None or question.source in mine:  # a policy is about pods
        return Verdict(None, seen)
    if any(map(declaration.leaves, answer.passed)):
        return Verdict(None, seen)
    port = question.port if answer.destination_port is None else answer.destination_port
    declared = declaration.declares(question.source, answer.destination, question.protocol, port, answer.interface)
    return Verdict(declared, seen)


class Blame(t.NamedTuple):
    """Who made the rule that decided against a policy, and what ends its effect."""

    owner: str
    remedy: str


def owner(rule: Rule) -> actors.Actor:
    """Who made a rule."""
    return actors.owner(rule.table.partition(" ")[2], rule.chain, rule.text)


def blame(verdict: Verdict, rule: t.Optional[Rule]) -> t.Optional[Blame]:
    """The cause of a verdict that does not agree; none where a rule translates only what has to be translated."""
    actor = owner(rule) if rule is not None else None
    if actor is not None and actor.benign:
        if verdict.seen != POD:
            return None
        actor = None  # it only let the packet pass; the rule that is missing is another one
    if actor is None:
        return Blame("none", _NO_RULE)
    other = _OTHER_POLICY.get((verdict.declared, verdict.seen), "") if actor is actors.UNKNOWN else ""
    return Blame(actor.name, actor.remedy + other)


#: What an operator may do who wants to keep a rule, by what was declared and what was seen.
_OTHER_POLICY: t.Dict[t.Tuple[t.Optional[str], str], str] = {
    (POD, NODE): ", or masquerade the range in the policy",
    (NODE, POD): ", or exempt the range in the policy",
}


def _broken(declaration: Declaration, mine: t.Container[str], answer: Answer) -> t.Optional[t.Tuple[str, str]]:
    """What was declared and what was seen, where they differ."""
    verdict = judge(declaration, mine, answer)
    if verdict is None or verdict.declared is None or verdict.agrees:
        return None
    return verdict.declared, verdict.seen


def _spread(cells: t.Sequence[Cell], limit: int) -> t.List[Cell]:
    """As many cells as the limit allows: all, or some from everywhere."""
    total = sum(len(cell.questions) for cell in cells)
    if total <= (limit or total):
        return list(cells)
    chosen, used = [], 0
    plain = [cell for cell in cells if not cell.service and not cell.sender]
    others = [cell for cell in cells if cell.service or cell.sender]
    for part in (plain, others):
        room = limit - used
        weight = sum(len(cell.questions) for cell in part)
        taken = 0
        for number, cell in enumerate(part, 1):
            if weight and taken + len(cell.questions) <= min(room, room * number // max(len(part), 1) + 1, weight):
                chosen.append(cell)
                taken += len(cell.questions)
        used += taken
    return chosen


def _limits(surveyed: Survey) -> t.Iterator[Unseen]:
    """What rules ask for that questions do not vary, or that the twin cannot know."""
    for feature, place in sorted(surveyed.features.items()):
        if feature in BEYOND:
            yield Unseen(
                feature, "a rule in table %s asks for %s: the twin does not know that" % (place, BEYOND[feature])
            )
        elif feature in ALIKE:
            yield Unseen(feature, "a rule in table %s asks for %s: only one kind was asked" % (place, ALIKE[feature]))
    if surveyed.foreign_marks:
        yield Unseen(
            "mark",
            "rules test bits 0x%x of marks that no rule sets: a running program may" % surveyed.foreign_marks,
        )


def _conflicts(twin: Twin, declaration: Declaration, findings: t.Sequence[_Finding]) -> t.Iterator[Conflict]:
    """Findings with the same cause, and of one version of IP, in one."""
    groups: t.Dict[t.Tuple[str, str, t.Optional[Rule], str, bool], t.List[t.Tuple[_Finding, Answer]]] = {}
    for finding, answer in zip(findings, _explain(twin, findings)):
        if any(map(declaration.leaves, answer.passed)):
            continue
        key = (
            finding.declared,
            finding.seen,
            answer.decided_by,
            ERROR if finding.always else WARNING,
            ":" in answer.question.destination,
        )
        groups.setdefault(key, []).append((finding, answer))
    for (declared, seen, rule, severity, _ipv6), members in groups.items():
        cause = blame(Verdict(declared, seen), rule)
        if cause is None:
            continue
        cells = [finding.cell for finding, _answer in members]
        yield Conflict(
            ranges=_ranges(cells),
            declared=declared,
            seen=seen,
            decided_by=rule,
            owner=cause.owner,
            severity=severity,
            remedy=cause.remedy,
            services=_named(cells, lambda cell: cell.service, lambda one: "%s/%d" % (one.protocol, one.port)),
            sources=_named(cells, lambda cell: cell.sender, lambda one: str(one.source)),
            example=members[0][1],
        )


_NO_RULE = "no rule translates the source address: ip-masq-agent sync; a rule that exempts more may come before it"


def _explain(twin: Twin, findings: t.Sequence[_Finding]) -> t.List[Answer]:
    """The answers once more, with the rules that decided."""
    answers = twin.ask([finding.answer.question for finding in findings], explain=True)
    for number, finding in enumerate(findings):
        for _attempt in range(_RETRIES):
            same = _like(finding.answer, answers[number])
            if same is not None:
                answers[number] = same
                break
            (answers[number],) = twin.ask([finding.answer.question], explain=True)
    return answers


def _like(wanted: Answer, answer: Answer) -> t.Optional[Answer]:
    """That of several possible answers which is the one that was found before; none where it is not among them."""
    for possible in (answer, *answer.alternatives):
        if possible.outside == wanted.outside:
            return possible
    return None


def _ranges(cells: t.Sequence[Cell]) -> t.Tuple[str, ...]:
    version = ipaddress.ip_address(cells[0].questions[0].destination).version
    union: Spans = spans.of((cell.first, cell.last) for cell in cells)
    return tuple(str(network) for network in spans.networks(union, version))


def _named(
    cells: t.Sequence[Cell], special: t.Callable[[Cell], bool], text: t.Callable[[t.Any], str]
) -> t.Tuple[str, ...]:
    """What the cells were chosen for; nothing where one of them stands for all."""
    if not all(map(special, cells)):
        return ()
    return tuple(sorted({text(cell.questions[0]) for cell in cells}))
