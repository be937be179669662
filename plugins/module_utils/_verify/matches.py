# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What rules say about packets, as far as a question can vary it: the common form of nft's rules and of iptables'."""

from __future__ import annotations

import typing as t

from .._policy import spans
from .._policy.spans import Spans
from .._twin.values import PROTOCOLS

#: protocols that a question can have
ASKED = tuple(sorted(set(PROTOCOLS.values())))
WITH_PORTS = tuple(PROTOCOLS[name] for name in ("tcp", "udp", "sctp"))
MAX_PORT = 0xFFFF
MAX_PROTOCOL = 0xFF


def highest(version: int) -> int:
    """The last address of a family."""
    return (1 << (32 if version == 4 else 128)) - 1


class Match(t.NamedTuple):
    """Which packets a rule means; none: it does not say. What it also asks for is in :class:`Rule`."""

    source: t.Optional[Spans] = None
    destination: t.Optional[Spans] = None
    protocol: t.Optional[Spans] = None
    port: t.Optional[Spans] = None
    source_port: t.Optional[Spans] = None

    def narrowed(self, field: str, allowed: Spans) -> Match:
        """The same, and a further condition on one of its fields."""
        before = getattr(self, field)
        return self._replace(**{field: allowed if before is None else spans.intersection(before, allowed)})

    @property
    def service(self) -> t.Optional[Spans]:
        """Protocol and port of the destination as one number: C(protocol << 16 | port)."""
        if self.port is None:
            if self.protocol is None:
                return None
            return tuple((first << 16, last << 16 | MAX_PORT) for first, last in self.protocol)
        protocols = [one for one in ASKED if self.protocol is None or spans.contains(self.protocol, one)]
        return spans.of((one << 16 | first, one << 16 | last) for one in protocols for first, last in self.port)


def top(field: str, version: int) -> int:
    """The highest value of a field of a match."""
    return {"protocol": MAX_PROTOCOL, "port": MAX_PORT, "source_port": MAX_PORT}.get(field, highest(version))


def both(one: Match, other: Match) -> Match:
    """The packets that two conditions mean."""
    for field, allowed in other._asdict().items():
        if allowed is not None:
            one = one.narrowed(field, allowed)
    return one


def any_of(matches: t.Sequence[Match], inverted: bool, version: int) -> t.List[Match]:
    """The packets that one of several conditions means, or, inverted, none of them, in as few conditions as that takes.

    Inverted conditions about several fields are not taken apart: what is in one of them is told from what is not, and
    that is all that is needed to choose questions.
    """
    fields = {field for match in matches for field, allowed in match._asdict().items() if allowed is not None}
    if len(fields) == 1:
        (field,) = fields
        whole = ((0, top(field, version)),)
        allowed = [getattr(match, field) for match in matches]
        union = spans.of(span for one in allowed for span in (whole if one is None else one))
        return [Match(**{field: spans.complement(union, top(field, version)) if inverted else union})]
    return [*matches, Match()] if inverted or not matches else list(matches)


class Branch(t.NamedTuple):
    """One way through a rule: the packets that take it, and the chain to which it leads them, if to any."""

    match: Match
    chain: t.Optional[str] = None


class Rule(t.NamedTuple):
    """One rule. ``features`` are names of what it asks for besides: C(owner), C(statistic), C(length)."""

    chain: str
    branches: t.Tuple[Branch, ...]
    features: t.FrozenSet[str] = frozenset()
    marks_tested: int = 0
    marks_set: int = 0
    #: patterns of names of links that packets come in over; a + at the end stands for any rest
    interfaces: t.Tuple[str, ...] = ()
    untracked: bool = False


class Chain(t.NamedTuple):
    """A base chain: type, hook of netfilter, priority."""

    kind: str
    hook: int
    priority: int


class RuleTable(t.NamedTuple):
    """One table as it treats packets of one family."""

    title: str
    base: t.Mapping[str, Chain]
    rules: t.Tuple[Rule, ...]


def matches_name(pattern: str, name: str) -> bool:
    """Whether the name of a link is meant."""
    return name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern


#: What makes the same packet go different ways.
RANDOM = frozenset(("statistic", "random", "numgen", "hash"))
#: What the twin cannot know, or begins anew.
BEYOND = {
    "owner": "the user or group of the program that sends",
    "cgroup": "the control group of the program that sends",
    "socket": "a socket that is open on the node",
    "tproxy": "a proxy that is open on the node",
    "queue": "a program that is asked about each packet (NFQUEUE)",
    "bpf": "an eBPF or BPF program",
    "recent": "packets seen before (recent)",
    "limit": "how many packets there were before (limit)",
    "hashlimit": "how many packets there were before (hashlimit)",
    "connlimit": "how many connections there are",
    "connbytes": "how much a connection carried",
    "quota": "how much was carried before (quota)",
    "rateest": "a rate that was measured",
    "time": "the time",
    "condition": "a switch in /proc",
    "policy": "IPsec",
    "ipsec": "IPsec",
}
#: What every question has alike.
ALIKE = {
    "length": "the length of a packet",
    "ttl": "the TTL of a packet",
    "hl": "the hop limit of a packet",
    "dscp": "the DSCP of a packet",
    "tos": "the TOS of a packet",
    "ecn": "the ECN of a packet",
    "mac": "the hardware address of the sender",
    "string": "the content of a packet",
    "u32": "bytes of a packet",
    "tcpmss": "the MSS of a packet",
    "payload": "bytes of a packet",
    "exthdr": "an option or extension header of a packet",
    "helper": "a helper of conntrack",
    "connmark": "the mark of a connection",
    "realm": "a realm of routes",
}
