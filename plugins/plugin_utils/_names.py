# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of hosts, and text that nodes sent, in messages and tables."""

from __future__ import annotations

import collections
import itertools
import re
import typing as t

from ..module_utils._system.printable import shown

#: Characters of a list of hosts in a message.
WIDTH = 60

Key = t.TypeVar("Key")
Value = t.TypeVar("Value")

#: Digits of a number in a name; int() is slow for many more.
_NUMBER = re.compile(r"[0-9]{1,18}")


class _Run(t.NamedTuple):
    """Names that differ in a number and follow one another; or one name without a number, which is empty text then."""

    before: str
    behind: str
    numbers: t.List[str]

    @property
    def range(self) -> str:
        """The numbers as text."""
        return "-".join([self.numbers[0], *self.numbers[1:][-1:]])


def some_of(names: t.Sequence[str], width: int = WIDTH) -> str:
    """Return names of hosts in short form: ``node[1-20], web3 and 2,980 more``.

    :param width: characters that the result has at most, unless a single name is longer.
    """
    runs = _runs(names)
    shown = _joined(runs[:1], len(names))
    for number in range(2, len(runs) + 1):
        longer = _joined(runs[:number], len(names))
        # A run more never makes the text shorter, except for the last, which replaces the count of the others.
        if len(longer) > width + len(" and %s more" % thousands(len(names))):
            return shown
        if len(longer) <= width:
            shown = longer
    return shown


def grouped(pairs: t.Iterable[t.Tuple[Key, Value]]) -> t.Dict[Key, t.List[Value]]:
    """Return the values of each key, in order."""
    found: t.Dict[Key, t.List[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def alike(reasons: t.Iterable[t.Tuple[str, str, Value]]) -> t.List[t.Tuple[str, t.List[Value]]]:
    """Return reasons, those that differ at most in numbers as one, and what has each of them, most first.

    :param reasons: the name of a host, its reason, and what is to be returned of it.
    """
    found = grouped((re.sub("[0-9]+", "0", why.replace(host, "")), (why, value)) for host, why, value in reasons)
    kinds = []
    for same in sorted(found.values(), key=len, reverse=True):
        example = "" if len({why for why, _value in same}) == 1 else "e.g. "
        kinds.append((example + same[0][0], [value for _why, value in same]))
    return kinds


def _runs(names: t.Sequence[str]) -> t.List[_Run]:
    ways = {name: _ways(name) for name in names}
    alike = collections.Counter((before, behind) for some in ways.values() for before, _digits, behind in some)
    # Of the numbers in a name the one in which most others differ from it; the last of several.
    chosen = [max(ways[name], key=lambda way: alike[way[0], way[2]], default=(name, "", "")) for name in names]
    runs: t.List[_Run] = []
    for before, behind, _value, digits in sorted((way[0], way[2], int(way[1] or 0), way[1]) for way in chosen):
        if runs and runs[-1][:2] == (before, behind) and _follows(runs[-1].numbers, digits):
            runs[-1].numbers.append(digits)
        else:
            runs.append(_Run(before, behind, [digits]))
    return runs


def _ways(name: str) -> t.List[t.Tuple[str, str, str]]:
    """Return the numbers of a name, the last first, with what is before and behind them."""
    found = [(name[: match.start()], match.group(), name[match.end() :]) for match in _NUMBER.finditer(name)]
    return found[::-1]


def _follows(numbers: t.Sequence[str], digits: str) -> bool:
    """Return whether a number is the next one, written in the same way: 09 and 10, 9 and 10, but not 09 and 010."""
    if not numbers[-1] or not digits or int(digits) != int(numbers[-1]) + 1:
        return False
    return len(digits) == len(numbers[-1]) or not (numbers[0].startswith("0") or digits.startswith("0"))


def _joined(runs: t.Sequence[_Run], total: int) -> str:
    """Join the runs, those that share a name in one pair of brackets, and how many names are left."""
    texts: t.List[str] = []
    for _key, some in itertools.groupby(runs, key=lambda run: (run.before, run.behind, bool(run.numbers[0]))):
        same = list(some)
        ranges = ",".join(run.range for run in same)
        alone = ranges == same[0].numbers[0]
        texts.append(same[0].before + (ranges if alone else "[%s]" % ranges) + same[0].behind)
    left = total - sum(len(run.numbers) for run in runs)
    return ", ".join(texts) + (" and %s more" % thousands(left) if left else "")


def thousands(count: int) -> str:
    """Return a number for people: 2,980."""
    return format(count, ",")


def number_of_nodes(count: int) -> str:
    """Return a number of nodes for people: 2,980 nodes."""
    return "%s node%s" % (thousands(count), "" if count == 1 else "s")


def one_line(text: t.Any) -> str:
    """Return text on one line. What a terminal would act upon or not show is escaped: sequences, marks of direction."""
    return shown(" ".join(str(text).split()))


def cut(text: str, width: int) -> str:
    """Shorten text to so many characters; dots are in place of the rest."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."
