# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply, apply again, status and remove with the ansible-core that runs this, on nodes with several Pythons.

The environment variable IP_MASQ_NODE_PYTHONS names their interpreters, separated by colons; default: this one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import ansible
import pytest
from ansible.module_utils import basic
from support.agent_node import AgentNode
from support.fleet import Fleet, Played
from support.variants import BACKENDS

NFT = BACKENDS["iptables_nft"]
#: The service of the agent sees nothing below these.
_HIDDEN = ("/home/", "/root/", "/tmp/", "/var/tmp/")
_MOUNT = "mkdir -p /run/python && mount --bind %s /run/python"
_ASK = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.base_prefix, sys.executable)"
#: What is tested with each Python that this ansible-core supports, in this order.
STEPS = ("predicted", "applied", "applied again", "status", "removed")


class NodePython(t.NamedTuple):
    """An interpreter of a node."""

    version: str
    prefix: str
    path: str

    @property
    def too_old(self) -> bool:
        """Whether this ansible-core refuses it."""
        return bool(tuple(map(int, self.version.split(".")))[:2] < basic._PY_MIN)

    @property
    def too_new(self) -> bool:
        """Whether what all modules of this ansible-core import fails with it."""
        folder = str(Path(ansible.__file__).parent.parent)
        start = [self.path, "-c", "import sys; sys.path.append(sys.argv[1]); import ansible.module_utils.basic", folder]
        return not self.too_old and subprocess.run(start, capture_output=True, check=False).returncode != 0

    def give(self, node: AgentNode) -> str:
        """Return its path on the node, where it gets a place that the agent's service sees."""
        if not self.path.startswith(_HIDDEN):
            return self.path
        node.ns.run("sh", "-euc", _MOUNT % self.prefix)
        return self.path.replace(self.prefix, "/run/python", 1)


def _ask(interpreter: str) -> NodePython:
    answer = subprocess.run([interpreter, "-c", _ASK], capture_output=True, text=True, check=True)
    return NodePython(*answer.stdout.strip().split(" ", 2))


_NAMED = os.environ.get("IP_MASQ_NODE_PYTHONS") or sys.executable
PYTHONS = {python.version: python for python in map(_ask, _NAMED.split(os.pathsep))}
TOO_OLD = [version for version, python in PYTHONS.items() if python.too_old]
TOO_NEW = [version for version, python in PYTHONS.items() if python.too_new]
SUPPORTED = [version for version in PYTHONS if version not in TOO_OLD and version not in TOO_NEW]


class State(t.NamedTuple):
    """A node after a step."""

    files: t.Set[str]
    rules: t.Optional[t.List[str]]
    #: whether the agent's program is there and runs with the node's Python
    agent: bool


NOTHING = State(set(), None, False)


class Step(t.NamedTuple):
    """A run of a playbook, and the nodes after it, by the version of their Python."""

    played: Played
    states: t.Dict[str, State]


class Nodes:
    """A node for each of these Pythons; with it Ansible's modules run there, and the agent."""

    def __init__(self, root: Path, versions: t.Sequence[str]) -> None:
        self.versions = versions
        self.pythons: t.Dict[str, str] = {}
        self.fleet = Fleet(root, {"kube_node": list(versions)})
        for version, node in self.fleet.nodes.items():
            node.wire()
            self.pythons[version] = path = PYTHONS[version].give(node)
            self.fleet.hosts[version]["ip_masq_agent_python"] = path

    def step(self, playbook: str, *flags: str, modules: bool = True) -> Step:
        """Run a playbook of the collection.

        :param modules: whether modules can run on the nodes.
        """
        for version, path in self.pythons.items():
            self.fleet.hosts[version]["ansible_python_interpreter"] = path if modules else "/bin/false"
        wanted = ("-e", "ip_masq_agent_hosts=kube_node", "-e", "ip_masq_agent_verify=fail", *flags)
        played = self.fleet.play(playbook, *wanted, env={"ANSIBLE_DEPRECATION_WARNINGS": "True"})
        return Step(played, {version: self._state(version) for version in self.versions})

    def _state(self, version: str) -> State:
        node = self.fleet.nodes[version]
        program = node.program.read_bytes() if node.program.exists() else b""
        interpreter = re.match(rb"#!(\S+)", program)
        started = interpreter is not None and interpreter.group(1).decode() == self.pythons[version]
        return State(node.files() - node.pristine, NFT.rules(node.ns, "ipv4"), started)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[t.Dict[str, Step]]:
    """Run all steps on all nodes whose Python is supported."""
    nodes = Nodes(tmp_path_factory.mktemp("round"), SUPPORTED)
    with nodes.fleet:
        yield {
            "predicted": nodes.step("apply", "--check", "--diff"),
            "applied": nodes.step("apply"),
            "applied again": nodes.step("apply", modules=False),
            "status": nodes.step("status"),
            "removed": nodes.step("remove"),
        }


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize("name", STEPS)
def test_round(steps: t.Dict[str, Step], name: str, version: str) -> None:
    played, states = steps[name]
    after = states[version]
    assert version in played.recap and played.recap[version]["failed"] == 0, played.said
    assert played.recap[version]["changed"] == int(name in ("predicted", "applied", "removed")), played.said
    if name in ("predicted", "removed"):
        assert after == NOTHING, "left on the node"
    else:
        assert after == steps["applied"].states[version]
        assert after.rules and after.files and after.agent
    if name == "status":
        assert re.search(r"\"%d nodes?: %d in sync\"" % (len(SUPPORTED), len(SUPPORTED)), played.said)


@pytest.mark.skipif(not SUPPORTED, reason="no Python that this ansible-core supports")
@pytest.mark.parametrize("name", STEPS)
def test_round_has_no_deprecation_and_no_traceback(steps: t.Dict[str, Step], name: str) -> None:
    said = steps[name].played.said
    assert not [line for line in said.splitlines() if re.search(r"DEPRECATION|Traceback|\[ERROR\]", line)], said


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[t.List[Step]]:
    """Apply and status on all nodes on whose Python no module runs."""
    nodes = Nodes(tmp_path_factory.mktemp("refused"), TOO_OLD + TOO_NEW)
    with nodes.fleet:
        yield [nodes.step("apply"), nodes.step("status")]


@pytest.mark.parametrize("version", TOO_OLD)
def test_python_that_is_too_old_is_refused(refused: t.List[Step], version: str) -> None:
    applied, status = refused
    assert applied.played.recap[version]["failed"] == 1, applied.played.said
    reason = r"requires .*Python.* 3\.\d+.* Current version: %s" % re.escape(version)
    assert re.search(reason, applied.played.said)
    assert applied.states[version] == NOTHING, "left on the node"
    assert re.search('"%s: not checked: .*%s' % (re.escape(version), reason), status.played.said), status.played.said


@pytest.mark.parametrize("version", TOO_NEW)
def test_python_that_is_too_new_leaves_the_node_alone(refused: t.List[Step], version: str) -> None:
    """Nothing of this collection has started there: the words are Ansible's."""
    applied, status = refused
    assert applied.played.recap[version]["failed"] == 1, applied.played.said
    assert "Traceback" in applied.played.said
    assert applied.states[version] == NOTHING, "left on the node"
    assert re.search('"%s: not checked: ' % re.escape(version), status.played.said), status.played.said
