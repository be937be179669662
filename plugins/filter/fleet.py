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
  playbook:
    description:
      - The playbook that applies the policy of this run, if it is known. Advice for nodes without an agent names it.
    type: str
    default: ''
  unreached:
    description: Nodes of the cluster that no play of this run is for. They count as C(not checked).
    type: list
    elements: str
    default: []
  tolerate_conflicts:
    description: Whether nodes whose last verification found conflicts are left out of C(off), unless more is wrong.
    type: bool
    default: false
  generated:
    description: When the nodes were queried, for the files. Without it RV(_value) has no C(files).
    type: str
notes:
  - Internal. Playbooks and roles of this collection call it; it may change in any release.
"""

RETURN = r"""
_value:
  description:
    - C(lines) are what the nodes have in common, a line for each thing that is wrong with the nodes that have it, and
      one with the counts. If that is long, C(table) is in place of it.
    - C(table) are at most 28 lines of at most 120 characters, with a row for each state and for what nodes differ in.
    - C(off) are the names of the nodes that were queried and are not in order, C(reasons) what is wrong with each of
      them, by name. C(shown_by) are the same names, or one of a node that was queried if there are none.
    - C(files) are the contents of C(report.json), C(report.csv) and C(report.html), by these names.
  type: dict
"""

import typing as t

from ansible.utils.unsafe_proxy import wrap_var

from ..plugin_utils._fleet import ASKED, advise, judge, not_reached, off, reported_policy
from ..plugin_utils._fleet_files import as_csv, as_json
from ..plugin_utils._fleet_html import as_html
from ..plugin_utils._fleet_policies import name_policies
from ..plugin_utils._fleet_text import summary, table
from ..plugin_utils._role_variables import PREFIX


def fleet(
    hosts: t.Sequence[str],
    hostvars: t.Mapping[str, t.Any],
    generated: t.Optional[str] = None,
    playbook: str = "",
    unreached: t.Sequence[str] = (),
    tolerate_conflicts: bool = False,
) -> t.Dict[str, t.Any]:
    """See above."""
    views = {host: hostvars[host] for host in hosts if host in hostvars}
    answers = {host: view.get(ASKED) for host, view in views.items()}
    advice = advise(answers.values(), playbook)
    nodes = [judge(host, answers[host], view.get(PREFIX + "state"), advice) for host, view in views.items()]
    policies = {host: reported_policy(asked) for host, asked in answers.items()}
    nodes = name_policies(nodes, {host: view.get("group_names") or () for host, view in views.items()}, policies)
    nodes = [*nodes, *(not_reached(host) for host in unreached if host not in views)]
    wrong = off(nodes, tolerate_conflicts)
    found: t.Dict[str, t.Any] = {
        "lines": summary(nodes),
        "table": table(nodes),
        "off": wrong,
        # Tasks that run once need a node.
        "shown_by": wrong or [node.host for node in nodes if node.queried][:1],
        "reasons": {node.host: node.line for node in nodes if node.host in set(wrong)},
    }
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
        """Return the filters of this file."""
        return {"fleet": fleet}
