# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chains of a node, and what those of hooks lead to. Each list is read once; no table is made by it."""

from __future__ import annotations

import functools
import typing as t

from .._system import nfnetlink, xtables
from .._system.backend_names import IPTABLES_NFT
from .._system.families import Family
from .._system.nfnetlink import NftChain
from .._system.printable import shown
from .iptables_legacy import read_nat_table
from .iptables_syntax import NAT
from .nat_table import NftNat


class ListedChains:
    """See the module. The methods raise NodeError if the kernel does not answer."""

    def __init__(self, base_only: bool = False) -> None:
        listing = functools.partial(nfnetlink.chains, base_only=base_only)
        #: the chains of nf_tables that a family can meet
        self.nft: t.Callable[[Family], t.List[NftChain]] = functools.lru_cache(maxsize=None)(listing)
        #: the nat table of iptables-legacy
        self.legacy: t.Callable[[Family], t.Optional[xtables.XtTable]] = functools.lru_cache(maxsize=None)(
            read_nat_table
        )

    def names(self, variant: str, family: Family) -> t.Set[str]:
        """Return the chains of the nat table of a variant of iptables."""
        if variant == IPTABLES_NFT:
            return {one.name for one in self.nft(family) if (one.family, one.table) == (family.nft, NAT)}
        table = self.legacy(family)
        return xtables.chain_names(table) if table else set()

    def jumps(self, variant: str, family: Family, chain: str) -> t.List[str]:
        """Return which chains a chain of a hook leads to in the nat table of a variant; no other chain is read."""
        if variant == IPTABLES_NFT:
            rules = NftNat(family).rules(chain) or []
            return [shown(rule.words[-1]) for rule in rules if rule.words[-2:-1] in (("-j",), ("-g",))]
        table = self.legacy(family)
        return [shown(one) for one in xtables.jumps(table, chain)] if table else []
