# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environment files: read as systemd reads them, and one argument changed in their text, and nothing else with it."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.arguments import NEVER, take_out
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.environment_file import (
    parse,
    split_words,
    with_flag,
)
from hypothesis import example, given
from hypothesis import strategies as st

FILE = "/etc/default/kubelet"
NAME = "KUBELET_EXTRA_ARGS"
SET = "--non-masquerade-cidr=0.0.0.0/0"
OLD = "--non-masquerade-cidr=10.0.0.0/8"


def values(text: str) -> t.Dict[str, str]:
    return {one.name: one.value for one in parse(text, FILE)}


# What systemd 247 and 257 hand to a program for these files.
READ = [
    ("A=b\n", {"A": "b"}),
    ("A=  b c  \n", {"A": "b c"}),
    ("  A = b\n", {"A": "b"}),
    ("# A=1\n; B=2\nC=3\n", {"C": "3"}),
    ("A=b # c\n", {"A": "b # c"}),
    ('A="b  c"\n', {"A": "b  c"}),
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
    with pytest.raises(ConfigError, match="line 3: unterminated quote; file unchanged"):
        parse("# one\n# two\n" + text, FILE)


def test_a_comment_on_which_releases_of_systemd_differ_is_refused() -> None:
    with pytest.raises(ConfigError, match="line 2: comment that ends in a backslash"):
        parse("# see \\\nA=b\n", FILE)
    assert values("# see \\\n# that\nA=b\n") == {"A": "b"}


@pytest.mark.parametrize("text", ["--a='b", '--a="', "--a\\"])
def test_values_that_end_inside_a_quote_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ambiguous quoting: .*; nothing was changed"):
        split_words(text, "x")


# Before, with the flag, and without it.
EDITS = [
    ("", NAME + "=" + SET + "\n", ""),
    ("A=1", "A=1\n" + NAME + "=" + SET + "\n", "A=1"),
    ("%s=\n", "%s={new}\n", "%s=\n"),
    ("%s=''", "%s='{new}'", "%s=''"),
    ("%s=--v=2  \n# end\n", "%s=--v=2 {new}  \n# end\n", "%s=--v=2  \n# end\n"),
    ('%s="--v=2"\n', '%s="--v=2 {new}"\n', '%s="--v=2"\n'),
    ("%s='--v=2 \"--a b\"'\n", "%s='--v=2 \"--a b\" {new}'\n", "%s='--v=2 \"--a b\"'\n"),
    ("%s={old} --v=2\n", "%s={new} --v=2\n", "%s=--v=2\n"),
    ("%s=--v=2 {old} --a\n", "%s=--v=2 {new} --a\n", "%s=--v=2 --a\n"),
    ("%s=--v=2 {old}\r\nB=1\r\n", "%s=--v=2 {new}\r\nB=1\r\n", "%s=--v=2\r\nB=1\r\n"),
    ('%s="{old} {old} --v=2 {old}"\n', '%s="--v=2 {new}"\n', '%s="--v=2"\n'),
    ('%s="--v=2 --non_masquerade_cidr 10.0.0.0/8 --a"\n', '%s="--v=2 {new} --a"\n', '%s="--v=2 --a"\n'),
    (
        '%s="--v=2 \\\n  {old} \\\n  --a=b" # no comment\n',
        '%s="--v=2 \\\n  {new} \\\n  --a=b" # no comment\n',
        '%s="--v=2 \\\n \\\n  --a=b" # no comment\n',
    ),
    ("%s=--v=2 \\\n  {old}\nB=1\n", "%s=--v=2 \\\n  {new}\nB=1\n", "%s=--v=2 \\\n\nB=1\n"),
    (
        '%s="--v=2 --non-masquerade-cidr \\\n10.0.0.0/8 --a"\n',
        '%s="--v=2 {new} --a"\n',
        '%s="--v=2 --a"\n',
    ),
    # Both copies could claim the blank between them.
    ("%s=--a \\\n{old} {old}\n", "%s=--a \\\n{new}\n", "%s=--a \\\n\n"),
    ("%s=--x\n%s=--v=2 {old}\n", "%s=--x\n%s=--v=2 {new}\n", "%s=--x\n%s=--v=2\n"),
    ("# %s={old}\n%s=--v=2\n", "# %s={old}\n%s=--v=2 {new}\n", "# %s={old}\n%s=--v=2\n"),
]


def filled(text: str) -> str:
    return text.replace("%s", NAME).replace("{old}", OLD).replace("{new}", SET)


def edited(text: str, present: bool) -> str:
    return with_flag(text, FILE, NAME, present)


@pytest.mark.parametrize("texts", EDITS)
def test_one_argument_changes_and_no_other_byte(texts: t.Tuple[str, str, str]) -> None:
    before, with_it, without = map(filled, texts)
    assert edited(before, True) == with_it
    assert edited(before, False) == without
    assert edited(with_it, True) == with_it
    assert edited(without, False) == without


@pytest.mark.parametrize("value", [OLD + " '--c d'", "--v=2 '%s'" % OLD])
def test_quotes_that_would_mean_something_else_are_refused(value: str) -> None:
    """At the start of a value a quote belongs to the file; around the argument, an empty one would be left."""
    with pytest.raises(ConfigError, match="cannot be changed without changing other arguments"):
        edited("%s=%s\n" % (NAME, value), False)


def test_parts_glued_together_are_another_flag() -> None:
    text = '%s="--non-masquerade-cidr" 1.0.0.0/8\n' % NAME
    assert edited(text, False) == text


_blank = st.sampled_from([" ", "  ", "\t", " \\\n", " \\\n  "])

_plain = st.sampled_from(["--v=2", "--a=b", "--node-labels=x=y,z", "--max-pods", "110", "--\u00e9", "a#b", "x;y", "--"])

_flags = st.sampled_from([OLD, SET, "--non_masquerade_cidr=1.2.3.0/24", "--non-masquerade-cidr 10.0.0.0/8"])

_quoted = st.sampled_from(["'--c d'", "--c='d e'"])

_noise = st.sampled_from(
    [
        "# comment\n",
        "; other\n",
        "\n",
        "A=1\n",
        'B="x y"\n',
        "C='p\nq'\n",
        "D=a \\\n b\n",
        "export E=1\n",
        "word\n",
        "\t\n",
    ]
)


@st.composite
def _files(draw: t.Any) -> str:
    newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    words = draw(st.lists(st.one_of(_plain.filter(lambda word: word != "--"), _flags, _quoted), max_size=6))
    # A carriage return ends a line for systemd, so that a CRLF file has no continuation lines.
    blanks = [draw(_blank if newline == "\n" else st.sampled_from([" ", "\t"])) for _word in words]
    value = "".join(word + blank for word, blank in zip(words, blanks))
    value = value if draw(st.booleans()) else value.rstrip(" \t\\\n")
    quote = draw(st.sampled_from(["", '"'] if "'" in value else ["", '"', "'"] if "\\" not in value else ["", '"']))
    if not quote:
        value = value.rstrip(" \t\\\n")
        # Without the flag before it, a quote would be the file's own and not the argument's: refused, see above.
        value = ("--first " if "'" in value else "") + value
    before, after = "".join(draw(st.lists(_noise, max_size=3))), "".join(draw(st.lists(_noise, max_size=3)))
    text = "%s%s=%s%s%s\n%s" % (before, NAME, quote, value, quote, after)
    return text.replace("\n", newline) if newline == "\r\n" else text


@given(_files())
@example("KUBELET_EXTRA_ARGS=" + OLD + " \\\n" + OLD + " \\\n--a\n")
def test_editing_keeps_every_other_byte_and_is_idempotent(text: str) -> None:
    try:
        before = values(text)
        others = take_out(split_words(before.pop(NAME, ""), FILE))[1]
    except ConfigError:
        # A quoted value across lines becomes another one in a CRLF file; refusing it changes nothing.
        return
    for present in (True, False):
        after = edited(text, present)
        now = values(after)
        assert take_out(split_words(now.pop(NAME, ""), FILE)) == ([NEVER] if present else [], others)
        assert now == before
        assert edited(after, present) == after
        _only_the_flag_differs(text, after)


def _only_the_flag_differs(before: str, after: str) -> None:
    """Taking the flag's words and blanks out of both leaves the same characters in the same order."""
    assert _bare(before) == _bare(after)


def _bare(text: str) -> str:
    value = r"(?:=|[ \t]|\\\n)[ \t]*[0-9./:]+"
    return re.sub(r"[ \t]+", "", re.sub("--non[-_]masquerade[-_]cidr" + value, "", text))


@given(st.text(alphabet="AK=\"'\\ \t\r\n#;-x/0.:", max_size=60))
def test_no_text_gets_anything_but_our_own_error(text: str) -> None:
    for whole in (text, NAME + "=" + text):
        for present in (True, False):
            try:
                after = edited(whole, present)
            except ConfigError:
                continue
            assert take_out(split_words(values(after).get(NAME, ""), FILE))[0] == ([NEVER] if present else [])
            assert edited(after, present) == after
