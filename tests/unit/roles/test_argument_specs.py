# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's variables: documented, of the same defaults everywhere, and those of the module."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import backend_choice
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError, ProgramMissingError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.config_file import parse
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import (
    BACKENDS,
    DEFAULTS,
    EXEMPTIONS,
    POLICY_OPTIONS,
    build,
    file_key,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import process
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._role_variables import config_file_keys
from support.import_collection import location
from support.templates import template

PREFIX = "ip_masq_agent_"
ROLE = location() / "roles" / "ip_masq_agent"
#: Options of the module ip_masq that have another way in the role: the file is what the role writes.
NOT_MIRRORED = {"config_file"}


def read(path: str) -> t.Any:
    """A file of the role."""
    return yaml.safe_load((ROLE / path).read_text(encoding="utf-8"))


DEFAULTS_FILE = read("defaults/main.yml")
SPEC = read("meta/argument_specs.yml")["argument_specs"]["main"]["options"]
VARS = read("vars/main.yml")


def module_spec(name: str) -> t.Dict[str, t.Any]:
    """The argument specification of a module of the collection."""
    return importlib.import_module("ansible_collections.kubenode.ip_masq.plugins.modules." + name).ARGUMENT_SPEC


def templated(value: t.Any, **variables: t.Any) -> t.Any:
    """A value as Ansible sees it, with the role's defaults and variables."""
    return template(value, {**DEFAULTS_FILE, **VARS, **variables})


POLICY = {PREFIX + option.name: option for option in POLICY_OPTIONS}


@pytest.mark.parametrize(
    "name", sorted(set(DEFAULTS_FILE) | {name for name in SPEC if "default" in SPEC[name] and name not in POLICY})
)
def test_defaults_are_those_documented(name: str) -> None:
    assert name in SPEC, "not in meta/argument_specs.yml"
    assert SPEC[name]["default"] == DEFAULTS_FILE[name]
    assert type(SPEC[name]["default"]) is type(DEFAULTS_FILE[name])


@pytest.mark.parametrize("name", sorted(SPEC))
def test_every_variable_is_the_role_s_own_and_described(name: str) -> None:
    assert name.startswith(PREFIX)
    assert SPEC[name]["description"]


@pytest.mark.parametrize("name", sorted(POLICY))
def test_every_policy_option_has_a_variable_documented_as_its_record_says(name: str) -> None:
    option, documented = POLICY[name], SPEC[name]
    assert documented["type"] == option.type
    assert documented.get("choices") == (list(option.choices) if option.choices else None)
    assert documented.get("default") == (list(option.default) if option.default == () else option.default)
    assert name not in DEFAULTS_FILE, "the default is that of the record"


@pytest.mark.parametrize("option", sorted(set(module_spec("ip_masq")) - NOT_MIRRORED))
def test_every_option_of_the_module_has_its_variable(option: str) -> None:
    ours, theirs = SPEC[PREFIX + option], module_spec("ip_masq")[option]
    assert ours["type"] == theirs["type"]
    assert ours.get("choices") == theirs.get("choices")
    if "default" in ours:
        assert ours["default"] == (theirs.get("default") if ours["type"] != "list" else [])
    else:
        assert "default" not in theirs


#: Options that the role sets itself, or for which it has several variables.
OF_ROLE = {"config", "applied_by", "verify", "verify_before", "kubelet"}


@pytest.mark.parametrize("option", sorted(set(module_spec("ip_masq_agent")) - OF_ROLE))
def test_every_option_of_the_agent_s_module_has_its_variable(option: str) -> None:
    assert SPEC[PREFIX + option].get("default") == module_spec("ip_masq_agent")[option].get("default")


@pytest.mark.parametrize("name", sorted(name for name in SPEC if name.startswith(PREFIX + "kubelet_")))
def test_every_variable_for_the_kubelet_is_an_option_of_its_module(name: str) -> None:
    theirs = module_spec("kubelet_masquerade")[name[len(PREFIX + "kubelet_") :]]
    assert SPEC[name].get("default", theirs.get("default")) == theirs.get("default")
    assert SPEC[name].get("choices") == theirs.get("choices")


def config(**variables: t.Any) -> t.Dict[str, t.Any]:
    """What the role hands to the module as the config file."""
    handed = config_file_keys({PREFIX + name: value for name, value in variables.items()})
    return t.cast(t.Dict[str, t.Any], json.loads(json.dumps(handed)))


def policy(**variables: t.Any) -> t.Any:
    """The policy that the role's variables lead to."""
    return build(parse(json.dumps(config(**variables)), "config").values, label=file_key)


def test_defaults_lead_to_the_default_policy() -> None:
    assert policy() == build({})


def test_every_key_of_the_file_is_handed_over_where_it_says_something() -> None:
    assert set(config(non_masquerade_cidrs=[])) == {key.key for key in POLICY_OPTIONS if not key.sparse}
    handed = config(skip_marks=["1"], snat=[{"address": "192.0.2.7"}], snat_missing="keep", rules=[])
    assert {key for key in handed if key in ("skipMarks", "snat", "snatMissing", "rules")} == {
        "skipMarks",
        "snat",
        "snatMissing",
    }
    handed = config(jump_position="keep", flush_conntrack="changed")
    assert handed["flushConntrack"] == "changed" and "jumpPosition" not in handed
    handed = config(jump_position="first", flush_conntrack="none")
    assert handed["jumpPosition"] == "first" and "flushConntrack" not in handed


@pytest.mark.parametrize(
    "option, value",
    [
        ("non_masquerade_cidrs", ["10.1.0.0/16", "172.20.0.0/16"]),
        ("non_masquerade_cidrs", []),
        ("masq_link_local", True),
        ("masq_chain", "MINE"),
        ("random_fully", False),
        ("to_ports", ["1024-29999", "32768"]),
        ("resync_interval", "5m"),
    ],
)
def test_every_variable_does_what_it_says(option: str, value: t.Any) -> None:
    assert policy(**{option: value}) == build({option: value})
    assert policy(**{option: value}) != policy()


def test_limit_is_handed_over() -> None:
    cidrs = ["10.%d.0.0/17" % number for number in range(65)]
    assert len(policy(non_masquerade_cidrs=cidrs, cidr_limit=65).non_masquerade_cidrs) == 65
    assert DEFAULTS["cidr_limit"] == 64


@pytest.mark.parametrize("text, value", [("true", True), ("no", False), ("False", False), ("1", True)])
def test_extra_variables_are_text_and_become_what_they_mean(text: str, value: bool) -> None:
    assert policy(enable_ipv6=text).enable_ipv6 is value
    assert policy(cidr_limit="70") == policy()


@pytest.mark.parametrize("exemption", EXEMPTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_package_is_the_one_that_the_module_names(
    monkeypatch: pytest.MonkeyPatch, backend: str, exemption: str
) -> None:
    monkeypatch.setattr(process, "search_path", lambda: "")
    asked = config(backend=backend, exemption=exemption)
    if backend in ("auto", "nftables"):  # nftables needs no program
        assert backend_choice.choose(Node(run), backend, exemption).name == "nftables"
        return
    with pytest.raises(NodeError) as refused:
        backend_choice.choose(Node(run), backend, exemption)
    if isinstance(refused.value, ProgramMissingError):
        assert templated(VARS["ip_masq_agent__packages"], ip_masq_agent__config=asked) == [refused.value.package]
    else:
        assert "set backend to auto" in str(refused.value)


@pytest.mark.parametrize("question", [False, True], ids=["update", "question"])
def test_every_option_for_the_kubelet_has_a_variable_that_reaches_the_module(question: bool) -> None:
    task, *_verification = read("tasks/kubelet.yml")
    passed = VARS["ip_masq_agent__kubelet_options"] if question else task["kubenode.ip_masq.kubelet_masquerade"]
    assert set(passed) == set(module_spec("kubelet_masquerade"))
    for option, value in passed.items():
        assert PREFIX + "kubelet_" + option in SPEC
        assert PREFIX + "kubelet_" + option in value


def test_ansible_doc_shows_ipv6_ranges_whole() -> None:
    """It takes a double colon in plain text for markup."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-doc")), "-t", "role", "kubenode.ip_masq.ip_masq_agent"],
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(location().parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "fe80::/10" in done.stdout
