# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses and their labels, nexthops, routes and routing rules, read and written as the kernel's own messages.

Message layout: linux/rtnetlink.h, linux/if_addr.h, linux/if_addrlabel.h, linux/fib_rules.h, linux/nexthop.h.
"""

from __future__ import annotations

import errno
import ipaddress
import struct
import sys
import time
import typing as t

from .._system import netlink
from .._system.families import BY_NUMBER, IPV6, of_address
from .._system.netlink import Message, Netlink
from .._system.routes import UNICAST

_NEW_ADDRESS, _GET_ADDRESS = 20, 22
_NEW_ROUTE, _DELETE_ROUTE, _GET_ROUTE = 24, 25, 26
_NEW_RULE, _DELETE_RULE, _GET_RULE = 32, 33, 34
_NEW_NEXTHOP, _GET_NEXTHOP = 104, 106
_NEW_LABEL, _DELETE_LABEL, _GET_LABEL = 72, 73, 74


_IFA = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL, _IFA_CACHEINFO, _IFA_FLAGS = 1, 2, 6, 8
#: IFA_F_NODAD; IFA_F_DADFAILED and IFA_F_TENTATIVE
_NO_DAD, _UNSETTLED = 0x02, 0x48

#: family, reserved, length of the prefix, flags, link, sequence number
_IFAL = struct.Struct("=BBBBII")

#: of routes, and of routing rules
_RTM = struct.Struct("=BBBBBBBBI")
_ROUTE_HEADER = _RTM.size
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_CACHEINFO, _RTA_TABLE, _RTA_VIA = 1, 4, 5, 9, 12, 15, 18
_RTA_ENCAP_TYPE, _RTA_ENCAP, _RTA_NH_ID = 21, 22, 30
#: RTA_PREFSRC, RTA_IP_PROTO, RTA_SPORT, RTA_DPORT
_RTA_SOURCE, _RTA_PROTOCOL, _RTA_SOURCE_PORT, _RTA_PORT = 7, 27, 28, 29
_ONLINK = 4
_NEXTHOP_OF_ROUTE = struct.Struct("=HBBi")

_RULE_HEADER = 12
_FIB_RULE_INVERT = 2

_NHM = struct.Struct("=BBBBI")
_NHA_GROUP, _NHA_OIF = 2, 5
#: What can be set; the kernel reports more (flags of its answer, statistics).
_NHA_KEEPS = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 11, 12))

#: How often routes are looked at until all are there, and seconds in between.
_SETTLE_ATTEMPTS, _FEW, _SETTLE_PAUSE = 200, 20, 0.005
#: How many routes a message names.
_SHOWN = 3


class Routing(t.NamedTuple):
    """All of it, as bodies of messages."""

    addresses: t.Tuple[bytes, ...]
    nexthops: t.Tuple[bytes, ...]
    rules: t.Tuple[bytes, ...]
    routes: t.Tuple[bytes, ...]
    #: of addresses of IPv6, for the choice of a source (RFC 6724)
    labels: t.Tuple[bytes, ...] = ()


class Route(t.NamedTuple):
    """The parts of a route that a reader needs."""

    destination: t.Any
    kind: int
    table: int
    link: int
    gateway: bool
    paths: int


def read() -> Routing:
    """Read all routing of this network namespace.

    :raises NodeError: the kernel does not answer.
    """
    with Netlink(netlink.ROUTE) as kernel:
        return Routing(
            _dump(kernel, _GET_ADDRESS, _IFA, "addresses"),
            _dump(kernel, _GET_NEXTHOP, _NHM, "nexthops", [0], (errno.EOPNOTSUPP, errno.EINVAL)),  # before 5.3
            _read_rules(kernel),
            _read_routes(kernel),
            _read_labels(kernel),
        )


def _read_labels(kernel: Netlink) -> t.Tuple[bytes, ...]:
    bodies = _dump(kernel, _GET_LABEL, _IFAL, "address labels", [IPV6.number])
    # The sequence number changes with each label that is set.
    return tuple(_IFAL.pack(*_IFAL.unpack_from(body)[:5], 0) + body[_IFAL.size :] for body in bodies)


def _read_rules(kernel: Netlink) -> t.Tuple[bytes, ...]:
    return _dump(kernel, _GET_RULE, _RTM, "routing rules")


def _read_routes(kernel: Netlink) -> t.Tuple[bytes, ...]:
    return _dump(kernel, _GET_ROUTE, _RTM, "routes")


def _dump(
    kernel: Netlink,
    kind: int,
    header: struct.Struct,
    what: str,
    families: t.Iterable[int] = BY_NUMBER,
    absent: t.Container[int] = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP),
) -> t.Tuple[bytes, ...]:
    """Read all objects of a kind.

    :param absent: errors of a kernel that has none: without IPv6, or without routing rules.
    """
    found: t.List[bytes] = []
    for family in families:
        try:
            request = struct.pack("B", family).ljust(header.size, b"\0")
            found += (message.body for message in kernel.dump(kind, request, what))
        except netlink.KernelError as exc:
            if exc.code not in absent:
                raise
    return tuple(found)


def addresses(routing: Routing) -> t.Iterator[t.Tuple[str, int]]:
    """Return each address of the node with the index of its link."""
    for body in routing.addresses:
        known = netlink.attributes(body[_IFA.size :])
        value = known.get(_IFA_LOCAL, known.get(_IFA_ADDRESS))
        if value:
            yield str(ipaddress.ip_address(value)), _IFA.unpack_from(body)[4]


def local_addresses(routing: Routing) -> t.FrozenSet[str]:
    """Return every address of the node."""
    return frozenset(address for address, _link in addresses(routing))


def preferred_sources(routing: Routing) -> t.Iterator[t.Tuple[t.Any, int, str]]:
    """Return the destination, the link and the preferred source of each route that has one, once for each path."""
    for body in routing.routes:
        known = netlink.attributes(body[_ROUTE_HEADER:])
        if _RTA_SOURCE not in known:
            continue
        paths = [link for _flags, _weight, link, _rest in _paths(known)]
        if _RTA_OIF in known:
            paths.append(_number(known[_RTA_OIF]))
        for link in paths:
            yield _destination(body, known), link, str(ipaddress.ip_address(known[_RTA_SOURCE]))


def networks(routing: Routing) -> t.Iterator[t.Tuple[t.Any, int]]:
    """Return the network of each address, and the index of the address's link."""
    for body in routing.addresses:
        _family, bits, _flags, _scope, link = _IFA.unpack_from(body)
        value = netlink.attributes(body[_IFA.size :]).get(_IFA_ADDRESS)
        if value:
            yield ipaddress.ip_network((value, bits), strict=False), link


def routes(routing: Routing) -> t.Iterator[Route]:
    """Return each route, taken apart."""
    for body in routing.routes:
        _family, _bits, _source, _tos, table, _protocol, _scope, kind, _flags = _RTM.unpack_from(body)
        known = netlink.attributes(body[_ROUTE_HEADER:])
        yield Route(
            destination=_destination(body, known),
            kind=kind,
            table=_number(known[_RTA_TABLE]) if _RTA_TABLE in known else table,
            link=_number(known[_RTA_OIF]) if _RTA_OIF in known else 0,
            gateway=_RTA_GATEWAY in known or _RTA_VIA in known,
            paths=len(list(_paths(known))) if _RTA_MULTIPATH in known else 1,
        )


def _destination(route: bytes, known: netlink.Attributes) -> t.Any:
    everything = bytes(BY_NUMBER[route[0]].size)
    return ipaddress.ip_network((known.get(_RTA_DST, everything), route[1]), strict=False)


def _number(value: bytes) -> int:
    """Return a number in the byte order of the machine."""
    return int.from_bytes(value, sys.byteorder)


def uplinks(routing: Routing) -> t.FrozenSet[int]:
    """Return the links over which routes lead to a gateway."""
    found = {route.link for route in routes(routing) if route.gateway}
    for body in routing.routes:
        known = netlink.attributes(body[_ROUTE_HEADER:])
        for _flags, _weight, link, rest in _paths(known):
            if {_RTA_GATEWAY, _RTA_VIA} & set(netlink.attributes(rest)):
                found.add(link)
    return frozenset(found)


def link_of(routing: Routing, address: str) -> t.Optional[int]:
    """Return the index of the link that an address is behind.

    Of the routes that need no gateway, in any table, and of the networks of the links' own addresses the most specific
    one that contains it counts.

    Policy routing is not looked at, nor is whether a route hides another: they lead packets to an address elsewhere,
    or nowhere, and still packets from it come from here.
    """
    value = ipaddress.ip_address(address)
    found = [
        (route.destination.prefixlen, True, route.link)
        for route in routes(routing)
        if route.kind == UNICAST and route.link and not route.gateway and value in route.destination
    ]
    found += [(network.prefixlen, False, link) for network, link in networks(routing) if value in network]
    return max(found)[2] if found else None


def link_to(address: str) -> t.Optional[int]:
    """Return the index of the link that this network namespace uses for an address; None if it has no route."""
    link = _route_to(address).get(_RTA_OIF)
    return _number(link) if link else None


def source_to(address: str, protocol: int, source_port: int, port: int) -> t.Optional[bytes]:
    """Return the packed address that the kernel chooses for a connection of this namespace; None without a route.

    :param protocol: with the ports, what routing rules can ask for (Linux 4.17).
    """
    ports = netlink.attribute(_RTA_SOURCE_PORT, struct.pack("!H", source_port))
    ports += netlink.attribute(_RTA_PORT, struct.pack("!H", port))
    wanted = netlink.attribute(_RTA_PROTOCOL, bytes((protocol,))) + ports
    return _route_to(address, wanted).get(_RTA_SOURCE)


def _route_to(address: str, wanted: bytes = b"") -> t.Dict[int, bytes]:
    value = ipaddress.ip_address(address)
    family = of_address(address).number
    body = _RTM.pack(family, value.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + netlink.attribute(_RTA_DST, value.packed)
    with Netlink(netlink.ROUTE) as kernel:
        try:
            answer = kernel.ask(_GET_ROUTE, body + wanted, "a route")
        except netlink.KernelError:
            return {}
    return netlink.attributes(answer.body[_ROUTE_HEADER:])


def lasting(routing: Routing) -> t.Iterator[bytes]:
    """Return the messages without what time and use alone change."""
    for body in routing.addresses:
        yield body[: _IFA.size] + netlink.replace(body[_IFA.size :], {_IFA_CACHEINFO: None})
    yield from routing.nexthops
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
        labels = _write_labels(kernel, routing, number)
    refused = sum(code not in (0, errno.EEXIST) for code in codes)
    return (["%d addresses" % refused] if refused else []) + labels


def _write_labels(kernel: Netlink, routing: Routing, number: t.Mapping[int, int]) -> t.List[str]:
    wanted = {_label(body, number) for body in routing.labels}
    present = set(_read_labels(kernel))
    kernel.change([Message(_DELETE_LABEL, body) for body in sorted(present - wanted)], 0)
    kernel.change([Message(_NEW_LABEL, body) for body in sorted(wanted - present)])
    return [] if set(_read_labels(kernel)) == wanted else ["some address labels of IPv6"]


def _label(body: bytes, number: t.Mapping[int, int]) -> bytes:
    family, reserved, bits, flags, index, sequence = _IFAL.unpack_from(body)
    return _IFAL.pack(family, reserved, bits, flags, number.get(index, index), sequence) + body[_IFAL.size :]


def _address(body: bytes, number: t.Mapping[int, int]) -> bytes:
    family, bits, flags, scope, index = _IFA.unpack_from(body)
    known = netlink.attributes(body[_IFA.size :])
    flags = (_number(known[_IFA_FLAGS]) if _IFA_FLAGS in known else flags) & ~_UNSETTLED | _NO_DAD
    kept = netlink.replace(body[_IFA.size :], {_IFA_FLAGS: None})
    return _IFA.pack(family, bits, flags & 0xFF, scope, number[index]) + kept + netlink.word(_IFA_FLAGS, flags)


def write_routes(routing: Routing, number: t.Mapping[int, int]) -> t.List[str]:
    """Give this network namespace the nexthops, routes and rules of the node, and none besides.

    :param number: the index of each link here, by that on the node.
    :returns: what is not as on the node.
    """
    wanted = {_route(body, number): None for body in routing.routes}
    rules = [_rule(body) for body in routing.rules]
    with Netlink(netlink.ROUTE, buffer=netlink.LARGE) as kernel:
        # Groups after their members.
        ordered = sorted(routing.nexthops, key=lambda body: _NHA_GROUP in netlink.attributes(body[_NHM.size :]))
        kernel.change([Message(_NEW_NEXTHOP, _nexthop(body, number)) for body in ordered])
        same = {index: index for index in number.values()}
        # Routes first: whether a gateway can be reached depends on the rules.
        missing = _settle(kernel, wanted, same, _FEW)
        kernel.change([Message(_DELETE_RULE, body) for body in map(_rule, _read_rules(kernel))], 0)
        kernel.change([Message(_NEW_RULE, body) for body in rules], netlink.CREATE | netlink.EXCLUSIVE)
        missing = missing and _settle(kernel, wanted, same, _SETTLE_ATTEMPTS)
        texts = [_named_routes(missing)] if missing else []
        if sorted(map(_rule, _read_rules(kernel))) != sorted(rules):
            texts.append("some routing rules")
    return texts


def _named_routes(bodies: t.Sequence[bytes]) -> str:
    found = [str(route.destination) for route in routes(Routing((), (), (), tuple(bodies)))]
    more = " and %d more" % (len(found) - _SHOWN) if found[_SHOWN:] else ""
    return "%s %s%s" % ("route" if len(found) == 1 else "routes", ", ".join(found[:_SHOWN]), more)


def _settle(kernel: Netlink, wanted: t.Iterable[bytes], same: t.Mapping[int, int], attempts: int) -> t.List[bytes]:
    """Add and delete routes until those are there that are wanted. Return those that are not.

    The kernel adds routes for addresses of IPv6 by itself, a moment after the address, and while it does, a list of
    them may lack some. And a route over a gateway may come before the one that leads to the gateway.
    """
    missing = list(wanted)
    for attempt in range(attempts):
        if attempt > 1:
            time.sleep(_SETTLE_PAUSE)
        kernel.change([Message(_NEW_ROUTE, body) for body in missing], netlink.CREATE | netlink.APPEND)
        present = {_route(body, same) for body in _read_routes(kernel)}
        kernel.change([Message(_DELETE_ROUTE, body) for body in present.difference(wanted)], 0)
        missing = [body for body in wanted if body not in present]
        if not missing:
            break
    return missing


def _route(body: bytes, number: t.Mapping[int, int]) -> bytes:
    """Return a route as it can be added: without what the kernel adds, and with the numbers of links here."""
    head = list(_RTM.unpack_from(body))
    head[8] &= _ONLINK
    known = netlink.attributes(body[_ROUTE_HEADER:])
    changes: t.Dict[int, t.Optional[bytes]] = {_RTA_CACHEINFO: None}
    if _RTA_NH_ID in known:  # the kernel reports the nexthop's own attributes too, but refuses both
        changes.update(dict.fromkeys((_RTA_OIF, _RTA_GATEWAY, _RTA_VIA, _RTA_MULTIPATH, _RTA_ENCAP_TYPE, _RTA_ENCAP)))
    elif _RTA_OIF in known:
        changes[_RTA_OIF] = _renumber(known[_RTA_OIF], number)
    elif _RTA_MULTIPATH in known:
        changes[_RTA_MULTIPATH] = b"".join(
            _NEXTHOP_OF_ROUTE.pack(_NEXTHOP_OF_ROUTE.size + len(rest), flags & _ONLINK, weight, number.get(link, link))
            + rest
            for flags, weight, link, rest in _paths(known)
        )
    return _RTM.pack(*head) + netlink.replace(body[_ROUTE_HEADER:], changes)


def _renumber(index: bytes, number: t.Mapping[int, int]) -> bytes:
    here = _number(index)
    return struct.pack("=I", number.get(here, here))


def _paths(known: netlink.Attributes) -> t.Iterator[t.Tuple[int, int, int, bytes]]:
    """Return flags, weight, link and attributes of each path of a route that has several."""
    value, position = known.get(_RTA_MULTIPATH, b""), 0
    while position + _NEXTHOP_OF_ROUTE.size <= len(value):
        length, flags, weight, link = _NEXTHOP_OF_ROUTE.unpack_from(value, position)
        if length < _NEXTHOP_OF_ROUTE.size:
            return
        yield flags, weight, link, value[position + _NEXTHOP_OF_ROUTE.size : position + length]
        position += (length + 3) & ~3


def _nexthop(body: bytes, number: t.Mapping[int, int]) -> bytes:
    family, scope, protocol, reserved, flags = _NHM.unpack_from(body)
    data = netlink.only(body[_NHM.size :], _NHA_KEEPS)
    known = netlink.attributes(data)
    changes = {_NHA_OIF: _renumber(known[_NHA_OIF], number)} if _NHA_OIF in known else {}
    return _NHM.pack(family, 0, protocol, reserved, flags & _ONLINK) + netlink.replace(data, changes)


def _rule(body: bytes) -> bytes:
    flags = struct.unpack_from("=I", body, 8)[0] & _FIB_RULE_INVERT
    return body[:8] + struct.pack("=I", flags) + body[_RULE_HEADER:]
