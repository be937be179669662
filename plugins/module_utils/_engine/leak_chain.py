# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The second chain of the iptables backend: packets that nat does not see, in the mangle table.

Nat sees the first packet of each connection. What conntrack finds invalid, and what it does not track, has no
connection, so it leaves with the address that it has in mangle, which comes before nat. The chain has the name of the
one in nat, and a jump of its own for these packets alone.
"""

from __future__ import annotations

import re
import typing as t

from .._errors import LockHeld, NodeError
from .._policy.values import SKIP
from .._system.families import Family
from .._system.iptables_tool import IptablesTool
from . import iptables_syntax as syntax
from . import rule_comments as comments
from .backend import Action, ActionKind, rule_changes
from .iptables_syntax import PostroutingRule
from .nat_table import NftNat, holds_no_more
from .ruleset import COUNT, DROP, IGNORE, LEAK, MULTICAST, AnyRule, Rule, Ruleset

TABLE = "mangle"

#: How a rule of this table is shown beside those of nat: as iptables takes it.
_SHOWN = "-t %s " % TABLE

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_PACKETS = r" -c ([0-9]+) [0-9]+"


class LeakState(t.NamedTuple):
    """Our part of the mangle table, and what is around it."""

    #: chains of ours that are there, those of former names too, with the rules that iptables prints
    chains: t.Tuple[t.Tuple[str, t.Tuple[str, ...]], ...] = ()
    postrouting: t.Tuple[PostroutingRule, ...] = ()
    #: chains that hold more than iptables prints
    torn: t.Tuple[str, ...] = ()
    #: why it could not be read
    problem: str = ""

    @property
    def names(self) -> t.List[str]:
        """The names of the chains."""
        return [name for name, _rules in self.chains]

    @property
    def lines(self) -> t.List[str]:
        """All of it that is ours, as iptables takes it."""
        found = [line for name, rules in self.chains for line in ("-N " + name, *rules)]
        found += [rule.line for rule in self.postrouting if rule.target in self.names]
        return [_SHOWN + line for line in found]


class LeakPlan(t.NamedTuple):
    """What becomes of it. Lines are those of a transaction for iptables-restore, without its frame."""

    actions: t.Tuple[Action, ...]
    lines: t.Tuple[str, ...]
    after: LeakState
    #: leaks, hidden and missing of the ruleset before it
    found: t.Mapping[str, t.Any] = {"leaks": IGNORE, "hidden": (), "missing": ()}


class LeakChain:
    """Reads and plans our part of the mangle table of one family.

    :param names: of the chain, and former ones. :param wanted: whether the policy has rules for it.
    :param kernel: what the kernel says of the table of iptables-nft; None for iptables-legacy.
    """

    def __init__(
        self, tool: IptablesTool, names: t.Sequence[str], wanted: bool, kernel: t.Optional[NftNat] = None
    ) -> None:
        self._tool = tool
        self._names = names
        self._wanted = wanted
        self._kernel = kernel

    def observe(self) -> LeakState:
        """Read it. That it cannot be read keeps nothing else from being done."""
        try:
            return self._observe()
        except LockHeld:
            raise
        except NodeError as exc:
            return LeakState(problem="leaks: %s" % exc)

    def _observe(self) -> LeakState:
        if not self._tool.has_table(TABLE):
            return LeakState()
        postrouting = syntax.parse_postrouting(self._read("POSTROUTING") or ())
        # Under another name of the chain the comment of the jump is the same.
        jumped_to = [rule.target for rule in postrouting if rule.comment == comments.LEAK_JUMP and rule.target]
        read = [(name, self._read(name)) for name in dict.fromkeys([*self._names, *jumped_to])]
        chains = tuple((name, rules) for name, rules in read if rules is not None)
        state = LeakState(chains, postrouting)
        return state if self._kernel is None else state._replace(torn=tuple(self._torn(state, self._kernel)))

    def _read(self, chain: str) -> t.Optional[t.Tuple[str, ...]]:
        """Read the rules of a chain; None if there is no such chain."""
        if self._kernel is not None:
            held = self._kernel.rules(chain)
            if held is None:
                return None
            if not held:
                return ()
        done = self._tool.list_chain(chain, table=TABLE)
        if done.rc == 0:
            return syntax.printed_rules(done.stdout)
        if "No chain/target/match by that name" in done.stderr or "does not exist" in done.stderr:
            return None
        raise self._tool.error("cannot read the chain %s of the table %s" % (chain, TABLE), done)

    @staticmethod
    def _torn(state: LeakState, kernel: NftNat) -> t.Iterator[str]:
        """Return the chains in which the kernel holds other rules of ours than iptables prints."""
        for name, rules in state.chains:
            if not holds_no_more(kernel.rules(name) or [], rules):
                yield name
        mine = [rule for rule in kernel.rules("POSTROUTING") or [] if rule.words and rule.words[-1] in state.names]
        printed = [rule for rule in state.postrouting if rule.target in state.names]
        if len(mine) != len(printed) or not all(rule.complete for rule in mine):
            yield "POSTROUTING"

    def plan(self, state: LeakState, wanted: t.Optional[Ruleset], family: Family) -> LeakPlan:
        """Lead to the rules of ``wanted``, or remove all of it."""
        rules = () if wanted is None else wanted.leak_rules
        if state.problem:
            return LeakPlan((), (), state)
        chain = self._names[0]
        there = dict(state.chains)
        parsed = [syntax.parse_rule(line, family) for line in there.get(chain, ())]
        rendered = tuple(syntax.render_rule(chain, rule) for rule in rules)
        same = chain in there and chain not in state.torn and (there[chain] == rendered or parsed == list(rules))
        found = _found(parsed)
        if wanted is not None and (same or not (rules or chain in there)):
            found = fields(wanted)
        jump, after = self._jump(state, bool(rules), wanted is not None and bool(wanted.missing))
        unused = [name for name in there if name != chain or not rules]
        actions: t.List[Action] = []
        lines = [rule.deleted for rule in jump]
        if rules and not same:
            actions += chain_changes(chain, there.get(chain), parsed, dict(zip(rules, rendered)), TABLE)
            actions = actions or [Action(ActionKind.CHAIN_REWRITTEN, "%s-N %s" % (_SHOWN, chain))]
            lines += [":%s - [0:0]" % chain, *rendered]
        gone = [rule for rule in jump if rule not in after]
        new = [rule for rule in after if rule.target == chain and (rule in jump or rule not in state.postrouting)]
        lines += [rule.inserted(1) for rule in new]
        actions += [Action(ActionKind.JUMP_REMOVED, _SHOWN + syntax.shown(rule.line)) for rule in gone]
        kind = ActionKind.JUMP_MOVED if new and new[0] in jump else ActionKind.JUMP_ADDED
        actions += [Action(kind, _SHOWN + syntax.shown(rule.line)) for rule in new]
        lines += syntax.removal(unused)
        actions += [Action(ActionKind.CHAIN_REMOVED, "%s-N %s" % (_SHOWN, name)) for name in unused]
        kept = ((chain, there[chain] if same else rendered),) if rules else ()
        return LeakPlan(tuple(actions), tuple(lines), LeakState(kept, after if rules else ()), found)

    def _jump(
        self, state: LeakState, wanted: bool, first: bool
    ) -> t.Tuple[t.Sequence[PostroutingRule], t.Tuple[PostroutingRule, ...]]:
        """Return the rules of POSTROUTING that go, and what it holds afterwards: one good jump that packets reach."""
        mine = [rule for rule in state.postrouting if rule.target in state.names]
        others = [rule for rule in state.postrouting if rule.target not in state.names]
        if not wanted:
            return mine, tuple(others)
        reached = state.postrouting
        for number, rule in enumerate(state.postrouting):
            if rule.shuts_out_the_rest and rule not in mine:
                reached = state.postrouting[:number]
                break
        good = [rule for rule in reached if rule.words == syntax.leak_jump(self._names[0], first)]
        if len(mine) == len(good) == 1 and "POSTROUTING" not in state.torn:
            return (), state.postrouting
        return mine, (*syntax.parse_postrouting([syntax.render_leak_jump(self._names[0], first)]), *others)

    def undo(self, state: LeakState, previous: LeakState) -> t.List[str]:
        """Return the lines that lead from ``state`` back to ``previous``."""
        if state == previous or state.problem or previous.problem:
            return []
        chains = dict(previous.chains)
        lines = [rule.deleted for rule in state.postrouting if rule.target in state.names]
        for name, rules in previous.chains:
            lines += [":%s - [0:0]" % name, *rules]
        jumps = [rule for rule in previous.postrouting if rule.target in previous.names]
        lines += [rule.inserted(1) for rule in reversed(jumps)]
        return lines + syntax.removal([name for name in state.names if name not in chains])

    def counted(self) -> int:
        """Return how many packets rules about leaks have counted; 0 where there are no such rules.

        :raises NodeError: they cannot be read.
        """
        if not self._wanted:
            return 0
        done = self._tool.list_chain(self._names[0], "-v", table=TABLE)
        if done.rc != 0:
            if not self._tool.has_table(TABLE) or self._read(self._names[0]) is None:
                return 0
            raise self._tool.error("cannot read the counters of the table %s" % TABLE, done)
        lines = [line for line in syntax.printed_rules(done.stdout) if comments.LEAK in line]
        found = (re.search(_PACKETS, line) for line in lines)
        return sum(int(one.group(1)) for one in found if one)

    def fingerprint(self) -> t.List[t.List[str]]:
        """See ``backend.Backend.fingerprint``; empty if the policy has no such rules."""
        if not self._wanted:
            return []
        return [self._tool.resync_listing(chain, TABLE) for chain in ("POSTROUTING", self._names[0])]


def fields(ruleset: Ruleset) -> t.Dict[str, t.Any]:
    """Return the fields of a ruleset that make the rules of this table."""
    return {"leaks": ruleset.leaks, "hidden": ruleset.hidden, "missing": ruleset.missing}


def _found(parsed: t.Sequence[t.Optional[AnyRule]]) -> t.Dict[str, t.Any]:
    rules = [rule for rule in parsed if isinstance(rule, Rule)]
    leaks = [rule for rule in rules if rule.kind == LEAK]
    skipped = [rule.network for rule in rules if rule == Rule(SKIP, rule.network)]
    end = next((place for place, network in enumerate(skipped) if network in MULTICAST.values()), 0)
    done = DROP if any(rule.verdict == "DROP" for rule in leaks) else COUNT if leaks else IGNORE
    return {"leaks": done, "hidden": tuple(skipped[:end]), "missing": ()}


def chain_changes(
    chain: str,
    lines: t.Optional[t.Sequence[str]],
    parsed: t.Sequence[t.Optional[AnyRule]],
    after: t.Mapping[AnyRule, str],
    table: str = "",
) -> t.List[Action]:
    """Return the actions that give a chain its rules, by what these mean; one that cannot be parsed goes by its text.

    :param lines: its rules; None: there is no chain. :param parsed: the same. :param after: the text of each new rule.
    :param table: another one than nat, which is shown.
    """
    shows = "-t %s " % table if table else ""
    actions = [Action(ActionKind.CHAIN_CREATED, "%s-N %s" % (shows, chain))] if lines is None else []
    before = {rule or line: shows + syntax.shown(line) for rule, line in zip(parsed, lines or ())}
    noun = "rules of %s%s" % (chain, " in the table " + table if table else "")
    return actions + rule_changes(before, {rule: shows + line for rule, line in after.items()}, noun)
