# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which questions are chosen: nothing that anything tells apart goes unasked, and little is asked twice."""

from __future__ import annotations

import ipaddress
import random
import struct
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.routing import Route
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import questions
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import Boundaries, Cell, Choice
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.survey import survey
from hypothesis import given
from hypothesis import strategies as st
from support.node_states import route, state

# routes


def _route(network: str, link: int = 2, gateway: bool = False, table: int = 254, kind: int = 1) -> Route:
    return Route(ipaddress.ip_network(network), kind, table, link, gateway, 1)


_PREFIXES = st.tuples(st.integers(0, 15), st.integers(28, 32), st.integers(1, 3)).map(
    lambda made: Route(ipaddress.ip_network((made[0], made[1]), strict=False), 1, 254, made[2], False, 1)
)


@given(st.lists(_PREFIXES, max_size=8))
def test_edges_of_routes(routes: t.List[Route]) -> None:
    def link(number: int) -> t.Optional[int]:
        """By the most specific route; of two to the same place the first one counts."""
        found = [route for route in routes if ipaddress.ip_address(number) in route.destination]
        return max(found, key=lambda route: route.destination.prefixlen).link if found else None

    edges = set(questions.route_edges(routes))
    for number in range(1, 20):
        if link(number) != link(number - 1):
            assert number in edges
        elif not any(int(route.destination.network_address) == number for route in routes):
            assert number not in edges or any(int(one.destination.broadcast_address) + 1 == number for one in routes)


def test_neighbouring_routes_to_one_place_are_one() -> None:
    routes = [_route("10.0.%d.0/24" % number, gateway=True) for number in range(200)]
    assert sorted(questions.route_edges(routes)) == [10 << 24, (10 << 24) + 200 * 256]


# whole nodes

_POLICY = Boundaries((ipaddress.ip_network("10.0.0.0/8"),))


def _cells(node: node_state.State, pods: str = "", policy: Boundaries = _POLICY) -> t.List[Cell]:
    networks = [ipaddress.ip_network(pods)] if pods else []
    return Choice(node, survey(node, 4), policy, networks).cells()


def _asked(cells: t.Iterable[Cell]) -> t.Set[t.Tuple[str, t.Optional[str], str, int]]:
    return {(one.destination, one.source, one.protocol, one.port) for cell in cells for one in cell.questions}


def test_every_boundary_of_a_bare_node() -> None:
    cells = _cells(state())
    starts = {str(ipaddress.ip_address(cell.first)) for cell in cells}
    for edge in ("10.0.0.0", "11.0.0.0", "10.244.1.0", "10.244.2.0", "172.17.0.0", "172.18.0.0", "198.51.100.0"):
        assert edge in starts
    assert all(cell.first <= int(ipaddress.ip_address(cell.questions[0].destination)) <= cell.last for cell in cells)
    assert [cell.last + 1 for cell in cells][:3] == [cell.first for cell in cells][1:4]
    assert {(one.source, one.interface) for cell in cells for one in cell.questions} == {("10.244.1.129", "cni0")}
    assert not any(cell.service or cell.sender for cell in cells)


def test_pods_are_behind_links_of_their_own() -> None:
    node = state(
        routes=[route("10.244.9.7/32", 10), route("10.244.9.8/32", 11), route("10.244.2.0/24", 2, "198.51.100.9")]
    )
    senders = {sender.link: sender.addresses for sender in questions.senders(node, 4, ())}
    assert set(senders) == {"cni0", "cali0", "cali1"}  # not docker's, not another node's
    within = questions.senders(node, 4, [ipaddress.ip_network("10.244.9.0/24")])
    assert {sender.link for sender in within} == {"cali0", "cali1"}
    assert {sender.link for sender in questions.senders(node, 4, [ipaddress.ip_network("172.17.0.0/16")])} == {
        "docker0"
    }
    assert _cells(node, pods="203.0.113.0/24") == []


def test_one_rule_about_everything() -> None:
    rule = "nat -A POSTROUTING -s 10.244.1.128/25 -d 10.7.0.0/16 -p tcp -m tcp --dport 443 -j MASQUERADE"
    cells = _cells(state(rule))
    (special,) = [cell for cell in cells if cell.service and cell.sender]
    assert (special.first, special.last) == (0x0A070000, 0x0A07FFFF)
    (question,) = special.questions
    assert (question.protocol, question.port) == ("tcp", 443)
    assert ipaddress.ip_address(question.source) in ipaddress.ip_network("10.244.1.128/25")
    # Senders and services are divided there alone.
    assert {cell.first for cell in cells if cell.service or cell.sender} == {0x0A070000}


def test_conditions_in_several_chains_meet() -> None:
    """The source in a jump, the mark in one table, protocol and port in another."""
    cells = _cells(
        state(
            "mangle -A PREROUTING -s 10.244.1.64/26 -j MARK --set-xmark 0x10/0x10",
            "nat -A POSTROUTING -d 10.8.0.0/16 -j SUB",
            "nat -A SUB -p udp -m udp --dport 53 -m mark --mark 0x10/0x10 -j MASQUERADE",
        )
    )
    wanted = [
        question
        for cell in cells
        for question in cell.questions
        if ipaddress.ip_address(question.destination) in ipaddress.ip_network("10.8.0.0/16")
        and (question.protocol, question.port) == ("udp", 53)
        and ipaddress.ip_address(question.source) in ipaddress.ip_network("10.244.1.64/26")
    ]
    assert len(wanted) == 1


def test_services_cost_one_question_each() -> None:
    """As kube-proxy writes them: what is behind the address of one concerns no other destination."""
    rules = []
    for number in range(200):
        address = ipaddress.ip_address("10.96.0.0") + number
        rules.append("nat -A KUBE-SERVICES -d %s/32 -p tcp -m tcp --dport 80 -j SVC-%d" % (address, number))
        rules.append("nat -A SVC-%d -s 10.244.1.%d/32 -j KUBE-MARK-MASQ" % (number, number + 2))
        rules.append("nat -A SVC-%d -p tcp -m tcp -j DNAT --to-destination 10.244.1.%d:80" % (number, number + 2))
    rules += ["nat -A PREROUTING -j KUBE-SERVICES", "nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000"]
    cells = _cells(state(*rules))
    assert len(cells) < 200 * 7 + 30
    there = [cell for cell in cells if cell.first == 0x0A600005]
    # tcp/80 or not, from the pod itself or not
    assert 4 <= len(_asked(there)) <= 8


def test_filters_are_looked_at_where_nothing_came_out() -> None:
    node = state(
        "filter -A FORWARD -d 10.7.0.0/16 -p tcp -m tcp --dport 8443 -j ACCEPT",
        "filter -A FORWARD -d 10.7.0.0/16 -j DROP",
    )
    choice = Choice(node, survey(node, 4), _POLICY, [])
    (cell,) = [cell for cell in choice.cells() if cell.first <= 0x0A070001 <= cell.last]
    assert cell.first < 0x0A070000
    parts = [part for part in choice.refined(cell) if (part.first, part.last) == (0x0A070000, 0x0A07FFFF)]
    assert ("tcp", 8443) in {(part.questions[0].protocol, part.questions[0].port) for part in parts}


def test_chance_and_shared_routes_are_asked_several_times() -> None:
    chance = state("nat -A POSTROUTING -d 10.7.0.0/16 -m statistic --mode random --probability 0.5 -j MASQUERADE")
    assert {len(cell.questions) for cell in _cells(chance) if cell.first == 0x0A070000} == {questions.CHANCES}
    assert {len(cell.questions) for cell in _cells(chance) if cell.first == 0x0A080000} <= {1}
    hop = struct.Struct("=HBBi")
    paths = hop.pack(hop.size, 0, 0, 2) + hop.pack(hop.size, 0, 0, 3)
    shared = struct.pack("=BBBBBBBBI", 2, 16, 0, 0, 254, 3, 0, 1, 0) + netlink.attribute(1, b"\x0a\x07\0\0")
    (cell,) = [one for one in _cells(state(routes=[shared + netlink.attribute(9, paths)])) if one.first == 0x0A070000]
    assert len({question.destination for question in cell.questions}) == len(cell.questions) > 1


def test_links_that_rules_name_are_told_apart() -> None:
    node = state(
        "nat -A POSTROUTING -j SUB",
        "mangle -A PREROUTING -i cali0 -j MARK --set-xmark 0x1/0x1",
        "nat -A SUB -m mark --mark 0x1/0x1 -j MASQUERADE",
        routes=[route("10.244.9.7/32", 10), route("10.244.9.8/32", 11)],
    )
    assert {(question.interface) for cell in _cells(node) for question in cell.questions} >= {"cali0"}


def test_what_the_policy_tells_apart() -> None:
    policy = Boundaries(
        (ipaddress.ip_network("192.0.2.0/25"),),
        (ipaddress.ip_network("10.244.1.0/26"),),
        (((17 << 16 | 53, 17 << 16 | 53),),),
    )
    cells = _cells(state(), policy=policy)
    assert 0xC0000200 in {cell.first for cell in cells} and 0xC0000280 in {cell.first for cell in cells}
    asked = _asked(cell for cell in cells if cell.first == 0xC0000200)
    assert {(protocol, port) for _destination, _source, protocol, port in asked} >= {("udp", 53), ("tcp", 80)}
    assert len({source for _destination, source, _protocol, _port in asked}) == 2


# survey


def test_survey_of_features_and_marks() -> None:
    found = survey(
        state(
            "nat -A POSTROUTING -m owner --uid-owner 0 -j MASQUERADE",
            "nat -A POSTROUTING -m mark --mark 0xa00/0xe00 -j MASQUERADE",
            "filter -A FORWARD -m time --timestart 10:00 -j DROP",
        ),
        4,
    )
    assert set(found.features) == {"owner"}
    assert found.features["owner"] == "ip nat, chain POSTROUTING"
    assert found.foreign_marks == 0xE00
    marked = survey(
        state(
            "mangle -A PREROUTING -m connbytes --connbytes 1 -j MARK --set-xmark 0x200/0x200",
            "nat -A POSTROUTING -m mark --mark 0x200/0x200 -j MASQUERADE",
        ),
        4,
    )
    assert set(marked.features) == {"connbytes"} and marked.foreign_marks == 0


@pytest.mark.parametrize("seed", range(20))
def test_chains_come_after_all_that_lead_to_them(seed: int) -> None:
    chance = random.Random(seed)
    names = ["POSTROUTING"] + ["C%d" % number for number in range(6)]
    rules = ["nat -A POSTROUTING -d 10.0.0.0/9 -j C0"]
    for number, name in enumerate(names):
        for target in chance.sample(names[number + 1 :], min(2, len(names) - number - 1)):
            rules.append("nat -A %s -d %d.0.0.0/8 -j %s" % (name, chance.choice((9, 10, 11)), target))
    rules.append("nat -A %s -d 10.1.2.3/32 -p udp -j MASQUERADE" % names[-1])
    found = [one for one in survey(state(*rules), 4).named if one.service is not None]

    # Whether the last chain is reached at all, and for which destinations, is found by walking all ways.
    def ways(name: str) -> t.List[t.Any]:
        if name == "POSTROUTING":
            return [ipaddress.ip_network("0.0.0.0/0")]
        callers = [rule.split() for rule in rules if rule.endswith(" -j " + name)]
        return [
            ipaddress.ip_network(words[4])
            for words in callers
            for way in ways(words[2])
            if ipaddress.ip_network(words[4]).overlaps(way)
        ]

    reached = any(ipaddress.ip_address("10.1.2.3") in way for way in ways(names[-1]))
    meant = 0x0A010203
    assert bool(found) == reached
    assert all(one.destination == ((meant, meant),) for one in found)
