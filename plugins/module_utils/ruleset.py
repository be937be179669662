# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy as rules, as values: one L(Ruleset) a family.

Knows no rule's text and starts no process. Two rulesets are compared by what they mean (promise 3): exempt ranges are
a set, so their order, duplicates and overlaps do not matter; the masquerade rules are a sequence, so their order does.
"""

from __future__ import annotations

import ipaddress
import typing as t

from .config import Config, Network, PortRange

IPV4 = "ipv4"
IPV6 = "ipv6"
FAMILIES = (IPV4, IPV6)

#: RFC 3927 and RFC 4291: addresses that no router forwards, so nothing behind one could answer to them.
LINK_LOCAL = {IPV4: ipaddress.ip_network("169.254.0.0/16"), IPV6: ipaddress.ip_network("fe80::/10")}
EVERYTHING = {IPV4: ipaddress.ip_network("0.0.0.0/0"), IPV6: ipaddress.ip_network("::/0")}

#: The protocols whose source ports to_ports can choose, in the order of ip-masq-agent.
PORT_PROTOCOLS = ("tcp", "udp", "sctp")

#: xt_statistic keeps a probability as a 31-bit fraction (struct xt_statistic_info).
SHARE_UNIT = 2**31


#: What becomes of exempt traffic: it goes on to later rules; no later rule of the chain sees it; no rule of anybody
#: changes it.
VERDICTS = {"return": "RETURN", "accept": "ACCEPT", "enforce": "ENFORCE"}


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


Rule = t.Union[Exempt, Masquerade]


class Ruleset(t.NamedTuple):
    """What one family's traffic meets, in order: the exempt ranges, then the masquerade rules."""

    exempt: t.Tuple[Network, ...]
    verdict: str
    masquerade: t.Tuple[Masquerade, ...]

    @property
    def rules(self) -> t.Tuple[Rule, ...]:
        """All rules, in the order in which a packet meets them."""
        return tuple(Exempt(network, self.verdict) for network in self.exempt) + self.masquerade

    def means(self, other: t.Optional[Ruleset]) -> bool:
        """Whether no packet can tell the two apart."""
        return (
            other is not None
            and self.masquerade == other.masquerade
            and (self.verdict == other.verdict or not self.exempt)
            and (self.exempt == other.exempt or _collapse(self.exempt) == _collapse(other.exempt))
        )


def from_config(config: Config, family: str, random_fully: bool = True) -> Ruleset:
    """The rules that ``config`` asks for in one family.

    :param random_fully: whether the node's tools know fully random source ports (iptables 1.6.2 and later).
    """
    version = EVERYTHING[family].version
    spare_link_local = not (config.masq_link_local if family == IPV4 else config.masq_link_local_ipv6)
    exempt = [LINK_LOCAL[family]] if spare_link_local else []
    exempt += [network for network in config.non_masquerade_cidrs if network.version == version]
    random_fully = random_fully and config.random_fully
    return Ruleset(
        exempt=_without_covered(exempt),
        verdict=VERDICTS[config.exemption],
        masquerade=tuple(_port_rules(config.to_ports, random_fully)) + (Masquerade(random_fully=random_fully),),
    )


def from_rules(rules: t.Sequence[Rule]) -> t.Optional[Ruleset]:
    """The ruleset that these rules are; none where they are not of our shape (promise 3: such a chain is mended).

    A rule behind the plain masquerade, or an exemption behind any masquerade, is not our shape.
    """
    exempt = [rule for rule in rules if isinstance(rule, Exempt)]
    masquerade = rules[len(exempt) :]
    verdicts = {rule.verdict for rule in exempt}
    if any(isinstance(rule, Exempt) for rule in masquerade) or len(verdicts) > 1:
        return None
    return Ruleset(
        exempt=tuple(rule.network for rule in exempt),
        verdict=verdicts.pop() if verdicts else "RETURN",
        masquerade=t.cast(t.Tuple[Masquerade, ...], tuple(masquerade)),
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
