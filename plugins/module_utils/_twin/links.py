# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links of a node, and their copies in the twin: cables, because any kernel that runs pods can make those."""

from __future__ import annotations

import itertools
import struct
import time
import typing as t

from .._errors import NodeError
from .._system import netlink
from .._system.families import IPV4
from .._system.netlink import Message, Netlink

_NEW_LINK, _GET_LINK, _SET_LINK = 16, 18, 19
#: linux/neighbour.h: settings of each link for its neighbours
_GET_NEIGHBOUR_TABLES, _PARAMETERS, _PARAMETERS_LINK = 66, 6, 1
_NDTM = struct.Struct("=Bxxx")
#: linux/if_link.h
_ADDRESS, _NAME, _MTU, _MASTER, _STATE, _INFO, _GROUP = 1, 3, 4, 10, 16, 18, 27
_NS_FD, _TX_QUEUES, _RX_QUEUES, _XDP = 28, 31, 32, 43
_INFO_KIND, _INFO_DATA, _INFO_PORT = 1, 2, 5
#: Of a port of a bridge: whether a packet may leave where it came in, and whether isolated ports see each other.
_PORT_INFO, _PORT_FLAGS = 12, (4, 33)
_AF_BRIDGE = 7
_VETH_PEER = 1
_XDP_ATTACHED = 2
_STATE_UP = b"\6"
#: Seconds for which links may take to be ready, and between two looks at them.
_PATIENCE, _PAUSE = 30.0, 0.01

#: linux/if.h
UP, LOOPBACK, NOARP, CARRIER = 0x1, 0x8, 0x80, 0x10000
_HEADER = struct.Struct("=BxHiII")

BRIDGE = "bridge"
CABLE = "veth"


class Link(t.NamedTuple):
    """One link. ``kind`` is empty for hardware; ``master`` is an index, 0 if it is no port."""

    index: int  # type: ignore[assignment]
    name: str
    kind: str
    flags: int
    mtu: int
    address: bytes
    master: int
    group: int
    xdp: bool
    #: whether the kernel has noticed that it carries packets
    ready: bool
    #: attributes of a bridge's port
    port: bytes = b""

    @property
    def up(self) -> bool:
        """Whether it is to carry packets."""
        return bool(self.flags & UP)

    @property
    def loopback(self) -> bool:
        """Whether it is ``lo``."""
        return bool(self.flags & LOOPBACK)

    @property
    def is_cable(self) -> bool:
        """Whether its copy in the twin has a far end."""
        return not self.loopback and self.kind != BRIDGE


def read() -> t.Tuple[Link, ...]:
    """Read all links of this network namespace, in the order in which they came into it.

    :raises NodeError: the kernel does not answer.
    """
    with Netlink(netlink.ROUTE) as kernel:
        found = [_link(message.body) for message in kernel.dump(_GET_LINK, _HEADER.pack(0, 0, 0, 0, 0), "links")]
        tables = kernel.dump(_GET_NEIGHBOUR_TABLES, _NDTM.pack(IPV4.number), "the order of links")
    # Links are listed by index, which they keep on a way through other namespaces; the tables have the newest first.
    # A link that is in none, because of an MTU below 68, has no address.
    parameters = (netlink.value(message.body[_NDTM.size :], _PARAMETERS) for message in tables)
    age = {netlink.native(netlink.value(each, _PARAMETERS_LINK)): number for number, each in enumerate(parameters)}
    return tuple(sorted(found, key=lambda link: (-age.get(link.index, -1), link.index)))


def _link(body: bytes) -> Link:
    _family, _type, index, flags, _change = _HEADER.unpack_from(body)
    known = netlink.attributes(body[_HEADER.size :])
    info = netlink.attributes(known.get(_INFO, b""))
    kind = netlink.name(info.get(_INFO_KIND, b""))
    xdp = netlink.attributes(known.get(_XDP, b"")).get(_XDP_ATTACHED, b"\0")
    return Link(
        index=index,
        name=netlink.name(known[_NAME]),
        kind=kind,
        flags=flags,
        mtu=netlink.native(known.get(_MTU)),
        address=known.get(_ADDRESS, b""),
        master=netlink.native(known.get(_MASTER)),
        group=netlink.native(known.get(_GROUP)),
        xdp=xdp != b"\0",
        ready=known.get(_STATE) == _STATE_UP,
        port=netlink.only(info.get(_INFO_PORT, b""), _PORT_FLAGS),
    )


def numbers(links: t.Sequence[Link], present: t.Sequence[Link]) -> t.Dict[int, int]:
    """Return the index of each link in the twin, by its index on the node: the same, unless a link has it already.

    :param present: links that the kernel puts into every new namespace (``tunl0``, ``sit0``, where their modules are).
    """
    taken = {link.index for link in present if not link.loopback}
    free = itertools.count(max([0, *taken, *(link.index for link in links)]) + 1)
    return {link.index: next(free) if link.index in taken else link.index for link in links}


def make(links: t.Sequence[Link], outside: int) -> t.Dict[int, int]:
    """Make copies of links in this network namespace: down, and without addresses.

    Each is one end of a cable; the other end is called ``far_end`` in the namespace outside. A bridge
    is a bridge.

    :param outside: file descriptor of the namespace of the other ends.
    :returns: the index of each link in the twin, by that on the node.
    :raises KernelError: the kernel cannot make one of them.
    """
    present = read()
    number = numbers(links, present)
    names = {link.name for link in links}
    bridges = {link.index for link in links if link.kind == BRIDGE}
    with Netlink(netlink.ROUTE, buffer=netlink.LARGE) as kernel:
        # Links that came with the namespace cannot be deleted; they give way.
        for link in present:
            if link.name in names and not link.loopback:
                _do(kernel, _SET_LINK, _header(link.index) + netlink.text(_NAME, "spare%d" % link.index), link.name)
        # In their order: where a link has no address, the kernel takes one of the first link that has one.
        for link in links:
            if link.loopback:
                continue
            body = _header(number[link.index]) + _common(link)
            if link.kind == BRIDGE:
                body += netlink.nest(_INFO, netlink.text(_INFO_KIND, BRIDGE))
            else:
                body += _cable(far_end(number[link.index]), netlink.word(_MTU, 65535) + netlink.word(_NS_FD, outside))
            _do(kernel, _NEW_LINK, body, link.name)
        for link in links:
            if link.master in bridges:
                body = _header(number[link.index]) + netlink.word(_MASTER, number[link.master])
                _do(kernel, _SET_LINK, body, link.name)
                if link.port:
                    body = _HEADER.pack(_AF_BRIDGE, 0, number[link.index], 0, 0) + netlink.nest(_PORT_INFO, link.port)
                    _do(kernel, _SET_LINK, body, link.name)
    return number


def _common(link: Link) -> bytes:
    body = netlink.text(_NAME, link.name) + netlink.word(_MTU, max(link.mtu, 1280)) + netlink.word(_GROUP, link.group)
    if len(link.address) == 6 and any(link.address):
        body += netlink.attribute(_ADDRESS, link.address)
    return body


def far_end(index: int) -> str:
    """Return the name of the other end of a cable."""
    return "far%d" % index


def _cable(other: str, about_other: bytes = b"") -> bytes:
    """Return what makes a link a cable.

    :param other: the name of its other end.
    :param about_other: more attributes of that.
    """
    queues = netlink.word(_TX_QUEUES, 1) + netlink.word(_RX_QUEUES, 1)
    peer = netlink.attribute(_VETH_PEER, _header(0) + netlink.text(_NAME, other) + queues + about_other)
    return queues + netlink.nest(_INFO, netlink.text(_INFO_KIND, CABLE), netlink.nest(_INFO_DATA, peer))


def _header(index: int, flags: int = 0, change: int = 0) -> bytes:
    return _HEADER.pack(0, 0, index, flags, change)


def ports(links: t.Sequence[Link]) -> t.Set[int]:
    """Return the ports of bridges: what comes in there the bridge takes, and so each answer about a neighbour.

    A packet that a route sends out of a port leaves only to a neighbour that somebody has made known there.
    """
    bridges = {link.index for link in links if link.kind == BRIDGE}
    return {link.index for link in links if link.master in bridges}


def _do(kernel: Netlink, kind: int, body: bytes, name: str) -> None:
    flags = 0 if kind == _SET_LINK else netlink.CREATE | netlink.EXCLUSIVE
    (code,) = kernel.change([Message(kind, body)], flags)
    if code:
        raise netlink.KernelError(code, "the link %s" % name)


def make_loop(name: str, other: str) -> None:
    """Make a cable with both ends here, and switch it on."""
    with Netlink(netlink.ROUTE, buffer=netlink.LARGE) as kernel:
        _do(kernel, _NEW_LINK, _header(0) + netlink.text(_NAME, name) + _cable(other), name)
    switch(link.index for link in read() if link.name in (name, other))


def switch(indices: t.Iterable[int], ask_neighbours: t.Container[int] = ()) -> None:
    """Switch links of this network namespace on.

    :param ask_neighbours: those on which neighbours are resolved; from others each frame just leaves.
    """
    wanted = {index: UP if index in ask_neighbours else UP | NOARP for index in indices}
    with Netlink(netlink.ROUTE, buffer=netlink.LARGE) as kernel:
        kernel.change([Message(_SET_LINK, _header(index, flags, flags)) for index, flags in wanted.items()], 0)


def settle(indices: t.Container[int]) -> None:
    """Wait until links of this network namespace are ready.

    A bridge passes nothing on to a port, and no address of IPv6 is used, until the kernel has noticed a link's carrier,
    which it does a moment later.

    :param indices: of links that are on, with a carrier.
    :raises NodeError: they are not ready within some seconds.
    """
    until = time.monotonic() + _PATIENCE
    while not all(link.ready for link in read() if link.index in indices):
        if time.monotonic() >= until:
            raise NodeError("the links of the twin did not come up")
        # The kernel looks at once if it has not looked lately, and a second later otherwise (net/core/link_watch.c).
        time.sleep(_PAUSE)
