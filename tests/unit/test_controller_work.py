# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the programs of Ansible keep in tests is what they find without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible.release import __version__ as release
from support.import_collection import SITE, location

#: Prints what the program that it is part of finds: imports of each source of the collection, and a large YAML file.
_PROGRAM = """
import ast, json, sys
from pathlib import Path
from ansible.executor import module_common
from ansible.module_utils.common import yaml
import ansible
release = tuple(map(int, ansible.__version__.split(".")[:2]))
read = getattr(module_common, "compile", compile)
found = {}
for path in sorted(Path(sys.argv[1], "plugins").rglob("*.py")):
    name = "ansible_collections.kubenode.ip_masq." + ".".join(path.relative_to(sys.argv[1]).with_suffix("").parts)
    source = path.read_bytes()
    if release < (2, 21):  # later ones parse it themselves
        source = read(source, "<unknown>", "exec", ast.PyCF_ONLY_AST)
    imports = module_common.ModuleDepFinder(name, source, path.stem == "__init__")
    found[name] = [sorted(map(list, imports.submodules)), sorted(map(list, imports.optional_imports))]
routing = Path(ansible.__file__).parent / "config" / "ansible_builtin_runtime.yml"
with routing.open("rb") as stream:
    found["YAML"] = repr(yaml.yaml_load(stream))
print(json.dumps([found, isinstance(module_common.ModuleDepFinder, type), hasattr(yaml.yaml_load, "__closure__")]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of Ansible's, by its name."""
    (tmp_path / "ansible-find").write_text(_PROGRAM)
    return tmp_path / "ansible-find"


def found(program: Path, **env: str) -> t.List[t.Any]:
    """What it finds, whether it searches for imports itself, and whether YAML is kept."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHONPATH"))}
    argv = [sys.executable, str(program), str(location())]
    done = subprocess.run(argv, env={**plain, **env}, stdout=subprocess.PIPE, text=True, check=True)
    return t.cast(t.List[t.Any], json.loads(done.stdout))


def test_what_is_kept_is_what_ansible_finds_itself(program: Path) -> None:
    theirs, searches, keeps = found(program)
    assert searches and not keeps and len(theirs) > 100 and any(imports for imports, _optional in theirs.values())
    for _time in ("the first", "kept"):
        assert found(program, PYTHONPATH=SITE) == [theirs, not release.startswith("2.18."), True]


def test_other_programs_are_left_alone(program: Path) -> None:
    assert found(program.rename(program.with_name("module.py")), PYTHONPATH=SITE)[1:] == [True, False]
