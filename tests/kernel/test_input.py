# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input is refused with the value and the remedy, before anything is touched."""

from __future__ import annotations

import typing as t

import pytest
from support.modules import refused, run_module
from support.namespaces import Namespace
from support.variants import Variant, pristine, snapshot

#: What is refused: tests/unit, test_ip_masq.py and test_policy.py.
CASES: t.Dict[str, t.Dict[str, t.Any]] = {
    "a bad range": {"non_masquerade_cidrs": ["10.0.0.0/8", "10.0.0.1/8"]},
    "a rule in a line break": {"non_masquerade_cidrs": ["10.0.0.0/8\n-A POSTROUTING -j ACCEPT"]},
    "a chain of iptables": {"masq_chain": "POSTROUTING"},
    "a chain with a line break": {"masq_chain": "X\n-A POSTROUTING -j ACCEPT"},
}


@pytest.mark.parametrize("case", CASES)
def test_refused_input_leaves_the_rules_in_force(ns: Namespace, variant: Variant, case: str) -> None:
    chain = "IP-MASQ-AGENT"
    variant.load(ns, "ipv4", ":%s - [0:0]" % chain, "-A %s -j MASQUERADE" % chain, "-A POSTROUTING -j " + chain)
    before = snapshot(ns)
    refused(ns, backend=variant.backend, **CASES[case])
    assert snapshot(ns) == before


@pytest.mark.parametrize("check", [True, False])
def test_nothing_is_touched(ns: Namespace, check: bool) -> None:
    for options in ({}, {"state": "absent"}):
        result = run_module(ns, check=check, masq_chain="POSTROUTING", **options)
        assert result["failed"] is True and "POSTROUTING" in result["msg"]
        assert pristine(snapshot(ns))
