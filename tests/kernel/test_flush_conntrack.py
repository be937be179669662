# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option flush_conntrack: what packets of connections see that were open before a change of the rules."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import socket
import struct
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink
from support import tracked
from support.agent_node import AgentNode
from support.marks import paired
from support.modules import Result, apply, run_module
from support.namespaces import Namespace
from support.packets import PATIENCE
from support.prometheus import parse
from support.topology import ADDRESSES, Topology
from support.tracked import Tracked
from support.variants import EXEMPT_RANGES, NFT_FAMILIES, PODS, Variant

#: IPCTNL_MSG_CT_GET
CT_GET = 1 << 8 | 1
_PORTS = itertools.count(20000)
#: of IPv4 and of IPv6: ETH_P_IP, ETH_P_IPV6; where a header has the source, and how long that is
_FRAMES = {"ipv4": (0x0800, 12, 4), "ipv6": (0x86DD, 8, 16)}


class World:
    """A node between a pod and the world outside, and connections that stay open."""

    def __init__(self, topology: Topology, family: str, backend: str) -> None:
        self.topology, self.node, self.family = topology, topology.node, family
        self.a = ADDRESSES[family]
        self._options: t.Dict[str, t.Any] = {
            "backend": backend,
            "enable_ipv6": True,
            "non_masquerade_cidrs": EXEMPT_RANGES,
            "source_cidrs": PODS,
        }
        # The kernel may give a new connection the number of one that is gone, not its time.
        self.node.inside(Path("/proc/sys/net/netfilter/nf_conntrack_timestamp").write_text, "1")
        self._owned = contextlib.ExitStack()
        kind, _place, _size = _FRAMES[family]
        self._frames = self._own(
            topology.outside.inside(socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(kind))
        )

    def _own(self, sock: socket.socket) -> socket.socket:
        sock.settimeout(PATIENCE)
        return self._owned.enter_context(sock)

    def close(self) -> None:
        """Close the connections."""
        self._owned.close()

    def apply(self, **options: t.Any) -> Result:
        """Have a policy; in check mode first, which changes nothing and foretells everything."""
        wanted = {**self._options, **options}
        before = self.ids()
        planned = run_module(self.node, check=True, diff=True, **wanted)
        assert self.ids() == before, "check mode removed connections"
        done = apply(self.node, diff=True, **wanted)
        for name in ("changed", "flushed", "actions", "diff", "effects", "effects_summary"):
            assert done[name] == planned[name], name
        for one, removed in done["flushed"].items():
            counts = [effect["open_connections"] for effect in done["effects"] if effect["family"] == one]
            assert sum(counts) == removed, "as many are counted as are removed"
        return done

    def flush(self, **options: t.Any) -> int:
        """Have a policy, and return how many connections of the family were removed."""
        done = self.apply(flush_conntrack="changed", **options)
        assert done["changed"]
        return t.cast(int, done["flushed"][self.family])

    def open(self, destination: str, kind: int = socket.SOCK_DGRAM, client: t.Optional[Namespace] = None) -> t.Any:
        """A connection of the pod, or of another namespace."""
        return self._own((client or self.topology.pod).inside(_connected, self._family, kind, destination))

    @property
    def _family(self) -> int:
        return socket.AF_INET if self.family == "ipv4" else socket.AF_INET6

    def listen(self, address: str) -> t.Tuple[str, int]:
        """A server outside that keeps connections open."""
        port = next(_PORTS)
        sock = self._own(self.topology.outside.inside(_listening, self._family, address, port))
        assert sock.getsockname()[1] == port
        return address, port

    def seen(self, sock: socket.socket) -> str:
        """The source address with which the next packet of a connection comes out of the node."""
        mark = b"packet %d" % next(_PORTS)
        sock.send(mark)
        _kind, place, size = _FRAMES[self.family]
        while True:
            frame = self._frames.recv(65535)
            if frame.endswith(mark):
                return str(ipaddress.ip_address(frame[place : place + size]))

    def ids(self) -> t.Dict[t.Tuple[str, str, int, int], bytes]:
        """The connections that the node tracks, of TCP and UDP: what the opener knows of each, and since when."""
        return self.node.inside(lambda: dict(_tracked(self.family)))

    def id(self, sock: socket.socket) -> t.Optional[bytes]:
        """The time, to the nanosecond, of one connection; None if it is no longer tracked."""
        (source, port), (to, to_port) = sock.getsockname()[:2], sock.getpeername()[:2]
        return self.ids().get((source, to, port, to_port))


def _tracked(family: str) -> t.Iterator[t.Tuple[t.Tuple[str, str, int, int], bytes]]:
    first = 1 if family == "ipv4" else 3
    with netlink.Netlink(netlink.NETFILTER) as kernel:
        for message in kernel.dump(CT_GET, struct.pack("!BBH", 2 if first == 1 else 10, 0, 0), "connections"):
            known = netlink.attributes(message.body[4:])
            addresses, ports = (netlink.attributes(netlink.attributes(known[1])[part]) for part in (1, 2))
            if 2 in ports:
                source, destination = (str(ipaddress.ip_address(addresses[first + n])) for n in (0, 1))
                port, other = (struct.unpack("!H", ports[n])[0] for n in (2, 3))
                yield (source, destination, port, other), netlink.attributes(known[20])[1]


def _connected(family: int, kind: int, destination: t.Union[str, t.Tuple[str, int]]) -> socket.socket:
    sock = socket.socket(family, kind)
    sock.settimeout(PATIENCE)
    sock.connect((destination, 8080) if isinstance(destination, str) else destination)
    return sock


def _listening(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.bind((address, port))
    sock.listen(16)
    return sock


@pytest.fixture
def world(topology: Topology, family: str, variant: Variant) -> t.Iterator[World]:
    """A world without rules yet."""
    made = World(topology, family, variant.backend)
    yield made
    made.close()


def host(address: str) -> str:
    """The range of one address."""
    return "%s/%d" % (address, ipaddress.ip_address(address).max_prefixlen)


@paired
def test_udp_gets_the_new_address_and_nothing_else_is_touched(world: World) -> None:
    exempt, other, outside = world.a.exempt[0], world.a.exempt[1], world.a.outside[0]
    world.apply()
    one, two, three = (world.open(address) for address in (exempt, other, outside))
    of_node, inbound = world.open(exempt, client=world.node), world.open(world.a.node, client=world.topology.outside)
    assert [world.seen(sock) for sock in (one, two, three)] == [world.a.pod, world.a.pod, world.a.node]
    assert world.seen(of_node) == world.a.node
    inbound.send(b"?")
    stays = {sock: world.id(sock) for sock in (two, three, of_node, inbound)}
    assert None not in stays.values()
    changed = {"masquerade_cidrs": [host(exempt)]}
    # Without the option the connection keeps its address, and is counted.
    done = world.apply(**changed)
    assert done["changed"] and done["flushed"] == {}
    (effect,) = done["effects"]
    assert (effect["before"], effect["after"], effect["open_connections"]) == ("pod", "node", 1)
    assert effect["destinations"] == [host(exempt)] and effect["family"] == world.family
    assert world.seen(one) == world.a.pod
    world.apply()
    # With it, not.
    number = world.id(one)
    assert world.flush(**changed) == 1
    assert world.id(one) is None
    assert world.seen(one) == world.a.node
    assert world.id(one) not in (None, number)
    # And back.
    assert world.flush() == 1
    assert world.seen(one) == world.a.pod
    assert {sock: world.id(sock) for sock in stays} == stays, "a connection was removed whose verdict is the same"
    # A run that changes nothing removes nothing.
    done = world.apply(flush_conntrack="changed")
    assert not done["changed"] and done["flushed"] == {}


def track(node: Namespace) -> None:
    """Have connections tracked also while there are no rules of ours."""
    node.run("nft", "add table inet tracking { chain c { type filter hook forward priority 0; ct state new; }; }")


@paired
def test_first_rules_and_no_rules(world: World) -> None:
    """Where there were no rules of ours, we masqueraded nothing; where there are none any more, we do not."""
    exempt, outside = world.a.exempt[0], world.a.outside[0]
    track(world.node)
    one, two = world.open(outside), world.open(exempt)
    assert [world.seen(one), world.seen(two)] == [world.a.pod] * 2
    stays = world.id(two)
    assert stays is not None
    assert world.flush() == 1
    assert [world.seen(one), world.seen(two)] == [world.a.node, world.a.pod]
    assert world.flush(state="absent") == 1
    assert world.seen(one) == world.a.pod
    assert world.id(two) == stays


@paired
def test_services_are_judged_by_where_they_lead(world: World) -> None:
    """By the destination after DNAT, which is what the rules see."""
    exempt, service = world.a.exempt[0], "10.96.0.1" if world.family == "ipv4" else "fd00:96::1"
    nft = "table %s services { chain pre { type nat hook prerouting priority -100; %s daddr %s dnat to %s; }; }"
    world.node.run("nft", nft % (NFT_FAMILIES[world.family], NFT_FAMILIES[world.family], service, exempt))
    world.apply()
    one = world.open(service)
    assert world.seen(one) == world.a.pod
    stays = world.id(one)
    assert world.flush(masquerade_cidrs=[host(service)]) == 0
    assert world.id(one) == stays
    assert world.flush(masquerade_cidrs=[host(exempt)]) == 1
    assert world.seen(one) == world.a.node


def test_services_are_left_alone_where_marks_decide_about_them(topology: Topology, family: str) -> None:
    """With these exemptions, packets that kube-proxy marked are left to it, and a connection does not have the mark."""
    for backend, exemption in (("iptables_nft", "accept"), ("iptables_legacy", "accept"), ("nftables", "enforce")):
        world = World(topology, family, backend)
        exempt, service = world.a.exempt[0], "10.96.0.1" if family == "ipv4" else "fd00:96::1"
        nft = "table %s services { chain pre { type nat hook prerouting priority -100; %s daddr %s dnat to %s; }; }"
        world.node.run("nft", nft % (NFT_FAMILIES[family], NFT_FAMILIES[family], service, exempt))
        world.apply(exemption=exemption)
        through, directly = world.open(service), world.open(exempt)
        assert [world.seen(through), world.seen(directly)] == [world.a.pod] * 2
        stays = world.id(through)
        assert world.flush(exemption=exemption, masquerade_cidrs=[host(exempt)]) == 1
        assert world.id(through) == stays and world.seen(directly) == world.a.node
        world.close()
        world.node.run("nft", "delete table %s services" % NFT_FAMILIES[family])
        world.node.run("conntrack", "-F")
        apply(world.node, state="absent")


@paired
def test_zones_and_interfaces(world: World) -> None:
    """A connection in a zone is another one than that of the same addresses outside of it; interfaces are looked up."""
    exempt, other = world.a.exempt[0], world.a.exempt[1]
    zone = "table inet zones { chain pre { type filter hook prerouting priority -300; ct zone set 5; }; }"
    world.node.run("nft", zone)
    world.apply(out_interfaces=["eth9"], non_masquerade_cidrs=[host(other)])
    one, two = world.open(exempt), world.open(other)
    assert [world.seen(one), world.seen(two)] == [world.a.pod] * 2
    stays = world.id(two)
    assert " zone=5 " in world.node.run("conntrack", "-L", "-f", world.family, "-w", "5")
    assert world.flush(out_interfaces=["eth8"], non_masquerade_cidrs=[host(other)]) == 0
    assert world.flush(out_interfaces=["eth0"], non_masquerade_cidrs=[host(other)]) == 1
    assert [world.seen(one), world.seen(two)] == [world.a.node, world.a.pod]
    assert world.id(two) == stays


@paired
def test_change_of_the_backend_is_no_change_of_the_verdict(world: World) -> None:
    world.apply()
    one = world.open(world.a.outside[0])
    assert world.seen(one) == world.a.node
    stays = world.id(one)
    for backend in ("nftables", "iptables_legacy", "iptables_nft", "nftables"):
        done = world.apply(flush_conntrack="changed", backend=backend)
        assert done["flushed"].get(world.family, 0) == 0
    assert world.id(one) == stays
    # What the rules of the former backend decided counts.
    assert world.flush(backend="iptables_nft", non_masquerade_cidrs=[host(world.a.outside[0])]) == 1
    assert world.seen(one) == world.a.pod


def test_exemption_alone(world: World, variant: Variant) -> None:
    """The chain of nftables has no other rules, so that accept is the same as return there."""
    exempt = world.a.exempt[0]
    world.apply(non_masquerade_cidrs=[host(exempt)])
    nft = "table %s other { chain post { type nat hook postrouting priority 50; %s daddr %s masquerade; }; }"
    world.node.run("nft", nft % (NFT_FAMILIES[world.family], NFT_FAMILIES[world.family], exempt))
    one = world.open(exempt)
    assert world.seen(one) == world.a.node
    done = world.apply(non_masquerade_cidrs=[host(exempt)], exemption="accept", flush_conntrack="changed")
    told = [(effect["before"], effect["after"]) for effect in done["effects"]]
    if variant.backend == "nftables":
        assert (told, done["flushed"][world.family]) == ([], 0)
        assert done["effects_summary"] == ["rules rewritten, no packet is treated otherwise"]
    else:
        assert set(told) == {("pod (exemption return)", "pod (exemption accept)")}
        assert done["flushed"][world.family] == 1


@paired
def test_any_number_of_connections(world: World) -> None:
    """They are removed while the others are read, and none is missed for that."""
    exempt, other = world.a.exempt[0], world.a.exempt[1]
    world.apply()
    for destination, count in ((exempt, 12500), (other, 500)):
        ports = range(1024, 1024 + count)
        # Nobody opened them.
        tracked.insert(world.node, (Tracked(17, world.a.pod, n, world.a.pod, n, destination, 53) for n in ports))
    done = world.apply(flush_conntrack="changed", masquerade_cidrs=[host(exempt)])
    assert done["flushed"][world.family] == 12500
    assert not [warning for warning in done.get("warnings", []) if "flush_conntrack" in warning]
    destinations = [destination for _source, destination, _port, _other in world.ids()]
    assert (destinations.count(exempt), destinations.count(other)) == (0, 500)
    # What a note names where there is too little time.
    world.node.run("conntrack", "-D", "-f", world.family, "-s", world.a.pod)
    assert other not in [destination for _source, destination, _port, _other in world.ids()]


@paired
def test_the_agent_repairs_what_was_opened_meanwhile(
    topology: Topology, family: str, variant: Variant, tmp_path: Path
) -> None:
    node, world = AgentNode(topology.node, tmp_path, metrics=True), World(topology, family, variant.backend)
    track(topology.node)
    node.synced(backend=variant.backend, enableIPv6=True, flushConntrack="changed")
    early = world.open(world.a.outside[0])
    assert world.seen(early) == world.a.node
    stays = world.id(early)
    variant.unhook(node.ns, family)
    late = world.open(world.a.outside[1])
    assert world.seen(late) == world.a.pod
    done = node.sync()
    assert done.returncode == 0
    assert "%s: open connections removed, because their verdict changed: 1" % family in done.stdout + done.stderr
    assert world.seen(late) == world.a.node
    assert world.id(early) == stays
    status = node.status()
    assert status["connections_flushed"] == 1 and status["config"]["flush_conntrack"] == "changed"
    assert any("open connections removed" in line for line in status["last_change"]["lines"])
    assert "flush        changed" in node.command("status").stdout
    metrics = parse((node.metrics_dir / "ip_masq_agent.prom").read_text()).values
    assert metrics["ip_masq_agent_connections_flushed_total", ()] == 1
    assert json.loads(node.state_file.read_text())["flushed"] == 1
    world.close()


def test_the_module_that_installs_the_agent_counts_them_too(topology: Topology, tmp_path: Path) -> None:
    node, world = AgentNode(topology.node, tmp_path, installed=False), World(topology, "ipv4", "iptables_nft")
    module, config = "ip_masq_agent", {"backend": "iptables_nft", "flushConntrack": "changed"}
    assert node.module(module, {"config": config})["changed"]
    one = world.open(world.a.exempt[0])
    assert world.seen(one) == world.a.pod
    config["masqueradeCIDRs"] = [host(world.a.exempt[0])]
    planned = node.module(module, {"config": config}, check=True)
    assert planned["rules"]["flushed"] == {"ipv4": 1} and world.seen(one) == world.a.pod
    done = node.module(module, {"config": config}, diff=True)
    assert done["rules"]["flushed"] == {"ipv4": 1} and world.seen(one) == world.a.node
    diff = next(one for one in done["diff"] if one.get("before_header") == "rules")
    assert diff["before"].endswith("# ipv4, open connections whose verdict changes\n1\n")
    assert diff["after"].endswith(
        "# ipv4, open connections whose verdict changes\n0\n"
        "# what changes for packets\n%s: pod -> node, 1 open connection\n" % host(world.a.exempt[0])
    )
    assert planned["rules"]["effects"] == done["rules"]["effects"] != []
    world.close()
