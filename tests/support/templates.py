# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of the roles, as any ansible-core reads them."""

from __future__ import annotations

import typing as t

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar


def template(
    value: t.Any, variables: t.Mapping[str, t.Any], results: t.Optional[t.Mapping[str, t.Any]] = None
) -> t.Any:
    """Return a value as Ansible sees it, with variables that may be templates themselves.

    :param results: variables too, with what a plugin returned: their text is a template only where the plugin says so.
    """
    returned = dict(results or {})
    try:
        from ansible.template import trust_as_template  # ansible-core 2.19 and later
    except ImportError:
        return Templar(loader=DataLoader(), variables={**variables, **returned}).template(value)

    def trusted(item: t.Any) -> t.Any:
        if isinstance(item, dict):
            return {key: trusted(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [trusted(inner) for inner in item]
        return trust_as_template(item) if isinstance(item, str) else item

    return Templar(loader=DataLoader(), variables={**trusted(dict(variables)), **returned}).template(trusted(value))
