# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The questions that leave nothing unasked: one for every group of packets that something on the node, or the policy,
tells from others.

Destinations are divided wherever a deciding rule, a set, a route or the policy begins something new. For each of these
intervals the senders, protocols and ports are divided by the conditions that can be met there, and by no others.
"""

from __future__ import annotations

import ipaddress
import itertools
import typing as t

from .._policy import spans
from .._policy.spans import Spans
from .._twin import routing
from .._twin.node_state import State
from .._twin.routing import Route
from .._twin.values import PROTOCOLS, Question
from .matches import ASKED, MAX_PORT, MAX_PROTOCOL, highest, matches_name
from .survey import Named, Survey

#: Of these a packet of a pod is never forwarded, whatever the rules say.
_NOT_FORWARDED = {
    4: ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"),
    6: ("::/64", "fe80::/10", "ff00::/8"),
}
#: Links behind which pods are.
_POD_LINKS = ("veth", "bridge")
#: Bridges of others who keep machines or containers on a node.
_OTHERS_BRIDGES = ("docker*", "br-*", "virbr*", "lxdbr*", "lxcbr*", "incusbr*", "podman*", "cni-podman*", "nerdctl*")

_NAMES = {number: name for name, number in PROTOCOLS.items()}
#: What is asked where no rule cares: the first of these that is meant.
_PREFERRED = (("tcp", 80), ("tcp", 443), ("udp", 80), ("icmp", 0), ("sctp", 80))
#: How often a packet is sent where chance decides.
CHANCES = 12
#: How many addresses of an interval are asked where several routes share it.
_PATHS = 8


class Sender(t.NamedTuple):
    """Pods: their addresses, and the link that they are behind."""

    addresses: Spans
    link: str


class Cell(t.NamedTuple):
    """Packets that nothing tells apart, and the questions that stand for them.

    ``service`` and ``sender`` are set where the question was chosen for its protocol and port, or for its source.
    """

    first: int
    last: int
    questions: t.Tuple[Question, ...]
    service: bool = False
    sender: bool = False


class Boundaries(t.NamedTuple):
    """What a policy tells apart, besides the rules of the node: ranges of destinations, of sources, and services."""

    destinations: t.Sequence[t.Any] = ()
    sources: t.Sequence[t.Any] = ()
    #: as C(protocol << 16 | port)
    services: t.Sequence[Spans] = ()


def senders(state: State, version: int, pods: t.Sequence[t.Any]) -> t.List[Sender]:
    """The pods of a node, by its routes.

    :param pods: networks in which all of them lie; none where that is not known.
    """
    by_index = {link.index: link for link in state.links}
    known = [route for route in routing.routes(state.routing) if route.destination.version == version]
    uplinks = {route.link for route in known if route.gateway}
    mine = spans.of(
        _span(address) for address in routing.local_addresses(state.routing) if _version(address) == version
    )
    others = spans.complement(mine, highest(version))
    wanted = spans.of_networks(network for network in pods if network.version == version)
    found: t.Dict[str, t.List[t.Tuple[int, int]]] = {}
    for route in known:
        link = by_index.get(route.link)
        if link is None or link.kind not in _POD_LINKS or route.kind != routing.UNICAST or route.gateway:
            continue
        if not route.destination.prefixlen or route.destination.is_link_local or route.destination.is_multicast:
            continue
        if pods or (link.index not in uplinks and not any(_like(name, link.name) for name in _OTHERS_BRIDGES)):
            found.setdefault(link.name, []).extend(spans.of_networks([route.destination]))
    result = []
    for name, parts in found.items():
        addresses = spans.intersection(spans.of(parts), others)
        addresses = spans.intersection(addresses, wanted) if pods else addresses
        if addresses:
            result.append(Sender(addresses, name))
    return result


def example_pod(state: State, version: int) -> t.Optional[t.Tuple[str, str]]:
    """An address that a pod of the node could have, and the link that it is behind; none where no route shows pods."""
    found = senders(state, version, ())
    if not found:
        return None
    length, first, link = max((last - first, first, one.link) for one in found for first, last in one.addresses)
    address = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    return str(address(first + (length + 1) // 2)), link


def _like(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1])


def _version(address: str) -> int:
    return 6 if ":" in address else 4


def _span(address: str) -> t.Tuple[int, int]:
    return (int(ipaddress.ip_address(address)),) * 2


def route_edges(routes: t.Iterable[Route]) -> t.Iterator[int]:
    """Where a lookup in one of the tables comes to another link, type or nexthop than just before."""
    tables: t.Dict[int, t.Dict[t.Any, Route]] = {}
    for route in routes:
        # Of two routes to the same place the kernel lists the one that counts first.
        tables.setdefault(route.table, {}).setdefault(route.destination, route)
    for best in tables.values():
        before: t.Any = None
        for start, chosen in _flat(list(best.values())):
            now = chosen and (chosen.link, chosen.kind, chosen.gateway, chosen.paths)
            if now != before:
                yield start
            before = now


def _flat(routes: t.Sequence[Route]) -> t.Iterator[t.Tuple[int, t.Optional[Route]]]:
    """From which address on which route is the most specific one; none: no route."""
    ordered = sorted(routes, key=lambda route: (int(route.destination.network_address), route.destination.prefixlen))
    stack: t.List[Route] = []
    for route in [*ordered, None]:
        start = int(route.destination.network_address) if route is not None else None
        while stack and (start is None or int(stack[-1].destination.broadcast_address) < start):
            after = int(stack.pop().destination.broadcast_address) + 1
            if start is None or after < start:
                yield after, stack[-1] if stack else None
        if route is not None:
            yield t.cast(int, start), route
            stack.append(route)


class Choice:
    """Chooses the questions for one version of IP."""

    def __init__(self, state: State, survey: Survey, boundaries: Boundaries, pods: t.Sequence[t.Any]) -> None:
        """:param pods: networks in which all pods of the node lie; none where that is not known."""
        self._version = version = survey.version
        self._senders = senders(state, version, pods)
        self._survey = survey
        closed = spans.of_networks(map(ipaddress.ip_network, _NOT_FORWARDED[version]))
        self._universe = spans.complement(closed, highest(version))
        known = [route for route in routing.routes(state.routing) if route.destination.version == version]
        self._shared = spans.of_networks(route.destination for route in known if route.paths > 1)
        own = [spans.of_networks([network]) for network in boundaries.sources if network.version == version]
        self._policy = [Named(self._universe, source, None, None, True, False) for source in own]
        self._policy += [Named(self._universe, None, service, None, True, False) for service in boundaries.services]
        edges = set(route_edges(known))
        for network in boundaries.destinations:
            if network.version == version:
                edges.update(spans.edges(spans.of_networks([network])))
        for one in survey.named:
            if one.deciding:
                edges.update(spans.edges(one.destination))
        self._intervals = spans.cut(self._universe, edges)
        self._kept: t.Dict[t.Any, t.Any] = {}

    def cells(self) -> t.List[Cell]:
        """All of them: first those that differ in their destination alone, then those of senders and services."""
        if not self._senders:
            return []
        plain, special = [], []
        deciding = [one for one in self._survey.named if one.deciding]
        for interval, conditions in self._conditions(self._intervals, deciding):
            made = list(self._divide(interval, conditions))
            plain += made[:1]
            special += made[1:]
        return plain + special

    def refined(self, cell: Cell) -> t.Iterator[Cell]:
        """A cell, divided by what only lets packets pass or not: for a question of which nothing came out."""
        inside: Spans = ((cell.first, cell.last),)
        near = [one for one in self._survey.named if spans.intersection(one.destination, inside)]
        edges = [edge for one in near if not one.deciding for edge in spans.edges(one.destination)]
        for interval, conditions in self._conditions(spans.cut(inside, edges), near):
            yield from self._divide(interval, conditions)

    def _conditions(
        self, intervals: t.Sequence[t.Tuple[int, int]], named: t.Sequence[Named]
    ) -> t.Iterator[t.Tuple[t.Tuple[int, int], t.Tuple[Named, ...]]]:
        """Each interval with those conditions, and those of the policy, that are about more than a destination."""
        events: t.List[t.Tuple[int, int, int]] = []
        narrow = [
            one
            for one in [*named, *self._policy]
            if one.source is not None or one.service is not None or one.source_port is not None or one.chance
        ]
        for number, one in enumerate(narrow):
            for first, last in one.destination:
                events += [(first, 1, number), (last + 1, -1, number)]
        events.sort()
        active: t.Dict[int, int] = {}
        place = 0
        for interval in intervals:
            while place < len(events) and events[place][0] <= interval[0]:
                _at, step, number = events[place]
                active[number] = active.get(number, 0) + step
                if not active[number]:
                    del active[number]
                place += 1
            yield interval, tuple(narrow[number] for number in sorted(active))

    def _divide(self, interval: t.Tuple[int, int], conditions: t.Tuple[Named, ...]) -> t.Iterator[Cell]:
        key = tuple(map(id, conditions))
        if key not in self._kept:
            self._kept[key] = (
                self._services([one.service for one in conditions if one.service is not None]),
                self._sources([one.source for one in conditions if one.source is not None]),
                _source_ports([one.source_port for one in conditions if one.source_port is not None]),
                any(one.chance for one in conditions),
            )
        services, sources, ports, chance = self._kept[key]
        first, last = interval
        several = chance or (last > first and spans.intersection(self._shared, (interval,)))
        addresses = self._addresses(first, last, CHANCES if chance else _PATHS) if several else [(first + last) // 2]
        for (protocol, port), (source, link), source_port in itertools.product(services, sources, ports):
            questions = tuple(
                Question(str(self._address(address)), source, link, protocol, port, source_port)
                for address in addresses
            )
            yield Cell(
                first,
                last,
                questions,
                service=(protocol, port) != services[0],
                sender=(source, link) != sources[0],
            )

    @staticmethod
    def _addresses(first: int, last: int, count: int) -> t.List[int]:
        """So many addresses of an interval, spread over it; the same ones again where it has fewer."""
        size = last - first + 1
        return [first + (2 * number + 1) * size // (2 * count) for number in range(count)]

    def _address(self, number: int) -> t.Any:
        return ipaddress.IPv4Address(number) if self._version == 4 else ipaddress.IPv6Address(number)

    def _services(self, conditions: t.Sequence[Spans]) -> t.List[t.Tuple[str, int]]:
        """A protocol and a port for each group that the conditions tell apart: first the one that fewest name."""
        groups: t.Dict[t.Tuple[bool, ...], t.Tuple[str, int]] = {}
        for protocol, port in _PREFERRED:
            groups.setdefault(_signature(conditions, self._number(protocol) << 16 | port), (protocol, port))
        everything: Spans = ((0, MAX_PROTOCOL << 16 | MAX_PORT),)
        edges = [edge for one in conditions for edge in spans.edges(one)] + [one << 16 for one in ASKED]
        for first, last in spans.cut(everything, edges + [(one + 1) << 16 for one in ASKED]):
            name, port = _NAMES.get(first >> 16), (first + last) // 2 & MAX_PORT
            if name is None or first >> 16 == (58 if self._version == 4 else 1):
                continue
            service = ("icmp", 0) if name in ("icmp", "icmpv6") else (name, max(port, 1))
            groups.setdefault(_signature(conditions, first), service)
        return [groups[signature] for signature in sorted(groups, key=sum)]

    def _number(self, protocol: str) -> int:
        return 58 if protocol == "icmp" and self._version == 6 else PROTOCOLS[protocol]

    def _sources(self, conditions: t.Sequence[Spans]) -> t.List[t.Tuple[str, str]]:
        """An address and its link for each group of pods that the conditions, or patterns of links, tell apart."""
        groups: t.Dict[t.Any, t.List[t.Tuple[int, int, str]]] = {}
        edges = [edge for one in conditions for edge in spans.edges(one)]
        for sender in self._senders:
            patterns = tuple(matches_name(pattern, sender.link) for pattern in sorted(self._survey.interfaces))
            for first, last in spans.cut(sender.addresses, edges):
                key = (patterns, _signature(conditions, first))
                groups.setdefault(key, []).append((last - first, first, sender.link))
        found = []
        # The group that fewest conditions name stands for pods as such.
        for key in sorted(groups, key=lambda key: sum(key[0]) + sum(key[1])):
            # From the middle of the longest interval: the first and last addresses of a network are no pod's.
            length, first, link = max(groups[key])
            found.append((str(self._address(first + (length + 1) // 2)), link))
        return found


def _signature(conditions: t.Sequence[Spans], number: int) -> t.Tuple[bool, ...]:
    return tuple(spans.contains(one, number) for one in conditions)


def _source_ports(conditions: t.Sequence[Spans]) -> t.List[t.Optional[int]]:
    """A port for each group that the conditions tell apart; none where it does not matter, or for any high one."""
    if not conditions:
        return [None]
    groups: t.Dict[t.Tuple[bool, ...], t.Optional[int]] = {}
    edges = [edge for one in conditions for edge in spans.edges(one)]
    for first, last in spans.cut(((1, MAX_PORT),), edges):
        groups.setdefault(_signature(conditions, first), (first + last) // 2)
    return list(groups.values())
