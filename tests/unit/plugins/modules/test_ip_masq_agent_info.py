# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that asks a node: documentation, input, what it compares. The kernel tests run it as Ansible does."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import chosen_paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._entry import info_task
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.config_file import config_text
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq_agent
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq_agent_info as module
from support.module_docs import documentation

OPTIONS = documentation(module)["options"]
EXAMPLES = yaml.safe_load(module.EXAMPLES)


@pytest.mark.parametrize("option", sorted(set(OPTIONS) | set(module.ARGUMENT_SPEC)))
def test_documentation_is_what_is_accepted(option: str) -> None:
    documented, accepted = OPTIONS[option], module.ARGUMENT_SPEC[option]
    for about in ("type", "choices", "default", "elements"):
        assert documented.get(about) == accepted.get(about), about


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_every_example_is_accepted(example: t.Dict[str, t.Any]) -> None:
    options = example["kubenode.ip_masq.ip_masq_agent_info"] or {}
    assert ArgumentSpecValidator(module.ARGUMENT_SPEC).validate(options).error_messages == []


def test_options_are_those_of_the_module_that_installs() -> None:
    other = {"state", "verify", "kubelet"}
    installs = {name: spec for name, spec in ip_masq_agent.ARGUMENT_SPEC.items() if name not in other}
    assert installs == module.ARGUMENT_SPEC


@pytest.mark.parametrize(
    "on_the_node, declared, keys",
    [
        (config_text({}), {}, []),
        (config_text({}).replace("\n", " "), {}, []),
        # Defaults that are written out mean the same, and a value in another form.
        (config_text({"cidrLimit": 64, "resyncInterval": "60s"}), {}, []),
        (config_text({}), {"toPorts": []}, []),
        (config_text({"resyncInterval": "60s", "toPorts": [1024]}), {"resyncInterval": "1m", "toPorts": ["1024"]}, []),
        (config_text({"toPorts": [1024]}), {"toPorts": []}, ["toPorts"]),
        (config_text({}), {"cidrLimit": 70, "nonMasqueradeCIDRs": "10.0.0.0/8"}, ["nonMasqueradeCIDRs", "cidrLimit"]),
        # Without a list a drop-in would replace the default one.
        ("{}", {}, ["nonMasqueradeCIDRs"]),
        # Of a file that would be refused, too, only what differs is named.
        ('{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}', {}, ["nonMasqueradeCIDRs"]),
        (None, {"masqChain": "MINE"}, ["nonMasqueradeCIDRs", "masqChain"]),
    ],
)
def test_keys_that_differ(
    tmp_path: Path, on_the_node: t.Optional[str], declared: t.Dict[str, t.Any], keys: t.List[str]
) -> None:
    if on_the_node is not None:
        (tmp_path / "config").write_text(on_the_node)
    assert info_task.differing_keys(Paths(config_dir=str(tmp_path)), config_text(declared)) == keys


def test_of_a_file_that_cannot_be_read_all_keys_that_have_a_value_differ(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{")
    keys = info_task.differing_keys(Paths(config_dir=str(tmp_path)), config_text({}))
    assert keys[0] == "nonMasqueradeCIDRs" and "masqChain" in keys


def test_bad_input_is_refused_also_where_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_paths.install, "check_paths", lambda _where: None)
    options = {name: spec.get("default") for name, spec in module.ARGUMENT_SPEC.items()}
    options.update(bin_dir=str(tmp_path), config={"nonMasqueradeCIDRs": "10.0.0.1/8"})
    refused = info_task.carry_out(options, False)
    assert refused.returned == {} and "aligned network is 10" in refused.failure
    options["config"] = json.loads(config_text({}))
    assert info_task.carry_out(options, False).returned == {"installed": False, "changed": False}
