# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets of numbers, held against sets of Python."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from hypothesis import given
from hypothesis import strategies as st

HIGHEST = 40
INTERVALS = st.lists(st.tuples(st.integers(0, HIGHEST), st.integers(0, HIGHEST)), max_size=6)


def _numbers(pairs: t.Iterable[t.Tuple[int, int]]) -> t.Set[int]:
    return {number for first, last in pairs for number in range(first, last + 1)}


def _is_proper(found: intervals.Spans) -> bool:
    return all(first <= last for first, last in found) and all(
        one[1] + 1 < other[0] for one, other in zip(found, found[1:])
    )


@given(INTERVALS)
def test_union(pairs: t.List[t.Tuple[int, int]]) -> None:
    found = intervals.of(pairs)
    assert _numbers(found) == _numbers(pairs) and _is_proper(found)


@given(INTERVALS, INTERVALS)
def test_intersection(one: t.List[t.Tuple[int, int]], other: t.List[t.Tuple[int, int]]) -> None:
    found = intervals.intersection(intervals.of(one), intervals.of(other))
    assert _numbers(found) == _numbers(one) & _numbers(other)


@given(INTERVALS)
def test_complement_and_membership(pairs: t.List[t.Tuple[int, int]]) -> None:
    found = intervals.of(pairs)
    rest = intervals.complement(found, HIGHEST)
    assert _numbers(rest) == set(range(HIGHEST + 1)) - _numbers(pairs) and _is_proper(rest)
    for number in range(HIGHEST + 1):
        assert intervals.contains(found, number) == (number in _numbers(pairs)) != intervals.contains(rest, number)


@given(INTERVALS, st.sets(st.integers(0, HIGHEST), max_size=5))
def test_cut(pairs: t.List[t.Tuple[int, int]], points: t.Set[int]) -> None:
    found = intervals.cut(intervals.of(pairs), points)
    assert _numbers(found) == _numbers(pairs)
    assert sum(last - first + 1 for first, last in found) == len(_numbers(pairs))
    assert not any(first < point <= last for first, last in found for point in points)


@given(INTERVALS, st.integers(1, 9))
def test_outline(pairs: t.List[t.Tuple[int, int]], size: int) -> None:
    found = intervals.outline(intervals.of(pairs), size)
    blocks = {number // size for number in _numbers(pairs)}
    assert _numbers(found) == {block * size + more for block in blocks for more in range(size)} and _is_proper(found)


def test_networks() -> None:
    networks = [ipaddress.ip_network(one) for one in ("10.0.0.0/9", "10.128.0.0/9", "192.0.2.1/32")]
    found = intervals.of_networks(networks)
    assert [str(one) for one in intervals.networks(found, IPV4)] == ["10.0.0.0/8", "192.0.2.1/32"]
