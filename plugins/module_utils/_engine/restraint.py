# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits what another program undoes each time: repairs that change nothing for packets, and moves of the jump.

The reference agent, for one, looks for a jump with its own comment and adds a second one beside ours at every tick. A
program that insists on the place that jump_position wants moves its own rule there again and again. What else changes
something for packets is always repaired.
"""

from __future__ import annotations

import os
import typing as t

from .._system import reference_agents
from . import actors
from .backend import Action, ActionKind, Repair
from .iptables_syntax import shown
from .reconcile import Result

#: So many repairs of one kind within so many seconds are made; then it is withheld until the first is that long ago.
MOST = 3
PERIOD = 3600.0

#: How many repairs are remembered.
KEPT = 64


class Done(t.NamedTuple):
    """A repair of these kinds: when (seconds since the epoch), and what."""

    time: float
    repair: Repair


def recent(done: t.Iterable[Done], now: float) -> t.Tuple[Done, ...]:
    """The repairs of the last PERIOD. A clock that was set back does not make one count for longer."""
    return tuple(one for one in done if 0 <= now - one.time < PERIOD)


def withheld(done: t.Iterable[Done], now: float) -> t.FrozenSet[Repair]:
    """The repairs that are withheld."""
    repairs = [one.repair for one in recent(done, now)]
    return frozenset(repair for repair in repairs if repairs.count(repair) >= MOST)


def remember(done: t.Iterable[Done], result: Result, now: float) -> t.Tuple[Done, ...]:
    """The harmless repairs of the last PERIOD, with those of a result."""
    return _remember(done, result, now, lambda action: action.harmless)


def remember_moves(done: t.Iterable[Done], result: Result, now: float) -> t.Tuple[Done, ...]:
    """The moves of the jump to its position in the last PERIOD, with those of a result."""
    return _remember(done, result, now, lambda action: action.kind == ActionKind.JUMP_POSITIONED)


def _remember(
    done: t.Iterable[Done], result: Result, now: float, counts: t.Callable[[Action], bool]
) -> t.Tuple[Done, ...]:
    made = {
        Repair(change.family, change.backend, action.action)
        for change in result.changes
        for action in change.plan.actions
        if counts(action)
    }
    return (recent(done, now) + tuple(Done(now, repair) for repair in sorted(made)))[-KEPT:]


def notes(result: Result) -> t.List[str]:
    """What is withheld, why, and what to do about it."""
    return _left_repairs(result) + _left_moves(result)


def _left_moves(result: Result) -> t.List[str]:
    return [
        "%s, %s: the jump is not moved again to the place that jump_position wants, because it was moved away %d times "
        "within an hour. In its way is a rule of %s: %s. Have that program leave the place, or set jump_position to "
        "keep"
        % (change.family, change.backend, MOST, _program(change.plan.misplaced.program), change.plan.misplaced.rule)
        for change in result.changes
        if change.plan.misplaced
    ]


def _program(name: str) -> str:
    return "an unknown program" if name == actors.UNKNOWN.name else name


def _left_repairs(result: Result) -> t.List[str]:
    left = [
        "%s, %s: not repaired again: %s. It changes nothing for packets, and '%s' was undone %d times within an hour"
        % (change.family, change.backend, action.rule, action.action, MOST)
        for change in result.changes
        for action in change.plan.withheld
    ]
    if not left:
        return []
    agents = other_agents()
    if agents:
        advice = "; the running process '%s' is known to do such things: stop it, or uninstall this agent" % agents[0]
    else:
        advice = "; no running ip-masq-agent was found; the rule's comment may name the program that adds it"
    return [note + advice for note in left]


def other_agents(proc: str = "/proc") -> t.List[str]:
    """Command lines of running reference agents."""
    return [shown(" ".join(words).strip()) for words in reference_agents.running(proc)]


def other_program(proc: str = "/proc") -> str:
    """The name of a running reference agent's program; C(unknown) if none was found."""
    return next((os.path.basename(words[0]) for words in reference_agents.running(proc)), "unknown")
