# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is behind a connection: what the kernel says is what conntrack(8) prints."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time
import typing as t
from pathlib import Path

import pytest
from support import cni_results, modules
from support.modules import apply
from support.namespaces import until
from support.topology import ADDRESSES, Topology

_PROGRAM = (
    "import sys; sys.path.insert(0, %r)\n"
    "from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.who import request, who\n"
    "from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths\n"
    "from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError\n"
    "try:\n"
    "    print('; '.join(who(Paths(), request(sys.argv[1], sys.argv[2] or None, sys.argv[3]))))\n"
    "except NodeError as exc:\n"
    "    print(exc)\n"
)


def _who(topology: Topology, seen: str, remote: str = "", protocol: str = "udp") -> str:
    program = _PROGRAM % str(modules.collections())
    return topology.node.run(sys.executable, "-c", program, seen, remote, protocol).strip()


def _written(address: str, port: str) -> str:
    return ("[%s]:%s" if ":" in address else "%s:%s") % (address, port)


@pytest.mark.parametrize("family", ("ipv4", "ipv6"))
@pytest.mark.parametrize(
    ("zone", "shown"),
    [("zone", "zone 5"), ("original zone", "zone of the opener's packets 5"), ("reply zone", "zone of the answers 5")],
)
def test_connection_in_a_zone(topology: Topology, family: str, zone: str, shown: str) -> None:
    a = ADDRESSES[family]
    node = topology.node
    device = node.run("ip", "-o", "route", "get", a.pod).split(" dev ")[1].split()[0]
    # Packets are looked for in the zone of their own direction.
    rules = {
        "zone": "ct zone set 5",
        "original zone": "iifname %s ct original zone set 5",
        "reply zone": "iifname %s ct reply zone set 5; iifname != %s ct zone set 5",
    }
    rule = rules[zone].replace("%s", device)
    node.run("nft", "table inet zones { chain pre { type filter hook prerouting priority -300; %s; }; }" % rule)
    apply(node, enable_ipv6=True)
    assert topology.ask(a.outside[0], protocol="udp") == {a.outside[0]: a.node}
    listed = node.run("conntrack", "-L", "-f", family, "-p", "udp", "--orig-src", a.pod)
    assert re.search(r" zone(-orig|-reply)?=5 ", listed), listed
    ports: t.List[str] = re.findall(r"[sd]port=([0-9]+)", listed)
    seen, remote = _written(a.node, ports[3]), _written(a.outside[0], ports[1])
    answer = "udp %s -> %s, seen as %s, conntrack %s" % (_written(a.pod, ports[0]), remote, seen, shown)
    assert _who(topology, seen, remote) == answer
    assert _who(topology, seen) == answer


def _wait_past(moment: float) -> None:
    until(lambda: time.time() > moment, "the clock")


@pytest.mark.parametrize("family", ("ipv4", "ipv6"))
@pytest.mark.parametrize("protocol", ("udp", "tcp"))
def test_name_of_the_pod(topology: Topology, family: str, protocol: str) -> None:
    """The pod is named if it had its address before the last packet, and not if it has come later."""
    a = ADDRESSES[family]
    topology.node.run("mount", "-t", "tmpfs", "none", "/var/lib")
    apply(topology.node, enable_ipv6=True)
    results = Path("/var/lib/cni/results")
    topology.node.inside(cni_results.write, results, "default/web-0", a.pod)
    # Timeouts are whole seconds, so a pod has no name in its first one.
    _wait_past(time.time() + 1.1)
    assert topology.ask(a.outside[0], protocol=protocol) == {a.outside[0]: a.node}
    # of the answer: its destination is what the other side sees
    listed = topology.node.run("conntrack", "-L", "-f", family, "-p", protocol, "--orig-src", a.pod)
    port = re.findall(r"dport=([0-9]+)", listed)[1]
    seen = _written(a.node, port)
    assert re.match(protocol + r" \S+ \(default/web-0\) -> ", _who(topology, seen, protocol=protocol))
    topology.node.inside(cni_results.write, results, "default/other", a.pod)
    assert "(" not in _who(topology, seen, protocol=protocol), "two pods claim the address"
    topology.node.inside(cni_results.write, results, "default/web-0", a.pod, netns=cni_results.GONE)
    assert "(" not in _who(topology, seen, protocol=protocol), "the other pod has the address since"


@pytest.mark.parametrize("state", ("unreplied", "unacknowledged"))
def test_name_of_a_pod_that_waits_for_an_answer(topology: Topology, state: str) -> None:
    """States whose timeout is shorter than others do not let a pod look idle for longer than it has existed."""
    a = ADDRESSES["ipv4"]
    topology.node.run("mount", "-t", "tmpfs", "none", "/var/lib")
    apply(topology.node)
    topology.node.inside(cni_results.write, Path("/var/lib/cni/results"), "default/web-0", a.pod)
    _wait_past(time.time() + 1.1)
    with topology.pod.inside(socket.socket, socket.AF_INET, socket.SOCK_STREAM) as sock:
        if state == "unacknowledged":
            sock.connect((a.outside[0], 8080))
            sock.recv(100)
        topology.outside.run("ip", "link", "set", "eth0", "down")
        if state == "unacknowledged":
            with contextlib.suppress(OSError):
                sock.send(b"x" * 100)
        else:
            sock.setblocking(False)
            sock.connect_ex((a.outside[0], 8080))
        listed = topology.node.run("conntrack", "-L", "-p", "tcp", "--orig-src", a.pod)
        port = re.findall(r"dport=([0-9]+)", listed)[1]
        assert "(default/web-0)" in _who(topology, _written(a.node, port), protocol="tcp"), listed
