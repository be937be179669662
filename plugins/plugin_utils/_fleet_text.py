# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet on the terminal: 30 lines, however many nodes there are."""

from __future__ import annotations

import typing as t

from ._fleet import KUBE_PROXY, Group, Node, by_kind, by_mode, by_reason, by_state, by_trait, matching, named
from ._names import cut, number_of_nodes, some_of, thousands

#: Characters of a line.
WIDTH = 120
#: Lines of a table; two of 30 are left for where the files are, and for what Ansible counts.
LINES = 28
#: Lines about nodes that are not in order, above which a table is shorter.
_PROBLEMS = 10
#: Different notes that are shown: beside a few lines, and above a table.
_NOTES, _NOTES_OF_TABLE = 5, 2
#: What the table has rows for, beside the states.
_TRAITS = (KUBE_PROXY, "agent", "backend", "policy", "verification")
#: How many values of a trait are shown: as many as there is room for.
_VALUES = (6, 5, 4, 3, 2, 1)
#: Characters of the first column of the table.
_FIRST = 44


def summary(nodes: t.Sequence[Node]) -> t.List[str]:
    """Return what the playbook status prints: what is wrong and what differs, in few lines; the counts last."""
    counts, problems = _counts(nodes, named=True), _problems(nodes)
    if len(counts) <= WIDTH and len(problems) <= _PROBLEMS:
        return [*_versions(nodes), *_in_common(nodes, _NOTES), *problems, counts]
    lines = [cut(line, WIDTH) for line in _in_common(nodes, _NOTES_OF_TABLE)]
    return lines + table(nodes, LINES - len(lines))


def table(nodes: t.Sequence[Node], lines: int = LINES) -> t.List[str]:
    """Return the states, worst first, with frequent reasons if there is room; what nodes differ in; the counts.

    :param lines: that there may be, 22 or more.
    """
    groups = by_state(nodes)
    for values in _VALUES:
        differing = [row for trait in _TRAITS for row in _rows(nodes, trait, values)]
        room = lines - 2 - len(groups) - len(differing)
        if room >= (len(groups) if values > 2 else 0):  # reasons count for more than a third value
            break
    states = [(group.value, group.hosts) for group in groups]
    first = max(len(what) for what, _hosts in [("state", []), *states, *differing])

    def text(what: str, hosts: t.Sequence[str]) -> str:
        start = "%-*s  %6s  " % (first, what, thousands(len(hosts)))
        return start + cut(
            "all" if len(hosts) == len(nodes) else some_of(hosts, WIDTH - len(start)), WIDTH - len(start)
        )

    shown = ["%-*s  %6s  hosts" % (first, "state", "nodes")]
    for state, reasons in zip(states, _reasons(groups, room)):
        shown += [text(*state), *reasons]
    return [*shown, *(text(*row) for row in differing), _short_counts(nodes)]


def _rows(nodes: t.Sequence[Node], trait: str, values: int) -> t.Iterator[t.Tuple[str, t.List[str]]]:
    """Return a row for each value of a trait; for the most frequent ones and the rest, if there are more."""
    groups = by_mode(nodes) if trait == KUBE_PROXY else by_trait(nodes, trait)
    shown = groups if len(groups) <= values else groups[: values - 1]
    for group in shown:
        yield cut("%s %s" % (trait, named(trait, group)), _FIRST), group.hosts
    left = groups[len(shown) :]
    if left:
        others = dict.fromkeys(host for group in left for host in group.hosts)
        yield "%s: %s %svalues" % (trait, thousands(len(left)), "other " if shown else ""), list(others)


def _reasons(groups: t.Sequence[Group], room: int) -> t.List[t.List[str]]:
    """Return for each state the lines with its most frequent reasons: one each, then more as far as there is room."""
    found = [by_kind(group.nodes) if group.nodes[0].findings else [] for group in groups]
    fitting = [0] * len(found)
    for wanted in (1, LINES):
        for number, reasons in enumerate(found):
            more = min(wanted, len(reasons), fitting[number] + max(room, 0)) - fitting[number]
            fitting[number] += more
            room -= more
    return [[_reason(reasons, number) for number in range(some)] for reasons, some in zip(found, fitting)]


def _reason(reasons: t.Sequence[Group], number: int) -> str:
    group = reasons[number]
    hosts = "" if len(reasons) == 1 else some_of(group.hosts, WIDTH // 4) + ": "
    return cut("  " + hosts + group.value, WIDTH)


def _problems(nodes: t.Sequence[Node]) -> t.List[str]:
    """Return a line for all nodes that have the same wrong: worst first, most nodes first."""
    groups = [(group.value, same) for group in by_state(nodes) for same in by_reason(group.nodes)]
    return ["%s: %s: %s" % (some_of(same.hosts), state, same.value) for state, same in groups if same.nodes[0].findings]


def _versions(nodes: t.Sequence[Node]) -> t.Iterator[str]:
    """Return what most nodes have, then what fewer have, with their names."""
    spread = [_most_and_fewer(by_trait(nodes, trait)) for trait in ("agent", "backend")]
    if all(spread):
        yield "agent " + "; ".join(spread)
    modes = sorted(by_mode(nodes), key=lambda group: -len(group.nodes))
    if modes:
        yield "%s %s" % (KUBE_PROXY, _most_and_fewer(modes))


def _most_and_fewer(groups: t.Sequence[Group]) -> str:
    return ", ".join(
        group.value + (" (%s)" % some_of(group.hosts) if number else "") for number, group in enumerate(groups)
    )


def _in_common(nodes: t.Sequence[Node], limit: int) -> t.Iterator[str]:
    """Return what the nodes report beside their state: drop-ins, repairs, notes."""
    drop_ins = sorted(by_trait(nodes, "drop-in"), key=lambda group: group.value)
    if drop_ins:
        yield "drop-ins: " + ", ".join("%s (%s)" % (group.value, some_of(group.hosts)) for group in drop_ins)
    repaired = sorted((node for node in nodes if node.repaired), key=lambda node: -node.repaired)
    if repaired:
        most = ", ".join("%s (%d)" % (node.name, node.repaired) for node in repaired[:_NOTES])
        left = len(repaired) - _NOTES
        yield "drift repaired: " + most + (" and %s more" % thousands(left) if left > 0 else "")
    for group in by_trait(nodes, "leaks"):
        yield "leaks: %s (%s)" % (group.value, some_of(group.hosts))
    notes = by_trait(nodes, "note")
    for note in notes[:limit]:
        yield "note: %s (%s)" % (note.value, "all nodes" if len(note.nodes) == len(nodes) else some_of(note.hosts))
    if len(notes) > limit:
        yield "%s more notes: see ip-masq-agent status on the nodes" % thousands(len(notes) - limit)


def _short_counts(nodes: t.Sequence[Node]) -> str:
    """Return the counts of all states, or, if that is too long, of nodes that are in order."""
    counts = _counts(nodes)
    if len(counts) <= WIDTH:
        return counts
    good = matching(nodes)
    return "%s: %s in order, %s not" % (number_of_nodes(len(nodes)), thousands(good), thousands(len(nodes) - good))


def _counts(nodes: t.Sequence[Node], named: bool = False) -> str:
    """Return how many nodes there are of each state, those that are well first, then the worst.

    :param named: with the names of the nodes that are not well.
    """
    groups = sorted(by_state(nodes), key=lambda group: bool(group.nodes[0].findings))
    counts = []
    for group in groups:
        names = " (%s)" % some_of(group.hosts) if named and group.nodes[0].findings else ""
        counts.append("%s %s%s" % (thousands(len(group.nodes)), group.value, names))
    return "%s: %s" % (number_of_nodes(len(nodes)), ", ".join(counts) or "none was queried")
