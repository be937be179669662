# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How full the table of connections is. Read at each resync with metrics, so this file loads nothing."""

from __future__ import annotations

_COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
_LIMIT = "/proc/sys/net/netfilter/nf_conntrack_max"
_STATISTICS = "/proc/net/stat/nf_conntrack"


def read() -> tuple[int, int, int, int, int] | None:
    """Return the fields of ``conntrack.Statistics``; None if the kernel does not track connections."""
    try:
        with open(_COUNT, encoding="ascii") as count, open(_LIMIT, encoding="ascii") as limit:
            count_now, limit_now = int(count.read()), int(limit.read())
        with open(_STATISTICS, encoding="ascii") as rows:
            names = rows.readline().split()
            totals = dict.fromkeys(names, 0)
            for row in rows:  # of each processor, in hexadecimal
                for name, value in zip(names, row.split()):
                    totals[name] += int(value, 16)
    except (OSError, ValueError):
        return None
    return count_now, limit_now, totals.get("insert_failed", 0), totals.get("drop", 0), totals.get("early_drop", 0)
