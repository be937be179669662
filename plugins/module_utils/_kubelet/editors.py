# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set or remove the flag in one kind of file, without changing any other byte.

An editor works on text only: it reads the arguments with the place that each has in the text, changes the text at those
places, reads the result again, and refuses a text in which anything but the flag would have changed.
"""

from __future__ import annotations

import typing as t

from .._errors import ConfigError
from .arguments import NEWLINE, Word, chars_of, split_words
from .environment_file import Assignment, parse_environment
from .flags import FLAG, Occurrence, argument, find_flag, search_yaml, without


class Editor(t.Protocol):
    """What every editor can do. A file is its text, or None if there is no file."""

    #: the file
    path: str

    def words(self, text: t.Optional[str]) -> t.List[str]:
        """Return the arguments that the file gives to the kubelet.

        :raises ConfigError: the file cannot be understood with certainty.
        """

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        """Return the file with the flag once, with this value; with None, the file without the flag.

        Everything else stays as it is, byte for byte. None means that the file has no purpose left.

        :raises ConfigError: the file cannot be understood with certainty, or not be changed with certainty.
        """


def _values(occurrences: t.Sequence[Occurrence]) -> t.List[str]:
    return [one.value for one in occurrences]


def _wanted(value: t.Optional[str]) -> t.List[str]:
    return [] if value is None else [value]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _uncertain(where: str) -> ConfigError:
    return ConfigError(
        "%s: --%s cannot be changed without changing other arguments; file unchanged; edit it by hand" % (where, FLAG)
    )


class EnvironmentEditor:
    """A variable in a file that a unit reads with EnvironmentFile=. See ``Editor``."""

    def __init__(self, path: str, variable: str) -> None:
        self.path = path
        self.variable = variable
        self._where = "%s, %s" % (path, variable)

    def words(self, text: t.Optional[str]) -> t.List[str]:
        mine = self._find(text or "")[1]
        return [word.text for word in split_words(mine.chars, self._where)] if mine else []

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        before, mine = self._find(text or "")
        if mine is None:
            return text if value is None else self._appended(text or "", value)
        text = text or ""
        words = split_words(mine.chars, self._where)
        texts = [word.text for word in words]
        found = find_flag(texts, where=self._where)
        if _values(found) == _wanted(value):
            return text
        changes = self._removals(words, found)
        if value is not None and found:
            # The last copy is the one that counts, and its place is kept.
            changes[-1] = (words[found[-1].first].start, words[found[-1].last].end, argument(value))
        elif value is not None and words:
            changes.append((words[-1].end, words[-1].end, " " + argument(value)))
        elif value is not None:
            changes.append((mine.inside, mine.inside, argument(value)))
        after = text
        for start, end, new in reversed(changes):
            after = after[:start] + new + after[end:]
        others = [(one.name, one.value) for one in before if one is not mine]
        self._check(others, without(texts, found), after, value)
        return after

    def _find(self, text: str) -> t.Tuple[t.List[Assignment], t.Optional[Assignment]]:
        found = parse_environment(text, self.path)
        # systemd: the last assignment to a name holds.
        return found, next((one for one in reversed(found) if one.name == self.variable), None)

    def _removals(self, words: t.Sequence[Word], found: t.Sequence[Occurrence]) -> t.List[t.Tuple[int, int, str]]:
        """Take every copy of the flag out: the stretches of text, in order, and what replaces them."""
        changes = []
        end = 0
        for number, one in enumerate(found):
            leads = one.first == sum(before.last - before.first + 1 for before in found[:number])
            start, stop = self._cut(words, one, leads)
            # Two neighbours may both claim the blank between them.
            start, end = max(start, end), stop
            changes.append((start, stop, ""))
        return changes

    def _cut(self, words: t.Sequence[Word], one: Occurrence, leads: bool) -> t.Tuple[int, int]:
        """Return the stretch of text to take out for one flag: its words, and the blanks that would be left over.

        :param leads: whether no word that stays comes before it.
        """
        first, last = words[one.first], words[one.last]
        stretch = first.chars[0].stretch
        if not (first.whole and last.whole and stretch == last.chars[0].stretch):
            raise ConfigError(
                "%s: --%s is written across several quoted parts; file unchanged; remove it by hand"
                % (self._where, FLAG)
            )
        start, end = first.start, last.end
        if not leads:
            for blank in reversed(first.gap):
                if blank.end != start or blank.char not in " \t" or blank.stretch != stretch:
                    break
                start = blank.start
        if start == first.start and one.last + 1 < len(words):
            for blank in words[one.last + 1].gap:
                if blank.start != end or blank.char not in " \t" or blank.stretch != stretch:
                    break
                end = blank.end
        return start, end

    def _appended(self, text: str, value: str) -> str:
        newline = _newline(text)
        separator = "" if not text or text.endswith(("\n", "\r")) else newline
        after = "%s%s%s=%s%s" % (text, separator, self.variable, argument(value), newline)
        self._check([(one.name, one.value) for one in parse_environment(text, self.path)], [], after, value)
        return after

    def _check(
        self,
        others: t.Sequence[t.Tuple[str, str]],
        words: t.Sequence[str],
        after: str,
        value: t.Optional[str],
    ) -> None:
        """Refuse a text that means anything but the wanted change.

        :param others: names and values of the assignments that must stay.
        :param words: the arguments that must stay.
        """
        assignments, changed = self._find(after)
        now = [word.text for word in split_words(changed.chars, self._where)] if changed else []
        found = find_flag(now, where=self._where)
        if (
            without(now, found) != list(words)
            or _values(found) != _wanted(value)
            or [(one.name, one.value) for one in assignments if one is not changed] != list(others)
        ):
            raise _uncertain(self._where)


class LinesEditor:
    """A file with one argument per line, as MicroK8s keeps them. See ``Editor``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def words(self, text: t.Optional[str]) -> t.List[str]:
        return [word for _line, words in self._lines(text or "") for word in words]

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        if text is None and value is None:
            return None
        lines = self._lines(text or "")
        with_flag = self._with_flag(lines)
        if [found for _position, found in with_flag] == _wanted(value):
            return text
        kept = [line for line, _words in lines]
        for position, _found in reversed(with_flag):
            if value is not None and position == with_flag[-1][0]:
                ending = kept[position][len(kept[position].rstrip(NEWLINE)) :]
                kept[position] = argument(value) + ending
            else:
                del kept[position]
        if value is not None and not with_flag:
            newline = _newline(text or "")
            if kept and not kept[-1].endswith(("\n", "\r")):
                kept[-1] += newline
            kept.append(argument(value) + newline)
        after = "".join(kept)
        if _values(find_flag(self.words(after), where=self.path)) != _wanted(value):
            raise _uncertain(self.path)
        return after

    def _lines(self, text: str) -> t.List[t.Tuple[str, t.List[str]]]:
        """Return each line and its arguments."""
        found = []
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            words: t.List[str] = []
            if not line.lstrip().startswith("#"):
                where = "%s, line %d" % (self.path, number)
                words = [word.text for word in split_words(chars_of(line.rstrip(NEWLINE)), where)]
            found.append((line, words))
        return found

    def _with_flag(self, lines: t.Sequence[t.Tuple[str, t.Sequence[str]]]) -> t.List[t.Tuple[int, str]]:
        """Return the lines that set the flag, counted from 0, and its value there."""
        with_flag = []
        for position, (_line, words) in enumerate(lines):
            where = "%s, line %d" % (self.path, position + 1)
            found = find_flag(words, where=where)
            if found and (len(found) > 1 or without(words, found)):
                raise ConfigError(
                    "%s: --%s shares its line with other arguments; file unchanged; put it on a line of its own"
                    % (where, FLAG)
                )
            if found:
                with_flag.append((position, found[0].value))
        return with_flag


class DropInEditor:
    """A drop-in of our own for k3s and RKE2: the whole file is ours, and is there only while it sets the flag.

    See ``Editor``.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def words(self, text: t.Optional[str]) -> t.List[str]:
        return search_yaml(text or "")

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        if value is None:
            return None
        return (
            "# Written by the Ansible module kubenode.ip_masq.kubelet_masquerade, which also removes it.\n"
            'kubelet-arg+:\n  - "%s=%s"\n' % (FLAG, value)
        )
