# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random policies about source ports, each a change of the one before, and what the documentation promises of them."""

from __future__ import annotations

import random
import typing as t

from . import policies

#: without a range, a port from 1024 keeps its kind
ANY = ((1024, 65535),)
_RANGES: t.Tuple[t.List[str], ...] = (
    [],
    ["50000-50001"],
    ["50000-50003"],
    ["40000"],
    ["3000-3999"],
    ["3000-3999", "5000-5999"],
    ["5000-5999", "3000-3999"],
    ["3000-3499", "3500-3999"],
    ["50000-50001", "60000"],
)
_EXEMPT: t.Tuple[t.List[str], ...] = (
    ["10.0.0.0/8", "fd00::/8"],
    ["10.99.0.0/16", "fd00:99::/32"],
    ["10.0.0.0/8", "10.99.0.0/16", "fd00::/8"],
    [],
)
_DESTINATIONS = (["203.0.113.0/24", "2001:db8:99::/64"], ["192.0.2.10/32", "10.99.0.0/16"], ["0.0.0.0/0", "::/0"])
_EXEMPTIONS = {
    "iptables_nft": ["return", "accept"],
    "iptables_legacy": ["return", "accept"],
    "nftables": ["return", "accept", "enforce"],
}


class Ports(t.NamedTuple):
    """What is promised of the first packet of a connection. Two that are equal are the same to packets."""

    #: "" for its own, which later rules may change; "pod" and how strongly it is protected from them; else "node", or
    #: fixed addresses
    address: str
    ranges: t.Tuple[t.Tuple[int, int], ...] = ()
    #: "ports at random", "ports kept if free"; "" where there is no choice
    how: str = ""

    @property
    def size(self) -> int:
        """From how many ports one is chosen."""
        return sum(last - first + 1 for first, last in self.ranges or ANY)


class Policy(policies.Policy):
    """A policy, and which source ports it promises."""

    def ports(self, packet: policies.Packet) -> Ports:
        """Return what is promised of a packet."""
        promise = self.promise(packet)
        if promise.kind in ("none", "pod"):
            strength = self._get("exemption")
            like_return = strength == "return" or (strength == "accept" and self._get("backend") == "nftables")
            return Ports("" if promise.kind == "none" or like_return else "pod " + strength)
        ranges = []
        for text in self._get("to_ports") if packet.protocol in policies.PORTED else ():
            first, _, last = text.partition("-")
            ranges.append((int(first), int(last or first)))
        how = {"random": "ports at random", "keep": "ports kept if free"}[self._mapping(packet)]
        choice = any(first < last for first, last in ranges or ANY)
        return Ports(" ".join(promise.addresses) or "node", tuple(sorted(ranges)), how if choice else "")

    def _mapping(self, packet: policies.Packet) -> str:
        met = [rule for rule in self._get("rules") if self._met(rule, packet, policies.family(packet.source))]
        entries = met[:1]
        if not met or met[0]["action"] == "masquerade":
            entries += self._entries(packet)[:1]
        named = [entry["ports_mapping"] for entry in entries if "ports_mapping" in entry]
        return str((named or ["random" if self.options["random_fully"] else "keep"])[0])


class Generator:
    """Policies, of which each differs from the one before in a few options, or in words alone."""

    def __init__(self, r: random.Random, fixed: t.Sequence[str]) -> None:
        self._r = r
        self._fixed = fixed
        self._options: t.Dict[str, t.Any] = {"enable_ipv6": True, "source_cidrs": ["10.244.0.0/16", "fd00:10:244::/48"]}
        for name in self._draws:
            self._options[name] = self._draws[name](self)

    def next(self) -> t.Dict[str, t.Any]:
        """Return the options of the next one."""
        for name in self._r.sample(sorted(self._draws), self._r.choice([1, 1, 2, 3])):
            self._options[name] = self._draws[name](self)
        if self._options["exemption"] not in _EXEMPTIONS[self._options["backend"]]:
            self._options["exemption"] = "accept"
        return dict(self._options)

    def _mapping(self) -> t.Dict[str, t.Any]:
        return self._r.choice([{}, {"ports_mapping": "random"}, {"ports_mapping": "keep"}])

    def _snat(self) -> t.List[t.Dict[str, t.Any]]:
        chosen = self._r.sample(list(self._fixed), self._r.choice([0, 0, 1, 2]))
        return [{"address": address, **self._mapping()} for address in chosen]

    def _rules(self) -> t.List[t.Dict[str, t.Any]]:
        return [self._rule() for _number in range(self._r.choice([0, 0, 1, 2]))]

    def _rule(self) -> t.Dict[str, t.Any]:
        rule: t.Dict[str, t.Any] = {"action": self._r.choice(["exempt", "masquerade", "masquerade", "skip", "snat"])}
        destinations = self._r.choice(_DESTINATIONS)
        if rule["action"] == "snat":
            rule["address"] = self._r.choice(self._fixed)
            destinations = [one for one in destinations if (":" in one) == (":" in rule["address"])]
        rule["destinations"] = destinations or ["::/0"]
        if self._r.random() < 0.5:
            rule["protocols"] = [self._r.choice(["tcp", "udp"])]
        return {**rule, **(self._mapping() if rule["action"] in ("snat", "masquerade") else {})}

    _draws: t.ClassVar[t.Dict[str, t.Callable[[Generator], t.Any]]] = {
        "backend": lambda self: self._r.choice(list(_EXEMPTIONS)),
        "exemption": lambda self: self._r.choice(["return", "accept", "enforce"]),
        "non_masquerade_cidrs": lambda self: self._r.choice(_EXEMPT),
        "random_fully": lambda self: self._r.random() < 0.5,
        "rules": _rules,
        "snat": _snat,
        "to_ports": lambda self: self._r.choice(_RANGES),
    }
