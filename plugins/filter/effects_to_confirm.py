# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: effects_to_confirm
short_description: Compare what a change means for packets of many nodes with a limit
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Counts hosts with effects, and their open connections, of what M(kubenode.ip_masq.ip_masq_agent) returned in check
    mode. The playbook C(kubenode.ip_masq.apply) stops before it writes anything if there are more than
    C(ip_masq_agent_confirm_effects) allows.
positional: hostvars, limit
options:
  _input:
    description: Names of hosts. One that is not in the inventory is left out.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variable C(hostvars), in which each host has its result as C(ip_masq_agent__applied).
    type: dict
    required: true
  limit:
    description:
      - A share of hosts such as V(10%), a number of open connections of all hosts together, or a list of them.
      - Empty means no limit.
    type: raw
    required: true
notes:
  - Internal. Playbooks and roles of this collection call it; it may change in any release.
"""

RETURN = r"""
_value:
  description:
    - A line for each limit that is exceeded. A host whose effects are not known counts as one with effects, and its
      connections as more than any number; one that is unreachable does not count.
  type: list
  elements: str
  sample: ["40 nodes of 300 have effects, more than 10%"]
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._errors import ConfigError
from ..plugin_utils._fleet_effects import APPLIED, to_confirm


def effects_to_confirm(hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Any], limit: t.Any) -> t.List[str]:
    """See above."""
    if limit in ("", None, []):
        return []
    try:
        answers = {host: hostvars[host].get(APPLIED) for host in hosts if host in hostvars}
        return to_confirm(answers, limit)
    except ConfigError as exc:
        raise AnsibleFilterError(str(exc)) from None


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """Return the filters of this file."""
        return {"effects_to_confirm": effects_to_confirm}
