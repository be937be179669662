# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses for people: as few networks as it takes, the largest first, and how many there are besides."""

from __future__ import annotations

import heapq
import typing as t

from .._system import intervals
from .._system.families import Family
from .._system.intervals import Spans

#: So many networks are listed in a sentence.
SHOWN = 5

#: Prefix length, and first address.
_Block = t.Tuple[int, int]


class Ranges(t.NamedTuple):
    """Addresses as networks, and the networks in these that do not belong to them; the largest first."""

    within: t.List[str]
    without: t.List[str]
    #: how many more there are
    omitted: int


def in_words(some: Spans, family: Family) -> str:
    """Return addresses in as few networks as that takes, and the largest of them if they are many."""
    return words(*fewest(some, family, SHOWN))


def words(within: t.Sequence[str], without: t.Sequence[str], omitted: int) -> str:
    """Return the parts of ``Ranges`` as one text, as ``listed``."""
    if without:
        return "%s except %s" % (", ".join(within), listed(without, omitted))
    return listed(within, omitted)


def listed(entries: t.Sequence[str], omitted: int = 0) -> str:
    """Return a list as text: of many the first ones, and how many more there are, with those that were omitted."""
    left = len(entries) - SHOWN + omitted
    return ", ".join(entries[:SHOWN]) + (" and %s more" % format(left, ",") if left > 0 else "")


def fewest(some: Spans, family: Family, limit: int) -> Ranges:
    """Return addresses in as few networks as that takes, of many the largest.

    :param limit: of networks, and of exceptions.
    """
    bits = family.bits
    around = _around(some, bits)
    inside = list(_blocks(some, bits))
    outside = list(_blocks(intervals.difference((_bounds(around, bits),), some), bits))
    if len(outside) + 1 < len(inside):
        return Ranges([_text(around, family)], _largest(outside, family, limit), max(len(outside) - limit, 0))
    return Ranges(_largest(inside, family, limit), [], max(len(inside) - limit, 0))


def _largest(blocks: t.Sequence[_Block], family: Family, limit: int) -> t.List[str]:
    return [_text(one, family) for one in heapq.nsmallest(limit, blocks)]


def _blocks(some: Spans, bits: int) -> t.Iterator[_Block]:
    """Return the fewest networks, without an object for each."""
    for start, last in some:
        first = start
        while first <= last:
            # As large as the alignment of the first address and the number of those that are left allow.
            aligned = (first & -first).bit_length() - 1 if first else bits
            size = min(aligned, (last - first + 1).bit_length() - 1)
            yield bits - size, first
            first += 1 << size


def _around(some: Spans, bits: int) -> _Block:
    """Return the smallest network that contains all of it."""
    length = bits - (some[0][0] ^ some[-1][1]).bit_length()
    return length, some[0][0] >> (bits - length) << (bits - length)


def _bounds(block: _Block, bits: int) -> t.Tuple[int, int]:
    length, first = block
    return first, first + (1 << (bits - length)) - 1


def _text(block: _Block, family: Family) -> str:
    return "%s/%d" % (family.address(block[1]), block[0])
