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
from support.fleet import Fleet
from support.variants import BACKENDS

NFT = BACKENDS["iptables_nft"]
TASK = "kubenode.ip_masq.ip_masq_agent"


@pytest.fixture
def fleet(tmp_path: Path) -> t.Iterator[Fleet]:
    """One node with the agent, and a playbook of one task that prints its result."""
    with Fleet(tmp_path, {"kube_node": ["n1"]}) as made:
        made.nodes["n1"].wire()
        assert told(made)["changed"] is True
        yield made


def task(folder: Path, module: str, options: t.Mapping[str, t.Any]) -> str:
    """A playbook that calls a module."""
    path = folder / "task.yml"
    tasks = [
        {module: options, "register": "told", "failed_when": False},
        {
            "ansible.builtin.copy": {"content": "{{ told }}", "dest": str(folder / "told")},
            "delegate_to": "localhost",
            "check_mode": False,
        },
    ]
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    return str(path)


def told(fleet: Fleet, *arguments: str, pipelining: bool = True, **options: t.Any) -> t.Dict[str, t.Any]:
    """What a task of ip_masq_agent returns."""
    return returned(
        fleet, TASK, {"config": {}, "verify": True, "kubelet": {}, **options}, *arguments, pipelining=pipelining
    )


def returned(
    fleet: Fleet, module: str, options: t.Mapping[str, t.Any], *arguments: str, pipelining: bool = True
) -> t.Dict[str, t.Any]:
    """What a task returns."""
    env = {"ANSIBLE_PIPELINING": str(pipelining)}
    played = fleet.play(task(fleet.folder, module, options), *arguments, env=env)
    assert played.rc == 0, played.said
    found: t.Dict[str, t.Any] = json.loads((fleet.folder / "told").read_text())
    # What newer ansible-core adds is about the process that a module was.
    return {name: found[name] for name in found if not name.startswith(("failed_when_", "ansible_parsed"))}


def forbid_modules(fleet: Fleet) -> None:
    """Let no module run on the node from now on."""
    fleet.hosts["n1"]["ansible_python_interpreter"] = "/bin/false"


def test_nothing_is_sent_to_an_unchanged_node(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    sent = told(fleet, pipelining=False)
    files, calls = node.files(), fleet.calls("n1")
    forbid_modules(fleet)
    asked = told(fleet)
    assert fleet.calls("n1") == calls + 1
    assert asked["changed"] is False and asked["verification"]["verified"] is True and "kubelet" in asked
    assert set(asked) == set(sent) and asked["rules"] == sent["rules"]
    assert node.files() == files


def test_the_program_repairs_and_configures_as_the_module_does(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    forbid_modules(fleet)
    NFT.lose(node.ns, "ipv4", "10.0.0.0/8")
    other = {"nonMasqueradeCIDRs": ["198.18.0.0/15"]}
    planned = told(fleet, "--check", config=other)
    assert planned["changed"] is True and planned["files"] == ["/etc/ip-masq-agent/config"]
    assert "198.18.0.0/15" not in (node.config_dir / "config").read_text(), "check mode wrote"
    done = told(fleet, config=other)
    assert done["changed"] is True and done["diff"] == planned["diff"]
    assert "198.18.0.0/15" in " ".join(NFT.rules(node.ns, "ipv4") or [])
    assert told(fleet, config=other)["changed"] is False


def test_a_failure_has_the_same_message_and_the_same_values(fleet: Fleet) -> None:
    bad = {"metrics_dir": "/var/lib/none"}
    sent = told(fleet, pipelining=False, **bad)
    forbid_modules(fleet)
    asked = told(fleet, **bad)
    assert "metrics_dir: /var/lib/none is not a directory on this node" in asked["msg"]
    assert asked == sent


@pytest.mark.parametrize(
    "program",
    [
        lambda text: text.replace("RELEASE = '", "RELEASE = 'ff"),
        lambda text: text.replace("import sys\n", "import sys\nsys.exit('broken')\n", 1),
        lambda text: "#!/bin/sh\necho ours >/var/lib/started\n",
    ],
    ids=["another release", "a program that does not start", "another program"],
)
def test_any_other_program_is_replaced_by_the_module(fleet: Fleet, program: t.Callable[[str], str]) -> None:
    node = fleet.nodes["n1"]
    good = node.program.read_text()
    assert program(good) != good
    node.program.write_text(program(good))
    done = told(fleet)
    assert done["changed"] is True and "/usr/local/sbin/ip-masq-agent" in done["files"]
    assert node.program.read_text() == good
    assert not node.at("/var/lib/started").exists(), "a program that is not ours was started"


@pytest.mark.parametrize("edited", ["_version.py", "_engine/reconcile.py"])
def test_modules_that_were_edited_are_put_right_by_the_module(fleet: Fleet, edited: str) -> None:
    """They would be compared with themselves."""
    node = fleet.nodes["n1"]
    module = node.modules_dir / "ip_masq_agent" / edited
    good = module.read_text()
    module.write_text(good + "# edited\n")
    done = told(fleet)
    assert done["changed"] is True and done["files"] == ["/" + str(module.relative_to(node.root))]
    assert module.read_text() == good
    forbid_modules(fleet)
    assert told(fleet)["changed"] is False


def test_modules_that_are_missing_are_put_back(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    shutil.rmtree(node.modules_dir)
    assert told(fleet)["files"] == ["/" + str(node.modules_dir.relative_to(node.root))]
    forbid_modules(fleet)
    assert told(fleet)["changed"] is False


def test_a_program_that_was_edited_is_replaced_although_it_does_the_task(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    good = node.program.read_text()
    node.program.write_text(good + "# edited\n")
    forbid_modules(fleet)
    assert told(fleet)["files"] == ["/usr/local/sbin/ip-masq-agent"]
    assert node.program.read_text() == good


@pytest.mark.parametrize(
    "options, seen",
    [
        ({"config": {}}, '"differs": []'),
        ({"config": {"cidrLimit": 70}, "enabled": False}, '"differs": ["cidrLimit"]'),
        ({"config": {"nonMasqueradeCIDRs": ["10.0.0.1/8"]}}, "the aligned network is 10.0.0.0/8"),
    ],
    ids=["unchanged", "another configuration", "bad input"],
)
def test_a_report_is_the_same_from_the_program_and_from_the_module(
    options: t.Dict[str, t.Any], seen: str, fleet: Fleet
) -> None:
    node = fleet.nodes["n1"]
    files = node.files()
    sent = returned(fleet, TASK + "_info", options, pipelining=False)
    calls = fleet.calls("n1")
    forbid_modules(fleet)
    asked = returned(fleet, TASK + "_info", options)
    assert fleet.calls("n1") == calls + 1
    assert seen in json.dumps(asked)
    for one in (asked, sent):
        if "report" in one:
            one["report"]["verdict"] = re.sub(r"verified [0-9]+ \w+ ago", "verified", one["report"]["verdict"])
    assert asked == sent
    assert node.files() == files


def test_the_state_of_a_node_with_another_program_is_told_by_the_module(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    node.program.write_text(node.program.read_text().replace("RELEASE = '", "RELEASE = 'ff"))
    found = returned(fleet, TASK + "_info", {"config": {}})
    assert "/usr/local/sbin/ip-masq-agent" in " ".join(found["pending"])


def test_removal_is_left_to_the_module(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    done = told(fleet, state="absent")
    assert done["changed"] is True and not node.program.exists()
