# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""IPv4 and IPv6, by every name and number that programs and the kernel have for them; and protocols."""

from __future__ import annotations

import ipaddress
import os
import socket
import typing as t


class Family(str):
    """A family: the text that options, results and messages of this collection have for it, and all other names."""

    #: in a packet, and in ``ipaddress``
    version: int
    #: as nft and the kernel's nf_tables call it
    nft: str
    #: the program that sets rules for it
    iptables: str
    #: AF_INET and NFPROTO_IPV4, which are equal
    number: int
    #: of an address
    bits: int
    #: bytes of an address
    size: int
    #: the last address, as a number
    highest: int
    #: the number of the ICMP that belongs to it
    icmp: int

    def __new__(cls, name: str) -> Family:
        """Return the family of that name; raise KeyError if there is none."""
        family = super().__new__(cls, name)
        family.version, family.nft, family.iptables, family.number, family.bits, family.icmp = _NAMES[name]
        family.size, family.highest = family.bits // 8, 2**family.bits - 1
        return family

    def address(self, number: int) -> t.Any:
        """Return an address by its number."""
        return ipaddress.IPv4Address(number) if self.version == 4 else ipaddress.IPv6Address(number)


#: IANA's numbers of protocols, by the names that iptables, nft and this collection print.
PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "ipv6-icmp": 58}
TCP, UDP, SCTP, ICMP, ICMPV6 = PROTOCOLS.values()
DCCP, GRE, AH, NO_NEXT, UDPLITE = 33, 47, 51, 59, 136
PROTOCOL_NAMES = {number: name for name, number in PROTOCOLS.items()}


def protocol_number(name: str, family: Family) -> int:
    """Return the number of a protocol by its name or its number; ``icmp`` and ``icmpv6`` are that of a family.

    :raises ValueError: there is no such protocol.
    """
    if name in ("icmp", "icmpv6"):
        return family.icmp
    return PROTOCOLS[name] if name in PROTOCOLS else int(name)


#: Those that have ports, and that a policy can name with them.
PORT_PROTOCOLS = ("tcp", "udp", "sctp")
#: All that have ports to conntrack.
WITH_PORTS = (TCP, UDP, SCTP, DCCP, UDPLITE)

_NAMES = {
    "ipv4": (4, "ip", "iptables", int(socket.AF_INET), 32, ICMP),
    "ipv6": (6, "ip6", "ip6tables", int(socket.AF_INET6), 128, ICMPV6),
}
IPV4, IPV6 = Family("ipv4"), Family("ipv6")
FAMILIES = (IPV4, IPV6)

BY_VERSION = {one.version: one for one in FAMILIES}
BY_NFT = {one.nft: one for one in FAMILIES}
BY_NUMBER = {one.number: one for one in FAMILIES}


def of_address(text: str) -> Family:
    """Return the family of an address or a network."""
    return IPV6 if ":" in text else IPV4


def has_ipv6() -> bool:
    """Return whether the kernel supports IPv6 at all (ipv6.disable=1 turns it off)."""
    return os.path.exists("/proc/net/if_inet6")
