# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The counters in what iptables and nft print. Read at each resync with metrics, so this file loads nothing."""

from __future__ import annotations


def numbers(listing: str) -> list[tuple[int, int]]:
    """Return the packets and bytes of each line that has a counter, in their order.

    :param listing: of ``iptables -S CHAIN -v`` (``-c N N -j``), or of ``nft list`` (``counter packets N bytes N``).
    """
    found = []
    for line in listing.splitlines():
        words = line.split()
        if line.startswith("-A ") and "-c" in words:
            # A comment in front of it may hold the same word.
            at = len(words) - words[::-1].index("-c")
            found.append((int(words[at]), int(words[at + 1])))
        elif "packets" in words and words[words.index("packets") - 1] == "counter":
            at = words.index("packets")
            found.append((int(words[at + 1]), int(words[at + 3])))
    return found
