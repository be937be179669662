# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a release needs beside the code: metadata for execution environments, licences, the version in one place."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.import_collection import ROOT, location

RELEASES = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
#: What is not released has no digest that stays.
DEVEL = "github.com/ansible/ansible/archive/devel.tar.gz"
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
    assert re.match(r"\d+\.\d+\.\d+(-rc[1-9])?\Z", VERSION)


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
    # A pre-release is installed only if its version is given.
    wanted = {"name": "%s.%s" % (GALAXY["namespace"], GALAXY["name"]), "version": VERSION}
    assert requirements["collections"] == [wanted]


def test_licence_is_the_same_text_where_tools_look_for_it() -> None:
    (license_file,) = (ROOT / "LICENSES").iterdir()
    assert [license_file.stem] == GALAXY["license"]
    assert license_file.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_what_builds_a_release_is_pinned_by_hash() -> None:
    """To the versions that everything is tested with; ``pip`` demands hashes of all if one has any."""
    text = (ROOT / "requirements-dist.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"(?m)^([\w-]+)==(\S+)(?: \\\n +--hash=sha256:[0-9a-f]{64})+$", text))
    assert "ansible-core" in pinned and len(pinned) == text.count("==")
    tested = re.findall(r"(?m)^([\w.-]+)==(\S+)", (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").lower())
    assert pinned.items() <= dict(tested).items()


@pytest.mark.parametrize("name", ["dist", "tests", "molecule", "tools", "LICENSES", "REUSE.toml", ".github"])
def test_artefact_does_not_contain(name: str) -> None:
    assert not (location() / name).exists()


def test_artefact_has_no_litter() -> None:
    """Litter of a checkout would make two builds of a commit differ; so would an empty directory, which git has not."""
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = {Path(name) for name in subprocess.check_output(command, text=True).splitlines()}
    folders = {parent for path in tracked for parent in path.parents}
    built = {path.relative_to(location()) for path in location().rglob("*") if "__pycache__" not in path.parts}
    assert built - tracked - folders == {Path("MANIFEST.json"), Path("FILES.json")}


def workflow(name: str) -> t.Dict[str, t.Any]:
    """Read a workflow."""
    read: t.Dict[str, t.Any] = yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))
    return read


def test_workflow_calls_what_contributors_call() -> None:
    ci = workflow("ci.yml")
    commands = [step["run"].splitlines()[-1] for step in ci["jobs"]["test"]["steps"] if "run" in step]
    assert {".ci/run", "make dist"} <= set(commands)
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert ci["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda path: path.stem)
def test_actions_of_workflows_are_pinned_by_digest(path: Path) -> None:
    used = re.findall(r"^ *- ?uses: (.*)$|^ *uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    for action in map("".join, used):
        own = re.match(r"\./(\.github/workflows/[a-z]+\.yml)\Z", action)
        assert own or re.match(r"actions/[a-z-]+@[0-9a-f]{40} # v[0-9.]+\Z", action), action
        assert not own or "workflow_call" in workflow(Path(own.group(1)).name)["on"], action
    fetched = re.findall(r"github\.com/(?!.*\$[A-Z]+\b).*", path.read_text(encoding="utf-8"))
    assert fetched == [DEVEL] * (path.stem == "ci"), (
        "what is fetched is named by its digest, but for what blocks nothing"
    )
    for digest in re.findall(r"^ *PYENV: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.match(r"[0-9a-f]{40} # (?:after )?v[0-9.]+\Z", digest), digest


def test_devel_is_tested_and_blocks_nothing() -> None:
    job = workflow("ci.yml")["jobs"]["devel"]
    commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    assert job["continue-on-error"] is True and DEVEL in commands and "make sanity ARGS=.cache/devel" in commands


def test_nothing_is_built_for_a_release_before_the_tests_have_passed() -> None:
    jobs = workflow("release.yml")["jobs"]
    tests = [name for name, job in jobs.items() if job.get("uses") == "./.github/workflows/ci.yml"]
    assert [jobs["build"]["needs"]] == tests and jobs["draft"]["needs"] == "build"


def test_artefacts_of_the_tests_are_not_those_of_the_release() -> None:
    """They are of the same run, where a name is given once, and the release takes all that match its pattern."""
    jobs = workflow("release.yml")["jobs"]
    (fetch,) = (step for step in jobs["draft"]["steps"] if "download-artifact@" in step.get("uses", ""))
    (kept,) = (step for step in jobs["build"]["steps"] if "upload-artifact@" in step.get("uses", ""))
    (other,) = (
        step for step in workflow("ci.yml")["jobs"]["test"]["steps"] if "upload-artifact@" in step.get("uses", "")
    )
    assert fnmatch.fnmatchcase(kept["with"]["name"], fetch["with"]["pattern"])
    assert not fnmatch.fnmatchcase(other["with"]["name"], fetch["with"]["pattern"])


def test_scheduled_workflow_covers_the_table_of_versions() -> None:
    """Pythons that it builds, and those of tools/debian-pythons; and every part of tools/versions."""
    job = workflow("versions.yml")["jobs"]["versions"]
    commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    (built,) = re.findall(r"pyenv install (.*)", commands)
    of_debian = re.findall(r"python(3\.\d+)-venv", (ROOT / "tools/debian-pythons").read_text(encoding="utf-8"))
    assert {*built.split(), *of_debian} == set(json.loads((ROOT / "docs/versions.json").read_text())["pythons"])
    (parts,) = re.findall(r"^PARTS = (\(.*\))$", (ROOT / "tools/versions").read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(job["strategy"]["matrix"]["part"]) == ast.literal_eval(parts)
    assert "make versions ARGS=${{ matrix.part }}" in commands


def test_tools_name_tools_that_exist() -> None:
    files = [ROOT / "Makefile", *(path for name in ("tools", ".ci", ".github") for path in (ROOT / name).rglob("*"))]
    for path in (path for path in files if path.is_file() and "__pycache__" not in path.parts):
        for name in re.findall(r"(?<![\w./-])tools/([a-z][\w-]*(?:\.\w+)?)", path.read_text(encoding="utf-8")):
            assert (ROOT / "tools" / name).exists(), (path, name)


def test_release_workflow_builds_for_tags_and_names_the_files_of_make_dist() -> None:
    released = workflow("release.yml")
    for version in ("1.0.0", "1.0.0-rc1"):
        assert any(re.fullmatch(pattern.replace(".", r"\."), version) for pattern in released["on"]["push"]["tags"])
    assert released["permissions"] == {}
    assert "make dist" in [step.get("run") for step in released["jobs"]["build"]["steps"]]
    (sign,) = (step["run"] for step in released["jobs"]["draft"]["steps"] if step["name"] == "Sign")
    name = "kubenode-ip_masq-%s-MANIFEST.json.asc"
    assert name % "$GITHUB_REF_NAME" in sign and name % "VERSION" in RELEASES


def test_public_plugins_are_those_that_are_not_called_internal() -> None:
    (named,) = re.findall(r"^- the modules, roles and playbooks, (.*?):$", RELEASES, re.MULTILINE | re.DOTALL)
    plugins = [
        path for kind in ("filter", "lookup", "callback") for path in (location() / "plugins" / kind).glob("*.py")
    ]
    documented = [path.with_suffix(".yml") if path.with_suffix(".yml").exists() else path for path in plugins]
    public = {path.stem for path in documented if "  - Internal. " not in path.read_text(encoding="utf-8")}
    assert public == set(re.findall(r"`(\w+)`", named))


def test_version_added_names_a_release() -> None:
    """An unreleased version number would stay in the documentation forever; tools/release replaces it."""
    released = {*yaml.safe_load((ROOT / "changelogs/changelog.yaml").read_text())["releases"], VERSION}
    sources = [*(ROOT / "plugins").rglob("*.py"), *(ROOT / "plugins" / "filter").glob("*.yml")]
    sources += (ROOT / "roles").rglob("argument_specs.yml")
    added = {
        version
        for source in sources
        for version in re.findall(r"^ *version_added: (\S+)$", source.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert added and added <= {version.partition("-")[0] for version in released}


def test_fragments_have_no_markup_of_plugins() -> None:
    """The changelog would show it as it is."""
    for fragment in sorted((ROOT / "changelogs/fragments").glob("*.yml")):
        assert not re.findall(r"\b[A-Z]+\([^)]+\)", re.sub("``.*?``", "", fragment.read_text(encoding="utf-8")))


def release(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run tools/release."""
    command = [sys.executable, tree / "tools/release", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_release_sets_the_version_and_writes_the_changelog(tmp_path: Path) -> None:
    """In a copy of what it reads and writes, before a first release, with one fragment."""
    version_file = "plugins/module_utils/_version.py"
    for name in ("tools/release", "tools/runner.py", "galaxy.yml", "README.md", "docs/fleets.md", "docs/releases.md",
                 version_file, "changelogs/config.yaml", "plugins/modules/ip_masq_agent.py",
                 "plugins/doc_fragments/attributes.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    module = tmp_path / "plugins/modules/ip_masq_agent.py"
    module.write_text(re.sub(r"(?m)^version_added: .*$", "version_added: " + VERSION, module.read_text()))
    (tmp_path / "changelogs/changelog.yaml").write_text("---\nancestor: null\nreleases: {}\n")
    fragment = tmp_path / "changelogs/fragments/one.yml"
    fragment.parent.mkdir()
    fragment.write_text("---\nminor_changes:\n  - role - is new.\n")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    done = release(tmp_path, "97.1.0-rc1")
    assert done.returncode == 0, done.stdout + done.stderr
    text = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert yaml.safe_load(text["galaxy.yml"])["version"] == "97.1.0-rc1"
    assert 'VERSION = "97.1.0-rc1"\n' in text["_version.py"]
    assert "agent 97.1.0-rc1; iptables" in text["README.md"]
    (row,) = [line for line in text["fleets.md"].splitlines() if "agent 97.1.0-rc1 " in line]
    (head,) = [line for line in text["fleets.md"].splitlines() if line.startswith("state ")]
    assert row.index("2,984") == head.index("nodes"), "columns stay aligned"
    # what was new in a version that was never released is new in this one
    assert "\nversion_added: 97.1.0\n" in text["ip_masq_agent.py"]
    assert "role \\- is new\\." in text["CHANGELOG.md"] and "ip\\_masq\\_agent \\- " in text["CHANGELOG.md"]
    assert sorted(path.name for path in (tmp_path / "changelogs").rglob("*.y*ml")) == ["changelog.yaml", "config.yaml"]
    again = release(tmp_path, "97.1.0")
    assert again.returncode == 1 and "there is nothing to release" in again.stderr
    # A pre-release is installed only if it is named, and what is named is no later one.
    assert "\n$ ansible-galaxy collection install kubenode.ip_masq:==97.1.0-rc1\n" in text["README.md"]
    assert "/badge/version-97.1.0--rc1-blue)" in text["README.md"]
    assert "- name: kubenode.ip_masq\n        version: 97.1.0-rc1\n" in text["releases.md"]
    fragment.write_text("---\nbugfixes:\n  - role - is repaired.\n")
    final = release(tmp_path, "97.1.0")
    assert final.returncode == 0, final.stdout + final.stderr
    readme = (tmp_path / "README.md").read_text()
    assert "\n$ ansible-galaxy collection install kubenode.ip_masq\n" in readme
    assert "/badge/version-97.1.0-blue)" in readme
    assert "\n        version: 97.1.0\n" in (tmp_path / "docs/releases.md").read_text()


def test_the_readme_installs_this_version() -> None:
    name = ":==" + VERSION if "-" in VERSION else ""
    assert "\n$ ansible-galaxy collection install kubenode.ip_masq%s\n" % name in (ROOT / "README.md").read_text()


def test_release_refuses_what_is_no_version() -> None:
    for word in ("1.0", "1.0.0-rc10", "v1.0.0"):
        assert "usage: tools/release VERSION" in release(ROOT, word).stderr
