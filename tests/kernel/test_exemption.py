# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How strongly ``exemption`` protects exempt traffic from other NAT rules, and what it must leave alone."""

from __future__ import annotations

import contextlib
import sys
import typing as t

import pytest
from support.modules import apply, info, refused
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology, ask, serving
from support.variants import EXEMPT_RANGES, NFT_FAMILIES, PODS, VARIANTS

NFT, LEGACY = VARIANTS["iptables_nft"], VARIANTS["iptables_legacy"]
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
POLICY = {"enable_ipv6": True, "non_masquerade_cidrs": EXEMPT_RANGES, "source_cidrs": PODS}
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


def test_packet_matrix(topology: Topology, family: str) -> None:
    """Each with each: one new connection from a pod to an exempt destination, and one to another."""
    a = ADDRESSES[family]
    spared = {ours: set() for ours in OURS}
    for masquerader, start in OTHERS.items():
        for ours in OURS:
            _clear(topology.node)
            apply(topology.node, backend=ours[0], exemption=ours[1], **POLICY)
            if start is not None:
                start(topology.node, family)
            exempt, outside = topology.ask(a.exempt[0], a.outside[0]).values()
            assert exempt in (a.pod, a.node) and outside == a.node, (masquerader, ours)
            if exempt == a.pod:
                spared[ours].add(masquerader)
    assert spared == SPARED


def _clear(node: Namespace) -> None:
    node.run("nft", "flush", "ruleset")
    for family in ("ipv4", "ipv6"):
        if LEGACY.present(node, family):
            node.run(LEGACY.tool(family), "-w", "-t", "nat", "-F")


def test_enforce_needs_no_nft(ns: Namespace) -> None:
    hide = 'mount --bind /dev/null "$(command -v nft)"; exec "$@"'
    wrapper = ["unshare", "--mount", "sh", "-c", hide, "sh"]
    for backend in ("auto", "nftables"):
        done = apply(ns, backend=backend, exemption="enforce", source_cidrs=PODS[:1], wrapper=wrapper)
        assert (done["changed"], done["backend"]) == (backend == "auto", {"name": "nftables", "version": ""})


def test_accept_with_nftables_is_reported_as_return(ns: Namespace) -> None:
    result = apply(ns, backend="nftables", exemption="accept", source_cidrs=PODS[:1])
    assert [warning for warning in result["warnings"] if "enforce" in warning]


@pytest.fixture(params=[("nftables", "return"), ("nftables", "enforce"), ("iptables_nft", "accept")], ids=" ".join)
def protected(request: pytest.FixtureRequest, topology: Topology) -> t.Iterator[Topology]:
    """A node whose own and marked traffic is to leave as it does without ``exemption``."""
    backend, exemption = request.param
    apply(topology.node, backend=backend, exemption=exemption, **POLICY)
    with contextlib.ExitStack() as owned:
        for ns, served in ((topology.pod, "pod"), (topology.node, "gateway")):
            addresses = [getattr(a, served) for a in ADDRESSES.values()]
            owned.enter_context(serving(ns, PORT, addresses))
        yield topology


def _ask(ns: Namespace, destination: str) -> str:
    return ask(ns, "tcp", PORT, destination)[destination]


def test_the_node_s_own_traffic(protected: Topology, family: str) -> None:
    a = ADDRESSES[family]
    assert _ask(protected.node, a.pod) == a.gateway
    assert _ask(protected.node, a.exempt[0]) == a.node
    assert _ask(protected.node, a.gateway) == a.gateway, "to itself"
    assert _ask(protected.pod, a.gateway) == a.pod, "from a pod to the node"
    assert _ask(protected.pod, a.exempt[0]) == a.pod


@pytest.mark.parametrize("mark", ["0x4000", "0x2000"], ids=["kube-proxy", "portmap"])
def test_marked_packets_are_left_to_a_later_rule(protected: Topology, family: str, mark: str) -> None:
    """Without DNAT, as IPVS forwards them."""
    a = ADDRESSES[family]
    for destination in (a.exempt[0], a.outside[0]):
        marking = "-A PREROUTING -s %s -d %s -j MARK --set-xmark %s/%s" % (a.pod, destination, mark, mark)
        protected.node.run(NFT.tool(family), "-w", "-t", "mangle", *marking.split())
    NFT.load(protected.node, family, "-A POSTROUTING -m mark --mark %s/%s -j MASQUERADE" % (mark, mark))
    seen = protected.ask(*a.exempt[:2], a.outside[0])
    assert seen == {a.exempt[0]: a.node, a.exempt[1]: a.pod, a.outside[0]: a.node}


_ASK_FROM_LOOPBACK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20, ("127.0.0.1", 0)) as sock:
    print(sock.recv(64).decode())
"""


def test_packets_from_loopback_are_left_to_a_later_rule(protected: Topology) -> None:
    """Without DNAT. IPv6 has no such thing: ::1 never leaves the node."""
    a = ADDRESSES["ipv4"]
    protected.node.run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
    NFT.load(protected.node, "ipv4", "-A POSTROUTING -s 127.0.0.0/8 -j MASQUERADE")
    out = protected.node.run(sys.executable, "-c", _ASK_FROM_LOOPBACK, a.pod, str(PORT))
    assert out == a.gateway + "\n"


def test_connections_with_another_destination_than_they_were_opened_to(topology: Topology, family: str) -> None:
    """Whatever ``exemption`` says, they are left to the program that changed the destination."""
    a = ADDRESSES[family]
    virtual = {"ipv4": "10.96.0.10", "ipv6": "fd00:96::10"}[family]
    endpoint = ("[%s]:%d" if family == "ipv6" else "%s:%d") % (a.exempt[0], PORT)
    NFT.load(topology.node, family, "-A PREROUTING -p tcp -d %s -j DNAT --to-destination %s" % (virtual, endpoint))
    found = {}
    for backend, exemption in OURS:
        apply(topology.node, backend=backend, exemption=exemption, **POLICY)
        NFT.load(topology.node, family, "-A POSTROUTING -j MASQUERADE")
        found[backend, exemption] = topology.ask(virtual)[virtual]
        NFT.load(topology.node, family, "-D POSTROUTING -j MASQUERADE")
    assert set(found.values()) == {a.node}


@pytest.fixture(params=[("iptables_nft", "accept"), ("iptables_legacy", "accept"), *OURS[2:]], ids=" ".join)
def accepting(request: pytest.FixtureRequest, topology: Topology) -> Topology:
    """A node with a rule behind the jump that masquerades pods which reach themselves, as kube-proxy 1.36 does."""
    backend, exemption = request.param
    exempt = [*EXEMPT_RANGES, *(a.pods for a in ADDRESSES.values())]
    options = {**POLICY, "backend": backend, "exemption": exemption, "non_masquerade_cidrs": exempt}
    host = LEGACY if backend == "iptables_legacy" else NFT
    apply(topology.node, **options)
    for family, a in ADDRESSES.items():
        for address in (a.pod, a.exempt[0], a.outside[0]):
            virtual = _virtual(family, address)
            endpoint = ("[%s]:%d" if family == "ipv6" else "%s:%d") % (address, PORT)
            rule = "-A PREROUTING -p tcp -d %s -j DNAT --to-destination %s" % (virtual, endpoint)
            host.load(topology.node, family, rule)
        hairpin = "-A POSTROUTING -s %s -d %s -m conntrack --ctstate DNAT -j MASQUERADE" % (a.pod, a.pod)
        host.load(topology.node, family, hairpin)
    assert not apply(topology.node, **options)["changed"]
    return topology


def _virtual(family: str, endpoint: str) -> str:
    """The address of the Service that leads to an endpoint."""
    a = ADDRESSES[family]
    return {"ipv4": "10.96.0.%d", "ipv6": "fd00:96::%d"}[family] % [a.outside[0], a.exempt[0], a.pod].index(endpoint)


def test_a_pod_reaches_itself_without_a_mark(accepting: Topology, family: str) -> None:
    """And a Service with an endpoint outside is masqueraded as a connection to that endpoint is."""
    a = ADDRESSES[family]
    accepting.node.run("sysctl", "-qw", "net.ipv4.conf.all.send_redirects=0")
    with serving(accepting.pod, PORT, [a.pod]):
        assert _ask(accepting.pod, _virtual(family, a.pod)) == a.gateway
        for endpoint, seen in ((a.exempt[0], a.pod), (a.outside[0], a.node)):
            assert _ask(accepting.pod, _virtual(family, endpoint)) == seen
            assert _ask(accepting.pod, endpoint) == seen


@pytest.mark.parametrize("backend", sorted(VARIANTS))
def test_marked_packets_of_a_family_that_exempts_nothing_go_on(ns: Namespace, backend: str, family: str) -> None:
    apply(
        ns,
        backend=backend,
        exemption="accept",
        enable_ipv6=True,
        non_masquerade_cidrs=[],
        source_cidrs=PODS,
        masq_link_local=True,
        masq_link_local_ipv6=True,
    )
    loopback = {"ipv4": "127.0.0.0/8", "ipv6": "::1/128"}[family]
    rules = VARIANTS[backend].rules(ns, family) or []
    assert rules[:2] == ["-m mark ! --mark 0x0/0x6000 -j RETURN", "-s %s -j RETURN" % loopback]


class Bridge(t.NamedTuple):
    """A bridge of a program that keeps containers or machines on a node, whose addresses no router knows."""

    name: str
    network: str
    #: its rule, of iptables or of nft
    rule: str


GUESTS = {
    "Docker": Bridge("docker0", "172.17.0.%d/16", "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"),
    "libvirt": Bridge(
        "virbr0", "192.168.122.%d/24", "-A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE"
    ),
    "Incus": Bridge(
        "incusbr0",
        "10.166.11.%d/24",
        "table inet incus { chain pstrt.incusbr0 { type nat hook postrouting priority 100; "
        "ip saddr 10.166.11.0/24 ip daddr != 10.166.11.0/24 masquerade; }; }",
    ),
}


@pytest.fixture(params=list(GUESTS))
def guest(request: pytest.FixtureRequest, topology: Topology) -> t.Iterator[Namespace]:
    """A guest of another program, with that program's rule for it."""
    bridge = GUESTS[request.param]
    with Namespace() as container:
        commands = (
            "link add %s type bridge" % bridge.name,
            "address add %s dev %s" % (bridge.network % 1, bridge.name),
            "link set %s up" % bridge.name,
            "link add veth0 type veth peer name eth0 netns " + container.name,
            "link set veth0 master %s up" % bridge.name,
        )
        for command in commands:
            topology.node.run("ip", *command.split())
        own = bridge.network % 2
        gateway = (bridge.network % 1).partition("/")[0]
        for command in ("address add %s dev eth0" % own, "link set eth0 up", "route add default via " + gateway):
            container.run("ip", *command.split())
        if bridge.rule.startswith("-A"):
            NFT.load(topology.node, "ipv4", bridge.rule)
        else:
            topology.node.run("nft", bridge.rule)
        yield container


def test_guests_of_other_programs_are_left_to_these(
    request: pytest.FixtureRequest, topology: Topology, guest: Namespace
) -> None:
    a = ADDRESSES["ipv4"]
    asked = (a.exempt[0], a.outside[0])
    assert topology.ask(*asked, client=guest) == dict.fromkeys(asked, a.node)
    for backend, exemption in (*OURS, ("iptables_legacy", "accept")):
        apply(topology.node, backend=backend, exemption=exemption, **POLICY)
        assert topology.ask(*asked, client=guest) == dict.fromkeys(asked, a.node), (backend, exemption)
        if exemption == "return":
            continue
        before = topology.node.run("nft", "list", "ruleset")
        options = {"backend": backend, "exemption": exemption, "non_masquerade_cidrs": EXEMPT_RANGES[:3]}
        message = refused(topology.node, **options)
        assert "set source_cidrs to the networks of pods (routes of this node show 10.244.1.0/24)" in message
        assert topology.node.run("nft", "list", "ruleset") == before
    bridge = GUESTS[request.node.callspec.params["guest"]]
    warnings = apply(topology.node, non_masquerade_cidrs=["10.0.0.0/8"])["warnings"]
    assert any("the node itself and %s (%s)" % (bridge.name, bridge.network % 0) in line for line in warnings), warnings


@pytest.mark.parametrize("guest", ["Docker", "Incus"], indirect=True)
def test_verify_asks_for_guests_that_the_policy_is_about(topology: Topology, guest: Namespace) -> None:
    """What it exempts it leaves to their program; what it masquerades must show the node."""
    a, node = ADDRESSES["ipv4"], topology.node
    policy: t.Dict[str, t.Any] = {"backend": "iptables_nft", "non_masquerade_cidrs": EXEMPT_RANGES[:3]}

    def verified(**options: t.Any) -> t.Dict[str, t.Any]:
        return info(node, **policy, **options, verify=True)

    apply(node, **policy)
    assert topology.ask(a.exempt[0], a.outside[0], client=guest) == {a.exempt[0]: a.node, a.outside[0]: a.node}
    found = verified()
    assert found["verified"] is True, found["summary"]
    NFT.load(node, "ipv4", "-I POSTROUTING 1 -d %s -o eth0 ! -s %s -j ACCEPT" % (a.outside[0], a.pods))
    # Rules of nft still masquerade what a rule of iptables accepts.
    hidden = topology.ask(a.outside[0], client=guest)[a.outside[0]] == a.node
    found = verified()
    assert found["verified"] is hidden
    assert {one["range"] for one in found["conflicts"]} == (set() if hidden else {a.outside[0] + "/32"})
    assert verified(source_cidrs=PODS[:1])["conflicts"] == []
