# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets and maps of nf_tables with their elements. Attribute numbers: linux/netfilter/nf_tables.h."""

from __future__ import annotations

import functools
import struct
import typing as t

from .._system import netlink, nf_tables
from .._system.netlink import number
from .rules import ACCEPT, CONTINUE, DROP, GOTO, JUMP, RETURN, RuleAction

_SET_FLAGS, _SET_OBJECT = 3, 15
INTERVAL, _TIMEOUT, _OBJECTS = 0x4, 0x10, 0x40
_CONCAT = 0x80
KEY, _DATA, ELEMENT_FLAGS, _ELEMENT_TIMEOUT, _EXPIRATION, _EXPRESSION, _KEY_END, _EXPRESSIONS = (
    1, 2, 3, 4, 5, 7, 10, 11,
)  # fmt: skip
VALUE, _VERDICT, _CODE, _CHAIN = 1, 2, 1, 2
INTERVAL_END, _CATCHALL = 1, 2
#: the type of an attribute with a value
_FIRST = struct.pack("=H", VALUE)
_LENGTH = struct.Struct("=H")
#: NF_DROP, NF_ACCEPT, NFT_CONTINUE, NFT_BREAK, NFT_JUMP, NFT_GOTO, NFT_RETURN
VERDICTS = {0: DROP, 1: ACCEPT, -1: CONTINUE, -2: CONTINUE, -3: JUMP, -4: GOTO, -5: RETURN}
#: the codes of those that lead to a chain
_LEADING = {struct.pack("!i", code): kind for code, kind in VERDICTS.items() if kind in (JUMP, GOTO)}
_CODES = {kind: code for code, kind in _LEADING.items()}


class Element(t.NamedTuple):
    """One element: its first and last key, None if it stands for all others; and the value of a map."""

    first: t.Optional[bytes]
    last: bytes
    data: bytes = b""
    verdict: t.Optional[RuleAction] = None


class Set(t.NamedTuple):
    """One set or map. ``unknown``: why its elements are not those that a packet meets."""

    elements: t.Tuple[Element, ...]
    objects: int = 0
    unknown: t.Tuple[str, ...] = ()


@functools.lru_cache(maxsize=1024)  # half of all rules jump to a few chains
def verdict(data: bytes) -> t.Optional[RuleAction]:
    """Return the verdict that data holds, if it does.

    :raises KeyError: there is no such verdict.
    """
    known = netlink.attributes(data)
    if _VERDICT not in known:
        return None
    inner = netlink.attributes(known[_VERDICT])
    code = number(inner.get(_CODE))
    kind = VERDICTS[code - (1 << 32) if code >> 31 else code]
    return RuleAction(kind, netlink.name(inner[_CHAIN]) if kind in (JUMP, GOTO) else "")


def leads_to(data: bytes) -> t.Tuple[str, bytes]:
    """Return JUMP or GOTO, and the bytes of the chain to which a verdict leads; empty if it leads to none."""
    inner = netlink.attributes(netlink.value(data, _VERDICT))
    kind = _LEADING.get(inner.get(_CODE, b""), "")
    return kind, inner[_CHAIN] if kind else b""


def value(data: t.Optional[bytes]) -> bytes:
    """Return the bytes that data holds."""
    if not data:
        return b""
    if data[2:4] == _FIRST:  # as the kernel writes it; done for each comparison
        return data[4 : _LENGTH.unpack_from(data)[0]]
    return netlink.attributes(data).get(VALUE, b"")


def plain(element: bytes) -> t.Tuple[bytes, bytes]:
    """Return the key and the data of an element; empty if it has anything else."""
    known = netlink.attributes(element)
    if known.keys() != {KEY, _DATA}:
        return b"", b""
    return netlink.attributes(known[KEY])[VALUE], known[_DATA]


def element(key: bytes, kind: str, chain: bytes) -> bytes:
    """Return an element that leads to a chain."""
    verdict = netlink.nest(_VERDICT, netlink.attribute(_CODE, _CODES[kind]), netlink.attribute(_CHAIN, chain))
    return netlink.nest(1, netlink.nest(KEY, netlink.attribute(VALUE, key)), netlink.nest(_DATA, verdict))


class Sets:
    """The sets of a table, parsed when they are needed."""

    def __init__(self, table: nf_tables.NftTable) -> None:
        self._headers: t.Dict[str, netlink.Attributes] = {}
        for body in table.sets:
            known = netlink.attributes(body)
            self._headers[netlink.name(known.get(nf_tables.SET_NAME, b""))] = known
        self._bodies: t.Dict[str, t.List[bytes]] = {}
        for body in table.elements:
            known = netlink.attributes(body)
            name = netlink.name(known.get(nf_tables.ELEMENTS_SET, b""))
            self._bodies.setdefault(name, []).append(known.get(nf_tables.ELEMENTS, b""))
        self._read: t.Dict[str, Set] = {}
        #: sets that rules fill
        self.filled: t.Set[str] = set()

    def of(self, name: str) -> Set:
        """Return one set."""
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = self._one(name)
        if name in self.filled:
            found = found._replace(unknown=("elements that rules add to the set %s" % name,))
        return found

    def _one(self, name: str) -> Set:
        header = self._headers.get(name)
        bodies = self._bodies.get(name, [])
        if header is None and not bodies:
            return Set((), unknown=("the set %s, which cannot be read" % name,))
        flags = number(header.get(_SET_FLAGS)) if header else 0
        try:
            elements, marks = _elements(bodies, flags, header is None)
        except (IndexError, KeyError, ValueError, OverflowError):
            return Set((), unknown=("the set %s, which cannot be read" % name,))
        unknown = []
        if flags & _TIMEOUT or "timeout" in marks:
            unknown.append("elements of the set %s that end by themselves" % name)
        if "expression" in marks:
            unknown.append("an expression at the elements of the set %s" % name)
        objects = number(header.get(_SET_OBJECT)) if header and flags & _OBJECTS else 0
        return Set(tuple(elements), objects, tuple(unknown))


#: NFT_OBJECT: expressions at elements that only count
_COUNTERS = (b"counter\0", b"last\0")


def _elements(bodies: t.Sequence[bytes], flags: int, guess: bool) -> t.Tuple[t.List[Element], t.Set[str]]:
    whole: t.List[Element] = []
    edges: t.List[t.Tuple[bytes, bool, bytes, t.Optional[RuleAction]]] = []
    rest: t.List[Element] = []
    marks: t.Set[str] = set()
    attributes = netlink.attributes
    ends = False
    for body in bodies:
        for _kind, element in netlink.split(body):
            known = attributes(element)
            data, act = b"", None
            if _DATA in known:
                inner = attributes(known[_DATA])
                if _VERDICT in inner:
                    act = verdict(known[_DATA])
                else:
                    data = inner.get(VALUE, b"")
            if _ELEMENT_TIMEOUT in known or _EXPIRATION in known:
                marks.add("timeout")
            for place in (_EXPRESSION, _EXPRESSIONS):
                if place in known and not any(name in known[place] for name in _COUNTERS):
                    marks.add("expression")
            flag = number(known[ELEMENT_FLAGS]) if ELEMENT_FLAGS in known else 0
            if KEY not in known or flag & _CATCHALL:
                rest.append(Element(None, b"", data, act))
                continue
            key = attributes(known[KEY])[VALUE]
            if _KEY_END in known:
                whole.append(Element(key, attributes(known[_KEY_END])[VALUE], data, act))
            else:
                end = bool(flag & INTERVAL_END)
                ends = ends or end
                edges.append((key, end, data, act))
    # An interval is two elements: one with which it begins, and one that ends it. In sets of several
    # fields each element has both keys.
    if (flags & INTERVAL and not flags & _CONCAT) or (guess and ends):
        edges.sort(key=lambda edge: (edge[0], not edge[1]))
        for place, (key, end, data, act) in enumerate(edges):
            if not end:
                after = edges[place + 1][0] if place + 1 < len(edges) else None
                whole.append(Element(key, _before(after, len(key)), data, act))
    else:
        whole += [Element(key, key, data, act) for key, _end, data, act in edges]
    return whole + rest, marks


def _before(key: t.Optional[bytes], length: int) -> bytes:
    return b"\xff" * length if key is None else (int.from_bytes(key, "big") - 1).to_bytes(length, "big")
