# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies that take more rules than an iptables chain should have are refused, with the backend that can."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_backend import IptablesState
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from support import engine
from support.nat import Nat

RANGES = ["11.%d.%d.0/24" % divmod(number, 256) for number in range(1, 5000, 2)]


@pytest.mark.parametrize(
    "options, refused",
    [
        ({"non_masquerade_cidrs": RANGES, "cidr_limit": 5000}, False),
        ({"non_masquerade_cidrs": RANGES, "cidr_limit": 5000, "source_cidrs": ["10.1.0.0/16"]}, False),
        ({"non_masquerade_cidrs": RANGES, "cidr_limit": 5000, "source_cidrs": ["10.1.0.0/16", "10.3.0.0/16"]}, True),
        (
            {"rules": [{"action": "skip", "destinations": RANGES[:60], "ports": ["1-2", 5]}] * 12, "cidr_limit": 99},
            False,
        ),
        (
            {
                "rules": [
                    {"action": "skip", "sources": [one], "destinations": RANGES[:60], "ports": ["1-2", 5]}
                    for one in RANGES[:12]
                ],
                "cidr_limit": 99,
            },
            True,
        ),
    ],
)
def test_too_many_combinations_are_refused(options: object, refused: bool) -> None:
    wanted = from_config(build(dict(options)), IPV4)  # type: ignore[call-overload]
    backend = engine.backend(Nat("iptables_legacy"))
    if not refused:
        assert backend.plan(IptablesState(), wanted).actions
        return
    with pytest.raises(NodeError, match="the policy takes .* rules, more than 4096, .* or set backend to nftables"):
        backend.plan(IptablesState(), wanted)
