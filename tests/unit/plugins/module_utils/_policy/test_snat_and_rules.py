# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entries of snat and rules: what is read, what is refused, and with which remedy."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build, file_key
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.snat_and_rules import (
    addresses,
    parse_rules,
    parse_snat,
)
from hypothesis import given
from hypothesis import strategies as st

SNAT = [
    {"address": "192.0.2.7", "out_interface": "eth0", "source_cidrs": ["10.244.0.0/16"]},
    {"address": "192.0.2.8-192.0.2.9", "outInterface": "bond*", "sourceCIDRs": "10.7.0.0/16"},
    {"address": "2001:db8::7"},
]
RULES: t.List[t.Dict[str, t.Any]] = [
    {"action": "exempt", "destinations": ["203.0.113.0/24"], "protocols": ["tcp"], "ports": [80, "443", "9000-9009"]},
    {"action": "masquerade", "sources": ["10.1.0.0/16"], "outInterfaces": ["eth+"]},
    {"action": "snat", "address": "192.0.2.7", "protocols": ["icmp"]},
    {"action": "skip", "ports": "53", "sources": None},
]


def test_entries_are_read_with_the_keys_of_ansible_and_of_a_file() -> None:
    assert list(map(str, parse_snat(SNAT))) == [
        "192.0.2.7 for 10.244.0.0/16 by eth0",
        "192.0.2.8-192.0.2.9 for 10.7.0.0/16 by bond+",
        "2001:db8::7",
    ]
    assert list(map(str, parse_rules(RULES))) == [
        "exempt to 203.0.113.0/24 of tcp/80, tcp/443, tcp/9000-9009",
        "masquerade from 10.1.0.0/16 by eth+",
        "snat to 192.0.2.7 of icmp",
        "skip of tcp/53, udp/53, sctp/53",
    ]


def test_each_fixed_address_is_known_once() -> None:
    config = build({"snat": SNAT, "rules": RULES, "enable_ipv6": True})
    assert list(map(str, addresses(config))) == ["192.0.2.7", "192.0.2.8", "192.0.2.9", "2001:db8::7"]


@pytest.mark.parametrize(
    "entry, message",
    [
        ("192.0.2.7", "entry 2: '192.0.2.7' is not a mapping: give one with address, out_interface, source_cidrs"),
        ({}, "entry 2: address is missing: give an address of the node, such as 192.0.2.7, or a range"),
        ({"adress": "192.0.2.7"}, "the key 'adress' is not known: known are address, out_interface, source_cidrs"),
        ({"address": "192.0.2.7", "Address": "192.0.2.8"}, "duplicate key 'Address': keep one"),
        ({"address": "192.0.2.07"}, "'192.0.2.07' is not an address: give one such as 192.0.2.7, or FIRST-LAST"),
        ({"address": "192.0.2.0/24"}, "'192.0.2.0/24' is not an address"),
        ({"address": "fe80::1%eth0"}, "'fe80::1%eth0' is not an address"),
        ({"address": "192.0.2.9-192.0.2.8"}, "is reversed: write 192.0.2.8-192.0.2.9"),
        ({"address": "192.0.2.9-2001:db8::1"}, "is no range: both addresses must be of one family"),
        ({"address": "10.0.0.0-10.0.1.0"}, "'10.0.0.0-10.0.1.0' has 257 addresses, more than the limit of 256"),
        ({"address": "127.0.0.1"}, "is no address that packets leave with: give an address of the node"),
        ({"address": "::ffff:192.0.2.7"}, "is no address that packets leave with"),
        ({"address": "192.0.2.7", "out_interface": "+"}, "matches every interface: leave the entry out"),
        (
            {"address": "192.0.2.7", "source_cidrs": ["10.0.0.1/8"]},
            "the aligned network is 10.0.0.0/8",
        ),
        ({"address": "192.0.2.7", "source_cidrs": ["fd00::/8"]}, "fd00::/8 is IPv6, and the address 192.0.2.7 is IPv4"),
        (
            {"address": "192.0.2.7", "source_cidrs": ["127.0.0.0/8"]},
            "127.0.0.0/8 lies in 127.0.0.0/8, and no connection",
        ),
        (
            {"address": "2001:db8::7"},
            "2001:db8::7 is IPv6, and IPv6 is off: set enableIPv6 to true or remove the entry",
        ),
    ],
)
def test_refused_of_snat(entry: t.Any, message: str) -> None:
    with pytest.raises(ConfigError, match="^snat: entry 2: .*" + re.escape(message.replace("entry 2: ", ""))):
        build({"snat": [{"address": "192.0.2.1"}, entry]}, label=file_key)


@pytest.mark.parametrize(
    "entry, message",
    [
        ({}, "action is missing: give one of exempt, masquerade, snat, skip"),
        ({"action": "drop"}, "'drop' is not one of exempt, masquerade, snat, skip"),
        ({"action": "snat"}, "address is missing: action snat needs an address of the node"),
        (
            {"action": "skip", "address": "192.0.2.7"},
            "address is for action snat, not for skip: remove it, or set action",
        ),
        ({"action": "skip", "protocols": ["dccp"]}, "protocols: 'dccp' is not one of tcp, udp, sctp, icmp"),
        ({"action": "skip", "protocols": {}}, "protocols: {} is not a list: give a list of protocols"),
        (
            {"action": "skip", "protocols": ["icmp"], "ports": [80]},
            "ports: icmp has no ports: give it an entry of its own",
        ),
        ({"action": "skip", "ports": [True]}, "ports: True is not a port range"),
        ({"action": "skip", "sources": ["::1/128"]}, "sources: ::1/128 lies in ::1/128, and no connection from there"),
        ({"action": "skip", "out_interfaces": ["a b"]}, "out_interfaces: 'a b' is not the name of an interface"),
        ({"action": "skip", "sources": ["10.%d.0.0/16" % n for n in range(65)]}, "65 entries are more than cidrLimit"),
        (
            {"action": "snat", "address": "192.0.2.7", "destinations": ["fd00::/8"]},
            "destinations: fd00::/8 is IPv6, and the address 192.0.2.7 is IPv4: remove it, or give it an entry",
        ),
    ],
)
def test_refused_of_rules(entry: t.Any, message: str) -> None:
    with pytest.raises(ConfigError, match="^rules: entry 1: .*" + re.escape(message)):
        build({"rules": [entry]}, label=file_key)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"snat": {}}, "snat: {} is not a list: give a list of mappings"),
        ({"snat": [{"address": "192.0.2.7"}] * 33}, "snat: 33 mappings are more than the limit of 32"),
        ({"rules": [{"action": "skip"}] * 101}, "rules: 101 mappings are more than the limit of 100"),
        ({"snat_missing": "none"}, "snatMissing: 'none' is not one of masquerade, keep, drop"),
        (
            {"snat_missing": "drop", "snat": [{"address": "192.0.2.7"}], "source_cidrs": ["10.0.0.0/8"]},
            "snat: entry 1: snatMissing is drop, and the entry is about all sources, so the node itself would be cut "
            "off while the address is missing: give it source_cidrs, or set snatMissing to keep",
        ),
        (
            {"snat_missing": "drop", "rules": [{"action": "snat", "address": "192.0.2.7", "sources": ["0.0.0.0/0"]}]},
            "rules: entry 1: snatMissing is drop, and the entry is about all sources, so the node itself would be cut "
            "off while the address is missing: give it sources, or set snatMissing to keep",
        ),
        (
            {
                "snat_missing": "drop",
                "snat": [{"address": "192.0.2.7", "source_cidrs": ["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/2"]}],
            },
            "snat: entry 1: snatMissing is drop, and the entry is about all sources, so the node itself would be cut "
            "off while the address is missing: give it source_cidrs, or set snatMissing to keep",
        ),
        (
            {
                "snat_missing": "drop",
                "snat": [{"address": "192.0.2.7", "source_cidrs": ["0.0.0.0/1"]}],
                "rules": [{"action": "snat", "address": "192.0.2.8", "sources": ["128.0.0.0/1"]}],
            },
            "rules: entry 1: snatMissing is drop, and the entry and those before it are about all sources, so the node "
            "itself would be cut off while the address is missing: give it fewer sources, or set snatMissing to keep",
        ),
        (
            {"source_cidrs": ["127.0.0.0/16"]},
            "sourceCIDRs: 127.0.0.0/16 lies in 127.0.0.0/8, and no connection from there",
        ),
    ],
)
def test_refused_as_a_whole(values: t.Dict[str, t.Any], message: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        build(values, label=file_key)


_words = st.sampled_from(
    ["address", "action", "ports", "protocols", "sources", "snat", "skip", "192.0.2.7", "80", "tcp"]
)
_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words | st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@given(_anything)
def test_whatever_is_written_is_read_or_refused(value: t.Any) -> None:
    for option in ("snat", "rules", "skip_marks"):
        try:
            build({option: value})
        except ConfigError as exc:
            assert str(exc).startswith(option + ": ")


def test_digests_tell_orders_apart() -> None:
    one, other = (build({"rules": rules}) for rules in (RULES, RULES[::-1]))
    assert one.digest != other.digest != build({}).digest == build({"snat_missing": "masquerade"}).digest
    assert build({"snat_missing": "keep"}).digest != build({}).digest
