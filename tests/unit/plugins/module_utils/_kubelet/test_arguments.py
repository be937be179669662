# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values split into arguments, as systemd splits them."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.arguments import chars_of, split_words


@pytest.mark.parametrize(
    "text, expected",
    [
        ("--a --b=c", ["--a", "--b=c"]),
        ("  --a\t--b\n--c ", ["--a", "--b", "--c"]),
        ("--a='b c' \"--d e\"", ["--a=b c", "--d e"]),
        ("--a=\\'b '\\'' \\ ", ["--a='b", "'", " "]),
        ("''", [""]),
        ("", []),
    ],
)
def test_values_are_split_as_systemd_splits_them(text: str, expected: t.List[str]) -> None:
    assert [word.text for word in split_words(chars_of(text), "x")] == expected


@pytest.mark.parametrize("text", ["--a='b", '--a="', "--a\\"])
def test_values_that_end_inside_a_quote_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ambiguous quoting: .*; nothing was changed"):
        split_words(chars_of(text), "x")
