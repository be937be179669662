# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the rules that a packet met to the one that decided about it, as its tool lists it."""

from __future__ import annotations

import re
import typing as t

from .._errors import NodeError
from .._system import netlink, nfnetlink
from .._system.families import BY_NUMBER
from .._system.process import Runner, which
from . import nf_tables, trace
from .legacy import LegacyTable
from .values import HOOKS, IPTABLES_LEGACY, IPTABLES_NFT, NFTABLES, Rule

#: where a packet gets another source
_SOURCE_HOOKS = (1, 4)

_NAT_EXPRESSIONS = ("masq", "nat", "redir")
_NAT_TARGETS = ("MASQUERADE", "SNAT", "DNAT", "REDIRECT", "NETMAP")
_DROPPING_TARGETS = ("DROP", "REJECT", "NFQUEUE", "QUEUE")
_TARGET = re.compile(r" -[jg] (\S+)")
_IPTABLES_TABLES = ("filter", "mangle", "nat", "raw", "security")

#: seconds
_PATIENCE = 20.0


class Decision(t.NamedTuple):
    """The trace of one packet, as in an answer. ``lost`` is the place where a rule ended its way; empty if
    none did.
    """

    source_rule: t.Optional[Rule]
    passed: t.Tuple[Rule, ...]
    lost: str


class Rules:
    """The rules of the twin, looked up one by one. All of it happens in the twin's network namespace."""

    def __init__(self, run: Runner, tables: t.Sequence[nf_tables.Table], legacy: t.Sequence[LegacyTable]) -> None:
        self._run = run
        self._base = {
            (table.family, table.name, name): (hook, kind)
            for table in tables
            for name, hook, _priority, kind in nf_tables.base_chains(table)
        }
        self._legacy = {(table.family, table.name): table for table in legacy}
        self._lines: t.Dict[t.Tuple[str, str], t.Dict[str, t.List[str]]] = {}
        self._chains: t.Dict[t.Tuple[int, str, str], t.Dict[int, bool]] = {}
        self._listed: t.Dict[t.Tuple[int, str, str], t.List[str]] = {}

    def decide(self, steps: t.Sequence[trace.Step]) -> Decision:
        """Decide which of the rules that a packet met decided about it."""
        source_rule: t.Optional[trace.Step] = None
        passed: t.List[trace.Step] = []
        lost = ""
        hooks: t.Dict[t.Tuple[bool, int, str], t.Tuple[int, str]] = {}
        for step in steps:
            table = (step.legacy, step.family, step.table)
            base = self._hook(step)
            if base is not None:
                hooks[table] = base
            hook, kind = hooks.get(table, (-1, ""))
            if self._ends(step):
                lost = self._place(step)
            if step.kind != trace.RULE or kind != "nat" or hook not in _SOURCE_HOOKS:
                continue
            if self._translates(step):
                source_rule = step
            elif step.verdict not in trace.CALLS:
                passed.append(step)
        rules = tuple(map(self.rule, passed))
        return Decision(
            self.rule(source_rule) if source_rule else rules[-1] if rules else None,
            rules,
            lost,
        )

    def _hook(self, step: trace.Step) -> t.Optional[t.Tuple[int, str]]:
        """Return hook and type of a base chain; None for any other."""
        if step.legacy:
            return (HOOKS[step.chain], step.table) if step.chain in HOOKS else None
        return self._base.get((step.family, step.table, step.chain))

    def _ends(self, step: trace.Step) -> bool:
        """Return whether a packet went no further."""
        if not step.legacy:
            return step.verdict in trace.FINAL
        if step.kind == trace.POLICY:
            return ":%s DROP" % step.chain in self._legacy[_family(step), step.table].listing
        return step.kind == trace.RULE and self._has_target(step, _DROPPING_TARGETS)

    def _translates(self, step: trace.Step) -> bool:
        if step.legacy:
            return self._has_target(step, _NAT_TARGETS)
        return self._chain(step).get(step.number, False)

    def _has_target(self, step: trace.Step, targets: t.Container[str]) -> bool:
        target = _TARGET.search(self._line(step))
        return target is not None and target.group(1) in targets

    def _place(self, step: trace.Step) -> str:
        rule = self.rule(step)
        if step.kind == trace.POLICY:
            return "policy of the chain %s in table %s (%s)" % (rule.chain, rule.table, rule.backend)
        return "rule in table %s (%s): %s" % (rule.table, rule.backend, rule.text)

    def placed(self, step: trace.Step) -> Rule:
        """Return a rule of the node as its tool lists it; ``number`` of the step is its place in the chain, from 1.

        The copy has the rules of the node in their order, with handles of its own.
        """
        handles = [] if step.legacy else list(self._chain(step))
        if 0 < step.number <= len(handles):
            step = step._replace(number=handles[step.number - 1])
        return self.rule(step)

    def rule(self, step: trace.Step) -> Rule:
        """Return a step as a rule, as the tool that made it lists it, if that is known."""
        backend = IPTABLES_LEGACY if step.legacy else IPTABLES_NFT if self._is_iptables(step) else NFTABLES
        text = ""
        if step.kind == trace.RULE:
            text = self._line(step) if step.legacy else self._text(step, backend)
        return Rule(backend, "%s %s" % (_family(step), step.table), step.chain, text)

    def _is_iptables(self, step: trace.Step) -> bool:
        """Return whether a table is one of iptables-nft: no other program names tables and base chains like that."""
        names = [name for family, table, name in self._base if (family, table) == (step.family, step.table)]
        return step.family in BY_NUMBER and step.table in _IPTABLES_TABLES and all(name in HOOKS for name in names)

    def _line(self, step: trace.Step) -> str:
        key = (_family(step), step.table)
        if key not in self._lines:
            self._lines[key] = self._legacy[key].rules()
        lines = self._lines[key].get(step.chain, [])
        return lines[step.number - 1] if 0 < step.number <= len(lines) else ""

    def _text(self, step: trace.Step, backend: str) -> str:
        handles = list(self._chain(step))
        place = handles.index(step.number) if step.number in handles else -1
        if backend == IPTABLES_NFT:
            lines = [line for line in self._list(step, backend) if line.startswith("-A ")]
            if len(lines) == len(handles) and place >= 0:
                return lines[place]
        ending = "# handle %d" % step.number
        for line in self._list(step, NFTABLES):
            if line.rstrip().endswith(ending):
                return line.rsplit(" # handle ", 1)[0].strip()
        return "rule %d of chain %s" % (place + 1, step.chain)

    def _list(self, step: trace.Step, backend: str) -> t.List[str]:
        if backend == IPTABLES_NFT:
            command = BY_NUMBER[step.family].iptables
            names: t.Tuple[str, ...] = (command + "-nft", command)
            arguments = ["-t", step.table, "-S", step.chain]
        else:
            names = ("nft",)
            arguments = ["-a", "-s", "list", "chain", nf_tables.FAMILIES[step.family], step.table, step.chain]
        key = (step.family, " ".join(arguments), backend)
        if key not in self._listed:
            self._listed[key] = self._print(names, arguments)
        return self._listed[key]

    def _print(self, names: t.Sequence[str], arguments: t.Sequence[str]) -> t.List[str]:
        for name in names:
            path = which(name)
            if path is None:
                continue
            try:
                done = self._run([path, *arguments], timeout=_PATIENCE)
            except NodeError:
                continue
            # A tool that crashes on what a newer one wrote (negative), or cannot print it, has no word for the rule.
            if done.rc == 0:
                return done.stdout.splitlines()
        return []

    def _chain(self, step: trace.Step) -> t.Dict[int, bool]:
        """Return the handle of each rule in the chain of a step, in order, and whether it translates addresses."""
        key = (step.family, step.table, step.chain)
        if key not in self._chains:
            rules = nfnetlink.rules(*key)
            self._chains[key] = {rule.handle: any(map(_translates, rule.expressions)) for rule in rules}
        return self._chains[key]


def _translates(expression: nfnetlink.Expression) -> bool:
    if expression.name == "target":
        return netlink.name(dict(expression.data).get(1, b"")) in _NAT_TARGETS
    return expression.name in _NAT_EXPRESSIONS


def _family(step: trace.Step) -> str:
    return nf_tables.FAMILIES.get(step.family, str(step.family))
