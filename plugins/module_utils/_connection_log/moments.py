# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moments as people write them. Reads nothing of a node."""

from __future__ import annotations

import datetime
import re
import typing as t

from .._errors import ConfigError

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:Z|([+-]\d\d):?([0-5]\d))?", re.ASCII | re.IGNORECASE)

#: The first and the last second that have a date.
_FIRST, LAST = -62135596800, 253402300799


class Moment(t.NamedTuple):
    """A second or a minute, in seconds since the epoch; the end does not belong to it."""

    start: float
    end: float


def parse_moment(text: str) -> Moment:
    """Parse a minute or a second: ``2026-11-23T03:12``, ``2026-11-23T03:12:07+01:00``. Without an offset it is UTC.

    :raises ConfigError: it is not one.
    """
    found = _MOMENT.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        day, minute, second, hours, minutes = found.groups()
        plain = "%sT%s%s%s:%s" % (day, minute, second or ":00", hours or "+00", minutes or "00")
        start = datetime.datetime.fromisoformat(plain).timestamp()
        datetime.datetime.fromtimestamp(start, datetime.timezone.utc)
    except (ValueError, OverflowError):
        raise ConfigError(
            "%r is not a time: write 2026-11-23T03:12 or 2026-11-23T03:12:07, in UTC or with an offset such as +01:00"
            % text
        ) from None
    return Moment(start, start + (60 if second is None else 1))


def as_moment(value: t.Any) -> float:
    """Return what a file has as seconds since the epoch.

    :raises ValueError: it is no such number, or too large for a date.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LAST:
        raise ValueError
    return float(value)


def show_moment(moment: float) -> str:
    """Return a moment for people, in UTC to the second; of one that no date has the nearest."""
    known = datetime.datetime.fromtimestamp(int(min(max(moment, _FIRST), LAST)), datetime.timezone.utc)
    return known.strftime("%Y-%m-%dT%H:%M:%SZ")
