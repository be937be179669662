# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What extensions of xtables mean in rules of iptables-nft, where the kernel keeps them as bytes.

The layout of the bytes is that of linux/netfilter/xt_*.h.
"""

from __future__ import annotations

import struct
import typing as t

from .._policy import spans
from .._policy.spans import Spans
from .._twin.ipsets import IpSet
from . import ipset_matches
from .matches import MAX_PORT, Match, any_of, top

#: These say nothing that a question varies, or what they say is true of every packet that opens a connection.
NEUTRAL = frozenset(
    (
        "comment",
        "conntrack",
        "state",
        "addrtype",
        "physdev",
        "pkttype",
        "rpfilter",
        "dccp",
        "esp",
        "ah",
        "icmp",
        "icmp6",
    )
)

_RANGE_SOURCE, _RANGE_DESTINATION, _RANGE_NOT_SOURCE, _RANGE_NOT_DESTINATION = 0x1, 0x2, 0x10, 0x20
_SET_INVERTED = 0x1
_MAX_DIMENSIONS = 3


def read(name: str, info: bytes, version: int, sets: t.Sequence[IpSet]) -> t.Optional[t.List[Match]]:
    """The conditions of which a packet fulfils one where the extension matches; none for an unknown extension."""
    if name in NEUTRAL:
        return [Match()]
    if name in ("tcp", "udp", "sctp"):
        return [_ports(name, info)]
    if name == "multiport":
        return _multiport(info)
    if name == "iprange":
        return [_range(info, version)]
    if name == "set":
        return _set(info, version, sets)
    return None


def _narrowed(match: Match, field: str, allowed: Spans, inverted: bool, version: int) -> Match:
    return match.narrowed(field, spans.complement(allowed, top(field, version)) if inverted else allowed)


def _ports(name: str, info: bytes) -> Match:
    if name == "sctp":  # ports of the destination come first, and only what the flags name counts
        place = {"port": (0, 2), "source_port": (4, 1)}
        flags, inverted = struct.unpack_from("=II", info, 60)
    else:
        place = {"source_port": (0, 1), "port": (4, 2)}
        flags, inverted = 3, info[11 if name == "tcp" else 8]
    match = Match()
    for field, (offset, bit) in place.items():
        low, high = struct.unpack_from("=HH", info, offset)
        if flags & bit and (low, high) != (0, MAX_PORT):
            match = _narrowed(match, field, ((low, high),), bool(inverted & bit), 4)
    return match


def _multiport(info: bytes) -> t.List[Match]:
    kind, count = info[0], info[1]
    ports = struct.unpack_from("=15H", info, 2)[:count]
    marks = info[32:47] if len(info) >= 48 else b"\0" * 15
    found, low = [], None
    for port, goes_on in zip(ports, marks):
        if goes_on:
            low = port
            continue
        found.append((port if low is None else low, port))
        low = None
    inverted = len(info) >= 48 and bool(info[47])
    fields = {0: ("source_port",), 1: ("port",)}.get(kind, ("source_port", "port"))
    return [_narrowed(Match(), field, spans.of(found), inverted, 4) for field in fields]


def _range(info: bytes, version: int) -> Match:
    size = 4 if version == 4 else 16
    bounds = [int.from_bytes(info[place : place + size], "big") for place in (0, 16, 32, 48)]
    flags = info[64]
    match = Match()
    if flags & _RANGE_SOURCE:
        match = _narrowed(match, "source", ((bounds[0], bounds[1]),), bool(flags & _RANGE_NOT_SOURCE), version)
    if flags & _RANGE_DESTINATION:
        match = _narrowed(
            match, "destination", ((bounds[2], bounds[3]),), bool(flags & _RANGE_NOT_DESTINATION), version
        )
    return match


def _set(info: bytes, version: int, sets: t.Sequence[IpSet]) -> t.Optional[t.List[Match]]:
    index, _dimensions, flags = struct.unpack_from("=HBB", info)
    for one in sets:
        if one.index == index:
            sources = [bool(flags & 1 << number) for number in range(1, _MAX_DIMENSIONS + 1)]
            return any_of(ipset_matches.read(one, sources, sets), bool(flags & _SET_INVERTED), version)
    return None
