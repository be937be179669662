# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Elements of sets and maps of nf_tables. Attribute numbers: linux/netfilter/nf_tables.h."""

from __future__ import annotations

import struct
import typing as t

from .._system import netlink
from .._twin import nf_tables

_KEY, _DATA, _FLAGS, _KEY_END = 1, 2, 3, 10
_VALUE, _VERDICT = 1, 2
_VERDICT_CHAIN = 2
_INTERVAL_END = 1


class Element(t.NamedTuple):
    """One element: its first and last key, empty where it stands for all others; and the chain that it leads to."""

    first: bytes
    last: bytes
    chain: t.Optional[str]


class Elements:
    """The elements of a table's sets, taken apart when they are asked for."""

    def __init__(self, table: nf_tables.Table) -> None:
        self._bodies: t.Dict[str, t.List[bytes]] = {}
        self._known: t.Dict[str, t.List[Element]] = {}
        for body in table.elements:
            name = netlink.name(netlink.attributes(body)[nf_tables.ELEMENTS_SET])
            self._bodies.setdefault(name, []).append(body)

    def of(self, name: str) -> t.List[Element]:
        """Those of one set."""
        if name not in self._known:
            self._known[name] = _read(self._bodies.get(name, ()))
        return self._known[name]


def chain_of(data: t.Optional[bytes]) -> t.Optional[str]:
    """The chain that data leads to, if it is a verdict that does."""
    verdict = netlink.attributes(netlink.attributes(data or b"").get(_VERDICT, b""))
    return netlink.name(verdict[_VERDICT_CHAIN]) if _VERDICT_CHAIN in verdict else None


def _read(bodies: t.Iterable[bytes]) -> t.List[Element]:
    whole: t.List[Element] = []
    edges: t.List[t.Tuple[bytes, bool, t.Optional[str]]] = []
    for body in bodies:
        for _kind, element in netlink.split(netlink.attributes(body).get(nf_tables.ELEMENTS, b"")):
            known = netlink.attributes(element)
            chain = chain_of(known.get(_DATA))
            key = _bytes(known.get(_KEY))
            flags = struct.unpack("!I", known[_FLAGS])[0] if _FLAGS in known else 0
            if _KEY not in known or _KEY_END in known:  # stands for all others; an interval in several fields
                whole.append(Element(key, _bytes(known.get(_KEY_END)), chain))
            else:
                edges.append((key, bool(flags & _INTERVAL_END), chain))
    if not any(end for _key, end, _chain in edges):
        return whole + [Element(key, key, chain) for key, _end, chain in edges]
    # An interval is two elements: one with which it begins, and one that says it is over before.
    edges.sort(key=lambda edge: (edge[0], not edge[1]))
    for number, (key, end, chain) in enumerate(edges):
        if not end:
            after = edges[number + 1][0] if number + 1 < len(edges) else None
            whole.append(Element(key, _before(after, len(key)), chain))
    return whole


def _bytes(value: t.Optional[bytes]) -> bytes:
    return netlink.attributes(value or b"").get(_VALUE, b"")


def _before(key: t.Optional[bytes], length: int) -> bytes:
    return b"\xff" * length if key is None else (int.from_bytes(key, "big") - 1).to_bytes(length, "big")
