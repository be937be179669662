# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet as one page of HTML that loads nothing: the rows of report.html.j2, which escapes all text of nodes."""

from __future__ import annotations

import typing as t
from pathlib import Path

import jinja2

from ..module_utils._agent.states import CONFLICTS, NOT_TESTED
from ..module_utils._system.printable import first_of
from ._fleet import GOOD, TRAITS, Group, Node, by_kind, by_mode, by_state, by_trait, matching, named
from ._fleet_policies import option_texts
from ._names import cut, some_of, thousands

#: Characters of a list of hosts, and of a reason in the list of groups.
_HOSTS, _REASON = 240, 400
#: Reasons of one state, and values of one trait, that are listed; the table and the other files have all.
_LISTED = 12
#: States in which nothing is known to be wrong with the rules of a node.
_UNKNOWN = ("unreachable", "not checked", "not installed", "no report")

#: What to read about states.
_STATES_PAGE = "https://github.com/kubenode/ansible-ip-masq/blob/main/docs/operations.md#status-of-a-fleet"

#: Title, number of nodes, and their names in short form.
_Row = t.Tuple[str, str, str]


def as_html(nodes: t.Sequence[Node], generated: str) -> str:
    """Return the page: counts, groups worst first, what nodes differ in, all nodes.

    :param generated: when the nodes were queried.
    """
    groups = by_state(nodes)
    folder = jinja2.FileSystemLoader(str(Path(__file__).parent))
    environment = jinja2.Environment(
        loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["thousands"] = thousands
    environment.globals.update(tone=_tone)
    return environment.get_template("report.html.j2").render(
        title="%s of %s nodes match the policy" % (thousands(matching(nodes)), thousands(len(nodes))),
        states=_STATES_PAGE,
        number=thousands(len(nodes)),
        generated=generated,
        groups=groups,
        modes=[_row(group.value, group.hosts) for group in by_mode(nodes)],
        wrong=[(group.value, _rows("reasons", by_kind(group.nodes))) for group in groups if group.nodes[0].findings],
        policies=_policies(nodes),
        traits=[
            (trait, rows) for trait in TRAITS if trait != "policy" if (rows := _rows("values", by_trait(nodes, trait)))
        ],
    )


def _tone(state: str) -> str:
    """Return how serious a state is, as a class of the style."""
    if state in _UNKNOWN:
        return "unknown"
    if state in (CONFLICTS, NOT_TESTED):
        return "warn"
    return "good" if state in GOOD else "bad"


def _rows(what: str, groups: t.Sequence[Group]) -> t.List[_Row]:
    """Return a row for each group, as many as are listed, and one for the rest."""
    return [_row(group.value, group.hosts) for group in groups[:_LISTED]] + _rest(what, groups)


def _policies(nodes: t.Sequence[Node]) -> t.List[t.Tuple[_Row, t.Dict[str, str]]]:
    """Return the policies of the nodes, each with its options."""
    rows = []
    policies = by_trait(nodes, "policy")
    for policy in policies[:_LISTED]:
        backends = first_of([backend.value for backend in by_trait(policy.nodes, "backend")])
        options = {**option_texts(policy.nodes[0].policy), "backend": backends}
        rows.append((_row(named("policy", policy), policy.hosts), options))
    return rows + [(row, {}) for row in _rest("policies", policies)]


def _rest(what: str, groups: t.Sequence[Group]) -> t.List[_Row]:
    """Return one row for the groups that are not listed, if there are any."""
    left = list(dict.fromkeys(name for group in groups[_LISTED:] for name in group.hosts))
    return [_row("%s other %s" % (thousands(len(groups) - _LISTED), what), left)] if left else []


def _row(title: str, hosts: t.Sequence[str]) -> _Row:
    return cut(title, _REASON), thousands(len(hosts)), cut(some_of(hosts, _HOSTS), 2 * _HOSTS)
