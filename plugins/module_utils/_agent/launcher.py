# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher: the program that operators and units start. It names the directory of the modules, and the paths."""

from __future__ import annotations

import ast
import os
import re
import typing as t

from .._version import VERSION
from . import modules
from .paths import MARK, Paths

# -I: neither the environment nor the current directory decides what root imports. -B: a run writes nothing to /usr; the
# installation compiles the modules.
# PyPy's JIT aborts the process where memory cannot be made executable, as in the units (MemoryDenyWriteExecute=), and
# has hardly warmed up when a run ends.
_LAUNCHER = """\
#!{python} -IB
# {mark}: the agent, version {version}.
import sys
from importlib.machinery import FileFinder, SourceFileLoader

RELEASE = {digest!r}
WHERE = {where!r}
FOLDER = {lib_dir!r} + "/" + RELEASE


class Loader(SourceFileLoader):
    def get_code(self, name):
        try:
            return super().get_code(name)
        except Exception:  # the compiled code is damaged
            return self.source_to_code(self.get_data(self.path), self.path)


def find_modules(path):
    if path.startswith(FOLDER):
        return FileFinder(path, (Loader, [".py"]))
    raise ImportError(path)


if "pypyjit" in sys.builtin_module_names:
    __import__("pypyjit").set_param("off")
sys.path_hooks.insert(0, find_modules)
sys.path.insert(0, FOLDER)
from {package}.{entry} import entry

entry(WHERE)
"""
_WHERE = re.compile(rb"^WHERE = (\{.*\})$", re.MULTILINE)
_RELEASE = re.compile(rb"^RELEASE = '([0-9a-f]+)'$", re.MULTILINE)


def launcher(paths: Paths) -> bytes:
    """Return the text of the launcher."""
    return _LAUNCHER.format(
        python=paths.python,
        mark=MARK,
        version=VERSION,
        digest=modules.digest(),
        where=dict(paths._asdict()),
        lib_dir=paths.lib_dir,
        package=modules.PACKAGE,
        entry=modules.ENTRY,
    ).encode("ascii")


def release_line() -> str:
    """Return the line of a launcher that names the digest of its modules."""
    return "RELEASE = %r" % modules.digest()


def release(raw: bytes) -> str:
    """Return the digest that a launcher names; empty if it names none."""
    found = _RELEASE.search(raw)
    return found.group(1).decode("ascii") if found else ""


def modules_dir(paths: Paths) -> str:
    """Return the directory of the modules."""
    return os.path.join(paths.lib_dir, modules.digest())


def places(raw: bytes) -> Paths:
    """Return the paths that an installed program was made for.

    :raises ValueError: it is not a program of this collection.
    """
    found = _WHERE.search(raw) if MARK.encode("ascii") in raw[:1000] else None
    try:
        if found:
            return Paths(**t.cast(t.Dict[str, str], ast.literal_eval(found.group(1).decode("ascii"))))
    except (SyntaxError, TypeError, ValueError) as exc:
        raise ValueError("not a program of this collection: %s" % exc) from None
    raise ValueError("not a program of this collection")
