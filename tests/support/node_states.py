# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node as the twin's reader tells it, made of words. Python 3.8."""

from __future__ import annotations

import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.neighbours import Neighbours
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.routing import Routing

from .rule_shapes import address, link, route

_LINKS = (
    link(2, "eth0"),
    link(3, "cni0", "bridge"),
    link(4, "docker0", "bridge"),
    *(link(10 + n, "cali%d" % n, "veth") for n in (0, 1)),
)


def state(routes: t.Sequence[bytes] = ()) -> node_state.NodeState:
    """Return a node with pods on a bridge, docker, and an uplink."""
    return node_state.NodeState(
        links=_LINKS,
        routing=Routing(
            (address("198.51.100.1/24", 2), address("10.244.1.1/24", 3), address("172.17.0.1/16", 4)),
            (),
            (
                route("10.244.1.0/24", 3),
                route("172.17.0.0/16", 4),
                route("198.51.100.0/24", 2),
                route("0.0.0.0/0", 2, "198.51.100.2"),
                *routes,
            ),
        ),
        neighbours=Neighbours({}, {}),
        settings={},
        sets=(),
        tables=(),
        legacy=(),
        services="",
        unseen=(),
    )
