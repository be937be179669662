# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What rules refer to and do not hold themselves: links by index, types of addresses, sets of ipset."""

from __future__ import annotations

import typing as t

from .._system.families import Family
from .._system.intervals import Spans
from .._system.ipsets import IpSet


class Known(t.NamedTuple):
    """A node as the readers need it, for one family.

    ``types`` has the addresses of each type (RTN_*) over all links; a condition on a type that is absent is unknown.
    ``links`` are names by index. ``filled`` names sets of ipset that rules fill (xt_rules.filled). ``ipsec``: whether
    IPsec may treat packets.
    """

    family: Family
    types: t.Mapping[int, Spans] = {}
    links: t.Mapping[int, str] = {}
    ipsets: t.Tuple[IpSet, ...] = ()
    filled: t.FrozenSet[str] = frozenset()
    ipsec: bool = True
