# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Summarize the IP masquerading of a fleet of nodes."""

from __future__ import annotations

import typing as t

from ansible.utils.unsafe_proxy import wrap_var

from ..plugin_utils import _filters
from ..plugin_utils._fleet import ASKED, advise, judge, not_reached, off
from ..plugin_utils._fleet_html import as_html
from ..plugin_utils._fleet_json_csv import as_csv, as_json
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
    """See the documentation."""
    views = {host: hostvars[host] for host in hosts if host in hostvars}
    answers = {host: view.get(ASKED) for host, view in views.items()}
    advice = advise(answers.values(), playbook)
    nodes = [judge(host, answers[host], view.get(PREFIX + "state"), advice) for host, view in views.items()]
    nodes = name_policies(nodes, {host: view.get("group_names") or () for host, view in views.items()})
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


FilterModule = _filters.plugin(fleet)
