# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which source ports packets get that are masqueraded: ways of it, each in some share of the cases, and their words."""

from __future__ import annotations

import typing as t

from .._policy.values import PortRange
from .._system import intervals
from .._system.families import PORT_PROTOCOLS
from .ruleset import UNPRIVILEGED, Masquerade

#: xt_statistic keeps a probability as a 31-bit fraction (struct xt_statistic_info).
SHARE_UNIT = 2**31


def ways(ranges: t.Sequence[PortRange], random_fully: bool) -> t.Iterator[Masquerade]:
    """Return the ways to masquerade with these ports, and with any where the protocol has none."""
    for protocol in PORT_PROTOCOLS:
        for ports, share in zip(ranges, shares(ranges)):
            yield Masquerade(protocol, ports, share, random_fully)
    yield Masquerade(random_fully=random_fully)


def shares(ranges: t.Sequence[PortRange]) -> t.Iterator[t.Optional[int]]:
    """Return in which share of the cases each range is chosen, of those that the ranges before it let through."""
    left = sum(ports.size for ports in ranges)
    for position, ports in enumerate(ranges, 1):
        # The last range takes all that the ones before it let through.
        yield None if position == len(ranges) else int(SHARE_UNIT * (ports.size / left) + 0.5)
        left -= ports.size


class Chosen(t.NamedTuple):
    """How the source port of a packet is chosen."""

    #: one of them by chance, by its size; in order; empty: any port
    ranges: t.Tuple[PortRange, ...] = ()
    #: whether at random, or the packet's own where that is free; None: there is no choice
    at_random: t.Optional[bool] = True
    #: what rules say that this collection does not write; otherwise empty
    unknown: t.Tuple[t.Any, ...] = ()

    @property
    def size(self) -> int:
        """From how many ports, for a packet from port 1024 or above; 0: not known."""
        if self.unknown:
            return 0
        union = intervals.of(self.ranges) or (UNPRIVILEGED,)
        return sum(last - first + 1 for first, last in union)

    @property
    def text(self) -> str:
        """The ports, for people; empty: any."""
        if self.unknown:
            return "unknown ports"
        return "ports " + ", ".join(map(str, self.ranges)) if self.ranges else ""

    @property
    def how(self) -> str:
        """The way, for people; empty if it is not known, or there is no choice."""
        if self.unknown or self.at_random is None:
            return ""
        return "ports at random" if self.at_random else "ports kept if free"


def chosen(ways: t.Sequence[t.Any]) -> Chosen:
    """Return what ways to masquerade the same packets mean, whatever the order of their ranges."""
    met = []
    for way in ways:
        if not isinstance(way, Masquerade):
            return Chosen(unknown=tuple(ways))
        met.append(way)
        if way.share is None:
            break
    ranges = [way.to_ports for way in met if way.to_ports is not None]
    random = {way.random_fully for way in met}
    if len(random) > 1 or (ranges and [way.share for way in met] != list(shares(ranges))):
        return Chosen(unknown=tuple(ways))
    # Named twice alone, a range is the same as once.
    once = sorted(set(ranges))
    same = len({ranges.count(one) for one in once}) == 1
    # A single port is the same in both ways.
    single = bool(ranges) and all(one.size == 1 for one in ranges)
    return Chosen(tuple(once if same else sorted(ranges)), None if single else random.pop() if random else True)
