# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which open connections a change of the rules removes, and when it stops. Real connections: tests/kernel."""

from __future__ import annotations

import ipaddress
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import open_connections
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.open_connections import flush
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import reconcile
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import (
    LOOPBACK,
    Exempt,
    Guard,
    Masquerade,
    Ruleset,
    applies,
    from_config,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Flow
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.routes import LOCAL, UNICAST
from hypothesis import given
from hypothesis import strategies as st
from support import worlds
from support.machine import Machine

NODE, POD = "198.51.100.1", "10.244.1.2"


def number(address: str) -> int:
    """An address as conntrack has it."""
    return int(ipaddress.ip_address(address))


def flow(destination: str, source: str = POD, seen: str = "", **more: t.Any) -> Flow:
    """A connection of a pod that keeps its address, unless another one is seen."""
    known = {"redirected": False, "related": False, "key": repr((source, destination, seen)).encode(), **more}
    return Flow(number(source), number(destination), number(seen or source), **known)


class Kernel:
    """What is open, what the routes are, and what was removed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, flows: t.Sequence[Flow], interface: str = "eth0") -> None:
        self.flows = list(flows)
        self.interfaces: t.Dict[str, t.Optional[str]] = {}
        self.default: t.Optional[str] = interface
        self.removed: t.List[Flow] = []
        self.clock = 0.0
        monkeypatch.setattr(open_connections.conntrack, "read", self.read)
        monkeypatch.setattr(open_connections.conntrack, "remove", self.remove)
        monkeypatch.setattr(open_connections, "Routes", lambda _version: self)
        monkeypatch.setattr(open_connections.time, "monotonic", lambda: self.clock)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def read(self, _version: int, look: t.Callable[[Flow], None]) -> None:
        for one in self.flows:
            look(one)

    def remove(self, _version: int, flows: t.Sequence[Flow]) -> int:
        self.removed += flows
        return len(flows)

    def kind(self, address: int) -> int:
        return LOCAL if address == number(NODE) else UNICAST

    def interface(self, _source: int, destination: int) -> t.Optional[str]:
        return self.interfaces.get(str(ipaddress.ip_address(destination)), self.default)


def rules(**options: t.Any) -> Ruleset:
    """The IPv4 rules of a policy."""
    return from_config(build(options), "ipv4")


def model(ruleset: t.Optional[Ruleset], one: Flow, version: int, interface: str) -> str:
    """What becomes of a connection: rule by rule, as iptables would do it."""
    kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    for rule in ruleset.rules if ruleset else ():
        if applies(rule, kind(one.destination), kind(one.source), interface):
            if isinstance(rule, Masquerade):
                return "masquerade"
            if isinstance(rule, Exempt) and rule.verdict != "RETURN":
                return "exempt"
            assert isinstance(rule, (Exempt, Guard))
            return "left"
    return "left"


def goes(old: str, new: str, one: Flow) -> bool:
    """The definition."""
    if old == new:
        return False
    if new == "masquerade":
        return one.seen == one.source
    return one.seen != one.source and (old == "masquerade" or new == "exempt")


addresses = st.builds(
    lambda first, rest: (first << 24) | rest, st.sampled_from([10, 11, 172, 192]), st.integers(0, 2**24 - 1)
)


@given(
    st.none() | worlds.narrow_configs,
    st.none() | worlds.narrow_configs,
    st.lists(st.tuples(addresses, addresses, st.booleans()), min_size=1, max_size=8),
    st.sampled_from(["eth0", "eth1", "bond0", "wlan0"]),
    worlds.families,
)
def test_any_two_policies_and_connections(
    before: t.Any, after: t.Any, ends: t.List[t.Tuple[int, int, bool]], interface: str, family: str
) -> None:
    version, shift = (4, 0) if family == "ipv4" else (6, 96)
    old, new = (config and from_config(config, family) for config in (before, after))
    flows = [
        Flow(source << shift, to << shift, (source << shift) + masqueraded, False, False, b"%d" % index)
        for index, (source, to, masqueraded) in enumerate(ends)
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel = Kernel(monkeypatch, flows, interface)
        done = flush(family, [old] if old else [], new, check=False)
    verdicts = [(model(old, one, version, interface), model(new, one, version, interface)) for one in flows]
    assert kernel.removed == [one for one, (was, now) in zip(flows, verdicts) if goes(was, now, one)]
    assert done.removed == len(kernel.removed) and not done.notes


EXEMPT, OUTSIDE = "10.99.0.1", "203.0.113.10"
PLAIN, NARROW = rules(), rules(masquerade_cidrs=["10.99.0.0/16"])


@pytest.mark.parametrize(
    "what, one, before, after",
    [
        ("the node's own", flow(EXEMPT, source=NODE), PLAIN, NARROW),
        ("to the node", flow(NODE, source="192.0.2.1"), None, PLAIN),
        ("has the node's address already", flow(EXEMPT, seen=NODE), PLAIN, NARROW),
        ("of a helper", flow(EXEMPT, related=True), PLAIN, NARROW),
        ("another verdict before, the same address", flow(OUTSIDE, seen=NODE), None, PLAIN),
        ("masqueraded by another program", flow(EXEMPT, seen=NODE), None, PLAIN),
        ("a Service", flow(EXEMPT, redirected=True), rules(exemption="accept"), NARROW),
        ("a host port on loopback", flow(EXEMPT, source="127.0.0.1"), rules(exemption="enforce"), NARROW),
    ],
)
def test_connections_that_stay(
    monkeypatch: pytest.MonkeyPatch, what: str, one: Flow, before: t.Optional[Ruleset], after: Ruleset
) -> None:
    kernel = Kernel(monkeypatch, [one])
    assert flush("ipv4", [before] if before else [], after, check=False) == ("ipv4", 0, ())
    assert not kernel.removed, what
    assert LOOPBACK["ipv4"]


def test_check_mode_counts_and_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, [flow(EXEMPT), flow(OUTSIDE, seen=NODE)])
    assert flush("ipv4", [PLAIN], NARROW, check=True).removed == 1
    assert not kernel.removed


def test_where_the_interface_is_not_known_connections_stay_if_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    narrowed = rules(out_interfaces=["eth0"], non_masquerade_cidrs=["10.0.0.0/8"])
    kernel = Kernel(monkeypatch, [flow("192.0.2.7"), flow("192.0.2.8"), flow(EXEMPT)])
    kernel.interfaces, kernel.default = {"192.0.2.8": "eth0"}, None
    done = flush("ipv4", [], narrowed, check=False)
    assert [one.destination for one in kernel.removed] == [number("192.0.2.8")]
    (note,) = done.notes
    assert note.startswith("flush_conntrack: 1 connections were left alone, because the interface")


def test_what_a_rule_asks_that_no_connection_tells_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that asks for more may or may not have matched."""
    kernel = Kernel(monkeypatch, [flow(EXEMPT), flow(OUTSIDE, seen=NODE)])
    monkeypatch.setattr(open_connections, "_KNOWN", ("sources", "interfaces"))
    done = flush("ipv4", [PLAIN], NARROW, check=False)
    assert not kernel.removed
    assert done.notes[0].startswith("flush_conntrack: 1 connections were left alone")


def test_a_guard_that_asks_for_any_mark_leaves_all_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, [flow(EXEMPT), flow(OUTSIDE, seen=NODE)])
    monkeypatch.setattr(open_connections, "_TOLD", ("source", "dnat", "interface"))
    done = flush("ipv4", [PLAIN], rules(exemption="accept", masquerade_cidrs=["10.99.0.0/16"]), check=False)
    assert not kernel.removed
    assert done.notes[0].startswith("flush_conntrack: 1 connections were left alone")


def test_time_limit_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, [flow(EXEMPT, key=b"%d" % n) for n in range(1000)])
    look = kernel.read

    def slow(version: int, each: t.Callable[[Flow], None]) -> None:
        def one(found: Flow) -> None:
            kernel.clock += 0.02
            each(found)

        look(version, one)

    monkeypatch.setattr(open_connections.conntrack, "read", slow)
    done = flush("ipv4", [PLAIN], NARROW, check=True)
    assert 500 <= done.removed < 1000
    assert "the limit of 10 seconds was met (512 connections read)" in done.notes[0]


def test_time_limit_while_removing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, [flow(EXEMPT, key=b"%d" % n) for n in range(1000)])
    remove = kernel.remove

    def slow(version: int, flows: t.Sequence[Flow]) -> int:
        kernel.clock += 6
        return remove(version, flows)

    monkeypatch.setattr(open_connections.conntrack, "remove", slow)
    done = flush("ipv4", [PLAIN], NARROW, check=False)
    assert done.removed == len(kernel.removed) == 512
    assert "the limit of 10 seconds was met (1000 connections read)" in done.notes[0]


def test_rules_that_decide_the_same_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, [])
    monkeypatch.setattr(open_connections.conntrack, "read", None)
    assert flush("ipv4", [PLAIN], rules(random_fully=False), check=False) == ("ipv4", 0, ())
    assert flush("ipv4", [], None, check=False) == ("ipv4", 0, ())
    assert not kernel.removed


def test_rules_are_applied_where_connections_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_version: int, _look: t.Any) -> None:
        raise NodeError("the kernel refused tracked connections: Operation not supported")

    machine = Machine(tmp_path)
    machine.install(monkeypatch)
    Kernel(monkeypatch, [])
    monkeypatch.setattr(open_connections.conntrack, "read", refuse)
    done = reconcile(machine.node(), build({"flush_conntrack": "changed"}))
    assert done.errors == (
        "ipv4: flush_conntrack: open connections were not examined: the kernel refused tracked connections: Operation "
        "not supported",
    )
    assert done.changed and machine.nat["iptables_nft", "ipv4"].chains["POSTROUTING"]
    again = reconcile(machine.node(), build({"flush_conntrack": "changed"}))
    assert not again.errors and not again.changed and not again.flushed


def test_rules_of_two_backends_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, [flow(OUTSIDE, seen=NODE), flow(EXEMPT)])
    nothing = rules(source_cidrs=["192.0.2.0/24"])
    assert flush("ipv4", [nothing, PLAIN], None, check=False).removed == 1
    assert [one.destination for one in kernel.removed] == [number(OUTSIDE)]
