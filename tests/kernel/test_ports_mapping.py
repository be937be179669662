# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a UDP socket has one source port at all destinations, as STUN asks (RFC 5780), or another at each."""

from __future__ import annotations

import itertools
import socket
import typing as t

import pytest
from support.marks import halved, paired
from support.modules import apply, run_module
from support.packets import bound
from support.programs import Programs
from support.topology import ADDRESSES, Topology
from support.variants import NFTABLES, Variant

#: Sockets of one attempt. A random port is the socket's own, or the same at both servers, with a probability below
#: 0.0001: one of them may have such.
SOCKETS = 6
#: Ports of servers; each attempt has its own, so that no connection is one of before.
SERVER_PORTS = itertools.count(20000)
#: Of the pod, first one; the pod and another source.
_CLIENT_PORTS = itertools.count(3000, SOCKETS)


def seen(topology: Topology, family: str) -> t.List[t.Tuple[int, t.List[int], t.Set[str]]]:
    """Return, for each socket of the pod, its port, the ports that two servers see, and the addresses that they see."""
    a, port, first = ADDRESSES[family], next(SERVER_PORTS), next(_CLIENT_PORTS)
    servers = [topology.outside.inside(bound, socket.SOCK_DGRAM, address, port) for address in a.outside[:2]]
    found = []
    for own in range(first, first + SOCKETS):
        client = topology.pod.inside(bound, socket.SOCK_DGRAM, a.pod, own)
        peers = []
        for server, address in zip(servers, a.outside):
            client.sendto(b"x", (address, port))
            peers.append(server.recvfrom(1)[1])
        found.append((own, [peer[1] for peer in peers], {peer[0] for peer in peers}))
        client.close()
    for server in servers:
        server.close()
    return found


def mapping(topology: Topology, family: str, address: t.Optional[str] = None) -> str:
    """Return ``keep`` if sockets have their own ports at both servers, ``random`` if they have others at each."""
    results = seen(topology, family)
    assert all(addresses == {address or ADDRESSES[family].node} for _own, _ports, addresses in results), results
    different = [len({own, *ports}) for own, ports, _addresses in results]
    if set(different) == {1}:
        return "keep"
    assert different.count(3) >= SOCKETS - 1, results
    return "random"


def entry(family: str, option: str, **keys: t.Any) -> t.Dict[str, t.Any]:
    """Return an option with one entry about the pod."""
    a = ADDRESSES[family]
    if option == "snat":
        return {"snat": [dict(keys, address=a.node, source_cidrs=[a.pods])]}
    action = {"action": "masquerade"} if option == "rules" else {"action": "snat", "address": a.node}
    return {"rules": [dict(keys, sources=[a.pods], **action)]}


@halved(("option",), ("snat",), ("rules",), ("rules with an address",))
def test_an_entry_decides_for_its_packets_in_place_of_random_fully(
    topology: Topology, variant: Variant, family: str, option: str
) -> None:
    options: t.Dict[str, t.Any] = {"backend": variant.backend, "enable_ipv6": True}
    for general, mapped in itertools.product((True, False), ("random", "keep", None)):
        expected = mapped or ("random" if general else "keep")
        more = {**options, "random_fully": general, **entry(family, option, ports_mapping=mapped)}
        planned = run_module(topology.node, check=True, diff=True, **more)
        done = apply(topology.node, diff=True, **more)
        # Without the key it is the same as with that of random_fully.
        assert done["changed"] is ((general, mapped) != (False, None)) and done["diff"] == planned["diff"]
        assert mapping(topology, family) == expected, (general, mapped)
        assert not apply(topology.node, **more)["changed"]


@paired
def test_others_are_mapped_as_before(topology: Topology, variant: Variant, family: str) -> None:
    others = {"ipv4": "10.244.9.0/24", "ipv6": "fd00:10:244:9::/64"}[family]
    one = {"address": ADDRESSES[family].node, "source_cidrs": [others], "ports_mapping": "keep"}
    apply(topology.node, backend=variant.backend, enable_ipv6=True, snat=[one])
    assert mapping(topology, family) == "random"
    rule = {"action": "masquerade", "sources": [others], "ports_mapping": "random"}
    apply(topology.node, backend=variant.backend, enable_ipv6=True, rules=[rule], random_fully=False)
    assert mapping(topology, family) == "keep"


@paired
def test_a_rule_counts_before_the_entry_of_snat(topology: Topology, variant: Variant, family: str) -> None:
    options = {"backend": variant.backend, "enable_ipv6": True, "random_fully": True}
    snat = entry(family, "snat", ports_mapping="keep")
    for own, expected in ((None, "keep"), ("random", "random"), ("keep", "keep")):
        for conditions in ({}, {"protocols": ["udp"]}, {"sources": [ADDRESSES[family].pods]}):
            rule = {"action": "masquerade", "ports_mapping": own, **conditions}
            more = {**options, **snat, "rules": [rule]}
            apply(topology.node, **more)
            assert mapping(topology, family) == expected, (own, conditions)
            assert not apply(topology.node, **more)["changed"]


def test_ports_outside_of_the_range_are_mapped_into_it(topology: Topology, variant: Variant, family: str) -> None:
    more = {"backend": variant.backend, "enable_ipv6": True, **entry(family, "rules", ports_mapping="keep")}
    apply(topology.node, to_ports=["40000-50000"], **more)
    assert all(40000 <= port <= 50000 for _own, ports, _addresses in seen(topology, family) for port in ports)
    apply(topology.node, to_ports=["1024-29999"], **more)
    assert mapping(topology, family) == "keep"
    assert not apply(topology.node, to_ports=["1024-29999"], **more)["changed"]


@paired
def test_two_pods_with_one_port_get_two(topology: Topology, variant: Variant, family: str) -> None:
    """A port that is not free is not kept."""
    a, port, own = ADDRESSES[family], next(SERVER_PORTS), next(_CLIENT_PORTS)
    second = {"ipv4": "10.244.1.3/24", "ipv6": "fd00:10:244:1::3/64"}[family]
    topology.pod.run("ip", "address", "add", second, "dev", "eth0", *(["nodad"] if ":" in second else []))
    apply(topology.node, backend=variant.backend, enable_ipv6=True, **entry(family, "rules", ports_mapping="keep"))
    server = topology.outside.inside(bound, socket.SOCK_DGRAM, a.outside[0], port)
    ports = []
    for address in (a.pod, second.partition("/")[0]):
        client = topology.pod.inside(bound, socket.SOCK_DGRAM, address, own)
        client.sendto(b"x", (a.outside[0], port))
        ports.append(server.recvfrom(1)[1][1])
        client.close()
    server.close()
    assert ports[0] == own != ports[1]


@pytest.mark.parametrize("mapped", ["random", "keep"])
def test_an_iptables_without_random_fully_keeps_ports(
    topology: Topology, variant: Variant, programs: Programs, mapped: str
) -> None:
    programs.misbehave(
        lambda name: name != "nft",
        'case "$*" in *--version*|*-V*) "$real" "$@" | sed "s/v1[.][0-9.]*/v1.6.1/"; exit;; esac; exec "$real" "$@"',
    )
    apply(topology.node, backend=variant.backend, path=programs.path, **entry("ipv4", "rules", ports_mapping=mapped))
    assert mapping(topology, "ipv4") == ("random" if mapped == "random" and variant is NFTABLES else "keep")
