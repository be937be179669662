# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role makes of each way in which a verification ends. The program is a script that ends like that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.import_collection import location

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
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    env.update(HOME=str(tmp_path), LC_ALL="C.UTF-8", ANSIBLE_COLLECTIONS_PATH=str(location().parents[2]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "play.yml", "-e", "ip_masq_agent_bin_dir=."]
    for wanted in ("warn", "fail"):
        more = ["-e", "ip_masq_agent_verify=%s" % wanted]
        done = subprocess.run([*command, *more], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert bool(done.returncode) == (wanted == "fail" and fails), done.stdout
        assert said in done.stdout and ('"msg"' in done.stdout) == bool(said), done.stdout
