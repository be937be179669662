# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counting the use of source ports: bounded in memory and time, whatever is in the table."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import ports
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import port_usage
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import conntrack
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import PortUse
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4

NODE, POD = ipaddress.ip_address("198.51.100.1"), ipaddress.ip_address("10.244.1.2")
REMOTE = ipaddress.ip_address("203.0.113.1")


def _use(number: int, seen_port: int, source: int = 0, protocol: int = 6) -> PortUse:
    """Return a connection of a pod to a destination, by its number."""
    remote, pod = (REMOTE + number).packed, (POD + source).packed
    port = seen_port.to_bytes(2, "big")
    return PortUse(pod, b"\0\1", NODE.packed, port, remote, b"\1\xbb", bytes([protocol]), b"", 0)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> t.List[PortUse]:
    """The table of connections of IPv4."""
    rows: t.List[PortUse] = []

    monkeypatch.setattr(conntrack, "read_ports", lambda _version: iter(rows))
    monkeypatch.setattr(port_usage, "has_ipv6", lambda: False)
    monkeypatch.setattr(port_usage, "node_addresses", lambda: [NODE])
    return rows


def test_more_destinations_than_there_is_memory_for(table: t.List[PortUse], monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest are right, and it is said how many connections were not counted."""
    most = []

    class Watched(port_usage._Counter):
        def _count(self, one: PortUse) -> None:
            super()._count(one)
            most.append(len(self._counts))

    monkeypatch.setattr(port_usage, "_Counter", Watched)
    monkeypatch.setattr(port_usage, "_MOST", 100)
    for number in range(2000):
        table.append(_use(number, 2000))
        table.append(_use(5, 3000 + number))
    found = port_usage.read({}, 10, {})
    assert max(most) <= 100
    assert str(REMOTE + 5) == found.fullest[0].destination
    assert found.fullest[0].used in (2000, 2001)
    assert found.not_counted > 1000
    assert found.not_counted + found.destinations - 1 + found.fullest[0].used == len(table)
    assert len(found.fullest) == 10


def test_time_limit(table: t.List[PortUse]) -> None:
    table += [_use(number % 3, 2000 + number) for number in range(5000)]
    found = port_usage.read({}, 10, {}, seconds=-1)
    assert not found.complete and 0 < sum(use.used for use in found.fullest) < 5000
    assert port_usage.read({}, 10, {}, seconds=600).complete


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ((), [("1024-65535 1/64512", 1, 64512)]),
        (["1500-1999", "2000"], [("1500-1999 0/500, 2000 1/1", 1, 501)]),
        (["1900-2099", "1000-1999"], [("1000-1899 0/900, 1900-1999 0/100, 2000-2099 1/100", 1, 1100)]),
        (["3000-3999"], [("1024-2999 1/1976, 4000-65535 0/61536", 1, 63512)]),
        (["1-65535"], [("1-65535 1/65535", 1, 65535)]),
    ],
)
def test_ports_to_choose_from(table: t.List[PortUse], ranges: t.List[str], expected: t.List[t.Any]) -> None:
    table += [_use(0, 2000), _use(1, 2000, protocol=33)]
    config = build({"to_ports": ranges, "non_masquerade_cidrs": []})
    found = port_usage.read({"ipv4": [from_config(config, IPV4)]}, 10, {})
    assert [(_text(one), one.used, one.available) for one in found.fullest] == expected


def _text(use: port_usage.Use) -> str:
    return ", ".join("%s %d/%d" % one for one in use.ranges)


def test_one_source_in_several_ranges(table: t.List[PortUse]) -> None:
    """The ranges of a destination are counted together, and so are a source's connections from them."""
    table += [_use(0, port) for port in range(2000, 2003)] + [_use(0, port, 1) for port in range(3000, 3007)]
    table += [_use(0, 3010), _use(1, 3000)]
    config = build({"to_ports": ["2000-2009", "3000-3019"], "non_masquerade_cidrs": []})
    first, second = port_usage.read({"ipv4": [from_config(config, IPV4)]}, 10, {}).fullest
    assert (_text(first), first.used, first.available) == ("2000-2009 3/10, 3000-3019 8/20", 11, 30)
    assert [(one.address, one.connections) for one in first.sources] == [(str(POD + 1), 7), (str(POD), 4)]
    assert (_text(second), second.used) == ("2000-2009 0/10, 3000-3019 1/20", 1)


@pytest.mark.parametrize(
    ("ranges", "smallest"), [((), 64512), (["61000-61099"], 100), (["1024-65000"], 535), (["1-65535"], 64512)]
)
def test_few_connections_cannot_make_ports_scarce(ranges: t.List[str], smallest: int) -> None:
    config = build({"to_ports": ranges, "non_masquerade_cidrs": []})
    rulesets = {"ipv4": [from_config(config, IPV4)]}  # of IPv6 there are none
    most = int(port_usage.SCARCE * smallest)
    assert not port_usage.can_be_scarce(rulesets, most)
    assert port_usage.can_be_scarce(rulesets, most + 1)


def test_share_is_never_above_all(table: t.List[PortUse]) -> None:
    """The kernel tells of a connection twice if the table changes meanwhile."""
    table += [_use(0, 2000), _use(0, 2000)]
    config = build({"to_ports": ["2000"], "non_masquerade_cidrs": []})
    (use,) = port_usage.read({"ipv4": [from_config(config, IPV4)]}, 10, {}).fullest
    assert (use.used, use.available, use.share) == (1, 1, 1.0)


def _report(**use: t.Any) -> t.Dict[str, t.Any]:
    row = {
        "protocol": "tcp",
        "address": "198.51.100.1",
        "destination": "203.0.113.9",
        "port": 443,
        "zone": 0,
        "ranges": [{"ports": "61000-61099", "used": 90, "available": 100}],
        "used": 90,
        "available": 100,
        "sources": [
            {"address": "10.244.1.2", "connections": 60, "pod": "default/web"},
            {"address": "10.244.1.3", "connections": 20},
        ],
    }
    counted = {"entries": 900, "limit": 1000, "insert_failed": 3, "drops": 2, "early_drops": 1}
    return {
        "destinations": [dict(row, **use)],
        "destinations_left_out": 0,
        "connections_not_counted": 0,
        "errors": [],
        "conntrack": counted,
    }


def test_table_for_people() -> None:
    assert ports.table(_report()) == [
        "tracked connections: 900 of 1000 (90 %); since boot: 3 insert_failed, 2 drops, 1 early_drops",
        "",
        "used   of   %  address       destination          ports        connections of",
        "  90  100  90  198.51.100.1  tcp 203.0.113.9:443  61000-61099  10.244.1.2 (default/web) 60, 10.244.1.3 20, "
        "others 10",
    ]
    assert "  tcp [2001:db8::9]:443 zone 7  " in ports.table(_report(destination="2001:db8::9", zone=7))[3]
    ranges = [{"ports": "61000-61079", "used": 80, "available": 80}, {"ports": "61090", "used": 0, "available": 1}]
    assert "  61000-61079 80 of 80, 61090 0 of 1  " in ports.table(_report(ranges=ranges))[3]


def test_table_says_what_it_leaves_out() -> None:
    report = dict(_report(), destinations_left_out=80, connections_not_counted=7, errors=["ipv6: broken"])
    report["destinations"] *= 25
    report["conntrack"] = None
    lines = ports.table(report)
    assert lines[0] == "the kernel does not show how many connections it tracks"
    assert lines[-3:] == [
        "... 85 more destinations with a smaller share",
        "not counted, because there are too many pods and destinations: 7 connections, of those with the fewest",
        "the active rules are not known, nor their to_ports: ipv6: broken",
    ]
    assert ports.table(dict(report, destinations=[], destinations_left_out=0))[2] == (
        "no tracked connection is hidden behind an address of this node"
    )


def test_percent_is_rounded_down() -> None:
    assert [ports.percent(*one) for one in ((999, 1000), (1000, 1000), (0, 0))] == [99, 100, 0]
