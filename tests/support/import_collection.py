# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the collection importable under its real name, from where it is to be tested."""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]
#: Code for the first lines of a new Python that is to import the collection as the tests do.
PRELUDE = (
    "import sys; sys.path.insert(0, %r)\n"
    "from support.import_collection import make_importable; make_importable()\n" % str(ROOT / "tests")
)
_INSIDE = Path("ansible_collections", "kubenode", "ip_masq")


def location() -> Path:
    """Return the directory of the collection under test.

    Its installed artefact below the directory that IP_MASQ_COLLECTIONS names, else the one that tools/setup installed,
    else the checkout.
    """
    named = os.environ.get("IP_MASQ_COLLECTIONS")
    if named:
        found = Path(named).resolve() / _INSIDE
        if not (found / "plugins").is_dir():
            raise RuntimeError("IP_MASQ_COLLECTIONS is %s, but there is no %s below it" % (named, _INSIDE))
        return found
    installed = ROOT / ".cache" / "collections" / _INSIDE
    return installed if (installed / "plugins").is_dir() else ROOT


def make_importable() -> Path:
    """Let ``import ansible_collections.kubenode.ip_masq`` find ``location``, and nothing else of that name."""
    where = location()
    parent = _package("ansible_collections")
    for name, path in (("kubenode", []), ("ip_masq", [str(where)])):
        child = _package("%s.%s" % (parent.__name__, name))
        # Not a search along sys.path: parts of several installations would mix.
        child.__path__ = path
        setattr(parent, name, child)
        parent = child
    return where


def _package(name: str) -> types.ModuleType:
    if name not in sys.modules:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = []
    return sys.modules[name]
