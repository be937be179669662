# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A chain of ours in a table of iptables, with its jump from POSTROUTING: how it is read, planned and restored.

Only our chain and POSTROUTING are read, so that the cost does not grow with the cluster: ``iptables-save -t nat`` on a
node with 50,000 rules takes over a second, ``iptables -S CHAIN`` a few milliseconds.
"""

from __future__ import annotations

import re
import typing as t

from .._errors import NodeError
from .._policy.values import SKIP, belongs_to_others
from .._system.counter_listing import numbers
from .._system.iptables_tool import IptablesTool
from .._system.printable import shown, shown_all
from . import earlier_agents
from . import iptables_syntax as syntax
from . import rule_comments as comments
from .backend import (
    EXEMPT,
    LEAKED,
    MASQUERADED,
    OTHER,
    Action,
    ActionKind,
    Counted,
    Generation,
    Managed,
    rule_changes,
)
from .iptables_jump import JumpPlan, plan_jump
from .iptables_syntax import NAT, Jump, PostroutingRule
from .nat_table import KernelRule, NftNat, holds_no_more
from .ruleset import AnyRule, Guard

#: What iptables-nft says of a chain that holds what only nft can express. It may crash too (1.8.9, 1.8.11).
_CANNOT_PRINT = ("is incompatible, use 'nft' tool", "Parsing nftables rule failed")

#: How often our chain and POSTROUTING are read until both were read in the same generation of the kernel's rules, or,
#: where it does not count, can at least belong together.
_READS = 20

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_COUNTERS = r" -c [0-9]+ [0-9]+(?= -j \w+)"
_MASQUERADES = r" -c [0-9]+ [0-9]+ -j (?:MASQUERADE|SNAT)\b"


_STUCK = "iptables-restore cannot delete a jump of POSTROUTING to %s: %s. Delete it: %s"


class ListedChain(t.NamedTuple):
    """The rules of a chain, as iptables prints them."""

    rules: t.Tuple[str, ...]
    #: whether that is all that the chain holds
    whole: bool = True


EMPTY = ListedChain(())


class ChainState(t.NamedTuple):
    """Our part of a table and what is around it."""

    #: ours, and those of earlier agents that POSTROUTING still jumps to, as far as they are there
    chains: t.Mapping[str, ListedChain] = {}
    postrouting: t.Tuple[PostroutingRule, ...] = ()
    #: whether the table is dormant, so that no packet meets any of it
    dormant: bool = False
    #: of the kernel's rules; None if it was not the same from beginning to end, or the kernel does not count
    generation: Generation = Generation()
    #: of POSTROUTING
    policy: str = "ACCEPT"

    def jumps(self, chain: str) -> t.List[PostroutingRule]:
        """Return the rules of POSTROUTING that lead to a chain."""
        return [rule for rule in self.postrouting if rule.target == chain]


#: None is one that is not of our shape.
ReadRules = t.Sequence[t.Optional[AnyRule]]


class WantedChain(t.NamedTuple):
    """What a chain is to hold, and how POSTROUTING is to lead to it."""

    rules: t.Sequence[AnyRule]
    jump: Jump
    #: whether rules that are there do the same to packets
    means: t.Callable[[ReadRules], bool]
    #: value of the option jump_position
    position: str = "keep"


class ChainPlan(t.NamedTuple):
    """What becomes of a chain. Lines are those of a transaction for iptables-restore, without its frame."""

    actions: t.Sequence[Action]
    lines: t.Sequence[str]
    after: ChainState
    #: the rules before it
    rules: ReadRules = ()
    #: whether these mean what is wanted
    same: bool = False
    #: as in ``backend.Plan``
    notes: t.Tuple[str, ...] = ()
    problems: t.Tuple[str, ...] = ()


class _TornRead(Exception):
    """Another program wrote while a chain was read."""


class _Look(t.NamedTuple):
    """A chain: what iptables printed; None if it could not; and what the kernel says of it, if it was asked."""

    printed: t.Optional[t.Tuple[str, ...]]
    held: t.Optional[t.List[KernelRule]]
    #: of the chain, where iptables printed one
    policy: str = "ACCEPT"


class OwnedChain:
    """Reads and plans one.

    :param kernel: what the kernel says of the table of iptables-nft; None for iptables-legacy, which prints everything.
    """

    def __init__(self, tool: IptablesTool, managed: Managed, table: str, kernel: t.Optional[NftNat] = None) -> None:
        self._tool = tool
        self._table = table
        self._chain = managed.chain
        self._adopt = managed.adopt
        self._former = [name for name in managed.former if name != managed.chain]
        self._kernel = kernel
        #: what is in front of a rule that is shown, and behind what is said of a chain
        self._shown_as, self._where = ("", "") if table == NAT else ("-t %s " % table, " in the table " + table)

    def observe(self) -> ChainState:
        """Read it as it was at one time; see ``backend.Backend.observe``."""
        if not self._tool.has_table(self._table):
            return ChainState()
        last = None
        for _attempt in range(_READS):
            generation = self._generation()
            try:
                last = self._observe()
            except _TornRead:
                continue
            if generation is not None and generation == self._generation():
                return last._replace(generation=Generation(generation))
            # No rule leads to a chain that is not there.
            if generation is None and (self._chain in last.chains or not last.jumps(self._chain)):
                return last
        # Other programs may write so often that no two reads meet the same generation.
        if last is None:
            raise NodeError(
                "%s: other programs kept changing the %s table while it was read (%d attempts); run again"
                % (self._tool.path, self._table, _READS)
            )
        return last

    def _generation(self) -> t.Optional[int]:
        return None if self._kernel is None else self._kernel.generation()

    def _observe(self) -> ChainState:
        postrouting, policy = self._postrouting()
        earlier = [rule.target for rule in postrouting if self._is_earlier(rule)] + self._former
        # A jump that iptables-restore cannot delete keeps its chain, and would have the transaction refused.
        stuck = [rule.target for rule in postrouting if rule.deletion]
        names = [self._chain, *(name for name in earlier if name not in stuck)]
        read = ((name, self._read(name)) for name in dict.fromkeys(names))
        chains = {name: chain for name, chain in read if chain is not None}
        dormant = self._kernel is not None and self._kernel.is_dormant()
        return ChainState(chains, postrouting, dormant, policy=policy)

    def _is_earlier(self, rule: PostroutingRule) -> bool:
        """Return whether this is the jump of an earlier agent, or of ours under an earlier name of the chain."""
        if rule.target in ("", self._chain) or belongs_to_others(rule.target):
            return False
        if rule.target in self._former or rule.comment in (comments.JUMP, comments.LEAK_JUMP):
            return True
        return self._adopt and earlier_agents.has_jump(rule)

    def _look(self, chain: str) -> t.Optional[_Look]:
        """Read one chain; None if it is not there."""
        held = None
        if self._kernel is not None:
            held = self._kernel.rules(chain)
            if held is None:
                return None
            # The policy of POSTROUTING counts in nat.
            if not held and (self._table, chain) != (NAT, "POSTROUTING"):
                return _Look((), held)
        done = self._tool.list_chain(chain, self._table)
        if done.rc == 0:
            printed = syntax.printed_rules(done.stdout)
            look = _Look(printed, held)
            if held is not None and len(held) != len(printed):
                look = self._reconciled(chain, printed, held)
            policy = re.match(r"-P POSTROUTING (\w+)", done.stdout)
            return look._replace(policy=policy.group(1)) if policy else look
        if held is not None and (done.crashed or any(said in done.stderr for said in _CANNOT_PRINT)):
            return _Look(None, held)
        if "No chain/target/match by that name" in done.stderr or "does not exist" in done.stderr:
            return None
        raise self._tool.error("cannot read the chain %s%s" % (chain, self._where), done)

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

    def _read(self, chain: str) -> t.Optional[ListedChain]:
        look = self._look(chain)
        if look is None:
            return None
        if look.printed is None:
            return ListedChain((), whole=not look.held)
        return ListedChain(look.printed, look.held is None or holds_no_more(look.held, look.printed))

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
        by_hand = "%s -w -t %s -D POSTROUTING %d" % (self._tool.path, self._table, number)
        return rule._replace(whole=whole, deletion=by_hand if "\n" in rule.line else "")

    def _unprintable(self, rule: KernelRule) -> PostroutingRule:
        line = "-A POSTROUTING ... (handle %d; shown by: %s)" % (rule.handle, self._shown_by())
        by_hand = self._nft("delete rule", " POSTROUTING handle %d" % rule.handle)
        return PostroutingRule(line, rule.words, "", rule.complete, by_hand, True)

    def _shown_by(self) -> str:
        return self._nft("-a list chain", " POSTROUTING")

    def _nft(self, action: str, rest: str = "") -> str:
        """Return the command of nft with which a person acts on the table, or on what is in it."""
        return "nft %s %s %s%s" % (action, self._tool.family.nft, self._table, rest)

    def plan(self, state: ChainState, wanted: t.Optional[WantedChain]) -> ChainPlan:
        """Lead to a chain, or remove all of it; see ``backend.Backend.plan``."""
        plan = self._content(state.chains.get(self._chain), wanted)
        if wanted is None:
            jump = self._without_jumps(state)
        else:
            jump = plan_jump(wanted.jump, state.postrouting, state.chains, wanted.position)
        going = {name: chain for name, chain in state.chains.items() if name not in plan.after.chains}
        kept = self._kept(state, going)
        after = ChainState({**plan.after.chains, **dict.fromkeys(kept, EMPTY)}, jump.after, state.dormant)
        actions = [*plan.actions, *jump.actions, *self._chains_removed(going, kept)]
        plan = plan._replace(
            # Where it is not nat, the table is named with each rule.
            actions=[one._replace(rule=self._shown_as + one.rule) if one.rule[0] == "-" else one for one in actions],
            lines=[*jump.deletions, *plan.lines, *jump.insertions, *syntax.removal(list(going), kept)],
            after=after,
            notes=self._kept_notes(kept),
        )
        if wanted is None:
            return plan
        notes = self._notes(after) + jump.notes + plan.notes
        return plan._replace(notes=notes, problems=tuple(self._problems(after, wanted.jump)))

    def _content(self, there: t.Optional[ListedChain], wanted: t.Optional[WantedChain]) -> ChainPlan:
        """Plan for the rules of the chain alone."""
        if wanted is None:
            return ChainPlan([], [], ChainState(), self.parse(there), there is None)
        rendered = tuple(syntax.render_rule(self._chain, rule) for rule in wanted.rules)
        # Reading ten thousand rules takes a while, and most of the time they are the very text that we wrote.
        as_written = there == ListedChain(rendered)
        rules = wanted.rules if as_written else self.parse(there)
        if there is not None and (as_written or wanted.means(rules)):
            return ChainPlan([], [], ChainState({self._chain: there}), rules, True)
        actions = self._chain_actions(there, rules, dict(zip(wanted.rules, rendered)))
        lines = [":%s - [0:0]" % self._chain, *rendered]
        return ChainPlan(actions, lines, ChainState({self._chain: ListedChain(rendered)}), rules)

    def _without_jumps(self, state: ChainState) -> JumpPlan:
        jumps = [rule for rule in state.postrouting if rule.target in state.chains or self._is_earlier(rule)]
        stuck = next((rule for rule in jumps if rule.deletion), None)
        if stuck is not None:
            raise NodeError(_STUCK % (stuck.target, shown(stuck.line), stuck.deletion))
        kinds = {self._chain: ActionKind.JUMP_REMOVED}
        return JumpPlan(
            tuple(Action(kinds.get(rule.target, ActionKind.EARLIER_JUMP_REMOVED), shown(rule.line)) for rule in jumps),
            tuple(rule.deleted for rule in jumps),
            (),
            tuple(rule for rule in state.postrouting if rule not in jumps),
        )

    def _problems(self, state: ChainState, jump: Jump) -> t.Iterator[str]:
        """Return what no transaction of ours can repair."""
        if state.dormant:
            yield (
                "table %s is dormant (flags dormant), so none of its rules is active, including those of other "
                "programs. Activate it: %s" % (self._table, self._nft("add table"))
            )
        for rule in state.postrouting:
            unwanted = rule.target == self._chain and not rule.is_jump(jump)
            if rule.deletion and (unwanted or self._is_earlier(rule)):
                yield _STUCK % (rule.target, shown(rule.line), rule.deletion)

    def _notes(self, state: ChainState) -> t.Tuple[str, ...]:
        if not any(rule.unprintable for rule in state.postrouting):
            return ()
        return (
            "%s cannot print the rules of POSTROUTING%s, because some were written with nft and have no iptables form. "
            "The jump to %s was verified with the kernel; the other rules were examined in part only. List them "
            "with: %s" % (self._tool.path, self._where, self._chain, self._shown_by()),
        )

    def parse(self, chain: t.Optional[ListedChain]) -> t.List[t.Optional[AnyRule]]:
        """Return what rules mean; None is one that is not of our shape."""
        if chain is None:
            return []
        return [syntax.parse_rule(line, self._tool.family) for line in chain.rules] if chain.whole else [None]

    def _chain_actions(
        self, chain: t.Optional[ListedChain], rules: ReadRules, wanted: t.Mapping[AnyRule, str]
    ) -> t.List[Action]:
        """Return the actions that give the chain its rules, by what these mean; one without a meaning by its text."""
        name = "-N " + self._chain
        if chain is not None and not chain.whole:
            return [Action(ActionKind.CHAIN_REWRITTEN, name)]
        actions = [] if chain is not None else [Action(ActionKind.CHAIN_CREATED, name)]
        before = {rule or line: shown(line) for rule, line in zip(rules, chain.rules if chain else ())}
        actions += rule_changes(before, wanted, "rules of %s%s" % (self._chain, self._where))
        return actions or [Action(ActionKind.RULES_REORDERED, name)]

    def _kept(self, state: ChainState, going: t.Iterable[str]) -> t.List[str]:
        """Return the chains that can be emptied, but not deleted: rules of other chains lead to them."""
        found = []
        for name in going:
            count = self._tool.references(name, self._table) if self._kernel is None else self._kernel.references(name)
            others = count - len(state.jumps(name))
            if others > 0:
                # Our own chains are emptied or rewritten in the same transaction.
                ours = [line for chain in state.chains.values() for line in chain.rules]
                others -= sum(rule.target == name for rule in syntax.parse_postrouting(ours))
            if others > 0:
                found.append(name)
        return found

    def _kept_notes(self, chains: t.Iterable[str]) -> t.Tuple[str, ...]:
        shows = "%s-save -t %s" % (self._tool.path, self._table)
        shows = shows if self._kernel is None else self._nft("list table")
        text = "the chain %s is empty and stays, because a rule of another chain leads to it: delete that rule (%s)"
        return tuple(text % (name, shows) for name in chains)

    def _chains_removed(self, chains: t.Mapping[str, ListedChain], kept: t.Container[str]) -> t.Iterator[Action]:
        for name, chain in chains.items():
            if name not in kept:
                ours = name == self._chain
                yield Action(ActionKind.CHAIN_REMOVED if ours else ActionKind.EARLIER_CHAIN_REMOVED, "-N " + name)
            elif chain != EMPTY:
                yield Action(ActionKind.CHAIN_EMPTIED, "-N " + name)

    def listing(self, state: ChainState) -> t.Tuple[str, ...]:
        """Return all of it that is ours, as iptables takes it; of nat the rest of POSTROUTING too."""
        lines: t.List[str] = []
        for name, chain in state.chains.items():
            lines += ["-N " + name, *chain.rules]
            lines += [] if chain.whole else ["# %s holds more than iptables prints" % name]
        lines += [rule.line for rule in state.postrouting if self._table == NAT or rule.target in state.chains]
        return shown_all([self._shown_as + line for line in lines])

    def undo(self, state: ChainState, previous: ChainState) -> t.List[str]:
        """Return the lines that lead from ``state`` back to ``previous``; raise NodeError if there are none."""
        chains = previous.chains
        for name, chain in chains.items():
            if not chain.whole or any("\n" in rule for rule in chain.rules):
                raise NodeError("%s held rules that iptables-restore cannot write" % name)

        def moves(rule: PostroutingRule) -> bool:
            return rule.target in (self._chain, *chains) and not rule.deletion

        lines = [rule.deleted for rule in state.postrouting if moves(rule)]
        for name, chain in chains.items():
            lines += [":%s - [0:0]" % name, *chain.rules]
        if self._chain in state.chains and self._chain not in chains:
            lines += syntax.removal([self._chain])
        # The others' rules are not ours to restore: our jumps go to where they stood among them.
        there = [rule.line for rule in state.postrouting if not moves(rule)]
        for position, rule in enumerate(previous.postrouting):
            if moves(rule):
                index = min(position, len(there))
                lines.append(rule.inserted(index + 1))
                there.insert(index, rule.line)
        return lines

    def counted(self) -> t.List[Counted]:
        """See ``backend.Backend.counted``; nothing where the chain is not there."""
        listing = [*self._tool.resync_listing(self._chain, self._table), "-v"]
        done = self._tool.run(listing)
        if done.rc != 0:
            if not self._tool.has_table(self._table) or self._look(self._chain) is None:
                return []
            raise self._tool.error("cannot read the counters of the table %s" % self._table, done)
        counted = [(line, number) for line in syntax.printed_rules(done.stdout) for number in numbers(line)]
        kinds = "".join(self._counts(line) for line, _number in counted)
        return [Counted(tuple(listing), kinds, tuple(number for _line, number in counted))]

    def _counts(self, line: str) -> str:
        if comments.LEAK in line:
            return LEAKED
        if self._table != NAT:
            return OTHER
        if re.search(_MASQUERADES, line):
            return MASQUERADED
        if comments.EXEMPT in line:
            return EXEMPT
        rule = syntax.parse_rule(re.sub(_COUNTERS, "", line), self._tool.family)
        # What is left to later rules is neither exempt nor masqueraded by ours.
        return OTHER if isinstance(rule, Guard) or (rule is not None and rule.kind == SKIP) else EXEMPT

    def fingerprint(self) -> t.List[t.List[str]]:
        """See ``backend.Backend.fingerprint``."""
        return [self._tool.resync_listing(chain, self._table) for chain in ("POSTROUTING", self._chain)]
