# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The backend type iptables_nft: the nat table of iptables, kept in nf_tables."""

from __future__ import annotations

import typing as t

from .._system import iptables_tool, nfnetlink
from .._system.backend_names import IPTABLES_NFT
from .._system.families import IPV4, Family
from .._system.nfnetlink import MATCH, TARGET
from .._system.node import Node
from .backend import Backend, Managed
from .iptables_backend import Iptables, IptablesType
from .iptables_syntax import MANGLE, NAT
from .nat_table import NftNat

#: What all managed rules are made of in iptables-nft (seen in 1.8.7 to 1.8.11). RHEL 10 images without
#: kernel-modules-extra lack them.
_EXTENSIONS = ((TARGET, "MASQUERADE", 0), (MATCH, "addrtype", 1), (MATCH, "comment", 0))


class IptablesNft(IptablesType):
    """See ``backend.BackendType``."""

    name = IPTABLES_NFT
    sign = "the kubelet uses it"

    def is_in_use(self, node: Node, used_before: t.Optional[str]) -> bool:
        """Return whether the kubelet has left its hint."""
        return self.has_hint(node)

    def kernel_supports(self, node: Node) -> bool:
        return all(node.has_extension(IPV4, *extension) is not False for extension in _EXTENSIONS)

    def is_left(self, family: Family, chain: str) -> bool:
        return nfnetlink.has_chain(family, NAT, chain)

    def make(self, node: Node, family: Family, managed: Managed) -> t.Optional[Backend]:
        tool = iptables_tool.find(node, self.name, family)
        return None if tool is None else Iptables(tool, managed, NftNat(family), NftNat(family, MANGLE))
