# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``status`` says about kube-proxy and the network plugin; the commands that it has remove what they are for."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from support.actor_rules import NFT as BY_NFT
from support.actor_rules import SHAPES, Shape
from support.agent_node import AgentNode
from support.namespaces import Namespace
from support.services import (
    SERVICES,
    kube_proxy_iptables,
    kube_proxy_ipvs,
    kube_proxy_nftables,
    load_iptables,
    load_ipvs_sets,
)
from support.variants import PODS, VARIANTS

NFT, LEGACY = VARIANTS["iptables_nft"], VARIANTS["iptables_legacy"]
HOOKED = ("PREROUTING", "OUTPUT", "POSTROUTING")
#: Of the kubelet and of kube-router.
OTHERS = (
    ":KUBE-KUBELET-CANARY - [0:0]",
    ":KUBE-MARK-DROP - [0:0]",
    "-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000",
    ":KUBE-ROUTER-SERVICES - [0:0]",
    "-A PREROUTING -j KUBE-ROUTER-SERVICES",
)


@pytest.fixture
def node(ns: Namespace, tmp_path: Path) -> AgentNode:
    """A node on which nothing is but the agent."""
    return AgentNode(ns, tmp_path).synced()


def rows(node: AgentNode) -> t.List[str]:
    """The rows of ``status`` about it."""
    lines = node.command("status").stdout.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("data plane")), None)
    if start is None:
        return []
    (end, *_more) = [number for number, line in enumerate(lines) if number > start and line[:1].strip()]
    return [line[13:] for line in lines[start:end]]


def proxied(ns: Namespace, mode: str) -> None:
    """Have the rules of kube-proxy in a mode."""
    for services in SERVICES.values():
        if mode == "nftables":
            ns.run("nft", "-f", "-", stdin=kube_proxy_nftables(services, False))
        elif mode == "ipvs":
            load_ipvs_sets(ns, services)
            load_iptables(ns, NFT, services, "-A POSTROUTING", kube_proxy_ipvs)
        else:
            load_iptables(ns, VARIANTS[mode], services, "-A POSTROUTING", kube_proxy_iptables)


def unhook(ns: Namespace, mode: str) -> None:
    """Have no packet reach its chains any more."""
    for family in SERVICES:
        for chain in HOOKED[:2]:
            VARIANTS[mode].load(ns, family, "-D %s -j KUBE-SERVICES" % chain)


def test_a_plain_node_has_no_row(node: AgentNode) -> None:
    assert rows(node) == []
    assert node.status()["data_plane"] == {"kube_proxy": [], "network_plugins": [], "leftovers": [], "steps": []}


@pytest.mark.parametrize("mode", (*VARIANTS, "ipvs", "nftables"))
def test_one_row_has_the_mode(node: AgentNode, mode: str) -> None:
    node.ns.run("iptables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
    proxied(node.ns, mode)
    leaks = "; before nftables mode: set leaks to count" if mode in VARIANTS else ""
    assert rows(node) == ["kube-proxy %s%s" % (mode, leaks)]
    assert (node.status()["data_plane"]["kube_proxy"], node.status()["data_plane"]["leftovers"]) == ([mode], [])
    node.synced(leaks="count", sourceCIDRs=PODS[:1])
    assert rows(node) == ["kube-proxy " + mode]


@pytest.mark.parametrize("old", (*VARIANTS, "ipvs"))
def test_a_half_moved_node_is_told_what_to_do(node: AgentNode, old: str) -> None:
    proxied(node.ns, old)
    proxied(node.ns, "nftables")
    first, second, *more = rows(node)
    assert first.startswith("kube-proxy HALF MOVED: %s and nftables" % old)
    assert "restart kube-proxy" in second and not more
    assert node.status()["in_sync"], "it is no state of ours"


@pytest.mark.parametrize("chain", HOOKED[:2])
@pytest.mark.parametrize("mode", VARIANTS)
def test_one_way_to_the_chains_is_enough(node: AgentNode, mode: str, chain: str) -> None:
    proxied(node.ns, mode)
    for family in SERVICES:
        VARIANTS[mode].load(node.ns, family, "-D %s -j KUBE-SERVICES" % chain)
    assert node.status()["data_plane"]["kube_proxy"] == [mode]


@pytest.mark.parametrize("mode", VARIANTS)
def test_the_chains_of_another_mode_are_removed_by_the_command(node: AgentNode, mode: str) -> None:
    proxied(node.ns, "nftables")
    proxied(node.ns, mode)
    for family in SERVICES:
        VARIANTS[mode].load(node.ns, family, *OTHERS)
    unhook(node.ns, mode)
    first, *left = rows(node)
    assert first == "kube-proxy nftables" and len(left) == 2, left
    assert left[0].startswith("left: ipv4, %s: chain KUBE-EXT-POD and 7 more: iptables-" % mode)
    before = {family: VARIANTS[mode].rules(node.ns, family) for family in SERVICES}
    for one in node.status()["data_plane"]["leftovers"]:
        node.ns.run("sh", "-euc", one["command"])
    assert rows(node) == ["kube-proxy nftables"]
    for family in SERVICES:
        saved = VARIANTS[mode].saved(node.ns, family)
        assert "KUBE-S" not in saved and "KUBE-NODEPORTS" not in saved
        assert all(name in saved for name in ("KUBE-KUBELET-CANARY", "KUBE-MARK-DROP", "-j KUBE-ROUTER-SERVICES"))
        assert VARIANTS[mode].rules(node.ns, family) == before[family], "ours are as they were"
    assert node.sync().stdout == "", "and need no repair"


def test_what_ipvs_left_is_removed_by_the_commands(node: AgentNode) -> None:
    proxied(node.ns, "nftables")
    for services in SERVICES.values():
        load_ipvs_sets(node.ns, services)
    node.ns.run("ipset", "create", "KUBE-SRC-ABCDEF", "hash:ip")
    node.ns.run("ip", "link", "add", "kube-ipvs0", "type", "bridge")
    assert rows(node)[1:] == [
        "left: the link kube-ipvs0: ip link delete kube-ipvs0",
        "left: ipset KUBE-6-CLUSTER-IP and 7 more: "
        + next(one["command"] for one in node.status()["data_plane"]["leftovers"] if "ipset" in one["command"]),
    ]
    for one in node.status()["data_plane"]["leftovers"]:
        node.ns.run("sh", "-euc", one["command"])
    assert rows(node) == ["kube-proxy nftables"]
    assert node.ns.run("ipset", "-n", "list").split() == ["KUBE-SRC-ABCDEF"], "kube-router's"


@pytest.mark.parametrize(
    "shape", [one for one in SHAPES if one.name in ("calico", "flannel", "cilium")], ids=lambda one: one.title
)
def test_the_network_plugin_s_data_plane(node: AgentNode, shape: Shape) -> None:
    shape.load(node.ns)
    names = {"calico": "Calico", "flannel": "flannel", "cilium": "Cilium"}
    how = "nftables" if shape.backend == BY_NFT else "iptables_nft"
    assert rows(node) == ["%s %s" % (names[shape.name], how)]
    link = {"calico": "bpfin.cali", "cilium": "cilium_host"}.get(shape.name)
    if link:
        node.ns.run("ip", "link", "add", link, "type", "bridge")
        assert rows(node) == ["%s ebpf" % names[shape.name]]


def test_what_the_policy_needs_before_a_move(node: AgentNode) -> None:
    proxied(node.ns, "iptables_nft")
    node.synced(skipMarks=["0x4000/0x4000"], backend="iptables_legacy", leaks="count", sourceCIDRs=PODS[:1])
    steps = node.status()["data_plane"]["steps"]
    kernel = "the next kernel" if steps[-1]["before"] == "the next kernel" else "Linux 6.17"
    assert rows(node) == [
        "kube-proxy iptables_nft; before nftables mode: look at skip_marks; before %s: set backend to auto" % kernel
    ]
    assert all(set(one) == {"before", "do", "why"} for one in steps)
