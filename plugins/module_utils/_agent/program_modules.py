# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the installed program: its modules, byte for byte as Ansible runs them, their digest, and the launcher.

Operators and units start the launcher. It names the directory of the modules, and the paths.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import os
import re
import typing as t

from .._version import VERSION
from .paths import MARK, Paths

#: The modules in which the program begins, and in which a resync does that has only metrics to write; and the package
#: that holds all modules on a node.
ENTRY, METRICS = "_tasks.program", "_agent.live_metrics"
PACKAGE = "ip_masq_agent"

#: An import from this collection, on one line or in parentheses. To parse all modules takes 0.4 seconds, in each task.
_IMPORT = re.compile(r"^[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)

# -I: neither the environment nor the current directory decides what root imports. -S: nor do packages, which only YAML
# needs; and a start takes 5 of 17 ms less. -B: a run writes nothing to /usr; the installation compiles the modules.
# A loader of its own: Python takes compiled code with a valid header, and fails if the rest is damaged; and it waits
# for a named pipe. That may happen at any import, also in the middle of a run, where a second start would repeat what
# was done. "recover" takes none: the place of compiled code may be what did not answer.
# PyPy's JIT aborts the process where memory cannot be made executable, as in the units (MemoryDenyWriteExecute=), and
# has hardly warmed up when a run ends.
_LAUNCHER = """\
#!{python} -ISB
# {mark}: the agent, version {version}.
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader

RELEASE = {digest!r}
WHERE = {where!r}


class Loader(SourceFileLoader):
    def get_data(self, path):
        if path.endswith(".pyc") and sys.argv[1:2] == ["recover"] or not os.path.isfile(path):
            raise OSError(path)
        return super().get_data(path)

    def get_code(self, name):
        try:
            return super().get_code(name)
        except Exception:  # the compiled code is damaged
            return self.source_to_code(self.get_data(self.path), self.path)


if "pypyjit" in sys.builtin_module_names:
    __import__("pypyjit").set_param("off")
sys.path_hooks.insert(0, FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (Loader, [".py"])))
sys.path.insert(0, {lib_dir!r} + "/" + RELEASE)
if sys.argv[1:2] == ["metrics"]:
    from {package}.{metrics} import update

    sys.argv[1:] = ["resync"] if update(*sys.argv[2:]) else os._exit(0)
from {package}.{entry} import entry

entry(WHERE)
"""
_WHERE = re.compile(rb"^WHERE = (\{.*\})$", re.MULTILINE)
_RELEASE = re.compile(rb"^RELEASE = '([0-9a-f]+)'$", re.MULTILINE)


@functools.lru_cache(maxsize=None)
def sources() -> t.Mapping[str, bytes]:
    """Return the sources of the agent and of all that it imports from this collection, by module."""
    found: t.Dict[str, bytes] = {}
    ahead = [ENTRY, METRICS]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = _source(name)
            ahead += imported(name, found[name])
    return found


def module_files() -> t.Dict[str, bytes]:
    """Return the content of each file that a node has of them, by its path below the modules' directory."""
    found = {name.replace(".", "/") + ".py": content for name, content in sources().items()}
    packages = {os.path.dirname(path) for path in found} | {""}
    found.update((os.path.join(package, "__init__.py"), b"") for package in packages)
    return {os.path.join(PACKAGE, path): found[path] for path in sorted(found)}


@functools.lru_cache(maxsize=None)
def digest() -> str:
    """Return a checksum of the sources. Agents that have it in common have the same code, whatever their paths are."""
    return hashlib.sha256(repr(sorted(sources().items())).encode("ascii")).hexdigest()


def are_intact() -> bool:
    """Return whether the sources of an installed program have the digest that their directory is named by."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.path.basename(folder) == digest()


def imported(name: str, source: bytes) -> t.List[str]:
    """Return the modules that a module of this collection imports from it."""
    names = []
    for dots, stem, what in _IMPORT.findall(source.decode("utf-8")):
        base = name.split(".")[: -len(dots)] + (stem.split(".") if stem else [])
        if _read(".".join(base)) is not None:
            names.append(".".join(base))
        else:  # a package
            names += [".".join([*base, each.split()[0]]) for each in what.strip("()\n ").split(",") if each.strip()]
    return names


def _source(name: str) -> bytes:
    content = _read(name)
    if content is None:
        raise ImportError("%s is not a module of this collection" % name)
    return content


@functools.lru_cache(maxsize=None)
def _read(name: str) -> t.Optional[bytes]:
    """Read a module with this one's loader, from a directory or an archive. It is not run, which takes long."""
    loader: t.Any = __spec__.loader
    folder = os.path.dirname(os.path.dirname(__file__))
    with contextlib.suppress(OSError):
        return t.cast(t.Optional[bytes], loader.get_data(os.path.join(folder, *name.split(".")) + ".py"))
    return None


def launcher(paths: Paths) -> bytes:
    """Return the text of the launcher."""
    return _LAUNCHER.format(
        python=paths.python,
        mark=MARK,
        version=VERSION,
        digest=digest(),
        where=dict(paths._asdict()),
        lib_dir=paths.lib_dir,
        package=PACKAGE,
        entry=ENTRY,
        metrics=METRICS,
    ).encode("ascii")


def release_line() -> str:
    """Return the line of a launcher that names the digest of its modules."""
    return "RELEASE = %r" % digest()


def release(raw: bytes) -> str:
    """Return the digest that a launcher names; empty if it names none."""
    found = _RELEASE.search(raw)
    return found.group(1).decode("ascii") if found else ""


def modules_dir(paths: Paths) -> str:
    """Return the directory of the modules."""
    return os.path.join(paths.lib_dir, digest())


def places(raw: bytes) -> t.Optional[Paths]:
    """Return the paths that an installed program was made for; None if it is not a program of this collection."""
    found = _WHERE.search(raw) if MARK.encode("ascii") in raw[:1000] else None
    with contextlib.suppress(SyntaxError, TypeError, ValueError):
        return Paths(**ast.literal_eval(found.group(1).decode("ascii"))) if found else None
    return None
