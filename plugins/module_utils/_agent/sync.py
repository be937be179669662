# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One resync of a node: the effective policy, the rules, and what is remembered and reported about them.

The agent and the module that installs it use the same functions.
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
import typing as t

from .._engine.backend_choice import installed_programs
from .._engine.reconcile import Result, reconcile
from .._engine.ruleset import IGNORE
from .._errors import NodeError
from .._policy.policy import Config
from .._policy.snat_and_rules import addresses
from .._policy.values import AUTO_PORTS
from .._system import xtables_lock
from .._system.backend_names import IPTABLES_LEGACY
from .._system.families import FAMILIES
from .._system.iptables_tool import legacy_tables, load_legacy
from .._system.limited import limited
from .._system.local_ports import RANGE, RESERVED, LocalPorts, read_local_ports
from .._system.node import Node
from .._system.xtables_lock import without_holder
from . import held_locks, live_metrics, repeated_repairs, snapshot
from .effective_policy import EffectivePolicy, are_unchanged, find_policy_within
from .paths import METRICS_NAME, Paths
from .state_files import (
    KEPT_ACTIONS,
    PATIENCE,
    Event,
    Memory,
    read_memory,
    read_verification,
    with_last,
    write_memory,
)

#: Seconds to take a snapshot, for which programs are run.
_SNAPSHOT_PATIENCE = 15.0

#: Prints what to_ports: auto depends on.
_LOCAL_PORTS = ("cat", RANGE, RESERVED)


class SyncResult(t.NamedTuple):
    """What one resync did."""

    policy: EffectivePolicy
    result: t.Optional[Result]
    #: lines for the journal: changes that were not made before, errors, and warnings that were not logged before
    changes: t.Tuple[str, ...]
    errors: t.Tuple[str, ...]
    warnings: t.Tuple[str, ...] = ()
    #: what could not be recorded beside the rules
    unrecorded: t.Tuple[str, ...] = ()


def sync(
    node: Node, paths: Paths, set_timer: t.Optional[t.Callable[[int], t.Any]] = None, unless_new: bool = False
) -> SyncResult:
    """Bring the rules of the node in sync with its policy, and record what was done.

    The rules come first, and only they can make it fail. What is read before them, and what is recorded after them, has
    a time limit: a full, read-only, broken or silent file system does not prevent repairs.

    :param set_timer: gives the timer an interval (nanoseconds), if it does not have it.
    :param unless_new: do nothing where there has never been a policy: an image may contain the agent before there is.
    """
    before = read_memory(paths)
    policy = find_policy_within(paths, before)
    if unless_new and policy.is_default and before.values is None:
        return SyncResult(policy, None, (), ())
    return _Resync(node, paths, before, policy).carry_out(set_timer)


def dry_run(node: Node, paths: Paths, config: Config, remembered: Memory, effects: bool = False) -> Result:
    """Return what a sync would do now. Nothing is written.

    :param effects: whether to report what that means for packets and open connections, which may take seconds.
    :raises NodeError: as of ``reconcile.reconcile``.
    """
    if not effects:
        config = config._replace(flush_conntrack="none")
    used_before, lock_path = remembered.backend, paths.run_lock
    return reconcile(node, config, check=True, used_before=used_before, lock_path=lock_path, effects=effects)


class _Round(t.NamedTuple):
    """One reconcile, and what the node looked like before it."""

    result: Result
    recorded: snapshot.RecordingRunner
    seen: t.Tuple[t.Any, ...]


def _seen() -> t.Tuple[t.Any, ...]:
    """Return what the rules depend on besides the policy and the node's firewall: the legacy tables that exist, where
    the programs are, and the local ports; None for these if they cannot be read.
    """
    ports: t.Optional[LocalPorts] = None
    with contextlib.suppress(NodeError):
        ports = read_local_ports()
    return [legacy_tables(family) for family in FAMILIES], installed_programs(), ports


class _Resync:
    """The rules, then steps that do not concern them: a failure of one is reported, and does not prevent the next."""

    def __init__(self, node: Node, paths: Paths, before: Memory, policy: EffectivePolicy) -> None:
        self._node = node
        self._paths = paths
        self._before = before
        self._policy = policy
        self._done: t.Optional[_Round] = None
        self._errors: t.Tuple[str, ...] = ()
        #: what could not be recorded
        self._failed: t.Tuple[str, ...] = ()

    @property
    def _result(self) -> t.Optional[Result]:
        """What was done with the rules, unless they could not be looked at."""
        return self._done.result if self._done else None

    @contextlib.contextmanager
    def _step(self, consequence: str = "") -> t.Iterator[None]:
        """Do one of the steps.

        :param consequence: of a failure; the message begins with it.
        """
        try:
            yield
        except (NodeError, OSError) as exc:
            self._failed = with_last(self._failed, "%s%s" % (consequence, exc))

    def carry_out(self, set_timer: t.Optional[t.Callable[[int], t.Any]]) -> SyncResult:
        """See ``sync``."""
        before, run_dir = self._before, self._paths.run_dir
        self._repair()
        policy, result = self._policy, self._result
        # What an edit of the policy changes is no repair.
        known = before.repairs if policy.problem or policy.values == before.values else ()
        repaired = repeated_repairs.remember(known, result, time.time(), self._node.run) if result else None
        after = self._update(repaired)
        if policy.config is not None and set_timer is not None:
            with self._step("the timer keeps its previous interval: "):
                set_timer(policy.config.resync_interval)
        last_success = self._mark_sync(result is not None and not result.errors)
        self._remember(before, after)
        metrics = self._write_metrics(after, last_success) if self._paths.metrics_file else None
        with self._step("each resync starts the agent: "):
            limited(lambda: snapshot.discard(self._paths), PATIENCE, "write to %s" % run_dir)
            if self._done is not None and not self._errors:
                self._take_snapshot(self._done, metrics)
        self._remember(after, after._replace(unrecorded=_same_or_new(before.unrecorded, self._failed)))
        logged = {without_holder(line) for line in before.notes + before.unrecorded}
        warnings = [line for line in after.notes + self._failed if without_holder(line) not in logged]
        if policy.config is not None and policy.problem is None and policy.values != before.values:
            # Imported here: to load it takes 30 ms, and most resyncs have the policy of the one before.
            from .._verify.words import concerned, health

            with self._step():
                warnings += concerned.notes(policy.config, (health.WARNING,))
        changes: t.Tuple[str, ...] = ()
        if result and repaired and (repaired.new or repaired.again or result.moved):
            changes = tuple(filter(None, [result.moved])) + repaired.new + tuple(_flushed(result))
            warnings += repaired.again
        return SyncResult(policy, result, changes, self._errors, tuple(warnings), self._failed)

    def _remember(self, before: Memory, after: Memory) -> None:
        """Write the state file, if something in it has changed."""
        if after != before:
            with self._step():
                write_memory(self._paths, after)

    def _mark_sync(self, succeeded: bool) -> t.Optional[float]:
        """Record a success, and return the time of the last one (seconds since the epoch)."""
        act = snapshot.mark_sync if succeeded else snapshot.last_sync
        with self._step():
            found = limited(lambda: act(self._paths), PATIENCE, "use %s" % self._paths.run_dir)
            return t.cast(t.Optional[float], found)
        return time.time() if succeeded else None

    def _repair(self) -> None:
        """Repair the rules."""
        policy, config, errors = self._policy, self._policy.config, []
        if policy.problem:
            consequence = "the last valid configuration stays active" if config else "rules left unchanged"
            errors.append("%s; %s" % (policy.problem, consequence))
        if config is not None:
            passed = held_locks.passed_over(self._before.held)
            notes = [xtables_lock.prepare(self._node.run), *passed.values()]
            if xtables_lock.lock_file() in passed:
                xtables_lock.use_own()
            self._policy = policy._replace(notes=policy.notes + tuple(filter(None, notes)))
            if IPTABLES_LEGACY in (self._before.backend, config.backend):
                load_legacy(self._node.run)
            locked = self._paths.run_lock not in passed and _answers(self._paths.run_lock)
            try:
                self._done = self._reconcile(config, self._before.backend, locked=locked)
                errors += self._done.result.errors
            except NodeError as exc:
                errors.append(str(exc))
        self._errors = tuple(errors)

    def _reconcile(
        self, config: Config, used_before: t.Optional[str], check: bool = False, locked: bool = True
    ) -> _Round:
        recorded, seen = snapshot.RecordingRunner(self._node.run), _seen()
        node = copy.copy(self._node)
        node.run = recorded
        lock_path = self._paths.run_lock if locked else None
        return _Round(
            reconcile(node, config, check=check, used_before=used_before, lock_path=lock_path), recorded, seen
        )

    def _take_snapshot(self, last: _Round, metrics: t.Optional[snapshot.Metrics]) -> None:
        """Record for the resync script what this sync has verified, if that is what the files ask for."""
        paths, config, sources = self._paths, self._policy.config, self._policy.files
        if config is None or sources is None or (paths.metrics_file and metrics is None):
            return
        if addresses(config) or (paths.metrics_file and config.port_metrics):
            # A snapshot covers neither addresses of the node nor the use of ports.
            return
        if last.result.changed:
            # Each family and backend was verified after it was written; this verifies all of them at the same time.
            last = self._reconcile(config, last.result.backend, check=True)
            if last.result.changed or last.result.errors:
                return
        if last.result.not_checked:
            # The next resync tries again.
            return
        managed = last.result.managed
        commands: t.List[t.Sequence[str]] = [command for change in managed for command in change.via.fingerprint()]
        if config.to_ports == AUTO_PORTS:
            last.recorded(_LOCAL_PORTS)
            commands.append(_LOCAL_PORTS)

        def is_current() -> bool:
            # An edit made after the files were read is not in effect yet.
            return last.seen == _seen() and are_unchanged(sources, paths)

        output = last.recorded.output_of(commands)
        limited(
            lambda: snapshot.take(self._node.run, paths, commands, output, is_current, metrics),
            _SNAPSHOT_PATIENCE,
            "write to %s" % paths.run_dir,
        )

    def _update(self, repaired: t.Optional[repeated_repairs.Update]) -> Memory:
        """Return what is remembered after the run."""
        before, policy, result, errors, now = self._before, self._policy, self._result, self._errors, time.time()
        held = held_locks.after_resync(self._paths, before.held, errors)
        after = before._replace(failing=bool(errors), held=held, backend=result.backend if result else before.backend)
        if repaired is not None:
            after = after._replace(repairs=repaired.repairs)
        if policy.problem is None:
            after = after._replace(values=policy.values, sources=policy.sources)
            if result is not None:
                after = after._replace(notes=_same_or_new(before.notes, policy.notes + result.notes))
        same_policy = after.values == before.values
        if not same_policy:
            after = after._replace(repairs=(), previous=before.values)
        changes = tuple(describe(result)) if result else ()
        if result and changes:
            kept = changes[:KEPT_ACTIONS]
            if len(changes) > len(kept):
                kept += ("and %d more" % (len(changes) - len(kept)),)
            after = after._replace(
                flushed=before.flushed + sum(done.removed for done in result.flushed),
                last_change=Event(now, kept),
                # Neither the policy nor the backend has changed, so another program changed the rules.
                drift_repaired=before.drift_repaired + (same_policy and not result.moved),
            )
        known = before.last_error.lines if before.failing and before.last_error else ()
        if errors and _same_or_new(known, errors) is not known:
            broken = before.config_errors + bool(policy.problem)
            after = after._replace(last_error=Event(now, errors), config_errors=broken)
        return after

    def _write_metrics(self, after: Memory, last_success: t.Optional[float]) -> t.Optional[snapshot.Metrics]:
        """Write the metrics, and return what a resync without work needs for the next ones; None if that failed."""
        config, result, share = self._policy.config, self._result, None
        with self._step("source ports not counted: "):
            share = self._port_share()
        with self._step("metrics not written: "):
            counted = result.counted() if result is not None else {}
            action = config.leaks if config else IGNORE
            listings = [(family, action, one) for family, found in counted.items() for one in found]
            text = self._metrics_text(after, last_success, share, listings)
            live_metrics.write(self._paths.metrics_dir, METRICS_NAME, text)
            return snapshot.Metrics(text, listings)
        return None

    def _port_share(self) -> t.Optional[float]:
        config, result = self._policy.config, self._result
        if config is None or not config.port_metrics or result is None:
            return None
        # Imported here: to load them takes 3 of 70 ms, and most nodes do not need them.
        from .._engine.port_usage import active_rules
        from .ports import highest_share

        return highest_share(self._paths, config.port_metrics, active_rules(result, written=True))

    def _metrics_text(
        self, after: Memory, last_success: t.Optional[float], share: t.Optional[float], listings: snapshot.Listings
    ) -> str:
        # Imported here: to load them takes 2 of 70 ms, and not every agent writes metrics.
        from .._system import conntrack
        from . import metrics

        result = self._result
        sample = metrics.Sample(
            in_sync=result is not None and not result.errors,
            last_success=last_success,
            memory=after,
            config=self._policy.config,
            config_broken=self._policy.problem is not None,
            listings=listings,
            verification=read_verification(self._paths),
            connections=conntrack.statistics(),
            missing_addresses=len(result.missing) if result is not None else 0,
            port_share=share,
        )
        return metrics.metrics_text(sample)


def _answers(path: str) -> bool:
    """Return whether the file system of a path answers, also if it answers with an error."""
    with contextlib.suppress(NodeError):
        return t.cast(bool, limited(lambda: os.path.isdir(path) or True, PATIENCE, "use %s" % path))
    return False


def _same_or_new(old: t.Tuple[str, ...], new: t.Tuple[str, ...]) -> t.Tuple[str, ...]:
    """Return the old lines if the new ones only name other processes: these change all the time."""
    same = [without_holder(line) for line in old] == [without_holder(line) for line in new]
    return old if same else new


def describe(result: Result) -> t.Iterator[str]:
    """Return what was done, one line each."""
    if result.moved:
        yield result.moved
    for change in result.changes:
        yield from repeated_repairs.describe(change)
    yield from _flushed(result)


def _flushed(result: Result) -> t.Iterator[str]:
    for done in result.flushed:
        if done.removed:
            yield "%s: open connections removed, because their verdict changed: %d" % (done.family, done.removed)
