# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of ranges that cannot be merged with their neighbours."""

from __future__ import annotations

import typing as t

#: So many that nftables asks the networks around them first.
MANY = 1000


def many_ranges(count: int = MANY, octet: int = 10) -> t.List[str]:
    """Return every second /24.

    :param octet: the first one of the first range.
    """
    numbers = range(octet << 16, (octet << 16) + 2 * count, 2)
    return ["%d.%d.%d.0/24" % (number >> 16, number >> 8 & 255, number & 255) for number in numbers]


def many_long_ranges(count: int = MANY, octet: int = 0) -> t.List[str]:
    """Return every second /48 of IPv6, of unique local addresses.

    :param octet: the second one of all ranges.
    """
    return ["fd%02x:0:%x::/48" % (octet, number) for number in range(0, 2 * count, 2)]
