# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring every kubelet of this node to the policy: it leaves masquerading alone, or it is left alone.

observe -> decide -> rehearse -> apply -> delete kubenet's rules. Everything is decided, and every edit is rehearsed,
before the first byte is written.
"""

from __future__ import annotations

import typing as t

from .._errors import NodeError
from .._system.node import Node
from .._system.process import Runner
from . import healthz
from .decide import Decision, decide, decide_node, may_masquerade
from .distributions import find_kubelets
from .host import Host
from .kubenet_rules import Leftover, delete_leftovers, find_leftovers
from .observe import Observation, kubenet_in_cri_dockerd, masquerading_processes, observe
from .options import Options, check_options
from .planned_edits import rehearse
from .update_and_rollback import Applied, Updater


class Report(t.NamedTuple):
    """What was found, decided and done. ``failure`` is empty unless the module has to fail."""

    decision: str
    reason: str
    changed: bool = False
    failure: str = ""
    warnings: t.Tuple[str, ...] = ()
    kubelets: t.Tuple[t.Tuple[Observation, Decision], ...] = ()
    actions: t.Tuple[str, ...] = ()
    #: files changed, and then files and rules as (name, before, after)
    files: t.Tuple[str, ...] = ()
    diff: t.Tuple[t.Tuple[str, str, str], ...] = ()
    leftovers: t.Tuple[str, ...] = ()
    restart_needed: bool = False


class _Survey(t.NamedTuple):
    """All that was found and decided on the node."""

    kubelets: t.Tuple[t.Tuple[Observation, Decision], ...]
    overall: Decision
    cri_dockerd: bool
    leftovers: t.Tuple[Leftover, ...]
    warnings: t.Tuple[str, ...]

    @property
    def failure(self) -> str:
        """Why nothing may be changed; empty if it may."""
        every = [decision for _seen, decision in self.kubelets] + [self.overall]
        return "; ".join(dict.fromkeys(one.reason for one in every if one.severity == "fail"))

    def report(self) -> Report:
        """Return the report before anything is done."""
        lines = tuple(rule.line for rule in self.leftovers)
        overall = self.overall
        return Report(overall.name, overall.reason, False, "", self.warnings, self.kubelets, leftovers=lines)


def manage_kubelets(
    options: Options,
    run: Runner,
    check: bool = False,
    root: str = "/",
    healthy: healthz.Healthy = healthz.wait_healthy,
) -> Report:
    """Bring the node to the policy.

    :param check: look and decide, write nothing.
    :param root: the directory that holds the node's file system.
    :raises ConfigError: the options are refused, or a file is; nothing was changed.
    :raises NodeError: the node cannot be looked at.
    """
    named = check_options(options)
    host, node = Host(run, root), Node(run)
    try:
        found = find_kubelets(host, options.unit, options.binary, options.distribution, named)
        observed = [observe(kubelet, host, options.probe_timeout) for kubelet in found]
    except NodeError as exc:
        if options.policy == "present":
            raise
        reason = "cannot inspect the kubelets of this node: %s. Nothing was changed" % exc
        return Report("unknown", reason, warnings=(reason,))
    survey = _take_survey(options, host, node, observed)
    report = survey.report()
    if options.policy == "report":
        return report
    if survey.failure:
        return report._replace(failure=survey.failure)
    edits = [edit for seen, decision in survey.kubelets for edit in rehearse(seen, decision, host)]
    pending = [seen for seen, decision in survey.kubelets if decision.action == "none" and seen.restart_pending]
    updater = Updater(options, host, healthy, check)
    steps = updater.steps(edits, pending)
    try:
        updater.check_healthz(steps)
    except NodeError as exc:
        return report._replace(failure=str(exc))
    done = updater.update(steps)
    report = _with_updates(report, done)
    return report if done.failure else _with_rules_deleted(report, survey, host, node, check)


def _take_survey(options: Options, host: Host, node: Node, observed: t.Sequence[Observation]) -> _Survey:
    kubelets = tuple((seen, decide(options.policy, seen)) for seen in observed)
    decisions = [decision for _seen, decision in kubelets]
    cri_dockerd = kubenet_in_cri_dockerd(host)
    strays = [] if kubelets else host.processes("kubelet")
    wanted = "the service %s" % options.unit if options.unit else "a kubelet service"
    wanted += "" if options.distribution == "auto" else " of the distribution %s" % options.distribution
    named = bool(options.unit) or options.distribution != "auto"
    overall = decide_node(options.policy, decisions, cri_dockerd, strays, wanted, named)
    warnings = list(dict.fromkeys(one.reason for one in decisions + [overall] if one.severity == "warn"))
    leftovers: t.List[Leftover] = []
    try:
        leftovers = find_leftovers(node)
    except NodeError as exc:
        warnings.append("cannot look for rules that kubenet left: %s" % exc)
    return _Survey(kubelets, overall, cri_dockerd, tuple(leftovers), tuple(warnings))


def _with_updates(report: Report, done: Applied) -> Report:
    return report._replace(
        changed=bool(done.edits or done.restarted),
        failure=done.failure,
        actions=done.actions,
        files=tuple(edit.path for edit in done.edits),
        diff=tuple((edit.path, edit.before.text or "", edit.after or "") for edit in done.edits),
        restart_needed=done.restart_needed,
    )


def _with_rules_deleted(report: Report, survey: _Survey, host: Host, node: Node, check: bool) -> Report:
    """Delete what kubenet left, once nothing on the node writes it again."""
    if not survey.leftovers:
        return report
    if _may_come_back(survey, host, report.restart_needed):
        kept = "the kubenet rule '%s' was not deleted, because a kubelet or cri-dockerd on this node may write it again"
        return report._replace(warnings=report.warnings + (kept % survey.leftovers[0].line,))
    if not check:
        try:
            delete_leftovers(node, survey.leftovers)
        except NodeError as exc:
            return report._replace(failure=str(exc))
    said = tuple("deleted the kubenet rule '%s' (%s)" % (rule.line, rule.command) for rule in survey.leftovers)
    diff = tuple(("POSTROUTING, %s" % rule.command, rule.line + "\n", "") for rule in survey.leftovers)
    return report._replace(changed=True, actions=report.actions + said, diff=report.diff + diff)


def _may_come_back(survey: _Survey, host: Host, restart_needed: bool) -> bool:
    """Return whether a deleted kubenet rule may be written again."""
    if survey.cri_dockerd or restart_needed or survey.overall.name == "unknown":
        return True
    # In check mode such a process may be the very one that would be restarted.
    known = [seen.unit.pid for seen, _decision in survey.kubelets]
    if any(pid not in known for pid in masquerading_processes(host)):
        return True
    return any(may_masquerade(seen, decision) for seen, decision in survey.kubelets)
