# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy as an ordered list of decisions, as values: one L(Ruleset) a family.

Knows no rule's text and starts no process. Two rulesets are compared by what they do to packets, not by their text:
the order of ranges, duplicates and overlaps do not matter; the masquerade rules are a sequence, so their order does.
"""

from __future__ import annotations

import ipaddress
import itertools
import typing as t

from .._policy import spans
from .._policy.policy import Config
from .._policy.spans import Spans
from .._policy.values import LINK_LOCAL, Mark, Network, PortRange
from .._system.ip_families import IPV4, IPV6

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


#: What a decision does with a packet: nothing, so that it goes on to the rules of other programs; keep its source
#: address; replace it with that of the node.
SKIP, EXEMPT, MASQUERADE = "skip", "exempt", "masquerade"

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


class Match(t.NamedTuple):
    """Packets. A field that is empty matches all of them; of several values one has to match."""

    sources: t.Tuple[Network, ...] = ()
    destinations: t.Tuple[Network, ...] = ()
    #: by which packets leave; C(+) at the end matches every name that begins so
    interfaces: t.Tuple[str, ...] = ()


class Decision(t.NamedTuple):
    """What becomes of packets that no earlier decision matches. ``action`` is SKIP, EXEMPT or MASQUERADE."""

    action: str
    match: Match = Match()


class Guard(t.NamedTuple):
    """Traffic to any destination that is left to later rules. One of the fields is set."""

    #: packets with one of these bits in their mark
    marks: int = 0
    #: packets from these addresses
    source: t.Optional[Network] = None
    #: connections whose destination was changed (DNAT)
    dnat: bool = False
    #: packets that leave by these interfaces
    interface: t.Optional[str] = None
    #: packets with this mark
    mark: t.Optional[Mark] = None


class Exempt(t.NamedTuple):
    """Traffic to ``network`` keeps its source address. ``verdict`` is one of VERDICTS; iptables has no ENFORCE."""

    network: Network
    verdict: str
    source: t.Optional[Network] = None
    interface: t.Optional[str] = None


class Masquerade(t.NamedTuple):
    """Everything that reaches this rule (of ``protocol``, in ``share`` of the cases) leaves as the node.

    ``share`` counts in units of 2**-31, as the kernel does; none means always.
    """

    protocol: t.Optional[str] = None
    to_ports: t.Optional[PortRange] = None
    share: t.Optional[int] = None
    random_fully: bool = False
    network: t.Optional[Network] = None
    source: t.Optional[Network] = None
    interface: t.Optional[str] = None

    @property
    def anywhere(self) -> Masquerade:
        """The same for all packets."""
        return self._replace(network=None, source=None, interface=None)


#: A decision about one source, destination and interface; none of these means all.
Rule = t.Union[Guard, Exempt, Masquerade]

#: More decisions, or more groups of packets, than any policy has are not compared by what they do.
_COMPARED_DECISIONS = 1000
_COMPARED_GROUPS = 10000

#: The end of an interface's name that no pattern has.
_OTHER_NAME = "\0"


class Ruleset(t.NamedTuple):
    """What one family's traffic meets: the guards, then the first decision that matches. Without one it is skipped."""

    decisions: t.Tuple[Decision, ...]
    #: how exempt traffic is treated, one of VERDICTS
    verdict: str
    #: how traffic is masqueraded
    masquerade: t.Tuple[Masquerade, ...]
    guards: t.Tuple[Guard, ...] = ()

    @property
    def exempt(self) -> t.Tuple[Network, ...]:
        """The destinations of decisions to exempt, without duplicates."""
        exempting = (decision for decision in self.decisions if decision.action == EXEMPT)
        return tuple(dict.fromkeys(network for decision in exempting for network in decision.match.destinations))

    @property
    def rules(self) -> t.Tuple[Rule, ...]:
        """All rules, in the order in which a packet meets them: a decision is one rule for each of its combinations."""
        return self.guards + tuple(rule for decision in self.decisions for rule in self._rules(decision))

    @property
    def combinations(self) -> int:
        """How many rules there are for one destination, at most."""
        return max((max(len(m.sources), 1) * max(len(m.interfaces), 1) for _action, m in self.decisions), default=0)

    def _rules(self, decision: Decision) -> t.Iterator[Rule]:
        match = decision.match
        combinations = itertools.product(match.sources or (None,), match.interfaces or (None,))
        for (source, interface), network in itertools.product(combinations, match.destinations or (None,)):
            if decision.action == SKIP:
                yield Guard(interface=interface)
            elif decision.action == EXEMPT:
                yield Exempt(t.cast(Network, network), self.verdict, source, interface)
            else:
                for rule in self.masquerade:
                    yield rule._replace(network=network, source=source, interface=interface)

    def means(self, other: t.Optional[Ruleset]) -> bool:
        """Whether no packet can tell the two apart."""
        return other is not None and (
            self == other or (set(self.guards) == set(other.guards) and _same_effect(self, other))
        )


def applies(rule: Rule, destination: Address, source: t.Optional[Address], interface: t.Optional[str]) -> bool:
    """Whether a rule matches a connection as far as it is known; what is not known is as the rule wants it.

    Guards that ask for more than addresses and interfaces do not match.
    """
    if isinstance(rule, Guard):
        known = rule.interface is not None and interface is not None
        return known and matches_interface(t.cast(str, rule.interface), t.cast(str, interface))
    return (
        (rule.network is None or destination in rule.network)
        and (rule.source is None or source is None or source in rule.source)
        and (rule.interface is None or interface is None or matches_interface(rule.interface, interface))
    )


def matches_interface(pattern: str, name: str) -> bool:
    """Whether a name of :class:`Match` means an interface."""
    return name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern


def _same_effect(one: Ruleset, other: Ruleset) -> bool:
    """Whether the decisions of both do the same to all packets. Where it would take too long to know, they do not."""
    matches = [decision.match for ruleset in (one, other) for decision in ruleset.decisions]
    # Sources are divided wherever any of them begins or ends. Of interfaces there are those with a name, those that
    # begin like a pattern, and all others.
    ranges = [spans.of_network(source) for match in matches for source in match.sources]
    addresses = sorted({0, *(edge for first, last in ranges for edge in (first, last + 1))})
    patterns = {name for match in matches for name in match.interfaces}
    names = {name[:-1] + _OTHER_NAME if name.endswith("+") else name for name in patterns} | {_OTHER_NAME}
    if len(matches) > _COMPARED_DECISIONS or len(addresses) * len(names) > _COMPARED_GROUPS:
        return False
    effects = [_Effects(one), _Effects(other)]
    return all(
        effects[0].of(address, name) == effects[1].of(address, name)
        for address, name in itertools.product(addresses, names)
    )


#: Nothing where it is empty.
_Effect = t.Tuple[t.Any, ...]


class _Effects:
    """What a ruleset does with packets of one source that leave by one interface."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._decisions = [
            (decision, spans.of_networks(decision.match.sources), _destinations(decision))
            for decision in ruleset.decisions
        ]
        # Later rules see what RETURN exempts, as if no rule had matched.
        verdict = () if ruleset.verdict == "RETURN" else (ruleset.verdict,)
        self._effects: t.Dict[str, _Effect] = {SKIP: (), EXEMPT: verdict, MASQUERADE: ruleset.masquerade}
        self._kept: t.Dict[t.Tuple[int, ...], t.Dict[_Effect, Spans]] = {}

    def of(self, address: int, name: str) -> t.Dict[_Effect, Spans]:
        """Destinations by what is done; those of which nothing is done are left out."""
        found = tuple(
            number
            for number, (decision, sources, _spans) in enumerate(self._decisions)
            if (not decision.match.sources or spans.contains(sources, address))
            and (not decision.match.interfaces or any(matches_interface(i, name) for i in decision.match.interfaces))
        )
        if found not in self._kept:
            self._kept[found] = self._painted(found)
        return self._kept[found]

    def _painted(self, numbers: t.Sequence[int]) -> t.Dict[_Effect, Spans]:
        effects: t.Dict[_Effect, Spans] = {}
        for number in reversed(numbers):
            decision, _sources, painted = self._decisions[number]
            effects = {effect: spans.difference(there, painted) for effect, there in effects.items()}
            effect = self._effects[decision.action]
            effects[effect] = spans.of(effects.get(effect, ()) + painted)
        return {effect: there for effect, there in effects.items() if effect and there}


def exempt_spans(decisions: t.Sequence[Decision]) -> Spans:
    """The destinations that are exempt in the end, whatever the source and the interface are."""
    exempt: Spans = ()
    for decision in reversed(decisions):
        if decision.action == EXEMPT:
            destinations = _destinations(decision)
            exempt = spans.of(exempt + destinations) if exempt else destinations
        elif exempt:
            exempt = spans.difference(exempt, _destinations(decision))
    return exempt


def _destinations(decision: Decision) -> Spans:
    networks = decision.match.destinations
    return spans.of_networks(networks) if networks else ((0, 2**128 - 1),)


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
    spare_link_local = not (config.masq_link_local if family == IPV4 else config.masq_link_local_ipv6)
    exempt = [LINK_LOCAL[family]] if spare_link_local else []
    exempt += _of_family(config.non_masquerade_cidrs, family)
    random_fully = random_fully and config.random_fully
    verdict = VERDICTS[config.exemption]
    decisions = tuple(_decisions(config, family, exempt))
    return Ruleset(
        decisions=decisions,
        verdict=verdict,
        masquerade=tuple(_port_rules(config.to_ports, random_fully)) + (Masquerade(random_fully=random_fully),),
        guards=(guards(verdict, family) if any(one.action == EXEMPT for one in decisions) else ())
        + (tuple(Guard(mark=mark) for mark in config.skip_marks) if decisions else ()),
    )


def _decisions(config: Config, family: str, exempt: t.Sequence[Network]) -> t.Iterator[Decision]:
    """What the options mean, in order: other interfaces, the ranges from the inside out, everything else."""
    sources = _of_family(config.source_cidrs, family)
    if config.source_cidrs and not sources:
        return
    everybody = any(network.prefixlen == 0 for network in sources)
    scope = Match(() if everybody else tuple(_collapse(sources)), (), config.out_interfaces)
    if config.except_interfaces:
        yield Decision(SKIP, Match(interfaces=config.except_interfaces))
    layers = _layers(exempt, _of_family(config.masquerade_cidrs, family))
    for depth, layer in reversed(list(enumerate(layers))):
        yield Decision(MASQUERADE if depth % 2 else EXEMPT, scope._replace(destinations=layer))
    yield Decision(MASQUERADE, scope)


def _of_family(networks: t.Iterable[Network], family: str) -> t.List[Network]:
    version = EVERYTHING[family].version
    return [network for network in networks if network.version == version]


def _layers(exempt: t.Sequence[Network], masquerade: t.Sequence[Network]) -> t.List[t.Tuple[Network, ...]]:
    """The ranges of both lists by how deep they are within each other, so that the longest prefix wins.

    First exempt ranges, then what is masqueraded inside of them, then what is exempt inside of that, and so on. An
    entry that says what the range around it says is left out; what stays keeps its order.
    """
    listed = [*exempt, *masquerade]
    depths: t.Dict[int, int] = {}
    around = [(2**128, 0)]  # last address and depth; everything is masqueraded
    bounds = [(*spans.of_network(network), index) for index, network in enumerate(listed)]
    for first, last, index in sorted(bounds, key=lambda bound: (bound[0], -bound[1], bound[2])):
        while around[-1][0] < first:
            around.pop()
        depth = around[-1][1]
        if (depth % 2 == 1) != (index < len(exempt)):
            depth += 1
            depths[index] = depth
        around.append((last, depth))
    deepest = max(depths.values(), default=0)
    return [
        tuple(listed[index] for index in sorted(depths) if depths[index] == depth) for depth in range(1, deepest + 1)
    ]


def from_rules(rules: t.Sequence[Rule]) -> t.Optional[Ruleset]:
    """The ruleset that these rules are; none where they are not of our shape: such a chain is replaced.

    Our shape is guards, then skipped interfaces and ranges with one verdict, then the masquerade rules, which are the
    same for all traffic that is masqueraded.
    """
    leading = tuple(itertools.takewhile(lambda rule: isinstance(rule, Guard) and rule.interface is None, rules))
    rest = rules[len(leading) :]
    places: t.List[t.Tuple[str, t.Any, t.Any, t.Any]] = []
    masquerade: t.Set[t.Tuple[Masquerade, ...]] = set()
    for (kind, source, interface, network), group in itertools.groupby(rest, _place):
        if (kind is Guard and interface is None) or (places and not _may_follow(places[-1], kind, network)):
            return None
        members = list(group)
        if kind is Exempt:
            places += [(EXEMPT, source, interface, t.cast(Exempt, rule).network) for rule in members]
        else:
            places.append((SKIP if kind is Guard else MASQUERADE, source, interface, network))
        if kind is Masquerade:
            masquerade.add(tuple(t.cast(Masquerade, rule).anywhere for rule in members))
    verdicts = {rule.verdict for rule in rest if isinstance(rule, Exempt)}
    if len(verdicts) > 1 or len(masquerade) > 1:
        return None
    return Ruleset(
        decisions=tuple(_united(places)),
        verdict=verdicts.pop() if verdicts else "RETURN",
        masquerade=masquerade.pop() if masquerade else (),
        guards=t.cast(t.Tuple[Guard, ...], leading),
    )


def _place(rule: Rule) -> t.Tuple[t.Any, ...]:
    """What the rules of one place have in common: exempt ranges, or the ways to masquerade the same traffic."""
    network = rule.network if isinstance(rule, Masquerade) else None
    return type(rule), rule.source, rule.interface, network


def _may_follow(before: t.Tuple[str, t.Any, t.Any, t.Any], kind: t.Any, network: t.Optional[Network]) -> bool:
    """Whether something may stand behind a place: what masquerades all destinations comes last."""
    return before[0] != MASQUERADE or before[3] is not None or (kind is Masquerade and network is None)


def _united(places: t.Sequence[t.Tuple[str, t.Any, t.Any, t.Any]]) -> t.Iterator[Decision]:
    """One decision for what follows each other and differs in nothing but the destination."""

    def common(place: t.Tuple[str, t.Any, t.Any, t.Any]) -> t.Tuple[t.Any, ...]:
        return (*place[:3], place[3] is None)

    for (action, source, interface, everywhere), group in itertools.groupby(places, common):
        networks = () if everywhere else tuple(place[3] for place in group)
        yield Decision(action, Match(_listed(source), networks, _listed(interface)))


def _listed(value: t.Any) -> t.Tuple[t.Any, ...]:
    return () if value is None else (value,)


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
