# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains with the same priority at the same hook.

Of those the kernel asks the one first that was registered last, but does not report which one that was. Where rules of
several tables meet like that, a packet can have more than one answer, and all of them have to be found.
Whether they disagree about the policy: ``verification``.
"""

from __future__ import annotations

import collections
import itertools
import typing as t

from .._system import netlink, nf_tables, xtables
from .._system.families import BY_NFT, BY_NUMBER
from .._system.xtables import HOOKS, priority

_INET = 1
_FAMILIES = {_INET: tuple(BY_NFT), **{number: (family.nft,) for number, family in BY_NUMBER.items()}}
#: Two tables that only let packets pass or not come to the same end in any order.
_FILTER = 0

#: family, hook, priority
_Place = t.Tuple[str, int, int]


class Ties(t.NamedTuple):
    """Tables of nf_tables that meet others, in the order in which they were made; and whether iptables-legacy does."""

    tables: t.Tuple[nf_tables.NftTable, ...]
    legacy: bool

    @property
    def orders(self) -> int:
        """How many orders of chains are tried."""
        return 1 + self.legacy + len(self.tables[1:])


def find(tables: t.Sequence[nf_tables.NftTable], legacy: t.Sequence[xtables.XtTable]) -> Ties:
    """Find the tables with rules in chains that the kernel may run in either order."""
    mine = [set(_places(table)) for table in tables]
    old = {place for table in legacy for place in _legacy_places(table)}
    users = collections.Counter(itertools.chain(old, *mine))
    tied = (table for table, places in zip(tables, mine) if any(users[one] > 1 for one in places))
    return Ties(tuple(tied), any(places & old for places in mine))


def _places(table: nf_tables.NftTable) -> t.Iterator[_Place]:
    if nf_tables.is_dormant(table):
        return
    for base in nf_tables.base_chains(table):
        named = netlink.text(nf_tables.RULE_CHAIN, base.name)
        if (base.kind != "filter" or base.priority < _FILTER) and any(named in body for body in table.rules):
            for family in _FAMILIES.get(table.family, ()):
                yield family, base.hook, base.priority


def _legacy_places(table: xtables.XtTable) -> t.Iterator[_Place]:
    for chain in xtables.used_chains(table):
        yield table.family.nft, HOOKS[chain], priority(table.name, chain)
