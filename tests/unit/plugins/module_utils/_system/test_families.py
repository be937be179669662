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
