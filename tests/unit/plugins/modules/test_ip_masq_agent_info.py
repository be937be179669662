# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that asks a node: documentation, input, what it compares. The kernel tests run it as Ansible does."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import removal
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError, ProgramMissingError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.config_file import config_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.backend_names import NFTABLES, VARIANTS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import agent_info_task, node_paths
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq_agent
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq_agent_info as module
from support.private_node import private_paths


def test_options_are_those_of_the_module_that_installs() -> None:
    other = {"state", "applied_by", "verify", "verify_before", "connection_log", "kubelet"}
    installs = {name: spec for name, spec in ip_masq_agent.ARGUMENT_SPEC.items() if name not in other}
    assert installs == module.ARGUMENT_SPEC


def test_both_values_of_what_differs_are_shown(tmp_path: Path) -> None:
    node: t.Dict[str, t.Any] = {
        "nonMasqueradeCIDRs": ["10.0.0.0/8", "FD00::/8", "100.64.0.0/10", "10.0.0.1/8"],
        "resyncInterval": "5m",
        "exemption": "enforce",
        "toPorts": ["1024-2048"],
        "rules": [{"destinations": ["10.9.0.0/16"], "action": "masquerade"}],
        "enableIPv6": True,
    }
    (tmp_path / "config").write_text(json.dumps(node))
    declared = {
        "nonMasqueradeCIDRs": "fd00::/8,10.0.0.0/8,172.16.0.0/12," + ",".join("192.168.%d.0/24" % n for n in range(9)),
        "sourceCIDRs": ["10.244.0.0/16"],
        "enableIPv6": True,
    }
    found = agent_info_task.differences(Paths(config_dir=str(tmp_path)), config_text(declared))
    shown = ", ".join(["172.16.0.0/12"] + ["192.168.%d.0/24" % number for number in range(4)])
    assert {key: (both["node"], both["config"]) for key, both in found.items()} == {
        # In the notation of the policy: fd00::/8 is in both. What is invalid is quoted.
        "nonMasqueradeCIDRs": ("100.64.0.0/10, '10.0.0.1/8'", shown + " and 5 more"),
        "toPorts": ("1024-2048", "none"),
        "exemption": ("enforce", "return"),
        "sourceCIDRs": ("none", "10.244.0.0/16"),
        "rules": ('{"destinations": ["10.9.0.0/16"], "action": "masquerade"}', "none"),
        "resyncInterval": ("5m", "60s"),
    }


def test_a_file_without_the_list_has_it_not_set(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{}")
    found = agent_info_task.differences(Paths(config_dir=str(tmp_path)), config_text({}))
    assert found["nonMasqueradeCIDRs"] == {"node": "not set", "config": "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16"}


def test_of_a_file_that_cannot_be_read_all_keys_that_have_a_value_differ(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{")
    keys = list(agent_info_task.differences(Paths(config_dir=str(tmp_path)), config_text({})))
    assert keys[0] == "nonMasqueradeCIDRs" and "masqChain" in keys


def test_bad_input_is_refused_also_where_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_paths.install, "check_paths", lambda _where: None)
    options = {name: spec.get("default") for name, spec in module.ARGUMENT_SPEC.items()}
    options.update(bin_dir=str(tmp_path), config={"nonMasqueradeCIDRs": "10.0.0.1/8"})
    refused = agent_info_task.carry_out(options, False)
    assert refused.returned == {} and "aligned network is 10" in refused.failure
    options["config"] = json.loads(config_text({}))
    monkeypatch.setattr(agent_info_task, "_left", lambda *_of: {"notes": ["x"]})
    returned = agent_info_task.carry_out(options, False).returned
    assert returned == {"installed": False, "changed": False, "notes": ["x"]}


_BACKENDS = (*VARIANTS, NFTABLES)
_ACTIONS = [{"family": "ipv4", "backend": name, "action": "chain removed", "rule": "-N X"} for name in _BACKENDS]

_STUCK = "a removal would fail: cannot remove X"


@pytest.mark.parametrize(
    ("raised", "others", "expected"),
    [
        (None, False, {"rules_left": _ACTIONS, "notes": ["searched for IP-MASQ-AGENT"], "problems": [_STUCK]}),
        # The chain of a running agent of another maker has the same name. The table has not.
        (None, True, {"rules_left": _ACTIONS[2:], "notes": ["searched for "], "problems": [_STUCK]}),
        (ProgramMissingError("no backend", "iptables"), False, {"rules_left": [], "notes": [], "problems": []}),
        (
            NodeError("requires root"),
            False,
            {"rules_left": [], "notes": [], "problems": ["a removal would fail: requires root"]},
        ),
    ],
    ids=["left", "of another maker", "no backend", "not read"],
)
def test_what_is_left_where_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: t.Any, others: bool, expected: t.Dict[str, t.Any]
) -> None:
    def reconcile(*_arguments: t.Any, present: bool, check: bool, effects: bool, **_more: t.Any) -> Result:
        assert (present, check, effects) == (False, True, False)
        if raised:
            raise raised
        return Result("iptables_nft", "1.8.9", (), ("cannot remove X",), ())

    monkeypatch.setattr(Result, "action_data", lambda _self: _ACTIONS)
    monkeypatch.setattr(removal, "reconcile", reconcile)
    monkeypatch.setattr(removal.saved_rules, "notes", lambda chains: ("searched for " + ", ".join(chains),))
    monkeypatch.setattr(removal.other_agents_running, "running", lambda: iter(["another"] * others))
    assert agent_info_task._left(Node(run), private_paths(tmp_path), None) == expected
