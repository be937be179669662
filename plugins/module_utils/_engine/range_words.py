# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses for people: in the networks of a policy, or else in as few as it takes, and how many there are besides."""

from __future__ import annotations

import bisect
import heapq
import itertools
import typing as t

from .._system import intervals, pod_names
from .._system.families import Family
from .._system.intervals import Spans
from .._system.printable import first_of

#: So many networks are listed in a sentence.
SHOWN = 5

#: In more networks than this nothing is searched.
_MANY = 5000

#: Prefix length, and first address.
_Block = t.Tuple[int, int]


class Ranges(t.NamedTuple):
    """Addresses as networks, and the networks in these that do not belong to them; the largest first."""

    within: t.List[str]
    without: t.List[str]
    #: how many more there are
    omitted: int


#: How many networks of no policy a text takes, and how many networks.
_Cost = t.Tuple[int, int]


class _Text(t.NamedTuple):
    """Networks, and others in them that are excepted."""

    within: t.List[_Block]
    without: t.List[_Block]
    #: whether policies have all of these networks
    written: bool = True

    @property
    def size(self) -> int:
        return len(self.within) + len(self.without)


class Written:
    """The networks of policies as a tree. The last one, around all of them, has all addresses."""

    def __init__(self, networks: t.Iterable[t.Tuple[int, int]], family: Family) -> None:
        """Prepare the tree.

        :param networks: first and last address of each. No two overlap unless one contains the other.
        """
        self.family = family
        distinct = {*networks, (0, family.highest)}
        #: each one in front of the one around it
        self._nodes = sorted(distinct, key=lambda node: (node[1], -node[0])) if len(distinct) <= _MANY else []
        self._inner: t.List[t.List[int]] = [[] for _node in self._nodes]
        last: t.List[int] = []
        for place, (first, _last) in enumerate(self._nodes):
            while last and self._nodes[last[-1]][0] >= first:
                self._inner[place].append(last.pop())
            last.append(place)

    def text(self, some: Spans) -> t.Optional[_Text]:
        """Return networks, and others in them, that leave these addresses; as few as that takes. None: too many."""
        return _Shortest(self._nodes, self._inner, some, self.family.bits).text() if self._nodes else None


class _Shortest:
    """The shortest text ``A, B except C, D``, from the innermost networks to those around them."""

    def __init__(
        self, nodes: t.Sequence[t.Tuple[int, int]], inner: t.Sequence[t.Sequence[int]], some: Spans, bits: int
    ) -> None:
        self._nodes, self._inner, self._some, self._bits = nodes, inner, some, bits
        self._starts = [first for first, _last in some]
        self._sizes = [0, *itertools.accumulate(last - first + 1 for first, last in some)]
        #: addresses of each network that belong to it
        self._own = [self._up_to(last + 1) - self._up_to(first) for first, last in nodes]
        #: what it takes if a network around is listed, and if none is
        self._listed: t.List[_Cost] = []
        self._open: t.List[_Cost] = []
        for place in range(len(nodes)):
            self._add(place)

    def _up_to(self, number: int) -> int:
        """Return how many addresses below a number belong to it."""
        place = bisect.bisect_right(self._starts, number) - 1
        if place < 0:
            return 0
        first, last = self._some[place]
        return self._sizes[place] + min(number, last + 1) - first

    def _add(self, place: int) -> None:
        if not self._own[place]:
            self._listed.append((0, 1))
            self._open.append((0, 0))
            return
        outside, inside = (len(self._rest(place, wanted)) for wanted in (False, True))
        self._listed.append(_sum((outside, outside), (self._listed[one] for one in self._inner[place])))
        apart = _sum((inside, inside), (self._open[one] for one in self._inner[place]))
        self._open.append(min(_sum((0, 1), [self._listed[place]]), apart))

    def _rest(self, place: int, wanted: bool) -> t.List[_Block]:
        """Return the part of a network that is in no smaller one, and belongs to it or does not."""
        inner = [self._nodes[one] for one in reversed(self._inner[place])]
        first, last = self._nodes[place]
        size = last - first + 1 - sum(end - start + 1 for start, end in inner)
        own = self._own[place] - sum(self._own[one] for one in self._inner[place])
        if own == (0 if wanted else size):
            return []
        alone = intervals.difference((self._nodes[place],), intervals.of(inner))
        cut = intervals.intersection if wanted else intervals.difference
        return list(_blocks(cut(alone, self._some), self._bits))

    def text(self) -> _Text:
        """Return the shortest text."""
        within: t.List[_Block] = []
        without: t.List[_Block] = []
        left = [(len(self._nodes) - 1, False)]
        while left:
            place, listed_ = left.pop()
            block = next(_blocks((self._nodes[place],), self._bits))
            if not self._own[place]:
                without += [block] * listed_
                continue
            if not listed_ and self._open[place] == _sum((0, 1), [self._listed[place]]):
                within.append(block)
                listed_ = True
            (without if listed_ else within).extend(self._rest(place, not listed_))
            left += [(one, listed_) for one in self._inner[place]]
        return _Text(within, without, self._open[-1][0] == 0)


def _sum(first: _Cost, others: t.Iterable[_Cost]) -> _Cost:
    unwritten, number = first
    for one in others:
        unwritten, number = unwritten + one[0], number + one[1]
    return unwritten, number


def in_words(
    some: Spans, family: Family, written: t.Optional[Written] = None, names: t.Optional[t.Mapping[str, str]] = None
) -> str:
    """Return addresses in the networks of policies, or in as few as that takes; of many the largest.

    :param names: of pods, by range.
    """
    within, without, omitted = shortest(some, family, _MANY, written)
    return words(pod_names.beside(within, names or {}), without, omitted)


def words(within: t.Sequence[str], without: t.Sequence[str], omitted: int) -> str:
    """Return the parts of ``Ranges`` as one text, of many the first ones."""
    if not without:
        return first_of(within, SHOWN, omitted)
    # Left out is from the longer list.
    of_within = omitted if len(within) >= len(without) else 0
    return "%s except %s" % (first_of(within, SHOWN, of_within), first_of(without, SHOWN, omitted - of_within))


def shortest(some: Spans, family: Family, limit: int, written: t.Optional[Written] = None) -> Ranges:
    """Return addresses in the networks of policies, or in as few as that takes; of many the largest.

    :param limit: of networks, and of exceptions.
    """
    fewest = _fewest(some, family.bits)
    found = written.text(some) if written else None
    # One network for several that were written is understood, one for what an exception leaves is not.
    merged = fewest.size == 1 and not (found and found.without)
    if found and not merged and {*found.within, *found.without} != {*fewest.within, *fewest.without}:
        short = found.written and max(len(found.within), len(found.without)) <= SHOWN
        if short or found.size <= fewest.size:
            # A list that can be read whole is in the order of its addresses.
            return _ranges(found, family, limit, lambda block: block[1])
    return _ranges(fewest, family, limit)


def _ranges(found: _Text, family: Family, limit: int, order: t.Optional[t.Callable[[_Block], int]] = None) -> Ranges:
    within, without = (heapq.nsmallest(limit, side) for side in found[:2])
    without = sorted(without, key=order)
    left = found.size - len(within) - len(without)
    return Ranges([_text(one, family) for one in within], [_text(one, family) for one in without], left)


def _fewest(some: Spans, bits: int) -> _Text:
    """Return addresses in as few networks as that takes, or one network and what is excepted from it."""
    around = _around(some, bits)
    inside = list(_blocks(some, bits))
    outside = list(_blocks(intervals.difference((_bounds(around, bits),), some), bits))
    return _Text([around], outside) if len(outside) + 1 < len(inside) else _Text(inside, [])


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
