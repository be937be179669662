# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the callback summary prints of a run."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

import pytest
from support.playbook_run import ansible_playbook

#: In place of the module of the collection: Ansible knows it by its short name too.
_MODULE = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"warnings": {"type": "list"}, "after": {}}, supports_check_mode=True)
for warning in module.params["warnings"] or ():
    module.warn(warning)
after = module.params["after"]
module.exit_json(changed=bool(after), diff={"before": "", "after": "%s\\n" % after})
"""


def printed(
    folder: Path, hosts: str, *tasks: t.Mapping[str, t.Any], python: str = sys.executable, options: t.Sequence[str] = ()
) -> t.List[str]:
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
        *options,
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


_EACH = {"other": {"after": "{{ 'x' if inventory_hostname == 'n3' else 'y' if inventory_hostname == 'n4' else '' }}"}}
_ALL = {"other": {"after": "z"}}


@pytest.mark.parametrize(("options", "does"), [(["-D"], "changed"), (["-CD"], "would change"), ([], "")])
def test_differences_are_printed_if_wanted(tmp_path: Path, options: t.List[str], does: str) -> None:
    lines = [line for line in printed(tmp_path, "n1,n2,n3,n4,", _ALL, _EACH, options=options) if line]
    heads = [line for line in lines if not line.startswith(("--- ", "+++ ", "@@ "))]
    shown = [does + " (n[1-4])", "+z", does + " (n3)", "+x", does + " (n4)", "+y"] if does else []
    assert sorted(heads[:-1]) == sorted(shown)
    assert heads[-1] == "4 hosts: 4 %s, 0 failed, 0 unreachable" % (does or "changed")


_FAIL = {"fail": {"msg": "bad"}}
_BEYOND = {"debug": {"msg": ["of all", "nothing was changed"]}, "failed_when": True, "run_once": True}
_SUMMARY = "%d hosts: 0 changed, %d failed, %d unreachable"


@pytest.mark.parametrize(
    ("tasks", "lines"),
    [
        ([_BEYOND], ["of all", "nothing was changed", _SUMMARY % (2, 1, 0)]),
        (
            [{"block": [_FAIL], "rescue": [_ALL]}],
            ["rescued: bad (n[1-2])", "2 hosts: 2 changed, 0 failed, 0 unreachable"],
        ),
        ([{"block": [_FAIL], "rescue": [_FAIL]}], ["failed: bad (n[1-2])", _SUMMARY % (2, 2, 0)]),
        ([{**_FAIL, "ignore_errors": True}], ["ignored: bad (n[1-2])", _SUMMARY % (2, 0, 0)]),
        ([{**_FAIL, "ignore_errors": True}, _FAIL], ["failed: bad (n[1-2])", _SUMMARY % (2, 2, 0)]),
    ],
)
def test_last_line_agrees_with_those_above(
    tmp_path: Path, tasks: t.Sequence[t.Mapping[str, t.Any]], lines: t.List[str]
) -> None:
    assert printed(tmp_path, "n1,n2,", *tasks) == lines


def test_a_failure_of_a_host_that_was_unreachable_is_counted_if_it_is_printed(tmp_path: Path) -> None:
    away = {"ping": {}, "vars": {"ansible_connection": "ssh", "ansible_port": 1, "ansible_host": "127.0.0.1"}}
    lines = printed(tmp_path, "n1,", {**away, "ignore_unreachable": True}, _BEYOND)
    assert lines == ["of all", "nothing was changed", "1 host: 0 changed, 1 failed, 1 unreachable"]


def test_no_host(tmp_path: Path) -> None:
    assert printed(tmp_path, "/dev/null") == ["no hosts matched"]
