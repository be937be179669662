# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Regions, held against sets of single packets."""

from __future__ import annotations

import itertools
import random
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import regions
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.regions import Packet, Region
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from hypothesis import given
from hypothesis import strategies as st
from support import rule_shapes as shapes

HIGHEST = 5
SPANS = st.lists(st.tuples(st.integers(0, HIGHEST), st.integers(0, HIGHEST)), min_size=1, max_size=3).map(intervals.of)
SOME = SPANS.filter(bool)
REGIONS = st.builds(Region, st.integers(0, 1), SOME, SOME, SOME, SOME)


def packets(region: Region) -> t.Set[t.Tuple[int, ...]]:
    """Return every packet of a region."""
    fields = [[number for first, last in field for number in range(first, last + 1)] for field in region[1:]]
    return {(region.start, *packet) for packet in itertools.product(*fields)}


@given(REGIONS, REGIONS)
def test_intersection(one: Region, other: Region) -> None:
    found = regions.intersect(one, other)
    assert (packets(found) if found else set()) == packets(one) & packets(other)


@given(REGIONS, REGIONS)
def test_difference_is_disjoint(one: Region, other: Region) -> None:
    parts = regions.subtract(one, other)
    assert sum(len(packets(part)) for part in parts) == len(packets(one) - packets(other))
    assert set().union(*map(packets, parts)) == packets(one) - packets(other)


@given(REGIONS, st.lists(REGIONS, max_size=3))
def test_difference_of_several(one: Region, others: t.List[Region]) -> None:
    parts = regions.subtract_all(one, others)
    left = packets(one).difference(*map(packets, others))
    assert set().union(*map(packets, parts)) == left
    assert sum(map(regions.size, parts)) == len(left)


@given(REGIONS, st.integers(0, 99))
def test_size_and_examples(region: Region, seed: int) -> None:
    mine = packets(region)
    assert regions.size(region) == len(mine)
    for chosen in (None, random.Random(seed)):
        assert (region.start, *regions.packet(region, chosen)) in mine
    for packet in itertools.product(range(HIGHEST + 1), repeat=2):
        assert shapes.contains(region, Packet(*packet, *packet)) == ((region.start, *packet, *packet) in mine)


@given(SPANS, SPANS)
def test_spans(one: intervals.Spans, other: intervals.Spans) -> None:
    assert regions.meet(one, other) == intervals.intersection(one, other)
    assert regions.minus(one, other) == intervals.difference(one, other)
    assert regions.count(one) == sum(last - first + 1 for first, last in one)


@given(st.lists(st.none() | SPANS, max_size=6), SOME)
def test_partition(members: t.List[t.Optional[intervals.Spans]], whole: intervals.Spans) -> None:
    found = regions.partition(members)
    for number in range(HIGHEST + 2):
        expected = tuple(place for place, one in enumerate(members) if one is None or intervals.contains(one, number))
        assert found.of(number) == expected
    parts = found.divide(whole)
    assert intervals.of(span for _value, part in parts for span in part) == whole
    for value, part in parts:
        assert all(found.of(number) == value for first, last in part for number in range(first, last + 1))


@given(st.lists(REGIONS, max_size=6))
def test_joined_products_are_the_same_packets(some: t.List[Region]) -> None:
    """But for links, of which they say nothing."""

    def told(members: t.Iterable[Region]) -> t.Set[t.Tuple[int, ...]]:
        return {packet[1:] for region in members for packet in packets(region)}

    found = regions.joined(some)
    assert told(found) == told(some) and len(found) <= len(some)


@given(REGIONS, st.none() | st.randoms(use_true_random=False))
def test_a_packet_to_another_is_found_wherever_there_is_one(region: Region, chosen: t.Optional[random.Random]) -> None:
    found = regions.packet_to_another(region, chosen)
    if found is None:
        assert all(one[1] == one[2] for one in packets(region))
    else:
        assert found.source != found.destination
        assert (region.start, *found) in packets(region)
