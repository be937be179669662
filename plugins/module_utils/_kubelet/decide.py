# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The decision table of docs/kubelet.md: what happens to a kubelet, and what is said about it. Pure functions."""

from __future__ import annotations

import re
import typing as t

from .flags import DEFAULT_CIDR, FLAG, NEVER, NEVER_VALUES, argument
from .observe import Observation

_SEVERITIES = ("ok", "warn", "fail")
_RELEASE = re.compile(r"v(\d+)\.(\d+)")
_MASQUERADES = "masquerades traffic to destinations outside %s"
_LATER = "Remove the flag (policy absent) before the upgrade to Kubernetes 1.24, or the kubelet will not start"


class Decision(t.NamedTuple):
    """What happens to a kubelet: an ``action`` (none, set or remove) with a ``severity`` (ok, warn or fail)."""

    name: str
    action: str
    severity: str
    reason: str


def decide(policy: str, seen: Observation) -> Decision:
    """Decide about one kubelet: the whole table. ``report`` decides as ``auto`` does."""
    if seen.probe.supported is None:
        return _decide_unknown(policy, seen)
    if not seen.probe.supported:
        return _decide_unsupported(policy, seen)
    if policy == "absent":
        if not seen.configured:
            return Decision("absent", "none", "ok", "%s does not set --%s; nothing to do" % (seen.name, FLAG))
        return _decide_removal(seen, "remove", "policy is absent, and %s sets --%s" % (seen.name, FLAG))
    if policy == "present" or seen.kubenet:
        return _decide_set(policy, seen)
    if seen.running_kubenet:
        reason = "%s is no longer configured for kubenet, but the running process still uses it; restart the kubelet"
        return Decision("not_needed", "none", "warn", reason % seen.name)
    reason = "%s supports --%s but does not run kubenet, without which the flag has no effect; nothing to do"
    return Decision("not_needed", "none", "ok", reason % (seen.name, FLAG))


def _decide_unknown(policy: str, seen: Observation) -> Decision:
    wanted = policy == "present" or (policy == "absent" and bool(seen.configured))
    reason = "cannot determine whether %s supports --%s: %s. The kubelet was not changed"
    severity = "fail" if wanted else "warn"
    return Decision("unknown", "none", severity, reason % (seen.name, FLAG, seen.probe.why))


def _decide_unsupported(policy: str, seen: Observation) -> Decision:
    if policy == "present":
        reason = (
            "%s does not support --%s, which Kubernetes 1.24 removed, and would not start with it. This kubelet does "
            "not need the flag; set policy to auto"
        )
        return Decision("unsupported", "none", "fail", reason % (seen.name, FLAG))
    if not seen.configured:
        reason = "%s does not support or set --%s; nothing to do" % (seen.name, FLAG)
        return Decision("not_applicable", "none", "ok", reason)
    why = "%s does not support --%s and cannot start with it" % (seen.name, FLAG)
    return _decide_removal(seen, "remove_stale", why)


def _decide_removal(seen: Observation, name: str, why: str) -> Decision:
    elsewhere = [place for place, _value in seen.configured if place.editor is None]
    if elsewhere:
        where = "; ".join("%s: %s" % (place.where, place.advice) for place in elsewhere)
        reason = "%s. The flag is set where this module changes nothing. %s" % (why, where)
        return Decision("managed_elsewhere", "none", "fail", reason)
    reason = "%s: it must be removed from %s" % (why, " and ".join(dict.fromkeys(p.where for p, _v in seen.configured)))
    if name == "remove" and seen.kubenet:
        reason += ". kubenet then " + _MASQUERADES % DEFAULT_CIDR
        return Decision(name, "remove", "warn", reason)
    return Decision(name, "remove", "ok", reason)


def _decide_set(policy: str, seen: Observation) -> Decision:
    if seen.value in NEVER_VALUES:
        reason = "%s already sets --%s=%s. %s" % (seen.name, FLAG, seen.value, _LATER)
        return Decision("already_set", "none", "warn", reason)
    editor, advice = seen.target.editor, seen.target.advice
    found = _RELEASE.match(seen.probe.version or "")
    if editor and found and (int(found.group(1)), int(found.group(2))) < seen.target.since:
        advice = "this release does not read %s: add it to kubelet-arg in config.yaml" % editor.path
        editor = None
    why = "policy is present, and %s does not set %s" % (seen.name, argument(NEVER))
    if seen.kubenet:
        why = "%s runs kubenet, which %s" % (seen.name, _MASQUERADES % (seen.value or DEFAULT_CIDR))
    if editor is None:
        severity = "fail" if policy == "present" else "warn"
        reason = "%s. This module cannot add %s: %s" % (why, argument(NEVER), advice)
        return Decision("managed_elsewhere", "none", severity, reason)
    reason = "%s: %s must be added to %s. %s" % (why, argument(NEVER), editor.path, _LATER)
    return Decision("set", "set", "warn", reason)


def decide_node(
    policy: str, decisions: t.Sequence[Decision], cri_dockerd: bool, strays: t.Sequence[int], wanted: str, named: bool
) -> Decision:
    """Decide for the node: the gravest of its kubelets' decisions; without kubelets, what that means.

    :param cri_dockerd: whether cri-dockerd runs kubenet.
    :param strays: kubelets that run; asked for where no service was found.
    :param wanted: what was looked for, for the message.
    :param named: whether the operator named it. If not, the node may be one before the cluster is installed.
    """
    severity = "fail" if policy == "present" else "warn"
    if cri_dockerd:
        reason = "cri-dockerd runs kubenet, which %s and has no flag against it; start it with --network-plugin=cni"
        return Decision("cri_dockerd_kubenet", "none", severity, reason % (_MASQUERADES % DEFAULT_CIDR))
    if decisions:
        return max(decisions, key=lambda one: (_SEVERITIES.index(one.severity), one.action != "none"))
    if strays:
        reason = (
            "a kubelet runs (process %d), but none of the services that this module knows starts it; it may run in a "
            "container. The kubelet was not changed. If a service starts it, set the option unit" % strays[0]
        )
        return Decision("unknown", "none", severity, reason)
    if severity == "warn" and not named:
        severity = "ok"
    return Decision("no_kubelet", "none", severity, "%s was not found on this node" % wanted)


def may_masquerade(seen: Observation, decision: Decision) -> bool:
    """Return whether a kubelet may write kubenet's rule again after the decision was carried out."""
    if decision.name == "unknown":
        return True
    if decision.action == "remove":
        return seen.kubenet and bool(seen.probe.supported)
    return decision.action == "none" and seen.masquerades and not seen.restart_pending
