# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's variables, checked on the controller: names and values."""

from __future__ import annotations

import re
import typing as t

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._role_variables import (
    OF_PLAYBOOKS,
    PREFIX,
    check_values,
    role_options,
    unknown_names,
)
from support.import_collection import location

ROLE = location() / "roles" / "ip_masq_agent"


def errors(**options: t.Any) -> t.List[str]:
    """What is wrong with these variables, named without the prefix."""
    return list(check_values({PREFIX + name: value for name, value in options.items()}).errors)


def test_every_variable_of_the_role_and_the_playbooks_is_known() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (location() / "playbooks").glob("*.yml")]
    texts += [path.read_text(encoding="utf-8") for path in ROLE.rglob("*.yml")]
    named = set(re.findall(r"\bip_masq_agent_[a-z0-9_]+", "\n".join(texts)))
    # A module and groups have our prefix too.
    named -= {
        PREFIX + name for name in ("info", "effects_to_confirm", "kubelet_up_to_date", "kubelet_to_update", "kubelet_")
    }
    assert unknown_names(named) == []
    assert set(OF_PLAYBOOKS) <= named


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("ip_masq_agent_host", "ip_masq_agent_hosts"),
        ("ip_masq_agent_non_masqerade_cidrs", "ip_masq_agent_non_masquerade_cidrs"),
        ("ip_masq_agent_nonMasqueradeCIDRs", "ip_masq_agent_non_masquerade_cidrs"),
        ("ip_masq_agent_become_user", "ip_masq_agent_become"),
        ("ip_masq_windows_wirte", "ip_masq_windows_write"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    assert unknown_names([name, "ip_masq_agent_state"]) == [
        "%s is not a variable of kubenode.ip_masq; the nearest is %s" % (name, nearest)
    ]


@pytest.mark.parametrize(
    "name, hint",
    [
        ("ip_masq_agent_cidrs", "remove it"),
        ("ip_masq_agent_foo", "remove it"),
        ("ip_masq_windows_hosts", "remove it"),
        ("ip_masq_agent_except", "the equivalent is ip_masq_agent_masquerade_cidrs"),
        (
            "ip_masq_agent_non_masquerade_src_cidrs",
            'the equivalent is ip_masq_agent_rules, with an entry {"action": "exempt", "sources": [...]}',
        ),
    ],
)
def test_an_unknown_name_that_is_near_to_none_is_not_given_another(name: str, hint: str) -> None:
    assert unknown_names([name]) == ["%s is not a variable of kubenode.ip_masq; %s" % (name, hint)]


@pytest.mark.parametrize(
    "options, refused",
    [
        ({"non_masquerade_cidrs": None}, True),
        ({"non_masquerade_cidrs": None, "nomasq_all_reserved_ranges": True}, True),
        ({"non_masquerade_cidrs": []}, False),
        ({"non_masquerade_cidrs": None, "state": "absent"}, False),
    ],
)
def test_a_list_of_exempt_ranges_that_is_null_is_not_the_default(options: t.Any, refused: bool) -> None:
    """In the file of the Go agent, which is copied to the inventory, null is the empty list."""
    message = (
        "ip_masq_agent_non_masquerade_cidrs: null could mean two things: write [] to exempt no range, or remove it "
        "for the default"
    )
    assert errors(**options) == [message] * refused


def test_names_of_others_and_the_role_s_own_are_left_alone() -> None:
    assert (
        unknown_names(["kube_pods_subnet", "ip_masq", "ip_masq_agents", "ip_masq_agent__found", "ansible_host"]) == []
    )
    assert unknown_names(["ip_masq_windows", "ip_masq_windows__found", "ip_masq_windows_write"]) == []


@pytest.mark.parametrize("limit", ["ten", -1, "10.5", True, {"hosts": 1}, ["10%", "x"]])
def test_a_limit_of_effects_that_is_none_is_refused(limit: t.Any) -> None:
    (error,) = errors(confirm_effects=limit)
    assert error.startswith("ip_masq_agent_confirm_effects: ") and "neither a share of hosts" in error


@pytest.mark.parametrize("limit", ["", None, [], "10%", 0, ["10.5%", 1000]])
def test_limits_of_effects(limit: t.Any) -> None:
    assert errors(confirm_effects=limit) == []


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"non_masquerade_cidrs": ["10.0.0.1/8"]},
            "ip_masq_agent_non_masquerade_cidrs: '10.0.0.1/8' has host bits set: the aligned network is 10.0.0.0/8",
        ),
        (
            {"non_masquerade_cidrs": ["fd00::/8"]},
            "ip_masq_agent_non_masquerade_cidrs: fd00::/8 is IPv6, and IPv6 is off: set ip_masq_agent_enable_ipv6 to",
        ),
        (
            {"non_masquerade_cidrs": ["10.0.0.0/8", "11.0.0.0/8"], "cidr_limit": 1},
            "ip_masq_agent_non_masquerade_cidrs: 2 entries are more than ip_masq_agent_cidr_limit (1) allows",
        ),
        (
            {"exemption": "enforce", "backend": "iptables_nft"},
            "ip_masq_agent_exemption: enforce needs nftables, not iptables_nft: set ip_masq_agent_backend",
        ),
        ({"cidr_limit": "many"}, "'ip_masq_agent_cidr_limit' is of type "),
        ({"backend": "nft"}, "value of ip_masq_agent_backend must be one of: auto, iptables_nft, iptables_legacy, nft"),
        # It was a boolean once, and false did not mean never.
        ({"install_packages": False}, "value of ip_masq_agent_install_packages must be one of: never, missing, always"),
        ({"config_dir": "/etc/my agent"}, "ip_masq_agent_config_dir: invalid path '/etc/my agent': "),
        (
            {
                "cluster_cidrs": ["10.233.64.0/18", "10.1.0.0/16"],
                "masquerade_cidrs": ["10.1.0.0/16"],
                "non_masquerade_cidrs": ["10.0.0.0/8", "10.1.128.0/17"],
            },
            "10.1.0.0/17 (part of 10.1.0.0/16) of ip_masq_agent_cluster_cidrs would be masqueraded: add it to "
            "ip_masq_agent_non_masquerade_cidrs, or remove it from ip_masq_agent_masquerade_cidrs",
        ),
        (
            {"cluster_cidrs": ["10.233.64.0/18", "100.64.0.0/10"]},
            "100.64.0.0/10 of ip_masq_agent_cluster_cidrs would be masqueraded: add it to ip_masq_agent_non_masquerade",
        ),
        # 192.0.2.2/31 is in no inventory.
        (
            {"cluster_cidrs": ["192.0.2.3/32", "192.0.2.2/32", *("203.0.113.%d/32" % (2 * n) for n in range(9))]},
            "192.0.2.3/32, 192.0.2.2/32, 203.0.113.0/32, 203.0.113.2/32, 203.0.113.4/32 and 6 more of ip_masq_agent_"
            "cluster_cidrs would be masqueraded: add them to ip_masq_agent_non_masquerade_cidrs",
        ),
    ],
)
def test_bad_values_are_refused_by_the_name_of_the_variable(options: t.Dict[str, t.Any], message: str) -> None:
    (error,) = errors(**options)
    assert message in error
    for key in ("nonMasqueradeCIDRs", "cidrLimit", "enableIPv6"):
        assert key not in error


def test_the_names_are_those_of_the_argument_specification() -> None:
    assert (
        role_options()
        == yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]["main"][
            "options"
        ]
    )
