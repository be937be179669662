# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The twin's own sockets: they send what the node itself would send, and receive what would reach a program on it."""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import select
import socket
import struct
import typing as t

from .._system.families import TCP, of_address
from . import packets, routing

_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_PKTINFO = 8, 49, 50

#: Why the kernel does not even send it.
_REASONS = {
    errno.EPERM: "dropped by a rule",
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "unreachable by a route or a rule",
    errno.EACCES: "prohibited by a route or a rule",
    errno.EINVAL: "a blackhole route, or an address to which nothing is sent",
    errno.EADDRNOTAVAIL: "no address to send from",
}


class Sockets:
    """Raw sockets, of the network namespace in which they are made."""

    def __init__(self) -> None:
        #: by file descriptor, with family and protocol
        self._heard: t.Dict[int, t.Tuple[socket.socket, int, int]] = {}
        self._ready = select.poll()
        #: as ``_open``, for each family and protocol once
        self.hear = functools.lru_cache(maxsize=None)(self._open)

    def _open(self, family: int, protocol: int) -> t.Optional[socket.socket]:
        """Return the socket that receives what of a protocol reaches the node; None if the kernel makes none."""
        with contextlib.suppress(OSError):  # a kernel without IPv6, or no protocol
            made = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
            made.setblocking(False)
            # Servers of DHCP and others ask for that too (ip(7)).
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
            self._heard[made.fileno()] = (made, family, protocol)
            self._ready.register(made, select.POLLIN)
            return made
        return None

    def send(
        self, protocol: int, destination: str, source_port: int, port: int, number: int, bound: t.Optional[str] = None
    ) -> str:
        """Send the packet that opens a connection.

        :param bound: the address that the program bound its socket to; None: whichever the kernel chooses.
        :returns: why it was not sent; empty if it was.
        """
        family = of_address(destination).number
        receiver = socket.inet_pton(family, destination)
        # The kernel knows the sender; conntrack looks at checksums of what comes in alone.
        body = packets.transport(protocol, b"\0" * len(receiver), receiver, source_port, port, number)
        extra: t.List[t.Tuple[int, int, bytes]] = []
        if bound is not None:
            extra = [_from(family, socket.inet_pton(family, bound))]
        elif (family, protocol) == (socket.AF_INET, TCP):
            # connect(2) of TCP looks for a route twice, the second time with the source that the first one gave
            # (ip_route_connect() in include/net/route.h): a rule about the source can lead elsewhere.
            source = routing.source_to(destination, protocol, source_port, port)
            if source:
                extra = [_from(family, source)]
        sender = self.hear(family, protocol)
        if sender is None:
            return "this kernel has no such protocol"
        try:
            sender.sendmsg([body], extra, 0, (destination, 0))
        except OSError as exc:
            return _REASONS.get(exc.errno or 0, exc.strerror or str(exc))
        return ""

    def received(self) -> t.List[packets.SeenPacket]:
        """Return the packets of ours that have reached the node since the last call."""
        found = []
        for number, _events in self._ready.poll(0):
            one, family, protocol = self._heard[number]
            while True:
                try:
                    data, extra, _flags, sender = one.recvmsg(2048, 64)
                except BlockingIOError:
                    break
                except OSError:  # an error about what was sent before
                    continue
                if family == socket.AF_INET:
                    seen = packets.read(data)
                else:
                    seen = packets.read_transport(protocol, data, sender[0].split("%")[0], _receiver(extra))
                if seen is not None and seen.number is not None:
                    found.append(seen)
        return found


def _from(family: int, source: bytes) -> t.Tuple[int, int, bytes]:
    """Return the control message that gives a packet its source address (ip(7), ipv6(7))."""
    if family == socket.AF_INET:
        return (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=i4s4s", 0, source, b"\0" * 4))
    return (socket.IPPROTO_IPV6, _IPV6_PKTINFO, source + struct.pack("=i", 0))


def _receiver(extra: t.Iterable[t.Tuple[int, int, bytes]]) -> str:
    for level, kind, data in extra:
        if level == socket.IPPROTO_IPV6 and kind == _IPV6_PKTINFO:
            return str(ipaddress.IPv6Address(struct.unpack_from("16s", data)[0]))
    return "::"
