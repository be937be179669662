# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the registers of nf_tables hold, byte by byte, and which packets a value or a range in them means."""

from __future__ import annotations

import functools
import itertools
import sys
import typing as t

from .._system import intervals, netlink
from .._system.families import IPV4, IPV6
from .reading import Conditions, UnknownError, both
from .referenced_objects import Known
from .rules import ALL_BITS, CT_MARK, DNAT, INVALID, MARK, PICKED_UP, RELATED, STRAY, UNTRACKED, Names

#: One byte: ``(byte of the field & bits) ^ flips``. ``place`` counts from the lowest byte. A field of "" is a
#: constant; one that begins with "?" is not known, and the rest is its name; one with "@" is the value of a map.
Cell = t.Tuple[str, int, int, int]

LITTLE = sys.byteorder == "little"
NOTHING: Cell = ("?a value that no rule has loaded", 0, 0xFF, 0)
SIZE = 16 * 4
ZERO: Cell = ("", 0, 0, 0)
#: a number that is chosen at random, or from a hash
CHANCE = "chance"
GAPS = "a mask of bits that lie apart"
PART_OF_CHANCE = "a number by chance together with other values"

TCP_FLAGS = "flags of TCP"
ICMP_TYPE = "type of an ICMP message"
#: Types of ICMP that tell of another packet, and so begin no connection (RFC 792, RFC 4443).
ICMP_ERRORS = {IPV4: (3, 4, 5, 11, 12), IPV6: (1, 2, 3, 4)}

#: bytes of each field
_SIZES = {"protocol": 1, TCP_FLAGS: 1, ICMP_TYPE: 1, "port": 2, "source_port": 2, "original_port": 2}
_NAME_LENGTH = 16
#: Tracked values: the number that a rule sees for each of them.
#: NF_CT_STATE_BIT(IP_CT_NEW), NF_CT_STATE_UNTRACKED_BIT, NF_CT_STATE_INVALID_BIT; and of what is RELATED, not NEW
STATES = {0: 8, 1: 64, INVALID: 1}
_STATE_RELATED = 4
#: IPS_DST_NAT; the rest that is known of a connection's first packet is 0: IPS_EXPECTED, SEEN_REPLY, ASSURED,
#: CONFIRMED, SRC_NAT, SEQ_ADJUST, DYING, TEMPLATE, UNTRACKED, OFFLOAD, HW_OFFLOAD
STATUS = {0: 0, 1: 32}
STATUS_SNAT = 0x10
STATUS_KNOWN = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x200 | 0x800 | 0x1000 | 0x4000 | 0x8000
_TRACKED = {"ct state": (UNTRACKED, STATES), "ct status": (DNAT, STATUS)}
_SUBJECTS = {MARK: 4, CT_MARK: 4}


class Piece(t.NamedTuple):
    """A run of bytes that belong to one field: where they are, and how their number relates to the field's."""

    field: str
    start: int
    end: int
    big: bool
    shift: int
    mask: int
    flip: int


@functools.lru_cache(maxsize=64)  # called for each expression
def place_of(register: t.Optional[bytes]) -> int:
    """Return where a register begins: those from 8 on have four bytes, those before sixteen."""
    which = netlink.number(register)
    return (which - 8) * 4 if which >= 8 else (which - 1) * 16


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
        #: bits of a connection's status
        self.status = STATUS_KNOWN

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
            merged = None if made is None else both(found, made)
            if merged is None or not all(merged.values()):
                return None
            found = merged
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

    def _equal(self, piece: Piece, number: int) -> t.Optional[Conditions]:
        field, mask = piece.field, piece.mask
        wanted = number ^ piece.flip
        if wanted & ~mask:
            return None
        if field in _SUBJECTS:
            return {(field, mask): ((wanted, wanted),)}
        if field == TCP_FLAGS:
            return with_flags(mask, wanted)
        if field == ICMP_TYPE:
            if mask != 0xFF or wanted not in ICMP_ERRORS[self.family]:
                raise UnknownError("the " + ICMP_TYPE)
            return {(UNTRACKED, ALL_BITS): ((1, INVALID),)}
        if field in _TRACKED:
            return self._tracked(field, mask, wanted)
        if field in _LOOKED_UP:
            return self._looked_up(piece, wanted)
        top = (1 << 8 * self.size(field)) - 1
        free = top ^ mask
        if free & (free + 1):
            raise UnknownError(GAPS)
        return {field: ((wanted, wanted | free),)}

    def _between(self, piece: Piece, low: int, high: int) -> t.Optional[Conditions]:
        field, mask, flip = piece.field, piece.mask, piece.flip
        if flip or field in (TCP_FLAGS, ICMP_TYPE) or field in _SUBJECTS or field in _TRACKED or field in _LOOKED_UP:
            raise UnknownError("a range of a value that is no address, protocol or port")
        top = (1 << 8 * self.size(field)) - 1
        free = top ^ mask
        if free & (free + 1):
            raise UnknownError(GAPS)
        low = (low + free) & ~free
        high = min(high, top)
        return {field: ((low, high | free),)} if low <= high else None

    def _tracked(self, field: str, mask: int, wanted: int) -> Conditions:
        subject, seen = _TRACKED[field]
        if subject == DNAT and mask & ~self.status:
            raise UnknownError("the status of a connection")
        if subject == UNTRACKED:
            alternatives = of_states(mask, wanted, False)
            if len(alternatives) > 1:
                raise UnknownError("several states of a connection together with other values")
            return alternatives[0] if alternatives else {(subject, ALL_BITS): ()}
        values = (value for value, number in seen.items() if number & mask == wanted)
        return {(subject, ALL_BITS): intervals.of((value, value) for value in values)}

    def _looked_up(self, piece: Piece, number: int) -> Conditions:
        field = piece.field
        if piece.mask != ALL_BITS:
            raise UnknownError("a part of %s" % _LOOKED_UP[field])
        if field in ("source type", "destination type"):
            return {field.split()[0]: self.of_type(number)}
        key = "incoming" if field[0] == "i" else "outgoing"
        links = self.known.links
        return {key: (Names((links[number],) if number in links else ()),)}

    def of_type(self, number: int) -> intervals.Spans:
        """Return the addresses of a type.

        :raises UnknownError: they are not known.
        """
        found = self.known.types.get(number)
        if found is None:
            raise UnknownError("the type of an address")
        return found


def of_states(mask: int, wanted: int, inverted: bool) -> t.List[Conditions]:
    """Return which first packets of a connection, or without one, have these bits of ``ct state`` under a mask."""
    new, related = ((bit & mask == wanted) != inverted for bit in (STATES[0], _STATE_RELATED))
    others = [(value, value) for value in (1, INVALID) if (STATES[value] & mask == wanted) != inverted]
    state = (UNTRACKED, ALL_BITS)
    if new == related:
        both_of = intervals.of([*others, (0, 0)] if new else others)
        return [{state: both_of}] if both_of else []
    found: t.List[Conditions] = [{state: ((0, 0),), (RELATED, ALL_BITS): ((0, 0),) if new else ((1, 1),)}]
    return [*found, {state: intervals.of(others)}] if others else found


#: Flags of TCP: SYN, ACK; PSH, URG, ECE and CWR, with which conntrack takes either for the first of a connection
#: (tcp_valid_flags in the kernel's nf_conntrack_proto_tcp.c).
_SYN, _ACK = 0x02, 0x10
_BESIDE = [sum(some) for count in range(5) for some in itertools.combinations((0x08, 0x20, 0x40, 0x80), count)]


def with_flags(mask: int, wanted: int) -> t.Optional[Conditions]:
    """Return which packets have these flags of TCP under a mask, of those that are first of a connection or invalid.

    :returns: None if none has.
    :raises UnknownError: the sender of a first packet chooses.
    """
    opens, goes_on = ({(flag | more) & mask == wanted for more in _BESIDE} for flag in (_SYN, _ACK))
    if len(opens) + len(goes_on) > 2:
        raise UnknownError("flags of TCP that the sender chooses")
    values = [value for value, found in enumerate((opens, goes_on)) if True in found]
    values += [STRAY | flags for flags in range(0x100) if flags & mask == wanted]
    allowed = intervals.of((value, value) for value in values)
    if allowed == ((0, 1), (STRAY, STRAY | 0xFF)):
        return {}
    return {(PICKED_UP, ALL_BITS): allowed} if allowed else None


#: fields whose values stand for others, and what they are
_LOOKED_UP = {
    "source type": "types of addresses",
    "destination type": "types of addresses",
    "iif": "numbers of links",
    "oif": "numbers of links",
}
