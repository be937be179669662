# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proposed rules that other programs undo are found before anything is written, and the node is left as it is."""

from __future__ import annotations

import itertools
import re
import typing as t
from pathlib import Path

import pytest
from support.actor_rules import SHAPES, Shape
from support.agent_node import AgentNode
from support.topology import ADDRESSES, Topology
from support.variants import snapshot

#: By backend, the variant of iptables in which other programs make their rules.
BACKENDS = {"iptables_nft": "nft", "iptables_legacy": "legacy", "nftables": "nft"}
#: Programs that hide what is exempt, and some that do not.
PROGRAMS = ("calico", "flannel", "kube-router", "kubenet", "kube-proxy", "podman-beside-pods")
_A, _B = ADDRESSES["ipv4"], ADDRESSES["ipv6"]
_OTHER = ("-t", "nat", "-I", "POSTROUTING", "-d", "10.99.0.0/16", "-j", "MASQUERADE")

#: Packets of the node itself are counted meanwhile.
_COUNTED = re.compile(r"\[\d+:\d+\]|packets \d+ bytes \d+")

Returned = t.Dict[str, t.Any]


@pytest.fixture
def node(topology: Topology, tmp_path: Path) -> AgentNode:
    """A node with a pod, on which nothing is installed yet."""
    return AgentNode(topology.node, tmp_path, installed=False)


def propose(node: AgentNode, check: bool = False, kubelet: bool = False, **config: t.Any) -> Returned:
    """Apply a policy, but test it before."""
    options: Returned = {"config": config, "verify_before": True}
    return node.module("ip_masq_agent", {**options, **({"kubelet": {}} if kubelet else {})}, check=check)


def state(node: AgentNode) -> t.Set[t.Tuple[str, t.Any]]:
    """Return the rules of all programs without what they have counted, all files and units."""
    paths = {path: node.root / path for path in node.files()}
    files = {name: path.read_bytes() for name, path in paths.items() if path.is_file() and not path.is_symlink()}
    units = {path.name: path.read_bytes() for path in node.systemd.iterdir()}
    rules = {**snapshot(node.ns), "ruleset": node.ns.run("nft", "-s", "list", "ruleset")}
    return {*((name, _COUNTED.sub("", text)) for name, text in rules.items()), *files.items(), *units.items()}


#: Our backends in turn: which rules hide what, whoever made them, tests of verify show.
_CASES = list(zip((one for one in SHAPES if one.name in PROGRAMS), itertools.cycle(BACKENDS)))


@pytest.mark.parametrize(("shape", "backend"), _CASES, ids=lambda one: getattr(one, "title", one))
def test_first_policy_is_refused_where_packets_would_show_another_one(
    node: AgentNode, topology: Topology, shape: Shape, backend: str
) -> None:
    shape.load(node.ns, BACKENDS[backend])
    config = {"backend": backend, "nonMasqueradeCIDRs": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]}
    before = state(node)
    predicted, refused = propose(node, check=True, **config), propose(node, **config)
    assert refused.get("failed", False) == predicted.get("failed", False) == (shape.owner is not None), refused
    if shape.owner is not None:
        assert state(node) ^ before == set()
        assert not refused["changed"] and refused["files"] == refused["services"] == []
        assert refused["msg"] == predicted["msg"]
        assert refused["msg"].startswith("left as it is, because rules of other programs undo the policy: ")
        assert " the node's address, not the pod's own address (rule of %s); remedy: " % shape.owner in refused["msg"]
        assert (
            len(refused["rules"]["effects_summary"]) > 1 and refused["rules"]["effects_summary"][-1] in refused["msg"]
        )
        assert {one["owner"] for one in refused["proposal"]["conflicts"]} == {shape.owner}
        applied = node.module("ip_masq_agent", {"config": config})
        assert not applied.get("failed"), applied
    else:
        assert refused["proposal"]["verified"] is True and refused["proposal"]["undone"] == []
    seen = topology.ask(*_A.exempt)
    assert (set(seen.values()) != {_A.pod}) == (shape.owner is not None), seen


@pytest.mark.parametrize("backend", ["iptables_legacy", "nftables"])
def test_active_rules_stay_where_a_change_is_refused(node: AgentNode, topology: Topology, backend: str) -> None:
    node.ns.run("iptables-" + BACKENDS[backend], *_OTHER)
    node.ns.run(
        "ip6tables-" + BACKENDS[backend], "-t", "nat", "-A", "POSTROUTING", "-d", "fd00:99::/32", "-j", "MASQUERADE"
    )
    # A fixed address: it is one of the node, and the copy of the rules has none.
    kept: Returned = {"backend": backend, "enableIPv6": True, "snat": [{"address": _A.node}], "nonMasqueradeCIDRs": []}
    first = propose(node, **kept)
    assert not first.get("failed") and first["proposal"]["verified"] is True, first
    before = state(node)
    assert "proposal" not in propose(node, **kept), "nothing is proposed"
    assert state(node) ^ before == set()

    for exempt, hidden, owner in (
        ("10.0.0.0/8", "10.99.0.0/16", "iptables"),
        ("fc00::/7", "fd00:99::/32", "ip6tables"),
    ):
        for check in (True, False):
            refused = propose(node, check=check, **{**kept, "nonMasqueradeCIDRs": [exempt]})
            rule = "-A POSTROUTING -d %s -j MASQUERADE" % hidden
            told = (
                "%s sees the node's address, not the pod's own address (rule of an unknown program: %s); remedy: "
                % (
                    hidden,
                    rule,
                )
            )
            assert refused.get("failed") and told in refused["msg"], (owner, refused)
            assert state(node) ^ before == set()
    assert topology.ask(_A.exempt[0], _A.exempt[1], _B.exempt[1]) == {
        _A.exempt[0]: _A.node, _A.exempt[1]: _A.node, _B.exempt[1]: _B.node,
    }  # fmt: skip
    done = propose(node, **{**kept, "nonMasqueradeCIDRs": ["172.16.0.0/12", "fc00:77::/32"]})
    assert not done.get("failed") and done["changed"] and done["proposal"]["verified"] is True, done
    assert topology.ask(_A.exempt[1], _B.exempt[1]) == {_A.exempt[1]: _A.pod, _B.exempt[1]: _B.pod}


def test_what_kubenet_left_is_deleted_later(node: AgentNode, topology: Topology) -> None:
    """The role deletes it with the kubelet, after the rules are applied."""
    next(one for one in SHAPES if one.name == "kubenet").load(node.ns)
    config = {"nonMasqueradeCIDRs": ["172.16.0.0/12"]}
    assert propose(node, **config).get("failed")
    done = propose(node, kubelet=True, **config)
    assert not done.get("failed") and done["changed"], done
    assert (
        " the node's address, not the pod's own address (rule of kubenet); remedy: "
        in done["rules"]["effects_summary"][-1]
    )


def test_what_cannot_be_tested_is_said_and_applied(node: AgentNode, tmp_path: Path) -> None:
    node.ns.run("ip", "link", "delete", "pods")  # no route shows pods
    for check in (True, False):
        done = propose(node, check=check)
        assert not done.get("failed") and done["changed"], done
        assert done["proposal"]["verified"] is None
        (told,) = [one for one in done["warnings"] if "not fully tested" in one]
        assert told.endswith("the rules were not fully tested before they are written: " + done["proposal"]["summary"])
    assert node.status()["in_sync"]
