# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two IP families, by the names that all of this collection uses."""

from __future__ import annotations

import os

IPV4 = "ipv4"
IPV6 = "ipv6"
FAMILIES = (IPV4, IPV6)

#: as nft and the kernel's nf_tables call them
NFT_FAMILY = {IPV4: "ip", IPV6: "ip6"}


def has_ipv6() -> bool:
    """Return whether the kernel supports IPv6 at all (ipv6.disable=1 turns it off)."""
    return os.path.exists("/proc/net/if_inet6")
