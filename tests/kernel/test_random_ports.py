# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random policies about source ports, one after the other: do connections get the ports that are promised, and do the
effects of a change tell all that changes of ports, and nothing else?

``IP_MASQ_RANDOM_PORTS`` says how many changes there are, ``IP_MASQ_RANDOM_SEED`` which ones.
"""

from __future__ import annotations

import collections
import ipaddress
import itertools
import json
import os
import random
import re
import socket
import struct
import typing as t

from strange import policies, ports
from support.modules import apply, run_module, run_modules
from support.packet_effects import Effect, effect_of
from support.topology import ADDRESSES, Topology

COUNT = int(os.environ.get("IP_MASQ_RANDOM_PORTS", "25"))
SEED = int(os.environ.get("IP_MASQ_RANDOM_SEED", "1"))

_FIXED = ("198.51.100.7", "198.51.100.8", "2001:db8:1::7", "2001:db8:1::8")
#: The first of a hundred each, in front of ranges, in them, and behind them. A port that has an address outside already
#: keeps that, whatever the rules say.
_OWN_PORTS = (2000, 3100, 3600, 5500, 20000)
#: Datagrams to one address and port, which need as many source ports.
_AT_ONCE = 5
_TYPES = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_PROTOCOLS = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}


class _Opened(t.NamedTuple):
    """Connections from some ports of a pod to one address and port."""

    source: str
    destination: str
    protocol: str
    port: int
    own_ports: t.Tuple[int, ...]

    def promised(self, policy: ports.Policy) -> ports.Ports:
        packet = policies.Packet(self.source, self.destination, self.protocol, self.port, "eth0")
        return policy.ports(packet)


#: By what a connection is known on the wire: the address and port that it left with.
_Seen = t.Dict[t.Tuple[str, str, int], t.Set[t.Tuple[str, int]]]


def _open(opened: t.Sequence[_Opened]) -> None:
    for one in opened:
        for own_port in one.own_ports:
            family = socket.AF_INET6 if ":" in one.source else socket.AF_INET
            with socket.socket(family, _TYPES[one.protocol]) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((one.source, own_port))
                sock.setblocking(False)
                sock.connect_ex((one.destination, one.port))
                if one.protocol == "udp":
                    sock.send(b"?")


def _observed(topology: Topology, opened: t.Sequence[_Opened]) -> _Seen:
    """Open connections, and return with which address and port they arrive outside."""
    wire = topology.outside.inside(socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
    # What is sent last arrives last.
    end = _Opened(ADDRESSES["ipv4"].pod, ADDRESSES["ipv4"].peer, "udp", 1, (1,))
    seen: _Seen = collections.defaultdict(set)
    with wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        wire.settimeout(20)
        topology.pod.inside(_open, opened)
        topology.pod.inside(_open, [end])
        while (end.destination, "udp", 1) not in seen:
            frame, about = wire.recvfrom(65535)
            if about[2] != socket.PACKET_OUTGOING and about[1] in (0x0800, 0x86DD):
                at, size, number, behind = (12, 4, frame[9], 20) if about[1] == 0x0800 else (8, 16, frame[6], 40)
                if number in _PROTOCOLS:
                    source, to = (str(ipaddress.ip_address(frame[at + n : at + n + size])) for n in (0, size))
                    own_port, port = struct.unpack_from("!HH", frame, behind)
                    seen[to, _PROTOCOLS[number], port].add((source, own_port))
    return seen


def _opened() -> t.List[_Opened]:
    """Return what is opened, each to a port of its own, so that none takes a source port from another."""
    numbers = itertools.count()
    found = []
    for a in ADDRESSES.values():
        for destination in (a.exempt[0], *a.outside):
            for protocol, base in itertools.product(_TYPES, _OWN_PORTS):
                number = next(numbers)
                found.append(_Opened(a.pod, destination, protocol, 10000 + number, (base + number,)))
            number = next(numbers)
            own_ports = tuple(range(30000 + _AT_ONCE * number, 30000 + _AT_ONCE * (number + 1)))
            found.append(_Opened(a.pod, destination, "udp", 10000 + number, own_ports))
    return found


def _fits(promised: ports.Ports, one: _Opened, seen: t.Set[t.Tuple[str, int]]) -> bool:
    """Whether connections arrived as promised."""
    if promised.address == "" or promised.address.startswith("pod"):
        return seen == {(one.source, own) for own in one.own_ports}
    family = ADDRESSES["ipv6" if ":" in one.source else "ipv4"]
    addresses = [family.node] if promised.address == "node" else promised.address.split()
    if not all(address in addresses for address, _port in seen):
        return False
    if not all(any(first <= port <= last for first, last in promised.ranges or ports.ANY) for _address, port in seen):
        return False
    if len(promised.ranges) < 2:
        if len(seen) != min(len(one.own_ports), promised.size):
            return False
        kept = [own for own in one.own_ports if not promised.ranges or is_between(own, *promised.ranges[0])]
        if promised.how != "ports kept if free":
            # That a single one is kept can be chance.
            return len(kept) < _AT_ONCE or not set(kept) <= {port for _address, port in seen}
        return set(kept) <= {port for _address, port in seen}
    # Each draws a range, which may have no port left.
    return 0 < len(seen) <= min(len(one.own_ports), promised.size)


def is_between(number: int, first: int, last: int) -> bool:
    return first <= number <= last


def _told(promised: ports.Ports, other: ports.Ports, word: str) -> bool:
    """Whether a word of an effect says what is promised, as far as it is not the same on the other side."""
    address = promised.address
    if address.startswith("pod"):
        if not word.startswith("pod"):
            return False
    elif not (word.startswith(("pod", "not managed")) if address == "" else word.startswith(address)):
        return False
    own = "pod"
    if not promised.address or not other.address or own in promised.address or own in other.address:
        return True
    named = re.search(r", ports ([0-9, -]+)", word)
    texts = sorted("%d-%d" % one if one[0] != one[1] else str(one[0]) for one in promised.ranges)
    differ = promised.ranges != other.ranges
    if sorted(named.group(1).strip().split(", ") if named else []) != (texts if differ else []):
        return False
    way = re.search(r" \((ports [^)]*)\)", word)
    return (way.group(1) if way else "") == (promised.how if other.how not in ("", promised.how) else "")


def _check(one: _Opened, effects: t.Sequence[Effect], before: ports.Ports, after: ports.Ports) -> bool:
    """Whether the effects say of connections what changes for them, and nothing where nothing does."""
    effect = effect_of(effects, one.source, one.destination, one.protocol, one.port, "eth0")
    if effect is None or before == after:
        return effect is None and before == after
    sizes: t.Tuple[t.Optional[int], ...] = (effect["ports_before"], effect["ports_after"])
    masqueraded = all(side.address and "pod" not in side.address for side in (before, after))
    wanted = (before.size, after.size) if masqueraded and before.size != after.size else (None, None)
    return sizes == wanted and _told(before, after, effect["before"]) and _told(after, before, effect["after"])


def test_effects_tell_each_change_of_ports(topology: Topology, show_table: t.Callable[..., None]) -> None:
    node = topology.node
    for address in _FIXED:
        bits, more = (64, ["nodad", "preferred_lft", "0"]) if ":" in address else (24, [])
        node.run("ip", "address", "add", "%s/%d" % (address, bits), "dev", "eth0", *more)
    generator = ports.Generator(random.Random("%d ports" % SEED), _FIXED)
    counts: t.Dict[str, int] = collections.Counter()
    before = generator.next()
    apply(node, **before)
    for number in range(COUNT):
        options = generator.next()
        told = "change %d: %s -> %s" % (number, json.dumps(before), json.dumps(options))
        planned = run_module(node, check=True, **options)
        done, again = run_modules(node, [options] * 2)
        assert not done.get("failed") and not again["changed"], (told, done, again)
        effects = done["effects"]
        assert [{**one, "open_connections": 0} for one in effects] == [
            {**one, "open_connections": 0} for one in planned["effects"]
        ], told
        policy, former = ports.Policy(options), ports.Policy(before)
        opened = _opened()
        node.run("conntrack", "-F")
        seen = _observed(topology, opened)
        for one in opened:
            now, then = one.promised(policy), one.promised(former)
            arrived = seen[one.destination, one.protocol, one.port]
            assert _fits(now, one, arrived), (told, one, now, arrived)
            assert _check(one, effects, then, now), (told, one, then, now, effects)
            counts["as before" if now == then else "changed"] += 1
            counts["connections"] += len(one.own_ports)
        fewer = any((one["ports_after"] or 0) < (one["ports_before"] or 0) for one in effects)
        assert fewer == ("source ports in place of" in " ".join(done.get("warnings", []))), (told, done)
        before = options
    assert min(counts.values()) > 0
    show_table("%d changes of ports" % COUNT, list(counts), [("", list(map(str, counts.values())))])
