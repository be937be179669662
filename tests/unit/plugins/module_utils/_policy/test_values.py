# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The grammar of single values: networks, durations, ports, chain names."""

from __future__ import annotations

import ipaddress
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import (
    PortRange,
    check_chain_name,
    parse_cidr,
    parse_duration,
    parse_port_range_list,
)
from hypothesis import given
from hypothesis import strategies as st
from support import random_policies

S = 10**9
LONGEST = 2**63 - 1


@pytest.mark.parametrize(
    "text, meant",
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("FC00::/7", "fc00::/7"),
        ("2001:db8::01/128", "2001:db8::1/128"),
        ("64:ff9b::192.0.2.1/128", "64:ff9b::c000:201/128"),
    ],
)
def test_cidr_is_read(text: str, meant: str) -> None:
    assert parse_cidr(text) == ipaddress.ip_network(meant)


@pytest.mark.parametrize(
    "text, remedy",
    [
        ("10.256.0.0/16", "give ADDRESS/PREFIX"),
        ("10.0.0.1/8", "the aligned network is 10.0.0.0/8"),
        ("10.0.0.1", "for one host write 10.0.0.1/32"),
        ("fd00::1", "for one host write fd00::1/128"),
        ("10.0.0.0/08", "write 10.0.0.0/8"),
        ("10.0.0.0/255.0.0.0", "write 10.0.0.0/8"),
        ("fe80::%eth0/64", "write fe80::/64$"),
        ("fe80::1/64%eth0", "write fe80::/64$"),
        ("10.0.0.0/33", "give ADDRESS/PREFIX"),
        ("010.0.0.0/8", "give ADDRESS/PREFIX"),
        ("64:ff9b::010.0.0.0/104", "give ADDRESS/PREFIX"),
        ("0x0a.0.0.0/8", "give ADDRESS/PREFIX"),
        ("\uff110.0.0.0/8", "give ADDRESS/PREFIX"),
        (" 10.0.0.0/8", "write 10.0.0.0/8$"),
        ("'10.0.0.0/8'", "write 10.0.0.0/8$"),
        ("10.0.0.0/8 # lab", "write 10.0.0.0/8$"),
        ("10.0.0.0 255.0.0.0", "write 10.0.0.0/8$"),
        ("!10.0.0.0/8", "give ADDRESS/PREFIX"),
        ("10.0.0.0 - 10.0.0.255", "give ADDRESS/PREFIX"),
        *(
            (text, "it has several ranges: write an entry for each$")
            for text in (
                *("10.0.0.0/8%s172.16.0.0/12" % between for between in (" ", ";", "|", "\t", "\n", ", ", " and ")),
                *("10.0.0.0/8\n172.16.0.0/12\n", "- 10.0.0.0/8\n- fd00::/8\n", '["10.0.0.0/8", "fd00::/8"]'),
                *("10.0.0.1 10.0.0.2", "10.0.0.1/8 fe80::%eth0/64"),
            )
        ),
        *(
            (text, "replace '%s', to give ADDRESS/PREFIX such as" % re.escape(placeholder))
            for text, placeholder in (
                ("<Public IP>/32", "<Public IP>"),
                ("10.<n>.0.0/16", "<n>"),
                ("{{ pod_cidr }}", "{{ pod_cidr }}"),
                ("{POD_CIDR}", "{POD_CIDR}"),
                ("${POD_CIDR}", "${POD_CIDR}"),
                ("$IP/32", "$IP"),
                ("__POD_CIDR__", "__POD_CIDR__"),
                ("%IP%/32", "%IP%"),
            )
        ),
        ("10.0.0.0 /8", "remove the white space"),
        ("", "the entry is empty"),
        ("::ffff:10.0.0.0/104", "IPv4-mapped.*never matches on the wire: use 10.0.0.0/8"),
        ("::ffff:0:0/96", "IPv4-mapped.*never matches on the wire: use 0.0.0.0/0"),
        (None, "give text such as"),
        (["10.0.0.0/8"], "give text such as"),
    ],
)
def test_bad_cidr_is_refused_with_the_value_and_the_remedy(text: t.Any, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as refused:
        parse_cidr(text)
    assert ascii(text) in str(refused.value)


@given(random_policies.networks(4) | random_policies.networks(6))
def test_every_network_is_read_from_how_it_is_printed(network: t.Any) -> None:
    assert parse_cidr(str(network)) == network
    # One spelling only for IPv4; for IPv6 every spelling of the same address.
    assert parse_cidr("%s/%d" % (network.network_address.exploded, network.prefixlen)) == network


@pytest.mark.parametrize(
    "text, nanoseconds",
    [
        ("60s", 60 * S),
        ("1h30m", 5400 * S),
        ("1500ms", 3 * S // 2),
        ("1ns", 1),
        ("1\u00b5s", 1000),  # micro sign
        ("1\u03bcs", 1000),  # Greek mu
        ("1h1m1s1ms1us1ns", 3661 * S + 1_001_001),
        ("+5s", 5 * S),
        (".5s", S // 2),
        ("1.s", S),
        ("1.000000001s", S + 1),
        ("0.100000000000000000000h", 360 * S),
        ("0.830103483285477580700h", 2988 * S + 372539827),
        ("0" * 5000 + "1s", S),
        ("1." + "0" * 5000 + "1s", S),
        ("9223372036854775807ns", LONGEST),
    ],
)
def test_duration_is_read_as_go_does(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text, problem",
    [
        (text, "numbers with a unit")
        for text in ("", "s", ".s", "-", "+", "5", "1 s", " 1s", "1s ", "1e3s", "1.5.s", "1d", "1S")
        + ("60s\n", "\uff11s", "--1s", "1s-1s", "0x1s", "1_0s")
    ]
    + [
        (text, "not above zero")
        for text in ("0", "-0", "+0", "0s", "0.0s", "-5s", "-.5s", "0.1ns", "-9223372036854775808ns")
    ]
    + [
        (text, "too long")
        for text in ("9223372036854775808ns", "3000000h", "2562047h47m16.854775808s", "9" * 5000 + "h")
    ]
    + [(value, "text with a unit") for value in (60, 60.0, None, True, [], {}, b"60s")],
)
def test_bad_duration_is_refused(text: t.Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_duration(text)


@pytest.mark.parametrize(
    "text, ranges",
    [
        ("", ()),
        ("42", ((42, 42),)),
        ("1024-29999,32768-65535", ((1024, 29999), (32768, 65535))),
        ("50,40-45,44", ((50, 50), (40, 45), (44, 44))),
    ],
)
def test_port_ranges_keep_their_order_and_are_not_merged(text: str, ranges: t.Tuple[t.Tuple[int, int], ...]) -> None:
    assert parse_port_range_list(text) == tuple(PortRange(*ends) for ends in ranges)


@pytest.mark.parametrize(
    "text, problem",
    [
        (text, "PORT or FIRST-LAST")
        for text in ("42 - 44", "42-43-44", "4x", "-44", "42-", "42, 43", " 42", "42,", ",", "42\n")
    ]
    + [(text, "PORT or FIRST-LAST") for text in ("0x2a", "4_2", "+42", "\uff14", "42:44", "9" * 5000)]
    + [("42-41", "reversed: write 41-42"), ("65535-1", "reversed: write 1-65535")]
    + [(text, "outside 1-65535") for text in ("0", "65536", "70000", "0-10", "1-65536", "80,70000", "999999999")]
    + [([value], "PORT or FIRST-LAST") for value in (None, True, b"42", ["42"])]
    + [(value, "not a list: give a list of port ranges") for value in (42, None, True, b"42")],
)
def test_bad_port_range_is_refused(text: t.Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_port_range_list(text)


@given(st.lists(random_policies.port_ranges, min_size=1, max_size=100))
def test_port_ranges_are_printed_as_they_are_read(ranges: t.List[str]) -> None:
    assert [str(one) for one in parse_port_range_list(",".join(ranges))] == ranges


@pytest.mark.parametrize(
    "name", ["IP-MASQ-AGENT", "IP-MASQ", "NON-MASQUERADE-DAEMON", "a", "my_chain.1", "x" * 28, "1", "_x"]
)
def test_chain_name_is_taken(name: str) -> None:
    assert check_chain_name(name) == name


@pytest.mark.parametrize(
    "name, problem",
    [("x" * 29, "29 characters, iptables takes at most 28"), ("x" * 5000, "at most 28")]
    + [
        (name, "it is that of another program; IP-MASQ-AGENT is the default")
        for name in ("POSTROUTING", "PREROUTING", "postrouting", "INPUT", "ACCEPT", "MASQUERADE", "RETURN")
    ]
    + [
        (name, "it is that of another program")
        for name in "KUBE-POSTROUTING kube-x cali-POSTROUTING FLANNEL-POSTRTG CILIUM_POST_nat CNI-1 DOCKER".split()
    ]
    + [
        (name, "use letters, digits, '_', and behind the first also '.' and '-'")
        for name in ("", "-x", "!x", ".x", "a b", "a\n", "a;b", 'a"b', "a'b", "a\\b", "a$b", "\u00e4", "a\0b")
        + ("A -j ACCEPT", "A\n-F POSTROUTING", "#x", ":x")
    ]
    + [(value, "use letters, digits") for value in (None, 5, True, b"A", ["A"], {"A": 1})],
)
def test_bad_chain_name_is_refused(name: t.Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_chain_name(name)
