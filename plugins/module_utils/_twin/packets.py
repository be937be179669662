# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packets that open a connection, written and read byte by byte.

Each carries a number by which it is known again whatever was done to its addresses and ports: in TCP the sequence
number, in SCTP the initiate tag, else the payload. What is of no known protocol begins as a packet of GRE does.
"""

from __future__ import annotations

import socket
import struct
import typing as t

from .._system.families import AH, DCCP, ICMP, ICMPV6, SCTP, TCP, UDP, UDPLITE, WITH_PORTS, of_address

IPV4, IPV6, ARP = 0x0800, 0x86DD, 0x0806

_ICMP_ECHO, _ICMPV6_ECHO = 8, 128
_ICMP_ERRORS, _ICMPV6_ERRORS = (3, 4, 5, 11, 12), (1, 2, 3, 4)
_UNREACHABLE = {ICMP: (3, 3), ICMPV6: (1, 4)}
_NEIGHBOUR_SOLICITATION, _NEIGHBOUR_ADVERTISEMENT = 135, 136
_MAGIC = b"kubenode.ip_masq"
_SYN, _RST, _ACK = 0x02, 0x04, 0x10
_ALL_BITS = 0xFFFFFFFF
#: UDP inside, six words, an index, the first number, and 12 bytes that nobody checks on the way (RFC 4302)
_AUTHENTICATION = struct.pack("!BBHII12x", UDP, 4, 0, 300, 1)
#: As Linux opens a connection over Ethernet (tcp_syn_options() in net/ipv4/tcp_output.c): maximum segment size 1460,
#: selective acknowledgements, a timestamp, and a window scale of 7.
_SYN_OPTIONS = struct.pack("!BBH", 2, 4, 1460) + b"\4\2" + struct.pack("!BBII", 8, 10, 1, 0) + b"\1\3\3\7"


class SeenPacket(t.NamedTuple):
    """A packet that was seen. ``number`` is the one that we gave it; None if it is not one of ours.

    ``error``: it is an ICMP error about one of ours.
    """

    source: str
    destination: str
    protocol: int
    #: None where the protocol has no ports, and no number in their place
    source_port: t.Optional[int]
    port: int
    number: t.Optional[int]
    error: bool = False


def transport(
    protocol: int, source: bytes, destination: bytes, source_port: int, port: int, number: int, stray: int = 0
) -> bytes:
    """Return what follows the header of IP.

    :param source: packed; together with ``destination`` it is part of the checksum.
    :param stray: as in Question: with a wrong checksum, invalid to conntrack whatever else it is.
    """
    token = _MAGIC + struct.pack("!I", number)
    if protocol == TCP:
        options, flags = (b"", stray & 0xFF) if stray else (_SYN_OPTIONS, _SYN)
        confirmed = number ^ _ALL_BITS if stray else 0
        words = (20 + len(options)) // 4
        body = struct.pack("!HHIIBBHHH", source_port, port, number, confirmed, words << 4, flags, 64240, 0, 0)
        body += options
        place = 16
    elif protocol in (UDP, UDPLITE):
        # UDP-Lite has there what the checksum covers; 0: all of it.
        length = 8 + len(token) if protocol == UDP else 0
        body = struct.pack("!HHHH", source_port, port, length, 0) + token
        place = 6
    elif protocol == SCTP:
        chunk = struct.pack("!BBHIIHHI", 1, 0, 20, number or 1, 65535, 1, 1, number)
        body = struct.pack("!HHII", source_port, port, 0, 0) + chunk
        return body[:8] + struct.pack("<I", _crc32c(body) ^ bool(stray)) + body[12:]
    elif protocol == DCCP:
        # A request with a sequence number of 48 bits (RFC 4340).
        body = struct.pack("!HHBBHBBHII", source_port, port, 5, 0, 0, 1, 0, 0, number, 0) + token
        place = 6
    elif protocol == AH:
        # In IPv6 conntrack looks at what is behind it.
        return _AUTHENTICATION + transport(UDP, source, destination, source_port, port, number, stray)
    elif protocol not in (ICMP, ICMPV6):
        # GRE with no flags, IPv4 inside (RFC 2784); of version 1 that is invalid (gre_pkt_to_tuple() in the kernel's
        # nf_conntrack_proto_gre.c).
        return struct.pack("!HHI", bool(stray), IPV4, 0) + token
    else:
        body = struct.pack("!BBHHH", _ICMP_ECHO if protocol == ICMP else _ICMPV6_ECHO, 0, 0, source_port, 1) + token
        place = 2
    if protocol == ICMP:
        return _checked(body, place)
    # With its own number in the checksum, UDP-Lite is invalid to conntrack (udplite_error() in the kernel's
    # nf_conntrack_proto_udp.c).
    summed = 0 if stray else UDP if protocol == UDPLITE else protocol
    return _checked(body, place, _pseudo_header(source + destination, body, summed))


def packet(
    protocol: int, source: str, destination: str, source_port: int, port: int, number: int, stray: int = 0
) -> bytes:
    """Return a whole packet of IPv4 or IPv6; see ``transport``.

    :param stray: of ICMP an error about a packet that the destination never sent, instead of an echo request.
    """
    family = of_address(source).number
    sender, receiver = socket.inet_pton(family, source), socket.inet_pton(family, destination)
    if stray and protocol in (ICMP, ICMPV6):
        about = packet(UDP, destination, source, port or 9, source_port, number)
        body = _unreachable(protocol, sender + receiver, about)
    else:
        body = transport(protocol, sender, receiver, source_port, port, number, stray)
    if family == socket.AF_INET6:
        return struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + sender + receiver + body
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0x4000, 64, protocol, 0) + sender + receiver
    return _checked(head, 10) + body


def _unreachable(protocol: int, addresses: bytes, about: bytes) -> bytes:
    """Return the error "port unreachable" about a packet. ``addresses`` are those of the error, packed."""
    kind, code = _UNREACHABLE[protocol]
    body = struct.pack("!BBHI", kind, code, 0, 0) + about
    return _checked(body, 2, b"" if protocol == ICMP else _pseudo_header(addresses, body, protocol))


def frame(receiver: bytes, sender: bytes, kind: int, payload: bytes) -> bytes:
    """Return a frame of Ethernet."""
    return receiver + sender + struct.pack("!H", kind) + payload


def _pseudo_header(addresses: bytes, body: bytes, protocol: int) -> bytes:
    return addresses + struct.pack("!II", len(body), protocol)


def _checked(data: bytes, place: int, before: bytes = b"") -> bytes:
    """Return data with the Internet checksum of itself, and of what is before it, at a place."""
    summed = before + data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(summed) // 2), summed))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return data[:place] + struct.pack("!H", ~total & 0xFFFF or 0xFFFF) + data[place + 2 :]


def _crc32c(data: bytes) -> int:
    """Return the checksum of SCTP (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _bit in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read(data: bytes) -> t.Optional[SeenPacket]:
    """Take a packet of IPv4 or IPv6 apart; None if it is neither."""
    if len(data) >= 20 and data[0] >> 4 == 4:
        start = (data[0] & 0xF) * 4
        addresses = [socket.inet_ntop(socket.AF_INET, data[place : place + 4]) for place in (12, 16)]
        return read_transport(data[9], data[start:], addresses[0], addresses[1])
    if len(data) >= 40 and data[0] >> 4 == 6:
        addresses = [socket.inet_ntop(socket.AF_INET6, data[place : place + 16]) for place in (8, 24)]
        return read_transport(data[6], data[40:], addresses[0], addresses[1])
    return None


def read_transport(protocol: int, body: bytes, source: str, destination: str) -> t.Optional[SeenPacket]:
    """Return the same, for what follows the header of IP."""
    if len(body) < 8:
        return None
    if protocol == AH and len(body) >= 8 + len(_AUTHENTICATION):
        inside = read_transport(UDP, body[len(_AUTHENTICATION) :], source, destination)
        return inside and inside._replace(protocol=AH, source_port=None, port=0)
    source_port, port = struct.unpack_from("!HH", body) if protocol in WITH_PORTS else (None, 0)
    number: t.Optional[int] = None
    if protocol == TCP:
        # What an error quotes may end after the sequence number.
        flags = body[13] if len(body) >= 14 else _RST
        sent, confirmed = struct.unpack_from("!II", body + bytes(4), 4)
        if flags & (_SYN | _ACK) == _SYN or flags == _RST or sent ^ confirmed == _ALL_BITS:
            number = sent
    elif protocol == SCTP:
        if len(body) >= 20 and body[12] == 1:
            number = struct.unpack_from("!I", body, 16)[0]
    else:
        kind = body[0]
        if (protocol == ICMP and kind in _ICMP_ERRORS) or (protocol == ICMPV6 and kind in _ICMPV6_ERRORS):
            about = read(body[8:])
            return None if about is None else about._replace(source=source, destination=destination, error=True)
        if protocol in (ICMP, ICMPV6):
            if kind not in (_ICMP_ECHO, _ICMPV6_ECHO):
                return None
            source_port = struct.unpack_from("!H", body, 4)[0]
        start = (20 if protocol == DCCP else 8) + len(_MAGIC)
        if body[start - len(_MAGIC) : start] == _MAGIC and len(body) >= start + 4:
            number = struct.unpack_from("!I", body, start)[0]
    return SeenPacket(source, destination, protocol, source_port, port, number)


def answer_for_neighbour(data: bytes, kind: int, mine: bytes) -> t.Optional[bytes]:
    """Return the frame that answers "who has this address?" with ``mine``, for any address; None for other frames.

    :param data: the payload of the frame.
    :param kind: its type.
    """
    if kind == ARP and len(data) >= 28 and data[6:8] == b"\0\1":
        asker, asker_address, wanted = data[8:14], data[14:18], data[24:28]
        reply = data[:6] + b"\0\2" + mine + wanted + asker + asker_address
        return frame(asker, mine, ARP, reply)
    if kind == IPV6 and len(data) >= 64 and data[6] == ICMPV6 and data[40] == _NEIGHBOUR_SOLICITATION:
        asker_address, wanted = data[8:24], data[48:64]
        if not any(asker_address):
            return None  # it asks whether an address is free
        # solicited, override; then the option "link-layer address of the target"
        body = struct.pack("!BBHI", _NEIGHBOUR_ADVERTISEMENT, 0, 0, 0x60000000) + wanted + b"\2\1" + mine
        body = _checked(body, 2, _pseudo_header(wanted + asker_address, body, ICMPV6))
        head = struct.pack("!IHBB", 6 << 28, len(body), ICMPV6, 255) + wanted + asker_address
        option = data[64:72]
        asker = option[2:8] if option[:2] == b"\1\1" else b"\x33\x33\0\0\0\1"
        return frame(asker, mine, IPV6, head + body)
    return None
