# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON with the position of every value, to change one of them and leave all other characters as they are.

Strict, as Go's encoding/json is: no comments, no trailing commas. Keys that are there twice are refused, because
programs differ in which of them they take.
"""

from __future__ import annotations

import json
import re
import typing as t

from ..module_utils._errors import ConfigError
from ..module_utils._policy.values import show

#: Deeper than any configuration; Go stops at 10,000.
DEPTH_LIMIT = 100

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LITERAL = re.compile(r"true|false|null")
_BOM = "\ufeff"


class Node(t.NamedTuple):
    """One value of a document.

    The characters of it are ``text[start:end]``. ``kind`` is object, array, string, number, or true, false, null.
    """

    kind: str
    start: int
    end: int
    #: The way to it from the top, such as ``plugins[0].Value``; empty for the document.
    path: str
    #: Of a string, its text; of a number, how it is written.
    value: str = ""
    #: Of an object, by key.
    members: t.Mapping[str, Node] = {}
    #: Of an array.
    items: t.Sequence[Node] = ()

    def find(self, name: str) -> t.Optional[Node]:
        """Find the member of that name in any case, as Go's encoding/json looks for it.

        :raises ConfigError: two members differ in case alone.
        """
        found = [key for key in self.members if key.lower() == name.lower()]
        if len(found) > 1:
            raise ConfigError("%s: keys %s differ in case alone: keep one" % (self.path or "top", " and ".join(found)))
        return self.members[found[0]] if found else None

    def walk(self) -> t.Iterator[Node]:
        """Return this value and all inside of it."""
        yield self
        for inner in (*self.members.values(), *self.items):
            yield from inner.walk()


def scan(text: str) -> Node:
    """Read a document. A byte order mark at its beginning is skipped.

    :raises ConfigError: it is not JSON, or a key is there twice.
    """
    scanner = _Scanner(text)
    start = scanner.space(len(_BOM) if text.startswith(_BOM) else 0)
    top = scanner.read(start, "", 0)
    if scanner.space(top.end) != len(text):
        scanner.refuse(scanner.space(top.end), "nothing more")
    return top


class _Scanner:
    """Reads values at positions of one text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def space(self, at: int) -> int:
        """Return the position behind white space."""
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def refuse(self, at: int, expected: str) -> t.NoReturn:
        """Refuse the document.

        :raises ConfigError: with the line and what is there.
        """
        line = self._text.count("\n", 0, at) + 1
        rest = self._text[at : at + 20]
        if rest.startswith(("//", "/*")):
            raise ConfigError("line %d has a comment, which JSON does not have: remove it" % line)
        found = show(rest.split("\n")[0]) if rest else "the end of the file"
        raise ConfigError("line %d is not JSON: expected %s, found %s" % (line, expected, found))

    def read(self, at: int, path: str, depth: int) -> Node:
        """Read the value that begins there."""
        if depth > DEPTH_LIMIT:
            raise ConfigError("%s...: more than %d values inside one another" % (path[:40], DEPTH_LIMIT))
        first = self._text[at : at + 1]
        if first == "{":
            return self._object(at, path, depth)
        if first == "[":
            return self._array(at, path, depth)
        if first == '"':
            value, end = self._string(at)
            return Node("string", at, end, path, value=value)
        number = _NUMBER.match(self._text, at)
        if number:
            return Node("number", at, number.end(), path, value=number.group())
        literal = _LITERAL.match(self._text, at)
        if not literal:
            self.refuse(at, "a value")
        return Node(literal.group(), at, literal.end(), path)

    def _string(self, at: int) -> t.Tuple[str, int]:
        if self._text[at : at + 1] != '"':
            self.refuse(at, "a key in quotes")
        try:
            # No type stub knows it.
            return t.cast(t.Tuple[str, int], json.decoder.scanstring(self._text, at + 1, True))  # type: ignore[attr-defined]
        except ValueError:
            self.refuse(at, "text in quotes")

    def _object(self, start: int, path: str, depth: int) -> Node:
        members: t.Dict[str, Node] = {}
        at = self.space(start + 1)
        while self._text[at : at + 1] != "}":
            if members:
                at = self._comma(at, "}")
            key, at = self._string(at)
            inside = "%s.%s" % (path, key) if path else key
            if key in members:
                raise ConfigError("%s is there twice: keep one" % inside)
            at = self.space(at)
            if self._text[at : at + 1] != ":":
                self.refuse(at, "a colon")
            members[key] = self.read(self.space(at + 1), inside, depth + 1)
            at = self.space(members[key].end)
        return Node("object", start, at + 1, path, members=members)

    def _array(self, start: int, path: str, depth: int) -> Node:
        items: t.List[Node] = []
        at = self.space(start + 1)
        while self._text[at : at + 1] != "]":
            if items:
                at = self._comma(at, "]")
            items.append(self.read(at, "%s[%d]" % (path, len(items)), depth + 1))
            at = self.space(items[-1].end)
        return Node("array", start, at + 1, path, items=items)

    def _comma(self, at: int, closing: str) -> int:
        """Return the position of what follows a comma."""
        if self._text[at : at + 1] != ",":
            self.refuse(at, "a comma or %s" % closing)
        return self.space(at + 1)


def comma(text: str) -> str:
    """Return what separates two values on one line, in the style of a document."""
    return ", " if '": ' in text else ","


def insert(text: str, container: Node, values: t.Sequence[str]) -> str:
    """Append to an array or an object, in the style of what is there.

    :param values: JSON text of elements, or of members with their keys.
    """
    inner = list(container.items) or list(container.members.values())
    if not inner:
        at = container.start + 1
        return text[:at] + comma(text).join(values) + text[at:]
    at = inner[-1].end
    separator = _separator(text, container, inner)
    return text[:at] + "".join(separator + value for value in values) + text[at:]


def _separator(text: str, container: Node, inner: t.Sequence[Node]) -> str:
    """Return what is between two elements: a comma and white space."""
    if len(inner) > 1:
        between = re.match(r"[ \t\r\n]*,[ \t\r\n]*", text[inner[-2].end : inner[-1].end])
        if between:
            return between.group()
    before_first = _SPACE.match(text, container.start + 1)
    space = before_first.group() if before_first else ""
    if "\n" in space:
        return "," + space
    return comma(text)


def remove(text: str, array: Node, unwanted: t.Collection[int]) -> str:
    """Remove elements of an array, each with one comma and the white space at it.

    :param unwanted: positions in it.
    """
    items = array.items
    if not unwanted:
        return text
    if len(unwanted) == len(items):
        # What was there before the first was added, or nothing.
        inside = items[0].start == array.start + 1
        start, end = (items[0].start, items[-1].end) if inside else (array.start + 1, array.end - 1)
        return text[:start] + text[end:]
    first_kept = min(set(range(len(items))) - set(unwanted))
    cuts = [(items[i].start, items[i + 1].start) for i in unwanted if i < first_kept]
    cuts += [(items[i - 1].end, items[i].end) for i in unwanted if i > first_kept]
    for start, end in sorted(cuts, reverse=True):
        text = text[:start] + text[end:]
    return text
