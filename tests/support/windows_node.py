# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Windows nodes without Windows: ansible-playbook on files of this host, with modules that ansible.windows has.

PowerShell is not here. The modules in windows_modules take the same options and return the same keys, which
tests/unit/roles/test_windows.py compares with the documentation of the real ones; the action plugin of win_copy is the
real one, from the package ansible.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import typing as t
from pathlib import Path

import yaml

from .import_collection import ROOT, location
from .playbook_run import ansible_playbook

MODULES = Path(__file__).with_name("windows_modules")


def real_collection() -> Path:
    """Return ansible.windows of the package ansible, or else that of ``make setup``."""
    spec = importlib.util.find_spec("ansible")
    assert spec and spec.origin
    folders = [Path(spec.origin).parents[1], *ROOT.glob(".venv/lib/python3*/site-packages")]
    return next(found for found in (one / "ansible_collections/ansible/windows" for one in folders) if found.is_dir())


def make_collection(root: Path) -> Path:
    """Make a collection ansible.windows whose modules work on this host; return the path for Ansible."""
    plugins = root / "ansible_collections/ansible/windows/plugins"
    shutil.copytree(MODULES, plugins / "modules", ignore=shutil.ignore_patterns("__pycache__"))
    (plugins / "action").mkdir()
    shutil.copy(real_collection() / "plugins/action/win_copy.py", plugins / "action")
    return root


class WindowsNodes:
    """Hosts of an inventory, each with a directory of CNI configurations."""

    def __init__(self, root: Path, *names: str) -> None:
        self.root = root
        self._collections = make_collection(root / "collections")
        self.folders = {name: root / name for name in names}
        self.hosts: t.Dict[str, t.Dict[str, t.Any]] = {}
        for name, folder in self.folders.items():
            folder.mkdir()
            self.hosts[name] = {**self.reach(), "ip_masq_windows_node": True, "ip_masq_windows_paths": [str(folder)]}
        self.group_vars: t.Dict[str, t.Any] = {}

    @staticmethod
    def reach() -> t.Dict[str, t.Any]:
        """Return variables with which Ansible reaches this host."""
        return {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}

    def collections_path(self) -> str:
        """Return where Ansible finds both collections."""
        return os.pathsep.join([str(self._collections), str(location().parents[2])])

    def play(self, playbook: str, *arguments: str) -> t.Tuple[int, str]:
        """Run ansible-playbook on the text of a playbook; exit status and output."""
        inventory = {"all": {"hosts": self.hosts, "vars": self.group_vars}}
        (self.root / "inventory.yml").write_text(yaml.safe_dump(inventory))
        (self.root / "play.yml").write_text(playbook)
        command = ("-i", "inventory.yml", "play.yml", *arguments)
        done = ansible_playbook(self.root, *command, ANSIBLE_COLLECTIONS_PATH=self.collections_path())
        return done.returncode, done.stdout + done.stderr
