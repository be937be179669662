# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks of machines and containers that other programs keep on a node, as the rules of these programs show them.

Some have chains of their own. Others write to POSTROUTING of the nat table of iptables, in a form that shows whose
network it is: ``-s NETWORK ! -o BRIDGE -j MASQUERADE`` (Docker), ``-s NETWORK ! -d NETWORK -j MASQUERADE`` (lxc-net,
NetworkManager, Incus), ``-s NETWORK -j NETAVARK-...`` (podman). Such a rule is no proof where the network has a pod.
"""

from __future__ import annotations

import functools
import ipaddress
import typing as t

from ..._engine import rule_owners
from ..._engine.iptables_syntax import NAT
from ..._rules import nft_rules, xt_tables
from ..._rules.referenced_objects import Known
from ..._rules.rules import GOTO, JUMP, SOURCE, Branch, Match, Names, Rule, RuleTable, chain_of
from ..._system import intervals, netlink, nf_tables, pod_names, xtables
from ..._system.families import FAMILIES, Family
from ..._system.intervals import Spans
from ..._twin import routing
from ..._twin.links import BRIDGE, Link
from ..._twin.node_state import NodeState

_POSTROUTING = "POSTROUTING"
#: What is read of the nat table of iptables, which can be large: the chain of libvirt has always this name.
_OF_NAT = (_POSTROUTING, "LIBVIRT_PRT")
#: Bridges of these programs, by the names that they give them.
_GUESTS_BRIDGES = Names(
    ("docker+", "br-+", "virbr+", "lxdbr+", "lxcbr+", "incusbr+", "podman+", "cni-podman+", "nerdctl+")
)
#: Bridges for pods, as network plugins call them.
_PODS_BRIDGES = Names(("cni+", "cbr+", "kube+", "weave+"))
_ANY = "+"


class GuestNetworks(t.NamedTuple):
    """What rules show. Each is one range."""

    #: of chains of programs with guests
    theirs: t.AbstractSet[Spans]
    #: of POSTROUTING: patterns for names of the bridge
    bridged: t.Mapping[Spans, t.Sequence[str]]

    def has(self, network: Spans, link: Link) -> bool:
        """Return whether the network behind a link is one of them."""
        if network in self.theirs:
            return True
        known = link.kind == BRIDGE and not _PODS_BRIDGES.match(link.name)
        return known and Names(tuple(self.bridged.get(network, ()))).match(link.name)


def find(state: NodeState, family: Family) -> GuestNetworks:
    """Return the networks that the rules of a node show."""
    return _find(state.tables, state.legacy, family)


@functools.lru_cache(maxsize=len(FAMILIES))  # senders, guests and several notes ask, of tens of thousands of chains
def _find(
    nft: t.Tuple[nf_tables.NftTable, ...], legacy: t.Tuple[xtables.XtTable, ...], family: Family
) -> GuestNetworks:
    known = Known(family)
    tables = [(table.name, _nft(table, known)) for table in nft if rule_owners.keeps_guests(table.name)]
    tables += [(table.name, _legacy(table, known)) for table in legacy if table.name == NAT]
    theirs: t.Set[Spans] = set()
    bridged: t.Dict[Spans, t.List[str]] = {}
    for name, table in tables:
        for chain, rules in table.chains.items() if table else ():
            for rule, branch in ((one, branch) for one in rules for branch in one.branches):
                if not _is_shared(name, chain_of(chain)):
                    theirs.update((span,) for span in branch.match.source or ())
                elif chain == _POSTROUTING:
                    bridged.setdefault(branch.match.source or (), []).extend(_bridges(rule, branch, family))
    return GuestNetworks(theirs, _without_pods({key: found for key, found in bridged.items() if found}, family))


def links_of(state: NodeState, family: Family) -> t.Set[int]:
    """Return the links of guests of other programs: by their names, or where a rule of such a program is for exactly
    the network behind a link."""
    networks = find(state, family)
    by_index = {link.index: link for link in state.links}
    found = {link.index for link in state.links if _GUESTS_BRIDGES.match(link.name)}
    for route in routing.routes(state.routing) if any(networks) else ():
        link = by_index.get(route.paths[0].link) if route.leads_to_link else None
        if link and networks.has(intervals.of_networks([route.destination]), link):
            found.add(link.index)
    return found


def is_of_others(names: Names) -> bool:
    """Return whether a condition asks for such bridges of others, and for nothing else."""
    return not names.inverted and all(_GUESTS_BRIDGES.match(one.rstrip("+")) for one in names.patterns)


def wanted(table: str) -> t.Optional[t.Sequence[str]]:
    """Return what to read of a table, by its name without the family: ``nf_tables.Wanted``."""
    if table == NAT:
        return _OF_NAT
    return () if rule_owners.keeps_guests(table) else None


def _is_shared(table: str, chain: str) -> bool:
    """Return whether it is the chain in which rules of all programs are."""
    return (table, chain) == (NAT, _POSTROUTING)


def _keeps_guests(table: str, chain: str) -> bool:
    return _is_shared(table, chain) or rule_owners.keeps_guests(table, chain)


def _bridges(rule: Rule, branch: Branch, family: Family) -> t.Iterator[str]:
    """Return the pattern for the name of the bridge behind which the source of a rule of POSTROUTING is a guest."""
    match, action = branch
    if rule.unknown or match != Match(match.source, match.destination, match.service, outgoing=match.outgoing):
        return
    if action.kind in (JUMP, GOTO) and rule_owners.keeps_guests(NAT, action.chain):
        yield _ANY
    elif action.kind == SOURCE and not match.outgoing:
        if match.destination == intervals.complement(match.source or (), family.highest):
            yield _ANY
    elif action.kind == SOURCE and match.destination is None:
        names = [name for one in match.outgoing if one.inverted for name in one.patterns]
        yield from names if len(names) == len(match.outgoing) == 1 and not names[0].endswith(_ANY) else ()


def _without_pods(found: t.Mapping[Spans, t.Sequence[str]], family: Family) -> t.Mapping[Spans, t.Sequence[str]]:
    """Return those networks in which no pod of this node has an address."""
    addresses = [ipaddress.ip_address(one) for one in (pod_names.read() if found else ())]
    pods = [int(one) for one in addresses if one.version == family.version]
    return {key: names for key, names in found.items() if not any(intervals.contains(key, one) for one in pods)}


def _nft(table: nf_tables.NftTable, known: Known) -> t.Optional[RuleTable]:
    """Return the rules of a table that are in chains of such programs, and in POSTROUTING."""
    if not nft_rules.sees(table, known.family):
        return None
    names = (netlink.value(body, nf_tables.CHAIN_NAME) for body in table.chains)
    theirs = {name for name in names if _keeps_guests(table.name, netlink.name(name))}
    if not theirs:
        return None
    rules = (body for body in table.rules if netlink.value(body, nf_tables.RULE_CHAIN) in theirs)
    return nft_rules.read(table._replace(rules=tuple(rules)), known)


def _legacy(table: xtables.XtTable, known: Known) -> t.Optional[RuleTable]:
    """Return POSTROUTING of a table, and the chains of such programs to which it leads."""
    return xt_tables.read(table, known, xtables.chains(table, (_POSTROUTING,), _OF_NAT))
