# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Outside of the twin: where its cables end, where packets are sent from and where they come out.

The kernel carries a packet from cable to cable before the call that sends it returns, or soon after where the machine
is busy. So what has not come out is asked for a second time, behind a few frames that take the same queue: when those
have come round, nothing is on its way any more, and what is missing is lost.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import socket
import struct
import typing as t

from .._errors import NodeError
from . import links, packets
from .namespaces import stay_on_this_cpu, within

_ALL_PROTOCOLS = 3
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_PACKET_OUTGOING = 4

_LOOP, _LOOP_END = "loop0", "loop1"
#: of IEEE 802, for experiments
_LOOP_FRAME = packets.frame(b"\xff" * 6, b"\x02loop0", 0x88B5, b"\0" * 46)
#: A packet passes the queue of its CPU once for each cable, bridge port and loopback on its way.
_ROUNDS = 8
#: seconds that one round may take on a machine that is very busy
_PATIENCE = 10

#: The sender of a frame, and the host that answers for all addresses outside.
_POD = b"\x02\x70\x6f\x64\x00\x01"
_NEIGHBOUR = b"\x02\x6e\x65\x69\x00\x01"
_OTHER_NEIGHBOUR = b"\x02\x65\x6c\x73\x00\x01"


class Arrival(t.NamedTuple):
    """A packet that came out: of the link with this index."""

    link: int
    packet: packets.SeenPacket


class Outside:
    """The far ends of all cables."""

    def __init__(self, network: int, indices: t.Iterable[int]) -> None:
        """Switch the far ends of cables on, and listen.

        :param network: file descriptor of the network namespace that they are in.
        :param indices: of the links whose cables are to carry packets.
        """
        self._links = {links.far_end(index): index for index in indices}
        self._asked = False
        # The queue that a frame takes is that of the CPU on which it was sent.
        stay_on_this_cpu()
        with within(network):
            links.make_loop(_LOOP, _LOOP_END)
            ends = [link.index for link in links.read() if link.name in self._links]
            links.switch(ends)
            self._socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.htons(_ALL_PROTOCOLS)
            )
        with contextlib.suppress(OSError):  # a kernel before 4.20: they are left out one by one
            self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        # Not settimeout(): it would make every call wait, also those that must not.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _PATIENCE, 0))

    def inject(self, link: int, data: bytes, receiver: t.Optional[bytes], sender: t.Optional[bytes] = None) -> None:
        """Send a packet into the twin over a link.

        :param receiver: the hardware address that it is for; None: an unknown one behind the same bridge.
        :param sender: the hardware address that it is from; None: that of a pod that does not exist.
        """
        kind = packets.IPV6 if data[0] >> 4 == 6 else packets.IPV4
        self._send(links.far_end(link), packets.frame(receiver or _OTHER_NEIGHBOUR, sender or _POD, kind, data))

    def _send(self, name: str, data: bytes) -> None:
        try:
            self._socket.sendto(data, (name, 0))
        except OSError as exc:
            if exc.errno not in (errno.ENETDOWN, errno.ENOBUFS):  # a link without a carrier takes no packet
                raise

    def at_once(self) -> t.List[Arrival]:
        """Return what has come out by now."""
        received = iter(functools.partial(self._receive, wait=False), None)
        return [arrival for arrival in received if isinstance(arrival, Arrival)]

    def at_last(self) -> t.List[Arrival]:
        """Return what comes out until nothing is on its way any more.

        :raises NodeError: the machine is so busy that not even a frame from here to here arrives.
        """
        found = []
        round_ = 0
        while round_ < _ROUNDS:
            self._asked = False
            self._socket.sendto(_LOOP_FRAME, (_LOOP, 0))
            while True:
                arrival = self._receive(wait=True)
                if isinstance(arrival, Arrival):
                    found.append(arrival)
                elif arrival:
                    break
            # A host that asked for a neighbour sends its packet once it is answered.
            round_ = 0 if self._asked else round_ + 1
        return found + self.at_once()

    def _receive(self, wait: bool) -> t.Union[Arrival, bool, None]:
        """Return a packet that came out; True: our own frame came round; False: any other; None: nothing came."""
        try:
            data, (name, kind, direction, _hardware, _address) = self._socket.recvfrom(
                2048, 0 if wait else socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            if not wait:
                return None
            raise NodeError("no packet came through the twin for %d seconds" % _PATIENCE) from None
        if direction == _PACKET_OUTGOING:
            return False
        if name == _LOOP_END:
            return data == _LOOP_FRAME
        link = self._links.get(name)
        if link is None:
            return False
        payload = data[14:]
        answer = packets.answer_for_neighbour(payload, kind, _NEIGHBOUR)
        if answer is not None:
            self._asked = True
            self._send(name, answer)
            return False
        seen = packets.read(payload) if kind in (packets.IPV4, packets.IPV6) else None
        return Arrival(link, seen) if seen is not None and seen.number is not None else False
