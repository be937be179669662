# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated nat table of the unit tests does not lie: random damage goes through the real programs as well."""

from __future__ import annotations

import concurrent.futures
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Managed
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_backend import Iptables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nat_table import KernelRule, NftNat
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import converge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import Family
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import engine, random_policies
from support.namespaces import Namespace
from support.nat import Nat
from support.nat_rules import BUILTIN_CHAINS, Chains

COMMANDS = {"ipv4": "iptables", "ipv6": "ip6tables"}

T = t.TypeVar("T")


class NamespaceNat:
    """What the kernel says of the nat table of a namespace: a thread that has entered it asks."""

    def __init__(self, ns: Namespace, family: str) -> None:
        self._ns = ns
        self._nat = NftNat(Family(family))

    def _ask(self, question: t.Callable[[], T]) -> T:
        with concurrent.futures.ThreadPoolExecutor(1, initializer=self._ns.enter, initargs=("net",)) as thread:
            return thread.submit(question).result()

    def rules(self, chain: str) -> t.Optional[t.List[KernelRule]]:
        return self._ask(lambda: self._nat.rules(chain))

    def references(self, chain: str) -> int:
        return self._ask(lambda: self._nat.references(chain))

    def generation(self) -> t.Optional[int]:
        return self._ask(self._nat.generation)

    def is_dormant(self) -> bool:
        return self._ask(self._nat.is_dormant)


class Kernel:
    """The nat table of one family in one variant, in a namespace."""

    def __init__(self, ns: Namespace, backend: str, family: str) -> None:
        self.ns = ns
        self.backend = backend
        self.family = family
        self.command = COMMANDS[family] + {"iptables_nft": "-nft", "iptables_legacy": "-legacy"}[backend]
        self.transactions: t.List[str] = []

    def run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        """The collection's runner, inside the namespace."""
        if argv[0].endswith("-restore"):
            self.transactions.append(stdin or "")
        return run(self.ns.argv(*argv), stdin=stdin, timeout=timeout)

    def iptables(self) -> Iptables:
        nat = NamespaceNat(self.ns, self.family) if self.backend == "iptables_nft" else None
        tool = engine.iptables(self.run, self.backend, self.family, self.command)
        return Iptables(tool, Managed(random_policies.CHAIN), kernel=nat)

    def load(self, chains: Chains) -> None:
        """Replace the whole table."""
        lines = [":%s %s [0:0]" % (name, "ACCEPT" if name in BUILTIN_CHAINS else "-") for name in chains]
        lines += ["-A %s %s" % (name, rule) for name, rules in chains.items() for rule in rules]
        self.ns.run(self.command + "-restore", "-w", stdin="\n".join(["*nat", *lines, "COMMIT", ""]))

    def chains(self) -> Chains:
        """The whole table."""
        found: Chains = {}
        for line in self.ns.run(self.command, "-w", "-t", "nat", "-S").splitlines():
            verb, chain, rule = (line.split(" ", 2) + [""])[:3]
            found.setdefault(chain, [])
            if verb == "-A":
                found[chain].append(rule)
        return found


@pytest.mark.parametrize("backend", ["iptables_nft", "iptables_legacy"])
@pytest.mark.parametrize("present", [True, False], ids=["present", "absent"])
@settings(max_examples=20, suppress_health_check=list(HealthCheck))  # one namespace for all of them
@given(world=engine.random_worlds(), used=st.booleans())
def test_random_damage_is_repaired_by_the_kernel_as_the_simulation_says(
    ns: Namespace, backend: str, present: bool, world: random_policies.World, used: bool
) -> None:
    """Also if rules of other chains lead to those that have to go."""
    if used:
        ours = [name for name in (random_policies.CHAIN, *random_policies.PREDECESSORS) if name in world.chains]
        world.chains["CNI-0123"] += ["-j " + name for name in ours]
    kernel, nat = Kernel(ns, backend, world.family), Nat(backend, world.chains)
    kernel.load(world.chains)
    assert kernel.chains() == nat.chains, "the state is not printed as it was written"
    wanted = engine.wanted(world) if present else None
    real = converge(kernel.iptables(), wanted)
    simulated = converge(engine.backend(nat, world.family), wanted)
    # Notes name the program.
    assert real.plan._replace(notes=()) == simulated.plan._replace(notes=())
    assert len(real.plan.notes) == len(simulated.plan.notes)
    assert kernel.transactions == nat.tried
    assert kernel.chains() == nat.chains
    if present and not used:
        random_policies.assert_holds(kernel.chains(), world.policy, world.family)
    assert not converge(kernel.iptables(), wanted).plan.actions


#: Transactions that no kernel takes; ``A`` is a chain that POSTROUTING jumps to.
REFUSED = {
    "delete a rule that is not there": ["-D POSTROUTING -j ACCEPT"],
    "remove a chain that is jumped to": ["-F A", "-X A"],
    "remove a chain with rules in it": ["-D POSTROUTING -j A", "-X A"],
    "remove a chain that is not there": ["-X B"],
    "flush a chain that is not there": ["-F B"],
    "jump to a chain that is not there": ["-A POSTROUTING -j B"],
    "add to a chain that is not there": ["-A B -j RETURN"],
    "insert too far behind": ["-I POSTROUTING 9 -j ACCEPT"],
    "name a chain too long": [":%s - [0:0]" % ("x" * 29)],
    "a port that does not exist": ["-A A -p tcp -j MASQUERADE --to-ports 70000"],
    "ports without a protocol": ["-A A -j MASQUERADE --to-ports 1024"],
}


@pytest.mark.parametrize("backend", ["iptables_nft", "iptables_legacy"])
@pytest.mark.parametrize("why", REFUSED)
def test_what_the_simulation_refuses_the_kernel_refuses_as_a_whole(ns: Namespace, backend: str, why: str) -> None:
    chains = dict.fromkeys(BUILTIN_CHAINS, [])
    chains.update(A=["-j RETURN"], POSTROUTING=["-j A"])
    text = "\n".join(["*nat", ":C - [0:0]", *REFUSED[why], "COMMIT", ""])
    kernel, nat = Kernel(ns, backend, "ipv4"), Nat(backend, chains)
    kernel.load(chains)
    for table in (kernel, nat):
        done = table.run([kernel.command + "-restore", "-w", "5", "--noflush"], stdin=text)
        assert done.rc != 0, table
    assert kernel.chains() == nat.chains == chains


@pytest.mark.parametrize("backend", ["iptables_nft", "iptables_legacy"])
def test_the_simulation_answers_for_a_missing_chain_as_the_program_does(ns: Namespace, backend: str) -> None:
    kernel, nat = Kernel(ns, backend, "ipv4"), Nat(backend)
    argv = [kernel.command, "-w", "5", "-t", "nat", "-S", "NONE"]
    real, simulated = kernel.run(argv), nat.run(argv)
    assert real.rc == simulated.rc
    assert real.stderr.split(": ", 1)[1] == simulated.stderr.split(": ", 1)[1]
