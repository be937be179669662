# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many of the source ports are used that the kernel can choose from to hide connections to one destination.

Two connections to the same address and port cannot leave with the same source, so each destination has all ports of
each address of the node. The kernel picks the address first (of ``snat``, by source and destination) and never takes
another one because its ports are used up. Connections that have ended count until the kernel forgets them.

Of several ranges, our rules draw one for each packet that opens a connection, and the kernel looks for a port in this
one alone.
"""

from __future__ import annotations

import heapq
import ipaddress
import math
import struct
import time
import typing as t

from .._policy.values import PortRange
from .._system import conntrack, intervals, pod_names
from .._system.conntrack import PortUse
from .._system.families import FAMILIES, IPV6, PORT_PROTOCOLS, PROTOCOL_NAMES, PROTOCOLS, Family, has_ipv6
from .._system.node_addresses import node_addresses
from .ruleset import UNPRIVILEGED, Ruleset

if t.TYPE_CHECKING:
    from .reconcile import Result

#: Without a range, from the port of the opener (nf_nat_l4proto_unique_tuple in the kernel): it keeps its kind.
_KINDS = (PortRange(1, 511), PortRange(600, 1023), UNPRIVILEGED)

#: Sources with a destination that are in memory at most: some 15 MB.
_MOST = 65536

#: After so many connections the clock is looked at.
_OFTEN = 1024

#: The share of its ports from which on a destination is reported in any case.
SCARCE = 0.8

#: Sources that are returned of a destination.
SOURCES = 20


class PortUser(t.NamedTuple):
    """Who has connections to a destination."""

    address: str
    connections: int
    #: namespace and name of the pod; None: not certain, or no pod
    pod: t.Optional[str] = None


class Range(t.NamedTuple):
    """Ports that a rule chooses from, or part of those that the kernel chooses from without a rule's range."""

    ports: PortRange
    used: int
    available: int


class Use(t.NamedTuple):
    """The source ports of one address of the node for one destination."""

    protocol: str
    #: of the node
    address: str
    destination: str
    port: int
    #: in which ports are used once; 0 is the one of all connections that are in no other
    zone: int
    #: from which the kernel chooses
    ranges: t.Tuple[Range, ...]
    used: int
    available: int
    #: the largest first
    sources: t.Tuple[PortUser, ...]

    @property
    def share(self) -> float:
        """Used ports by available ones."""
        return self.used / self.available


class Uses(t.NamedTuple):
    """What was read."""

    #: the fullest first
    fullest: t.Tuple[Use, ...]
    #: how many there are, with those that are left out
    destinations: int = 0
    #: connections of sources with the fewest to a destination, where there were too many of these for the memory
    not_counted: int = 0
    #: whether all connections were read in time
    complete: bool = True


class _Choice:
    """The ports from which the kernel chooses in one family, by protocol."""

    def __init__(self, rulesets: t.Iterable[Ruleset]) -> None:
        ranges: t.Dict[str, t.Set[PortRange]] = {}
        decided = ((ruleset, decision) for ruleset in rulesets for decision in ruleset.expanded)
        for rule in (way for ruleset, decision in decided for way in ruleset.ways(decision)):
            if rule.to_ports:
                for protocol in [rule.protocol] if rule.protocol else PORT_PROTOCOLS:
                    ranges.setdefault(protocol, set()).add(rule.to_ports)
        #: by protocol: those of our rules, then those of each kind without these
        self.pools: t.Dict[bytes, t.List[t.Tuple[PortRange, ...]]] = {}
        for protocol in PORT_PROTOCOLS:
            own = intervals.of(ranges.get(protocol, ()))
            bounds = (bound for one in ranges.get(protocol, ()) for bound in (one.first, one.last + 1))
            pools = [intervals.cut(own, bounds)] + [intervals.difference((kind,), own) for kind in _KINDS]
            self.pools[bytes([PROTOCOLS[protocol]])] = [tuple(PortRange(*span) for span in pool) for pool in pools]

    def places(self) -> t.Dict[bytes, t.List[bytes]]:
        """Return for each protocol and port the place of its range in its pool, and that of the pool.

        It is empty for ports that no rule chooses, and that are used where the opener had them.
        """
        found = {}
        for protocol, pools in self.pools.items():
            found[protocol] = places = [b""] * 65536
            for number, pool in enumerate(pools):
                for place, ports in enumerate(pool):
                    places[ports.first : ports.last + 1] = [struct.pack("!HB", place, number)] * ports.size
        return found


def _size(pool: t.Iterable[PortRange]) -> int:
    return sum(ports.size for ports in pool)


class _Counter:
    """Counts the connections of one family."""

    def __init__(self, family: Family, rulesets: t.Iterable[Ruleset], pods: pod_names.Pods, deadline: float) -> None:
        self._family = family
        self._choice = _Choice(rulesets)
        self._places = self._choice.places()
        self._deadline = deadline
        self._own = {one.packed for one in node_addresses() if one.version == family.version}
        self._now = time.time()
        addresses = ((ipaddress.ip_address(text), pod) for text, pod in pods.items())
        self._pods = {one.packed: pod for one, pod in addresses if one.version == family.version}
        #: by whether the pod is certain, the source, the range, and the destination with all that is counted apart
        self._counts: t.Dict[bytes, int] = {}
        self.lost = 0
        #: the addresses that others are hidden behind
        self._hiding: t.Set[bytes] = set()

    def read(self) -> bool:
        """Read, and return whether there was time for all."""
        for number, one in enumerate(conntrack.read_ports(self._family), 1):
            if number % _OFTEN == 0 and time.thread_time() > self._deadline:
                return False
            self._count(one)
        return True

    def _count(self, one: PortUse) -> None:
        source, source_port, seen, seen_port, remote, remote_port, protocol, zone, idle = one
        places = self._places.get(protocol)
        if places is None:
            return
        if seen != source or seen_port != source_port:
            self._hiding.add(seen)
        elif seen not in self._own:
            # Connections of the node itself take ports from those that it hides. A pod with its own address does not.
            return
        place = places[seen_port[0] << 8 | seen_port[1]]
        if not place:
            return
        pod = self._pods.get(source)
        # As in who: a pod that has come later has no part in a connection.
        named = pod is not None and idle is not None and self._now - idle > pod.since
        key = b"%c%b%b%b%b%b%b%b" % (named, source, place, protocol, remote_port, seen, remote, zone)
        self._counts[key] = self._counts.get(key, 0) + 1
        if len(self._counts) > _MOST:
            self._drop_the_least()

    def _drop_the_least(self) -> None:
        """Keep what counts more than the half does: it loses nothing, or little if it had been dropped before."""
        least = sorted(self._counts.values())[len(self._counts) // 2]
        kept = {key: count for key, count in self._counts.items() if count > least}
        self.lost += sum(self._counts.values()) - sum(kept.values())
        self._counts = kept

    def fullest(self, most: int) -> t.Tuple[t.List[Use], int]:
        """Return the destinations of connections from the addresses that hide others, and how many there are.

        :param most: how many are returned, the fullest first.
        """
        size = self._family.size
        parts: t.Dict[bytes, int] = {}
        for mark, connections in self._counts.items():
            part = mark[1 + size :]
            parts[part] = parts.get(part, 0) + connections
        used: t.Dict[bytes, int] = {}
        for part, connections in parts.items():
            place, key = int.from_bytes(part[:2], "big"), part[2:]
            if key[4 : 4 + size] in self._hiding:
                # The kernel may tell of a connection twice while the table changes.
                parts[part] = min(connections, self._pool(key)[place].size)
                used[key] = used.get(key, 0) + parts[part]
        shown = heapq.nlargest(most, used, key=lambda key: (used[key] / _size(self._pool(key)), used[key], key))
        sources: t.Dict[bytes, t.Dict[bytes, int]] = {key: {} for key in shown}
        for mark, connections in self._counts.items():
            source, key = mark[: 1 + size], mark[3 + size :]
            if key in sources:
                sources[key][source] = sources[key].get(source, 0) + connections
        return [self._use(key, parts, sources[key]) for key in shown], len(used)

    def _pool(self, key: bytes) -> t.Tuple[PortRange, ...]:
        return self._choice.pools[key[1:2]][key[0]]

    def _use(self, key: bytes, parts: t.Mapping[bytes, int], sources: t.Mapping[bytes, int]) -> Use:
        size = self._family.size
        address, destination = (str(ipaddress.ip_address(key[4 + at : 4 + at + size])) for at in (0, size))
        ranges = tuple(
            Range(ports, parts.get(place.to_bytes(2, "big") + key, 0), ports.size)
            for place, ports in enumerate(self._pool(key))
        )
        largest = heapq.nlargest(SOURCES, sources.items(), key=lambda item: item[1])
        return Use(
            PROTOCOL_NAMES[key[1]],
            address,
            destination,
            int.from_bytes(key[2:4], "big"),
            int.from_bytes(key[4 + 2 * size :], "big"),
            ranges,
            sum(one.used for one in ranges),
            sum(one.available for one in ranges),
            tuple(self._source(*item) for item in largest),
        )

    def _source(self, mark: bytes, connections: int) -> PortUser:
        named, address = mark[0], mark[1:]
        return PortUser(str(ipaddress.ip_address(address)), connections, self._pods[address].name if named else None)


def can_be_scarce(rulesets: t.Mapping[str, t.Iterable[Ruleset]], tracked: int) -> bool:
    """Return whether ports from 1024 up, or of our rules, can be scarce if the kernel tracks so many connections.

    :param rulesets: as for ``read``.
    """
    pools = (pools for family in FAMILIES for pools in _Choice(rulesets.get(family, ())).pools.values())
    return any(tracked > SCARCE * _size(pool) for own, *kinds in pools for pool in (own, kinds[-1]) if pool)


def read(
    rulesets: t.Mapping[str, t.Iterable[Ruleset]], most: int, pods: pod_names.Pods, seconds: float = math.inf
) -> Uses:
    """Read the table of connections, and return how many source ports are used, for the fullest destinations.

    :param rulesets: the active rules, by family, as ``active_rules`` returns them.
    :param most: how many destinations are returned.
    :param pods: whose names are returned.
    :param seconds: of CPU time that it may take. What was not read is not counted.
    :raises NodeError: the kernel refuses the request.
    """
    deadline = time.thread_time() + seconds
    found: t.List[Use] = []
    destinations = lost = 0
    complete = True
    for family in FAMILIES:
        if family == IPV6 and not has_ipv6():
            continue
        one = _Counter(family, rulesets.get(family, ()), pods, deadline)
        complete = one.read() and complete
        uses, count = one.fullest(most)
        found, destinations, lost = found + uses, destinations + count, lost + one.lost
    found.sort(key=lambda use: (-use.share, -use.used))
    return Uses(tuple(found[:most]), destinations, lost, complete)


def active_rules(result: Result, written: bool = False) -> t.Dict[str, t.List[Ruleset]]:
    """Return the active rules of our form by family, also those in another backend than the policy's.

    :param written: whether the run was one that writes; else its changes are only planned.
    """
    found: t.Dict[str, t.List[Ruleset]] = {}
    for change in result.changes:
        ruleset = (change.plan.view if written else change.plan.found).ruleset
        if ruleset is not None:
            found.setdefault(change.family, []).append(ruleset)
    return found
