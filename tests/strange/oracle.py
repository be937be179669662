# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real packets from pods, and what the outside sees of them. Each carries a number that no NAT changes."""

from __future__ import annotations

import ipaddress
import random
import select
import socket
import struct
import time
import typing as t

from .spaces import Namespace

PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}
NAMES = {number: name for name, number in PROTOCOLS.items()}
MARKER = 0x5A000000
PACKET_OUTGOING = 4


class Probe(t.NamedTuple):
    """One first packet: from which pod (its number), and to what."""

    pod: int
    source: str
    destination: str
    protocol: str
    sport: int
    dport: int
    tos: int = 0
    why: str = ""
    #: of TCP; by itself that of the first packet of a connection
    flags: int = 2

    def __str__(self) -> str:
        return "%s %s:%d -> %s:%d%s%s" % (
            self.protocol,
            self.source,
            self.sport,
            self.destination,
            self.dport,
            " tos %#x" % self.tos if self.tos else "",
            " (%s)" % self.why if self.why else "",
        )


class Seen(t.NamedTuple):
    """What arrived: at which end, from and to which address."""

    end: str
    source: str
    destination: str
    dport: int


def checksum(data: bytes) -> int:
    """Return the Internet checksum."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def crc32c(data: bytes) -> int:
    """Return the checksum of SCTP."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _bit in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def build(probe: Probe, number: int) -> bytes:
    """Return the packet, as Linux sends the first one of a connection, with ``number`` in it."""
    token = struct.pack("!I", MARKER | number)
    source = ipaddress.ip_address(probe.source).packed
    destination = ipaddress.ip_address(probe.destination).packed
    six = len(source) == 16
    protocol = 58 if six and probe.protocol == "icmp" else PROTOCOLS[probe.protocol]
    if probe.protocol == "tcp":
        options = struct.pack("!BBHBBBBIIBBBB", 2, 4, 1460, 4, 2, 8, 10, 123456 + number, 0, 1, 3, 3, 7)
        head = struct.pack("!HH", probe.sport, probe.dport) + token
        head += struct.pack("!IBBHHH", 0, 0xA0, probe.flags, 64240, 0, 0)
        body, at = head + options, 16
    elif probe.protocol == "udp":
        payload = token + b"strange"
        body, at = struct.pack("!HHHH", probe.sport, probe.dport, 8 + len(payload), 0) + payload, 6
    elif probe.protocol == "sctp":
        chunk = struct.pack("!BBH", 1, 0, 20) + token + struct.pack("!IHHI", 106496, 10, 65535, 7)
        body, at = struct.pack("!HHII", probe.sport, probe.dport, 0, 0) + chunk, -1
        body = body[:8] + struct.pack("<I", crc32c(body)) + body[12:]
    else:
        body, at = struct.pack("!BBHHH", 128 if six else 8, 0, 0, probe.sport, 1) + token + b"x" * 44, 2
    if at >= 0:
        pseudo = b""
        if six:
            pseudo = source + destination + struct.pack("!II", len(body), protocol)
        elif probe.protocol != "icmp":
            pseudo = source + destination + struct.pack("!HH", protocol, len(body))
        body = body[:at] + struct.pack("!H", checksum(pseudo + body) or 0xFFFF) + body[at + 2 :]
    if six:
        first = 6 << 28 | probe.tos << 20
        return struct.pack("!IHBB", first, len(body), protocol, 64) + source + destination + body
    fragment = 0x4000
    head = struct.pack(
        "!BBHHHBBH", 0x45, probe.tos, 20 + len(body), (4711 + number) & 0xFFFF, fragment, 64, protocol, 0
    )
    return head[:10] + struct.pack("!H", checksum(head + source + destination)) + source + destination + body


def parse(frame: bytes) -> t.Optional[t.Tuple[int, str, str, int]]:
    """Return the number, source, destination and port of one of our packets, None for any other."""
    if len(frame) < 20:
        return None
    version = frame[0] >> 4
    if version == 4:
        protocol, start = frame[9], (frame[0] & 15) * 4
        source, destination = ipaddress.ip_address(frame[12:16]), ipaddress.ip_address(frame[16:20])
    elif version == 6 and len(frame) >= 40:
        protocol, start = frame[6], 40
        source, destination = ipaddress.ip_address(frame[8:24]), ipaddress.ip_address(frame[24:40])
    else:
        return None
    body = frame[start:]
    at = {6: 4, 17: 8, 132: 16, 1: 8, 58: 8}.get(protocol)
    if at is None or len(body) < at + 4:
        return None
    if protocol in (1, 58) and body[0] not in (8, 128):
        return None
    token = struct.unpack("!I", body[at : at + 4])[0]
    if token >> 24 != MARKER >> 24:
        return None
    port = 0 if protocol in (1, 58) else struct.unpack("!H", body[2:4])[0]
    return token & 0xFFFFFF, str(source), str(destination), port


def raw(version: int) -> socket.socket:
    """Return a socket of the namespace that the caller is in, for packets with their header."""
    return socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)


class Watch:
    """Senders in pods and listeners at all ends of a node's links. One process, sockets in many namespaces."""

    def __init__(self, pods: t.Sequence[Namespace], ends: t.Mapping[str, t.Tuple[Namespace, str]]) -> None:
        self.senders: t.List[t.Dict[int, socket.socket]] = []
        self.listeners: t.Dict[socket.socket, str] = {}
        self.count = 0
        for pod in pods:
            with pod:
                self.senders.append({4: raw(4), 6: raw(6)})
        for name, (space, device) in ends.items():
            with space:
                one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            one.bind((device, 3))
            one.setblocking(False)
            self.listeners[one] = name

    def close(self) -> None:
        for pair in self.senders:
            for one in pair.values():
                one.close()
        for one in self.listeners:
            one.close()

    def send(self, probes: t.Sequence[Probe], quiet: float = 0.04, limit: float = 1.0) -> t.Dict[int, Seen]:
        """Send all, and return for each that arrived, by its place, what was seen first."""
        base = self.count
        self.count += len(probes)
        for place, probe in enumerate(probes):
            packet = build(probe, base + place)
            six = ":" in probe.source
            try:
                self.senders[probe.pod][6 if six else 4].sendto(packet, (probe.destination, 0))
            except OSError:
                continue
        seen: t.Dict[int, Seen] = {}
        end = time.monotonic() + limit
        while time.monotonic() < end:
            ready = select.select(list(self.listeners), [], [], quiet)[0]
            if not ready:
                break
            for one in ready:
                self._read(one, base, len(probes), seen)
        return seen

    def _read(self, one: socket.socket, base: int, count: int, seen: t.Dict[int, Seen]) -> None:
        while True:
            try:
                frame, sender = one.recvfrom(2048)
            except OSError:  # nothing there, or the link is down
                return
            if sender[2] == PACKET_OUTGOING:
                continue
            found = parse(frame)
            if found and 0 <= found[0] - base < count:
                # Of a copy that a rule sends (TEE, dup) and of the packet itself, which comes later, the packet counts.
                seen[found[0] - base] = Seen(self.listeners[one], *found[1:])


def sport(r: random.Random) -> int:
    return r.randint(32768, 60999)
