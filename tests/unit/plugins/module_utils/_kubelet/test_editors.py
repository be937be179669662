# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments changed in text, and nothing else with them."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.editors import (
    DropInEditor,
    EnvironmentEditor,
    LinesEditor,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.environment_file import parse_environment
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.flags import NEVER, find_flag
from hypothesis import example, given
from hypothesis import strategies as st

FILE = "/etc/default/kubelet"

NAME = "KUBELET_EXTRA_ARGS"

SET = "--non-masquerade-cidr=0.0.0.0/0"

OLD = "--non-masquerade-cidr=10.0.0.0/8"

editor = EnvironmentEditor(FILE, NAME)


def values(text: str) -> t.Dict[str, str]:
    return {one.name: one.value for one in parse_environment(text, FILE)}


# Before, with the flag, and without it.
EDITS: t.List[t.Tuple[t.Optional[str], t.Optional[str], t.Optional[str]]] = [
    (None, NAME + "=" + SET + "\n", None),
    ("", NAME + "=" + SET + "\n", ""),
    ("A=1", "A=1\n" + NAME + "=" + SET + "\n", "A=1"),
    ("A=1\r\n", "A=1\r\n" + NAME + "=" + SET + "\r\n", "A=1\r\n"),
    ("%s=\n", "%s={new}\n", "%s=\n"),
    ('%s=""\n', '%s="{new}"\n', '%s=""\n'),
    ("%s=''", "%s='{new}'", "%s=''"),
    ("%s=--v=2\n", "%s=--v=2 {new}\n", "%s=--v=2\n"),
    ("%s=--v=2  \n# end\n", "%s=--v=2 {new}  \n# end\n", "%s=--v=2  \n# end\n"),
    ('%s="--v=2"\n', '%s="--v=2 {new}"\n', '%s="--v=2"\n'),
    ("%s='--v=2 \"--a b\"'\n", "%s='--v=2 \"--a b\" {new}'\n", "%s='--v=2 \"--a b\"'\n"),
    ("%s={old}\n", "%s={new}\n", "%s=\n"),
    ("%s={old} --v=2\n", "%s={new} --v=2\n", "%s=--v=2\n"),
    ("%s=--v=2 {old} --a\n", "%s=--v=2 {new} --a\n", "%s=--v=2 --a\n"),
    ("%s=--v=2 {old}\r\nB=1\r\n", "%s=--v=2 {new}\r\nB=1\r\n", "%s=--v=2\r\nB=1\r\n"),
    ('%s="{old} {old} --v=2 {old}"\n', '%s="--v=2 {new}"\n', '%s="--v=2"\n'),
    ('%s="--v=2 --non_masquerade_cidr 10.0.0.0/8 --a"\n', '%s="--v=2 {new} --a"\n', '%s="--v=2 --a"\n'),
    ("%s=--v=2 '{old}' --a\n", "%s=--v=2 {new} --a\n", "%s=--v=2 --a\n"),
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


def _filled(text: t.Optional[str]) -> t.Optional[str]:
    return None if text is None else text.replace("%s", NAME).replace("{old}", OLD).replace("{new}", SET)


@pytest.mark.parametrize("before, with_flag, without", EDITS)
def test_one_argument_changes_and_no_other_byte(
    before: t.Optional[str], with_flag: t.Optional[str], without: t.Optional[str]
) -> None:
    before, with_flag, without = map(_filled, (before, with_flag, without))
    assert editor.with_value(before, NEVER) == with_flag
    assert editor.with_value(before, None) == without
    assert editor.with_value(with_flag, NEVER) == with_flag
    assert editor.with_value(without, None) == without


@pytest.mark.parametrize(
    "text, message",
    [
        ("%s='--v=2", "unterminated quote"),
        ("%s=--v=2 '{old}\n", "ends inside a quoted argument"),
        ("%s=--non-masquerade-cidr\n", "has no value"),
        ('%s="--non-masq""uerade-cidr=1.0.0.0/8"\n', "several quoted parts"),
        ("%s=--v=2 -- x\n", "cannot be changed without changing other arguments"),
    ],
)
def test_what_cannot_be_changed_with_certainty_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        editor.with_value(_filled(text), NEVER)


def test_a_quote_must_not_come_first_where_it_would_mean_something_else() -> None:
    """At the start of a value a quote belongs to the file; behind an argument it belongs to the next argument."""
    with pytest.raises(ConfigError, match="cannot be changed without changing other arguments"):
        editor.with_value("%s=%s '--c d'\n" % (NAME, OLD), None)


def test_parts_glued_together_are_another_flag() -> None:
    text = '%s="--non-masquerade-cidr" 1.0.0.0/8\n' % NAME
    assert editor.with_value(text, None) == text


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
        words = editor.words(text)
    except ConfigError:
        # A quoted value across lines becomes another one in a CRLF file; refusing it changes nothing.
        return
    mine = find_flag(words)
    gone = {i for copy in mine for i in range(copy.first, copy.last + 1)}
    others = [word for i, word in enumerate(words) if i not in gone]
    for wanted in (NEVER, None):
        after = editor.with_value(text, wanted)
        assert after is not None
        now = editor.words(after)
        found = find_flag(now)
        assert [copy.value for copy in found] == ([] if wanted is None else [wanted])
        assert [word for i, word in enumerate(now) if i not in {copy.first for copy in found}] == others
        assert editor.with_value(after, wanted) == after
        assert {k: v for k, v in values(after).items() if k != NAME} == {
            k: v for k, v in values(text).items() if k != NAME
        }
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
        for one in (editor, LinesEditor(FILE)):
            for wanted in (NEVER, None):
                try:
                    after = one.with_value(whole, wanted)
                except ConfigError:
                    continue
                assert after is not None
                assert [copy.value for copy in find_flag(one.words(after))] == ([] if wanted is None else [wanted])
                assert one.with_value(after, wanted) == after


MICROK8S = (
    "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n"
    "--cert-dir=${SNAP_DATA}/certs\n"
    "# --non-masquerade-cidr=1.0.0.0/8\n"
    "--network-plugin=kubenet\n"
    "--non-masquerade-cidr=10.152.183.0/24\n"
    '--eviction-hard="memory.available<100Mi"\n'
)


def test_a_line_per_argument() -> None:
    lines = LinesEditor("/args/kubelet")
    old = "--non-masquerade-cidr=10.152.183.0/24\n"
    assert lines.with_value(MICROK8S, NEVER) == MICROK8S.replace(old, SET + "\n")
    without = MICROK8S.replace(old, "")
    assert lines.with_value(MICROK8S, None) == without
    assert lines.with_value(without, NEVER) == without + SET + "\n"
    assert lines.with_value(without.rstrip("\n"), NEVER) == without + SET + "\n"
    assert lines.with_value(MICROK8S + old, None) == without
    assert lines.with_value("--a\r\n--non-masquerade-cidr 1.0.0.0/8\r\n", NEVER) == "--a\r\n" + SET + "\r\n"
    assert lines.with_value(None, None) is None
    assert lines.with_value(None, NEVER) == SET + "\n"
    with pytest.raises(ConfigError, match="line 1: --non-masquerade-cidr shares its line"):
        lines.with_value("--v=2 " + OLD + "\n", None)


def test_the_drop_in_for_k3s_is_ours_as_a_whole() -> None:
    dropin = DropInEditor("/etc/rancher/k3s/config.yaml.d/90-ip-masq.yaml")
    text = dropin.with_value(None, NEVER)
    assert text is not None
    assert 'kubelet-arg+:\n  - "non-masquerade-cidr=0.0.0.0/0"\n' in text
    assert dropin.words(text) == [SET]
    assert dropin.with_value(text, NEVER) == text
    assert dropin.with_value(text, None) is None
