# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which policy is in effect: that of the files, or the last valid one."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import effective_policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.effective_policy import (
    find_policy,
    read_policy,
    require_policy,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import Memory
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from support.private_node import private_paths

GOOD = {"non_masquerade_cidrs": ["10.1.0.0/16"], "masq_link_local": True}


def read_from(folder: Path) -> Paths:
    """Paths with this config_dir."""
    return private_paths(folder / "root", config_dir=str(folder))


def test_invalid_files_and_no_previous_policy_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{")
    policy = find_policy(read_from(tmp_path), Memory())
    assert policy.config is None
    assert policy.problem
    with pytest.raises(ConfigError, match="; no previous valid configuration to fall back to$"):
        require_policy(read_from(tmp_path), Memory())


def test_text_that_is_going_to_be_the_file_is_used_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{")
    policy, config = read_policy(read_from(tmp_path), Memory(), '{"masqLinkLocal": true}')
    assert policy.config == config == build({"masq_link_local": True})
    with pytest.raises(ConfigError, match="masqLinkLocal: 3 is not a boolean"):
        read_policy(read_from(tmp_path), Memory(), '{"masqLinkLocal": 3}')


def test_a_policy_of_one_text_is_refused_without_a_file(tmp_path: Path) -> None:
    text = '{"exemption": "accept"}'
    with pytest.raises(ConfigError, match="^exemption: accept also keeps .*; sourceCIDRs is not set: set"):
        read_policy(read_from(tmp_path), Memory(), text)
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "a.json").write_text('{"masqLinkLocal": true}')
    with pytest.raises(ConfigError, match="^%s: exemption: .*; sourceCIDRs is not set" % (tmp_path / "config")):
        read_policy(read_from(tmp_path), Memory(), text)


def write(folder: Path, config: str, *drop_ins: str) -> None:
    """Have a config file, and drop-ins of the names a, b and so on."""
    (folder / "config.d").mkdir()
    (folder / "config").write_text(config)
    for name, text in zip("abc", drop_ins):
        (folder / "config.d" / (name + ".json")).write_text(text)


_GOOD = '{"nonMasqueradeCIDRs": ["1%d.0.0.0/8"], "rules": [{"action": "skip", "destinations": ["10.%d.0.0/16"]}]}'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ['{"cidrLimit": 1, "nonMasqueradeCIDRs": ["10.0.0.0/8"]}', '{"nonMasqueradeCIDRs": ["11.0.0.0/8"]}'],
            "{0}/config, {0}/config.d/a.json: nonMasqueradeCIDRs: 2 entries",
        ),
        *(
            (
                [_GOOD % (1, 5), _GOOD % (1, 6), bad, '{"nonMasqueradeCIDRs": ["12.0.0.0/8"]}'],
                "{0}/config.d/b.json: " + named,
            )
            for bad, named in (
                ('{"masqLinkLocal": 3}', "masqLinkLocal: 3 is not a boolean"),
                ('{"nonMasqueradeCIDRs": ["10.4.0.0/16", "10.0.0.1/8"]}', "nonMasqueradeCIDRs: "),
                ('{"rules": [{"action": "skip", "destinations": ["10.0.0.1/8"]}]}', "rules: "),
                (
                    '{"exemption": "enforce", "backend": "iptables_nft"}',
                    "exemption: enforce needs nftables",
                ),
            )
        ),
        # One that another file overrides is not blamed.
        (['{"masqLinkLocal": 3, "enableIPv6": 4}', '{"masqLinkLocal": true}'], "{0}/config: enableIPv6: 4 is not"),
        (
            ['{"enableIPv6": 4}', '{"masqLinkLocal": true, "enableIPv6": 5}'],
            "{0}/config.d/a.json: enableIPv6: 5 is not",
        ),
        # An address that the node lacks.
        (
            ["{}", '{"snat": [{"sourceCIDRs": ["10.5.0.0/16"], "address": "192.0.2.99"}]}'],
            "{0}/config.d/a.json: .*192.0.2.99",
        ),
    ],
)
def test_error_names_the_files_that_have_the_bad_value(tmp_path: Path, files: t.List[str], message: str) -> None:
    write(tmp_path, *files)
    with pytest.raises(ConfigError, match="^" + message.format(tmp_path)):
        read_policy(read_from(tmp_path), Memory())


@pytest.mark.parametrize(
    ("config", "valid"),
    [
        ('{"enableIPv6": true}', '{"nonMasqueradeCIDRs": ["fd00::/8"]}'),
        ('{"cidrLimit": 90}', json.dumps({"nonMasqueradeCIDRs": ["10.%d.0.0/16" % number for number in range(70)]})),
    ],
)
def test_a_file_that_needs_another_one_is_not_blamed(tmp_path: Path, config: str, valid: str) -> None:
    write(tmp_path, config, valid)
    read_policy(read_from(tmp_path), Memory())
    (tmp_path / "config.d" / "b.json").write_text('{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}')
    with pytest.raises(ConfigError) as error:
        read_policy(read_from(tmp_path), Memory())
    assert str(error.value).startswith("%s/config.d/b.json: nonMasqueradeCIDRs: '10.0.0.1/8'" % tmp_path)


def test_an_unexpected_exception_counts_as_an_invalid_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to a parser, repairs go on."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise MemoryError("line\nbreak")

    monkeypatch.setattr(effective_policy, "read_directory", fail)
    policy = find_policy(read_from(tmp_path), Memory(values=GOOD))
    assert policy.config == build(GOOD)
    assert policy.problem == "%s: cannot be read (MemoryError: 'line\\nbreak'); please report this" % tmp_path
