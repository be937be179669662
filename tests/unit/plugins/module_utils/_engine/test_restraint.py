# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a repair that changes nothing for packets is made, and when it is made again."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import restraint
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import (
    Action,
    ActionKind,
    Plan,
    Repair,
    View,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Change, Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.restraint import KEPT, MOST, PERIOD, Done
from hypothesis import given
from hypothesis import strategies as st

JUMP = Repair("ipv4", "iptables_nft", "duplicate jump removed")
OTHER = Repair("ipv6", "iptables_nft", "duplicate jump removed")


def result(*actions: Action, withheld: t.Sequence[Action] = ()) -> Result:
    """A run that did these things in IPv4."""
    plan = Plan(actions, (), (), (), View((), None), withheld=tuple(withheld))
    return Result("iptables_nft", "1.8.9", (Change("ipv4", "iptables_nft", plan, t.cast(t.Any, None)),), (), ())


HARMLESS = Action(ActionKind(JUMP.action), "-A POSTROUTING -j X", harmless=True)


@given(st.lists(st.floats(0, 3 * PERIOD), max_size=200))
def test_of_repairs_that_come_back_all_the_time_a_few_are_made_in_any_hour(pauses: t.List[float]) -> None:
    now, done, made = 1e9, (), []
    for pause in pauses:
        now += pause
        if JUMP not in restraint.withheld(done, now):
            done = restraint.remember(done, result(HARMLESS), now)
            made.append(now)
        else:
            recent = [when for when in made if now - when < PERIOD]
            assert len(recent) == MOST, "withheld without need"
    for when in made:
        assert len([other for other in made if when <= other < when + PERIOD]) <= MOST
    assert len(done) <= KEPT


def test_each_kind_and_place_counts_for_itself() -> None:
    done = tuple(Done(1e9, OTHER) for _again in range(MOST)) + (Done(1e9, JUMP),)
    assert restraint.withheld(done, 1e9) == {OTHER}


def test_several_of_a_kind_in_one_run_count_once() -> None:
    (one,) = restraint.remember((), result(HARMLESS, HARMLESS._replace(rule="-A POSTROUTING -j Y")), 1e9)
    assert one == Done(1e9, JUMP)


def test_what_changes_packets_is_not_counted() -> None:
    assert restraint.remember((), result(HARMLESS._replace(harmless=False)), 1e9) == ()


@pytest.mark.parametrize("jump", [-1.0, -1e6, PERIOD, 1e6])
def test_a_clock_that_was_set_ends_restraint(jump: float) -> None:
    done = tuple(Done(1e9, JUMP) for _again in range(MOST))
    assert restraint.withheld(done, 1e9 + jump) == frozenset()
    assert restraint.remember(done, result(), 1e9 + jump) == ()


def test_nothing_withheld_is_no_note() -> None:
    assert restraint.notes(result(HARMLESS)) == []
    (note,) = restraint.notes(result(withheld=[HARMLESS]))
    assert HARMLESS.rule in note and "changes nothing for packets" in note


@pytest.mark.parametrize(
    "cmdline, told",
    [
        (b"/ip-masq-agent\0--masq-chain=IP-MASQ\0", ["/ip-masq-agent --masq-chain=IP-MASQ"]),
        (b"ip-masq-agent-v2\0", ["ip-masq-agent-v2"]),
        (b"/ip-masq-agent\0a\nb\xff\0", ["/ip-masq-agent a\\nb\ufffd"]),
        (b"/usr/bin/python3\0-I\0/usr/local/sbin/ip-masq-agent\0sync\0", []),
        (b"/bin/sh\0/usr/local/sbin/ip-masq-agent-resync\0", []),
        (b"", []),
    ],
)
def test_the_reference_agent_is_distinguished_from_ours(tmp_path: Path, cmdline: bytes, told: t.List[str]) -> None:
    for pid, content in (("12", cmdline), ("1", b"/sbin/init\0"), ("self", b"/ip-masq-agent\0"), ("7", None)):
        (tmp_path / pid).mkdir()
        if content is not None:
            (tmp_path / pid / "cmdline").write_bytes(content)
    assert restraint.other_agents(str(tmp_path)) == told
    program = told[0].split()[0].lstrip("/") if told else "unknown"
    assert restraint.other_program(str(tmp_path)) == program
