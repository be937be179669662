# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``to_ports: auto`` makes of the settings of a node."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import auto_ports
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.auto_ports import (
    largest_range,
    or_any_ports,
    with_auto_ports,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import PortRange
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.local_ports import LocalPorts
from hypothesis import given
from hypothesis import strategies as st

NODE_PORTS = PortRange(30000, 32767)


@pytest.mark.parametrize(
    "local, expected",
    [
        (LocalPorts(32768, 60999), "32768-60999"),
        (LocalPorts(1024, 65535), "32768-65535"),
        (LocalPorts(1024, 65535, ((40000, 40000), (50000, 65535))), "1024-29999"),
        (LocalPorts(30000, 32767), "None"),
        (LocalPorts(29999, 32768), "29999"),
        (LocalPorts(10000, 49999, ((20000, 20000), (32768, 40000))), "10000-19999"),
    ],
)
def test_the_largest_rest_and_the_first_of_several(local: LocalPorts, expected: str) -> None:
    assert str(largest_range(local, NODE_PORTS)) == expected


_PORTS = st.integers(1, 40)


@given(_PORTS, _PORTS, st.lists(st.tuples(_PORTS, _PORTS), max_size=4), _PORTS, _PORTS)
def test_a_range_is_free_and_none_is_larger(
    first: int, last: int, reserved: list[tuple[int, int]], low: int, high: int
) -> None:
    node_ports = PortRange(*sorted((low, high)))
    found = largest_range(LocalPorts(first, last, tuple(sorted(map(_in_order, reserved)))), node_ports)
    taken = {port for one in [*map(_in_order, reserved), node_ports] for port in range(one[0], one[1] + 1)}
    free = [port in range(first, last + 1) and port not in taken for port in range(42)]
    runs = "".join("x" if one else " " for one in free).split()
    assert (found.size if found else 0) == max(map(len, runs), default=0)
    assert found is None or all(free[found.first : found.last + 1])


def _in_order(pair: tuple[int, int]) -> tuple[int, int]:
    return min(pair), max(pair)


def test_other_policies_read_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_ports, "read_local_ports", None)
    for options in ({}, {"to_ports": ["1024-2048"]}):
        config = build(options)
        assert with_auto_ports(config) is config and or_any_ports(config) == (config, ())


def test_settings_that_cannot_be_read_stop_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> LocalPorts:
        raise NodeError("cannot read /proc/sys/x: no")

    monkeypatch.setattr(auto_ports, "read_local_ports", broken)
    config, errors = or_any_ports(build({"to_ports": "auto"}))
    assert config.to_ports == ()
    assert errors == ("toPorts: auto: cannot read /proc/sys/x: no; the kernel chooses source ports until then",)
