# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that the installed program consists of, byte for byte as Ansible runs them, and their digest."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import typing as t

#: The module in which the program begins, and the name of the package that holds all modules on a node.
ENTRY = "_tasks.program"
PACKAGE = "ip_masq_agent"

#: An import from this collection, on one line or in parentheses. To parse all modules takes 0.4 seconds, in each task.
_IMPORT = re.compile(r"^[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)


@functools.lru_cache(maxsize=None)
def sources() -> t.Mapping[str, bytes]:
    """Return the sources of the agent and of all that it imports from this collection, by module."""
    found: t.Dict[str, bytes] = {}
    ahead = [ENTRY]
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
    try:
        return t.cast(t.Optional[bytes], loader.get_data(os.path.join(folder, *name.split(".")) + ".py"))
    except OSError:
        return None
