# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The iptables backend: one nat chain and one jump, in one variant (nft or legacy) and one family.

Only our chain and POSTROUTING are read (promise 4): C(iptables-save -t nat) on a node with 50,000 rules takes over a
second, C(iptables -S CHAIN) a few milliseconds. Everything is written by one C(iptables-restore --noflush), which is
atomic in both variants (promise 1).
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._errors import NodeError
from .._policy.values import belongs_to_others
from .._system import xtables_lock
from .._system.process import Outcome, Runner
from .backend import Action, CommitRefused, Counters, LockHeld, Plan, View
from .iptables_jump import plan_jump
from .iptables_syntax import (
    COMMENT_PREFIX,
    JUMP_COMMENT,
    PREDECESSOR_CHAINS,
    PostroutingRule,
    conditions,
    parse_postrouting,
    parse_rule,
    printed_rules,
    render_rule,
    rule_conditions,
    shown,
    shown_all,
)
from .nat_table import KernelRule, NatTable, activation, deletion, place
from .ruleset import Rule, Ruleset, from_rules

NFT = "iptables_nft"
LEGACY = "iptables_legacy"

#: What both variants exit with when the xtables lock stays taken (xtables 1.8, RESOURCE_PROBLEM).
RESOURCE_PROBLEM = 4

#: Seconds that a resync waits for the xtables lock, however long the run that prepares it may wait: its unit has a time
#: limit, and a tick must not hang.
RESYNC_LOCK_TIMEOUT = 5

#: iptables-legacy of these releases asks for a taken lock once a second, and finds it taken again where another program
#: takes it often, unless C(-W) sets another interval; later ones are woken when it is given back, and warn about C(-W).
_ASKS_FROM, _ASKS_UNTIL = (1, 6, 1), (1, 8, 8)
#: microseconds, as Kubernetes has it
_WAIT_INTERVAL = "100000"

#: What iptables-nft says of a chain that holds what only nft can express. It may crash, too (1.8.9, 1.8.11).
_CANNOT_PRINT = ("is incompatible, use 'nft' tool", "Parsing nftables rule failed")

#: How often our chain and POSTROUTING are read until both were read in the same generation of the kernel's rules, and
#: until, where others write all the time, they can at least belong together.
_SAME_GENERATION = 4
_READS = 20

#: More single rules than this in one plan are reported as a count.
LISTED_RULES = 100

#: A rule that leaves traffic to later rules, see ruleset.guards: what it counts is neither exempt nor masqueraded.
_GUARDED = re.compile(r"-A \S+ (?:-s|-m mark) ")
_COUNTED = re.compile(r" -c ([0-9]+) ([0-9]+) -j (\w+)")
_FAILED_LINE = re.compile(r"line:? (\d+)")


def wait_for_lock(seconds: int, variant: str, version: t.Tuple[int, ...]) -> t.List[str]:
    """The arguments with which iptables waits so long for the xtables lock: a second at least.

    C(-w 0), and in iptables-legacy no C(-w) at all, would wait without end (seen in 1.8.9).
    """
    interval = variant == LEGACY and _ASKS_FROM <= version < _ASKS_UNTIL
    return ["-w", str(max(seconds, 1))] + (["-W", _WAIT_INTERVAL] if interval else [])


class Chain(t.NamedTuple):
    """The rules of a chain, as iptables prints them."""

    rules: t.Tuple[str, ...]
    #: whether that is all that the chain holds
    whole: bool = True


@dataclasses.dataclass(frozen=True)
class State:
    """Our part of the nat table and what is around it. A chain that is not there is none."""

    chain: t.Optional[Chain]
    postrouting: t.Tuple[PostroutingRule, ...]
    #: chains of earlier agents that POSTROUTING still jumps to
    predecessors: t.Tuple[t.Tuple[str, Chain], ...] = ()
    #: whether the table is dormant, so that no packet meets any of it
    dormant: bool = False
    #: of the kernel's rules; none where it was not the same from beginning to end, or the kernel does not count
    generation: t.Optional[int] = dataclasses.field(default=None, compare=False)

    def jumps(self, chain: str) -> t.List[PostroutingRule]:
        """The rules of POSTROUTING that lead to a chain."""
        return [rule for rule in self.postrouting if rule.target == chain]

    def is_possible(self, chain: str) -> bool:
        """Whether its parts can belong together: no rule leads to a chain that is not there."""
        return self.chain is not None or not self.jumps(chain)

    def is_plain(self, chain: str) -> bool:
        """Whether what iptables printed and what the kernel holds agree in all that is ours.

        If not, it may be that somebody wrote in between.
        """
        return (
            (self.chain is None or self.chain.whole)
            and all(rule.whole for rule in self.jumps(chain))
            and not any(rule.unprintable for rule in self.postrouting)
        )


class _Look(t.NamedTuple):
    """A chain: what iptables printed, none where it could not; and what the kernel says of it, if it was asked."""

    printed: t.Optional[t.Tuple[str, ...]]
    held: t.Optional[t.List[KernelRule]]


class Iptables:
    """See :class:`~.backend.Backend`.

    :param command: path of C(iptables) or C(ip6tables) in this variant.
    :param lock_timeout: seconds to wait for the xtables lock.
    :param adopt: whether chains of earlier agents go with what is planned.
    :param table_exists: whether the table of iptables-legacy is there; asking its program would create it.
    :param former: other names that our chain may have on this node; such chains go with what is planned.
    :param kernel: what the kernel says of the table of iptables-nft; none for iptables-legacy, which prints everything.
    """

    def __init__(
        self,
        run: Runner,
        name: str,
        family: str,
        command: str,
        version: t.Tuple[int, ...],
        chain: str,
        lock_timeout: int,
        adopt: bool = True,
        table_exists: t.Callable[[], bool] = lambda: True,
        former: t.Sequence[str] = (),
        kernel: t.Optional[NatTable] = None,
    ) -> None:
        self.name = name
        self.family = family
        self._run = run
        self._command = command
        wait = wait_for_lock(lock_timeout, name, version)
        self._list = [command] + wait + ["-t", "nat", "-S"]
        # iptables-restore knows -w, and -W, from 1.6.2 on.
        self._restore = [command + "-restore"] + (wait if version >= (1, 6, 2) else []) + ["--noflush"]
        self._patience = lock_timeout + 120.0
        self._chain = chain
        self._adopt = adopt
        self._table_exists = table_exists
        self._version = version
        self._former = [name for name in former if name != chain]
        self._kernel = kernel

    def observe(self) -> State:
        """See :meth:`~.backend.Backend.observe`."""
        if not self._table_exists():
            return State(None, ())
        last = None
        for attempt in range(1, _READS + 1):
            generation = self._generation()
            state = self._observe()
            if generation is not None and generation == self._generation():
                return dataclasses.replace(state, generation=generation)
            if not state.is_possible(self._chain):
                continue
            # Other programs may write more often than anybody can read twice.
            if state.is_plain(self._chain) and (self._kernel is None or attempt >= _SAME_GENERATION):
                return state
            last = state
        if last is None:
            raise NodeError(
                "%s: other programs kept changing the nat table while it was read (%d attempts); run again"
                % (self._command, _READS)
            )
        return last

    def _generation(self) -> t.Optional[int]:
        return None if self._kernel is None else self._kernel.generation()

    def _observe(self) -> State:
        postrouting = self._postrouting()
        names = dict.fromkeys([rule.target for rule in postrouting if self._is_predecessor(rule)] + self._former)
        # A jump that iptables-restore cannot delete keeps its chain, and would have the transaction refused.
        stuck = [rule.target for rule in postrouting if rule.deletion]
        read = [(name, self._read(name)) for name in names if name not in stuck]
        predecessors = tuple((name, chain) for name, chain in read if chain is not None)
        dormant = self._kernel is not None and self._kernel.is_dormant()
        return State(self._read(self._chain), postrouting, predecessors, dormant)

    def _is_predecessor(self, rule: PostroutingRule) -> bool:
        """Whether this is the jump of an earlier agent, or of ours under an earlier name of the chain."""
        if rule.target in ("", self._chain) or belongs_to_others(rule.target):
            return False
        if rule.target in self._former or rule.comment == JUMP_COMMENT:
            return True
        # Some releases of ip-masq-agent put literal quotes around the comment.
        earlier = rule.target in PREDECESSOR_CHAINS or rule.comment.lstrip('"').startswith(COMMENT_PREFIX)
        return self._adopt and earlier

    def _look(self, chain: str) -> t.Optional[_Look]:
        """Read one chain; none where it is not there."""
        held = None
        if self._kernel is not None:
            held = self._kernel.rules(chain)
            if held is None:
                return None
        done = self._run(self._list + [chain], timeout=self._patience)
        if done.rc == 0:
            printed = printed_rules(done.stdout)
            # iptables-nft 1.8.7 leaves out whole rules.
            return _Look(None if held is not None and len(held) != len(printed) else printed, held)
        if held is not None and (done.crashed or any(said in done.stderr for said in _CANNOT_PRINT)):
            return _Look(None, held)
        if "No chain/target/match by that name" in done.stderr or "does not exist" in done.stderr:
            return None
        raise self._failure("cannot read the chain %s" % chain, done)

    def _read(self, chain: str) -> t.Optional[Chain]:
        look = self._look(chain)
        if look is None:
            return None
        if look.printed is None:
            return Chain((), whole=False)
        whole = look.held is None or all(
            rule.complete and rule_conditions(line) == conditions(rule.words)
            for line, rule in zip(look.printed, look.held)
        )
        return Chain(look.printed, whole)

    def _postrouting(self) -> t.Tuple[PostroutingRule, ...]:
        look = self._look("POSTROUTING")
        if look is None:
            return ()
        if look.printed is None:
            return tuple(self._unprintable(rule) for rule in look.held or ())
        return tuple(
            self._printed(number, rule, look.held) for number, rule in enumerate(parse_postrouting(look.printed), 1)
        )

    def _printed(self, number: int, rule: PostroutingRule, held: t.Optional[t.Sequence[KernelRule]]) -> PostroutingRule:
        """A rule of POSTROUTING that iptables printed, with what the kernel adds."""
        whole = True
        if held is not None:
            told = held[number - 1]
            whole = told.complete and conditions(rule.words) == conditions(told.words)
        # iptables-restore reads line by line.
        return rule._replace(whole=whole, deletion=self._deletion(number, held) if "\n" in rule.line else "")

    def _unprintable(self, rule: KernelRule) -> PostroutingRule:
        line = "-A POSTROUTING ... (handle %d; shown by: %s)" % (rule.handle, place(self.family))
        return PostroutingRule(line, rule.words, "", rule.complete, deletion(self.family, rule.handle), True)

    def _deletion(self, number: int, held: t.Optional[t.Sequence[KernelRule]]) -> str:
        if held is not None:
            return deletion(self.family, held[number - 1].handle)
        return "%s -w -t nat -D POSTROUTING %d" % (self._command, number)

    def _failure(self, what: str, done: Outcome, error: t.Type[NodeError] = NodeError) -> NodeError:
        said = " ".join(done.stderr.split())
        if done.rc == RESOURCE_PROBLEM and "lock" in said and "can't open" not in said:
            return LockHeld(
                "%s %s: the xtables lock stayed taken for the whole lock_timeout, by %s. Wait, or raise lock_timeout"
                % (self._command, what, xtables_lock.holder())
            )
        advice = ""
        if "missing kernel module" in said or "Couldn't load" in said or "can't initialize" in said:
            advice = (
                ". The kernel lacks a module that iptables needs: install the kernel's extra modules (RHEL-likes: "
                "kernel-modules-extra), or set backend to nftables"
            )
        return error("%s %s: %s%s" % (self._command, what, said or "exit status %d" % done.rc, advice))

    def plan(self, state: State, wanted: t.Optional[Ruleset], withheld: t.Container[str] = ()) -> Plan:
        """See :meth:`~.backend.Backend.plan`."""
        if wanted is None:
            return self._plan_removal(state, withheld)
        rendered = tuple(render_rule(self._chain, rule) for rule in wanted.rules)
        # Reading ten thousand rules takes a while, and most of the time they are the very text that we wrote.
        rules = list(wanted.rules) if state.chain == Chain(rendered) else self._parse(state)
        found = _as_ruleset(rules)
        if state.chain is not None and wanted.means(found):
            chain, lines, actions = state.chain, [], []
        else:
            chain, lines = Chain(rendered), list(rendered)
            actions = self._chain_actions(state, rules, wanted, rendered)
        names = [name for name, _rules in state.predecessors]
        jump = plan_jump(self._chain, state.postrouting, names, withheld)
        lines = [*jump.deletions, *lines, *jump.insertions]
        if chain != state.chain:
            lines.insert(0, ":%s - [0:0]" % self._chain)
        lines += _removal(names)
        actions += list(jump.actions) + [Action("chain of an earlier agent removed", "-N " + name) for name in names]
        after = State(chain, jump.after, (), state.dormant)
        plan = self._as_plan(state, after, actions, lines, found, wanted)
        return plan._replace(withheld=jump.withheld, problems=self._problems(after), notes=self._notes(after))

    def _problems(self, state: State) -> t.Tuple[str, ...]:
        """What no transaction of ours can repair."""
        found = []
        if state.dormant:
            found.append(
                "table nat is dormant (flags dormant), so none of its rules is in force, those of other programs "
                "included. Activate it: %s" % activation(self.family)
            )
        for rule in state.postrouting:
            unwanted = rule.target == self._chain and not rule.is_jump(self._chain)
            if rule.deletion and (unwanted or self._is_predecessor(rule)):
                found.append(
                    "POSTROUTING holds a jump to %s that does not belong there and that iptables-restore cannot "
                    "delete: %s. Delete it: %s" % (rule.target, shown(rule.line), rule.deletion)
                )
        return tuple(found)

    def _notes(self, state: State) -> t.Tuple[str, ...]:
        if not any(rule.unprintable for rule in state.postrouting):
            return ()
        return (
            "%s cannot print the rules of POSTROUTING, because some can only be expressed by nft. The jump to %s was "
            "verified by asking the kernel; what the other rules do was examined in part only. See: %s"
            % (self._command, self._chain, place(self.family)),
        )

    def _parse(self, state: State) -> t.List[t.Optional[Rule]]:
        if state.chain is None:
            return []
        return [parse_rule(line, self.family) for line in state.chain.rules] if state.chain.whole else [None]

    def _chain_actions(
        self, state: State, rules: t.Sequence[t.Optional[Rule]], wanted: Ruleset, rendered: t.Sequence[str]
    ) -> t.List[Action]:
        if state.chain is not None and not state.chain.whole:
            return [Action("unreadable chain rewritten", "-N " + self._chain)]
        lines = state.chain.rules if state.chain is not None else ()
        actions = [] if state.chain is not None else [Action("chain created", "-N " + self._chain)]
        # Rules are told apart by meaning; one that we cannot read counts as the text it is.
        before = {rule or line: shown(line) for rule, line in zip(rules, lines)}
        after = dict(zip(wanted.rules, rendered))
        added = [Action("rule added", line) for rule, line in after.items() if rule not in before]
        removed = [Action("rule removed", line) for rule, line in before.items() if rule not in after]
        for single in (removed, added):
            actions += (
                single
                if len(single) <= LISTED_RULES
                else [Action(single[0].action.replace("rule", "rules"), "%d rules of %s" % (len(single), self._chain))]
            )
        return actions or [Action("rules reordered", "-N " + self._chain)]

    def _plan_removal(self, state: State, withheld: t.Container[str]) -> Plan:
        names = ([self._chain] if state.chain is not None else []) + [name for name, _rules in state.predecessors]
        jumps = [rule for rule in state.postrouting if rule.target in names or self._is_predecessor(rule)]
        stuck = [rule for rule in jumps if rule.deletion]
        if stuck:
            raise NodeError(
                "cannot remove the chain %s, because iptables-restore cannot delete a jump to it: %s. Delete it: %s; "
                "then run again" % (stuck[0].target, shown(stuck[0].line), stuck[0].deletion)
            )
        actions = []
        for rule in jumps:
            what = "jump removed" if rule.target == self._chain else "jump of an earlier agent removed"
            actions.append(Action(what, shown(rule.line)))
        for name in names:
            if name == self._chain:
                # No packet reaches a chain that nothing jumps to.
                actions.append(Action("chain removed", "-N " + name, harmless=not jumps))
            else:
                actions.append(Action("chain of an earlier agent removed", "-N " + name))
        found = _as_ruleset(self._parse(state))
        left = tuple(action for action in actions if action.harmless and action.action in withheld)
        if left:
            return self._as_plan(state, state, [], [], found, None)._replace(withheld=left, view=View((), None))
        lines = ["-D" + rule.line[2:] for rule in jumps] + _removal(names)
        after = State(None, tuple(rule for rule in state.postrouting if rule.target not in names))
        return self._as_plan(state, after, actions, lines, found, None)

    def _as_plan(
        self,
        before: State,
        after: State,
        actions: t.Sequence[Action],
        lines: t.Sequence[str],
        found: t.Optional[Ruleset],
        wanted: t.Optional[Ruleset],
    ) -> Plan:
        transaction = "\n".join(["*nat"] + list(lines) + ["COMMIT", ""]) if actions else ""
        return Plan(
            tuple(actions),
            transaction,
            self._listing(before),
            self._listing(after),
            self._view(after, wanted),
            self._view(before, found),
            around=self._around(after),
        )

    def _jump(self, state: State) -> int:
        """The number of our jump in POSTROUTING, a good one if there is one; -1 where there is none."""
        ours = [i for i, rule in enumerate(state.postrouting) if rule.target == self._chain]
        good = [i for i in ours if state.postrouting[i].is_jump(self._chain)]
        return (good + ours + [-1])[0]

    def _view(self, state: State, ruleset: t.Optional[Ruleset]) -> View:
        jump = self._jump(state)
        rules = state.chain.rules if state.chain is not None else ()
        # A chain that nothing jumps to means nothing.
        in_force = ruleset if jump >= 0 and not state.dormant else None
        line = shown(state.postrouting[jump].line) if jump >= 0 else None
        return View(shown_all(rules), line, in_force)

    def _around(self, state: State) -> t.Tuple[t.Tuple[PostroutingRule, ...], t.Tuple[PostroutingRule, ...]]:
        jump = self._jump(state)
        return (state.postrouting[:jump], state.postrouting[jump + 1 :]) if jump >= 0 else (state.postrouting, ())

    def _listing(self, state: State) -> t.Tuple[str, ...]:
        chains = ((self._chain, state.chain),) + state.predecessors
        lines: t.List[str] = []
        for name, chain in chains:
            if chain is not None:
                lines += ("-N " + name,) + chain.rules
                lines += [] if chain.whole else ["# %s holds more than iptables prints" % name]
        return shown_all(lines + [rule.line for rule in state.postrouting])

    def is_alone(self, before: State, transaction: str, now: State) -> bool:
        """See :meth:`~.backend.Backend.is_alone`."""
        if self._kernel is not None:
            return before.generation is not None and now.generation == before.generation + 1
        # iptables-legacy does not count. Others flush, delete a jump, or write rules of their own. Where some of our
        # rules are left and nothing else has changed, the rest was not kept.
        prefix = "-A %s " % self._chain
        written = {line for line in transaction.split("\n") if line.startswith(prefix)}
        kept = set(now.chain.rules if now.chain is not None else ())
        same = _others(before, self._chain) == _others(now, self._chain)
        return bool(kept) and kept < written and same and self.observe() == now

    def undo(self, state: State, previous: State) -> str:
        """See :meth:`~.backend.Backend.undo`."""
        chains = {self._chain: previous.chain}
        chains.update(previous.predecessors)
        for name, chain in chains.items():
            if chain is not None and not (chain.whole and all("\n" not in rule for rule in chain.rules)):
                raise NodeError("%s held rules that iptables-restore cannot write" % name)

        def moves(rule: PostroutingRule) -> bool:
            return rule.target in chains and not rule.deletion

        lines = ["-D" + rule.line[2:] for rule in state.postrouting if moves(rule)]
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
                lines.append("-I POSTROUTING %d%s" % (index + 1, rule.line[len("-A POSTROUTING") :]))
                there.insert(index, rule.line)
        return "\n".join(["*nat"] + lines + ["COMMIT", ""])

    def commit(self, transaction: str) -> None:
        """See :meth:`~.backend.Backend.commit`."""
        done = self._run(self._restore, stdin=transaction, timeout=self._patience)
        if done.rc == 0:
            return
        lines = transaction.split("\n")
        failed = [int(number) for number in _FAILED_LINE.findall(done.stderr) if 0 < int(number) <= len(lines)]
        what = "refused the rules" + (", at '%s'" % lines[failed[0] - 1] if failed else "")
        raise self._failure(what, done, CommitRefused)

    def counters(self) -> Counters:
        """See :meth:`~.backend.Backend.counters`."""
        done = self._run(self._list + [self._chain, "-v"], timeout=self._patience)
        total = Counters()
        for line in printed_rules(done.stdout):
            found = _COUNTED.search(line)
            if found and not _GUARDED.search(line):
                counted = (int(found.group(1)), int(found.group(2)))
                total = total.plus(Counters(0, 0, *counted) if found.group(3) == "MASQUERADE" else Counters(*counted))
        return total

    def fingerprint(self) -> t.List[t.List[str]]:
        """See :meth:`~.backend.Backend.fingerprint`."""
        listing = [self._command] + wait_for_lock(RESYNC_LOCK_TIMEOUT, self.name, self._version) + ["-t", "nat", "-S"]
        return [listing + ["POSTROUTING"], listing + [self._chain]]


def _removal(chains: t.Sequence[str]) -> t.List[str]:
    # All are emptied before any goes: they may jump to each other.
    return ["-F " + name for name in chains] + ["-X " + name for name in chains]


def _as_ruleset(rules: t.Sequence[t.Optional[Rule]]) -> t.Optional[Ruleset]:
    read = [rule for rule in rules if rule is not None]
    return from_rules(read) if read and len(read) == len(rules) else None


def _others(state: State, chain: str) -> t.List[str]:
    return [rule.line for rule in state.postrouting if rule.target != chain]
