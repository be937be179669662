# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether verify finds every rule that hits a declared range, and reports none that does not.

``IP_MASQ_TWIN_PLANTS`` is the number of rules, each on a node of its own.
"""

from __future__ import annotations

import ipaddress
import os
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import verification
from netaddr import IPSet
from support.lab import carry_out
from support.planted import PODS, Plant, make_node
from support.twins import build
from support.twins import exempt as exempt_ranges

_COUNT = int(os.environ.get("IP_MASQ_TWIN_PLANTS", "40"))


def _find(seed: int) -> t.Tuple[str, t.List[str], t.List[str], t.List[str]]:
    plant = Plant(seed)
    node = make_node()
    plant.load(node)
    exempt = [ipaddress.ip_network(one) for one in plant.exempt]
    policy = exempt_ranges(exempt, [ipaddress.ip_network(PODS)], others=None)
    with node, build() as made:
        report = verification.verify(made, policy)
    assert not report.left_out
    found = [one for conflict in report.conflicts for one in conflict.ranges]
    texts = ["%s: %s" % (conflict.severity, conflict.decided_by) for conflict in report.conflicts]
    return str(plant), sorted(map(str, plant.hidden().iter_cidrs())), found, texts


@pytest.mark.parametrize("seed", range(_COUNT))
def test_planted_rule(seed: int) -> None:
    planted, hidden, found, texts = carry_out(_find, seed)
    assert IPSet(found) == IPSet(hidden), "%s\n%s" % (planted, "\n".join(texts))
