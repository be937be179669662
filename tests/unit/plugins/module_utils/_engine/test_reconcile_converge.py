# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One backend, one policy: what a kernel that others write to, that loses rules, or that is locked does to a run."""

from __future__ import annotations

import copy
import itertools
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import ATTEMPTS, converge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import LockHeld, NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import selinux_labels
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from hypothesis import given
from hypothesis import strategies as st
from support import engine, random_policies
from support.nat import Nat
from support.nat_rules import target
from support.random_policies import CHAIN, World

WANTED = from_config(build({}), IPV4)
KUBE = '-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING'


class Others:
    """Another program that keeps changing its own rules of POSTROUTING, at the moments that it was told."""

    def __init__(self, nat: Nat, changes: t.Mapping[int, t.Sequence[t.Tuple[str, int, str]]]) -> None:
        self.nat = nat
        self.changes = changes
        self.calls = 0
        self.wants = random_policies.others(nat.chains)["POSTROUTING"]
        nat.interloper = self.act

    def act(self) -> None:
        for verb, number, rule in self.changes.get(self.calls, ()):
            rules = self.nat.chains["POSTROUTING"]
            theirs = [i for i, one in enumerate(rules) if target(one) != CHAIN]
            place = number % (len(theirs) + 1)
            if verb == "insert":
                rules.insert(theirs[place] if place < len(theirs) else len(rules), rule)
                self.wants.insert(place, rule)
            elif verb == "delete" and place < len(theirs):
                del rules[theirs[place]], self.wants[place]
            elif verb == "take our jump":
                random_policies.drop_jumps(self.nat.chains)
            elif verb == "flush our chain" and CHAIN in self.nat.chains:
                self.nat.chains[CHAIN].clear()
        self.calls += 1


FOREIGN = st.sampled_from(["-j KUBE-POSTROUTING", "-j OTHER", "-j ACCEPT", "-o eth1 -j MASQUERADE", "-p udp -j RETURN"])
variants = st.sampled_from(["iptables_nft", "iptables_legacy"])
CHANGES = st.dictionaries(
    st.integers(0, 24),
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "insert", "delete", "take our jump", "flush our chain"]),
            st.integers(0, 5),
            FOREIGN,
        ),
        max_size=3,
    ),
    max_size=6,
)


@given(engine.random_worlds(predecessors=False), CHANGES)
def test_others_at_work_end_in_sync_or_in_an_honest_error_and_never_lose_a_rule(world: World, changes: t.Any) -> None:
    nat = Nat(chains=world.chains)
    others = Others(nat, changes)
    try:
        converge(engine.backend(nat, world.family), engine.wanted(world))
    except NodeError as exc:
        assert "another program" in str(exc) or "refused the rules" in str(exc)
    else:
        if others.calls > max(changes, default=0):
            random_policies.assert_holds(nat.chains, world.policy, world.family)
    assert random_policies.others(nat.chains)["POSTROUTING"] == others.wants
    assert len(nat.tried) <= ATTEMPTS + 1


@given(engine.random_worlds(predecessors=False), st.sets(st.integers(0, 40)), variants)
def test_flushes_by_others_never_bring_the_old_policy_back(world: World, when: t.Set[int], variant: str) -> None:
    """As ``iptables -t nat -F`` and ``iptables-restore`` do it, at any time, also between two reads of one look."""
    nat = Nat(variant, world.chains)
    times = iter(range(10**6))

    def flush() -> None:
        if next(times) in when:
            for rules in nat.chains.values():
                rules.clear()

    nat.interloper = flush
    wanted = set(engine.healthy(world.policy, world.family))
    try:
        converge(engine.backend(nat, world.family), engine.wanted(world))
    except NodeError as exc:
        assert "another program" in str(exc) or "refused the rules" in str(exc)
    else:
        if next(times) > max(when, default=0):
            random_policies.assert_holds(nat.chains, world.policy, world.family)
    prefix = "-A %s " % CHAIN
    written = {line[len(prefix) :] for text in nat.commits for line in text.split("\n") if line.startswith(prefix)}
    assert written in (set(), wanted), "what was written is not the policy that was asked for"


def test_a_table_that_never_holds_still_ends_after_a_bounded_number_of_tries() -> None:
    nat = Nat(chains={CHAIN: [], "POSTROUTING": []})
    turn = [0]

    def toggle() -> None:  # a jump that is there when looked for and gone when deleted, and the other way round
        turn[0] += 1
        nat.chains["POSTROUTING"] = ["-p tcp -m comment --comment %d -j %s" % (turn[0], CHAIN)]

    nat.interloper = toggle
    with pytest.raises(NodeError, match="refused the rules"):
        converge(engine.backend(nat), WANTED)
    assert ATTEMPTS <= len(nat.tried) <= ATTEMPTS + 1


@given(engine.configs, st.integers(0, 30), st.integers(2, 4))
def test_rules_of_others_that_come_and_go_do_not_keep_from_a_removal(config: t.Any, first: int, questions: int) -> None:
    """Read between two of the kernel's answers, such a rule looks like one that iptables does not print."""
    wanted = from_config(config, IPV4)
    nat = Nat("iptables_nft")
    converge(engine.backend(nat, IPV4), wanted)
    calls = itertools.count(first)

    def come_and_go() -> None:
        number, rest = divmod(next(calls), questions)
        if rest == 0:
            nat.chains["POSTROUTING"] = [rule for rule in nat.chains["POSTROUTING"] if "round" not in rule]
            if number % 2:
                rule = '-m comment --comment "round %d" -j KUBE-POSTROUTING' % number
                nat.chains["POSTROUTING"].insert(0, rule)

    nat.interloper = come_and_go
    converge(engine.backend(nat, IPV4), None)
    assert CHAIN not in nat.chains and not [rule for rule in nat.chains["POSTROUTING"] if CHAIN in rule]


def test_a_refusal_that_nobody_else_caused_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = {CHAIN: ["-j RETURN"], "POSTROUTING": [KUBE], "KUBE-POSTROUTING": [], "OTHER": ["-j " + CHAIN]}
    nat = Nat(chains=chains)
    # As if the rule of OTHER came when that was asked already.
    monkeypatch.setattr(nat, "references", lambda chain: 0)
    with pytest.raises(NodeError, match="refused the rules, at '-X %s'.*Nothing was changed" % CHAIN):
        converge(engine.backend(nat), None)
    assert len(nat.tried) == 1
    assert nat.chains == Nat(chains=chains).chains


@pytest.mark.parametrize(
    "said",
    [
        "iptables-restore: Warning: Extension MASQUERADE revision 0 not supported, missing kernel module?",
        "iptables-restore v1.8.9 (legacy): Couldn't load target `MASQUERADE':No such file or directory",
        "iptables-restore: unable to initialize table 'nat'\ncan't initialize iptables table",
    ],
)
def test_a_kernel_without_the_modules_is_distinguished_from_other_failures(said: str) -> None:
    nat = Nat()
    backend = engine.backend(nat)
    backend._tool.run = lambda argv, **how: Outcome(2, "", said) if "-restore" in argv[0] else nat.run(argv, **how)
    with pytest.raises(NodeError, match="kernel-modules-extra.*Nothing was changed"):
        converge(backend, WANTED)


def test_a_missing_capability_is_no_missing_module() -> None:
    nat = Nat()
    backend = engine.backend(nat)
    said = "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)"
    backend._tool.run = lambda argv, **how: Outcome(3, "", said)
    with pytest.raises(NodeError, match="lacks CAP_NET_ADMIN") as raised:
        converge(backend, WANTED)
    assert "module" not in str(raised.value)


def test_a_label_of_selinux_is_no_missing_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nat = Nat()
    backend = engine.backend(nat)
    said = "Fatal: can't open lock file /run/xtables.lock: Permission denied"
    backend._tool.run = lambda argv, **how: Outcome(4, "", said)
    with pytest.raises(NodeError, match="lacks CAP_NET_ADMIN"):
        converge(backend, WANTED)
    monkeypatch.setattr(selinux_labels, "_ENABLED", str(tmp_path))
    with pytest.raises(NodeError, match="run 'restorecon /run/xtables.lock'"):
        converge(backend, WANTED)


@given(engine.random_worlds(), st.sampled_from(["MASQUERADE", "RETURN", "addrtype"]))
def test_a_kernel_that_does_not_keep_a_rule_gets_its_previous_state_back(world: World, lost: str) -> None:
    nat = Nat(chains=world.chains)
    before = copy.deepcopy(nat.chains)
    nat.loses = lambda rule: len(nat.commits) < 2 and "ip-masq-agent: " in rule and lost in rule
    try:
        converge(engine.backend(nat, world.family), engine.wanted(world))
    except NodeError as exc:
        assert "verification failed: the kernel" in str(exc)
        assert "(The previous state was restored.)" in str(exc) or "(Nothing was changed.)" in str(exc)
        assert nat.chains == before
    else:
        random_policies.assert_holds(nat.chains, world.policy, world.family)


def test_a_write_that_cannot_be_verified_does_not_claim_that_nothing_happened() -> None:
    nat = Nat()

    def lock_after_the_write() -> None:
        nat.lock_message = LOCKED if nat.commits else ""

    nat.interloper = lock_after_the_write
    with pytest.raises(NodeError, match="written") as failed:
        converge(engine.backend(nat), WANTED)
    assert not isinstance(failed.value, LockHeld), "LockHeld promises that the node is as it was"


LOCKED = "Another app is currently holding the xtables lock. Perhaps you want to use the -w option?\n"


def test_a_lock_taken_between_reading_and_writing_leaves_all_as_it_was() -> None:
    nat = Nat("iptables_legacy")
    backend = engine.backend(nat)
    commit = backend.commit

    def locked_commit(transaction: t.Any) -> None:
        nat.lock_message = LOCKED
        commit(transaction)

    backend.commit = locked_commit
    with pytest.raises(LockHeld, match="lock_timeout"):
        converge(backend, WANTED)
    assert nat.chains == Nat().chains


def test_a_lock_without_a_holder_is_held_by_an_unknown_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", os.devnull + "-that-does-not-exist")
    nat = Nat("iptables_legacy")
    nat.lock_message = LOCKED
    with pytest.raises(LockHeld, match="an unknown process"):
        converge(engine.backend(nat), WANTED)
