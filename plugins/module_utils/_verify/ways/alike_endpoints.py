# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node with one endpoint in place of all of a Service that nothing but their addresses tells apart.

Two endpoints are alike if the rules for them are, and no rule, set, route, link or range of the policy has one of their
addresses without the other. Then a packet takes the same way to either, and cost goes with Services.
"""

from __future__ import annotations

import bisect
import typing as t

from ..._rules.alike_chains import End, Ends, Place
from ..._rules.rules import RuleTable, chain_of
from ..._system.backend_names import IPTABLES_LEGACY
from ..._system.families import Family
from ..._system.intervals import Spans
from ..._twin.node_state import NodeState
from ..routing import senders
from ..routing.routing_lookups import Lookups
from . import node_model
from .cpu_time import TimeOverError, limited
from .packet_policy import Policy

#: the tables of a state as they were read, by family
Read = t.Dict[Family, t.List[RuleTable]]


def with_fewer(state: NodeState, policy: Policy, seconds: t.Optional[float] = None) -> t.Tuple[NodeState, Read]:
    """Return the state with fewer endpoints, and what was read of that.

    All stay with services of IPVS, or if it takes longer than it may.
    """
    read: Read = {}
    fewer = state
    try:
        with limited(seconds):
            for family in policy.entries if not state.services else ():
                ends = [Ends(table, family) for table in fewer.tables]
                if any(one.found for one in ends):
                    fewer, read[family] = _of_family(fewer, policy, family, ends)
    except TimeOverError:
        return state, {}
    return fewer, read


def _of_family(
    state: NodeState, policy: Policy, family: Family, ends: t.Sequence[Ends]
) -> t.Tuple[NodeState, t.List[RuleTable]]:
    lookups = Lookups(state.routing, state.links, family, state.settings)
    types = lookups.types()
    compared = [*types.values(), *lookups.compared(), *_compared(state, policy, family)]
    place = _place(ends, lookups, compared)
    kept = [one.kept(place) for one in ends]
    fewer = _fewer(state, ends, kept)
    tables = node_model.tables_of(fewer, family, types)
    compared += _compared_by_rules(tables, {one.title: one.names() for one in ends})
    place = _place(ends, lookups, compared)
    needed = [one.kept(place) for one in ends]
    if needed == kept:
        return fewer, tables
    fewer = _fewer(state, ends, needed)  # a rule tells some of them apart
    return fewer, node_model.tables_of(fewer, family, types)


def _fewer(state: NodeState, ends: t.Sequence[Ends], kept: t.Iterable[t.Any]) -> NodeState:
    return state._replace(tables=tuple(one.fewer(some) for one, some in zip(ends, kept)))


def _place(ends: t.Sequence[Ends], lookups: Lookups, compared: t.Iterable[t.Optional[Spans]]) -> Place:
    """Return what tells addresses of endpoints apart: what compares them, routes, and what else is done with them."""
    spans = {id(one): one for one in compared if one}
    edges = sorted({edge for one in spans.values() for first, last in one for edge in (first, last + 1)})
    forms: t.Dict[int, t.Tuple[int, ...]] = {}
    for form, address in {(id(end.form), end.address) for one in ends for end in one.found.values()}:
        forms[address] = tuple(sorted((*forms.get(address, ()), form)))

    starts = sorted(lookups.starts().union(edges))
    cells: t.Dict[int, t.Hashable] = {}

    def place(end: End) -> t.Hashable:
        address = end.address
        cell = bisect.bisect_right(starts, address)
        if cell not in cells:
            cells[cell] = (bisect.bisect_right(edges, address), lookups.entries(address))
        return cells[cell], forms[address]

    return place


def _compared(state: NodeState, policy: Policy, family: Family) -> t.Iterator[t.Optional[Spans]]:
    """Return what the policy compares, and what is known of pods."""
    for declared in policy.entries[family]:
        yield from (declared.match.source, declared.match.destination)
    yield from (policy.hidden.get(family), policy.guests.get(family), node_model.destinations(family))
    for sender in (*node_model.senders_of(state, family, policy), *senders.guests(state, family)):
        yield from (sender.addresses, sender.network)
    yield senders.of_node(state, family)


def _compared_by_rules(
    tables: t.Iterable[RuleTable], ends: t.Mapping[str, t.Container[str]]
) -> t.Iterator[t.Optional[Spans]]:
    """Return what rules and sets compare with addresses, other than the chains of these endpoints by table."""
    for table in tables:
        left_out = () if table.backend == IPTABLES_LEGACY else ends.get(table.title, ())
        for rule in (rule for name, rules in table.chains.items() if chain_of(name) not in left_out for rule in rules):
            for match, action in rule.branches:
                yield from (match.source, match.destination, match.original_destination, action.addresses)
