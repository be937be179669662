# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The structure that docs/architecture.md describes: imports go one way, and every wing is described."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import tomllib
from support.import_collection import ROOT, location

PLUGINS = location() / "plugins"
MODULE_UTILS = PLUGINS / "module_utils"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

#: For each wing of module_utils the other wings that it may import. Files outside of a wing are for all of them.
USES: t.Dict[str, t.Set[str]] = {
    "_system": set(),
    "_connection_log": {"_system"},
    "_policy": {"_system"},
    "_rules": {"_system"},
    "_engine": {"_system", "_policy", "_rules"},
    "_twin": {"_system"},
    "_verify": {"_system", "_policy", "_rules", "_engine", "_twin"},
    "_agent": {"_system", "_connection_log", "_policy", "_engine", "_verify"},
    "_kubelet": {"_system", "_engine"},
    "_tasks": {"_system", "_connection_log", "_policy", "_engine", "_verify", "_agent", "_kubelet"},
}
#: What runs on the controller: the policy, and what reads nothing of a node.
CONTROLLER = ("action", "callback", "filter", "lookup", "plugin_utils")
CONTROLLER_USES = re.compile(
    r"_errors\.py|_policy/\w+\.py|_engine/(masquerade_ports|policy_rules|ruleset|effect_words|range_words)\.py"
    r"|_agent/(paths|program_modules|states)\.py|_system/(intervals|endpoints|families|printable)\.py"
    r"|_connection_log/moments\.py|_tasks/agent_options\.py"
)
#: Imports that break a rule and are known.
KNOWN: t.Set[t.Tuple[str, str]] = set()

#: What a module may import besides module_utils: it hands arguments in and the result out.
MODULE_IMPORTS = {"__future__", "ansible.module_utils.basic", "json", "os", "typing"}
#: Lines of a module behind its documentation.
MODULE_LINES = 120


class Import(t.NamedTuple):
    """One import inside of the collection, by paths relative to plugins or, where they are in it, module_utils."""

    importer: str
    imported: str


def name_of(path: Path) -> str:
    """Return the path of a file below module_utils, or else below plugins."""
    parent = MODULE_UTILS if MODULE_UTILS in path.parents else PLUGINS
    return path.relative_to(parent).as_posix()


def sources() -> t.List[Path]:
    """The files of plugins; an __init__.py is empty, as ansible-test demands."""
    return [path for path in sorted(PLUGINS.rglob("*.py")) if path.name != "__init__.py"]


def python_files(*folders: str) -> t.List[Path]:
    """The programs and modules in folders of the checkout."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    return [path for path in paths if path.suffix == ".py" or path.read_bytes()[:22] == b"#!/usr/bin/env python3"]


def tree(path: Path) -> ast.Module:
    """A file, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> t.Iterator[Path]:
    """The files of the collection that a file imports, anywhere in it."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        if folder.with_suffix(".py").is_file():
            yield folder.with_suffix(".py")
            continue
        for alias in node.names:
            imported = folder / (alias.name + ".py")
            assert imported.is_file(), "%s imports %s, which is no file" % (path, imported)
            yield imported


IMPORTS = sorted({Import(name_of(path), name_of(one)) for path in sources() for one in imports_of(path)})


def wing(name: str) -> str:
    """The wing of a file; empty outside of all wings."""
    return name.partition("/")[0] if "/" in name else ""


def may_import(importer: str, imported: str) -> bool:
    """Whether the rules allow an import."""
    ours, theirs = wing(importer), wing(imported)
    if ours in USES:
        return theirs == ours or theirs == "" or theirs in USES[ours]
    if ours in CONTROLLER:
        return theirs in CONTROLLER or bool(CONTROLLER_USES.fullmatch(imported))
    if ours == "modules":
        return theirs == "_tasks"
    # A file outside of all wings: errors, the version.
    return False


def test_there_are_imports() -> None:
    """The tests below would pass if none were found."""
    assert {wing(one.importer) for one in IMPORTS} >= {"_policy", "_engine", "_agent", "_kubelet", "modules", "filter"}
    assert len(IMPORTS) > 100


def test_every_wing_has_a_rule() -> None:
    assert {path.name for path in MODULE_UTILS.iterdir() if path.is_dir()} - {"__pycache__"} <= set(USES)


def test_imports_go_one_way() -> None:
    wrong = {tuple(one) for one in IMPORTS if not may_import(*one)}
    assert wrong == KNOWN


def test_imports_inside_of_the_collection_are_relative() -> None:
    for path in sources():
        for node in ast.walk(tree(path)):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                named = [node.module or ""]
            assert not [name for name in named if name.startswith("ansible_collections")], path


def test_no_file_imports_itself_through_others() -> None:
    after: t.Dict[str, t.Set[str]] = {}
    for importer, imported in set(map(tuple, IMPORTS)) - KNOWN:
        after.setdefault(importer, set()).add(imported)
    done: t.Set[str] = set()

    def follow(name: str, way: t.Tuple[str, ...]) -> None:
        assert name not in way, "a circle: %s" % " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for imported in sorted(after.get(name, ())):
                follow(imported, (*way, name))
            done.add(name)

    for name in sorted(after):
        follow(name, ())


def test_a_name_is_that_of_one_class() -> None:
    found: t.Dict[str, t.List[str]] = {}
    for path in sources():
        if MODULE_UTILS in path.parents:
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(name_of(path))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", sorted((PLUGINS / "modules").glob("*.py")), ids=lambda path: path.stem)
def test_modules_are_thin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    parsed = tree(path)
    documentation = max(node.end_lineno or 0 for node in parsed.body if isinstance(node, ast.Assign) and _is_text(node))
    assert len(text.splitlines()) - documentation <= MODULE_LINES
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= MODULE_IMPORTS
        if isinstance(node, ast.ImportFrom):
            assert node.level == 2 or node.module in MODULE_IMPORTS


def _is_text(node: ast.Assign) -> bool:
    return getattr(node.targets[0], "id", "") in ("DOCUMENTATION", "EXAMPLES", "RETURN")


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree(path)) or "\nDOCUMENTATION = " in path.read_text(encoding="utf-8")


def test_every_wing_is_described() -> None:
    for name in USES:
        assert "| `%s` | " % name in ARCHITECTURE


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "strange").glob("*.py")), ids=lambda path: path.stem)
def test_the_generator_of_strange_nodes_is_independent(path: Path) -> None:
    """It shares no idea with the code that it judges: it imports Python's own library and itself, by relative names."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom):
            inside = node.level == 1
            assert inside or (not node.level and (node.module or "").partition(".")[0] in sys.stdlib_module_names)


def _is_named_after(name: str, sources: t.Iterable[str]) -> bool:
    return any(name == source or name.startswith(source + "_") for source in sources)


def test_unit_tests_have_the_names_of_what_they_test() -> None:
    """Of a file, with what about it; of several files of one folder beside that folder, with its name."""
    mirror = ROOT / "tests" / "unit" / "plugins"
    for path in sorted(mirror.rglob("test_*.py")):
        folder = PLUGINS / path.parent.relative_to(mirror)
        known = {one.stem.lstrip("_") for one in folder.iterdir() if one.is_dir() or one.suffix == ".py"}
        assert _is_named_after(path.stem[len("test_") :], known), path


def test_programs_of_tools_have_no_suffix_and_libraries_have_one() -> None:
    files = [path for path in (ROOT / "tools").iterdir() if path.is_file()]
    assert [path.name for path in files if os.access(path, os.X_OK) == bool(path.suffix)] == []


def test_every_tool_in_python_is_checked() -> None:
    """ruff and mypy find files by their suffix."""
    tools = [path for path in (ROOT / "tools").iterdir() if path.is_file() and not path.suffix]
    python = {"tools/" + path.name for path in tools if "python" in path.read_text(encoding="utf-8").split("\n", 1)[0]}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert python and python == set(settings["ruff"]["extend-include"])
    assert python <= set(settings["mypy"]["files"])


def test_random_policies_do_not_come_from_the_code_under_test() -> None:
    """What they must lead to is judged by the same file, so it does not even import a file that imports that code."""
    code = "import sys, support.random_policies; sys.exit('ansible_collections' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests", check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("path", [*sources(), *python_files("molecule", "tests", "tools")], ids=str)
def test_docstrings_have_one_markup(path: Path) -> None:
    """Double backticks; that of Ansible is for what ansible-doc reads."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree(path)) if isinstance(node, kinds)]
    assert not re.findall(r"\b[A-Z]\([^)]+\)|:[a-z]+:`|(?<!`)`[^`]+`(?!`)", "\n".join(docstrings))


def test_files_that_only_our_plugins_use_are_private() -> None:
    """As the community package of Ansible wants it."""
    files = [path.name for path in (location() / "plugins/plugin_utils").glob("*.py")]
    assert len(files) > 10 and [name for name in files if not name.startswith("_")] == []
