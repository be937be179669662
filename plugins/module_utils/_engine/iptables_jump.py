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


def plan_jump(
    chain: str, postrouting: t.Sequence[PostroutingRule], predecessors: t.Container[str] = (), position: str = "keep"
) -> JumpPlan:
    """Plan for one good jump that packets reach.

    :param predecessors: chains of earlier agents; the jumps to them go.
    :param position: value of the option jump_position.
    """
    plan = _plan_one(chain, postrouting, predecessors)
    others = [rule for rule in plan.after if not rule.is_jump(chain)]
    stuck = next((rule.deletion for rule in plan.after if rule.deletion and rule.is_jump(chain)), "")
    place = _place(position, others)
    jump = next(i for i, rule in enumerate(plan.after) if rule.is_jump(chain))
    if place.note:
        plan = plan._replace(notes=(place.note,))
    if any(action.kind in _NEW for action in plan.actions):
        return plan if place.new is None or stuck else _put(chain, plan, others, place.new)
    if place.least <= jump <= place.most:
        return plan
    wanted = place.least if jump < place.least else place.most
    if stuck:
        note = (
            "jump_position %s is not kept: iptables cannot delete the jump to move it. Delete it: %s; the next run "
            "adds it where it belongs" % (position, stuck)
        )
        return plan._replace(notes=plan.notes + (note,))
    in_the_way = _owned(others[wanted] if jump > wanted else others[wanted - 1])
    moved = Action(ActionKind.JUMP_POSITIONED, shown(plan.after[jump].line), in_the_way)
    second = [rule for rule in plan.after[jump + 1 :] if rule.is_jump(chain)]
    mine = [rule for rule in postrouting if rule.target == chain or rule.target in predecessors]
    plan = plan._replace(
        actions=plan.actions + tuple(Action(_why(chain, rule), shown(rule.line)) for rule in second) + (moved,),
        deletions=tuple(rule.deleted for rule in mine if not rule.deletion),
    )
    return _put(chain, plan, others, wanted)


def _place(position: str, others: t.Sequence[PostroutingRule]) -> _Place:
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


def _put(chain: str, plan: JumpPlan, others: t.Sequence[PostroutingRule], place: int) -> JumpPlan:
    """Return the same plan with the jump at a place among the other rules."""
    after = list(others)
    insertion = _insert(chain, after, place)
    return plan._replace(insertions=(insertion,), after=tuple(after))


def _owned(rule: PostroutingRule) -> OwnedRule:
    owner = actors.owner(TABLE, rule.target)
    if owner is actors.UNKNOWN:
        owner = actors.owner(TABLE, "POSTROUTING", rule.line)
    return OwnedRule(shown(rule.line), owner.name)


def _plan_one(chain: str, postrouting: t.Sequence[PostroutingRule], predecessors: t.Container[str]) -> JumpPlan:
    rules = list(enumerate(postrouting))
    good = [i for i, rule in rules if rule.is_jump(chain)]
    going = [i for i, rule in rules if not rule.deletion and (rule.target == chain or rule.target in predecessors)]
    barrier = next((i for i, rule in rules if rule.shuts_out_the_rest and i not in going), len(postrouting))
    keep = next((i for i in good if i < barrier), None)
    if keep is None:
        return _replace(chain, postrouting, going, [i for i in good if i in going], barrier)
    going = [i for i in going if i != keep]
    if going == list(range(keep + 1, keep + 1 + len(going))) and set(going) <= set(good):
        return JumpPlan((), (), (), tuple(postrouting))
    # Of several equal rules -D takes the first, so the one that stays is put back where it stood.
    again = any(postrouting[i].line == postrouting[keep].line for i in going)
    after = [rule for i, rule in rules if i not in going and not (again and i == keep)]
    insertions = [_insert(chain, after, keep - sum(1 for i in going if i < keep))] if again else []
    return JumpPlan(
        tuple(Action(_why(chain, postrouting[i]), shown(postrouting[i].line)) for i in going),
        tuple(rule.deleted for i, rule in rules if i in going or (again and i == keep)),
        tuple(insertions),
        tuple(after),
    )


def _replace(
    chain: str, postrouting: t.Sequence[PostroutingRule], going: t.Sequence[int], good: t.Sequence[int], barrier: int
) -> JumpPlan:
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
    after = [rule for i, rule in enumerate(postrouting) if i not in going]
    position = min([barrier, *going])
    insertion = _insert(chain, after, position - sum(1 for i in going if i < position))
    if not mine:
        actions.append(Action(ActionKind.JUMP_ADDED, render_jump(chain)))
    return JumpPlan(tuple(actions), tuple(postrouting[i].deleted for i in going), (insertion,), tuple(after))


def _insert(chain: str, rules: t.List[PostroutingRule], position: int) -> str:
    """Put the jump into the rules that are left, and return the line that does so."""
    (jump,) = parse_postrouting([render_jump(chain)])
    last = position == len(rules)
    rules.insert(position, jump)
    return jump.line if last else jump.inserted(position + 1)


def _why(chain: str, rule: PostroutingRule) -> ActionKind:
    return ActionKind.DUPLICATE_JUMP_REMOVED if rule.target == chain else ActionKind.EARLIER_JUMP_REMOVED
