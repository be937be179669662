# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where in POSTROUTING the jump is, and when it is left where it is."""

from __future__ import annotations

import copy
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import ActionKind
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_backend import Iptables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_jump import plan_jump
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import (
    leak_jump,
    nat_jump,
    parse_postrouting,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import converge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from hypothesis import given
from hypothesis import strategies as st
from support import engine, random_policies
from support.nat import Nat
from support.nat_rules import LEFT_OUT, target
from support.random_policies import CHAIN, JUMP, World

variants = st.sampled_from(["iptables_nft", "iptables_legacy"])
positions = st.sampled_from(
    ["keep", "first", "last", "before:OTHER", "after:OTHER", "before:KUBE-POSTROUTING", "after:NONE"]
)
WANTED = from_config(build({}), IPV4)


def placed(nat: Nat, family: str, position: str) -> Iptables:
    """The backend of a policy with a position."""
    return engine.backend(nat, family, position=position)


def barrier(rules: t.Sequence[str]) -> int:
    """How many rules packets get past; judged here by the words of the rules alone."""
    for number, rule in enumerate(rules):
        words = random_policies.without_comment(rule)
        final = words[0] == "-g" or (words[0] == "-j" and words[1] in random_policies.FINAL)
        if final and LEFT_OUT not in rule:
            return number
    return len(rules)


def assert_placed(rules: t.Sequence[str], position: str) -> None:
    """The jump is where the position says. Others may directly follow it."""
    jump = next(number for number, rule in enumerate(rules) if target(rule) == CHAIN)
    others = [rule for rule in rules if target(rule) != CHAIN]
    reach = barrier(others)
    kind, _colon, chain = position.partition(":")
    there = [number for number, rule in enumerate(others) if target(rule) == chain]
    assert jump <= reach
    if kind == "first":
        assert jump == 0
    elif kind == "last":
        assert jump == reach
    elif there and kind == "before":
        assert jump <= there[0]
    elif there:
        assert jump >= min(there[-1] + 1, reach)


@given(engine.random_worlds(), variants, positions)
def test_whatever_the_table_holds_the_jump_ends_where_it_belongs(world: World, variant: str, position: str) -> None:
    nat = Nat(variant, world.chains)
    change = converge(placed(nat, world.family, position), engine.wanted(world))
    random_policies.assert_holds(nat.chains, world.policy, world.family)
    assert random_policies.others(nat.chains) == random_policies.others(world.chains), (
        "another program's rule was lost or moved"
    )
    assert_placed(nat.chains["POSTROUTING"], position)
    assert len(nat.tried) == bool(change.plan.actions)
    shown = [line for line in change.plan.after if line.startswith("-A POSTROUTING")]
    assert shown == ["-A POSTROUTING " + rule for rule in nat.chains["POSTROUTING"]], "the diff is not what happened"
    assert not converge(placed(nat, world.family, position), engine.wanted(world)).plan.actions, (
        "it does not come to rest"
    )


@given(engine.random_worlds(), variants, positions)
def test_a_position_adds_nothing_but_a_move(world: World, variant: str, position: str) -> None:
    kept, moved = Nat(variant, copy.deepcopy(world.chains)), Nat(variant, copy.deepcopy(world.chains))
    plain = converge(engine.backend(kept, world.family), engine.wanted(world)).plan
    plan = converge(placed(moved, world.family, position), engine.wanted(world)).plan
    moves = [action for action in plan.actions if action.kind == ActionKind.JUMP_POSITIONED]
    rest = [action for action in plan.actions if action not in moves]
    # Of jumps that directly follow it, none is moved along.
    left = sum(1 for rule in kept.chains["POSTROUTING"] if target(rule) == CHAIN) - 1
    follow = rest[len(plain.actions) :]
    assert rest[: len(plain.actions)] == list(plain.actions)
    assert [action.kind for action in follow] == [ActionKind.DUPLICATE_JUMP_REMOVED] * (left if moves else 0)
    assert kept.chains[CHAIN] == moved.chains[CHAIN]


RULES = {
    "calico": '-m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING',
    "kube": '-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
    "kubenet": '-m comment --comment "kubenet: SNAT for outbound traffic from cluster" -o eth1 -j MASQUERADE',
    "mine": "-p udp -j OTHER",
    "all": "-j MASQUERADE",
    "jump": JUMP,
}
CHAINS = {"cali-POSTROUTING": [], "KUBE-POSTROUTING": [], "OTHER": [], CHAIN: engine.healthy({})}


def table(*names: str) -> Nat:
    """A table with these rules in POSTROUTING."""
    return Nat(chains=dict(copy.deepcopy(CHAINS), POSTROUTING=[RULES[name] for name in names]))


@pytest.mark.parametrize(
    "before, position, kind, program, rule",
    [
        ("calico mine jump", "first", ActionKind.JUMP_POSITIONED, "Calico", "calico"),
        ("jump mine kubenet", "last", ActionKind.JUMP_POSITIONED, "kubenet", "kubenet"),
        ("mine kube jump", "before:KUBE-POSTROUTING", ActionKind.JUMP_POSITIONED, "kube-proxy", "kube"),
        ("jump kube", "after:KUBE-POSTROUTING", ActionKind.JUMP_POSITIONED, "kube-proxy", "kube"),
        ("mine jump", "first", ActionKind.JUMP_POSITIONED, "unknown", "mine"),
        ("mine all kube jump", "keep", ActionKind.JUMP_MOVED, "unknown", "all"),
    ],
)
def test_who_is_in_the_way(before: str, position: str, kind: ActionKind, program: str, rule: str) -> None:
    (action,) = converge(placed(table(*before.split()), IPV4, position), WANTED).plan.actions
    assert (action.kind, action.cause) == (kind, ("-A POSTROUTING " + RULES[rule], program))


@pytest.mark.parametrize(
    "before, position, note",
    [
        (
            "mine jump",
            "before:cali-POSTROUTING",
            "jump_position before:cali-POSTROUTING has no effect: no rule of POSTROUTING leads to cali-POSTROUTING; "
            "the jump stays where it is, as with keep",
        ),
        (
            "jump all kube",
            "after:KUBE-POSTROUTING",
            "jump_position after:KUBE-POSTROUTING: no packet passes the rule '-A POSTROUTING -j MASQUERADE', so the "
            "jump is in front of it",
        ),
    ],
)
def test_what_cannot_be_done_is_a_note(before: str, position: str, note: str) -> None:
    assert converge(placed(table(*before.split()), IPV4, position), WANTED).plan.notes == (note,)


@pytest.mark.parametrize(
    "before, kinds, after",
    [
        ("mine jump kube", [], "mine jump kube"),
        ("mine jump jump kube", [ActionKind.DUPLICATE_JUMP_REMOVED], "mine jump kube"),
        ("jump mine jump", [ActionKind.DUPLICATE_JUMP_REMOVED], "jump mine"),
        ("wide jump", [ActionKind.DUPLICATE_JUMP_REMOVED], "jump"),
        ("mine kube", [ActionKind.JUMP_ADDED], "jump mine kube"),
        ("mine all jump", [ActionKind.JUMP_MOVED], "jump mine all"),
        ("mine wide", [ActionKind.JUMP_REPLACED], "jump mine"),
    ],
)
def test_where_packets_are_counted_one_jump_stays_and_a_new_one_comes_first(
    before: str, kinds: t.List[ActionKind], after: str
) -> None:
    lines = {name: "-A POSTROUTING " + rule for name, rule in RULES.items()}
    lines.update(jump=leak_jump(CHAIN, first=False).line, wide=leak_jump(CHAIN, first=True).line)
    names = {line: name for name, line in lines.items()}
    plan = plan_jump(leak_jump(CHAIN, first=False), parse_postrouting(lines[name] for name in before.split()))
    assert [action.kind for action in plan.actions] == kinds
    assert [names[rule.line] for rule in plan.after] == after.split()


def test_a_jump_that_iptables_cannot_delete_is_not_moved() -> None:
    rules = parse_postrouting(["-A POSTROUTING " + RULES["mine"], "-A POSTROUTING " + JUMP])
    stuck = [rule._replace(deletion="nft delete rule ip nat POSTROUTING handle 7") for rule in rules]
    plan = plan_jump(nat_jump(CHAIN), stuck, position="first")
    assert not plan.actions and not plan.deletions and not plan.insertions
    assert plan.notes == (
        "jump_position first is not kept: iptables cannot delete the jump to move it. Delete it: nft delete rule ip "
        "nat POSTROUTING handle 7; the next run adds it where it belongs",
    )
    for position in ("last", "after:OTHER", "keep"):
        assert plan_jump(nat_jump(CHAIN), stuck, position=position).notes == (), "it is there"
