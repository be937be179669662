# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the rules that a packet met to the one that decided about it, as its tool lists it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
import typing as t

from .._errors import NodeError
from .._system import iptables_tool, netlink, nf_tables, nfnetlink, xtables
from .._system.backend_names import IPTABLES_LEGACY, IPTABLES_NFT, NFTABLES
from .._system.families import BY_NUMBER
from .._system.nft_expressions import Named, expression, of_rule
from .._system.node import Node
from .._system.process import Outcome, Runner
from .._system.xtables import HOOKS
from . import trace
from .values import DROPPED, REJECTED, Answer, MetRule, Steering

#: where a packet gets another source
_SOURCE_HOOKS = (1, 4)

#: expressions of nft, and targets of iptables
_TRANSLATING = ("masq", "nat", "redir", "MASQUERADE", "SNAT", "DNAT", "REDIRECT", "NETMAP")
_COPYING = (b"dup\0", b"TEE\0")
_UNTRACKING = ("notrack", "NOTRACK")
#: of xt_CT, in its flags
_NOTRACK = 1
#: What a rule does, other than to let a packet pass or not.
_TRANSLATES, _UNTRACKS = "translates", "untracks"
#: Stands for the type of chains that come before conntrack, which has the priority -200; the name of such a table.
_RAW, _CONNTRACK = "raw", -200
_DROPPING_TARGETS = ("DROP", "REJECT", "NFQUEUE", "QUEUE")

#: seconds
_PATIENCE = 20.0


class Rules:
    """The rules of the twin, looked up one by one. All of it happens in the twin's network namespace."""

    def __init__(
        self, run: Runner, tables: t.Sequence[nf_tables.NftTable], legacy: t.Sequence[xtables.XtTable]
    ) -> None:
        self._node = Node(run)
        self._base = {
            (table.family, table.name, base.name): (base.hook, _RAW if base.priority < _CONNTRACK else base.kind)
            for table in tables
            for base in nf_tables.base_chains(table)
        }
        self._legacy = {(table.family.number, table.name): table for table in legacy}
        #: whether a rule may send copies of packets; a name alone is enough
        self.send_copies = any(xtables.has(table, "TEE") for table in legacy) or any(
            copying in rule for table in tables for rule in table.rules for copying in _COPYING
        )
        once = functools.lru_cache(maxsize=None)
        self._parsed, self._read, self._list = once(self._parse), once(self._read_chain), once(self._print)

    def explained(self, answer: Answer, steps: t.Sequence[trace.Step]) -> Answer:
        """Return an answer with those of the rules that its packet met that decided about it."""
        source_rule: t.Optional[trace.Step] = None
        untracking: t.Optional[trace.Step] = None
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
            if step.kind == trace.RULE and kind == _RAW and self._chain(step).get(step.number) == _UNTRACKS:
                untracking = untracking or step
            if step.kind != trace.RULE or kind != "nat" or hook not in _SOURCE_HOOKS:
                continue
            if self._chain(step).get(step.number) == _TRANSLATES:
                source_rule = step
            elif step.verdict not in trace.CALLS:
                passed.append(step)
        rules = tuple(map(self.rule, passed))
        decides = source_rule or (passed[-1] if passed else untracking)
        return answer._replace(
            decided_by=decides and self.rule(decides),
            passed=rules,
            untracked=decides is not None and decides is untracking,
            where=lost if lost and answer.outcome in (DROPPED, REJECTED) else answer.where,
        )

    def _hook(self, step: trace.Step) -> t.Optional[t.Tuple[int, str]]:
        """Return hook and type of a base chain, or _RAW; None for any other."""
        if step.legacy:
            return (HOOKS[step.chain], step.table) if step.chain in HOOKS else None
        return self._base.get((step.family, step.table, step.chain))

    def _ends(self, step: trace.Step) -> bool:
        """Return whether a packet went no further."""
        if not step.legacy:
            return step.verdict in trace.FINAL
        rules, policy = self._legacy_chain(step)
        if step.kind == trace.POLICY:
            return policy == "DROP"
        return step.kind == trace.RULE and rules[step.number - 1].target.name in _DROPPING_TARGETS

    def steer(self, some: t.Sequence[Steering]) -> None:
        """Put rules in front of choices by chance. They are no rules of the node, and have no place in its chains.

        :raises KernelError: the kernel refuses.
        """
        made = []
        for one in some:
            step = trace.Step(False, one.family, one.table, one.chain, trace.RULE, one.number)
            handles = list(self._chain(step))
            verdict = netlink.network_word(1, trace.CALLS[not one.returns] % 2**32) + netlink.text(2, one.leads_to)
            expressions = netlink.nest(
                nf_tables.RULE_EXPRESSIONS,
                expression("payload", dreg=1, base=2, offset=0, len=2),
                expression("cmp", sreg=1, op=0, data=netlink.attribute(1, struct.pack("!H", one.port))),
                expression("immediate", dreg=0, data=netlink.nest(2, verdict)),
            )
            place = nf_tables.before_rule(handles[one.number - 1])
            made.append(nf_tables.new_rule(one.family, one.table, one.chain, place, expressions))
        nf_tables.transact(made, "rules of the copy", behind=False)

    def _legacy_chain(self, step: trace.Step) -> xtables.XtChain:
        return self._parsed(step.family, step.table)[step.chain]

    def _parse(self, family: int, table: str) -> t.Dict[str, xtables.XtChain]:
        return xtables.chains(self._legacy[family, table])

    def _place(self, step: trace.Step) -> str:
        rule = self.rule(step)
        if step.kind == trace.POLICY:
            return "policy of the chain %s in table %s (%s)" % (rule.chain, rule.table, rule.backend)
        return "rule in table %s (%s): %s" % (rule.table, rule.backend, rule.text)

    def placed(self, step: trace.Step) -> MetRule:
        """Return a rule of the node as its tool lists it; ``number`` of the step is its place in the chain, from 1.

        The copy has the rules of the node in their order, with handles of its own.
        """
        handles = list(self._chain(step))
        if 0 < step.number <= len(handles):
            step = step._replace(number=handles[step.number - 1])
        return self.rule(step)

    def rule(self, step: trace.Step) -> MetRule:
        """Return a step as a rule, as the tool that made it lists it, if that is known."""
        backend = IPTABLES_LEGACY if step.legacy else IPTABLES_NFT if self._is_iptables(step) else NFTABLES
        text = self._text(step, backend) if step.kind == trace.RULE else ""
        return MetRule(backend, "%s %s" % (nf_tables.FAMILIES[step.family], step.table), step.chain, text)

    def _is_iptables(self, step: trace.Step) -> bool:
        """Return whether a table is one of iptables-nft: no other program names tables and base chains like that."""
        names = [name for family, table, name in self._base if (family, table) == (step.family, step.table)]
        return xtables.is_table_of_nft(step.family, step.table) and all(name in HOOKS for name in names)

    def _text(self, step: trace.Step, backend: str) -> str:
        handles, where = list(self._chain(step)), (step.family, step.table, step.chain)
        place = handles.index(step.number) if step.number in handles else -1
        if backend != NFTABLES:
            lines = [line for line in self._list(*where, backend) if line.startswith("-A ")]
            if len(lines) == len(handles) and place >= 0:
                return lines[place]
        if not step.legacy:
            ending = "# handle %d" % step.number
            for line in self._list(*where, NFTABLES):
                if line.rstrip().endswith(ending):
                    return line.rsplit(" # handle ", 1)[0].strip()
        return "rule %d of chain %s" % (place + 1, step.chain)

    def _print(self, family: int, table: str, chain: str, backend: str) -> t.List[str]:
        """Return what a tool prints of a chain; nothing if the node has none that can."""
        with contextlib.suppress(NodeError):
            if backend == NFTABLES:
                place = nf_tables.FAMILIES[family], table, chain
                done = self._node.run(["nft", "-a", "-s", "list", "chain", *place], timeout=_PATIENCE)
            else:
                tool = iptables_tool.find(self._node, backend, BY_NUMBER[family])
                done = tool.list_chain(chain, table) if tool else Outcome(1, "", "")
            # A tool that crashes on what a newer one wrote, or cannot print it, has no word for the rule.
            if done.rc == 0:
                return done.stdout.splitlines()
        return []

    def _chain(self, step: trace.Step) -> t.Dict[int, str]:
        """Return the number of each rule in the chain of a step, in order, and what it does."""
        if step.legacy:
            rules = enumerate(self._legacy_chain(step).rules, 1)
            return {number: _effect(rule.target.name, rule.target.info) for number, rule in rules}
        return self._read(step.family, step.table, step.chain)

    @staticmethod
    def _read_chain(family: int, table: str, chain: str) -> t.Dict[int, str]:
        rules = nfnetlink.rules(family, table, chain)
        effects = ((rule.handle, itertools.starmap(_of_expression, of_rule(rule.expressions))) for rule in rules)
        return {handle: next(filter(None, found), "") for handle, found in effects}


def _of_expression(name: str, data: Named) -> str:
    if name == "target":
        name = netlink.name(data.get("name", b""))
    return _effect(name, data.get("info", b""))


def _effect(name: str, info: bytes) -> str:
    """Return what an expression or target does."""
    if name in _TRANSLATING:
        return _TRANSLATES
    untracks = name in _UNTRACKING or (name == "CT" and struct.unpack_from("=H", info)[0] & _NOTRACK)
    return _UNTRACKS if untracks else ""
