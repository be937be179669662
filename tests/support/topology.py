# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pod, its node and the world outside, joined by cables, with real packets between them."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import multiprocessing
import re
import socket
import sys
import typing as t
from pathlib import Path

from . import packets
from .namespaces import Namespace, until

_FORK = multiprocessing.get_context("fork")
_PORT = 8080
#: linux/ipv6_route.h
_RTF_LOCAL = 0x80000000


class Addresses(t.NamedTuple):
    """Who has which address in one family. ``exempt`` and ``outside`` are both served by the world outside; the
    first lie in the ranges that are exempt by default (IPv6 has no such default: in fc00::/7)."""

    pod: str
    gateway: str
    node: str
    peer: str
    exempt: t.Tuple[str, ...]
    outside: t.Tuple[str, ...]
    bits: int
    pods: str


ADDRESSES: t.Dict[str, Addresses] = {
    "ipv4": Addresses(
        pod="10.244.1.2",
        gateway="10.244.1.1",
        node="198.51.100.1",
        peer="198.51.100.2",
        exempt=("10.99.0.1", "172.20.0.1", "192.168.77.1"),
        outside=("203.0.113.10", "192.0.2.10"),
        bits=24,
        pods="10.244.1.0/24",
    ),
    "ipv6": Addresses(
        pod="fd00:10:244:1::2",
        gateway="fd00:10:244:1::1",
        node="2001:db8:1::1",
        peer="2001:db8:1::2",
        exempt=("fd00:99::1", "fc00:77::1"),
        outside=("2001:db8:99::1", "2001:db8:77::1"),
        bits=64,
        pods="fd00:10:244:1::/64",
    ),
}


class Stream:
    """Connections of TCP that a client in the pod opens one after the other until ``finish``."""

    def __init__(self, pod: Namespace, destinations: t.Sequence[str], how: str) -> None:
        self._process = pod.popen(sys.executable, packets.__file__, how, str(_PORT), *destinations)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the client in the pod did not start"

    def finish(self) -> t.Dict[str, t.Dict[str, int]]:
        """Stop, and return for each destination how often it saw which source address."""
        return t.cast(t.Dict[str, t.Dict[str, int]], json.loads(self._process.communicate()[0]))


class Topology:
    """Three namespaces: ``pod`` -- ``node`` -- ``outside``; the node forwards. Delete it with ``delete``."""

    def __init__(self) -> None:
        self._owned = contextlib.ExitStack()
        try:
            self.pod = self._owned.enter_context(Namespace())
            self.node = self._owned.enter_context(Namespace())
            self.outside = self._owned.enter_context(Namespace())
            for ns in (self.pod, self.node, self.outside):
                # No waiting for duplicate address detection.
                _sysctl(ns, **{"ipv6/conf/all/accept_dad": 0, "ipv6/conf/default/accept_dad": 0})
            _sysctl(self.node, **{"ipv4/ip_forward": 1, "ipv6/conf/all/forwarding": 1})
            self._connect()
            served = [address for a in ADDRESSES.values() for address in a.exempt + a.outside]
            self._owned.enter_context(serving(self.outside, _PORT, served))
        except BaseException:
            self.delete()
            raise

    def delete(self) -> None:
        """Delete the namespaces and end all that runs in them."""
        self._owned.close()

    def _connect(self) -> None:
        pod, outside = _cable("eth0", "pods", self.node), _cable("eth0", "eth0", self.node)
        node = ["link set pods up", "link set eth0 up"]
        for a in ADDRESSES.values():
            add = "address add %s/%d dev %s" + (" nodad" if ":" in a.pod else "")
            host = 128 if ":" in a.pod else 32
            pod += [add % (a.pod, a.bits, "eth0")]
            node += [add % (a.gateway, a.bits, "pods"), add % (a.node, a.bits, "eth0")]
            node += ["route add default via %s" % a.peer]
            outside += [add % (a.peer, a.bits, "eth0"), "route add %s via %s" % (a.pods, a.node)]
            outside += [add % (address, host, "lo") for address in a.exempt + a.outside]
            pod += ["route add default via %s" % a.gateway]
        for ns, lines in ((self.pod, pod), (self.outside, outside), (self.node, node)):
            ns.run("ip", "-batch", "-", stdin="\n".join(lines))
            added = re.findall(r"^address add (\S*:\S*)/", "\n".join(lines), re.MULTILINE)
            until(functools.partial(ns.inside, _are_local, added), "routes to the addresses of IPv6")

    def ask(self, *destinations: str, protocol: str = "tcp", client: t.Optional[Namespace] = None) -> t.Dict[str, str]:
        """Return the source address that each destination sees when the pod, or another client, connects to it."""
        return ask(client or self.pod, protocol, _PORT, *destinations)

    def stream(self, *destinations: str) -> Stream:
        """Start a stream of new connections from the pod to the destinations, in turn; each ends with a reset."""
        return Stream(self.pod, destinations, "stream")

    def talk(self, *destinations: str) -> Stream:
        """Do the same with connections that end in order."""
        return Stream(self.pod, destinations, "talk")


def ask(ns: Namespace, protocol: str, port: int, *destinations: str) -> t.Dict[str, str]:
    """Return the source address that each destination sees when a client in a namespace opens a connection to it."""
    return {one: ns.inside(packets.ask, protocol, port, one) for one in destinations}


def _sysctl(ns: Namespace, **values: int) -> None:
    for name, value in values.items():
        ns.inside(Path("/proc/sys/net", name).write_text, str(value))


def _are_local(addresses: t.Iterable[str]) -> bool:
    """Return whether the kernel takes packets to these addresses of IPv6 for its own.

    Without duplicate address detection too it adds the route later, under a lock that all namespaces share.
    """
    with open("/proc/thread-self/net/ipv6_route", encoding="ascii") as routes:
        found = {words[0] for words in map(str.split, routes) if int(words[8], 16) & _RTF_LOCAL}
    return found >= {ipaddress.IPv6Address(address).packed.hex() for address in addresses}


def _cable(end: str, other_end: str, other: Namespace) -> t.List[str]:
    """Return what ip is told where one end of the cable is."""
    return [
        "link add %s type veth peer name %s netns %s" % (end, other_end, other.name),
        "link set %s up" % end,
    ]


@contextlib.contextmanager
def serving(ns: Namespace, port: int, addresses: t.Sequence[str]) -> t.Iterator[None]:
    """Answer TCP connections and UDP datagrams with the address of the sender, see ``packets``."""
    sockets = ns.inside(packets.listen, port, addresses)
    server = _FORK.Process(target=_answer, args=(ns, sockets), daemon=True)
    server.start()
    for sock in sockets:
        sock.close()
    try:
        yield
    finally:
        server.kill()
        server.join()


def _answer(ns: Namespace, sockets: t.Sequence[socket.socket]) -> None:
    ns.enter()  # so that it ends with the namespace
    packets.answer(sockets)
