# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy for packets as they leave the node, in the form of rules' conditions."""

from __future__ import annotations

import ipaddress
import typing as t

from ..._engine.rule_comments import SKIPPED
from ..._engine.ruleset import IGNORE, Decision, Ruleset, service_number
from ..._policy.values import EXEMPT, SKIP, AddressRange, Network
from ..._rules.rules import MARK, Match, Test
from ..._system import intervals
from ..._system.families import Family, of_address
from ..._twin.values import MetRule
from .ways import Declared

#: What a destination sees: the address of the pod, or one of the node.
POD = "pod"
NODE = "node"
#: of a packet that the node itself sends: the address of the node that it has
OWN = "own"


class Promise(t.NamedTuple):
    """The source address of packets that leave: POD or NODE; ``address`` is the fixed one of the node, if any."""

    kind: str
    address: t.Optional[AddressRange] = None

    def __str__(self) -> str:
        return self.kind if self.address is None else str(self.address)


class Policy(t.NamedTuple):
    """The decisions of a policy, by family; one that is not managed is absent. The first entry that matches counts, and
    has a ``Promise``; None: these packets are out of its scope.

    ``leaves`` returns for a rule that let a packet pass whether the policy leaves that packet to other programs.
    ``pods`` are networks in which all pods of the node lie; empty if that is not known.
    ``guests`` are the addresses of guests of other programs, by family, if the policy is about them too.
    ``leaks`` is what is done with packets that nat does not see: IGNORE, COUNT, DROP; ``hidden`` are the addresses that
    they must not show, by family; empty with IGNORE.
    """

    entries: t.Mapping[Family, t.Tuple[Declared, ...]]
    leaves: t.Callable[[MetRule], bool] = lambda _rule: False
    pods: t.Tuple[t.Any, ...] = ()
    leaks: str = IGNORE
    hidden: t.Mapping[Family, intervals.Spans] = {}
    guests: t.Mapping[Family, intervals.Spans] = {}

    @property
    def is_about_all(self) -> bool:
        """Whether it decides about packets of all sources."""
        declared = (entry for entries in self.entries.values() for entry in entries)
        return any(entry.value is not None and entry.match.source is None for entry in declared)

    def named(self, family: Family) -> intervals.Spans:
        """Return the sources that the policy names: whoever has these addresses counts as a pod."""
        sources = (entry.match.source or () for entry in self.entries.get(family, ()) if entry.value is not None)
        return intervals.of(span for one in sources for span in one)

    def promise(
        self, source: str, destination: str, protocol: str, port: int, interface: t.Optional[str] = None
    ) -> t.Optional[Promise]:
        """Return the policy's decision for a packet of a pod as it leaves, if it has no mark.

        :param interface: over which it leaves; None: the one that the policy is about.
        """
        family = of_address(destination)
        service = service_number(protocol, port, family)
        numbers = int(ipaddress.ip_address(source)), int(ipaddress.ip_address(destination))
        for match, promise, *_accepted in self.entries.get(family, ()):
            if (
                not match.tests
                and _contains(match.source, numbers[0])
                and _contains(match.destination, numbers[1])
                and _contains(match.service, service)
                and _leaves_over(match, promise, interface)
            ):
                return t.cast(t.Optional[Promise], promise)
        return None


def _contains(allowed: t.Optional[intervals.Spans], number: int) -> bool:
    return allowed is None or intervals.contains(allowed, number)


def _leaves_over(match: Match, promise: t.Optional[Promise], interface: t.Optional[str]) -> bool:
    if interface is None:
        return not match.outgoing or promise is not None
    return all(names.match(interface) for names in match.outgoing)


def policy_of(rulesets: t.Mapping[str, Ruleset], pods: t.Sequence[Network] = ()) -> Policy:
    """Return the decisions of rulesets for packets of pods.

    :param rulesets: by family; a family without a ruleset is absent from the policy.
    :param pods: networks in which all pods of the node lie; empty if that is not known.
    """
    managed = {Family(family): ruleset for family, ruleset in rulesets.items()}
    watched = {family: ruleset for family, ruleset in managed.items() if ruleset.leaks != IGNORE}
    return Policy(
        {family: tuple(_entries(ruleset)) for family, ruleset in managed.items()},
        _leaves,
        tuple(pods),
        next((ruleset.leaks for ruleset in watched.values()), IGNORE),
        {family: intervals.of_networks(ruleset.hidden) for family, ruleset in watched.items()},
    )


def with_guests(policy: Policy, guests: t.Mapping[Family, intervals.Spans]) -> Policy:
    """Return the policy for guests of other programs too: it masquerades them, and leaves what it exempts to these.

    Those whose networks it names count as pods.
    """
    unnamed = {family: intervals.difference(spans, policy.named(family)) for family, spans in guests.items()}
    entries = {
        family: tuple(one for entry in declared for one in (*_left(entry, unnamed.get(family, ())), entry))
        for family, declared in policy.entries.items()
    }
    return policy._replace(entries=entries, guests=unnamed)


def _left(entry: Declared, guests: intervals.Spans) -> t.Iterator[Declared]:
    """Return what an entry that exempts leaves to other programs."""
    sources = guests if entry.match.source is None else intervals.intersection(guests, entry.match.source)
    if sources and entry.value == Promise(POD):
        yield Declared(entry.match._replace(source=sources), None, True, True)


def _entries(ruleset: Ruleset) -> t.Iterator[Declared]:
    for mark in (guard.mark for guard in ruleset.guards if guard.mark):
        yield Declared(Match(tests=(Test(MARK, mark.mask, ((mark.value, mark.value),)),)), None, True, True)
    for decision in ruleset.expanded:
        promise = _promise(ruleset, decision)
        fixed = promise and promise.address
        yield Declared(
            decision.match.spans,
            promise,
            promise is None or promise.kind == POD,
            promise in (None, Promise(NODE)),
            ((int(fixed.first), int(fixed.last)),) if fixed else (),
        )


def _promise(ruleset: Ruleset, decision: Decision) -> t.Optional[Promise]:
    if decision.action == SKIP:
        return None
    if decision.action == EXEMPT:
        return Promise(POD)
    return Promise(NODE, decision.address) if ruleset.ways(decision) else None


def _leaves(rule: MetRule) -> bool:
    """Return whether a rule is one of ours that leaves packets to other programs."""
    return SKIPPED in rule.text
