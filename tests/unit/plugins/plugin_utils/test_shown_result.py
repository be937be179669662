# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node sends to a terminal: nothing that the terminal acts on, and no difference that Ansible cannot print."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._shown_result import printable, shown_result
from support.playbook_run import ansible_playbook

#: Clears the screen, goes back to the beginning of the line, turns the direction of text, ends a line for some.
_EVIL = "\x1b[2J\r\u202e\x9b2J\u2028\x07"
_SHOWN = "\\x1b[2J\\r\\u202e\\x9b2J\\u2028\\x07"
#: In place of Python on a node: whatever module it is given, it answers the same.
_NODE = "#!/bin/sh\ncat >/dev/null\ncat <<'END'\n%s\nEND\n"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (_EVIL, _SHOWN),
        ("one\ntwo\tthree: é", "one\ntwo\tthree: é"),
        ("a\r\n%sb" % _EVIL, "a\\r\n%sb" % _SHOWN),
        ({_EVIL: [_EVIL, (_EVIL, 1, None, True)]}, {_SHOWN: [_SHOWN, [_SHOWN, 1, None, True]]}),
    ],
)
def test_printable(value: t.Any, expected: t.Any) -> None:
    assert printable(value) == expected


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        ([{"before": _EVIL + "\n", "after": "x\n", "before_header": _EVIL}],
         [{"before": _SHOWN + "\n", "after": "x\n", "before_header": _SHOWN}]),
        ({"prepared": _EVIL}, [{"prepared": _SHOWN}]),
        ([{"before": ["x"], "after": "y"}, {"dst_larger": "x", "dst_binary": 1}, "text", None], [{}]),
        (7, []),
    ],
)  # fmt: skip
def test_differences_that_ansible_can_print(diff: t.Any, expected: t.Any) -> None:
    assert shown_result({"changed": True, "diff": diff}) == {"changed": True, "diff": expected}


@pytest.mark.parametrize(("callback", "failed"), [("default", False), ("kubenode.ip_masq.summary", True)])
def test_a_hostile_node(tmp_path: Path, callback: str, failed: bool) -> None:
    """Each module of the collection, with all that Ansible prints of it."""
    diff = [{"before": _EVIL, "after": "x"}, {"before": 1, "after": 2}, {"dst_larger": _EVIL}]
    answer = {"changed": True, "failed": failed, "msg": _EVIL, "warnings": [_EVIL], "diff": diff, _EVIL: _EVIL}
    node = tmp_path / "python3"
    node.write_text(_NODE % json.dumps(answer))
    node.chmod(0o755)
    modules = ("ip_masq", "ip_masq_info", "ip_masq_agent", "ip_masq_agent_info", "kubelet_masquerade")
    tasks: t.List[t.Dict[str, t.Any]] = [
        {"kubenode.ip_masq." + name: {}, "register": "found", "ignore_errors": callback == "default"}
        for name in modules
    ]
    play = {"hosts": "all", "gather_facts": False, "connection": "local", "tasks": tasks}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    done = ansible_playbook(
        tmp_path,
        *("-i", "n1,", "play.yml", "--diff", "-vvv", "-e", "ansible_python_interpreter=%s" % node),
        ANSIBLE_STDOUT_CALLBACK=callback,
        ANSIBLE_NOCOLOR="1",
    )
    printed = done.stdout + done.stderr
    assert "\\x1b[2J" in printed, printed
    assert not [line for line in printed.split("\n") if not line.replace("\t", "").isprintable()]
    assert "Callback dispatch" not in printed and "Failure using method" not in printed


@pytest.mark.parametrize("module", ["ip_masq", "ip_masq_info"])
def test_null_is_not_the_default_list(tmp_path: Path, module: str) -> None:
    """In the config file that somebody copies it is the empty list."""
    task = {"kubenode.ip_masq." + module: {"non_masquerade_cidrs": None}}
    play = {"hosts": "n1", "gather_facts": False, "tasks": [task]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    (tmp_path / "hosts").write_text("n1 ansible_connection=local\n")
    done = ansible_playbook(tmp_path, str(tmp_path / "play.yml"), "-i", str(tmp_path / "hosts"))
    assert "non_masquerade_cidrs: null could mean two things: write [] to exempt no range" in done.stdout
    assert done.returncode == 2
