# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy that uses everything that rules can hold: what versions of a tool read of each other."""

from __future__ import annotations

import typing as t

from .many_ranges import many_long_ranges, many_ranges


def full_policy(many: t.Optional[int] = None, **more: t.Any) -> t.Dict[str, t.Any]:
    """Return it.

    :param many: of the many ranges of each family, only so many.
    :param more: options that differ.
    """
    return {
        "to_ports": ["1024-29999", "32768-65535"],
        "non_masquerade_cidrs": [
            *("10.0.0.0/8", "11.0.0.0/9", "192.0.2.1/32", *many_ranges(octet=12)[:many]),
            *("fd00::/9", "2001:db8::1/128", *many_long_ranges(octet=255)[:many]),
        ],
        "cidr_limit": 5000,
        "enable_ipv6": True,
        "masquerade_cidrs": ["10.9.0.0/16", "fd00:9::/32"],
        "source_cidrs": ["10.244.0.0/16", "10.7.0.1/32", "fd00:10:244::/48"],
        "out_interfaces": ["eth0", "bond*"],
        "except_interfaces": ["cni*"],
        "skip_marks": ["0x4000/0x4000", "0x7", "0x2000/0x6000"],
        "snat": [
            {"address": "192.0.2.7", "source_cidrs": ["10.244.0.0/16", "10.7.0.0/16"]},
            {"address": "192.0.2.8-192.0.2.9", "out_interface": "bond*"},
            {"address": "2001:db8::7", "source_cidrs": ["fd00::/16"], "out_interface": "eth0"},
        ],
        "rules": [
            {"action": "exempt", "destinations": ["203.0.113.0/24", "203.0.113.9/32"], "protocols": ["tcp", "icmp"]},
            {"action": "masquerade", "ports": [80, "443", "9000-9100"], "out_interfaces": ["eth+", "bond0"]},
            {"action": "snat", "address": "2001:db8::7", "protocols": ["udp"], "ports": ["53"]},
            {"action": "skip", "sources": ["10.1.0.0/16", "fd01::/16"]},
        ],
        "leaks": "drop",
        **more,
    }
