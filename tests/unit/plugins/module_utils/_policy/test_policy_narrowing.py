# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that treat part of the traffic otherwise: what is read, what is refused, and with which remedy."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import (
    RFC1918_CIDRS,
    build,
    file_key,
    split_lists,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import (
    parse_interface,
)


@pytest.mark.parametrize(
    "name", ["", "eth 0", "a" * 16, "a" * 15 + "+", "e/0", "e\n", '"e"', "++", "-o", "e+h", "é", 7, None]
)
def test_what_no_interface_is_called_is_refused(name: t.Any) -> None:
    with pytest.raises(ConfigError, match="is not the name of an interface: give at most 15 characters, such as eth0"):
        parse_interface(name)


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"masquerade_cidrs": ["10.0.0.0/8"]},
            "masqueradeCIDRs: 10.0.0.0/8 is in nonMasqueradeCIDRs as well: remove it from one of them",
        ),
        (
            {"masquerade_cidrs": ["169.254.0.0/16"]},
            "masqueradeCIDRs: 169.254.0.0/16 is exempt as long as masqLinkLocal is false: set masqLinkLocal to true",
        ),
        (
            {"masquerade_cidrs": ["fe80::/10"], "enable_ipv6": True, "masq_link_local": True},
            "exempt as long as masqLinkLocalIPv6 is false",
        ),
        ({"source_cidrs": ["10.%d.0.0/16" % n for n in range(65)]}, "sourceCIDRs: 65 entries are more than cidrLimit"),
        (
            {"out_interfaces": ["eth0", "eth1"], "except_interfaces": ["eth1"]},
            "exceptInterfaces: eth1 is in outInterfaces as well: remove it from one of them",
        ),
        (
            {"out_interfaces": ["eth+"], "except_interfaces": ["eth*"]},
            "exceptInterfaces: eth\\* is in outInterfaces as well",
        ),
        ({"out_interfaces": ["*"]}, "outInterfaces: '\\*' matches every interface: leave the entry out"),
        ({"out_interfaces": "eth0"}, "outInterfaces: 'eth0' is not a list: give a list of interfaces"),
        ({"skip_marks": ["%d" % n for n in range(17)]}, "skipMarks: 17 marks are more than the limit of 16"),
        ({"skip_marks": "1"}, "skipMarks: '1' is not a list: give a list of marks"),
        ({"out_interfaces": ["e%d" % n for n in range(33)]}, "33 interfaces are more than the limit of 32"),
    ],
)
def test_refused_with_the_value_and_the_remedy(values: t.Dict[str, t.Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(values, label=file_key)


NO_MARKS = ["", "x", "0x", "4g", "-1", -1, True, None, 1.5, 2**32, "0x100000000", "1/2/3", "1 ", "1\n", "0x1/", "0b1"]


@pytest.mark.parametrize(
    "mark, message",
    [
        *((one, "is not a mark: give VALUE or VALUE/MASK, such as 0x4000/0x4000") for one in NO_MARKS),
        ("0x5/0x4", "'0x5/0x4' matches no packet, .*: write 0x4/0x4"),
        ("0/0", "'0/0' matches every packet: give a mask with the bits that count"),
    ],
)
def test_what_is_no_mark_is_refused(mark: t.Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build({"skip_marks": [mark]})


def test_digests_do_not_depend_on_options_at_their_default() -> None:
    """Nodes with another release of the collection have the same digest, whatever options that one has or lacks."""
    assert build({}).digest == "4f53cda18c2b" == build({"node_port_range": "30000-32767"}).digest
    assert build({"non_masquerade_cidrs": RFC1918_CIDRS[::-1]}).digest == build({}).digest
    assert build({"non_masquerade_cidrs": []}).digest != build({}).digest != build({"random_fully": False}).digest
    assert build({"node_port_range": "30000-32768"}).digest != build({}).digest
    assert build({"to_ports": "auto"}).digest == build({"to_ports": ["auto"]}).digest != build({}).digest
    one = build({"out_interfaces": ["eth0", "eth1"]})
    assert one.digest == build({"out_interfaces": ["eth1", "eth0"]}).digest != build({}).digest
    assert one.digest != build({"except_interfaces": ["eth0", "eth1"]}).digest


def test_text_is_split_at_commas_where_ansible_hands_it_over() -> None:
    assert split_lists(
        {"source_cidrs": "10.1.0.0/16,10.2.0.0/16", "out_interfaces": ["eth0, bond+"], "to_ports": "1,2"}
    ) == {
        "source_cidrs": ["10.1.0.0/16", "10.2.0.0/16"],
        "out_interfaces": ["eth0", "bond+"],
        "to_ports": "1,2",
    }


def test_notes_say_what_is_probably_not_meant() -> None:
    assert build({"non_masquerade_cidrs": ["0.0.0.0/0"], "masquerade_cidrs": ["10.0.0.0/8"]}).notes == ()
    assert build({"enable_ipv6": True, "source_cidrs": ["10.0.0.0/8"]}, label=file_key).notes == (
        "sourceCIDRs: no network is IPv6, so all IPv6 traffic is left to other rules",
    )
