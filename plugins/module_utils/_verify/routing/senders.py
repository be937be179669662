# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the pods of a node are: their addresses, and the links behind which they are, by the routes of the node."""

from __future__ import annotations

import ipaddress
import typing as t

from ..._rules import regions
from ..._system import intervals
from ..._system.families import FAMILIES, Family
from ..._system.intervals import Spans
from ..._system.routes import TABLE_MAIN
from ..._twin import links, node_state, routing
from ..._twin.links import BRIDGE
from ..._twin.node_state import NodeState
from . import guest_networks

#: Kinds of links behind which pods are.
_VETHS = ("veth", "netkit")
_POD_LINKS = (*_VETHS, BRIDGE)

#: Links that have the addresses of Services, or of a resolver for pods.
_OF_SERVICES = ("kube-ipvs0", "nodelocaldns")


class Sender(t.NamedTuple):
    """Pods: their addresses, and the link behind which they are."""

    addresses: Spans
    link: str
    #: with addresses of the node itself among them
    network: Spans = ()


def read_network() -> NodeState:
    """Read what shows pods and guests on this node, and nothing else.

    :raises NodeError: links or routes cannot be read.
    """
    return node_state.read_network(guest_networks.wanted)


def senders(state: NodeState, family: Family, pods: t.Sequence[t.Any] = (), named: Spans = ()) -> t.List[Sender]:
    """Return the pods of a node.

    :param pods: networks in which all of them lie; empty if that is not known.
    :param named: addresses that are those of pods, here or elsewhere.
    """
    if not pods:
        left_out = guest_networks.links_of(state, family) | _uplinks(state, named)
        return _behind(state, family, lambda link: link.index not in left_out)
    wanted = intervals.of_networks(network for network in pods if network.version == family.version)
    found = _behind(state, family, None)
    inside = (one._replace(addresses=intervals.intersection(one.addresses, wanted)) for one in found)
    return [one for one in inside if one.addresses]


def guests(state: NodeState, family: Family) -> t.List[Sender]:
    """Return containers and machines that other programs keep on the node."""
    others = guest_networks.links_of(state, family) - _uplinks(state)
    return _behind(state, family, lambda link: link.index in others)


def guests_of(state: NodeState) -> t.Dict[Family, Spans]:
    """Return the addresses of guests, by family."""
    return {
        family: intervals.of(span for one in guests(state, family) for span in one.addresses) for family in FAMILIES
    }


def _uplinks(state: NodeState, named: Spans = ()) -> t.Set[int]:
    """Return the links over which the node reaches others: those behind which routes have a gateway. A pod may be one
    too: a link of pods is an uplink with the default route of the main table alone.
    """
    routes = routing.routes(state.routing)
    defaults = [one for one in routes if not one.destination.prefixlen and one.table == TABLE_MAIN]
    pods = _links_of_pods(state, named).difference(path.link for one in defaults for path in one.paths)
    return set(routing.uplinks(state.routing)) - pods


def _links_of_pods(state: NodeState, named: Spans) -> t.Set[int]:
    """Return bridges of nothing but veths, veths without an address, and links behind which named addresses are."""
    addressed = {one.link for one in routing.addresses(state.routing) if not one.address.is_link_local}
    ports: t.Dict[int, t.Set[str]] = {}
    for link in state.links:
        ports.setdefault(link.master, set()).add(link.kind)
    bridges = {master for master, kinds in ports.items() if kinds.issubset(_VETHS)}
    found = {one.index for one in state.links if one.kind == BRIDGE and one.index in bridges}
    found.update(one.index for one in state.links if one.kind in _VETHS and one.index not in addressed)
    for route in routing.routes(state.routing) if named else ():
        if route.leads_to_link and intervals.intersection(intervals.of_networks([route.destination]), named):
            found.add(route.paths[0].link)
    return found


def _behind(state: NodeState, family: Family, chosen: t.Optional[t.Callable[[links.Link], bool]]) -> t.List[Sender]:
    """Return what is behind links to which pods could be connected.

    :param chosen: whether a link is one of them; None: all of them, uplinks too.
    """
    by_index = {link.index: link for link in state.links}
    known = [route for route in routing.routes(state.routing) if route.destination.version == family.version]
    mine = [one.address for one in routing.addresses(state.routing) if one.address.version == family.version]
    others = intervals.complement(intervals.of((int(one), int(one)) for one in mine), family.highest)
    ports = links.ports(state.links)  # what comes in there comes from the bridge
    #: by table: length of the prefix, link, destinations
    tables: t.Dict[int, t.List[t.Tuple[int, str, Spans]]] = {}
    for route in known:
        link = by_index.get(route.paths[0].link) if route.leads_to_link else None
        if link is None or link.kind not in _POD_LINKS or link.index in ports:
            continue
        if not route.destination.prefixlen or route.destination.is_link_local or route.destination.is_multicast:
            continue
        if chosen is None or chosen(link):
            one = (route.destination.prefixlen, link.name, intervals.of_networks([route.destination]))
            tables.setdefault(route.table, []).append(one)
    found: t.Dict[str, t.List[t.Tuple[int, int]]] = {}
    for some in tables.values():
        # The narrowest route leads to the pod.
        places = regions.partition([spans for _length, _name, spans in some])
        for members, parts in places.divide(((0, family.highest),)):
            narrowest = max((some[one][0] for one in members), default=0)
            for name in {some[one][1] for one in members if some[one][0] == narrowest}:
                found.setdefault(name, []).extend(parts)
    networks = {name: intervals.of(parts) for name, parts in found.items()}
    behind = (Sender(intervals.intersection(one, others), name, one) for name, one in networks.items())
    return [one for one in behind if one.addresses]


def of_node(state: NodeState, family: Family) -> Spans:
    """Return the addresses that programs of the node itself send from.

    These are the addresses of links over which a gateway is reached, those that routes prefer, and those of loopback
    and dummy links, to which BGP speakers are bound. Others, such as the gateway of pods, are not meant for that.
    """
    uplinks = _uplinks(state)
    meant = {
        link.index
        for link in state.links
        if link.index in uplinks or link.loopback or (link.kind == "dummy" and link.name not in _OF_SERVICES)
    }
    found = [one.address for one in routing.addresses(state.routing) if one.link in meant]
    preferred = routing.preferred_sources(state.routing)
    found += [ipaddress.ip_address(source) for _destination, index, source in preferred if index in uplinks]
    mine = [one for one in found if one.version == family.version and not (one.is_loopback or one.is_link_local)]
    return intervals.of((int(one), int(one)) for one in mine)


def traits(state: NodeState) -> t.Dict[str, t.Any]:
    """Return by the name of each link what treats its packets differently besides rules and routing rules."""
    settings: t.Dict[str, t.List[t.Tuple[str, str]]] = {}
    for path, value in state.settings.items():
        family, _conf, rest = path.partition("/conf/")
        name, _slash, key = rest.rpartition("/")
        settings.setdefault(name, []).append((family + key, value))
    return {
        link.name: (link.kind, link.master, link.port, tuple(sorted(settings.get(link.name, ()))))
        for link in state.links
    }


def link_of(found: t.Sequence[Sender], address: int) -> str:
    """Return the link behind which an address is: of several the one with the fewest addresses."""
    behind = [sender for sender in found if intervals.contains(sender.addresses, address)]
    return min(behind, key=lambda one: sum(last - first for first, last in one.addresses)).link


def example_pod(state: NodeState, family: Family) -> t.Optional[t.Tuple[str, str]]:
    """Return an address that a pod of the node could have and its link, or None if no route shows pods."""
    found = senders(state, family)
    if not found:
        return None
    length, first, link = max((last - first, first, one.link) for one in found for first, last in one.addresses)
    return str(family.address(first + (length + 1) // 2)), link
