# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of each node of a fleet, and nodes grouped by what they have in common."""

from __future__ import annotations

import re
import time
import typing as t

from ..module_utils._policy.policy import POLICY_OPTIONS
from .names import one_line
from .role_variables import PREFIX

#: Where the playbooks keep what a node answered.
ASKED = PREFIX + "_asked"

_APPLY = "run kubenode.ip_masq.apply"
_VARIABLES = {key.key: PREFIX + key.name for key in POLICY_OPTIONS}

#: Traffic left otherwise than declared when the node was last verified, because of rules of other programs. By now they
#: may be gone.
CONFLICTS = "conflicts"
#: The states in which a node is as declared.
GOOD = ("in sync", "absent")
#: Every state, worst first.
STATES = (
    "unreachable",
    "not checked",
    "not installed",
    "not removed",
    "no report",
    "broken config",
    "failing",
    "drifted",
    "policy differs from inventory",
    "to be applied",
    CONFLICTS,
    *GOOD,
)


class Finding(t.NamedTuple):
    """What is wrong with a node: one of :data:`STATES`, and the reason on one line."""

    state: str
    reason: str


class Node(t.NamedTuple):
    """What is known of one node. ``traits`` are, by the names of :data:`TRAITS`, what its agent reports."""

    host: str
    #: its state
    state: str
    #: worst first
    findings: t.Sequence[Finding] = ()
    traits: t.Mapping[str, t.Sequence[str]] = {}
    #: resyncs that repaired drift
    repaired: int = 0
    #: time of the last verification, in UTC; empty if there was none
    verified_at: str = ""
    #: whether the node was queried
    queried: bool = True

    @property
    def name(self) -> str:
        """The host's name for people."""
        return one_line(self.host)

    @property
    def why(self) -> str:
        """All reasons on one line, without the state."""
        if not self.findings:
            return ""
        first, *others = self.findings
        return "; ".join([first.reason] + ["%s: %s" % one for one in others])


class Group(t.NamedTuple):
    """Nodes that have something in common."""

    value: str
    nodes: t.Sequence[Node]

    @property
    def hosts(self) -> t.List[str]:
        """Their names, for people."""
        return [node.name for node in self.nodes]


_Report = t.Mapping[str, t.Any]


def _verification(report: _Report) -> str:
    last = report.get("last_verification")
    if not last:
        return "never"
    if last["conflicts"]:
        return CONFLICTS
    return "as declared" if last["verified"] else "not fully tested"


#: What nodes are grouped by beside their state: a node may have one value, several or none.
TRAITS: t.Mapping[str, t.Callable[[_Report], t.List[str]]] = {
    "agent": lambda report: [report["version"]],
    "backend": lambda report: ["%(name)s %(version)s" % report["backend"]],
    # Earlier builds do not report it.
    "policy": lambda report: [report["policy_hash"]] if report.get("policy_hash") else [],
    "verification": lambda report: [_verification(report)],
    "drop-in": lambda report: [one.rpartition("/")[2] for one in report["config"]["sources"] if "/config.d/" in one],
    "note": lambda report: list(report["notes"]),
}


def judge(host: str, asked: t.Optional[t.Mapping[str, t.Any]], wanted: t.Optional[str] = None) -> Node:
    """The state of a node is the first thing that is wrong with it; the findings are all of them.

    :param asked: what ip_masq_agent_info returned; none if the node was not queried.
    :param wanted: the host's C(ip_masq_agent_state).
    """
    if asked is None:
        return _off(host, Finding("not checked", "the query did not run; Ansible's output has the error"), False)
    try:
        return _judged(host, asked, wanted)
    except (AttributeError, IndexError, KeyError, OSError, OverflowError, TypeError, ValueError) as exc:
        # One node with another release, or with a damaged answer, must not hide the others.
        return _off(host, Finding("no report", "the answer is not understood: %s" % one_line(repr(exc))))


def _off(host: str, finding: Finding, queried: bool = True) -> Node:
    return Node(host, finding.state, [finding], queried=queried)


def _judged(host: str, asked: t.Mapping[str, t.Any], wanted: t.Optional[str]) -> Node:
    report = asked.get("report") or {}
    findings = [Finding(state, one_line(reason)) for state, reason in _findings(asked, report, wanted)]
    findings.sort(key=lambda one: STATES.index(one.state))
    good = "absent" if wanted == "absent" else "in sync"
    node = Node(host, findings[0].state if findings else good, findings)
    if not report:
        return node
    last = report.get("last_verification")
    return node._replace(
        traits={name: [one_line(value) for value in read(report)] for name, read in TRAITS.items()},
        repaired=int(report["drift_repaired"]),
        verified_at=_utc(last["time"]) if last else "",
    )


def _findings(asked: t.Mapping[str, t.Any], report: _Report, wanted: t.Optional[str]) -> t.Iterator[t.Tuple[str, str]]:
    """What is wrong with a node: a state and the reason."""
    if asked.get("unreachable"):
        yield "unreachable", asked.get("msg", "")
        return
    if "installed" not in asked:
        yield "not checked", asked.get("msg", "the module returned nothing")
        return
    if not asked["installed"]:
        if wanted != "absent":
            yield "not installed", _APPLY
        return
    if wanted == "absent":
        yield "not removed", "%sstate is absent; %s" % (PREFIX, _APPLY)
        return
    if asked["problems"]:
        yield "no report", "; ".join(asked["problems"])
    if report:
        yield from _of_report(report, asked["service_failure"])
    if asked.get("differs") and not report.get("config", {}).get("problem"):
        names = [_VARIABLES.get(key, key) for key in asked["differs"]]
        yield "policy differs from inventory", "%s; %s" % (", ".join(names), _APPLY)
    if asked["pending"]:
        yield "to be applied", _first(asked["pending"])
    last = report.get("last_verification")
    if last and last["conflicts"]:
        yield CONFLICTS, "verification of %s: %s" % (_utc(last["time"]), last["summary"])


def _of_report(report: _Report, service_failure: str) -> t.Iterator[t.Tuple[str, str]]:
    problem = report["config"]["problem"]
    if problem:
        yield "broken config", "%s; the last valid configuration stays in force" % problem
    if report["errors"]:
        yield "failing", _first(report["errors"])
    elif not report["in_sync"]:
        yield "drifted", "pending changes: " + _first([_action(action) for action in report["differs"]])
    # Of a broken config and of errors now, these would say the same again.
    if not problem and not report["errors"]:
        if report["failing"]:
            yield "failing", "last resync: " + _first((report["last_error"] or {}).get("lines") or ["no message"])
        elif service_failure:
            yield "failing", "ip-masq-agent.service: %s; %s" % (service_failure, _APPLY)


def _action(action: t.Mapping[str, str]) -> str:
    """One thing that a sync would do, without the comment of the rule."""
    rule = re.sub(r' -m comment --comment (?:"[^"]*"|\S+)', "", action["rule"])
    return "%s, %s: %s: %s" % (action["family"], action["backend"], action["action"], rule)


def _first(lines: t.Sequence[str]) -> str:
    """The first of several lines, and how many more there are."""
    return str(lines[0]) + (" (and %d more)" % (len(lines) - 1) if len(lines) > 1 else "")


def _utc(seconds: float) -> str:
    """A time in seconds since the epoch, for people."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def by_state(nodes: t.Iterable[Node]) -> t.List[Group]:
    """Every node in one group, worst first."""
    found: t.Dict[str, t.List[Node]] = {}
    for node in nodes:
        found.setdefault(node.state, []).append(node)
    return [Group(state, found[state]) for state in STATES if state in found]


def by_reason(nodes: t.Sequence[Node]) -> t.List[Group]:
    """Nodes of one state by all that is wrong with them, most nodes first."""
    return _most_first((node.why, node) for node in nodes)


def by_kind(nodes: t.Sequence[Node]) -> t.List[Group]:
    """The same, with reasons in one group that differ only in numbers, such as addresses and process ids."""
    found = _most_first((re.sub("[0-9]+", "0", node.why.replace(node.name, "")), node) for node in nodes)
    return [_with_example(group.nodes) for group in found]


def _with_example(nodes: t.Sequence[Node]) -> Group:
    example = nodes[0].why
    return Group(example if all(node.why == example for node in nodes) else "e.g. " + example, nodes)


def by_trait(nodes: t.Iterable[Node], trait: str) -> t.List[Group]:
    """The nodes that report one of :data:`TRAITS` by its values, most nodes first."""
    return _most_first((value, node) for node in nodes for value in dict.fromkeys(node.traits.get(trait, ())))


def _most_first(pairs: t.Iterable[t.Tuple[str, Node]]) -> t.List[Group]:
    found: t.Dict[str, t.List[Node]] = {}
    for value, node in pairs:
        found.setdefault(value, []).append(node)
    return [Group(value, some) for value, some in sorted(found.items(), key=lambda pair: -len(pair[1]))]


def as_declared(nodes: t.Iterable[Node]) -> int:
    """How many nodes are as declared."""
    return sum(1 for node in nodes if node.state in GOOD)


def off(nodes: t.Iterable[Node]) -> t.List[str]:
    """The hosts that were queried and are not as declared, as far as the node itself knows."""
    return [node.host for node in nodes if node.queried and node.state not in (CONFLICTS, *GOOD)]
