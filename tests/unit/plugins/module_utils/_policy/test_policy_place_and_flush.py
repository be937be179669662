# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options jump_position and flush_conntrack: what is read, what is refused, and with which remedy."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build, file_key
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import parse_jump_position


@pytest.mark.parametrize(
    "given", ["", "First", "before", "before:", "after: X", "behind:X", "before:-X", "after:X Y", "before:X\n", 7, None]
)
def test_what_is_no_position_is_refused(given: t.Any) -> None:
    with pytest.raises(
        ConfigError, match="is no place of the jump: give keep, first, last, before:CHAIN or after:CHAIN"
    ):
        parse_jump_position(given)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"jump_position": "after:" + "C" * 29}, "jumpPosition: 'C+' cannot be a chain's name: it has 29 characters"),
        ({"jump_position": "before:MASQUERADE"}, "jumpPosition: MASQUERADE is a target or a builtin chain of iptables"),
        (
            {"jump_position": "after:IP-MASQ-AGENT"},
            "jumpPosition: IP-MASQ-AGENT is the chain whose jump is to be placed: give another program's chain",
        ),
        (
            {"jump_position": "before:KUBE-POSTROUTING", "backend": "nftables"},
            "jumpPosition: before:KUBE-POSTROUTING needs a backend iptables_nft or iptables_legacy: set backend to one "
            "of these, or jumpPosition to first or last",
        ),
        (
            {"jump_position": "after:X", "exemption": "enforce"},
            "jumpPosition: after:X needs a backend iptables_nft or iptables_legacy, and exemption enforce needs "
            "nftables: set jumpPosition to first or last, or exemption to accept",
        ),
        ({"flush_conntrack": "all"}, "flushConntrack: 'all' is not one of none, changed"),
        ({"flush_conntrack": True}, "flushConntrack: True is not one of none, changed"),
    ],
)
def test_refused_with_the_value_and_the_remedy(values: t.Dict[str, t.Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(values, label=file_key)


@pytest.mark.parametrize("leaks", ["count", "drop"])
@pytest.mark.parametrize(
    "sources, message",
    [
        ([], "leaks: %s needs the networks of the pods: set sourceCIDRs to them, or leaks to ignore"),
        (
            ["10.0.0.0/8", "0.0.0.0/0"],
            "leaks: %s needs the networks of the pods, and sourceCIDRs has every IPv4 address: ",
        ),
        (
            ["0.0.0.0/1", "128.0.0.0/1"],
            "leaks: %s needs the networks of the pods, and sourceCIDRs has every IPv4 address: ",
        ),
        (["10.0.0.0/8", "::/0"], "leaks: %s needs the networks of the pods, and sourceCIDRs has every IPv6 address: "),
    ],
)
def test_leaks_need_the_networks_of_the_pods(leaks: str, sources: t.Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message % leaks):
        build({"leaks": leaks, "source_cidrs": sources, "enable_ipv6": True}, label=file_key)
    assert build({"leaks": "ignore", "source_cidrs": sources, "enable_ipv6": True}).leaks == "ignore"
