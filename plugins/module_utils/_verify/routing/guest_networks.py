# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks of machines and containers that other programs keep on a node, as the rules of these programs show them."""

from __future__ import annotations

import functools
import typing as t

from ..._engine import rule_owners
from ..._rules import nft_rules, xt_tables
from ..._rules.referenced_objects import Known
from ..._rules.rules import RuleTable
from ..._system import netlink, nf_tables, xtables
from ..._system.families import FAMILIES, Family
from ..._system.intervals import Spans
from ..._twin.node_state import NodeState


def find(state: NodeState, family: Family) -> t.AbstractSet[Spans]:
    """Return the sources that a rule in a chain of such a program matches, each range of them."""
    return _find(state.tables, state.legacy, family)


@functools.lru_cache(maxsize=len(FAMILIES))  # senders, guests and several notes ask, of tens of thousands of chains
def _find(
    nft: t.Tuple[nf_tables.NftTable, ...], legacy: t.Tuple[xtables.XtTable, ...], family: Family
) -> t.AbstractSet[Spans]:
    known = Known(family)
    read = [_nft(table, known) for table in nft if rule_owners.keeps_guests(table.name)]
    read += [_legacy(table, known) for table in legacy if rule_owners.keeps_guests(table.name)]
    return {
        (span,)
        for table in read
        if table is not None
        for rules in table.chains.values()
        for rule in rules
        for branch in rule.branches
        for span in branch.match.source or ()
    }


def is_wanted(table: str) -> bool:
    """Return whether a table of nft by its name, without the family, belongs to such a program."""
    return table != "nat" and rule_owners.keeps_guests(table)


def _nft(table: nf_tables.NftTable, known: Known) -> t.Optional[RuleTable]:
    """Return the rules of a table that are in chains of such programs."""
    names = (netlink.attributes(body)[nf_tables.CHAIN_NAME] for body in table.chains)
    theirs = {name for name in names if rule_owners.keeps_guests(table.name, netlink.name(name))}
    if not theirs:
        return None
    rules = (body for body in table.rules if netlink.attributes(body)[nf_tables.RULE_CHAIN] in theirs)
    return nft_rules.read(table._replace(rules=tuple(rules)), known)


def _legacy(table: xtables.XtTable, known: Known) -> t.Optional[RuleTable]:
    read = xt_tables.read(table, known)
    if read is None:
        return None
    chains = {name: rules for name, rules in read.chains.items() if rule_owners.keeps_guests(table.name, name)}
    return read._replace(chains=chains)
