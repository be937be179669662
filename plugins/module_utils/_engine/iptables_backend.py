# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The iptables backend: one nat chain and one jump, in one variant (nft or legacy) and one family.

Only our chain and POSTROUTING are read, so that the cost does not grow with the cluster: ``iptables-save -t nat`` on a
node with 50,000 rules takes over a second, ``iptables -S CHAIN`` a few milliseconds. Everything is written by one
``iptables-restore --noflush``, which both variants carry out as a whole or not at all (atomic).
"""

from __future__ import annotations

import re
import typing as t

from .._errors import NodeError
from .._policy.policy import Config
from .._policy.values import PLACES, PLACES_BY_CHAIN, SKIP, belongs_to_others
from .._system.families import Family
from .._system.iptables_tool import RANDOM_FULLY_SINCE, IptablesTool, find_tool
from .._system.node import Node, Tool
from . import iptables_syntax as syntax
from . import rule_comments as comments
from .backend import (
    Action,
    ActionKind,
    CommitRefused,
    Counters,
    Former,
    Generation,
    Managed,
    PartlyRefused,
    Plan,
    Transaction,
    View,
)
from .iptables_before_jump import front
from .iptables_jump import plan_jump
from .iptables_syntax import PostroutingRule
from .leak_chain import TABLE, LeakChain, LeakPlan, LeakState, chain_changes, fields
from .nat_table import KernelRule, NftNat, holds_no_more, nft_command
from .other_nat import other_rules
from .ruleset import AnyRule, Guard, Ruleset, from_rules

#: What iptables-nft says of a chain that holds what only nft can express. It may crash too (1.8.9, 1.8.11).
_CANNOT_PRINT = ("is incompatible, use 'nft' tool", "Parsing nftables rule failed")

#: How often our chain and POSTROUTING are read until both were read in the same generation of the kernel's rules, and
#: until, where others write all the time, they can at least belong together.
_SAME_GENERATION = 4
_READS = 20

#: More rules than this are not made of combinations of sources, interfaces and ranges.
_COMBINED_RULES = 4096

_WITHOUT_LEAKS = "%s. The rules of nat are active; those about leaks (table %s) are as they were"

# Patterns are text: a start that compiled all of them took 2.8 % longer.
#: What can be a rule that leaves traffic to later rules: what that counts is neither exempt nor masqueraded.
_GUARDED = r"-A \S+ (?:-s|-o|-m mark|.*-m conntrack) "
_COUNTED = r" -c ([0-9]+) ([0-9]+) -j (\w+)"
_FAILED_LINE = r"line:? (\d+)"
_POLICY = r"-P POSTROUTING (\w+)"


class Chain(t.NamedTuple):
    """The rules of a chain, as iptables prints them."""

    rules: t.Tuple[str, ...]
    #: whether that is all that the chain holds
    whole: bool = True


_EMPTY = Chain(())


class State(t.NamedTuple):
    """Our part of the nat table and what is around it. A chain that is not there is none."""

    chain: t.Optional[Chain]
    postrouting: t.Tuple[PostroutingRule, ...]
    #: chains of earlier agents that POSTROUTING still jumps to
    predecessors: t.Tuple[t.Tuple[str, Chain], ...] = ()
    #: whether the table is dormant, so that no packet meets any of it
    dormant: bool = False
    #: of the kernel's rules; None if it was not the same from beginning to end, or the kernel does not count
    generation: Generation = Generation()
    #: of POSTROUTING
    policy: str = "ACCEPT"
    #: our part of the mangle table
    leaks: LeakState = LeakState()

    def jumps(self, chain: str) -> t.List[PostroutingRule]:
        """Return the rules of POSTROUTING that lead to a chain."""
        return [rule for rule in self.postrouting if rule.target == chain]

    def is_plain(self, chain: str) -> bool:
        """Return whether what iptables printed and what the kernel holds agree in all that is ours.

        If not, another program may have written in between.
        """
        return (
            (self.chain is None or self.chain.whole)
            and all(rule.whole for rule in self.jumps(chain))
            and not any(rule.unprintable for rule in self.postrouting)
        )


class _TornRead(Exception):
    """Another program wrote while a chain was read."""


class _Look(t.NamedTuple):
    """A chain: what iptables printed; None if it could not; and what the kernel says of it, if it was asked."""

    printed: t.Optional[t.Tuple[str, ...]]
    held: t.Optional[t.List[KernelRule]]
    #: of the chain, where iptables printed one
    policy: str = "ACCEPT"


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
        self._adopt = managed.adopt
        self._former = [name for name in managed.former if name != managed.chain]
        self._kernel = kernel
        self._position = managed.position
        self._leaks = LeakChain(tool, [self._chain, *self._former], managed.leaks, mangle)

    def observe(self) -> State:
        leaks = self._leaks.observe()
        if not self._tool.has_table("nat"):
            return State(None, (), leaks=leaks)
        return self._observe_nat()._replace(leaks=leaks)

    def _observe_nat(self) -> State:
        last = None
        for attempt in range(1, _READS + 1):
            generation = self._generation()
            try:
                state = self._observe()
            except _TornRead:
                continue
            if generation is not None and generation == self._generation():
                return state._replace(generation=Generation(generation))
            if state.chain is None and state.jumps(self._chain):
                # No rule leads to a chain that is not there.
                continue
            # Other programs may write so often that no two reads meet the same generation.
            if state.is_plain(self._chain) and (self._kernel is None or attempt >= _SAME_GENERATION):
                return state
            last = state
        if last is None:
            raise NodeError(
                "%s: other programs kept changing the nat table while it was read (%d attempts); run again"
                % (self._tool.path, _READS)
            )
        return last

    def _generation(self) -> t.Optional[int]:
        return None if self._kernel is None else self._kernel.generation()

    def _observe(self) -> State:
        postrouting, policy = self._postrouting()
        names = dict.fromkeys([rule.target for rule in postrouting if self._is_predecessor(rule)] + self._former)
        # A jump that iptables-restore cannot delete keeps its chain, and would have the transaction refused.
        stuck = [rule.target for rule in postrouting if rule.deletion]
        read = [(name, self._read(name)) for name in names if name not in stuck]
        predecessors = tuple((name, chain) for name, chain in read if chain is not None)
        dormant = self._kernel is not None and self._kernel.is_dormant()
        return State(self._read(self._chain), postrouting, predecessors, dormant, policy=policy)

    def _is_predecessor(self, rule: PostroutingRule) -> bool:
        """Return whether this is the jump of an earlier agent, or of ours under an earlier name of the chain."""
        if rule.target in ("", self._chain) or belongs_to_others(rule.target):
            return False
        if rule.target in self._former or rule.comment == comments.JUMP:
            return True
        # Some releases of ip-masq-agent put literal quotes around the comment.
        earlier = rule.target in syntax.PREDECESSOR_CHAINS or rule.comment.lstrip('"').startswith(comments.PREFIX)
        return self._adopt and earlier

    def _look(self, chain: str) -> t.Optional[_Look]:
        """Read one chain; None if it is not there."""
        held = None
        if self._kernel is not None:
            held = self._kernel.rules(chain)
            if held is None:
                return None
        done = self._tool.list_chain(chain)
        if done.rc == 0:
            printed = syntax.printed_rules(done.stdout)
            look = _Look(printed, held)
            if held is not None and len(held) != len(printed):
                look = self._reconciled(chain, printed, held)
            policy = re.match(_POLICY, done.stdout)
            return look._replace(policy=policy.group(1)) if policy else look
        if held is not None and (done.crashed or any(said in done.stderr for said in _CANNOT_PRINT)):
            return _Look(None, held)
        if "No chain/target/match by that name" in done.stderr or "does not exist" in done.stderr:
            return None
        raise self._tool.error("cannot read the chain %s" % chain, done)

    def _reconciled(self, chain: str, printed: t.Tuple[str, ...], held: t.List[KernelRule]) -> _Look:
        """Read a chain again whose rule count in the kernel differs from iptables' output.

        :raises _TornRead: another program wrote in between, and it cannot be told what the chain holds.
        """
        after = (self._kernel and self._kernel.rules(chain)) or []
        if len(after) == len(printed):
            return _Look(printed, after)
        if len(printed) < len(held) and [rule.handle for rule in after] == [rule.handle for rule in held]:
            return _Look(None, held)  # iptables-nft 1.8.7 leaves out whole rules
        raise _TornRead

    def _read(self, chain: str) -> t.Optional[Chain]:
        look = self._look(chain)
        if look is None:
            return None
        if look.printed is None:
            return Chain((), whole=not look.held)
        return Chain(look.printed, look.held is None or holds_no_more(look.held, look.printed))

    def _postrouting(self) -> t.Tuple[t.Tuple[PostroutingRule, ...], str]:
        """Read the rules of POSTROUTING and its policy."""
        look = self._look("POSTROUTING")
        if look is None:
            return (), "ACCEPT"
        if look.printed is None:
            return tuple(self._unprintable(rule) for rule in look.held or ()), look.policy
        printed = enumerate(syntax.parse_postrouting(look.printed), 1)
        return tuple(self._printed(number, rule, look.held) for number, rule in printed), look.policy

    def _printed(self, number: int, rule: PostroutingRule, held: t.Optional[t.Sequence[KernelRule]]) -> PostroutingRule:
        """Add to a rule of POSTROUTING that iptables printed what the kernel knows of it."""
        there = None if held is None else held[number - 1]
        whole = there is None or (there.complete and syntax.conditions(rule.words) == syntax.conditions(there.words))
        # iptables-restore reads line by line.
        return rule._replace(whole=whole, deletion=self._deletion(number, there) if "\n" in rule.line else "")

    def _unprintable(self, rule: KernelRule) -> PostroutingRule:
        line = "-A POSTROUTING ... (handle %d; shown by: %s)" % (rule.handle, self._shown_by())
        return PostroutingRule(line, rule.words, "", rule.complete, self._deletion(0, rule), True)

    def _deletion(self, number: int, rule: t.Optional[KernelRule]) -> str:
        """Return the command that deletes one rule of POSTROUTING."""
        if rule is not None:
            return nft_command("delete rule", self.family, " POSTROUTING handle %d" % rule.handle)
        return "%s -w -t nat -D POSTROUTING %d" % (self._tool.path, number)

    def _shown_by(self) -> str:
        return nft_command("-a list chain", self.family, " POSTROUTING")

    def plan(self, state: State, wanted: t.Optional[Ruleset]) -> Plan:
        if wanted is None:
            return self._plan_removal(state)
        rules_wanted = wanted.rules
        if wanted.combinations > 1:
            # With accept, each rule that exempts has one in front of it.
            count = sum(1 for rule in rules_wanted if isinstance(rule, Guard) or not rule.state)
            if count > _COMBINED_RULES:
                raise NodeError(
                    "%s: the policy takes %d rules, more than %d, because an iptables rule has one source, "
                    "destination, interface and range of ports: shorten the lists, or set backend to nftables"
                    % (self._tool.path, count, _COMBINED_RULES)
                )
        rendered = tuple(syntax.render_rule(self._chain, rule) for rule in rules_wanted)
        # Reading ten thousand rules takes a while, and most of the time they are the very text that we wrote.
        as_written = state.chain == Chain(rendered)
        rules = [] if as_written else self._parse(state.chain)
        leaks = self._leaks.plan(state.leaks, wanted, self.family)
        found = wanted if as_written else _as_ruleset(rules)
        found = found and found._replace(**leaks.found)
        if state.chain is not None and _means(found, wanted):
            chain, lines, actions = state.chain, [], []
        else:
            chain, lines = Chain(rendered), list(rendered)
            actions = self._chain_actions(state, rules, wanted, rendered)
        names = [name for name, _rules in state.predecessors]
        jump = plan_jump(self._chain, state.postrouting, names, self._position)
        lines = [*jump.deletions, *lines, *jump.insertions]
        if chain != state.chain:
            lines.insert(0, ":%s - [0:0]" % self._chain)
        going = dict(state.predecessors)
        kept = self._kept(state, going)
        lines += syntax.removal(names, kept)
        actions += [*jump.actions, *self._chains_removed(going, kept)]
        after = State(chain, jump.after, tuple((name, _EMPTY) for name in kept), state.dormant)
        plan = self._as_plan(state, after, actions, lines, found, wanted, leaks)
        unreadable = (state.leaks.problem,) if state.leaks.problem and wanted.leak_rules else ()
        return plan._replace(
            problems=self._problems(after) + unreadable, notes=self._notes(after) + jump.notes + self._kept_notes(kept)
        )

    def _problems(self, state: State) -> t.Tuple[str, ...]:
        """Return what no transaction of ours can repair."""
        found = []
        if state.dormant:
            found.append(
                "table nat is dormant (flags dormant), so none of its rules is active, including those of other "
                "programs. Activate it: %s" % nft_command("add table", self.family)
            )
        for rule in state.postrouting:
            unwanted = rule.target == self._chain and not rule.is_jump(self._chain)
            if rule.deletion and (unwanted or self._is_predecessor(rule)):
                found.append(
                    "POSTROUTING holds an unwanted jump to %s that iptables-restore cannot delete: %s. Delete it: "
                    "%s" % (rule.target, syntax.shown(rule.line), rule.deletion)
                )
        return tuple(found)

    def _notes(self, state: State) -> t.Tuple[str, ...]:
        if not any(rule.unprintable for rule in state.postrouting):
            return ()
        return (
            "%s cannot print the rules of POSTROUTING, because some were written with nft and have no iptables form. "
            "The jump to %s was verified with the kernel; the other rules were examined in part only. List them "
            "with: %s" % (self._tool.path, self._chain, self._shown_by()),
        )

    def _parse(self, chain: t.Optional[Chain]) -> t.List[t.Optional[AnyRule]]:
        if chain is None:
            return []
        return [syntax.parse_rule(line, self.family) for line in chain.rules] if chain.whole else [None]

    def _chain_actions(
        self, state: State, rules: t.Sequence[t.Optional[AnyRule]], wanted: Ruleset, rendered: t.Sequence[str]
    ) -> t.List[Action]:
        if state.chain is not None and not state.chain.whole:
            return [Action(ActionKind.CHAIN_REWRITTEN, "-N " + self._chain)]
        lines = state.chain.rules if state.chain is not None else None
        actions = chain_changes(self._chain, lines, rules, dict(zip(wanted.rules, rendered)))
        return actions or [Action(ActionKind.RULES_REORDERED, "-N " + self._chain)]

    def _kept(self, state: State, going: t.Mapping[str, Chain]) -> t.List[str]:
        """Return the chains that can be emptied, but not deleted: rules of other chains lead to them."""
        found = []
        counts = self._tool if self._kernel is None else self._kernel
        for name in going:
            others = counts.references(name) - len(state.jumps(name))
            if others > 0:
                # Our own chains are emptied or rewritten in the same transaction.
                ours = [state.chain or _EMPTY, *dict(state.predecessors).values()]
                others -= sum(rule.target == name for chain in ours for rule in syntax.parse_postrouting(chain.rules))
            if others > 0:
                found.append(name)
        return found

    def _kept_notes(self, chains: t.Iterable[str]) -> t.Tuple[str, ...]:
        shows = "%s-save -t nat" % self._tool.path
        shows = shows if self._kernel is None else nft_command("list table", self.family)
        text = "the chain %s is empty and stays, because a rule of another chain leads to it: delete that rule (%s)"
        return tuple(text % (name, shows) for name in chains)

    def _chains_removed(self, chains: t.Mapping[str, Chain], kept: t.Container[str]) -> t.Iterator[Action]:
        for name, chain in chains.items():
            if name not in kept:
                ours = name == self._chain
                yield Action(ActionKind.CHAIN_REMOVED if ours else ActionKind.EARLIER_CHAIN_REMOVED, "-N " + name)
            elif chain != _EMPTY:
                yield Action(ActionKind.CHAIN_EMPTIED, "-N " + name)

    def _plan_removal(self, state: State) -> Plan:
        chains = {} if state.chain is None else {self._chain: state.chain}
        chains.update(state.predecessors)
        names = list(chains)
        jumps = [rule for rule in state.postrouting if rule.target in names or self._is_predecessor(rule)]
        stuck = [rule for rule in jumps if rule.deletion]
        if stuck:
            raise NodeError(
                "cannot remove the chain %s, because iptables-restore cannot delete a jump to it: %s. Delete it: %s; "
                "then run again" % (stuck[0].target, syntax.shown(stuck[0].line), stuck[0].deletion)
            )
        kept = self._kept(state, chains)
        actions = []
        for rule in jumps:
            ours = rule.target == self._chain
            kind = ActionKind.JUMP_REMOVED if ours else ActionKind.EARLIER_JUMP_REMOVED
            actions.append(Action(kind, syntax.shown(rule.line)))
        actions += self._chains_removed(chains, kept)
        found = _as_ruleset(self._parse(state.chain))
        leaks = self._leaks.plan(state.leaks, None, self.family)
        lines = [rule.deleted for rule in jumps] + syntax.removal(names, kept)
        after = State(
            _EMPTY if self._chain in kept else None,
            tuple(rule for rule in state.postrouting if rule.target not in names),
            tuple((name, _EMPTY) for name in kept if name != self._chain),
        )
        plan = self._as_plan(state, after, actions, lines, found and found._replace(**leaks.found), None, leaks)
        return plan._replace(view=View((), None), notes=self._kept_notes(kept))

    def _as_plan(
        self,
        before: State,
        after: State,
        actions: t.Sequence[Action],
        lines: t.Sequence[str],
        found: t.Optional[Ruleset],
        wanted: t.Optional[Ruleset],
        leaks: LeakPlan,
    ) -> Plan:
        after = after._replace(leaks=leaks.after)
        return Plan(
            (*actions, *leaks.actions),
            (_transaction(lines) if actions else ()) + (_transaction(leaks.lines, TABLE) if leaks.actions else ()),
            self._listing(before),
            self._listing(after),
            self._view(after, wanted),
            self._view(before, found),
            others=other_rules(after.postrouting, self._jump(after), before.policy),
            former=self._former_rules(before, after, found) if actions or leaks.actions else Former(),
        )

    def _former_rules(self, before: State, after: State, found: t.Optional[Ruleset]) -> Former:
        """Return what decides about connections before a plan is carried out.

        :param found: what our chain means; None: it is not of our shape, or not there.
        """
        chains = dict(before.predecessors)
        if before.chain is not None:
            chains[self._chain] = before.chain
        jumps = [] if before.dormant else [rule for rule in before.postrouting if rule.target in chains]
        rulesets = []
        for name in dict.fromkeys(rule.target for rule in jumps):
            chain = chains[name]
            if chain.whole and not chain.rules:
                continue
            ruleset = found if name == self._chain else _as_ruleset(self._parse(chain))
            rulesets.append(ruleset if any(rule.leads_all_to(name) for rule in jumps) else None)
        first, last = (self._in_front(state, (self._chain, *chains)) for state in (before, after))
        reached = not any(rule.shuts_out_the_rest for rule in first)
        moved = [rule.line for rule in first] != [rule.line for rule in last]
        return front(first, last, self.family)._replace(
            rulesets=tuple(rulesets) if reached else (), moved=moved and bool(rulesets) and bool(self._jump(after) >= 0)
        )

    @staticmethod
    def _in_front(state: State, chains: t.Container[str]) -> t.Tuple[PostroutingRule, ...]:
        """Return the rules of POSTROUTING before those that lead to one of some chains; all of them if none does."""
        end = next((i for i, rule in enumerate(state.postrouting) if rule.target in chains), None)
        return state.postrouting[:end]

    def _jump(self, state: State) -> int:
        """Return the number of our jump in POSTROUTING, a good one if there is one; -1 if there is none."""
        ours = [i for i, rule in enumerate(state.postrouting) if rule.target == self._chain]
        good = [i for i in ours if state.postrouting[i].is_jump(self._chain)]
        return (good + ours + [-1])[0]

    def _view(self, state: State, ruleset: t.Optional[Ruleset]) -> View:
        jump = self._jump(state)
        rules = state.chain.rules if state.chain is not None else ()
        # A chain that nothing jumps to means nothing.
        in_force = ruleset if jump >= 0 and not state.dormant else None
        line = syntax.shown(state.postrouting[jump].line) if jump >= 0 else None
        return View(syntax.shown_all(rules), line, in_force, syntax.shown_all(state.leaks.lines))

    def _listing(self, state: State) -> t.Tuple[str, ...]:
        chains = ((self._chain, state.chain),) + state.predecessors
        lines: t.List[str] = []
        for name, chain in chains:
            if chain is not None:
                lines += ("-N " + name,) + chain.rules
                lines += [] if chain.whole else ["# %s holds more than iptables prints" % name]
        return syntax.shown_all(lines + [rule.line for rule in state.postrouting] + state.leaks.lines)

    def is_alone(self, before: State, transaction: Transaction, now: State) -> bool:
        if self._kernel is not None:
            return now.generation.follows(before.generation, len(transaction))
        # iptables-legacy does not count. Others flush, delete a jump, or write rules of their own. Where some of our
        # rules are left and nothing else has changed, the rest was not kept.
        prefix = "-A %s " % self._chain
        nat = [text for text in transaction if text.startswith("*nat")]
        written = {line for text in nat for line in text.split("\n") if line.startswith(prefix)}
        kept = set(now.chain.rules if now.chain is not None else ())
        same = _others(before, self._chain) == _others(now, self._chain)
        return bool(kept) and kept < written and same and self.observe() == now

    def undo(self, state: State, previous: State) -> Transaction:
        chains = {self._chain: previous.chain}
        chains.update(previous.predecessors)
        for name, chain in chains.items():
            if chain is not None and not (chain.whole and all("\n" not in rule for rule in chain.rules)):
                raise NodeError("%s held rules that iptables-restore cannot write" % name)

        def moves(rule: PostroutingRule) -> bool:
            return rule.target in chains and not rule.deletion

        lines = [rule.deleted for rule in state.postrouting if moves(rule)]
        for name, chain in chains.items():
            if chain is not None:
                lines += [":%s - [0:0]" % name] + list(chain.rules)
            elif state.chain is not None:
                lines += ["-F " + name, "-X " + name]
        # The others' rules are not ours to restore: our jumps go to where they stood among them.
        there = [rule.line for rule in state.postrouting if not moves(rule)]
        for position, rule in enumerate(previous.postrouting):
            if moves(rule):
                index = min(position, len(there))
                lines.append(rule.inserted(index + 1))
                there.insert(index, rule.line)
        leaks = self._leaks.undo(state.leaks, previous.leaks)
        return _transaction(lines) + (_transaction(leaks, TABLE) if leaks else ())

    def commit(self, transaction: Transaction) -> None:
        """See ``backend.Backend.commit``. The rules of nat come first: no others are as important."""
        for number, text in enumerate(transaction):
            try:
                self._restore(text)
            except CommitRefused as exc:
                if not text.startswith("*%s\n" % TABLE):
                    raise
                raise PartlyRefused(_WITHOUT_LEAKS % (exc, TABLE), transaction[number:]) from None

    def _restore(self, text: str) -> None:
        done = self._tool.restore(text)
        if done.rc == 0:
            return
        lines = text.split("\n")
        failed = [int(number) for number in re.findall(_FAILED_LINE, done.stderr) if 0 < int(number) <= len(lines)]
        what = "refused the rules" + (", at '%s'" % lines[failed[0] - 1] if failed else "")
        raise self._tool.error(what, done, CommitRefused)

    def counters(self) -> Counters:
        done = self._tool.list_chain(self._chain, "-v")
        total = Counters()
        for line in syntax.printed_rules(done.stdout):
            found = re.search(_COUNTED, line)
            if found and not self._is_skipped(line):
                counted = (int(found.group(1)), int(found.group(2)))
                masqueraded = found.group(3) in ("MASQUERADE", "SNAT")
                total = total.plus(Counters(0, 0, *counted) if masqueraded else Counters(*counted))
        return total._replace(leaked_packets=self._leaks.counted())

    def _is_skipped(self, line: str) -> bool:
        """Return whether a rule leaves traffic to later rules, so that it is neither exempt nor masqueraded by ours."""
        possible = comments.SKIPPED in line or re.match(_GUARDED, line)
        rule = syntax.parse_rule(_uncounted(line), self.family) if possible else None
        return isinstance(rule, Guard) or (rule is not None and rule.kind == SKIP)

    def fingerprint(self) -> t.List[t.List[str]]:
        listings = [self._tool.resync_listing(chain) for chain in ("POSTROUTING", self._chain)]
        return listings + self._leaks.fingerprint()


class IptablesType:
    """What the backend types iptables_nft and iptables_legacy share. See ``backend.BackendType``."""

    name = ""
    exemptions: t.Tuple[str, ...] = ("return", "accept")
    like_return: t.Tuple[str, ...] = ()
    positions: t.Tuple[str, ...] = PLACES + PLACES_BY_CHAIN
    package = "iptables"
    random_fully_since: t.Tuple[int, ...] = RANDOM_FULLY_SINCE
    is_last_resort = False

    def is_installed(self, node: Node, family: Family) -> bool:
        return self.tool(node, family) is not None

    def tool(self, node: Node, family: Family) -> t.Optional[Tool]:
        return find_tool(node, self.name, family)

    def notes(self, config: Config) -> t.Iterator[str]:
        return iter(())


def _uncounted(line: str) -> str:
    return re.sub(_COUNTED, r" -j \3", line)


def _means(found: t.Optional[Ruleset], wanted: Ruleset) -> bool:
    """Return whether our chain means what is wanted, whatever the other one says about leaks."""
    found = found and found._replace(**fields(wanted))
    if found is None or found == wanted:
        return found is not None
    # Imported here: to load it takes 9 of 270 ms of the module ip_masq, and most chains are the text that we wrote.
    from .changed_packets import same_meaning

    return same_meaning(wanted, found)


def _transaction(lines: t.Sequence[str], table: str = "nat") -> Transaction:
    return ("\n".join(["*" + table, *lines, "COMMIT", ""]),)


def _as_ruleset(rules: t.Sequence[t.Optional[AnyRule]]) -> t.Optional[Ruleset]:
    read = [rule for rule in rules if rule is not None]
    return from_rules(read) if read and len(read) == len(rules) else None


def _others(state: State, chain: str) -> t.List[str]:
    return [rule.line for rule in state.postrouting if rule.target != chain]
