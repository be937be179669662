# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that installs the agent: documentation, input, return values. The kernel tests run it as Ansible does."""

from __future__ import annotations

import datetime
import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.install import FileChange, InstallResult
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Action, ActionKind, Plan, View
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Change, Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.config_file import config_text, parse
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.drop_ins import merge, read_directory
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import POLICY_OPTIONS, RESERVED_CIDRS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.agent_result import as_return
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq_agent as module
from support.module_docs import documentation

OPTIONS = documentation(module)["options"]
EXAMPLES = yaml.safe_load(module.EXAMPLES)
CIDRS = "non_masquerade_cidrs"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_the_policy_of_every_example_can_be_written(example: t.Dict[str, t.Any]) -> None:
    assert config_text(example["kubenode.ip_masq.ip_masq_agent"].get("config", {}))


def test_keys_are_written_as_the_documentation_says() -> None:
    text = " ".join(OPTIONS["config"]["description"])
    keys = {option.name: option.key for option in POLICY_OPTIONS}
    assert set(re.findall(r"C\(([a-z]+[A-Z]\w*)\)", text)) <= set(keys.values())
    assert [name for name in keys if name not in ip_masq.ARGUMENT_SPEC] == ["resync_interval", "port_metrics"]
    for name, key in keys.items():
        assert re.sub("[^a-z0-9]", "", name.lower()) == key.lower()


class TestConfigText:
    """config_file.config_text"""

    @pytest.mark.parametrize(
        "config, named",
        [
            ({}, ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]),
            ({"nomasqAllReservedRanges": True}, list(RESERVED_CIDRS)),
            ({"nonMasqueradeCIDRs": []}, []),
            ({"NonMasqueradeCIDRs": None}, None),
        ],
    )
    def test_the_default_list_is_named_so_that_a_drop_in_adds_to_it(
        self, config: t.Dict[str, t.Any], named: t.Any, tmp_path: Path
    ) -> None:
        text = config_text(config)
        written = {key.lower(): value for key, value in json.loads(text).items()}
        assert written["nonmasqueradecidrs"] == named
        assert parse(text, "config").values == dict(parse(json.dumps(config), "config").values, **{CIDRS: named or []})
        (tmp_path / "config.d").mkdir()
        (tmp_path / "config.d" / "20-lab.json").write_text('{"nonMasqueradeCIDRs": ["198.18.0.0/15"]}')
        document = merge(read_directory(str(tmp_path), text))
        united = list(named or [])
        assert document.values[CIDRS] == united + [cidr for cidr in ["198.18.0.0/15"] if cidr not in united]
        assert document.notes == ()

    @pytest.mark.parametrize(
        "config, message",
        [
            ({"nonMasqueradeCIDR": []}, "the key 'nonMasqueradeCIDR' is not known; the nearest known key is nonMasq"),
            ({"non_masquerade_cidrs": []}, "the nearest known key is nonMasqueradeCIDRs"),
            ({"nonMasqueradeCIDRs": ["10.0.0.1/8"]}, "nonMasqueradeCIDRs: '10.0.0.1/8' has host bits set"),
            ({"resyncInterval": datetime.date(2026, 1, 1)}, "a value cannot be written as JSON"),
            ({"cidrLimit": 1, "CIDRLIMIT": 2}, "duplicate key cidrLimit"),
        ],
    )
    def test_bad_input_is_refused_with_the_remedy(self, config: t.Dict[str, t.Any], message: str) -> None:
        with pytest.raises(ConfigError) as error:
            config_text(config)
        assert message in str(error.value)


class TestReturn:
    """agent_result.as_return"""

    @pytest.mark.parametrize(
        "done",
        [
            InstallResult((FileChange("/etc/x", "old\n", "new\n"),), ()),
            InstallResult((), ("start: ip-masq-agent.timer",)),
        ],
        ids=["a file", "a unit"],
    )
    def test_whatever_was_done_is_a_change(self, done: InstallResult) -> None:
        returned = as_return(done, present=True)
        assert returned["changed"] is True and len(returned["diff"]) == 1

    def test_diff_begins_with_the_rules_and_has_a_line_for_each_unit_that_comes_or_goes(self) -> None:
        action = Action(ActionKind.JUMP_ADDED, "-A POSTROUTING -j C")
        plan = Plan((action,), "", (), ("-A POSTROUTING -j C",), View(("-A C -j MASQUERADE",), "-A POSTROUTING -j C"))
        result = Result("iptables_nft", "1.8.9", (Change("ipv4", "iptables_nft", plan, t.cast(t.Any, None)),), (), ())
        files = (
            FileChange("/etc/ip-masq-agent/config", None, "{}\n"),
            FileChange("/etc/systemd/system/ip-masq-agent.timer", None, "[Timer]\n"),
            FileChange("/etc/systemd/system/ip-masq-agent.path", "[Path]\n", None),
            FileChange("/etc/systemd/system/ip-masq-agent.service", "[Service]\n", "[Unit]\n"),
        )
        rules, config, service, rest = as_return(
            InstallResult(files, ("start: ip-masq-agent.timer",), result), present=True
        )["diff"]
        assert rules["after_header"] == "rules" and "-A POSTROUTING -j C" in rules["after"]
        assert (config["before"], config["after"], config["after_header"]) == ("", "{}\n", "/etc/ip-masq-agent/config")
        assert (service["before"], service["after"]) == ("[Service]\n", "[Unit]\n")
        assert rest["after"].splitlines() == [
            "file written: /etc/systemd/system/ip-masq-agent.timer",
            "file removed: /etc/systemd/system/ip-masq-agent.path",
            "start: ip-masq-agent.timer",
        ]
