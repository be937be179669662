# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much is measured, and measuring in turns: what else the machine does then hits all that is compared alike."""

from __future__ import annotations

import sys
import typing as t

from .figures import Sample
from .meter import Cost

#: Seconds that one batch should take; a batch of a quick program has many runs.
_BATCH_SECONDS = 0.15
#: Programs that take longer than this are measured in few rounds.
_SLOW = 0.3


class Plan(t.NamedTuple):
    """What to measure, and how often."""

    sizes: t.Sequence[int]
    backends: t.Sequence[str]
    rounds: int
    batch: int
    others: int
    #: rounds of what takes long: playbooks, programs that read a whole table
    slow_rounds: int


class Costs(t.NamedTuple):
    """Samples of CPU and wall time in seconds."""

    cpu: Sample
    wall: Sample


def say(text: str) -> None:
    """Print progress, apart from the table."""
    print("--- " + text, file=sys.stderr, flush=True)


def in_turns(
    plan: Plan, series: t.Mapping[str, t.Callable[[int], Cost]], batch_seconds: float = _BATCH_SECONDS
) -> t.Dict[str, Costs]:
    """Measure all of ``series`` in each round, in one order and then in the other.

    :param series: functions that run something so often and return what one run cost.
    """
    batches, rounds = {}, {}
    for name, measure in series.items():
        warm = measure(1)
        batches[name] = max(1, min(plan.batch, int(batch_seconds / max(warm.wall, 1e-6))))
        rounds[name] = plan.rounds if warm.wall < _SLOW else min(plan.slow_rounds, plan.rounds)
    found: t.Dict[str, t.List[Cost]] = {name: [] for name in series}
    for number in range(plan.rounds):
        for name in list(series)[:: -1 if number % 2 else 1]:
            if number < rounds[name]:
                found[name].append(series[name](batches[name]))
    return {
        name: Costs(Sample(tuple(cost.cpu for cost in costs), "s"), Sample(tuple(cost.wall for cost in costs), "s"))
        for name, costs in found.items()
    }
