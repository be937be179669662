# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes whose Python is PyPy, such as Flatcar under kubespray."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from support import seccomp
from support.agent_node import AgentNode
from support.import_collection import location
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import Variant, snapshot

#: How the unit starts the agent: no memory can be made executable.
WALLED = (sys.executable, seccomp.__file__)


#: A module, and a name in it.
Name = t.Tuple[str, str]

#: Prints which of some names this Python lacks.
_PROBE = """
import importlib, json, sys

def has(module, name):
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(module + "." + name))
    except ImportError:
        return False

print(json.dumps([one for one in json.load(sys.stdin) if not has(*one)]))
"""


def used_names(path: Path) -> t.Set[Name]:
    """Return the names that a file takes from modules outside of this collection, without those that it guards.

    A name is guarded by ``hasattr`` in the same file; an import by ``try``, with ``except ImportError``.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {id(node) for attempt in ast.walk(tree) if isinstance(attempt, ast.Try) for node in _imports(attempt)}
    modules: t.Dict[str, str] = {}
    found: t.Set[Name] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update({one.asname or one.name: one.name for one in node.names})
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module and id(node) not in guarded:
            found.update((node.module, one.name) for one in node.names)
    asked = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _dotted(node.value) in modules:
            found.add((modules[_dotted(node.value)], node.attr))
        elif isinstance(node, ast.Call) and _dotted(node.func) == "hasattr" and isinstance(node.args[1], ast.Constant):
            asked.add((modules.get(_dotted(node.args[0]), ""), str(node.args[1].value)))
    return found - asked


def _imports(attempt: ast.Try) -> t.Iterator[ast.AST]:
    if any(handler.type is not None and _dotted(handler.type) == "ImportError" for handler in attempt.handlers):
        yield from (node for statement in attempt.body for node in ast.walk(statement))


def _dotted(node: ast.AST) -> str:
    """Return ``a.b`` as it is written; empty if it is anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and _dotted(node.value):
        return "%s.%s" % (_dotted(node.value), node.attr)
    return ""


def missing_names(python: str, names: t.Iterable[Name]) -> t.Set[Name]:
    """Return which of some names a Python lacks."""
    done = subprocess.run(
        [python, "-I", "-c", _PROBE], input=json.dumps(sorted(names)), capture_output=True, text=True, check=True
    )
    return {(module, name) for module, name in json.loads(done.stdout)}


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

    @pytest.mark.parametrize(
        ("variant", "walls"),
        [("iptables_nft", ()), ("iptables_legacy", WALLED), ("nftables", WALLED)],
        indirect=["variant"],
        ids=["as root", "in the unit", "in the unit, nftables"],
    )
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
        node.synced(backend="nftables", enableIPv6=True)
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
        node.synced(nonMasqueradeCIDRs=["10.0.0.0/8"], **keys)
        topology.ask("10.99.0.1")
        # Whether the connection is one of this interface, the kernel is asked.
        node.configure(nonMasqueradeCIDRs=["192.168.0.0/16"], outInterfaces=["eth0"], **keys)
        done = node.sync()
        assert done.returncode == 0, done
        assert "ipv4: open connections removed, because their verdict changed: 1" in done.stdout + done.stderr
        assert "ip_masq_agent_connections_flushed_total 1" in (node.metrics_dir / "ip_masq_agent.prom").read_text()
