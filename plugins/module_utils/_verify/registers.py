# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the registers of nf_tables hold, byte by byte, and which packets a value or a range in them means."""

from __future__ import annotations

import sys
import typing as t

from .._system import intervals
from .._twin.links import CABLE
from .reading import Conditions, UnknownError
from .referenced_objects import Known
from .rules import ALL_BITS, CT_MARK, CT_ZONE, DNAT, INVALID, MARK, UNTRACKED, Names

#: One byte: ``(byte of the field & bits) ^ flips``. ``place`` counts from the lowest byte. A field of "" is a
#: constant; one that begins with "?" is not known, and the rest is its name; one with "@" is the value of a map.
Cell = t.Tuple[str, int, int, int]

LITTLE = sys.byteorder == "little"
NOTHING: Cell = ("?a value that no rule has loaded", 0, 0xFF, 0)
SIZE = 16 * 4
ZERO: Cell = ("", 0, 0, 0)
#: a number that is chosen at random, or from a hash
CHANCE = "chance"
PART_OF_CHANCE = "a number by chance together with other values"

#: bytes of each field
_SIZES = {"protocol": 1, "port": 2, "source_port": 2, "original_port": 2}
_NAME_LENGTH = 16
#: Tracked values: the number that a rule sees for each of them.
#: NF_CT_STATE_BIT(IP_CT_NEW), NF_CT_STATE_UNTRACKED_BIT, NF_CT_STATE_INVALID_BIT
STATES = {0: 8, 1: 64, INVALID: 1}
#: IPS_DST_NAT; the rest that is known of a connection's first packet is 0: IPS_EXPECTED, SEEN_REPLY, ASSURED,
#: CONFIRMED, SRC_NAT, SEQ_ADJUST, DYING, TEMPLATE, UNTRACKED, OFFLOAD, HW_OFFLOAD
STATUS = {0: 0, 1: 32}
STATUS_KNOWN = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x200 | 0x800 | 0x1000 | 0x4000 | 0x8000
_TRACKED = {"ct state": (UNTRACKED, STATES, ALL_BITS), "ct status": (DNAT, STATUS, STATUS_KNOWN)}
_SUBJECTS = {MARK: 4, CT_MARK: 4, CT_ZONE: 2}
#: at most so many spans for a mask with gaps
_GAPS = 256


class Piece(t.NamedTuple):
    """A run of bytes that belong to one field: where they are, and how their number relates to the field's."""

    field: str
    start: int
    end: int
    big: bool
    shift: int
    mask: int
    flip: int


def packet(field: str, size: int) -> t.List[Cell]:
    """Return a field in network byte order."""
    return [(field, size - 1 - number, 0xFF, 0) for number in range(size)]


def host(field: str, size: int) -> t.List[Cell]:
    """Return a number in the byte order of the machine."""
    return [(field, number, 0xFF, 0) for number in range(size)] if LITTLE else packet(field, size)


def constant(value: bytes) -> t.List[Cell]:
    """Return bytes that are the same for every packet."""
    return [("", 0, 0, byte) for byte in value]


def not_known(reason: str, size: int) -> t.List[Cell]:
    """Return bytes that are not understood."""
    return [("?" + reason, 0, 0xFF, 0)] * size


def pieces(cells: t.Sequence[Cell]) -> t.List[Piece]:
    """Return the fields that registers hold."""
    found = []
    start, count = 0, len(cells)
    while start < count:
        field, place, bits, flips = cells[start]
        end = start + 1
        step = 0
        while end < count and cells[end][0] == field:
            if field and field[0] not in "?@":
                difference = cells[end][1] - cells[end - 1][1]
                if abs(difference) != 1 or step not in (0, difference):
                    break
                step = difference
            end += 1
        if field and field[0] not in "?@":
            run = cells[start:end]
            lowest = min(one[1] for one in run)
            mask = flip = 0
            for _field, place, bits, flips in run:
                mask |= bits << 8 * place
                flip |= flips << 8 * place
            found.append(Piece(field, start, end, step <= 0, 8 * lowest, mask, flip))
        else:
            found.append(
                Piece(field, start, end, True, 0, 0, int.from_bytes(bytes(c[3] for c in cells[start:end]), "big"))
            )
        start = end
    return found


class Values:
    """What values and ranges in registers mean."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.family = known.family

    def size(self, field: str) -> int:
        """Return the number of bytes of a field."""
        if field in _SUBJECTS:
            return _SUBJECTS[field]
        return _SIZES.get(field) or self.family.size

    def conditions(self, plan: t.Sequence[Piece], first: bytes, last: bytes) -> t.Optional[Conditions]:
        """Return which packets have a value from ``first`` to ``last`` in each field; None if none has.

        :raises UnknownError: it is not understood.
        """
        found: Conditions = {}
        for piece in plan:
            field, start, end, big, shift, _mask, flip = piece
            low_bytes, high_bytes = first[start:end], last[start:end]
            if not field:
                held = flip.to_bytes(end - start, "big")
                if not low_bytes <= held <= high_bytes:
                    return None
                continue
            if field[0] in "?@":
                raise UnknownError(field[1:] if field[0] == "?" else "a value that a map gave")
            if field == CHANCE:
                raise UnknownError(PART_OF_CHANCE)
            if field in ("iifname", "oifname"):
                key: t.Any = "incoming" if field[0] == "i" else "outgoing"
                found[key] = (Names((self._pattern(piece, low_bytes, high_bytes),)),)
                continue
            order = "big" if big else "little"
            low = int.from_bytes(low_bytes, t.cast(t.Any, order)) << shift
            if low_bytes == high_bytes:
                made = self._equal(piece, low)
            else:
                if not big:
                    raise UnknownError("a range of numbers in an order of bytes that is not theirs")
                high = int.from_bytes(high_bytes, "big") << shift | ((1 << shift) - 1)
                made = self._between(piece, low, high)
            if made is None:
                return None
            key, value = made
            if key in found:
                value = (
                    found[key] + value if key in ("incoming", "outgoing") else intervals.intersection(found[key], value)
                )
            if not value:
                return None
            found[key] = value
        return found

    @staticmethod
    def _pattern(piece: Piece, low: bytes, high: bytes) -> str:
        """Return a name of a link, or its beginning with a plus."""
        length = piece.end - piece.start
        whole = ((1 << 8 * length) - 1) << piece.shift
        if piece.flip or piece.mask != whole or piece.shift + 8 * length != 8 * _NAME_LENGTH:
            raise UnknownError("a part of the name of a link")
        text = low.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        if low == high:
            return text if b"\0" in low or len(low) == _NAME_LENGTH else text + "+"
        begin = len(low.rstrip(b"\0"))
        if low[:begin] == high[:begin] and set(high[begin:]) == {0xFF}:
            return text + "+"
        raise UnknownError("a range of names of links")

    def _equal(self, piece: Piece, number: int) -> t.Optional[t.Tuple[t.Any, t.Any]]:
        field, mask = piece.field, piece.mask
        wanted = number ^ piece.flip
        if wanted & ~mask:
            return None
        if field in _SUBJECTS:
            return (field, mask), ((wanted, wanted),)
        if field in _TRACKED:
            return self._tracked(field, mask, lambda seen: seen & mask == wanted)
        if field in _LOOKED_UP:
            return self._looked_up(piece, wanted)
        top = (1 << 8 * self.size(field)) - 1
        free = top ^ mask
        if not free & (free + 1):
            return field, ((wanted, wanted | free),)
        return field, scattered(wanted, free)

    def _between(self, piece: Piece, low: int, high: int) -> t.Optional[t.Tuple[t.Any, t.Any]]:
        field, mask, flip = piece.field, piece.mask, piece.flip
        if flip:
            raise UnknownError("a range of a value with inverted bits")
        if field in _SUBJECTS:
            return (field, mask), ((low, high),)
        if field in _TRACKED:
            return self._tracked(field, mask, lambda seen: low <= seen & mask <= high)
        if field in _LOOKED_UP:
            raise UnknownError("a range of %s" % _LOOKED_UP[field])
        top = (1 << 8 * self.size(field)) - 1
        free = top ^ mask
        if free & (free + 1):
            raise UnknownError("a range of an address under a mask")
        low = (low + free) & ~free
        high = min(high, top)
        return (field, ((low, high | free),)) if low <= high else None

    @staticmethod
    def _tracked(field: str, mask: int, means: t.Callable[[int], bool]) -> t.Tuple[t.Any, t.Any]:
        subject, seen, known = _TRACKED[field]
        if mask & ~known:
            raise UnknownError("the status of a connection")
        return (subject, ALL_BITS), intervals.of((value, value) for value, number in seen.items() if means(number))

    def _looked_up(self, piece: Piece, number: int) -> t.Tuple[t.Any, t.Any]:
        field = piece.field
        if piece.mask != ALL_BITS:
            raise UnknownError("a part of %s" % _LOOKED_UP[field])
        if field in ("source type", "destination type"):
            return field.split()[0], self.of_type(number)
        key = "incoming" if field[0] == "i" else "outgoing"
        links = self.known.links
        if field.endswith("group"):
            return key, (Names(tuple(one.name for one in links.values() if one.group == number)),)
        return key, (Names((links[number].name,) if number in links else ()),)

    def of_type(self, number: int) -> intervals.Spans:
        """Return the addresses of a type.

        :raises UnknownError: they are not known.
        """
        found = self.known.types.get(number)
        if found is None:
            raise UnknownError("the type of an address")
        return found

    def of_kind(self, kind: str) -> t.Tuple[str, ...]:
        """Return the names of links of a kind.

        :raises UnknownError: in the copy of the node other links are of that kind.
        """
        links = self.known.links.values()
        found = tuple(one.name for one in links if one.kind == kind)
        if found != tuple(one.name for one in links if one.copied_kind == kind):
            raise UnknownError("the kind of a link: the copy of the node has links of kind %s instead" % CABLE)
        return found


#: fields whose values stand for others, and what they are
_LOOKED_UP = {
    "source type": "types of addresses",
    "destination type": "types of addresses",
    "iif": "numbers of links",
    "oif": "numbers of links",
    "iifgroup": "groups of links",
    "oifgroup": "groups of links",
}


def scattered(wanted: int, free: int) -> intervals.Spans:
    """Return the numbers with certain bits.

    :param free: the bits that do not matter.
    :raises UnknownError: they are too many to list what they make.
    """
    tail = (free + 1) & ~free  # the lowest bit that matters
    low = tail - 1
    bits = [1 << place for place in range(free.bit_length()) if free >> place & 1 and 1 << place > low]
    if 1 << len(bits) > _GAPS:
        raise UnknownError("a mask of bits that lie apart")
    found = [wanted]
    for bit in bits:
        found += [one | bit for one in found]
    return intervals.of((one, one | low) for one in found)
