# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether verify finds every rule that hits an exempt range, and reports none that does not.

The rules are random. What each hides is worked out from what was planted, with sets of addresses.

``IP_MASQ_TWIN_PLANTS`` is the number of rules, each on a node of its own.
"""

from __future__ import annotations

import ipaddress
import os
import random
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import verification
from netaddr import IPNetwork, IPRange, IPSet
from strange.spaces import Namespace
from support.twins import build, node_of
from support.twins import exempt as exempt_ranges
from support.unnamed_namespaces import carry_out

_COUNT = int(os.environ.get("IP_MASQ_TWIN_PLANTS", "40"))

PODS = "10.244.1.0/24"
NODE = "198.51.100.1"
_OTHER = "192.0.2.9"
_RANGES = (
    "10.0.0.0/8", "10.32.0.0/11", "10.96.0.0/12", "10.200.0.0/16", "10.200.7.0/24", "10.200.7.9/32", "172.16.0.0/12",
    "172.20.4.0/22", "192.168.0.0/16", "192.168.64.0/18", "100.64.0.0/10", "100.70.1.0/24", "203.0.113.0/24",
    "203.0.113.64/26", "8.8.8.8/32", "151.101.0.0/16",
)  # fmt: skip
_PARTS_OF_PODS = ("10.244.1.0/25", "10.244.1.128/25", "10.244.1.64/26", "10.244.1.77/32", "10.244.0.0/16")
_NOT_PODS = ("10.244.2.0/24", "172.17.0.0/16", "198.51.100.0/24")
#: Never leaves over the uplink: the pods' own network, and what is not forwarded.
_HERE = IPSet(["10.244.1.0/24", "198.51.100.0/24", "0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"])


class Part(t.NamedTuple):
    """One condition: as iptables and as nft write it, and the packets that it means."""

    iptables: str
    nft: str
    destinations: IPSet
    sources: IPSet
    possible: bool = True


_ALL = IPSet(["0.0.0.0/0"])


class Plant:
    """A node with exempt ranges, and one rule of somebody else's."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.exempt = self.chance.sample(_RANGES, self.chance.randint(1, 5))
        self.ours = self.chance.choice(("iptables-nft", "iptables-legacy", "nft"))
        self.theirs = self.chance.choice(("iptables-nft", "iptables-legacy", "nft"))
        self.sets: t.List[str] = []
        self.parts = [part for part in (self._destination(), self._source(), self._service(), self._link()) if part]
        self.chance.shuffle(self.parts)
        self.action = self.chance.choice(("masquerade", "node", "other"))
        self.way = self.chance.choice(("direct", "direct", "chain", "mark"))

    def hidden(self) -> IPSet:
        """Return the exempt destinations that no longer see pods, from some pod, with some protocol and port."""
        destinations, sources = IPSet(self.exempt) - _HERE, IPSet([PODS])
        for part in self.parts:
            if not part.possible:
                return IPSet()
            destinations &= part.destinations
            sources &= part.sources
        return destinations if sources else IPSet()

    # conditions

    def _not(self) -> bool:
        return self.chance.random() < 0.2

    def _destination(self) -> t.Optional[Part]:
        kind = self.chance.choice(("none", "one", "one", "one", "set", "range"))
        if kind == "none":
            return None
        inverted = self._not()
        bang, unequal = ("! ", "!= ") if inverted else ("", "")
        if kind == "one":
            network = self.chance.choice((*_RANGES, self._address()))
            text, nft, meant = "%s-d %s" % (bang, network), "ip daddr %s%s" % (unequal, network), IPSet([network])
        elif kind == "set":
            networks = [str(one) for one in IPSet(self.chance.sample(_RANGES, 3)).iter_cidrs()]
            self.sets += ["create theirs hash:net", *("add theirs %s" % one for one in networks)]
            text = "-m set %s--match-set theirs dst" % bang
            nft, meant = "ip daddr %s{ %s }" % (unequal, ", ".join(networks)), IPSet(networks)
        else:
            first = IPNetwork(self.chance.choice(_RANGES[:8])).network + self.chance.randint(0, 200)
            last = first + self.chance.randint(1, 70000)
            meant, dotted = IPSet(IPRange(first, last)), "%s-%s" % (first, last)
            text, nft = "-m iprange %s--dst-range %s" % (bang, dotted), "ip daddr %s%s" % (unequal, dotted)
        return Part(text, nft, _ALL - meant if inverted else meant, _ALL)

    def _address(self) -> str:
        network = IPNetwork(self.chance.choice(self.exempt))
        return "%s/32" % network[self.chance.randrange(network.size)]

    def _source(self) -> t.Optional[Part]:
        kind = self.chance.choice(("none", "none", "pods", "pods", "others"))
        if kind == "none":
            return None
        network = self.chance.choice(_PARTS_OF_PODS if kind == "pods" else _NOT_PODS)
        inverted = self._not()
        text = "%s-s %s" % ("! " if inverted else "", network)
        meant = IPSet([network])
        nft = "ip saddr %s%s" % ("!= " if inverted else "", network)
        return Part(text, nft, _ALL, _ALL - meant if inverted else meant)

    def _service(self) -> t.Optional[Part]:
        choices = (
            None,
            None,
            ("-p tcp -m tcp --dport 443", "tcp dport 443"),
            ("-p udp -m udp --dport 8000:9000", "udp dport 8000-9000"),
            ("-p tcp -m multiport --dports 22,80,3000:4000", "tcp dport { 22, 80, 3000-4000 }"),
            ("-p tcp -m tcp ! --dport 80", "tcp dport != 80"),
            ("! -p tcp", "meta l4proto != tcp"),
            ("-p icmp", "meta l4proto icmp"),
            ("-p udp -m udp --sport 4500", "udp sport 4500"),
        )
        chosen = self.chance.choice(choices)
        return Part(chosen[0], chosen[1], _ALL, _ALL) if chosen else None

    def _link(self) -> t.Optional[Part]:
        choices = (
            None,
            None,
            None,
            ("-o eth0", 'oifname "eth0"', True),
            ("! -o cni0", 'oifname != "cni0"', True),
            ("-o eth9", 'oifname "eth9"', False),
            ("-m mark --mark 0x7700/0xff00", "meta mark & 0xff00 == 0x7700", False),
        )
        chosen = self.chance.choice(choices)
        return Part(chosen[0], chosen[1], _ALL, _ALL, chosen[2]) if chosen else None

    # texts

    def load(self, node: Namespace) -> None:
        """Put our rules and theirs on a node that has none."""
        if self.sets:
            node.run(["ipset", "restore"], "".join(line + "\n" for line in self.sets))
        self._load_ours(node)
        if self.theirs == "nft":
            node.run(["nft", "-f", "-"], self.nft())
        else:
            node.run([self.theirs + "-restore", "--noflush"], self.iptables())

    def _load_ours(self, node: Namespace) -> None:
        if self.ours == "nft":
            lines = "".join("ip daddr %s return\n" % one for one in self.exempt)
            node.run(
                ["nft", "-f", "-"],
                "table ip ip_masq_agent { chain postrouting {\ntype nat hook postrouting priority srcnat;\n"
                "fib daddr type local return\n%smasquerade fully-random\n}\n}\n" % lines,
            )
            return
        lines = "".join("-A IP-MASQ-AGENT -d %s -j RETURN\n" % one for one in self.exempt)
        node.run(
            [self.ours + "-restore"],
            "*nat\n:IP-MASQ-AGENT - [0:0]\n-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT\n%s"
            "-A IP-MASQ-AGENT -j MASQUERADE --random-fully\nCOMMIT\n" % lines,
        )

    def iptables(self) -> str:
        """Return the rule for iptables-restore."""
        target = {"masquerade": "MASQUERADE", "node": "SNAT --to-source " + NODE, "other": "SNAT --to-source " + _OTHER}
        parts = [part.iptables for part in self.parts]
        end = "-j " + target[self.action]
        # Protocol and ports belong together.
        if self.way == "chain":
            half = len(parts) // 2
            return "*nat\n:THEIRS - [0:0]\n%s POSTROUTING %s -j THEIRS\n-A THEIRS %s %s\nCOMMIT\n" % (
                self.chance.choice(("-A", "-I")), " ".join(parts[:half]), " ".join(parts[half:]), end,
            )  # fmt: skip
        if self.way == "mark":
            marked, met = _beside_a_mark(parts, "-o ")
            return (
                "*mangle\n-A PREROUTING %s -j MARK --set-xmark 0x10/0x10\nCOMMIT\n"
                "*nat\n-I POSTROUTING -m mark --mark 0x10/0x10 %s %s\nCOMMIT\n" % (marked, met, end)
            )
        return "*nat\n%s POSTROUTING %s %s\nCOMMIT\n" % (self.chance.choice(("-A", "-I")), " ".join(parts), end)

    def nft(self) -> str:
        """Return the rule for nft."""
        target = {"masquerade": "masquerade", "node": "snat to " + NODE, "other": "snat to " + _OTHER}[self.action]
        parts = [part.nft for part in self.parts]
        hook = "type nat hook postrouting priority %d" % self.chance.choice((50, 90, 99, 100, 101, 110))
        half = len(parts) // 2
        if self.way == "chain":
            return "table ip theirs {\nchain sub {\n%s %s\n}\nchain c { %s;\n%s jump sub\n}\n}\n" % (
                " ".join(parts[half:]), target, hook, " ".join(parts[:half]),
            )  # fmt: skip
        if self.way == "mark":
            marked, met = _beside_a_mark(parts, "oifname")
            return (
                "table ip theirs {\nchain m { type filter hook prerouting priority mangle;\n"
                "%s meta mark set meta mark | 0x10\n}\nchain c { %s;\nmeta mark & 0x10 == 0x10 %s %s\n}\n}\n"
                % (marked, hook, met, target)
            )
        return "table ip theirs { chain c { %s;\n%s %s\n}\n}\n" % (hook, " ".join(parts), target)

    def __str__(self) -> str:
        text = self.nft() if self.theirs == "nft" else self.iptables()
        return "%s: exempt %s, then %s\n%s%s" % (self.ours, self.exempt, self.theirs, "\n".join(self.sets), text)


def _beside_a_mark(parts: t.Sequence[str], link: str) -> t.Tuple[str, str]:
    """Divide conditions between the rule that marks and the one that meets the mark.

    :param link: what a condition has that is only known later: the link that packets leave by.
    """
    early = [part for part in parts if link not in part]
    half = len(early) // 2
    return " ".join(early[:half]), " ".join(early[half:] + [part for part in parts if link in part])


def make_node() -> Namespace:
    """Make a node with pods on a bridge and one uplink, and no rules."""
    lines = ("link add cni0 type bridge", "link set cni0 up", "link set veth0 master cni0")
    node = node_of("veth0", *lines, "address add 10.244.1.1/24 dev cni0")
    # What pods on a bridge send to each other is not tested: rules see it only with the other setting.
    node.sysctl({"bridge/bridge-nf-call-iptables": 0})
    return node


def _find(seed: int) -> t.Tuple[str, t.List[str], t.List[str], t.List[str]]:
    plant = Plant(seed)
    node = make_node()
    plant.load(node)
    exempt = [ipaddress.ip_network(one) for one in plant.exempt]
    policy = exempt_ranges(exempt, [ipaddress.ip_network(PODS)], others=None)
    with node, build() as made:
        report = verification.verify(made, policy)
    assert not report.left_out
    found = [one for conflict in report.conflicts for one in conflict.ranges]
    texts = ["%s: %s" % (conflict.severity, conflict.decided_by) for conflict in report.conflicts]
    return str(plant), sorted(map(str, plant.hidden().iter_cidrs())), found, texts


@pytest.mark.parametrize("seed", range(_COUNT))
def test_planted_rule(seed: int) -> None:
    planted, hidden, found, texts = carry_out(_find, seed)
    assert IPSet(found) == IPSet(hidden), "%s\n%s" % (planted, "\n".join(texts))
