# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node's masquerading, and what is wrong with it. Reads, never writes."""

from __future__ import annotations

import ipaddress
import time
import typing as t

from .._engine import backends
from .._engine.fixed_addresses import without_missing
from .._engine.reconcile import Result, reconcile
from .._engine.ruleset import COUNT, DROP, IGNORE, Ruleset, exempt_in_the_end, from_config
from .._errors import ConfigError, NodeError
from .._policy.policy import Config
from .._policy.values import Network, parse_cidr
from .._system.families import FAMILIES, IPV4, IPV6
from .._system.node import Node
from .._twin import ipvs, node_state, twin
from .._twin.values import QUESTION_PROTOCOLS, NotAvailable
from . import explanations, health, packet_policy, proposed, senders, verification
from .fingerprint import fingerprint
from .health import ERROR, INFO, WARNING, Health

Data = t.Dict[str, t.Any]

#: Where the policy comes from.
FROM_OPTIONS, FROM_AGENT, FROM_RULES, NOWHERE = "options", "agent", "active rules", "none"

#: The code of the finding that packets without a connection leave with an address that the policy hides.
LEAKS = "leaks"

#: Seconds for the copy of a node, at most, and for each part of a verification, at least.
_COPY_SECONDS, _LEAST = 60.0, 5.0

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
    #: whether packets meet this policy in place of the active rules
    proposed: bool = False


class Earlier(t.NamedTuple):
    """A verification that tested everything and found all traffic to match the policy; ``time`` since the epoch.

    ``leaked``: whether packets without a connection left with an address that the policy hides.
    """

    fingerprint: str
    questions: int
    time: float
    leaked: bool = False


class Storage(t.NamedTuple):
    """For a caller that stores results: what identifies its program, and the result to use again if nothing changed."""

    program: str
    earlier: t.Optional[Earlier] = None


class Request(t.NamedTuple):
    """What is requested beside the state."""

    destinations: t.Tuple[str, ...] = ()
    source: t.Optional[str] = None
    protocol: str = "tcp"
    port: int = 80
    verify: bool = False
    #: of the questions of a verification, for each IP version; 0: no limit
    max_questions: int = verification.QUESTIONS
    #: of a verification, in seconds; 0: no limit
    max_seconds: int = verification.SECONDS
    #: networks in which all pods of the node lie; empty: by the routes of the node
    pod_cidrs: t.Tuple[Network, ...] = ()


def request(
    destinations: t.Sequence[t.Any],
    source: t.Optional[str] = None,
    protocol: str = "tcp",
    port: int = 80,
    verify: bool = False,
    max_questions: int = verification.QUESTIONS,
    max_seconds: int = verification.SECONDS,
    pod_cidrs: t.Sequence[str] = (),
) -> Request:
    """Check the request.

    :param verify: whether to verify the node.
    :param max_questions: of the verification.
    :param max_seconds: of the verification.
    :param pod_cidrs: networks in which all pods of the node lie.
    :raises ConfigError: not an address or network, two IP versions in one question, a port outside of 1-65535, or a
        negative limit.
    """
    sender = None if source is None else _address("source", source)
    receivers = [_address("destinations", one) for one in destinations]
    for receiver in receivers:
        if sender is not None and sender.version != receiver.version:
            raise ConfigError(
                "destinations: %s is not of the IP version of the source %s: test it in a run of its own"
                % (receiver, sender)
            )
    if protocol not in QUESTION_PROTOCOLS:
        raise ConfigError("protocol: %s is unknown: use %s" % (protocol, ", ".join(sorted(QUESTION_PROTOCOLS))))
    if not 1 <= port <= 65535:
        raise ConfigError("port: %d is outside 1-65535" % port)
    for name, value in (("max_questions", max_questions), ("max_seconds", max_seconds)):
        if value < 0:
            raise ConfigError("%s: %d is negative: give a limit, or 0 for none" % (name, value))
    networks = tuple(map(parse_cidr, pod_cidrs))
    source = None if sender is None else str(sender)
    addresses = tuple(map(str, receivers))
    return Request(addresses, source, protocol, port, verify, max_questions, max_seconds, networks)


def _address(option: str, value: t.Any) -> t.Any:
    try:
        return ipaddress.ip_address(str(value))
    except ValueError:
        raise ConfigError("%s: %r is not an IP address: give one without a prefix length" % (option, value)) from None


def inspect(
    node: Node,
    policy: ComparedPolicy,
    wanted: Request,
    progress: verification.Progress = verification.no_progress,
    storage: t.Optional[Storage] = None,
) -> Data:
    """Return all that is known about a node; as RETURN of the module ip_masq_info.

    :param progress: called with how far a verification is.
    :param storage: with it, the result of a verification has a ``fingerprint``; an earlier one has ``tested_at``.
    :raises NodeError: the node cannot be read.
    """
    # Open connections are not looked at, nor what a change would do to them.
    config = policy.config._replace(flush_conntrack="none")
    result = reconcile(node, config, check=True, used_before=policy.used_before)
    rulesets = _rulesets(node, policy, result)
    if policy.origin == FROM_RULES and not rulesets:
        policy = policy._replace(origin=NOWHERE)
    given = policy.origin in (FROM_OPTIONS, FROM_AGENT)
    findings = list(_health(node, policy, result))
    active = result.found_data()
    found: Data = {
        "policy": {
            "origin": policy.origin,
            "exempt": {
                family: [str(network) for network in exempt_in_the_end(one)] for family, one in rulesets.items()
            },
        },
        "backend": {"name": result.backend, "version": result.version},
        "in_sync": (not result.changed and not result.errors) if given else None,
        "families": {change.family: active[change.family] for change in result.managed if change.plan.found.rules},
        "explanations": [],
        "conflicts": [],
        "questions": 0,
        "questions_left_out": 0,
        "untested": [],
        "limits": [],
        "verified": None,
        "summary": "",
    }
    if wanted.destinations or wanted.verify:
        findings += _ask(node, policy, rulesets, wanted, progress, storage, found)
        explanations.name_pods(found["explanations"], found["conflicts"])
    found["health"] = [one._asdict() for one in findings]
    if wanted.verify:
        found["verified"], found["summary"] = _verdict(policy, rulesets, findings, found)
    return found


def _verdict(
    policy: ComparedPolicy, rulesets: t.Mapping[str, Ruleset], findings: t.Sequence[Health], found: Data
) -> t.Tuple[t.Optional[bool], str]:
    """Return whether all traffic matches the policy, None if not all could be tested; and the same in one line."""
    problems = [one.text for one in findings if one.code == "no_copy"]
    if policy.origin == NOWHERE or not rulesets:
        problems = ["there is no policy"]
    if problems:
        return None, "not verified: %s" % problems[0]
    asked = "%d questions" % found["questions"]
    causes = explanations.causes(found["conflicts"])
    if causes:
        return False, "%s, not all match the policy: %s%s" % (asked, causes[0][1], _more(causes))
    leaks = _leaks_in_short(rulesets) if any(one.code == LEAKS for one in findings) else ""
    missed = found["untested"]
    if missed:
        tested = "%s match the policy; " % asked if found["questions"] else ""
        return None, "%snot tested: %s%s%s" % (tested, missed[0]["text"], _more(missed), leaks)
    everything = " match the policy" + leaks if leaks else ", all match the policy"
    return True, asked + everything + _since(found.get("tested_at"))


def _leaks_in_short(rulesets: t.Mapping[str, Ruleset]) -> str:
    counted = any(ruleset.leaks == COUNT for ruleset in rulesets.values())
    return "; invalid packets leave with the pod's address%s: see leaks" % (", and are counted" if counted else "")


def _since(tested_at: t.Optional[float]) -> str:
    if tested_at is None:
        return ""
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(tested_at))
    return " (tested at %s; nothing that they depend on has changed since)" % text


def _more(found: t.Sequence[t.Any]) -> str:
    return " (and %d more)" % (len(found) - 1) if found[1:] else ""


def _rulesets(node: Node, policy: ComparedPolicy, result: Result) -> t.Dict[str, Ruleset]:
    """Return the exempt ranges of each family."""
    if policy.origin == FROM_RULES:
        found = {change.family: change.plan.found.ruleset for change in result.managed}
        return {family: ruleset for family, ruleset in found.items() if ruleset is not None}
    config, _missing = without_missing(policy.config)
    families = FAMILIES if config.enable_ipv6 else (IPV4,)
    kind = next(kind for kind in backends.BACKENDS if kind.name == result.backend)
    wanted: t.Dict[str, Ruleset] = {}
    for family in families:
        tool = kind.tool(node, family)
        random_fully = tool is not None and tool.version >= kind.random_fully_since
        wanted[family] = from_config(config, family, random_fully)
    return wanted


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
            "%s; the last valid configuration stays active" % policy.problem,
            "correct the file, then ip-masq-agent sync",
        )
    if policy.origin == NOWHERE:
        yield Health("not_configured", WARNING, "no policy is given, and " + _no_rules(config, result), "give a policy")
        return
    if policy.origin == FROM_RULES:
        return
    actions = [action for change in result.changes for action in change.plan.actions]
    if actions and not policy.proposed:
        text = "active rules differ from the configuration: %s: %s" % (actions[0].action, actions[0].rule)
        yield Health("out_of_sync", ERROR, text + (" and %d more" % (len(actions) - 1) if actions[1:] else ""), _SYNC)
    for note in policy.notes + result.notes:
        yield Health("note", INFO, note, "")
    if policy.failure:
        yield Health("agent_failing", ERROR, "the last sync failed: %s" % policy.failure, "")
    yield from health.range_health(config.non_masquerade_cidrs, config.masquerade_cidrs)
    if config.protects_all_interfaces and ipvs.count():
        yield Health(
            "enforce_with_ipvs",
            WARNING,
            "exemption is enforce and kube-proxy uses IPVS: a pod that reaches itself through a Service gets no answer",
            "list the interfaces of pods in except_interfaces, or set exemption to accept or return",
        )
    for remark in result.remarks:
        yield Health("foreign_nat_rule", WARNING, remark, "run with verify: true to see whether packets meet it")


def _no_rules(config: Config, result: Result) -> str:
    """Return why the active rules give no policy."""
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
    storage: t.Optional[Storage],
    found: Data,
) -> t.Iterator[Health]:
    """Put the questions to a copy of the node, and write the answers to ``found``."""
    promised = packet_policy.policy_of(rulesets, wanted.pod_cidrs)
    mark: t.Optional[str] = None
    until = time.monotonic() + wanted.max_seconds if wanted.verify and wanted.max_seconds else None
    state: t.Optional[node_state.State] = None
    try:
        state = node_state.read(node.run)
        if policy.proposed:
            state = proposed.with_policy(state, node.run, policy.config, policy.used_before)
        earlier = storage.earlier if storage else None
        if storage and wanted.verify:
            mark = fingerprint(state, promised, storage.program)
        if earlier and earlier.fingerprint == mark and not wanted.destinations:
            found["questions"], found["tested_at"] = earlier.questions, earlier.time
            found["limits"] = [one._asdict() for one in state.unseen]
            yield from _leak_health(promised, earlier.leaked)
            yield from _ipv6_health(policy, rulesets, state)
            return
        copy = twin.build(state, node.run, _COPY_SECONDS if until is None else min(_left(until), _COPY_SECONDS))
    except NodeError as exc:
        copy = NotAvailable(str(exc))
    given = (wanted.source, wanted.protocol, wanted.port)
    asked = [explanations.question(state, one, *given) for one in wanted.destinations]
    if isinstance(copy, NotAvailable):
        yield Health(
            "no_copy",
            WARNING,
            "packets were not tested: %s" % copy.reason,
            "run as root where network namespaces can be made",
        )
        found["explanations"] = [explanations.policy_only(promised, one) for one in asked]
        return
    with copy:
        found["explanations"] = explanations.explain(copy, promised, asked)
        if wanted.verify:
            limits = verification.Limits(wanted.max_questions, 0 if until is None else _left(until))
            report = verification.verify(copy, promised, limits, progress)
            found["questions"], found["questions_left_out"] = report.questions, report.left_out
            found["conflicts"] = [data for one in report.conflicts for data in explanations.conflict(one)]
            found["untested"] = [dict(one._asdict(), ranges=list(one.ranges)) for one in report.untested]
            # What only the copy lacks is not known without one.
            found["fingerprint"] = mark if copy.unseen == copy.state.unseen else None
            yield from _report_health(report)
            yield from _leak_health(promised, bool(report.leaked))
    found["limits"] = [one._asdict() for one in copy.unseen]
    yield from _ipv6_health(policy, rulesets, copy.state)


def _left(until: float) -> float:
    """Return how many seconds are left: not so few that a small node has no chance."""
    return max(until - time.monotonic(), _LEAST)


def _ipv6_health(
    policy: ComparedPolicy, rulesets: t.Mapping[str, Ruleset], state: node_state.State
) -> t.Iterator[Health]:
    if IPV6 not in rulesets and policy.origin != NOWHERE and senders.example_pod(state, IPV6):
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
            "%s: by the policy the other side sees %s, but it sees %s (rule of: %s)"
            % (explanations.in_words(one.ranges), one.policy, one.seen, one.owner),
            one.remedy,
        )
    for missed in report.untested:
        yield Health("not_tested", WARNING, "not tested: %s" % missed.text, "")


def _leak_health(promised: packet_policy.Policy, leaked: bool) -> t.Iterator[Health]:
    if leaked:
        text, remedy = _LEAKED_WORDS[promised.leaks]
        yield Health("leaks", INFO, _LEAKED + text, remedy)


_LEAKED = (
    "packets that conntrack calls invalid, such as a late RST or an ICMP error, leave with the pod's address, because "
    "no rule of NAT sees them"
)
#: What becomes of them, and the remedy, by the option leaks.
_LEAKED_WORDS = {
    IGNORE: ("", "set leaks to count or drop"),
    COUNT: ("; they are counted", "set leaks to drop"),
    DROP: (", if source_cidrs does not contain it", "add the networks of these pods to source_cidrs"),
}
