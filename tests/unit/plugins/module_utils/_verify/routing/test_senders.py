# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where pods are, as routes show it."""

from __future__ import annotations

import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing import senders
from support.node_states import state
from support.rule_shapes import route

_BRIDGE, _FIRST, _SECOND = 3, 10, 11


def _found(*routes: bytes) -> t.Dict[str, t.List[str]]:
    found = senders.senders(state(routes=routes), IPV4)
    return {one.link: list(map(str, intervals.networks(one.addresses, IPV4))) for one in found}


def test_a_pod_is_where_the_narrowest_route_shows_it() -> None:
    plain = _found()
    with_one = _found(route("10.244.1.128/25", _FIRST), route("10.244.1.130/32", _SECOND))
    (bridge,) = plain
    assert "10.244.1.128/25" in plain[bridge]
    assert with_one.pop("cali1") == ["10.244.1.130/32"]
    assert "10.244.1.131/32" in with_one["cali0"] and "10.244.1.130/32" not in with_one["cali0"]
    assert with_one[bridge] == [one for one in plain[bridge] if one != "10.244.1.128/25"]


def test_routes_of_the_same_length_both_show_pods() -> None:
    both = _found(route("10.9.0.0/24", _FIRST), route("10.9.0.0/24", _SECOND))
    assert both["cali0"] == both["cali1"] == ["10.9.0.0/24"]
