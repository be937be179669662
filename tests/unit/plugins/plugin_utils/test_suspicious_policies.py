# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of valid policies that look like a mistake."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils import _suspicious_policies as module
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._networks import said_twice
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._role_variables import PREFIX, check_values
from hypothesis import given
from hypothesis import strategies as st

CIDRS = "ip_masq_agent_non_masquerade_cidrs"
GROUPS = {"all": ["n1", "n2", "n3", "n4"], "kube_control_plane": ["n1"], "kube_node": ["n2", "n3"]}


def advice(*hosts: t.Mapping[str, t.Any], groups: t.Mapping[str, t.Sequence[str]] = GROUPS) -> t.List[str]:
    """The remarks about n1, n2, ..., with these variables, named without the prefix."""
    checked = {}
    for number, options in enumerate(hosts, 1):
        checked["n%d" % number] = check_values({PREFIX + name: value for name, value in options.items()})
        assert not checked["n%d" % number].errors
    return ["%s (%s)" % (remark, " ".join(names)) for remark, names in module.advice(checked, groups)]


def cidrs(*ranges: str, **options: t.Any) -> t.Dict[str, t.Any]:
    """A policy with these ranges."""
    return {"non_masquerade_cidrs": list(ranges), **options}


@pytest.mark.parametrize(
    "hosts",
    [
        [{}, {}],
        [cidrs("10.0.0.0/8", "192.168.0.0/16")],
        [cidrs("10.0.0.0/8", "192.168.0.0/16"), cidrs("192.168.0.0/16", "10.0.0.0/8")],
        [cidrs("10.0.0.0/8"), cidrs("10.0.0.0/8", backend="nftables", resync_interval="5m")],
        [{}, {"state": "absent", "enable_ipv6": True}],
        [{"nomasq_all_reserved_ranges": True}],
        [{"cluster_cidrs": ["10.233.64.0/18", "10.233.0.0/18"]}],
        [cidrs("10.42.0.0/16", "10.43.0.0/16", cluster_cidrs=["10.42.0.0/16", "10.43.0.0/16"])],
        [cidrs("10.0.0.0/8", "10.20.0.5/32", masquerade_cidrs=["10.20.0.0/16"])],
        [cidrs("10.0.0.0/9", "10.128.0.0/9", masquerade_cidrs=["10.0.0.0/8"])],
    ],
)
def test_nothing_is_said_of_lists_without_repetition_and_hosts_that_agree(hosts: t.List[t.Any]) -> None:
    assert advice(*hosts) == []


@pytest.mark.parametrize(
    "options, remark",
    [
        (cidrs("10.233.0.0/18", "10.0.0.0/8", "10.1.0.0/16"), "10.233.0.0/18, 10.1.0.0/16 can be left out: 10.0.0.0/8"),
        (cidrs("10.0.0.0/8", "10.0.0.0/8"), "10.0.0.0/8 can be left out: 10.0.0.0/8 covers it"),
        (cidrs("10.128.0.0/9", "10.0.0.0/9"), "10.128.0.0/9, 10.0.0.0/9 can be one entry: 10.0.0.0/8"),
        (cidrs("fd00::/9", "fd80::/9", enable_ipv6=True), "fd00::/9, fd80::/9 can be one entry: fd00::/8"),
    ],
)
def test_ranges_that_others_cover_or_that_could_be_one_are_named(options: t.Dict[str, t.Any], remark: str) -> None:
    (found,) = advice(options, {**options, "backend": "nftables"})
    assert found.startswith("%s: %s" % (CIDRS, remark)) and found.endswith("(n1 n2)")


@pytest.mark.parametrize("inside", ["10.233.65.7/32", "10.233.64.0/18"])
def test_networks_of_a_cluster_that_overlap_are_named(inside: str) -> None:
    (found,) = advice({"cluster_cidrs": ["10.233.64.0/18", inside, "10.233.0.0/18"]})
    assert found == (
        "ip_masq_agent_cluster_cidrs: %s overlaps 10.233.64.0/18: no address can be in two networks of a cluster (n1)"
    ) % (inside,)


def test_what_hosts_and_groups_disagree_about_is_named() -> None:
    groups = {"all": ["n1", "n2", "n3", "n4"], "kube_node": ["n2", "n3"]}
    most, other = cidrs("10.0.0.0/8", "100.64.0.0/10"), cidrs("10.0.0.0/9", "192.168.0.0/16", masq_link_local=True)
    found = [line.replace(" (n1 n2 n3)", "") for line in advice(other, most, most, groups=groups)]
    assert found == [
        "ip_masq_agent_masq_link_local differs: false on kube_node, true on n1",
        CIDRS + " differs: 10.128.0.0/9, 100.64.0.0/10 is exempt on kube_node, and not on n1",
        CIDRS + " differs: 192.168.0.0/16 is exempt on n1, and not on kube_node",
    ]
    excepted = cidrs("10.0.0.0/8", masquerade_cidrs=["10.20.0.0/16"])
    assert advice(excepted, cidrs("10.0.0.0/8"), cidrs("10.0.0.0/8"), groups=groups) == [
        CIDRS + " differs: 10.20.0.0/16 is exempt on kube_node, and not on n1 (n1 n2 n3)",
    ]
    # The same addresses in other words are no difference; hosts that are no group have their names.
    same = cidrs("10.0.0.0/9", "10.128.0.0/9")
    assert [line for line in advice(cidrs("10.0.0.0/8"), same, same, {}) if "differs" in line] == [
        CIDRS + " differs: 172.16.0.0/12, 192.168.0.0/16 is exempt on n4, and not on kube_node (n1 n2 n3 n4)",
    ]


#: Two racks of two nodes, and two of one.
RACKS = {"kube_node": ["n1", "n2", "n3", "n4"], "rack_a": ["n1", "n2"], "rack_b": ["n3"], "rack_c": ["n4", "n9"]}


def test_what_the_inventory_sets_for_whole_groups_is_intended() -> None:
    own = cidrs("10.0.0.0/8", "192.0.2.0/24", enable_ipv6=True)
    for others in ([own, own], [own, cidrs("10.9.0.0/16")]):
        assert advice({}, {}, *others, groups=RACKS) == [], others
    # An option that is not set for the group may have been forgotten there.
    most = cidrs("10.0.0.0/8", enable_ipv6=True)
    (found,) = advice(most, most, cidrs("10.9.0.0/16"), groups=RACKS)
    assert found == "ip_masq_agent_enable_ipv6 differs: true on rack_a, false on rack_b (n1 n2 n3)"
    # So may the whole policy, and a host that differs from its group is no rack.
    assert [line for line in advice(most, most, {}, groups=RACKS) if CIDRS in line]
    assert [line for line in advice(most, own, most, most, groups=RACKS) if CIDRS in line]


def test_without_netaddr_a_list_is_not_compared_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MISSING", "netaddr is not installed")
    assert advice({}, {}) == []
    assert advice(cidrs("10.0.0.0/8")) == ["ranges of the policy are not compared: netaddr is not installed (n1)"]


NETWORKS = st.lists(
    st.builds(
        lambda number, prefix: str(ipaddress.ip_network((number << 16, prefix), strict=False)),
        st.integers(0, 15),
        st.integers(12, 20),
    ),
    max_size=6,
)


@given(NETWORKS)
def test_one_network_does_for_the_entries_named_and_every_repetition_is_named(networks: t.List[str]) -> None:
    parsed = [ipaddress.ip_network(network) for network in networks]
    merged = list(ipaddress.collapse_addresses(parsed))
    repeated = {wide: entries for entries, wide in said_twice(networks)}
    for wide in merged:
        inside = [one for one in parsed if one.subnet_of(wide)]
        assert (str(wide) in repeated) == (len(inside) > 1)
        if len(inside) > 1:
            assert set(repeated[str(wide)]) == (set(map(str, inside)) - {str(wide)} or {str(wide)})
