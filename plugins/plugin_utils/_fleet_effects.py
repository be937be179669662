# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a change means for packets of many nodes: those with the same effects on one line."""

from __future__ import annotations

import json
import typing as t

from ..module_utils._engine.effect_words import MOVED, change, connections
from ._fleet_policies import groups_of, members_of
from ._names import grouped, number_of_nodes, one_line, some_of, thousands
from ._role_variables import PREFIX

#: Where the role keeps what the module returned.
APPLIED = PREFIX + "_applied"
#: So many effects of a node are on its line.
_SHOWN = 5

Returned = t.Mapping[str, t.Any]


def summary(answers: t.Mapping[str, t.Any], groups: t.Mapping[str, t.Sequence[str]]) -> t.List[str]:
    """Return a line for each group of hosts with the same effects, most hosts first, and one for those without.

    :param answers: host -> what the module ip_masq_agent returned of it, if it did.
    :param groups: host -> the groups of the inventory that it is in.
    """
    same = grouped((key_of(answer), host) for host, answer in answers.items())
    unknown, none = same.pop(None, []), same.pop(NOTHING, [])
    members = members_of(groups, answers)
    lines = [
        "%s: %s" % (_named(hosts, members), _effects([answers[host] for host in hosts]))
        for hosts in sorted(same.values(), key=lambda hosts: -len(hosts))
    ]
    if none:
        lines.append("%s: nothing changes for packets" % number_of_nodes(len(none)))
    if unknown:
        lines.append("%s: not known: %s" % (number_of_nodes(len(unknown)), some_of(list(map(one_line, unknown)))))
    return lines


class Key(t.NamedTuple):
    """What hosts with the same effects have in common."""

    effects: str = "[]"
    omitted: int = 0
    moved: bool = False
    #: what rules of other programs undo, and whether the hosts are left as they are for that
    undone: t.Tuple[str, ...] = ()
    refused: bool = False


#: That of hosts without effects.
NOTHING = Key()


def key_of(answer: t.Any) -> t.Optional[Key]:
    """Return what hosts with the same effects have in common; None if a host did not report them."""
    if not isinstance(answer, t.Mapping):
        return None
    failed = bool(answer.get("failed"))
    undone = tuple((answer.get("proposal") or {}).get("undone", ()))
    rules = answer.get("rules")
    # A host that failed for another reason may have changed.
    if (failed and (not undone or answer.get("changed"))) or not isinstance(rules, t.Mapping) or "effects" not in rules:
        return None
    own = ("open_connections", "pods")
    effects = [{key: value for key, value in one.items() if key not in own} for one in rules["effects"]]
    text = json.dumps(effects, sort_keys=True)
    return Key(text, rules["effects_omitted"], MOVED in rules["effects_summary"], undone, failed)


def _effects(answers: t.Sequence[Returned]) -> str:
    """Return the effects that hosts have in common, each with the connections of all of them."""
    same = [answer["rules"] for answer in answers]
    key = t.cast(Key, key_of(answers[0]))
    parts = []
    for place, effect in enumerate(same[0]["effects"][:_SHOWN]):
        counts = [rules["effects"][place]["open_connections"] for rules in same]
        known = [count for count in counts if count is not None]
        part = "%s, %s" % (change(effect), connections(sum(known) if known else None))
        if known and len(known) < len(counts):
            part += " (not counted on %s)" % number_of_nodes(len(counts) - len(known))
        parts.append(part)
    left = len(same[0]["effects"]) - _SHOWN + key.omitted
    parts += ["and %s more" % thousands(left)] if left > 0 else []
    parts += [MOVED] if key.moved else []
    parts += key.undone
    return one_line(("left as before: " if key.refused else "") + "; ".join(parts))


def _named(hosts: t.Sequence[str], members: t.Mapping[str, t.Set[str]]) -> str:
    if len(hosts) == 1:
        return one_line(hosts[0])
    return "%s (%s)" % (groups_of(hosts, members) or some_of(list(map(one_line, hosts))), number_of_nodes(len(hosts)))
