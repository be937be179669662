# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts in short form."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._names import cut, one_line, some_of
from hypothesis import given
from hypothesis import strategies as st


def expanded(text: str) -> t.List[str]:
    """The names that a short form stands for, as people read it."""
    names = []
    for before, ranges, behind in re.findall(r"([^,\[\] ]*)(?:\[([^\]]*)\])?([^,\[\] ]*)(?:, |$)", text):
        for one in ranges.split(","):
            start, _, end = one.partition("-")
            width = len(start)
            numbers = range(int(start), int(end) + 1) if end else []
            names += [before + str(number).zfill(width) + behind for number in numbers] or [before + start + behind]
    return [name for name in names if name]


@pytest.mark.parametrize(
    "names, short",
    [
        (["a"], "a"),
        (list("abcdefg"), "a, b, c, d, e, f, g"),
        (["node%d" % number for number in range(1, 21)], "node[1-20]"),
        (["node%02d" % number for number in (1, 2, 3, 9, 10)], "node[01-03,09-10]"),
        (["n9", "n10", "n010", "n09"], "n[09,9,010,10]"),
        (["n2", "web", "n1"], "n[1-2], web"),
        (["rack1-node7.fra1", "rack1-node8.fra1"], "rack1-node[7-8].fra1"),
        (["rack1-node1", "rack2-node1", "rack3-node1"], "rack[1-3]-node1"),
        (["192.0.2.%d" % number for number in range(9, 12)], "192.0.2.[9-11]"),
    ],
)
def test_names_that_differ_in_a_number_are_a_range(names: t.List[str], short: str) -> None:
    assert some_of(names) == short


def test_names_beyond_the_width_are_counted() -> None:
    names = ["node%d" % number for number in range(0, 6000, 2)]
    short = some_of(names, 40)
    assert len(short) <= 40
    shown, more = re.fullmatch(r"(.*) and ([\d,]+) more", short).groups()  # type: ignore[union-attr]
    assert expanded(shown) == names[: len(expanded(shown))]
    assert len(expanded(shown)) + int(more.replace(",", "")) == 3000


_NAMES = st.lists(st.from_regex(r"\A[ab]?[0-9]{0,3}-?[0-2]{0,2}[xy]{0,1}\Z").filter(bool), min_size=1, unique=True)


@given(_NAMES)
def test_no_name_is_lost_and_none_is_invented(names: t.List[str]) -> None:
    # A hyphen next to digits would be a range to the reader of this test too.
    names = list(dict.fromkeys(name.replace("-", "z") for name in names))
    assert sorted(expanded(some_of(names, 10**6))) == sorted(names)


@given(st.text())
def test_text_is_one_line_that_a_terminal_shows(text: str) -> None:
    assert one_line(text).isprintable() and "\n" not in one_line(text)


def test_text_that_is_too_long_is_cut() -> None:
    assert cut("12345678", 8) == "12345678" and cut("123456789", 8) == "12345..."
