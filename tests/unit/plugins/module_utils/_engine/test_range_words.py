# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses in the networks that an operator wrote: exactly these addresses, in as few words as there are."""

from __future__ import annotations

import ipaddress
import itertools
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import range_words
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from hypothesis import given
from hypothesis import strategies as st

EVERYTHING = ipaddress.ip_network("0.0.0.0/0")

#: Some of 16 blocks of all addresses, so that networks are often within each other.
networks = st.builds(
    lambda number, length: ipaddress.IPv4Network((number >> (4 - length) << (4 - length) << 28, length)),
    st.integers(0, 15),
    st.integers(1, 4),
)


def blocks(some: t.Iterable[t.Any]) -> t.Set[int]:
    """The blocks of networks."""
    return {number for one in some for number in range(16) if ipaddress.ip_address(number << 28) in one}


def spans(numbers: t.Iterable[int]) -> intervals.Spans:
    """Blocks as addresses."""
    return intervals.of((number << 28, (number + 1 << 28) - 1) for number in numbers)


def fewest(written: t.Sequence[t.Any], wanted: t.Set[int]) -> t.Optional[int]:
    """How many of some networks it takes to name these blocks, by trying all; None: it cannot be done."""
    inside = [one for one in written if blocks([one]) & wanted]
    outside = [one for one in written if not blocks([one]) & wanted]
    # What is excepted cannot be needed twice.
    for number in range(1, len(written) + 1):
        for count in range(1, number + 1):
            for some in itertools.combinations(inside, count):
                if not wanted <= blocks(some):
                    continue
                for others in itertools.combinations(outside, number - count):
                    if blocks(some) - blocks(others) == wanted:
                        return number
    return None


@given(st.lists(networks, min_size=1, max_size=6, unique=True), st.data())
def test_the_shortest_text_that_is_exact(written: t.List[t.Any], data: t.Any) -> None:
    atoms: t.Dict[t.Tuple[bool, ...], t.Set[int]] = {}
    for number in range(16):
        atoms.setdefault(tuple(number in blocks([one]) for one in written), set()).add(number)
    wanted = set().union(*data.draw(st.lists(st.sampled_from(list(atoms.values())), min_size=1)))
    tree = range_words.Written(map(intervals.of_network, written), IPV4)
    found = range_words.shortest(spans(wanted), IPV4, 100, tree)
    within, without = (list(map(ipaddress.ip_network, side)) for side in found[:2])
    assert blocks(within) - blocks(without) == wanted and not found.omitted
    known = [*written, EVERYTHING] if EVERYTHING not in written else written
    number = fewest(known, wanted)
    if number is not None and max(len(within), len(without)) <= range_words.SHOWN:
        assert len(within) + len(without) <= number
        assert {*within, *without} <= set(known) or len(within) + len(without) == 1


RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


@pytest.mark.parametrize(
    "written, within, without, text",
    [
        (
            [*RFC1918, "10.3.0.0/24", "10.8.0.0/16", "10.233.0.0/17"], RFC1918,
            ["10.3.0.0/24", "10.8.0.0/16", "10.233.0.0/17"],
            "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 except 10.3.0.0/24, 10.8.0.0/16, 10.233.0.0/17",
        ),
        (["10.0.0.0/8", "10.128.0.0/9"], ["10.0.0.0/8"], ["10.128.0.0/9"], "10.0.0.0/8 except 10.128.0.0/9"),
        (["100.64.0.0/11", "100.96.0.0/11"], ["100.64.0.0/10"], [], "100.64.0.0/10"),
        (["10.%d.0.0/16" % one for one in range(8)], ["10.0.0.0/13"], [], "10.0.0.0/13"),
        # No such text has the innermost network.
        (["10.0.0.0/8", "10.8.0.0/13", "10.12.0.0/14"], ["10.0.0.0/8"], ["10.8.0.0/14"],
         "10.0.0.0/8 except 10.8.0.0/14"),
        (
            ["10.%d.0.0/16" % one for one in range(0, 24, 2)] + ["10.%d.7.0/24" % one for one in range(0, 24, 2)],
            ["10.%d.0.0/16" % one for one in range(0, 24, 2)], ["10.%d.7.0/24" % one for one in range(0, 24, 2)],
            "10.0.0.0/16, 10.2.0.0/16, 10.4.0.0/16, 10.6.0.0/16, 10.8.0.0/16 and 7 more except "
            "10.0.7.0/24, 10.2.7.0/24, 10.4.7.0/24, 10.6.7.0/24, 10.8.7.0/24 and 7 more",
        ),
    ],
)  # fmt: skip
def test_texts(written: t.List[str], within: t.List[str], without: t.List[str], text: str) -> None:
    some, others = (intervals.of_networks(map(ipaddress.ip_network, side)) for side in (within, without))
    tree = range_words.Written([intervals.of_network(ipaddress.ip_network(one)) for one in written], IPV4)
    wanted = intervals.difference(some, others)
    assert range_words.in_words(wanted, IPV4, tree) == text
    assert range_words.words(*range_words.shortest(wanted, IPV4, 100, tree)) == text


def test_too_many_networks_are_not_searched() -> None:
    many = range_words.Written(((number, number) for number in range(0, 20002, 2)), IPV4)
    assert many.text(((0, 0),)) is None and range_words.in_words(((0, 0),), IPV4, many) == "0.0.0.0/32"
