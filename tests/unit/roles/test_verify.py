# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role makes of each way in which a verification ends. The program is a script that ends like that."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.playbook_run import ansible_playbook

PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: kubenode.ip_masq.ip_masq_agent
        tasks_from: verify
"""


@pytest.mark.parametrize(
    ("ending", "said", "fails"),
    [
        ("""echo '{"summary": "31 questions, all as declared"}'""", "", False),
        ("""echo '{"summary": "31 questions, not all"}'; exit 5""", "31 questions, not all", True),
        ("""echo '{"summary": "not verified: no namespaces"}'; exit 1""", "not verified: no namespaces", False),
        ("echo it broke >&2; exit 1", "not verified: exit status 1: it broke", False),
        ("kill -KILL $$", "not verified: exit status -9: ", True),
    ],
)
def test_only_what_was_asked_to_fail_fails(tmp_path: Path, ending: str, said: str, fails: bool) -> None:
    program = tmp_path / "ip-masq-agent"
    program.write_text("#!/bin/sh\n%s\n" % ending)
    program.chmod(0o755)
    (tmp_path / "play.yml").write_text(PLAY)
    for wanted in ("warn", "fail"):
        variables = "ip_masq_agent_bin_dir=. ip_masq_agent_verify=%s" % wanted
        done = ansible_playbook(tmp_path, "play.yml", "-e", variables)
        assert bool(done.returncode) == (wanted == "fail" and fails), done.stdout
        assert said in done.stdout and ('"msg"' in done.stdout) == bool(said), done.stdout
