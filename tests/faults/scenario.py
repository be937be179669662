# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is tried, and what comes of it."""

from __future__ import annotations

import time
import typing as t

from .node import ACCURACY, INTERVAL, RUN_LIMIT, Broken, Node

PERIOD = INTERVAL + ACCURACY


class Scenario(t.NamedTuple):
    """One fault."""

    kind: str
    name: str
    fault: t.Callable[[Node], t.ContextManager[object]]
    #: in how many ticks the rules are to be back
    ticks: int = 2
    #: whether they are to be back while the fault is there, or once it is gone
    during: bool = True
    #: whether the policy may be the default one meanwhile
    or_default: bool = False
    #: what else must be so while the fault is there: returns what is not
    check: t.Callable[[Node], str] = lambda _node: ""
    #: the controller of control groups that it needs, which a container may not have
    controller: str = ""


class Outcome(t.NamedTuple):
    """What came of it on a node."""

    kind: str
    name: str
    #: None: it cannot be had here
    good: t.Optional[bool]
    says: str
    details: t.List[str]


def limit(ticks: int) -> float:
    """Return the seconds that a number of ticks may take, with the time limits of one run."""
    return ticks * PERIOD + RUN_LIMIT


def play(node: Node, scenario: Scenario) -> Outcome:
    """Try a scenario, and bring the node back to order where the agent does not."""
    if scenario.controller and scenario.controller not in controllers():
        return Outcome(scenario.kind, scenario.name, None, "no controller %s" % scenario.controller, [])
    problems: t.List[str] = []
    details: t.List[str] = []
    says = ""
    try:
        with scenario.fault(node):
            node.rules.flush()
            if scenario.during:
                says = _healed(node, scenario, problems)
            problems += filter(None, [scenario.check(node)])
            if problems:
                details = node.state()
        lifted = time.monotonic()
    except (OSError, RuntimeError) as exc:
        problems.append("cannot be had: %s" % exc)
        lifted = time.monotonic()
    if not scenario.during and not problems:
        says = _healed(node, scenario, problems)
    wrong = node.disorder(lifted, limit(2))
    if wrong:
        problems.append(wrong + " AFTER IT")
        details = details or node.state()
        node.mend()
    return Outcome(scenario.kind, scenario.name, not problems, ", ".join(problems) or says, details)


def controllers() -> t.List[str]:
    """Return the controllers that systemd has on this node."""
    with open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii") as names:
        return names.read().split()


def _healed(node: Node, scenario: Scenario, problems: t.List[str]) -> str:
    healed, took, ticks = node.heals(limit(scenario.ticks), scenario.or_default)
    if not healed:
        problems.append("NOT HEALED in %.0f s, %d ticks" % (took, ticks))
    return "%.1f s, tick %d" % (took, ticks)


def prepare(node: Node) -> None:
    """Wait for a node in order, and learn its rules."""
    if not node.rules.read():
        raise Broken("there are no rules")
    node.learn()
    node.mend()
