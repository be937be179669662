# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules and routes of a node as values, and the ways that packets of its pods can take through them."""

from __future__ import annotations

import ipaddress
import time
import typing as t

from .._system import intervals
from .._system.families import IPV4, IPV6, Family
from .._system.intervals import Spans
from .._system.routes import BROADCAST, LOCAL
from .._twin import nf_tables
from .._twin.node_state import State
from .._twin.trace import RULE, Step
from .._twin.values import IPTABLES_LEGACY, QUESTION_PROTOCOLS
from . import legacy_rules, nft_rules, referenced_objects, regions, senders, ways, xt_rules
from .indexed_rules import Ready, reachable
from .packet_policy import Policy
from .routing_lookups import Lookups
from .rules import INVALID, MAX_PORT, POSTROUTING, SET, SOURCE, UNTRACKED, WITH_PORTS, Ref, RuleTable, chain_of
from .senders import Sender
from .time_limit import left
from .ways import Declared, Start, Way, Ways

#: To these a packet of a pod is never forwarded, with any rules.
_NOT_FORWARDED = {
    IPV4: ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"),
    IPV6: ("::/64", "fe80::/10", "ff00::/8"),
}
#: Protocols of the tested packets that conntrack calls invalid: a reset, an error; see Question.stray.
STRAYS = ("tcp", "icmp")


class NodeModel:
    """The rules and routes of a node for one family."""

    def __init__(self, state: State, family: Family) -> None:
        self.family = family
        self.lookups = Lookups(state.routing, state.links, family, state.settings)
        self.types = self.lookups.types()
        self.tables = _tables(state, family, self.lookups, self.types)
        self._node = ways.Node(
            self.tables,
            self.lookups,
            state.services,
            state.settings.get("ipv4/vs/conntrack", "0") != "0",
            Ready(self.tables),
        )

    def ways_of(self, starts: t.Sequence[Start], seconds: t.Optional[float] = None) -> Ways:
        """Return the ways of some packets, with any policy."""
        return ways.ways(self._node, starts, (), seconds)

    def step(self, ref: Ref) -> t.Optional[Step]:
        """Return a rule by its place on the node; None if it is no rule of a table."""
        if not ref.chain or not 0 <= ref.table < len(self.tables):
            return None
        table = self.tables[ref.table]
        family, _space, name = table.title.partition(" ")
        codes = {title: code for code, title in nf_tables.FAMILIES.items()}
        legacy = table.backend == IPTABLES_LEGACY
        return Step(legacy, codes[family], name, chain_of(ref.chain), RULE, ref.number)

    def fixed(self) -> Spans:
        """Return the addresses that rules give as source without asking for those of a link."""
        found: t.List[t.Tuple[int, int]] = []
        for rule in (rule for table in self.tables for chain in table.chains.values() for rule in chain):
            for _match, action in rule.branches:
                if action.kind == SOURCE and not action.local and action.origin is None:
                    found += ((0, self.family.highest),) if action.addresses is None else action.addresses
        return intervals.of(found)


class Model(NodeModel):
    """A node for one family.

    ``senders`` are its pods; ``found`` are the ways of their packets.
    """

    def __init__(self, state: State, family: Family, policy: Policy, seconds: t.Optional[float] = None) -> None:
        """Read the rules and routes of a node, and find the ways of packets.

        :param seconds: how long it may take; reading the rules is not interrupted, finding the ways is.
        """
        until = None if seconds is None else time.monotonic() + seconds
        super().__init__(state, family)
        self._policy = [Declared(entry.match, entry.promise) for entry in policy.entries.get(family, ())]
        self.senders = _senders(state, family, policy)
        traits = senders.traits(state)
        destinations = regions.minus(_destinations(family), self.types[BROADCAST])
        #: destinations to which no packet of a pod is sent on
        self.nowhere = intervals.complement(regions.minus(destinations, self.types[LOCAL]), family.highest)
        services = _services(family)
        self._starts = [
            Start(sender.link, sender.addresses, destinations, services, traits=traits[sender.link])
            for sender in self.senders
        ]
        self.services = services
        self.found: Ways = ways.ways(self._node, self._starts, self._policy, left(until))
        self.of_node = senders.of_node(state, family)
        self.own = self._own_ways(regions.minus(destinations, self.types[LOCAL]), left(until))
        self._late = _late_chains(self.tables, nat=True)

    def _own_ways(self, destinations: Spans, seconds: t.Optional[float]) -> Ways:
        """Return the ways of packets that the node itself sends, if the policy is about them."""
        sources = [entry.match.source for entry in self._policy if entry.value is not None]
        meant = any(source is None or regions.meet(self.of_node, source) for source in sources)
        if not self.of_node or not meant:
            return Ways((), ())
        start = Start("", self.of_node, destinations, self.services, own=True)
        return ways.ways(self._node, [start], self._policy, seconds)

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
            links = found.starts[way.start].links
            for region in way.regions:
                if found.starts[way.start].own:
                    starts.append(Start("", *region[1:], traits=number, own=True))
                    continue
                for sender in self.senders:
                    source = regions.meet(region.source, sender.addresses)
                    if sender.link in links and source:
                        starts.append(Start(sender.link, source, *region[2:], traits=number))
        return ways.ways(self._node, starts, self._policy, seconds, filters=True)

    def strays(self, hidden: Spans, seconds: t.Optional[float]) -> Ways:
        """Return the ways of packets that conntrack calls invalid, of all protocols of ``STRAYS``.

        No rule of type nat sees them. They are divided by whatever lets some of them pass.

        :param hidden: sources that are meant, and destinations that are not; empty: all.
        """
        tables = [
            table._replace(base={name: base for name, base in table.base.items() if base.kind != "nat"})
            for table in self.tables
        ]
        starts = []
        for start in self._starts:
            source = regions.meet(start.source, hidden) if hidden else start.source
            destination = regions.minus(start.destination, hidden)
            service = intervals.of(span for one in STRAYS for span in self.stray_services(one))
            if source and destination:
                starts.append(
                    start._replace(source=source, destination=destination, service=service, untracked=INVALID)
                )
        return ways.ways(self._node._replace(tables=tables, ready=None), starts, self._policy, seconds, filters=True)

    def stray_services(self, protocol: str) -> Spans:
        """Return a protocol of ``STRAYS`` as services."""
        number = self.family.icmp if protocol == "icmp" else QUESTION_PROTOCOLS[protocol]
        return ((number << 16 | 1, number << 16 | MAX_PORT),) if number in WITH_PORTS else ((number << 16,) * 2,)

    def last_chance(self, way: Way) -> t.Optional[Ref]:
        """Return the last rule of a way that could have ended it: behind the hook postrouting, and not of type nat."""
        chains = _late_chains(self.tables, nat=False)
        return next((ref for ref in reversed(way.met) if (ref.table, ref.chain) in chains), None)

    def untracks(self, ref: Ref) -> bool:
        """Return whether a rule keeps packets from conntrack."""
        if not 0 <= ref.table < len(self.tables):
            return False
        return any(
            branch.action.kind == SET and branch.action.subject == UNTRACKED
            for rule in self.tables[ref.table].chains.get(ref.chain, ())
            if rule.number == ref.number
            for branch in rule.branches
        )

    def late(self, way: Way) -> t.Tuple[Ref, ...]:
        """Return the rules of a way that decide about the source address: those behind the hook postrouting."""
        return tuple(ref for ref in way.met if (ref.table, ref.chain) in self._late)


def _tables(state: State, family: Family, lookups: Lookups, types: t.Mapping[int, Spans]) -> t.List[RuleTable]:
    links = {
        link.index: referenced_objects.KnownLink(link.name, link.kind, link.group, link.master, link.copied_kind)
        for link in state.links
    }
    filled = xt_rules.filled(state.tables, state.legacy, state.sets)
    about = referenced_objects.Known(family, types, links, state.sets, filled, lookups.tos_tested)
    read = [nft_rules.read(table, about) for table in state.tables]
    read += [legacy_rules.read(table, about) for table in state.legacy]
    return [table for table in read if table is not None]


def _senders(state: State, family: Family, policy: Policy) -> t.List[Sender]:
    found = senders.senders(state, family, policy.pods)
    if found or policy.pods:
        return found
    # A link of other use may be that of the pods after all, if the policy names their networks.
    sources = [entry.match.source for entry in policy.entries.get(family, ()) if entry.match.source]
    named = intervals.networks(intervals.of(span for one in sources for span in one), family)
    return senders.senders(state, family, named) if named else []


def _destinations(family: Family) -> Spans:
    closed = intervals.of_networks(map(ipaddress.ip_network, _NOT_FORWARDED[family]))
    return intervals.complement(closed, family.highest)


def _services(family: Family) -> Spans:
    icmp = family.icmp << 16
    return intervals.of([(icmp, icmp), *((number << 16 | 1, number << 16 | MAX_PORT) for number in WITH_PORTS)])


def _late_chains(tables: t.Sequence[RuleTable], nat: bool) -> t.FrozenSet[t.Tuple[int, str]]:
    """Return the chains that base chains at postrouting lead to, with the place of their table: of type nat, or not."""
    return frozenset(
        (number, chain)
        for number, table in enumerate(tables)
        for name, base in table.base.items()
        if (base.kind == "nat") is nat and base.hook == POSTROUTING
        for chain in reachable(table, name)
    )
