# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel itself says of rules: packets arrive over a link, and each rule counts those that it matches.

Every rule stands alone in a chain ``pN``, to which the chain of the hook jumps.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import nft_rules, xt_tables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.referenced_objects import Known
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import (
    CT_MARK,
    DNAT,
    INVALID,
    MARK,
    PICKED_UP,
    RELATED,
    STRAY,
    UNTRACKED,
    Branch,
    Match,
    Rule,
    RuleTable,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals, ipsets, nf_tables, xtables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import BY_VERSION, WITH_PORTS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import links, packets

from .namespaces import Namespace, until

NODE_MAC, FAR_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
ICMP, TCP, UDP, ICMPV6, SCTP = 1, 6, 17, 58, 132
#: by source port: the mark and the mark of the connection that packets get; what conntrack does not see, or refuses
MARKS = {2001: 0x4000, 2002: 0x8005, 2003: 0x10}
CT_MARKS = {2011: 0x80, 2012: 0x7}
NOT_TRACKED, REFUSED = 2021, 2022


class Probe(t.NamedTuple):
    """A packet."""

    source: str
    destination: str
    protocol: int
    source_port: int
    port: int
    link: str = "cali1"

    @property
    def values(self) -> t.Dict[str, int]:
        """What is tracked of it."""
        untracked = {NOT_TRACKED: 1, REFUSED: INVALID}.get(self.source_port, 0)
        return {
            MARK: MARKS.get(self.source_port, 0),
            CT_MARK: CT_MARKS.get(self.source_port, 0),
            DNAT: 0,
            UNTRACKED: untracked,
            RELATED: 0,
            PICKED_UP: STRAY | 0x02 if untracked == INVALID else 0,
        }

    def fulfils(self, match: Match) -> bool:
        """Return whether a condition means it, before it is known where it leaves."""
        source, destination = int(ipaddress.ip_address(self.source)), int(ipaddress.ip_address(self.destination))
        service = self.protocol << 16 | (self.port if self.protocol in WITH_PORTS else 0)
        for allowed, number in (
            (match.source, source),
            (match.destination, destination),
            (match.service, service),
            (match.source_port, self.source_port),
            (match.original_destination, destination),
            (match.original_service, service),
        ):
            if allowed is not None and not intervals.contains(allowed, number):
                return False
        values = self.values
        return (
            all(one.match(self.link) for one in match.incoming)
            and all(one.match("") for one in match.outgoing)
            and all(intervals.contains(one.allowed, values[one.subject] & one.mask) for one in match.tests)
        )

    def branch(self, rule: Rule) -> t.Optional[Branch]:
        """Return the branch of a rule that it takes."""
        return next((one for one in rule.branches if self.fulfils(one.match)), None)

    def frame(self) -> bytes:
        """Return its bytes."""
        data = packets.packet(self.protocol, self.source, self.destination, self.source_port, self.port, 77)
        if self.source_port == REFUSED:
            data = data[:-1] + bytes((data[-1] ^ 0xFF,))  # the checksum is wrong
        kind = packets.IPV6 if ":" in self.source else packets.IPV4
        return packets.frame(NODE_MAC, FAR_MAC, kind, data)


_LINKS = """
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.ip_forward=1
sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_dad=0
ip link add cali1 address 02:00:00:00:00:01 type veth peer name far1 address 02:00:00:00:00:02
ip link add vx1 address 02:00:00:00:00:01 type veth peer name far2 address 02:00:00:00:00:02
ip link add eth0 type veth peer name far0
sysctl -qw net.ipv6.conf.far0.disable_ipv6=1 net.ipv6.conf.far1.disable_ipv6=1 net.ipv6.conf.far2.disable_ipv6=1
ip address add 10.244.1.1/24 dev cali1
ip address add fd00:1::1/64 dev cali1 nodad
ip address add 198.51.100.1/24 dev eth0
ip address add fd00:99::1/64 dev eth0 nodad
ip link set cali1 up
ip link set far1 up
ip link set vx1 up
ip link set far2 up
ip link set eth0 up
ip link set far0 up
ip route add default via 198.51.100.254
ip -6 route add default via fd00:99::fe
ip neighbour add 198.51.100.254 lladdr 02:00:00:00:00:09 dev eth0
ip -6 neighbour add fd00:99::fe lladdr 02:00:00:00:00:09 dev eth0
"""
_MARKING = """
table inet probe_marks {
    chain early {
        type filter hook prerouting priority -300;
        th sport %(not_tracked)d notrack
    }
    chain late {
        type filter hook prerouting priority -160;
        %(marks)s
    }
}
""" % {
    "not_tracked": NOT_TRACKED,
    "marks": "\n".join(
        ["th sport %d meta mark set 0x%x" % one for one in MARKS.items()]
        + ["th sport %d ct mark set 0x%x" % one for one in CT_MARKS.items()]
    ),
}
_COUNTED = re.compile(r"\[(\d+):\d+\] -A (p\d+) ")


class Judge:
    """A node with rules, and packets that it receives."""

    def __init__(self, node: Namespace, version: int) -> None:
        self.node = node
        self.version = version
        for line in _LINKS.strip().splitlines():
            node.run(*line.split())
        node.run("nft", "-f", "-", stdin=_MARKING)
        self._sockets = {name: node.inside(self._open, far) for name, far in (("cali1", "far1"), ("vx1", "far2"))}

    @staticmethod
    def _open(name: str) -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        made.bind((name, 0))
        return made

    def known(self) -> Known:
        """Return what readers need of this node."""
        sets = self.node.inside(ipsets.read)
        found = self.node.inside(links.read)
        if self.version == 4:
            local = ["127.0.0.0/8", "10.244.1.1/32", "198.51.100.1/32"]
            broadcast = ["10.244.1.255/32", "198.51.100.255/32", "255.255.255.255/32"]
            multicast = ["224.0.0.0/4"]
        else:
            listed = self.node.run("ip", "-6", "-o", "address").split("\n")
            local = [line.split()[3].split("/")[0] for line in listed if line]
            broadcast, multicast = [], ["ff00::/8"]
        types = {
            2: intervals.of_networks(sorted(map(ipaddress.ip_network, local))),
            3: intervals.of_networks(map(ipaddress.ip_network, broadcast)),
            5: intervals.of_networks(map(ipaddress.ip_network, multicast)),
        }
        named = {one.index: one.name for one in found}
        return Known(BY_VERSION[self.version], types, named, sets)

    def tables(self) -> t.List[RuleTable]:
        """Return the tables of nf_tables as they are read."""
        known = self.known()
        read = [nft_rules.read(table, known) for table in self.node.inside(nf_tables.read)]
        return [one for one in read if one is not None and one.title != "inet probe_marks"]

    def legacy_table(self, name: str) -> RuleTable:
        """Return a table of iptables-legacy as it is read."""
        table = self.node.inside(xtables.read, BY_VERSION[self.version], name)
        read = xt_tables.read(table, self.known())
        assert read is not None
        return read

    def send(self, probe: Probe, count: t.Callable[[], t.Dict[str, int]]) -> t.Set[str]:
        """Send a packet and return the chains of the rules that matched it.

        :param count: how many packets each rule has seen; ``seen`` sees all of them.
        """
        before = count()
        self._sockets[probe.link].send(probe.frame())
        after: t.Dict[str, int] = {}

        def arrived() -> bool:
            after.update(count())
            return after["seen"] > before["seen"]

        until(arrived, "the packet %s" % (probe,))
        return {name for name, number in after.items() if number > before[name] and name != "seen"}

    def nft_counts(self, family: str) -> t.Dict[str, int]:
        """Return the counters of the rules in the table ``probe``."""
        listed = json.loads(self.node.run("nft", "-j", "list", "table", family, "probe"))["nftables"]
        rules = [one["rule"] for one in listed if "rule" in one]
        return {rule["chain"]: one["counter"]["packets"] for rule in rules for one in rule["expr"] if "counter" in one}

    def iptables_counts(self) -> t.Dict[str, int]:
        """Return the counters of the rules in the table mangle of iptables-nft."""
        command = "iptables-nft-save" if self.version == 4 else "ip6tables-nft-save"
        listed = self.node.run(command, "-c", "-t", "mangle")
        found: t.Dict[str, int] = {}
        for line in listed.splitlines():
            matched = _COUNTED.match(line)
            if matched:
                found[matched.group(2)] = int(matched.group(1))
            elif "--comment seen" in line or '--comment "seen"' in line:
                found["seen"] = int(line[1:].split(":")[0])
        return found

    def close(self) -> None:
        """Close the sockets."""
        for one in self._sockets.values():
            one.close()
