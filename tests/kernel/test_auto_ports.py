# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which source ports connections get: ``to_ports: auto`` finds them on the node, and follows its settings."""

from __future__ import annotations

import functools
import itertools
import socket
import typing as t
from pathlib import Path

from support.agent_node import AgentNode
from support.marks import halved, paired
from support.modules import apply, refused, run_module
from support.namespaces import Namespace
from support.packets import bound
from support.topology import ADDRESSES, Topology
from support.variants import Variant, pristine, snapshot

NODE_PORTS = range(30000, 32768)
#: With NODE_PORTS and RESERVED the largest rest of LOCAL is LARGEST; between the two lies a smaller one.
LOCAL, RESERVED, LARGEST = "30000 40000", "36000-36999", range(32768, 36000)
#: Connections in one attempt. If the kernel chooses, each is outside of LARGEST with a probability of 0.95.
COUNT = 120
#: Of servers; each attempt has its own, so that no connection is one of before.
SERVER_PORTS = itertools.count(10000)
IN_SYNC, FAILED = 0, 1


def set_ports(ns: Namespace, local: str = LOCAL, reserved: str = RESERVED) -> None:
    """Set the node's local ports."""
    folder = Path("/proc/sys/net/ipv4")
    ns.inside((folder / "ip_local_port_range").write_text, local + "\n")
    ns.inside((folder / "ip_local_reserved_ports").write_text, reserved + "\n")


def seen_ports(topology: Topology, family: str, protocol: str) -> t.Set[int]:
    """Return the source ports that a destination sees of connections of the pod, all open at once."""
    a, port = ADDRESSES[family], next(SERVER_PORTS)
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    ports: t.Set[int] = set()
    server = topology.outside.inside(bound, kind, a.outside[0], port)
    sockets = [server]
    if protocol == "tcp":
        server.listen(COUNT)
    for number in range(COUNT):
        # Half of the pod's own ports are NodePorts, so that keeping them would be seen.
        client = topology.pod.inside(bound, kind, a.pod, NODE_PORTS[number] if number % 2 else 2000 + number)
        client.connect((a.outside[0], port))
        if protocol == "tcp":
            connection, peer = server.accept()
            sockets.append(connection)
        else:
            client.send(b"x")
            _data, peer = server.recvfrom(1)
        assert peer[0] == a.node
        ports.add(peer[1])
        sockets.append(client)
    for sock in sockets:
        sock.close()
    assert len(ports) == COUNT, "two connections to one destination had the same port"
    return ports


def rule_ports(ns: Namespace, variant: Variant, family: str = "ipv4") -> t.Set[str]:
    """Return what the rules name as source ports."""
    words = [rule.split() for rule in variant.rules(ns, family) or []]
    return {one[one.index("--to-ports") + 1] for one in words if "--to-ports" in one}


@halved(("protocol", "random_fully"), ("tcp", True), ("udp", False))
def test_connections_get_ports_of_the_range_alone(
    topology: Topology, variant: Variant, family: str, protocol: str, random_fully: bool
) -> None:
    set_ports(topology.node)
    options = {"backend": variant.backend, "enable_ipv6": True, "random_fully": random_fully}
    apply(topology.node, **options)
    assert not seen_ports(topology, family, protocol) <= set(LARGEST), "the range makes no difference"
    assert apply(topology.node, to_ports=["auto"], **options)["changed"]
    assert seen_ports(topology, family, protocol) <= set(LARGEST)


def test_fixed_addresses_have_the_range_too(topology: Topology, variant: Variant, family: str) -> None:
    set_ports(topology.node)
    snat = [{"address": ADDRESSES[family].node}]
    apply(topology.node, backend=variant.backend, enable_ipv6=True, to_ports="auto", snat=snat)
    assert seen_ports(topology, family, "udp") <= set(LARGEST)


@paired
def test_rules_are_written_once_after_a_change_of_the_settings(ns: Namespace, variant: Variant, family: str) -> None:
    options: t.Dict[str, t.Any] = {"backend": variant.backend, "enable_ipv6": True}
    # What is adopted has other ports.
    apply(ns, to_ports=["1024-2048"], **options)
    options["to_ports"] = ["auto"]
    set_ports(ns)
    assert apply(ns, **options)["changed"] and rule_ports(ns, variant, family) == {"32768-35999"}
    assert not apply(ns, **options)["changed"]
    set_ports(ns, reserved="")
    for _again in range(2):
        planned = run_module(ns, check=True, diff=True, **options)
        assert planned["changed"] and rule_ports(ns, variant, family) == {"32768-35999"}
    assert "32768-40000" in planned["diff"]["after"] and "32768-35999" in planned["diff"]["before"]
    done = apply(ns, diff=True, **options)
    assert done["changed"] and done["diff"] == planned["diff"] and rule_ports(ns, variant, family) == {"32768-40000"}
    assert not apply(ns, **options)["changed"]
    assert apply(ns, node_port_range="30000-35000", **options)["changed"]
    assert rule_ports(ns, variant, family) == {"35001-40000"}
    apply(ns, state="absent", **options)
    assert variant.rules(ns, family) is None


def test_too_few_ports_are_refused_before_anything_is_touched(ns: Namespace, variant: Variant) -> None:
    set_ports(ns, "30000 33791", "32800")
    message = refused(ns, backend=variant.backend, to_ports="auto")
    assert message == (
        "to_ports: auto: the largest free range has 991 ports, and 1024 are needed: "
        "net.ipv4.ip_local_port_range is 30000-33791, net.ipv4.ip_local_reserved_ports is 32800, "
        "node_port_range is 30000-32767: widen "
        "net.ipv4.ip_local_port_range, or set port ranges in to_ports"
    )
    set_ports(ns, "30000 32767", "")
    assert "auto: the largest free range has 0 ports" in refused(ns, backend=variant.backend, to_ports="auto")
    assert pristine(snapshot(ns))
    set_ports(ns, "30000 33791", "")
    assert apply(ns, backend=variant.backend, to_ports="auto")["changed"], "1024 ports are enough"


def test_a_resync_follows_the_settings_and_starts_no_python_without_a_change(
    ns: Namespace, tmp_path: Path, variant: Variant
) -> None:
    set_ports(ns)
    node = AgentNode(ns, tmp_path)
    node.configure(backend=variant.backend, enableIPv6=True, toPorts="auto")
    assert node.resync() == ["resync"]
    node.settle()
    ports = functools.partial(rule_ports, ns, variant)
    for local, reserved, expected in (
        (LOCAL, "", "32768-40000"),
        ("33000 40000", "", "33000-40000"),
        ("33000 40000", "34000,40000", "34001-39999"),
    ):
        set_ports(ns, local, reserved)
        assert node.resync() == ["resync"]
        assert ports() == ports("ipv6") == {expected}
        assert node.resync() == [], "a resync without a change started the agent"
        status = node.status()
        assert status["in_sync"] and status["port_ranges"] == [expected] and status["config"]["to_ports"] == "auto"
    assert "source ports 34001-39999 (auto)" in node.command("status").stdout
    assert node.status()["drift_repaired"] == 3


def test_with_too_few_ports_the_rules_stay_and_the_kernel_chooses(
    ns: Namespace, tmp_path: Path, variant: Variant
) -> None:
    set_ports(ns)
    node = AgentNode(ns, tmp_path)
    node.synced(backend=variant.backend, toPorts=["auto"])
    set_ports(ns, "33000 33500", "")
    variant.unhook(ns, "ipv4")
    for _again in range(2):
        assert node.resync() == ["resync"] and node.resynced.returncode == FAILED
        assert variant.jumps(ns, "ipv4") and rule_ports(ns, variant) == set(), "the rules are not healed"
    assert "toPorts: auto: the largest free range has 501 ports" in node.status()["errors"][0]
    assert not node.status()["in_sync"]
    set_ports(ns)
    assert node.resync() == ["resync"] and node.resynced.returncode == IN_SYNC
    assert rule_ports(ns, variant) == {"32768-35999"}


def test_a_new_policy_is_refused_where_too_few_ports_are_left(ns: Namespace, tmp_path: Path) -> None:
    node = AgentNode(ns, tmp_path)
    assert node.sync().returncode == IN_SYNC
    set_ports(ns, "33000 33500", "")
    config = {"toPorts": ["auto"], "nodePortRange": "20000-22767"}
    before = node.files()
    done = node.module("ip_masq_agent", {"config": config})
    assert done["failed"] and "auto: the largest free range has 501 ports" in done["msg"]
    assert "nodePortRange is 20000-22767" in done["msg"] and node.files() == before
    node.configure(**config)
    failed = node.sync()
    assert "33000-33500" in failed.stderr and "the last valid configuration stays active" in failed.stderr
    assert node.status()["in_sync"] and node.status()["port_ranges"] == []
