# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What rules refer to and do not hold themselves: links by index, group or kind, types of addresses, sets of ipset."""

from __future__ import annotations

import typing as t

from .._system.families import Family
from .._system.intervals import Spans
from .._twin.ipsets import IpSet


class KnownLink(t.NamedTuple):
    """One link. ``master`` is the index of the link that it is a port of, or 0; ``copied_kind`` is that of its copy."""

    name: str
    kind: str = ""
    group: int = 0
    master: int = 0
    copied_kind: str = ""


class Known(t.NamedTuple):
    """A node as the readers need it, for one family.

    ``types`` has the addresses of each type (RTN_*) over all links; a condition on a type that is absent is unknown.
    ``filled`` names sets of ipset that rules fill (xt_rules.filled). ``tos_routed`` is set where a routing rule matches
    for the TOS. ``bound`` has the addresses, other than any, that sockets of the node are bound to; None: not known.
    """

    family: Family
    types: t.Mapping[int, Spans] = {}
    links: t.Mapping[int, KnownLink] = {}
    ipsets: t.Tuple[IpSet, ...] = ()
    filled: t.FrozenSet[str] = frozenset()
    tos_routed: bool = False
    bound: t.Optional[Spans] = None
