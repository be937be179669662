# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node's masquerading, and what is wrong with it. Reads, never writes."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import typing as t

from .._engine import backend_choice
from .._engine.fixed_addresses import without_missing
from .._engine.reconcile import Result, reconcile, wanted_rules
from .._engine.ruleset import COUNT, DROP, IGNORE, Ruleset, exempt_in_the_end
from .._errors import ConfigError, NodeError
from .._policy.policy import Config
from .._policy.values import Network, parse_cidr
from .._system import defaults_and_limits, ipvs_services, nfnetlink
from .._system.backend_names import IPTABLES_LEGACY
from .._system.families import FAMILIES, IPV4
from .._system.node import Node
from .._system.printable import first_of
from .._twin import node_state, twin
from .._twin.values import NOT_TESTED, QUESTION_PROTOCOLS, Answer
from .questions import asking, explanation, judge, rules_in_copy, verification
from .questions.fingerprint import fingerprint
from .questions.limits import begin
from .routing import senders
from .ways import alike_endpoints, packet_policy
from .words import concerned, explanations, health, verdict
from .words.health import ERROR, INFO, LEAKS, WARNING, Health

Data = t.Dict[str, t.Any]

#: Where the policy comes from.
FROM_OPTIONS, FROM_AGENT, FROM_RULES, NOWHERE = "options", "agent", "active rules", "none"

#: Seconds for the copy of a node, at most.
_COPY_SECONDS = 60.0

#: How often a policy, its rules and the node are read until none of them has changed meanwhile; and how often packets
#: are sent until policy and rules are still those that were read, if some do not match.
_READINGS = 3
_CHANGING = "the policy or its rules changed each time meanwhile: verify again when no sync runs"

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
    protocol: str = defaults_and_limits.PROTOCOL
    port: int = defaults_and_limits.PORT
    verify: bool = False
    #: of the questions of a verification, for each IP version; 0: no limit
    max_questions: int = defaults_and_limits.MAX_QUESTIONS
    #: of a verification, in seconds; 0: no limit
    max_seconds: int = defaults_and_limits.MAX_SECONDS
    #: networks in which all pods of the node lie; empty: by the routes of the node
    pod_cidrs: t.Tuple[Network, ...] = ()


def request(*given: t.Any, **named: t.Any) -> Request:
    """Check the request. It takes the values of ``Request``, with addresses and networks as text.

    :raises ConfigError: not an address or network, two IP versions in one question, a port outside of 1-65535, or a
        negative limit.
    """
    wanted = Request(*given, **named)
    sender = None if wanted.source is None else _address("source", wanted.source)
    receivers = [_address("destinations", one) for one in wanted.destinations]
    for receiver in receivers:
        if sender is not None and sender.version != receiver.version:
            raise ConfigError(
                "destinations: %s is not of the IP version of the source %s: test it in a run of its own"
                % (receiver, sender)
            )
    if wanted.protocol not in QUESTION_PROTOCOLS:
        known = ", ".join(sorted(QUESTION_PROTOCOLS))
        raise ConfigError("protocol: %s is unknown: use %s" % (wanted.protocol, known))
    if not 1 <= wanted.port <= 65535:
        raise ConfigError("port: %d is outside 1-65535" % wanted.port)
    for name in ("max_questions", "max_seconds"):
        if getattr(wanted, name) < 0:
            text = "%s: %d is negative: give a limit, or 0 for none"
            raise ConfigError(text % (name, getattr(wanted, name)))
    return wanted._replace(
        destinations=tuple(map(str, receivers)),
        source=None if sender is None else str(sender),
        pod_cidrs=tuple(map(parse_cidr, wanted.pod_cidrs)),
    )


def _address(option: str, value: t.Any) -> t.Any:
    try:
        return ipaddress.ip_address(str(value))
    except ValueError:
        raise ConfigError("%s: %r is not an IP address: give one without a prefix length" % (option, value)) from None


class _Reading(t.NamedTuple):
    """A policy, its rules and the node, read at one time. ``problem`` is why there is no state that was requested."""

    policy: ComparedPolicy
    result: Result
    state: t.Optional[node_state.NodeState] = None
    problem: str = ""


def _read(node: Node, choose: t.Callable[[], ComparedPolicy], with_state: bool) -> _Reading:
    """Read until neither the policy nor its rules have changed meanwhile."""
    for _attempt in range(_READINGS):
        generation = nfnetlink.generation()
        policy = choose()
        result = _planned(node, policy)
        if not with_state:
            return _Reading(policy, result)
        try:
            state = node_state.read(node.run)
        except NodeError as exc:
            return _Reading(policy, result, None, str(exc))
        quiet = result.backend != IPTABLES_LEGACY and generation == nfnetlink.generation()
        if (quiet and choose() == policy) or _is_current(node, choose, policy, result):
            return _Reading(policy, result, state)
    return _Reading(policy, result, None, _CHANGING)


def _is_current(node: Node, choose: t.Callable[[], ComparedPolicy], policy: ComparedPolicy, result: Result) -> bool:
    """Return whether a policy and its rules are still those that were read."""
    return choose() == policy and _rules_of(_planned(node, policy)) == _rules_of(result)


def _planned(node: Node, policy: ComparedPolicy) -> Result:
    # Open connections are not looked at, nor what a change would do to them.
    config = policy.config._replace(flush_conntrack="none")
    return reconcile(node, config, check=True, used_before=policy.used_before)


def _rules_of(result: Result) -> t.List[t.Any]:
    return [(change.family, change.backend, change.plan.before) for change in result.changes]


@contextlib.contextmanager
def _uncollected() -> t.Iterator[None]:
    """Do without Python's search for cycles of objects: hardly any are made.

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
def inspect(
    node: Node,
    choose: t.Callable[[], ComparedPolicy],
    wanted: Request,
    progress: asking.Progress = asking.no_progress,
    storage: t.Optional[Storage] = None,
) -> Data:
    """Return all that is known about a node; as RETURN of the module ip_masq_info, with the policy's ``networks``.

    :param choose: returns the policy that the node has at the time.
    :param progress: called with how far a verification is.
    :param storage: with it, the result of a verification has a ``fingerprint``; an earlier one has ``tested_at``.
    :raises NodeError: the node cannot be read.
    """
    with_state = bool(wanted.destinations or wanted.verify)
    for _attempt in range(_READINGS):
        found, policy, result = _inspect(node, lambda: _read(node, choose, with_state), wanted, progress, storage)
        disagrees = found["conflicts"] or any(one["agrees"] is False for one in found["explanations"])
        if not disagrees or _is_current(node, choose, policy, result):
            return found
    changing = _Reading(policy, result, None, _CHANGING)
    return _inspect(node, lambda: changing, wanted, progress, storage)[0]


def _inspect(
    node: Node,
    read: t.Callable[[], _Reading],
    wanted: Request,
    progress: asking.Progress,
    storage: t.Optional[Storage],
) -> t.Tuple[Data, ComparedPolicy, Result]:
    """Return what is known by one reading, and its policy and rules."""
    reading = read()
    policy, result = reading.policy, reading.result
    rulesets = _rulesets(node, policy, result)
    if policy.origin == FROM_RULES and not rulesets:
        policy = policy._replace(origin=NOWHERE)
    given = policy.origin in (FROM_OPTIONS, FROM_AGENT)
    findings = list(_health(node, policy, result))
    active = result.found_data()
    found: Data = {
        "policy": {
            "origin": policy.origin,
            "exempt": {family: list(map(str, exempt_in_the_end(one))) for family, one in rulesets.items()},
        },
        # For texts about ranges.
        "networks": [network for one in rulesets.values() for side in one.networks for network in side],
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
        asked = _ask(node, reading._replace(policy=policy), rulesets, wanted, progress, storage, found)
        del reading  # it is large, and less will do
        findings += asked
        explanations.name_pods(found["explanations"], found["conflicts"])
    found["health"] = [one._asdict() for one in findings]
    if wanted.verify:
        told = {} if policy.origin == NOWHERE else rulesets
        found["verified"], found["summary"] = verdict.verdict(told, findings, found)
    return found, policy, result


def _rulesets(node: Node, policy: ComparedPolicy, result: Result) -> t.Dict[str, Ruleset]:
    """Return the exempt ranges of each family."""
    if policy.origin == FROM_RULES:
        found = {change.family: change.plan.found.ruleset for change in result.managed}
        return {family: ruleset for family, ruleset in found.items() if ruleset is not None}
    config, _missing = without_missing(policy.config)
    families = FAMILIES if config.enable_ipv6 else (IPV4,)
    kind = next(kind for kind in backend_choice.BACKENDS if kind.name == result.backend)
    return {family: wanted_rules(config, family, kind, node) for family in families}


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
        differing = first_of(["%s: %s" % (one.action, one.rule) for one in actions], 1)
        yield Health("out_of_sync", ERROR, "active rules differ from the configuration: " + differing, _SYNC)
    for note in policy.notes + result.notes:
        yield Health("note", INFO, note, "")
    if policy.failure:
        yield Health("agent_failing", ERROR, "the last sync failed: %s" % policy.failure, "")
    yield from health.range_health(config.non_masquerade_cidrs, config.masquerade_cidrs)
    if config.protects_all_interfaces and ipvs_services.count():
        yield Health(
            "enforce_with_ipvs",
            WARNING,
            "exemption is enforce and kube-proxy uses IPVS: a pod that reaches itself through a Service gets no answer",
            "list the interfaces of pods in except_interfaces, or set exemption to accept or return",
        )
    for remark in concerned.remarks(result.remarks, config):
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
    reading: _Reading,
    rulesets: t.Mapping[str, Ruleset],
    wanted: Request,
    progress: asking.Progress,
    storage: t.Optional[Storage],
    found: Data,
) -> t.Iterator[Health]:
    """Put the questions to a copy of the node, and write the answers to ``found``."""
    promised = packet_policy.policy_of(rulesets, wanted.pod_cidrs)
    mark: t.Optional[str] = None
    limits = begin(wanted.max_questions, wanted.max_seconds)
    policy, _result, state, problem = reading
    reading = reading._replace(state=None)
    copy: t.Optional[twin.Twin] = None
    tables: alike_endpoints.Read = {}
    try:
        if state is None:
            raise NodeError(problem)
        if not wanted.pod_cidrs and promised.is_about_all:
            promised = packet_policy.with_guests(promised, senders.guests_of(state))
        if policy.proposed:
            state = rules_in_copy.with_policy(state, node.run, policy.config, policy.used_before)
        earlier = storage.earlier if storage else None
        if storage and wanted.verify:
            mark = fingerprint(state, promised, storage.program)
        if earlier and earlier.fingerprint == mark and not wanted.destinations:
            found["questions"], found["tested_at"] = earlier.questions, earlier.time
            found["limits"] = [one._asdict() for one in state.unseen]
            yield from _leak_health(promised, earlier.leaked)
            yield from _concerned(policy, rulesets, state)
            return
        if not wanted.destinations:  # of these every endpoint is shown
            state, tables = alike_endpoints.with_fewer(state, promised, limits.with_a_chance().first_half().left())
        seconds = limits.with_a_chance().left()
        copy = twin.build(state, node.run, _COPY_SECONDS if seconds is None else min(seconds, _COPY_SECONDS))
    except NodeError as exc:
        problem = str(exc)
    given = (wanted.source, wanted.protocol, wanted.port)
    asked = [explanation.question(state, one, *given) for one in wanted.destinations]
    if copy is None:
        yield Health(
            "no_copy",
            WARNING,
            "packets were not tested: %s" % problem,
            "run as root where network namespaces can be made",
        )
        not_sent = (explanation.Explained((judge.Decided(Answer(one, NOT_TESTED)),)) for one in asked)
        found["explanations"] = [explanations.explanation(promised, one) for one in not_sent]
        return
    with copy:
        explained = explanation.explain(copy, promised, asked, limits._replace(questions=0))
        found["explanations"] = [explanations.explanation(promised, one) for one in explained]
        if wanted.verify:
            report = verification.verify(copy, promised, limits.with_a_chance(), progress, tables)
            found["questions"], found["questions_left_out"] = report.questions, report.left_out
            found["conflicts"] = [data for one in report.conflicts for data in explanations.conflict(one)]
            missed = [*report.untested, *_without_policy(reading, rulesets)]
            found["untested"] = [dict(one._asdict(), ranges=list(one.ranges)) for one in missed]
            # What only the copy lacks is not known without one.
            found["fingerprint"] = mark if copy.unseen == copy.state.unseen else None
            for gap in missed:
                yield Health("not_tested", WARNING, "not tested: %s" % gap.text, "")
            for one, text in explanations.causes(found["conflicts"], found["networks"]):
                yield Health("conflict", one["severity"], text, one["remedy"])
            yield from _leak_health(promised, bool(report.leaked))
    found["limits"] = [one._asdict() for one in copy.unseen]
    yield from _concerned(policy, rulesets, copy.state)


def _without_policy(reading: _Reading, rulesets: t.Mapping[str, Ruleset]) -> t.Iterator[verification.Untested]:
    """Return families that have no policy, where it follows from the active rules and those are none of this agent's.

    Without rules IPv6 may be left to others.
    """
    if reading.policy.origin == FROM_RULES:
        for change in reading.result.managed:
            if change.family not in rulesets and (change.family == IPV4 or change.plan.found.rules):
                text = "IPv%d: the active rules are absent, or not of this agent's form: give a policy"
                yield verification.Untested("no_policy", text % change.family.version)


def _concerned(
    policy: ComparedPolicy, rulesets: t.Mapping[str, Ruleset], state: node_state.NodeState
) -> t.Iterator[Health]:
    if policy.origin != NOWHERE:
        yield from concerned.ipv6_not_managed(rulesets, state)
    if policy.origin in (FROM_OPTIONS, FROM_AGENT):
        yield from concerned.concerns(policy.config, state)


def _leak_health(promised: packet_policy.Policy, leaked: bool) -> t.Iterator[Health]:
    if leaked and promised.leaks != IGNORE:
        text, remedy = _LEAKED_WORDS[promised.leaks]
        yield Health(LEAKS, INFO, _LEAKED + text, remedy)


_LEAKED = (
    "packets that conntrack calls invalid, such as a late RST or an ICMP error, leave with the pod's address, because "
    "no rule of NAT sees them"
)
#: What becomes of them, and the remedy, by the option leaks.
_LEAKED_WORDS = {
    COUNT: ("; they are counted", "set leaks to drop"),
    DROP: (", if source_cidrs does not contain it", "add the networks of these pods to source_cidrs"),
}
