# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook apply says of a change of many nodes."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.kubenode.ip_masq.plugins.filter.effects import APPLIED, FilterModule
from ansible_collections.kubenode.ip_masq.plugins.filter.effects_to_confirm import FilterModule as ToConfirm

effects = FilterModule().filters()["effects"]
to_confirm = ToConfirm().filters()["effects_to_confirm"]

Hostvars = t.Dict[str, t.Dict[str, t.Any]]


def effect(destination: str, before: str, after: str, connections: t.Optional[int]) -> t.Dict[str, t.Any]:
    """One effect as a module returns it."""
    lists = {key: [] for key in ("destinations_except", "sources", "sources_except", "out_interfaces", "services")}
    counts = {"destinations_omitted": 0, "sources_omitted": 0, "open_connections": connections}
    return {
        "family": "ipv4", "destinations": [destination], **lists, **counts, "packets": "", "before": before,
        "after": after,
    }  # fmt: skip


def host(*found: t.Dict[str, t.Any], groups: t.Sequence[str] = (), **more: t.Any) -> t.Dict[str, t.Any]:
    """The variables of a host with effects."""
    rules = {"effects": list(found), "effects_omitted": 0, "effects_summary": [], **more}
    return {APPLIED: {"failed": False, "rules": rules}, "group_names": list(groups)}


def summed_up(hostvars: Hostvars) -> t.List[str]:
    """The lines about all of them, and one that is not known."""
    return t.cast(t.List[str], effects([*hostvars, "nowhere"], hostvars))


def test_a_fleet_of_300_hosts_with_three_groups() -> None:
    hostvars: Hostvars = {}
    for number in range(300):
        rack = "rack_b" if number < 40 else "rack_c" if number < 55 else "rack_a"
        found = {
            "rack_b": [effect("10.20.0.0/16", "pod", "node", 20 + number % 2)],
            "rack_c": [effect("10.20.0.0/16", "pod", "node", 1), effect("203.0.113.0/24", "node", "192.0.2.7", 0)],
        }.get(rack, [])
        hostvars["node%03d" % number] = host(*found, groups=["kube_node", rack])
    assert summed_up(hostvars) == [
        "rack_b (40 nodes): 10.20.0.0/16: pod -> node, 820 open connections",
        "rack_c (15 nodes): 10.20.0.0/16: pod -> node, 15 open connections; "
        "203.0.113.0/24: node -> 192.0.2.7, 0 open connections",
        "245 nodes: nothing changes for packets",
    ]


def test_what_is_not_known_is_not_nothing() -> None:
    one = effect("10.20.0.0/16", "pod", "node", None)
    hostvars = {
        "n1": host(one),
        "n2": host(effect("10.20.0.0/16", "pod", "node", 4)),
        "n3": {APPLIED: {"failed": True, "msg": "no"}},
        "n4": {},
        "n5": {APPLIED: {"missing_package": "nftables"}},
        "n6": {APPLIED: {"unreachable": True}},
    }
    assert summed_up(hostvars) == [
        "n[1-2] (2 nodes): 10.20.0.0/16: pod -> node, 4 open connections (not counted on 1 node)",
        "4 nodes: not known: n[3-6]",
    ]
    assert summed_up({"n1": host(one)}) == ["n1: 10.20.0.0/16: pod -> node, open connections not counted"]


@pytest.mark.parametrize(
    "limit, beyond",
    [
        ("25%", ["2 nodes of 4 have effects, more than 25%"]),
        ("50%", []),
        (99, ["100 open connections, the limit is 99"]),
        ("100", []),
        (["49.9%", 10], ["2 nodes of 4 have effects, more than 49.9%", "100 open connections, the limit is 10"]),
        ("0%", ["2 nodes of 4 have effects, more than 0%"]),
        ("", []),
    ],
)
def test_a_limit(limit: t.Any, beyond: t.List[str]) -> None:
    some = [effect("10.20.0.0/16", "pod", "node", 50)]
    hostvars = {"n1": host(*some), "n2": host(*some), "n3": host(), "n4": {APPLIED: {"unreachable": True}}}
    assert to_confirm(list(hostvars), hostvars, limit) == beyond


def test_what_is_not_known_is_beyond_a_limit() -> None:
    for answer in (host(effect("10.20.0.0/16", "pod", "node", None)), {APPLIED: {"failed": True}}, {}):
        hostvars = {"n1": answer, "n2": host()}
        assert to_confirm(list(hostvars), hostvars, 1000) == ["open connections not counted, the limit is 1,000"]
        assert to_confirm(list(hostvars), hostvars, "10%") == ["1 node of 2 have effects, more than 10%"]


@pytest.mark.parametrize("limit", ["ten", "-1", "10.5", True, {"hosts": 1}, ["10%", "x"]])
def test_a_limit_that_is_none_is_refused(limit: t.Any) -> None:
    with pytest.raises(AnsibleFilterError, match="neither a share of hosts"):
        to_confirm(["n1"], {"n1": host()}, limit)
