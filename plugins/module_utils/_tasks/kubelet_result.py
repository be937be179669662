# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The return values of what was found and done about the masquerading of kubelets."""

from __future__ import annotations

import typing as t

from .._kubelet.manage import KubeletReport


def as_return(report: KubeletReport) -> t.Dict[str, t.Any]:
    """Return what a run found and did, as the module kubelet_masquerade returns it."""
    kubelets: t.List[t.Dict[str, t.Any]] = [
        {
            "unit": kubelet.unit.name,
            "distribution": kubelet.distribution,
            "version": kubelet.probe.version,
            "flag_supported": kubelet.probe.supported,
            "kubenet": kubelet.kubenet,
            "configured": [{"where": place.where, "value": value} for place, value in kubelet.configured],
            "decision": decision.name,
            "reason": decision.reason,
        }
        for kubelet, decision in report.kubelets
    ]
    edits = [report.edit] if report.edit else []
    deleted = report.leftovers if report.deleted else ()
    actions = ["edited " + edit.path for edit in edits] if not report.failure else []
    actions += ["restarted " + report.restarted] if report.restarted else []
    changes = [(edit.path, edit.before.text, edit.after) for edit in edits]
    changes += [("POSTROUTING, %s" % rule.command, rule.line + "\n", "") for rule in deleted]
    return {
        "changed": bool(changes or report.restarted),
        "decision": report.decision,
        "reason": report.reason,
        "kubelets": kubelets,
        "actions": actions + ["deleted the kubenet rule '%s' (%s)" % (rule.line, rule.command) for rule in deleted],
        "files": [edit.path for edit in edits],
        "leftover_rules": [rule.line for rule in report.leftovers],
        "restart_needed": report.restart_needed,
        "diff": [
            {"before_header": name, "after_header": name, "before": before, "after": after}
            for name, before, after in changes
        ],
    }
