# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: effects
short_description: Summarize what a change means for packets of many nodes
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Groups hosts by the effects that M(kubenode.ip_masq.ip_masq_agent) returned of them. The playbook
    C(kubenode.ip_masq.apply) prints the result at its end, in check mode too.
positional: hostvars
options:
  _input:
    description: Names of hosts. One without a result counts as not known; one that is not in the inventory is left out.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variable C(hostvars), in which each host has its result as C(ip_masq_agent__applied).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Apply the policy
  ansible.builtin.import_role:
    name: kubenode.ip_masq.ip_masq_agent

- name: Show what changes for packets
  ansible.builtin.debug:
    msg: "{{ ansible_play_hosts_all | kubenode.ip_masq.effects(hostvars) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - A line for each group of hosts with the same effects, those of most hosts first. Then the number of hosts for
      which nothing changes, and the hosts with unknown effects.
    - A group of hosts is named as in the inventory, if it has a group of these hosts.
  type: list
  elements: str
  sample:
    - "rack_b (40 nodes): 10.20.0.0/16: pod -> node, 812 open connections"
    - "260 nodes: nothing changes for packets"
"""

import typing as t

from ansible.utils.unsafe_proxy import wrap_var

from ..plugin_utils._fleet_effects import APPLIED, summary


def effects(hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Any]) -> t.List[str]:
    """See above."""
    views = {host: hostvars[host] for host in hosts if host in hostvars}
    found = summary(
        {host: view.get(APPLIED) for host, view in views.items()},
        {host: view.get("group_names") or () for host, view in views.items()},
    )
    # It has text of nodes: Ansible must not take that for a template.
    return t.cast(t.List[str], wrap_var(found))


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """Return the filters of this file."""
        return {"effects": effects}
