# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set algebra on the controller."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.kubenode.ip_masq.plugins.filter.uncovered import FilterModule
from hypothesis import given
from hypothesis import strategies as st

uncovered = FilterModule().filters()["uncovered"]

NETWORKS = st.lists(
    st.builds(
        lambda number, prefix: str(ipaddress.ip_network((number << 16, prefix), strict=False)),
        st.integers(0, 15),
        st.integers(12, 32),
    ),
    max_size=5,
)


def test_without_a_list_the_default_one_covers() -> None:
    assert uncovered(["10.1.0.0/16", "100.64.0.0/10"]) == ["100.64.0.0/10"]
    assert uncovered(["10.1.0.0/16", "100.64.0.0/10"], None, True) == []
    assert uncovered(["10.1.0.0/16"], []) == ["10.1.0.0/16"]


@given(NETWORKS, NETWORKS)
def test_an_address_is_left_just_where_nothing_covers_it(networks: t.List[str], covering: t.List[str]) -> None:
    left = [ipaddress.ip_network(network) for network in uncovered(networks, covering)]
    for network in map(ipaddress.ip_network, networks + covering):
        for address in (network[0], network[-1]):
            inside = any(address in ipaddress.ip_network(entry) for entry in networks)
            covered = any(address in ipaddress.ip_network(entry) for entry in covering)
            assert any(address in entry for entry in left) == (inside and not covered)


@pytest.mark.parametrize("bad", [["10.0.0.1/8"], ["10/8"], [None], "10.0.0.0/8,", {}, 5])
def test_bad_input_is_refused_with_the_message_of_the_module(bad: t.Any) -> None:
    with pytest.raises(
        AnsibleFilterError, match=r"aligned network is 10\.0\.0\.0/8|is not a (CIDR|list)|entry 1 is null"
    ):
        uncovered(bad, [])
