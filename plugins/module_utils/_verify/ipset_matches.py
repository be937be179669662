# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rule means that asks a set of ipset. Attribute numbers: linux/netfilter/ipset/ip_set.h."""

from __future__ import annotations

import struct
import typing as t

from .._system import netlink
from .._twin.ipsets import IpSet
from .._twin.values import PROTOCOLS
from .matches import Match

_DATA = 7
_NETMASK = 20
_PORT, _PORT_TO, _PROTOCOL, _NAME = 4, 5, 7, 18
#: first and last address and length of the prefix, of the first and the second address in an entry
_ADDRESSES = ((1, 2, 3), (20, 22, 21))


def read(one: IpSet, sources: t.Sequence[bool], others: t.Sequence[IpSet]) -> t.List[Match]:
    """A condition for each entry of a set.

    :param sources: for each part of an entry, whether it is looked up by where a packet comes from.
    :param others: all sets, for those that consist of sets.
    """
    if one.kind == "list:set":
        names = {netlink.name(netlink.attributes(entry).get(_NAME, b"")) for entry in one.entries}
        members = [other for other in others if other.name in names and other.kind != "list:set"]
        return [match for member in members for match in read(member, sources, others)]
    parts = one.kind.split(":", 1)[-1].split(",")
    header = netlink.attributes(netlink.attributes(one.header).get(_DATA, b""))
    netmask = header[_NETMASK][0] if _NETMASK in header and one.kind.startswith(("hash:ip", "bitmap:ip")) else None
    return [_match(netlink.attributes(entry), parts, sources, netmask) for entry in one.entries]


def _match(
    entry: t.Mapping[int, bytes], parts: t.Sequence[str], sources: t.Sequence[bool], netmask: t.Optional[int]
) -> Match:
    match = Match()
    addresses = iter(_ADDRESSES)
    for part, source in zip(parts, sources):
        if part in ("ip", "net"):
            first, last, prefix = next(addresses)
            field = "source" if source else "destination"
            match = match.narrowed(field, (_addresses(entry, first, last, prefix, netmask),))
        elif part == "port" and _PORT in entry:
            low = struct.unpack("!H", entry[_PORT])[0]
            high = struct.unpack("!H", entry[_PORT_TO])[0] if _PORT_TO in entry else low
            match = match.narrowed("source_port" if source else "port", ((low, high),))
            protocol = entry[_PROTOCOL][0] if _PROTOCOL in entry else PROTOCOLS["tcp"]
            match = match.narrowed("protocol", ((protocol, protocol),))
    return match


def _addresses(
    entry: t.Mapping[int, bytes], first: int, last: int, prefix: int, netmask: t.Optional[int]
) -> t.Tuple[int, int]:
    """First and last address of a part; everything where it has none."""
    if first not in entry:
        return (0, (1 << 128) - 1)
    value = next(iter(netlink.attributes(entry[first]).values()))
    bits = len(value) * 8
    length = entry[prefix][0] if prefix in entry else bits if netmask is None else netmask
    low = int.from_bytes(value, "big") >> (bits - length) << (bits - length)
    if last in entry:
        return low, int.from_bytes(next(iter(netlink.attributes(entry[last]).values())), "big")
    return low, low | ((1 << (bits - length)) - 1)
