# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy as an ordered list of decisions, as values: one ``Ruleset`` a family.

Knows no rule's text and starts no process. Two rulesets are compared by what they do to packets, not by their text:
the order of ranges, duplicates and overlaps do not matter; the masquerade rules are a sequence, so their order does.
"""

from __future__ import annotations

import ipaddress
import itertools
import typing as t

from .._policy.values import EXEMPT, LOOPBACK, MASQUERADE, SKIP, AddressRange, Mark, Network, PortRange, Service
from .._rules.rules import Match, Names
from .._system import intervals
from .._system.families import BY_VERSION, IPV4, IPV6, Family, protocol_number
from .._system.intervals import Spans
from .._system.services import pack

EVERYTHING = {IPV4: ipaddress.ip_network("0.0.0.0/0"), IPV6: ipaddress.ip_network("::/0")}

#: RFC 5771, RFC 4291: neighbours are found with such packets, which conntrack does not track in IPv6.
MULTICAST = {IPV4: ipaddress.ip_network("224.0.0.0/4"), IPV6: ipaddress.ip_network("ff00::/8")}

#: Values of the option leaks.
IGNORE, COUNT, DROP = "ignore", "count", "drop"

#: From which the kernel chooses a source port for a packet of such a port, if no rule has a range.
UNPRIVILEGED = PortRange(1024, 65535)

#: Marks of packets that must leave with the address of the node: kube-proxy's iptables.masqueradeBit (14) and the
#: markMasqBit of the CNI plugin portmap (13), at their defaults.
SERVICE_MARKS = 0x4000 | 0x2000

#: What becomes of exempt traffic: it goes on to later rules; no later rule of the chain sees it; no rule of any program
#: changes it.
VERDICTS = {"return": "RETURN", "accept": "ACCEPT", "enforce": "ENFORCE"}


class PolicyMatch(t.NamedTuple):
    """Packets. A field that is empty matches all of them; of several values one has to match."""

    sources: t.Tuple[Network, ...] = ()
    destinations: t.Tuple[Network, ...] = ()
    #: by which packets leave; ``+`` at the end matches every name that begins so
    interfaces: t.Tuple[str, ...] = ()
    services: t.Tuple[Service, ...] = ()

    @property
    def spans(self) -> Match:
        """The same in numbers."""
        return Match(
            source=intervals.of_networks(self.sources) if self.sources else None,
            destination=intervals.of_networks(self.destinations) if self.destinations else None,
            service=intervals.of(one.span for one in self.services) if self.services else None,
            outgoing=(Names(self.interfaces),) if self.interfaces else (),
        )


class Decision(t.NamedTuple):
    """What becomes of packets that no earlier decision matches. ``action`` is SKIP, EXEMPT or MASQUERADE."""

    action: str
    match: PolicyMatch = PolicyMatch()
    #: with which MASQUERADE replaces the source; None: that of the interface
    address: t.Optional[AddressRange] = None
    #: how MASQUERADE is carried out; None: as the ruleset says
    how: t.Optional[t.Tuple[Masquerade, ...]] = None


class Guard(t.NamedTuple):
    """Traffic to any destination that is left to later rules. One of the fields is set."""

    #: packets with one of these bits in their mark
    marks: int = 0
    #: packets from these addresses
    source: t.Optional[Network] = None
    #: connections whose destination was changed (DNAT)
    dnat: bool = False
    #: packets with this mark
    mark: t.Optional[Mark] = None
    #: packets of the node itself that nat does not see
    unseen_own: bool = False

    @property
    def is_option(self) -> bool:
        """Whether an option of the operator asks for it. The others belong to an exemption."""
        return self.mark is not None


class Masquerade(t.NamedTuple):
    """A way to masquerade packets of ``protocol``, in ``share`` of the cases.

    ``share`` counts in units of 2**-31, as the kernel does; None means always.
    """

    protocol: t.Optional[str] = None
    to_ports: t.Optional[PortRange] = None
    share: t.Optional[int] = None
    random_fully: bool = False


#: Kinds of rules about what decisions masquerade: packets that nat does not see, which are counted or dropped, and
#: first packets of connections, which pass, or are dropped because their fixed address is missing.
LEAK, FIRST = "leak", "first"

#: States of conntrack: the destination was changed (DNAT); nat does not see the packet.
REDIRECTED, UNSEEN = "DNAT", "INVALID,UNTRACKED"


class OwnRule(t.NamedTuple):
    """A decision about one source, destination, interface and service; a field that is None matches all."""

    #: SKIP, EXEMPT, MASQUERADE, LEAK or FIRST
    kind: str
    network: t.Optional[Network] = None
    source: t.Optional[Network] = None
    interface: t.Optional[str] = None
    service: t.Optional[Service] = None
    #: of EXEMPT one of VERDICTS (iptables has no ENFORCE); of LEAK and FIRST: RETURN or DROP
    verdict: str = "RETURN"
    #: REDIRECTED or UNSEEN: the rule is about such packets alone
    state: str = ""
    #: of MASQUERADE
    way: t.Optional[Masquerade] = None
    #: with which MASQUERADE replaces the source; None: that of the interface
    address: t.Optional[AddressRange] = None


AnyRule = t.Union[Guard, OwnRule]


class Ruleset(t.NamedTuple):
    """What one family's traffic meets: the guards, then the first decision that matches. Without one it is skipped."""

    decisions: t.Tuple[Decision, ...]
    #: how exempt traffic is treated, one of VERDICTS
    verdict: str
    #: how traffic is masqueraded
    masquerade: t.Tuple[Masquerade, ...]
    guards: t.Tuple[Guard, ...] = ()
    #: decisions before the others, each for itself
    leading: t.Tuple[Decision, ...] = ()
    #: fixed addresses for some of what decisions masquerade: the first that matches
    translations: t.Tuple[Decision, ...] = ()
    #: what is done with packets that decisions masquerade and nat does not see: IGNORE, COUNT or DROP
    leaks: str = IGNORE
    #: the addresses that such packets must not show; empty with IGNORE
    hidden: t.Tuple[Network, ...] = ()
    #: fixed addresses that are not on the node, so that new connections do not leave with them
    missing: t.Tuple[AddressRange, ...] = ()

    @property
    def exempt(self) -> t.Tuple[Network, ...]:
        """The destinations of decisions to exempt, without duplicates."""
        exempting = (decision for decision in self.decisions if decision.action == EXEMPT)
        return tuple(dict.fromkeys(network for decision in exempting for network in decision.match.destinations))

    @property
    def networks(self) -> t.Tuple[t.FrozenSet[Network], t.FrozenSet[Network]]:
        """The networks of destinations that decisions name, and those of sources."""
        matches = [decision.match for decision in (*self.leading, *self.decisions, *self.translations)]
        destinations = frozenset(network for match in matches for network in match.destinations)
        return destinations, frozenset(network for match in matches for network in match.sources)

    @property
    def expanded(self) -> t.Tuple[Decision, ...]:
        """All decisions in order: what is masqueraded comes after that part of it which gets a fixed address."""
        decisions = self.leading + self.decisions
        if not self.translations:
            return decisions
        return tuple(one for decision in decisions for one in (*self.translated(decision), decision))

    def translated(self, decision: Decision) -> t.Iterator[Decision]:
        """Return the parts of what a decision masquerades that get a fixed address."""
        if decision.action != MASQUERADE or decision.address is not None:
            return
        for translation in self.translations:
            match = both(decision.match, translation.match)
            if match is not None:
                how = translation.how if decision.how is None else decision.how
                yield Decision(MASQUERADE, match, translation.address, how)

    @property
    def rules(self) -> t.Tuple[AnyRule, ...]:
        """All rules, in the order in which a packet meets them: a decision is one rule for each of its combinations."""
        rules = (rule for decision in self.expanded for rule in self._rules(decision))
        # Of redirected connections, ACCEPT spares those to exempt destinations alone; see _rules.
        guards = tuple(guard for guard in self.guards if not (guard.dnat and self.verdict == "ACCEPT"))
        # No packet gets to what an earlier entry has said of all the same packets.
        return guards + tuple(_met(rules) if self.leading or self.translations else rules)

    @property
    def leak_rules(self) -> t.Tuple[AnyRule, ...]:
        """The rules of iptables for packets that nat does not see, in order; for first packets too if addresses are
        missing, also those of the node itself and those that kube-proxy would masquerade.

        They repeat the decisions. Packets between hidden addresses, and to many destinations at once, leave no cluster.
        """
        rules: t.List[AnyRule] = [guard for guard in self.guards if guard.is_option]
        if self.leaks != IGNORE:
            rules += [Guard(unseen_own=True)] if self.missing else []
            family = BY_VERSION[self.hidden[0].version]
            state = UNSEEN if self.missing else ""
            rules += [OwnRule(SKIP, network, state=state) for network in (*self.hidden, MULTICAST[family])]
        elif not self.missing:
            return ()
        for decision in self.expanded if self.missing else self.leading + self.decisions:
            rules += self._leak_rules(decision)
        return tuple(dict.fromkeys(rules))

    def _leak_rules(self, decision: Decision) -> t.Iterator[OwnRule]:
        hidden = both(decision.match, PolicyMatch(self.hidden)) if self.leaks != IGNORE else None
        missing = decision.address is not None and decision.address in self.missing
        if decision.action == MASQUERADE:
            if hidden is not None and not missing:
                verdict, state = "DROP" if self.leaks == DROP else "RETURN", UNSEEN if self.missing else ""
                yield from _singly(LEAK, hidden, verdict=verdict, state=state)
            if self.missing:
                yield from _singly(FIRST, decision.match, verdict="DROP" if missing else "RETURN")
        elif self.missing:
            for rule in self._rules(decision):
                yield rule._replace(verdict="RETURN")
        elif hidden is not None:
            yield from _singly(decision.action, hidden)

    @property
    def combinations(self) -> int:
        """How many rules there are for one destination, at most."""
        matches = (decision.match for decision in self.expanded)
        return max(
            (len(m.sources or "-") * len(m.interfaces or "-") * len(m.services or "-") for m in matches), default=0
        )

    def _rules(self, decision: Decision) -> t.Iterator[OwnRule]:
        if decision.action == MASQUERADE:
            for rule in _singly(MASQUERADE, decision.match, address=decision.address):
                for way in self.ways(decision):
                    if rule.service is None or way.protocol in (None, rule.service.protocol):
                        yield rule._replace(way=way)
            return
        verdict = self.verdict if decision.action == EXEMPT else "RETURN"
        leaves_redirected = verdict == "ACCEPT" and any(guard.dnat for guard in self.guards)
        for rule in _singly(decision.action, decision.match, verdict=verdict):
            if leaves_redirected:
                yield in_front(rule)
            yield rule

    def ways(self, decision: Decision) -> t.Tuple[Masquerade, ...]:
        """Return how a decision to masquerade is carried out."""
        return self.masquerade if decision.how is None else decision.how


def _met(rules: t.Iterable[OwnRule]) -> t.Iterable[OwnRule]:
    """Leave out rules about the same packets as an earlier one, also if it maps their ports otherwise."""
    found: t.Dict[OwnRule, OwnRule] = {}
    for rule in rules:
        alike = rule if rule.way is None else rule._replace(way=rule.way._replace(random_fully=False))
        found.setdefault(alike, rule)
    return found.values()


def service_number(protocol: str, port: int, family: Family) -> int:
    """Return a protocol and port in the way in which services count; see ``protocol_number``."""
    return pack(protocol_number(protocol, family), port)


def _singly(kind: str, match: PolicyMatch, **more: t.Any) -> t.Iterator[OwnRule]:
    """Return a rule for each source, interface, service and destination of a match."""
    for source, interface, service, network in itertools.product(
        match.sources or (None,), match.interfaces or (None,), match.services or (None,), match.destinations or (None,)
    ):
        yield OwnRule(kind, network, source, interface, service, **more)


def in_front(rule: OwnRule) -> OwnRule:
    """Return the rule in front of one that accepts: it leaves redirected connections to later rules."""
    # What has all addresses is written without a destination.
    network = rule.network if rule.network is not None and rule.network.prefixlen else None
    return OwnRule(SKIP, network, rule.source, rule.interface, rule.service, state=REDIRECTED)


def both(one: PolicyMatch, other: PolicyMatch) -> t.Optional[PolicyMatch]:
    """Intersect two matches; the second one has only sources and interfaces. Return None if they are disjoint."""
    sources = _common(one.sources, other.sources, _narrower_network)
    interfaces = _common(one.interfaces, other.interfaces, _narrower_interface)
    return None if sources is None or interfaces is None else one._replace(sources=sources, interfaces=interfaces)


def _common(
    one: t.Tuple[t.Any, ...], other: t.Tuple[t.Any, ...], narrower: t.Callable[[t.Any, t.Any], t.Any]
) -> t.Optional[t.Tuple[t.Any, ...]]:
    """Intersect two lists; empty means all. Return None if they are disjoint."""
    if not one or not other:
        return one or other
    found = (narrower(mine, theirs) for mine, theirs in itertools.product(one, other))
    return tuple(dict.fromkeys(value for value in found if value is not None)) or None


def _narrower_network(one: Network, other: Network) -> t.Optional[Network]:
    narrow, wide = (one, other) if one.prefixlen >= other.prefixlen else (other, one)
    return narrow if narrow.network_address in wide else None


def _narrower_interface(one: str, other: str) -> t.Optional[str]:
    """Return that of two names, or beginnings of names, which means interfaces of both."""
    for narrow, wide in ((one, other), (other, one)):
        if Names((wide,)).match(narrow):
            return narrow
    return None


def exempt_in_the_end(ruleset: Ruleset) -> t.Tuple[Network, ...]:
    """Return the exempt destinations, without what is masqueraded although an exempt range contains it.

    Entries of ``rules`` are not considered.
    """
    if not any(one.action == MASQUERADE and one.match.destinations for one in ruleset.decisions):
        return ruleset.exempt
    family = BY_VERSION[next((network.version for network in ruleset.exempt), 4)]
    return tuple(intervals.networks(exempt_spans(ruleset.decisions), family))


def exempt_spans(decisions: t.Sequence[Decision]) -> Spans:
    """Return the destinations that are exempt in the end, whatever the source and the interface are.

    What is skipped counts for nothing: it is left to others by its interface, not by its destination.
    """
    deciding = [decision for decision in decisions if decision.action != SKIP]
    return intervals.overlay((decision.action == EXEMPT, _destinations(decision)) for decision in reversed(deciding))


def _destinations(decision: Decision) -> Spans:
    networks = decision.match.destinations
    return intervals.of_networks(networks) if networks else ((0, 2**128 - 1),)


def guards(verdict: str, family: Family) -> t.Tuple[Guard, ...]:
    """Return the guards of a verdict: exempt traffic that is answered only if it leaves as the node.

    Marks: Services and host ports, and pods that reach themselves through one. Loopback: host ports on 127.0.0.1, which
    the kubelet masquerades by source. DNAT: kube-proxy in nftables mode and portmap recognise pods that reach
    themselves by their addresses, without a mark. RETURN needs no guards, because later rules see all packets.
    """
    if verdict == "RETURN":
        return ()
    return (Guard(dnat=True), Guard(marks=SERVICE_MARKS), Guard(source=LOOPBACK[family]))


def guards_of(verdict: str, family: Family, every: t.Sequence[Decision]) -> t.Tuple[Guard, ...]:
    """Return the guards of a verdict that a family with these decisions needs."""
    found = guards(verdict, family) if every else ()
    if any(decision.action == EXEMPT for decision in every):
        return found
    # Marked traffic is left to later rules in each family.
    return tuple(guard for guard in found if verdict == "ACCEPT" and not guard.dnat)
