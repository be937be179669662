# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses and their labels, nexthops, routes and routing rules, read and written as the kernel's own messages.

Message layout: linux/rtnetlink.h, linux/if_addr.h, linux/if_addrlabel.h, linux/fib_rules.h.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import struct
import time
import typing as t

from .._system import netlink
from .._system.families import BY_NUMBER, IPV6, of_address
from .._system.netlink import Message, Netlink
from .._system.node_addresses import GET_ADDRESS, IFA, IFA_ADDRESS, Address, address_of
from .._system.printable import first_of
from .._system.routes import ANYCAST, UNICAST, Routes

_NEW_ADDRESS = 20
_NEW_ROUTE, _DELETE_ROUTE, _GET_ROUTE = 24, 25, 26
_NEW_RULE, _DELETE_RULE, _GET_RULE = 32, 33, 34
_GET_LABEL = 74

_IFA_CACHEINFO, _IFA_FLAGS = 6, 8
#: IFA_F_NODAD; IFA_F_DADFAILED and IFA_F_TENTATIVE
_NO_DAD, _UNSETTLED = 0x02, 0x48

#: family, reserved, length of the prefix, flags, link, sequence number
_IFAL = struct.Struct("=BBBBII")

#: of routes, and of routing rules
_RTM = struct.Struct("=BBBBBBBBI")
_ROUTE_HEADER = _RTM.size
_RTA_DST, _RTA_OIF, _RTA_MULTIPATH, _RTA_CACHEINFO, _RTA_TABLE, _RTA_VIA, _RTA_NEXTHOP = 1, 4, 9, 12, 15, 18, 30
RTA_GATEWAY, RTA_PREFERRED = 5, 7
#: RTA_IP_PROTO, RTA_SPORT, RTA_DPORT
_RTA_PROTOCOL, _RTA_SOURCE_PORT, _RTA_PORT = 27, 28, 29
_ONLINK = 4
_NEXTHOP_OF_ROUTE = struct.Struct("=HBBi")

_RULE_HEADER = 12
_FIB_RULE_INVERT = 2

#: How often routes are looked at until all are there, and seconds in between.
_SETTLE_ATTEMPTS, _FEW, _SETTLE_PAUSE = 200, 20, 0.005
#: How many routes a message names.
_SHOWN = 3


class Routing(t.NamedTuple):
    """All of it, as bodies of messages."""

    addresses: t.Tuple[bytes, ...]
    rules: t.Tuple[bytes, ...]
    routes: t.Tuple[bytes, ...]
    #: of addresses of IPv6, for the choice of a source (RFC 6724)
    labels: t.Tuple[bytes, ...] = ()


class OwnAddress(t.NamedTuple):
    """An address of the node, and the network in which others are beside it on the link."""

    address: Address
    network: t.Any
    link: int
    flags: int


class Path(t.NamedTuple):
    """Where packets may go that a route is for."""

    link: int
    flags: int
    attributes: netlink.Attributes

    @property
    def has_gateway(self) -> bool:
        """Whether another router gets the packets."""
        return RTA_GATEWAY in self.attributes or _RTA_VIA in self.attributes


class Route(t.NamedTuple):
    """A route, taken apart."""

    destination: t.Any
    kind: int
    table: int
    tos: int
    flags: int
    attributes: netlink.Attributes
    paths: t.Tuple[Path, ...]

    @property
    def leads_to_link(self) -> bool:
        """Whether the destination is behind the only link of the route, without a gateway."""
        return self.kind == UNICAST and len(self.paths) == 1 and not self.paths[0].has_gateway


def read() -> Routing:
    """Read all routing of this network namespace.

    :raises NodeError: the kernel does not answer.
    """
    with Netlink(netlink.ROUTE) as kernel:
        return Routing(
            kernel.dump_families(GET_ADDRESS, IFA.size, "addresses"),
            _read_rules(kernel),
            _read_routes(kernel),
            _read_labels(kernel),
        )


def _read_labels(kernel: Netlink) -> t.Tuple[bytes, ...]:
    bodies = kernel.dump_families(_GET_LABEL, _IFAL.size, "address labels", [IPV6.number])
    # The sequence number changes with each label that is set.
    return tuple(_IFAL.pack(*_IFAL.unpack_from(body)[:5], 0) + body[_IFAL.size :] for body in bodies)


def _read_rules(kernel: Netlink) -> t.Tuple[bytes, ...]:
    return kernel.dump_families(_GET_RULE, _RTM.size, "routing rules")


def _read_routes(kernel: Netlink) -> t.Tuple[bytes, ...]:
    return kernel.dump_families(_GET_ROUTE, _RTM.size, "routes")


def addresses(routing: Routing) -> t.Iterator[OwnAddress]:
    """Return each address of the node."""
    for body in routing.addresses:
        _family, bits, flags, _scope, link = IFA.unpack_from(body)
        address, network = address_of(body), netlink.attributes(body[IFA.size :]).get(IFA_ADDRESS)
        if address is not None and network is not None:
            yield OwnAddress(address, ipaddress.ip_network((network, bits), strict=False), link, flags)


def local_addresses(routing: Routing) -> t.FrozenSet[str]:
    """Return every address of the node."""
    return frozenset(str(one.address) for one in addresses(routing))


def anycasts(routing: Routing) -> t.FrozenSet[str]:
    """Return the addresses of IPv6 that a router answers for on each of its links (RFC 4291)."""
    return frozenset(str(one.destination[0]) for one in routes(routing) if one.kind == ANYCAST)


def broadcasts(routing: Routing) -> t.FrozenSet[str]:
    """Return the addresses of all hosts beside the node, on each of its links (RFC 919)."""
    networks = (one.network for one in addresses(routing) if one.network.version == 4)
    return frozenset(str(one.broadcast_address) for one in networks if one.prefixlen < 31)


def preferred_sources(routing: Routing) -> t.Iterator[t.Tuple[t.Any, int, str]]:
    """Return the destination, the link and the preferred source of each route that has one, once for each path."""
    for route in routes(routing):
        if RTA_PREFERRED in route.attributes:
            source = str(ipaddress.ip_address(route.attributes[RTA_PREFERRED]))
            yield from ((route.destination, path.link, source) for path in route.paths)


@functools.lru_cache(maxsize=4)  # that of the node, and of its copy
def routes(routing: Routing) -> t.Tuple[Route, ...]:
    """Return each route, taken apart."""
    return tuple(map(_parsed, routing.routes))


def _parsed(body: bytes) -> Route:
    family, bits, _source, tos, table, _protocol, _scope, kind, flags = _RTM.unpack_from(body)
    known = netlink.attributes(body[_ROUTE_HEADER:])
    paths = [Path(link, flags, netlink.attributes(rest)) for flags, _weight, link, rest in _paths_of(known)]
    if _RTA_OIF in known:
        paths.append(Path(netlink.native(known[_RTA_OIF]), 0, known))
    return Route(
        destination=ipaddress.ip_network((known.get(_RTA_DST, bytes(BY_NUMBER[family].size)), bits), strict=False),
        kind=kind,
        table=netlink.native(known.get(_RTA_TABLE)) or table,
        tos=tos,
        flags=flags,
        attributes=known,
        paths=tuple(paths),
    )


def uplinks(routing: Routing) -> t.FrozenSet[int]:
    """Return the links over which routes lead to a gateway."""
    return frozenset(path.link for route in routes(routing) for path in route.paths if path.has_gateway)


def link_of(routing: Routing, address: str) -> t.Optional[int]:
    """Return the index of the link that an address is behind.

    Of the routes that need no gateway, in any table, and of the networks of the links' own addresses the most specific
    one that contains it counts.

    Policy routing is not looked at, nor is whether a route hides another: they lead packets to an address elsewhere,
    or nowhere, and still packets from it come from here.
    """
    value = ipaddress.ip_address(address)
    found = [
        (route.destination.prefixlen, True, route.paths[0].link)
        for route in routes(routing)
        if route.leads_to_link and value in route.destination
    ]
    found += [(one.network.prefixlen, False, one.link) for one in addresses(routing) if value in one.network]
    return max(found)[2] if found else None


def link_to(address: str) -> t.Optional[int]:
    """Return the index of the link that this network namespace uses for an address; None if it has no route."""
    with Routes(of_address(address)) as kernel:
        return kernel.ask(int(ipaddress.ip_address(address))).link


def source_to(address: str, protocol: int, source_port: int, port: int) -> t.Optional[bytes]:
    """Return the packed address that the kernel chooses for a connection of this namespace; None without a route.

    :param protocol: with the ports, what routing rules can ask for (Linux 4.17).
    """
    family = of_address(address)
    wanted = netlink.attribute(_RTA_PROTOCOL, bytes((protocol,)))
    wanted += netlink.attribute(_RTA_SOURCE_PORT, struct.pack("!H", source_port))
    wanted += netlink.attribute(_RTA_PORT, struct.pack("!H", port))
    with Routes(family) as kernel:
        source = kernel.ask(int(ipaddress.ip_address(address)), wanted).preferred
    return None if source is None else source.to_bytes(family.size, "big")


def lasting(routing: Routing) -> t.Iterator[bytes]:
    """Return the messages without what time and use alone change."""
    for body in routing.addresses:
        yield body[: IFA.size] + netlink.replace(body[IFA.size :], {_IFA_CACHEINFO: None})
    yield from routing.rules
    for body in routing.routes:
        yield body[:_ROUTE_HEADER] + netlink.replace(body[_ROUTE_HEADER:], {_RTA_CACHEINFO: None})
    yield from routing.labels


def write_addresses(routing: Routing, number: t.Mapping[int, int]) -> t.List[str]:
    """Give the links of this network namespace their addresses, without asking others whether they have them.

    :param number: the index of each link here, by that on the node.
    :returns: what the kernel refused.
    """
    bodies = [_address(body, number) for body in routing.addresses if body[0] != IPV6.number]
    # Of several addresses of IPv6 on a link the kernel puts the last one first, and lists them like that.
    bodies += [_address(body, number) for body in routing.addresses[::-1] if body[0] == IPV6.number]
    with Netlink(netlink.ROUTE, buffer=netlink.LARGE) as kernel:
        codes = kernel.change([Message(_NEW_ADDRESS, body) for body in bodies])
        same_labels = set(_read_labels(kernel)) == set(routing.labels)
    refused = sum(code not in (0, errno.EEXIST) for code in codes)
    missing = ["%d addresses" % refused] if refused else []
    return missing if same_labels else [*missing, "some address labels of IPv6"]


def _address(body: bytes, number: t.Mapping[int, int]) -> bytes:
    family, bits, flags, scope, index = IFA.unpack_from(body)
    known = netlink.attributes(body[IFA.size :])
    flags = (netlink.native(known[_IFA_FLAGS]) if _IFA_FLAGS in known else flags) & ~_UNSETTLED | _NO_DAD
    kept = netlink.replace(body[IFA.size :], {_IFA_FLAGS: None})
    return IFA.pack(family, bits, flags & 0xFF, scope, number[index]) + kept + netlink.word(_IFA_FLAGS, flags)


def write_routes(routing: Routing, number: t.Mapping[int, int]) -> t.List[str]:
    """Give this network namespace the routes and rules of the node, and none besides.

    :param number: the index of each link here, by that on the node.
    :returns: what is not as on the node.
    """
    wanted = {_route(body, number): None for body in routing.routes}
    rules = [_rule(body) for body in routing.rules]
    with Netlink(netlink.ROUTE, buffer=netlink.LARGE) as kernel:
        # Routes first: whether a gateway can be reached depends on the rules.
        missing = _settle(kernel, wanted, _FEW)
        kernel.change([Message(_DELETE_RULE, body) for body in map(_rule, _read_rules(kernel))], 0)
        kernel.change([Message(_NEW_RULE, body) for body in rules], netlink.CREATE | netlink.EXCLUSIVE)
        missing = missing and _settle(kernel, wanted, _SETTLE_ATTEMPTS)
        texts = [_named_routes(missing)] if missing else []
        if sorted(map(_rule, _read_rules(kernel))) != sorted(rules):
            texts.append("some routing rules")
    return texts


def _named_routes(bodies: t.Sequence[bytes]) -> str:
    found = [_parsed(body).destination for body in bodies]
    return "%s %s" % ("route" if len(found) == 1 else "routes", first_of(found, _SHOWN))


def _settle(kernel: Netlink, wanted: t.Iterable[bytes], attempts: int) -> t.List[bytes]:
    """Add and delete routes until those are there that are wanted. Return those that are not.

    The kernel adds routes for addresses of IPv6 by itself, a moment after the address, and while it does, a list of
    them may lack some. And a route over a gateway may come before the one that leads to the gateway.
    """
    missing = list(wanted)
    for attempt in range(attempts):
        if attempt > 1:
            time.sleep(_SETTLE_PAUSE)
        kernel.change([Message(_NEW_ROUTE, body) for body in missing], netlink.CREATE | netlink.APPEND)
        present = {_route(body, {}) for body in _read_routes(kernel)}
        kernel.change([Message(_DELETE_ROUTE, body) for body in present.difference(wanted)], 0)
        missing = [body for body in wanted if body not in present]
        if not missing:
            break
    return missing


def _route(body: bytes, number: t.Mapping[int, int]) -> bytes:
    """Return a route as it can be added: without what the kernel adds, and with the numbers of links here.

    :param number: the index of each link here; those without one are here already.
    """
    head = list(_RTM.unpack_from(body))
    head[8] &= _ONLINK
    known = netlink.attributes(body[_ROUTE_HEADER:])
    # With a nexthop that is an object of its own the kernel reports what that leads to, too.
    changes: t.Dict[int, t.Optional[bytes]] = {_RTA_CACHEINFO: None, _RTA_NEXTHOP: None}
    if _RTA_OIF in known:
        here = netlink.native(known[_RTA_OIF])
        changes[_RTA_OIF] = struct.pack("=I", number.get(here, here))
    elif _RTA_MULTIPATH in known:
        changes[_RTA_MULTIPATH] = b"".join(
            _NEXTHOP_OF_ROUTE.pack(_NEXTHOP_OF_ROUTE.size + len(rest), flags & _ONLINK, weight, number.get(link, link))
            + rest
            for flags, weight, link, rest in _paths_of(known)
        )
    return _RTM.pack(*head) + netlink.replace(body[_ROUTE_HEADER:], changes)


def _paths_of(known: netlink.Attributes) -> t.Iterator[t.Tuple[int, int, int, bytes]]:
    """Return flags, weight, link and attributes of each path of a route that has several."""
    value, position = known.get(_RTA_MULTIPATH, b""), 0
    while position + _NEXTHOP_OF_ROUTE.size <= len(value):
        length, flags, weight, link = _NEXTHOP_OF_ROUTE.unpack_from(value, position)
        if length < _NEXTHOP_OF_ROUTE.size:
            return
        yield flags, weight, link, value[position + _NEXTHOP_OF_ROUTE.size : position + length]
        position += (length + 3) & ~3


def _rule(body: bytes) -> bytes:
    flags = struct.unpack_from("=I", body, 8)[0] & _FIB_RULE_INVERT
    return body[:8] + struct.pack("=I", flags) + body[_RULE_HEADER:]
