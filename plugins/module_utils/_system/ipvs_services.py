# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many services IPVS has in this network namespace, as the kernel lists them."""

from __future__ import annotations

from . import files

#: Three lines of heading, then the services and their servers (net/netfilter/ipvs/ip_vs_ctl.c).
_LIST = "/proc/net/ip_vs"
_HEADING = 3
#: Bytes; 10,000 services with 100 servers each take 80 MB.
_MOST = 1 << 27


def count() -> int:
    """Count the services; 0 also where the kernel has no IPVS."""
    return sum(not line.lstrip().startswith("->") for line in files.lines(_LIST, _MOST)[_HEADING:])
