# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many packets a verification sends, and how long it takes at most; by default as in ``defaults_and_limits``."""

from __future__ import annotations

import typing as t

from ..ways.cpu_time import now

#: Seconds beyond the limit that may be spent on an end: to interrupt what takes too long, to find which rule decided.
GRACE = 5.0
#: Seconds without which a small node has no chance, however long it took to read.
_LEAST = 5.0


class Limits(t.NamedTuple):
    """Where a verification ends."""

    #: of each family; 0: at the last one
    questions: int = 0
    #: by ``cpu_time.now()``; None: never
    until: t.Optional[float] = None

    def left(self) -> t.Optional[float]:
        """Return the seconds that are left, 0 if the time is over; None: no end."""
        return None if self.until is None else max(self.until - now(), 0.0)

    def is_late(self, grace: float = 0.0) -> bool:
        """Return whether the time is over, and some seconds more."""
        return self.until is not None and now() >= self.until + grace

    def with_a_chance(self) -> Limits:
        """Return them with as much time as a small node needs."""
        return self if self.until is None else self._replace(until=max(self.until, now() + _LEAST))

    def first_half(self) -> Limits:
        """Return them with half of the time that is left."""
        seconds = self.left()
        return self if seconds is None else self._replace(until=now() + seconds / 2)


NO_LIMITS = Limits()


def begin(questions: int, seconds: float) -> Limits:
    """Return the limits of a verification that begins now; 0: no limit."""
    return Limits(questions, now() + seconds if seconds else None)
