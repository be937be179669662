# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks that another process does not release: after some resyncs a sync no longer waits for them.

A sync needs no lock to be right, since each write is one transaction and is verified. Locks spare it and others work.
"""

from __future__ import annotations

import typing as t

from .._system import xtables_lock
from .paths import Paths

#: How many resyncs in a row wait for one process.
PATIENT_RESYNCS = 3


class HeldLock(t.NamedTuple):
    """A lock, the process that holds it, and how many resyncs have failed in a row while it did."""

    lock: str
    holder: str
    resyncs: int


def after_resync(paths: Paths, known: t.Sequence[HeldLock], errors: t.Sequence[str]) -> t.Tuple[HeldLock, ...]:
    """Return the locks that are held, after a resync.

    :param known: those after the resync before.
    :param errors: of the resync; those about a lock name the process that holds it.
    """
    found = []
    for lock in (paths.run_lock, xtables_lock.lock_file()) if errors or known else ():
        holder = xtables_lock.find_holder(lock)
        before = next((one.resyncs for one in known if (one.lock, one.holder) == (lock, holder)), 0)
        if holder and (before >= PATIENT_RESYNCS or any(holder in error for error in errors)):
            found.append(HeldLock(lock, holder, before + 1))
    return tuple(found)


def passed_over(known: t.Sequence[HeldLock]) -> t.Dict[str, str]:
    """Return the locks that are not to be waited for, each with a note for the operator."""
    return {
        one.lock: "%s is held by %s for more than %d resyncs and not waited for any more; end that process"
        % (one.lock, one.holder, PATIENT_RESYNCS)
        for one in known
        if one.resyncs >= PATIENT_RESYNCS and xtables_lock.find_holder(one.lock) == one.holder
    }
