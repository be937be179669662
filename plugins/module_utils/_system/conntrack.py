# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections that the kernel tracks, and its counters about them. Only ``remove`` writes.

Message layout: linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import math
import re
import typing as t

from .._errors import NodeError
from . import conntrack_counts, files, netlink
from .endpoints import Endpoint
from .families import IPV4, IPV6, PROTOCOLS, TCP, UDP, Family, of_address
from .netlink import Message, Netlink

_GET = 1 << 8 | 1
_DELETE = 1 << 8 | 2
#: CTA_*
_ORIGINAL, _REPLY, _ADDRESSES, _PROTOCOL, _TUPLE_ZONE = 1, 2, 1, 2, 3
_STATUS, _PROTOCOL_STATE, _TIMEOUT, _MARK, _USE, _ID, _MASTER, _ZONE = 3, 4, 7, 8, 11, 12, 14, 18
_COUNTERS, _TIMESTAMP, _START = (9, 10), 20, 1
#: CTA_PROTOINFO_TCP; in it the state, the window scales and the flags of both sides
_TCP, _TCP_STATE, _TCP_SCALES, _TCP_FLAGS = 1, 1, (2, 3), (4, 5)
#: IPS_ASSURED and IPS_NAT_CLASH, one of which a stream of UDP has; IPS_OFFLOAD and IPS_HW_OFFLOAD
_STREAM, _OFFLOADED = 1 << 2 | 1 << 12, 1 << 14 | 1 << 15
#: IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED
_UNACKNOWLEDGED = 0x10
#: Sysctls of the states of TCP, in the order of enum tcp_conntrack.
_TCP_STATES = (
    "", "syn_sent", "syn_recv", "established", "fin_wait", "close_wait", "last_ack", "time_wait", "close"
)  # fmt: skip
#: CTA_IP_V4_SRC, _DST, and those of IPv6; CTA_PROTO_NUM, _SRC_PORT, _DST_PORT
_SOURCE = {IPV4: 1, IPV6: 3}
_DESTINATION = {IPV4: 2, IPV6: 4}
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3

#: What stands in an example of a message for what a pattern of it passes over, and for what it keeps as a group.
_PASSED, _KEPT = b"\xfe", b"\xff"

_TIMEOUTS = "/proc/sys/net/netfilter/nf_conntrack_"


class Zones(t.NamedTuple):
    """Where a connection is tracked: in a zone of both directions, or of one of them; 0 is the zone of all others."""

    both: int = 0
    original: int = 0
    reply: int = 0


class Connection(t.NamedTuple):
    """A tracked connection: who opened it to whom, and as whom the other side sees the opener."""

    protocol: str
    source: Endpoint
    destination: Endpoint
    #: the opener as the other side sees it, and the other side as it sees itself
    seen: Endpoint
    remote: Endpoint
    zones: Zones = Zones()
    #: seconds since its last packet, at most; None: not known
    idle: t.Optional[int] = None
    #: seconds since the epoch; None: the kernel does not know it (nf_conntrack_timestamp)
    began: t.Optional[float] = None
    #: of one in the log; without end while it is tracked
    ended: float = math.inf


class Statistics(t.NamedTuple):
    """The table of connections, and what did not fit into it since the boot."""

    entries: int
    limit: int
    insert_failed: int
    drops: int
    #: connections that the kernel removed to make room for others
    early_drops: int = 0


class PortUse(t.NamedTuple):
    """A tracked connection of a protocol with ports, as the other side sees it. Addresses and ports are as in packets.

    No other connection with this remote address and port has the same source, while this one is tracked.
    """

    #: who opened it
    source: bytes
    source_port: bytes
    #: the opener as the other side sees it
    seen: bytes
    seen_port: bytes
    #: the other side as it sees itself
    remote: bytes
    remote_port: bytes
    #: IANA's number, one byte
    protocol: bytes
    #: of the answers; empty: the zone of all others
    zone: bytes
    #: seconds since its last packet, at most; None: not known
    idle: t.Optional[int]


class Flow(t.NamedTuple):
    """A tracked connection of any protocol, as rules at the hook postrouting meet it. Addresses are numbers."""

    source: int
    #: after DNAT
    destination: int
    #: the source as the other side sees it
    seen: int
    #: IANA's number
    protocol: int
    #: of the destination, after DNAT; 0 where the protocol has no ports
    port: int
    #: whether the destination was changed
    redirected: bool
    #: whether a helper expected it, so that no rule of nat decided about it
    related: bool
    #: names it to the kernel, and no equal one in another zone or after it
    key: bytes


class _Side(t.NamedTuple):
    """What the packets of one direction have, as in packets; what is not there is empty."""

    source: bytes
    destination: bytes
    #: IANA's number, one byte
    protocol: bytes
    source_port: bytes
    destination_port: bytes
    #: that of this direction alone
    zone: bytes

    @property
    def ends(self) -> t.Tuple[Endpoint, Endpoint]:
        """From where to where; of a protocol with ports."""
        pairs = ((self.source, self.source_port), (self.destination, self.destination_port))
        source, destination = (Endpoint(str(ipaddress.ip_address(one)), netlink.number(port)) for one, port in pairs)
        return source, destination


def find(seen: Endpoint, remote: t.Optional[Endpoint], protocol: str) -> t.List[Connection]:
    """Return the connections whose opener the other side sees as an endpoint, in whatever zone they are.

    :param remote: the other side; None: any.
    :param protocol: one that has ports.
    :raises NodeError: the kernel refuses the request.
    """
    family, number = of_address(seen.address), bytes([PROTOCOLS[protocol]])
    found = []
    # Asked for one connection by its addresses, the kernel looks into one zone only.
    for message in _tracked(family):
        known = netlink.attributes(message.body[4:])
        answered = _sides(known, family)[1]
        if answered.protocol == number and answered.ends[1] == seen and remote in (None, answered.ends[0]):
            found.append(_connection(protocol, known, family))
    return found


def _tracked(family: Family) -> t.Iterator[Message]:
    """Return the connections of a family as they come, some perhaps twice: of these the kernel reports no changes.

    :raises NodeError: the kernel refuses the request.
    """
    with Netlink(netlink.NETFILTER) as kernel:
        yield from kernel.each(_GET, netlink.family_head(family.number), "tracked connections")


def read(family: Family) -> t.Iterator[Flow]:
    """Return the connections of one family as they are read, some perhaps twice; none stays in memory.

    :raises NodeError: the kernel refuses the request.
    """
    for message in _tracked(family):
        flow = _flow(message, family)
        if flow is not None:
            yield flow


def read_ports(family: Family) -> t.Iterator[PortUse]:
    """Return the source ports in use in one family, as ``read``.

    :raises NodeError: the kernel refuses the request.
    """
    match, longest = _layout(family).match, functools.lru_cache(maxsize=None)(_longest_timeout)
    for message in _tracked(family):
        found = match(message.body)
        parts = found.groups() if found else _parts(netlink.attributes(message.body[4:]), family)
        if parts:
            source, _to, _of, source_port, _port, remote, seen, protocol, remote_port, seen_port, zone, *times = parts
            idle = _idle(longest, protocol[0], *times)
            yield PortUse(source, source_port, seen, seen_port, remote, remote_port, protocol, zone, idle)


def remove(family: Family, flows: t.Sequence[Flow]) -> int:
    """Remove connections, and return how many there were still; raise NodeError without an answer."""
    # Without the tuple in the key the kernel would remove all connections.
    messages = [Message(_DELETE, netlink.family_head(family.number) + flow.key) for flow in flows if flow.key]
    with Netlink(netlink.NETFILTER) as kernel:
        return kernel.change(messages, 0).count(0)


def statistics() -> t.Optional[Statistics]:
    """Read the statistics; None if the kernel does not track connections."""
    counts = conntrack_counts.read()
    return None if counts is None else Statistics(*counts)


def _sides(known: netlink.Attributes, family: Family) -> t.Tuple[_Side, _Side]:
    """Return both directions of a connection: that of its opener, and that of the answers."""
    return _side(known.get(_ORIGINAL, b""), family), _side(known.get(_REPLY, b""), family)


def _side(data: bytes, family: Family) -> _Side:
    known = netlink.attributes(data)
    addresses, ports = (netlink.attributes(known.get(kind, b"")) for kind in (_ADDRESSES, _PROTOCOL))
    return _Side(
        addresses.get(_SOURCE[family], b""),
        addresses.get(_DESTINATION[family], b""),
        ports.get(_NUMBER, b""),
        ports.get(_SOURCE_PORT, b""),
        ports.get(_DESTINATION_PORT, b""),
        known.get(_TUPLE_ZONE, b""),
    )


def _flow(message: Message, family: Family) -> t.Optional[Flow]:
    known = netlink.attributes(message.body[4:])
    opened, answered = _sides(known, family)
    if not opened.source or not answered.source or not answered.protocol or _ID not in known:
        return None
    return Flow(
        int.from_bytes(opened.source, "big"),
        int.from_bytes(answered.source, "big"),
        int.from_bytes(answered.destination, "big"),
        answered.protocol[0],
        int.from_bytes(answered.source_port, "big"),
        answered.source != opened.destination,
        _MASTER in known,
        netlink.only(message.body[4:], (_ORIGINAL, _ID, _ZONE)),
    )


def _connection(protocol: str, known: netlink.Attributes, family: Family) -> Connection:
    opened, answered = _sides(known, family)
    began = netlink.attributes(known.get(_TIMESTAMP, b"")).get(_START)
    return Connection(
        protocol,
        *opened.ends,
        *answered.ends[::-1],
        Zones(*map(netlink.number, (known.get(_ZONE), opened.zone, answered.zone))),
        _idle(_longest_timeout, PROTOCOLS[protocol], *_time_parts(known)),
        netlink.number(began) / 1e9 if began else None,
    )


def _idle(
    longest: t.Callable[..., int], protocol: int, status: bytes, timeout: t.Optional[bytes], *state: t.Optional[bytes]
) -> t.Optional[int]:
    """Return the seconds since the last packet, at most: what has passed of the longest timeout of its state.

    :param longest: as ``_longest_timeout``.
    :param state: of TCP, with the flags of both sides.
    """
    if timeout is None:
        return None
    # The kernel rounds down what is left. More than the longest is a timeout from elsewhere, such as a rule.
    idle = longest(protocol, status, *state) - int.from_bytes(timeout, "big")
    return None if idle < 0 else idle


def _longest_timeout(protocol: int, status: bytes, state: t.Optional[bytes] = None, *flags: t.Optional[bytes]) -> int:
    """Return the longest timeout of a connection in some state, in seconds; -1: not known."""
    bits = int.from_bytes(status, "big")
    if bits & _OFFLOADED:
        return -1
    if protocol == UDP:
        return _longest("udp_timeout_stream" if bits & _STREAM else "udp_timeout")
    if protocol != TCP:
        return _longest("sctp_timeout_established")
    number = state[0] if state else 0
    if not 0 < number < len(_TCP_STATES):
        return -1
    longest = _longest("tcp_timeout_" + _TCP_STATES[number])
    if any(side and side[0] & _UNACKNOWLEDGED for side in flags):
        return min(longest, _longest("tcp_timeout_unacknowledged", "tcp_timeout_max_retrans"))
    return longest


def _time_parts(known: netlink.Attributes) -> t.Tuple[t.Any, ...]:
    """Return what ``_idle`` needs of a connection, behind the protocol."""
    state = netlink.attributes(netlink.attributes(known.get(_PROTOCOL_STATE, b"")).get(_TCP, b""))
    flags = (state.get(side) for side in _TCP_FLAGS)
    return known.get(_STATUS, b""), known.get(_TIMEOUT), state.get(_TCP_STATE), *flags


def _longest(*names: str) -> int:
    """Return the longest of some timeouts of the kernel, in seconds; -1 if it does not tell."""
    with contextlib.suppress(NodeError, ValueError):
        return max(int(files.read(_TIMEOUTS + name) or b"") for name in names)
    return -1


def _parts(known: netlink.Attributes, family: Family) -> t.Optional[t.Tuple[t.Any, ...]]:
    """Return of a connection what the groups of ``_layout`` are; None if its protocol has no ports."""
    opened, answered = _sides(known, family)
    if not (opened.source and answered.source and opened.source_port and answered.source_port):
        return None
    return (*opened[:5], *answered[:5], answered.zone or known.get(_ZONE, b""), *_time_parts(known))


def _layout(family: Family) -> t.Pattern[bytes]:
    """Return a pattern of the usual message, whose groups are those of ``_parts``. Parsing takes three times as long.

    What it does not match, such as connections in zones, is parsed.
    """

    def value(kind: int, size: int, filling: bytes = _PASSED) -> bytes:
        return netlink.attribute(kind, filling * size)

    addresses = (value(kind[family], family.size, _KEPT) for kind in (_SOURCE, _DESTINATION))
    ports = (value(kind, 2, _KEPT) for kind in (_SOURCE_PORT, _DESTINATION_PORT))
    side = netlink.nest(_ADDRESSES, *addresses) + netlink.nest(_PROTOCOL, value(_NUMBER, 1, _KEPT), *ports)
    words = b"|".join(_pattern(value(kind, 4)) for kind in (_MARK, _USE, _ID))
    counters = b"".join(netlink.nest(kind, value(1, 8), value(2, 8)) for kind in _COUNTERS)
    scales = (value(kind, 1) for kind in _TCP_SCALES)
    states = value(_TCP_STATE, 1, _KEPT), *scales, *(value(kind, 2, _KEPT) for kind in _TCP_FLAGS)
    optional = (
        counters,
        netlink.nest(_TIMESTAMP, value(_START, 8)),
        netlink.nest(_PROTOCOL_STATE, netlink.nest(_TCP, *states)),
    )
    parts = (
        b"(?s).{4}",
        _pattern(netlink.nest(_ORIGINAL, side) + netlink.nest(_REPLY, side)),
        b"()",
        _pattern(value(_STATUS, 4, _KEPT)),
        b"(?:%s)*" % words,
        _pattern(value(_TIMEOUT, 4, _KEPT)),
        *(b"(?:%s)?" % _pattern(one) for one in optional),
    )
    return re.compile(b"".join(parts))


def _pattern(example: bytes) -> bytes:
    passing = re.sub(_PASSED + b"+", lambda some: b".{%d}" % len(some[0]), re.escape(example))
    return re.sub(_KEPT + b"+", lambda some: b"(.{%d})" % len(some[0]), passing)
