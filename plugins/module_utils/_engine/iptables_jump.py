# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the jump to our chain has its place in POSTROUTING, and which jumps go.

A good jump that packets can reach is left where it is: others keep POSTROUTING in order too, and two programs that
both insist on being first never come to rest.
"""

from __future__ import annotations

import typing as t

from .backend import Action, ActionKind
from .iptables_syntax import PostroutingRule, parse_postrouting, render_jump, shown


class JumpPlan(t.NamedTuple):
    """What becomes of POSTROUTING. Lines are those of a transaction for iptables-restore."""

    actions: t.Tuple[Action, ...]
    deletions: t.Tuple[str, ...]
    insertions: t.Tuple[str, ...]
    after: t.Tuple[PostroutingRule, ...]
    #: harmless actions that the caller withheld
    withheld: t.Tuple[Action, ...] = ()


def plan_jump(
    chain: str,
    postrouting: t.Sequence[PostroutingRule],
    predecessors: t.Container[str] = (),
    withheld: t.Container[ActionKind] = (),
) -> JumpPlan:
    """Plan for one good jump that packets reach.

    :param predecessors: chains of earlier agents; the jumps to them go.
    :param withheld: actions that are not taken where they are harmless.
    """
    rules = list(enumerate(postrouting))
    good = [i for i, rule in rules if rule.is_jump(chain)]
    going = [i for i, rule in rules if not rule.deletion and (rule.target == chain or rule.target in predecessors)]
    barrier = next((i for i, rule in rules if rule.shuts_out_the_rest and i not in going), len(postrouting))
    keep = next((i for i in good if i < barrier), None)
    if keep is None:
        return _replace(chain, postrouting, going, [i for i in good if i in going], barrier)
    going = [i for i in going if i != keep]
    harmless = [i for i in going if i in good]
    # Of several equal rules -D takes the first, so the one that stays is put back where it stood.
    again = any(postrouting[i].line == postrouting[keep].line for i in going if i not in harmless)
    left = harmless if ActionKind.DUPLICATE_JUMP_REMOVED in withheld and not again else []
    going = [i for i in going if i not in left]
    again = any(postrouting[i].line == postrouting[keep].line for i in going)
    after = [rule for i, rule in rules if i not in going and not (again and i == keep)]
    insertions = [_insert(chain, after, keep - sum(1 for i in going if i < keep))] if again else []
    return JumpPlan(
        tuple(Action(_why(chain, postrouting[i]), shown(postrouting[i].line), i in harmless) for i in going),
        tuple(_delete(rule) for i, rule in rules if i in going or (again and i == keep)),
        tuple(insertions),
        tuple(after),
        tuple(Action(ActionKind.DUPLICATE_JUMP_REMOVED, shown(postrouting[i].line), harmless=True) for i in left),
    )


def _replace(
    chain: str, postrouting: t.Sequence[PostroutingRule], going: t.Sequence[int], good: t.Sequence[int], barrier: int
) -> JumpPlan:
    """No jump can stay: the new one stands where one stood, or last; but never behind a rule that lets nothing pass."""
    actions = []
    mine = [i for i in going if postrouting[i].target == chain]
    for i in going:
        why = _why(chain, postrouting[i])
        if i in (good or mine)[:1]:
            why = ActionKind.JUMP_MOVED if good else ActionKind.JUMP_REPLACED
        actions.append(Action(why, shown(postrouting[i].line)))
    after = [rule for i, rule in enumerate(postrouting) if i not in going]
    position = min([barrier, *going])
    insertion = _insert(chain, after, position - sum(1 for i in going if i < position))
    if not mine:
        actions.append(Action(ActionKind.JUMP_ADDED, render_jump(chain)))
    return JumpPlan(tuple(actions), tuple(_delete(postrouting[i]) for i in going), (insertion,), tuple(after))


def _insert(chain: str, rules: t.List[PostroutingRule], position: int) -> str:
    """Put the jump into the rules that are left, and return the line that does so."""
    jump = render_jump(chain)
    last = position == len(rules)
    rules[position:position] = parse_postrouting([jump])
    return jump if last else "-I POSTROUTING %d%s" % (position + 1, jump[len("-A POSTROUTING") :])


def _delete(rule: PostroutingRule) -> str:
    return "-D" + rule.line[2:]


def _why(chain: str, rule: PostroutingRule) -> ActionKind:
    return ActionKind.DUPLICATE_JUMP_REMOVED if rule.target == chain else ActionKind.EARLIER_JUMP_REMOVED
