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

import re
import typing as t

from .._errors import NodeError
from .._policy.policy import Config
from .._system.families import IPV4, IPV6, Family
from .._system.nfnetlink import generation, has_nft_table
from .._system.node import Node, Tool
from .._system.process import Outcome, Runner, which
from . import nftables_syntax as text
from . import rule_comments as comments
from .backend import (
    Action,
    ActionKind,
    Backend,
    CommitRefused,
    Counters,
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

NAME = "nftables"

#: Virtual services of IPVS (net/netfilter/ipvs/ip_vs_ctl.c): three lines of heading, then the services.
_IPVS_SERVICES = "/proc/net/ip_vs"

#: seconds; nft waits for no lock, but 100,000 elements take time on a slow node
_PATIENCE = 120.0

#: Longest piece of an error message of nft that we pass on; it repeats the line that it refused.
_SAID = 300

#: How often the table is listed until the kernel's rules did not change meanwhile, and until, where others write all
#: the time, it can at least be a table.
_SAME_GENERATION = 4
_READS = 20

#: What a kernel may lack, by the module that has it: what rules that need it contain, and such a rule.
_PARTS = {
    "nft_masq": ("masquerade", "masquerade"),
    "nft_nat": ("snat to ", "snat to {address}"),
    "nft_ct": ("ct status ", "ct status dnat return"),
    "nft_fib": ("fib daddr ", "fib daddr type local return"),
    "nft_numgen": ("numgen ", "numgen random mod 2 < 1 return"),
}
_ADDRESS = {IPV4: "192.0.2.1", IPV6: "2001:db8::1"}
#: A table that is never made: nft only asks the kernel whether it could be.
_TRIAL = """add table {nft} ip_masq_agent_trial
add chain {nft} ip_masq_agent_trial trial {{ type nat hook postrouting priority 100; }}
"""
_TRIAL_RULE = "add rule {nft} ip_masq_agent_trial trial {rule}\n"

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_COUNTED = r"\bcounter packets ([0-9]+) bytes ([0-9]+) (\w+(?: to ip6? saddr)?)"


class State(t.NamedTuple):
    """Our table as ``nft -n -s`` lists it; None if it is not there."""

    listed: t.Optional[str]
    #: of the kernel's rules; None if it was not the same before and afterwards
    generation: Generation = Generation()


class Nftables:
    """See ``backend.Backend``.

    :param nft: path of ``nft``.
    :param has_table: asks the kernel whether our table is there; None means that it did not answer.
    :param generation: asks the kernel how many transactions there were; None means that it did not answer.
    :param position: decides the priority of our chain, see ``nftables_syntax.PRIORITIES``.
    """

    name = NAME

    def __init__(
        self,
        run: Runner,
        family: Family,
        nft: str,
        has_table: t.Callable[[Family, str], t.Optional[bool]] = has_nft_table,
        generation: t.Callable[[], t.Optional[int]] = generation,
        position: str = "keep",
    ) -> None:
        self.family = family
        self._run = run
        self._nft = nft
        self._table = "%s %s" % (family.nft, text.TABLE)
        self._has_table = has_table
        self._generation = generation
        self._priority = text.PRIORITIES.get(position, text.PRIORITIES["keep"])

    def observe(self) -> State:
        for attempt in range(1, _READS + 1):
            before = self._generation()
            # Asked before nft is started: where the table is only looked for as a left-over, nothing else is done.
            absent = self._has_table(self.family, text.TABLE) is False
            listed = None if absent else self._listed("-s")
            if listed is not None and text.is_torn(listed):
                continue
            if before == self._generation():
                return State(listed, Generation(before))
            if attempt >= _SAME_GENERATION:
                return State(listed)
        raise self._torn()

    def _listed(self, *flags: str) -> t.Optional[str]:
        """Return what nft prints of the table; None if there is no table."""
        done = self._run(self._list(*flags), timeout=_PATIENCE)
        if done.rc == 0:
            return done.stdout
        if "No such file or directory" in done.stderr:
            return None
        raise self._failure("cannot list the table %s" % self._table, done)

    def _torn(self) -> NodeError:
        return NodeError(
            "%s printed the table %s in pieces %d times (a part twice, or without its end), as it does while other "
            "programs change the rules; run again" % (self._nft, self._table, _READS)
        )

    def _list(self, *flags: str) -> t.List[str]:
        return [self._nft, "-n"] + list(flags) + ["list", "table"] + self._table.split()

    def plan(self, state: State, wanted: t.Optional[Ruleset]) -> Plan:
        before = None if state.listed is None else text.parse(state.listed, self.family)
        if wanted is None:
            removed = [Action(ActionKind.TABLE_REMOVED, "table " + self._table)] if before else []
            return self._as_plan(state, before, removed, (self._deletion(),) if before else (), (), View((), None))
        after = from_ruleset(wanted, self.family)._replace(priority=self._priority)
        if before and before.means(after):
            lines = text.listing(state.listed or "", self.family)
            view = View(lines, None, wanted)
            return Plan((), (), lines, lines, view, view)
        led_to = text.listing(text.render(after), self.family)
        actions = _actions(self._table, before, after)
        transaction = self._transaction(before, after)
        plan = self._as_plan(state, before, actions, transaction, led_to, View(led_to, None, wanted))
        moved = before is not None and before.priority != after.priority
        return plan._replace(former=plan.former._replace(moved=moved))

    def _as_plan(
        self,
        state: State,
        before: t.Optional[text.Table],
        actions: t.Sequence[Action],
        transaction: Transaction,
        led_to: t.Tuple[str, ...],
        view: View,
    ) -> Plan:
        lines = () if state.listed is None else text.listing(state.listed, self.family)
        found = View(lines, None, None if before is None else to_ruleset(before))
        # A chain without rules decides nothing.
        former = Former(rulesets=(found.ruleset,)) if before is not None and before.rules(text.CHAIN) else Former()
        return Plan(tuple(actions), transaction, lines, led_to, view, found, former=former)

    def _deletion(self) -> str:
        return "delete table %s\n" % self._table

    def _transaction(self, before: t.Optional[text.Table], after: text.Table) -> Transaction:
        if before is not None and before.foreign:
            # Another program changed the table in ways that we do not know: only a new one is sure to be without them.
            return (self._deletion() + text.render(after),)
        tightened: t.List[str] = []
        new_sets: t.List[str] = []
        if after.rules(text.LEAKS) is not None and (before is None or before.nat_differs(after)):
            tightened = text.change_chains(after.lenient, after, [text.LEAKS])
            if before is not None and before.rules(text.LEAKS) is not None:
                new_sets += text.change_chains(before, before.lenient, [text.LEAKS])
                before = before.lenient
            after = after.lenient
        if before is None:
            before = after._replace(chains=(), sets={})
            new_sets.append("add table " + self._table)
        for name in after.sets:
            if name not in before.sets:
                # See the module: a new set is complete before a chain looks into it.
                new_sets += text.change_set(after, name)
        changed = [name for name, spans in after.sets.items() if before.sets.get(name, spans) != spans]
        elements = [command for name in changed for command in text.change_set(after, name, there=True)]
        chains = [] if before.same_rules(after) else text.change_chains(before, after)
        unused = [name for name in before.sets if name not in after.sets]
        removed = [text.delete_set(self.family, name) for name in unused]
        steps = [new_sets, elements + chains + removed]
        if len(changed) + bool(chains) > 1 and (before.narrowed or after.narrowed):
            interim = after.asking_others(changed)
            for name in changed:
                new_sets += text.change_set(after, name, called=name + text.INTERIM)
            steps = [
                new_sets,
                text.change_chains(before, interim) + removed,
                elements,
                text.change_chains(interim, after)
                + [text.delete_set(self.family, name + text.INTERIM) for name in changed],
            ]
        steps.append(tightened)
        return tuple("\n".join(step + [""]) for step in steps if step)

    def is_alone(self, before: State, transaction: Transaction, now: State) -> bool:
        return now.generation.follows(before.generation, len(transaction))

    def undo(self, state: State, previous: State) -> Transaction:
        deletion = "" if state.listed is None else self._deletion()
        return (deletion + text.readable(previous.listed or ""),)

    def commit(self, transaction: Transaction) -> None:
        first, rest = transaction[0], transaction[1:]
        new_table = bool(rest) and self._has_table(self.family, text.TABLE) is False
        loosened = bool(rest) and text.LENIENT in first
        before = text.parse(self._listed("-s") or "", self.family) if loosened else None
        self._write(first)
        try:
            for step in rest[:1]:
                self._write(step)
        except Overtaken:
            raise
        except CommitRefused:
            # What is refused must not have changed anything: the first step created sets that no rule uses, and let
            # first packets pass.
            created = [text.delete_set(self.family, name) for name in text.created_sets(first)]
            created += text.change_chains(before, before, [text.LEAKS]) if before else []
            self._write(self._deletion() if new_table else "\n".join([*created, ""]))
            raise
        try:
            for step in rest[1:]:
                self._write(step)
        except Overtaken:
            raise
        except CommitRefused as exc:
            raise NodeError("%s. The new rules are active, in a temporary form; run again" % exc) from None

    def _write(self, commands: str) -> None:
        done = self._run([self._nft, "-f", "-"], stdin=commands, timeout=_PATIENCE)
        if done.rc == 0:
            return
        if not commands.startswith(("add table ", "table ")) and self._has_table(self.family, text.TABLE) is False:
            raise Overtaken(
                "%s refused the rules, because another program removed the table %s meanwhile (nft flush ruleset does)"
                % (self._nft, self._table)
            )
        raise self._failure("refused the rules", done, CommitRefused, commands)

    def _failure(self, what: str, done: Outcome, error: t.Type[NodeError] = NodeError, commands: str = "") -> NodeError:
        said = done.error_text
        advice = ""
        if done.crashed:
            version = " ".join(self._run([self._nft, "--version"]).stdout.split()[:2])
            said = "%s crashed (exit status %d)" % (version or "it", done.rc)
            advice = (
                ". A table written by a newer nft, in most cases another program's, makes older versions crash; which "
                "table it is cannot be determined. Upgrade nftables, or set backend to iptables_nft or iptables_legacy"
            )
        elif "Operation not permitted" in said:
            advice = ". Another program owns the table, or this one lacks CAP_NET_ADMIN"
        elif commands and ("not supported" in said or "No such file or directory" in said):
            advice = self._refused_parts(commands)
        if len(said) > _SAID:
            said = said[:_SAID] + "..."
        return error("%s %s: %s%s" % (self._nft, what, said, advice))

    def _refused_parts(self, commands: str) -> str:
        """Return the parts of commands that the kernel refuses also if nothing else is in the way, and advice."""
        if not self._accepts(""):
            refused = ["nft_chain_nat"]
        else:
            used = [(name, rule) for name, (mark, rule) in _PARTS.items() if mark in commands]
            refused = [name for name, rule in used if not self._accepts(rule)]
        if refused:
            return (
                ". The kernel lacks a part of nf_tables that this needs (%s): install the kernel's modules, or set "
                "backend to an iptables variant" % ", ".join(refused)
            )
        return (
            ". The kernel accepts such rules in a table of their own, so most likely another program changed the table "
            "%s meanwhile; run again" % self._table
        )

    def _accepts(self, rule: str) -> bool:
        """Return whether the kernel accepts a chain as ours with this rule; nothing is written."""
        nft = self.family.nft
        trial = _TRIAL + (_TRIAL_RULE if rule else "")
        rule = rule.format(address=_ADDRESS[self.family])
        return self._run([self._nft, "-c", "-f", "-"], stdin=trial.format(nft=nft, rule=rule)).rc == 0

    def counters(self) -> Counters:
        for _attempt in range(_READS):
            listed = self._listed("-t")
            if listed is None:
                raise NodeError("%s: the table %s is gone, and what it counted with it" % (self._nft, self._table))
            if not text.is_torn(listed):
                return _counted(listed)
        raise self._torn()

    def fingerprint(self) -> t.List[t.List[str]]:
        return [self._list("-s")]


def _counted(listed: str) -> Counters:
    total = Counters()
    for line in listed.splitlines():
        found = re.search(_COUNTED, line)
        if found:
            counted = (int(found.group(1)), int(found.group(2)))
            if comments.LEAK in line:
                total = total.plus(Counters(leaked_packets=counted[0]))
            elif found.group(3) in ("masquerade", "snat"):
                total = total.plus(Counters(0, 0, *counted))
            elif "@" + text.SET in line or found.group(3) != "return":
                total = total.plus(Counters(*counted))
    return total


def _actions(table: str, before: t.Optional[text.Table], after: text.Table) -> t.List[Action]:
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


class NftablesType:
    """See ``backend.BackendType``."""

    name = NAME
    exemptions: t.Tuple[str, ...] = ("return", "accept", "enforce")
    like_return: t.Tuple[str, ...] = ("ACCEPT",)
    positions: t.Tuple[str, ...] = tuple(text.PRIORITIES)
    package = "nftables"
    random_fully_since: t.Tuple[int, ...] = ()
    is_last_resort = True

    def is_installed(self, node: Node, family: Family) -> bool:
        """See ``backend.BackendType.is_installed``. Its version is not read, which would start it."""
        return which("nft") is not None

    def tool(self, node: Node, family: Family) -> t.Optional[Tool]:
        return node.tool("nft")

    def is_in_use(self, node: Node, used_before: bool) -> bool:
        """Return False: as a last resort it is never one of several to choose from."""
        return False

    def kernel_supports(self, node: Node) -> bool:
        """Return True: nft refuses what the kernel does not support."""
        return True

    def make(self, node: Node, family: Family, managed: Managed) -> t.Optional[Backend]:
        """See ``backend.BackendType.make``. The table has one name, and earlier agents had none."""
        path = which("nft")
        return None if path is None else Nftables(node.run, family, path, position=managed.position)

    def notes(self, config: Config) -> t.Iterator[str]:
        if config.exemption == "accept":
            yield (
                "exemption accept has the same effect as return with the nftables backend, whose chain holds no other "
                "rules; use exemption: enforce to keep every NAT rule from masquerading exempt traffic"
            )
        if config.protects_all_interfaces and _ipvs_in_use():
            yield (
                "exemption enforce: this node has IPVS services (kube-proxy in IPVS mode). A pod that connects to "
                "itself through such a Service gets no answer where the pods' range is exempt, because IPVS sets "
                "neither a mark nor the DNAT status on these connections. Name the pods' interfaces in "
                "except_interfaces (cni0 with flannel, cali+ with Calico), use another kube-proxy mode, or exemption: "
                "return"
            )


def _ipvs_in_use() -> bool:
    try:
        with open(_IPVS_SERVICES, encoding="ascii", errors="replace") as services:
            return len(services.readlines()) > 3
    except OSError:
        return False
