# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random policies, the options that state them, and what the documentation promises about a packet under each."""

from __future__ import annotations

import ipaddress
import random
import typing as t

RFC1918 = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
PORTED = ("tcp", "udp", "sctp")


class Packet(t.NamedTuple):
    """The first packet of a connection, as POSTROUTING meets it."""

    source: str
    destination: str
    protocol: str
    port: int
    link: str
    mark: int = 0


class Promise(t.NamedTuple):
    """The policy of a packet. ``kind`` is pod, node, fixed, or none: out of scope."""

    kind: str
    addresses: t.Tuple[str, ...] = ()


NOTHING = Promise("none")


def within(address: str, networks: t.Iterable[str]) -> int:
    """Return the longest prefix of those of *networks* that contain the address, -1 without any."""
    one = ipaddress.ip_address(address)
    found = -1
    for text in networks:
        network = ipaddress.ip_network(text)
        if network.version == one.version and one in network:
            found = max(found, network.prefixlen)
    return found


def same_link(link: str, patterns: t.Iterable[str]) -> bool:
    """Return whether a link has one of the names; + and * at the end mean any end."""
    for pattern in patterns:
        if pattern[-1] in "+*":
            if link.startswith(pattern[:-1]):
                return True
        elif link == pattern:
            return True
    return False


def family(address: str) -> int:
    return ipaddress.ip_address(address).version


def spread(text: str) -> t.Tuple[str, ...]:
    """Return the addresses of ``FIRST-LAST``, or the one."""
    first, _, last = text.partition("-")
    start, end = ipaddress.ip_address(first), ipaddress.ip_address(last or first)
    return tuple(str(type(start)(number)) for number in range(int(start), int(end) + 1))


class Policy:
    """A policy by its documented options."""

    def __init__(self, options: t.Dict[str, t.Any]) -> None:
        self.options = options

    def _get(self, name: str) -> t.Any:
        return self.options.get(name) or []

    def exempt_ranges(self) -> t.List[str]:
        given = self.options.get("non_masquerade_cidrs")
        ranges = list(RFC1918 if given is None else given)
        if not self.options.get("masq_link_local"):
            ranges.append("169.254.0.0/16")
        if not self.options.get("masq_link_local_ipv6"):
            ranges.append("fe80::/10")
        return ranges

    def addresses(self) -> t.List[str]:
        """Return every fixed address that the policy names."""
        found = [entry["address"] for entry in self._get("snat")]
        found += [entry["address"] for entry in self._get("rules") if "address" in entry]
        return [address for text in found for address in spread(text)]

    def promise(self, packet: Packet) -> Promise:
        """Return what the documentation says of the packet."""
        version = family(packet.source)
        if version == 6 and not self.options.get("enable_ipv6"):
            return NOTHING
        for text in self._get("skip_marks"):
            value, _, mask = text.partition("/")
            if packet.mark & int(mask or "0xffffffff", 16) == int(value, 16):
                return NOTHING
        if packet.mark & 0x6000 and self.options.get("exemption", "return") != "return":
            return NOTHING
        for rule in self._get("rules"):
            if self._met(rule, packet, version):
                return self._ruled(rule, packet)
        if same_link(packet.link, self._get("except_interfaces")):
            return NOTHING
        sources = self._get("source_cidrs")
        if sources and within(packet.source, sources) < 0:
            return NOTHING
        links = self._get("out_interfaces")
        if links and not same_link(packet.link, links):
            return NOTHING
        exempt = within(packet.destination, self.exempt_ranges())
        if exempt > within(packet.destination, self._get("masquerade_cidrs")):
            return Promise("pod")
        return self._masqueraded(packet)

    def _met(self, rule: t.Mapping[str, t.Any], packet: Packet, version: int) -> bool:
        if rule.get("sources") and within(packet.source, rule["sources"]) < 0:
            return False
        if rule.get("destinations") and within(packet.destination, rule["destinations"]) < 0:
            return False
        if rule.get("out_interfaces") and not same_link(packet.link, rule["out_interfaces"]):
            return False
        if rule.get("protocols") and packet.protocol not in rule["protocols"]:
            return False
        if rule["action"] == "snat" and family(spread(rule["address"])[0]) != version:
            return False
        if rule.get("ports"):
            if packet.protocol not in PORTED:
                return False
            for text in rule["ports"]:
                first, _, last = str(text).partition("-")
                if int(first) <= packet.port <= int(last or first):
                    return True
            return False
        return True

    def _ruled(self, rule: t.Mapping[str, t.Any], packet: Packet) -> Promise:
        if rule["action"] == "skip":
            return NOTHING
        if rule["action"] == "exempt":
            return Promise("pod")
        if rule["action"] == "snat":
            return Promise("fixed", spread(rule["address"]))
        return self._masqueraded(packet)

    def _masqueraded(self, packet: Packet) -> Promise:
        entries = self._entries(packet)
        return Promise("fixed", spread(entries[0]["address"])) if entries else Promise("node")

    def _entries(self, packet: Packet) -> t.List[t.Dict[str, t.Any]]:
        """Return the entries of ``snat`` that match a packet."""
        return [
            entry
            for entry in self._get("snat")
            if family(spread(entry["address"])[0]) == family(packet.source)
            and (not entry.get("out_interface") or same_link(packet.link, [entry["out_interface"]]))
            and (not entry.get("source_cidrs") or within(packet.source, entry["source_cidrs"]) >= 0)
        ]


def draw(r: random.Random, links: t.Sequence[str], fixed: t.Sequence[str], pods: t.Sequence[str], ipv6: bool) -> Policy:
    """Return a random policy for a node with these links, addresses of its own, and pods' addresses."""
    options: t.Dict[str, t.Any] = {
        "backend": r.choices(["iptables_nft", "iptables_legacy", "nftables"], [5, 2, 3])[0],
        "exemption": r.choices(["return", "accept", "enforce"], [6, 2, 2])[0],
    }
    if options["exemption"] == "enforce":
        options["backend"] = "nftables"
    if r.random() < 0.7:
        ranges = r.sample(
            ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "203.0.113.0/24", "198.18.0.0/15"],
            r.randint(1, 4),
        )
        if "10.0.0.0/8" not in ranges and r.random() < 0.6:
            ranges.append("10.96.0.0/13")
        options["non_masquerade_cidrs"] = ranges
    if ipv6 and r.random() < 0.8:
        options["enable_ipv6"] = True
        if "non_masquerade_cidrs" in options:
            options["non_masquerade_cidrs"].append("fd00::/8")
    if r.random() < 0.4:
        options["masquerade_cidrs"] = r.sample(["10.99.0.0/16", "10.20.0.0/16", "192.168.7.0/24", "100.64.5.0/24"], 2)
    if r.random() < 0.35 or options["exemption"] != "return":
        options["source_cidrs"] = [r.choice(["10.244.0.0/16", "10.244.1.0/24"])]
        if options.get("enable_ipv6"):
            options["source_cidrs"].append("fd44::/64")
    if r.random() < 0.15:
        options["out_interfaces"] = [r.choice([*links, "up+", "up*"])]
    elif r.random() < 0.15 and len(links) > 1:
        options["except_interfaces"] = [links[-1]]
    if r.random() < 0.2:
        options["masq_link_local"] = True
    if r.random() < 0.2:
        options["random_fully"] = False
    if r.random() < 0.1:
        options["to_ports"] = ["20000-40000"]
    four = [address for address in fixed if ":" not in address]
    if four and r.random() < 0.4:
        entry: t.Dict[str, t.Any] = {"address": r.choice(four)}
        if r.random() < 0.4:
            entry["source_cidrs"] = [r.choice([one for one in pods if ":" not in one]) + "/32"]
        if r.random() < 0.3:
            entry["out_interface"] = r.choice(links)
        options["snat"] = [entry]
    if r.random() < 0.35:
        options["rules"] = [_rule(r, four, links, pods) for _ in range(r.randint(1, 3))]
    if r.random() < 0.1:
        options["skip_marks"] = ["0x200/0xf00"]
    return Policy(options)


def _rule(
    r: random.Random, fixed: t.Sequence[str], links: t.Sequence[str], pods: t.Sequence[str]
) -> t.Dict[str, t.Any]:
    rule: t.Dict[str, t.Any] = {"action": r.choice(["exempt", "masquerade", "skip", "snat" if fixed else "exempt"])}
    if rule["action"] == "snat":
        rule["address"] = r.choice(list(fixed))
    conditions = r.sample(["destinations", "protocols", "ports", "sources", "out_interfaces"], r.randint(1, 3))
    if "destinations" in conditions:
        rule["destinations"] = [r.choice(["203.0.113.9/32", "10.99.7.0/24", "192.0.2.0/24", "8.8.8.0/24"])]
    if "protocols" in conditions:
        rule["protocols"] = r.sample(["tcp", "udp", "sctp"], r.randint(1, 2))
    elif "ports" not in conditions and r.random() < 0.2:
        rule["protocols"] = ["icmp"]
    if "ports" in conditions:
        rule["ports"] = [r.choice([25, 443, 8443, "9100-9110", "30000-32767"])]
    if "sources" in conditions:
        rule["sources"] = [r.choice([one for one in pods if ":" not in one]) + "/32"]
    if "out_interfaces" in conditions:
        rule["out_interfaces"] = [r.choice(list(links))]
    return rule
