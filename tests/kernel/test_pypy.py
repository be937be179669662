# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes whose Python is PyPy, such as Flatcar under kubespray."""

from __future__ import annotations

import re
import shutil
import sys
import typing as t
from pathlib import Path

import pytest
from support import seccomp
from support.agent_node import AgentNode
from support.import_collection import location
from support.namespaces import Namespace
from support.standard_library import missing_names, used_names
from support.topology import ADDRESSES, Topology
from support.variants import Variant, snapshot

#: How the unit starts the agent: no memory can be made executable.
WALLED = (sys.executable, seccomp.__file__)


@pytest.fixture(scope="module")
def pypy() -> str:
    """Debian's PyPy. A test that is left out would pass unseen on a machine without it."""
    found = shutil.which("pypy3", path="/usr/bin")
    if not found:
        pytest.fail("not installed: pypy3: run `make setup`", pytrace=False)
    return found


class TestPyPy:
    """The installed agent, and the modules, run by PyPy."""

    def test_it_has_every_name_that_is_used(self, pypy: str) -> None:
        plugins = location() / "plugins"
        files = [path for folder in ("modules", "module_utils") for path in (plugins / folder).rglob("*.py")]
        used = {name for path in files for name in used_names(path) if name[0].split(".")[0] != "ansible"}
        assert {("os", "fork"), ("re", "compile"), ("multiprocessing.connection", "Pipe")} <= used
        assert missing_names(pypy, used - missing_names(sys.executable, used)) == set()

    @pytest.mark.parametrize("walls", [(), WALLED], ids=["as root", "in the unit"])
    def test_sync_and_status(
        self, ns: Namespace, tmp_path: Path, pypy: str, variant: Variant, walls: t.Tuple[str, ...]
    ) -> None:
        node = AgentNode(ns, tmp_path, python=pypy)
        node.configure(backend=variant.backend, enableIPv6=True, nonMasqueradeCIDRs=["10.1.0.0/16", "fd00:1::/32"])
        first = node.call(*walls, node.agent, "sync")
        assert (first.returncode, first.stderr) == (0, "") and "10.1.0.0/16" in first.stdout
        assert any("10.1.0.0/16" in rule for rule in variant.rules(ns, "ipv4") or [])
        before = snapshot(ns)
        again = node.call(*walls, node.agent, "sync")
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
        assert snapshot(ns) == before
        status = node.call(*walls, node.agent, "status")
        assert status.returncode == 0 and re.search(r"^rules +in sync", status.stdout, re.MULTILINE), status
        variant.lose(ns, "ipv4", "10.1.0.0/16")
        assert node.command("status").returncode == 4
        node.settle()
        assert snapshot(ns) == before

    def test_verify_and_explain(self, topology: Topology, tmp_path: Path, pypy: str) -> None:
        a, node = ADDRESSES["ipv4"], AgentNode(topology.node, tmp_path, python=pypy)
        node.configure(backend="nftables", enableIPv6=True)
        assert node.sync().returncode == 0
        done = node.command("verify")
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        node.ns.run("iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
        done = node.command("verify")
        assert done.returncode == 5 and "10.8.0.0/16" in done.stdout, done.stdout + done.stderr
        explained = node.command("explain", "10.8.0.1")
        assert explained.returncode == 0 and "POSTROUTING" in explained.stdout, explained
        node.ns.run("iptables-nft", "-t", "nat", "-F", "POSTROUTING")
        assert node.command("verify").returncode == 0
        assert topology.ask("10.99.0.1") == {"10.99.0.1": a.pod}

    def test_open_connections_are_flushed(self, topology: Topology, tmp_path: Path, pypy: str) -> None:
        node = AgentNode(topology.node, tmp_path, metrics=True, python=pypy)
        keys: t.Dict[str, t.Any] = {"backend": "iptables_nft", "flushConntrack": "changed"}
        node.configure(nonMasqueradeCIDRs=["10.0.0.0/8"], **keys)
        assert node.sync().returncode == 0
        topology.ask("10.99.0.1")
        # Whether the connection is one of this interface, the kernel is asked.
        node.configure(nonMasqueradeCIDRs=["192.168.0.0/16"], outInterfaces=["eth0"], **keys)
        done = node.sync()
        assert done.returncode == 0, done
        assert "ipv4: open connections removed, because their verdict changed: 1" in done.stdout + done.stderr
        assert "ip_masq_agent_connections_flushed_total 1" in (node.metrics_dir / "ip_masq_agent.prom").read_text()
