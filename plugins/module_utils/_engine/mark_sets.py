# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets of packets by their marks, exactly, in the marks that policies name: ``0x200/0xf00 except 0x200/0xff00``.

A ``Mark`` is the set of all marks with some bits; none of the 2^32 marks is enumerated.
"""

from __future__ import annotations

import itertools
import typing as t

from .._policy.values import Mark

ANY = Mark(0, 0)


class MarkSet(t.NamedTuple):
    """Marks that one of ``within`` matches and none of ``without``."""

    within: t.Tuple[Mark, ...]
    without: t.Tuple[Mark, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no packet has such a mark."""
        return all(is_covered(one, self.without) for one in self.within)

    def has(self, number: int) -> bool:
        """Return whether a mark is in it."""
        within, without = (any(number & one.mask == one.value for one in side) for side in self)
        return within and not without

    def shortest(self) -> MarkSet:
        """Return the same set without marks that change nothing, those with the most bits first."""
        within, without = list(self.within), list(self.without)
        for one in sorted(within, key=_bits, reverse=True):
            rest = [other for other in within if other is not one]
            if is_covered(one, [*rest, *without]):
                within = rest
        for one in sorted(without, key=_bits, reverse=True):
            rest = [other for other in without if other is not one]
            if all(is_covered(part, rest) for part in _common([one], within)):
                without = rest
        return MarkSet(tuple(within), tuple(without))

    def __str__(self) -> str:
        """Return the marks as text."""
        texts = [", ".join(map(str, side)) for side in self if side]
        return " except ".join(texts)


def partition(named: t.Mapping[int, t.Sequence[Mark]], others: t.Sequence[Mark] = ()) -> t.Dict[int, MarkSet]:
    """Return the set of marks that each combination of rulesets matches, if there are such marks.

    :param named: the marks that a ruleset matches, by the ruleset's bits.
    :param others: in none of the sets.
    :return: by the bits of the rulesets that match.
    """
    found = {}
    for chosen in itertools.product((False, True), repeat=len(named)):
        bits, within, without = 0, [ANY], list(others)
        for matches, (own, marks) in zip(chosen, named.items()):
            bits |= own if matches else 0
            if matches:
                within = _common(within, marks)
            else:
                without += marks
        one = MarkSet(tuple(within), tuple(dict.fromkeys(without)))
        if not one.is_empty:
            found[bits] = one
    return found


def is_covered(one: Mark, by: t.Sequence[Mark]) -> bool:
    """Return whether each packet with a mark has one of the other marks too."""
    meeting = [other for other in by if not (one.value ^ other.value) & one.mask & other.mask]
    if not meeting:
        return False
    # The one that leaves the fewest bits to decide.
    nearest = min(meeting, key=lambda other: bin(other.mask & ~one.mask).count("1"))
    open_bits = nearest.mask & ~one.mask
    if not open_bits:
        return True
    bit = open_bits & -open_bits
    return all(is_covered(Mark(one.value | value, one.mask | bit), meeting) for value in (0, bit))


def _common(some: t.Iterable[Mark], others: t.Sequence[Mark]) -> t.List[Mark]:
    """Return the marks of packets that have one of each."""
    found = (
        Mark(one.value | other.value, one.mask | other.mask)
        for one, other in itertools.product(some, others)
        if not (one.value ^ other.value) & one.mask & other.mask
    )
    return list(dict.fromkeys(found))


def _bits(mark: Mark) -> int:
    return bin(mark.mask).count("1")
