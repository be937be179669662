# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of the standard library that files use, and which of them a Python lacks."""

from __future__ import annotations

import ast
import json
import subprocess
import typing as t
from pathlib import Path

#: A module, and a name in it.
Name = t.Tuple[str, str]

#: Prints which of some names this Python lacks.
_PROBE = """
import importlib, json, sys

def has(module, name):
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(module + "." + name))
    except ImportError:
        return False

print(json.dumps([one for one in json.load(sys.stdin) if not has(*one)]))
"""


def used_names(path: Path) -> t.Set[Name]:
    """Return the names that a file takes from modules outside of this collection, without those that it guards.

    A name is guarded by ``hasattr`` in the same file; an import by ``try``, with ``except ImportError``.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {id(node) for attempt in ast.walk(tree) if isinstance(attempt, ast.Try) for node in _imports(attempt)}
    modules: t.Dict[str, str] = {}
    found: t.Set[Name] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update({one.asname or one.name: one.name for one in node.names})
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module and id(node) not in guarded:
            found.update((node.module, one.name) for one in node.names)
    asked = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _dotted(node.value) in modules:
            found.add((modules[_dotted(node.value)], node.attr))
        elif isinstance(node, ast.Call) and _dotted(node.func) == "hasattr" and isinstance(node.args[1], ast.Constant):
            asked.add((modules.get(_dotted(node.args[0]), ""), str(node.args[1].value)))
    return found - asked


def _imports(attempt: ast.Try) -> t.Iterator[ast.AST]:
    if any(handler.type is not None and _dotted(handler.type) == "ImportError" for handler in attempt.handlers):
        yield from (node for statement in attempt.body for node in ast.walk(statement))


def _dotted(node: ast.AST) -> str:
    """Return ``a.b`` as it is written; empty if it is anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and _dotted(node.value):
        return "%s.%s" % (_dotted(node.value), node.attr)
    return ""


def missing_names(python: str, names: t.Iterable[Name]) -> t.Set[Name]:
    """Return which of some names a Python lacks."""
    done = subprocess.run(
        [python, "-I", "-c", _PROBE], input=json.dumps(sorted(names)), capture_output=True, text=True, check=True
    )
    return {(module, name) for module, name in json.loads(done.stdout)}
