# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role makes of each way in which a verification ends. The program is a script that ends like that."""

from __future__ import annotations

import json
import re
import sys

import pytest
from support.playbook_run import ansible_playbook

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: kubenode.ip_masq.ip_masq_agent
        tasks_from: verify
"""
#: how the program ends, what is said of it, whether the role fails where that was asked for
ENDINGS = {
    "declared": ("""echo '{"summary": "31 questions, all as declared"}'""", "", False),
    "differs": ("""echo '{"summary": "31 questions, not all"}'; exit 5""", "31 questions, not all", True),
    "no_copy": ("""echo '{"summary": "not verified: no namespaces"}'; exit 1""", "not verified: no namespaces", False),
    "broken": ("echo it broke >&2; exit 1", "not verified: exit status 1: it broke", False),
    "killed": ("kill -KILL $$", "not verified: exit status -9: ", True),
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one run: a host for each ending and each of two values of the variable."""
    root = tmp_path_factory.mktemp("verify")
    hosts = {}
    for name, (ending, _said, _fails) in ENDINGS.items():
        program = root / name / "ip-masq-agent"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n%s\n" % ending)
        program.chmod(0o755)
        for wanted in ("warn", "fail"):
            variables = {"ip_masq_agent_bin_dir": str(program.parent), "ip_masq_agent_verify": wanted}
            reached = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
            hosts["%s_%s" % (name, wanted)] = {**variables, **reached}
    (root / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    (root / "play.yml").write_text(PLAY)
    return ansible_playbook(root, "-i", "inventory.yml", "play.yml").stdout


@pytest.mark.parametrize("wanted", ["warn", "fail"])
@pytest.mark.parametrize("name", ENDINGS)
def test_only_what_was_asked_to_fail_fails(output: str, name: str, wanted: str) -> None:
    _ending, said, fails = ENDINGS[name]
    host = "%s_%s" % (name, wanted)
    (failed,) = re.findall(r"(?m)^%s +: ok=.* failed=(\d) " % host, output)
    assert bool(int(failed)) == (wanted == "fail" and fails), output
    messages = re.findall(r'(?m)^(?:ok|fatal): \[%s\].* => \{\n +"msg": "(.*)"' % host, output)
    assert len(messages) == bool(said) and said in "".join(messages), output
