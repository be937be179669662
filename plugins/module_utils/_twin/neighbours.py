# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is behind which port of a bridge: a bridge does not send a packet back to the port that it came from.

Message layout: linux/neighbour.h.
"""

from __future__ import annotations

import ipaddress
import struct
import typing as t

from .._system import netlink
from .._system.families import BY_NUMBER, of_address
from .._system.netlink import Message, Netlink

_NEW, _GET = 28, 30
_NDM = struct.Struct("=BxxxiHBB")
_ADDRESS, _HARDWARE, _MASTER = 1, 2, 9
#: NUD_REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT: all with a hardware address that was true once
_KNOWN = 0xDE
_PERMANENT, _STATIC = 0x80, 0x40
#: for an entry of a port's bridge, not of the port itself
_OF_MASTER = 0x4
_AF_BRIDGE = 7
#: in the first byte of a hardware address: of several hosts
_GROUP = 1


class Neighbours(t.NamedTuple):
    """Hardware addresses, by link and address; and the ports at which the bridges of a node have seen them."""

    hardware: t.Mapping[t.Tuple[int, str], bytes]
    ports: t.Mapping[bytes, int]

    def port(self, bridge: int, address: str) -> t.Tuple[t.Optional[bytes], t.Optional[int]]:
        """Return the hardware address and the port of an address behind a bridge, as far as they are known."""
        hardware = self.hardware.get((bridge, address))
        return hardware, self.ports.get(hardware) if hardware else None


def read(links: t.Container[int]) -> Neighbours:
    """Read what this network namespace knows of who is behind its bridges.

    :param links: bridges, and ports of theirs.
    :raises NodeError: the kernel does not answer.
    """
    hardware: t.Dict[t.Tuple[int, str], bytes] = {}
    ports: t.Dict[bytes, int] = {}
    with Netlink(netlink.ROUTE) as kernel:
        for family in BY_NUMBER:
            for message in kernel.dump(_GET, _NDM.pack(family, 0, 0, 0, 0), "neighbours"):
                link, state, known = _parsed(message)
                mac = known.get(_HARDWARE, b"")
                if link in links and state & _KNOWN and _ADDRESS in known and len(mac) == 6 and not mac[0] & _GROUP:
                    hardware[link, str(ipaddress.ip_address(known[_ADDRESS]))] = mac
        for message in kernel.dump(_GET, _NDM.pack(_AF_BRIDGE, 0, 0, 0, 0), "forwarding tables of bridges"):
            link, state, known = _parsed(message)
            if _MASTER in known and not state & _PERMANENT:  # permanent ones are the bridge's own
                ports[known[_HARDWARE]] = link
    return Neighbours(hardware, ports)


def _parsed(message: Message) -> t.Tuple[int, int, netlink.Attributes]:
    """Return link, state and attributes."""
    _family, link, state, _flags, _type = _NDM.unpack_from(message.body)
    return link, state, netlink.attributes(message.body[_NDM.size :])


def write(neighbours: Neighbours, number: t.Mapping[int, int]) -> Neighbours:
    """Make them known in this network namespace, for good.

    :param number: the index of each link here, by that on the node.
    :returns: the same with the indices that links have here.
    """
    here = Neighbours(
        {(number[link], address): mac for (link, address), mac in neighbours.hardware.items()},
        {mac: number[link] for mac, link in neighbours.ports.items() if link in number},
    )
    messages = []
    for (link, address), mac in here.hardware.items():
        value = ipaddress.ip_address(address)
        family = of_address(address).number
        body = _NDM.pack(family, link, _PERMANENT, 0, 0) + netlink.attribute(_ADDRESS, value.packed)
        messages.append(Message(_NEW, body + netlink.attribute(_HARDWARE, mac)))
    for mac, link in here.ports.items():
        body = _NDM.pack(_AF_BRIDGE, link, _STATIC, _OF_MASTER, 0)
        messages.append(Message(_NEW, body + netlink.attribute(_HARDWARE, mac)))
    with Netlink(netlink.ROUTE, buffer=netlink.LARGE) as kernel:
        kernel.change(messages)
    return here
