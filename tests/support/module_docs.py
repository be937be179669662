# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation of a module with that of its fragments, as ansible-doc shows it."""

from __future__ import annotations

import importlib
import types
import typing as t

import yaml

_FRAGMENTS = "ansible_collections.kubenode.ip_masq.plugins.doc_fragments."


def documentation(module: types.ModuleType) -> t.Dict[str, t.Any]:
    """Return what DOCUMENTATION says; where a fragment says the same key too, the module's own counts."""
    own: t.Dict[str, t.Any] = yaml.safe_load(module.DOCUMENTATION)
    for named in own.get("extends_documentation_fragment", []):
        name, _dot, variant = named[len("kubenode.ip_masq.") :].partition(".")
        fragment = importlib.import_module(_FRAGMENTS + name).ModuleDocFragment
        for key, value in yaml.safe_load(getattr(fragment, variant.upper() or "DOCUMENTATION")).items():
            ours = own.setdefault(key, {})
            for one, about in value.items():
                ours[one] = {**about, **ours.get(one, {})}
    return own
