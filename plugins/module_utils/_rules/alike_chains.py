# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains to which chance alone leads and that do the same but for one address, as those of a Service's endpoints do.

Each gives packets a new destination, and may ask besides whether they come from there. What else may differ are
comments and counters: see ``_Scan``. Of those that nothing else on the node tells apart one stands for all.
"""

from __future__ import annotations

import itertools
import operator
import struct
import typing as t
from array import array

from .._system import netlink, nf_tables, nft_expressions
from .._system.families import Family
from .._system.netlink import number
from .._system.nf_tables import Bodies, NftTable
from .._system.nft_expressions import Named
from . import nft_rules, nft_sets, xt_rules
from .registers import place_of
from .rules import GOTO, JUMP

#: What the bytes of a slot are. NOTHING: they say nothing about packets. ADDRESS, XT_ADDRESS: a new destination, by nft
#: or by xtables. CHAIN: where a rule leads. SHARE: how many of the packets xtables chooses.
NOTHING, SOURCE, ADDRESS, XT_ADDRESS, CHAIN, SHARE = range(6)

_COUNTER = b"counter\0"
#: of an expression that counts, what is in front of its figures
_COUNTER_HEAD = 16
_EQUAL = 0
#: matches of xtables that do not look at addresses
_PLAIN_MATCHES = ("tcp", "udp")
#: how many rules without slots are looked at
_FAILURES = 2048
#: Expressions by which chance chooses: of nft, of xtables.
_NUMGEN, _STATISTIC = b"numgen\0", b"statistic\0"
#: xt_statistic_info: mode and flags; from this share on it always matches
_SHARE = struct.Struct("=HHI")
_ALWAYS = 1 << 31
_KEY = struct.Struct("=I")


class End(t.NamedTuple):
    """A chain: what it does but for its address, and that."""

    form: t.Tuple[t.Any, ...]
    address: int


class _Option(t.NamedTuple):
    """A chain to which chance may lead: by which rule, by its place in the table, and whether it returns from there."""

    rule: int
    kind: str
    chain: bytes


class _Choice(t.NamedTuple):
    """All to which chance leads from one place; ``name`` is the map from numbers to chains, if there is one."""

    options: t.List[_Option]
    name: bytes = b""


#: A rule that looks up a number in a map: its place in the table, how many there are, and where they lead.
_Drawn = t.Tuple[int, int, t.Dict[int, _Option]]

#: What tells one address from another.
Place = t.Callable[[End], t.Hashable]


class Ends:
    """The chains of a table that do the same but for one address; ``found`` has them by name."""

    def __init__(self, table: NftTable, family: Family) -> None:
        """Find them. A table of another family has none."""
        self._table = table
        self.found: t.Dict[bytes, End] = {}
        self._choices: t.List[_Choice] = []
        #: of each rule, the number of its chain among those that were found, from 1; or 0
        self._owners = array("L")
        self.title = table.title
        if table.family == family.number:
            try:
                self._find(_Shapes(family))
            except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error):
                self.found = {}

    def _find(self, shapes: _Shapes) -> None:
        drawn: t.Dict[bytes, _Drawn] = {}
        by_share = False
        for place, body in enumerate(self._table.rules):
            by_share = by_share or _STATISTIC in body
            found = _by_number(_expressions(body)) if _NUMGEN in body else None
            if found is not None:
                drawn[found[0]] = (place, found[1], {})
        self._choices = [*(self._of_xtables(shapes) if by_share else ()), *(self._of_maps(drawn) if drawn else ())]
        led: t.Dict[bytes, int] = {}
        for choice in self._choices:
            for option in choice.options:
                led[option.chain] = led.get(option.chain, 0) + 1
        lengths: t.Dict[bytes, int] = {}
        for body in self._table.chains if led else ():
            known = netlink.attributes(body)
            chain = known.get(nf_tables.CHAIN_NAME, b"")
            if chain in led and nf_tables.CHAIN_HOOK not in known:
                # The kernel counts the rules of a chain, and what leads to it.
                lengths[chain] = number(known.get(nf_tables.CHAIN_USE)) - led[chain]
        for chain, bodies in self._by_chain() if lengths else ():
            owner = 0
            if len(bodies) == lengths.get(chain):
                end = shapes.end([_expressions(body) for body in bodies])
                if end is not None:
                    self.found[chain] = end
                    owner = len(self.found)
            self._owners.extend([owner] * len(bodies))

    def _by_chain(self) -> t.Iterator[t.Tuple[bytes, t.List[bytes]]]:
        grouped = itertools.groupby(self._table.rules, lambda body: netlink.value(body, nf_tables.RULE_CHAIN))
        return ((chain, list(bodies)) for chain, bodies in grouped)

    def _of_xtables(self, shapes: _Shapes) -> t.Iterator[_Choice]:
        """Return rules behind each other that lead to chains by chance, the last of them perhaps in any case."""
        place = 0
        for _chain, bodies in self._by_chain():
            options: t.List[_Option] = []
            for rule, body in enumerate(bodies, place):
                if options or _STATISTIC in body:
                    led = shapes.led(_expressions(body))
                    if led is not None:
                        options.append(_Option(rule, *led[:2]))
                    if options and (led is None or not led.by_chance):
                        yield _Choice(options)
                        options = []
            if options:
                yield _Choice(options)
            place += len(bodies)

    def _of_maps(self, drawn: t.Mapping[bytes, _Drawn]) -> t.Iterator[_Choice]:
        """Return maps without a name from the numbers that are drawn to chains."""
        for body in self._table.elements:
            name = netlink.value(body, nf_tables.ELEMENTS_SET)
            if name in drawn:
                place, _modulus, options = drawn[name]
                options.update(_options(body, place))
        for name, (_place, modulus, options) in drawn.items():
            if sorted(options) == list(range(modulus)):
                yield _Choice([options[key] for key in range(modulus)], name)

    def names(self) -> t.Set[str]:
        """Return the names of these chains."""
        return set(map(netlink.name, self.found))

    def kept(self, place: Place) -> t.List[t.List[_Option]]:
        """Return of all chains to which chance leads from one place one of those that have an equal place.

        It is the last: behind the first ones that stay, no packet may come.
        """
        found = []
        for options, _name in self._choices:
            last: t.Dict[t.Any, _Option] = {}
            for option in reversed(options):
                end = self.found.get(option.chain)
                last.setdefault(option if end is None else (option.kind, end.form, place(end)), option)
            found.append(list(last.values())[::-1])
        return found

    def fewer(self, kept: t.Iterable[t.List[_Option]]) -> NftTable:
        """Return the table with what is kept of each choice."""
        table = self._table
        if not self.found:
            return table
        led = {option.chain for some in kept for option in some}
        stays = [True, *(name in led for name in self.found)]
        left = bytearray(stays[owner] for owner in self._owners)
        maps: t.Dict[bytes, t.Sequence[_Option]] = {}
        drawing: t.Dict[int, t.Tuple[int, int]] = {}
        for (options, name), some in zip(self._choices, kept):
            if name and len(some) < len(options):
                maps[name] = some
                drawing[some[0].rule] = (len(options), len(some))
            elif not name:
                for rule in {option.rule for option in options} - {option.rule for option in some}:
                    left[rule] = False
        gone = self.found.keys() - led
        numbered = ((place, body) for place, body in enumerate(table.rules) if left[place])
        return table._replace(
            chains=Bodies(body for body in table.chains if netlink.value(body, nf_tables.CHAIN_NAME) not in gone),
            elements=Bodies(_fewer_elements(table.elements, maps)),
            rules=Bodies(_drawing(body, *drawing[place]) if place in drawing else body for place, body in numbered),
        )


def _expressions(body: bytes) -> bytes:
    return netlink.value(body, nf_tables.RULE_EXPRESSIONS)


def _options(body: bytes, rule: int) -> t.Iterator[t.Tuple[int, _Option]]:
    """Return where each number of a map leads; the number -1 if it does anything else with one."""
    for _kind, element in netlink.split(netlink.value(body, nf_tables.ELEMENTS)):
        key, data = nft_sets.plain(element)
        kind, chain = nft_sets.leads_to(data)
        plain = len(key) == _KEY.size and chain
        yield _KEY.unpack(key)[0] if plain else -1, _Option(rule, kind, chain)


def _by_number(expressions: bytes) -> t.Optional[t.Tuple[bytes, int]]:
    """Return the map in which a rule looks up the number that it draws, and how many there are."""
    found = [one for one in nft_expressions.of_rule(expressions) if one[0] != "counter"]
    if [name for name, _data in found] != ["numgen", "lookup"]:
        return None
    drawn, looked_up = found[0][1], found[1][1]
    plain = (
        not number(drawn.get("offset")) and looked_up["sreg"] == drawn["dreg"] and not number(looked_up.get("flags"))
    )
    if not plain or number(looked_up.get("dreg", b"\1")) or not nf_tables.is_unnamed(looked_up["set"]):
        return None
    return looked_up["set"], number(drawn["modulus"])


def _drawing(body: bytes, before: int, after: int) -> bytes:
    """Return a rule that draws one of fewer numbers."""
    kind = nft_expressions.number("numgen", "modulus")
    old, new = (netlink.network_word(kind, modulus) for modulus in (before, after))
    start = body.index(old, body.index(_NUMGEN))
    return body[:start] + new + body[start + len(old) :]


def _fewer_elements(bodies: t.Iterable[bytes], maps: t.Dict[bytes, t.Sequence[_Option]]) -> t.Iterator[bytes]:
    """Return elements, those of some maps replaced by others: they lead to chains by the numbers from 0 on."""
    for body in bodies:
        name = netlink.value(body, nf_tables.ELEMENTS_SET)
        if name not in maps:
            yield body
        elif maps[name]:
            listed = (nft_sets.element(_KEY.pack(place), one.kind, one.chain) for place, one in enumerate(maps[name]))
            yield netlink.replace(body, {nf_tables.ELEMENTS: b"".join(listed)}, netlink.NESTED)
            maps[name] = ()


class Slot(t.NamedTuple):
    """Bytes that may differ, and what they are; ``detail`` is a revision of xtables."""

    begin: int
    end: int
    use: int
    detail: int = 0


class _Led(t.NamedTuple):
    """Where a rule leads, which may ask for chance and for nothing else."""

    kind: str
    chain: bytes
    by_chance: bool


class _Shape(t.NamedTuple):
    """What rules with equal bytes have in common: their slots that matter, what they ask, and how they end."""

    number: int
    used: t.Tuple[Slot, ...]
    asks: bool
    kind: str


class _Layout:
    """The slots of rules of one length, and the shapes of rules by their other bytes."""

    def __init__(self, slots: t.Tuple[Slot, ...]) -> None:
        edges = [0, *(edge for slot in slots for edge in slot[:2]), None]
        self.slots = slots
        #: returns the bytes that do not differ
        self.key = operator.itemgetter(*(slice(*edges[place : place + 2]) for place in range(0, len(edges), 2)))
        self.shapes: t.Dict[t.Any, _Shape] = {}


class _Shapes:
    """What was found of rules that chains may have in common."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._layouts: t.Dict[int, t.List[_Layout]] = {}
        self._shapes = self._failures = 0
        #: equal forms are one object
        self._forms: t.Dict[t.Tuple[t.Any, ...], t.Tuple[t.Any, ...]] = {}

    def end(self, rules: t.Sequence[bytes]) -> t.Optional[End]:
        """Return what a chain does, but for the one address that it is about; None if it may do more."""
        form: t.List[t.Any] = []
        addresses: t.Set[bytes] = set()
        use = SOURCE
        for expressions in rules:
            shape = self._shape(expressions)
            if shape is None or use != SOURCE:
                return None
            form.append(shape.number)
            for slot in shape.used:
                value = expressions[slot.begin : slot.end]
                if slot.use == XT_ADDRESS:
                    value, others = _address_and_others(value, slot.detail, self._family)
                    form.append(others)
                if slot.use == SHARE or use != SOURCE or not value:
                    return None
                if slot.use == CHAIN:
                    form.append(value)
                else:
                    addresses.add(value)
                    use = slot.use
        if use == SOURCE or len(addresses) != 1:
            return None
        made = tuple(form)
        return End(self._forms.setdefault(made, made), int.from_bytes(addresses.pop(), "big"))

    def led(self, expressions: bytes) -> t.Optional[_Led]:
        """Return where a rule leads that may ask for chance and for nothing else."""
        shape = self._shape(expressions)
        if shape is None:
            return None
        values = {slot.use: expressions[slot.begin : slot.end] for slot in shape.used}
        if shape.asks or shape.kind not in (JUMP, GOTO) or len(values) < len(shape.used):
            return None
        mode, inverted, share = _SHARE.unpack_from(values.get(SHARE, _SHARE.pack(0, 0, 1)))
        if mode or inverted or not 0 < share < _ALWAYS:
            return None
        return _Led(shape.kind, values[CHAIN], SHARE in values)

    def _shape(self, expressions: bytes) -> t.Optional[_Shape]:
        """Return the shape of a rule; None if something in it could meet the value of a slot."""
        listed = self._layouts.setdefault(len(expressions), [])
        for layout in listed:
            shape = layout.shapes.get(layout.key(expressions))
            if shape is not None:
                return shape
        if self._failures >= _FAILURES:
            return None
        scan = _Scan(self._family)
        slots = scan.slots(expressions)
        if slots is None:
            self._failures += 1
            return None
        layout = next((one for one in listed if one.slots == slots), _Layout(slots))
        if not layout.shapes:
            listed.append(layout)
        self._shapes += 1
        used = tuple(slot for slot in slots if slot.use != NOTHING)
        shape = layout.shapes[layout.key(expressions)] = _Shape(self._shapes, used, scan.asks, scan.kind)
        return shape


def _address_and_others(info: bytes, revision: int, family: Family) -> t.Tuple[bytes, bytes]:
    """Return the new address of a translation of xtables, and all that it says besides; nothing if it is not one."""
    addresses, _ports = xt_rules.translation("DNAT", revision, info, family)
    if addresses is None or addresses[0][0] != addresses[0][1]:
        return b"", b""
    size = family.size
    others = info[:8] + info[16:] if revision == 0 else info[:4] + info[4 + size : 20] + info[20 + size :]
    return addresses[0][0].to_bytes(size, "big"), others


class _NotAlikeError(Exception):
    """A rule in which no value may differ."""


class _Scan:
    """Finds the slots of a rule: it follows its expressions as long as each has one meaning whatever is in a slot.

    Each load is followed by its comparison, so that nothing else meets a value of a slot. A constant in a register is
    used by the translation at the end alone.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.found: t.List[Slot] = []
        #: of the load before: the register, and whether it is the source
        self.loaded: t.Optional[t.Tuple[t.Optional[bytes], bool]] = None
        #: constants by their registers
        self.constants: t.Dict[bytes, Slot] = {}
        self.over = False
        #: whether it asks for anything but chance; the kind of its verdict
        self.asks = False
        self.kind = ""

    def slots(self, expressions: bytes) -> t.Optional[t.Tuple[Slot, ...]]:
        """Return them in order; None if there can be none."""
        position = 0
        try:
            for _kind, element, whole in netlink.pieces(expressions):
                if self.over:
                    return None
                if element[4:12] == _COUNTER and self.loaded is None:
                    self.found.append(Slot(position + 4 + _COUNTER_HEAD, position + 4 + len(element), NOTHING))
                else:
                    self._take(position + 4, element)
                position += len(whole)
        except (_NotAlikeError, KeyError):
            return None
        return tuple(sorted(self.found)) if self.over else None

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

    def _add(self, start: int, element: bytes, read: t.Callable[[Named], bytes], use: int, detail: int = 0) -> Slot:
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
        """Follow a load of part of a header: of the header of IP only the whole source."""
        base, offset, length = (number(data.get(key)) for key in ("base", "offset", "len"))
        if base != 2 and (base, offset, length) != (1, *nft_rules.NETWORK[self.family][0][:2]):
            raise _NotAlikeError
        self.loaded = (data["dreg"], base == 1)
        self.asks = True

    def meta(self, _start: int, _element: bytes, data: Named) -> None:
        """Follow a load of what is no address."""
        self.loaded = (data["dreg"], False)
        self.asks = True

    def cmp(self, start: int, element: bytes, data: Named) -> None:
        """Follow the comparison of what was loaded."""
        if self.loaded is None or data["sreg"] != self.loaded[0]:
            raise _NotAlikeError
        if self.loaded[1]:
            if number(data.get("op")) != _EQUAL or len(nft_sets.value(data["data"])) != self.family.size:
                raise _NotAlikeError
            self.found.append(self._add(start, element, _constant, SOURCE))
        self.loaded = None

    def match(self, start: int, element: bytes, data: Named) -> None:
        """Follow a match of xtables."""
        name = netlink.name(data["name"])
        if name == "comment":
            self.found.append(self._add(start, element, _info, NOTHING))
        elif name == "statistic":
            self.found.append(self._add(start, element, _info, SHARE))
        elif name in _PLAIN_MATCHES:
            self.asks = True
        else:
            raise _NotAlikeError

    def immediate(self, start: int, element: bytes, data: Named) -> None:
        """Follow a verdict, or a constant."""
        register = data["dreg"]
        if number(register):
            if register in self.constants:
                raise _NotAlikeError
            self.constants[register] = self._add(start, element, _constant, ADDRESS)
            return
        self.over = True
        action = nft_sets.verdict(data["data"])
        if self.constants or action is None:
            raise _NotAlikeError
        self.kind = action.kind
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
        slot = self.constants[address]
        if slot.end - slot.begin != self.family.size:
            raise _NotAlikeError
        self.found.append(slot)
        if port is not None:
            first, second = sorted(((place_of(address), self.family.size), (place_of(port), 2)))
            if sum(first) > second[0]:  # one writes over the other
                raise _NotAlikeError

    def target(self, start: int, element: bytes, data: Named) -> None:
        """Follow a translation of xtables."""
        self.over = True
        if netlink.name(data["name"]) != "DNAT":
            raise _NotAlikeError
        self.found.append(self._add(start, element, _info, XT_ADDRESS, number(data.get("rev"))))


def _constant(data: Named) -> bytes:
    return nft_sets.value(data["data"])


def _info(data: Named) -> bytes:
    return data["info"]


def _chain(data: Named) -> bytes:
    return nft_sets.leads_to(data["data"])[1]


_HANDLERS: t.Mapping[str, t.Callable[[_Scan, int, bytes, Named], None]] = {
    "payload": _Scan.payload,
    "meta": _Scan.meta,
    "cmp": _Scan.cmp,
    "match": _Scan.match,
    "immediate": _Scan.immediate,
    "nat": _Scan.nat,
    "target": _Scan.target,
}
