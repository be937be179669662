# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A random node with Services, of which kube-proxy changes its mode."""

from __future__ import annotations

import random
import typing as t

from . import nodes, oracle, policies
from .kube_proxy import PODS, KubeProxy, Service

#: backend and exemption, in turn
CHOICES = (
    ("iptables_nft", "return"),
    ("nftables", "enforce"),
    ("iptables_legacy", "return"),
    ("nftables", "return"),
    ("iptables_nft", "accept"),
    ("auto", "return"),
    ("nftables", "accept"),
    ("iptables_legacy", "accept"),
)
#: no first packets of a connection: those that conntrack calls INVALID
STRAY_FLAGS = (0x04, 0x14, 0x11)
STRAY = "no connection"


class Moving(nodes.Node):
    """A node whose kube-proxy changes its mode."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0)
        self.r = r = random.Random("moving %d" % seed)
        self.six = seed // len(CHOICES) % 2 == 1
        self.shape = r.choice(["bridge", "routed"])
        self.variant = r.choice(["", "", "-legacy"])
        self.pods = nodes.pods(self.shape, r.randint(4, 5) - 2)
        links = [kind for kind in ("veth", "veth", "vlan", "bond", "bridge") if kind == "veth" or kind in nodes.kinds()]
        self.uplinks = [nodes.Uplink("up%d" % one, r.choice(links), one, True) for one in range(r.randint(1, 2))]
        first, last = self.uplinks[0], self.uplinks[-1]
        self.lines = ["route add default " + first.via(), "route add 10.244.2.0/24 " + first.via()]
        self.lines += ["route replace %s %s" % (one, last.via()) for one in r.sample(nodes.DESTINATIONS, 3)]
        if self.six:
            self.lines += ["route add ::/0 " + first.via(True), "route add fd44:2::/64 " + first.via(True)]
        self.steps, self.interests, self.used, self.marks = [], [], set(), []
        self.policy = self._policy()
        self.services = [self._service(number) for number in range(1, r.randint(3, 9))]
        numbers = {
            4: [one for up in self.uplinks for one in up.four],
            6: [one for up in self.uplinks for one in up.six],
        }
        self.kube_proxy = KubeProxy(self.services, numbers, self.variant)

    def _policy(self) -> policies.Policy:
        r = self.r
        names = [up.name for up in self.uplinks]
        fixed = [*nodes.OWN, *(address for up in self.uplinks for address in up.four)]
        options = policies.draw(r, names, fixed, [pod.four for pod in self.pods], self.six).options
        options["backend"], options["exemption"] = CHOICES[self.seed % len(CHOICES)]
        if self.six:
            options["enable_ipv6"] = True
        if options["exemption"] != "return" or r.random() < 0.6:
            options["source_cidrs"] = list(PODS.values()) if self.six else [PODS[4]]
            options["leaks"] = r.choice(["ignore", "count", "count", "drop"])
        if self.shape == "routed":  # the links of pods have no address: nobody masquerades between pods
            pods = ["10.244.0.0/16", "fd44::/32"]
            ranges = options.setdefault("non_masquerade_cidrs", list(policies.RFC1918))
            options["non_masquerade_cidrs"] = [*ranges, *pods[: len(self.versions)]]
            if options.get("rules"):
                options["rules"].insert(0, {"action": "exempt", "destinations": pods[: len(self.versions)]})
        return policies.Policy(options)

    def _service(self, number: int) -> Service:
        r = self.r
        here = r.sample(self.pods, r.randint(0, len(self.pods)))
        protocol, port, target = r.choice(["tcp", "tcp", "udp"]), r.choice([53, 80, 443]), r.choice([8080, 9153])
        node_port = 30000 + number if r.random() < 0.6 else 0
        local, affinity = r.random() < 0.3, r.random() < 0.2
        elsewhere = range(10, 10 + r.randint(0, 2))
        ends = {
            4: [*(pod.four for pod in here), *("10.244.2.%d" % one for one in elsewhere)],
            6: [*(pod.six for pod in here), *("fd44:2::%d" % one for one in elsewhere)],
        }
        addresses = {4: "10.96.%d.10" % number, 6: "fd10:96::%d:10" % number}
        return Service("NS%06d" % number, addresses, protocol, port, target, node_port, ends, local, affinity)

    @property
    def versions(self) -> t.Tuple[int, ...]:
        return (4, 6) if self.six else (4,)

    def own(self, version: int) -> str:
        """Return the node's first address."""
        return (self.uplinks[0].six if version == 6 else self.uplinks[0].four)[0]

    # Packets

    def make(self) -> None:
        super().make()
        for name in ("udp", "icmp"):  # what was opened before is still known after
            self.space.sysctl({"netfilter/nf_conntrack_%s_timeout" % name: 3600})
        if self.shape == "bridge":  # as the kubelet and network plugins set it: pods reach themselves through Services
            self.space.ip(["link set vp%d type bridge_slave hairpin on" % place for place in range(len(self.pods))])
        with self.space:
            pair = {4: oracle.raw(4), 6: oracle.raw(6)}
        self.watch.senders.append(pair)

    def to_services(self) -> t.List[oracle.Probe]:
        """Return first packets of pods, and of the node itself, to each Service and NodePort."""
        found = []
        for version in self.versions:
            senders = [pod.six if version == 6 else pod.four for pod in self.pods] + [self.own(version)]
            for place, source in enumerate(senders):
                for one in self.services:
                    asked = [(one.addresses[version], one.port)]
                    asked += [(self.own(version), one.node_port)] if one.node_port else []
                    for address, port in asked * 2:
                        sport = oracle.sport(self.r)
                        found.append(oracle.Probe(place, source, address, one.protocol, sport, port))
        return found

    def strays(self) -> t.List[oracle.Probe]:
        """Return packets of pods that belong to no connection."""
        found = []
        for place, pod in enumerate(self.pods):
            targets = [(pod.four, "203.0.113.9"), (pod.four, "10.99.7.4"), (pod.four, "8.8.8.4")]
            targets += [(pod.six, "2606:4700::9")] if self.six else []
            for source, destination in targets:
                for flags in STRAY_FLAGS:
                    sport = oracle.sport(self.r)
                    found.append(oracle.Probe(place, source, destination, "tcp", sport, 443, 0, STRAY, flags))
        return found

    def service(self, probe: oracle.Probe) -> t.Optional[t.Tuple[Service, bool]]:
        """Return the Service that a packet is sent to, and whether to its NodePort."""
        version = 6 if ":" in probe.source else 4
        for one in self.services:
            if (probe.protocol, probe.destination, probe.dport) == (one.protocol, one.addresses[version], one.port):
                return one, False
            if one.node_port and (probe.protocol, probe.destination, probe.dport) == (
                *(one.protocol, self.own(version)),
                one.node_port,
            ):
                return one, True
        return None

    def wrong(self, probe: oracle.Probe, seen: t.Optional[oracle.Seen], served: bool) -> str:
        """Return what is wrong with what became of a first packet; empty if nothing is.

        :param served: whether rules of kube-proxy are there.
        """
        version = 6 if ":" in probe.source else 4
        asked = self.service(probe) if served else None
        if asked is None:
            return "" if seen is None or seen.destination != probe.destination else self._differs(probe, seen, False)
        ends = asked[0].ends[version]
        if seen is None:
            return "lost" if ends else ""
        if (seen.dport, seen.destination in ends) != (asked[0].target, True):
            return "at %s:%d" % (seen.destination, seen.dport)
        pod = policies.within(probe.source, [PODS[version]]) >= 0
        masked = not pod or seen.destination == probe.source or (asked[1] and not asked[0].local)
        return self._differs(probe, seen, masked)

    def _differs(self, probe: oracle.Probe, seen: oracle.Seen, marked: bool) -> str:
        link = self.pods[int(seen.end[3:])].link if seen.end.startswith("pod") else seen.end
        packet = policies.Packet(probe.source, seen.destination, probe.protocol, seen.dport, link)
        promise = self.policy.promise(packet)
        node = self.addresses(link, seen.destination) or set(self.everywhere())
        if marked:
            wanted = node | set(promise.addresses)  # whoever comes first
        elif promise.kind in ("pod", "none"):
            wanted = {probe.source}
        else:
            wanted = set(promise.addresses) or node
        if seen.source in wanted:
            return ""
        return "%s at %s (%s), not %s" % (seen.source, seen.end, promise.kind, ",".join(sorted(wanted)[:3]))

    def everywhere(self) -> t.Iterator[str]:
        """Yield all addresses of the node."""
        yield from nodes.OWN
        yield "2001:db8:ff::7"
        for up in self.uplinks:
            yield from (*up.four, *up.six)

    def leaks(self, probe: oracle.Probe, seen: oracle.Seen) -> bool:
        """Return whether a packet shows an address of a pod that the policy hides."""
        packet = policies.Packet(probe.source, seen.destination, probe.protocol, seen.dport, seen.end)
        return seen.source == probe.source and self.policy.promise(packet).kind in ("node", "fixed")
