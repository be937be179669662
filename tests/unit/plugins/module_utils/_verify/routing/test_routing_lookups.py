# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Routing as values. What random rules and routes of IPv4 lead to is in test_ways."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals, netlink, routes
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6, Family
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import links
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import routing as kernel
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.routing import Routing
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing import routing_lookups
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing.routing_lookups import (
    Lookups,
    RouteOutcome,
    RoutePart,
)
from support import rule_shapes as shapes


def ask(known: Lookups, source: str, destination: str, link: str = "cbr0") -> t.List[RoutePart]:
    """Look one packet up."""
    here, there = int(ipaddress.ip_address(source)), int(ipaddress.ip_address(destination))
    return known.forward(((here, here),), ((there, there),), 0, 0, link)


def outcome(parts: t.List[RoutePart]) -> RouteOutcome:
    """Return the only outcome."""
    (part,) = parts
    assert not part.unknown
    return part.outcome


def made(*routes: bytes, selectors: t.Sequence[bytes] = (), family: Family = IPV4, **more: t.Any) -> Lookups:
    """Return the lookups of a node with these routes."""
    listed = tuple(selectors) + shapes.selectors(family.version)
    return Lookups(Routing((), listed, routes), more.pop("links", shapes.LINKS), family, **more)


def test_a_usual_node() -> None:
    known = Lookups(shapes.routing(), shapes.LINKS, IPV4)
    assert outcome(ask(known, "10.244.1.9", "198.51.100.1")).kind == routing_lookups.TO_NODE
    far = outcome(ask(known, "10.244.1.9", "1.1.1.1"))
    assert (far.kind, far.link, far.preferred) == ("leaves", "eth0", None)
    assert far.selected == int(ipaddress.ip_address("198.51.100.1"))
    near = outcome(ask(known, "10.244.1.9", "198.51.100.7"))
    assert near.preferred == int(ipaddress.ip_address("198.51.100.1")) and near.selected is None
    assert known.addresses_of("eth0") == (int(ipaddress.ip_address("198.51.100.1")),)


def test_routes_that_differ_in_their_gateway_alone_are_one_outcome() -> None:
    known = Lookups(shapes.routing(nodes=40), shapes.LINKS, IPV4)
    box = (shapes.net("10.244.1.9/32"), shapes.net("10.244.0.0/16"))
    assert len(known.forward(*box, 0, 0, "cbr0")) == 4  # the node, its pods, all others, and their networks' rest


def test_paths_of_a_route_are_chosen_by_chance() -> None:
    paths = [(2, "198.51.100.2"), (3, "10.244.1.2")]
    parts = ask(made(shapes.route(paths=paths)), "10.244.1.9", "1.1.1.1")
    assert {part.outcome.link for part in parts} == {"eth0", "cbr0"} and all(part.chance for part in parts)


def test_nexthops_of_their_own() -> None:
    """The kernel lists them with what they lead to, unless net.ipv4.nexthop_compat_mode is off."""
    by = netlink.word(30, 3)
    known = made(
        shapes.route("1.0.0.0/8", extra=by, paths=[(2, ""), (3, "")]),
        shapes.route("2.0.0.0/8", extra=by, kind=6),
        shapes.route("3.0.0.0/8", extra=by),
    )
    assert {part.outcome.link for part in ask(known, "10.244.1.9", "1.1.1.1")} == {"eth0", "cbr0"}
    assert outcome(ask(known, "10.244.1.9", "2.1.1.1")).kind == "blackhole"
    assert all(part.unknown for part in ask(known, "10.244.1.9", "3.1.1.1"))


def test_what_is_dead_is_passed_over() -> None:
    routes = (shapes.route("1.0.0.0/8", 2, flags=1), shapes.route("0.0.0.0/0", 3))
    assert outcome(ask(made(*routes), "10.244.1.9", "1.1.1.1")).link == "cbr0"
    down = (shapes.route("1.0.0.0/8", 2, flags=16), shapes.route("0.0.0.0/0", 3))
    assert outcome(ask(made(*down), "10.244.1.9", "1.1.1.1")).link == "eth0"


def test_the_lowest_metric_counts() -> None:
    routes = (shapes.route("0.0.0.0/0", 3, metric=200), shapes.route("0.0.0.0/0", 2, metric=100))
    assert outcome(ask(made(*routes), "10.244.1.9", "1.1.1.1")).link == "eth0"


@pytest.mark.parametrize("number", [2, 13, 3, 19, 22, 99])
def test_an_attribute_of_a_route_that_is_not_listed_is_unknown(number: int) -> None:
    known = made(shapes.route("0.0.0.0/0", 2, extra=netlink.word(number, 1)), shapes.route("9.0.0.0/8", 2))
    assert all(part.unknown for part in ask(known, "10.244.1.9", "1.1.1.1"))
    assert not any(part.unknown for part in ask(known, "10.244.1.9", "9.1.1.1"))


@pytest.mark.parametrize("number", [4, 12, 13, 20, 22, 23, 24, 25, 99])
def test_an_attribute_of_a_rule_that_is_not_listed_is_unknown(number: int) -> None:
    strange = shapes.selector(5, 100, source="10.244.1.0/25", extra=netlink.word(number, 1) + netlink.word(7, 1)[:0])
    known = made(shapes.route("0.0.0.0/0", 2), shapes.route("0.0.0.0/0", 3, table=100), selectors=[strange])
    parts = ask(known, "10.244.1.9", "1.1.1.1")
    assert {part.outcome.link for part in parts} == {"eth0", "cbr0"} and all(part.unknown for part in parts)
    assert not ask(known, "10.244.1.200", "1.1.1.1")[0].unknown


def test_bits_of_a_rule_behind_its_prefix_are_not_compared() -> None:
    aligned = shapes.selector(5, 100, source="10.244.1.0/25")
    source = [ipaddress.ip_address(text).packed for text in ("10.244.1.0", "10.244.1.16")]
    assert aligned.count(source[0]) == 1
    known = made(
        shapes.route("0.0.0.0/0", 2), shapes.route("0.0.0.0/0", 3, table=100), selectors=[aligned.replace(*source)]
    )
    assert outcome(ask(known, "10.244.1.2", "1.1.1.1")).link == "cbr0"
    assert outcome(ask(known, "10.244.1.128", "1.1.1.1")).link == "eth0"


def test_tos_is_unknown() -> None:
    known = made(shapes.route("0.0.0.0/0", 2), shapes.route("9.0.0.0/8", 3, tos=16))
    assert any(part.unknown for part in ask(known, "10.244.1.9", "9.1.1.1"))
    by_rule = made(shapes.route("0.0.0.0/0", 2), selectors=[shapes.selector(5, 100, tos=16)])
    assert all(part.unknown for part in ask(by_rule, "10.244.1.9", "9.1.1.1"))


@pytest.mark.parametrize("action", [2, 3])
def test_a_rule_that_leads_to_another_one_is_unknown(action: int) -> None:
    known = made(shapes.route("0.0.0.0/0", 2), selectors=[shapes.selector(5, 0, action, source="10.244.1.0/25")])
    (part,) = ask(known, "10.244.1.9", "1.1.1.1")
    assert part.outcome.link == "eth0" and part.unknown
    assert not ask(known, "10.244.1.200", "1.1.1.1")[0].unknown
    inverted = shapes.selector(5, 0, action, source="10.244.1.0/25", flags=2)
    (part,) = ask(made(shapes.route("0.0.0.0/0", 2), selectors=[inverted]), "10.244.1.200", "1.1.1.1")
    assert part.outcome.link == "eth0" and part.unknown


def test_the_rule_for_ports_of_a_vrf_is_for_no_other_link() -> None:
    """A VRF itself is not in the copy, which test_not_copied has."""
    by_vrf = shapes.selector(1000, 0, l3mdev=True)
    known = made(shapes.route("0.0.0.0/0", 2), selectors=[by_vrf])
    assert outcome(ask(known, "10.244.1.9", "10.1.1.1", link="eth0")).link == "eth0"


@pytest.mark.parametrize("metric", [100, 2000])
def test_routes_of_ipv6_by_source_are_unknown(metric: int) -> None:
    routes = (
        shapes.route("::/0", 2),
        shapes.route("2001:db8::/32", 3, source="2001:db8:1::/48", metric=metric),
        shapes.route("2001:db8::/32", 2, metric=1024),
    )
    known = made(*routes, family=IPV6)
    assert all(part.unknown for part in ask(known, "2001:db8:9::1", "2001:db8::1"))
    assert outcome(ask(known, "2001:db8:9::1", "2001:db9::1")).link == "eth0"


def test_types_of_addresses() -> None:
    types = Lookups(shapes.routing(), (), IPV4).types()
    at = {kind: sorted(one) for kind, one in types.items()}
    assert intervals.contains(types[routes.LOCAL], shapes.net(shapes.NODE)[0][0])
    assert intervals.contains(types[routes.LOCAL], shapes.net("127.3.4.5/32")[0][0])
    assert intervals.contains(types[routes.BROADCAST], shapes.net("198.51.100.255/32")[0][0])
    assert intervals.contains(types[routes.BROADCAST], IPV4.highest)
    assert types[routes.MULTICAST] == shapes.net("224.0.0.0/4")
    assert intervals.of(span for one in at.values() for span in one) == ((0, IPV4.highest),)
    assert sum(last - first + 1 for one in at.values() for first, last in one) == 1 << 32


def test_a_route_to_a_pod_inside_a_wider_local_route_is_unknown_without_routing_rules() -> None:
    """The kernel has one tree for both tables until a rule is added, which cannot be seen afterwards."""
    pod = shapes.route("10.244.1.9/32", 3)
    local = shapes.route("10.128.0.0/9", 1, table=255, kind=routes.LOCAL)
    known = made(local, pod)
    assert {(part.outcome.kind, bool(part.unknown)) for part in ask(known, "10.244.1.8", "10.244.1.9")} == {
        (routing_lookups.LEAVES, True)
    }
    assert outcome(ask(known, "10.244.1.9", "10.244.1.8")).kind == routing_lookups.TO_NODE
    assert intervals.contains(known.types()[routes.UNICAST], shapes.net("10.244.1.9/32")[0][0])
    ruled = made(local, pod, selectors=[shapes.selector(100, 100)])
    assert outcome(ask(ruled, "10.244.1.8", "10.244.1.9")).kind == routing_lookups.TO_NODE


def test_this_machine_is_understood() -> None:
    """Whatever routing the machine of the tests has, the kernel and the values agree about some addresses."""
    found = kernel.read()
    known = Lookups(found, links.read(), IPV4)
    for text in ("127.0.0.1", "192.0.2.1", "10.1.2.3"):
        index = kernel.link_to(text)
        (part,) = known.output(shapes.net(text + "/32"))
        if part.outcome.kind == routing_lookups.LEAVES:
            assert index in [link.index for link in links.read() if link.name == part.outcome.link]
