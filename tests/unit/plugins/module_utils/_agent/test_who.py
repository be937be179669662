# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of the command who, and when a connection has the name of a pod."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.who import line, opener
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import pod_names
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Connection, Zones
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.endpoints import Endpoint


def test_line_says_what_was_translated() -> None:
    pod, service, backend = Endpoint("10.244.1.2", 4000), Endpoint("10.96.0.1", 443), Endpoint("192.0.2.9", 6443)
    assert line(Connection("tcp", pod, service, pod, backend)) == (
        "tcp 10.244.1.2:4000 -> 10.96.0.1:443, translated to 192.0.2.9:6443, seen with its own address"
    )


@pytest.mark.parametrize(
    ("zones", "end"),
    [
        (Zones(), ""),
        (Zones(both=5), ", conntrack zone 5"),
        (Zones(original=5), ", conntrack zone of the opener's packets 5"),
        (Zones(reply=7), ", conntrack zone of the answers 7"),
    ],
)
def test_line_names_zones(zones: Zones, end: str) -> None:
    pod, remote = Endpoint("10.244.1.2", 4000), Endpoint("203.0.113.10", 443)
    shown = line(Connection("tcp", pod, remote, Endpoint("198.51.100.1", 4000), remote, zones))
    assert shown == "tcp 10.244.1.2:4000 -> 203.0.113.10:443, seen as 198.51.100.1:4000" + end


def _from(address: str, idle: t.Optional[int]) -> Connection:
    pod, remote = Endpoint(address, 4000), Endpoint("203.0.113.10", 443)
    return Connection("tcp", pod, remote, Endpoint("198.51.100.1", 4000), remote, idle=idle)


def test_line_names_the_pod() -> None:
    assert line(_from("10.244.1.2", 0), "default/web") == (
        "tcp 10.244.1.2:4000 (default/web) -> 203.0.113.10:443, seen as 198.51.100.1:4000"
    )


@pytest.mark.parametrize(
    ("idle", "name"), [(0, "default/web"), (9, "default/web"), (10, None), (11, None), (None, None)]
)
def test_connection_without_packets_since_the_pod_has_the_address(idle: t.Optional[int], name: t.Optional[str]) -> None:
    pods = {"10.244.1.2": pod_names.Pod("default/web", 1000.0)}
    assert opener(_from("10.244.1.2", idle), pods, 1010.0) == name
    assert opener(_from("10.244.1.3", idle), pods, 1010.0) is None
