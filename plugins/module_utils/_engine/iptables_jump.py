# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the jump to our chain has its place in POSTROUTING, and which jumps go.

A good jump that packets can reach is left where it is: others keep POSTROUTING in order too, and two programs that
both insist on being first never come to rest. The option jump_position asks for a place. Then no more is moved than has
to be.

Second jumps that directly follow the first one stay as well: they meet the packets that it has let through, unchanged,
and let them through again. A rule in between may change marks, so a jump behind one goes, each time it appears. Of a
chain that is there to count packets, none stays.
"""

from __future__ import annotations

import bisect
import typing as t

from .._system.printable import shown
from . import rule_owners
from .backend import Action, ActionKind, OwnedRule
from .iptables_syntax import Jump, PostroutingRule, parse_postrouting

_Rules = t.Sequence[PostroutingRule]


class JumpPlan(t.NamedTuple):
    """What becomes of POSTROUTING. Lines are those of a transaction for iptables-restore."""

    actions: t.Tuple[Action, ...]
    deletions: t.Tuple[str, ...]
    insertions: t.Tuple[str, ...]
    after: t.Tuple[PostroutingRule, ...]
    #: what the jump's place depends on and cannot be had
    notes: t.Tuple[str, ...] = ()


class _Place(t.NamedTuple):
    """How many rules of other programs may be in front of the jump, and what to know about that."""

    least: int
    most: int
    #: in front of a new jump; None: anywhere
    new: t.Optional[int] = None
    note: str = ""


def plan_jump(jump: Jump, postrouting: _Rules, earlier: t.Container[str] = (), position: str = "keep") -> JumpPlan:
    """Plan for one good jump that packets reach.

    :param jump: what it is. :param earlier: chains of earlier agents; the jumps to them go.
    :param position: value of the option jump_position.
    """
    rules = list(enumerate(postrouting))
    mine = [i for i, rule in rules if not rule.deletion and (rule.target == jump.chain or rule.target in earlier)]
    good = [i for i, rule in rules if rule.is_jump(jump)]
    barrier = next((i for i, rule in rules if rule.shuts_out_the_rest and i not in mine), len(postrouting))
    keep = next((i for i in good if i < barrier), None)
    others = [i for i, _rule in rules if i not in mine and i not in good]
    place = _Place(0, len(others), 0) if jump.strict else _place(position, [postrouting[i] for i in others])
    notes = (place.note,) * bool(place.note)
    if keep is None:
        # Where one stood, or last; never behind a rule that lets nothing pass.
        at = bisect.bisect_left(others, min([barrier, *mine])) if place.new is None else place.new
        return _put(jump, postrouting, mine, at, _new(jump, postrouting, mine, barrier))._replace(notes=notes)
    there = bisect.bisect_left(others, keep)
    wanted = min(max(there, place.least), place.most)
    stuck = next((postrouting[i].deletion for i in good if i not in mine), "")
    if stuck and wanted != there:
        wanted = there
        note = (
            "jump_position %s is not kept: iptables cannot delete the jump to move it. Delete it: %s; the next run "
            "adds it where it belongs" % (position, stuck)
        )
        notes = (*notes, note)
    going = [i for i in mine if i != keep]
    actions = [Action(_why(jump, postrouting[i]), shown(postrouting[i].line)) for i in going]
    if wanted != there:
        in_the_way = _owned(jump.table, postrouting[others[wanted] if there > wanted else others[wanted - 1]])
        actions.append(Action(ActionKind.JUMP_POSITIONED, shown(postrouting[keep].line), in_the_way))
    elif not jump.strict and set(going) <= set(good) and going == list(range(keep + 1, keep + 1 + len(going))):
        return JumpPlan((), (), (), tuple(postrouting), notes)
    elif all(postrouting[i].line != postrouting[keep].line for i in going):
        after = tuple(rule for i, rule in rules if i not in going)
        return JumpPlan(tuple(actions), tuple(postrouting[i].deleted for i in going), (), after, notes)
    # Of several equal rules -D takes the first, so the one that stays is put back where it stood.
    return _put(jump, postrouting, mine, wanted, actions)._replace(notes=notes)


def _place(position: str, others: _Rules) -> _Place:
    """Return where the jump may be among the rules of other programs: never behind one that shuts out the rest."""
    reach = next((i for i, rule in enumerate(others) if rule.shuts_out_the_rest), len(others))
    kind, _colon, chain = position.partition(":")
    if kind in ("first", "last"):
        end = 0 if kind == "first" else reach
        return _Place(end, end, end)
    there = [i for i, rule in enumerate(others) if rule.target == chain]
    if kind == "keep" or not there:
        note = (
            "jump_position %s has no effect: no rule of POSTROUTING leads to %s; the jump stays where it is, as with "
            "keep" % (position, chain)
        )
        return _Place(0, len(others), note="" if kind == "keep" else note)
    if kind == "before":
        nearest = min(there[0], reach)
        return _Place(0, nearest, nearest)
    if there[-1] < reach:
        return _Place(there[-1] + 1, reach, there[-1] + 1)
    note = "jump_position %s: no packet passes the rule '%s', so the jump is in front of it"
    return _Place(reach, reach, reach, note % (position, shown(others[reach].line)))


def _owned(table: str, rule: PostroutingRule) -> OwnedRule:
    owner = rule_owners.owner(table, rule.target)
    if not owner.known:
        owner = rule_owners.owner(table, "POSTROUTING", rule.line)
    return OwnedRule(shown(rule.line), owner.name)


def _new(jump: Jump, postrouting: _Rules, going: t.Sequence[int], barrier: int) -> t.Iterator[Action]:
    """Return what is done where one jump takes the place of all that go."""
    ours = [i for i in going if postrouting[i].target == jump.chain]
    good = [i for i in ours if postrouting[i].is_jump(jump)]
    replaced = next(iter(good or ours), None)
    for i in going:
        why, cause = _why(jump, postrouting[i]), None
        if i == replaced and good:
            # Only a rule that lets nothing pass makes a good jump go.
            why, cause = ActionKind.JUMP_MOVED, _owned(jump.table, postrouting[barrier])
        elif i == replaced:
            why = ActionKind.JUMP_REPLACED
        yield Action(why, shown(postrouting[i].line), cause)
    if replaced is None:
        yield Action(ActionKind.JUMP_ADDED, jump.line)


def _put(jump: Jump, postrouting: _Rules, going: t.Sequence[int], place: int, actions: t.Iterable[Action]) -> JumpPlan:
    """Return the plan that deletes rules and puts the jump at a place among the others."""
    after = [rule for i, rule in enumerate(postrouting) if i not in going]
    (new,) = parse_postrouting([jump.line])
    insertion = new.line if place == len(after) else new.inserted(place + 1)
    after.insert(place, new)
    return JumpPlan(tuple(actions), tuple(postrouting[i].deleted for i in going), (insertion,), tuple(after))


def _why(jump: Jump, rule: PostroutingRule) -> ActionKind:
    return ActionKind.DUPLICATE_JUMP_REMOVED if rule.target == jump.chain else ActionKind.EARLIER_JUMP_REMOVED
