# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever state our part of the nat table is in, one run mends it and leaves the rest alone."""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import ActionKind
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import converge
from hypothesis import given
from hypothesis import strategies as st
from support import engine, random_policies
from support.nat import Nat
from support.nat_rules import LEFT_OUT, UNREADABLE, Chains, target
from support.random_policies import CHAIN, GOOD_JUMP, World

variants = st.sampled_from(["iptables_nft", "iptables_legacy"])


def listing(chains: Chains) -> t.Tuple[str, ...]:
    """What a diff shows of a healthy table."""
    shown = ["-N " + CHAIN] + ["-A %s %s" % (CHAIN, rule) for rule in chains[CHAIN]]
    return tuple(shown + ["-A POSTROUTING " + rule for rule in chains["POSTROUTING"]])


@given(engine.random_worlds(), variants)
def test_removal_takes_chain_and_jumps_in_one_transaction_and_nothing_else(world: World, variant: str) -> None:
    nat = Nat(variant, world.chains)
    converge(engine.backend(nat, world.family, adopt=False), None)
    expected = copy.deepcopy(world.chains)
    random_policies.drop_chain(expected)
    assert nat.chains == Nat(variant, expected).chains
    assert len(nat.tried) <= 1
    assert not converge(engine.backend(nat, world.family, adopt=False), None).plan.actions


@given(st.data(), random_policies.policies, engine.families)
def test_a_chain_that_means_the_same_is_not_touched(data: t.Any, policy: random_policies.Policy, family: str) -> None:
    wanted = engine.ruleset(policy, family)
    ours = engine.healthy(policy, family)
    guarded = len(random_policies.guards(policy, family))
    size = 2 if wanted.verdict == "ACCEPT" else 1
    masquerade = guarded + size * len(wanted.exempt)
    guards = ours[:guarded]
    exempt = [ours[first : first + size] for first in range(guarded, masquerade, size)]
    again = data.draw(st.lists(st.sampled_from(exempt), max_size=2)) if exempt else []
    chain = data.draw(st.permutations(guards))
    chain += [rule for rules in data.draw(st.permutations(exempt + again)) for rule in rules]
    chain += ours[masquerade:]
    restyle = data.draw(
        st.lists(st.sampled_from(sorted(random_policies.RESTYLES)), min_size=len(chain), max_size=len(chain))
    )
    chain = [random_policies.RESTYLES[how](rule) for how, rule in zip(restyle, chain)]
    nat = Nat(chains={CHAIN: chain, "POSTROUTING": ["-m addrtype ! --dst-type LOCAL -j " + CHAIN]})
    assert not converge(engine.backend(nat, family), wanted).plan.actions
    assert nat.tried == []


def add_conditions(data: t.Any, rules: t.List[str], condition: str) -> None:
    """Some of these rules ask for more than iptables prints."""
    for number in data.draw(st.sets(st.integers(0, max(len(rules) - 1, 0)), min_size=1)) if rules else ():
        rules[number] += condition


@given(engine.random_worlds(), st.data(), st.sampled_from([LEFT_OUT, UNREADABLE]))
def test_rules_of_our_chain_that_iptables_does_not_print_are_replaced(
    world: World, data: t.Any, condition: str
) -> None:
    chains = copy.deepcopy(world.chains)
    add_conditions(data, chains.get(CHAIN, []), condition)
    nat = Nat(chains=chains)
    change = converge(engine.backend(nat, world.family), engine.wanted(world))
    random_policies.assert_holds(nat.chains, world.policy, world.family)
    assert change.plan.after == listing(nat.chains)
    assert not converge(engine.backend(nat, world.family), engine.wanted(world)).plan.actions


@given(engine.random_worlds(), st.data())
def test_conditions_that_iptables_does_not_print_in_postrouting_are_taken_into_account(
    world: World, data: t.Any
) -> None:
    chains = copy.deepcopy(world.chains)
    add_conditions(data, chains["POSTROUTING"], LEFT_OUT)
    nat = Nat(chains=chains)
    converge(engine.backend(nat, world.family), engine.wanted(world))
    random_policies.assert_holds(nat.chains, world.policy, world.family)
    assert random_policies.others(nat.chains) == random_policies.others(chains)
    assert not converge(engine.backend(nat, world.family), engine.wanted(world)).plan.actions


@given(engine.random_worlds(predecessors=False), st.integers(0, 5))
def test_an_unreadable_postrouting_keeps_from_nothing_but_the_deletion_of_jumps(world: World, number: int) -> None:
    chains = copy.deepcopy(world.chains)
    chains["POSTROUTING"].insert(min(number, len(chains["POSTROUTING"])), "-j ACCEPT" + UNREADABLE)
    nat = Nat(chains=chains)
    plan = converge(engine.backend(nat, world.family), engine.wanted(world)).plan
    rules = nat.chains["POSTROUTING"]
    jumps = [number for number, rule in enumerate(rules) if target(rule) == CHAIN]
    good = [number for number in jumps if random_policies.without_comment(rules[number]) == GOOD_JUMP]
    random_policies.assert_reachable([rule.replace(UNREADABLE, LEFT_OUT) for rule in rules[: good[0]]])
    assert nat.chains[CHAIN] == chains.get(CHAIN) or nat.chains[CHAIN] == engine.healthy(world.policy, world.family)
    assert random_policies.others(nat.chains) == random_policies.others(chains)
    assert len(plan.problems) == len(jumps) - len(good), "jumps with other conditions"
    assert plan.notes
    assert not converge(engine.backend(nat, world.family), engine.wanted(world)).plan.actions


@given(engine.random_worlds(), variants, st.integers(2, 4), st.data())
def test_second_jumps_stay_if_they_directly_follow_and_else_go(
    world: World, variant: str, count: int, data: t.Any
) -> None:
    nat = Nat(variant, world.chains)
    converge(engine.backend(nat, world.family), engine.wanted(world))
    rules = nat.chains["POSTROUTING"]
    (first, *_more) = [number for number, rule in enumerate(rules) if target(rule) == CHAIN]
    places = data.draw(st.lists(st.integers(0, len(rules)), min_size=count, max_size=count))
    for place in sorted(places, reverse=True):
        rules.insert(place, data.draw(st.sampled_from([random_policies.JUMP, " ".join(GOOD_JUMP)])))
    jumps = [number for number, rule in enumerate(rules) if target(rule) == CHAIN]
    follow = jumps == list(range(jumps[0], jumps[0] + len(jumps)))
    before = list(rules)
    plan = converge(engine.backend(nat, world.family), engine.wanted(world)).plan
    random_policies.assert_holds(nat.chains, world.policy, world.family)
    if follow:
        assert not plan.actions and nat.chains["POSTROUTING"] == before
    else:
        assert {action.kind for action in plan.actions} == {ActionKind.DUPLICATE_JUMP_REMOVED}
        assert len([rule for rule in nat.chains["POSTROUTING"] if target(rule) == CHAIN]) == 1


@given(engine.random_worlds(), variants, st.booleans())
def test_chains_to_which_others_lead_are_emptied_and_stay(world: World, variant: str, removal: bool) -> None:
    """In one transaction, which nothing refuses; they go once nothing leads to them."""
    gone = [name for name in (CHAIN, *random_policies.PREDECESSORS) if name in world.chains]
    for name in gone:
        world.chains["CNI-0123"].append("-j " + name)
    nat = Nat(variant, world.chains)
    backend = engine.backend(nat, world.family)
    wanted = None if removal else engine.wanted(world)
    done = converge(backend, wanted).plan
    assert len(nat.tried) == len(nat.commits) == bool(done.actions)
    stay = gone if removal else [name for name in gone if name != CHAIN]
    jumped = [target(rule) for rule in world.chains["POSTROUTING"]]
    stay = [name for name in stay if name == CHAIN or name in jumped]
    assert [name for name in stay if nat.chains[name]] == []
    assert [note.split()[2] for note in done.notes if "is empty and stays" in note] == stay
    assert nat.chains["CNI-0123"] == world.chains["CNI-0123"]
    assert not [rule for rule in nat.chains["POSTROUTING"] if target(rule) in stay]
    assert not converge(backend, wanted).plan.actions
    nat.chains["CNI-0123"].clear()
    if removal and CHAIN in gone:
        again = converge(backend, None).plan
        assert [action.kind for action in again.actions] == [ActionKind.CHAIN_REMOVED]
        assert CHAIN not in nat.chains
