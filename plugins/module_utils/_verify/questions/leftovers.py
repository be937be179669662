# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules that a program left in one variant of iptables, or in a table of nft, when it changed to another."""

from __future__ import annotations

import shlex
import typing as t

from ..._engine import rule_owners
from ..._system import netlink, nf_tables, xtables
from ..._system.backend_names import IPTABLES_LEGACY, IPTABLES_NFT, NFTABLES, VARIANTS
from ..._system.families import BY_NFT
from ..._system.printable import shown
from ..._twin.node_state import NodeState
from ..._twin.values import MetRule

_LEFT = "; %s has chains in %s too: if it writes those now, nobody makes this rule any more: %s"

#: backend, table with the family in front, chain
_Place = t.Tuple[str, str, str]


class Leftovers:
    """The chains of a node, and who else than a rule's own place has them."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._read: t.Optional[t.List[_Place]] = None
        self._of_owner: t.Dict[str, t.List[_Place]] = {}

    def remedy(self, rule: MetRule, actor: rule_owners.Owner) -> str:
        """Return what ends the effect of a rule if it is a leftover; empty if its program is nowhere else."""
        if actor.name in rule_owners.LOCAL:
            return ""
        found = self._named_alike(rule) if not actor.known else self._of(actor.name)
        family = rule.table.partition(" ")[0]
        elsewhere = {
            backend for backend, table, _chain in found if backend != rule.backend and _meet(family, table.split()[0])
        }
        if not elsewhere:
            return ""
        subject = actor.name if actor.known else "the program of the chain " + shown(rule.chain)
        return _LEFT % (subject, " and ".join(sorted(elsewhere)), _command(rule))

    def _named_alike(self, rule: MetRule) -> t.List[_Place]:
        """Return the places of a chain in the variants of iptables."""
        if rule.backend not in VARIANTS or rule.chain in xtables.HOOKS:
            return []
        return [one for one in self._places() if one[0] in VARIANTS and one[1:] == (rule.table, rule.chain)]

    def _of(self, owner: str) -> t.List[_Place]:
        """Return the places of chains that have names of a program."""
        if owner not in self._of_owner:
            self._of_owner[owner] = [
                one for one in self._places() if rule_owners.owns_by_name(owner, one[1].partition(" ")[2], one[2])
            ]
        return self._of_owner[owner]

    def _places(self) -> t.List[_Place]:
        if self._read is None:
            self._read = [
                (_backend(table), table.title, netlink.name(netlink.attributes(body)[nf_tables.CHAIN_NAME]))
                for table in self._state.tables
                for body in table.chains
            ]
            self._read += [
                (IPTABLES_LEGACY, table.title, chain)
                for table in self._state.legacy
                for chain in xtables.chain_names(table)
            ]
        return self._read


def _backend(table: nf_tables.NftTable) -> str:
    return IPTABLES_NFT if xtables.is_table_of_nft(table.family, table.name) else NFTABLES


def _meet(first: str, second: str) -> bool:
    """Return whether packets can meet tables of both families of nft."""
    return first == second or "inet" in (first, second)


def _command(rule: MetRule) -> str:
    """Return what removes the rules of a chain, in one that many programs use this rule alone."""
    family, _space, table = rule.table.partition(" ")
    if rule.backend == NFTABLES:
        return "nft delete table %s %s, or reboot" % (family, shlex.quote(shown(table)))
    tool = BY_NFT[family].iptables + ("-legacy" if rule.backend == IPTABLES_LEGACY else "-nft")
    if rule.chain not in xtables.HOOKS:
        return "%s -t %s -F %s, or reboot" % (tool, table, shlex.quote(shown(rule.chain)))
    try:
        words = shlex.split(shown(rule.text))
    except ValueError:
        words = []
    if words[:1] != ["-A"]:  # its tool cannot list it
        return "reboot"
    return "%s -t %s -D %s, or reboot" % (tool, table, " ".join(map(shlex.quote, words[1:])))
