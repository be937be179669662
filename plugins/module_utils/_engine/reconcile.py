# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""observe -> plan -> apply -> verify, for every family and every place where managed rules may be.

Check mode is the same way without the write. The kernel is shared with programs that rewrite nat all the time, so a
refused or undone write is observed again and planned anew, a bounded number of times; what cannot be reached is rolled
back (verified). One family's failure does not stop the other's, and is not hidden by it (families apart).
"""

from __future__ import annotations

import contextlib
import os
import typing as t

from .._errors import NodeError
from .._policy.policy import Config
from .._system.families import FAMILIES, IPV4, IPV6, Family, has_ipv6
from .._system.node import Node
from . import backend_choice
from .auto_ports import or_any_ports, with_auto_ports
from .backend import (
    Backend,
    BackendType,
    CommitRefused,
    Counted,
    Managed,
    Overtaken,
    PartlyRefused,
    Plan,
    total,
)
from .fixed_addresses import require_addresses, without_missing
from .other_rules import Remark
from .policy_rules import from_config
from .ruleset import IGNORE, Ruleset
from .run_lock import lock

if t.TYPE_CHECKING:
    from .effects import Compared
    from .open_connections import Flushed

#: How often a transaction is planned anew because the kernel's state moved under it.
ATTEMPTS = 8

#: How often the kernel may hold other rules than we wrote, although no other program has written, before we give up.
DISAGREEMENTS = 2


_LEFT = (
    "%s, %s: the chain %s is still active, and the node no longer has a program that can remove it: install the "
    "package %s and run ip-masq-agent sync, or reboot"
)


class Change(t.NamedTuple):
    """What happened (or would happen, in check mode) in one family of one backend."""

    family: Family
    backend: str
    plan: Plan
    #: to ask it more: its counters, its fingerprint
    via: Backend


class Result(t.NamedTuple):
    """All that a run did and found."""

    backend: str
    version: str
    changes: t.Tuple[Change, ...]
    errors: t.Tuple[str, ...]
    #: for the operator: of the configuration, the backend and the run, in this order
    notes: t.Tuple[str, ...]
    #: where left-over rules could not be looked for, and why: nothing is known of these places
    not_checked: t.Tuple[str, ...] = ()
    #: rules of other programs that match the same traffic, and what they do to it
    remarks: t.Tuple[Remark, ...] = ()
    #: fixed addresses of the policy that the node does not have
    missing: t.Tuple[str, ...] = ()
    #: open connections that were removed, by family; empty if that was not wanted, or no rule was changed
    flushed: t.Tuple[Flushed, ...] = ()
    #: what the changes mean for packets, by family; empty if that was not wanted, or no rule was changed
    compared: t.Tuple[Compared, ...] = ()
    #: where rules of other programs undo what is planned, a line each; empty if that was not tested
    undone: t.Tuple[str, ...] = ()
    #: which backend the node had before, and why it has another one now; empty if it has the same
    moved: str = ""

    @property
    def effect_notes(self) -> t.Tuple[str, ...]:
        """What could not be said about effects, for the operator."""
        return tuple(note for one in self.compared for note in one.notes)

    @property
    def changed(self) -> bool:
        """Whether anything was written, or would be."""
        return any(change.plan.actions for change in self.changes)

    @property
    def managed(self) -> t.List[Change]:
        """The changes of the managed rules, without those that remove leftovers elsewhere."""
        return [change for change in self.changes if change.backend == self.backend and change.plan.view.rules]

    def action_data(self) -> t.List[t.Dict[str, str]]:
        """Return what was done to rules, or would be, for programs."""
        return [
            {"family": change.family, "backend": change.backend, "action": action.action, "rule": action.rule}
            for change in self.changes
            for action in change.plan.actions
        ]

    def found_data(self) -> t.Dict[str, t.Dict[str, t.Any]]:
        """Return the managed rules as they were found, by family, for programs.

        :raises NodeError: the counters cannot be read.
        """
        counted = self.counted(planned=True)
        return {
            change.family: {
                "jump": change.plan.found.jump,
                "rules": list(change.plan.found.rules + change.plan.found.leaks),
                "counters": total(counted[change.family])._asdict() if change.family in counted else None,
            }
            for change in self.managed
        }

    def counted(self, planned: bool = False) -> t.Dict[str, t.List[Counted]]:
        """Return what the managed rules have counted, by family.

        :param planned: nothing was written; rules that do not exist are not queried, which would create a legacy table.
        :raises NodeError: they cannot be read.
        """
        return {
            change.family: change.via.counted() for change in self.managed if change.plan.found.rules or not planned
        }


def reconcile(
    node: Node,
    config: Config,
    present: bool = True,
    check: bool = False,
    used_before: t.Optional[str] = None,
    former: t.Sequence[str] = (),
    lock_path: t.Optional[str] = "",
    new: bool = False,
    effects: bool = False,
) -> Result:
    """Bring the node to what ``config`` asks for, or (not ``present``) remove all managed rules from it.

    Rules that must be there come first and what is left over elsewhere is removed afterwards, so that a node that
    changes its backend is never without masquerading.

    :param check: plan only; nothing is written, no lock is taken.
    :param used_before: as for ``backend_choice.choose``.
    :param former: other names that the managed chain may have on this node; such chains are removed.
    :param lock_path: as for ``run_lock.lock``.
    :param new: whether the policy is refused if the node lacks one of its fixed addresses, or has too few ports for
        ``to_ports: auto``, with ConfigError; else the option snat_missing decides, and the result has an error.
    :param effects: whether to report what the changes mean for packets, and count the open connections, which may take
        seconds. Without changes nothing is computed.
    :raises NodeError: before anything was touched: no tools, no root, a lock. Later failures are in ``errors``.
    """
    if os.geteuid() != 0:
        raise NodeError("changing netfilter rules requires root; use become: true in Ansible, or sudo")
    missing: t.Tuple[t.Any, ...] = ()
    errors: t.Tuple[str, ...] = ()
    if present and new:
        require_addresses(config)
        config = with_auto_ports(config)
    elif present:
        config, missing = without_missing(config)
        config, errors = or_any_ports(config)
    with contextlib.nullcontext("") if check else lock(node.lock_timeout, lock_path) as lock_problem:
        exemption, position = (config.exemption, config.jump_position) if present else ("return", "keep")
        asked = (node, config.backend, exemption, used_before, position)
        chosen = backend_choice.choose(*asked)
        moved = backend_choice.move(*asked, chosen) if present else ""
        run = _Run(node, config, chosen, check, errors)
        if present:
            run.establish(config.families)
        run.clear(adopt=present, former=former)
    # It may take seconds, and needs no rule to stay as it is: without the lock.
    run.compare(flush=config.flush_conntrack == "changed", effects=effects)
    return run.result(lock_problem)._replace(missing=tuple(map(str, missing)), moved=moved)


class _Run:
    """One run: what it has done and found so far."""

    def __init__(
        self, node: Node, config: Config, chosen: BackendType, check: bool, errors: t.Sequence[str] = ()
    ) -> None:
        self._node = node
        self._config = config
        self._chosen = chosen
        self._check = check
        self._changes: t.List[Change] = []
        self._errors = list(errors)
        self._plan_notes: t.List[str] = []
        self._not_checked: t.List[str] = []
        self._remarks: t.List[Remark] = []
        self._flushed: t.List[Flushed] = []
        self._compared: t.List[Compared] = []
        #: families that are to have rules, and those of them that have none now
        self._families: t.Sequence[Family] = ()
        self._failed: t.Set[str] = set()

    def establish(self, families: t.Sequence[Family]) -> None:
        """Have the rules in the chosen backend."""
        self._families = families
        for family in families:
            try:
                change = self._establish(family)
            except NodeError as exc:
                self._failed.add(family)
                self._errors.append("%s: %s" % (family, exc))
                continue
            self._changes.append(change)
            self._errors += ["%s: %s" % (family, problem) for problem in change.plan.problems]
            self._plan_notes += ["%s: %s" % (family, note) for note in change.plan.notes]
            self._remarks += change.plan.remarks
            if change.plan.view.ruleset is None:
                # Rules that are not active replace none.
                self._failed.add(family)

    def _establish(self, family: Family) -> Change:
        leaks = self._config.leaks != IGNORE
        managed = Managed(self._config.masq_chain, self._config.jump_position, leaks=leaks)
        backend = self._chosen.make(self._node, family, managed)
        if backend is None:
            raise NodeError(
                "%s has no program for %s on this node: install the package %s"
                % (self._chosen.name, family, self._chosen.package)
            )
        return converge(backend, wanted_rules(self._config, family, self._chosen, self._node), self._check)

    def clear(self, adopt: bool, former: t.Sequence[str]) -> None:
        """Remove what is left over elsewhere.

        :param adopt: whether chains of earlier agents are removed too: without a replacement they stay.
        """
        config = self._config
        managed = Managed(config.masq_chain, adopt=adopt, former=former, exemption=config.exemption)
        node = self._node.within(backend_choice.PATIENCE) if self._families else self._node
        for kind in backend_choice.BACKENDS:
            for family in FAMILIES:
                established = family in self._families and kind is self._chosen
                if established or family in self._failed or (family == IPV6 and not has_ipv6()):
                    continue
                try:
                    backend = kind.make(node, family, managed)
                    if backend is not None:
                        self._clear(backend)
                    elif kind.is_left(family, managed.chain):
                        self._left.append(_LEFT % (family, kind.name, managed.chain, kind.package))
                except NodeError as exc:
                    places = self._not_checked if self._families else self._errors
                    places.append("%s, %s: %s" % (family, kind.name, exc))

    @property
    def _left(self) -> t.List[str]:
        """What is left over elsewhere: with rules to be there it is noted, and else the run has failed."""
        return self._plan_notes if self._families else self._errors

    def _clear(self, backend: Backend) -> None:
        change = converge(backend, None, self._check)
        if change.plan.actions or not self._families:
            self._changes.append(change)
        if change.plan.problems:
            raise NodeError("; ".join(change.plan.problems))
        self._left.extend("%s, %s: %s" % (backend.family, backend.name, note) for note in change.plan.notes)
        if backend.family in self._families:
            self._remarks += change.plan.remarks

    def compare(self, flush: bool, effects: bool) -> None:
        """Find which packets get another treatment, and the open connections that they belong to.

        :param flush: whether to remove these. :param effects: whether to report the effects.
        """
        for family in FAMILIES:
            changes = [change for change in self._changes if change.family == family]
            concerned = family not in self._failed and any(change.plan.actions for change in changes)
            if concerned and (flush or effects):
                self._compare(family, changes, flush, effects)

    def _compare(self, family: Family, changes: t.Sequence[Change], flush: bool, asked: bool) -> None:
        # Imported here: to load them takes 4 of 70 ms of a sync, and most runs change nothing.
        from .changed_packets import Comparison
        from .effects import Compared, Effects, fewer_ports, unseen
        from .masquerade_ports import chosen
        from .open_connections import search, unread

        former = [change.plan.former for change in changes]
        before = [_as_met(ruleset, change.backend) for change in changes for ruleset in change.plan.former.rulesets]
        established = [change for change in changes if change.backend == self._chosen.name and family in self._families]
        after = [_as_met(change.plan.view.ruleset, change.backend) for change in established[:1]]
        front = [ruleset for each in former for ruleset in each.front]
        # In another backend other rules are in front.
        left = any(change.plan.former.rulesets and change not in established for change in changes)
        later = [ruleset for change in established[:1] for ruleset in change.plan.former.front] if after else front
        comparison = Comparison(family, [*front, *before], [*later, *after], ports=chosen if asked else None)
        effects = Effects(comparison) if asked else None
        counts: t.Sequence[t.Optional[int]] = ()
        notes: t.Tuple[str, ...] = ()
        try:
            done, counts = search(comparison, self._check, effects, counting=not flush)
        except NodeError as exc:
            if flush:
                self._errors.append("%s: flush_conntrack: open connections were not examined: %s" % (family, exc))
            else:
                notes = ("%s: open_connections: not counted: %s" % (family, exc),)
        else:
            notes = tuple("%s: %s" % (family, note) for note in done.notes)
            if flush:
                rules = ["the managed ones"] * (None in before) + [rule for each in former for rule in each.unread]
                self._plan_notes += ["%s: %s" % (family, note) for note in (*unread(family, rules), *done.notes)]
                self._flushed.append(done)
        if effects is not None:
            found = (*effects.counted(counts), *unseen(family, before, after))
            moved = any(each.moved for each in former) or (left and bool(after))
            notes = (*fewer_ports(found), *(() if flush else notes))
            self._compared.append(Compared(family, found, moved, notes, comparison.same_guards))

    def result(self, lock_problem: str) -> Result:
        """Return all of it; the one place where notes come together."""
        tool = self._chosen.tool(self._node, IPV4)
        notes = list(self._config.notes)
        notes += self._chosen.notes(self._config) if self._families else []
        notes += self._plan_notes
        notes += ["not checked for left-over rules: " + place for place in self._not_checked]
        notes += [lock_problem] if lock_problem else []
        return Result(
            self._chosen.name,
            tool.version_text if tool else "",
            tuple(self._changes),
            tuple(self._errors),
            tuple(notes),
            tuple(self._not_checked),
            tuple(self._remarks),
            flushed=tuple(self._flushed),
            compared=tuple(self._compared),
        )


def _as_met(ruleset: t.Optional[Ruleset], backend: str) -> t.Optional[Ruleset]:
    """Return a ruleset with the exemption that it has in a backend."""
    like_return = next((kind.like_return for kind in backend_choice.BACKENDS if kind.name == backend), ())
    if ruleset is not None and ruleset.verdict in like_return:
        return ruleset._replace(verdict="RETURN", guards=tuple(one for one in ruleset.guards if one.is_option))
    return ruleset


def wanted_rules(config: Config, family: Family, kind: BackendType, node: Node) -> Ruleset:
    """Return the rules of a policy for one family, as a backend of this node can write them."""
    since = kind.random_fully_since
    tool = kind.tool(node, family) if since else None
    return from_config(config, family, random_fully=not since or (tool is not None and tool.version >= since))


def converge(backend: Backend, wanted: t.Optional[Ruleset], check: bool = False) -> Change:
    """Bring one backend to ``wanted`` (None: to nothing managed) and make sure that the kernel agrees.

    :raises NodeError: it could not be done. The message says in what state the node was left.
    """
    first = now = backend.observe()
    plan = first_plan = backend.plan(now, wanted)
    refusal: t.Optional[CommitRefused] = None
    written = lost = 0
    for _attempt in range(ATTEMPTS):
        if check or not plan.actions:
            return Change(backend.family, backend.name, first_plan, backend)
        before, tried, refusal = now, plan.transaction, None
        partly: t.Optional[PartlyRefused] = None
        try:
            backend.commit(tried)
            written += 1
        except CommitRefused as exc:
            refusal = exc
        except PartlyRefused as exc:
            partly = exc
            written += 1
        try:
            now = backend.observe()
            plan = backend.plan(now, wanted)
        except NodeError as exc:
            if written:
                raise NodeError("%s. Rules were written but could not be verified; run again" % exc) from None
            raise
        if partly and plan.transaction == partly.rest:
            if now == before:
                return Change(backend.family, backend.name, _without_rest(first_plan, plan, partly), backend)
            continue
        # A refusal that another program caused says nothing about the next attempt.
        if refusal and now == before and not isinstance(refusal, Overtaken):
            break
        # Others may have flushed what we wrote; only where no other program wrote did the kernel not keep it.
        lost += bool(plan.actions and not refusal and backend.is_alone(before, tried, now))
        if lost == DISAGREEMENTS:
            break
    if not plan.actions:
        return Change(backend.family, backend.name, first_plan, backend)
    if not written:
        raise NodeError("%s. Nothing was changed" % refusal)
    left = "; ".join("%s: %s" % (action.action, action.rule) for action in plan.actions[:3])
    if lost and (refusal or lost == DISAGREEMENTS):
        not_kept = (
            "%s: verification failed: the kernel did not keep the rules that were written, a kernel module may be "
            "missing: %s." % (backend.name, left)
        )
        raise NodeError("%s %s" % (refusal or not_kept, _roll_back(backend, now, first)))
    if refusal is not None:
        raise NodeError("%s. Rules were written before that, and changed by another program; run again" % refusal)
    raise NodeError(
        "%s: verification failed: the rules differed after each of %d writes, most likely because another program "
        "flushes or rewrites them: %s. Find that program, or run again" % (backend.name, written, left)
    )


def _without_rest(plan: Plan, left: Plan, refused: PartlyRefused) -> Plan:
    """Return what was done of a plan, by what is left to do."""
    done = tuple(action for action in plan.actions if action not in left.actions)
    problems = (*left.problems, str(refused))
    return plan._replace(actions=done, after=left.before, view=left.found, problems=problems, remarks=left.remarks)


def _roll_back(backend: Backend, now: t.Any, first: t.Any) -> str:
    try:
        if now != first:
            backend.commit(backend.undo(now, first))
    except NodeError as exc:
        return "(The previous state could not be restored: %s)" % exc
    return "(The previous state was restored.)"
