# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packets without a connection, byte by byte: sent by a pod, and seen by the world outside, or not."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import itertools
import multiprocessing
import multiprocessing.connection
import re
import socket
import struct
import typing as t

from strange.oracle import checksum, crc32c

from .namespaces import Namespace

_FORK = multiprocessing.get_context("fork")
_FLAGS = ("FIN", "SYN", "RST", "PSH", "ACK", "URG")
#: In the payload of each packet, in front of its number.
_MARK = b"stray packet "
_NUMBERED = re.compile(_MARK + rb"([0-9]{8})")
_LAST = 99999999
_IPV4, _IPV6 = 0x0800, 0x86DD
_TCP, _UDP, _ICMP, _ICMPV6, _SCTP, _FRAGMENT = 6, 17, 1, 58, 132, 44
#: Seconds after which packets that were not seen are lost, if the last one is lost too.
PATIENCE = 20.0

_numbers = itertools.count(1)
_ports = itertools.cycle(range(20000, 60000))


class Stray(t.NamedTuple):
    """One packet, which may be sent in several fragments."""

    name: str
    number: int
    source: str
    destination: str
    frames: t.Tuple[bytes, ...]


def strays(source: str, destination: str, port: int = 9) -> t.List[Stray]:
    """Return packets of all kinds that conntrack may find no connection for. No two share a connection.

    Every combination of flags of TCP is among them, so some are accepted as the beginning of a connection.
    """
    make = functools.partial(_stray, source, destination)
    both = source, destination
    found = [
        make("TCP " + ("+".join(name for bit, name in enumerate(_FLAGS) if flags >> bit & 1) or "no flags"), _TCP,
             functools.partial(_tcp, source, destination, flags, port=port))
        for flags in range(64)
    ]  # fmt: skip
    found += [
        make("TCP with a wrong checksum", _TCP, lambda data: _tcp(*both, 0x02, data, port, spoil=1)),
        make("UDP with a wrong checksum", _UDP, lambda data: _udp(*both, data, port, spoil=1)),
        make("SCTP data", _SCTP, lambda data: _sctp(0, data, port)),
        make("SCTP abort", _SCTP, lambda data: _sctp(6, data, port)),
    ]
    found += [
        make("ICMP %d/%d" % (kind, code), _icmp_number(source), functools.partial(_icmp, *both, kind, code))
        for kind, code in (
            ((0, 0), (3, 1), (3, 3), (3, 4), (4, 0), (5, 1), (11, 0), (12, 0), (14, 0), (18, 0))
            if ":" not in source
            else ((1, 0), (1, 4), (2, 0), (3, 0), (4, 1), (129, 0))
        )
    ]
    return found


def stray(source: str, destination: str, protocol: str, port: int) -> Stray:
    """Return one packet to a port that conntrack does not accept, which has no connection for it."""
    if protocol == "tcp":
        return _stray(source, destination, "RST", _TCP, lambda data: _tcp(source, destination, 0x04, data, port))
    spoilt = functools.partial(_udp, source, destination, port=port, spoil=1)
    return _stray(source, destination, "UDP with a wrong checksum", _UDP, spoilt)


def untracked(source: str, destination: str, port: int) -> t.List[Stray]:
    """Return UDP, whole and in fragments, to a port whose packets the node does not track."""
    make = functools.partial(_stray, source, destination)
    body = lambda data: _udp(source, destination, data, port)  # noqa: E731
    return [make("UDP", _UDP, body), make("UDP in fragments", _UDP, body, size=3000)]


def fragments(source: str, destination: str, port: int = 9) -> t.List[Stray]:
    """Return TCP without a connection, in fragments."""
    return [
        _stray(source, destination, "RST in fragments", _TCP,
               lambda data: _tcp(source, destination, 0x04, data, port), size=3000)
    ]  # fmt: skip


def _icmp_number(source: str) -> int:
    return _ICMPV6 if ":" in source else _ICMP


def _stray(
    source: str, destination: str, name: str, protocol: int, body: t.Callable[[bytes], bytes], size: int = 0
) -> Stray:
    number = next(_numbers)
    data = _MARK + b"%08d" % number
    data += b"." * max(size - len(data), 0)
    return Stray(name, number, source, destination, _frames(source, destination, protocol, body(data), number))


def _frames(source: str, destination: str, protocol: int, body: bytes, number: int) -> t.Tuple[bytes, ...]:
    parts = [body[start : start + 1400] for start in range(0, len(body), 1400)]
    return tuple(
        (_ipv6 if ":" in source else _ipv4)(source, destination, protocol, part, number, place, place + 1 < len(parts))
        for place, part in enumerate(parts)
    )


def _ipv4(source: str, destination: str, protocol: int, body: bytes, number: int, place: int, more: bool) -> bytes:
    fields = (0x45, 0, 20 + len(body), number & 0xFFFF, more << 13 | place * 175, 64, protocol)
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    head = struct.pack("!BBHHHBB", *fields)
    return head + struct.pack("!H", checksum(head + b"\0\0" + addresses)) + addresses + body


def _ipv6(source: str, destination: str, protocol: int, body: bytes, number: int, place: int, more: bool) -> bytes:
    if place or more:
        body = struct.pack("!BBHI", protocol, 0, place * 175 << 3 | more, number) + body
        protocol = _FRAGMENT
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, one) for one in (source, destination))
    return struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + addresses + body


def _checked(source: str, destination: str, protocol: int, body: bytes, at: int, spoil: int = 0) -> bytes:
    """Return a body with its checksum in place."""
    packed = [ipaddress.ip_address(one).packed for one in (source, destination)]
    pseudo = b"".join(packed) + struct.pack("!II", len(body), protocol)
    # 0 would mean that there is no checksum.
    return body[:at] + struct.pack("!H", checksum(pseudo + body) ^ spoil or 2) + body[at + 2 :]


def _tcp(source: str, destination: str, flags: int, data: bytes, port: int, spoil: int = 0) -> bytes:
    head = struct.pack("!HHIIBBHHH", next(_ports), port, 7, 7, 5 << 4, flags, 1000, 0, 0)
    return _checked(source, destination, _TCP, head + data, 16, spoil)


def _udp(source: str, destination: str, data: bytes, port: int, spoil: int = 0) -> bytes:
    head = struct.pack("!HHHH", next(_ports), port, 8 + len(data), 0)
    return _checked(source, destination, _UDP, head + data, 6, spoil)


def _sctp(kind: int, data: bytes, port: int) -> bytes:
    data += b"\0" * (-len(data) % 4)
    body = struct.pack("!HHII", next(_ports), port, 7, 0) + struct.pack("!BBH", kind, 3, 4 + len(data)) + data
    return body[:8] + struct.pack("<I", crc32c(body)) + body[12:]


def _icmp(source: str, destination: str, kind: int, code: int, data: bytes) -> bytes:
    """Return a message; an error is about a packet of a connection that nobody has."""
    error = kind in ((1, 2, 3, 4) if ":" in source else (3, 4, 5, 11, 12))
    about = b""
    if error:
        inner = struct.pack("!HHHH", 9, next(_ports), 8 + len(data), 0) + data
        (about,) = _frames(destination, source, _UDP, inner, 1)
    body = struct.pack("!BBHI", kind, code, 0, next(_ports)) + (about or data)
    if ":" in source:
        return _checked(source, destination, _ICMPV6, body, 2)
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


def seen(
    pod: Namespace, node_mac: str, outside: Namespace, packets: t.Sequence[Stray], passing: t.Sequence[str]
) -> t.Dict[int, t.Set[str]]:
    """Send packets from the pod, and return by number the source addresses that the world outside saw.

    :param node_mac: where the pod sends to.
    :param passing: source and destination, by which a last packet passes.
    """
    source, destination = passing
    last = _frames(source, destination, _UDP, _udp(source, destination, _MARK + b"%08d" % _LAST, 9), 1)
    receiver, sender = _FORK.Pipe(duplex=False)
    with contextlib.ExitStack() as stack:
        sock = outside.inside(_listening)
        stack.callback(sock.close)
        process = _FORK.Process(target=_collect, args=(sock, sender), daemon=True)
        process.start()
        stack.callback(process.kill)
        pod.inside(_send, "eth0", node_mac, [frame for one in packets for frame in one.frames] + list(last))
        assert receiver.poll(PATIENCE), "the last packet was not seen"
        return t.cast(t.Dict[int, t.Set[str]], receiver.recv())


def _listening() -> socket.socket:
    """Open a socket for what comes in by any interface."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return sock


def _send(dev: str, mac: str, frames: t.Sequence[bytes]) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as sock:
        for frame in frames:
            kind = _IPV6 if frame[0] >> 4 == 6 else _IPV4
            sock.sendto(frame, (dev, kind, 0, 0, bytes.fromhex(mac.replace(":", ""))))


def _collect(sock: socket.socket, sender: multiprocessing.connection.Connection) -> None:
    found: t.Dict[int, t.Set[str]] = {}
    while _LAST not in found:
        data, address = sock.recvfrom(65535)
        number = _NUMBERED.search(data)
        if number and address[2] != socket.PACKET_OUTGOING:
            kind, start, end = (socket.AF_INET6, 8, 24) if data[0] >> 4 == 6 else (socket.AF_INET, 12, 16)
            found.setdefault(int(number.group(1)), set()).add(socket.inet_ntop(kind, data[start:end]))
    del found[_LAST]
    sender.send(found)
