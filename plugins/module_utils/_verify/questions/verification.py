# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a packet for each way that packets of pods can take through a node, and compare the answers with the policy.

What is not understood, not copied or not tested is returned as ``Untested``, never as something that agrees.
"""

from __future__ import annotations

import ipaddress
import typing as t

from ..._engine.effects import listed_services
from ..._engine.ruleset import DROP
from ..._policy.values import PortRange
from ..._rules import regions
from ..._rules.regions import Region
from ..._rules.rules import RuleTable
from ..._system import intervals
from ..._system.families import IPV4, IPV6, Family
from ..._twin.twin import Twin
from ..._twin.values import Answer, MetRule, Question, Unseen
from ..ways.alike_endpoints import Read
from ..ways.cpu_time import TimeOverError, limited
from ..ways.flows import is_many
from ..ways.node_model import NodeModel
from ..ways.packet_policy import NODE, Policy
from ..ways.ways import Way, Ways
from .asking import AT_ONCE, TEXTS, TRIES, Asking, Progress, no_progress
from .chosen_packets import ALL_PORTS
from .judge import NOBODY, Blame, Verdict, decide, judge, passed
from .leak_packets import Leak, LeakPackets
from .limits import GRACE, NO_LIMITS, Limits

#: A packet leaves with another address than the policy's: always; or sometimes, by chance.
ERROR = "error"
WARNING = "warning"


class Conflict(t.NamedTuple):
    """Packets that do not match the policy.

    ``ranges`` are the destinations, as networks; ``services`` and ``sources`` the protocols with their ports, and the
    pods, if it concerns only some of them. ``seen`` is what the other side sees.
    """

    ranges: t.Tuple[str, ...]
    policy: str
    seen: str
    decided_by: t.Optional[MetRule]
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


def verify(
    twin: Twin,
    policy: Policy,
    limits: Limits = NO_LIMITS,
    progress: Progress = no_progress,
    tables: t.Optional[Read] = None,
) -> Report:
    """Ask the copy of a node all that matters, as far as the limits allow.

    :param progress: called with how far it is.
    :param tables: of the copy, as far as they were read already.
    :raises NodeError: the copy does not answer.
    """
    untested = [_not_copied(unseen) for unseen in twin.unseen if unseen.code not in HARMLESS]
    runs = []
    for family in sorted(policy.entries):
        read = _read(twin, policy, family, limits, (tables or {}).get(family))
        if read is None:
            untested.append(Untested("time", TEXTS["time"] % (0, "all")))
        else:
            runs.append((_Run(twin, policy, read[0], limits, progress), read[1]))
    conflicts: t.List[Conflict] = []
    for run, found in runs:
        run.ask(found)
        if not any(missing(twin.unseen, run.model.family)):
            conflicts += run.conflicts()
        untested += run.untested()
    return Report(
        sum(run.asked - run.repeated for run, _found in runs),
        sum(run.left_out for run, _found in runs),
        tuple(conflicts),
        tuple(dict.fromkeys(untested)),
        sum(run.leaks.leaked for run, _found in runs),
    )


def _read(
    twin: Twin, policy: Policy, family: Family, limits: Limits, tables: t.Optional[t.List[RuleTable]]
) -> t.Optional[t.Tuple[NodeModel, t.Tuple[Ways, ...]]]:
    """Return the node as values, and its ways, which may take half of the time; None if it takes longer."""
    half = limits.first_half()  # the other one is for the questions
    try:
        with limited(half.left(), GRACE):
            model = NodeModel(twin.state, family, policy, tables=tables)
            return model, (model.of_pods(half.left()), model.of_node(half.left()))
    except TimeOverError:
        return None


#: What a copy may lack without a wrong source address, and why.
HARMLESS = {
    "trace": "only the rule that decides is not shown",
    "offload": "a connection is offloaded once its first packet has passed the rules",
}


def _not_copied(unseen: Unseen) -> Untested:
    return Untested(unseen.code, "not in the copy: %s" % unseen.text)


#: What a copy without it says nothing certain about; texts of the last two name an address.
_DECIDING = ("ipset", "table", "unreadable", "address", "route")


def missing(unseen: t.Iterable[Unseen], family: Family) -> t.Iterator[str]:
    """Return what is missing in a copy whose packets of a family may have met it on the node."""
    for one in unseen:
        of_both = one.code in _DECIDING[:3]
        if of_both or (one.code in _DECIDING and (":" in one.text) == (family == IPV6)):
            yield _not_copied(one).text


class _Finding(t.NamedTuple):
    """An answer about a way that does not agree with the policy."""

    way: Way
    answer: Answer
    verdict: Verdict


def _of_answer(finding: _Finding) -> t.Iterator[Region]:
    """Return what a finding proves of a way that is not understood: to other destinations it may be otherwise."""
    number = int(ipaddress.ip_address(finding.answer.question.destination))
    for region in finding.way.regions:
        destination = regions.meet(region.destination, ((number, number),))
        if destination:
            yield region._replace(destination=destination)


def _is_judged(way: Way) -> bool:
    """Return whether a policy may be about packets of a way: not if a Service leads each of them back to its sender."""
    senders = {region.source for region in way.regions}
    receivers = {target.destination for target in way.targets}
    one = len(senders) == 1 and not any(map(is_many, senders))
    return not one or senders != receivers or bool(way.unknown or way.history or way.tied)


def _sent(part: Region) -> Region:
    """Return the packets of a region that come to the node: not those that a pod sends to itself."""
    return part if is_many(part.source) else part._replace(destination=regions.minus(part.destination, part.source))


class _Run(Asking):
    """A verification of one family."""

    def __init__(self, twin: Twin, policy: Policy, model: NodeModel, limits: Limits, progress: Progress) -> None:
        super().__init__(twin, policy, model, limits, progress)
        self.leaks = LeakPackets(self)
        #: whether packets that were sent before decide about a finding
        self._remembers = False
        self._findings: t.List[_Finding] = []
        #: ways that meet the policy in one order of chains of the same priority, and not in another
        self._tied: t.Dict[t.Any, t.List[t.Tuple[Way, Answer]]] = {}
        #: a question for each promise and link of what is masqueraded
        self._masqueraded: t.Dict[t.Tuple[str, t.Optional[str]], Answer] = {}

    def ask(self, found: t.Iterable[Ways]) -> None:
        """Ask about every way that packets can take."""
        for one in found:
            for way, answer in self.about(one._replace(ways=tuple(filter(_is_judged, one.ways)))):
                # What chance, or a state that no packet of ours has, leads to another end is judged with that way.
                apart = (way.chance or way.unknown) and not (way.doubted or way.history)
                if not apart or self.expected.fits(way, answer):
                    self._judge(way, answer)
        self._compare_orders()
        if not self.limits.is_late():
            self.leaks.ask(self._masqueraded.values())
        elif self.policy.leaks == DROP:
            self.miss("time", ())

    def _judge(self, way: Way, answer: Answer) -> None:
        """Compare an answer about a way with the policy."""
        possible = (answer, *answer.alternatives)
        verdicts = [(one, judge(self.policy, self.addresses, one, way.is_left)) for one in possible]
        broken = [(one, verdict) for one, verdict in verdicts if verdict is not None and not verdict.agrees]
        if broken and len(broken) < len(possible):
            key = (tuple(verdict for _one, verdict in verdicts), self.model.late(way))
            self._tied.setdefault(key, []).append((way, answer))
        elif broken:
            self._findings.append(_Finding(way, *broken[0]))
        for one, verdict in verdicts:
            if verdict is not None and verdict.agrees and verdict.promise is not None and verdict.promise.kind == NODE:
                self._masqueraded.setdefault((str(verdict.promise), one.interface), one)

    def _compare_orders(self) -> None:
        """Note ways whose source address depends on an order of chains that the kernel does not report."""
        for members in self._tied.values():
            if self.limits.is_late(GRACE):
                self.miss("time", [region for way, _answer in members for region in way.regions])
            elif self._depends_on_order(*members[0]):
                self.miss("order", [region for way, _answer in members for region in way.regions])

    def _depends_on_order(self, way: Way, known: Answer) -> bool:
        """Return whether the policy does not hold in an order, and not because of a translation that has to be."""
        for possible in self._again(known.question):
            decided = [decide(self.policy, self.addresses, one, way.is_left) for one in possible]
            broken = [one for one in decided if one.verdict is not None and not one.verdict.agrees]
            if broken:
                return any(one.cause is not None for one in broken)
        return True  # chance does not show it again

    def conflicts(self) -> t.Iterator[Conflict]:
        """Return what does not agree with the policy: for each cause, and for each group of pods and services."""
        groups: t.Dict[t.Any, t.List[_Finding]] = {}
        for finding in sorted(self._findings, key=self._place):
            doubted = finding.way.doubted
            certain = not finding.way.chance and not doubted
            groups.setdefault((finding.verdict, self.model.late(finding.way), certain, doubted), []).append(finding)
            self._remembers = self._remembers or bool(finding.way.history)
        causes: t.Dict[t.Any, t.List[Region]] = {}
        for number, ((verdict, _late, certain, doubted), members) in enumerate(groups.items()):
            if number and self.limits.is_late(GRACE):  # no time to find out which rule decided
                self.miss("time", [region for finding in members for region in finding.way.regions])
                continue
            answer, _same, cause = decide(self.policy, self.addresses, self._explained(members[0]))
            if cause is not None and (cause.owner != NOBODY or not doubted):
                key = (verdict, certain, answer.decided_by, cause)
                causes.setdefault(key, []).extend(
                    region
                    for finding in members
                    for region in (_of_answer(finding) if doubted else finding.way.regions)
                )
        for key, affected in causes.items():
            for part in map(_sent, regions.joined(affected)):
                if part.destination:
                    yield self._conflict(part, self._services(part), *key)
        yield from self._leaks()

    def _place(self, finding: _Finding) -> t.Any:
        """Return what findings are sorted by: what chance decides has no order otherwise."""
        chance = finding.way.chance or self.model.filters_by_chance
        return (chance, (finding.way.start, finding.way.met, finding.verdict.seen) if chance else ())

    def _leaks(self) -> t.Iterator[Conflict]:
        """Return what leaves without a connection although the policy drops it."""
        groups: t.Dict[t.Any, t.Dict[str, t.List[Leak]]] = {}
        for leak in self.leaks.broken:
            kinds = groups.setdefault((leak.verdict, leak.certain, leak.rule), {})
            kinds.setdefault(leak.answer.question.protocol, []).append(leak)
        for (verdict, certain, rule), kinds in groups.items():
            alike: t.Dict[t.Tuple[Region, ...], t.List[str]] = {}
            for kind, leaks in kinds.items():
                # The name of a kind does not include the ports that it was sent to.
                plain = (region._replace(service=(), source_port=()) for leak in leaks for region in leak.regions)
                alike.setdefault(tuple(regions.joined(plain)), []).append(kind)
            for parts, names in alike.items():
                services = tuple(_WITHOUT_CONNECTION.get(name) or _INVALID % name for name in names)
                for part in parts:
                    yield self._conflict(part, services, verdict, certain, rule, passed(rule))

    def _conflict(
        self,
        part: Region,
        services: t.Sequence[str],
        verdict: Verdict,
        certain: bool,
        rule: t.Optional[MetRule],
        cause: Blame,
    ) -> Conflict:
        return Conflict(
            ranges=self._ranges([part]),
            policy=str(verdict.promise),
            seen=verdict.seen,
            decided_by=rule,
            owner=cause.owner,
            severity=ERROR if certain else WARNING,
            remedy=cause.remedy,
            services=tuple(services),
            sources=self._sources([part]),
        )

    def _explained(self, finding: _Finding) -> Answer:
        """Return an answer once more, with the rules that decided."""
        way, wanted = finding.way, finding.answer
        again = (one for possible in self._again(self.steered(way, wanted.question)) for one in possible)
        return next((one for one in again if self._is_alike(way, one, wanted)), wanted)

    def _is_alike(self, way: Way, one: Answer, wanted: Answer) -> bool:
        """Return whether two answers are of one way: chance may have given them other endpoints of a Service."""
        if one.outside == wanted.outside:
            return True
        seen = [(answer.outcome, answer.source, answer.interface) for answer in (one, wanted)]
        return way.chance and seen[0] == seen[1] and self.expected.fits(way, one)

    def _again(self, question: Question) -> t.Iterator[t.Tuple[Answer, ...]]:
        """Return what is answered to a question, again and again: chance may show seldom what is wanted."""
        for attempt in range(TRIES):
            if self._remembers:
                self.twin.forget()
            for answer in self.twin.ask([question] * (AT_ONCE if attempt else 1), explain=True):
                yield (answer, *answer.alternatives)

    def _ranges(self, affected: t.Iterable[Region]) -> t.Tuple[str, ...]:
        distinct = {id(region.destination): region.destination for region in affected}
        union = intervals.of(span for destination in distinct.values() for span in destination)
        found = intervals.networks(union, self.model.family)
        # Addresses to which nothing is sent on may be in it if it is shorter then.
        wide = intervals.networks(intervals.of((*union, *self.model.nowhere)), self.model.family)
        wide = [network for network in wide if intervals.intersection((intervals.of_network(network),), union)]
        return tuple(map(str, wide if len(wide) < len(found) else found))

    def _services(self, part: Region) -> t.Tuple[str, ...]:
        """Return the protocols and ports that are affected; empty: all."""
        suffix = ""
        if part.source_port != ALL_PORTS:
            suffix = " from port %s" % ",".join(str(PortRange(*ports)) for ports in part.source_port)
        elif part.service in (self.model.services, self.model.sent):
            return ()
        return tuple(one + suffix for one in listed_services(part.service, self.model.family))

    def _sources(self, affected: t.Sequence[Region]) -> t.Tuple[str, ...]:
        """Return the pods that are affected; empty: all. An address of the node is no pod's."""
        everything = intervals.of(span for sender in self.model.senders for span in sender.addresses)
        union = intervals.of(span for region in affected for span in region.source)
        missing = intervals.difference(everything, union)
        if not intervals.difference(missing, self.addresses.spans(self.model.family)):
            return ()
        return tuple(map(str, intervals.networks(union, self.model.family)))

    def untested(self) -> t.Iterator[Untested]:
        """Return why not all packets are tested."""
        if not self.model.senders and (self.model.family == IPV4 or self.addresses.has_global_ipv6):
            yield Untested("no_pods", _NO_PODS % self.model.family.version)
        for code, text, affected in self.missed():
            yield Untested(code, text, self._ranges(affected))


_WITHOUT_CONNECTION = {
    "tcp": "tcp without a connection",
    "icmp": "icmp errors of no connection",
    "udp": "udp with a wrong checksum",
    "sctp": "sctp with a wrong checksum",
}
_INVALID = "protocol %s that conntrack calls invalid"
_NO_PODS = (
    "IPv%d: no route of the node shows where its pods are: list their networks (--pod-cidrs, pod_cidrs), or verify "
    "again when a pod runs"
)
