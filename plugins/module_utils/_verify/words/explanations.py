# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node really does with packets, beside its policy: data for modules and for the command line."""

from __future__ import annotations

import ipaddress
import typing as t

from ..._engine import range_words, rule_owners
from ..._system import intervals, pod_names
from ..._system.families import FAMILIES
from ..._twin.values import MetRule
from ..questions.explanation import Explained
from ..questions.judge import NOBODY, Decided, owner
from ..questions.verification import ERROR, Conflict
from ..ways.packet_policy import Policy

Data = t.Dict[str, t.Any]

#: As an explanation and a conflict name what the other side sees.
WHOSE = {
    "pod": "the pod's own address",
    "node": "the node's address",
    "own": "the address that a program of the node uses",
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


def explanation(policy: Policy, explained: Explained) -> Data:
    """Return what becomes of one packet, and why; as ``explanations`` of the module ip_masq_info."""
    found = [_answer(policy, one) for one in explained.decided]
    first, *others = found
    # Some of the packets agree, or that is not known.
    uncertain = len({one["agrees"] for one in found} - {None}) > 1 or explained.unknown
    return dict(
        first,
        agrees=None if uncertain else first["agrees"],
        remedy=next((one["remedy"] for one in found if one["remedy"]), None),
        alternatives=[{key: one[key] for key in _OF_ALTERNATIVES} for one in others],
        depends_on=list(explained.depends),
        not_understood=list(explained.unknown),
    )


#: How an answer that is also possible is described.
_OF_ALTERNATIVES = ("outcome", "seen", "seen_address", "interface", "agrees", "decided_by", "dropped_by")


def _answer(policy: Policy, decided: Decided) -> Data:
    answer, verdict, cause = decided
    one = answer.question
    if verdict is not None:
        promise = verdict.promise
    else:  # it did not leave
        promise = policy.promise(one.source, one.destination, one.protocol, one.port) if one.source else None
    return {
        "destination": one.destination,
        "source": one.source,
        "protocol": one.protocol,
        "port": one.port,
        "outcome": answer.outcome,
        "policy": None if promise is None else str(promise),
        "seen": verdict and verdict.seen,
        "seen_address": verdict and answer.source,
        "interface": verdict and answer.interface,
        "agrees": None if verdict is None or promise is None else cause is None,
        "decided_by": _rule(answer.decided_by),
        "dropped_by": answer.where or None,
        "remedy": cause and cause.remedy,
    }


def _rule(rule: t.Optional[MetRule]) -> t.Optional[Data]:
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


def causes(conflicts: t.Sequence[Data], networks: t.Sequence[t.Any] = ()) -> t.List[t.Tuple[Data, str]]:
    """Return one conflict, as of ``conflict``, of each cause, and what is seen of the ranges of all of them.

    :param networks: of the policy.
    """
    grouped: t.Dict[t.Any, t.List[Data]] = {}
    for one in conflicts:
        rule = one["decided_by"] and tuple(one["decided_by"].values())
        key = (one["policy"], one["seen"], rule, one["severity"], tuple(one["services"]), tuple(one["sources"]))
        grouped.setdefault(key, []).append(one)
    return [(group[0], _cause(group, networks)) for group in grouped.values()]


def only(one: Data, networks: t.Sequence[t.Any] = ()) -> t.List[str]:
    """Return for people which packets alone a conflict concerns."""
    sources, names = one["sources"], one.get("pods", {})
    found = ["only: " + ", ".join(one["services"])] if one["services"] else []
    if sources:
        listed = ", ".join(pod_names.beside(sources, names)) if names and len(sources) <= range_words.SHOWN else ""
        found.append("only from: " + (listed or in_words(sources, networks, names)))
    return found


def undone(conflicts: t.Sequence[Data], networks: t.Sequence[t.Any] = ()) -> t.List[str]:
    """Return a line for each cause of conflicts, with the remedy."""
    found = causes(conflicts, networks)
    return ["; ".join([text, *only(one, networks), "remedy: " + one["remedy"]]) for one, text in found]


def in_words(
    ranges: t.Sequence[str], networks: t.Sequence[t.Any] = (), names: t.Optional[t.Mapping[str, str]] = None
) -> str:
    """Return addresses for people, in these networks or in as few as that takes; of many the first.

    :param names: of pods, by range.
    """
    found = []
    for family in FAMILIES:
        given, written = (
            [intervals.of_network(one) for one in map(ipaddress.ip_network, some) if one.version == family.version]
            for some in (ranges, networks)
        )
        if given:
            tree = range_words.Written(written, family) if written else None
            found.append(range_words.in_words(intervals.of(given), family, tree, names or {}))
    return ", ".join(found)


def _cause(conflicts: t.Sequence[Data], networks: t.Sequence[t.Any]) -> str:
    one = conflicts[0]
    rule = "no rule" if one["owner"] == NOBODY else "rule of %s" % one["owner"]
    if one["owner"] == rule_owners.UNKNOWN.name:
        rule = "rule of an unknown program: " + one["decided_by"]["rule"]
    ranges = in_words([each["range"] for each in conflicts], networks)
    return "%s %s%s %s, not %s (%s)" % (
        ranges,
        "" if one["severity"] == ERROR else "sometimes ",
        "see" if ", " in ranges.partition(" except ")[0] else "sees",
        WHOSE.get(one["seen"], one["seen"]),
        WHOSE.get(one["policy"], one["policy"]),
        rule,
    )
