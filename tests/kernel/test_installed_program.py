# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks that the installed program does, and the cases in which Ansible sends the module."""

from __future__ import annotations

import json
import re
import shutil
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.fleet import Fleet
from support.variants import BACKENDS

NFT = BACKENDS["iptables_nft"]
AGENT, INFO = "ip_masq_agent", "ip_masq_agent_info"
OPTIONS: t.Dict[str, t.Any] = {"config": {}, "verify": True, "kubelet": {}}
PROGRAM = "/usr/local/sbin/ip-masq-agent"


def made(folder: Path, *hosts: str) -> Fleet:
    """Nodes with the agent."""
    fleet = Fleet(folder, {"kube_node": hosts})
    for node in fleet.nodes.values():
        node.wire()
        assert node.module(AGENT, OPTIONS)["changed"] is True
    return fleet


@pytest.fixture
def fleet(tmp_path: Path) -> t.Iterator[Fleet]:
    """One node with the agent."""
    with made(tmp_path, "n1") as fleet:
        yield fleet


def play(
    fleet: Fleet, *tasks: t.Tuple[str, t.Mapping[str, t.Any]], more: t.Sequence[str] = ()
) -> t.Dict[str, t.List[t.Dict[str, t.Any]]]:
    """What calls of modules return on each host."""
    calls: t.List[t.Dict[str, t.Any]] = []
    for number, (module, options) in enumerate(tasks):
        told = "%s/{{ inventory_hostname }}.%d" % (fleet.folder, number)
        calls += [
            {"kubenode.ip_masq." + module: options, "register": "told", "failed_when": False},
            {
                "ansible.builtin.copy": {"content": "{{ told }}", "dest": told},
                "delegate_to": "localhost",
                "check_mode": False,
            },
        ]
    path = fleet.folder / "task.yml"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": calls}]))
    played = fleet.play(str(path), *more)
    assert played.rc == 0, played.said
    return {
        host: [_plain(json.loads((fleet.folder / ("%s.%d" % (host, n))).read_text())) for n in range(len(tasks))]
        for host in fleet.hosts
    }


def _plain(found: t.Dict[str, t.Any]) -> t.Dict[str, t.Any]:
    """What a module returns, without what Ansible adds, and without times."""
    added = ("failed", "ansible_parsed", "invocation")
    kept = {"changed": False, **{name: found[name] for name in found if not name.startswith(added)}}
    if "report" in kept:
        kept["report"]["verdict"] = re.sub(r"verified [0-9]+ \w+ ago", "verified", kept["report"]["verdict"])
        del kept["report"]["last_sync"]
    return kept


def told(fleet: Fleet, *more: str, **options: t.Any) -> t.Dict[str, t.Any]:
    """What a task of ip_masq_agent returns on the one node."""
    return play(fleet, (AGENT, {**OPTIONS, **options}), more=more)["n1"][0]


def forbid_modules(fleet: Fleet) -> None:
    """Let no module run on the nodes from now on."""
    for variables in fleet.hosts.values():
        variables["ansible_python_interpreter"] = "/bin/false"


REPORTS: t.Dict[str, t.Dict[str, t.Any]] = {
    '"differs": []': {"config": {}},
    '"differs": ["cidrLimit"]': {"config": {"cidrLimit": 70}, "enabled": False},
    "the aligned network is 10.0.0.0/8": {"config": {"nonMasqueradeCIDRs": ["10.0.0.1/8"]}},
}


def test_nothing_is_sent_to_an_unchanged_node(fleet: Fleet) -> None:
    """Each task is one command; its answer and its failure are those of the module."""
    node = fleet.nodes["n1"]
    tasks = [(AGENT, OPTIONS), *((INFO, options) for options in REPORTS.values())]
    tasks.append((AGENT, {**OPTIONS, "metrics_dir": "/var/lib/none"}))
    sent = [_plain(node.module(module, options)) for module, options in tasks]
    files, calls = node.files(), fleet.calls("n1")
    forbid_modules(fleet)
    asked = play(fleet, *tasks)["n1"]
    assert fleet.calls("n1") == calls + len(tasks) and node.files() == files
    first, *reports, refused = asked
    assert first["changed"] is False and first["verification"]["verified"] is True and "kubelet" in first
    assert set(first) == set(sent[0]) and first["rules"] == sent[0]["rules"]
    assert [seen for seen, report in zip(REPORTS, reports) if seen not in json.dumps(report)] == []
    assert "metrics_dir: /var/lib/none is not a directory on this node" in refused["msg"]
    assert asked[1:] == sent[1:]


def test_the_program_repairs_and_configures_as_the_module_does(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    forbid_modules(fleet)
    NFT.lose(node.ns, "ipv4", "10.0.0.0/8")
    other = {"nonMasqueradeCIDRs": ["198.18.0.0/15"]}
    planned = told(fleet, "--check", config=other)
    assert planned["changed"] is True and planned["files"] == ["/etc/ip-masq-agent/config"]
    assert "198.18.0.0/15" not in (node.config_dir / "config").read_text(), "check mode wrote"
    task = (AGENT, {**OPTIONS, "config": other})
    done, again = play(fleet, task, task)["n1"]
    assert done["changed"] is True and done["diff"] == planned["diff"]
    assert "198.18.0.0/15" in " ".join(NFT.rules(node.ns, "ipv4") or [])
    assert again["changed"] is False


Damage = t.Callable[[AgentNode], object]


def rewrite(old: str, new: str) -> Damage:
    """Put other text into the program."""

    def write(node: AgentNode) -> None:
        good = node.program.read_text()
        assert old in good
        node.program.write_text(good.replace(old, new, 1))

    return write


def edit(module: str) -> Damage:
    """Add a line to a module of the program, or to the program itself."""

    def write(node: AgentNode) -> None:
        path = node.modules_dir / "ip_masq_agent" / module if module else node.program
        path.write_text(path.read_text() + "# edited\n")

    return write


#: What is wrong with the agent of a host, and the path that an installation then names: below the modules', where it is
#: not the program's.
SENT: t.Dict[str, t.Tuple[Damage, str]] = {
    "another-release": (rewrite("RELEASE = '", "RELEASE = 'ff"), PROGRAM),
    "does-not-start": (rewrite("import sys\n", "import sys\nsys.exit('broken')\n"), PROGRAM),
    "another-program": (lambda node: node.program.write_text("#!/bin/sh\necho ours >/var/lib/started\n"), PROGRAM),
    # They would be compared with themselves.
    "edited-version": (edit("_version.py"), "ip_masq_agent/_version.py"),
    "edited-module": (edit("_engine/reconcile.py"), "ip_masq_agent/_engine/reconcile.py"),
    "missing-modules": (lambda node: shutil.rmtree(node.modules_dir), ""),
}


def _agent(node: AgentNode) -> t.Dict[str, t.Union[str, bytes]]:
    """The program and its modules."""
    return {"program": node.program.read_text(), **node.program_modules()}


def test_any_other_program_is_replaced_by_the_module(tmp_path: Path) -> None:
    """One that was edited and still does the task replaces itself."""
    with made(tmp_path, *SENT, "edited-program") as fleet:
        good = {name: _agent(node) for name, node in fleet.nodes.items()}
        paths = {name: path for name, (_damage, path) in SENT.items()}
        for name, (damage, path) in SENT.items():
            node = fleet.nodes[name]
            damage(node)
            if path != PROGRAM:
                paths[name] = ("/%s/%s" % (node.modules_dir.relative_to(node.root), path)).rstrip("/")
        edit("")(fleet.nodes["edited-program"])
        paths["edited-program"] = PROGRAM
        fleet.hosts["edited-program"]["ansible_python_interpreter"] = "/bin/false"
        for name, (done,) in play(fleet, (AGENT, OPTIONS)).items():
            assert done["changed"] is True and done["files"] == [paths[name]], name
            assert _agent(fleet.nodes[name]) == good[name], name
        started = fleet.nodes["another-program"].at("/var/lib/started")
        assert not started.exists(), "a program that is not ours was started"
        forbid_modules(fleet)
        assert [name for name, (done,) in play(fleet, (AGENT, OPTIONS)).items() if done["changed"]] == []


def test_the_state_of_a_node_with_another_program_is_told_by_the_module(fleet: Fleet) -> None:
    SENT["another-release"][0](fleet.nodes["n1"])
    (found,) = play(fleet, (INFO, {"config": {}}))["n1"]
    assert PROGRAM in " ".join(found["pending"])


def test_removal_is_left_to_the_module(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    done = told(fleet, state="absent")
    assert done["changed"] is True and not node.program.exists()
