# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments of a kubelet inside text files: where each word stands, and how to change one without touching the rest.

Every parser here keeps, for each word it reads, the place in the text that it came from. A change is made at those
places only, the result is parsed again, and a text in which anything but the flag would have changed is refused.
"""

from __future__ import annotations

import re
import typing as t

from ..errors import ConfigError

#: The kubelet's flag, without dashes (deprecated in Kubernetes 1.7, removed in 1.24).
FLAG = "non-masquerade-cidr"

#: The value with which kubenet writes no masquerading rule.
NEVER = "0.0.0.0/0"

#: Both values that kubenet reads as "no rule".
NEVER_VALUES = (NEVER, "::/0")

_WHITESPACE = " \t\n\r"
_NEWLINE = "\n\r"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


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


class Copy(t.NamedTuple):
    """One appearance of a flag: the first and the last word it takes, and its value."""

    first: int
    last: int
    value: str


class Assignment(t.NamedTuple):
    """One C(NAME=value) of an environment file. ``inside`` is where a value may be put if there is none yet."""

    name: str
    chars: t.Tuple[Char, ...]
    inside: int

    @property
    def value(self) -> str:
        """The value as systemd hands it to the program."""
        return "".join(char.char for char in self.chars)


def chars_of(text: str, start: int = 0) -> t.Tuple[Char, ...]:
    """Text that has no syntax of its own, as characters."""
    return tuple(Char(char, start + i, start + i + 1, 0) for i, char in enumerate(text))


def split_words(chars: t.Sequence[Char], where: str) -> t.List[Word]:
    """Split a value into arguments as systemd does with C($NAME) in ExecStart=.

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
        elif char.char in _WHITESPACE:
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
            "%s ends inside %s: its arguments cannot be told apart with certainty, so nothing was touched; mend it"
            % (where, "a quoted argument" if quote else "an escape (a backslash is its last character)")
        )
    if taken:
        words.append(Word("".join(text), tuple(taken), tuple(gap)))
    return words


def flag_name(word: str) -> str:
    """The name of the flag that a word sets, in the kubelet's spelling; empty where the word is no flag.

    pflag takes underscores for dashes (k8s.io/component-base, WordSepNormalizeFunc).
    """
    if not word.startswith("--") or word == "--":
        return ""
    return word[2:].partition("=")[0].replace("_", "-")


def find_flag(words: t.Sequence[str], name: str = FLAG, where: str = "the arguments") -> t.List[Copy]:
    """Every appearance of a flag that takes a value, as C(--flag=value) or C(--flag value).

    :raises ConfigError: the flag has no value.
    """
    found: t.List[Copy] = []
    position = 0
    while position < len(words) and words[position] != "--":
        last = position
        if flag_name(words[position]) == name:
            value = words[position].partition("=")[2]
            if "=" not in words[position]:
                last = position + 1
                if last >= len(words) or words[last].startswith("-"):
                    raise ConfigError(
                        "%s: %s has no value, so what it means is uncertain and nothing was touched; remove it by hand"
                        % (where, words[position])
                    )
                value = words[last]
            found.append(Copy(position, last, value))
        position = last + 1
    return found


def last_value(words: t.Sequence[str], name: str) -> t.Optional[str]:
    """The value of a flag that counts; none where it is not given.

    :raises ConfigError: the flag has no value.
    """
    found = find_flag(words, name)
    return found[-1].value if found else None


def parse_environment(text: str, where: str) -> t.List[Assignment]:
    """Read an environment file as systemd reads it (systemd.exec(5), EnvironmentFile=), which is not as a shell does.

    No variables are expanded, C(export) is not known, a quote counts only at the start of a value or after a closed
    one, a value in quotes may span lines, and a backslash at the end of a line continues it. Assignments to names that
    cannot be variables are passed over, as systemd does.

    :param where: the file, for messages.
    :raises ConfigError: a quote that does not close (systemd takes the rest of the file for the value), or a comment
        that ends in a backslash before a line with an assignment (systemd before 254 takes that line for comment, later
        ones do not).
    """
    after_comments = _assignments(text, where, comments_continue=False)
    if _assignments(text, where, comments_continue=True) != after_comments:
        raise ConfigError(
            "%s: a comment ends in a backslash, and releases of systemd differ in whether the line after it counts; "
            "nothing was touched; remove the backslash" % where
        )
    return after_comments


def _assignments(text: str, where: str, comments_continue: bool) -> t.List[Assignment]:
    """The states and their order are those of systemd's reader, one character at a time."""
    found: t.List[Assignment] = []
    state = "before name"
    name = ""
    chars: t.List[Char] = []
    inside = stretch = opened = 0
    blanks_from: t.Optional[int] = None

    def finish() -> None:
        value = chars if blanks_from is None else chars[:blanks_from]
        if _NAME.match(name.rstrip(_WHITESPACE)):
            found.append(Assignment(name.rstrip(_WHITESPACE), tuple(value), inside))

    for at, char in enumerate(text):
        if state == "before name":
            if char in "#;":
                state = "comment"
            elif char not in _WHITESPACE:
                state, name = "name", char
        elif state == "name":
            if char in _NEWLINE:
                state = "before name"
            elif char == "=":
                state, chars, blanks_from, inside = "before value", [], None, at + 1
            else:
                name += char
        elif state == "before value":
            if char in _NEWLINE:
                finish()
                state = "before name"
            elif char in "'\"":
                state, stretch, opened = ("single" if char == "'" else "double"), stretch + 1, at
                inside = inside if chars else at + 1
            elif char == "\\":
                state, stretch, opened = "escape", stretch + 1, at
            elif char not in _WHITESPACE:
                state, stretch = "value", stretch + 1
                chars.append(Char(char, at, at + 1, stretch))
        elif state == "value":
            if char in _NEWLINE:
                finish()
                state, blanks_from = "before name", None
            elif char == "\\":
                state, opened, blanks_from = "escape", at, None
            else:
                if char not in _WHITESPACE:
                    blanks_from = None
                elif blanks_from is None:
                    blanks_from = len(chars)
                chars.append(Char(char, at, at + 1, stretch))
        elif state == "escape":
            state = "value"
            if char not in _NEWLINE:
                chars.append(Char(char, opened, at + 1, stretch))
        elif state == "single":
            if char == "'":
                state = "before value"
            else:
                chars.append(Char(char, at, at + 1, stretch))
        elif state == "double":
            if char == '"':
                state = "before value"
            elif char == "\\":
                state, opened = "double escape", at
            else:
                chars.append(Char(char, at, at + 1, stretch))
        elif state == "double escape":
            state = "double"
            if char in '"\\`$':
                chars.append(Char(char, opened, at + 1, stretch))
            elif char != "\n":
                chars += [Char("\\", opened, at, stretch), Char(char, at, at + 1, stretch)]
        elif state == "comment":
            if char == "\\" and comments_continue:
                state = "comment escape"
            elif char in _NEWLINE:
                state = "before name"
        else:
            state = "comment"
    if state in ("single", "double", "double escape"):
        line = text.count("\n", 0, inside) + 1
        raise ConfigError(
            "%s, line %d: the quote that the value of %s opens is never closed; nothing was touched; close it"
            % (where, line, name.strip())
        )
    if state in ("before value", "value", "escape"):
        finish()
    return found


def _cut(words: t.Sequence[Word], copy: Copy, leads: bool, where: str) -> t.Tuple[int, int]:
    """The stretch of text to take out for one flag: its words, and the blanks that would be left over.

    :param leads: whether no word that stays comes before it.
    """
    first, last = words[copy.first], words[copy.last]
    if not (first.whole and last.whole and first.chars[0].stretch == last.chars[0].stretch):
        raise ConfigError(
            "%s: --%s is written across several quoted parts; nothing was touched; take it out by hand" % (where, FLAG)
        )
    start, end = first.start, last.end
    if not leads:
        for blank in reversed(first.gap):
            if blank.end != start or blank.char not in " \t" or blank.stretch != first.chars[0].stretch:
                break
            start = blank.start
    if start == first.start and copy.last + 1 < len(words):
        for blank in words[copy.last + 1].gap:
            if blank.start != end or blank.char not in " \t" or blank.stretch != first.chars[0].stretch:
                break
            end = blank.end
    return start, end


def _without(words: t.Sequence[str], copies: t.Sequence[Copy]) -> t.List[str]:
    gone = {position for copy in copies for position in range(copy.first, copy.last + 1)}
    return [word for position, word in enumerate(words) if position not in gone]


def _uncertain(where: str) -> ConfigError:
    return ConfigError(
        "%s is written in a way in which --%s cannot be changed without changing more; nothing was touched; change "
        "it by hand" % (where, FLAG)
    )


class Editor:
    """Changes the flag in one kind of file. A file is its text, or none where there is no file."""

    #: the file
    path: str

    def words(self, text: t.Optional[str]) -> t.List[str]:
        """The arguments that the file gives to the kubelet.

        :raises ConfigError: the file cannot be understood with certainty.
        """
        raise NotImplementedError

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        """The file with the flag once, with this value; with none, the file without the flag.

        Everything else stays as it is, byte for byte. None means that the file has no purpose left.

        :raises ConfigError: the file cannot be understood with certainty, or not be changed with certainty.
        """
        raise NotImplementedError


def argument(value: str) -> str:
    """The one word that sets the flag."""
    return "--%s=%s" % (FLAG, value)


class EnvironmentEditor(Editor):
    """A variable in a file that a unit reads with EnvironmentFile=."""

    def __init__(self, path: str, variable: str) -> None:
        self.path = path
        self.variable = variable
        self._where = "%s, %s" % (path, variable)

    def _find(self, text: str) -> t.Tuple[t.List[Assignment], t.Optional[Assignment]]:
        found = parse_environment(text, self.path)
        # systemd: the last assignment to a name holds.
        return found, next((one for one in reversed(found) if one.name == self.variable), None)

    def words(self, text: t.Optional[str]) -> t.List[str]:
        """See :meth:`Editor.words`."""
        mine = self._find(text or "")[1]
        return [word.text for word in split_words(mine.chars, self._where)] if mine else []

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        """See :meth:`Editor.with_value`."""
        before, mine = self._find(text or "")
        if mine is None:
            return text if value is None else self._appended(text or "", value)
        text = text or ""
        words = split_words(mine.chars, self._where)
        copies = find_flag([word.text for word in words], where=self._where)
        if [copy.value for copy in copies] == ([] if value is None else [value]):
            return text
        changes = []
        end = 0
        for number, copy in enumerate(copies):
            leads = copy.first == sum(one.last - one.first + 1 for one in copies[:number])
            start, stop = _cut(words, copy, leads, self._where)
            # Two neighbours may both claim the blank between them.
            start, end = max(start, end), stop
            changes.append((start, stop, ""))
        if value is not None and copies:
            # The last copy is the one that counts, and its place is kept.
            last = words[copies[-1].first], words[copies[-1].last]
            changes[-1] = (last[0].start, last[1].end, argument(value))
        elif value is not None and words:
            changes.append((words[-1].end, words[-1].end, " " + argument(value)))
        elif value is not None:
            changes.append((mine.inside, mine.inside, argument(value)))
        after = text
        for start, end, new in reversed(changes):
            after = after[:start] + new + after[end:]
        self._check(before, mine, copies, [word.text for word in words], after, value)
        return after

    def _appended(self, text: str, value: str) -> str:
        newline = "\r\n" if "\r\n" in text else "\n"
        separator = "" if not text or text.endswith(("\n", "\r")) else newline
        after = "%s%s%s=%s%s" % (text, separator, self.variable, argument(value), newline)
        self._check(parse_environment(text, self.path), None, (), (), after, value)
        return after

    def _check(
        self,
        before: t.Sequence[Assignment],
        mine: t.Optional[Assignment],
        copies: t.Sequence[Copy],
        words: t.Sequence[str],
        after: str,
        value: t.Optional[str],
    ) -> None:
        """Refuse a text that means anything but what was asked for."""
        assignments, changed = self._find(after)
        now = [word.text for word in split_words(changed.chars, self._where)] if changed else []
        found = find_flag(now, where=self._where)
        expected = _without(words, copies)
        same = [(one.name, one.value) for one in before if one is not mine]
        if (
            _without(now, found) != expected
            or [copy.value for copy in found] != ([] if value is None else [value])
            or [(one.name, one.value) for one in assignments if one is not changed] != same
        ):
            raise _uncertain(self._where)


class LinesEditor(Editor):
    """A file with one argument per line, as MicroK8s keeps them."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _lines(self, text: str) -> t.List[t.Tuple[str, t.List[str]]]:
        found = []
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            words: t.List[str] = []
            if not line.lstrip().startswith("#"):
                where = "%s, line %d" % (self.path, number)
                words = [word.text for word in split_words(chars_of(line.rstrip(_NEWLINE)), where)]
            found.append((line, words))
        return found

    def words(self, text: t.Optional[str]) -> t.List[str]:
        """See :meth:`Editor.words`."""
        return [word for _line, words in self._lines(text or "") for word in words]

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        """See :meth:`Editor.with_value`."""
        if text is None and value is None:
            return None
        lines = self._lines(text or "")
        with_flag = []
        for position, (_line, words) in enumerate(lines):
            copies = find_flag(words, where="%s, line %d" % (self.path, position + 1))
            if copies and (len(copies) > 1 or _without(words, copies)):
                raise ConfigError(
                    "%s, line %d: --%s shares its line with other arguments; nothing was touched; give it its own line"
                    % (self.path, position + 1, FLAG)
                )
            if copies:
                with_flag.append((position, copies[0].value))
        if [found for _position, found in with_flag] == ([] if value is None else [value]):
            return text
        newline = "\r\n" if "\r\n" in (text or "") else "\n"
        kept = [line for line, _words in lines]
        for position, _found in reversed(with_flag):
            if value is not None and position == with_flag[-1][0]:
                ending = kept[position][len(kept[position].rstrip(_NEWLINE)) :]
                kept[position] = argument(value) + ending
            else:
                del kept[position]
        if value is not None and not with_flag:
            if kept and not kept[-1].endswith(("\n", "\r")):
                kept[-1] += newline
            kept.append(argument(value) + newline)
        after = "".join(kept)
        if [copy.value for copy in find_flag(self.words(after), where=self.path)] != ([] if value is None else [value]):
            raise _uncertain(self.path)
        return after


class OwnYamlEditor(Editor):
    """A drop-in of our own for k3s and RKE2: the whole file is ours, and is there only while it sets the flag."""

    def __init__(self, path: str) -> None:
        self.path = path

    def words(self, text: t.Optional[str]) -> t.List[str]:
        """See :meth:`Editor.words`. Reads any file of these programs well enough to see the flag in it."""
        return yaml_arguments(text or "")

    def with_value(self, text: t.Optional[str], value: t.Optional[str]) -> t.Optional[str]:
        """See :meth:`Editor.with_value`."""
        if value is None:
            return None
        return (
            "# Written by the Ansible module kubenode.ip_masq.kubelet_masquerade, which also removes it.\n"
            'kubelet-arg+:\n  - "%s=%s"\n' % (FLAG, value)
        )


_YAML_ARGUMENT = re.compile(
    r"(?:^|[\s\"'\[,=-])"
    r"(non[-_]masquerade[-_]cidr|network[-_]plugin|container[-_]runtime|healthz[-_](?:port|bind[-_]address))"
    r"[=\s]+([A-Za-z0-9:./_-]+)"
)


def yaml_arguments(text: str) -> t.List[str]:
    """The arguments that matter here, from a configuration file of k3s or RKE2, as C(--flag=value).

    Looks for the flags line by line instead of reading YAML, for which Python has no parser of its own: these files
    are never changed, only searched, and a flag seen too often costs a message, never a node.
    """
    found = []
    for line in text.splitlines():
        code = "" if line.lstrip().startswith("#") else line.split(" #")[0]
        found += ["--%s=%s" % match for match in _YAML_ARGUMENT.findall(code)]
    return found
