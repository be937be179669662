# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node's masquerading, and what is wrong with it. Reads, never writes."""

from __future__ import annotations

import ipaddress
import typing as t

from .._engine import backends, restraint
from .._engine.backend import Repair
from .._engine.detect import Node
from .._engine.reconcile import Result, reconcile
from .._engine.ruleset import Ruleset, exempt_in_the_end, from_config
from .._errors import ConfigError, NodeError
from .._policy.policy import Config
from .._system.ip_families import FAMILIES, IPV4, IPV6
from .._twin import ipvs, node_state, twin
from .._twin.values import PROTOCOLS, NotAvailable, Question, Unseen
from . import explanations, health, questions, verification
from .health import ERROR, INFO, WARNING, Health

Data = t.Dict[str, t.Any]

#: Where the policy comes from.
FROM_OPTIONS, FROM_AGENT, FROM_RULES, NOWHERE = "options", "agent", "active rules", "none"

_SYNC = "ip-masq-agent sync, or run the module ip_masq"


class ComparedPolicy(t.NamedTuple):
    """The policy that a node is compared with, and its origin.

    With FROM_RULES the configuration only serves to find the active chain: its ranges are not compared.
    """

    origin: str
    config: Config
    #: why the files on the node are not used
    problem: t.Optional[str] = None
    notes: t.Tuple[str, ...] = ()
    #: the backend that the agent on the node used, where it remembers
    used_before: t.Optional[str] = None
    #: how the last sync failed, where it did
    failure: t.Optional[str] = None
    #: repairs that the agent does not make any more
    withheld: t.FrozenSet[Repair] = frozenset()


class Request(t.NamedTuple):
    """What is asked for beside the state."""

    destinations: t.Tuple[str, ...] = ()
    source: t.Optional[str] = None
    protocol: str = "tcp"
    port: int = 80
    verify: bool = False
    #: of the questions of a verification, for each version of IP; 0: no limit
    max_questions: int = verification.LIMIT


def request(
    destinations: t.Sequence[t.Any],
    source: t.Optional[str] = None,
    protocol: str = "tcp",
    port: int = 80,
    verify: bool = False,
    max_questions: int = verification.LIMIT,
) -> Request:
    """Check what is asked for.

    :param verify: whether to verify the node.
    :param max_questions: of the verification.
    :raises ConfigError: not an address, two IP versions in one question, a port outside of 1-65535, or a negative
        number of questions.
    """
    sender = None if source is None else _address("source", source)
    receivers = [_address("destinations", one) for one in destinations]
    for receiver in receivers:
        if sender is not None and sender.version != receiver.version:
            raise ConfigError(
                "destinations: %s is not of the IP version of the source %s: ask about it in a run of its own"
                % (receiver, sender)
            )
    if protocol not in PROTOCOLS:
        raise ConfigError("protocol: %s is unknown: use %s" % (protocol, ", ".join(sorted(PROTOCOLS))))
    if not 1 <= port <= 65535:
        raise ConfigError("port: %d is outside 1-65535" % port)
    if max_questions < 0:
        raise ConfigError("max_questions: %d is negative: give how many may be asked, or 0 for all" % max_questions)
    source = None if sender is None else str(sender)
    return Request(tuple(map(str, receivers)), source, protocol, port, verify, max_questions)


def _address(option: str, value: t.Any) -> t.Any:
    try:
        return ipaddress.ip_address(str(value))
    except ValueError:
        raise ConfigError("%s: %r is not an IP address: give one without a prefix length" % (option, value)) from None


def inspect(
    node: Node, policy: ComparedPolicy, wanted: Request, progress: verification.Progress = verification.no_progress
) -> Data:
    """All that is known about a node; as RETURN of the module ip_masq_info.

    :param progress: told how far a verification is.
    :raises NodeError: the node cannot be read.
    """
    # Open connections are not looked at: what a change would do to them is not asked.
    config = policy.config._replace(flush_conntrack="none")
    result = reconcile(node, config, check=True, used_before=policy.used_before, withheld=policy.withheld)
    rulesets = _rulesets(node, policy, result)
    if policy.origin == FROM_RULES and not rulesets:
        policy = policy._replace(origin=NOWHERE)
    declared = policy.origin in (FROM_OPTIONS, FROM_AGENT)
    findings = list(_health(node, policy, result))
    found: Data = {
        "policy": {
            "origin": policy.origin,
            "exempt": {
                family: [str(network) for network in exempt_in_the_end(one)] for family, one in rulesets.items()
            },
        },
        "backend": {"name": result.backend, "version": result.version},
        "in_sync": (not result.changed and not result.errors) if declared else None,
        "families": _families(result),
        "explanations": [],
        "conflicts": [],
        "questions": 0,
        "questions_left_out": 0,
        "limits": [],
        "verified": None,
        "summary": "",
    }
    if wanted.destinations or wanted.verify:
        findings += _ask(node, policy, rulesets, wanted, progress, found)
    found["health"] = [one._asdict() for one in findings]
    if wanted.verify:
        found["verified"], found["summary"] = _verdict(policy, findings, found)
    return found


def _verdict(policy: ComparedPolicy, findings: t.Sequence[Health], found: Data) -> t.Tuple[t.Optional[bool], str]:
    """Whether traffic leaves as declared, none where that is not known; and the same in one line."""
    untested = [one.text for one in findings if one.code == "no_copy"]
    if untested:
        return None, "not verified: %s" % untested[0]
    if policy.origin == NOWHERE:
        return None, "not verified: no policy is declared"
    left_out = found["questions_left_out"]
    asked = "%d questions" % found["questions"]
    if left_out:
        asked = "%d of %d questions" % (found["questions"], found["questions"] + left_out)
    causes = explanations.causes(found["conflicts"])
    if not causes:
        return True, "%s, all as declared" % asked
    more = " (and %d more)" % (len(causes) - 1) if causes[1:] else ""
    return False, "%s, not all as declared: %s%s" % (asked, causes[0][1], more)


def _rulesets(node: Node, policy: ComparedPolicy, result: Result) -> t.Dict[str, Ruleset]:
    """What is declared for each family."""
    if policy.origin == FROM_RULES:
        found = {change.family: change.plan.found.ruleset for change in result.managed}
        return {family: ruleset for family, ruleset in found.items() if ruleset is not None}
    families = FAMILIES if policy.config.enable_ipv6 else (IPV4,)
    kind = next(kind for kind in backends.BACKENDS if kind.name == result.backend)
    wanted = {}
    for family in families:
        tool = kind.tool(node, family)
        random_fully = tool is not None and tool.version >= kind.random_fully_since
        wanted[family] = from_config(policy.config, family, random_fully)
    return wanted


def _families(result: Result) -> t.Dict[str, Data]:
    counted = result.counters(planned=True)
    return {
        change.family: {
            "rules": list(change.plan.found.rules),
            "jump": change.plan.found.jump,
            "counters": counted[change.family]._asdict() if change.family in counted else None,
        }
        for change in result.managed
        if change.plan.found.rules
    }


def _health(node: Node, policy: ComparedPolicy, result: Result) -> t.Iterator[Health]:
    config = policy.config
    yield from health.boot_flushers(node.run)
    yield from health.reference_agents()
    for error in result.errors:
        yield Health("unreadable", ERROR, error, "")
    if policy.problem:
        yield Health(
            "invalid_configuration",
            ERROR,
            "%s; the last valid configuration stays in force" % policy.problem,
            "correct the file, then ip-masq-agent sync",
        )
    if policy.origin == NOWHERE:
        yield Health("not_configured", WARNING, "no policy is given, and " + _no_rules(config, result), "give a policy")
        return
    if policy.origin == FROM_RULES:
        return
    actions = [action for change in result.changes for action in change.plan.actions]
    if actions:
        text = "active rules differ from the configuration: %s: %s" % (actions[0].action, actions[0].rule)
        yield Health("out_of_sync", ERROR, text + (" and %d more" % (len(actions) - 1) if actions[1:] else ""), _SYNC)
    for note in (*policy.notes, *result.notes, *restraint.notes(result)):
        yield Health("note", INFO, note, "")
    if policy.failure:
        yield Health("agent_failing", ERROR, "the last sync failed: %s" % policy.failure, "")
    yield from health.range_health(config.non_masquerade_cidrs, config.masquerade_cidrs)
    if config.exemption == "enforce" and ipvs.count():
        yield Health(
            "enforce_with_ipvs",
            WARNING,
            "exemption is enforce and kube-proxy uses IPVS: a pod that reaches itself through a Service gets no answer",
            "set exemption to accept or return",
        )
    for remark in result.remarks:
        yield Health("foreign_nat_rule", WARNING, remark, "run with verify: true to see whether packets meet it")


def _no_rules(config: Config, result: Result) -> str:
    """Why the active rules give no policy."""
    if result.errors:
        return "the active rules cannot be read"
    place = "in %s with masq_chain %s" % (result.backend, config.masq_chain)
    if any(change.plan.found.rules for change in result.managed):
        return "the active rules %s are not of this agent's form" % place
    return "there are no active rules %s" % place


def _ask(
    node: Node,
    policy: ComparedPolicy,
    rulesets: t.Mapping[str, Ruleset],
    wanted: Request,
    progress: verification.Progress,
    found: Data,
) -> t.Iterator[Health]:
    """Put the questions to a copy of the node, and write the answers to ``found``."""
    declared = explanations.declaration_of(rulesets)
    try:
        copy = twin.build(node_state.read(node.run), node.run)
    except NodeError as exc:
        copy = NotAvailable(str(exc))
    if isinstance(copy, NotAvailable):
        yield Health(
            "no_copy",
            WARNING,
            "packets were not tested: %s" % copy.reason,
            "run as root where network namespaces can be made",
        )
        found["explanations"] = [
            explanations.declared_only(declared, Question(one, wanted.source, None, wanted.protocol, wanted.port))
            for one in wanted.destinations
        ]
        return
    with copy:
        asked = [
            explanations.question(copy.state, one, wanted.source, wanted.protocol, wanted.port)
            for one in wanted.destinations
        ]
        found["explanations"] = explanations.explain(copy, declared, asked)
        unseen: t.Sequence[Unseen] = copy.unseen
        if wanted.verify:
            report = verification.verify(copy, declared, wanted.max_questions, progress)
            unseen = report.unseen
            found["questions"], found["questions_left_out"] = report.questions, report.left_out
            found["conflicts"] = [data for one in report.conflicts for data in explanations.conflict(one)]
            yield from _report_health(report)
    found["limits"] = [one._asdict() for one in unseen]
    if IPV6 not in rulesets and policy.origin != NOWHERE and questions.example_pod(copy.state, 6):
        yield Health(
            "ipv6_not_managed",
            WARNING,
            "the node has IPv6 pods, and IPv6 is not managed: they leave with their own addresses",
            "set enable_ipv6 to true (enableIPv6 in the configuration)",
        )


def _report_health(report: verification.Report) -> t.Iterator[Health]:
    for one in report.conflicts:
        yield Health(
            "conflict",
            ERROR if one.severity == verification.ERROR else WARNING,
            "%s: declared to show the address of the %s, but the other side sees %s (rule of: %s)"
            % (", ".join(one.ranges[:3]) + (" ..." if one.ranges[3:] else ""), one.declared, one.seen, one.owner),
            one.remedy,
        )
    if report.left_out:
        yield Health(
            "incomplete",
            WARNING,
            "%d questions beyond the limit were not asked" % report.left_out,
            "ip-masq-agent verify --max-questions 0 asks all (max_questions of the module ip_masq_info)",
        )
