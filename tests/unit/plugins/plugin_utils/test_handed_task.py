# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the installed program is asked in place of the module. The kernel tests run both on nodes."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import program_modules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.agent_options import AGENT
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils import _handed_task as handed_task

#: A program with the line of a release, which prints what it is told.
PROGRAM = "#!/bin/sh\n: <<'END'\n%s\nEND\necho \"$@\"\ncat\n"

#: Lists in lists: as deep as the parser allows, and deeper.
DEEP = 200 * "[" + 200 * "]"
DEEPER = 200000 * "[" + 200000 * "]"


class TestChecked:
    """checked"""

    def test_every_option_has_the_value_that_the_module_would_see(self) -> None:
        params = handed_task.checked(
            {"config": {"enableIPv6": True}, "verify": "yes", "kubelet": {"restart": "no"}}, AGENT
        )
        assert params is not None and set(params) == set(AGENT)
        assert (params["config"], params["verify"], params["bin_dir"]) == (
            {"enableIPv6": True},
            True,
            "/usr/local/sbin",
        )
        assert (params["kubelet"]["restart"], params["kubelet"]["policy"]) == (False, "auto")

    @pytest.mark.parametrize(
        "args",
        [
            {"state": "absent"},
            {"state": "gone"},
            {"configuration": {}},
            {"lock_timeout": "soon"},
            {"kubelet": {"policy": "maybe"}},
            {"config_dir": "~/ip-masq-agent"},
            {"bin_dir": "$HOME/bin"},
        ],
    )
    def test_what_needs_the_module_is_left_to_it(self, args: t.Dict[str, t.Any]) -> None:
        assert handed_task.checked(args, AGENT) is None


class TestCommand:
    """command"""

    def run(self, folder: Path, program: t.Optional[str]) -> subprocess.CompletedProcess[str]:
        """Run the command where ``bin_dir`` has this program."""
        if program is not None:
            (folder / "ip-masq-agent").write_text(program)
            (folder / "ip-masq-agent").chmod(0o755)
        argv = ["sh", "-c", handed_task.command({"bin_dir": "%s/" % folder})]
        return subprocess.run(argv, input="{}", capture_output=True, text=True, check=False, timeout=60)

    def test_a_program_of_this_release_gets_the_task(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, PROGRAM % program_modules.release_line())
        assert (done.returncode, done.stdout) == (0, "task\n{}")

    @pytest.mark.parametrize("newer", ["usr/local/sbin", "usr/sbin"])
    def test_one_of_a_package_gets_it_too(self, newer: str, tmp_path: Path) -> None:
        """The command runs with both places below a directory."""
        asked = handed_task.command({"bin_dir": "/usr/local/sbin"})
        for place in ("usr/local/sbin", "usr/sbin"):
            program = tmp_path / place / "ip-masq-agent"
            program.parent.mkdir(parents=True)
            program.write_text(PROGRAM % (program_modules.release_line() if place == newer else "RELEASE = 'other'"))
            program.chmod(0o755)
        assert " /usr/local/sbin/ip-masq-agent /usr/sbin/ip-masq-agent;" in asked
        argv = ["sh", "-c", asked.replace(" /usr/", " %s/usr/" % tmp_path)]
        done = subprocess.run(argv, input="{}", capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (0, "task\n{}")

    @pytest.mark.parametrize(
        "line", ["RELEASE = 'other'", "#" + program_modules.release_line(), program_modules.release_line() + " ", "%s"]
    )
    def test_another_program_is_not_started(self, line: str, tmp_path: Path) -> None:
        done = self.run(tmp_path, PROGRAM % line)
        assert done.returncode != 0 and done.stdout == ""

    @pytest.mark.parametrize("make", [None, os.mkdir, os.mkfifo], ids=["nothing", "a directory", "a FIFO"])
    def test_no_program(self, make: t.Optional[t.Callable[[Path], None]], tmp_path: Path) -> None:
        if make:
            make(tmp_path / "ip-masq-agent")
        done = self.run(tmp_path, None)
        assert done.returncode != 0 and done.stdout == ""

    @pytest.mark.parametrize("folder", ["sbin", "/opt/a b", "/opt/$(reboot)", "/opt/'"])
    def test_a_path_that_would_have_to_be_quoted_is_refused(self, folder: str) -> None:
        with pytest.raises(ConfigError):
            handed_task.command({"bin_dir": folder})


class TestAnswer:
    """answer"""

    DONE = json.dumps({"returned": {"changed": False, "files": []}, "warnings": ["node: x"], "failure": ""})

    @pytest.mark.parametrize("before", ["", "Welcome to node1\n", '{"Welcome": 1}\n[]\n', "1\nnull\n"])
    def test_the_result_is_found_behind_what_others_print(self, before: str) -> None:
        assert handed_task.answer("%s%s\n" % (before, self.DONE), ("changed", "files")) == {
            "changed": False,
            "files": [],
            "warnings": ["node: x"],
        }

    def test_a_node_decides_about_documented_values_only(self) -> None:
        """Ansible acts on others, such as add_host."""
        given = {"changed": True, "add_host": {"host_name": "x"}, "ansible_facts": {}, "_ansible_no_log": True}
        line = json.dumps({"returned": given, "warnings": [], "failure": ""})
        assert handed_task.answer(line, ("changed", "rules")) == {"changed": True}

    def test_a_failure_fails_and_keeps_what_was_done(self) -> None:
        line = json.dumps({"returned": {"changed": True}, "warnings": [], "failure": "no such chain"})
        found = handed_task.answer(line, ("changed",))
        assert found is not None
        assert (found["failed"], found["msg"], found["changed"]) == (True, "no such chain", True)

    @pytest.mark.parametrize(
        "stdout",
        ["", "Killed\n", "{}\n", '{"returned": {}}\n', DONE[:-1], "usage: ip-masq-agent\n"]
        + [DEEP, DEEPER, "1", "null", "[]", '"returned"', '{"returned": {"a": %s}}' % DEEPER],
    )
    def test_anything_else_is_no_answer(self, stdout: str) -> None:
        assert handed_task.answer(stdout, ("changed",)) is None

    @pytest.mark.parametrize("name", ["returned", "warnings", "failure", "changed", "diff"])
    @pytest.mark.parametrize(
        "value", ["1", "1.5", "true", "null", '"text"', "[1]", '{"a": 1}', '[["a"]]', DEEP, DEEPER]
    )
    def test_an_answer_of_another_shape_is_none(self, name: str, value: str) -> None:
        """The module is sent then: a crash of the plugin would fail the host."""
        values = {"returned": '{"changed": %s, "diff": %s}', "changed": "false", "diff": "[]"}
        values.update(warnings="[]", failure='""')
        if (name, value) in (("failure", '"text"'), ("changed", "true")):
            return
        values[name] = value
        if name != "returned":
            values["returned"] %= (values["changed"], values["diff"])
        line = '{"returned": %(returned)s, "warnings": %(warnings)s, "failure": %(failure)s}' % values
        names = ("changed", "diff")
        assert handed_task.answer(line + "\n", names) is None
        assert handed_task.answer("%s\n%s\n" % (line, self.DONE), names) == {"changed": False, "warnings": ["node: x"]}

    def test_a_result_that_is_nested_as_ours_are_is_read(self) -> None:
        rules = {"a": [{"b": [{"c": [{"d": ["e"]}]}]}]}
        line = json.dumps({"returned": {"changed": True, "rules": rules}, "warnings": [], "failure": ""})
        assert handed_task.answer(line, ("changed", "rules")) == {"changed": True, "rules": rules}


def test_values_that_json_does_not_have_are_left_to_the_module() -> None:
    """YAML has dates; Ansible sends them as text."""
    params = handed_task.checked({"config": {"resyncInterval": datetime.date(2026, 1, 1)}}, AGENT)
    with pytest.raises(TypeError):
        json.dumps(params)
