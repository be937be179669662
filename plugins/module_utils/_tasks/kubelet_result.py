# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The return values of what was found and done about the masquerading of kubelets."""

from __future__ import annotations

import typing as t

from .._kubelet.manage import Report


def as_return(report: Report) -> t.Dict[str, t.Any]:
    """Return what a run found and did, as the module kubelet_masquerade returns it."""
    kubelets: t.List[t.Dict[str, t.Any]] = [
        {
            "unit": seen.unit.name + ".service",
            "distributions": list(seen.kubelet.distributions),
            "version": seen.probe.version or "",
            "flag_supported": seen.probe.supported,
            "kubenet": seen.kubenet,
            "configured": [{"where": place.where, "value": value} for place, value in seen.configured],
            "decision": decision.name,
            "reason": decision.reason,
        }
        for seen, decision in report.kubelets
    ]
    first = kubelets[0] if kubelets else {"version": "", "flag_supported": None, "kubenet": False}
    return {
        "changed": report.changed,
        "decision": report.decision,
        "reason": report.reason,
        "distributions": sorted({name for kubelet in kubelets for name in kubelet["distributions"]}),
        "version": first["version"],
        "flag_supported": first["flag_supported"],
        "kubenet": first["kubenet"],
        "kubelets": kubelets,
        "actions": list(report.actions),
        "files": list(report.files),
        "leftover_rules": list(report.leftovers),
        "restart_needed": report.restart_needed,
        "diff": [
            {"before_header": name, "after_header": name, "before": before, "after": after}
            for name, before, after in report.diff
        ],
    }
