# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pod, its node and the world outside, joined by cables, with real packets between them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import typing as t
from pathlib import Path

from .namespaces import Namespace

_PACKETS = str(Path(__file__).with_name("packets.py"))
_PORT = 8080


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
    """Connections that a client in the pod opens without a pause until :meth:`finish`."""

    def __init__(self, pod: Namespace, destinations: t.Sequence[str]) -> None:
        self._process = pod.popen(sys.executable, _PACKETS, "stream", str(_PORT), *destinations)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the client in the pod did not start"

    def finish(self) -> t.Dict[str, t.Dict[str, int]]:
        """Stop, and return for each destination how often it saw which source address."""
        return t.cast(t.Dict[str, t.Dict[str, int]], json.loads(self._process.communicate()[0]))


class Topology:
    """Three namespaces: ``pod`` -- ``node`` -- ``outside``; the node forwards. Delete it with :meth:`delete`."""

    def __init__(self) -> None:
        self._owned = contextlib.ExitStack()
        try:
            self.pod = self._owned.enter_context(Namespace())
            self.node = self._owned.enter_context(Namespace())
            self.outside = self._owned.enter_context(Namespace())
            for ns in (self.pod, self.node, self.outside):
                # No waiting for duplicate address detection.
                ns.run("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
            self._cable(self.pod, "eth0", self.node, "pods")
            self._cable(self.node, "eth0", self.outside, "eth0")
            for addresses in ADDRESSES.values():
                self._address(addresses)
            self._serve()
        except BaseException:
            self.delete()
            raise

    def delete(self) -> None:
        """Delete the namespaces and end all that runs in them."""
        self._owned.close()

    @staticmethod
    def _cable(one: Namespace, one_end: str, other: Namespace, other_end: str) -> None:
        one.run("ip", "link", "add", one_end, "type", "veth", "peer", "name", other_end, "netns", other.name)
        one.run("ip", "link", "set", one_end, "up")
        other.run("ip", "link", "set", other_end, "up")

    def _address(self, a: Addresses) -> None:
        add = "address add %s/%d dev %s" + (" nodad" if ":" in a.pod else "")
        host = 128 if ":" in a.pod else 32
        self.pod.run(
            "ip",
            "-batch",
            "-",
            stdin="\n".join(
                [
                    add % (a.pod, a.bits, "eth0"),
                    "route add default via %s" % a.gateway,
                ]
            ),
        )
        self.node.run(
            "ip",
            "-batch",
            "-",
            stdin="\n".join(
                [
                    add % (a.gateway, a.bits, "pods"),
                    add % (a.node, a.bits, "eth0"),
                    "route add default via %s" % a.peer,
                ]
            ),
        )
        self.outside.run(
            "ip",
            "-batch",
            "-",
            stdin="\n".join(
                [add % (a.peer, a.bits, "eth0"), "route add %s via %s" % (a.pods, a.node)]
                + [add % (address, host, "lo") for address in a.exempt + a.outside]
            ),
        )
        key = "net.ipv6.conf.all.forwarding" if ":" in a.pod else "net.ipv4.ip_forward"
        self.node.run("sysctl", "-qw", key + "=1")

    def _serve(self) -> None:
        served = [address for a in ADDRESSES.values() for address in a.exempt + a.outside]
        server = self.outside.popen(sys.executable, _PACKETS, "serve", str(_PORT), *served)
        self._owned.callback(_end, server)
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", "the server outside did not start"

    def ask(self, *destinations: str, protocol: str = "tcp", client: t.Optional[Namespace] = None) -> t.Dict[str, str]:
        """The source address that each destination sees when the pod, or another client, opens a connection to it."""
        out = (client or self.pod).run(sys.executable, _PACKETS, "ask", protocol, str(_PORT), *destinations)
        return t.cast(t.Dict[str, str], json.loads(out))

    def stream(self, *destinations: str) -> Stream:
        """Start a stream of new connections from the pod to the destinations, in turn."""
        return Stream(self.pod, destinations)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
