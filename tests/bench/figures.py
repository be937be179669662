# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Samples, what is made of them, and the table that shows it."""

from __future__ import annotations

import statistics
import typing as t

#: Columns of the table; all but the first and the verdict may be empty.
HEAD = ("figure", "ours", "peer", "its", "ratio", "target", "verdict")

OK = "ok"
MISSED = "MISSED"


class Sample(t.NamedTuple):
    """Measurements of one thing. ``unit``: s, B, or a word for what is counted."""

    values: t.Tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def spread(self) -> t.Tuple[float, float]:
        """The quartiles: half of all measurements lie between them."""
        if len(self.values) < 2:
            return (self.values[0], self.values[0])
        low, _middle, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (low, high)

    def __str__(self) -> str:
        scale, unit, digits = _scale(self)
        shown = "%.*f %s" % (digits, self.median / scale, unit)
        low, high = ("%.*f" % (digits, edge / scale) for edge in self.spread)
        return shown if low == high else "%s [%s-%s]" % (shown, low, high)


def _scale(sample: Sample) -> t.Tuple[float, str, int]:
    size = abs(sample.median)
    if sample.unit == "s":
        for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
            if size >= scale or unit == "us":
                return (scale, unit, 2 if size < 10 * scale else 1)
    if sample.unit == "B":
        return (1e6, "MB", 1)
    return (1.0, sample.unit, 0)


def ratio(ours: Sample, peer: Sample) -> t.Optional[Sample]:
    """Divide ours by the peer's, round by round where both were measured in the same; None if the peer's is 0."""
    if all(peer.values):
        return Sample(tuple(mine / its for mine, its in zip(ours.values, peer.values)), "")
    return Sample((ours.median / peer.median,), "") if peer.median else None


class Target(t.NamedTuple):
    """At most ``limit``: of the ratio, or of our own figure (in its unit)."""

    limit: float
    of_ratio: bool = False
    below: bool = False

    def text(self, unit: str) -> str:
        """Return the text that the table shows."""
        sign = "<" if self.below else "<="
        if self.of_ratio:
            return "%s %.2f x" % (sign, self.limit)
        return "%s %s" % (sign, Sample((self.limit,), unit))

    def verdict(self, value: float) -> str:
        """Return whether it was met."""
        return OK if value < self.limit or (value == self.limit and not self.below) else MISSED


class Row(t.NamedTuple):
    """One line of the table. ``note`` stands where a figure could not be measured, and says why."""

    figure: str
    ours: t.Optional[Sample] = None
    peer: str = ""
    its: t.Optional[Sample] = None
    target: t.Optional[Target] = None
    note: str = ""

    @property
    def ratio(self) -> t.Optional[Sample]:
        """Ours by the peer's."""
        return ratio(self.ours, self.its) if self.ours and self.its else None

    @property
    def verdict(self) -> str:
        """Whether the target was met; the note where there is one."""
        if self.note or not self.target or not self.ours:
            return self.note
        if not self.target.of_ratio:
            return self.target.verdict(self.ours.median)
        found = self.ratio
        return self.target.verdict(found.median) if found else ""

    def cells(self) -> t.Tuple[str, ...]:
        """Return the texts that the table shows."""
        found = self.ratio
        quotient = "" if found is None else "%.2f" % found.median
        if found is not None and len(found.values) > 1:
            quotient += " [%.2f-%.2f]" % found.spread
        return (
            self.figure,
            str(self.ours) if self.ours else "",
            self.peer,
            str(self.its) if self.its else "",
            quotient,
            self.target.text(self.ours.unit) if self.target and self.ours else "",
            self.verdict,
        )


def table(parts: t.Sequence[t.Tuple[str, t.Sequence[Row]]]) -> str:
    """Return the aligned table: a title and rows for each part."""
    cells = [row.cells() for _title, rows in parts for row in rows]
    # The last column is free to be long.
    widths = [max(len(line[column]) for line in [HEAD, *cells]) for column in range(len(HEAD) - 1)]

    def line(words: t.Sequence[str]) -> str:
        return "  ".join([word.ljust(width) for word, width in zip(words, widths)] + [words[-1]]).rstrip()

    lines = [line(HEAD), line(["-" * width for width in widths] + ["-" * len(HEAD[-1])])]
    for title, rows in parts:
        lines += ["", "# " + title]
        lines += [line(row.cells()) for row in rows]
    return "\n".join(lines) + "\n"
