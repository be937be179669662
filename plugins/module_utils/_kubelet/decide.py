# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The decision table of docs/kubelet.md: what happens to a kubelet, and what is said about it. Pure functions."""

from __future__ import annotations

import typing as t

from .arguments import ARGUMENT, DEFAULT_CIDR, FLAG, NEVER_VALUES, last_value
from .kubelets import Kubelet

#: Severities: a failure is one before anything is changed.
OK, WARN, FAIL = range(3)

_MASQUERADES = "masquerades traffic to destinations outside %s"
_LATER = "Remove the flag (policy absent) before the upgrade to Kubernetes 1.24, or the kubelet will not start"


class KubeletDecision(t.NamedTuple):
    """What happens to a kubelet, and why. Only those with ``edits`` change it."""

    name: str
    severity: int
    reason: str

    @property
    def edits(self) -> bool:
        """Whether the flag is set or removed."""
        return self.name in ("set", "remove", "remove_stale")


def decide(policy: str, kubelet: Kubelet) -> KubeletDecision:
    """Decide about one kubelet: the whole table. ``report`` decides as ``auto`` does."""
    named = kubelet.name, FLAG
    demanded = policy == "present"
    if kubelet.probe.supported is None:
        severity = FAIL if demanded or (policy == "absent" and kubelet.configured) else WARN
        reason = "cannot determine whether %s supports --%s: %s. The kubelet was not changed"
        return KubeletDecision("unknown", severity, reason % (*named, kubelet.probe.why))
    if not kubelet.probe.supported and demanded:
        reason = (
            "%s does not support --%s, which Kubernetes 1.24 removed, and would not start with it. It needs no flag: "
        )
        return KubeletDecision("unsupported", FAIL, reason % named + "set policy to auto")
    if not kubelet.probe.supported or policy == "absent":
        return _decide_removal(kubelet)
    if not demanded and not kubelet.kubenet:
        reason = "%s supports --%s but does not run kubenet, without which the flag has no effect; nothing to do"
        return KubeletDecision("not_needed", OK, reason % named)
    value = last_value(kubelet.words)
    if value in NEVER_VALUES:
        return KubeletDecision("already_set", WARN, "%s already sets --%s=%s. %s" % (*named, value, _LATER))
    why = "%s does not set %s" % (kubelet.name, ARGUMENT)
    if kubelet.kubenet:
        why = "%s runs kubenet, which %s" % (kubelet.name, _MASQUERADES % (value or DEFAULT_CIDR))
    if kubelet.target is None:
        where = kubelet.places[-1].by_hand if kubelet.places else kubelet.unit.sources
        reason = "%s. This module changes nothing there; add %s to %s" % (why, ARGUMENT, where)
        return KubeletDecision("managed_elsewhere", FAIL if demanded else WARN, reason)
    return KubeletDecision("set", WARN, "%s: %s must be added to %s. %s" % (why, ARGUMENT, kubelet.target.path, _LATER))


def _decide_removal(kubelet: Kubelet) -> KubeletDecision:
    """Decide where the flag has to go: the kubelet does not support it, or the policy is absent."""
    named = kubelet.name, FLAG
    supported = kubelet.probe.supported
    places = [place for place, _value in kubelet.configured]
    if not places:
        name = "absent" if supported else "not_applicable"
        return KubeletDecision(name, OK, "%s does not set --%s; nothing to do" % named)
    why = "policy is absent, and %s sets --%s" if supported else "%s does not support --%s and cannot start with it"
    by_hand = ["%s: remove it from %s" % (place.where, place.by_hand) for place in places if not place.editable]
    if by_hand:
        reason = why % named + ". The flag is set where this module changes nothing. " + "; ".join(by_hand)
        return KubeletDecision("managed_elsewhere", FAIL, reason)
    reason = "%s: it must be removed from %s" % (why % named, places[-1].where)
    if supported and kubelet.kubenet:
        return KubeletDecision("remove", WARN, "%s. kubenet then %s" % (reason, _MASQUERADES % DEFAULT_CIDR))
    return KubeletDecision("remove" if supported else "remove_stale", OK, reason)


def decide_node(
    policy: str, decisions: t.Sequence[KubeletDecision], cri_dockerd: bool, strays: t.Sequence[int], unit: str
) -> KubeletDecision:
    """Decide for the node: the gravest of its kubelets' decisions; without kubelets, what that means.

    :param cri_dockerd: whether cri-dockerd runs kubenet.
    :param strays: processes of kubelets that masquerade, and that none of the services started.
    :param unit: the service that the operator named; without one, the node may be one before the cluster is installed.
    """
    severity = FAIL if policy == "present" else WARN
    if cri_dockerd:
        reason = "cri-dockerd runs kubenet, which %s and has no flag against it; start it with --network-plugin=cni"
        return KubeletDecision("cri_dockerd_kubenet", severity, reason % (_MASQUERADES % DEFAULT_CIDR))
    if strays:
        reason = "process %d runs kubenet, and no service that this module knows starts it; it was not changed. It may "
        return KubeletDecision(
            "unknown", severity, reason % strays[0] + "be in a container. If a service starts it, set unit"
        )
    if decisions:
        return max(decisions, key=lambda one: (one.severity, one.edits))
    reason = "%s was not found on this node" % ("the service " + unit if unit else "a kubelet service")
    return KubeletDecision("no_kubelet", severity if unit or policy == "present" else OK, reason)
