# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of nf_tables that differ from another in a few values alone, as those of endpoints do, made like that one.

What may differ are an address that is compared as a whole, a new destination, the chain of a verdict, and what counts
or comments. In rules with anything that could meet these values otherwise nothing may: see ``_Scan``.
"""

from __future__ import annotations

import sys
import typing as t

from .._system import netlink, nft_expressions
from .._system.families import Family
from .._system.netlink import number
from .._system.nft_expressions import Named
from . import nft_sets, xt_rules
from .registers import place_of
from .rules import GOTO, JUMP, Branch, Rule

#: What the bytes of a slot are. NOTHING: they say nothing about packets.
NOTHING, FIELD, ADDRESS, PORT, CHAIN, XT_TRANSLATION = range(6)

#: how many rules of one length are kept to make others like them
_KEPT = 2048
_COUNTER = b"counter\0"
#: of an expression that counts, what is in front of its figures
_COUNTER_HEAD = 16
_EQUAL = 0
#: matches of xtables that do not look at addresses
_PLAIN_MATCHES = ("tcp", "udp", "statistic")

T = t.TypeVar("T")


class Slot(t.NamedTuple):
    """Bytes that may differ, and what they are; ``detail`` is a field, or a revision of xtables."""

    begin: int
    end: int
    use: int
    detail: t.Any = None


class _Layout:
    """The slots of rules of one length, and rules that were read, by their other bytes."""

    def __init__(self, slots: t.Tuple[Slot, ...]) -> None:
        edges = [0, *(edge for slot in slots for edge in slot[:2]), None]
        self.slots = slots
        self.used = tuple(slot for slot in slots if slot.use != NOTHING)
        self.rest = [slice(*edges[place : place + 2]) for place in range(0, len(edges), 2)]
        self.models: t.Dict[bytes, Rule] = {}

    def key(self, expressions: bytes) -> bytes:
        """Return the bytes that do not differ."""
        return b"".join([expressions[part] for part in self.rest])


class Alike:
    """What was read of one table."""

    def __init__(self, family: Family, headers: t.Mapping[t.Tuple[int, int], str]) -> None:
        """Begin.

        :param headers: fields of the header of IP that are addresses, by offset and length.
        """
        self._family = family
        self._headers = headers
        self._layouts: t.Dict[int, t.List[_Layout]] = {}
        #: equal values are one object
        self._same: t.Dict[t.Any, t.Any] = {}

    def rule(self, expressions: bytes, place: int) -> t.Optional[Rule]:
        """Return a rule like one that was read; None if there is none."""
        for layout in self._layouts.get(len(expressions), ()):
            model = layout.models.get(layout.key(expressions))
            if model is not None:
                return self._like(model, layout, expressions, place)
        return None

    def learn(self, expressions: bytes, rule: Rule) -> None:
        """Keep a rule that was read."""
        if len(rule.branches) != 1 or rule.unknown or rule.history:
            return
        slots = _Scan(self._family, self._headers).slots(expressions)
        if not slots:
            return
        listed = self._layouts.setdefault(len(expressions), [])
        layout = next((one for one in listed if one.slots == slots), None) or _Layout(slots)
        if sum(len(one.models) for one in listed) >= _KEPT:
            return
        if self._like(rule, layout, expressions, rule.number) == rule:
            if layout not in listed:
                listed.append(layout)
            layout.models[layout.key(expressions)] = rule

    def _like(self, model: Rule, layout: _Layout, expressions: bytes, place: int) -> Rule:
        match, action = model.branches[0]
        changed: t.Dict[str, t.Any] = {}
        for begin, end, use, detail in layout.used:
            value = expressions[begin:end]
            if use == FIELD:
                match = match._replace(**{detail: self._span(value)})
            elif use == ADDRESS:
                changed["addresses"] = self._span(value)
            elif use == PORT:
                changed["ports"] = self._span(value)
            elif use == CHAIN:
                changed["chain"] = sys.intern(netlink.name(value))
            else:
                new = xt_rules.translation("DNAT", detail, value, self._family)
                changed["addresses"], changed["ports"] = map(self._shared, new)
        if changed:
            action = action._replace(**changed)
        return Rule(place, (Branch(match, action),), (), model.chance, model.exhaustive)

    def _span(self, value: bytes) -> t.Any:
        found = self._same.get(value)
        if found is None:
            one = int.from_bytes(value, "big")
            found = self._same[value] = self._shared(((one, one),))
        return found

    def _shared(self, value: T) -> T:
        return t.cast(T, self._same.setdefault(value, value))


class _NotAlikeError(Exception):
    """A rule in which no value may differ."""


class _Scan:
    """Finds the slots of a rule: it follows its expressions as long as each has one meaning whatever is in a slot.

    Each load is followed by its comparison, and each field of an address is compared once, so that nothing else meets
    a value of a slot. A constant in a register is used by the translation at the end alone.
    """

    def __init__(self, family: Family, headers: t.Mapping[t.Tuple[int, int], str]) -> None:
        self.family = family
        self.headers = headers
        self.found: t.List[Slot] = []
        #: of the load before: the register, and the field if it is an address
        self.loaded: t.Optional[t.Tuple[t.Optional[bytes], t.Optional[str]]] = None
        self.fields: t.Set[str] = set()
        #: constants by their registers
        self.constants: t.Dict[bytes, Slot] = {}
        self.over = False

    def slots(self, expressions: bytes) -> t.Tuple[Slot, ...]:
        """Return them in order."""
        position = 0
        try:
            for _kind, element, whole in netlink.pieces(expressions):
                if self.over:
                    return ()
                if element[4:12] == _COUNTER and self.loaded is None:
                    self.found.append(Slot(position + 4 + _COUNTER_HEAD, position + 4 + len(element), NOTHING))
                else:
                    self._take(position + 4, element)
                position += len(whole)
        except (_NotAlikeError, KeyError):
            return ()
        return tuple(sorted(self.found)) if self.over else ()

    def _take(self, start: int, element: bytes) -> None:
        name, data = nft_expressions.parse(element)
        if self.loaded is not None and name != "cmp":
            raise _NotAlikeError
        if self.constants and name not in ("immediate", "nat"):
            raise _NotAlikeError
        handler = _HANDLERS.get(name)
        if handler is None:
            raise _NotAlikeError
        handler(self, start, element, data)

    def _add(
        self, start: int, element: bytes, read: t.Callable[[Named], bytes], use: int, detail: t.Any = None
    ) -> Slot:
        """Return the slot of a value: where other bytes change it and nothing else."""
        name, data = nft_expressions.parse(element)
        value = read(data)
        begin = element.rfind(value)
        end = begin + len(value)
        other = bytes(0xFF ^ one for one in value)
        changed, read_again = nft_expressions.parse(element[:begin] + other + element[end:])
        key = "info" if read is _info else "data"
        beside = [(one, kept) for one, kept in data.items() if one != key]
        if not value or begin < 0 or changed != name or read(read_again) != other:
            raise _NotAlikeError
        if beside != [(one, kept) for one, kept in read_again.items() if one != key]:
            raise _NotAlikeError
        return Slot(start + begin, start + end, use, detail)

    def payload(self, _start: int, _element: bytes, data: Named) -> None:
        """Follow a load of part of a header: of the header of IP only whole addresses."""
        base, offset, length = (number(data.get(key)) for key in ("base", "offset", "len"))
        field = self.headers.get((offset, length)) if base == 1 else None
        if base not in (1, 2) or (base == 1) is (field is None) or field in self.fields:
            raise _NotAlikeError
        self.loaded = (data["dreg"], field)

    def meta(self, _start: int, _element: bytes, data: Named) -> None:
        """Follow a load of what is no address."""
        self.loaded = (data["dreg"], None)

    def cmp(self, start: int, element: bytes, data: Named) -> None:
        """Follow the comparison of what was loaded."""
        if self.loaded is None or data["sreg"] != self.loaded[0]:
            raise _NotAlikeError
        field = self.loaded[1]
        self.loaded = None
        if field is not None:
            if number(data.get("op")) != _EQUAL or len(nft_sets.value(data["data"])) != self.family.size:
                raise _NotAlikeError
            self.fields.add(field)
            self.found.append(self._add(start, element, _constant, FIELD, field))

    def match(self, start: int, element: bytes, data: Named) -> None:
        """Follow a match of xtables."""
        name = netlink.name(data["name"])
        if name == "comment":
            self.found.append(self._add(start, element, _info, NOTHING))
        elif name not in _PLAIN_MATCHES:
            raise _NotAlikeError

    def immediate(self, start: int, element: bytes, data: Named) -> None:
        """Follow a verdict, or a constant."""
        register = data["dreg"]
        if number(register):
            if register in self.constants:
                raise _NotAlikeError
            self.constants[register] = self._add(start, element, _constant, PORT)
            return
        self.over = True
        action = nft_sets.verdict(data["data"])
        if self.constants or action is None:
            raise _NotAlikeError
        if action.kind in (JUMP, GOTO):
            self.found.append(self._add(start, element, _chain, CHAIN))

    def nat(self, _start: int, _element: bytes, data: Named) -> None:
        """Follow a translation to constants."""
        self.over = True
        address, port = data["reg_addr_min"], data.get("reg_proto_min")
        same = data.get("reg_addr_max", address) == address and data.get("reg_proto_max", port) == port
        if not number(data.get("type")) or not same or address == port:
            raise _NotAlikeError
        if set(self.constants) != {one for one in (address, port) if one is not None}:
            raise _NotAlikeError
        for register, size, use in ((address, self.family.size, ADDRESS), (port, 2, PORT)):
            if register is not None:
                slot = self.constants[register]
                if slot.end - slot.begin != size:
                    raise _NotAlikeError
                self.found.append(slot._replace(use=use))
        if port is not None:
            first, second = sorted(((place_of(address), self.family.size), (place_of(port), 2)))
            if sum(first) > second[0]:  # one writes over the other
                raise _NotAlikeError

    def target(self, start: int, element: bytes, data: Named) -> None:
        """Follow a translation of xtables."""
        self.over = True
        if netlink.name(data["name"]) != "DNAT":
            raise _NotAlikeError
        self.found.append(self._add(start, element, _info, XT_TRANSLATION, number(data.get("rev"))))


def _constant(data: Named) -> bytes:
    return nft_sets.value(data["data"])


def _info(data: Named) -> bytes:
    return data["info"]


def _chain(data: Named) -> bytes:
    action = nft_sets.verdict(data["data"])
    if action is None:
        raise _NotAlikeError
    return action.chain.encode("utf-8", "surrogateescape")


_HANDLERS: t.Mapping[str, t.Callable[[_Scan, int, bytes, Named], None]] = {
    "payload": _Scan.payload,
    "meta": _Scan.meta,
    "cmp": _Scan.cmp,
    "match": _Scan.match,
    "immediate": _Scan.immediate,
    "nat": _Scan.nat,
    "target": _Scan.target,
}
