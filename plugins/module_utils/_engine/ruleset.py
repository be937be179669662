# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy as rules, as values: one L(Ruleset) a family.

Knows no rule's text and starts no process. Two rulesets are compared by what they mean, not by their text: exempt
ranges are a set, so their order, duplicates and overlaps do not matter; the masquerade rules are a sequence, so their
order does.
"""

from __future__ import annotations

import ipaddress
import typing as t

from .._policy.policy import Config
from .._policy.values import Network, PortRange
from .._system.ip_families import IPV4, IPV6

#: RFC 3927 and RFC 4291: addresses that no router forwards, so nothing behind one could answer to them.
LINK_LOCAL = {IPV4: ipaddress.ip_network("169.254.0.0/16"), IPV6: ipaddress.ip_network("fe80::/10")}
LOOPBACK = {IPV4: ipaddress.ip_network("127.0.0.0/8"), IPV6: ipaddress.ip_network("::1/128")}
EVERYTHING = {IPV4: ipaddress.ip_network("0.0.0.0/0"), IPV6: ipaddress.ip_network("::/0")}

#: The protocols whose source ports to_ports can choose, in the order of ip-masq-agent.
PORT_PROTOCOLS = ("tcp", "udp", "sctp")

#: xt_statistic keeps a probability as a 31-bit fraction (struct xt_statistic_info).
SHARE_UNIT = 2**31

#: Marks of packets that must leave with the address of the node: kube-proxy's iptables.masqueradeBit (14) and the
#: markMasqBit of the CNI plugin portmap (13), at their defaults.
SERVICE_MARKS = 0x4000 | 0x2000

#: What becomes of exempt traffic: it goes on to later rules; no later rule of the chain sees it; no rule of any program
#: changes it.
VERDICTS = {"return": "RETURN", "accept": "ACCEPT", "enforce": "ENFORCE"}


class Guard(t.NamedTuple):
    """Traffic to any destination that is left to later rules. One of the fields is set."""

    #: packets with one of these bits in their mark
    marks: int = 0
    #: packets from these addresses
    source: t.Optional[Network] = None
    #: connections whose destination was changed (DNAT)
    dnat: bool = False


class Exempt(t.NamedTuple):
    """Traffic to ``network`` keeps its source address. ``verdict`` is one of VERDICTS; iptables has no ENFORCE."""

    network: Network
    verdict: str


class Masquerade(t.NamedTuple):
    """Everything that reaches this rule (of ``protocol``, in ``share`` of the cases) leaves as the node.

    ``share`` counts in units of 2**-31, as the kernel does; none means always.
    """

    protocol: t.Optional[str] = None
    to_ports: t.Optional[PortRange] = None
    share: t.Optional[int] = None
    random_fully: bool = False


Rule = t.Union[Guard, Exempt, Masquerade]
_ORDER = (Guard, Exempt, Masquerade)


class Ruleset(t.NamedTuple):
    """What one family's traffic meets, in order: the guards, the exempt ranges, the masquerade rules."""

    exempt: t.Tuple[Network, ...]
    verdict: str
    masquerade: t.Tuple[Masquerade, ...]
    guards: t.Tuple[Guard, ...] = ()

    @property
    def rules(self) -> t.Tuple[Rule, ...]:
        """All rules, in the order in which a packet meets them."""
        return self.guards + tuple(Exempt(network, self.verdict) for network in self.exempt) + self.masquerade

    def means(self, other: t.Optional[Ruleset]) -> bool:
        """Whether no packet can tell the two apart."""
        return (
            other is not None
            and set(self.guards) == set(other.guards)
            and self.masquerade == other.masquerade
            and (self.verdict == other.verdict or not self.exempt)
            and (self.exempt == other.exempt or _collapse(self.exempt) == _collapse(other.exempt))
        )


def guards(verdict: str, family: str) -> t.Tuple[Guard, ...]:
    """What exempt traffic with this verdict must not include, because it is answered only if it leaves as the node.

    Marks: Services and host ports, and pods that reach themselves through one. Loopback: host ports on 127.0.0.1, which
    the kubelet masquerades by source. DNAT: kube-proxy in nftables mode and portmap recognise pods that reach
    themselves by their addresses, without a mark. RETURN needs no guards, because later rules see all packets.
    """
    common = (Guard(marks=SERVICE_MARKS), Guard(source=LOOPBACK[family]))
    return {"RETURN": (), "ACCEPT": common, "ENFORCE": (Guard(dnat=True),) + common}[verdict]


def from_config(config: Config, family: str, random_fully: bool = True) -> Ruleset:
    """The rules that ``config`` asks for in one family.

    :param random_fully: whether the node's tools know fully random source ports (iptables 1.6.2 and later).
    """
    version = EVERYTHING[family].version
    spare_link_local = not (config.masq_link_local if family == IPV4 else config.masq_link_local_ipv6)
    exempt = [LINK_LOCAL[family]] if spare_link_local else []
    exempt += [network for network in config.non_masquerade_cidrs if network.version == version]
    random_fully = random_fully and config.random_fully
    verdict = VERDICTS[config.exemption]
    return Ruleset(
        exempt=_without_covered(exempt),
        verdict=verdict,
        masquerade=tuple(_port_rules(config.to_ports, random_fully)) + (Masquerade(random_fully=random_fully),),
        guards=guards(verdict, family) if exempt else (),
    )


def from_rules(rules: t.Sequence[Rule]) -> t.Optional[Ruleset]:
    """The ruleset that these rules are; none where they are not of our shape: such a chain is replaced.

    Our shape is guards, then exemptions with one verdict, then masquerade rules.
    """
    kinds = [type(rule) for rule in rules]
    exempt = [rule for rule in rules if isinstance(rule, Exempt)]
    verdicts = {rule.verdict for rule in exempt}
    if kinds != sorted(kinds, key=_ORDER.index) or len(verdicts) > 1:
        return None
    return Ruleset(
        exempt=tuple(rule.network for rule in exempt),
        verdict=verdicts.pop() if verdicts else "RETURN",
        masquerade=tuple(rule for rule in rules if isinstance(rule, Masquerade)),
        guards=tuple(rule for rule in rules if isinstance(rule, Guard)),
    )


def _port_rules(ranges: t.Sequence[PortRange], random_fully: bool) -> t.Iterator[Masquerade]:
    for protocol in PORT_PROTOCOLS:
        left = sum(ports.size for ports in ranges)
        for position, ports in enumerate(ranges, 1):
            # The last range takes all that the ones before it let through.
            share = None if position == len(ranges) else int(SHARE_UNIT * (ports.size / left) + 0.5)
            left -= ports.size
            yield Masquerade(protocol, ports, share, random_fully)


def _collapse(networks: t.Sequence[Network]) -> t.List[Network]:
    return list(ipaddress.collapse_addresses(networks))  # type: ignore[type-var]


def _without_covered(networks: t.Sequence[Network]) -> t.Tuple[Network, ...]:
    """The same set of addresses without entries that another entry contains; what stays keeps its order."""
    spans = sorted({(int(n.network_address), -int(n.broadcast_address)) for n in networks})
    kept = set()
    end = -1
    for first, last in spans:
        if -last > end:
            kept.add((first, -last))
            end = -last
    result = []
    for network in networks:
        span = (int(network.network_address), int(network.broadcast_address))
        if span in kept:
            kept.remove(span)
            result.append(network)
    return tuple(result)
