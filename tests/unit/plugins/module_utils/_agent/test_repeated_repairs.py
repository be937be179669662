# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the journal has of repairs that are made again, and whom it names."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import repeated_repairs
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.repeated_repairs import (
    KEPT,
    LOGGED_EVERY,
    PERIOD,
    UNKNOWN,
    Repeated,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import rule_flushers
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import (
    Action,
    ActionKind,
    OwnedRule,
    Plan,
    View,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Change, Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.processes import Process
from hypothesis import given
from hypothesis import strategies as st

BACKENDS = ("iptables_nft", "iptables_legacy", "nftables")
JUMP = Action(ActionKind.JUMP_REMOVED, "-A POSTROUTING -j X")
CHAIN = Action(ActionKind.CHAIN_REMOVED, "-N X")
CREATED = Action(ActionKind.CHAIN_CREATED, "-N X")


def result(*actions: Action, family: str = "ipv4", backend: str = "iptables_nft") -> Result:
    """A run that did these things in one place."""
    plan = Plan(actions, (), (), (), View((), None))
    return Result("iptables_nft", "1.8.9", (Change(family, backend, plan, t.cast(t.Any, None)),), (), ())


def ask(*_words: t.Any, **_more: t.Any) -> Outcome:
    """Answer as systemctl does of units that it does not know."""
    return Outcome(1, "", "")


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> t.List[t.Any]:
    """The reference agents that run on the node."""
    found: t.List[t.Any] = []
    monkeypatch.setattr(repeated_repairs.other_agents_running, "running", lambda: iter(found))
    return found


class Journal:
    """The lines that a series of runs logs, and what is remembered between them."""

    def __init__(self) -> None:
        self.known: t.Tuple[Repeated, ...] = ()
        self.lines: t.List[t.Tuple[float, str]] = []

    def run(self, now: float, *actions: Action, **place: str) -> t.Tuple[str, ...]:
        """One run that did these things."""
        update = repeated_repairs.remember(self.known, result(*actions, **place), now, ask)
        self.known = update.repairs
        self.lines += [(now, line) for line in update.new + update.again]
        return update.new + update.again


def test_the_first_time_each_action_is_logged_then_one_line_and_one_an_hour() -> None:
    journal = Journal()
    for tick in range(66 + 60):
        journal.run(1e9 + tick * 60, JUMP, CHAIN)
    assert [(when - 1e9) / 60 for when, _line in journal.lines] == [0, 0, 1, 61, 121]
    assert [line for _when, line in journal.lines[:2]] == [
        "ipv4, iptables_nft: jump removed: -A POSTROUTING -j X",
        "ipv4, iptables_nft: chain removed: -N X",
    ]
    for (_when, line), times in zip(journal.lines[2:], (2, 62, 122)):
        assert line.startswith("ipv4, iptables_nft: repaired %d times since 2001-09-" % times)
        assert ": jump removed: -A POSTROUTING -j X and 1 more. " in line


@given(st.lists(st.floats(0, 2 * PERIOD), max_size=200))
def test_in_no_hour_a_repair_is_logged_more_than_three_times(pauses: t.List[float]) -> None:
    journal, now = Journal(), 1e9
    for pause in pauses:
        now += pause
        journal.run(now, JUMP)
    for when, _line in journal.lines:
        assert sum(1 for other, _line in journal.lines if when <= other < when + LOGGED_EVERY) <= 3


@pytest.mark.parametrize("jump", [-1.0, -1e6, PERIOD, 1e6])
def test_it_is_forgotten_after_a_while_and_by_a_clock_that_was_set_back(jump: float) -> None:
    journal = Journal()
    journal.run(1e9, JUMP)
    journal.run(1e9, JUMP)
    assert [one.times for one in repeated_repairs.undone(journal.known, 1e9)] == [2]
    assert repeated_repairs.notes(journal.known, 1e9 + jump) == []
    assert journal.run(1e9 + jump, JUMP) == ("ipv4, iptables_nft: jump removed: -A POSTROUTING -j X",)


def test_what_is_remembered_has_a_limit() -> None:
    journal = Journal()
    for number in range(3 * KEPT):
        journal.run(1e9 + number, JUMP._replace(rule=str(number)))
    assert len(journal.known) == KEPT
    assert {one.what for one in journal.known} == {"jump removed: %d" % (2 * KEPT + n) for n in range(KEPT)}


def culprit(*actions: Action, **place: str) -> Repeated:
    """What is remembered of a repair the second time."""
    journal = Journal()
    journal.run(1e9, *actions, **place)
    journal.run(1e9, *actions, **place)
    (one,) = journal.known
    return one


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_running_reference_agent_is_named_where_it_can_write(agents: t.List[t.Any], backend: str) -> None:
    agents.append(Process(1, "ip-masq-agent-v2", ["/ip-masq-agent-v2 a\nb"]))
    found = culprit(JUMP, CHAIN, backend=backend)
    if backend == "nftables":
        assert found.program == UNKNOWN
    else:
        assert found.program == "ip-masq-agent-v2" and "'/ip-masq-agent-v2 a\\nb'" in found.advice


@pytest.mark.parametrize(
    "backend, names",
    [
        ("iptables_nft", "nft monitor shows the process of each change"),
        ("iptables_legacy", "records NETFILTER_CFG of auditd show the process of each change"),
        ("nftables", "nft monitor shows the process of each change"),
    ],
)
def test_of_an_unknown_program_it_is_said_how_to_find_it(backend: str, names: str) -> None:
    found = culprit(JUMP, backend=backend)
    assert (found.program, found.advice) == (UNKNOWN, "It is not known which program undoes it; " + names)


@pytest.mark.parametrize(
    "kind, program, advice",
    [
        (ActionKind.JUMP_POSITIONED, "Calico", "A rule of Calico is in the way: RULE. Have that program leave the "),
        (ActionKind.JUMP_MOVED, "unknown", "A rule of an unknown program is in the way: RULE. No packet passes it: "),
    ],
)
def test_the_owner_of_a_rule_in_the_way_is_named(
    agents: t.List[t.Any], kind: ActionKind, program: str, advice: str
) -> None:
    agents.append(Process(1, "ip-masq-agent", ["/ip-masq-agent"]))
    found = culprit(Action(kind, "-A POSTROUTING -j X", OwnedRule("RULE", program)))
    assert found.program == program and found.advice.startswith(advice)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("flusher", rule_flushers._FLUSHERS, ids=lambda flusher: flusher.unit)
def test_a_service_that_removes_all_rules_is_named(
    monkeypatch: pytest.MonkeyPatch, agents: t.List[t.Any], backend: str, flusher: rule_flushers.Flusher
) -> None:
    agents.append(Process(1, "ip-masq-agent", ["/ip-masq-agent"]))
    monkeypatch.setattr(rule_flushers, "flushers", lambda run: iter([flusher]))
    found = culprit(CREATED, JUMP, backend=backend)
    removes = backend in (
        ("iptables_nft", "nftables") if flusher.unit == "nftables.service" else ("iptables_nft", "iptables_legacy")
    )
    assert found.program == (flusher.unit if removes else UNKNOWN)
    assert (flusher.path in found.advice) == removes
    # It removes all of them, or none.
    assert culprit(JUMP, backend=backend).program != flusher.unit
