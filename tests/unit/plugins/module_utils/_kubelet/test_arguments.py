# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flag in arguments and in other texts."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.arguments import search, take_out

OLD = "--non-masquerade-cidr=10.0.0.0/8"


@pytest.mark.parametrize("words", [["--non-masquerade-cidr"], ["--non-masquerade-cidr", "--v=2"]])
def test_the_flag_without_a_value_is_refused(words: t.List[str]) -> None:
    with pytest.raises(ConfigError, match="x: --non-masquerade-cidr has no value"):
        take_out(words, where="x")


@pytest.mark.parametrize(
    "text, expected",
    [
        ('kubelet-arg:\n  - "non-masquerade-cidr=10.0.0.0/8"\n  - v=2\n', (OLD,)),
        ("kubelet-arg:\n- --non-masquerade-cidr=10.0.0.0/8\n", (OLD,)),
        (
            "kubelet-arg: ['network-plugin=kubenet','non_masquerade_cidr=::/0']\n",
            ("--network-plugin=kubenet", "--non_masquerade_cidr=::/0"),
        ),
        ("# non-masquerade-cidr=10.0.0.0/8\nkubelet-arg: v=2 # non-masquerade-cidr=1.0.0.0/8\n", ()),
        ("", ()),
    ],
)
def test_the_flag_is_seen_in_any_text(text: str, expected: t.Tuple[str, ...]) -> None:
    assert search(text) == expected
