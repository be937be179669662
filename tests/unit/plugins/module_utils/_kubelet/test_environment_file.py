# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environment files, read as systemd reads them."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.environment_file import parse_environment

FILE = "/etc/default/kubelet"


def values(text: str) -> t.Dict[str, str]:
    return {one.name: one.value for one in parse_environment(text, FILE)}


# What systemd 247 and 257 hand to a program for these files.
READ = [
    ("A=b\n", {"A": "b"}),
    ("A=b", {"A": "b"}),
    ("A=\n", {"A": ""}),
    ("A=  b c  \n", {"A": "b c"}),
    ("  A = b\n", {"A": "b"}),
    ("# A=1\n; B=2\nC=3\n", {"C": "3"}),
    ("A=b # c\n", {"A": "b # c"}),
    ('A="b  c"\n', {"A": "b  c"}),
    ("A='b \"c\"'\n", {"A": 'b "c"'}),
    ('A="b" "c"\n', {"A": "bc"}),
    ('A=b "c"\n', {"A": 'b "c"'}),
    ('A="b\nc"\n', {"A": "b\nc"}),
    ("A=b \\\n  c\n", {"A": "b   c"}),
    ('A="b \\\nc"\n', {"A": "b c"}),
    ("A=b\\ c\\\\d\n", {"A": "b c\\d"}),
    ('A="\\$b \\"c\\" \\n"\n', {"A": '$b "c" \\n'}),
    ("A='b\\'\n", {"A": "b\\"}),
    ("A=$B ${C}\n", {"A": "$B ${C}"}),
    ("export A=b\n", {}),
    ("1A=b\nno assignment\n", {}),
    ("A=b\r\nC=d\r\n", {"A": "b", "C": "d"}),
    ("A=1\nA=2\n", {"A": "2"}),
    ("A=b\\", {"A": "b"}),
]


@pytest.mark.parametrize("text, expected", READ)
def test_environment_files_are_read_as_systemd_reads_them(text: str, expected: t.Dict[str, str]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize("text", ['A="b\n', "A='b\nC=d\n", 'A="b\\"\n', 'A="b" "c\n'])
def test_a_quote_that_does_not_close_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match="line 3: unterminated quote in the value of A; file unchanged"):
        parse_environment("# one\n# two\n" + text, FILE)


def test_a_comment_on_which_releases_of_systemd_differ_is_refused() -> None:
    with pytest.raises(ConfigError, match="comment ends in a backslash"):
        parse_environment("# see \\\nA=b\n", FILE)
    assert values("# see \\\n# that\nA=b\n") == {"A": "b"}
