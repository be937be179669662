# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Flags in command lines and in YAML text."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.flags import (
    Occurrence,
    find_flag,
    flag_name,
    search_yaml,
)

OLD = "--non-masquerade-cidr=10.0.0.0/8"


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--v=2", OLD], [Occurrence(1, 1, "10.0.0.0/8")]),
        (["--non-masquerade-cidr", "1.0.0.0/8", "--v=2"], [Occurrence(0, 1, "1.0.0.0/8")]),
        (["--non_masquerade_cidr=::/0"], [Occurrence(0, 0, "::/0")]),
        (["--non_masquerade-cidr", "::/0", OLD], [Occurrence(0, 1, "::/0"), Occurrence(2, 2, "10.0.0.0/8")]),
        (["--", OLD], []),
        (["--non-masquerade-cidrs=1", "-non-masquerade-cidr=1", "non-masquerade-cidr=1"], []),
        (["--non-masquerade-cidr="], [Occurrence(0, 0, "")]),
    ],
)
def test_the_flag_is_found_in_every_spelling_that_the_kubelet_takes(
    words: t.List[str], expected: t.List[Occurrence]
) -> None:
    assert find_flag(words) == expected


@pytest.mark.parametrize("words", [["--non-masquerade-cidr"], ["--non-masquerade-cidr", "--v=2"]])
def test_the_flag_without_a_value_is_refused(words: t.List[str]) -> None:
    with pytest.raises(ConfigError, match="--non-masquerade-cidr has no value"):
        find_flag(words)


@pytest.mark.parametrize(
    "text, expected",
    [
        ('kubelet-arg:\n  - "non-masquerade-cidr=10.0.0.0/8"\n  - v=2\n', [OLD]),
        ("kubelet-arg:\n- --non-masquerade-cidr=10.0.0.0/8\n", [OLD]),
        ("kubelet-arg: ['network-plugin=kubenet','non_masquerade_cidr=::/0']\n", None),
        ("# non-masquerade-cidr=10.0.0.0/8\nkubelet-arg: v=2 # non-masquerade-cidr=1.0.0.0/8\n", []),
        ("", []),
    ],
)
def test_the_flag_is_seen_in_yaml(text: str, expected: t.Optional[t.List[str]]) -> None:
    found = search_yaml(text)
    assert found == (["--network-plugin=kubenet", "--non_masquerade_cidr=::/0"] if expected is None else expected)


def test_flag_names_are_normalised() -> None:
    assert [flag_name(word) for word in ("--a_b=c_d", "--", "-a", "x")] == ["a-b", "", "", ""]
