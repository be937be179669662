# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what a change means for packets of many nodes with a limit."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._errors import ConfigError
from ..plugin_utils import _filters
from ..plugin_utils._fleet_effects import APPLIED, to_confirm


def effects_to_confirm(hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Any], limit: t.Any) -> t.List[str]:
    """See the documentation."""
    if limit in ("", None, []):
        return []
    try:
        answers = {host: hostvars[host].get(APPLIED) for host in hosts if host in hostvars}
        return to_confirm(answers, limit)
    except ConfigError as exc:
        raise AnsibleFilterError(str(exc)) from None


FilterModule = _filters.plugin(effects_to_confirm)
