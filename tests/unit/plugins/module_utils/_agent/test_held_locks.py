# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks that a process never releases, as syncs see them. With real locks: the kernel tests."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import held_locks
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.held_locks import HeldLock
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import xtables_lock

PATHS = Paths()


@pytest.fixture
def holders(monkeypatch: pytest.MonkeyPatch) -> t.Dict[str, str]:
    """Who holds which lock."""
    found: t.Dict[str, str] = {}
    monkeypatch.setattr(xtables_lock, "find_holder", lambda path: found.get(path, ""))
    return found


def test_a_lock_is_passed_over_after_three_resyncs_that_met_the_same_process(holders: t.Dict[str, str]) -> None:
    holders[PATHS.run_lock] = "process 7 (ip-masq-agent sync)"
    known: t.Tuple[HeldLock, ...] = ()
    for resyncs in (1, 2, 3):
        assert held_locks.passed_over(known) == {}
        known = held_locks.after_resync(PATHS, known, ["held by process 7 (ip-masq-agent sync); wait for it to end"])
        assert known == (HeldLock(PATHS.run_lock, "process 7 (ip-masq-agent sync)", resyncs),)
    (note,) = held_locks.passed_over(known).values()
    assert note.startswith("/run/ip-masq-agent is held by process 7 (ip-masq-agent sync) for more than 3 resyncs")
    # As long as it is held.
    known = held_locks.after_resync(PATHS, known, [])
    assert held_locks.passed_over(known)
    holders.clear()
    assert held_locks.passed_over(known) == {} and held_locks.after_resync(PATHS, known, []) == ()


def test_a_lock_that_goes_from_process_to_process_is_waited_for(holders: t.Dict[str, str]) -> None:
    known: t.Tuple[HeldLock, ...] = ()
    for number in range(9):
        holders[xtables_lock.PATH] = "process %d (iptables-restore)" % number
        known = held_locks.after_resync(PATHS, known, ["held by process %d (iptables-restore)" % number])
        assert held_locks.passed_over(known) == {}


def test_a_lock_that_did_not_fail_a_resync_is_not_counted(holders: t.Dict[str, str]) -> None:
    holders[xtables_lock.PATH] = "process 7 (kube-proxy)"
    assert held_locks.after_resync(PATHS, (), ["the configuration is invalid"]) == ()
