# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Thousands of new connections a second, counted by the source address that they arrive with.

A set that is made anew can be empty for some microseconds: too short for one connection at a time to notice.
"""

from __future__ import annotations

import json
import sys
import typing as t

from .topology import Topology

_PROGRAM = """
import select, socket, sys
# Each datagram of a socket opens a connection: another port. Ends when standard input does.
sent = 0
to = [(socket.AF_INET6 if ":" in address else socket.AF_INET, address) for address in sys.argv[1:]]
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    socks = {family: socket.socket(family, socket.SOCK_DGRAM) for family, _address in to}
    for _ in range(500):
        sent += 1
        for family, address in to:
            try:
                socks[family].sendto(b"x", (address, 1 + sent % 65000))
            except OSError:
                pass
    for sock in socks.values():
        sock.close()
"""
_COUNTERS = """
table inet seen {
    set ipv4 { type ipv4_addr . ipv4_addr; size 1000; flags dynamic; counter; }
    set ipv6 { type ipv6_addr . ipv6_addr; size 1000; flags dynamic; counter; }
    chain c {
        type filter hook prerouting priority -300;
        meta l4proto udp ip daddr { %s } update @ipv4 { ip daddr . ip saddr } drop
        meta l4proto udp ip6 daddr { %s } update @ipv6 { ip6 daddr . ip6 saddr } drop
    }
}
"""
#: In place of no destination in a family.
_NONE = ("0.0.0.0", "::")


class Flood:
    """Connections from the pod to each destination, of both families, for as long as ``with`` lasts.

    Afterwards ``seen`` holds for each destination how often it saw which source address.
    """

    def __init__(self, topology: Topology, *destinations: str) -> None:
        self._topology = topology
        self._destinations = destinations
        self.seen: t.Dict[str, t.Dict[str, int]] = {}

    @property
    def sources(self) -> t.Dict[str, t.Set[str]]:
        """The source addresses that each destination saw."""
        return {destination: set(seen) for destination, seen in self.seen.items()}

    @property
    def least(self) -> int:
        """The connections to the destination that saw the fewest of them."""
        return min(sum(seen.values()) for seen in self.seen.values())

    def __enter__(self) -> Flood:
        # Else the table of connections overflows, and who counts open connections reads all of them.
        self._topology.node.run("sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=0")
        six = [address for address in self._destinations if ":" in address]
        four = [address for address in self._destinations if ":" not in address]
        counters = _COUNTERS % (", ".join(four or _NONE[:1]), ", ".join(six or _NONE[1:]))
        self._topology.outside.run("nft", "-f", "-", stdin=counters)
        self._process = self._topology.pod.popen(sys.executable, "-c", _PROGRAM, *self._destinations)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate()
        self.seen = {destination: {} for destination in self._destinations}
        for found in json.loads(self._topology.outside.run("nft", "-j", "list", "table", "inet", "seen"))["nftables"]:
            for element in found.get("set", {}).get("elem", ()):
                destination, source = element["elem"]["val"]["concat"]
                self.seen[destination][source] = element["elem"]["counter"]["packets"]
