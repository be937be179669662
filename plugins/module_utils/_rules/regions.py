# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups of packets as products of spans, and partitions of numbers with which a value is looked up."""

from __future__ import annotations

import bisect
import typing as t

from .._system import intervals
from .._system.intervals import Spans

if t.TYPE_CHECKING:
    import random

T = t.TypeVar("T")


class Packet(t.NamedTuple):
    """One packet as it comes in; ``service`` is ``protocol << 16 | destination port``."""

    source: int
    destination: int
    service: int
    source_port: int


class Region(t.NamedTuple):
    """All packets that come in over one class of links (``start``) and have each field in its spans."""

    start: int
    source: Spans
    destination: Spans
    service: Spans
    source_port: Spans


def count(one: Spans) -> int:
    """Return how many numbers lie in spans."""
    if len(one) == 1:
        return one[0][1] - one[0][0] + 1
    return sum(last - first for first, last in one) + len(one)


def size(region: Region) -> int:
    """Return the number of packets."""
    return count(region.source) * count(region.destination) * count(region.service) * count(region.source_port)


def meet(one: Spans, other: Spans) -> Spans:
    """Return what lies in both; the first itself where that is all of it."""
    if one is other:
        return one
    if len(one) == 1 and len(other) == 1:
        (low, high), (first, last) = one[0], other[0]
        if first <= low and high <= last:
            return one
        if first > high or last < low:
            return ()
        return ((max(low, first), min(high, last)),)
    if not one or not other or one[-1][1] < other[0][0] or other[-1][1] < one[0][0]:
        return ()
    found = intervals.intersection(one, other)
    return one if found == one else found


def minus(one: Spans, other: Spans) -> Spans:
    """Return what lies in the first alone; the first itself where that is all of it."""
    if not one or not other:
        return one
    low, high = one[0][0], one[-1][1]
    begin = max(bisect.bisect_right(other, (low, low)) - 1, 0)
    end = bisect.bisect_right(other, (high, other[-1][1]))
    near = other[begin:end] if end - begin < len(other) else other
    if not near:
        return one
    return intervals.intersection(one, intervals.complement(near, high))


def intersect(one: Region, other: Region) -> t.Optional[Region]:
    """Return the packets that are in both; None if there are none."""
    if one.start != other.start:
        return None
    parts = [meet(mine, yours) for mine, yours in zip(one[1:], other[1:])]
    return Region(one.start, *parts) if all(parts) else None


def subtract(one: Region, other: Region) -> t.List[Region]:
    """Return the packets of the first alone, as disjoint products."""
    both = intersect(one, other)
    if both is None:
        return [one]
    found = []
    left: t.List[Spans] = list(one[1:])
    for place, inside in enumerate(both[1:]):
        outside = minus(left[place], inside)
        if outside:
            rest = [*left[:place], outside, *left[place + 1 :]]
            found.append(Region(one.start, *rest))
            left[place] = inside
    return found


def subtract_all(one: Region, others: t.Iterable[Region]) -> t.List[Region]:
    """Return the packets of the first that are in none of the others, as disjoint products."""
    left = [one]
    for other in others:
        left = [part for region in left for part in subtract(region, other)]
    return left


def joined(some: t.Iterable[Region]) -> t.List[Region]:
    """Return the same packets in fewer products, without regard to the link over which they come in.

    Those that differ in one field alone become one product. No packet is in it that was in none of them.
    """
    found = list(dict.fromkeys(region[1:] for region in some))
    for place in (1, 2, 0, 3, 1):  # destination, service, source, source port
        groups: t.Dict[t.Any, t.List[Spans]] = {}
        for product in found:
            groups.setdefault((product[:place], product[place + 1 :]), []).append(product[place])
        found = [
            (*before, intervals.of(span for part in parts for span in part), *behind)
            for (before, behind), parts in groups.items()
        ]
    return [Region(0, *product) for product in found]


def packet(region: Region, chosen: t.Optional[random.Random] = None) -> Packet:
    """Return a packet of the middle of a region, or one that is chosen at random."""
    return Packet(*(_number(field, chosen) for field in region[1:]))


def packet_to_another(region: Region, chosen: t.Optional[random.Random] = None) -> t.Optional[Packet]:
    """Return a packet as ``packet`` does, whose sender is not its receiver; None if the region has none."""
    one = packet(region, chosen)
    if one.source != one.destination:
        return one
    itself: Spans = ((one.source, one.source),)
    others = minus(region.destination, itself)
    if others:
        return one._replace(destination=_number(others, chosen))
    others = minus(region.source, itself)
    return one._replace(source=_number(others, chosen)) if others else None


def _number(one: Spans, chosen: t.Optional[random.Random]) -> int:
    if chosen is None:
        # Of the longest interval: the first and last addresses of a network are often no host's.
        first, last = max(one, key=lambda span: span[1] - span[0])
        return first + (last - first + 1) // 2
    place = chosen.randrange(count(one))
    for first, last in one:
        if place <= last - first:
            return first + place
        place -= last - first + 1
    raise ValueError("no number lies in empty spans")


class Partition(t.Generic[T]):
    """A value for each number: from each of ``starts`` on, up to the next, that of ``values``. The first start is 0."""

    def __init__(self, starts: t.List[int], values: t.List[T]) -> None:
        self.starts = starts
        self.values = values

    def of(self, number: int) -> T:
        """Return the value of a number."""
        return self.values[bisect.bisect_right(self.starts, number) - 1]

    def divide(self, whole: Spans) -> t.List[t.Tuple[T, Spans]]:
        """Return the parts of spans that have the same value. Values are compared by identity."""
        starts, values = self.starts, self.values
        if len(whole) == 1:
            first, last = whole[0]
            place = bisect.bisect_right(starts, first)
            if place == len(starts) or starts[place] > last:
                return [(values[place - 1], whole)]
        found: t.Dict[int, t.Tuple[T, t.List[t.Tuple[int, int]]]] = {}
        end = len(starts)
        for begin, last in whole:
            first = begin
            place = bisect.bisect_right(starts, first) - 1
            while first <= last:
                until = min(starts[place + 1] - 1, last) if place + 1 < end else last
                value = values[place]
                known = found.get(id(value))
                if known is None:
                    found[id(value)] = (value, [(first, until)])
                elif known[1][-1][1] + 1 == first:
                    known[1][-1] = (known[1][-1][0], until)
                else:
                    known[1].append((first, until))
                first = until + 1
                place += 1
        if len(found) == 1:
            return [(value, whole) for value, _parts in found.values()]
        return [(value, tuple(parts)) for value, parts in found.values()]


def partition(members: t.Sequence[t.Optional[Spans]]) -> Partition[t.Tuple[int, ...]]:
    """Return for each number the places of those members of a sequence in which it lies; None is everything."""
    events: t.List[t.Tuple[int, int]] = []
    active = {}
    for place, one in enumerate(members):
        if one is None:
            active[place] = True
            continue
        for first, last in one:
            events.append((first, place))
            events.append((last + 1, ~place))
    events.sort()
    kept: t.Dict[t.Tuple[int, ...], t.Tuple[int, ...]] = {}
    now = tuple(active)
    starts, values = [0], [kept.setdefault(now, now)]
    index, end = 0, len(events)
    while index < end:
        at = events[index][0]
        while index < end and events[index][0] == at:
            place = events[index][1]
            if place >= 0:
                active[place] = True
            else:
                # An interval of the same member may begin where another one ends: spans never touch.
                del active[~place]
            index += 1
        now = tuple(sorted(active))
        now = kept.setdefault(now, now)
        if at == starts[-1]:
            values[-1] = now
        elif now is not values[-1]:
            starts.append(at)
            values.append(now)
    return Partition(starts, values)
