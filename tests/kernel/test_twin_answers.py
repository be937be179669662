# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a twin answers: addresses, ports and links as real packets have them, and the rules that decided."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.backend_names import (
    IPTABLES_LEGACY,
    IPTABLES_NFT,
    NFTABLES,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome, run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import (
    DELIVERED,
    DROPPED,
    REJECTED,
    SENT,
    Answer,
    Question,
)
from strange.spaces import Namespace as Space
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.twins import build, node_of
from support.unnamed_namespaces import carry_out, inside

FAMILIES = ("ipv4", "ipv6")


def _ask(*questions: Question) -> t.List[Answer]:
    with build() as made:
        return made.ask(questions, explain=True)


_RULES = """*nat
:OURS - [0:0]
-A POSTROUTING -m addrtype ! --dst-type LOCAL -j OURS
-A OURS -d %(exempt)s -j RETURN
-A OURS -j MASQUERADE --random-fully
-A PREROUTING -d %(service)s -p tcp -m tcp --dport 80 -j DNAT --to-destination %(endpoint)s
COMMIT
*filter
-A FORWARD -d %(dropped)s -j DROP
-A FORWARD -d %(rejected)s -j REJECT
COMMIT
"""
_PLACES = {
    "ipv4": {
        "exempt": "10.0.0.0/8",
        "service": "192.0.2.10/32",
        "endpoint": "203.0.113.10:8080",
        "dropped": "203.0.113.66/32",
        "rejected": "203.0.113.67/32",
    },
    "ipv6": {
        "exempt": "fd00::/8",
        "service": "2001:db8:77::1/128",
        "endpoint": "[2001:db8:99::1]:8080",
        "dropped": "2001:db8:99::66/128",
        "rejected": "2001:db8:99::67/128",
    },
}


def _programs(backend: str, family: str) -> str:
    return ("iptables" if family == "ipv4" else "ip6tables") + ("-nft" if backend == IPTABLES_NFT else "-legacy")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("backend", (IPTABLES_NFT, IPTABLES_LEGACY))
def test_answers(topology: Topology, backend: str, family: str) -> None:
    places, a = _PLACES[family], ADDRESSES[family]
    topology.node.run(_programs(backend, family) + "-restore", stdin=_RULES % places)
    address = {name: value.rsplit("/", 1)[0] for name, value in places.items()}
    outside, exempt = a.outside[0], a.exempt[0]
    asked = [exempt, outside, address["service"], address["dropped"], address["rejected"], a.node]
    answers = inside(topology.node, _ask, *(Question(one, a.pod, port=80) for one in asked))
    kept, hidden, redirected, dropped, rejected, local = answers

    assert (kept.outcome, kept.source, kept.destination, kept.destination_port) == (SENT, a.pod, exempt, 80)
    assert kept.interface == "eth0" and kept.source_port
    table = ("ip" if family == "ipv4" else "ip6") + " nat"
    assert kept.decided_by is not None
    assert kept.decided_by[:3] == (backend, table, "OURS") and kept.decided_by.text.endswith("-j RETURN")

    assert (hidden.outcome, hidden.source, hidden.destination) == (SENT, a.node, outside)
    assert hidden.decided_by is not None
    assert hidden.decided_by == (backend, table, "OURS", "-A OURS -j MASQUERADE --random-fully")

    assert (redirected.destination, redirected.destination_port) == (outside, 8080)
    assert redirected.source == a.node and redirected.decided_by == hidden.decided_by

    assert dropped.outcome == DROPPED and "-j DROP" in dropped.where and backend in dropped.where
    assert rejected.outcome == REJECTED and "-j REJECT" in rejected.where
    assert (local.outcome, local.source, local.interface) == (DELIVERED, a.pod, None)
    # And so it is.
    assert topology.ask(exempt, outside) == {exempt: a.pod, outside: a.node}


@pytest.mark.parametrize("protocol", ("tcp", "udp", "icmp", "sctp", "33", "47", "253"))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_protocol_from_pods_and_from_the_node(topology: Topology, family: str, protocol: str) -> None:
    a = ADDRESSES[family]
    chain = "type nat hook postrouting priority srcnat;\n%s saddr %s masquerade" % (
        "ip" if family == "ipv4" else "ip6",
        a.pods,
    )
    topology.node.run("nft", "-f", "-", stdin="table inet t { chain c {\n%s\n}\n}\n" % chain)
    questions = [Question(a.outside[0], source, protocol=protocol, port=99) for source in (a.pod, None)]
    hidden, own = inside(topology.node, _ask, *questions)
    port = None if protocol in ("icmp", "47", "253") else 99
    for answer in (hidden, own):
        assert answer[1:3] == (SENT, a.node) and (answer.destination, answer.destination_port) == (a.outside[0], port)
    assert hidden.decided_by is not None and hidden.decided_by[:3] == (NFTABLES, "inet t", "c")
    assert hidden.decided_by.text.endswith("masquerade")


def test_what_routing_ends(topology: Topology) -> None:
    node = topology.node
    node.run("ip", "route", "add", "blackhole", "203.0.113.0/24")
    node.run("ip", "route", "add", "prohibit", "198.18.0.0/15")
    node.run("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
    a = ADDRESSES["ipv4"]
    asked = [
        Question("203.0.113.10", a.pod),
        Question("198.18.0.1", a.pod),
        Question("192.0.2.10", "172.16.0.1", interface="pods"),
        Question("203.0.113.10"),
    ]
    answers = inside(node, _ask, *asked)
    assert [answer.outcome for answer in answers] == [DROPPED, REJECTED, DROPPED, DROPPED]
    assert "rp_filter" in answers[2].where
    assert all(answer.where for answer in answers)


def test_route_of_a_connection_of_the_node(topology: Topology) -> None:
    """TCP asks for the route again once it knows its source, and then a rule about that source counts."""
    node = topology.node
    node.run("ip", "rule", "add", "from", ADDRESSES["ipv4"].node, "table", "77")
    node.run("ip", "route", "add", "203.0.113.0/24", "dev", "pods", "table", "77")
    answers = inside(node, _ask, *(Question("203.0.113.10", protocol=protocol) for protocol in ("tcp", "udp")))
    assert [(answer.source, answer.interface) for answer in answers] == [
        (ADDRESSES["ipv4"].node, "pods"),
        (ADDRESSES["ipv4"].node, "eth0"),
    ]


def test_pods_on_a_bridge_reach_what_each_router_answers_for(ns: Namespace) -> None:
    """Address 0 of a network of IPv6 is the node's. Beside it are pods, which the bridge leads to."""
    ns.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
    lines = ["link add cni0 type bridge", "link add vp0 master cni0 type veth peer name far", "link set far up"]
    lines += ["link set vp0 up", "link set cni0 up", "address add fd44::1/64 dev cni0 nodad"]
    ns.run("ip", "-batch", "-", stdin="\n".join(lines))
    answers = inside(ns, _ask, *(Question(one, "fd44::2") for one in ("fd44::", "fd44::1", "fd44::3")))
    assert [answer.outcome for answer in answers] == [DELIVERED, DELIVERED, SENT]


@pytest.mark.parametrize("state", ("permanent", "noarp"))
def test_a_port_of_a_bridge_hears_no_answer_of_a_neighbour(ns: Namespace, state: str) -> None:
    """The bridge takes it, so what a route sends out of a port waits in vain if the neighbour is not known already."""
    ns.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    lines = ["link add cni0 type bridge", "link add vp0 master cni0 type veth peer name far", "link set far up"]
    lines += ["link set vp0 up", "link set cni0 up", "address add 10.244.1.1/24 dev cni0"]
    ns.run("ip", "-batch", "-", stdin="\n".join([*lines, "route add 100.64.0.0/10 dev vp0"]))
    ns.run("ip", "neighbour", "add", "100.64.0.2", "lladdr", "02:00:00:00:00:02", "nud", state, "dev", "vp0")
    asked = [Question("100.64.0.%d" % number, "10.244.1.2") for number in (1, 2)]
    assert [answer.outcome for answer in inside(ns, _ask, *asked)] == [DROPPED, SENT]


def test_rule_that_no_tool_can_list(topology: Topology) -> None:
    """An old nft crashes on the sets of a newer one; what is asked of the kernel is not affected."""
    chain = "type nat hook postrouting priority srcnat;\nip daddr 203.0.113.0/24 counter\nmasquerade"
    topology.node.run("nft", "-f", "-", stdin="table ip t { chain c {\n%s\n}\n}\n" % chain)

    def crash(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        return Outcome(-11, "", "") if "nft" in argv[0] else run(argv, stdin, timeout)

    def ask() -> t.List[Answer]:
        with build(crash) as made:
            return made.ask([Question("203.0.113.10", ADDRESSES["ipv4"].pod)], explain=True)

    (answer,) = inside(topology.node, ask)
    assert answer.source == ADDRESSES["ipv4"].node
    assert answer.decided_by == (NFTABLES, "ip t", "c", "rule 2 of chain c")


def _two_answers(first: str, second: str) -> t.Tuple[Answer, ...]:
    """Two tables of the same priority, one made after the other; the later one is asked first."""
    node = node_of("pods", "address add 10.244.1.1/24 dev pods")
    for each in (first, second):
        program, text = each.split("\n", 1)
        node.run(program.split(), text)
    with node, build() as made:
        (answer,) = made.ask([Question("203.0.113.10", "10.244.1.2")], explain=True)
        # It is as it was: asked again, the answer is the same.
        assert made.ask([Question("203.0.113.10", "10.244.1.2")])[0].outside == answer.outside
        in_turns = made.ask([Question("203.0.113.10", "10.244.1.2")] * 5, in_turns=True)
        assert made.orders == 2 and not any(one.alternatives for one in in_turns)
        assert [one.source for one in in_turns[::2]] == [answer.source] * 3
        assert [one.source for one in in_turns[1::2]] == [answer.alternatives[0].source] * 2
    return (answer, *answer.alternatives)


_SNAT = {
    "nft": "nft -f -\ntable ip by_nft { chain c {\ntype nat hook postrouting priority 100;\nsnat to 192.0.2.1\n}\n}\n",
    "too": "nft -f -\ntable ip again { chain c {\ntype nat hook postrouting priority 100;\nsnat to 192.0.2.3\n}\n}\n",
    "legacy": "iptables-legacy-restore\n*nat\n-A POSTROUTING -j SNAT --to-source 192.0.2.2\nCOMMIT\n",
}


@pytest.mark.parametrize(
    ("first", "second", "sources"),
    [
        ("nft", "too", ["192.0.2.3", "192.0.2.1"]),
        ("legacy", "nft", ["192.0.2.1", "192.0.2.2"]),
        ("nft", "legacy", ["192.0.2.1", "192.0.2.2"]),
    ],
)
def test_order_that_the_kernel_does_not_tell(first: str, second: str, sources: t.List[str]) -> None:
    answers = carry_out(_two_answers, _SNAT[first], _SNAT[second])
    assert [answer.source for answer in answers] == sources
    assert all(answer.decided_by is not None for answer in answers)


_MASQUERADE = "table %s t { chain c {\ntype nat hook postrouting priority 100;\noifname eth0 masquerade\n}\n}\n"


def _addresses_of_another_link(destination: str, pod: str) -> t.Tuple[t.Optional[str], ...]:
    """Return what the kernel and the copy take where the link to the gateway has no address.

    It is one of the link that came first. ``pods`` came last, but has the lower index: it was elsewhere in between.
    """
    node, elsewhere = node_of("pods", "address delete 198.51.100.1/24 dev eth0", "link add ext type bridge"), Space()
    node.ip(["link set pods netns %s" % elsewhere.path])
    elsewhere.ip(["link set pods netns %s" % node.path])
    node.sysctl({"ipv6/conf/all/forwarding": 1})
    lines = ["address add 192.0.2.200/32 dev ext", "address add fd55::1/64 dev ext nodad", "link set ext up"]
    lines += ["address add 10.244.1.1/24 dev pods", "address add fd44::1/64 dev pods nodad", "link set pods up"]
    lines += ["route add default dev eth0", "route add ::/0 dev eth0"]
    node.ip(lines)
    node.run(["nft", "-f", "-"], _MASQUERADE % "ip" + _MASQUERADE % "ip6")
    route = node.run(["ip", "route", "get", destination]).split()
    with node:
        (answer,) = _ask(Question(destination, pod))
    return route[route.index("src") + 1], answer.source


@pytest.mark.parametrize(
    ("destination", "pod", "address"),
    [("203.0.113.10", "10.244.1.2", "192.0.2.200"), ("2001:db8:99::1", "fd44::2", "fd55::1")],
)
def test_address_of_the_link_that_came_first(destination: str, pod: str, address: str) -> None:
    assert carry_out(_addresses_of_another_link, destination, pod) == (address, address)
