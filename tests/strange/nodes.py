# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node as namespaces and lists of commands: pods, uplinks, routes, routing rules, and rules of other programs."""

from __future__ import annotations

import functools
import ipaddress
import random
import typing as t

from . import oracle, policies
from .spaces import Failed, Namespace

#: Destinations that constructions name: inside and outside of what policies exempt.
DESTINATIONS = (
    "10.8.0.0/16",
    "10.99.7.0/24",
    "10.20.0.5/32",
    "10.97.1.0/24",
    "172.16.3.0/24",
    "172.20.9.9/32",
    "192.168.7.0/24",
    "100.64.5.0/24",
    "203.0.113.0/24",
    "203.0.113.9/32",
    "198.18.4.0/22",
    "192.0.2.128/25",
    "8.8.8.0/24",
    "9.9.9.9/32",
)
DESTINATIONS6 = ("fd00:99::/32", "fd10:7::/64", "2001:db8:beef::/48", "2606:4700::/32")
EVERYWHERE = "0.0.0.0/0"
#: Addresses of the node's own that no link to the outside has.
OWN = ("192.0.2.7", "192.0.2.25")
PORTS = (25, 53, 80, 443, 5353, 8443, 9090, 9105, 30080, 31000)


@functools.lru_cache(maxsize=None)
def kinds() -> t.FrozenSet[str]:
    """Return the kinds of links that this kernel can make."""
    found = set()
    space = Namespace()
    try:
        space.ip(["link add p type veth peer name q"])
        for kind, rest in (
            ("vlan", "link p type vlan id 7"),
            ("macvlan", "link p type macvlan"),
            ("bond", "type bond mode active-backup"),
            ("vrf", "type vrf table 99"),
            ("dummy", "type dummy"),
            ("ifb", "type ifb"),
            ("bridge", "type bridge"),
        ):
            try:
                space.ip(["link add x " + rest, "link del x"])
                found.add(kind)
            except Failed:
                continue
    finally:
        space.close()
    return frozenset(found)


def unnumbered() -> str:
    """Return the kind of an uplink without addresses: none behind which pods are, as a veth without a gateway is."""
    return next((kind for kind in ("vlan", "bond") if kind in kinds()), "veth")


class Pod(t.NamedTuple):
    """One pod; ``link`` is what its packets come in by."""

    four: str
    six: str
    link: str


def pods(shape: str, count: int) -> t.List[Pod]:
    """Return so many pods of a node, behind one bridge or each behind a link of its own."""
    links = ["cni0" if shape == "bridge" else "cali%d" % number for number in range(count)]
    return [Pod("10.244.1.%d" % (2 + number), "fd44::%d" % (2 + number), link) for number, link in enumerate(links)]


class Uplink:
    """A link to an outside."""

    def __init__(self, name: str, kind: str, number: int, numbered: bool) -> None:
        self.name = name
        self.kind = kind
        self.number = number
        self.numbered = numbered
        self.gateway = "198.51.%d.254" % (100 + number)
        self.gateway6 = "2001:db8:%d::fe" % number
        self.four = ["198.51.%d.1" % (100 + number)] if numbered else []
        self.six = [str(ipaddress.ip_address("2001:db8:%d::1" % number))] if numbered else []
        #: networks to which a route over it prefers a source, and that
        self.preferred: t.List[t.Tuple[str, str]] = []

    def mac(self) -> str:
        return "02:00:00:00:0a:%02x" % self.number

    def via(self, six: bool = False) -> str:
        """Return how a route goes over it."""
        if not self.numbered:
            return "dev %s" % self.name
        return "via %s dev %s" % (self.gateway6 if six else self.gateway, self.name)


class Step(t.NamedTuple):
    """One thing that another program does to the node."""

    name: str
    tool: str
    text: str
    late: bool


TOOLS: t.Dict[str, t.List[str]] = {
    "nft": ["nft", "-f", "-"],
    "iptables": ["iptables-nft-restore", "--noflush"],
    "ip6tables": ["ip6tables-nft-restore", "--noflush"],
    "iptables-legacy": ["iptables-legacy-restore", "--noflush"],
    "ip6tables-legacy": ["ip6tables-legacy-restore", "--noflush"],
    "ipset": ["ipset", "restore"],
    "ip": ["ip", "-batch", "-"],
    "ip6": ["ip", "-6", "-force", "-batch", "-"],
    "ebtables": ["sh"],
    "tc": ["tc", "-batch", "-"],
}


class Node:
    """A random node of one seed. ``make`` brings it up; ``close`` ends it."""

    def __init__(self, seed: int, count: t.Optional[int] = None) -> None:
        self.seed = seed
        self.r = random.Random(seed)
        r = self.r
        self.six = r.random() < 0.25
        self.shape = r.choice(["bridge", "routed"])
        self.variant = r.choices(["", "-legacy"], [4, 1])[0]
        self.steps: t.List[Step] = []
        self.skipped: t.List[str] = []
        self.late = False
        self.name = ""
        self.pods = pods(self.shape, r.randint(1, 3))
        self.uplinks: t.List[Uplink] = []
        for number in range(r.choices([1, 2, 3], [3, 5, 2])[0]):
            kind = r.choice(["veth", "veth", "veth", "vlan", "bond", "macvlan", "bridge", "vrf"])
            if kind != "veth" and kind not in kinds():
                kind = "veth"
            numbered = number == 0 or r.random() < 0.93
            self.uplinks.append(Uplink("up%d" % number, kind if numbered else unnumbered(), number, numbered))
        if r.random() < 0.04:
            self.uplinks[0] = Uplink(self.uplinks[0].name, unnumbered(), 0, False)
        self.lines: t.List[str] = []
        self.sysctls: t.Dict[str, t.Any] = {}
        #: what probes try, as constructions name it
        self.interests: t.List[t.Dict[str, t.Any]] = []
        self.marks: t.List[t.Tuple[str, int]] = []
        self.spaces: t.List[Namespace] = []
        self.used: t.Set[str] = set()
        self._routes()
        names = [up.name for up in self.uplinks]
        fixed = list(OWN) + [address for up in self.uplinks for address in up.four]
        self.policy = policies.draw(r, names, fixed, [pod.four for pod in self.pods], self.six)
        from . import strange

        for _ in range(r.randint(0, 6) if count is None else count):
            strange.add(self)

    # What constructions say

    def begin(self, name: str, late: bool) -> None:
        """Name the construction whose steps follow."""
        self.name, self.late = name, late
        self.used.add(name)

    def step(self, tool: str, text: str, late: t.Optional[bool] = None) -> None:
        self.steps.append(Step(self.name, tool, text, self.late if late is None else late))

    def ipt(self, table: str, *rules: str, chains: t.Sequence[str] = (), six: bool = False) -> None:
        """Add rules as ``iptables-restore`` reads them."""
        tool = ("ip6tables" if six else "iptables") + self.variant
        head = ["*" + table] + [":%s - [0:0]" % chain for chain in chains]
        self.step(tool, "\n".join(head + list(rules) + ["COMMIT"]) + "\n")

    def nft(self, text: str) -> None:
        self.step("nft", text)

    def interest(self, **what: t.Any) -> None:
        """Let probes try this: dst, proto, dport, sport, src (a pod's number), tos."""
        self.interests.append(what)

    def dst(self, **more: t.Any) -> str:
        """Return a destination network, and let probes try it."""
        found = self.r.choice(DESTINATIONS)
        self.interest(dst=found, **more)
        return found

    def host(self, **more: t.Any) -> str:
        """Return one destination, and let probes try it."""
        network = ipaddress.ip_network(self.r.choice(DESTINATIONS))
        found = str(network[min(network.num_addresses - 1, self.r.randint(1, 200))])
        self.interest(dst=found + "/32", **more)
        return found

    def pod(self) -> str:
        return self.r.choice(self.pods).four

    # Routes

    def _routes(self) -> None:
        r, ups = self.r, self.uplinks
        first = ups[0]
        lines = self.lines
        if len(ups) > 1 and r.random() < 0.15:
            hops = " ".join("nexthop " + up.via() for up in ups if up.kind != "vrf")
            lines.append("route add default " + hops)
        else:
            source = ""
            if r.random() < 0.15:
                source = " src " + OWN[0]
                first.preferred.append((EVERYWHERE, OWN[0]))
            lines.append("route add default %s%s" % (first.via(), source))
        if self.six:
            lines.append("route add ::/0 " + first.via(True))
        for up in ups[1:]:
            for destination in r.sample(DESTINATIONS, r.randint(1, 4)):
                source = ""
                if r.random() < 0.15:
                    source = " src " + OWN[1]
                    up.preferred.append((destination, OWN[1]))
                lines.append("route replace %s %s%s" % (destination, up.via(), source))
                self.interest(dst=destination)
            if self.six and r.random() < 0.5:
                lines.append("route add %s %s" % (r.choice(DESTINATIONS6), up.via(True)))
        if r.random() < 0.1:
            kind = r.choice(["blackhole", "unreachable", "prohibit"])
            lines.append("route replace %s %s metric 5" % (kind, r.choice(DESTINATIONS)))
        if r.random() < 0.1:
            self.interest(tos=0x10)
            lines.append("route add tos 0x10 %s %s" % (r.choice(DESTINATIONS), r.choice(ups).via()))
        for number in range(r.choices([0, 1, 2], [6, 3, 1])[0]):
            self._rule(100 + number, r.choice(ups))

    def _rule(self, table: int, up: Uplink) -> None:
        """Add a routing rule and its table."""
        r = self.r
        source = ""
        if up.numbered and r.random() < 0.2:
            source = " src " + OWN[0]
            up.preferred.append((EVERYWHERE, OWN[0]))
        self.lines.append("route add default %s table %d%s" % (up.via(), table, source))
        kind = r.choice(
            ["from", "to", "iif", "fwmark", "tos", "ipproto", "sport", "dport", "not", "suppress", "goto", "both"]
        )
        self.used.add("rule:" + kind)
        number = 1000 + table
        pod = self.pod()
        place = [one.four for one in self.pods].index(pod)
        look = "lookup %d" % table
        add = "rule add priority %d " % number
        if kind == "from":
            self.lines.append("%sfrom %s/32 %s" % (add, pod, look))
            self.interest(src=place)
        elif kind == "to":
            self.lines.append("%sto %s %s" % (add, self.dst(), look))
        elif kind == "iif":
            self.lines.append("%siif %s %s" % (add, self.pods[place].link, look))
            self.interest(src=place)
        elif kind == "fwmark":
            self.name = "rule:fwmark"
            self.lines.append("%sfwmark 0x40/0x40 %s" % (add, look))
            self.ipt("mangle", "-A PREROUTING -d %s -j MARK --set-xmark 0x40/0x40" % self.dst())
        elif kind == "tos":
            self.lines.append("%stos 0x10 %s" % (add, look))
            self.interest(tos=0x10)
        elif kind == "ipproto":
            proto = r.choice(["tcp", "udp", "sctp", "icmp"])
            self.lines.append("%sipproto %s %s" % (add, proto, look))
            self.interest(proto=proto)
        elif kind == "sport":
            self.lines.append("%sipproto udp sport 4000-4010 %s" % (add, look))
            self.interest(proto="udp", sport=4005)
        elif kind == "dport":
            port = r.choice(PORTS)
            self.lines.append("%sipproto tcp dport %d %s" % (add, port, look))
            self.interest(proto="tcp", dport=port)
        elif kind == "not":
            self.lines.append("rule add not to %s priority %d %s" % (self.dst(), number, look))
        elif kind == "suppress":
            self.lines.append("%slookup main suppress_prefixlength 0" % add)
            self.lines.append("rule add priority %d from 10.244.0.0/16 %s" % (number + 500, look))
        elif kind == "goto":
            self.lines.append("rule add priority %d %s" % (number + 500, look))
            self.lines.append("%sto %s goto %d" % (add, self.dst(), 32766))
        else:
            self.lines.append("%sfrom %s/32 to %s %s" % (add, pod, self.dst(src=place), look))

    # The real thing

    def make(self) -> None:
        """Bring the node up, without rules."""
        self.skipped = []
        self.space = self._space()
        self.pod_spaces = [self._space() for _ in self.pods]
        self.outsides = [self._space() for _ in self.uplinks]
        six = 1 if self.six else 0
        lines = ["link set lo up", *("addr add %s/32 dev lo" % address for address in OWN)]
        if six:
            lines.append("addr add 2001:db8:ff::7/128 dev lo nodad")
        for up, outside in zip(self.uplinks, self.outsides):
            lines += self._uplink(up, outside)
        if self.shape == "bridge":
            lines += ["link add cni0 type bridge", "addr add 10.244.1.1/24 dev cni0"]
            if six:
                lines.append("addr add fd44::1/64 dev cni0 nodad")
        for number, (pod, space) in enumerate(zip(self.pods, self.pod_spaces)):
            lines += self._pod(number, pod, space)
        if self.shape == "bridge":
            lines += ["link set cni0 address 02:00:00:00:0c:00", "link set cni0 up"]
        values = {
            "ipv4/ip_forward": 1,
            "ipv4/conf/all/rp_filter": 0,
            "ipv4/conf/default/rp_filter": 0,
            "ipv4/fib_multipath_hash_policy": self.seed % 2,
        }
        values.update({"ipv6/conf/%s/disable_ipv6" % one: 1 - six for one in ("all", "default")})
        if six:
            values.update({"ipv6/conf/default/accept_dad": 0, "ipv6/conf/all/forwarding": 1})
        self.space.sysctl(values)
        self.space.ip(lines)
        for number, (pod, space) in enumerate(zip(self.pods, self.pod_spaces)):
            self._inside(number, pod, space)
        for up, outside in zip(self.uplinks, self.outsides):
            outside.sysctl({"ipv6/conf/default/disable_ipv6": 1, "ipv6/conf/all/disable_ipv6": 1})
            outside.ip(["link set e%d up" % up.number])
        ends = {up.name: (outside, "e%d" % up.number) for up, outside in zip(self.uplinks, self.outsides)}
        for number, space in enumerate(self.pod_spaces):
            ends["pod%d" % number] = (space, "eth0")
        try:
            self.space.ip(self.lines)
        except Failed:
            for line in self.lines:
                try:
                    self.space.ip([line])
                except Failed as exc:
                    if "File exists" not in str(exc):
                        self.skipped.append("route: %s: %s" % (line, str(exc)[:300]))
        self.watch = oracle.Watch(self.pod_spaces, ends)

    def _space(self) -> Namespace:
        space = Namespace()
        self.spaces.append(space)
        return space

    def _uplink(self, up: Uplink, outside: Namespace) -> t.List[str]:
        name, number = up.name, up.number
        end = "type veth peer name e%d address %s netns %s" % (number, up.mac(), outside.path)
        if up.kind == "veth":
            lines = ["link add %s %s" % (name, end)]
        elif up.kind in ("vlan", "macvlan"):
            rest = "type vlan id %d" % (10 + number) if up.kind == "vlan" else "type macvlan mode bridge"
            lines = ["link add eth%d %s" % (number, end), "link set eth%d up" % number]
            lines.append("link add link eth%d name %s %s" % (number, name, rest))
        elif up.kind in ("bond", "bridge"):
            lines = ["link add eth%d %s" % (number, end), "link add %s type %s" % (name, up.kind)]
            lines += ["link set eth%d master %s" % (number, name), "link set eth%d up" % number]
        else:
            lines = ["link add vrf%d type vrf table %d" % (number, 500 + number), "link set vrf%d up" % number]
            lines += ["link add %s %s" % (name, end), "link set %s master vrf%d" % (name, number)]
        if up.numbered:
            lines += ["addr add %s/24 dev %s" % (address, name) for address in up.four]
            if self.six:
                lines += ["addr add %s/64 dev %s nodad" % (address, name) for address in up.six]
        else:
            lines.append("link set %s arp off" % name)
        lines.append("link set %s up" % name)
        if up.numbered:
            lines.append("neigh add %s lladdr %s dev %s nud permanent" % (up.gateway, up.mac(), name))
            if self.six:
                lines.append("neigh add %s lladdr %s dev %s nud permanent" % (up.gateway6, up.mac(), name))
        return lines

    def _pod(self, number: int, pod: Pod, space: Namespace) -> t.List[str]:
        near = "vp%d" % number if self.shape == "bridge" else pod.link
        mac = "02:00:00:00:0b:%02x" % number
        lines = [
            "link add %s address 02:00:00:00:0c:%02x type veth peer name eth0 address %s netns %s"
            % (near, number + 1, mac, space.path)
        ]
        if self.shape == "bridge":
            lines.append("link set %s master cni0" % near)
        lines.append("link set %s up" % near)
        device = pod.link
        if self.shape != "bridge":
            lines.append("route add %s/32 dev %s" % (pod.four, device))
            if self.six:
                lines.append("route add %s/128 dev %s" % (pod.six, device))
        lines.append("neigh add %s lladdr %s dev %s nud permanent" % (pod.four, mac, device))
        if self.six:
            lines.append("neigh add %s lladdr %s dev %s nud permanent" % (pod.six, mac, device))
        return lines

    def _inside(self, number: int, pod: Pod, space: Namespace) -> None:
        gateway = "10.244.1.1" if self.shape == "bridge" else "169.254.1.1"
        mac = "02:00:00:00:0c:%02x" % (0 if self.shape == "bridge" else number + 1)
        # Also to pods on the same bridge over the node: what a bridge passes on by itself meets no rule of it.
        lines = ["link set lo up", "addr add %s/32 dev eth0" % pod.four, "link set eth0 up"]
        lines.append("neigh add %s lladdr %s dev eth0 nud permanent" % (gateway, mac))
        lines.append("route add default via %s dev eth0 onlink" % gateway)
        if self.six:
            gateway = "fd44::1" if self.shape == "bridge" else "fe80::1"
            space.sysctl({"ipv6/conf/default/accept_dad": 0, "ipv6/conf/all/accept_dad": 0})
            lines.append("addr add %s/128 dev eth0 nodad" % pod.six)
            lines.append("neigh add %s lladdr %s dev eth0 nud permanent" % (gateway, mac))
            lines.append("route add ::/0 via %s dev eth0 onlink" % gateway)
        else:
            space.sysctl({"ipv6/conf/default/disable_ipv6": 1, "ipv6/conf/all/disable_ipv6": 1})
        space.ip(lines)

    def rules(self, late: bool) -> None:
        """Do what the constructions say, before or after our rules are applied."""
        for step in self.steps:
            if step.late != late:
                continue
            try:
                self.space.run(TOOLS[step.tool], step.text, private=step.tool.endswith("legacy"))
            except Failed as exc:
                self.skipped.append("%s: %s" % (step.name, str(exc)[:300]))

    def addresses(self, link: str, destination: str) -> t.Set[str]:
        """Return the addresses of a link, and those that its routes to a destination prefer: the node's there."""
        found: t.Set[str] = set()
        for up in self.uplinks:
            if up.name == link:
                found.update(up.four, up.six if self.six else ())
                found.update(source for network, source in up.preferred if policies.within(destination, [network]) >= 0)
        if link == "cni0":
            found.update(["10.244.1.1", "fd44::1"])
        return found

    def close(self) -> None:
        if hasattr(self, "watch"):
            self.watch.close()
        for space in self.spaces:
            space.close()
        self.spaces = []

    # Probes

    def probes(self, count: int = 45) -> t.List[oracle.Probe]:
        """Return packets at the edges of what anything on the node names, and some random ones."""
        r = random.Random(self.seed * 7919 + 1)
        found = []
        for what in self.interests:
            for _ in range(2):
                found.append(self._probe(r, **what))
            if "src" in what or "sport" in what or "dport" in what:
                found.append(self._probe(r, **{key: what[key] for key in what if key != "dst"}))
        for text in self._ranges():
            found.append(self._probe(r, dst=text))
        r.shuffle(found)
        found = found[: count * 3 // 4]
        while len(found) < count:
            found.append(self._probe(r, dst=r.choice(DESTINATIONS)) if r.random() < 0.6 else self._probe(r))
        return found

    def _ranges(self) -> t.List[str]:
        options = self.policy.options
        found: t.List[str] = list(options.get("non_masquerade_cidrs", policies.RFC1918))
        found += options.get("masquerade_cidrs", [])
        for rule in options.get("rules", []):
            found += rule.get("destinations", [])
        return found

    def _probe(self, r: random.Random, **what: t.Any) -> oracle.Probe:
        number = what.get("src", r.randrange(len(self.pods)))
        pod = self.pods[number]
        text = what.get("dst")
        six = ":" in text if text else self.six and r.random() < 0.3
        if six and not self.six:
            six, text = False, None
        if text is None:
            if six:
                text = r.choice(DESTINATIONS6)
            elif r.random() < 0.3:
                text = "%d.%d.0.0/16" % (r.choice([1, 5, 8, 11, 45, 93, 104, 151, 185]), r.randrange(256))
            else:
                text = r.choice(DESTINATIONS)
        network = ipaddress.ip_network(text)
        size = network.num_addresses
        kind = r.random()
        if size <= 2 or kind < 0.2:
            address = network[0] if size <= 2 else network[1]
        elif kind < 0.4:
            address = network[size - 2]
        elif kind < 0.5 and int(network[0]):
            address = network[0] - 1
        elif kind < 0.55 and int(network[size - 1]) + 1 < 1 << network.max_prefixlen:
            address = network[size - 1] + 1
        else:
            address = network[r.randrange(1, size - 1)]
        proto = what.get("proto") or r.choices(["tcp", "udp", "icmp", "sctp"], [5, 3, 1, 1])[0]
        ports = list(PORTS) + [one["dport"] for one in self.interests if "dport" in one]
        for rule in self.policy.options.get("rules", []):
            ports += [int(str(port).partition("-")[0]) for port in rule.get("ports", [])]
        dport = what.get("dport") or r.choice([*ports, r.randint(1, 65535)])
        sport = what.get("sport") or oracle.sport(r)
        tos = what.get("tos", 0x10 if r.random() < 0.03 else 0)
        return oracle.Probe(
            number, pod.six if six else pod.four, str(address), proto, sport, 0 if proto == "icmp" else dport, tos
        )
