# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""observe -> plan -> apply -> verify, for every family and every place where our rules may be.

Check mode is the same way without the write (promise 2). The kernel is shared with programs that rewrite nat all the
time, so a refused or undone write is observed again and planned anew, a bounded number of times; what cannot be
reached is rolled back (promise 5). One family's failure is kept apart from the other's (promise 7).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import typing as t

from .._errors import NodeError
from .._policy.policy import Config
from . import nftables_backend as nftables
from .backend import Backend, CommitRefused, LockHeld, Plan, Repair
from .detect import BACKENDS, Node, has_ipv6
from .ruleset import FAMILIES, IPV4, IPV6, Ruleset, from_config

#: How often a transaction is planned anew because the kernel's state moved under it.
ATTEMPTS = 8

#: How often the kernel may hold other rules than we wrote, although nobody else has written, before we give up.
DISAGREEMENTS = 2

#: The agent's runtime directory, which only root may open: the lock is on the directory itself, since a file system
#: that is full or read-only gives that, too.
LOCK_PATH = "/run/ip-masq-agent"


class Change(t.NamedTuple):
    """What happened (or would happen, in check mode) in one family of one backend."""

    family: str
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
    notes: t.Tuple[str, ...]
    #: where left-overs could not be looked for, and why: nothing is known of these places
    not_checked: t.Tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything was written, or would be."""
        return any(change.plan.actions for change in self.changes)


def reconcile(
    node: Node,
    config: Config,
    present: bool = True,
    check: bool = False,
    used_before: t.Optional[str] = None,
    former: t.Sequence[str] = (),
    withheld: t.Collection[Repair] = (),
) -> Result:
    """Bring the node to what ``config`` asks for, or (not ``present``) free it of our rules.

    Rules that must be there come first and what is left over elsewhere goes afterwards, so that a node that changes
    its backend is never without masquerading.

    :param check: plan only; nothing is written, no lock is taken.
    :param used_before: as for :meth:`~.detect.Node.choose`.
    :param former: other names that our chain may have on this node; such chains go.
    :param withheld: repairs that are not done where they change nothing for packets.
    :raises NodeError: before anything was touched: no tools, no root, a lock. Later failures are in ``errors``.
    """
    if os.geteuid() != 0:
        raise NodeError("rules of the kernel are root's business: run as root (in Ansible: become: true)")
    with contextlib.nullcontext("") if check else lock(node.lock_timeout) as trouble:
        result = _reconcile(node, config, present, check, used_before, former, withheld)
    return result._replace(notes=result.notes + (trouble,)) if trouble else result


def _reconcile(
    node: Node,
    config: Config,
    present: bool,
    check: bool,
    used_before: t.Optional[str],
    former: t.Sequence[str],
    withheld: t.Collection[Repair],
) -> Result:
    chosen = node.choose(config.backend, config.exemption if present else "return", used_before)
    families = [IPV4] + ([IPV6] if config.enable_ipv6 else []) if present else []
    changes: t.List[Change] = []
    errors: t.List[str] = []
    notes = list(config.notes)
    not_checked: t.List[str] = []
    if present and chosen == nftables.NAME:
        notes += nftables.remarks(config.exemption)
    failed = set()
    for family in families:
        try:
            change = _establish(node, config, chosen, family, check, withheld)
            changes.append(change)
            errors += ["%s: %s" % (family, problem) for problem in change.plan.problems]
            notes += ["%s: %s" % (family, note) for note in change.plan.notes]
            if change.plan.view.ruleset is None:
                # What is not in force replaces nothing.
                failed.add(family)
        except NodeError as exc:
            failed.add(family)
            errors.append("%s: %s" % (family, exc))
    for variant in BACKENDS:
        for family in FAMILIES:
            if (family in families and variant == chosen) or family in failed or (family == IPV6 and not has_ipv6()):
                continue
            try:
                # What earlier agents left is replaced, wherever it is; without a replacement it is not ours to take.
                backend = node.backend(variant, family, config.masq_chain, adopt=present, former=former)
                if backend is not None:
                    change = converge(backend, None, check, _withheld(backend, withheld))
                    if change.plan.actions or change.plan.withheld or not present:
                        changes.append(change)
            except NodeError as exc:
                (not_checked if present else errors).append("%s, %s: %s" % (family, variant, exc))
    notes += ["not checked for left-over rules: " + place for place in not_checked]
    tool = node.tool(chosen, IPV4)
    version = tool.version_text if tool else ""
    return Result(chosen, version, tuple(changes), tuple(errors), tuple(notes), tuple(not_checked))


def _withheld(backend: Backend, withheld: t.Collection[Repair]) -> t.List[str]:
    return [action for family, name, action in withheld if (family, name) == (backend.family, backend.name)]


def _establish(
    node: Node, config: Config, variant: str, family: str, check: bool, withheld: t.Collection[Repair]
) -> Change:
    backend = node.backend(variant, family, config.masq_chain)
    if backend is None:
        raise NodeError("%s has no program for %s on this node: install it" % (variant, family))
    wanted = from_config(config, family, random_fully=node.knows_random_fully(variant, family))
    return converge(backend, wanted, check, _withheld(backend, withheld))


def converge(
    backend: Backend, wanted: t.Optional[Ruleset], check: bool = False, withheld: t.Container[str] = ()
) -> Change:
    """Bring one backend to ``wanted`` (none: to nothing of ours) and make sure that the kernel agrees.

    :param withheld: as for :meth:`~.backend.Backend.plan`.
    :raises NodeError: it could not be done. The message says in what state the node was left.
    """
    first = now = backend.observe()
    plan = first_plan = backend.plan(now, wanted, withheld)
    refusal: t.Optional[CommitRefused] = None
    written = lost = 0
    for _attempt in range(ATTEMPTS):
        if check or not plan.actions:
            return Change(backend.family, backend.name, first_plan, backend)
        before, tried, refusal = now, plan.transaction, None
        try:
            backend.commit(tried)
            written += 1
        except CommitRefused as exc:
            refusal = exc
        try:
            now = backend.observe()
            plan = backend.plan(now, wanted, withheld)
        except NodeError as exc:
            if written:
                raise NodeError("%s. Rules were written but could not be verified; run again" % exc) from None
            raise
        if refusal and now == before:
            break
        # Others may have flushed what we wrote; only where nobody else wrote did the kernel not keep it.
        lost += bool(plan.actions and not refusal and backend.is_alone(before, tried, now))
        if lost == DISAGREEMENTS:
            break
    if not plan.actions:
        return Change(backend.family, backend.name, first_plan, backend)
    if not written:
        raise NodeError("%s. Nothing was changed" % refusal)
    if lost and (refusal or lost == DISAGREEMENTS):
        raise NodeError("%s %s" % (refusal or _not_kept(backend, plan), _roll_back(backend, now, first)))
    if refusal is not None:
        raise NodeError("%s. Rules were written before that, and changed by another program; run again" % refusal)
    raise NodeError(
        "%s: verification failed: the rules differed after each of %d writes, most likely because another program "
        "flushes or rewrites them: %s. Find that program, or run again"
        % (backend.name, written, "; ".join("%s: %s" % action[:2] for action in plan.actions[:3]))
    )


def _not_kept(backend: Backend, plan: Plan) -> str:
    missing = [action.rule for action in plan.actions if action.action.endswith("added")]
    if not missing:
        return "%s: verification failed: the kernel holds other rules than were written" % backend.name
    return "%s: verification failed: the kernel did not keep %d rule%s: %s; a kernel module may be missing" % (
        backend.name,
        len(missing),
        "" if len(missing) == 1 else "s",
        "; ".join(missing[:3]),
    )


def _roll_back(backend: Backend, now: t.Any, first: t.Any) -> str:
    try:
        if now != first:
            backend.commit(backend.undo(now, first))
    except NodeError as exc:
        return "(The previous state could not be restored: %s)" % exc
    return "(The previous state was restored.)"


@contextlib.contextmanager
def lock(timeout: float, path: str = "") -> t.Iterator[str]:
    """One run of ours at a time: the module and the timer must not plan against each other.

    The directory goes when the lock is given back, if nothing else is in it, so nothing is left on the node. Where no
    lock can be had, the run goes on without one: it writes whole transactions only, and verifies them.

    :param timeout: seconds to wait.
    :returns: why there is no lock; empty where there is one.
    :raises LockHeld: another run of ours took longer.
    """
    path = path or LOCK_PATH
    try:
        handle = _acquire(path, timeout)
    except OSError as exc:
        yield "no lock was taken against other runs of ip_masq: cannot make or open %s: %s" % (path, exc.strerror)
        return
    try:
        yield ""
    finally:
        with contextlib.suppress(OSError):
            # Left where the agent keeps more in it.
            os.rmdir(path)
        os.close(handle)


def _acquire(path: str, timeout: float) -> int:
    """Make and lock a directory; returns its file descriptor.

    :raises OSError: it cannot be made or opened.
    """
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # Another run removed it when it gave the lock back.
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another run may have removed it between our opening and our locking it.
            if _is_same_file(handle, path):
                return handle
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(handle)
                raise LockHeld(
                    "another run of ip_masq holds the lock on %s for more than %g seconds: wait for it, or raise "
                    "lock_timeout" % (path, timeout)
                ) from None
            time.sleep(0.02)
        os.close(handle)


def _is_same_file(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
