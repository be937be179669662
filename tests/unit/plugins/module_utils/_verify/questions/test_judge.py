# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a destination sees, beside what the policy says; and who is blamed."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.backend_names import IPTABLES_NFT
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import (
    DROPPED,
    SENT,
    Answer,
    MetRule,
    Question,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import judge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways import packet_policy
from support.node_states import state

_POD, _OUTSIDE, _EXEMPT = "10.244.1.2", "203.0.113.1", "10.9.9.9"
#: of the uplink, of the bridge of the pods
_NODE, _GATEWAY = "198.51.100.1", "10.244.1.1"
_ADDRESSES = judge.Addresses(state())
_POLICY = packet_policy.policy_of({IPV4: from_config(build({}), IPV4)})
_FIXED = packet_policy.policy_of({IPV4: from_config(build({"snat": [{"address": _NODE}]}), IPV4)})
_MASQUERADE = MetRule(IPTABLES_NFT, "ip nat", "IP-MASQ-AGENT", "-A IP-MASQ-AGENT -j MASQUERADE")


def _answer(destination: str, seen: str, link: str = "eth0", target: t.Optional[str] = None, **more: t.Any) -> Answer:
    question = Question(destination, _POD)
    return Answer(question, SENT, seen, 1024, target or destination, 80, link, **more)


@pytest.mark.parametrize(
    ("policy", "destination", "seen", "link", "says", "agrees"),
    [
        (_POLICY, _OUTSIDE, _NODE, "eth0", "node", True),
        (_POLICY, _OUTSIDE, _POD, "eth0", "pod", False),
        (_POLICY, _EXEMPT, _POD, "eth0", "pod", True),
        (_POLICY, _EXEMPT, _NODE, "eth0", "node", False),
        # MASQUERADE took the address of another link: on this one there is none.
        (_POLICY, _OUTSIDE, _GATEWAY, "eth0", _GATEWAY, False),
        (_POLICY, _OUTSIDE, "192.0.2.99", "eth0", "192.0.2.99", False),
        (_FIXED, _OUTSIDE, _NODE, "eth0", _NODE, True),
        (_FIXED, _OUTSIDE, _GATEWAY, "cni0", "node", False),
    ],
)
def test_verdict(policy: packet_policy.Policy, destination: str, seen: str, link: str, says: str, agrees: bool) -> None:
    verdict = judge.judge(policy, _ADDRESSES, _answer(destination, seen, link))
    assert verdict is not None and (verdict.seen, verdict.agrees) == (says, agrees)


def test_nothing_is_said_of_what_does_not_leave_or_has_no_known_sender() -> None:
    assert judge.judge(_POLICY, _ADDRESSES, Answer(Question(_OUTSIDE, _POD), DROPPED)) is None
    own = judge.judge(_POLICY, _ADDRESSES, Answer(Question(_OUTSIDE), SENT, _NODE, 1, _OUTSIDE, 80, "eth0"))
    assert own is not None and own.promise is None and own.agrees


def test_a_pod_that_reaches_itself_through_a_service_is_no_conflict() -> None:
    """It gets answers only as another host: the rule that hides it is needed."""
    verdict = judge.judge(_POLICY, _ADDRESSES, _answer("10.96.0.1", _GATEWAY, "cni0", target=_POD))
    assert verdict is not None and verdict.promise is None and verdict.agrees


def _blamed(answer: Answer) -> t.Optional[judge.Blame]:
    decided = judge.decide(_POLICY, _ADDRESSES, answer)
    assert decided.verdict is not None and not decided.verdict.agrees
    return decided.cause


def test_an_address_of_another_link_is_named_with_the_remedy() -> None:
    cause = _blamed(_answer(_OUTSIDE, _GATEWAY, decided_by=_MASQUERADE))
    assert cause is not None
    for word in ("eth0", _GATEWAY, "cni0", "snat"):
        assert word in cause.remedy


def test_kube_proxy_is_spared_only_where_a_service_was_translated() -> None:
    rule = MetRule(IPTABLES_NFT, "ip nat", "KUBE-POSTROUTING", "-A KUBE-POSTROUTING -j MASQUERADE")
    assert _blamed(_answer("10.96.0.1", _NODE, target="10.244.2.2", decided_by=rule)) is None
    cause = _blamed(_answer(_EXEMPT, _NODE, decided_by=rule))
    assert cause is not None and cause.owner == "kube-proxy" and "mark" in cause.remedy


def test_no_remedy_deletes_a_rule_that_a_service_may_need() -> None:
    rule = MetRule(IPTABLES_NFT, "ip nat", "POSTROUTING", "-A POSTROUTING -j MASQUERADE")
    cause = _blamed(_answer("10.96.0.1", _NODE, target="10.244.2.2", decided_by=rule))
    assert cause is not None and "delete" not in cause.remedy and "Service" in cause.remedy
