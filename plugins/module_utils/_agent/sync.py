# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One resync of a node: the effective policy, the rules, and what is remembered and reported about them.

The agent and the module that installs it use the same functions.
"""

from __future__ import annotations

import contextlib
import copy
import time
import typing as t

from .._engine.backends import installed_programs
from .._engine.reconcile import Result, reconcile
from .._engine.ruleset import IGNORE, from_config
from .._errors import NodeError
from .._policy.entries import addresses
from .._policy.policy import Config
from .._policy.values import AUTO_PORTS
from .._system import files
from .._system.families import FAMILIES
from .._system.iptables_tool import legacy_tables
from .._system.local_ports import RANGE, RESERVED, LocalPorts, read_local_ports
from .._system.node import Node
from .._system.xtables_lock import without_holder
from .._version import VERSION
from . import repeated_repairs, snapshot
from .effective_policy import EffectivePolicy, are_unchanged, find_policy
from .paths import Paths
from .state_files import KEPT_ACTIONS, Event, Memory, read_memory, read_verification, write_memory
from .units import interval_drop_in, interval_text

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


class _Records:
    """Steps that do not concern the rules: a failure is reported, and does not prevent the next step."""

    def __init__(self) -> None:
        self.failed: t.List[str] = []

    @contextlib.contextmanager
    def step(self, consequence: str = "") -> t.Iterator[None]:
        """Do one of them.

        :param consequence: of a failure; the message begins with it.
        """
        try:
            yield
        except (NodeError, OSError) as exc:
            self.failed.append("%s%s" % (consequence, exc))


def sync(node: Node, paths: Paths) -> SyncResult:
    """Bring the rules of the node in sync with its policy, and record what was done.

    Only the rules can make it fail: a full or read-only file system does not prevent repairs.
    """
    before = read_memory(paths)
    snapshot.discard(paths)
    policy = find_policy(paths, before)
    done, errors = _repair(node, paths, policy, before)
    result = done.result if done else None
    # What an edit of the policy changes is no repair.
    known = before.repairs if policy.problem or policy.values == before.values else ()
    repaired = repeated_repairs.remember(known, result, time.time(), node.run) if result else None
    after = _update(before, policy, result, errors, repaired)
    records = _Records()
    if policy.config is not None:
        with records.step("the timer keeps its previous interval: "):
            _request_interval(paths, policy.config)
    synced = result is not None and not result.errors
    if synced:
        with records.step():
            snapshot.mark_sync(paths)
    if paths.metrics_file:
        share = None
        with records.step("source ports not counted: "):
            share = _port_share(paths, policy.config, result)
        with records.step("metrics not written: "):
            last_success = time.time() if synced else snapshot.last_sync(paths)
            _write_metrics(paths, policy, result, after, last_success, share)
    elif done is not None and not errors:
        with records.step("each resync starts the agent: "):
            _take_snapshot(node, paths, policy, before, done)
    after = after._replace(unrecorded=_same_or_new(before.unrecorded, records.failed))
    if after != before:
        with records.step():
            write_memory(paths, after)
    logged = {without_holder(line) for line in before.notes + before.unrecorded}
    current = after.notes + tuple(records.failed)
    warnings = [line for line in current if without_holder(line) not in logged]
    changes: t.Tuple[str, ...] = ()
    if result and repaired and (repaired.new or repaired.again):
        changes = repaired.new + tuple(_flushed(result))
        warnings += repaired.again
    return SyncResult(policy, result, changes, errors, tuple(warnings), tuple(records.failed))


class _Seen(t.NamedTuple):
    """What the rules depend on besides the policy and the node's firewall."""

    #: the legacy tables that exist
    legacy: t.List[t.List[str]]
    #: where the programs are
    programs: t.List[t.Optional[str]]
    #: None if they cannot be read
    ports: t.Optional[LocalPorts]


class _Round(t.NamedTuple):
    """One reconcile, and what the node looked like before it."""

    result: Result
    recorded: snapshot.RecordingRunner
    seen: _Seen


def dry_run(node: Node, paths: Paths, config: Config, remembered: Memory, effects: bool = False) -> Result:
    """Return what a sync would do now. Nothing is written.

    :param effects: whether to report what that means for packets and open connections, which may take seconds.
    :raises NodeError: as of ``reconcile.reconcile``.
    """
    if not effects:
        config = config._replace(flush_conntrack="none")
    return _reconcile(node, paths, config, remembered, check=True, effects=effects).result


def _reconcile(
    node: Node, paths: Paths, config: Config, remembered: Memory, check: bool = False, effects: bool = False
) -> _Round:
    recorded, seen = snapshot.RecordingRunner(node.run), _seen()
    recorded_node = copy.copy(node)
    recorded_node.run = recorded
    result = reconcile(
        recorded_node,
        config,
        check=check,
        used_before=remembered.backend,
        lock_path=paths.run_lock,
        effects=effects,
    )
    return _Round(result, recorded, seen)


def _seen() -> _Seen:
    try:
        ports: t.Optional[LocalPorts] = read_local_ports()
    except NodeError:
        ports = None
    return _Seen([legacy_tables(family) for family in FAMILIES], installed_programs(), ports)


def _repair(
    node: Node, paths: Paths, policy: EffectivePolicy, before: Memory
) -> t.Tuple[t.Optional[_Round], t.Tuple[str, ...]]:
    done = None
    errors: t.List[str] = []
    if policy.problem:
        consequence = "the last valid configuration stays active" if policy.config else "rules left unchanged"
        errors.append("%s; %s" % (policy.problem, consequence))
    if policy.config is not None:
        try:
            done = _reconcile(node, paths, policy.config, before)
            errors += done.result.errors
        except NodeError as exc:
            errors.append(str(exc))
    return done, tuple(errors)


def _take_snapshot(node: Node, paths: Paths, policy: EffectivePolicy, before: Memory, last: _Round) -> None:
    """Record for the resync script what this sync has verified, if that is what the files ask for."""
    if policy.config is None or policy.files is None:
        return
    if addresses(policy.config):
        # A snapshot does not cover node addresses.
        return
    sources = policy.files
    if last.result.changed:
        # Each family and backend was verified after it was written; this verifies all of them at the same time.
        remembered = before._replace(backend=last.result.backend)
        last = _reconcile(node, paths, policy.config, remembered, check=True)
        if last.result.changed or last.result.errors:
            return
    if last.result.not_checked:
        # The next resync tries again.
        return
    commands: t.List[t.Sequence[str]] = [
        command for change in last.result.managed for command in change.via.fingerprint()
    ]
    if policy.config.to_ports == AUTO_PORTS:
        last.recorded(_LOCAL_PORTS)
        commands.append(_LOCAL_PORTS)

    def is_current() -> bool:
        # An edit made after the files were read is not in effect yet.
        return last.seen == _seen() and are_unchanged(sources, paths)

    snapshot.take(node.run, paths, commands, last.recorded.output_of(commands), is_current)


def _same_or_new(old: t.Tuple[str, ...], new: t.Sequence[str]) -> t.Tuple[str, ...]:
    """Return the old lines if the new ones only name other processes: these change all the time."""
    same = [without_holder(line) for line in old] == [without_holder(line) for line in new]
    return old if same else tuple(new)


def describe(result: Result) -> t.Iterator[str]:
    """Return what was done, one line each."""
    for change in result.changes:
        yield from repeated_repairs.describe(change)
    yield from _flushed(result)


def _flushed(result: Result) -> t.Iterator[str]:
    for done in result.flushed:
        if done.removed:
            yield "%s: open connections removed, because their verdict changed: %d" % (done.family, done.removed)


def _request_interval(paths: Paths, config: Config) -> None:
    """Write the interval for the timer, if it has another one: a unit that may set the timer runs after this one."""
    if files.read(interval_drop_in(paths)) == interval_text(config.resync_interval):
        files.remove(paths.interval_file)
        return
    text = b"%d\n" % config.resync_interval
    files.make_directory(paths.run_dir, 0o700)
    if files.read(paths.interval_file) != text:
        files.write(paths.interval_file, text)


def _update(
    before: Memory,
    policy: EffectivePolicy,
    result: t.Optional[Result],
    errors: t.Tuple[str, ...],
    repaired: t.Optional[repeated_repairs.Update],
) -> Memory:
    now = time.time()
    changes = tuple(describe(result)) if result else ()
    after = before._replace(failing=bool(errors), backend=result.backend if result else before.backend)
    if repaired is not None:
        after = after._replace(repairs=repaired.repairs)
    if policy.problem is None:
        after = after._replace(values=policy.values, sources=policy.sources)
    if after.values != before.values:
        after = after._replace(repairs=())
    if policy.problem is None:
        if result is not None:
            after = after._replace(notes=_same_or_new(before.notes, policy.notes + result.notes))
    if changes:
        flushed = sum(done.removed for done in result.flushed) if result else 0
        after = after._replace(flushed=before.flushed + flushed)
        kept = changes[:KEPT_ACTIONS]
        if len(changes) > len(kept):
            kept += ("and %d more" % (len(changes) - len(kept)),)
        after = after._replace(last_change=Event(now, kept))
        # The policy has not changed, so another program changed the rules.
        if after.values == before.values:
            after = after._replace(drift_repaired=before.drift_repaired + 1)
    known = before.last_error.lines if before.failing and before.last_error else ()
    if errors and _same_or_new(known, errors) is not known:
        after = after._replace(last_error=Event(now, errors))
        if policy.problem:
            after = after._replace(config_errors=before.config_errors + 1)
    return after


def _info(policy: EffectivePolicy, result: t.Optional[Result]) -> t.Dict[str, str]:
    info = {"version": VERSION}
    if result is not None:
        info["backend"] = result.backend
    if policy.config is not None:
        info["policy_hash"] = policy.config.digest
    return info


def _port_share(paths: Paths, config: t.Optional[Config], result: t.Optional[Result]) -> t.Optional[float]:
    if config is None or not config.port_metrics or result is None:
        return None
    # Imported here: to load them takes 3 of 70 ms, and most nodes do not need them.
    from .._engine.source_ports import active_rules
    from .ports import highest_share

    return highest_share(paths, config.port_metrics, active_rules(result, written=True))


def _write_metrics(
    paths: Paths,
    policy: EffectivePolicy,
    result: t.Optional[Result],
    after: Memory,
    last_success: t.Optional[float],
    port_share: t.Optional[float],
) -> None:
    # Imported here: to load them takes 2 of 70 ms, and not every agent writes metrics.
    from .._system import conntrack
    from . import metrics

    exempt: t.Dict[str, int] = {}
    if policy.config is not None:
        for family in policy.config.families:
            exempt[family] = len(from_config(policy.config, family).exempt)
    undone: t.Dict[str, int] = {}
    for repair in repeated_repairs.undone(after.repairs, time.time()):
        undone[repair.program] = undone.get(repair.program, 0) + repair.times - 1
    sample = metrics.Sample(
        in_sync=result is not None and not result.errors,
        last_success=last_success,
        drift_repaired=after.drift_repaired,
        config_errors=after.config_errors,
        config_broken=policy.problem is not None,
        exempt_cidrs=exempt,
        counters=result.counters() if result is not None else {},
        repairs_undone=undone,
        flushed=after.flushed if policy.config is not None and policy.config.flush_conntrack != "none" else None,
        info=_info(policy, result),
        verification=read_verification(paths),
        connections=conntrack.statistics(),
        missing_addresses=len(result.missing) if result is not None else 0,
        leaks=policy.config.leaks if policy.config is not None and policy.config.leaks != IGNORE else "",
        port_share=port_share,
    )
    files.write(paths.metrics_file, metrics.metrics_text(sample).encode("utf-8"), 0o644)
