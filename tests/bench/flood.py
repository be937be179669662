# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""First packets of many connections, sent as fast as the kernel takes them. Runs in the pod's namespace.

The kernel forwards a packet over veth within the call that sends it, so the time of the call is the time of the whole
way: out of the pod, through the node and its rules, to the drop outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
import typing as t

#: Most messages that one sendmmsg(2) takes (UIO_MAXIOV).
_AT_ONCE = 1024
#: The destinations: 203.0.113.0/24 (RFC 5737), in no exempt range.
_NETWORK = struct.unpack("!I", socket.inet_aton("203.0.113.0"))[0]
_FIRST_PORT = 1024
_PORTS = 65536 - _FIRST_PORT


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (("header", _Header), ("sent", ctypes.c_uint))


_LIBC = ctypes.CDLL(None, use_errno=True)
_sockets: t.Dict[str, socket.socket] = {}


def open_socket(device: str) -> None:
    """Make ready to send through a device; all packets come from one port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
    sock.bind(("", 40000))
    _sockets[device] = sock


class _Burst:
    """First packets to so many destinations, of which the first is number ``start``."""

    def __init__(self, start: int, count: int) -> None:
        payload = ctypes.create_string_buffer(b"x")
        vector = _Vector(ctypes.cast(payload, ctypes.c_void_p), 1)
        names = ctypes.create_string_buffer(16 * count)
        self.messages = (_Message * count)()
        self._kept = (payload, vector, names)
        base = ctypes.addressof(names)
        for index in range(count):
            address, port = divmod(start + index, _PORTS)
            # struct sockaddr_in
            struct.pack_into(
                "=H2s4s", names, 16 * index, socket.AF_INET, struct.pack("!H", _FIRST_PORT + port),
                struct.pack("!I", _NETWORK + 1 + address % 254),
            )  # fmt: skip
            message = self.messages[index].header
            message.name, message.name_length = base + 16 * index, 16
            message.vectors, message.vector_count = ctypes.pointer(vector), 1


def send(plan: t.Sequence[t.Tuple[str, int]], rounds: int, start: int) -> t.List[t.List[float]]:
    """Open connections through each device in turn, in so many rounds.

    The first quarter of each burst only fetches the node's rules into the caches, and is not timed.

    :param plan: devices, and how many connections to open through each in a round (a multiple of 4).
    :param start: number of the first destination; what follows is not used again.
    :returns: for each round, seconds for one connection through each device.
    """
    results = []
    for number in range(rounds):
        bursts = [_Burst(start, count) for _device, count in plan]
        start += max(count for _device, count in plan)
        row = [0.0] * len(plan)
        with undisturbed():
            for index in list(range(len(plan)))[:: -1 if number % 2 else 1]:
                device, count = plan[index]
                fd, messages = _sockets[device].fileno(), bursts[index].messages
                _timed(fd, messages, 0, count // 4)
                row[index] = _timed(fd, messages, count // 4, count) / (count - count // 4)
        results.append(row)
    return results


@contextlib.contextmanager
def undisturbed() -> t.Iterator[None]:
    """Run for some milliseconds before all ordinary processes."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _timed(fd: int, messages: ctypes.Array[t.Any], first: int, end: int) -> float:
    size, base = ctypes.sizeof(_Message), ctypes.addressof(messages)
    started = time.perf_counter_ns()
    while first < end:
        done = _LIBC.sendmmsg(fd, ctypes.c_void_p(base + first * size), min(end - first, _AT_ONCE), 0)
        if done < 0:
            raise OSError(ctypes.get_errno(), "sendmmsg")
        first += done
    return (time.perf_counter_ns() - started) / 1e9
