# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where pods are, as routes show it."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing import senders
from support.node_states import state
from support.rule_shapes import link, route

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


_PORT = 20


def _links(gateway: bytes, port: str, named: intervals.Spans = ()) -> t.Set[str]:
    """Return the links of pods where the bridge has a port, and a gateway is behind one of them."""
    node = state(routes=[route("10.244.1.128/32", _FIRST), gateway])
    node = node._replace(links=(*node.links, link(_PORT, "port", port)._replace(master=_BRIDGE)))
    here = intervals.contains(senders.of_node(node, IPV4), int(ipaddress.ip_address("10.244.1.1")))
    found = {one.link for one in senders.senders(node, IPV4, (), named)}
    assert here != ("cni0" in found) or named
    return found


def test_a_pod_may_be_a_gateway() -> None:
    """Such as one with a VPN. Over an uplink the node reaches others by default, or it has ports of hardware."""
    both = {"cni0", "cali0"}
    on_bridge, behind_cali0 = ("10.99.0.0/24", _BRIDGE, "10.244.1.5"), ("10.99.0.0/24", _FIRST, "10.244.1.128")
    default = ("0.0.0.0/0", _BRIDGE, "10.244.1.5")
    pods = intervals.of_networks([ipaddress.ip_network("10.244.0.0/16")])
    assert _links(route(*on_bridge), "veth") == _links(route(*behind_cali0), "") == both
    assert _links(route(*default, table=77), "veth") == both
    assert _links(route(*default), "veth") == _links(route(*on_bridge), "") == {"cali0"}
    assert _links(route(*on_bridge), "", pods) == both
    assert _links(route(*default), "", pods) == {"cali0"}
