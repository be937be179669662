# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The backend type iptables_legacy: the nat table of iptables, kept in the kernel's ip_tables."""

from __future__ import annotations

import typing as t

from .._system import iptables_tool, xtables
from .._system.backend_names import IPTABLES_LEGACY, IPTABLES_NFT
from .._system.families import FAMILIES, Family
from .._system.node import Node
from .backend import Backend, Managed
from .iptables_backend import Iptables, IptablesType
from .iptables_syntax import NAT


class IptablesLegacy(IptablesType):
    """See ``backend.BackendType``."""

    name = IPTABLES_LEGACY
    sign = "its tables hold rules"

    def is_in_use(self, node: Node, used_before: t.Optional[str]) -> bool:
        """Return whether a legacy table holds rules, or did when the agent chose: an emptied node keeps its variant.

        So does a node with iptables-nft, whose hint is gone for a minute if another program flushes all rules, unless
        the kubelet uses legacy now.
        """
        if used_before == IPTABLES_NFT:
            return self.has_hint(node)
        return used_before == self.name or any(map(_has_rules, FAMILIES))

    def kernel_supports(self, node: Node) -> bool:
        """Return whether the kernel has legacy tables, after an attempt to load them: by default, none from 6.17 on."""
        iptables_tool.load_legacy(node.run)
        return iptables_tool.has_legacy()

    def is_left(self, family: Family, chain: str) -> bool:
        table = read_nat_table(family)
        return table is not None and chain in xtables.chain_names(table)

    def make(self, node: Node, family: Family, managed: Managed) -> t.Optional[Backend]:
        tool = iptables_tool.find(node, self.name, family)
        return None if tool is None else Iptables(tool, managed)


def read_nat_table(family: Family) -> t.Optional[xtables.XtTable]:
    """Return the table nat; None if the kernel has none, which a look would make.

    :raises NodeError: the kernel does not answer.
    """
    return xtables.read(family, NAT) if NAT in iptables_tool.legacy_tables(family) else None


def _has_rules(family: Family) -> bool:
    return any(xtables.used_chains(xtables.read(family, table)) for table in iptables_tool.legacy_tables(family))
