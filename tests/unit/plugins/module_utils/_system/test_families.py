# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A family is its name wherever text is wanted: in results, state files, and as a key."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import (
    FAMILIES,
    IPV4,
    IPV6,
    Family,
    of_address,
)


@pytest.mark.parametrize("family, name", [(IPV4, "ipv4"), (IPV6, "ipv6")])
def test_a_family_is_its_name(family: Family, name: str) -> None:
    assert (family, str(family), "%s" % family, repr(family)) == (name, name, name, repr(name))
    assert json.dumps({family: [family]}) == json.dumps({name: [name]})
    assert {name: 1}[family] == 1 and {family: 1}[name] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_has_its_numbers(family: Family) -> None:
    for copied in (copy.deepcopy(family), pickle.loads(pickle.dumps(family)), Family(str(family))):
        assert copied == family and vars(copied) == vars(family)


def test_there_are_two() -> None:
    assert [one.nft for one in FAMILIES] == ["ip", "ip6"]
    with pytest.raises(KeyError):
        Family("ipx")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_address_or_a_network_has_a_family(family: Family) -> None:
    first = str(family.address(0))
    assert [of_address(text) for text in (first, first + "/0", str(family.address(family.highest)))] == [family] * 3
