# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The backend type nftables: a table of our own, kept with nft."""

from __future__ import annotations

import typing as t

from .._policy.policy import Config
from .._system.families import Family
from .._system.node import Node, Tool
from .._system.process import which
from .backend import Backend, Managed
from .nftables_backend import NAME, Nftables
from .nftables_syntax import PRIORITIES

#: Virtual services of IPVS (net/netfilter/ipvs/ip_vs_ctl.c): three lines of heading, then the services.
_IPVS_SERVICES = "/proc/net/ip_vs"


class NftablesType:
    """See ``backend.BackendType``."""

    name = NAME
    exemptions: t.Tuple[str, ...] = ("return", "accept", "enforce")
    like_return: t.Tuple[str, ...] = ("ACCEPT",)
    positions: t.Tuple[str, ...] = tuple(PRIORITIES)
    package = "nftables"
    random_fully_since: t.Tuple[int, ...] = ()
    is_last_resort = True

    def is_installed(self, node: Node, family: Family) -> bool:
        """See ``backend.BackendType.is_installed``. Its version is not asked, which would start it."""
        return which("nft") is not None

    def tool(self, node: Node, family: Family) -> t.Optional[Tool]:
        """See ``backend.BackendType.tool``."""
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
        """See ``backend.BackendType.notes``."""
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
