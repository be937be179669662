# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a release needs beside the code: metadata for execution environments, licences, the version in one place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.import_collection import ROOT, location

RELEASES = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
GALAXY = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))


def builder(*arguments: str, cwd: Path) -> str:
    """What ansible-builder prints."""
    program = Path(sys.executable).with_name("ansible-builder")
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_version_is_the_same_everywhere() -> None:
    assert GALAXY["version"] == VERSION
    # docs/releases.md: pre-releases are -rcN; tools/dist writes them as ~rcN for dpkg and rpm
    assert re.match(r"\d+\.\d+\.\d+(-rc\d+)?\Z", VERSION)


def test_execution_environment_gets_what_the_controller_needs(tmp_path: Path) -> None:
    collections = location().parents[2]
    found = yaml.safe_load(builder("introspect", str(collections), cwd=tmp_path))
    assert [line.split()[0] for line in found["python"]] == ["netaddr>=0.10.0"]
    assert found["system"] == []


def test_definition_in_the_documentation_is_complete(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n# execution-environment.yml\n(.*?)^```", RELEASES, re.MULTILINE | re.DOTALL)
    (tmp_path / "execution-environment.yml").write_text(example)
    builder("create", cwd=tmp_path)
    requirements = yaml.safe_load((tmp_path / "context/_build/requirements.yml").read_text())
    assert requirements["collections"] == [{"name": "%s.%s" % (GALAXY["namespace"], GALAXY["name"])}]


def test_licence_is_the_same_text_where_tools_look_for_it() -> None:
    (license_file,) = (ROOT / "LICENSES").iterdir()
    assert [license_file.stem] == GALAXY["license"]
    assert license_file.read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", ["dist", "tests", "molecule", "tools", "LICENSES", "REUSE.toml", ".github"])
def test_artefact_does_not_contain(name: str) -> None:
    assert not (location() / name).exists()


def test_workflow_calls_what_contributors_call() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    commands = [step["run"].splitlines()[-1] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert {".ci/run", "make dist"} <= set(commands)
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert workflow["permissions"] == {"contents": "read"}
