# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every backend keeps the contract of support.backend_contract, and one more is one line in the registry.

Here over simulated nodes, where there is a simulation; tests/kernel/test_backend_contract.py has all of them, for real.
"""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import backend_choice
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import (
    Action,
    ActionKind,
    BackendType,
    CommitRefused,
    Counted,
    Managed,
    Plan,
    Transaction,
    View,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import reconcile
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset_of_rules import from_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, IPV4, IPV6, Family
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node, Tool
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support import engine
from support.backend_contract import CONTRACT, Place
from support.machine import LEGACY, NFT, Machine

REGISTERED = {kind.name: kind for kind in backend_choice.BACKENDS}


class Memory:
    """What the engine needs of a backend, no more. A transaction is the number of a ruleset that was planned."""

    name = "memory"

    def __init__(self, kernel: MemoryType, family: Family) -> None:
        self.family = family
        self._kernel = kernel

    def observe(self) -> t.Optional[Ruleset]:
        return self._kernel.rules.get(self.family)

    def plan(self, state: t.Optional[Ruleset], wanted: t.Optional[Ruleset]) -> Plan:
        found = _view(state)
        if state == wanted or engine.same(wanted, state):
            return Plan((), (), found.rules, found.rules, found, found)
        kind = ActionKind.TABLE_REMOVED if wanted is None else ActionKind.TABLE_CREATED
        after = _view(wanted)
        return Plan((Action(kind, "rules"),), self._transaction(wanted), found.rules, after.rules, after, found)

    def _transaction(self, wanted: t.Optional[Ruleset]) -> Transaction:
        if wanted not in self._kernel.planned:
            self._kernel.planned.append(wanted)
        return ("put %d\n" % self._kernel.planned.index(wanted),)

    def is_alone(self, before: t.Optional[Ruleset], transaction: Transaction, now: t.Optional[Ruleset]) -> bool:
        # Nothing is known of others.
        return False

    def undo(self, state: t.Optional[Ruleset], previous: t.Optional[Ruleset]) -> Transaction:
        return self._transaction(previous)

    def commit(self, transaction: Transaction) -> None:
        words = transaction[0].split()
        if words[:1] != ["put"]:
            raise CommitRefused("memory refused the rules")
        wanted = self._kernel.planned[int(words[1])]
        self._kernel.writes += 1
        if wanted is None:
            del self._kernel.rules[self.family]
        else:
            self._kernel.rules[self.family] = wanted

    def counted(self) -> t.List[Counted]:
        return []

    def fingerprint(self) -> t.List[t.List[str]]:
        return [["memory", self.family]]


def _view(ruleset: t.Optional[Ruleset]) -> View:
    if ruleset is None:
        return View((), None)
    found = from_rules(ruleset.rules)
    rules = tuple(map(str, ruleset.rules + ruleset.leak_rules))
    leaks = {name: getattr(ruleset, name) for name in ("leaks", "hidden", "missing")}
    return View(rules, None, found and found._replace(**leaks))


class MemoryType:
    """See ``BackendType``. It holds what a kernel would."""

    name = "memory"
    exemptions: t.Tuple[str, ...] = ("return", "accept")
    like_return: t.Tuple[str, ...] = ()
    positions: t.Tuple[str, ...] = ("keep",)
    package = "memory"
    random_fully_since: t.Tuple[int, ...] = ()
    is_last_resort = False
    sign = ""

    def __init__(self) -> None:
        self.rules: t.Dict[str, Ruleset] = {}
        self.planned: t.List[t.Optional[Ruleset]] = []
        self.writes = 0

    def run(self, argv: t.Sequence[str]) -> Outcome:
        """Print the rules of a family, as the fingerprint's command would."""
        return Outcome(0, repr(self.rules.get(argv[1])), "")

    def is_installed(self, node: Node, family: Family) -> bool:
        return True

    def tool(self, node: Node, family: Family) -> t.Optional[Tool]:
        return Tool("/usr/sbin/memory", (7, 0))

    def is_in_use(self, node: Node, used_before: t.Optional[str]) -> bool:
        return True

    def kernel_supports(self, node: Node) -> bool:
        return True

    def is_left(self, family: Family, chain: str) -> bool:
        return False

    def make(self, node: Node, family: Family, managed: Managed) -> t.Optional[Memory]:
        return Memory(self, family)

    def notes(self, config: Config) -> t.Iterator[str]:
        yield "memory forgets"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryType:
    """A third kind of backend, registered in the one place there is."""
    kind = MemoryType()
    monkeypatch.setattr(backend_choice, "BACKENDS", (*backend_choice.BACKENDS, t.cast(BackendType, kind)))
    return kind


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [NFT, LEGACY])
@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_iptables(machine: Machine, name: str, family: str, promise: t.Callable[[Place], None]) -> None:
    def everything() -> str:
        nat = machine.nat[name, family]
        return repr((nat.chains, machine.legacy_tables, len(nat.commits)) if name == NFT else nat.chains)

    promise(Place(REGISTERED[name], machine.node(), family, lambda argv: machine.run(argv).stdout, everything))


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_a_third_one(machine: Machine, memory: MemoryType, promise: t.Callable[[Place], None]) -> None:
    place = Place(memory, machine.node(), IPV4, lambda argv: memory.run(argv).stdout, lambda: repr(memory.rules))
    promise(place)


def test_a_third_one_is_chosen_and_used(machine: Machine, memory: MemoryType) -> None:
    config = policy.build({"enable_ipv6": True})
    done = reconcile(machine.node(), config)
    assert (done.backend, done.version, done.errors) == ("memory", "7.0", ())
    assert sorted(memory.rules) == [IPV4, IPV6] and machine.writes() == []
    assert "memory forgets" in done.notes
    assert not reconcile(machine.node(), config).changed and memory.writes == 2
    assert reconcile(machine.node(), config._replace(backend=NFT)).backend == NFT
    assert memory.rules == {}, "left-over rules stayed"


def test_a_third_one_that_lacks_what_is_asked_for_is_not_chosen(machine: Machine, memory: MemoryType) -> None:
    assert backend_choice.choose(machine.node(), "auto", "enforce").name == "nftables"


def test_the_policy_has_the_registered_backends_as_choices() -> None:
    assert policy.BACKENDS == ("auto", *REGISTERED)
    supported = {exemption for kind in REGISTERED.values() for exemption in kind.exemptions}
    assert supported == set(policy.EXEMPTIONS)
