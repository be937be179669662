# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the callback summary prints of a run."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

from support.playbook_run import ansible_playbook

#: In place of the module of the collection: Ansible knows it by its short name too.
_MODULE = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"warnings": {"type": "list"}})
for warning in module.params["warnings"]:
    module.warn(warning)
module.exit_json()
"""


def printed(folder: Path, hosts: str, *tasks: t.Mapping[str, t.Any], python: str = sys.executable) -> t.List[str]:
    """Run the tasks on hosts that are this machine."""
    (folder / "library").mkdir()
    (folder / "library/ip_masq_agent.py").write_text(_MODULE)
    (folder / "library/other.py").write_text(_MODULE)
    plays = [
        {"hosts": "nobody", "gather_facts": False, "tasks": []},
        {"hosts": "all", "gather_facts": False, "connection": "local", "tasks": tasks},
    ]
    (folder / "play.yml").write_text(json.dumps(plays))
    done = ansible_playbook(
        folder,
        *("-i", hosts, "play.yml", "-e", "ansible_python_interpreter=" + python),
        ANSIBLE_STDOUT_CALLBACK="kubenode.ip_masq.summary",
    )
    return done.stdout.splitlines()


def test_a_message_of_each_host_names_it(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        "n1,n2,",
        {"debug": {"msg": ["of all", "nodes"]}, "run_once": True},
        {"debug": {"msg": "of one"}, "when": "inventory_hostname == 'n2'"},
    )
    assert lines == ["of all", "nodes", "of one (n2)", "2 hosts: 0 changed, 0 failed, 0 unreachable"]


def test_equal_warnings_and_failures_are_printed_once(tmp_path: Path) -> None:
    """Without the name of the node that the module writes before them."""
    lines = printed(
        tmp_path,
        "n1,n2,n3,",
        {"ip_masq_agent": {"warnings": ["{{ inventory_hostname }}.example: a rule hides it", "ipv4, nft: it is odd"]}},
        {"other": {"warnings": ["note: kept as it is"]}, "when": "inventory_hostname != 'n1'"},
        {"fail": {"msg": "bad"}, "when": "inventory_hostname != 'n2'"},
    )
    assert lines[:3] == [
        "warning: a rule hides it (n[1-3])",
        "warning: ipv4, nft: it is odd (n[1-3])",
        "warning: note: kept as it is (n[2-3])",
    ]
    assert lines[3].startswith("failed: ") and lines[3].endswith("bad (n[1,3])")
    assert lines[4:] == ["3 hosts: 0 changed, 2 failed, 0 unreachable"]


def test_a_node_without_python_has_the_words_of_the_shell(tmp_path: Path) -> None:
    """``msg`` alone would advise to see an output that is not printed."""
    lines = printed(tmp_path, "n1,n2,", {"other": {"warnings": []}}, python="/no/python3")
    assert len(lines) == 2 and lines[1] == "2 hosts: 0 changed, 2 failed, 0 unreachable", lines
    assert lines[0].startswith("failed: ") and "/no/python3: not found" in lines[0], lines
    assert lines[0].endswith(" (n[1-2])")
