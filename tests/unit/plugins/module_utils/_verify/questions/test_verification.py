# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verification makes of answers that chance varies."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.regions import Region
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.backend_names import IPTABLES_NFT
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import SENT, Answer, Question
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import MetRule as Printed
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import judge, verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways import packet_policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.ways import DELIVERED, Target, Way
from support.node_states import state

_QUESTION = Question("203.0.113.1", "10.244.1.2")
_KEPT = Answer(_QUESTION, SENT, "198.51.100.1", 1024, "203.0.113.1", 80, "eth0")
_MADE = Printed(IPTABLES_NFT, "ip nat", "POSTROUTING", "-A POSTROUTING -j ACCEPT")
_BROKEN = _KEPT._replace(source="10.244.1.2", decided_by=_MADE)


class _Twin:
    """Answers as chance has it: every few questions in another way."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.asked = 0

    def ask(self, questions: t.Sequence[Question], explain: bool = False) -> t.List[Answer]:
        assert explain
        self.asked += len(questions)
        broken = self.every and self.asked % self.every == 0
        return [_KEPT._replace(alternatives=(_BROKEN if broken else _KEPT,)) for _question in questions]


@pytest.mark.parametrize("every", [1, 2, 30, 0], ids=["always", "every other", "rarely", "never again"])
def test_an_order_that_broke_the_policy_once_is_not_forgotten(every: int) -> None:
    """Once an order was seen to break the policy, one answer that keeps it is no proof that all do."""
    run = object.__new__(verification._Run)
    run.policy = packet_policy.policy_of({IPV4: from_config(build({}), IPV4)})
    run._remembers = False
    run.addresses = judge.Addresses(state())
    run.twin = t.cast(t.Any, _Twin(every))
    known = _KEPT._replace(alternatives=(_BROKEN,))
    assert run._depends_on_order(Way(0, (), (), DELIVERED, None, None, None), known)


def test_pods_that_reach_themselves_are_not_judged() -> None:
    """No policy is about their packets; those that chance sends on are of another way."""
    pod, other, ports = ((5, 5),), ((6, 6),), ((0, 65535),)

    def judged(source: t.Any, *targets: t.Any, **more: t.Any) -> bool:
        regions = (Region(0, source, other, ports, ports),)
        way = Way(0, regions, (), DELIVERED, None, None, None, tuple(Target(one, None, ()) for one in targets), **more)
        return verification._is_judged(way)

    assert not judged(pod, pod)
    assert [verification._sent(Region(0, pod, (*to, *other), ports, ports))[2] for to in (pod, ())] == [other, other]
    assert all((judged(pod), judged(pod, other), judged(pod, pod, other), judged(pod, None)))
    assert all((judged((*pod, *other), (*pod, *other)), judged(pod, pod, tied=True)))
