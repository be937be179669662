# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules and routes of a node as values, and the ways that packets of its pods can take through them."""

from __future__ import annotations

import ipaddress
import typing as t

from ..._rules import nft_rules, referenced_objects, regions, xt_rules, xt_tables
from ..._rules.rules import (
    JUMP,
    PICKED_UP,
    POSTROUTING,
    SOURCE,
    STRAY,
    Ref,
    Rule,
    RuleTable,
    chain_of,
    reachable,
)
from ..._system import intervals, nf_tables
from ..._system.backend_names import IPTABLES_LEGACY
from ..._system.families import (
    DCCP,
    GRE,
    ICMP,
    ICMPV6,
    IPV4,
    IPV6,
    NO_NEXT,
    PORT_PROTOCOLS,
    PROTOCOLS,
    UDPLITE,
    WITH_PORTS,
    Family,
    protocol_number,
)
from ..._system.intervals import Spans
from ..._system.routes import BROADCAST, LOCAL
from ..._system.services import MAX_PORT, MAX_SERVICE, pack, span
from ..._twin.node_state import NodeState
from ..._twin.trace import RULE, Step
from ..._twin.values import Steering
from ..routing import senders
from ..routing.routing_lookups import Lookups
from ..routing.senders import Sender
from . import ways
from .indexed_rules import Ready
from .packet_policy import Policy
from .ways import Start, Way, Ways

#: To these a packet of a pod is never forwarded, with any rules.
_NOT_FORWARDED = {
    IPV4: ("0.0.0.0/32", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"),
    IPV6: ("::/127", "fe80::/10", "ff00::/8"),
}
#: Protocols that no rule of type nat sees: the ICMP of the other family is invalid to conntrack, and in IPv6 some
#: numbers stand for further headers, which no rule takes for the protocol (RFC 8200; that of AH is one to rules).
_APART = {IPV4: (ICMPV6,), IPV6: (ICMP, 0, 43, 44, 59, 60)}
_FAMILY_NUMBERS = {title: number for number, title in nf_tables.FAMILIES.items()}
#: Protocols that programs of the node can send: those of raw sockets (raw(7)).
_SENT = ((pack(1), pack(254, MAX_PORT)),)
#: Protocols of packets that conntrack calls invalid: a reset, an error; and others. See Question.stray.
STRAYS, OTHERS = ("tcp", "icmp"), ("udp", "sctp", *map(str, (UDPLITE, DCCP, GRE, NO_NEXT)))
#: of a reset of TCP, as rules.PICKED_UP has it
RESET = STRAY | 0x04
#: FIN, SYN, RST, ACK; SYN and ACK alone, with which conntrack may begin a connection
_CHOOSING, _OPENING = 0x17, (0x02, 0x10)


class NodeModel:
    """The rules and routes of a node for one family.

    ``senders`` are its pods.
    """

    def __init__(
        self,
        state: NodeState,
        family: Family,
        policy: Policy,
        sender: t.Optional[Sender] = None,
        tables: t.Optional[t.List[RuleTable]] = None,
    ) -> None:
        """Read the rules and routes of a node.

        :param sender: stands for all pods.
        :param tables: if they were read already.
        """
        self.family = family
        lookups = Lookups(state.routing, state.links, family, state.settings, state.neighbours.hardware)
        types = lookups.types()
        self.tables = tables_of(state, family, types) if tables is None else tables
        ipvs_conntrack = state.settings.get("ipv4/vs/conntrack", "0") != "0"
        ready = Ready(self.tables)
        self._node = ways.RulesAndRoutes(self.tables, lookups, state.services, ipvs_conntrack, ready)
        self._policy = policy.entries.get(family, ())
        found = [sender] if sender else senders_of(state, family, policy)
        # Nobody can send from the address of all hosts.
        self.senders = [one._replace(addresses=regions.minus(one.addresses, types[BROADCAST])) for one in found]
        self._traits = senders.traits(state)
        self._of_node = senders.of_node(state, family)
        self._destinations = regions.minus(destinations(family), types[BROADCAST])
        self._others = regions.minus(self._destinations, types[LOCAL])
        #: destinations to which no packet of a pod is sent on
        self.nowhere = intervals.complement(self._others, family.highest)
        self.services = _services(family)
        #: those of programs of the node
        self.sent = regions.meet(self.services, _SENT)
        #: of TCP, UDP, SCTP and ICMP
        self.usual = intervals.of([span(family.icmp), *(span(PROTOCOLS[name], 1) for name in PORT_PROTOCOLS)])
        self._late = _late_chains(self.tables, nat=True)
        #: whether a rule that is not of type nat decides by chance
        self.filters_by_chance = any(
            rule.chance
            for table in self.tables
            for name, base in table.base.items()
            if base.kind != "nat"
            for chain in reachable(table, name)
            for rule in table.chains.get(chain, ())
        )

    def of_pods(self, seconds: t.Optional[float], destination: Spans = (), service: Spans = ()) -> Ways:
        """Return the ways of the pods' packets.

        :param seconds: how long it may take to find them.
        :param destination: of the packets; empty: all.
        :param service: of the packets; empty: all that are tested.
        """
        return ways.ways(self._node, self._starts(destination, service), self._policy, seconds)

    def _starts(self, destination: Spans = (), service: Spans = ()) -> t.List[Start]:
        destination, service = destination or self._destinations, service or self.services
        return [
            Start(sender.link, sender.addresses, destination, service, traits=self._traits[sender.link])
            for sender in self.senders
        ]

    def of_node(self, seconds: t.Optional[float]) -> Ways:
        """Return the ways of packets that the node itself sends, if the policy is about them."""
        sources = [entry.match.source for entry in self._policy if entry.value is not None]
        meant = any(source is None or regions.meet(self._of_node, source) for source in sources)
        if not self._of_node or not meant:
            return Ways((), ())
        start = Start("", self._of_node, self._others, self.sent, own=True)
        return ways.ways(self._node, [start], self._policy, seconds)

    def rules(self, ref: Ref) -> t.Iterator[Rule]:
        """Return the steps of a rule; none if it is no rule of a table."""
        listed = self.tables[ref.table].chains.get(ref.chain, ()) if 0 <= ref.table < len(self.tables) else ()
        return (rule for rule in listed if rule.number == ref.number)

    def step(self, ref: Ref) -> t.Optional[Step]:
        """Return a rule by its place on the node; None if it is no rule of a table."""
        if not ref.chain or not 0 <= ref.table < len(self.tables):
            return None
        table = self.tables[ref.table]
        family, _space, name = table.title.partition(" ")
        legacy = table.backend == IPTABLES_LEGACY
        return Step(legacy, _FAMILY_NUMBERS[family], name, chain_of(ref.chain), RULE, ref.number)

    def fixed(self) -> Spans:
        """Return the addresses that rules give as source without asking for those of a link."""
        found: t.List[t.Tuple[int, int]] = []
        for rule in (rule for table in self.tables for chain in table.chains.values() for rule in chain):
            for _match, action in rule.branches:
                if action.kind == SOURCE and not action.local and action.origin is None:
                    found += ((0, self.family.highest),) if action.addresses is None else action.addresses
        return intervals.of(found)

    def link_of(self, found: Ways, way: Way, source: int) -> t.Optional[str]:
        """Return the link over which a packet of a way comes in; None if the node itself sends it."""
        if found.starts[way.start].own:
            return None
        links = found.starts[way.start].links
        return senders.link_of([sender for sender in self.senders if sender.link in links], source)

    def divided(self, found: Ways, silent: t.Sequence[Way], seconds: t.Optional[float]) -> Ways:
        """Return ways divided by what only lets packets pass or not.

        :param silent: those without a packet that came out.
        """
        starts = []
        for number, way in enumerate(silent):
            start = found.starts[way.start]
            behind = [Sender(self._of_node, "")] if start.own else self.senders
            for sender in (sender for sender in behind if start.own or sender.link in start.links):
                for region in way.regions:
                    source = regions.meet(region.source, sender.addresses)
                    if source:
                        starts.append(Start(sender.link, source, *region[2:], traits=number, own=start.own))
        return ways.ways(self._node, starts, self._policy, seconds, filters=True)

    def strays(self, hidden: Spans, seconds: t.Optional[float]) -> Ways:
        """Return the ways of packets that conntrack calls invalid.

        No rule of type nat sees them. They are divided by whatever lets some of them pass.

        :param hidden: sources that are meant, and destinations that are not; empty: all, of ``STRAYS`` alone.
        """
        tables = [
            table._replace(base={name: base for name, base in table.base.items() if base.kind != "nat"})
            for table in self.tables
        ]
        starts = []
        flags = self._told_apart() if hidden else [RESET]
        kinds = STRAYS + (OTHERS if hidden else ())
        services = intervals.of(span for one in kinds for span in self.stray_services(one))
        for start in self._starts():
            source = regions.meet(start.source, hidden) if hidden else start.source
            destination = regions.minus(start.destination, hidden)
            for number, stray in enumerate(flags if source and destination else ()):
                service = services if not number else self.stray_services("tcp")
                starts.append(start._replace(source=source, destination=destination, service=service, stray=stray))
        return ways.ways(self._node._replace(tables=tables, ready=None), starts, self._policy, seconds, filters=True)

    def _told_apart(self) -> t.List[int]:
        """Return flags of TCP, one of each group that rules treat alike; first those of a reset.

        Of others those come first that conntrack calls invalid also where it looks at no checksums.
        """
        chains = (chain for table in self.tables for chain in table.chains.values())
        branches = (branch for chain in chains for rule in chain for branch in rule.branches)
        tests = {test.allowed for one in branches for test in one.match.tests if test.subject == PICKED_UP}
        found: t.Dict[t.Any, int] = {}
        every = range(STRAY, STRAY + 0x100)
        for flags in (RESET, *sorted(every, key=lambda one: one & _CHOOSING in _OPENING)):
            found.setdefault(tuple(intervals.contains(allowed, flags) for allowed in tests), flags)
        return list(found.values())

    def stray_services(self, protocol: str) -> Spans:
        """Return a protocol of ``STRAYS`` or ``OTHERS`` as services."""
        number = protocol_number(protocol, self.family)
        return (span(number, 1) if number in WITH_PORTS else span(number, 0, 0),)

    def steering(self, way: Way, port: int) -> t.Optional[Steering]:
        """Return what takes packets from a port past the first choice by chance of a way; None if nothing does."""
        met = [*way.met, *(way.targets[0].met if way.targets else ())]
        for here, behind in zip(met, met[1:]):
            step = self.step(here)
            if step is None or step.legacy or (behind.table, behind.chain == here.chain) != (here.table, False):
                continue
            rules_here = self.tables[here.table].chains[here.chain]
            first = next((rule.number for rule in rules_here if rule.chance), here.number + 1)
            if first > here.number or any(ref[:2] == here[:2] and first <= ref.number < here.number for ref in met):
                continue
            kinds = {
                branch.action.kind
                for rule in self.rules(here)
                for branch in rule.branches
                if branch.action.chain == behind.chain and not rule.unknown and not rule.history
            }
            if len(kinds) == 1 and "\0" not in here.chain + behind.chain:
                returns = kinds == {JUMP}
                return Steering(step.family, step.table, here.chain, first, behind.chain, returns, port)
        return None

    def last_chance(self, way: Way) -> t.Optional[Ref]:
        """Return the last rule of a way that could have ended it: behind the hook postrouting, and not of type nat."""
        chains = _late_chains(self.tables, nat=False)
        return next((ref for ref in reversed(way.met) if (ref.table, ref.chain) in chains), None)

    def late(self, way: Way) -> t.Tuple[Ref, ...]:
        """Return the rules of a way that decide about the source address: those behind the hook postrouting."""
        return tuple(ref for ref in way.met if (ref.table, ref.chain) in self._late)


def tables_of(state: NodeState, family: Family, types: t.Mapping[int, Spans]) -> t.List[RuleTable]:
    """Return the tables that see packets of a family."""
    links = {link.index: link.name for link in state.links}
    filled = xt_rules.filled(state.tables, state.legacy, state.sets)
    ipsec = any(one.code in ("ipsec", "unreadable") for one in state.unseen)
    about = referenced_objects.Known(family, types, links, state.sets, filled, ipsec)
    read = [nft_rules.read(table, about) for table in state.tables]
    read += [xt_tables.read(table, about) for table in state.legacy]
    return [table for table in read if table is not None]


def senders_of(state: NodeState, family: Family, policy: Policy) -> t.List[Sender]:
    """Return the pods, and the guests of other programs that the policy is about."""
    named = policy.named(family)
    found = senders.senders(state, family, policy.pods, named)
    if policy.pods:
        return found
    about = intervals.of((*policy.guests.get(family, ()), *named))
    found += [one for one in senders.guests(state, family) if intervals.intersection(one.addresses, about)]
    # A link of other use may be that of the pods after all, if the policy names their networks.
    return found or (senders.senders(state, family, intervals.networks(named, family)) if named else [])


def destinations(family: Family) -> Spans:
    """Return the addresses to which packets of pods may be sent on."""
    closed = intervals.of_networks(map(ipaddress.ip_network, _NOT_FORWARDED[family]))
    return intervals.complement(closed, family.highest)


def _services(family: Family) -> Spans:
    return intervals.complement(intervals.of(map(span, _APART[family])), MAX_SERVICE)


def _late_chains(tables: t.Sequence[RuleTable], nat: bool) -> t.FrozenSet[t.Tuple[int, str]]:
    """Return the chains that base chains at postrouting lead to, with the place of their table: of type nat, or not."""
    return frozenset(
        (number, chain)
        for number, table in enumerate(tables)
        for name, base in table.base.items()
        if (base.kind == "nat") is nat and base.hook == POSTROUTING
        for chain in reachable(table, name)
    )
