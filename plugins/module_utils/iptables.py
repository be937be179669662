# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The iptables backend: one nat chain and one jump, in one variant (nft or legacy) and one family.

Only our chain and POSTROUTING are read (promise 4): C(iptables-save -t nat) on a node with 50,000 rules takes over a
second, C(iptables -S CHAIN) a few milliseconds. Everything is written by one C(iptables-restore --noflush), which is
atomic in both variants (promise 1).
"""

from __future__ import annotations

import re
import typing as t

from . import xtables_lock
from .config import belongs_to_others
from .errors import NodeError
from .iptables_text import (
    COMMENT_PREFIX,
    JUMP_COMMENT,
    PREDECESSOR_CHAINS,
    PostroutingRule,
    parse_postrouting,
    parse_rule,
    render_jump,
    render_rule,
)
from .plan import Action, CommitRefused, Counters, LockHeld, Plan, View
from .ruleset import Rule, Ruleset, from_rules
from .runner import Outcome, Runner

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

#: Stands for the rules of a chain that C(nft) wrote and iptables cannot print; iptables-restore reads it as a comment.
UNREADABLE = "# rules that iptables cannot print"

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


class State(t.NamedTuple):
    """Our part of the nat table. Chains are lists of printed rules; none is a chain that is not there."""

    chain: t.Optional[t.Tuple[str, ...]]
    postrouting: t.Tuple[PostroutingRule, ...]
    #: chains of earlier agents that POSTROUTING still jumps to
    predecessors: t.Tuple[t.Tuple[str, t.Tuple[str, ...]], ...] = ()


class Iptables:
    """See :class:`~.plan.Backend`.

    :param command: path of C(iptables) or C(ip6tables) in this variant.
    :param lock_timeout: seconds to wait for the xtables lock.
    :param adopt: whether chains of earlier agents go with what is planned.
    :param table_exists: whether the table is there; asking C(iptables-legacy) would create it.
    :param former: other names that our chain may have on this node; such chains go with what is planned.
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
    ) -> None:
        self.name = name
        self.family = family
        self._run = run
        self._command = command
        wait = wait_for_lock(lock_timeout, name, version)
        self._list = [command] + wait + ["-t", "nat", "-S"]
        self._check = [command] + wait + ["-t", "nat", "-C", "POSTROUTING", "-j"]
        # iptables-restore knows -w, and -W, from 1.6.2 on.
        self._restore = [command + "-restore"] + (wait if version >= (1, 6, 2) else []) + ["--noflush"]
        self._patience = lock_timeout + 120.0
        self._chain = chain
        self._adopt = adopt
        self._table_exists = table_exists
        self._version = version
        self._former = [name for name in former if name != chain]

    def observe(self) -> State:
        """See :meth:`~.plan.Backend.observe`."""
        if not self._table_exists():
            return State(None, ())
        postrouting = parse_postrouting(self._read("POSTROUTING") or ())
        names = dict.fromkeys([rule.target for rule in postrouting if self._is_predecessor(rule)] + self._former)
        chains = [(name, self._read(name)) for name in names]
        predecessors = tuple((name, rules) for name, rules in chains if rules is not None)
        return State(self._read(self._chain), postrouting, predecessors)

    def _is_predecessor(self, rule: PostroutingRule) -> bool:
        """Whether this is the jump of an earlier agent, or of ours under an earlier name of the chain."""
        if rule.target in ("", self._chain) or belongs_to_others(rule.target):
            return False
        if rule.target in self._former or rule.comment == JUMP_COMMENT:
            return True
        # Some releases of ip-masq-agent put literal quotes around the comment.
        earlier = rule.target in PREDECESSOR_CHAINS or rule.comment.lstrip('"').startswith(COMMENT_PREFIX)
        return self._adopt and earlier

    def _read(self, chain: str) -> t.Optional[t.Tuple[str, ...]]:
        done = self._run(self._list + [chain], timeout=self._patience)
        if done.rc == 0:
            return tuple(line for line in done.stdout.splitlines() if line.startswith("-A "))
        if "No chain/target/match by that name" in done.stderr or "does not exist" in done.stderr:
            return None
        if "is incompatible, use 'nft' tool" in done.stderr:
            # iptables-nft says this of chains that are not there, and of those that hold what only nft can express.
            # A check for a jump to the chain tells them apart without writing.
            if chain != "POSTROUTING":
                probe = self._run(self._check + [chain], timeout=self._patience)
                return (UNREADABLE,) if probe.rc in (0, 1) and "does not exist" not in probe.stderr else None
            raise NodeError(
                "%s cannot read the chain POSTROUTING of the nat table, because something wrote rules into it that "
                "only nft can express: see 'nft list table %s nat', and move them into a table of their own"
                % (self._command, "ip" if self.family == "ipv4" else "ip6")
            )
        raise self._failure("cannot read the chain %s" % chain, done)

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

    def plan(self, state: State, wanted: t.Optional[Ruleset]) -> Plan:
        """See :meth:`~.plan.Backend.plan`."""
        if wanted is None:
            return self._plan_removal(state)
        rendered = tuple(render_rule(self._chain, rule) for rule in wanted.rules)
        # Reading ten thousand rules takes a while, and most of the time they are the very text that we wrote.
        rules = list(wanted.rules) if state.chain == rendered else self._parse(state)
        found = _as_ruleset(rules)
        if state.chain is not None and wanted.means(found):
            chain, lines, actions = state.chain, [], []
        else:
            chain, lines = rendered, list(rendered)
            actions = self._chain_actions(state, rules, wanted, rendered)
        jumps = _JumpPlan(self._chain, state.postrouting, self._is_predecessor)
        lines = jumps.deletions + lines + jumps.insertions
        if chain != state.chain:
            lines.insert(0, ":%s - [0:0]" % self._chain)
        names = [name for name, _rules in state.predecessors]
        lines += _removal(names)
        actions += jumps.actions + [Action("chain of an earlier agent removed", "-N " + name) for name in names]
        return self._as_plan(state, State(chain, jumps.after), actions, lines, found, wanted)

    def _parse(self, state: State) -> t.List[t.Optional[Rule]]:
        return [parse_rule(line, self.family) for line in state.chain or ()]

    def _chain_actions(
        self, state: State, rules: t.Sequence[t.Optional[Rule]], wanted: Ruleset, rendered: t.Sequence[str]
    ) -> t.List[Action]:
        actions = [] if state.chain is not None else [Action("chain created", "-N " + self._chain)]
        # Rules are told apart by meaning; one that we cannot read counts as the text it is.
        before = {rule or line: line for rule, line in zip(rules, state.chain or ())}
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

    def _plan_removal(self, state: State) -> Plan:
        names = [self._chain] if state.chain is not None else []
        actions = [Action("chain removed", "-N " + name) for name in names]
        for name, _rules in state.predecessors:
            names.append(name)
            actions.append(Action("chain of an earlier agent removed", "-N " + name))
        jumps, rest = [], []
        for rule in state.postrouting:
            if rule.target == self._chain:
                jumps.append(Action("jump removed", rule.line))
            elif rule.target in names:
                jumps.append(Action("jump of an earlier agent removed", rule.line))
            else:
                rest.append(rule)
        lines = ["-D" + jump.rule[2:] for jump in jumps] + _removal(names)
        found = _as_ruleset(self._parse(state))
        return self._as_plan(state, State(None, tuple(rest)), jumps + actions, lines, found, None)

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
        )

    def _view(self, state: State, ruleset: t.Optional[Ruleset]) -> View:
        jumps = [rule.line for rule in state.postrouting if rule.target == self._chain]
        # A chain that nothing jumps to means nothing.
        return View(state.chain or (), jumps[0] if jumps else None, ruleset if jumps else None)

    def _listing(self, state: State) -> t.Tuple[str, ...]:
        lines: t.List[str] = []
        for name, rules in ((self._chain, state.chain),) + state.predecessors:
            if rules is not None:
                lines += ("-N " + name,) + tuple(rules)
        return tuple(lines) + tuple(rule.line for rule in state.postrouting)

    def undo(self, state: State, previous: State) -> str:
        """See :meth:`~.plan.Backend.undo`."""
        chains = {self._chain: previous.chain}
        chains.update(previous.predecessors)
        lines = ["-D" + rule.line[2:] for rule in state.postrouting if rule.target in chains]
        for name, rules in chains.items():
            if rules is not None:
                lines += [":%s - [0:0]" % name] + list(rules)
            elif state.chain is not None:
                lines += ["-F " + name, "-X " + name]
        # The others' rules are not ours to restore: our jumps go to where they stood among them.
        there = [rule.line for rule in state.postrouting if rule.target not in chains]
        for position, rule in enumerate(previous.postrouting):
            if rule.target in chains:
                place = min(position, len(there))
                lines.append("-I POSTROUTING %d%s" % (place + 1, rule.line[len("-A POSTROUTING") :]))
                there.insert(place, rule.line)
        return "\n".join(["*nat"] + lines + ["COMMIT", ""])

    def commit(self, transaction: str) -> None:
        """See :meth:`~.plan.Backend.commit`."""
        done = self._run(self._restore, stdin=transaction, timeout=self._patience)
        if done.rc == 0:
            return
        lines = transaction.splitlines()
        failed = [int(number) for number in _FAILED_LINE.findall(done.stderr) if 0 < int(number) <= len(lines)]
        what = "refused the rules" + (", at '%s'" % lines[failed[0] - 1] if failed else "")
        raise self._failure(what, done, CommitRefused)

    def counters(self) -> Counters:
        """See :meth:`~.plan.Backend.counters`."""
        done = self._run(self._list + [self._chain, "-v"], timeout=self._patience)
        total = Counters()
        for line in done.stdout.splitlines():
            found = _COUNTED.search(line)
            if found and not _GUARDED.search(line):
                counted = (int(found.group(1)), int(found.group(2)))
                total = total.plus(Counters(0, 0, *counted) if found.group(3) == "MASQUERADE" else Counters(*counted))
        return total

    def fingerprint(self) -> t.List[t.List[str]]:
        """See :meth:`~.plan.Backend.fingerprint`."""
        listing = [self._command] + wait_for_lock(RESYNC_LOCK_TIMEOUT, self.name, self._version) + ["-t", "nat", "-S"]
        return [listing + ["POSTROUTING"], listing + [self._chain]]


def _removal(chains: t.Sequence[str]) -> t.List[str]:
    # All are emptied before any goes: they may jump to each other.
    return ["-F " + name for name in chains] + ["-X " + name for name in chains]


def _as_ruleset(rules: t.Sequence[t.Optional[Rule]]) -> t.Optional[Ruleset]:
    read = [rule for rule in rules if rule is not None]
    return from_rules(read) if read and len(read) == len(rules) else None


class _JumpPlan:
    """Which jumps go, and where the one that stays or comes has its place.

    A good jump that packets can reach is left where it is: others keep POSTROUTING in order too, and two programs that
    both insist on being first never come to rest.
    """

    def __init__(
        self,
        chain: str,
        postrouting: t.Sequence[PostroutingRule],
        is_predecessor: t.Callable[[PostroutingRule], bool],
    ) -> None:
        self.actions: t.List[Action] = []
        self.deletions: t.List[str] = []
        self.insertions: t.List[str] = []
        ours = [rule.target == chain for rule in postrouting]
        going = [mine or is_predecessor(rule) for mine, rule in zip(ours, postrouting)]
        barrier = next(
            (i for i, rule in enumerate(postrouting) if rule.shuts_out_the_rest and not going[i]), len(postrouting)
        )
        good = [i for i, rule in enumerate(postrouting) if rule.is_jump(chain)]
        keep = next((i for i in good if i < barrier), None)
        if keep is not None and sum(going) == 1:
            self.after = tuple(postrouting)
            return
        # Where it stands, where an earlier one stood, or last; but never behind a rule that lets nothing pass.
        place = min([barrier if keep is None else keep] + [i for i, goes in enumerate(going) if goes and keep is None])
        doubles = keep is not None and any(
            goes and i != keep and postrouting[i].line == postrouting[keep].line for i, goes in enumerate(going)
        )
        stays = keep is not None and not doubles
        for i, rule in enumerate(postrouting):
            if not going[i] or (stays and i == keep):
                continue
            self.deletions.append("-D" + rule.line[2:])
            if i != keep:
                self.actions.append(Action(self._why(i, ours, good, keep), rule.line))
        rest = [rule for i, rule in enumerate(postrouting) if not going[i] or (stays and i == keep)]
        if not stays:
            # Of several equal rules -D takes the first, so the one that stays is put back where it stood.
            before = sum(1 for i in range(place) if not going[i])
            jump = render_jump(chain)
            if before == len(rest):
                self.insertions.append(jump)
            else:
                self.insertions.append("-I POSTROUTING %d%s" % (before + 1, jump[len("-A POSTROUTING") :]))
            rest[before:before] = parse_postrouting([jump])
            if keep is None and not any(action.action in ("jump moved", "jump replaced") for action in self.actions):
                self.actions.append(Action("jump added", jump))
        self.after = tuple(rest)

    @staticmethod
    def _why(i: int, ours: t.Sequence[bool], good: t.Sequence[int], keep: t.Optional[int]) -> str:
        if not ours[i]:
            return "jump of an earlier agent removed"
        if keep is None and i == (good or [ours.index(True)])[0]:
            return "jump moved" if good else "jump replaced"
        return "duplicate jump removed"
