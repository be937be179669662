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

Case = t.Tuple[t.Dict[str, t.Any], t.List[str]]


def _cidrs(value: t.Any, *needles: str, **more: t.Any) -> Case:
    return dict(more, non_masquerade_cidrs=[value]), [*needles]


#: name -> options, and what the message must hold. What each kind of value refuses: tests/unit, test_values.py.
CASES: t.Dict[str, Case] = {
    "host bits": _cidrs("10.0.0.1/8", "10.0.0.1/8", "10.0.0.0/8"),
    "blanks": _cidrs("10.0.0.0/8 -j ACCEPT", "10.0.0.0/8 -j ACCEPT"),
    "line break": _cidrs("10.0.0.0/8\n-A POSTROUTING -j ACCEPT", "10.0.0.0/8"),
    "IPv6 while it is off": _cidrs("fc00::/7", "fc00::/7", "enable_ipv6"),
    "null entry": _cidrs(None, "non_masquerade_cidrs"),
    "boolean": _cidrs(True, "non_masquerade_cidrs"),
    "mapping in a list": _cidrs({"cidr": "10.0.0.0/8"}, "non_masquerade_cidrs"),
    "mapping": ({"non_masquerade_cidrs": {"10.0.0.0/8": None}}, ["non_masquerade_cidrs"]),
    "the last of many": (
        {"non_masquerade_cidrs": ["10.0.0.0/8", "192.168.0.0/16", "172.16.0.1/12"]},
        ["172.16.0.1/12", "172.16.0.0/12"],
    ),
    "too many": ({"non_masquerade_cidrs": ["10.%d.0.0/16" % i for i in range(65)]}, ["65", "64", "cidr_limit"]),
    "limit of one": ({"non_masquerade_cidrs": ["10.0.0.0/9"] * 2, "cidr_limit": 1}, ["2", "1", "cidr_limit"]),
    "limit below zero": ({"cidr_limit": -1}, ["cidr_limit", "-1"]),
    "limit no number": ({"cidr_limit": "many"}, ["cidr_limit", "many"]),
    "chain builtin": ({"masq_chain": "POSTROUTING"}, ["masq_chain", "POSTROUTING"]),
    "chain with a line break": ({"masq_chain": "X\n-A POSTROUTING -j ACCEPT"}, ["masq_chain"]),
    "port 70000": ({"to_ports": ["70000"]}, ["to_ports", "70000", "65535"]),
    "second range bad": ({"to_ports": ["1024-2048", "9-8"]}, ["to_ports", "9-8"]),
    "lock_timeout below zero": ({"lock_timeout": -1}, ["lock_timeout", "-1"]),
    "lock_timeout no number": ({"lock_timeout": "soon"}, ["lock_timeout", "soon"]),
    "state unknown": ({"state": "gone"}, ["gone", "absent"]),
    "backend unknown": ({"backend": "ipchains"}, ["ipchains", "iptables_nft"]),
    "boolean unknown": ({"enable_ipv6": "perhaps"}, ["enable_ipv6", "perhaps"]),
    "option unknown": ({"non_masquerade_cidr": []}, ["non_masquerade_cidr"]),
    "file and list": ({"config_file": "/c", "non_masquerade_cidrs": []}, ["config_file", "non_masquerade_cidrs"]),
    "file and limit": ({"config_file": "/c", "cidr_limit": 5}, ["config_file", "cidr_limit"]),
    "file and link-local": ({"config_file": "/c", "masq_link_local": True}, ["config_file", "masq_link_local"]),
    "absent, bad chain": ({"state": "absent", "masq_chain": "POSTROUTING"}, ["POSTROUTING"]),
}


@pytest.fixture(scope="module")
def untouched() -> t.Iterator[Namespace]:
    """One namespace for all: each test leaves it untouched, or fails."""
    with Namespace() as ns:
        yield ns


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_and_nothing_is_touched(untouched: Namespace, case: str) -> None:
    options, needles = CASES[case]
    message = refused(untouched, **options)
    missing = [needle for needle in needles if needle not in message]
    assert missing == [], message
    assert pristine(snapshot(untouched))


@pytest.mark.parametrize("case", ["host bits", "chain builtin", "port 70000", "null entry"])
def test_refused_input_leaves_the_rules_in_force(ns: Namespace, variant: Variant, case: str) -> None:
    chain = "IP-MASQ-AGENT"
    variant.load(ns, "ipv4", ":%s - [0:0]" % chain, "-A %s -j MASQUERADE" % chain, "-A POSTROUTING -j " + chain)
    before = snapshot(ns)
    refused(ns, backend=variant.backend, **CASES[case][0])
    assert snapshot(ns) == before


def test_bad_input_is_refused_in_check_mode_too(ns: Namespace) -> None:
    result = run_module(ns, check=True, non_masquerade_cidrs=["10.0.0.1/8"])
    assert result["failed"] is True
    assert "10.0.0.0/8" in result["msg"]
    assert pristine(snapshot(ns))
