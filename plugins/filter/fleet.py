# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
short_description: Summarize the IP masquerading of a fleet of nodes
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Groups what M(kubenode.ip_masq.ip_masq_agent_info) returned on many nodes by what differs. The playbooks
    C(kubenode.ip_masq.status) and C(kubenode.ip_masq.report) print it.
positional: hostvars
options:
  _input:
    description: Names of hosts. One that was not queried counts as C(not checked); one that is unknown is left out.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variable C(hostvars), in which each host has its result as C(ip_masq_agent__asked).
    type: dict
    required: true
  generated:
    description: When the nodes were queried, for the files. Without it RV(_value) has no C(files).
    type: str
"""

EXAMPLES = r"""
- name: Query the node
  kubenode.ip_masq.ip_masq_agent_info:
  register: ip_masq_agent__asked

- name: Show the summary
  ansible.builtin.debug:
    msg: "{{ (ansible_play_hosts_all | kubenode.ip_masq.fleet(hostvars)).lines }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(lines) are what the nodes have in common, a line for each thing that is wrong with the nodes that have it, and
      one with the counts. If that is long, C(table) is in place of it.
    - C(table) are at most 28 lines of at most 120 characters, with a row for each state and for what nodes differ in.
    - C(off) are the names of the nodes that were queried and are not as declared.
    - C(files) are the contents of C(report.json), C(report.csv) and C(report.html), by these names.
  type: dict
"""

import typing as t

from ansible.utils.unsafe_proxy import wrap_var

from ..plugin_utils.fleet import ASKED, judge, off
from ..plugin_utils.fleet_files import as_csv, as_json
from ..plugin_utils.fleet_html import as_html
from ..plugin_utils.fleet_text import summary, table
from ..plugin_utils.role_variables import PREFIX


def fleet(
    hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Any], generated: t.Optional[str] = None
) -> t.Dict[str, t.Any]:
    """See above."""
    views = {host: hostvars[host] for host in hosts if host in hostvars}
    nodes = [judge(host, view.get(ASKED), view.get(PREFIX + "state")) for host, view in views.items()]
    found: t.Dict[str, t.Any] = {"lines": summary(nodes), "table": table(nodes), "off": off(nodes)}
    if generated is not None:
        found["files"] = {
            "report.json": as_json(nodes, generated),
            "report.csv": as_csv(nodes),
            "report.html": as_html(nodes, generated),
        }
    # It has text of nodes: Ansible must not take that for a template when it is used in a loop or a variable.
    return t.cast(t.Dict[str, t.Any], wrap_var(found))


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """The filters of this file."""
        return {"fleet": fleet}
