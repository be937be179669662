# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
import typing as t

from ._fleet import GOOD, TRAITS, Group, Node, by_mode, by_state, by_trait, matching
from ._fleet_policies import option_texts

#: A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
#: Options of the policy that have a column; the others share one.
_OPTIONS = ("non_masquerade_cidrs", "source_cidrs", "exemption", "snat", "rules")
COLUMNS = ("host", "state", "reason", *TRAITS, "verified at", "drift repaired", *_OPTIONS, "other options")


def as_json(nodes: t.Sequence[Node], generated: str) -> str:
    """Return everything, for programs: ASCII, so no text of a node breaks it.

    :param generated: when the nodes were queried.
    """
    data = {
        "generated": generated,
        "nodes": len(nodes),
        "match_policy": matching(nodes),
        "kube_proxy": {group.value: len(group.nodes) for group in by_mode(nodes)},
        "states": [
            {"state": group.value, "match_policy": group.value in GOOD, "hosts": [node.host for node in group.nodes]}
            for group in by_state(nodes)
        ],
        "traits": {
            trait: [
                {"value": group.value, "hosts": [node.host for node in group.nodes]} for group in by_trait(nodes, trait)
            ]
            for trait in TRAITS
        },
        "policies": [_policy_data(group) for group in by_trait(nodes, "policy")],
        "hosts": [_as_data(node) for group in by_state(nodes) for node in group.nodes],
    }
    return json.dumps(data, indent=1) + "\n"


def _policy_data(group: Group) -> t.Dict[str, t.Any]:
    """Return a policy with its options, as an agent that has it reports them."""
    return {
        "policy": group.value,
        "name": group.nodes[0].policy_name or None,
        "backends": [backend.value for backend in by_trait(group.nodes, "backend")],
        "options": group.nodes[0].policy,
        "hosts": [node.host for node in group.nodes],
    }


def _as_data(node: Node) -> t.Dict[str, t.Any]:
    return {
        "host": node.host,
        "state": node.state,
        "findings": [finding._asdict() for finding in node.findings],
        "traits": {trait: list(values) for trait, values in node.traits.items()},
        "policy_name": node.policy_name or None,
        "verified_at": node.verified_at or None,
        "drift_repaired": node.repaired,
    }


def cells(node: Node) -> t.List[str]:
    """Return a node in the order of ``COLUMNS``; several values of a trait in one cell."""
    traits = ["; ".join(node.traits.get(trait, ())) for trait in TRAITS]
    repaired = str(node.repaired) if "agent" in node.traits else ""
    return [node.name, node.state, node.why, *traits, node.verified_at, repaired, *_option_cells(node)]


def _option_cells(node: Node) -> t.List[str]:
    options = option_texts(node.policy)
    named = [options.pop(name, "") for name in _OPTIONS]
    return [*named, "; ".join("%s: %s" % one for one in options.items())]


def as_csv(nodes: t.Sequence[Node]) -> str:
    """Return a row for each node, worst first, for spreadsheets."""
    text = io.StringIO()
    # Ansible writes text files with the line ends of the controller, whatever is in the text.
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in by_state(nodes):
        writer.writerows([_harmless(cell) for cell in cells(node)] for node in group.nodes)
    return text.getvalue()


def _harmless(cell: str) -> str:
    """Return a cell that no spreadsheet computes."""
    return "'" + cell if cell.startswith(_FORMULA) else cell
