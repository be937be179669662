# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Summarize what a change means for packets of many nodes."""

from __future__ import annotations

import typing as t

from ansible.utils.unsafe_proxy import wrap_var

from ..plugin_utils import _filters
from ..plugin_utils._fleet_effects import APPLIED, summary


def effects(hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Any]) -> t.List[str]:
    """See the documentation."""
    views = {host: hostvars[host] for host in hosts if host in hostvars}
    found = summary(
        {host: view.get(APPLIED) for host, view in views.items()},
        {host: view.get("group_names") or () for host, view in views.items()},
    )
    # It has text of nodes: Ansible must not take that for a template.
    return t.cast(t.List[str], wrap_var(found))


FilterModule = _filters.plugin(effects)
