# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy from plain values: defaults, limits, and what goes with what."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import (
    BACKENDS,
    Config,
    build,
    file_key,
    file_key_hint,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import PortRange

RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


def cidrs(**values: t.Any) -> t.List[str]:
    return [str(network) for network in build(values).non_masquerade_cidrs]


def test_nothing_given_is_the_reference_agents_defaults() -> None:
    config = build({})
    assert [str(network) for network in config.non_masquerade_cidrs] == RFC1918
    assert config._replace(non_masquerade_cidrs=()) == Config(
        non_masquerade_cidrs=(),
        masq_link_local=False,
        masq_link_local_ipv6=False,
        enable_ipv6=False,
        masq_chain="IP-MASQ-AGENT",
        random_fully=True,
        to_ports=(),
        backend="auto",
        exemption="return",
        resync_interval=60 * 10**9,
        notes=(),
        masquerade_cidrs=(),
        source_cidrs=(),
        out_interfaces=(),
        except_interfaces=(),
        skip_marks=(),
        snat=(),
        snat_missing="masquerade",
        rules=(),
        jump_position="keep",
        flush_conntrack="none",
        leaks="ignore",
        node_port_range=PortRange(30000, 32767),
        port_metrics=0,
    )


@pytest.mark.parametrize(
    "limit, count, good", [(64, 64, True), (64, 65, False), (0, 0, True), (0, 1, False), (65, 65, True)]
)
def test_more_entries_than_the_limit_are_refused(limit: int, count: int, good: bool) -> None:
    values = {"non_masquerade_cidrs": ["10.%d.0.0/16" % number for number in range(count)], "cidr_limit": limit}
    if good:
        assert len(build(values).non_masquerade_cidrs) == count
    else:
        with pytest.raises(ConfigError, match=r"%d entries .* cidr_limit \(%d\).*raise cidr_limit" % (count, limit)):
            build(values)


def test_ipv6_is_refused_while_it_is_off_and_taken_when_on() -> None:
    mixed = ["10.244.0.0/16", "fc00::/7"]
    with pytest.raises(ConfigError, match="fc00::/7 is IPv6, and IPv6 is off: set enable_ipv6 to true"):
        build({"non_masquerade_cidrs": mixed})
    assert cidrs(non_masquerade_cidrs=mixed, enable_ipv6=True) == mixed


@pytest.mark.parametrize("everything", ["0.0.0.0/0", "::/0"])
def test_an_exemption_of_everything_is_reported(everything: str) -> None:
    (note,) = build({"non_masquerade_cidrs": [everything], "enable_ipv6": True}).notes
    assert everything in note and "will be masqueraded" in note


@pytest.mark.parametrize(
    "option, value, problem",
    [
        ("non_masquerade_cidrs", ["10.0.0.0/8", None], "entry 2 is null"),
        ("non_masquerade_cidrs", "10.0.0.0/8", "is not a list"),
        ("non_masquerade_cidrs", {"10.0.0.0/8": 1}, "is not a list"),
        ("cidr_limit", "64", "must be an integer >= 0"),
        ("cidr_limit", True, "must be an integer >= 0"),
        ("cidr_limit", 2**63, "9223372036854775808 must be an integer >= 0 and below 2.63"),
        pytest.param("cidr_limit", 10**5000, "must be an integer >= 0", id="what Python does not print"),
        ("masq_link_local", "true", "true or false, without quotes"),
        ("to_ports", ["", "42"], "PORT or FIRST-LAST"),
        ("to_ports", [10**5000], "is not a port range"),
        ("to_ports", ["auto", "1024-2047"], "auto is in a list with others: give auto alone"),
        (
            "snat",
            [{"address": "192.0.2.7", "ports_mapping": "stay"}],
            "ports_mapping: 'stay' is not one of random, keep",
        ),
        ("rules", [{"action": "masquerade", "ports_mapping": True}], "ports_mapping: True is not one of random, keep"),
        ("rules", [{"action": "skip", "ports_mapping": "keep"}], "not for skip: remove it"),
        ("to_ports", "Auto", "PORT or FIRST-LAST"),
        ("node_port_range", None, "None is not a port range"),
        ("node_port_range", "30000-32767,80", "PORT or FIRST-LAST"),
        ("to_ports", ["1024-2047"] * 101, "101 port ranges are more than the limit of 100"),
        ("backend", "iptables", "not one of auto, iptables_nft, iptables_legacy"),
        ("exemption", "drop", "not one of return, accept, enforce"),
        ("resync_interval", 60, "text with a unit"),
        ("resync_interval", "999999999ns", "too short"),
    ],
)
def test_a_bad_value_is_refused_naming_the_option_or_the_files_key(option: str, value: t.Any, problem: str) -> None:
    for label in (str, file_key):
        with pytest.raises(ConfigError, match=problem) as refused:
            build({option: value}, label=label)
        assert str(refused.value).startswith(label(option) + ": ")


def test_a_message_stays_short_and_on_one_line_whatever_the_value() -> None:
    for value in ("x\n" * 10_000, ["10.0.0.0/8\n" * 1000], {"a": "b" * 10_000}):
        with pytest.raises(ConfigError) as refused:
            build({"non_masquerade_cidrs": [value]})
        assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["", [""], [], ()])
def test_no_ports_are_written_in_any_of_these_ways(value: t.Any) -> None:
    """A file can hold each; Ansible makes a list with one empty text of the option's empty value."""
    assert build({"to_ports": value}).to_ports == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_enforce_needs_nftables(backend: str) -> None:
    values = {"exemption": "enforce", "backend": backend}
    if backend in ("auto", "nftables"):
        assert build(values).exemption == "enforce"
    else:
        with pytest.raises(ConfigError, match="enforce needs nftables, not %s" % backend):
            build(values)


@pytest.mark.parametrize(
    "typo, meant",
    [
        ("nonMasqueradeCIDR", "nonMasqueradeCIDRs"),
        ("nonMasqCIDRs", "nonMasqueradeCIDRs"),
        ("non_masquerade_cidrs", "nonMasqueradeCIDRs"),
        ("ip_masq_agent_backend", "backend"),
        ("--nomasq-all-reserved-ranges", "nomasqAllReservedRanges"),
        ("resync", "resyncInterval"),
        ("masqLinkLocalIpv", "masqLinkLocalIPv6"),
        ("limit", "cidrLimit"),
    ],
)
def test_the_nearest_known_key_is_the_one_meant(typo: str, meant: str) -> None:
    assert file_key_hint(typo) == "the nearest known key is " + meant


@pytest.mark.parametrize(
    "name",
    "apiVersion data kind metadata config spec items name enabled description cidrs masquerade interfaces x".split(),
)
def test_what_is_near_to_no_key_or_to_several_has_no_nearest_one(name: str) -> None:
    assert file_key_hint(name) == ""


@pytest.mark.parametrize(
    "name, equivalent",
    [
        ("NonMasqueradeSrcCIDRs", 'rules, with an entry {"action": "exempt", "sources": [...]}'),
        ("except", "masqueradeCIDRs"),
        ("masqueradeExceptionCIDRs", "masqueradeCIDRs"),
        ("snatTarget", 'snat, with an entry {"address": ...}'),
        ("outputInterface", 'snat, with an entry {"address": ..., "outInterface": ...}'),
        ("excludeSnatCIDRs", "nonMasqueradeCIDRs"),
        ("ipv4NativeRoutingCIDR", "nonMasqueradeCIDRs"),
        ("egressMasqueradeInterfaces", "outInterfaces"),
    ],
)
def test_a_key_of_a_relative_has_its_equivalent(name: str, equivalent: str) -> None:
    assert file_key_hint(name) == "the equivalent is " + equivalent
