# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the kernel would send packets. Reads, never writes. Message layout: linux/rtnetlink.h."""

from __future__ import annotations

import contextlib
import functools
import struct
import typing as t

from . import netlink
from .families import Family
from .netlink import KernelError, Netlink

#: rtm_type: RTN_*
UNICAST, LOCAL, BROADCAST, ANYCAST, MULTICAST, BLACKHOLE, UNREACHABLE, PROHIBIT, THROW = range(1, 10)
#: RT_TABLE_*
TABLE_MAIN, TABLE_LOCAL = 254, 255

_GET_LINK, _GET_ROUTE = 18, 26
_RTM = struct.Struct("=BBBBBBBBI")
#: RTA_*
_TO, _FROM, _IN, _OUT, _PREFERRED = 1, 2, 3, 4, 7
_IFINFO = struct.Struct("=BxHiII")
_IFLA_IFNAME = 3


class FoundRoute(t.NamedTuple):
    """The kind of a route, 0 if there is none, the index of its link, and the source that the node has on it."""

    kind: int
    link: t.Optional[int]
    preferred: t.Optional[int]


class Routes:
    """Asks about addresses of one family, about each once. Use it in ``with``."""

    def __init__(self, family: Family) -> None:
        """Open a socket to ask the kernel.

        :raises NodeError: there is no answer to be had.
        """
        self._family, self._size = family.number, family.size
        self._kernel = Netlink(netlink.ROUTE)
        once = functools.lru_cache(maxsize=None)
        self._to, self.interface, self._name_once = once(self.ask), once(self._interface), once(self._name)

    def __enter__(self) -> Routes:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._kernel.__exit__()

    def kind(self, address: int) -> int:
        """Return the kind of the route to an address; 0 if there is none."""
        return self._to(address).kind

    def preferred(self, address: int) -> t.Optional[int]:
        """Return the address of the node that its packets to another one have, unless they ask for another one."""
        return self._to(address).preferred

    def _interface(self, source: int, destination: int) -> t.Optional[str]:
        """Return the interface by which packets of another host or a pod leave; None if the kernel has no route.

        Routing rules that ask for more than addresses and the incoming interface are not followed.
        """
        incoming = self._to(source).link
        if incoming is None:
            return None
        link = self.ask(destination, netlink.word(_IN, incoming), source).link
        return None if link is None else self._name_once(link)

    def _name(self, link: int) -> t.Optional[str]:
        """Return the name of a link; None if it is gone. PyPy has no socket.if_indextoname."""
        with contextlib.suppress(KernelError):
            answer = self._kernel.ask(_GET_LINK, _IFINFO.pack(0, 0, link, 0, 0), "a link")
            return netlink.name(netlink.attributes(answer.body[_IFINFO.size :])[_IFLA_IFNAME])
        return None

    def ask(self, destination: int, attributes: bytes = b"", source: t.Optional[int] = None) -> FoundRoute:
        """Ask the kernel for a route.

        :param attributes: more conditions (RTA_*).
        :param source: of packets of another host or a pod; None: of the node itself.
        """
        bits = self._size * 8
        if source is not None:
            attributes += self._address(_FROM, source)
        head = _RTM.pack(self._family, bits, 0 if source is None else bits, 0, 0, 0, 0, 0, 0)
        try:
            answer = self._kernel.ask(_GET_ROUTE, head + self._address(_TO, destination) + attributes, "a route")
        except KernelError:
            return FoundRoute(0, None, None)
        known = netlink.attributes(answer.body[_RTM.size :])
        link, preferred = known.get(_OUT), known.get(_PREFERRED)
        return FoundRoute(
            answer.body[7],
            struct.unpack("=i", link)[0] if link else None,
            int.from_bytes(preferred, "big") if preferred else None,
        )

    def _address(self, kind: int, address: int) -> bytes:
        return netlink.attribute(kind, address.to_bytes(self._size, "big"))
