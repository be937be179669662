# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packets: what is written is read again, and other stacks would take it."""

from __future__ import annotations

import struct
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import STRAY
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import packets
from support.leak_packets import checksum

ADDRESSES = {4: ("10.1.2.3", "192.0.2.77"), 6: ("fd00::5", "2001:db8::77")}
TCP, UDP, GRE, DCCP, AH, SCTP, UDPLITE, LAST = 6, 17, 47, 33, 51, 132, 136, 255
CASES = [(version, one) for version in (4, 6) for one in (TCP, UDP, GRE, DCCP, AH, SCTP, UDPLITE, LAST)]
CASES += [(4, 1), (6, 58)]


@pytest.mark.parametrize(("version", "protocol"), CASES)
def test_round(version: int, protocol: int) -> None:
    source, destination = ADDRESSES[version]
    data = packets.packet(protocol, source, destination, 12345, 80, 0x1234567)
    ports = {GRE: (None, 0), AH: (None, 0), LAST: (None, 0), 1: (12345, 0), 58: (12345, 0)}.get(protocol, (12345, 80))
    assert packets.read(data) == packets.SeenPacket(source, destination, protocol, *ports, 0x1234567)
    start = 20 if version == 4 else 40
    if version == 4:
        assert checksum(data[:20]) == 0
    body = data[start:]
    if protocol == SCTP:
        bare = body[:8] + b"\0\0\0\0" + body[12:]
        assert struct.pack("<I", packets._crc32c(bare)) == body[8:12]
    elif protocol not in (GRE, AH, LAST):
        addresses = data[12:20] if version == 4 else data[8:40]
        summed = UDP if protocol == UDPLITE else protocol  # as conntrack does it
        pseudo = b"" if protocol == 1 else addresses + struct.pack("!II", len(body), summed)
        assert checksum(pseudo + body) == 0


def test_checksum_of_sctp() -> None:
    assert packets._crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(("version", "protocol"), CASES)
def test_error_about_one_of_ours(version: int, protocol: int) -> None:
    source, destination = ADDRESSES[version]
    about = packets.packet(protocol, source, destination, 12345, 80, 77)
    if version == 4:
        error = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(about), 0, 0, 64, 1, 0) + bytes(8) + bytes((3, 1)) + bytes(6)
    else:
        error = struct.pack("!IHBB", 6 << 28, 8 + len(about), 58, 64) + bytes(32) + bytes((1, 1)) + bytes(6)
    seen = packets.read(error + about)
    assert seen is not None and seen.error and seen.number == 77
    assert seen.source in ("0.0.0.0", "::")


def test_what_an_error_quotes_may_end_early() -> None:
    about = packets.packet(6, *ADDRESSES[4], 12345, 80, 77)[:28]
    error = struct.pack("!BBHHHBBH", 0x45, 0, 56, 0, 0, 64, 1, 0) + bytes(8) + bytes((3, 1)) + bytes(6)
    seen = packets.read(error + about)
    assert seen is not None and seen.number == 77


@pytest.mark.parametrize("data", [b"", b"\x45", b"\x60" + bytes(39), bytes(60), b"\x45" + bytes(19) + b"\0" * 8])
def test_other_packets(data: bytes) -> None:
    seen = packets.read(data)
    assert seen is None or seen.number is None


def test_answers_to_connections_are_not_ours() -> None:
    data = packets.packet(6, *ADDRESSES[4], 12345, 80, 77)
    for flags in (0x12, 0x14, 0x10):  # SYN and ACK, RST and ACK, ACK
        seen = packets.read(data[:33] + bytes((flags,)) + data[34:])
        assert seen is not None and seen.number is None


@pytest.mark.parametrize("flags", [0x00, 0x02, 0x04, 0x10, 0x12, 0xFF])
def test_a_stray_packet_of_tcp_has_any_flags_and_is_ours(flags: int) -> None:
    data = packets.packet(6, *ADDRESSES[4], 12345, 80, 77, stray=STRAY | flags)
    seen = packets.read(data)
    assert data[33] == flags and seen is not None and seen.number == 77


@pytest.mark.parametrize("protocol", [6, 17, 132, 136, 33])
@pytest.mark.parametrize("number", range(0, 1 << 20, 99991))
def test_a_stray_packet_has_a_wrong_checksum(protocol: int, number: int) -> None:
    right, wrong = (packets.packet(protocol, *ADDRESSES[4], 12345, 80, number, stray) for stray in (0, STRAY | 0x02))
    seen = packets.read(wrong)
    assert seen is not None and seen.number == (packets.read(right) or seen).number
    if protocol == 132:
        assert right[28:32] != wrong[28:32] and right[32:] == wrong[32:]
    else:
        assert checksum(wrong[12:20] + struct.pack("!II", len(wrong) - 20, protocol) + wrong[20:]) != 0


@pytest.mark.parametrize("version", [4, 6])
def test_a_stray_packet_of_icmp_is_an_error_about_one_of_the_destination(version: int) -> None:
    source, destination = ADDRESSES[version]
    protocol, start = (1, 20) if version == 4 else (58, 40)
    data = packets.packet(protocol, source, destination, 12345, 80, 77, stray=STRAY)
    seen = packets.read(data)
    assert seen is not None and (seen.number, seen.error) == (77, True)
    assert (seen.source, seen.destination) == (source, destination)
    assert data[start : start + 2] == bytes((3, 3) if version == 4 else (1, 4))
    about = packets.read(data[start + 8 :])
    assert about is not None and (about.source, about.destination, about.protocol) == (destination, source, 17)
    pseudo = b"" if version == 4 else data[8:40] + struct.pack("!II", len(data) - 40, 58)
    assert checksum(pseudo + data[start:]) == 0


def _question(version: int) -> t.Tuple[bytes, int]:
    if version == 4:
        body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + b"asker!" + bytes((10, 0, 0, 1)) + bytes(6)
        return body + bytes((10, 0, 0, 9)), packets.ARP
    head = struct.pack("!IHBB", 6 << 28, 32, 58, 255) + bytes(15) + b"\1" + bytes(16)
    return head + struct.pack("!BBHI", 135, 0, 0, 0) + bytes(15) + b"\x09" + b"\1\1asker!", packets.IPV6


@pytest.mark.parametrize("version", [4, 6])
def test_answer_for_a_neighbour(version: int) -> None:
    data, kind = _question(version)
    frame = packets.answer_for_neighbour(data, kind, b"answer")
    assert frame is not None
    assert frame[:12] == b"asker!answer" and frame[12:14] == struct.pack("!H", kind)
    body = frame[14:]
    if version == 4:
        assert body[6:8] == b"\0\2" and body[8:18] == b"answer" + bytes((10, 0, 0, 9))
        assert body[18:28] == b"asker!" + bytes((10, 0, 0, 1))
    else:
        assert body[40] == 136 and body[48:64] == bytes(15) + b"\x09" and body[64:] == b"\2\1answer"
        assert checksum(body[8:40] + struct.pack("!II", 32, 58) + body[40:]) == 0
    assert packets.answer_for_neighbour(body, kind, b"answer") is None


def test_address_that_is_to_be_taken_is_not_answered_for() -> None:
    data, kind = _question(6)
    assert packets.answer_for_neighbour(data[:8] + bytes(16) + data[24:], kind, b"answer") is None
