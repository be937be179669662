# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One resync of a node that heals itself: the policy in force, the rules, and what is remembered and told of it.

The timer's agent and the module that installs it both come through here (promise 11).
"""

from __future__ import annotations

import contextlib
import os
import time
import typing as t

from . import files, metrics, snapshot
from . import state as states
from .config import Config
from .errors import NodeError
from .layout import RUN_DIR, Layout
from .node import Node
from .plan import Counters
from .reconcile import Change, Result, reconcile
from .ruleset import FAMILIES, from_config

INTERVAL_FILE = os.path.join(RUN_DIR, "interval")
#: Why metrics could not be written the last time; not there while they can.
METRICS_PROBLEM = os.path.join(RUN_DIR, "metrics-problem")


class Outcome(t.NamedTuple):
    """What one resync did."""

    policy: states.Policy
    result: t.Optional[Result]
    #: lines for the journal: changes, then errors, then problems that do not affect the rules and are new
    changes: t.Tuple[str, ...]
    errors: t.Tuple[str, ...]
    warnings: t.Tuple[str, ...] = ()


def sync(node: Node, where: Layout) -> Outcome:
    """Bring the node to its policy, and remember what was done.

    :raises NodeError: nothing could be done at all; it is remembered too.
    """
    before = states.load()
    snapshot.discard()
    policy = states.policy_in_force(where.config_dir, before)
    result = None
    errors: t.List[str] = []
    if policy.problem:
        stands_in = "the last good configuration stays in force" if policy.config else "no rule was touched"
        errors.append("%s; %s" % (policy.problem, stands_in))
    if policy.config is not None:
        _announce_interval(policy.config)
        try:
            result = reconcile(node, policy.config, used_before=before.backend)
            errors += result.errors
        except NodeError as exc:
            errors.append(str(exc))
    changes = tuple(describe(result)) if result else ()
    _remember(before, policy, result, changes, tuple(errors))
    if result is not None and not result.errors:
        snapshot.mark_sync()
    warnings: t.Tuple[str, ...] = ()
    if where.metrics_file:
        warnings = _write_metrics(where, policy, result)
    elif result is not None and not errors and policy.config is not None:
        commands = [command for change in managed(result) for command in change.via.fingerprint()]
        snapshot.record(node.run, where.resync, commands, lambda: _is_settled(node, where, policy))
    return Outcome(policy, result, changes, tuple(errors), warnings)


def _is_settled(node: Node, where: Layout, policy: states.Policy) -> bool:
    """Whether the files and the kernel, asked again, are what this sync made of them.

    The files too: an edit made since they were read must not pass for one that is in force.
    """
    remembered = states.load()
    if policy.config is None or remembered.failing or states.policy_in_force(where.config_dir, remembered) != policy:
        return False
    result = reconcile(node, policy.config, check=True, used_before=remembered.backend)
    return not result.errors and not result.changed


def managed(result: Result) -> t.List[Change]:
    """The changes that are about the rules in force, not about what was left over elsewhere."""
    return [change for change in result.changes if change.backend == result.backend and change.plan.view.rules]


def describe(result: Result) -> t.Iterator[str]:
    """What was done, a line each."""
    for change in result.changes:
        for action in change.plan.actions:
            yield "%s, %s: %s: %s" % (change.family, change.backend, action.action, action.rule)


def counters(result: Result, planned: bool = False) -> t.Dict[str, Counters]:
    """What our rules have counted, by family.

    :param planned: nothing was written; rules that are not there are not asked, which would make a legacy table.
    :raises NodeError: they cannot be read.
    """
    return {
        change.family: change.via.counters() for change in managed(result) if change.plan.found.rules or not planned
    }


def _announce_interval(config: Config) -> None:
    """Say what the timer should be set to; a unit outside of the sandbox watches this file."""
    text = b"%d\n" % config.resync_interval
    files.make_directory(RUN_DIR, 0o700)
    if files.read(INTERVAL_FILE) != text:
        files.write(INTERVAL_FILE, text)


def _remember(
    before: states.State,
    policy: states.Policy,
    result: t.Optional[Result],
    changes: t.Tuple[str, ...],
    errors: t.Tuple[str, ...],
) -> None:
    now = time.time()
    after = before._replace(failing=bool(errors), backend=result.backend if result else before.backend)
    if policy.problem is None:
        after = after._replace(values=policy.values, sources=policy.sources)
    if changes:
        kept = changes[: states.KEPT_ACTIONS]
        if len(changes) > len(kept):
            kept += ("and %d more" % (len(changes) - len(kept)),)
        after = after._replace(last_change=states.Event(now, kept))
        # The policy is what it was, so somebody else changed the rules.
        if after.values == before.values:
            after = after._replace(drift_repaired=before.drift_repaired + 1)
    if errors and not (before.failing and before.last_error and before.last_error.lines == errors):
        after = after._replace(last_error=states.Event(now, errors))
        if policy.problem:
            after = after._replace(config_errors=before.config_errors + 1)
    if after != before:
        states.save(after)


def _write_metrics(where: Layout, policy: states.Policy, result: t.Optional[Result]) -> t.Tuple[str, ...]:
    """Write the metrics file.

    :returns: why it could not be written, if that is new.
    """
    problem = ""
    try:
        files.write(where.metrics_file, _render_metrics(policy, result), 0o644)
    except NodeError as exc:
        problem = "no metrics are written: %s" % exc
    with contextlib.suppress(NodeError):
        if problem == (files.read(METRICS_PROBLEM) or b"").decode("utf-8", "replace"):
            return ()
        if problem:
            files.write(METRICS_PROBLEM, problem.encode("utf-8"))
        else:
            files.remove(METRICS_PROBLEM)
    return (problem,) if problem else ()


def _render_metrics(policy: states.Policy, result: t.Optional[Result]) -> bytes:
    remembered = states.load()
    exempt = {}
    if policy.config is not None:
        for family in FAMILIES if policy.config.enable_ipv6 else FAMILIES[:1]:
            exempt[family] = len(from_config(policy.config, family).exempt)
    sample = metrics.Sample(
        in_sync=result is not None and not result.errors,
        last_success=snapshot.last_sync(),
        drift_repaired=remembered.drift_repaired,
        config_errors=remembered.config_errors,
        config_broken=policy.problem is not None,
        exempt_cidrs=exempt,
        counters=counters(result) if result is not None else {},
    )
    return metrics.render(sample).encode("utf-8")
