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
from .arguments import last_value, masquerades
from .decide import FAIL, WARN, KubeletDecision, decide, decide_node
from .host import Host
from .kubelets import Kubelet, find_kubelets
from .kubenet_rules import Leftover, delete_leftovers, find_leftovers
from .options import Options, check_options
from .update import Edit, Updater, rehearse


class KubeletReport(t.NamedTuple):
    """What was found, decided and done. ``failure`` is empty unless the module has to fail."""

    decision: str
    reason: str
    failure: str = ""
    warnings: t.Tuple[str, ...] = ()
    kubelets: t.Tuple[t.Tuple[Kubelet, KubeletDecision], ...] = ()
    #: what kubenet left, and whether it was deleted
    leftovers: t.Tuple[Leftover, ...] = ()
    deleted: bool = False
    #: the file that was edited
    edit: t.Optional[Edit] = None
    #: the service that was restarted
    restarted: str = ""
    restart_needed: bool = False


def manage_kubelets(
    options: Options,
    run: Runner,
    check: bool = False,
    root: str = "/",
    healthy: healthz.Healthy = healthz.wait_healthy,
) -> KubeletReport:
    """Bring the node to the policy.

    :param check: look and decide, write nothing.
    :param root: the directory that holds the node's file system.
    :raises ConfigError: the options are refused, or a file is; nothing was changed.
    :raises NodeError: the node cannot be looked at.
    """
    check_options(options)
    host, node = Host(run, options, root), Node(run)
    try:
        report = _survey(host, node)
    except NodeError as exc:
        if options.policy == "present":
            raise
        reason = "cannot inspect the kubelets of this node: %s. Nothing was changed" % exc
        return KubeletReport("unknown", reason, warnings=(reason,))
    if options.policy == "report":
        return report._replace(failure="")
    if report.failure:
        return report
    # One at most: no other kubelet has a place that may be edited.
    for kubelet, decision in report.kubelets:
        edit = None
        if decision.edits and kubelet.target:
            edit = rehearse(kubelet, kubelet.target, decision.name == "set", host)
        if edit or kubelet.restart_pending:
            report = _with_update(report, Updater(kubelet, edit, host, healthy), check)
    return report if report.failure else _with_rules_deleted(report, host, node, check)


def _survey(host: Host, node: Node) -> KubeletReport:
    """Return all that is found and decided, before anything is done."""
    options, found = host.options, find_kubelets(host)
    kubelets = tuple((kubelet, decide(options.policy, kubelet)) for kubelet in found)
    known = [kubelet.unit.pid for kubelet in found]
    strays = [pid for pid in _masquerading(host) if pid not in known]
    # cri-dockerd still carries kubenet, with 10.0.0.0/8 built in and no flag for it.
    plugins = [last_value(words, "network-plugin") for words in host.cri_dockerds()]
    every = [decision for _kubelet, decision in kubelets]
    every.append(decide_node(options.policy, every, "kubenet" in plugins, strays, options.unit))
    warnings, failures = ([one.reason for one in every if one.severity == level] for level in (WARN, FAIL))
    leftovers: t.List[Leftover] = []
    try:
        leftovers = find_leftovers(node)
    except NodeError as exc:
        warnings.append("cannot look for rules that kubenet left: %s" % exc)
    name, _severity, reason = every[-1]
    failure = "; ".join(dict.fromkeys(failures))
    return KubeletReport(name, reason, failure, tuple(dict.fromkeys(warnings)), kubelets, tuple(leftovers))


def _masquerading(host: Host) -> t.List[int]:
    """List the running kubelets, of any service or none, that may write kubenet's rule."""
    return [pid for pid, words in host.kubelets().items() if masquerades(words)]


def _with_update(report: KubeletReport, updater: Updater, check: bool) -> KubeletReport:
    failure = updater.problem()
    if failure:
        return report._replace(failure=failure)
    failure, stays = ("", True) if check else updater.update()
    return report._replace(
        failure=failure,
        edit=updater.edit if stays else None,
        restarted=updater.unit.name if updater.restarts and not failure else "",
        restart_needed=not updater.restarts and updater.unit.active != "inactive",
    )


def _with_rules_deleted(report: KubeletReport, host: Host, node: Node, check: bool) -> KubeletReport:
    """Delete what kubenet left, once nothing on the node writes it again."""
    if not report.leftovers:
        return report
    names = {report.decision, *(decision.name for _kubelet, decision in report.kubelets)}
    kubenet = [decision.name for kubelet, decision in report.kubelets if kubelet.kubenet]
    # In check mode the process still runs that would be restarted.
    ended = [kubelet.unit.pid for kubelet, _decision in report.kubelets if kubelet.unit.name == report.restarted]
    running = set(_masquerading(host)) - set(ended)
    if names & {"unknown", "cri_dockerd_kubenet"} or set(kubenet) - {"set", "already_set"} or running:
        kept = "the kubenet rule '%s' was not deleted, because a kubelet or cri-dockerd on this node may write it again"
        return report._replace(warnings=(*report.warnings, kept % report.leftovers[0].line))
    try:
        delete_leftovers(node, () if check else report.leftovers)
    except NodeError as exc:
        return report._replace(failure=str(exc))
    return report._replace(deleted=True)
