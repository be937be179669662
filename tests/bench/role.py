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
import json
import os
import subprocess
import typing as t
from pathlib import Path

from . import rules
from .figures import Row, Sample, Target
from .plan import Plan, say

TITLE = "a playbook against one systemd node: the role, and a loop over ansible.builtin.iptables"

_ROOT = Path(__file__).resolve().parents[2]
_PLAYBOOKS = Path(__file__).with_name("playbooks")
_LAB = "bench"
_NODE = "node-bookworm"
#: Numbers of ranges; a loop over more is not to be waited for.
_SIZES = (4, 64)
_TASKS = Target(3)

_ENV = {
    "ANSIBLE_CONFIG": str(_ROOT / "ansible.cfg"),
    "ANSIBLE_HOME": str(_ROOT / ".cache/ansible"),
    "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
    "ANSIBLE_DEPRECATION_WARNINGS": "false",
    "MOLECULE_PROJECT_DIRECTORY": str(_ROOT),  # the inventory of the scenarios serves here too
    "MOLECULE_SCENARIO_NAME": _LAB,
    "PYTHONDONTWRITEBYTECODE": "1",
}


class _Failed(Exception):
    """A program failed; the message has the end of its output."""


class _Play(t.NamedTuple):
    seconds: float
    #: tasks that were not skipped, and calls of modules that they made
    tasks: int
    calls: int
    changed: bool


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part; one that says why where no node can be had."""
    try:
        say("role: booting systemd nodes (the first time, building their images takes a minute or two)")
        _run(str(_ROOT / "tools/nodes"), "up", _LAB)
        for size in _SIZES:
            yield from _of_size(plan, size)
    except _Failed as exc:
        yield Row("playbooks", note="not measured: %s" % exc)
    finally:
        subprocess.run([str(_ROOT / "tools/nodes"), "down", _LAB], check=False, stdout=subprocess.DEVNULL)


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
    out = _run(
        str(_ROOT / "tools/with-cgroup2"),
        str(_ROOT / ".venv/bin/ansible-playbook"),
        "--inventory",
        str(_ROOT / "molecule/shared/inventory.yml"),
        "--limit",
        _NODE,
        "--extra-vars",
        json.dumps({"bench_cidrs": rules.cidrs(size)}),
        str(_PLAYBOOKS / (name + ".yml")),
    )
    told = json.loads(out[out.index("{") :])
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


def _run(*argv: str) -> str:
    env = dict(os.environ, **_ENV, PATH=str(_ROOT / ".venv/bin") + ":" + os.environ["PATH"])
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _Failed(" ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]) or "no output")
    return done.stdout
