# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules as values in the shapes in which kube-proxy and the agent write them, and the routing of a node with pods."""

from __future__ import annotations

import ipaddress
import socket
import struct
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.regions import Packet, Region
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import (
    BaseChain,
    Branch,
    Match,
    Rule,
    RuleAction,
    RuleTable,
    Test,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals, netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.intervals import Spans
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.links import Link
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.routing import Routing

TCP = 6
NODE = "198.51.100.1"
PODS = "10.244.1.0/24"
CLUSTER = "10.244.0.0/16"
MASQUERADE = 0x4000


def net(text: str) -> Spans:
    """Return the addresses of a network."""
    return intervals.of_networks([ipaddress.ip_network(text)])


def tcp(port: int) -> Spans:
    """Return one port of TCP as a service."""
    return ((TCP << 16 | port, TCP << 16 | port),)


def rule(number: int, match: Match, action: RuleAction, **more: t.Any) -> Rule:
    """Return a rule with one branch."""
    return Rule(number, (Branch(match, action),), **more)


def chain(*pairs: t.Tuple[Match, RuleAction]) -> t.Tuple[Rule, ...]:
    """Return the rules of a chain."""
    return tuple(rule(number, *pair) for number, pair in enumerate(pairs, 1))


def jump(name: str) -> RuleAction:
    """Return a jump."""
    return RuleAction(rules.JUMP, chain=name)


ALL = Match()
MARKED = RuleAction(
    rules.SET, subject=rules.MARK, origin=rules.MARK, keep=rules.ALL_BITS & ~MASQUERADE, flip=MASQUERADE
)
UNMARKED = MARKED._replace(keep=rules.ALL_BITS)
IS_MARKED = (Test(rules.MARK, MASQUERADE, ((MASQUERADE, MASQUERADE),)),)
IS_NOT_MARKED = (Test(rules.MARK, MASQUERADE, ((0, 0),)),)


def masquerading() -> t.Tuple[Rule, ...]:
    """Return the chain of kube-proxy that masquerades what is marked."""
    return chain(
        (Match(tests=IS_NOT_MARKED), RuleAction(rules.RETURN)), (ALL, UNMARKED), (ALL, RuleAction(rules.SOURCE))
    )


def endpoint(pod: str, mark: str) -> t.Tuple[Rule, ...]:
    """Return the chain of kube-proxy that leads to a pod.

    :param mark: the chain that marks what the pod sends to itself.
    """
    number = int(ipaddress.ip_address(pod))
    to_pod = RuleAction(rules.DESTINATION, addresses=((number, number),), ports=((8080, 8080),))
    any_port = ((TCP << 16, TCP << 16 | 0xFFFF),)
    return chain((Match(source=net(pod)), jump(mark)), (Match(service=any_port), to_pod))


class Service(t.NamedTuple):
    """One Service of Kubernetes."""

    address: str
    port: int
    pods: t.Tuple[str, ...]
    node_port: int = 0


def services(count: int, node_ports: int, endpoints: int = 2, nodes: int = 40) -> t.List[Service]:
    """Return so many Services."""
    found = []
    for number in range(count):
        pods = tuple(
            "10.244.%d.%d" % (1 + (number + other) % nodes, 2 + (number + other) // nodes % 250)
            for other in range(endpoints)
        )
        port = 30000 + number if number < node_ports else 0
        found.append(
            Service("10.%d.%d.%d" % (96 + number // 62500, number // 250 % 250, 1 + number % 250), 80, pods, port)
        )
    return found


def iptables(known: t.Sequence[Service]) -> RuleTable:
    """Return the NAT table of kube-proxy's iptables mode."""
    local = intervals.of([*net(NODE), *net("127.0.0.0/8")])
    outside = intervals.complement(net(CLUSTER), IPV4.highest)
    chains: t.Dict[str, t.Tuple[Rule, ...]] = {
        "PREROUTING": chain((ALL, jump("KUBE-SERVICES"))),
        "POSTROUTING": chain((ALL, jump("KUBE-POSTROUTING"))),
        "KUBE-MARK-MASQ": chain((ALL, MARKED)),
        "KUBE-POSTROUTING": masquerading(),
    }
    listed: t.List[t.Tuple[Match, RuleAction]] = []
    ports: t.List[t.Tuple[Match, RuleAction]] = []
    for number, one in enumerate(known):
        address, name = net(one.address), "%08d" % number
        listed.append((Match(destination=address, service=tcp(one.port)), jump("KUBE-SVC-" + name)))
        members = [rule(1, Match(source=outside, destination=address, service=tcp(one.port)), jump("KUBE-MARK-MASQ"))]
        for place, pod in enumerate(one.pods, 2):
            last = place == len(one.pods) + 1
            sep = "KUBE-SEP-%s-%d" % (name, place)
            members.append(rule(place, ALL, jump(sep), chance=not last))
            chains[sep] = endpoint(pod, "KUBE-MARK-MASQ")
        chains["KUBE-SVC-" + name] = tuple(members)
        if one.node_port:
            ports.append((Match(service=tcp(one.node_port)), jump("KUBE-EXT-" + name)))
            chains["KUBE-EXT-" + name] = chain((ALL, jump("KUBE-MARK-MASQ")), (ALL, jump("KUBE-SVC-" + name)))
    chains["KUBE-NODEPORTS"] = chain(*ports)
    listed.append((Match(destination=local), jump("KUBE-NODEPORTS")))
    chains["KUBE-SERVICES"] = chain(*listed)
    base = {
        "PREROUTING": BaseChain("nat", rules.PREROUTING, -100),
        "POSTROUTING": BaseChain("nat", rules.POSTROUTING, 100),
    }
    return RuleTable("iptables_nft", "ip nat", base, chains)


def nftables(known: t.Sequence[Service]) -> RuleTable:
    """Return the table of kube-proxy's nftables mode."""
    outside = intervals.complement(net(CLUSTER), IPV4.highest)
    chains: t.Dict[str, t.Tuple[Rule, ...]] = {
        "nat-prerouting": chain((ALL, jump("services"))),
        "nat-postrouting": chain((ALL, jump("masquerading"))),
        "mark-for-masquerade": chain((ALL, MARKED)),
        "masquerading": masquerading(),
    }
    listed: t.List[Branch] = []
    ports: t.List[Branch] = []
    for number, one in enumerate(known):
        address, name = net(one.address), "service-%08d" % number
        listed.append(Branch(Match(destination=address, service=tcp(one.port)), RuleAction(rules.GOTO, chain=name)))
        ends = []
        for place, pod in enumerate(one.pods):
            end = "endpoint-%08d-%d" % (number, place)
            ends.append(Branch(ALL, RuleAction(rules.GOTO, chain=end)))
            chains[end] = endpoint(pod, "mark-for-masquerade")
        chains[name] = (
            rule(1, Match(source=outside, destination=address, service=tcp(one.port)), jump("mark-for-masquerade")),
            Rule(2, tuple(ends), chance=True, exhaustive=True),
        )
        if one.node_port:
            external = "external-%08d" % number
            ports.append(Branch(Match(service=tcp(one.node_port)), RuleAction(rules.GOTO, chain=external)))
            chains[external] = chain((ALL, jump("mark-for-masquerade")), (ALL, RuleAction(rules.GOTO, chain=name)))
    local = intervals.of(net(NODE))
    chains["services"] = (
        Rule(1, tuple(listed)),
        Rule(2, tuple(one._replace(match=one.match._replace(destination=local)) for one in ports)),
    )
    base = {
        "nat-prerouting": BaseChain("nat", rules.PREROUTING, -100),
        "nat-postrouting": BaseChain("nat", rules.POSTROUTING, 100),
    }
    return RuleTable("nftables", "ip kube-proxy", base, chains)


def agent(exempt: t.Sequence[str], priority: int = 50) -> RuleTable:
    """Return the agent's own table, as nftables holds it: what is exempt stays, what leaves is masqueraded."""
    ranges = intervals.of_networks(map(ipaddress.ip_network, exempt))
    postrouting = chain(
        (Match(tests=IS_MARKED), RuleAction(rules.RETURN)),
        (Match(destination=net(NODE)), RuleAction(rules.RETURN)),
        (Match(destination=ranges), RuleAction(rules.ACCEPT)),
        (ALL, RuleAction(rules.SOURCE)),
    )
    base = {"postrouting": BaseChain("nat", rules.POSTROUTING, priority)}
    return RuleTable("nftables", "ip ip_masq_agent", base, {"postrouting": postrouting})


# routing

_RTM = struct.Struct("=BBBBBBBBI")
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def _network(text: t.Optional[str]) -> t.Any:
    return ipaddress.ip_network(text) if text else None


def _head(version: int, destination: t.Any, source: t.Any, table: int, kind: int, more: t.Mapping[str, t.Any]) -> bytes:
    """Return what a route and a routing rule begin with: header, table and networks."""
    body = _RTM.pack(
        _FAMILIES[version],
        destination.prefixlen if destination else 0,
        source.prefixlen if source else 0,
        more.get("tos", 0),
        table if table < 256 else 252,
        0,
        0,
        kind,
        more.get("flags", 0),
    )
    body += netlink.word(15, table)
    for number, network in ((1, destination), (2, source)):
        if network and network.prefixlen:
            body += netlink.attribute(number, network.network_address.packed)
    return body


def route(
    destination: str = "0.0.0.0/0", link: int = 0, gateway: str = "", table: int = 254, kind: int = 1, **more: t.Any
) -> bytes:
    """Return a route as the kernel lists it.

    :param more: ``source``, ``tos``, ``flags``, ``metric``, ``preferred`` (source), ``paths`` (pairs of link and
        gateway), ``extra`` (attributes).
    """
    network = ipaddress.ip_network(destination)
    body = _head(network.version, network, _network(more.get("source")), table, kind, more)
    if "metric" in more:
        body += netlink.word(6, more["metric"])
    for number, address_ in ((5, gateway), (7, more.get("preferred"))):
        if address_:
            body += netlink.attribute(number, ipaddress.ip_address(address_).packed)
    if "paths" in more:
        data = b""
        for path_link, path_gateway in more["paths"]:
            rest = netlink.attribute(5, ipaddress.ip_address(path_gateway).packed) if path_gateway else b""
            data += struct.pack("=HBBi", 8 + len(rest), 0, 0, path_link) + rest
        body += netlink.attribute(9, data)
    elif link:
        body += netlink.word(4, link)
    extra: bytes = more.get("extra", b"")
    return body + extra


#: Attributes of a routing rule (linux/fib_rules.h), and how the kernel writes their values.
_SELECTORS: t.Dict[str, t.Callable[[t.Any], bytes]] = {
    "incoming": lambda name: netlink.text(3, name),
    "outgoing": lambda name: netlink.text(17, name),
    "mark": lambda value_and_mask: netlink.word(10, value_and_mask[0]) + netlink.word(16, value_and_mask[1]),
    "l3mdev": lambda value: netlink.attribute(19, bytes((value,))),
    "extra": bytes,
}


def selector(priority: int, table: int = 254, action: int = 1, version: int = 4, **more: t.Any) -> bytes:
    """Return a routing rule as the kernel lists it.

    :param more: ``to``, ``source``, ``tos``, ``flags``, ``suppress``, and keys of ``_SELECTORS``.
    """
    body = _head(version, _network(more.get("to")), _network(more.get("source")), table, action, more)
    body += netlink.word(14, more.get("suppress", -1) & 0xFFFFFFFF) + netlink.attribute(21, b"\2")
    if priority:
        body += netlink.word(6, priority)
    return body + b"".join(write(more[key]) for key, write in _SELECTORS.items() if key in more)


def selectors(version: int = 4) -> t.Tuple[bytes, ...]:
    """Return the routing rules that every node has."""
    usual = (selector(0, 255, version=version), selector(32766, 254, version=version))
    return (*usual, selector(32767, 253)) if version == 4 else usual


def address(text: str, link: int) -> bytes:
    """Return an address of a link as the kernel lists it."""
    interface = ipaddress.ip_interface(text)
    body = struct.pack("=BBBBI", _FAMILIES[interface.version], interface.network.prefixlen, 0x80, 0, link)
    return body + netlink.attribute(1, interface.ip.packed) + netlink.attribute(2, interface.ip.packed)


def link(index: int, name: str, kind: str = "") -> Link:
    """Return a link that is up."""
    flags = 0x9 if name == "lo" else 0x1
    return Link(index, name, kind, flags, 1500, b"", 0, 0, False, True, b"")


LINKS = (link(1, "lo"), link(2, "eth0"), link(3, "cbr0", "bridge"))


def routing(nodes: int = 40) -> Routing:
    """Return the routing of a node whose pods are behind a bridge, and those of others behind the others' addresses."""
    routes = [
        route("127.0.0.0/8", 1, table=255, kind=2),
        route("198.51.100.1/32", 2, table=255, kind=2),
        route("198.51.100.255/32", 2, table=255, kind=3),
        route("10.244.1.1/32", 3, table=255, kind=2),
        route("10.244.1.255/32", 3, table=255, kind=3),
        route("0.0.0.0/0", 2, "198.51.100.254"),
        route("198.51.100.0/24", 2, preferred=NODE),
        route("10.244.1.0/24", 3, preferred="10.244.1.1"),
    ]
    routes += [route("10.244.%d.0/24" % other, 2, "198.51.100.%d" % other) for other in range(2, nodes + 1)]
    addresses = (address("127.0.0.1/8", 1), address("198.51.100.1/24", 2), address("10.244.1.1/24", 3))
    return Routing(addresses, selectors(), tuple(routes))


def contains(region: Region, packet: Packet) -> bool:
    """Return whether a packet that comes in over the region's class of links is in it."""
    return all(intervals.contains(field, value) for field, value in zip(region[1:], packet))
