# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON of which one array or object changes, while all other characters stay as they are."""

from __future__ import annotations

import json
import re
import typing as t

from ..module_utils._errors import ConfigError
from ..module_utils._policy.config_file import parse_json

_BOM = "\ufeff"
_START = re.compile(_BOM + r"?[ \t\r\n]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")

#: The keys and positions that lead from the top of a document to a value.
Way = t.Tuple[t.Union[str, int], ...]


class Node(t.NamedTuple):
    """One value of a document."""

    way: Way
    value: t.Any

    @property
    def path(self) -> str:
        """The way for people, such as ``plugins[0].Value``; ``top`` for the document."""
        steps = ("[%d]" % step if isinstance(step, int) else "." + step for step in self.way)
        return "".join(steps)[1:] or "top"

    @property
    def inside(self) -> t.List[Node]:
        """What is in an array or an object."""
        pairs: t.Iterable[t.Tuple[t.Union[str, int], t.Any]] = ()
        if isinstance(self.value, dict):
            pairs = self.value.items()
        elif isinstance(self.value, list):
            pairs = enumerate(self.value)
        return [Node((*self.way, step), value) for step, value in pairs]

    def find(self, name: str) -> t.Optional[Node]:
        """Find the member of that name in any case, as Go's encoding/json looks for it; None if there is none.

        :raises ConfigError: two members differ in case alone.
        """
        found = [member for member in self.inside if str(member.way[-1]).lower() == name.lower()]
        if len(found) > 1:
            keys = " and ".join(str(member.way[-1]) for member in found)
            raise ConfigError("%s: keys %s differ in case alone: keep one" % (self.path, keys))
        return found[0] if found else None

    def word(self, name: str) -> str:
        """Return the text of a member in lower case; empty if there is none."""
        found = self.find(name)
        return str(found.value).lower() if found else ""

    def walk(self) -> t.Iterator[Node]:
        """Return this value and all inside of it."""
        left = [self]
        while left:
            node = left.pop(0)
            yield node
            left += node.inside


def read(text: str) -> Node:
    """Read a document. A byte order mark at its beginning is skipped.

    :raises ConfigError: it is not JSON, or a key is there twice.
    """
    return Node((), parse_json(text[1:] if text.startswith(_BOM) else text))


class _Place(t.NamedTuple):
    """Where an element or a member with its key is, and where its value begins."""

    step: t.Union[str, int]
    start: int
    value: int
    end: int


def _places(text: str, start: int) -> t.List[_Place]:
    """Return what is in the array or object of a valid document that begins there."""
    places: t.List[_Place] = []
    decode = json.JSONDecoder().raw_decode
    at = _behind(_SPACE, text, start + 1)
    while text[at] not in "]}":
        step: t.Union[str, int] = len(places)
        value = at
        if text[start] == "{":
            step, end = decode(text, at)
            value = _behind(_COLON, text, end)
        _decoded, end = decode(text, value)
        places.append(_Place(step, at, value, end))
        at = _behind(_COMMA, text, end)
    return places


def _behind(pattern: t.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _start(text: str, way: Way) -> int:
    """Return where a value begins."""
    at = _behind(_START, text, 0)
    for step in way:
        at = next(place.value for place in _places(text, at) if place.step == step)
    return at


def comma(text: str) -> str:
    """Return what separates two values on one line, in the style of a document."""
    return ", " if '": ' in text else ","


def insert(text: str, way: Way, values: t.Sequence[str]) -> str:
    """Append to an array or an object, in the style of what is there.

    :param values: JSON text of elements, or of members with their keys.
    """
    start = _start(text, way)
    places = _places(text, start)
    if not places:
        return text[: start + 1] + comma(text).join(values) + text[start + 1 :]
    space = text[start + 1 : places[0].start]
    separator = "," + space if "\n" in space else comma(text)
    if len(places) > 1:
        separator = text[places[-2].end : places[-1].start]
    at = places[-1].end
    return text[:at] + "".join(separator + value for value in values) + text[at:]


def remove(text: str, way: Way, unwanted: t.Collection[int]) -> str:
    """Remove elements of an array, each with one comma and the white space at it.

    :param unwanted: positions in it.
    """
    start = _start(text, way)
    places = _places(text, start)
    if unwanted and len(unwanted) == len(places):
        # What was there before the first was added, or nothing.
        inside = places[0].start == start + 1
        behind = places[-1].end if inside else text.index("]", places[-1].end)
        return text[: start + 1] + text[behind:]
    first_kept = min(set(range(len(places))) - set(unwanted), default=0)
    cuts = [(places[i].start, places[i + 1].start) for i in unwanted if i < first_kept]
    cuts += [(places[i - 1].end, places[i].end) for i in unwanted if i > first_kept]
    for begin, end in sorted(cuts, reverse=True):
        text = text[:begin] + text[end:]
    return text
