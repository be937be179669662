# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What rules keep of packets that they have seen: lists of xt_recent, and elements that rules add to sets."""

from __future__ import annotations

import os
import typing as t

from .._system import netlink, nf_tables

_LISTS = "/proc/thread-self/net/xt_recent"
#: empties a list (net/netfilter/xt_recent.c)
_EMPTY = "/"


def forget(tables: t.Iterable[nf_tables.NftTable]) -> None:
    """Empty all of it in this network namespace, which must be one of our own."""
    try:
        names = os.listdir(_LISTS)
    except OSError:  # no rule keeps such a list
        names = []
    for name in names:
        with open(os.path.join(_LISTS, name), "w", encoding="ascii") as opened:
            opened.write(_EMPTY)
    messages = [
        # Without elements in the message all of them are meant.
        nf_tables.change(nf_tables.DELETE_ELEMENT, table.family, table.name, netlink.text(nf_tables.ELEMENTS_SET, name))
        for table in tables
        for name in sorted(nf_tables.filled_sets(table))
    ]
    if messages:
        # One transaction: at the end of each the kernel waits until no packet can see the elements any more.
        nf_tables.transact(messages, "the elements of sets that rules fill")
