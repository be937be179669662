# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Thousands of new connections a second, counted by the source address that they arrive with.

A set that is made anew can be empty for some microseconds: too short for one connection at a time to notice.
"""

from __future__ import annotations

import re
import sys
import typing as t

from .topology import ADDRESSES, Topology

_PROGRAM = """
import select, socket, sys
# Each datagram of a socket opens a connection: another port. Ends when standard input does.
sent = 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(500):
            sent += 1
            for destination in sys.argv[1:]:
                try:
                    sock.sendto(b"x", (destination, 1 + sent % 65000))
                except OSError:
                    pass
"""
_COUNTERS = """
table ip seen {
    chain c {
        type filter hook prerouting priority -300;
        ip saddr %(pod)s ip daddr %(exempt)s counter drop
        ip saddr %(node)s ip daddr %(outside)s counter drop
        ip saddr %(node)s ip daddr %(exempt)s counter drop
        ip saddr %(pod)s ip daddr %(outside)s counter drop
    }
}
"""


class Flood:
    """IPv4 connections from the pod to an exempt destination and to one outside, for as long as C(with) lasts.

    Afterwards ``right`` and ``wrong`` hold how many arrived with the right and the wrong address: (exempt, outside).
    """

    right: t.Tuple[int, int]
    wrong: t.Tuple[int, int]

    def __init__(self, topology: Topology, exempt: str, outside: str) -> None:
        self._topology = topology
        self._destinations = (exempt, outside)

    def __enter__(self) -> Flood:
        a = ADDRESSES["ipv4"]
        exempt, outside = self._destinations
        # Else the table of connections overflows.
        self._topology.node.run("sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=1")
        values = {"pod": a.pod, "node": a.node, "exempt": exempt, "outside": outside}
        self._topology.outside.run("nft", "-f", "-", stdin=_COUNTERS % values)
        self._process = self._topology.pod.popen(sys.executable, "-c", _PROGRAM, exempt, outside)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate()
        listed = self._topology.outside.run("nft", "list", "table", "ip", "seen")
        counted = [int(packets) for packets in re.findall(r"packets ([0-9]+)", listed)]
        self.right = (counted[0], counted[1])
        self.wrong = (counted[2], counted[3])
