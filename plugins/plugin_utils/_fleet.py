# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of each node of a fleet, and nodes grouped by what they have in common."""

from __future__ import annotations

import contextlib
import re
import time
import typing as t

from ..module_utils._agent import states
from ..module_utils._agent.states import CONFLICTS, FAILING, IN_SYNC, NOT_TESTED, UNITS, first_of_lines, rule_line
from ..module_utils._policy.policy import POLICY_OPTIONS
from ..module_utils._system.printable import first_of
from ._names import alike, grouped, one_line
from ._role_variables import PREFIX

#: Where the playbooks keep what a node answered.
ASKED = PREFIX + "_asked"

#: The playbooks that apply a policy: that of the inventory, and one that is derived from kubespray's variables.
_APPLY, _KUBESPRAY = "kubenode.ip_masq.apply", "kubenode.ip_masq.kubespray"
_OPTIONS = {option.key: option for option in POLICY_OPTIONS}
_NAMES = [option.name for option in POLICY_OPTIONS]
#: What Ansible writes before the words of ssh.
_BEFORE_SSH = re.compile(
    r"(Task failed: )?(Data could not be sent to remote host \S+ Make sure this host can be reached over ssh: "
    r"|Failed to connect to the host via ssh: )"
)
_NO_PYTHON = re.compile(r"python[0-9.]*: (command not found|not found|No such file)")
_WITHOUT_PYTHON = ": install python3 on the node, or set ansible_python_interpreter"
_CLOSED = re.compile(r"Shared connection to \S+ closed")
#: Origins of policies that advice names.
_NAMED = 3

#: The mode of kube-proxy, as a trait: with rules of two modes, and with none.
KUBE_PROXY, HALF_MOVED, NO_KUBE_PROXY = "kube-proxy", "half moved", "none"

#: The states in which a node is in order.
GOOD = (IN_SYNC, "absent")
#: Every state, worst first: those of a report, in their order, among those that only the controller knows.
STATES = (
    "unreachable",
    "not checked",
    "not installed",
    "not removed",
    "no report",
    *(state for state in states.EXIT_STATUS if state not in (NOT_TESTED, IN_SYNC)),
    "policy differs from inventory",
    "to be applied",
    NOT_TESTED,
    *GOOD,
)


class Finding(t.NamedTuple):
    """What is wrong with a node: one of ``STATES``, and the reason on one line."""

    state: str
    reason: str


class Node(t.NamedTuple):
    """What is known of one node. ``traits`` are, by the names of ``TRAITS``, what its agent reports."""

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
    #: its policy for people, with the hash; empty if none is reported
    policy_name: str = ""
    #: what its agent reports of its policy, by option
    policy: t.Mapping[str, t.Any] = {}

    @property
    def name(self) -> str:
        """The host's name for people."""
        return one_line(self.host)

    @property
    def line(self) -> str:
        """Everything that is wrong with it, the state first; empty if nothing is."""
        return "%s: %s" % (self.state, self.why) if self.findings else ""

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
    if states.is_outdated(report):
        return "before the last change of the rules"
    if last["conflicts"]:
        return CONFLICTS
    return "matches the policy" if last["verified"] else NOT_TESTED


def _leaks(report: _Report) -> t.List[str]:
    """Return what is done with packets that nat does not see, and whether there were any; empty if no rule checks."""
    option = report["config"].get("leaks", "ignore")
    if option == "ignore":
        return []
    found = [family["counters"] for family in report["families"].values() if family["counters"]]
    some = any(counters.get("leaked_packets") for counters in found)
    return ["%s: %s" % (option, "there were packets" if some else "no packets")]


def _kube_proxy(report: _Report) -> t.List[str]:
    """Return the mode of kube-proxy; earlier builds do not report it."""
    modes = (report.get("data_plane") or {}).get("kube_proxy")
    if modes is None:
        return []
    return ["%s: %s" % (HALF_MOVED, "+".join(modes))] if modes[1:] else modes or [NO_KUBE_PROXY]


def _of_data_plane(name: str, text: str) -> t.Callable[[_Report], t.List[str]]:
    """Return what reads a list of a node's data plane, each entry as a text."""
    return lambda report: [text % one for one in (report.get("data_plane") or {}).get(name, ())]


#: What nodes are grouped by beside their state: a node may have one value, several or none.
TRAITS: t.Mapping[str, t.Callable[[_Report], t.List[str]]] = {
    "agent": lambda report: [report["version"]],
    "backend": lambda report: [("%(name)s %(version)s" % report["backend"]).strip()],
    KUBE_PROXY: _kube_proxy,
    "network plugin": _of_data_plane("network_plugins", "%s"),
    "left behind": _of_data_plane("leftovers", "%(what)s: %(command)s"),
    "to do": _of_data_plane("steps", "before %(before)s: %(do)s: %(why)s"),
    # Earlier builds do not report it.
    "policy": lambda report: [report["policy_hash"]] if report.get("policy_hash") else [],
    "applied by": lambda report: [_origin(report)] if _origin(report) else [],
    "verification": lambda report: [_verification(report)],
    "leaks": _leaks,
    "drop-in": lambda report: [one.rpartition("/")[2] for one in report["config"]["sources"] if "/config.d/" in one],
    "note": lambda report: list(report["notes"]),
}


class Advice(t.NamedTuple):
    """What a run of status or report can advise."""

    #: applies the policy that nodes are compared with, if the run knows it
    playbook: str = ""
    #: how to apply the policy to a node that has none, or to repair its files and units
    apply: str = "run " + _APPLY


_NO_ADVICE = Advice()


def advise(answers: t.Iterable[t.Any], playbook: str = "") -> Advice:
    """Read from the answers of nodes what applied their policies.

    :param answers: what ip_masq_agent_info returned.
    :param playbook: that applies the policy of this run.
    """
    if playbook:
        return Advice(playbook, "run " + playbook)
    origins: t.Set[str] = set()
    for asked in answers:
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            origins.add(one_line(_origin(asked["report"])))
    if origins <= {"", _APPLY}:
        return _NO_ADVICE
    # With another playbook the policy may be another one.
    named = first_of(sorted(origins - {""}), _NAMED)
    return Advice(apply="run what applied the policy to the other nodes: " + named)


def judge(
    host: str, asked: t.Optional[t.Mapping[str, t.Any]], wanted: t.Optional[str] = None, advice: Advice = _NO_ADVICE
) -> Node:
    """Judge a node: its state is the first thing that is wrong with it; the findings are all of them.

    :param asked: what ip_masq_agent_info returned; None if the node was not queried.
    :param wanted: the host's ``ip_masq_agent_state``.
    """
    if asked is None:
        return _off(host, Finding("not checked", "the query did not run; Ansible's output has the error"), False)
    try:
        return _judged(host, asked, wanted, advice)
    except (AttributeError, IndexError, KeyError, OSError, OverflowError, TypeError, ValueError) as exc:
        # One node with another release, or with a damaged answer, must not hide the others.
        return _off(host, Finding("no report", "the answer is not understood: %s" % one_line(repr(exc))))


def not_reached(host: str) -> Node:
    """Judge a node of the cluster that the run is not for."""
    return _off(host, Finding("not checked", "not matched by %shosts, and so in no play" % PREFIX), False)


def _off(host: str, finding: Finding, queried: bool = True) -> Node:
    return Node(host, finding.state, [finding], queried=queried)


def _judged(host: str, asked: t.Mapping[str, t.Any], wanted: t.Optional[str], advice: Advice) -> Node:
    report = asked.get("report") or {}
    findings = [Finding(state, one_line(reason)) for state, reason in _findings(asked, report, wanted, advice)]
    findings.sort(key=lambda one: STATES.index(one.state))
    findings = [one for one in findings if one.state != NOT_TESTED] or findings
    good = "absent" if wanted == "absent" else IN_SYNC
    node = Node(host, findings[0].state if findings else good, findings)
    if not report:
        notes = asked.get("notes") if wanted == "absent" else None
        return node._replace(traits={"note": list(map(one_line, notes))}) if notes else node
    last = report.get("last_verification")
    return node._replace(
        traits={name: [one_line(value) for value in read(report)] for name, read in TRAITS.items()},
        repaired=int(report["drift_repaired"]),
        verified_at=_utc(last["time"]) if last else "",
        policy={name: report["config"][name] for name in _NAMES if name in report["config"]},
    )


def _findings(
    asked: t.Mapping[str, t.Any], report: _Report, wanted: t.Optional[str], advice: Advice
) -> t.Iterator[t.Tuple[str, str]]:
    """Return what is wrong with a node: a state and the reason."""
    if asked.get("unreachable"):
        yield "unreachable", _BEFORE_SSH.sub("", str(asked.get("msg", "")))
        return
    if "installed" not in asked:
        yield "not checked", module_failure(asked)
        return
    if wanted == "absent":
        yield from _of_absent(asked)
        return
    if not asked["installed"]:
        yield "not installed", advice.apply
        return
    if asked["problems"]:
        yield "no report", "; ".join(asked["problems"])
    if report:
        yield from _of_report(asked, report, advice)
    if asked.get("differs") and not report.get("config", {}).get("problem"):
        yield "policy differs from inventory", "; ".join([*_differences(asked), *_applied(report, advice)])
    if asked["pending"]:
        yield "to be applied", first_of_lines(asked["pending"])


def _of_report(asked: t.Mapping[str, t.Any], report: _Report, advice: Advice) -> t.Iterator[t.Tuple[str, str]]:
    failure = asked["service_failure"]
    for state, reason, _remedy in states.judge(report, failure):
        if state in (CONFLICTS, NOT_TESTED):
            last = report["last_verification"]
            yield state, "verification of %s: %s" % (_utc(last["time"]), reason)
        elif state == FAILING and failure and reason.endswith(failure) and not asked.get("differs"):
            # Where the policy differs, to apply would change it, and which of the two is right is not known here.
            yield state, "%s; %s" % (reason, advice.apply)
        elif state != UNITS or asked["pending"]:  # else the inventory has ip_masq_agent_enabled: false
            yield state, reason


def _of_absent(asked: t.Mapping[str, t.Any]) -> t.Iterator[t.Tuple[str, str]]:
    """Return what a node has of the agent that is to be removed."""
    if asked["installed"]:
        yield "not removed", "%sstate is absent; run %s" % (PREFIX, _APPLY)
        return
    left = list(asked.get("problems") or ())
    if asked.get("rules_left"):
        rules = first_of_lines(list(map(rule_line, asked["rules_left"])))
        left.append("no agent is installed, but its rules are there: %s; run %s" % (rules, _APPLY))
    if left:
        yield "not removed", "; ".join(left)


def module_failure(result: t.Mapping[str, t.Any]) -> str:
    """Return why a module did not run: the words of the shell or of Python, which Ansible keeps apart."""
    message = str(result.get("msg", "the module returned nothing"))
    for name in ("module_stderr", "module_stdout"):
        # ssh -tt adds a line of its own.
        lines = [line for line in str(result.get(name, "")).splitlines() if line.strip() and not _CLOSED.match(line)]
        if lines:
            # A traceback ends with its error; what a shell prints begins with it.
            words = lines[-1] if any(line.startswith("Traceback") for line in lines) else lines[0]
            # Ansible's own words have no remedy, or a long one.
            why = _WITHOUT_PYTHON if _NO_PYTHON.search(words) else " (%s)" % one_line(message)
            return words.strip() + why
    return message


def _differences(asked: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """Return the variables that differ, each with what the node and what the inventory has."""
    values = asked.get("differences") or {}
    for key in asked["differs"]:
        option = _OPTIONS.get(key)
        name = PREFIX + option.name if option else key
        both = values.get(key)
        if not both:
            yield name
        elif option and option.united:
            only = [("only on the node", both["node"]), ("only in the inventory", both["config"])]
            yield "%s: %s" % (name, ", ".join("%s %s" % one for one in only if one[1] != "none"))
        else:
            yield "%s: %s on the node, %s in the inventory" % (name, both["node"], both["config"])


def _applied(report: _Report, advice: Advice) -> t.Iterator[str]:
    """Return what applied the policy of a node last, if that is known."""
    origin = _origin(report)
    if origin:
        edited = "; the file was edited on the node since" if report["last_applied"]["edited"] else ""
        # Its policy is not in the inventory.
        derived = origin == _KUBESPRAY != advice.playbook
        yield "last applied by %s%s" % (origin, edited)
        if derived:
            yield "compare with %s_status" % _KUBESPRAY


def _origin(report: _Report) -> str:
    """Return what applied the policy of a node last."""
    return str((report.get("last_applied") or {}).get("by", ""))


def _utc(seconds: float) -> str:
    """Return a time in seconds since the epoch, for people."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def by_state(nodes: t.Iterable[Node]) -> t.List[Group]:
    """Put every node into one group, worst first."""
    found = grouped((node.state, node) for node in nodes)
    return [Group(state, found[state]) for state in STATES if state in found]


def by_reason(nodes: t.Sequence[Node]) -> t.List[Group]:
    """Group nodes of one state by all that is wrong with them, most nodes first."""
    return _most_first((node.why, node) for node in nodes)


def by_kind(nodes: t.Sequence[Node]) -> t.List[Group]:
    """Group nodes of one state by reasons that differ at most in numbers, such as addresses and process ids."""
    return [Group(*kind) for kind in alike((node.name, node.why, node) for node in nodes)]


def by_trait(nodes: t.Iterable[Node], trait: str) -> t.List[Group]:
    """Group the nodes that report one of ``TRAITS`` by its values, most nodes first."""
    return _most_first((value, node) for node in nodes for value in dict.fromkeys(node.traits.get(trait, ())))


def by_mode(nodes: t.Sequence[Node]) -> t.List[Group]:
    """Group nodes by the mode of kube-proxy, the half moved first; no groups if none runs kube-proxy."""
    groups = by_trait(nodes, KUBE_PROXY)
    if [group.value for group in groups] == [NO_KUBE_PROXY]:
        return []
    return sorted(groups, key=lambda group: not group.value.startswith(HALF_MOVED))


def named(trait: str, group: Group) -> str:
    """Return a value that nodes report, for people."""
    return (group.nodes[0].policy_name if trait == "policy" else "") or group.value


def _most_first(pairs: t.Iterable[t.Tuple[str, Node]]) -> t.List[Group]:
    return [Group(*pair) for pair in sorted(grouped(pairs).items(), key=lambda pair: -len(pair[1]))]


def matching(nodes: t.Iterable[Node]) -> int:
    """Count the nodes that are in order."""
    return sum(1 for node in nodes if node.state in GOOD)


def off(nodes: t.Iterable[Node], tolerate_conflicts: bool = False) -> t.List[str]:
    """Return the hosts that were queried and are not in order, as far as that is known."""
    tolerated = {NOT_TESTED, *([CONFLICTS] if tolerate_conflicts else ())}
    return [node.host for node in nodes if node.queried and {one.state for one in node.findings} - tolerated]
