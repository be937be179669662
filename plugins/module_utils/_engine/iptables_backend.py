# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The iptables backend: one chain and its jump in nat, and in mangle, in one variant (nft or legacy) and one family.

Nat sees the first packet of each connection. What conntrack finds invalid, and what it does not track, has no
connection, so it leaves with the address that it has in mangle, which comes before nat. There the policy has a chain of
the same name, with a jump for these packets alone.

Each table is written by one ``iptables-restore --noflush``, which both variants carry out as a whole or not at all
(atomic).
"""

from __future__ import annotations

import re
import typing as t

from .._errors import LockHeld, NodeError
from .._policy.values import PLACES, PLACES_BY_CHAIN
from .._system.families import FAMILIES, Family
from .._system.iptables_tool import RANDOM_FULLY_SINCE, IptablesTool, find, find_tool
from .._system.node import Node, Tool
from .._system.printable import shown, shown_all
from . import iptables_syntax as syntax
from .backend import (
    BackendType,
    CommitRefused,
    Counted,
    Former,
    Managed,
    PartlyRefused,
    Plan,
    Transaction,
    View,
)
from .iptables_chain import EMPTY, ChainPlan, ChainState, OwnedChain, WantedChain
from .iptables_syntax import MANGLE, NAT, PostroutingRule
from .nat_table import NftNat
from .other_rules import remarks
from .ruleset import AnyRule, Guard, Ruleset
from .ruleset_in_front import front
from .ruleset_of_rules import from_rules, leak_fields

#: More rules than this are not made of combinations of sources, interfaces and ranges.
_COMBINED_RULES = 4096

#: Chains that the kubelet keeps in the mangle table of the variant that it uses (KEP-3178).
_KUBELET_HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")


class IptablesState(t.NamedTuple):
    """Our chains in both tables."""

    nat: ChainState = ChainState()
    leaks: ChainState = ChainState()
    #: why mangle could not be read, which keeps nothing else from being done
    problem: str = ""


class Iptables:
    """See ``backend.Backend``.

    :param managed: the chain; where its jump is in POSTROUTING, see ``iptables_jump``.
    :param kernel: what the kernel says of the table of iptables-nft; None for iptables-legacy, which prints everything.
    :param mangle: the same of the mangle table.
    """

    def __init__(
        self, tool: IptablesTool, managed: Managed, kernel: t.Optional[NftNat] = None, mangle: t.Optional[NftNat] = None
    ) -> None:
        self.name = tool.variant
        self.family = tool.family
        self._tool = tool
        self._chain = managed.chain
        self._jump = syntax.nat_jump(managed.chain)
        self._position = managed.position
        self._exemption = managed.exemption
        self._nat = OwnedChain(tool, managed, NAT, kernel)
        self._leaks = OwnedChain(tool, managed, MANGLE, mangle)
        #: those that a policy like this has
        self._asked = [self._nat, self._leaks][: 1 + managed.leaks]
        self._counts_transactions = kernel is not None

    def observe(self) -> IptablesState:
        leaks, problem = ChainState(), ""
        try:
            leaks = self._leaks.observe()
        except LockHeld:
            raise
        except NodeError as exc:
            problem = "leaks: %s" % exc
        return IptablesState(self._nat.observe(), leaks, problem)

    def plan(self, state: IptablesState, wanted: t.Optional[Ruleset]) -> Plan:
        nat = self._nat.plan(state.nat, None if wanted is None else self._wanted(wanted))
        leaks = self._plan_leaks(state, wanted)
        found = wanted if nat.same else _as_ruleset(nat.rules)
        if found is not None:
            found = found._replace(
                **(_leak_fields(wanted) if wanted and leaks.same else leak_fields(leaks.rules, nat.rules))
            )
        after = IptablesState(nat.after, leaks.after)
        # Without rules to be here they are in another backend.
        exemption, elsewhere = (wanted.verdict.lower(), "") if wanted else (self._exemption, self.name)
        actions = (*nat.actions, *leaks.actions)
        return Plan(
            actions,
            (_transaction(nat.lines) if nat.actions else ())
            + (_transaction(leaks.lines, MANGLE) if leaks.actions else ()),
            self._listing(state),
            self._listing(after),
            self._view(after, wanted),
            self._view(state, found),
            nat.problems + leaks.problems,
            nat.notes + leaks.notes,
            tuple(remarks(after.nat.postrouting, self._jump_of(after.nat), state.nat.policy, exemption, elsewhere)),
            self._former_rules(state.nat, after.nat, found) if actions else Former(),
        )

    def _wanted(self, wanted: Ruleset) -> WantedChain:
        """Return the chain in nat.

        :raises NodeError: it would have too many rules.
        """
        rules = wanted.rules
        if wanted.combinations > 1:
            # With accept, each rule that exempts has one in front of it.
            count = sum(1 for rule in rules if isinstance(rule, Guard) or not rule.state)
            if count > _COMBINED_RULES:
                raise NodeError(
                    "%s: the policy takes %d rules, more than %d, because an iptables rule has one source, "
                    "destination, interface and range of ports: shorten the lists, or set backend to nftables"
                    % (self._tool.path, count, _COMBINED_RULES)
                )
        return WantedChain(rules, self._jump, lambda there: _means(_as_ruleset(there), wanted), self._position)

    def _plan_leaks(self, state: IptablesState, wanted: t.Optional[Ruleset]) -> ChainPlan:
        """Plan for the chain in mangle. Nothing about it keeps nat from being repaired."""
        rules = () if wanted is None else wanted.leak_rules
        if state.problem:
            return ChainPlan((), (), state.leaks, problems=(state.problem,) if rules else ())
        chain = None
        if wanted is not None and rules:
            jump = syntax.leak_jump(self._chain, first=bool(wanted.missing))
            chain = WantedChain(rules, jump, lambda there: tuple(there) == rules)
        try:
            return self._leaks.plan(state.leaks, chain)
        except NodeError as exc:
            return ChainPlan((), (), state.leaks, problems=("leaks: %s" % exc,))

    def _former_rules(self, before: ChainState, after: ChainState, found: t.Optional[Ruleset]) -> Former:
        """Return what decides about connections before a plan is carried out.

        :param found: what our chain means; None: it is not of our shape, or not there.
        """
        chains = before.chains
        jumps = [] if before.dormant else [rule for rule in before.postrouting if rule.target in chains]
        rulesets = []
        for name in dict.fromkeys(rule.target for rule in jumps):
            chain = chains[name]
            if chain.whole and not chain.rules:
                continue
            ruleset = found if name == self._chain else _as_ruleset(self._nat.parse(chain))
            rulesets.append(ruleset if any(rule.leads_all_to(name) for rule in jumps) else None)
        first, last = (self._in_front(state, (self._chain, *chains)) for state in (before, after))
        reached = not any(rule.shuts_out_the_rest for rule in first)
        moved = [rule.line for rule in first] != [rule.line for rule in last]
        return front(first, last, self.family)._replace(
            rulesets=tuple(rulesets) if reached else (),
            moved=moved and bool(rulesets) and bool(self._jump_of(after) >= 0),
        )

    @staticmethod
    def _in_front(state: ChainState, chains: t.Container[str]) -> t.Tuple[PostroutingRule, ...]:
        """Return the rules of POSTROUTING before those that lead to one of some chains; all of them if none does."""
        end = next((i for i, rule in enumerate(state.postrouting) if rule.target in chains), None)
        return state.postrouting[:end]

    def _jump_of(self, state: ChainState) -> int:
        """Return the number of our jump in POSTROUTING, a good one if there is one; -1 if there is none."""
        ours = [i for i, rule in enumerate(state.postrouting) if rule.target == self._chain]
        good = [i for i in ours if state.postrouting[i].is_jump(self._jump)]
        return (good + ours + [-1])[0]

    def _view(self, state: IptablesState, ruleset: t.Optional[Ruleset]) -> View:
        nat, jump = state.nat, self._jump_of(state.nat)
        # A chain that nothing jumps to means nothing.
        in_force = ruleset if jump >= 0 and not nat.dormant else None
        line = shown(nat.postrouting[jump].line) if jump >= 0 else None
        return View(shown_all(self._rules(nat)), line, in_force, self._leaks.listing(state.leaks))

    def _rules(self, nat: ChainState) -> t.Tuple[str, ...]:
        return nat.chains.get(self._chain, EMPTY).rules

    def _listing(self, state: IptablesState) -> t.Tuple[str, ...]:
        return self._nat.listing(state.nat) + self._leaks.listing(state.leaks)

    def is_alone(self, before: IptablesState, transaction: Transaction, now: IptablesState) -> bool:
        if self._counts_transactions:
            return now.nat.generation.follows(before.nat.generation, len(transaction))
        # iptables-legacy does not count. Others flush, delete a jump, or write rules of their own. Where some of our
        # rules are left and nothing else has changed, the rest was not kept.
        prefix = "-A %s " % self._chain
        nat = [text for text in transaction if text.startswith("*nat")]
        written = {line for text in nat for line in text.split("\n") if line.startswith(prefix)}
        kept = set(self._rules(now.nat))
        same = _others(before.nat, self._chain) == _others(now.nat, self._chain)
        return bool(kept) and kept < written and same and self.observe() == now

    def undo(self, state: IptablesState, previous: IptablesState) -> Transaction:
        leaks: t.Sequence[str] = ()
        if state.leaks != previous.leaks and not (state.problem or previous.problem):
            leaks = self._leaks.undo(state.leaks, previous.leaks)
        nat = self._nat.undo(state.nat, previous.nat)
        return _transaction(nat) + (_transaction(leaks, MANGLE) if leaks else ())

    def commit(self, transaction: Transaction) -> None:
        """See ``backend.Backend.commit``. The rules of nat come first: no others are as important."""
        for number, text in enumerate(transaction):
            try:
                self._restore(text)
            except CommitRefused as exc:
                if not text.startswith("*%s\n" % MANGLE):
                    raise
                active = "%s. The rules of nat are active; those about leaks (table mangle) are as they were" % exc
                raise PartlyRefused(active, transaction[number:]) from None

    def _restore(self, text: str) -> None:
        done = self._tool.restore(text)
        if done.rc == 0:
            return
        lines = text.split("\n")
        failed = [int(number) for number in re.findall(r"line:? (\d+)", done.stderr) if 0 < int(number) <= len(lines)]
        what = "refused the rules" + (", at '%s'" % lines[failed[0] - 1] if failed else "")
        raise self._tool.error(what, done, CommitRefused)

    def counted(self) -> t.List[Counted]:
        return [one for chain in self._asked for one in chain.counted()]

    def fingerprint(self) -> t.List[t.List[str]]:
        return [listing for chain in self._asked for listing in chain.fingerprint()]


class IptablesType(BackendType):
    """What the backend types iptables_nft and iptables_legacy share. See ``backend.BackendType``."""

    exemptions: t.Tuple[str, ...] = ("return", "accept")
    positions: t.Tuple[str, ...] = PLACES + PLACES_BY_CHAIN
    package = "iptables"
    random_fully_since: t.Tuple[int, ...] = RANDOM_FULLY_SINCE

    def is_installed(self, node: Node, family: Family) -> bool:
        return self.tool(node, family) is not None

    def tool(self, node: Node, family: Family) -> t.Optional[Tool]:
        return find_tool(node, self.name, family)

    def has_hint(self, node: Node) -> bool:
        """Return whether the kubelet has left its hint."""
        tools = [find(node, self.name, family) for family in FAMILIES]
        able = [tool for tool in tools if tool and tool.has_table(MANGLE)]
        return any(tool.list_chain(hint, MANGLE).rc == 0 for tool in able for hint in _KUBELET_HINTS)


def _leak_fields(ruleset: Ruleset) -> t.Dict[str, t.Any]:
    return {name: getattr(ruleset, name) for name in ("leaks", "hidden", "missing")}


def _means(found: t.Optional[Ruleset], wanted: Ruleset) -> bool:
    """Return whether our chain means what is wanted, whatever the other one says about leaks."""
    found = found and found._replace(**_leak_fields(wanted))
    if found is None or found == wanted:
        return found is not None
    # Imported here: to load it takes 9 of 270 ms of the module ip_masq, and most chains are the text that we wrote.
    from .changed_packets import same_meaning

    return same_meaning(wanted, found)


def _transaction(lines: t.Sequence[str], table: str = NAT) -> Transaction:
    return ("\n".join(["*" + table, *lines, "COMMIT", ""]),)


def _as_ruleset(rules: t.Sequence[t.Optional[AnyRule]]) -> t.Optional[Ruleset]:
    read = [rule for rule in rules if rule is not None]
    return from_rules(read) if read and len(read) == len(rules) else None


def _others(state: ChainState, chain: str) -> t.List[str]:
    return [rule.line for rule in state.postrouting if rule.target != chain]
