# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that a pattern misses because of the names of groups."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._groups import other_spellings, unreached

NEW = ["kube_control_plane", "kube_node"]
Groups = t.Dict[str, t.List[str]]


def matches(groups: Groups) -> t.Callable[[str], t.List[str]]:
    """The hosts of a part of a pattern, where that is a group, a host or ``all``."""
    everything = {host: [host] for hosts in groups.values() for host in hosts}
    return lambda part: {**everything, **groups, "all": list(everything)}.get(part, [])


@pytest.mark.parametrize(
    "groups, parts, message",
    [
        # One of two groups has its old name, in the inventory or in the pattern.
        (
            {"kube_control_plane": ["cp0"], "kube-node": ["w0"]},
            NEW,
            "no host of the inventory matches 'kube_node': the group kube-node has w0: rename it to kube_node",
        ),
        (
            {"kube-master": ["cp0"], "kube_node": ["w0"]},
            NEW,
            "no host of the inventory matches 'kube_control_plane': the group kube-master has cp0: rename it to kube",
        ),
        ({"kube_master": ["cp0"], "kube_node": ["w0"]}, NEW, "kube_master has cp0: rename it to kube_control_plane"),
        ({"kube-control-plane": ["cp0"], "kube_node": ["w0"]}, NEW, "rename it to kube_control_plane"),
        ({"kube_control_plane": ["cp0"], "Kube.Nodes": ["w1", "w2"]}, NEW, "Kube.Nodes has w[1-2]: rename it to kube"),
        ({"kube_node": ["w0"]}, ["cp0", "kube-node"], "the group kube_node has w0: write kube_node"),
        ({"rack-1": ["w0"], "rack2": ["w1"]}, ["rack2", "rack1"], "the group rack-1 has w0: write rack-1"),
        ({"k8s-cluster": ["w0"], "x": ["w1"]}, ["x", "k8s_cluster[0]"], "rename it to k8s_cluster"),
        # Each of the two has nodes.
        (
            {"kube_control_plane": ["cp0"], "kube_node": ["w0"], "kube-node": ["w0", "w1"]},
            NEW,
            "'kube_node' does not match all nodes: the group kube-node has w1: rename it to kube_node",
        ),
        # Here the node is reached, and variables of kube_node are not.
        ({"kube_control_plane": ["cp0"], "kube-node": ["cp0"]}, NEW, "the group kube-node has cp0: rename it"),
        # Nothing is wrong.
        ({"kube_control_plane": ["cp0"], "kube_node": ["w0"]}, NEW, None),
        ({"kube_control_plane": ["cp0"], "etcd": ["e0"]}, NEW, None),
        ({"kube_control_plane": ["cp0"], "kube_node": ["w0"], "kube-node": ["w0"], "kube-master": []}, NEW, None),
        ({"kube_control_plane": ["cp0"], "kube-node": ["w0"]}, [*NEW, "kube-node"], None),
        ({"kube_node": ["w0"], "kube-node": ["w1"]}, ["kube_node", "!kube-node"], None),
        ({"kube_node": ["w0"], "kube-node": ["w1"]}, ["all"], None),
        ({"kube_control_plane": ["cp0"], "kube_nodes": ["cp0"]}, NEW, None),
        ({"kube_node": ["w0"], "kube_nodes": ["w0", "e0"]}, ["kube_node"], None),
        ({"rack1": ["w0"], "rack-1": ["w1"]}, ["rack1"], None),
    ],
)  # fmt: skip
def test_a_group_of_another_spelling_is_named(groups: Groups, parts: t.List[str], message: t.Optional[str]) -> None:
    said = list(other_spellings(parts, groups, matches(groups)))
    assert len(said) == (message is not None) and (message or "") in "".join(said), said


@pytest.mark.parametrize(
    "parts, left",
    [
        (NEW, ["rr0", "w9"]),
        ([*NEW, "!w9"], ["rr0"]),
        ([*NEW, "calico_rr", "&w0"], ["w9"]),
        (["kube-master", "kube_node"], ["rr0", "w9"]),
        (["k8s_cluster"], ["rr0"]),
        (["all"], []),
        # Not for the whole cluster.
        (["kube_node"], []),
        (["w0"], []),
    ],
)
def test_nodes_that_no_play_is_for(parts: t.List[str], left: t.List[str]) -> None:
    """Hosts of other groups, such as those of etcd alone, are no nodes."""
    groups = {"kube_control_plane": ["cp0"], "kube-master": ["cp0"], "kube_node": ["w0"], "etcd": ["e0"]}
    groups.update({"calico-rr": ["rr0"], "calico_rr": ["rr0"], "k8s_cluster": ["cp0", "w0", "w9"]})
    assert unreached(parts, groups, matches(groups)) == left
