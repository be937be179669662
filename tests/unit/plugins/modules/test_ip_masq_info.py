# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module's documentation, options, examples and return values agree with its code."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import ports
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.backend_names import NFTABLES
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import rules_info_task
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import Answer, MetRule, Question
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import inspection
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import judge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions.explanation import Explained
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions.verification import Conflict
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways import packet_policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.words import concerned, explanations, health
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq, ip_masq_info
from support.node_states import state

RETURN: t.Dict[str, t.Any] = yaml.safe_load(ip_masq_info.RETURN)


def test_policy_options_are_those_of_ip_masq() -> None:
    """Without defaults: what is not given is not compared."""
    theirs = {
        name: {key: value for key, value in option.items() if key != "default"}
        for name, option in ip_masq.ARGUMENT_SPEC.items()
        if name not in ("state", "lock_timeout", "config_file")
    }
    assert theirs == rules_info_task.POLICY_SPEC


def test_documented_codes_are_the_codes() -> None:
    modules = (concerned, inspection, health, ports, rules_info_task)
    code = "".join(Path(module.__file__ or "").read_text() for module in modules)
    used = set(re.findall(r'(?:Health\(\s*|yield )"(\w+)"', code))
    used.update(getattr(inspection, name) for name in re.findall(r"Health\(\s*([A-Z]+)\b", code))
    described = " ".join(RETURN["health"]["contains"]["code"]["description"])
    assert used == set(re.findall(r"C\((\w+)\)", described)) and used


def test_documented_explanations_are_the_explanations() -> None:
    rule = MetRule(NFTABLES, "ip t", "c", "masquerade")
    answer = Answer(Question("10.0.0.1", "10.244.1.2"), "sent", "192.0.2.1", 1, "10.0.0.1", 80, "eth0", decided_by=rule)
    policy = packet_policy.policy_of({})
    decided = judge.decide(policy, judge.Addresses(state()), answer)
    found = explanations.explanation(policy, Explained((decided,)))
    documented = RETURN["explanations"]["contains"]
    # Names of pods are returned if the node knows any.
    assert set(found) == set(documented) - {"pod"}
    assert set(found["decided_by"]) == set(documented["decided_by"]["sample"])
    conflict = Conflict(("10.0.0.0/8", "fd00::/8"), "pod", "node", rule, "unknown", "error", "", (), ())
    each = explanations.conflict(conflict)
    assert [one["range"] for one in each] == ["10.0.0.0/8", "fd00::/8"]
    assert all(set(one) == set(RETURN["conflicts"]["contains"]) - {"pods"} for one in each)
