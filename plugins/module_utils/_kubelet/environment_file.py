# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environment files as systemd reads them (systemd.exec(5), EnvironmentFile=), which is not as a shell does."""

from __future__ import annotations

import re
import typing as t

from .._errors import ConfigError
from .arguments import NEWLINE, WHITESPACE, Char

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

#: What a backslash escapes inside double quotes; before any other character it stands for itself.
_ESCAPABLE = '"\\`$'


class Assignment(t.NamedTuple):
    """One ``NAME=value`` of an environment file. ``inside`` is where a value may be put if there is none yet."""

    name: str
    chars: t.Tuple[Char, ...]
    inside: int

    @property
    def value(self) -> str:
        """The value as systemd hands it to the program."""
        return "".join(char.char for char in self.chars)


def is_variable_name(name: str) -> bool:
    """Return whether systemd takes this for the name of a variable."""
    return _NAME.match(name) is not None


def parse_environment(text: str, where: str) -> t.List[Assignment]:
    """Read an environment file.

    No variables are expanded, ``export`` is not known, a quote counts only at the start of a value or after a closed
    one, a value in quotes may span lines, and a backslash at the end of a line continues it. Assignments to names that
    cannot be variables are passed over, as systemd does.

    :param where: the file, for messages.
    :raises ConfigError: a quote that does not close (systemd takes the rest of the file for the value), or a comment
        that ends in a backslash before a line with an assignment (systemd before 254 takes that line for comment, later
        ones do not).
    """
    after_comments = _Reader(text, where, comments_continue=False).read()
    if _Reader(text, where, comments_continue=True).read() != after_comments:
        raise ConfigError(
            "%s: a comment ends in a backslash, and releases of systemd differ in whether the next line counts; file "
            "unchanged; remove the backslash" % where
        )
    return after_comments


class _Reader:
    """The states and their order are those of systemd's reader, one character at a time: a method for each state."""

    def __init__(self, text: str, where: str, comments_continue: bool) -> None:
        self._text = text
        self._where = where
        self._comments_continue = comments_continue
        self._found: t.List[Assignment] = []
        self._state: t.Callable[[int, str], None] = self._before_name
        self._name = ""
        self._chars: t.List[Char] = []
        #: see ``Assignment``
        self._inside = 0
        #: number of the quoted or bare stretch of the value, and where its last escape began
        self._stretch = self._opened = 0
        #: how many characters of the value come before the blanks at its end; None while there are none
        self._blanks_from: t.Optional[int] = None

    def read(self) -> t.List[Assignment]:
        """Return all assignments, in order.

        :raises ConfigError: the text ends inside quotes.
        """
        for at, char in enumerate(self._text):
            self._state(at, char)
        if self._state in (self._single, self._double, self._double_escape):
            line = self._text.count("\n", 0, self._inside) + 1
            raise ConfigError(
                "%s, line %d: unterminated quote in the value of %s; file unchanged; close the quote"
                % (self._where, line, self._name.strip())
            )
        if self._state in (self._before_value, self._value, self._escape):
            self._finish()
        return self._found

    def _finish(self) -> None:
        name = self._name.rstrip(WHITESPACE)
        if is_variable_name(name):
            self._found.append(Assignment(name, tuple(self._chars[: self._blanks_from]), self._inside))
        self._state, self._blanks_from = self._before_name, None

    def _take(self, char: str, start: int, end: int) -> None:
        self._chars.append(Char(char, start, end, self._stretch))

    def _before_name(self, _at: int, char: str) -> None:
        if char in "#;":
            self._state = self._comment
        elif char not in WHITESPACE:
            self._state, self._name = self._in_name, char

    def _in_name(self, at: int, char: str) -> None:
        if char in NEWLINE:
            self._state = self._before_name
        elif char == "=":
            self._state, self._chars, self._inside = self._before_value, [], at + 1
        else:
            self._name += char

    def _before_value(self, at: int, char: str) -> None:
        if char in NEWLINE:
            self._finish()
        elif char in "'\"":
            self._state = self._single if char == "'" else self._double
            self._stretch += 1
            self._inside = self._inside if self._chars else at + 1
        elif char == "\\":
            self._state, self._opened = self._escape, at
            self._stretch += 1
        elif char not in WHITESPACE:
            self._state = self._value
            self._stretch += 1
            self._take(char, at, at + 1)

    def _value(self, at: int, char: str) -> None:
        if char in NEWLINE:
            self._finish()
        elif char == "\\":
            self._state, self._opened, self._blanks_from = self._escape, at, None
        else:
            if char not in WHITESPACE:
                self._blanks_from = None
            elif self._blanks_from is None:
                self._blanks_from = len(self._chars)
            self._take(char, at, at + 1)

    def _escape(self, at: int, char: str) -> None:
        self._state = self._value
        if char not in NEWLINE:
            self._take(char, self._opened, at + 1)

    def _single(self, at: int, char: str) -> None:
        if char == "'":
            self._state = self._before_value
        else:
            self._take(char, at, at + 1)

    def _double(self, at: int, char: str) -> None:
        if char == '"':
            self._state = self._before_value
        elif char == "\\":
            self._state, self._opened = self._double_escape, at
        else:
            self._take(char, at, at + 1)

    def _double_escape(self, at: int, char: str) -> None:
        self._state = self._double
        if char in _ESCAPABLE:
            self._take(char, self._opened, at + 1)
        elif char != "\n":
            self._take("\\", self._opened, at)
            self._take(char, at, at + 1)

    def _comment(self, _at: int, char: str) -> None:
        if char == "\\" and self._comments_continue:
            self._state = self._comment_escape
        elif char in NEWLINE:
            self._state = self._before_name

    def _comment_escape(self, _at: int, _char: str) -> None:
        self._state = self._comment
