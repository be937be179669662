# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A value of a unit or environment file, split into arguments that know where in the text they stand."""

from __future__ import annotations

import typing as t

from .._errors import ConfigError

WHITESPACE = " \t\n\r"
NEWLINE = "\n\r"


class Char(t.NamedTuple):
    """One character of a value: what it is, where in the text it was written, and in which quoted stretch."""

    char: str
    start: int
    end: int
    stretch: int


class Word(t.NamedTuple):
    """One argument, and its characters with the quotes around them."""

    text: str
    chars: t.Tuple[Char, ...]
    #: blanks between the word before and this one
    gap: t.Tuple[Char, ...]

    @property
    def start(self) -> int:
        """Where in the text the argument begins."""
        return self.chars[0].start

    @property
    def end(self) -> int:
        """Where in the text the argument ends."""
        return self.chars[-1].end

    @property
    def whole(self) -> bool:
        """Whether the argument is written in one piece: not across quotes that belong to the file's own syntax."""
        return all(char.stretch == self.chars[0].stretch for char in self.chars)


def chars_of(text: str, start: int = 0) -> t.Tuple[Char, ...]:
    """Return text that has no syntax of its own, as characters."""
    return tuple(Char(char, start + i, start + i + 1, 0) for i, char in enumerate(text))


def split_words(chars: t.Sequence[Char], where: str) -> t.List[Word]:
    """Split a value into arguments as systemd does with ``$NAME`` in ExecStart=.

    Blanks separate, both kinds of quotes group, and a backslash keeps the character after it, also inside quotes
    (systemd.service(5), "Command lines"; systemd.syntax(7), "Quoting").

    :param where: what the text is, for the message.
    :raises ConfigError: quotes that do not close, or a backslash at the end.
    """
    words: t.List[Word] = []
    gap: t.List[Char] = []
    taken: t.List[Char] = []
    text: t.List[str] = []
    quote = ""
    escaped = False
    for char in chars:
        if escaped:
            escaped = False
            text.append(char.char)
        elif char.char == "\\":
            escaped = True
        elif quote:
            if char.char == quote:
                quote = ""
            else:
                text.append(char.char)
        elif char.char in ("'", '"'):
            quote = char.char
        elif char.char in WHITESPACE:
            if taken:
                words.append(Word("".join(text), tuple(taken), tuple(gap)))
                taken, text, gap = [], [], []
            gap.append(char)
            continue
        else:
            text.append(char.char)
        taken.append(char)
    if quote or escaped:
        raise ConfigError(
            "%s: ambiguous quoting: the value ends inside %s; nothing was changed; fix the quoting"
            % (where, "a quoted argument" if quote else "an escape (its last character is a backslash)")
        )
    if taken:
        words.append(Word("".join(text), tuple(taken), tuple(gap)))
    return words
