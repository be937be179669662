# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random rule programs, from the manual pages: chains with many conditions in a rule, jumps, marks, sets and maps.

Where ``strange.strange`` has one construction at a time, here a node has whole tables at several hooks, and routing
rules and tables of every kind beside them.
"""

from __future__ import annotations

import ipaddress
import random
import typing as t

from . import nodes, oracle
from .nodes import DESTINATIONS, PORTS

What = t.Dict[str, t.Any]
MARKS = (0x1, 0x2, 0x3, 0x10, 0x12, 0x30, 0x100, 0x210)
MASKS = (0x3, 0xF, 0x30, 0xFF, 0x310, 0xFFFF, 0xFFFFFFFF)
PROTOCOLS = ("tcp", "udp", "sctp", "icmp")
PORTED = ("tcp", "udp", "sctp")
LINKS_OF = {"prerouting": ("i",), "forward": ("i", "o"), "postrouting": ("o",)}


class Program(nodes.Node):
    """A node with random programs of rules. The seed decides all of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0)
        self.ports = self.r.sample([*PORTS, 1, 1024, 65535], 5)
        self.hosts = [self._host() for _ in range(5)]
        self.sets: t.List[t.Tuple[str, str]] = []
        if self.r.random() < 0.5:
            Routes(self).add()
        for _ in range(self.r.choices([1, 2, 3], [4, 4, 2])[0]):
            late = self.r.random() < 0.3
            if self.r.random() < 0.5:
                self.begin("program:xt" + self.variant, late)
                Tables(self).add()
            else:
                self.begin("program:nft", late)
                Chains(self).add()

    def _host(self) -> str:
        network = ipaddress.ip_network(self.r.choice(DESTINATIONS))
        return str(network[self.r.randrange(min(network.num_addresses, 250))])

    # what rules may ask for; each answers with a text and with what a probe must have to meet it

    def network(self) -> str:
        """Return a network or host of the few that all programs of this node speak of."""
        host = self.r.choice(self.hosts)
        length = self.r.choice([8, 14, 16, 22, 24, 30, 31, 32, 32])
        return str(ipaddress.ip_network("%s/%d" % (host, length), strict=False))

    def span(self) -> t.Tuple[str, str]:
        first = ipaddress.IPv4Address(self.r.choice(self.hosts))
        return str(first), str(first + self.r.choice([1, 3, 40, 700]))

    def port(self) -> int:
        return self.r.choice(self.ports)

    def port_span(self) -> t.Tuple[int, int]:
        first = self.port()
        return first, min(65535, first + self.r.choice([0, 1, 10, 3000]))

    def place(self) -> int:
        return self.r.randrange(len(self.pods))

    def probes(self, count: int = 80) -> t.List[oracle.Probe]:
        """Return packets that meet one rule, or one part of what two rules ask for, and random ones."""
        r = random.Random(self.seed * 104729 + 7)
        found = []
        wanted = [what for what in self.interests if what] or [{}]
        for what in wanted:
            found.append(self._probe(r, **what))
            found.append(self._probe(r, **{key: value for key, value in what.items() if r.random() < 0.7}))
            other = r.choice(wanted)
            found.append(self._probe(r, **{**other, **what}))
        for text in [*self._ranges(), *(host + "/32" for host in self.hosts)]:
            found.append(self._probe(r, dst=text))
        r.shuffle(found)
        found = found[: count * 9 // 10]
        while len(found) < count:
            found.append(self._probe(r))
        return found


class Tables:
    """One program of iptables: some of its tables."""

    def __init__(self, n: Program) -> None:
        self.n = n
        self.r = n.r
        self.number = len(n.steps)

    def add(self) -> None:
        r = self.r
        if r.random() < 0.35:
            self._sets()
        tables = r.choices(
            [["nat"], ["mangle", "nat"], ["raw", "mangle", "nat"], ["mangle", "nat", "filter"]], [3, 5, 2, 1]
        )[0]
        for table in tables:
            self._table(table)

    def _sets(self) -> None:
        n, r = self.n, self.r
        lines = []
        for kind in r.sample(
            ["hash:ip", "hash:net", "hash:ip,port", "hash:net,port", "hash:net,net", "hash:net,iface"], 2
        ):
            name = "p%d-%d" % (self.number, len(n.sets))
            lines.append("create %s %s -exist" % (name, kind))
            n.sets.append((name, kind))
            for _ in range(r.randint(1, 3)):
                lines.append("add %s %s -exist" % (name, self._entry(kind)))
            if kind == "hash:net" and r.random() < 0.4:
                lines.append("add %s %s nomatch -exist" % (name, n.network()))
        n.step("ipset", "\n".join(lines) + "\n", late=False)

    def _entry(self, kind: str) -> str:
        n, r = self.n, self.r
        proto = r.choice(PORTED)
        if kind == "hash:ip":
            return r.choice(n.hosts)
        if kind == "hash:net":
            return n.network()
        if kind == "hash:ip,port":
            return "%s,%s:%d" % (r.choice(n.hosts), proto, n.port())
        if kind == "hash:net,port":
            first, last = n.port_span()
            return "%s,%s:%d-%d" % (n.network(), proto, first, last)
        if kind == "hash:net,net":
            return "10.244.1.0/%d,%s" % (r.choice([24, 30]), n.network())
        return "%s,%s" % (n.network(), r.choice(n.uplinks).name)

    def _table(self, table: str) -> None:
        r = self.r
        hooks = {
            "nat": ["POSTROUTING"] if r.random() < 0.6 else ["PREROUTING", "POSTROUTING"],
            "mangle": r.sample(["PREROUTING", "FORWARD", "POSTROUTING"], r.randint(1, 2)),
            "raw": ["PREROUTING"],
            "filter": ["FORWARD"],
        }[table]
        lines = []
        names = []
        for hook in hooks:
            own = ["%s%d%s%d" % (table[0].upper(), self.number, hook[:4], place) for place in range(r.randint(0, 3))]
            names += own
            for _ in range(r.randint(1, 4)):
                lines.append(self._rule(table, hook, hook, own))
            for place, chain in enumerate(own):
                for _ in range(r.randint(1, 3)):
                    lines.append(self._rule(table, hook, chain, own[place + 1 :]))
        self.n.ipt(table, *lines, chains=names)

    def _rule(self, table: str, hook: str, chain: str, below: t.Sequence[str]) -> str:
        what: What = {}
        parts = self._matches(table, hook.lower(), what)
        if what:
            self.n.interest(**what)
        return "-A %s %s-j %s" % (chain, "".join(part + " " for part in parts), self._target(table, hook, below, what))

    def _not(self, chance: float = 0.2) -> str:
        return "! " if self.r.random() < chance else ""

    def _matches(self, table: str, hook: str, what: What) -> t.List[str]:
        n, r = self.n, self.r
        found: t.List[str] = []
        if r.random() < 0.35:
            place = n.place()
            pod, no = n.pods[place].four, self._not()
            found.append("%s-s %s" % (no, r.choice([pod, pod, "10.244.1.2/31", "10.244.1.2/255.255.0.255"])))
            if not no:
                what["src"] = place
        if r.random() < 0.55:
            no, network = self._not(), n.network()
            if r.random() < 0.08:
                network = "%s/255.0.255.0" % r.choice(n.hosts)
                network = (
                    str(ipaddress.IPv4Address(int(ipaddress.IPv4Address(network[:-12])) & 0xFF00FF00)) + network[-12:]
                )
            found.append("%s-d %s" % (no, network))
            if not no and "255." not in network:
                what["dst"] = network
        kind = r.random()
        if kind < 0.45:
            self._ports(found, what)
        elif kind < 0.55:
            found.append("! -p %s" % r.choice(PROTOCOLS))
        if r.random() < 0.3 and (table, hook) != ("raw", "prerouting"):
            mask = r.choice(MASKS)
            found.append("-m mark %s--mark 0x%x/0x%x" % (self._not(), r.choice([0, *MARKS]) & mask, mask))
        if table != "raw" and r.random() < 0.25:
            found.append(self._connection(what))
        if r.random() < 0.08:
            first, last = n.span()
            no = self._not()
            found.append("-m iprange %s--dst-range %s-%s" % (no, first, last))
            if not no:
                what.setdefault("dst", first + "/32")
        if r.random() < 0.08:
            found.append(
                "-m addrtype %s--dst-type %s" % (self._not(), r.choice(["LOCAL", "UNICAST", "LOCAL,BROADCAST"]))
            )
        if n.sets and r.random() < 0.25:
            found.append(self._set(hook))
        if r.random() < 0.25:
            found.append(self._link(hook))
        if r.random() < 0.04:
            found.append("-m statistic --mode random --probability 0.5")
        if r.random() < 0.12:
            text = r.choice(["-j MASQUERADE", "! -d 10.0.0.0/8", "a 'b' c", "back\\\\slash", "x"])
            found.append('-m comment --comment "%s"' % text)
        if r.random() < 0.02:
            found.append("-m limit --limit 1000/s")
        return found

    def _ports(self, found: t.List[str], what: What) -> None:
        n, r = self.n, self.r
        proto = r.choice(PROTOCOLS)
        what["proto"] = proto
        found.append("-p %s" % proto)
        if proto == "icmp" or r.random() < 0.35:
            return
        first, last = n.port_span()
        no = self._not()
        kind = r.random()
        if kind < 0.5:
            found.append("-m %s %s--dport %d%s" % (proto, no, first, "" if first == last else ":%d" % last))
        elif kind < 0.6:
            found.append("-m %s %s--sport %d:%d" % (proto, no, 40000, 41000))
            what["sport"] = 40500
            return
        else:
            word = r.choice(["dports", "dports", "ports"])
            span = str(first) if first == last else "%d:%d" % (first, last)
            found.append("-m multiport %s--%s %d,%s" % (no, word, n.port(), span))
        if not no:
            what["dport"] = first

    def _connection(self, what: What) -> str:
        n, r = self.n, self.r
        parts = []
        kinds = r.sample(["state", "dst", "src", "proto", "dport", "status"], r.randint(1, 2))
        if "state" in kinds:
            states = r.choice(
                ["NEW", "NEW,UNTRACKED", "DNAT", "INVALID", "RELATED,ESTABLISHED", "UNTRACKED", "NEW,DNAT"]
            )
            parts.append("%s--ctstate %s" % (self._not(), states))
        if "dst" in kinds:
            network = n.network()
            parts.append("%s--ctorigdst %s" % (self._not(), network))
            what.setdefault("dst", network)
        if "src" in kinds:
            parts.append("%s--ctorigsrc %s" % (self._not(), n.pod()))
        if "proto" in kinds or "dport" in kinds:
            proto = r.choice(["tcp", "udp"])
            parts.append("%s--ctproto %s" % (self._not(0.1), proto))
            what.setdefault("proto", proto)
        if "dport" in kinds:
            port = n.port()
            parts.append("%s--ctorigdstport %d" % (self._not(), port))
            what.setdefault("dport", port)
        if "status" in kinds:
            parts.append(
                "%s--ctstatus %s" % (self._not(), r.choice(["NONE", "CONFIRMED", "SEEN_REPLY", "ASSURED,EXPECTED"]))
            )
        return "-m conntrack " + " ".join(parts)

    def _set(self, hook: str) -> str:
        name, kind = self.r.choice(self.n.sets)
        words = {
            "hash:ip": "dst",
            "hash:net": "dst",
            "hash:ip,port": "dst,dst",
            "hash:net,port": "dst,dst",
            "hash:net,net": "src,dst",
            "hash:net,iface": "dst,dst" if hook != "prerouting" else "dst,src",
        }[kind]
        if kind == "hash:ip" and self.r.random() < 0.2:
            words = "src"
        return "-m set %s--match-set %s %s" % (self._not(), name, words)

    def _link(self, hook: str) -> str:
        n, r = self.n, self.r
        way = r.choice(LINKS_OF[hook])
        name = r.choice(n.pods).link if way == "i" else r.choice(n.uplinks).name
        if r.random() < 0.2:
            name = name[:2] + "+"
        return "%s-%s %s" % (self._not(), way, name)

    def _target(self, table: str, hook: str, below: t.Sequence[str], what: What) -> str:
        n, r = self.n, self.r
        if below and r.random() < 0.35:
            return r.choice(below)
        if table == "nat" and hook == "POSTROUTING":
            return r.choices(
                ["MASQUERADE", "SNAT --to-source 192.0.2.25", "ACCEPT", "RETURN", "MASQUERADE --random-fully"],
                [3, 2, 2, 4, 1],
            )[0]
        if table == "nat":
            choice = r.random()
            if choice < 0.5:
                port = ":%d" % n.port() if what.get("proto") in PORTED and r.random() < 0.6 else ""
                return "DNAT --to-destination %s%s" % (r.choice(n.hosts), port)
            if choice < 0.6:
                return "DNAT --to-destination %s-%s" % n.span()
            return r.choice(["ACCEPT", "RETURN", "RETURN"])
        if table == "filter":
            return r.choice(["ACCEPT", "RETURN", "ACCEPT", "DROP"])
        value, mask = r.choice(MARKS), r.choice(MASKS)
        if table == "raw":
            return r.choice(
                ["CT --notrack", "CT --zone 5", "ACCEPT", "RETURN", "MARK --set-xmark 0x%x/0x%x" % (value, mask)]
            )
        return r.choice(
            [
                "MARK --set-xmark 0x%x/0x%x" % (value, mask),
                "MARK --set-mark 0x%x/0x%x" % (value & mask, mask),
                "MARK --or-mark 0x%x" % value,
                "MARK --and-mark 0x%x" % mask,
                "MARK --xor-mark 0x%x" % value,
                "CONNMARK --set-xmark 0x%x/0x%x" % (value, mask),
                "CONNMARK --save-mark --nfmask 0x%x --ctmask 0x%x" % (mask, r.choice(MASKS)),
                "CONNMARK --restore-mark --nfmask 0x%x --ctmask 0x%x" % (r.choice(MASKS), mask),
                "CONNMARK --save-mark",
                "ACCEPT",
                "RETURN",
                "TTL --ttl-set 60",
            ]
        )


class Chains:
    """One program of nft: a table with base chains at several hooks."""

    def __init__(self, n: Program) -> None:
        self.n = n
        self.r = n.r
        self.number = len(n.steps)
        self.head: t.List[str] = []
        self.named = 0

    def add(self) -> None:
        r = self.r
        bases = [("postrouting", "nat", r.choice([-150, 0, 50, 90, 99, 100, 101, 150]))]
        for hook, kind, priority in (
            ("prerouting", "filter", r.choice([-310, -300, -150, -50])),
            ("prerouting", "nat", r.choice([-110, -100, -90])),
            ("forward", "filter", r.choice([-150, 0, 10])),
            ("postrouting", "filter", r.choice([-150, 0, 90, 110])),
        ):
            if r.random() < 0.35:
                bases.append((hook, kind, priority))
        texts = []
        for hook, kind, priority in bases:
            own = ["u%d_%s_%s_%d" % (self.number, hook[:4], kind[0], place) for place in range(r.randint(0, 3))]
            for place, chain in reversed(list(enumerate(own))):
                lines = [self._rule(hook, kind, priority, own[place + 1 :]) for _ in range(r.randint(1, 3))]
                texts.append(" chain %s {\n  %s\n }" % (chain, "\n  ".join(lines)))
            lines = [self._rule(hook, kind, priority, own) for _ in range(r.randint(1, 4))]
            texts.append(
                " chain %s_%s {\n  type %s hook %s priority %d;\n  %s\n }"
                % (hook, kind, kind, hook, priority, "\n  ".join(lines))
            )
        family = r.choices(["ip", "inet"], [3, 1])[0]
        body = "\n".join([*self.head, *texts])
        self.n.nft("table %s program%d {\n%s\n}\n" % (family, self.number, body))

    def _rule(self, hook: str, kind: str, priority: int, below: t.Sequence[str]) -> str:
        what: What = {}
        text = " ".join(
            [*self._matches(hook, kind, priority, what), self._statement(hook, kind, priority, below, what)]
        )
        if what:
            self.n.interest(**what)
        return text

    def _op(self, chance: float = 0.2) -> str:
        return "!= " if self.r.random() < chance else ""

    def _matches(self, hook: str, kind: str, priority: int, what: What) -> t.List[str]:
        n, r = self.n, self.r
        found: t.List[str] = []
        if r.random() < 0.3:
            place, no = n.place(), self._op()
            pod = n.pods[place].four
            found.append("ip saddr %s%s" % (no, r.choice([pod, pod, "10.244.1.2/31", "{ %s, 10.244.9.0/24 }" % pod])))
            if not no:
                what["src"] = place
        if r.random() < 0.55:
            found.append(self._destination(what))
        if r.random() < 0.4:
            found.append(self._ports(what))
        elif r.random() < 0.2:
            found.append(self._concatenation(what))
        if r.random() < 0.3:
            found.append(self._mark("meta mark"))
        if priority > -200 and r.random() < 0.3:
            found.append(self._connection(kind, what))
        if r.random() < 0.2:
            way = r.choice(LINKS_OF[hook])
            name = r.choice(n.pods).link if way == "i" else r.choice(n.uplinks).name
            name = r.choice(['"%s"' % name, '"%s*"' % name[:2], '{ "%s", "none0" }' % name])
            found.append("%sifname %s%s" % (way, self._op(), name))
        if r.random() < 0.06:
            found.append("fib daddr type %s%s" % (self._op(), r.choice(["local", "unicast", "{ local, broadcast }"])))
        if r.random() < 0.03:
            found.append(r.choice(["numgen random mod 4 < 2", "ip version 4", "ct direction original"]))
        return found

    def _destination(self, what: What) -> str:
        n, r = self.n, self.r
        no = self._op()
        kind = r.random()
        first, last = n.span()
        network = n.network()
        if kind < 0.45:
            text = network
        elif kind < 0.6:
            text = "%s-%s" % (first, last)
            network = first + "/32"
        elif kind < 0.75:
            other = n.network()
            if ipaddress.ip_network(other).overlaps(ipaddress.ip_network(network)):
                other = "233.252.0.0/24"
            text = "{ %s, %s }" % (network, other)
        elif kind < 0.85:
            self.named += 1
            self.head.append(
                " set s%d {\n  type ipv4_addr\n  flags interval\n  auto-merge\n  elements = { %s, %s }\n }"
                % (self.named, network, n.network())
            )
            text = "@s%d" % self.named
        elif kind < 0.93:
            mask = r.choice(["255.0.255.0", "255.255.0.0", "0.0.0.255", "255.0.0.3"])
            value = ipaddress.IPv4Address(int(ipaddress.IPv4Address(first)) & int(ipaddress.IPv4Address(mask)))
            if not no:
                what["dst"] = first + "/32"
            return "ip daddr & %s %s %s" % (mask, "!=" if no else "==", value)
        else:
            if not no:
                what["dst"] = first + "/32"
            return "@nh,128,16 %s0x%x" % (no, int(ipaddress.IPv4Address(first)) >> 16)
        if not no:
            what["dst"] = network
        return "ip daddr %s%s" % (no, text)

    def _ports(self, what: What) -> str:
        n, r = self.n, self.r
        proto = r.choice(PROTOCOLS)
        what["proto"] = proto
        first, last = n.port_span()
        kind = r.random()
        if proto == "icmp" or kind < 0.25:
            text = r.choice(["meta l4proto %s", "ip protocol %s", "meta l4proto { %s, 47 }"])
            return text % proto
        no = self._op()
        if not no:
            what["dport"] = first
        port = str(first) if first == last else "%d-%d" % (first, last)
        if kind < 0.5:
            return "%s dport %s%s" % (proto, no, port)
        if kind < 0.6:
            return "meta l4proto { tcp, udp, sctp } th dport %s%s" % (no, port)
        if kind < 0.7:
            return "%s dport %s{ %s, 7 }" % (proto, no, port if first > 7 else "%d" % (first + 7))
        if kind < 0.8:
            what.pop("dport", None)
            what["sport"] = 40500
            return "%s sport 40000-41000" % proto
        if kind < 0.9 and not no:
            return "%s dport >= %d" % (proto, first)
        what.pop("proto")
        return "meta l4proto != %s" % proto

    def _concatenation(self, what: What) -> str:
        n, r = self.n, self.r
        network, proto = n.network(), r.choice(PORTED)
        first, last = n.port_span()
        port = str(first) if first == last else "%d-%d" % (first, last)
        kind = r.random()
        what.update(dst=network, proto=proto, dport=first)
        if kind < 0.4:
            return "ip daddr . meta l4proto . th dport %s{ %s . %s . %s, 233.252.0.1 . udp . 9 }" % (
                self._op(0.15), network, proto, port,
            )  # fmt: skip
        if kind < 0.7:
            what.pop("proto")
            what.pop("dport")
            place = n.place()
            what["src"] = place
            return "ip saddr . ip daddr { %s . %s, 10.244.9.9 . 233.252.0.1 }" % (n.pods[place].four, network)
        self.named += 1
        self.head.append(
            " set c%d {\n  type ipv4_addr . inet_service\n  flags interval\n  elements = { %s . %s }\n }"
            % (self.named, network, port)
        )
        return "ip daddr . %s dport @c%d" % (proto, self.named)

    def _mark(self, subject: str) -> str:
        r = self.r
        value, mask = r.choice([0, *MARKS]), r.choice(MASKS)
        return "%s %s" % (
            subject,
            r.choice(
                [
                    "0x%x" % value,
                    "!= 0x%x" % value,
                    "& 0x%x == 0x%x" % (mask, value & mask),
                    "& 0x%x != 0x%x" % (mask, value & mask),
                    "> 0x%x" % value,
                    "< 0x%x" % (value + 1),
                    "{ 0x1, 0x3, 0x10-0x30 }",
                    "0x2-0x200",
                ]
            ),
        )

    def _connection(self, kind: str, what: What) -> str:
        n, r = self.n, self.r
        choice = r.random()
        if choice < 0.3:
            return "ct state %s%s" % (
                self._op(), r.choice(["new", "untracked", "{ new, untracked }", "established,related", "invalid"]),
            )  # fmt: skip
        if choice < 0.45:
            network = n.network()
            what.setdefault("dst", network)
            return "ct original ip daddr %s%s" % (self._op(), network)
        if choice < 0.6:
            return r.choice(["ct status dnat", "ct status & dnat == 0", "ct status & confirmed == 0"])
        if choice < 0.85:
            return self._mark("ct mark")
        proto = r.choice(["tcp", "udp"])
        port = n.port()
        what.setdefault("proto", proto)
        what.setdefault("dport", port)
        return "ct original protocol %s ct original proto-dst %s%d" % (proto, self._op(), port)

    def _statement(self, hook: str, kind: str, priority: int, below: t.Sequence[str], what: What) -> str:
        n, r = self.n, self.r
        if below and r.random() < 0.35:
            if r.random() < 0.25:
                return self._verdicts(below, what)
            return "%s %s" % (r.choice(["jump", "jump", "goto"]), r.choice(below))
        if kind == "nat" and hook == "postrouting":
            place = n.place()
            return r.choices(
                [
                    "masquerade",
                    "snat ip to 192.0.2.25",
                    "accept",
                    "return",
                    "masquerade fully-random",
                    "snat ip to ip saddr map { %s : 192.0.2.25 }" % n.pods[place].four,
                    "snat ip to ip daddr map { %s : 192.0.2.25, 233.252.0.1 : 192.0.2.26 }" % r.choice(n.hosts),
                ],
                [4, 2, 2, 3, 1, 1, 1],
            )[0]
        if kind == "nat":
            choice = r.random()
            if choice < 0.4:
                port = ":%d" % n.port() if what.get("proto") in PORTED and r.random() < 0.5 else ""
                return "dnat ip to %s%s" % (r.choice(n.hosts), port)
            if choice < 0.55:
                return "dnat ip to ip daddr map { %s : %s, 233.252.0.1 : %s }" % (
                    r.choice(n.hosts), r.choice(n.hosts), r.choice(n.hosts),
                )  # fmt: skip
            return r.choice(["accept", "return"])
        return self._change(hook, priority)

    def _verdicts(self, below: t.Sequence[str], what: What) -> str:
        n, r = self.n, self.r
        chain = r.choice(below)
        choice = r.random()
        if choice < 0.4:
            return "ip daddr vmap { %s : jump %s, 233.252.0.1 : accept }" % (r.choice(n.hosts), chain)
        if choice < 0.7:
            return "meta l4proto vmap { tcp : jump %s, udp : %s, icmp : continue }" % (
                chain, r.choice(["return", "accept", "goto " + chain]),
            )  # fmt: skip
        return "ip daddr . meta l4proto vmap { %s . tcp : goto %s, %s . udp : jump %s }" % (
            r.choice(n.hosts), chain, r.choice(n.hosts), chain,
        )  # fmt: skip

    def _change(self, hook: str, priority: int) -> str:
        n, r = self.n, self.r
        value, mask = r.choice(MARKS), r.choice(MASKS)
        choices = [
            "meta mark set 0x%x" % value,
            "meta mark set meta mark | 0x%x" % value,
            "meta mark set meta mark & 0x%x" % mask,
            "meta mark set meta mark ^ 0x%x" % value,
            "meta mark set meta mark & 0x%x | 0x%x" % (mask, value),
            "meta mark set 0x%x accept" % value,
            "meta mark set ip daddr map { %s : 0x%x, 233.252.0.1 : 0x1 }" % (r.choice(n.hosts), value),
            "meta mark 0x0 meta mark set 0x%x meta mark 0x%x counter" % (value, value),
            "accept",
            "return",
        ]
        if priority > -200:
            choices += ["ct mark set 0x%x" % value, "ct mark set meta mark", "meta mark set ct mark"]
        elif hook == "prerouting":
            choices += ["notrack", "ct zone set 9"]
        return r.choice(choices)


class Routes:
    """Routing rules and tables of every kind, as ip-rule(8), ip-route(8) and ip-nexthop(8) have them."""

    def __init__(self, n: Program) -> None:
        self.n = n
        self.r = n.r

    def add(self) -> None:
        n, r = self.n, self.r
        n.used.add("program:routes")
        number = 0
        tables = list(range(201, 201 + r.randint(1, 3)))
        if r.random() < 0.4:
            for up in n.uplinks:
                number += 1
                n.lines.append("nexthop add id %d %s" % (number, up.via()))
            if number > 1:
                n.lines.append(
                    "nexthop add id 50 group %s" % "/".join("%d,%d" % (one + 1, one + 1) for one in range(number))
                )
            n.lines.append("nexthop add id 60 blackhole")
        for table in tables:
            self._table(table, number)
        for priority in r.sample(range(500, 900), r.randint(1, 4)):
            self._rule(priority, r.choice([*tables, *tables, 254]))
        if r.random() < 0.3:
            self._table(254, number)
        if r.random() < 0.3:
            up = r.choice(n.uplinks)
            if up.numbered:
                address = up.four[0][:-1] + r.choice(["7", "77"])
                up.four.append(address)
        if r.random() < 0.2:
            n.lines.append("addr add 203.0.113.200/32 dev lo")

    def _via(self, network: str) -> str:
        n, r = self.n, self.r
        up = r.choice(n.uplinks)
        text = up.via()
        if up.numbered and r.random() < 0.15:
            text += " onlink"
        if up.numbered and r.random() < 0.2:
            source = r.choice([*up.four, nodes.OWN[0]])
            up.preferred.append((network, source))
            text += " src " + source
        if r.random() < 0.15:
            text += r.choice([" mtu 1400", " advmss 1200", " realm 7", " initcwnd 10", " metric 100"])
        return text

    def _table(self, table: int, nexthops: int) -> None:
        n, r = self.n, self.r
        for _ in range(r.randint(1, 4)):
            network = n.network() if table == 254 or r.random() < 0.6 else "0.0.0.0/0"
            kind = r.random()
            if kind < 0.5:
                rest = self._via(network)
            elif kind < 0.6 and nexthops:
                rest = "nhid %d" % r.choice([1, nexthops, 50 if nexthops > 1 else 1, 60])
            elif kind < 0.7 and len(n.uplinks) > 1:
                rest = " ".join(
                    "nexthop %s weight %d" % (up.via(), r.randint(1, 3)) for up in n.uplinks if up.kind != "vrf"
                )
                n.lines.append("route replace %s table %d %s" % (network, table, rest))
                continue
            elif kind < 0.9:
                n.lines.append(
                    "route add %s %s table %d%s"
                    % (r.choice(["throw", "throw", "unreachable", "blackhole", "prohibit"]), network, table,
                       r.choice(["", " metric 3"]))
                )  # fmt: skip
                continue
            else:
                n.lines.append(
                    "route append %s %s table %d metric 900"
                    % (network, self._via(network).partition(" metric")[0], table)
                )
                continue
            n.lines.append("route replace %s %s table %d" % (network, rest, table))

    def _rule(self, priority: int, table: int) -> None:
        n, r = self.n, self.r
        what: What = {}
        parts = []
        if r.random() < 0.4:
            place = n.place()
            parts.append("from %s" % r.choice([n.pods[place].four, "10.244.1.2/31", "10.244.0.0/16"]))
            what["src"] = place
        if r.random() < 0.4:
            network = n.network()
            parts.append("to " + network)
            what["dst"] = network
        if r.random() < 0.25:
            parts.append("iif " + r.choice([*(pod.link for pod in n.pods), "lo", "none0"]))
        if r.random() < 0.35:
            mask = r.choice(MASKS)
            parts.append("fwmark 0x%x/0x%x" % (r.choice([0, *MARKS]) & mask, mask))
        if r.random() < 0.35:
            proto = r.choice(PROTOCOLS)
            parts.append("ipproto " + proto)
            what["proto"] = proto
            if proto in PORTED and r.random() < 0.7:
                first, last = n.port_span()
                parts.append("dport %d-%d" % (first, last))
                what["dport"] = first
            elif proto in PORTED and r.random() < 0.5:
                parts.append("sport 40000-41000")
                what["sport"] = 40500
        elif r.random() < 0.1:
            first, last = n.port_span()
            parts.append("dport %d-%d" % (first, last))
            what["dport"] = first
        if r.random() < 0.06:
            parts.append(r.choice(["oif up0", "tos 0x10", "uidrange 0-0"]))
        if what:
            n.interest(**what)
        no = "not " if r.random() < 0.15 else ""
        action = "lookup %d" % table
        kind = r.random()
        if kind < 0.15:
            action += " suppress_prefixlength %d" % r.choice([0, 8, 16, 23])
        elif kind < 0.22:
            action = "goto %d" % r.choice([32766, priority + 50])
        elif kind < 0.3:
            action = r.choice(["blackhole", "unreachable", "prohibit", "nop"])
        n.lines.append("rule add %s%s priority %d %s" % (no, " ".join(parts), priority, action))
