# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text of other programs, as it is shown to people: nothing in it moves a cursor or begins a line of a log."""

from __future__ import annotations

import typing as t


def shown(line: str) -> str:
    """Return one line for people."""
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def first_of(values: t.Sequence[object], most: int = 5, omitted: int = 0) -> str:
    """Return the first of some values, and how many more there are, with those that were omitted."""
    left = len(values) - most + omitted
    return ", ".join(map(str, values[:most])) + (" and %s more" % format(left, ",") if left > 0 else "")


def shown_all(lines: t.Sequence[str]) -> t.Tuple[str, ...]:
    """Return many lines, each as ``shown``."""
    return tuple(lines) if "".join(lines).isprintable() else tuple(shown(line) for line in lines)
