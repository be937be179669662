# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rule of our chain decides, where exceptions, sources and interfaces matter."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import chain_decision
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import View
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import render_rule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.ip_families import IPV4

RULESET = from_config(
    build(
        {
            "non_masquerade_cidrs": ["10.0.0.0/8"],
            "masquerade_cidrs": ["10.1.0.0/16"],
            "source_cidrs": ["10.244.0.0/16"],
            "except_interfaces": ["cni0"],
            "masq_link_local": True,
        }
    ),
    IPV4,
)
FOUND = View(tuple(render_rule("C", rule) for rule in RULESET.rules), None, RULESET)
POD, CLIENT, UPLINK = "10.244.1.2", "192.0.2.7", "10.1.2.3 via 192.0.2.1 dev eth0 src 192.0.2.2"


@pytest.mark.parametrize(
    "destination, sender, route, answer, number",
    [
        ("10.9.9.9", POD, UPLINK, "in the exempt range 10.0.0.0/8: our chain exempts connections of " + POD, 3),
        ("10.1.2.3", POD, UPLINK, "in the masqueraded range 10.1.0.0/16: our chain masquerades", 2),
        ("10.1.2.3", None, "", "in the masqueraded range 10.1.0.0/16: our chain masquerades connections of the pod", 2),
        ("203.0.113.1", POD, UPLINK, "in no exempt range: our chain masquerades", 4),
    ],
)
def test_the_longest_prefix_decides(
    destination: str, sender: t.Optional[str], route: str, answer: str, number: int
) -> None:
    said, rule = chain_decision._decision(ipaddress.ip_address(destination), sender, route, FOUND)
    assert said.startswith("%s is %s" % (destination, answer))
    assert rule == "rule %d of 4: %s" % (number, FOUND.rules[number - 1])


def test_traffic_that_the_policy_is_not_about() -> None:
    destination = ipaddress.ip_address("10.9.9.9")
    (said,) = chain_decision._decision(destination, CLIENT, UPLINK, FOUND)
    assert said.startswith("10.9.9.9 by eth0: our chain is not about connections of 192.0.2.7")
    said, rule = chain_decision._decision(destination, POD, "10.9.9.9 dev cni0", FOUND)
    assert said == "10.9.9.9 by cni0: our chain is not about connections of 10.244.1.2, and leaves them to later rules"
    assert rule.startswith("rule 1 of 4: ") and "-o cni0" in rule
