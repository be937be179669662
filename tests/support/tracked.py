# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tracked connections that nobody opened: 100,000 of them in seconds, and what conntrack(8) says of them."""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
import struct
import typing as t

from .import_collection import make_importable
from .namespaces import Namespace

make_importable()

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.netlink import (  # noqa: E402
    Message,
    attribute,
    nest,
    network_word,
)

#: IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED, IPS_SRC_NAT and IPS_SRC_NAT_DONE
_STATUS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 7
_NEW, _ESTABLISHED = 1 << 8, 3


class Tracked(t.NamedTuple):
    """A connection from ``source`` to ``remote``, which sees it come from ``seen``."""

    protocol: int
    source: str
    source_port: int
    seen: str
    seen_port: int
    remote: str
    remote_port: int
    zone: int = 0


def insert(ns: Namespace, connections: t.Iterable[Tracked], seconds: int = 3600) -> None:
    """Have the kernel track connections in a namespace.

    :param seconds: for which it does.
    """
    refused = ns.inside(_insert, connections, seconds)
    assert not refused, "the kernel refused %d connections" % refused


def listed(ns: Namespace, family: str) -> t.List[Tracked]:
    """Return what conntrack(8) lists of a family."""
    found = []
    for line in ns.run("conntrack", "-L", "-f", family).splitlines():
        numbers = {"tcp": 6, "udp": 17, "sctp": 132}
        ends = re.findall(r"src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+)", line)
        if line.split()[0] in numbers and len(ends) == 2:
            (source, _to, port, _service), (remote, seen, remote_port, seen_port) = ends
            zone = re.search(r" zone(?:-reply)?=(\d+)", line)
            numbered = numbers[line.split()[0]], source, int(port), seen, int(seen_port), remote, int(remote_port)
            found.append(Tracked(*numbered, zone=int(zone.group(1)) if zone else 0))
    return found


def _insert(connections: t.Iterable[Tracked], seconds: int) -> int:
    refused = 0
    left = iter(connections)
    with netlink.Netlink(netlink.NETFILTER, buffer=netlink.LARGE) as kernel:
        while True:
            part = [_message(one, seconds) for one in itertools.islice(left, 4096)]
            if not part:
                return refused
            codes = kernel.change(part, netlink.CREATE | netlink.EXCLUSIVE)
            refused += len(codes) - codes.count(0)


def _message(one: Tracked, seconds: int) -> Message:
    version = 6 if ":" in one.source else 4
    sides = (
        (1, one.source, one.remote, one.source_port, one.remote_port),
        (2, one.remote, one.seen, one.remote_port, one.seen_port),
    )
    body = b"".join(_tuple(one.protocol, version, *side) for side in sides)
    body += network_word(3, _STATUS) + network_word(7, seconds)
    if one.protocol == 6:
        body += nest(4, nest(1, attribute(1, bytes([_ESTABLISHED]))))
    if one.zone:
        body += attribute(18, struct.pack("!H", one.zone))
    return Message(_NEW, struct.pack("!BBH", 2 if version == 4 else 10, 0, 0) + body)


def _tuple(protocol: int, version: int, side: int, source: str, destination: str, sport: int, dport: int) -> bytes:
    ports = (attribute(kind, struct.pack("!H", port)) for kind, port in ((2, sport), (3, dport)))
    return nest(side, _addresses(version, source, destination), nest(2, attribute(1, bytes([protocol])), *ports))


@functools.lru_cache(maxsize=None)
def _addresses(version: int, *ends: str) -> bytes:
    packed = (ipaddress.ip_address(one).packed for one in ends)
    return nest(1, *(attribute(kind, one) for kind, one in zip((1, 2) if version == 4 else (3, 4), packed)))
