# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nat table of a kernel, and its mangle table, simulated: strict, atomic, and quick enough for thousands of random
states.

It answers what the iptables backend may ask (``-S CHAIN``, ``-restore --noflush``, the rules of the kernel) in the
words of iptables 1.8, and fails the test on anything else. The tests of the kernel put the same states through the real
programs.
"""

from __future__ import annotations

import collections
import copy
import itertools
import re
import shlex
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nat_table import KernelRule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome

from .nat_rules import BUILTIN_CHAINS, UNREADABLE, Chains, printed, target, without_comment

BUILTIN_TARGETS = ("ACCEPT", "DROP", "RETURN", "MASQUERADE", "SNAT", "MARK")


class _Refused(Exception):
    """The transaction fails; the text is what iptables would say."""


class Nat:
    """One nat table. Rules are texts without ``-A CHAIN``, as ``iptables -S`` prints them.

    With iptables-nft it is also the kernel that tells what it holds.
    """

    def __init__(
        self,
        variant: str = "iptables_nft",
        chains: t.Optional[t.Mapping[str, t.Sequence[str]]] = None,
        table: str = "nat",
    ):
        self.variant = variant
        self.table = table
        #: the other table of the same kernel
        self.mangle: t.Optional[Nat] = Nat(variant, table="mangle") if table == "nat" else None
        self.chains: Chains = {name: [] for name in BUILTIN_CHAINS}
        self.chains.update((name, list(rules)) for name, rules in (chains or {}).items())
        #: transactions that were carried out, and all that were tried
        self.commits: t.List[str] = []
        self.tried: t.List[str] = []
        #: rules that the kernel silently does not keep
        self.loses: t.Callable[[str], bool] = lambda rule: False
        #: called before each program, and each question to the kernel: another program at work
        self.interloper: t.Callable[[], None] = lambda: None
        #: whether the kernel asks none of the chains
        self.dormant = False
        #: of POSTROUTING
        self.policy = "ACCEPT"
        #: what every program says while somebody holds the lock; empty: nobody does
        self.lock_message = ""
        self._generation = 1
        #: (chain, rule, how many of the same are before it) -> handle
        self._handles: t.DefaultDict[t.Tuple[str, str, int], int] = collections.defaultdict(itertools.count(1).__next__)
        self._seen = copy.deepcopy(self.chains)

    def generation(self) -> int:
        """Count the transactions, those of others included."""
        if self.chains != self._seen:
            self._generation += 1
            self._seen = copy.deepcopy(self.chains)
        return self._generation + (self.mangle.generation() if self.mangle else 0)

    def is_dormant(self) -> bool:
        """Return what the kernel says of the table."""
        return self.dormant

    def references(self, chain: str) -> int:
        """Count the rules that lead to a chain."""
        return sum(target(rule) == chain for rules in self.chains.values() for rule in rules)

    def rules(self, chain: str) -> t.Optional[t.List[KernelRule]]:
        """Return what the kernel says of a chain."""
        self.interloper()
        if chain not in self.chains:
            return None
        found = self.chains[chain]
        return [
            KernelRule(
                self._handles[chain, rule, found[:before].count(rule)],
                tuple(without_comment(printed(rule))),
                rule == printed(rule),
            )
            for before, rule in enumerate(found)
        ]

    def run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        """Answer in place of the collection's runner."""
        self.interloper()
        assert "-w" in argv or argv[0].endswith("-restore"), "no -w: %r" % (argv,)
        if self.lock_message:
            return Outcome(4, "", self.lock_message)
        if argv[0].endswith("-restore"):
            assert "--noflush" in argv, "this would flush the whole table: %r" % (argv,)
            restored = self.mangle if self.mangle and (stdin or "").startswith("*mangle\n") else self
            return restored._restore(stdin or "")
        words = list(argv[argv.index("-t") :])
        asked = self if words[1] == "nat" or not self.mangle else self.mangle
        if words[2:3] == ["-nL"] and words[3] in asked.chains:
            return Outcome(0, "Chain %s (%d references)\n" % (words[3], asked.references(words[3])), "")
        assert words[1] in ("nat", "mangle") and words[2] == "-S", "not simulated: %r" % (argv,)
        assert words[4:] in ([], ["-v"]), "not simulated: %r" % (argv,)
        done = asked._list(words[3])
        # No packet passes here.
        return done._replace(stdout=done.stdout.replace(" -j ", " -c 0 0 -j ")) if words[4:] else done

    def _list(self, chain: str) -> Outcome:
        if any(UNREADABLE in rule for rule in self.chains.get(chain, ())):
            return Outcome(3, "", "iptables v1.8.9 (nf_tables): Parsing nftables rule failed\n")
        if chain in self.chains:
            policy = self.policy if chain == "POSTROUTING" else "ACCEPT"
            head = "-P %s %s" % (chain, policy) if chain in BUILTIN_CHAINS else "-N %s" % chain
            return Outcome(
                0, "\n".join([head] + ["-A %s %s" % (chain, printed(r)) for r in self.chains[chain]]) + "\n", ""
            )
        if self.variant == "iptables_legacy":
            return Outcome(1, "", "iptables: No chain/target/match by that name.\n")
        said = "iptables v1.8.9 (nf_tables): chain `%s' in table `%s' is incompatible, use 'nft' tool.\n" % (
            chain,
            self.table,
        )
        return Outcome(1, "", said)

    def _restore(self, text: str) -> Outcome:
        self.generation()
        self.tried.append(text)
        lines = text.split("\n")[:-1]
        if lines[:1] != ["*" + self.table] or lines[-1:] != ["COMMIT"] or not text.endswith("\n"):
            return Outcome(2, "", "iptables-restore: not one table\n")
        work = copy.deepcopy(self.chains)
        for number, line in enumerate(lines[1:-1], 2):
            if line and not line.startswith("#"):
                try:
                    self._apply(work, line)
                except _Refused as exc:
                    return Outcome(1, "", "iptables-restore: line %d failed: %s.\n" % (number, exc))
        self.chains = work
        self._seen = copy.deepcopy(work)
        self._generation += 1
        self.commits.append(text)
        return Outcome(0, "", "")

    def _apply(self, work: Chains, line: str) -> None:
        if line.startswith(":"):
            name = line[1:].split()[0]
            assert name not in BUILTIN_CHAINS, "this flushes %s: %s" % (name, line)
            if not re.match(r"[^-!\s]\S{0,27}\Z", name):
                raise _Refused("Invalid chain name")
            work[name] = []
            return
        verb, name, rule = (line.split(" ", 2) + [""])[:3]
        if name not in work:
            raise _Refused("No chain/target/match by that name")
        rules = work[name]
        if verb == "-F":
            assert name not in BUILTIN_CHAINS, "this flushes %s" % name
            rules.clear()
        elif verb == "-X":
            used = any(target(other) == name for others in work.values() for other in others)
            if name in BUILTIN_CHAINS or rules or used:
                raise _Refused("CHAIN_DEL failed (Device or resource busy): chain %s" % name)
            del work[name]
        elif verb == "-D":
            same = [i for i, other in enumerate(rules) if shlex.split(printed(other)) == shlex.split(rule)]
            if any(UNREADABLE in other for other in rules[: (same + [len(rules)])[0]]):
                raise _Refused("Parsing nftables rule failed")
            if not same:
                raise _Refused("Bad rule (does a matching rule exist in that chain?)")
            del rules[same[0]]
        elif verb in ("-A", "-I"):
            position = len(rules)
            if verb == "-I":
                number, rule = rule.split(" ", 1)
                position = int(number) - 1
            if not 0 <= position <= len(rules):
                raise _Refused("Index of insertion too big")
            self._insert(work, rules, position, rule)
        else:
            raise AssertionError("not simulated: %s" % line)

    def _insert(self, work: Chains, rules: t.List[str], position: int, rule: str) -> None:
        if target(rule) not in BUILTIN_TARGETS and target(rule) not in work:
            raise _Refused("Chain '%s' does not exist" % target(rule))
        words = shlex.split(rule)
        if "--to-ports" in words:
            ports = words[words.index("--to-ports") + 1].split("-")
            if not all(1 <= int(port) <= 65535 for port in ports) or "-p" not in words:
                raise _Refused("Port not valid")
        if not self.loses(rule):
            rules.insert(position, rule)
