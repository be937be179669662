# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same random programs for IPv6: what a program of IPv4 says is said again with other addresses and words."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from . import nodes
from .programs import Program

_TRIES = 200
_ADDRESS = re.compile(r"(?<![\d.])(\d+\.\d+\.\d+\.\d+)(?:/(\d+))?(?![\d.])")
_MASKED = re.compile(r"ip daddr & ([\d.]+) (==|!=) ([\d.]+)")
_WORDS = (
    (r"\btable ip\b", "table ip6"),
    (r"\btable inet (\w+)", r"table inet \1six"),
    (r"\bip (saddr|daddr)\b", r"ip6 \1"),
    (r"\bip protocol\b", "meta l4proto"),
    (r"\bip version 4\b", "ip6 version 6"),
    (r"\b(snat|dnat) ip to\b", r"\1 ip6 to"),
    (r"\bicmp\b", "icmpv6"),
    (r"\bipv4_addr\b", "ipv6_addr"),
    (r"@nh,128,16\b", "@nh,288,16"),
    (r"(hash:\S+) -exist", r"\1 family inet6 -exist"),
    (r"TTL --ttl-set", "HL --hl-set"),
)


def host(text: str) -> str:
    """Return the address of IPv6 that stands for one of IPv4."""
    number = int(ipaddress.IPv4Address(text))
    first, second, third, last = text.split(".")
    if text in nodes.OWN:
        return "2001:db8:ff::7"
    if (first, second) == ("198", "51") and third in ("100", "101", "102") and last in ("1", "254"):
        return "2001:db8:%d::%s" % (int(third) - 100, "fe" if last == "254" else "1")
    if (first, second) == ("10", "244"):
        return str(ipaddress.IPv6Address((0xFD44 << 112) + ((int(third) - 1) % 256 << 16) + int(last)))
    over = 0xFD00 << 112 if first == "10" else int(ipaddress.IPv6Address("2001:db8:beef::"))
    return str(ipaddress.IPv6Address(over + number))


def _network(found: t.Match[str]) -> str:
    address, length = found.groups()
    if length is None:
        return host(address)
    if length == "0":
        return "::/0"
    if address == "10.244.0.0":
        return "fd44::/64"
    network = ipaddress.ip_network("%s/%d" % (host(address), int(length) + 96), strict=False)
    return str(network)


def _mask(found: t.Match[str]) -> str:
    mask, sign, value = (found.group(one) for one in (1, 2, 3))
    low = [ipaddress.IPv6Address(int(ipaddress.IPv4Address(one))) for one in (mask, value)]
    return "ip6 daddr & %s %s %s" % (_plain(low[0]), sign, _plain(low[1]))


def _plain(address: ipaddress.IPv6Address) -> str:
    number = int(address)
    return "::%x:%x" % (number >> 16, number & 0xFFFF)


def text_of(text: str) -> str:
    """Return text of nft, iptables or ipset for IPv6. Lines with masks that have gaps are left out."""
    lines = [line for line in text.splitlines() if not re.search(r"[\d.]+/\d+\.\d+\.", line)]
    found = _MASKED.sub(_mask, "\n".join(lines) + "\n")
    found = re.sub(
        r"((?:to|--to-destination) )(\d+\.\d+\.\d+\.\d+):(\d+)", lambda m: m[1] + "[%s]:%s" % (m[2], m[3]), found
    )
    for words, others in _WORDS:
        found = re.sub(words, others, found)
    found = found.replace("-p icmpv6", "-p ipv6-icmp")
    return _ADDRESS.sub(_network, found)


def route_of(line: str) -> str:
    """Return a line of iproute2 for IPv6; empty if there is none."""
    if line.startswith("addr"):
        return ""
    line = re.sub(r" realm \d+| advmss \d+", "", line)
    line = re.sub(r"\b(id|nhid) (\d+)", lambda m: "%s %d" % (m[1], int(m[2]) + 100), line)
    line = re.sub(r"(\d+),(\d+)(?=/|$)", lambda m: "%d,%s" % (int(m[1]) + 100, m[2]), line)
    line = re.sub(r"suppress_prefixlength ([1-9]\d*)", lambda m: "suppress_prefixlength %d" % (int(m[1]) + 96), line)
    return _ADDRESS.sub(_network, line.replace("icmp", "ipv6-icmp"))


class Ipv6(Program):
    """A program of IPv6, beside that of IPv4."""

    def __init__(self, seed: int) -> None:
        for number in range(_TRIES):
            plain = nodes.Node(seed * _TRIES + number, 0)
            if plain.six and plain.policy.options.get("enable_ipv6"):
                break
        before = len(plain.lines)
        super().__init__(seed * _TRIES + number)
        steps = [*self.steps]
        again = [line for line in map(route_of, self.lines[before:]) if line]
        self.steps = [nodes.Step("program:routes", "ip6", "\n".join(again) + "\n", False)] if again else []
        for step in steps:
            tool = step.tool.replace("iptables", "ip6tables")
            names = re.compile(r"\b([NMRF]\d+[A-Z]{4}\d|p\d+-\d+|program\d+)\b")
            text = names.sub(r"\1six", text_of(step.text)) if tool == "ipset" else text_of(step.text)
            text = re.sub(r"(--match-set )(\S+)", r"\1\2six", text) if tool != "ipset" else text
            self.steps += [step, step._replace(tool=tool, text=text)]
        self.interests += [
            dict(what, dst=_ADDRESS.sub(_network, what["dst"])) for what in self.interests if "." in what.get("dst", "")
        ]
        self.interests += [{"dst": host(one) + "/128"} for one in self.hosts]
        for up, without in zip(self.uplinks, plain.uplinks):
            added = up.preferred[len(without.preferred) :]  # by the program: the node's own routes are not said again
            up.preferred += [(_ADDRESS.sub(_network, network), host(source)) for network, source in added]
