# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The use of source ports: what is reported is what conntrack(8) lists, and what the kernel chooses from."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import random
import select
import socket
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import port_usage
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import conntrack
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import Family
from support import cni_results, tracked
from support.agent_node import AgentNode
from support.marks import paired
from support.modules import apply, info
from support.namespaces import Namespace, until
from support.prometheus import parse
from support.topology import ADDRESSES, Topology
from support.tracked import Tracked
from support.variants import Variant

_PORT = 9000
_OTHER = {"ipv4": "10.244.1.3", "ipv6": "fd00:10:244:1::3"}


def _listen(address: str) -> socket.socket:
    return socket.create_server((address, _PORT), family=_socket_family(address), backlog=1000)


def _socket_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class _Connections:
    """Connections from a namespace that stay open for as long as ``with`` lasts."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()

    def __enter__(self) -> _Connections:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open.close()

    def open(self, ns: Namespace, source: str, to: str, count: int) -> None:
        """Open some more."""
        self._open.enter_context(ns.inside(self._connect, source, to, count))

    @staticmethod
    def _connect(source: str, to: str, count: int) -> contextlib.ExitStack:
        opened = contextlib.ExitStack()
        for _number in range(count):
            sock = opened.enter_context(socket.socket(_socket_family(to), socket.SOCK_STREAM))
            sock.settimeout(30)
            sock.bind((source, 0))
            sock.connect((to, _PORT))
        return opened


def _report(ns: Namespace, **options: t.Any) -> t.Dict[str, t.Any]:
    return t.cast(t.Dict[str, t.Any], _found(ns, **options)["source_ports"])


def _found(ns: Namespace, **options: t.Any) -> t.Dict[str, t.Any]:
    found = info(ns, **options, ports=True)
    assert not found.get("failed"), found
    assert found["changed"] is False
    return found


@pytest.fixture
def node(topology: Topology) -> Namespace:
    """The node, with a place for results of libcni, and a second pod behind the same link."""
    topology.node.run("mount", "-t", "tmpfs", "none", "/var/lib")
    for address in _OTHER.values():
        topology.pod.run("ip", "address", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []))
    return topology.node


_RANGES = ["61000-61079", "61090-61109"]


@paired
def test_full_range_of_ports(topology: Topology, node: Namespace, variant: Variant, family: str) -> None:
    a = ADDRESSES[family]

    def have(ranges: t.List[str]) -> None:
        apply(node, backend=variant.backend, enable_ipv6=True, to_ports=ranges)

    node.inside(cni_results.write, Path("/var/lib/cni/results"), "default/web-0", a.pod)
    started = time.time()
    # Timeouts are whole seconds, so a pod has no name in its first one.
    until(lambda: time.time() > started + 1.1, "the clock")
    to = a.outside[0]
    with topology.outside.inside(_listen, to), _Connections() as connections:
        # Each range is filled by itself: with both, chance decides how many connections draw which.
        have(_RANGES[:1])
        connections.open(topology.pod, a.pod, to, 60)
        connections.open(topology.pod, _OTHER[family], to, 20)
        have(_RANGES[1:])
        connections.open(topology.pod, _OTHER[family], to, 10)
        have(_RANGES)
        report = _report(node)
        assert report["destinations"] == [
            {
                "protocol": "tcp",
                "address": a.node,
                "destination": to,
                "port": _PORT,
                "zone": 0,
                "ranges": [_range(_RANGES[0], 80, 80), _range(_RANGES[1], 10, 20)],
                "used": 90,
                "available": 100,
                "sources": [
                    {"address": a.pod, "connections": 60, "pod": "default/web-0"},
                    {"address": _OTHER[family], "connections": 30},
                ],
            }
        ]
        assert report["destinations_left_out"] == report["connections_not_counted"] == 0 and not report["errors"]
        # Those of another program's rules are counted apart, and from what our range leaves.
        have(_RANGES[1:])
        connections.open(node, a.node, to, 1)
        assert 61090 <= _seen_ports(node, family, a.node)[0] <= 61109
        have(_RANGES)
        tracked.insert(node, [Tracked(6, a.pod, 4000, a.node, 1024, to, _PORT)])
        ours, others = _report(node)["destinations"]
        assert (ours["used"], ours["available"]) == (91, 100)
        assert (others["used"], others["available"]) == (1, 64512 - 100)
        ranges = [("1024-60999", 1, 59976), ("61080-61089", 0, 10), ("61110-65535", 0, 4426)]
        assert others["ranges"] == [_range(*one) for one in ranges]


def _range(ports: str, used: int, available: int) -> t.Dict[str, t.Any]:
    return {"ports": ports, "used": used, "available": available}


def _seen_ports(ns: Namespace, family: str, source: str) -> t.List[int]:
    return [one.seen_port for one in tracked.listed(ns, family) if one.source == source]


def test_a_connection_does_not_get_a_port_of_another_range(
    topology: Topology, node: Namespace, variant: Variant, family: str
) -> None:
    """Each packet of a connection without a port draws a range; where that is full, the packet is dropped."""
    a = ADDRESSES[family]
    to = a.outside[0]
    apply(node, backend=variant.backend, enable_ipv6=True, to_ports=_RANGES)
    for name in ("udp_timeout", "udp_timeout_stream"):
        node.run("sysctl", "-qw", "net.netfilter.nf_conntrack_%s=3600" % name)
    tracked.insert(node, [Tracked(17, a.pod, 4000 + number, a.node, 61000 + number, to, 8080) for number in range(80)])
    with contextlib.ExitStack() as opened:
        # The other range has room for all of them; that all draw it at first has a probability of 0.2 ** 19.
        waiting = {opened.enter_context(topology.pod.inside(_connected, a.pod, to)) for _number in range(19)}

        def answered() -> bool:
            for sock in waiting:
                sock.send(b"?")
            waiting.difference_update(select.select(list(waiting), [], [], 0.01)[0])
            return not waiting

        until(answered, "a port for each connection")
    (use,) = _report(node)["destinations"]
    assert use["ranges"] == [_range(_RANGES[0], 80, 80), _range(_RANGES[1], 19, 20)]
    counted = _report(node)["conntrack"]
    assert counted["drops"] + counted["insert_failed"] > 0


def _connected(source: str, to: str) -> socket.socket:
    sock = socket.socket(_socket_family(to), socket.SOCK_DGRAM)
    sock.bind((source, 0))
    sock.connect((to, 8080))
    return sock


@pytest.mark.parametrize("backend", ["iptables_nft", "nftables"])
def test_no_port_is_left(topology: Topology, node: Namespace, backend: str) -> None:
    """What is shown as full is full: no other connection gets through, to another destination it does."""
    a = ADDRESSES["ipv4"]
    apply(node, backend=backend, to_ports=["61000-61019"])
    with contextlib.ExitStack() as listening, _Connections() as connections:
        for to in a.outside:
            listening.enter_context(topology.outside.inside(_listen, to))
        connections.open(topology.pod, a.pod, a.outside[0], 16)
        assert [one for one in _found(node)["health"] if one["code"] == "few_source_ports"] == []
        connections.open(topology.pod, a.pod, a.outside[0], 4)
        (finding,) = [one for one in _found(node)["health"] if one["code"] == "few_source_ports"]
        words = "source ports for tcp %s:%d from %s: 20 of 20 (100 %%)" % (a.outside[0], _PORT, a.node)
        assert (finding["severity"], finding["text"]) == ("warning", words)
        (full,) = _report(node)["destinations"]
        assert (full["used"], full["available"]) == (20, 20)
        sock = topology.pod.inside(socket.socket)
        with sock:
            sock.settimeout(1)
            with pytest.raises(OSError):
                sock.connect((a.outside[0], _PORT))
        connections.open(topology.pod, a.pod, a.outside[1], 1)
        full, other = _report(node)["destinations"]
        assert (full["used"], other["used"], other["destination"]) == (20, 1, a.outside[1])
        assert _report(node)["conntrack"]["drops"] + _report(node)["conntrack"]["insert_failed"] > 0


def test_addresses_of_snat_have_their_own_ports(topology: Topology, node: Namespace, family: str) -> None:
    a = ADDRESSES[family]
    fixed = {"ipv4": "198.51.100.7", "ipv6": "2001:db8:1::7"}[family]
    more = ["nodad", "preferred_lft", "0"] if family == "ipv6" else []
    node.run("ip", "address", "add", fixed, "dev", "eth0", *more)
    apply(
        node,
        enable_ipv6=True,
        snat=[{"address": fixed, "source_cidrs": ["%s/%d" % (_OTHER[family], 128 if ":" in fixed else 32)]}],
    )
    with topology.outside.inside(_listen, a.outside[0]), _Connections() as connections:
        connections.open(topology.pod, a.pod, a.outside[0], 2)
        connections.open(topology.pod, _OTHER[family], a.outside[0], 3)
        found = [(one["address"], one["used"], one["available"]) for one in _report(node)["destinations"]]
        assert found == [(fixed, 3, 64512), (a.node, 2, 64512)]


def test_connections_that_use_no_port_of_the_node(topology: Topology, node: Namespace) -> None:
    """Not counted: exempt connections, connections to the node, and those of other protocols."""
    a = ADDRESSES["ipv4"]
    apply(node)
    assert set(topology.ask(*a.exempt, protocol="tcp").values()) == {a.pod}
    with node.inside(_listen, a.node), _Connections() as connections:
        connections.open(topology.pod, a.pod, a.node, 1)
        tracked.insert(node, [Tracked(33, a.pod, 5000, a.node, 5001, a.outside[0], 53)])  # DCCP
        assert _report(node)["destinations"] == []


@pytest.mark.parametrize("accounting", [0, 1])
def test_connections_are_read_as_listed(ns: Namespace, family: str, accounting: int) -> None:
    """Random ones, with and without counters, in zones and in none, are what conntrack(8) lists."""
    dice = random.Random(accounting)
    for name in ("acct", "timestamp"):
        ns.inside(Path("/proc/sys/net/netfilter/nf_conntrack_" + name).write_text, str(accounting))
    network = ipaddress.ip_network({"ipv4": "198.18.0.0/15", "ipv6": "2001:db8::/32"}[family])

    def address() -> str:
        return str(network[dice.randrange(1, 1000)])

    wanted = {
        Tracked(
            dice.choice((6, 17)),
            address(),
            dice.randrange(1, 65536),
            address(),
            dice.randrange(1, 65536),
            address(),
            dice.randrange(1, 65536),
            dice.choice((0, 0, 5)),
        )
        for _number in range(500)
    }
    tracked.insert(ns, wanted)
    assert set(tracked.listed(ns, family)) == wanted
    found = ns.inside(lambda: list(conntrack.read_ports(Family(family))))
    assert len(found) == len(wanted) and set(map(_as_tracked, found)) == wanted
    assert {one.idle is not None and one.idle >= 0 for one in found if one.protocol == b"\x06"} == {True}


def _as_tracked(one: conntrack.PortUse) -> Tracked:
    ends = ((one.source, one.source_port), (one.seen, one.seen_port), (one.remote, one.remote_port))
    parts = [(str(ipaddress.ip_address(end)), int.from_bytes(port, "big")) for end, port in ends]
    return Tracked(one.protocol[0], *parts[0], *parts[1], *parts[2], int.from_bytes(one.zone, "big"))


def test_ports_are_used_once_in_each_zone(node: Namespace) -> None:
    a = ADDRESSES["ipv4"]
    apply(node)
    one = Tracked(17, a.pod, 4000, a.node, 5000, a.outside[0], 53)
    tracked.insert(node, [one, one._replace(zone=7), one._replace(source_port=4001, seen_port=5001)])
    found = [(use["zone"], use["used"]) for use in _report(node)["destinations"]]
    assert found == [(0, 2), (7, 1)]


def test_kinds_of_ports(node: Namespace) -> None:
    """Without a range the kernel keeps the kind of the opener's port, so each kind can be used up by itself."""
    a = ADDRESSES["ipv4"]
    apply(node)
    ports = [100, 550, 700, 701, 1024, 65534]
    tracked.insert(node, [Tracked(6, a.pod, 65535 - port, a.node, port, a.outside[0], 2049) for port in ports])
    # One of the node itself takes a port of it, one of an exempt pod does not.
    tracked.insert(node, [Tracked(6, one, 3000, one, 3000, a.outside[0], 2049) for one in (a.node, a.pod)])
    found = [(use["ranges"], use["used"], use["available"]) for use in _report(node)["destinations"]]
    kinds = (("600-1023", 2, 424), ("1-511", 1, 511), ("1024-65535", 3, 64512))
    assert found == [([_range(*one)], *one[1:]) for one in kinds]


def test_kernel_keeps_the_kind_of_a_port(topology: Topology, node: Namespace) -> None:
    """The numbers above are the kernel's: with many connections it takes the first and last port of each kind only."""
    a = ADDRESSES["ipv4"]
    apply(node)
    kinds = {100: (1, 511), 700: (600, 1023), 5000: (1024, 65535)}
    for port in kinds:
        topology.pod.inside(_send_from, a.pod, port, a.outside[0])
    for one in tracked.listed(node, "ipv4"):
        first, last = kinds[one.source_port]
        assert first <= one.seen_port <= last, one
    assert {one.source_port for one in tracked.listed(node, "ipv4")} == set(kinds)


def _send_from(source: str, port: int, to: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((source, port))
        for remote_port in range(10000, 10200):
            sock.sendto(b"x", (to, remote_port))


@pytest.fixture
def agent(topology: Topology, tmp_path: Path) -> AgentNode:
    """The agent on the node, with metrics."""
    for address in _OTHER.values():
        topology.pod.run("ip", "address", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []))
    return AgentNode(topology.node, tmp_path, metrics=True)


def _rows(agent: AgentNode) -> t.List[str]:
    """Return the rows of the status about what is nearly used up, or not known."""
    return [row for row in agent.command("status").stdout.splitlines() if row.startswith(("ports ", "scarce "))]


def _share(agent: AgentNode) -> t.Optional[float]:
    """Return the share in the metrics after one more sync; None if it is not there."""
    done = agent.sync()
    assert done.returncode == 0 and not done.stderr, done
    text = (agent.metrics_dir / "ip_masq_agent.prom").read_text()
    return parse(text).values.get(("ip_masq_agent_source_ports_highest_share", ()))


def test_status_metrics_and_command(topology: Topology, agent: AgentNode, family: str) -> None:
    a = ADDRESSES[family]
    pods = ["10.244.0.0/16", "fd00:10:244::/48"]
    policy = {"toPorts": ["61000-61099"], "enableIPv6": True, "nonMasqueradeCIDRs": pods}
    agent.configure(**policy)
    assert _share(agent) is None, "not asked for"
    agent.configure(**policy, portMetrics=3)
    assert _share(agent) == 0.0
    to = a.outside[0]
    with topology.outside.inside(_listen, to), _Connections() as connections:
        connections.open(topology.pod, a.pod, to, 60)
        assert agent.status()["source_ports"] == {"fullest": None, "problem": None}, "too few to be looked at"
        connections.open(topology.pod, a.pod, to, 20)
        assert _rows(agent) == []
        connections.open(topology.pod, _OTHER[family], to, 10)
        shown = ("[%s]:%d" if family == "ipv6" else "%s:%d") % (to, _PORT)
        words = "source ports for tcp %s from %s: 90 of 100 (90 %%); exempt " % (shown, a.node)
        (row,) = _rows(agent)
        assert row.split(None, 1)[1].startswith(words)
        assert agent.status()["source_ports"]["problem"] is None
        assert agent.status()["in_sync"] is True
        done = agent.command("ports")
        assert done.returncode == 0 and not done.stderr, done
        (row,) = [line for line in done.stdout.splitlines() if shown in line]
        assert row.split()[:4] == ["90", "100", "90", a.node]
        assert row.endswith("  %s 80, %s 10" % (a.pod, _OTHER[family]))
        assert json.loads(agent.command("ports", "--json").stdout)["destinations"][0]["used"] == 90
        assert [_share(agent) for _number in range(4)] == [0.0, 0.0, 0.9, 0.9]
        agent.at(agent.paths.port_share).write_text("damaged")
        assert _share(agent) == 0.9


def test_status_looks_at_connections_only_if_they_can_use_up_ports(topology: Topology, agent: AgentNode) -> None:
    a = ADDRESSES["ipv4"]
    agent.synced()
    few, many = (port_usage.SCARCE * 64512 + more for more in (-100, 100))

    def insert(first: int, last: int) -> None:
        used = (Tracked(17, a.pod, 1024 + port, a.node, 1024 + port, a.outside[0], 53) for port in range(first, last))
        tracked.insert(topology.node, used)

    insert(0, int(few))
    assert agent.status()["source_ports"] == {"fullest": None, "problem": None}
    insert(int(few), int(many))
    report = agent.status()["source_ports"]
    assert (report["fullest"]["used"], report["fullest"]["available"], report["problem"]) == (int(many), 64512, None)
    assert [row.split()[0] for row in _rows(agent)] == ["scarce"]
    # The limit is the machine's; what is counted is the node's own.
    counted = json.loads(agent.command("ports", "--json").stdout)["conntrack"]
    assert int(many) <= counted["entries"] < int(many) + 100
    assert counted["limit"] == int(topology.node.read("/proc/sys/net/netfilter/nf_conntrack_max"))
