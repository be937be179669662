# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses for people: in the networks of a policy, or else in as few as it takes, and how many there are besides."""

from __future__ import annotations

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


class _Text(t.NamedTuple):
    """Networks, and others in them that are excepted."""

    within: t.List[_Block]
    without: t.List[_Block]
    #: how many of these networks no policy has
    unwritten: int = 0

    @property
    def size(self) -> int:
        return len(self.within) + len(self.without)

    @property
    def cost(self) -> t.Tuple[int, int]:
        return self.unwritten, self.size

    def with_all(self, others: t.Sequence[_Text]) -> _Text:
        within, without = ([*itertools.chain(own, *more)] for own, *more in zip(self[:2], *(one[:2] for one in others)))
        return _Text(within, without, self.unwritten + sum(one.unwritten for one in others))


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
        """Return the shortest text ``A, B except C, D`` that leaves these addresses. None: too many networks."""
        bits = self.family.bits
        #: of each network, from the innermost ones on: if a network around it is listed, and if none is
        listed: t.List[_Text] = []
        apart: t.List[_Text] = []
        for node, inner in zip(self._nodes, self._inner):
            block = next(_blocks((node,), bits))
            alone = intervals.difference((node,), tuple(self._nodes[one] for one in reversed(inner)))
            inside, outside = (list(_blocks(cut(alone, some), bits)) for cut in _CUTS)
            parts = _Text(inside, [], len(inside)).with_all([apart[one] for one in inner])
            if not parts.within:
                listed.append(_Text([], [block]))
                apart.append(parts)
                continue
            listed.append(_Text([], outside, len(outside)).with_all([listed[one] for one in inner]))
            apart.append(min(listed[-1].with_all([_Text([block], [])]), parts, key=lambda text: text.cost))
        return apart[-1] if apart else None


#: What of some addresses is in others, and what is not.
_CUTS = (intervals.intersection, intervals.difference)


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
        short = not found.unwritten and max(len(found.within), len(found.without)) <= SHOWN
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
    # The smallest network around all of it.
    first, last = some[0][0], some[-1][1]
    free = (first ^ last).bit_length()
    first = first >> free << free
    inside = list(_blocks(some, bits))
    outside = list(_blocks(intervals.difference(((first, first + (1 << free) - 1),), some), bits))
    return _Text([(bits - free, first)], outside) if len(outside) + 1 < len(inside) else _Text(inside, [])


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


def _text(block: _Block, family: Family) -> str:
    return "%s/%d" % (family.address(block[1]), block[0])
