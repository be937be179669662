# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many services IPVS has in this network namespace, as the kernel lists them."""

from __future__ import annotations

#: Three lines of heading, then the services and their servers (net/netfilter/ipvs/ip_vs_ctl.c).
_LIST = "/proc/net/ip_vs"
_HEADING = 3


def count() -> int:
    """Count the services; 0 also where the kernel has no IPVS."""
    try:
        with open(_LIST, encoding="ascii", errors="replace") as listed:
            return sum(not line.lstrip().startswith("->") for line in listed.read().splitlines()[_HEADING:])
    except OSError:
        return 0
