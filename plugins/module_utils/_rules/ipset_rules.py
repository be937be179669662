# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packets a set of ipset means. Attribute numbers: linux/netfilter/ipset/ip_set.h."""

from __future__ import annotations

import struct
import typing as t

from .._system import netlink
from .._system.families import ICMP, ICMPV6, SCTP, TCP, UDP, UDPLITE, Family
from .._system.ipsets import IpSet
from .._system.services import MAX_PORT
from . import conditions
from .reading import Conditions, UnknownError, both
from .referenced_objects import Known

_FAMILY, _DATA = 5, 7
_NETMASK, _BITMASK = 20, 12
_PORT, _PORT_TO, _TIMEOUT, _PROTOCOL, _FLAGS = 4, 5, 6, 7, 8
_NOMATCH = 0x4
#: first and last address and length of the prefix, of the first and the second address in an entry
_ADDRESSES = ((1, 2, 3), (20, 22, 21))
_WITH_PORTS = (TCP, UDP, SCTP, UDPLITE)


def read(one: IpSet, sources: t.Sequence[bool], known: Known) -> t.List[Conditions]:
    """Return alternative conditions: a packet fulfils one if the set has an entry for it.

    :param sources: for each part of an entry, whether it is looked up by where a packet comes from.
    :raises UnknownError: it is not understood.
    """
    if not conditions.is_known(conditions.IPSET, one.kind):
        raise UnknownError(conditions.because(conditions.IPSET, one.kind))
    if one.name in known.filled:
        raise UnknownError("entries that rules add to the set %s of ipset" % one.name)
    try:
        return _entries(one, sources, known)
    except (IndexError, KeyError, ValueError, struct.error):
        raise UnknownError("the set %s of ipset, which cannot be read" % one.name) from None


def _entries(one: IpSet, sources: t.Sequence[bool], known: Known) -> t.List[Conditions]:
    header = netlink.attributes(one.header)
    data = netlink.attributes(header.get(_DATA, b""))
    family = header.get(_FAMILY, b"\0")[0]
    if family not in (0, known.family.number) and not one.kind.startswith("bitmap:port"):
        return []  # the kernel finds nothing in a set of the other family
    parts = one.kind.split(":", 1)[-1].split(",")
    if len(sources) < len(parts):
        return []
    if _BITMASK in data:
        raise UnknownError("a mask of the set %s of ipset" % one.name)
    length = data[_NETMASK][0] if _NETMASK in data else known.family.bits
    found = [_entry(netlink.attributes(entry), parts, sources, known, length) for entry in one.entries]
    return [match for match in found if match is not None]


def _entry(
    entry: t.Mapping[int, bytes], parts: t.Sequence[str], sources: t.Sequence[bool], known: Known, length: int
) -> t.Optional[Conditions]:
    # Of a set with timeouts, 0 is an entry without one.
    if any(entry.get(_TIMEOUT, b"")):
        raise UnknownError("entries of a set of ipset that end by themselves")
    if int.from_bytes(entry.get(_FLAGS, b""), "big") & _NOMATCH:
        raise UnknownError("entries of a set of ipset that are no match")
    match: t.Optional[Conditions] = {}
    addresses = iter(_ADDRESSES)
    for part, source in zip(parts, sources):
        made: Conditions = {}
        if part in ("ip", "net"):
            made["source" if source else "destination"] = (_addresses(entry, *next(addresses), known.family, length),)
        else:
            made = _ports(entry, source)
        match = None if match is None else both(match, made)
    return match


def _ports(entry: t.Mapping[int, bytes], source: bool) -> Conditions:
    low = struct.unpack("!H", entry[_PORT])[0]
    high = struct.unpack("!H", entry[_PORT_TO])[0] if _PORT_TO in entry else low
    key = "source_port" if source else "port"
    if _PROTOCOL not in entry:  # bitmap:port
        return {"protocol": ((TCP, TCP), (UDP, UDP)), key: ((low, high),)}
    protocol = entry[_PROTOCOL][0]
    if protocol in _WITH_PORTS:
        return {"protocol": ((protocol, protocol),), key: ((low, high),)}
    if protocol in (ICMP, ICMPV6):  # type and code are where others have the port
        raise UnknownError("the type of an ICMP message")
    return {"protocol": ((protocol, protocol),)} if (low, high) in ((0, 0), (0, MAX_PORT)) else {"protocol": ()}


def _addresses(
    entry: t.Mapping[int, bytes], first: int, last: int, prefix: int, family: Family, length: int
) -> t.Tuple[int, int]:
    """Return first and last address of a part; everything if it has none.

    :param length: of the prefix where the entry has none.
    """
    bits = family.bits
    if first not in entry:
        return (0, (1 << bits) - 1)
    value = next(iter(netlink.attributes(entry[first]).values()))
    if len(value) * 8 != bits:
        raise UnknownError("an entry of a set of ipset of the other family")
    length = entry[prefix][0] if prefix in entry else length
    low = int.from_bytes(value, "big") >> (bits - length) << (bits - length)
    if last in entry:
        return low, int.from_bytes(next(iter(netlink.attributes(entry[last]).values())), "big")
    return low, low | ((1 << (bits - length)) - 1)
