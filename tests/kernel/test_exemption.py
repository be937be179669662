# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the option C(exemption) keeps its promise against other masqueraders, and what it must leave alone."""

from __future__ import annotations

import contextlib
import sys
import typing as t
from pathlib import Path

import pytest
from support import topology as topologies
from support.modules import apply, refused
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import NFT_FAMILIES, VARIANTS

NFT, LEGACY = VARIANTS["iptables_nft"], VARIANTS["iptables_legacy"]
EXEMPT = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]
PACKETS = str(Path(topologies.__file__).with_name("packets.py"))
PORT = 8080

#: Who else masquerades whatever leaves the node: before ours is there, after it.
Masquerader = t.Callable[[Namespace, str], None]


def _iptables(where: str) -> Masquerader:
    return lambda node, family: NFT.load(node, family, where + " -j MASQUERADE")


def _legacy(node: Namespace, family: str) -> None:
    LEGACY.load(node, family, "-A POSTROUTING -j MASQUERADE")


def _nft_chain(priority: int) -> Masquerader:
    table = "table %s other { chain c { type nat hook postrouting priority %d; masquerade; }; }\n"
    return lambda node, family: node.run("nft", "-f", "-", stdin=table % (NFT_FAMILIES[family], priority)) and None


OTHERS: t.Dict[str, t.Optional[Masquerader]] = {
    "nobody": None,
    "later in POSTROUTING": _iptables("-A POSTROUTING"),
    "earlier in POSTROUTING": _iptables("-I POSTROUTING 1"),
    "iptables-legacy": _legacy,
    "nft chain, priority 90": _nft_chain(90),
    "nft chain, priority 100": _nft_chain(100),
    "nft chain, priority 110": _nft_chain(110),
}
OURS = (
    ("iptables_nft", "return"),
    ("iptables_nft", "accept"),
    ("nftables", "return"),
    ("nftables", "accept"),
    ("nftables", "enforce"),
)
#: Whose masquerading an exempt destination is spared.
SPARED: t.Dict[t.Tuple[str, str], t.Set[str]] = {
    ("iptables_nft", "return"): {"nobody"},
    ("iptables_nft", "accept"): {"nobody", "later in POSTROUTING"},
    ("nftables", "return"): {"nobody"},
    ("nftables", "accept"): {"nobody"},
    ("nftables", "enforce"): set(OTHERS),
}


def test_packet_matrix(topology: Topology, family: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is printed; every cell is one new connection from a pod to an exempt destination."""
    a = ADDRESSES[family]
    names = {a.pod: "preserved", a.node: "masqueraded"}
    rows = []
    for masquerader, start in OTHERS.items():
        cells = []
        for backend, exemption in OURS:
            _clear(topology.node)
            apply(topology.node, backend=backend, exemption=exemption, enable_ipv6=True, non_masquerade_cidrs=EXEMPT)
            if start is not None:
                start(topology.node, family)
            seen = topology.ask(a.exempt[0], a.outside[0])
            cells.append(names.get(seen[a.exempt[0]], seen[a.exempt[0]]))
            assert seen[a.outside[0]] == a.node, (masquerader, backend, exemption)
        rows.append((masquerader, cells))
    with capsys.disabled():
        print("\n\n%s: what an exempt destination sees" % family)
        print(
            "%-25s" % "who else masquerades"
            + "".join("%-20s" % ("%s %s" % ours).replace("iptables_", "") for ours in OURS)
        )
        for masquerader, cells in rows:
            print("%-25s" % masquerader + "".join("%-20s" % cell for cell in cells))
    found = {(name, ours): cell for name, cells in rows for ours, cell in zip(OURS, cells)}
    expected = {
        (name, ours): "preserved" if name in SPARED[ours] else "masqueraded" for name in OTHERS for ours in OURS
    }
    assert found == expected


def _clear(node: Namespace) -> None:
    node.run("nft", "flush", "ruleset")
    for family in ("ipv4", "ipv6"):
        if LEGACY.present(node, family):
            node.run(LEGACY.tool(family), "-w", "-t", "nat", "-F")


def test_enforce_is_refused_where_nft_is_missing(ns: Namespace) -> None:
    hide = 'mount --bind /dev/null "$(command -v nft)"; exec "$@"'
    for backend in ("auto", "nftables"):
        message = refused(
            ns, backend=backend, exemption="enforce", wrapper=["unshare", "--mount", "sh", "-c", hide, "sh"]
        )
        assert "install the package nftables" in message


@pytest.mark.parametrize("backend", sorted(VARIANTS))
def test_enforce_is_refused_with_iptables(ns: Namespace, backend: str) -> None:
    message = refused(ns, backend=backend, exemption="enforce")
    assert "nftables" in message
    assert backend in message


def test_accept_with_nftables_is_said_to_do_nothing_more(ns: Namespace) -> None:
    result = apply(ns, backend="nftables", exemption="accept")
    assert [warning for warning in result["warnings"] if "enforce" in warning]


@pytest.fixture(params=["return", "enforce"])
def enforced(request: pytest.FixtureRequest, topology: Topology) -> t.Iterator[Topology]:
    """A node whose Services, host ports and own traffic are to work as they do without C(enforce)."""
    done = apply(
        topology.node,
        backend="auto" if request.param == "enforce" else "nftables",
        exemption=request.param,
        enable_ipv6=True,
        non_masquerade_cidrs=EXEMPT,
    )
    assert done["backend"]["name"] == "nftables"
    with contextlib.ExitStack() as owned:
        for ns, served in ((topology.pod, "pod"), (topology.node, "gateway")):
            addresses = [getattr(a, served) for a in ADDRESSES.values()]
            server = ns.popen(sys.executable, PACKETS, "serve", str(PORT), *addresses)
            owned.callback(server.communicate)
            owned.callback(server.kill)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        yield topology


def _ask(ns: Namespace, destination: str) -> str:
    out = ns.run(sys.executable, PACKETS, "ask", "tcp", str(PORT), destination)
    return out.split('"')[3]


def _service(node: Namespace, family: str, address: str, endpoint: str, mark: str, chain: str = "PREROUTING") -> None:
    """What kube-proxy and portmap make of a Service or a host port: mark, choose an endpoint, masquerade the mark."""
    bracketed = "[%s]" % endpoint if ":" in endpoint else endpoint
    NFT.load(
        node,
        family,
        ":SERVICE - [0:0]",
        ":SERVICE-MASQ - [0:0]",
        "-A SERVICE -j MARK --set-xmark %s/%s" % (mark, mark),
        "-A SERVICE -p tcp -j DNAT --to-destination %s:%d" % (bracketed, PORT),
        "-A SERVICE-MASQ -m mark --mark %s/%s -j MASQUERADE" % (mark, mark),
        "-A %s -d %s -p tcp --dport %d -j SERVICE" % (chain, address, PORT),
        "-I POSTROUTING 1 -j SERVICE-MASQ",
    )


@pytest.mark.parametrize("mark", ["0x4000", "0x2000"], ids=["kube-proxy", "portmap"])
def test_node_port_with_cluster_policy_is_answered_through_the_node(enforced: Topology, family: str, mark: str) -> None:
    a = ADDRESSES[family]
    # The endpoint is a pod of another node: without the node's address its answer would not come back this way.
    _service(enforced.node, family, a.node, a.exempt[0], mark)
    assert _ask(enforced.outside, a.node) == a.node
    assert _ask(enforced.pod, a.node) == a.node


@pytest.mark.parametrize("mark", ["0x4000", "0x2000"], ids=["kube-proxy", "portmap"])
def test_a_pod_reaches_itself_through_its_service(enforced: Topology, family: str, mark: str) -> None:
    a = ADDRESSES[family]
    virtual = {"ipv4": "10.96.0.10", "ipv6": "fd00:96::10"}[family]
    _service(enforced.node, family, virtual, a.pod, mark)
    assert _ask(enforced.pod, virtual) == a.gateway


def test_the_node_s_own_traffic(enforced: Topology, family: str) -> None:
    a = ADDRESSES[family]
    assert _ask(enforced.node, a.pod) == a.gateway
    assert _ask(enforced.node, a.exempt[0]) == a.node
    assert _ask(enforced.node, a.gateway) == a.gateway, "to itself"
    assert _ask(enforced.pod, a.gateway) == a.pod, "from a pod to the node"
    assert _ask(enforced.pod, a.exempt[0]) == a.pod


def test_a_host_port_on_loopback_reaches_its_pod(enforced: Topology) -> None:
    """IPv6 has no such thing: ::1 never leaves the node."""
    a = ADDRESSES["ipv4"]
    enforced.node.run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
    NFT.load(
        enforced.node,
        "ipv4",
        "-A OUTPUT -d 127.0.0.1 -p tcp --dport %d -j DNAT --to-destination %s:%d" % (PORT, a.pod, PORT),
        "-A POSTROUTING -s 127.0.0.1 -j MASQUERADE",
    )
    assert _ask(enforced.node, "127.0.0.1") == a.gateway


def test_a_marked_packet_to_outside_is_masqueraded_too(enforced: Topology, family: str) -> None:
    a = ADDRESSES[family]
    virtual = {"ipv4": "10.96.0.10", "ipv6": "fd00:96::10"}[family]
    _service(enforced.node, family, virtual, a.outside[0], "0x4000")
    assert _ask(enforced.pod, virtual) == a.node
