# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels without the tables of iptables-legacy, which Linux leaves out by default from 6.17 on: make test-vm."""

from __future__ import annotations

import json
import os
import subprocess
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.modules import apply, run_modules
from support.topology import ADDRESSES, Topology
from support.variants import EXEMPT_RANGES, PODS

_MODULES = [
    "%stable_%s" % (family, table)
    for family in ("ip", "ip6")
    for table in ("nat", "filter", "mangle", "raw", "security")
] + ["ip_tables", "ip6_tables"]


@pytest.fixture
def without_legacy() -> t.Iterator[None]:
    """Unload what is loaded, and have the kernel load none of it again."""
    if "IP_MASQ_VM" not in os.environ:
        pytest.skip("the modules of this machine are left alone: make test-vm")
    refuse = Path("/run/modprobe.d/no-legacy.conf")
    refuse.parent.mkdir(exist_ok=True)
    refuse.write_text("".join("install %s /bin/false\n" % module for module in _MODULES))
    for module in _MODULES:
        subprocess.run(["rmmod", module], stderr=subprocess.DEVNULL, check=False)
    assert not Path("/proc/net/ip_tables_names").exists()
    yield
    refuse.unlink()


@pytest.mark.parametrize("backend", ("auto", "nftables"))
def test_the_module_changes_its_backend_and_removes_it(without_legacy: None, topology: Topology, backend: str) -> None:
    options = {"backend": backend, "enable_ipv6": True, "non_masquerade_cidrs": EXEMPT_RANGES, "source_cidrs": PODS}
    assert "warnings" not in apply(topology.node, **options)
    assert apply(topology.node, **options)["changed"] is False
    assert apply(topology.node, state="absent")["changed"] is True


def test_a_node_that_had_legacy_until_its_kernel_was_replaced_moves(
    without_legacy: None, topology: Topology, tmp_path: Path
) -> None:
    node = AgentNode(topology.node, tmp_path)
    node.configure(nonMasqueradeCIDRs=EXEMPT_RANGES, enableIPv6=True)
    said = "backend auto: from iptables_legacy to iptables_nft: the kernel no longer has iptables_legacy"
    assert node.sync().returncode == 0
    remembered = json.loads(node.state_file.read_text())
    assert remembered["backend"] == "iptables_nft"
    node.state_file.write_text(json.dumps(dict(remembered, backend="iptables_legacy")))
    topology.node.run("nft", "flush", "ruleset")
    assert said in node.command("sync", "--dry-run").stdout
    moved = node.sync()
    assert moved.returncode == 0 and said in moved.stdout, moved
    assert node.sync().stdout == "" and node.status()["backend"]["name"] == "iptables_nft"


def test_legacy_is_refused_with_the_reason(without_legacy: None, topology: Topology) -> None:
    (refused,) = run_modules(topology.node, [{"backend": "iptables_legacy"}])
    assert refused["failed"] and "iptables-legacy" in refused["msg"]


@pytest.mark.parametrize("backend", ("auto", "nftables"))
def test_the_agent_is_installed_verified_repaired_and_removed(
    without_legacy: None, topology: Topology, tmp_path: Path, backend: str
) -> None:
    node = AgentNode(topology.node, tmp_path, installed=False)
    config = {"backend": backend, "enableIPv6": True, "nonMasqueradeCIDRs": EXEMPT_RANGES, "sourceCIDRs": PODS}
    done = node.module("ip_masq_agent", {"config": config, "verify": True})
    assert not done.get("failed") and done["changed"] and "warnings" not in done, done
    assert done["verification"]["verified"] is True, done["verification"]
    seen = topology.ask("10.99.0.1", "203.0.113.10")
    assert seen == {"10.99.0.1": ADDRESSES["ipv4"].pod, "203.0.113.10": ADDRESSES["ipv4"].node}
    topology.node.run("nft", "flush", "ruleset")
    assert node.sync().returncode == 0 and node.status()["in_sync"]
    verified = node.command("verify")
    assert (verified.returncode, verified.stderr) == (0, ""), verified
    removed = node.module("ip_masq_agent", {"state": "absent"})
    assert not removed.get("failed") and removed["changed"], removed
    assert "masquerade" not in topology.node.run("nft", "list", "ruleset")
