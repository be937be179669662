# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files in examples/ansible-pull, and the command in them, on a node."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from support import modules
from support.agent_node import AgentNode
from support.import_collection import ROOT
from support.namespaces import Namespace
from support.variants import BACKENDS

EXAMPLE = ROOT / "examples" / "ansible-pull"
_GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main", "-C")


def commit(repository: Path) -> None:
    """Commit all files."""
    for words in (("add", "-A"), ("commit", "-qm", "policy")):
        subprocess.run([*_GIT, str(repository), *words], check=True)


def test_a_node_applies_what_it_pulls(ns: Namespace, tmp_path: Path) -> None:
    node = AgentNode(ns, tmp_path, installed=False)
    repository = tmp_path / "repository"
    repository.mkdir()
    subprocess.run([*_GIT, str(repository), "init", "-q"], check=True)
    for name in ("local.yml", "inventory.yml"):
        shutil.copy(EXAMPLE / name, repository)
    commit(repository)
    (line,) = re.findall(r"(?m)^ExecStart=(.*)$", (EXAMPLE / "ip-masq-pull.service").read_text())
    program, *words = shlex.split(line)
    assert Path(program).name == "ansible-pull"
    argv = [str(Path(sys.executable).with_name("ansible-pull"))]
    argv += [re.sub(r"^https://.*", repository.as_uri(), word.replace("/var/lib", str(tmp_path))) for word in words]
    env = {"ANSIBLE_COLLECTIONS_PATH": str(modules.collections()), "ANSIBLE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}

    def pull() -> str:
        done = node.call(*argv, HOME=str(tmp_path), **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return t.cast(str, done.stdout)

    assert re.search(r"(?m)^localhost +: ok=\d+ +changed=1 .* failed=0 ", pull())
    assert BACKENDS["iptables_nft"].exempt(ns)[1:] == ["10.0.0.0/8", "100.64.0.0/10"]
    assert "PLAY [" not in pull(), "there is no new commit"
    inventory = repository / "inventory.yml"
    inventory.write_text(inventory.read_text().replace("100.64.0.0/10", "172.16.0.0/12"))
    commit(repository)
    pull()
    assert BACKENDS["iptables_nft"].exempt(ns)[1:] == ["10.0.0.0/8", "172.16.0.0/12"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_units_of_the_example_are_valid(tmp_path: Path) -> None:
    files = []
    for name in ("ip-masq-pull.service", "ip-masq-pull.timer"):
        text = (EXAMPLE / name).read_text()
        files.append(str(tmp_path / name))
        (tmp_path / name).write_text(text.replace("/usr/bin/ansible-pull", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "ip-masq-pull" in line]) == (0, [])
