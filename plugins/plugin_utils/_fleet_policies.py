# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policies of a fleet: their options; their names: groups of the inventory, or what differs from most nodes."""

from __future__ import annotations

import typing as t

from ..module_utils._policy.policy import build
from ..module_utils._system.printable import first_of
from ._fleet import Group, Node, by_trait
from ._names import cut, grouped, one_line

#: Groups of a name, entries of a list, characters of what differs.
_GROUPS, _ENTRIES, _DIFFERENCE = 3, 2, 80
#: Groups that every inventory has.
_NO_NAMES = ("all", "ungrouped")
#: Options that are shown at their defaults too, with what an empty list means.
_ALWAYS = {"non_masquerade_cidrs": "none", "source_cidrs": "no limit", "enable_ipv6": "", "exemption": ""}
#: Entries of a list that are shown; report.json has all.
_SHOWN = 100


def name_policies(nodes: t.Sequence[Node], groups: t.Mapping[str, t.Sequence[str]]) -> t.List[Node]:
    """Return the nodes with names for their policies.

    :param groups: host -> the groups that it is in.
    """
    found = by_trait(nodes, "policy")
    reporting = {node.host for group in found for node in group.nodes}
    members = members_of(groups, reporting)
    names: t.Dict[str, str] = {}
    for group in found:
        hosts = {node.host for node in group.nodes}
        name = groups_of(hosts, members) or _difference(found[0], group) or _most(hosts, members, reporting)
        names.update((node.host, "%s (%s)" % (name, group.value) if name else group.value) for node in group.nodes)
    return [node._replace(policy_name=names.get(node.host, "")) for node in nodes]


def option_texts(policy: t.Mapping[str, t.Any]) -> t.Dict[str, str]:
    """Return the options of a policy for people: the ranges, and what is not at its default."""
    default = build({})._asdict()
    return {
        name: _listed(name, _texts(value)) or _ALWAYS.get(name, "none")
        for name, value in policy.items()
        if name in _ALWAYS or _texts(value) != _texts(default.get(name))
    }


def _listed(name: str, entries: t.Sequence[str]) -> str:
    # An entry of a list with an order has commas of its own.
    return first_of(entries, _SHOWN) if name not in ("snat", "rules") else "; ".join(entries)


def _texts(value: t.Any) -> t.List[str]:
    if isinstance(value, (list, tuple)):
        return [one_line(entry) for entry in value]
    return [str(value).lower() if isinstance(value, bool) else one_line(value)]


def members_of(groups: t.Mapping[str, t.Sequence[str]], hosts: t.Iterable[str]) -> t.Dict[str, t.Set[str]]:
    """Return the hosts of each group of the inventory.

    :param groups: host -> the groups that it is in. :param hosts: those that count.
    """
    members = grouped((str(name), host) for host in hosts for name in groups.get(host, ()))
    return {name: set(some) for name, some in members.items()}


def groups_of(hosts: t.Iterable[str], members: t.Mapping[str, t.Set[str]]) -> str:
    """Return the groups of the inventory that are all of these hosts, the largest first; empty if there are none."""
    left = set(hosts)
    names = []
    for name, some in sorted(members.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        if name not in _NO_NAMES and left >= some:
            names.append(one_line(name))
            left -= some
    return ", ".join(names) if not left and len(names) <= _GROUPS else ""


def _most(hosts: t.Set[str], members: t.Mapping[str, t.Set[str]], reporting: t.Set[str]) -> str:
    """Return the smallest group in which these hosts are the majority, but not all; empty if there is none."""
    around = [(len(some), name) for name, some in members.items() if name not in _NO_NAMES and hosts < some]
    size, name = min(around, default=(len(reporting), ""))
    if hosts == reporting or 2 * len(hosts) <= size:
        return ""
    return "most of " + one_line(name) if name else "most nodes"


def _difference(most: Group, other: Group) -> str:
    """Return what a policy has that the most frequent one has not; empty if it is that."""
    parts = []
    for option, ours in other.nodes[0].policy.items():
        theirs = most.nodes[0].policy.get(option)
        if ours == theirs:
            continue
        if isinstance(ours, list) and isinstance(theirs, list):
            for word, entries in (("with", _entries(ours, but=theirs)), ("without", _entries(theirs, but=ours))):
                if entries:
                    parts.append("%s %s" % (word, entries))
        else:
            parts.append("%s %s" % (option, str(ours).lower() if isinstance(ours, bool) else ours))
    return cut(one_line(", ".join(parts)), _DIFFERENCE)


def _entries(listed: t.Sequence[t.Any], but: t.Sequence[t.Any]) -> str:
    return first_of([str(entry) for entry in listed if entry not in but], _ENTRIES)
