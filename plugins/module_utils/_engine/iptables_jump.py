# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the jump to our chain has its place in POSTROUTING, and which jumps go.

A good jump that packets can reach is left where it is: others keep POSTROUTING in order too, and two programs that
both insist on being first never come to rest. The option jump_position asks for a place. Then no more is moved than has
to be.

Second jumps that directly follow the first one stay as well: they meet the packets that it has let through, unchanged,
and let them through again. A rule in between may change marks, so a jump behind one goes, each time it appears.
"""

from __future__ import annotations

import typing as t

from . import actors
from .backend import Action, ActionKind, OwnedRule
from .iptables_syntax import PostroutingRule, parse_postrouting, render_jump, shown
from .nat_table import TABLE

#: Actions of a plan that makes a new jump.
_NEW = (ActionKind.JUMP_ADDED, ActionKind.JUMP_MOVED, ActionKind.JUMP_REPLACED)

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
    #: in front of a new jump; None if any place will do
    new: t.Optional[int] = None
    note: str = ""


def plan_jump(chain: str, postrouting: _Rules, predecessors: t.Container[str] = (), position: str = "keep") -> JumpPlan:
    """Plan for one good jump that packets reach.

    :param predecessors: chains of earlier agents; the jumps to them go.
    :param position: value of the option jump_position.
    """
    targets = [rule.target if not rule.deletion else "" for rule in postrouting]
    mine = [i for i, target in enumerate(targets) if target == chain or target in predecessors]
    plan = _plan_one(chain, postrouting, mine)
    others = [rule for rule in plan.after if not rule.is_jump(chain)]
    stuck = next((rule.deletion for rule in plan.after if rule.deletion and rule.is_jump(chain)), "")
    place = _place(position, others)
    jump = next(i for i, rule in enumerate(plan.after) if rule.is_jump(chain))
    notes = (place.note,) * bool(place.note)
    new = any(action.kind in _NEW for action in plan.actions)
    if new:
        wanted = jump if place.new is None or stuck else place.new
    else:
        wanted = min(max(jump, place.least), place.most)
    if wanted == jump:
        return plan._replace(notes=notes)
    if stuck:
        note = (
            "jump_position %s is not kept: iptables cannot delete the jump to move it. Delete it: %s; the next run "
            "adds it where it belongs" % (position, stuck)
        )
        return plan._replace(notes=(*notes, note))
    actions = list(plan.actions)
    if not new:
        in_the_way = _owned(others[wanted] if jump > wanted else others[wanted - 1])
        second = [rule for rule in plan.after[jump + 1 :] if rule.is_jump(chain)]
        actions += [Action(_why(chain, rule), shown(rule.line)) for rule in second]
        actions.append(Action(ActionKind.JUMP_POSITIONED, shown(plan.after[jump].line), in_the_way))
    return _put(chain, postrouting, mine, wanted, actions)._replace(notes=notes)


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


def _owned(rule: PostroutingRule) -> OwnedRule:
    owner = actors.owner(TABLE, rule.target)
    if owner is actors.UNKNOWN:
        owner = actors.owner(TABLE, "POSTROUTING", rule.line)
    return OwnedRule(shown(rule.line), owner.name)


def _plan_one(chain: str, postrouting: _Rules, mine: t.Sequence[int]) -> JumpPlan:
    """Plan for one jump, wherever that is, by the indexes of our jumps that can be deleted."""
    rules = list(enumerate(postrouting))
    good = [i for i, rule in rules if rule.is_jump(chain)]
    barrier = next((i for i, rule in rules if rule.shuts_out_the_rest and i not in mine), len(postrouting))
    keep = next((i for i in good if i < barrier), None)
    if keep is None:
        return _replace(chain, postrouting, mine, [i for i in good if i in mine], barrier)
    going = [i for i in mine if i != keep]
    if going == list(range(keep + 1, keep + 1 + len(going))) and set(going) <= set(good):
        return JumpPlan((), (), (), tuple(postrouting))
    actions = [Action(_why(chain, postrouting[i]), shown(postrouting[i].line)) for i in going]
    if any(postrouting[i].line == postrouting[keep].line for i in going):
        # Of several equal rules -D takes the first, so the one that stays is put back where it stood.
        return _put(chain, postrouting, mine, keep - sum(1 for i in going if i < keep), actions)
    after = tuple(rule for i, rule in rules if i not in going)
    return JumpPlan(tuple(actions), tuple(postrouting[i].deleted for i in going), (), after)


def _replace(chain: str, postrouting: _Rules, going: t.Sequence[int], good: t.Sequence[int], barrier: int) -> JumpPlan:
    """Replace all jumps. The new one stands where one stood, or last; never behind a rule that lets nothing pass."""
    actions = []
    mine = [i for i in going if postrouting[i].target == chain]
    for i in going:
        why, cause = _why(chain, postrouting[i]), None
        if i in good[:1]:
            # Only a rule that lets nothing pass makes a good jump go.
            why, cause = ActionKind.JUMP_MOVED, _owned(postrouting[barrier])
        elif i in mine[:1] and not good:
            why = ActionKind.JUMP_REPLACED
        actions.append(Action(why, shown(postrouting[i].line), cause))
    if not mine:
        actions.append(Action(ActionKind.JUMP_ADDED, render_jump(chain)))
    position = min([barrier, *going])
    return _put(chain, postrouting, going, position - sum(1 for i in going if i < position), actions)


def _put(chain: str, postrouting: _Rules, going: t.Sequence[int], place: int, actions: t.Sequence[Action]) -> JumpPlan:
    """Return the plan that deletes rules and puts the jump at a place among the others."""
    after = [rule for i, rule in enumerate(postrouting) if i not in going]
    (jump,) = parse_postrouting([render_jump(chain)])
    insertion = jump.line if place == len(after) else jump.inserted(place + 1)
    after.insert(place, jump)
    return JumpPlan(tuple(actions), tuple(postrouting[i].deleted for i in going), (insertion,), tuple(after))


def _why(chain: str, rule: PostroutingRule) -> ActionKind:
    return ActionKind.DUPLICATE_JUMP_REMOVED if rule.target == chain else ActionKind.EARLIER_JUMP_REMOVED
