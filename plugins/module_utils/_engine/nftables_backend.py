# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nftables backend: one table of our own in one family, with one interval set and one to three base chains.

A table that is there is changed where it stands, in one transaction. It is not deleted and made anew: a kernel may
publish the elements of a NEW set some microseconds after the rules that ask it (seen with Linux 6.18), and connections
opened in between would be masqueraded although they are exempt. For the same reason a set that is not there yet is made
first, in a transaction that no packet can notice, and the chains that ask it in a second; a set that is not used any
more goes with the second.

For packets on their way, rules and the elements of sets do not change at the same instant either. Where several of them
change, packets could meet the rules of one policy with the elements of another (seen with Linux 6.18 too). So sets of
other names take the place of the changed ones until these have their elements.

The first packet of a connection meets the chain about leaks a moment after those of nat. So that it is not taken for a
leak because these have changed in between, that chain lets first packets pass until the change is over.
"""

from __future__ import annotations

import contextlib
import errno
import re
import typing as t

from .._errors import NodeError
from .._policy.policy import Config
from .._system import ipvs_services, nf_tables
from .._system.backend_names import NFTABLES
from .._system.families import Family
from .._system.netlink import KernelError, Message
from .._system.nfnetlink import generation, has_nft_table
from .._system.node import Node, Tool
from .._system.process import Runner, which
from . import nftables_changes as messages
from . import nftables_syntax as text
from . import rule_comments as comments
from .backend import (
    EXEMPT,
    LEAKED,
    MASQUERADED,
    OTHER,
    Action,
    ActionKind,
    Backend,
    BackendType,
    CommitRefused,
    Counted,
    Former,
    Generation,
    Managed,
    Overtaken,
    Plan,
    Transaction,
    View,
    listed,
    rule_changes,
)
from .nftables_ruleset import from_ruleset, to_ruleset
from .ruleset import Ruleset

#: The program for people, and for a resync without work.
NFT = "nft"

#: Seconds for nft to show the table, after the rules are as they are to be: a resync has 30, and nft may hang.
_PATIENCE = 10.0

#: What the kernel says where it lacks a part of nf_tables, or where another program removed what a change is about.
_NOT_THERE = (errno.ENOENT, errno.EOPNOTSUPP)
_ADVICE = (
    ". Another program changed the table meanwhile: run again; or the kernel lacks a part of nf_tables, which modprobe "
    "-a nft_chain_nat nft_masq nft_nat nft_ct nft_fib nft_numgen names: install the kernel's modules, or set backend "
    "to an iptables variant"
)


class TableState(t.NamedTuple):
    """What our table holds; None if it is not there."""

    listed: t.Optional[text.ListedTable]
    #: with the table as the kernel reported it
    reading: Generation = Generation()


class TableStep(t.NamedTuple):
    """What the kernel does at once."""

    changes: t.Tuple[Message, ...]
    #: take it back where the next step is refused; empty if it puts rules in force
    undone: t.Tuple[Message, ...] = ()


class Nftables:
    """See ``backend.Backend``. It needs no program: the kernel is asked and told over netlink.

    :param nft: path of ``nft``, if the node has it: a resync without work compares what that prints.
    :param position: decides the priority of our chain, see ``nftables_syntax.PRIORITIES``.
    """

    name = NFTABLES

    def __init__(self, run: Runner, family: Family, nft: t.Optional[str], position: str = "keep") -> None:
        self.family = family
        self._run = run
        self._nft = nft
        self._table = "%s %s" % (family.nft, text.TABLE)
        self._priority = text.PRIORITIES.get(position, text.PRIORITIES["keep"])
        self._observed: t.Optional[TableState] = None

    def observe(self) -> TableState:
        table, generation = nf_tables.read_one(self.family.number, text.TABLE, text.CHAINS)
        listed = None if table is None else messages.listed(table, self.family)
        self._observed = TableState(listed, Generation(generation, table))
        return self._observed

    def plan(self, state: TableState, wanted: t.Optional[Ruleset]) -> Plan:
        before = state.listed
        lines = () if before is None else text.listing(before)
        after = None if wanted is None else from_ruleset(wanted, self.family)._replace(priority=self._priority)
        if before.means(after) if before and after else before is after:
            view = View(lines, None, wanted)
            return Plan((), (), lines, lines, view, view)
        found, former = View(lines, None), Former()
        if before is not None:
            found = found._replace(ruleset=to_ruleset(before))
            # A chain without rules decides nothing.
            rulesets = (found.ruleset,) if before.rules(text.CHAIN) else ()
            former = Former(rulesets=rulesets, moved=after is not None and before.priority != after.priority)
        if after is None:
            removed = Action(ActionKind.TABLE_REMOVED, "table " + self._table)
            return Plan((removed,), (TableStep(self._deletion()),), lines, (), View((), None), found, former=former)
        led_to = text.listing(after)
        actions = tuple(_actions(self._table, before, after))
        view = View(led_to, None, wanted)
        return Plan(actions, self._transaction(before, after), lines, led_to, view, found, former=former)

    def _deletion(self) -> t.Tuple[Message, ...]:
        return (nf_tables.change(nf_tables.DELETE_TABLE, self.family.number, text.TABLE),)

    def _transaction(self, before: t.Optional[text.ListedTable], after: text.ListedTable) -> Transaction:
        if before is not None and before.foreign:
            # Another program changed the table in ways that we do not know: only a new one is sure to be without them.
            return (TableStep((*self._deletion(), *messages.make_all(after))),)
        tightened: t.List[Message] = []
        new_sets: t.List[Message] = []
        undone: t.List[Message] = []
        if after.rules(text.LEAKS) is not None and (before is None or before.nat_differs(after)):
            tightened = messages.change_chains(after.lenient, after, [text.LEAKS])
            if before is not None and before.rules(text.LEAKS) is not None:
                new_sets += messages.change_chains(before, before.lenient, [text.LEAKS])
                undone += messages.change_chains(before.lenient, before, [text.LEAKS])
                before = before.lenient
            after = after.lenient
        if before is None:
            before = after._replace(chains=(), sets={})
            new_sets.append(messages.make_table(self.family))
            undone = list(self._deletion())
        else:
            undone += [messages.delete_set(self.family, name) for name in after.sets if name not in before.sets]
        for name in after.sets:
            if name not in before.sets:
                # See the module: a new set is complete before a chain looks into it.
                new_sets += messages.change_set(after, name)
        changed = [name for name, spans in after.sets.items() if before.sets.get(name, spans) != spans]
        elements = [one for name in changed for one in messages.change_set(after, name, there=True)]
        chains = [] if before.same_rules(after) else messages.change_chains(before, after)
        removed = [messages.delete_set(self.family, name) for name in before.sets if name not in after.sets]
        steps = [new_sets, elements + chains + removed]
        if len(changed) + bool(chains) > 1 and (before.narrowed or after.narrowed):
            interim = after.asking_others(changed)
            for name in changed:
                new_sets += messages.change_set(after, name, suffix=text.INTERIM)
            temporary = [messages.delete_set(self.family, name + text.INTERIM) for name in changed]
            undone = temporary + undone
            steps = [
                new_sets,
                messages.change_chains(before, interim) + removed,
                elements,
                messages.change_chains(interim, after) + temporary,
            ]
        first, *rest = [step for step in (*steps, tightened) if step]
        return (TableStep(tuple(first), tuple(undone) if new_sets else ()), *(TableStep(tuple(step)) for step in rest))

    def is_alone(self, before: TableState, transaction: Transaction, now: TableState) -> bool:
        return now.reading.follows(before.reading, len(transaction))

    def undo(self, state: TableState, previous: TableState) -> Transaction:
        deletion = () if state.listed is None else self._deletion()
        table = previous.reading.reported
        first, *rest = nf_tables.transactions(table) if table is not None else ([],)
        return (TableStep((*deletion, *first)), *(TableStep(tuple(step)) for step in rest))

    def commit(self, transaction: Transaction) -> None:
        for number, step in enumerate(transaction):
            try:
                self._write(step.changes)
            except Overtaken:
                raise
            except CommitRefused as exc:
                if number == 0:
                    raise
                if number > 1 or not transaction[0].undone:
                    raise NodeError("%s. The new rules are active, in a temporary form; run again" % exc) from None
                # What is refused must not have changed anything: the first step made sets that no rule uses, and let
                # first packets pass.
                self._write(transaction[0].undone)
                raise

    def _write(self, changes: t.Sequence[Message]) -> None:
        try:
            nf_tables.transact(changes, "table " + self._table)
        except KernelError as exc:
            makes = changes[0].kind & 0xFF == nf_tables.NEW_TABLE
            if exc.code == errno.ENOENT and not makes and has_nft_table(self.family, text.TABLE) is False:
                raise Overtaken(
                    "the kernel refused the rules, because another program removed the table %s meanwhile (nft flush "
                    "ruleset does)" % self._table
                ) from None
            advice = _ADVICE if exc.code in _NOT_THERE else ""
            if exc.code == errno.EPERM:
                advice = ". Another program owns the table, or this one lacks CAP_NET_ADMIN"
            raise CommitRefused("%s%s" % (exc, advice)) from None

    def _list(self, *flags: str) -> t.List[str]:
        return [self._nft or NFT, "-n", *flags, "list", "table", *self._table.split()]

    def counted(self) -> t.List[Counted]:
        bodies = nf_tables.read_rules(self.family.number, text.TABLE)
        if not bodies and has_nft_table(self.family, text.TABLE) is False:
            raise NodeError("the table %s is gone, and what it counted with it" % self._table)
        counting = [rule for _chain, rule in messages.rules_of(bodies, self.family) if rule.counted]
        kinds = "".join(_counts(rule.rule) for rule in counting)
        return [Counted(tuple(self._list("-t")), kinds, tuple(rule.counted or (0, 0) for rule in counting))]

    def fingerprint(self) -> t.List[t.List[str]]:
        """See ``backend.Backend.fingerprint``.

        :raises NodeError: the node has no nft, it fails, or the rules are not those that were observed any more.
        """
        command, observed = self._list("-s"), self._observed
        if self._nft is None:
            raise NodeError("the node has no %s, which shows the table %s" % (NFT, self._table))
        shown = self._run(command, timeout=_PATIENCE)
        if shown.rc != 0:
            raise NodeError("%s cannot show the table %s: %s" % (self._nft, self._table, shown.error_text))
        same = observed is not None and Generation(generation()).follows(observed.reading, 0)
        if not same and self.observe() != observed:
            raise NodeError("another program changed the table %s meanwhile" % self._table)
        return [command]


def _counts(rule: str) -> str:
    words = text.bare(rule)
    if comments.LEAK in rule:
        return LEAKED
    if re.search(r"\b(?:masquerade|snat to (?!ip6? saddr))", words):
        return MASQUERADED
    return EXEMPT if "@" + text.SET in words or words.endswith(("accept", "saddr")) else OTHER


def _actions(table: str, before: t.Optional[text.ListedTable], after: text.ListedTable) -> t.List[Action]:
    actions = [Action(ActionKind.TABLE_CREATED, "table " + table)] if before is None else []
    # A new table is one action with its sets.
    before = before or after._replace(chains=(), sets=dict.fromkeys(after.sets, ()))
    if before.rules(text.CHAIN) is not None and before.priority != after.priority:
        actions.append(Action(ActionKind.PRIORITY_CHANGED, "%d, before: %d" % (after.priority, before.priority)))
    actions += [Action(ActionKind.SET_CREATED, "set " + name) for name in after.sets if name not in before.sets]
    unused = [name for name in before.sets if name not in after.sets]
    actions += [Action(ActionKind.SET_REMOVED, "set " + name) for name in unused]
    actions += [Action(ActionKind.FOREIGN_PART_REMOVED, part) for part in before.foreign]
    names = [name for name, _rules in after.chains]
    actions += [
        Action(ActionKind.CHAIN_REMOVED, "chain " + name) for name, _rules in before.chains if name not in names
    ]
    for name in names:
        if before.rules(name) is None:
            actions.append(Action(ActionKind.CHAIN_CREATED, "chain " + name))
        had = {text.bare(rule): rule for rule in before.rules(name) or ()}
        has = {text.bare(rule): rule for rule in after.rules(name) or ()}
        actions += rule_changes(had, has, "rules")
        if had.keys() == has.keys() and [*map(text.bare, before.rules(name) or ())] != list(has):
            actions.append(Action(ActionKind.RULES_REORDERED, "chain " + name))
    for name in dict.fromkeys((text.SET, text.SOURCES, *after.sets, *before.sets)):
        there, wanted = (table.sets.get(name, ()) for table in (before, after))
        removed = [text.render_element(name, span, after.family) for span in sorted(set(there) - set(wanted))]
        added = [text.render_element(name, span, after.family) for span in sorted(set(wanted) - set(there))]
        if name == text.OUTLINE:  # its networks are not exempt as a whole
            removed = ["%s from set %s" % (element, name) for element in removed]
            added = ["%s to set %s" % (element, name) for element in added]
        actions += listed(ActionKind.RANGE_REMOVED, ActionKind.RANGES_REMOVED, removed, "ranges")
        actions += listed(ActionKind.RANGE_ADDED, ActionKind.RANGES_ADDED, added, "ranges")
    return actions


class NftablesType(BackendType):
    """See ``backend.BackendType``."""

    name = NFTABLES
    exemptions: t.Tuple[str, ...] = ("return", "accept", "enforce")
    like_return: t.Tuple[str, ...] = ("ACCEPT",)
    positions: t.Tuple[str, ...] = tuple(text.PRIORITIES)
    is_last_resort = True

    def is_installed(self, node: Node, family: Family) -> bool:
        """See ``backend.BackendType.is_installed``. No program is needed; a kernel may lack nf_tables."""
        return generation() is not None

    def tool(self, node: Node, family: Family) -> t.Optional[Tool]:
        """Find nft; None also where it does not answer, because nothing depends on it."""
        with contextlib.suppress(NodeError):
            return node.tool(NFT)
        return None

    def make(self, node: Node, family: Family, managed: Managed) -> t.Optional[Backend]:
        """See ``backend.BackendType.make``. The table has one name, and earlier agents had none."""
        if generation() is None:
            return None
        return Nftables(node.run, family, which(NFT), position=managed.position)

    def notes(self, config: Config) -> t.Iterator[str]:
        if config.exemption == "accept":
            yield (
                "exemption accept has the same effect as return with the nftables backend; exemption: enforce keeps "
                "every NAT rule from masquerading exempt traffic"
            )
        if config.protects_all_interfaces and ipvs_services.count():
            yield (
                "exemption enforce: this node has IPVS services (kube-proxy in IPVS mode). A pod that connects to "
                "itself through such a Service gets no answer where the pods' range is exempt. Name the pods' "
                "interfaces in except_interfaces (cni0 with flannel, cali+ with Calico), use another kube-proxy mode, "
                "or exemption: return"
            )
