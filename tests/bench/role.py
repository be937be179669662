# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a playbook costs that uses the role, and one that loops over ansible.builtin.iptables, on a systemd node.

Debian 12, connection over podman, no facts gathered. Seconds are those of the play. The peer has
the chain, the jump and each rule; it has no --random-fully or --dst-type, adds rules to a chain in use, and never
removes a range.
"""

from __future__ import annotations

import datetime
import typing as t

from . import lab, rules
from .figures import Row, Sample, Target
from .plan import Plan, say

TITLE = "a playbook against one systemd node: the role, and a loop over ansible.builtin.iptables"

_NODE = "node-bookworm"
#: Numbers of ranges; a loop over more is not to be waited for.
_SIZES = (4, 64)
_TASKS = Target(3)


class _Play(t.NamedTuple):
    seconds: float
    #: tasks that were not skipped, and calls of modules that they made
    tasks: int
    calls: int
    changed: bool


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part; one that says why where no node can be had."""
    try:
        with lab.booted("role"):
            for size in _SIZES:
                yield from _of_size(plan, size)
    except lab.NodeError as exc:
        yield Row("playbooks", note="not measured: %s" % exc)


def _of_size(plan: Plan, size: int) -> t.Iterator[Row]:
    found: t.Dict[str, t.List[_Play]] = {"role first": [], "role later": [], "loop first": [], "loop later": []}
    for number in range(plan.slow_rounds):
        for which in ("role", "loop")[:: -1 if number % 2 else 1]:
            say("role: %d CIDRs, %s, round %d of %d" % (size, which, number + 1, plan.slow_rounds))
            _play("clean", size)
            found[which + " first"].append(_play(which, size))
            found[which + " later"].append(_play(which, size))
    for run in ("first", "later"):
        ours, its = found["role " + run], found["loop " + run]
        name = "%d CIDRs, %s run: " % (size, run)
        yield Row(name + "seconds", _sample(ours, "seconds", "s"), "loop", _sample(its, "seconds", "s"))
        target = _TASKS if run == "later" else None
        yield Row(name + "tasks", _sample(ours, "tasks", "tasks"), "loop", _sample(its, "tasks", "tasks"), target)
        yield Row(name + "module calls", _sample(ours, "calls", "calls"), "loop", _sample(its, "calls", "calls"))
    if any(play.changed for play in found["role later"]):
        yield Row("%d CIDRs, later run" % size, note="the role changed something again")


def _sample(plays: t.Sequence[_Play], field: str, unit: str) -> Sample:
    return Sample(tuple(float(getattr(play, field)) for play in plays), unit)


def _play(name: str, size: int) -> _Play:
    told = lab.play(name, [_NODE], bench_cidrs=rules.cidrs(size))
    (play,) = told["plays"]
    results = [result for task in play["tasks"] for result in task["hosts"].values() if not result.get("skipped")]
    # What only the controller does costs next to nothing.
    remote = [result for result in results if not str(result.get("action", "")).startswith("include_")]
    calls = sum(len(result["results"]) if "results" in result else 1 for result in remote)
    return _Play(play_seconds(play["play"]["duration"]), len(remote), calls, told["stats"][_NODE]["changed"] > 0)


def play_seconds(duration: t.Mapping[str, str]) -> float:
    """Return how long a play took, as the callback ansible.posix.json says it."""
    start, end = (datetime.datetime.fromisoformat(duration[edge].rstrip("Z")) for edge in ("start", "end"))
    return (end - start).total_seconds()
