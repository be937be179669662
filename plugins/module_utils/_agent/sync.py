# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One resync of a node that heals itself: the policy in force, the rules, and what is remembered and told of it.

The timer's agent and the module that installs it both come through here (promise 11).
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
import typing as t

from .._engine import restraint
from .._engine.backend import Counters
from .._engine.detect import Node
from .._engine.iptables_tool import legacy_tables
from .._engine.reconcile import Change, Result, reconcile
from .._engine.ruleset import from_config
from .._errors import NodeError
from .._policy.policy import Config
from .._system import files
from .._system.ip_families import FAMILIES
from .._system.xtables_lock import without_holder
from . import memory as states
from . import metrics, snapshot
from .paths import RUN_DIR, Paths

INTERVAL_FILE = os.path.join(RUN_DIR, "interval")


class Outcome(t.NamedTuple):
    """What one resync did."""

    policy: states.Policy
    result: t.Optional[Result]
    #: lines for the journal: changes, then errors, then notes that were not logged before
    changes: t.Tuple[str, ...]
    errors: t.Tuple[str, ...]
    warnings: t.Tuple[str, ...] = ()
    #: what could not be recorded beside the rules
    unrecorded: t.Tuple[str, ...] = ()


class _Records:
    """The steps beside the rules: what fails there is reported, and keeps nothing else from being done."""

    def __init__(self) -> None:
        self.failed: t.List[str] = []

    @contextlib.contextmanager
    def step(self, consequence: str = "") -> t.Iterator[None]:
        """Do one of them.

        :param consequence: what it means when it fails; it begins the message.
        """
        try:
            yield
        except (NodeError, OSError) as exc:
            self.failed.append("%s%s" % (consequence, exc))


def sync(node: Node, where: Paths) -> Outcome:
    """Bring the node to its policy, and then remember what was done.

    Nothing but the rules can fail this: a full disk or a read-only file system keeps no node from being repaired.
    """
    before = states.load()
    snapshot.discard()
    policy = states.policy_in_force(where.config_dir, before)
    done, errors = _repair(node, policy, before)
    result = done.result if done else None
    changes = tuple(describe(result)) if result else ()
    restrained = tuple(restraint.notes(result)) if result else ()
    after = _remember(before, policy, result, changes, errors, restrained)
    records = _Records()
    if policy.config is not None:
        with records.step("the timer may have another interval: "):
            _announce_interval(policy.config)
    synced = result is not None and not result.errors
    if synced:
        with records.step():
            snapshot.mark_sync()
    if where.metrics_file:
        with records.step("no metrics are written: "):
            _write_metrics(where, policy, result, after, time.time() if synced else snapshot.last_sync())
    elif done is not None and not errors:
        with records.step("each resync starts the agent: "):
            _take_snapshot(node, where, policy, before, done)
    after = after._replace(unrecorded=_same_or_new(before.unrecorded, records.failed))
    if after != before:
        with records.step():
            states.save(after)
    logged = {without_holder(line) for line in before.notes + before.unrecorded + before.restrained}
    told = after.notes + restrained + tuple(records.failed)
    warnings = [line for line in told if without_holder(line) not in logged]
    return Outcome(policy, result, changes, errors, tuple(warnings), tuple(records.failed))


class _Round(t.NamedTuple):
    """One reconcile, and what the node said meanwhile."""

    result: Result
    heard: snapshot.Listener
    #: which legacy tables there were before it
    legacy: t.List[t.List[str]]


def look(node: Node, config: Config, remembered: states.State) -> Result:
    """What a sync would do now; nothing is written.

    :raises NodeError: as of :func:`~.reconcile.reconcile`.
    """
    return reconcile(node, config, check=True, used_before=remembered.backend, withheld=remembered.withheld())


def _reconcile(node: Node, config: Config, remembered: states.State, check: bool = False) -> _Round:
    heard, legacy = snapshot.Listener(node.run), _legacy_tables()
    listened_to = copy.copy(node)
    listened_to.run = heard
    result = reconcile(listened_to, config, check=check, used_before=remembered.backend, withheld=remembered.withheld())
    return _Round(result, heard, legacy)


def _legacy_tables() -> t.List[t.List[str]]:
    return [legacy_tables(family) for family in FAMILIES]


def _repair(node: Node, policy: states.Policy, before: states.State) -> t.Tuple[t.Optional[_Round], t.Tuple[str, ...]]:
    done = None
    errors: t.List[str] = []
    if policy.problem:
        stands_in = "the last good configuration stays in force" if policy.config else "no rule was touched"
        errors.append("%s; %s" % (policy.problem, stands_in))
    if policy.config is not None:
        try:
            done = _reconcile(node, policy.config, before)
            errors += done.result.errors
        except NodeError as exc:
            errors.append(str(exc))
    return done, tuple(errors)


def _take_snapshot(node: Node, where: Paths, policy: states.Policy, before: states.State, last: _Round) -> None:
    """Let the resync script know what this sync has verified, if that is what the files ask for."""
    if policy.config is None or policy.files is None:
        return
    if last.result.changed:
        # What was written has been verified, one family and backend after the other; now all of them at once.
        last = _reconcile(node, policy.config, before._replace(backend=last.result.backend), check=True)
        if last.result.changed or last.result.errors:
            return
    if last.result.not_checked:
        # The next resync looks there again.
        return
    commands = [command for change in managed(last.result) for command in change.via.fingerprint()]

    def is_current() -> bool:
        # An edit made since the files were read must not pass for one that is in force.
        return last.legacy == _legacy_tables() and states.are_as_read(policy.files, where.config_dir)

    snapshot.record(node.run, where.resync, commands, last.heard.heard(commands), is_current)


def _same_or_new(old: t.Tuple[str, ...], new: t.Sequence[str]) -> t.Tuple[str, ...]:
    """The old lines, if the new ones differ in nothing but the processes that they name: these change all the time."""
    same = [without_holder(line) for line in old] == [without_holder(line) for line in new]
    return old if same else tuple(new)


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
    restrained: t.Tuple[str, ...],
) -> states.State:
    now = time.time()
    after = before._replace(failing=bool(errors), backend=result.backend if result else before.backend)
    if result and (before.harmless or changes):
        after = after._replace(harmless=restraint.remember(before.harmless, result, now))
    if restrained or not after.harmless:
        after = after._replace(restrained=restrained)
    if policy.problem is None:
        after = after._replace(values=policy.values, sources=policy.sources)
        if result is not None:
            after = after._replace(notes=_same_or_new(before.notes, policy.notes + result.notes))
    if changes:
        kept = changes[: states.KEPT_ACTIONS]
        if len(changes) > len(kept):
            kept += ("and %d more" % (len(changes) - len(kept)),)
        after = after._replace(last_change=states.Event(now, kept))
        # The policy is what it was, so somebody else changed the rules.
        if after.values == before.values:
            after = after._replace(drift_repaired=before.drift_repaired + 1)
    known = before.last_error.lines if before.failing and before.last_error else ()
    if errors and _same_or_new(known, errors) is not known:
        after = after._replace(last_error=states.Event(now, errors))
        if policy.problem:
            after = after._replace(config_errors=before.config_errors + 1)
    return after


def _write_metrics(
    where: Paths,
    policy: states.Policy,
    result: t.Optional[Result],
    after: states.State,
    last_success: t.Optional[float],
) -> None:
    exempt = {}
    if policy.config is not None:
        for family in FAMILIES if policy.config.enable_ipv6 else FAMILIES[:1]:
            exempt[family] = len(from_config(policy.config, family).exempt)
    sample = metrics.Sample(
        in_sync=result is not None and not result.errors,
        last_success=last_success,
        drift_repaired=after.drift_repaired,
        config_errors=after.config_errors,
        config_broken=policy.problem is not None,
        exempt_cidrs=exempt,
        counters=counters(result) if result is not None else {},
        repairs_withheld=sum(len(change.plan.withheld) for change in result.changes) if result is not None else 0,
    )
    files.write(where.metrics_file, metrics.render(sample).encode("utf-8"), 0o644)
