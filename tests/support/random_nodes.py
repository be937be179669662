# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes made by chance, with pods and a world around them, and real packets through them.

Each has several uplinks, pods on a bridge and on cables of their own, policy routing, ipsets, rules of both variants of
iptables and tables of nft. What real packets of real sockets look like outside is what a twin has to answer.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import time
import typing as t

from .leak_packets import checksum
from .unnamed_namespaces import Net

#: Seconds in which a packet that is expected, and one that is not, may come out.
PATIENCE, SILENCE = 20.0, 0.03

_MAGIC = b"random node"
_BRIDGE_MAC, _POD_MAC = "02:00:00:00:02:01", "02:00:00:00:01:%02x"
_POSTROUTING_PRIORITIES = (50, 60, 80, 90, 95, 99, 100, 101, 105, 110)


class Words(t.NamedTuple):
    """One version of IP: its programs, and what addresses there are."""

    version: int
    family: str
    ranges: t.Tuple[str, ...]
    far: t.Tuple[str, ...]
    bridge: str
    bridge_pods: t.Tuple[str, ...]
    cable: str
    cable_pods: t.Tuple[str, ...]
    uplinks: t.Tuple[str, ...]
    gateways: t.Tuple[str, ...]
    bits: int
    whole: int
    others: t.Tuple[str, ...]


WORDS = {
    4: Words(
        version=4,
        family="ip",
        ranges=(
            "10.0.0.0/8", "10.96.0.0/12", "10.244.0.0/16", "10.244.1.0/24", "10.244.2.0/24", "172.16.0.0/12",
            "192.168.0.0/16", "192.168.7.0/24", "203.0.113.0/24", "203.0.113.128/25", "198.18.0.0/15", "8.8.8.8/32",
            "10.96.0.10/32", "0.0.0.0/1",
        ),  # fmt: skip
        far=(
            "10.1.2.3", "10.96.0.10", "10.97.1.1", "172.20.0.5", "192.168.7.9", "192.168.200.1", "203.0.113.5",
            "203.0.113.200", "198.18.3.4", "8.8.8.8", "100.64.0.1", "151.101.1.1",
        ),  # fmt: skip
        bridge="10.244.1.1",
        bridge_pods=("10.244.1.10", "10.244.1.77", "10.244.1.200"),
        cable="10.244.2.1",
        cable_pods=("10.244.2.10", "10.244.2.130"),
        uplinks=("198.51.100.1", "198.51.101.1", "198.51.102.1"),
        gateways=("198.51.100.2", "198.51.101.2", "198.51.102.2"),
        bits=24,
        whole=32,
        others=("198.51.100.77", "192.0.2.1"),
    ),
    6: Words(
        version=6,
        family="ip6",
        ranges=(
            "fd00::/8", "fd00:96::/112", "fd00:244::/32", "fd00:244:1::/64", "fd00:244:2::/64", "fc00::/7",
            "2001:db8:5::/48", "2001:db8:5:80::/57", "2001:db8:9::9/128", "fd00:96::a/128",
        ),  # fmt: skip
        far=(
            "fd00:1::3", "fd00:96::a", "fc00:7::1", "2001:db8:5::5", "2001:db8:5:81::1", "2001:db8:9::9",
            "2600:1::1",
        ),  # fmt: skip
        bridge="fd00:244:1::1",
        bridge_pods=("fd00:244:1::10", "fd00:244:1::77", "fd00:244:1::200"),
        cable="fd00:244:2::1",
        cable_pods=("fd00:244:2::10", "fd00:244:2::130"),
        uplinks=("2001:db8:100::1", "2001:db8:101::1", "2001:db8:102::1"),
        gateways=("2001:db8:100::2", "2001:db8:101::2", "2001:db8:102::2"),
        bits=64,
        whole=128,
        others=("2001:db8:100::77", "2001:db8:102::1"),
    ),
}  # fmt: skip


class Sent(t.NamedTuple):
    """A packet to send: the pod that sends it, None for the node, and its number among the pods."""

    source: t.Optional[str]
    pod: t.Optional[int]
    destination: str
    protocol: str
    port: int
    source_port: int


class Seen(t.NamedTuple):
    """Where a packet came out, and its addresses and port there."""

    place: str
    source: str
    destination: str
    port: int


class RandomNode:
    """Made in the process that ``unnamed_namespaces.carry_out`` starts. The node itself is the namespace ``node``."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.pick = self.chance.choice
        self.log: t.List[str] = []
        self.node, self.outside = Net(), Net()
        self.pods: t.List[Net] = []
        #: of each pod: the name of its link on the node, and its addresses by version
        self.pod_links: t.List[str] = []
        self.pod_addresses: t.List[t.Dict[int, str]] = []
        self._bridged = self.chance.randint(1, 3)
        self._cabled = self.chance.randint(0, 2)
        self._uplinks = self.chance.randint(1, 3)
        for net in (self.node, self.outside):
            net.set(ipv6__conf__all__accept_dad=0, ipv6__conf__default__accept_dad=0)
        self._settings()
        self._links()
        for words in WORDS.values():
            self._addresses(words)
            self._policy_routing(words)
        self._sets()
        self._rules()
        self.send = Eyes(self).send

    def some(self, choices: t.Sequence[t.Any], least: int, most: int) -> t.List[t.Any]:
        """Choose a few of them."""
        return self.chance.sample(list(choices), min(len(choices), self.chance.randint(least, most)))

    def maybe(self, probability: float) -> bool:
        """Decide by chance."""
        return self.chance.random() < probability

    # links, addresses, routes

    def _settings(self) -> None:
        self.node.set(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1, ipv6__auto_flowlabels=0)
        self.node.set(ipv4__conf__all__rp_filter=self.pick((0, 0, 0, 1, 2)))
        # By ports the kernel shares connections out with a number that it makes up for each socket.
        self.node.set(ipv4__fib_multipath_hash_policy=0, ipv6__fib_multipath_hash_policy=0)
        self._shared = self.maybe(0.2)
        self.node.set(ipv4__conf__all__route_localnet=self.pick((0, 1)))

    def _links(self) -> None:
        for number in range(self._uplinks):
            self.node.cable("eth%d" % number, self.outside, "up%d" % number)
            # Neighbours that nobody has asked for are not compared: every one is there.
            self.node.batch("link set eth%d arp off" % number)
        self.node.batch("link add cni0 address %s type bridge" % _BRIDGE_MAC, "link set cni0 up")
        call = self.pick((0, 1))
        self.node.set(**{"bridge__bridge-nf-call-iptables": call, "bridge__bridge-nf-call-ip6tables": call})
        for number in range(self._bridged):
            self._pod("veth%d" % number)
            self.node.batch("link set veth%d master cni0" % number)
        for number in range(self._cabled):
            self._pod("cali%d" % number)
        if self.maybe(0.2):
            self.node.batch("link add empty0 type bridge", "link set empty0 up", "address add 172.17.0.1/16 dev empty0")
        if self.maybe(0.2):  # without a carrier
            self.node.batch("link add off0 type veth peer name off1", "link set off0 up")
            self.node.batch("address add 172.18.0.1/16 dev off0", "route add 198.19.0.0/16 dev off0")
        for name in ["eth%d" % number for number in range(self._uplinks)] + ["cni0"]:
            self.node.set(**{"ipv4__conf__%s__rp_filter" % name: self.pick((0, 0, 1, 2))})
            if self.maybe(0.03):
                self.node.set(**{"ipv4__conf__%s__forwarding" % name: 0})

    def _pod(self, link: str) -> None:
        pod = Net()
        # Where several routes are equal, the kernel chooses by a label that it makes up for each connection of IPv6.
        pod.set(ipv6__conf__all__accept_dad=0, ipv6__conf__default__accept_dad=0, ipv6__auto_flowlabels=0)
        self.node.cable(link, pod, "eth0")
        if not link.startswith("veth"):
            self.node.batch("link set %s address %s" % (link, _BRIDGE_MAC))
        pod.batch("link set eth0 address %s" % (_POD_MAC % len(self.pods)))
        self.pods.append(pod)
        self.pod_links.append(link)
        self.pod_addresses.append({})

    def _addresses(self, words: Words) -> None:
        nodad = " nodad" if words.version == 6 else ""
        lines = ["address add %s/%d dev cni0%s" % (words.bridge, words.bits, nodad)]
        for number in range(self._uplinks):
            lines.append("address add %s/%d dev eth%d%s" % (words.uplinks[number], words.bits, number, nodad))
        if self.maybe(0.3):
            lines.append("address add %s/%d dev eth0%s" % (words.others[0], words.bits, nodad))
        for number, (pod, link) in enumerate(zip(self.pods, self.pod_links)):
            bridged = number < self._bridged
            address = words.bridge_pods[number] if bridged else words.cable_pods[number - self._bridged]
            self.pod_addresses[number][words.version] = address
            if bridged:
                pod.batch(
                    "address add %s/%d dev eth0%s" % (address, words.bits, nodad),
                    "route add default via %s" % words.bridge,
                    version=words.version,
                )
                continue
            lines.append("address add %s/%d dev %s%s" % (words.cable, words.whole, link, nodad))
            lines.append("route add %s/%d dev %s" % (address, words.whole, link))
            pod.batch(
                "address add %s/%d dev eth0%s" % (address, words.whole, nodad),
                "route add %s/%d dev eth0" % (words.cable, words.whole),
                "route add default via %s" % words.cable,
                version=words.version,
            )
        if self._uplinks > 1 and self._shared and self.maybe(0.3):
            objects = [
                "nexthop add id %d via %s dev eth%d" % (10 * words.version + number, words.gateways[number], number)
                for number in range(self._uplinks)
            ]
            group = "/".join("%d" % (10 * words.version + number) for number in range(self._uplinks))
            self.log += [*objects, *lines]
            self.node.batch(*lines, *objects, version=words.version)
            self.node.run("ip", "nexthop", "add", "id", "%d" % words.version, "group", group)
            lines = ["route add default nhid %d" % words.version]
        elif self._uplinks > 1 and self._shared:
            hops = " ".join(
                "nexthop via %s dev eth%d weight %d" % (words.gateways[number], number, self.chance.randint(1, 3))
                for number in range(self._uplinks)
            )
            lines.append("route add default %s" % hops)
        else:
            lines.append("route add default via %s dev eth0" % words.gateways[0])
        for network in self.some(words.ranges[3:], 0, 3):
            lines.append(self._route(words, network))
        self.log += lines
        self.node.batch(*lines, version=words.version)
        self._neighbours(words)

    def _neighbours(self, words: Words) -> None:
        """Let neighbours find each other first: rules can prevent it with IPv6, which is not compared."""
        known = "neigh replace %s lladdr %s dev %s"
        lines = []
        for number, pod in enumerate(self.pods):
            address = self.pod_addresses[number][words.version]
            bridged = number < self._bridged
            link = "cni0" if bridged else self.pod_links[number]
            lines.append(known % (address, _POD_MAC % number, link))
            beside = [known % (words.bridge if bridged else words.cable, _BRIDGE_MAC, "eth0")]
            for other in range(self._bridged):
                if bridged and other != number:
                    beside.append(known % (words.bridge_pods[other], _POD_MAC % other, "eth0"))
            pod.batch(*beside, version=words.version)
        self.node.batch(*lines, version=words.version)

    def _route(self, words: Words, network: str, table: str = "") -> str:
        kind = self.pick(("", "", "", "blackhole ", "unreachable ", "prohibit ") + ("throw ",) * bool(table))
        number = self.chance.randrange(self._uplinks)
        to = "" if kind else " via %s dev eth%d" % (words.gateways[number], number)
        return "route replace %s%s%s metric %d%s" % (kind, network, to, self.chance.randint(1, 500), table)

    def _policy_routing(self, words: Words) -> None:
        if self.maybe(0.5):
            return
        lines, rules = [], []
        for table in self.some((101, 102), 1, 2):
            number = self.chance.randrange(self._uplinks)
            lines.append("route add default via %s dev eth%d table %d" % (words.gateways[number], number, table))
            for network in self.some(words.ranges[3:], 0, 2):
                lines.append(self._route(words, network, " table %d" % table))
            selector = self.pick(
                (
                    "from %s" % self.pick(words.ranges),
                    "to %s" % self.pick(words.ranges),
                    "iif %s" % self.pick(["cni0", *self.pod_links]),
                    "fwmark 0x40/0x40",
                    "not fwmark 0x80/0x80",
                    "from %s to %s" % (self.pick(words.ranges), self.pick(words.ranges)),
                )
            )
            rules.append("rule add %s table %d priority %d" % (selector, table, 1000 + table))
        lines += rules
        self.log += lines
        self.node.batch(*lines, version=words.version)

    # rules

    def _sets(self) -> None:
        lines = []
        for words in WORDS.values():
            inet = "inet" if words.version == 4 else "inet6"
            tail = "%d" % words.version
            lines.append("create nets%s hash:net family %s" % (tail, inet))
            lines += ["add nets%s %s" % (tail, one) for one in self.some(words.ranges[1:-1], 0, 4)]
            lines.append("create pods%s hash:ip family %s" % (tail, inet))
            lines += ["add pods%s %s" % (tail, pod[words.version]) for pod in self.some(self.pod_addresses, 0, 2)]
            lines.append("create svcs%s hash:ip,port family %s" % (tail, inet))
            for one in self.some(words.far, 0, 3):
                service = self.pick(("tcp:53", "udp:53", "tcp:80", "udp:80"))
                lines.append("add svcs%s %s,%s" % (tail, one, service))
        self.log += lines
        self.node.run("ipset", "restore", stdin="".join(line + "\n" for line in lines))

    def _rules(self) -> None:
        for words in WORDS.values():
            for variant in ("nft", "legacy"):
                if self.maybe(0.6):
                    self._iptables(words, variant)
            for number in range(self.pick((0, 1, 1, 2))):
                self._nft(words, number)

    def _iptables(self, words: Words, variant: str) -> None:
        lines: t.List[str] = []
        for table, chains in (
            ("raw", ("PREROUTING",)),
            ("mangle", ("PREROUTING", "OUTPUT", "FORWARD", "POSTROUTING")),
            ("nat", ("PREROUTING", "OUTPUT", "POSTROUTING")),
            ("filter", ("INPUT", "FORWARD", "OUTPUT")),
        ):
            if not self.maybe({"raw": 0.15, "mangle": 0.5, "nat": 1.0, "filter": 0.4}[table]):
                continue
            lines.append("*" + table)
            lines += [":MINE - [0:0]", ":YOURS - [0:0]"]
            for chain in chains + ("MINE", "YOURS"):
                for _rule in range(self.chance.randint(0, 3 if table == "nat" else 2)):
                    lines.append("-A %s %s" % (chain, self._iptables_rule(words, table, chain)))
            lines.append("COMMIT")
        self.log += [variant, *lines]
        program = ("iptables" if words.version == 4 else "ip6tables") + "-%s-restore" % variant
        self.node.run(program, stdin="".join(line + "\n" for line in lines))

    def _iptables_rule(self, words: Words, table: str, chain: str) -> str:
        parts: t.List[str] = []
        if self.maybe(0.35):
            parts.append(self._not() + "-s " + self.pick((*words.ranges, *words.bridge_pods)))
        if self.maybe(0.55):
            parts.append(self._not() + "-d " + self.pick((*words.ranges, *words.far)))
        protocol = self.pick(("tcp", "udp"))
        named = self.maybe(0.35)
        if named:
            parts.append("-p " + protocol)
            parts.append(
                self.pick(
                    (
                        "-m %s --dport %s" % (protocol, self.pick(("53", "80", "1:100", "400:500"))),
                        "-m %s ! --dport 80" % protocol,
                        "-m multiport --dports 53,400:500",
                        "-m %s --sport 30000:40000" % protocol,
                        "",
                    )
                )
            )
        if self.maybe(0.15) and chain in ("PREROUTING", "FORWARD"):
            parts.append(self._not() + "-i " + self.pick(("cni0", "cali+", "eth0", "veth0")))
        if self.maybe(0.15) and chain in ("POSTROUTING", "FORWARD"):
            parts.append(self._not() + "-o " + self.pick(("eth0", "eth1", "eth+", "cni0")))
        if self.maybe(0.2):
            parts.append(
                "-m set %s--match-set %s%d %s"
                % ((self._not(),) + self.pick((("nets", words.version, "dst"), ("nets", words.version, "src"),
                                                        ("pods", words.version, "src"), ("pods", words.version, "dst"),
                                                        ("svcs", words.version, "dst,dst"))))
            )  # fmt: skip
        if self.maybe(0.15):
            parts.append("-m mark %s--mark %s" % (self._not(), self.pick(("0x40/0x40", "0x80/0x80", "0x0/0xff"))))
        if self.maybe(0.1):
            parts.append("-m addrtype %s--dst-type LOCAL" % self._not())
        if self.maybe(0.1):
            parts.append("-m conntrack --ctstate NEW")
        if self.maybe(0.05) and chain in ("PREROUTING", "FORWARD"):
            parts.append("-m physdev %s--physdev-in veth0" % self._not())
        if self.maybe(0.08):
            first, last = ("10.0.0.0", "10.100.255.255") if words.version == 4 else ("fd00:1::", "fd00:96:ffff::")
            parts.append("-m iprange %s--dst-range %s-%s" % (self._not(), first, last))
        parts.append(self._iptables_target(words, table, chain, protocol if named else ""))
        return " ".join(part for part in parts if part)

    def _not(self) -> str:
        return "! " if self.maybe(0.2) else ""

    def _iptables_target(self, words: Words, table: str, chain: str, protocol: str) -> str:
        chains = ["-j MINE"] if chain not in ("MINE", "YOURS") else []
        chains += ["-g YOURS", "-j YOURS"] if chain != "YOURS" else []
        if table == "raw":
            return self.pick(("-j NOTRACK", "-j CT --zone 7", "-j ACCEPT", "-j RETURN"))
        if table == "mangle":
            marks = (
                "-j MARK --set-xmark 0x40/0x40",
                "-j MARK --set-xmark 0x80/0x80",
                "-j MARK --set-xmark 0x0/0x40",
                "-j CONNMARK --save-mark",
                "-j CONNMARK --set-xmark 0x40/0x40",
                "-j CONNMARK --restore-mark",
            )
            return self.pick(marks + ("-j ACCEPT", "-j RETURN") + tuple(chains))
        if table == "filter":
            return self.pick(("-j DROP", "-j REJECT", "-j ACCEPT", "-j ACCEPT", "-j RETURN") + tuple(chains))
        if chain == "POSTROUTING":
            alone = words.others[1]
            ports = " --to-ports 20000-30000" if protocol else ""
            return self.pick(
                ["-j MASQUERADE", "-j MASQUERADE --random-fully", "-j MASQUERADE" + ports,
                 "-j SNAT --to-source " + alone,
                 "-j NETMAP --to " + words.others[1] + "/%d" % (words.whole - 4), "-j ACCEPT", "-j RETURN", *chains]
            )  # fmt: skip
        if chain in ("PREROUTING", "OUTPUT"):
            target = self.pick((*words.far, *words.bridge_pods[: self._bridged], words.uplinks[0]))
            port = (":8080" if words.version == 4 else "") if protocol else ""
            return self.pick(["-j DNAT --to-destination " + target + port, "-j ACCEPT", "-j RETURN", *chains])
        return self.pick(["-j ACCEPT", "-j RETURN", *chains])

    def _nft(self, words: Words, number: int) -> None:
        family = self.pick((words.family, words.family, "inet"))
        ip, kind = words.family, "ipv4_addr" if words.version == 4 else "ipv6_addr"
        name = "t%d%d" % (words.version, number)
        lines = ["table %s %s {" % (family, name)]
        held = ", ".join(self._disjoint(words))
        lines.append("set nets { type %s; flags interval; auto-merge; elements = { %s }; }" % (kind, held))
        lines.append(
            "map jumps { type %s : verdict; flags interval; elements = { %s : jump extra }; }"
            % (kind, self.pick(words.ranges))
        )
        lines.append("chain extra {\n%s}" % "".join("%s\n" % self._nft_rule(words, ip, "extra") for _ in range(2)))
        for chain, hook in (
            ("post", "type nat hook postrouting priority %d" % self.pick(_POSTROUTING_PRIORITIES)),
            ("pre", "type nat hook prerouting priority %d" % self.pick((-110, -100, -90))),
            ("mangle", "type filter hook prerouting priority %d" % self.pick((-160, -150, -140))),
            ("forward", "type filter hook forward priority %d" % self.pick((-10, 0, 10))),
        ):
            if self.maybe({"post": 0.9, "pre": 0.3, "mangle": 0.3, "forward": 0.25}[chain]):
                rules = "".join("%s\n" % self._nft_rule(words, ip, chain) for _ in range(self.chance.randint(1, 3)))
                lines.append("chain %s { %s;\n%s}" % (chain, hook, rules))
        lines.append("}")
        self.log += lines
        self.node.run("nft", "-f", "-", stdin="\n".join(lines) + "\n")

    def _disjoint(self, words: Words) -> t.List[str]:
        return self.some(words.ranges[1:-1], 1, 3)

    def _nft_rule(self, words: Words, ip: str, chain: str) -> str:
        parts: t.List[str] = []
        equal = self.pick(("", "", "", "!= "))
        if self.maybe(0.3):
            parts.append("%s saddr %s%s" % (ip, equal, self.pick((*words.ranges, *words.bridge_pods))))
        if self.maybe(0.55):
            pair = "{ %s }" % ", ".join(self.some(words.far, 1, 3))
            parts.append("%s daddr %s%s" % (ip, self.pick(("", "", "!= ")), self.pick((*words.ranges, pair, "@nets"))))
        if self.maybe(0.3):
            parts.append(self.pick(("tcp dport 80", "udp dport { 53, 400-500 }", "tcp dport != 1-100",
                                             "meta l4proto udp", "th dport 80")))  # fmt: skip
        if self.maybe(0.1):
            parts.append('iifname "%s"' % self.pick(("cni0", "cali*", "eth0")) if chain != "post" else
                         'oifname "%s"' % self.pick(("eth0", "eth*", "cni0")))  # fmt: skip
        if self.maybe(0.15):
            parts.append("meta mark & 0x40 %s 0x40" % self.pick(("==", "!=")))
        if self.maybe(0.1):
            parts.append("fib daddr type %slocal" % self.pick(("", "!= ")))
        if not any(part.startswith(ip) for part in parts):
            parts.insert(0, "%s daddr %s" % (ip, self.pick(words.ranges)))
        parts.append(self._nft_verdict(words, ip, chain))
        return " ".join(parts)

    def _nft_verdict(self, words: Words, ip: str, chain: str) -> str:
        if chain == "post":
            same = "snat %s to %s saddr" % ("" if ip == "ip" else "ip6", ip)
            return self.pick(
                ("masquerade", "masquerade fully-random", "counter masquerade", "accept", "return",
                 "snat %s to %s" % (ip, words.others[1]), same, "%s daddr vmap @jumps" % ip, "jump extra",
                 "snat %s to %s daddr map { %s : %s }" % (ip, ip, self.pick(words.ranges), words.others[1]))
            )  # fmt: skip
        if chain == "pre":
            target = self.pick((*words.far, *words.bridge_pods[: self._bridged]))
            return self.pick(("dnat %s to %s" % (ip, target), "accept", "return", "jump extra"))
        if chain == "mangle":
            return self.pick(("meta mark set meta mark | 0x40", "meta mark set 0x80", "accept", "return"))
        if chain == "forward":
            return self.pick(("drop", "accept", "counter", "reject"))
        return self.pick(("accept", "return", "counter"))

    # packets

    def packets(self, count: int) -> t.List[Sent]:
        """Return packets that pods and the node send."""
        found = []
        for number in range(count):
            words = WORDS[self.pick((4, 4, 6))]
            # Where several routes are equal, it is the socket that chooses for what the node itself sends.
            node = [] if self._shared else [None]
            pod = self.pick([*node, *range(len(self.pods)), *range(len(self.pods))])
            source = None if pod is None else self.pod_addresses[pod][words.version]
            targets = [one[words.version] for one in self.pod_addresses if one[words.version] != source]
            targets += [words.uplinks[0], words.bridge] + list(words.far) * 2
            found.append(
                Sent(
                    source,
                    pod,
                    self.pick(targets),
                    self.pick(("tcp", "udp", "udp", "icmp")),
                    self.pick((53, 80, 80, 443)),
                    20000 + 50 * number,
                )
            )
        return found


class Eyes:
    """Sockets everywhere that see all packets."""

    def __init__(self, made: RandomNode) -> None:
        self._made = made
        self._wait = selectors.DefaultSelector()
        for place, net in [("outside", made.outside)] + [("pod", pod) for pod in made.pods]:
            with net:
                eye = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            eye.setblocking(False)
            self._wait.register(eye, selectors.EVENT_READ, (place, 0))
        with made.node:
            for family, protocols in ((socket.AF_INET, (1, 6, 17)), (socket.AF_INET6, (58, 6, 17))):
                for protocol in protocols:
                    ear = socket.socket(family, socket.SOCK_RAW, protocol)
                    ear.setblocking(False)
                    if family == socket.AF_INET6:
                        ear.setsockopt(socket.IPPROTO_IPV6, 49, 1)
                    self._wait.register(ear, selectors.EVENT_READ, ("node", protocol))

    def send(self, sent: Sent, expected: bool) -> t.Optional[Seen]:
        """Send one from a real socket, and return where it came out; None if nowhere.

        :param expected: whether to have patience.
        """
        self._drain(None)
        net = self._made.node if sent.pod is None else self._made.pods[sent.pod]
        with net:
            opened = self._open(sent)
        if opened is None:
            return None
        with opened:
            deadline = time.monotonic() + (PATIENCE if expected else SILENCE)
            while True:
                found = self._drain(sent)
                if found is not None or time.monotonic() > deadline:
                    return found
                self._wait.select(max(deadline - time.monotonic(), 0))

    @staticmethod
    def _open(sent: Sent) -> t.Optional[socket.socket]:
        family = socket.AF_INET6 if ":" in sent.destination else socket.AF_INET
        try:
            if sent.protocol == "icmp":
                protocol = socket.IPPROTO_ICMPV6 if family == socket.AF_INET6 else socket.IPPROTO_ICMP
                made = socket.socket(family, socket.SOCK_RAW, protocol)
                head = struct.pack("!BBHHH", 128 if family == socket.AF_INET6 else 8, 0, 0, sent.source_port, 1)
                data = head + _MAGIC
                if family == socket.AF_INET:
                    data = data[:2] + struct.pack("!H", checksum(data)) + data[4:]
                made.sendto(data, (sent.destination, 0))
                return made
            made = socket.socket(family, socket.SOCK_STREAM if sent.protocol == "tcp" else socket.SOCK_DGRAM)
            made.setblocking(False)
            made.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", sent.source_port))
            if sent.protocol == "tcp":
                with contextlib.suppress(BlockingIOError):
                    made.connect((sent.destination, sent.port))
            else:
                made.sendto(_MAGIC, (sent.destination, sent.port))
        except OSError:
            return None
        return made

    def _drain(self, sent: t.Optional[Sent]) -> t.Optional[Seen]:
        """Wait for the first sign of a packet; None if there is none yet. Without one everything is thrown away."""
        found: t.Optional[Seen] = None
        for key, _events in self._wait.select(0):
            place, protocol = key.data
            eye = t.cast(socket.socket, key.fileobj)
            while True:
                try:
                    data, extra, _flags, sender = eye.recvmsg(2048, 64)
                except BlockingIOError:
                    break
                except OSError:
                    continue
                if place != "node":
                    seen = _read(data[14:]) if sender[2] != socket.PACKET_OUTGOING else None
                elif extra:  # IPV6_PKTINFO: its header is not there
                    seen = _body(
                        sender[0].split("%")[0], socket.inet_ntop(socket.AF_INET6, extra[0][2][:16]), protocol, data
                    )
                else:
                    seen = _read(data)
                if sent is not None and seen is not None and found is None and seen[3] == sent.protocol:
                    source, destination, port, name = seen
                    found = Seen(
                        sender[0] if place == "outside" else place, source, destination, port * (name != "icmp")
                    )
        return found


#: source, destination, port, protocol
_Packet = t.Tuple[str, str, int, str]


def _read(packet: bytes) -> t.Optional[_Packet]:
    """Read a packet from its IP header on; None if it is not ours."""
    version = packet[0] >> 4 if len(packet) >= 20 else 0
    if version == 4:
        family, places, size, protocol, start = socket.AF_INET, (12, 16), 4, packet[9], (packet[0] & 15) * 4
    elif version == 6 and len(packet) >= 40:
        family, places, size, protocol, start = socket.AF_INET6, (8, 24), 16, packet[6], 40
    else:
        return None
    source, destination = (socket.inet_ntop(family, packet[place : place + size]) for place in places)
    return _body(source, destination, protocol, packet[start:])


def _body(source: str, destination: str, protocol: int, body: bytes) -> t.Optional[_Packet]:
    if len(body) < 8:
        return None
    if protocol == socket.IPPROTO_TCP:
        name, is_ours = "tcp", len(body) > 13 and body[13] & 0x12 == 0x02
    elif protocol == socket.IPPROTO_UDP:
        name, is_ours = "udp", body[8:].startswith(_MAGIC)
    else:
        name, is_ours = "icmp", body[0] in (8, 128) and body[8:].startswith(_MAGIC)
    return (source, destination, struct.unpack_from("!H", body, 2)[0], name) if is_ours else None
