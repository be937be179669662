# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environment files, read as systemd reads them, and the flag set or removed in one of their variables.

A changed text is a proposal until it has been read again: it is refused unless the flag alone differs.
"""

from __future__ import annotations

import re
import typing as t

from .._errors import ConfigError
from .arguments import ARGUMENT, FLAG, NEVER, take_out

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

#: A comment, an assignment, or a line that means nothing (systemd.exec(5), EnvironmentFile=). A quote counts only where
#: a value starts or after a closed one; a backslash at the end of a line of a value continues it.
_ITEM = re.compile(
    r"""[ \t\r\n]*(?:
        (?P<unclear>[#;][^\n\r]*\\\n[ \t]*[^#;\s])
        |[#;][^\n\r]*
        |(?P<name>[^\n\r][^=\n\r]*)=(?P<value>
            (?P<quoted>(?:[ \t]*(?:'[^']*'|"(?:\\.|[^"\\])*"))*)[ \t]*
            (?P<bare>(?![ \t'"])(?:\\(?:.|\Z)|[^\n\r\\])+?(?=[ \t]*(?:[\n\r]|\Z)))?
        )[ \t]*(?P<open>['"])?
        |[^\n\r]+)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
#: Inside double quotes a backslash stands for itself before most characters.
_ESCAPED = re.compile(r'\\(?:(["\\`$])|\n)')

#: An argument with its quotes: both kinds group, and a backslash keeps the character after it, also inside of them
#: (systemd.service(5), "Command lines").
_WORD = re.compile(r"""(?:\\.|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^ \t\n\r'"\\])+""", re.DOTALL)
_PART = re.compile(r"""\\(.)|'((?:\\.|[^'\\])*)'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)

#: The flag, any number of times in a row, and the blanks around.
_RUN = re.compile(r"([ \t]*)(?:--non[-_]masquerade[-_]cidr(?:=|(?:[ \t]|\\\n)+)[^ \t\n\r'\"\\]*([ \t]*))+")


#: The values of the flag in one variable, its other arguments, and the other assignments.
_Meaning = t.Tuple[t.List[str], t.List[str], t.List[t.Tuple[str, str]]]


class Assignment(t.NamedTuple):
    """One ``NAME=value``: the value as a program gets it, and where in the text it is written."""

    name: str
    value: str
    start: int
    end: int


def parse(text: str, path: str) -> t.List[Assignment]:
    """Read an environment file. Assignments to what cannot be a variable are passed over, as systemd does.

    :param path: the file, for messages.
    :raises ConfigError: a quote that does not close (systemd takes the rest of the file for the value), or a comment
        that ends in a backslash before a line with an assignment (systemd before 254 takes that line for comment, later
        ones do not).
    """
    found = []
    for item in _ITEM.finditer(text):
        if item["unclear"] or item["open"]:
            problem = "unterminated quote" if item["open"] else "comment that ends in a backslash"
            line = text.count("\n", 0, item.end("open" if item["open"] else "unclear")) + 1
            raise ConfigError("%s, line %d: %s; file unchanged; fix it" % (path, line, problem))
        name = (item["name"] or "").rstrip()
        if _VARIABLE.match(name):
            value = "".join(single + _ESCAPED.sub(r"\1", double) for single, double in _QUOTED.findall(item["quoted"]))
            value += re.sub(r"\\(?:([^\n\r])|[\n\r]?)", r"\1", item["bare"] or "")
            found.append(Assignment(name, value, *item.span("value")))
    return found


def split_words(value: str, where: str) -> t.List[str]:
    """Split a value into arguments as systemd does with ``$NAME`` in ExecStart=.

    :param where: what the text is, for the message.
    :raises ConfigError: quotes that do not close, or a backslash at the end.
    """
    if _WORD.sub("", value).strip(" \t\n\r"):
        said = (
            "%s: ambiguous quoting: the value ends inside a quoted argument or an escape; nothing was changed; fix it"
        )
        raise ConfigError(said % where)
    return [_PART.sub(_unquoted, word) for word in _WORD.findall(value)]


def _unquoted(part: t.Match[str]) -> str:
    return part[1] or re.sub(r"\\(.)", r"\1", part[2] or part[3] or "", flags=re.DOTALL)


def with_flag(text: str, path: str, variable: str, present: bool) -> str:
    """Return the text with the flag in a variable, once and with the value ``NEVER``, or without the flag.

    Everything else stays as it is, byte for byte.

    :raises ConfigError: the file cannot be understood, or not be changed, with certainty.
    """
    mine, (values, words, others) = _meaning(text, path, variable)
    if mine is None:
        proposals = [text + ("\n" if text and not text.endswith("\n") else "") + "%s=%s\n" % (variable, ARGUMENT)]
    else:
        value = text[mine.start : mine.end].rstrip(" \t")
        added = (" " if words else "") + ARGUMENT
        # Before a quote that closes the value, or behind all of it.
        changed = [_replaced(value, present)] if values else [value[:-1] + added + value[-1:], value + added]
        proposals = [text[: mine.start] + one + text[mine.start + len(value) :] for one in changed]
    for proposal in [text, *proposals]:
        if _meaning(proposal, path, variable)[1] == ([NEVER] if present else [], words, others):
            return proposal
    raise ConfigError(
        "%s, %s: --%s cannot be changed without changing other arguments; file unchanged; edit it by hand"
        % (path, variable, FLAG)
    )


def _meaning(text: str, path: str, variable: str) -> t.Tuple[t.Optional[Assignment], _Meaning]:
    found = parse(text, path)
    # systemd: the last assignment to a name holds.
    mine = next((one for one in reversed(found) if one.name == variable), None)
    where = "%s, %s" % (path, variable)
    values, words = take_out(split_words(mine.value, where) if mine else [], where=where)
    return mine, (values, words, [one[:2] for one in found if one is not mine])


def _replaced(value: str, present: bool) -> str:
    """Take every copy of the flag out, and a blank that is left over. The last copy counts, and its place is kept."""
    new = ARGUMENT if present else ""
    for run in reversed(list(_RUN.finditer(value))):
        kept = run[1] + new + run[2] if new else run[1] and run[2]
        value = value[: run.start()] + kept + value[run.end() :]
        new = ""
    return value
