# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``backend: auto`` on a node that loses or gains what decides it, while a pod opens connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.namespaces import Namespace
from support.services import SERVICES, kube_proxy_iptables, kube_proxy_nftables, load_iptables
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, EXEMPT_RANGES, VARIANTS

NFT, LEGACY = VARIANTS["iptables_nft"], VARIANTS["iptables_legacy"]
DOCKER = "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"
HINT = ("-t", "mangle", "-N", "KUBE-IPTABLES-HINT")


@pytest.fixture
def node(topology: Topology, tmp_path: Path) -> AgentNode:
    """The agent with ``backend: auto``; it has no rules yet."""
    made = AgentNode(topology.node, tmp_path)
    made.configure(nonMasqueradeCIDRs=EXEMPT_RANGES, enableIPv6=True)
    return made


@contextlib.contextmanager
def right_sources(topology: Topology) -> t.Iterator[None]:
    """Have a pod open connections all the time, and look at the source of each."""
    expected = {}
    for family in ADDRESSES.values():
        expected.update(dict.fromkeys(family.exempt, family.pod))
        expected.update(dict.fromkeys(family.outside, family.node))
    stream = topology.stream(*expected)
    yield
    seen = stream.finish()
    assert {one: list(sources) for one, sources in seen.items()} == {one: [own] for one, own in expected.items()}


def places(ns: Namespace) -> t.List[str]:
    """Which backends hold rules of ours, in either family."""
    return [name for name, one in BACKENDS.items() if any(one.rules(ns, family) for family in ADDRESSES)]


def settled(node: AgentNode, backend: str, moved: str = "") -> None:
    """One sync moves the node, if it is to be moved; the next ones find and say nothing.

    :param moved: what the journal has.
    """
    done = node.sync()
    assert done.returncode == 0, done.stderr
    assert ("backend auto: " in done.stdout) == bool(moved) and moved in done.stdout, done.stdout
    for _again in range(3):
        again = node.sync()
        assert (again.returncode, again.stdout, again.stderr) == (0, "", ""), again
    status = node.status()
    assert (status["backend"]["name"], status["in_sync"], status["not_checked"]) == (backend, True, []), status
    assert places(node.ns) == [backend]
    for family in ADDRESSES:
        assert len(BACKENDS[backend].jumps(node.ns, family)) == 1 or backend == "nftables"


def hide(ns: Namespace, *programs: str) -> t.List[str]:
    """Take programs away, whichever name they are started by, and return where they were."""
    paths = [os.path.realpath(shutil.which(program) or program) for program in programs]
    for path in paths:
        ns.run("mount", "--bind", "/dev/null", path)
    return paths


def test_from_legacy_to_what_the_kubelet_uses(topology: Topology, node: AgentNode) -> None:
    LEGACY.load(node.ns, "ipv4", DOCKER)
    settled(node, "iptables_legacy")
    with right_sources(topology):
        LEGACY.load(node.ns, "ipv4", DOCKER.replace("-A", "-D"))
        settled(node, "iptables_legacy")
        node.ns.run("iptables-nft", *HINT)
        settled(node, "iptables_nft", "backend auto: from iptables_legacy to iptables_nft: the kubelet uses it")
    status = node.status()
    assert status["last_change"]["lines"][0].startswith("backend auto: from iptables_legacy to iptables_nft")
    assert status["drift_repaired"] == 0, "nobody changed the rules"


def test_kube_proxy_s_move_to_nftables_changes_no_rule_of_ours(topology: Topology, node: AgentNode) -> None:
    node.ns.run("iptables-nft", *HINT)
    for services in SERVICES.values():
        load_iptables(node.ns, NFT, services, "-I POSTROUTING 1", kube_proxy_iptables)
    settled(node, "iptables_nft")
    node.settle()
    with right_sources(topology):
        for family, services in SERVICES.items():
            node.ns.run("nft", "-f", "-", stdin=kube_proxy_nftables(services, True))
            settled(node, "iptables_nft")
            lines = [line for line in kube_proxy_iptables(services, "-A POSTROUTING") if line.startswith("-A ")]
            chains = sorted({line.split()[1] for line in lines if line.startswith("-A KUBE-")})
            jumps = ["-D" + line[2:] for line in lines if not line.startswith("-A KUBE-")]
            NFT.load(node.ns, family, *jumps, *("-F " + one for one in chains), *("-X " + one for one in chains))
            settled(node, "iptables_nft")
    assert node.status()["drift_repaired"] == 0


def test_a_flushed_ruleset_does_not_send_it_back_to_legacy(topology: Topology, node: AgentNode) -> None:
    """The kubelet makes its hint again within a minute; until then nothing but Docker's rules are there."""
    node.ns.run("iptables-nft", *HINT)
    LEGACY.load(node.ns, "ipv4", DOCKER)
    settled(node, "iptables_nft")
    node.ns.run("nft", "flush", "ruleset")
    assert node.sync().returncode == 0
    assert places(node.ns) == ["iptables_nft"]
    node.ns.run("iptables-nft", *HINT)
    assert node.sync().stdout == ""
    assert places(node.ns) == ["iptables_nft"]


def test_the_kubelet_s_move_to_legacy_is_followed(topology: Topology, node: AgentNode) -> None:
    settled(node, "iptables_nft")
    with right_sources(topology):
        node.ns.run("iptables-legacy", *HINT)
        LEGACY.load(node.ns, "ipv4", DOCKER)
        settled(node, "iptables_legacy", "backend auto: from iptables_nft to iptables_legacy: its tables hold rules")


@pytest.mark.parametrize("backend", VARIANTS)
def test_a_node_that_loses_its_program(topology: Topology, node: AgentNode, backend: str) -> None:
    """Nothing can remove the rules without it: they are named. When it is back, they go."""
    after, programs = "nftables", ["iptables-nft", "iptables-legacy"]
    if backend == "iptables_legacy":
        LEGACY.load(node.ns, "ipv4", DOCKER)
        after, programs = "iptables_nft", programs[1:]
    settled(node, backend)
    with right_sources(topology):
        hidden = hide(node.ns, *programs)
        done = node.sync()
        move = "backend auto: from %s to %s: the node no longer has the program of %s" % (backend, after, backend)
        assert done.returncode == 0 and move in done.stdout, done
        left = "ipv4, %s: the chain IP-MASQ-AGENT is still active" % backend
        assert left in done.stderr
        again = node.sync()
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
        status = node.status()
        assert status["in_sync"] and any(left in note for note in status["notes"]), status
        for path in hidden:
            node.ns.run("umount", path)
        assert node.sync().returncode == 0
        settled(node, *places(node.ns))
