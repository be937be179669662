# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets of numbers as intervals: of addresses, of ports, of protocols with their ports."""

from __future__ import annotations

import bisect
import ipaddress
import typing as t

from .families import Family

#: First and last number of each interval: in order, apart from each other, never touching.
Spans = t.Tuple[t.Tuple[int, int], ...]


def of(intervals: t.Iterable[t.Tuple[int, int]]) -> Spans:
    """Unite intervals in any order."""
    merged: t.List[t.Tuple[int, int]] = []
    end = -2
    for first, last in sorted(intervals):
        if first > end + 1:
            if first <= last:
                merged.append((first, last))
                end = last
        elif last > end:
            merged[-1] = (merged[-1][0], last)
            end = last
    return tuple(merged)


def intersection(one: Spans, other: Spans) -> Spans:
    """Return what lies in both."""
    if len(one) > len(other):
        one, other = other, one
    found = []
    for first, last in one:
        place = max(bisect.bisect_right(other, (first, -1)) - 1, 0)
        while place < len(other) and other[place][0] <= last:
            low, high = max(first, other[place][0]), min(last, other[place][1])
            if low <= high:
                found.append((low, high))
            place += 1
    return tuple(found)


def complement(spans: Spans, highest: int) -> Spans:
    """Return all numbers from 0 to ``highest`` that are not in it."""
    return difference(((0, highest),), spans)


def contains(spans: Spans, number: int) -> bool:
    """Return whether a number is in it."""
    place = bisect.bisect_right(spans, (number + 1, -1)) - 1
    return place >= 0 and spans[place][0] <= number <= spans[place][1]


def cut(spans: Spans, cuts: t.Iterable[int]) -> t.List[t.Tuple[int, int]]:
    """Divide the intervals in front of each of these numbers."""
    points = sorted(set(cuts))
    found = []
    for first, last in spans:
        start = first
        for point in points[bisect.bisect_right(points, first) : bisect.bisect_right(points, last)]:
            found.append((start, point - 1))
            start = point
        found.append((start, last))
    return found


def of_networks(networks: t.Iterable[t.Any]) -> Spans:
    """Return the addresses of networks of one family."""
    return of(map(of_network, networks))


def of_network(network: t.Any) -> t.Tuple[int, int]:
    """Return first and last address of a network."""
    # No broadcast_address: it is one object more for each of thousands.
    first = int(network.network_address)
    return first, first | ((1 << (network.max_prefixlen - network.prefixlen)) - 1)


def outline(spans: Spans, size: int) -> Spans:
    """Return what lies in the same blocks of so many numbers, counted from 0."""
    return of((first // size * size, last // size * size + size - 1) for first, last in spans)


def difference(one: Spans, other: Spans) -> Spans:
    """Return what lies in the first alone."""
    found = []
    for first, last in one:
        start = first
        place = max(bisect.bisect_right(other, (first, -1)) - 1, 0)
        while place < len(other) and other[place][0] <= last:
            low, high = other[place]
            if start < low:
                found.append((start, low - 1))
            start = max(start, high + 1)
            place += 1
        if start <= last:
            found.append((start, last))
    return tuple(found)


def overlay(layers: t.Iterable[t.Tuple[bool, Spans]]) -> Spans:
    """Add or remove the numbers of each layer in turn, and return what is left.

    :param layers: whether a layer adds its numbers, and the numbers.
    """
    found: Spans = ()
    for adds, numbers in layers:
        if adds:
            found = of(found + numbers) if found else numbers
        elif found:
            found = difference(found, numbers)
    return found


def networks(spans: Spans, family: Family) -> t.List[t.Any]:
    """Return the same as networks."""
    found: t.List[t.Any] = []
    for first, last in spans:
        found += ipaddress.summarize_address_range(family.address(first), family.address(last))
    return found


def layers(exempt: t.Sequence[t.Any], masquerade: t.Sequence[t.Any]) -> t.List[t.Tuple[t.Any, ...]]:
    """Return the networks of both lists by how deep they are within each other, so that the longest prefix wins.

    All of them are of one family.

    First exempt ranges, then what is masqueraded inside of them, then what is exempt inside of that, and so on. An
    entry with the value of the range around it is left out; what stays keeps its order.
    """
    listed = [*exempt, *masquerade]
    depths: t.Dict[int, int] = {}
    around = [(2**128, 0)]  # last address and depth; everything is masqueraded
    bounds = [(*of_network(network), index) for index, network in enumerate(listed)]
    for first, last, index in sorted(bounds, key=lambda bound: (bound[0], -bound[1], bound[2])):
        while around[-1][0] < first:
            around.pop()
        depth = around[-1][1]
        if (depth % 2 == 1) != (index < len(exempt)):
            depth += 1
            depths[index] = depth
        around.append((last, depth))
    deepest = max(depths.values(), default=0)
    return [
        tuple(listed[index] for index in sorted(depths) if depths[index] == depth) for depth in range(1, deepest + 1)
    ]
