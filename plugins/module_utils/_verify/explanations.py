# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node really does with packets, beside its policy: data for modules and for the command line."""

from __future__ import annotations

import ipaddress
import typing as t

from .._engine import actors
from .._policy import range_words
from .._system import intervals, pod_names
from .._system.families import FAMILIES, of_address
from .._twin.node_state import State
from .._twin.twin import Twin
from .._twin.values import Answer, Question, Rule
from .judge import Addresses, blame, judge, judge_own, owner
from .packet_policy import OWN, POD, Policy
from .possibilities import Possibilities, Possible
from .senders import example_pod
from .verification import ERROR, Conflict

Data = t.Dict[str, t.Any]


def question(state: t.Optional[State], destination: str, source: t.Optional[str], protocol: str, port: int) -> Question:
    """Return the question about one destination.

    :param state: of the node; None if it cannot be read.
    :param source: an address; None: that of a pod that could be on the node, or the node itself where no route shows
        pods.
    """
    pod = None if source or not state else example_pod(state, of_address(destination))
    if pod is None:
        return Question(destination, source, protocol=protocol, port=port)
    return Question(destination, pod[0], pod[1], protocol, port)


def explain(twin: Twin, policy: Policy, questions: t.Sequence[Question]) -> t.List[Data]:
    """Return what becomes of packets, and why; as ``explanations`` of the module ip_masq_info.

    :raises NodeError: the twin does not answer.
    """
    addresses = Addresses(twin.state)
    possibilities = Possibilities(twin)
    answers = twin.ask(questions, explain=True)
    return [explanation(policy, addresses, answer, possibilities.of(answer)) for answer in answers]


def policy_only(policy: Policy, one: Question) -> Data:
    """Return what the policy says of a packet that was not sent."""
    verdict = None
    if one.source is not None:
        promise = policy.promise(one.source, one.destination, one.protocol, one.port)
        verdict = None if promise is None else str(promise)
    return {
        "destination": one.destination,
        "source": one.source,
        "protocol": one.protocol,
        "port": one.port,
        "outcome": "not tested",
        "policy": verdict,
        "seen": None,
        "seen_address": None,
        "interface": None,
        "agrees": None,
        "decided_by": None,
        "dropped_by": None,
        "remedy": None,
        "alternatives": [],
        "depends_on": [],
        "not_understood": [],
    }


def name_pods(explained: t.Iterable[Data], conflicts: t.Iterable[Data]) -> None:
    """Write the names of pods beside their addresses, where they are known.

    :param explained: gets ``pod``.
    :param conflicts: get ``pods``, by source.
    """
    pods = pod_names.read()
    for one in explained:
        if one["source"] in pods:
            one["pod"] = pods[one["source"]].name
    for one in conflicts:
        names = pod_names.of_ranges(one["sources"], pods)
        if names:
            one["pods"] = names


def explanation(policy: Policy, addresses: Addresses, answer: Answer, possible: t.Optional[Possible] = None) -> Data:
    """Return what one answer says.

    :param addresses: of the node.
    :param possible: what else is possible; None: nothing.
    """
    found = _explanation(policy, addresses, answer)
    if possible is None:
        return found
    others = [_explanation(policy, addresses, one) for one in possible.others]
    found["alternatives"] = [{key: one[key] for key in _OF_ALTERNATIVES} for one in others]
    found["depends_on"], found["not_understood"] = list(possible.depends), list(possible.unknown)
    agree = {one["agrees"] for one in (found, *others)} - {None}
    if len(agree) > 1 or possible.unknown:
        # Some of the packets agree, or that is not known.
        found["agrees"] = None
    found["remedy"] = next((one["remedy"] for one in (found, *others) if one["remedy"]), None)
    return found


#: How an answer that is also possible is described.
_OF_ALTERNATIVES = ("outcome", "seen", "seen_address", "interface", "agrees", "decided_by", "dropped_by")


def _explanation(policy: Policy, addresses: Addresses, answer: Answer) -> Data:
    found = policy_only(policy, answer.question)
    found.update(outcome=answer.outcome, decided_by=_rule(answer.decided_by), dropped_by=answer.where or None)
    own = answer.question.source is not None and answer.question.source in addresses
    verdict = judge_own(policy, addresses, answer) if own else judge(policy, addresses, answer)
    if verdict is None:  # it did not leave
        return found
    cause = None if verdict.agrees else blame(verdict, answer)
    found.update(
        policy=None if verdict.promise is None else str(verdict.promise),
        seen=verdict.seen,
        seen_address=answer.source,
        interface=answer.interface,
        agrees=None if verdict.promise is None else cause is None,
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
    """Return a conflict, once for each of its ranges; as ``conflicts`` of the module ip_masq_info."""
    found = one._asdict()
    ranges = found.pop("ranges")
    found.update(decided_by=_rule(one.decided_by), services=list(one.services), sources=list(one.sources))
    return [dict({"range": each}, **found) for each in ranges]


def causes(conflicts: t.Sequence[Data]) -> t.List[t.Tuple[Data, str]]:
    """Return one conflict, as of ``conflict``, of each cause, with a line about all: their ranges, and the remedy."""
    return [(group[0], _cause(group)) for group in _grouped(conflicts)]


def undone(conflicts: t.Sequence[Data]) -> t.List[str]:
    """Return a line for each cause of conflicts: the policy of their ranges, the rule that undoes it, the remedy."""
    return [_undone(group) for group in _grouped(conflicts)]


def _grouped(conflicts: t.Sequence[Data]) -> t.Iterable[t.List[Data]]:
    """Return conflicts by cause."""
    grouped: t.Dict[t.Any, t.List[Data]] = {}
    for one in conflicts:
        rule = one["decided_by"] and tuple(one["decided_by"].values())
        key = (one["policy"], one["seen"], rule, one["severity"], tuple(one["services"]), tuple(one["sources"]))
        grouped.setdefault(key, []).append(one)
    return grouped.values()


def in_words(ranges: t.Sequence[str]) -> str:
    """Return destinations for people, in as few networks as that takes, and the first of them if they are many."""
    networks = [ipaddress.ip_network(one) for one in ranges]
    sides = {one: intervals.of_networks(each for each in networks if each.version == one.version) for one in FAMILIES}
    return ", ".join(range_words.in_words(mine, family) for family, mine in sides.items() if mine)


def _cause(conflicts: t.Sequence[Data]) -> str:
    one = conflicts[0]
    rule = "no rule" if one["decided_by"] is None else "rule of: %s" % one["owner"]
    if one["owner"] == actors.UNKNOWN.name:
        rule += ": " + one["decided_by"]["rule"]
    return "%s: policy %s, seen %s%s (%s); remedy: %s" % (
        in_words([each["range"] for each in conflicts]),
        one["policy"],
        one["seen"],
        "" if one["severity"] == ERROR else " sometimes",
        rule,
        one["remedy"],
    )


def _undone(conflicts: t.Sequence[Data]) -> str:
    one = conflicts[0]
    packets = in_words([each["range"] for each in conflicts])
    for word, key in (("from", "sources"), ("for", "services")):
        packets += " %s %s" % (word, ", ".join(one[key])) if one[key] else ""
    without = one["decided_by"] is None or one["owner"] == "none"  # that rule only let the packets pass
    rule = "no rule" if without else "%s's rule" % one["owner"]
    if one["owner"] == actors.UNKNOWN.name:
        rule = "the rule %s" % one["decided_by"]["rule"]
    if one["policy"] in (POD, OWN) or without:
        deed = "hides it"
    else:
        deed = "lets the other side see %s" % _SEEN.get(one["seen"], one["seen"])
    sometimes = "" if one["severity"] == ERROR else "sometimes "
    return "%s: %s, but %s %s%s: %s" % (packets, one["policy"], rule, sometimes, deed, one["remedy"])


_SEEN = {POD: "the pod's address", OWN: "the sender's own address"}
