# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node really does with packets, beside what its policy declares: data for modules and for the command line."""

from __future__ import annotations

import typing as t

from .._engine import actors
from .._engine.rule_comments import SKIPPED_COMMENT
from .._engine.ruleset import Decision, Ruleset, matches_interface, service_number
from .._policy import spans
from .._policy.values import EXEMPT, MASQUERADE, SKIP
from .._system.ip_families import IPV4, IPV6
from .._twin import routing
from .._twin.node_state import State
from .._twin.twin import Twin
from .._twin.values import Answer, Question, Rule
from .questions import Boundaries, example_pod
from .verification import ERROR, NODE, POD, Addresses, Conflict, Declaration, blame, judge, owner

Data = t.Dict[str, t.Any]


def declaration_of(rulesets: t.Mapping[str, Ruleset]) -> Declaration:
    """What rulesets declare about packets of pods; a family that has none declares nothing.

    :param rulesets: by family.
    """
    decided = {family: list(map(_Decided, ruleset.leading + ruleset.decisions)) for family, ruleset in rulesets.items()}
    declared = {
        family: {EXEMPT: POD, MASQUERADE: NODE if ruleset.masquerade else None} for family, ruleset in rulesets.items()
    }

    def declares(
        source: str, destination: str, protocol: str, port: int, interface: t.Optional[str] = None
    ) -> t.Optional[str]:
        family = IPV6 if ":" in destination else IPV4
        for one in decided.get(family, ()):
            if one.matches(source, destination, interface, service_number(protocol, port, family)):
                return declared[family].get(one.action)
        return None

    matches = [decision.match for ruleset in rulesets.values() for decision in ruleset.leading + ruleset.decisions]
    return Declaration(
        declares,
        Boundaries(
            [network for match in matches for network in match.destinations],
            list(dict.fromkeys(network for match in matches for network in match.sources)),
            list(dict.fromkeys(spans.of(one.span for one in match.services) for match in matches if match.services)),
        ),
        leaves=_leaves,
    )


def _leaves(rule: Rule) -> bool:
    """Whether a rule is one of ours that leaves packets to other programs."""
    return SKIPPED_COMMENT in rule.text


class _Decided:
    """A decision, with its ranges in a form in which an address is found fast."""

    def __init__(self, decision: Decision) -> None:
        self.action = decision.action
        self._sources, self._destinations = Addresses(decision.match.sources), Addresses(decision.match.destinations)
        self._match = decision.match
        self._services = spans.of(service.span for service in decision.match.services)

    def matches(self, source: str, destination: str, interface: t.Optional[str], service: int) -> bool:
        """Whether packets are meant; an interface that is not known is the one that is meant."""
        match = self._match
        return (
            (not match.destinations or destination in self._destinations)
            and (not match.sources or source in self._sources)
            and (not match.services or spans.contains(self._services, service))
            and (
                not match.interfaces
                or (interface is None and self.action != SKIP)
                or any(matches_interface(name, interface or "") for name in match.interfaces)
            )
        )


def question(state: State, destination: str, source: t.Optional[str], protocol: str, port: int) -> Question:
    """The question about one destination.

    :param source: an address; none: that of a pod that could be on the node, or the node itself where no route shows
        pods.
    """
    pod = None if source else example_pod(state, 6 if ":" in destination else 4)
    if pod is None:
        return Question(destination, source, protocol=protocol, port=port)
    return Question(destination, pod[0], pod[1], protocol, port)


def explain(twin: Twin, declaration: Declaration, questions: t.Sequence[Question]) -> t.List[Data]:
    """What becomes of packets, and why; as C(explanations) of the module ip_masq_info.

    :raises NodeError: the twin does not answer.
    """
    mine = routing.local_addresses(twin.state.routing)
    return [explanation(declaration, mine, answer) for answer in twin.ask(questions, explain=True)]


def declared_only(declaration: Declaration, one: Question) -> Data:
    """The same where there is no twin: what is declared, and nothing about what happens."""
    verdict = None
    if one.source is not None:
        verdict = declaration.declares(one.source, one.destination, one.protocol, one.port)
    return _blank(one, verdict)


def _blank(one: Question, declared: t.Optional[str]) -> Data:
    return {
        "destination": one.destination,
        "source": one.source,
        "protocol": one.protocol,
        "port": one.port,
        "outcome": "not asked",
        "declared": declared,
        "seen": None,
        "seen_address": None,
        "interface": None,
        "agrees": None,
        "decided_by": None,
        "dropped_by": None,
        "remedy": None,
    }


def explanation(declaration: Declaration, mine: t.Container[str], answer: Answer) -> Data:
    """What one answer says.

    :param mine: the addresses of the node.
    """
    found = declared_only(declaration, answer.question)
    found.update(outcome=answer.outcome, decided_by=_rule(answer.decided_by), dropped_by=answer.where or None)
    verdict = judge(declaration, mine, answer)
    if verdict is None:  # it did not leave
        return found
    cause = None if verdict.agrees else blame(verdict, answer.decided_by)
    found.update(
        declared=verdict.declared,
        seen=verdict.seen,
        seen_address=answer.source,
        interface=answer.interface,
        agrees=None if verdict.declared is None else cause is None,
        remedy=cause and cause.remedy,
    )
    return found


def _rule(rule: t.Optional[Rule]) -> t.Optional[Data]:
    if rule is None:
        return None
    return {
        "backend": rule.backend,
        "table": rule.table,
        "chain": rule.chain,
        "rule": rule.text,
        "owner": owner(rule).name,
    }


def conflict(one: Conflict) -> t.List[Data]:
    """A conflict, once for each of its ranges; as C(conflicts) of the module ip_masq_info."""
    return [
        {
            "range": each,
            "declared": one.declared,
            "seen": one.seen,
            "decided_by": _rule(one.decided_by),
            "owner": one.owner,
            "severity": one.severity,
            "remedy": one.remedy,
            "services": list(one.services),
            "sources": list(one.sources),
        }
        for each in one.ranges
    ]


def causes(conflicts: t.Sequence[Data]) -> t.List[t.Tuple[Data, str]]:
    """One of the conflicts of each cause, and a line about all of them: their ranges, and the remedy.

    :param conflicts: as :func:`conflict` gives them.
    """
    grouped: t.Dict[t.Any, t.List[Data]] = {}
    for one in conflicts:
        rule = one["decided_by"] and tuple(one["decided_by"].values())
        key = (one["declared"], one["seen"], rule, one["severity"], tuple(one["services"]), tuple(one["sources"]))
        grouped.setdefault(key, []).append(one)
    return [(group[0], _cause(group)) for group in grouped.values()]


def _cause(conflicts: t.Sequence[Data]) -> str:
    ranges = sorted((one["range"] for one in conflicts), key=lambda one: int(one.partition("/")[2]))
    one = conflicts[0]
    rule = "no rule" if one["decided_by"] is None else "rule of: %s" % one["owner"]
    if one["owner"] == actors.UNKNOWN.name:
        rule += ": " + one["decided_by"]["rule"]
    return "%s%s: declared %s, %s seen%s (%s); remedy: %s" % (
        ranges[0],
        " and %d more range%s" % (len(ranges) - 1, "" if len(ranges) == 2 else "s") if ranges[1:] else "",
        one["declared"],
        one["seen"],
        "" if one["severity"] == ERROR else " sometimes",
        rule,
        one["remedy"],
    )
