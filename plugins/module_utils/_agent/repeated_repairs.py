# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs that another program undoes: how often they were made, which program it is, and what is logged of them.

Every run repairs. Only the journal is spared: it has what was done the first time, which program undoes it the second
time, and then the number of repairs once an hour.
"""

from __future__ import annotations

import time
import typing as t
import zlib

from .._engine import rule_owners
from .._engine.backend import ActionKind
from .._engine.reconcile import Change, Result
from .._system import other_agents_running
from .._system.backend_names import IPTABLES_LEGACY, VARIANTS
from .._system.printable import first_of, shown
from .._system.process import Runner

#: Seconds for which a repair is remembered. Other places are looked at once an hour only.
PERIOD = 7200.0

#: Seconds between two lines about a repair, from the second one on.
LOGGED_EVERY = 3600.0

#: How many different repairs are remembered.
KEPT = 32

UNKNOWN = rule_owners.UNKNOWN.name

#: Actions that follow if all of ours was removed.
_FLUSHED = (ActionKind.CHAIN_CREATED, ActionKind.TABLE_CREATED)


class Repeated(t.NamedTuple):
    """All that one run repaired in one family of one backend. Times are seconds since the epoch."""

    family: str
    backend: str
    #: the first action, and the number of others
    what: str
    #: of all actions
    checksum: int
    first: float
    last: float
    times: int
    #: when a line about it was logged last
    logged: float
    #: the program that undoes it, or UNKNOWN; empty before the second time
    program: str = ""
    #: what ends that
    advice: str = ""


class Update(t.NamedTuple):
    """What is remembered after a run, and what is logged of it."""

    repairs: t.Tuple[Repeated, ...]
    #: a line for each action of what was not repaired before
    new: t.Tuple[str, ...]
    #: a line for each repair that was made again
    again: t.Tuple[str, ...]


def remember(known: t.Iterable[Repeated], result: Result, now: float, run: Runner) -> Update:
    """Add what a run repaired.

    :param run: to find services that remove rules.
    """
    repairs = list(recent(known, now))
    new: t.List[str] = []
    again: t.List[str] = []
    for change in result.changes:
        actions = list(describe(change))
        if not actions:
            continue
        repair = _repair(change, actions, now)
        before = next((one for one in repairs if one[:4] == repair[:4]), None)
        if before is None:
            new += actions
        else:
            repairs.remove(before)
            repair = before._replace(last=now, times=before.times + 1)
            due = before.times == 1 or not 0 <= now - before.logged < LOGGED_EVERY
            if due or repair.program == UNKNOWN:
                program, advice = _culprit(change, run)
                repair = repair._replace(program=program, advice=advice)
            if due:
                repair = repair._replace(logged=now)
                again.append(_text(repair))
        repairs.append(repair)
    return Update(tuple(repairs[-KEPT:]), tuple(new), tuple(again))


def recent(known: t.Iterable[Repeated], now: float) -> t.Tuple[Repeated, ...]:
    """Return the repairs of the last PERIOD. A clock that was set back does not make one count for longer."""
    return tuple(one for one in known if 0 <= now - one.last < PERIOD)


def undone(known: t.Iterable[Repeated], now: float) -> t.List[Repeated]:
    """Return the repairs of the last PERIOD that were made more than once."""
    return [one for one in recent(known, now) if one.times > 1]


def notes(known: t.Iterable[Repeated], now: float) -> t.List[str]:
    """Say which repairs are undone, by which program, and what to do about it."""
    return [_text(one) for one in undone(known, now)]


def describe(change: Change) -> t.Iterator[str]:
    """Say what was done, a line each."""
    for action in change.plan.actions:
        yield "%s, %s: %s: %s" % (change.family, change.backend, action.action, action.rule)


def _repair(change: Change, actions: t.Sequence[str], now: float) -> Repeated:
    checksum = zlib.crc32("\n".join(actions).encode("utf-8", "surrogateescape"))
    what = first_of(["%s: %s" % (one.action, one.rule) for one in change.plan.actions], 1)
    return Repeated(change.family, change.backend, what, checksum, now, now, 1, now)


def _culprit(change: Change, run: Runner) -> t.Tuple[str, str]:
    """Return the program that undoes a repair, and advice."""
    for action in change.plan.actions:
        if action.cause:
            program, rule = action.cause.program, action.cause.rule
            text = "A rule of %s is in the way: %s. " % (program if program != UNKNOWN else "an unknown program", rule)
            if action.kind == ActionKind.JUMP_POSITIONED:
                return program, text + "Have that program leave the place, or set jump_position to keep"
            return program, text + "No packet passes it: have that program put it behind the jump, or delete it"
    if any(action.kind in _FLUSHED for action in change.plan.actions):
        # Imported here: to load it takes 1 of 70 ms, and most runs repeat no repair.
        from .._engine import rule_flushers

        for flusher in rule_flushers.flushers(run):
            if change.backend in flusher.backends:
                return flusher.unit, "Probably %s: %s. Remedy: %s" % (flusher.unit, *flusher.words())
    elif change.backend in VARIANTS:
        for agent in other_agents_running.running():
            return agent.program, (
                "The process '%s' on this node probably undoes it: remove its DaemonSet (kubectl -n kube-system delete "
                "daemonset ip-masq-agent), or uninstall this agent" % shown(" ".join(agent.words))
            )
    found_by = "records NETFILTER_CFG of auditd show" if change.backend == IPTABLES_LEGACY else "nft monitor shows"
    return UNKNOWN, "It is not known which program undoes it; %s the process of each change" % found_by


def _text(repair: Repeated) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(repair.first))
    return "%s, %s: repaired %d times since %s: %s. %s" % (
        repair.family,
        repair.backend,
        repair.times,
        since,
        repair.what,
        repair.advice,
    )
