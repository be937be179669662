# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of others in POSTROUTING are remarked on when they take traffic from us or masquerade what we exempt."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import converge
from support import engine
from support.nat import Nat
from support.random_policies import CHAIN, JUMP

MASQUERADES = "it can masquerade exempt traffic"
TAKES = "matching traffic bypasses the managed chain"


def remarks(
    before: t.Sequence[str], behind: t.Sequence[str], exemption: str = "return", policy: str = "ACCEPT"
) -> t.List[str]:
    asked = {"exemption": exemption}
    chains = {CHAIN: engine.healthy(asked), "POSTROUTING": [*before, JUMP, *behind], "KUBE-POSTROUTING": [], "X": []}
    nat = Nat(chains=chains)
    nat.policy = policy
    plan = converge(engine.backend(nat), engine.ruleset(asked)).plan
    assert not plan.actions
    return [one.text for one in plan.remarks if one.source is None]


@pytest.mark.parametrize("rule", ["-o eth1 -j MASQUERADE", "-d 10.0.0.0/8 -j SNAT --to-source 192.0.2.1"])
@pytest.mark.parametrize("exemption, behind_matters", [("return", True), ("accept", False)])
def test_a_masquerade_before_us_always_counts_one_behind_us_only_after_return(
    rule: str, exemption: str, behind_matters: bool
) -> None:
    (early,) = remarks([rule], [], exemption)
    assert rule in early and "before the jump" in early and MASQUERADES in early
    late = remarks([], [rule], exemption)
    assert len(late) == behind_matters
    assert all(rule in remark and "after the jump" in remark and MASQUERADES in remark for remark in late)


@pytest.mark.parametrize("verdict", ["ACCEPT", "RETURN"])
def test_a_verdict_before_us_takes_traffic_and_one_behind_us_does_not(verdict: str) -> None:
    rule = "-p tcp -j " + verdict
    (early,) = remarks([rule], [])
    assert rule in early and TAKES in early
    assert remarks([], [rule]) == []


@pytest.mark.parametrize("target", ["MASQUERADE", "ACCEPT"])
def test_a_rule_for_one_source_is_reported_with_it(target: str) -> None:
    """As ufw's documentation has it; whether pods have the source is known elsewhere."""
    rule = "-s 10.244.0.0/16 -o eth0 -j " + target
    plan = converge(engine.backend(Nat(chains={
        CHAIN: engine.healthy({}), "POSTROUTING": [rule, JUMP], "KUBE-POSTROUTING": [],
    })), engine.ruleset({})).plan  # fmt: skip
    (found,) = plan.remarks
    assert rule in found.text and "before the jump" in found.text
    assert str(found.source) == "10.244.0.0/16"


def test_a_return_of_all_unmarked_traffic_takes_it() -> None:
    (early,) = remarks(["-m mark ! --mark 0x4000/0x4000 -j RETURN"], [])
    assert TAKES in early


@pytest.mark.parametrize("exemption", ["return", "accept"])
def test_a_policy_of_drop_is_reported(exemption: str) -> None:
    (remark,) = remarks([], [], exemption, policy="DROP")
    assert remark.startswith("the policy of POSTROUTING is DROP: ")
