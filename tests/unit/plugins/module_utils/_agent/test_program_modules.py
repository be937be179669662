# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which modules the program consists of, and that their bytes do not depend on who asks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import program_modules
from support.import_collection import PRELUDE, location

IMPORT = "from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import program_modules\n"


class TestSources:
    """program_modules.sources"""

    def test_they_are_the_bytes_that_ansible_runs(self) -> None:
        here = location() / "plugins" / "module_utils"
        found = program_modules.sources()
        assert {
            "_tasks.program",
            "_agent.sync",
            "_kubelet.manage",
            "_policy.policy",
            "_engine.reconcile",
            "_system.process",
        } <= set(found)
        for name, content in found.items():
            assert content == (here / (name.replace(".", "/") + ".py")).read_bytes(), name

    def test_all_that_they_import_is_there(self) -> None:
        found = program_modules.sources()
        for name, content in found.items():
            for module in program_modules.imported(name, content):
                assert module in found, "%s imports %s" % (name, module)

    def test_they_are_found_in_an_archive(self, tmp_path: Path) -> None:
        """As Ansible sends the modules to a node. An old Python imports from it in another way."""
        parts = ("ansible_collections", "kubenode", "ip_masq", "plugins", "module_utils")
        archive = tmp_path / "payload.zip"
        with zipfile.ZipFile(archive, "w") as payload:
            for number in range(1, len(parts)):
                payload.writestr("/".join(parts[:number]) + "/__init__.py", "")
            here = location() / "plugins" / "module_utils"
            payload.writestr("/".join(parts) + "/__init__.py", "")
            for path in sorted(here.rglob("*.py")):
                payload.write(path, "/".join((*parts, path.relative_to(here).as_posix())))
        code = "import sys; sys.path.insert(0, %r); %sprint(program_modules.digest())" % (str(archive), IMPORT)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout == program_modules.digest() + "\n", done.stderr

    def test_reading_them_runs_none(self) -> None:
        code = (
            PRELUDE + IMPORT + "before = set(sys.modules); program_modules.module_files()\n"
            "print([name for name in set(sys.modules) - before if not hasattr(sys.modules[name], '__path__')])\n"
        )
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        assert done.stdout == b"[]\n"


class TestImported:
    """program_modules.imported"""

    def test_imports_are_those_of_the_syntax_tree(self) -> None:
        for name, content in program_modules.sources().items():
            written = [
                "." * node.level + (node.module or "")
                for node in ast.walk(ast.parse(content))
                if isinstance(node, ast.ImportFrom) and node.level
            ]
            found = [dots + stem for dots, stem, _names in program_modules._IMPORT.findall(content.decode("utf-8"))]
            assert sorted(found) == sorted(written), name


class TestDigest:
    """program_modules.digest"""

    @pytest.mark.parametrize("changed", [{"_version": b"VERSION = '0.0.0'\n"}, {"_more": b""}])
    def test_another_module_makes_another_one(
        self, changed: t.Dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, sources = program_modules.digest(), program_modules.sources()
        monkeypatch.setattr(program_modules, "sources", lambda: {**sources, **changed})
        assert program_modules.digest.__wrapped__() != before

    def test_every_package_is_a_directory_with_a_file(self) -> None:
        found = program_modules.module_files()
        folders = {os.path.dirname(path) for path in found}
        assert "ip_masq_agent" in folders and {os.path.join(folder, "__init__.py") for folder in folders} <= set(found)
        assert found["ip_masq_agent/_version.py"] == program_modules.sources()["_version"]
