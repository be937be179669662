# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packets a change of the rules treats otherwise, against a few lines that decide about single packets."""

from __future__ import annotations

import ipaddress
import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import effect_words, open_connections
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.changed_packets import Comparison
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.effects import (
    LIMIT,
    LINES,
    Compared,
    Effect,
    Effects,
    as_returns,
    lines,
    unseen,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.open_connections import search
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import reconcile
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config, build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Flow
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6, PROTOCOLS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.routes import UNICAST
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.rules_result import rules_diff, rules_return
from hypothesis import given
from hypothesis import strategies as st
from support import engine
from support.machine import Machine
from support.many_ranges import many_ranges
from support.packet_model import Packet, model, packets

NUMBERS = {"tcp": 6, "udp": 17, "sctp": 132}
#: Packets of these have no mark that a policy skips.
PLAIN = ("", "with other marks")


def compared(one: Config, other: Config, family: str) -> t.List[Effect]:
    """The effects of a change from one policy to another."""
    rulesets = [from_config(config, family) for config in (one, other)]
    return Effects(Comparison(family, rulesets[:1], rulesets[1:])).effects


def line(effect: Effect) -> str:
    """One of them for people."""
    return effect_words.line(as_returns([effect])[0])


def effects(before: t.Dict[str, t.Any], after: t.Dict[str, t.Any], family: str = IPV4) -> t.List[t.Dict[str, t.Any]]:
    """The effects as they are returned, without what is the same for all packets."""
    found = as_returns(compared(build(before), build(after), family))
    return [
        {key: value for key, value in one.items() if value not in ([], 0, "", None) and key != "family"}
        for one in found
    ]


def _within(some: t.Optional[t.Sequence[t.Tuple[int, int]]], number: int) -> bool:
    return some is None or any(first <= number <= last for first, last in some)


def _leaves_by(names: t.Sequence[str], name: str) -> bool:
    """Whether a list has an interface: of several entries that match, the last counts."""
    state = not names or names[0].startswith("!")
    for entry in names:
        pattern = entry.lstrip("!")
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            state = not entry.startswith("!")
    return state


def concerns(effect: Effect, packet: Packet) -> bool:
    """Whether a packet has an effect."""
    source, destination, interface, protocol, port = packet
    number = NUMBERS.get(protocol) or {4: 1, 6: 58}[source.version]
    return (
        _within(effect.destinations, int(destination))
        and _within(effect.sources, int(source))
        and _leaves_by(effect.out_interfaces, interface)
        and _within(effect.services, number << 16 | port)
    )


def said(config: Config, packet: Packet) -> t.Tuple[str, str]:
    """What a policy says of a packet, in its words, and what packets can tell of that."""
    found = model(config, packet)
    if found == "exempt":
        return "pod", "" if config.exemption == "return" else config.exemption
    if found == "skip":
        return "not managed", ""
    return ("node" if found == "masquerade" else found[len("to ") :]), found


def expected(one: Config, other: Config, packet: Packet) -> t.Optional[t.Tuple[str, str]]:
    """The words of the effect that a packet has; None: it has none."""
    (before, told), (after, told_after) = said(one, packet), said(other, packet)
    if told == told_after:
        return None
    if before == after:
        return "pod (exemption %s)" % one.exemption, "pod (exemption %s)" % other.exemption
    return before, after


def _present(config: Config) -> Config:
    """The policy, on a node that has its fixed addresses."""
    return config._replace(
        snat=tuple(entry._replace(dropped=False) for entry in config.snat),
        rules=tuple(rule._replace(dropped=False) for rule in config.rules),
    )


@st.composite
def pairs(draw: t.Any) -> t.Tuple[Config, Config]:
    """Two policies, as often as not with much in common."""
    one, other = (_present(draw(engine.narrow_configs)) for _side in range(2))
    names = [name for name in Config._fields if name not in ("notes",)]
    if draw(st.booleans()):
        changed = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
        other = one._replace(**{name: getattr(other, name) for name in changed})
        apart = tuple(one for one in other.masquerade_cidrs if one not in other.non_masquerade_cidrs)
        other = other._replace(masquerade_cidrs=apart)
    return one, other


@given(pairs(), engine.families, st.data())
def test_a_packet_has_one_effect_or_nothing_changes_for_it(
    pair: t.Tuple[Config, Config], family: str, data: t.Any
) -> None:
    one, other = pair
    found = [effect for effect in compared(one, other, family) if effect.packets in PLAIN]
    for number in range(6):
        packet = data.draw(packets(pair[number % 2], family))
        mine = [effect for effect in found if concerns(effect, packet)]
        assert [(effect.before, effect.after) for effect in mine] == [
            words for words in [expected(one, other, packet)] if words
        ], packet


@given(pairs(), engine.families)
def test_each_corner_of_an_effect_is_treated_otherwise(pair: t.Tuple[Config, Config], family: str) -> None:
    one, other = pair
    kind: t.Any = ipaddress.IPv4Address if family == IPV4 else ipaddress.IPv6Address
    for effect in [effect for effect in compared(one, other, family) if effect.packets in PLAIN][:20]:
        names = ("eth0", "eth1", "eth10", "bond0", "bond7", "wlan0", "ens3")
        corners = [
            (
                kind((effect.sources or ((0, 0),))[end][end]),
                kind(effect.destinations[end][end]),
                name,
                protocol,
                port,
            )
            for end in (0, -1)
            for name in names
            for protocol, port in (("tcp", 80), ("tcp", 82), ("udp", 81), ("sctp", 79), ("icmp", 0))
        ]
        own = [packet for packet in corners if concerns(effect, packet)]
        for packet in own:
            assert expected(one, other, packet) == (effect.before, effect.after), packet


@given(engine.narrow_configs, engine.families)
def test_the_same_policy_has_no_effects(config: Config, family: str) -> None:
    """Nor has another choice of source ports."""
    assert compared(config, config._replace(random_fully=not config.random_fully, to_ports=()), family) == []


RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


@pytest.mark.parametrize(
    "before, after, found",
    [
        (
            {},
            {"masquerade_cidrs": ["10.5.0.0/16"]},
            [{"destinations": ["10.5.0.0/16"], "before": "pod", "after": "node"}],
        ),
        (
            {"non_masquerade_cidrs": [*RFC1918, "100.64.0.0/11", "100.96.0.0/11"]},
            {},
            [{"destinations": ["100.64.0.0/10"], "before": "pod", "after": "node"}],
        ),
        (
            {},
            {"rules": [{"action": "snat", "address": "192.0.2.7", "sources": ["10.244.8.0/24"],
                        "destinations": ["203.0.113.0/24"], "out_interfaces": ["bond*"],
                        "protocols": ["tcp"], "ports": ["25"]}]},
            [{"destinations": ["203.0.113.0/24"], "sources": ["10.244.8.0/24"], "out_interfaces": ["bond*"],
              "services": ["tcp/25"], "before": "node", "after": "192.0.2.7"}],
        ),
        (
            {"non_masquerade_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]},
            {"non_masquerade_cidrs": ["0.0.0.0/0"], "masquerade_cidrs": ["203.0.113.0/24"], "out_interfaces": ["eth0"]},
            [{"destinations": ["203.0.113.0/24"], "out_interfaces": ["eth0"], "before": "pod", "after": "node"}],
        ),
        (
            {"non_masquerade_cidrs": ["0.0.0.0/0"], "masquerade_cidrs": ["203.0.113.0/24"]},
            {"non_masquerade_cidrs": ["0.0.0.0/0"], "masquerade_cidrs": ["203.0.113.0/24"],
             "except_interfaces": ["eth0", "bond*"]},
            [{"destinations": ["203.0.113.0/24"], "out_interfaces": ["bond*", "eth0"], "before": "node",
              "after": "not managed"}],
        ),
        (
            {"non_masquerade_cidrs": ["10.0.0.0/8"], "masq_link_local": True},
            {"non_masquerade_cidrs": ["10.0.0.0/8"], "masq_link_local": True, "exemption": "accept"},
            [{"destinations": ["10.0.0.0/8"], "before": "pod (exemption return)", "after": "pod (exemption accept)"}],
        ),
    ],
)  # fmt: skip
def test_effects_in_the_words_of_the_policy(
    before: t.Dict[str, t.Any], after: t.Dict[str, t.Any], found: t.List[t.Dict[str, t.Any]]
) -> None:
    assert effects(before, after) == found


def test_marks_of_packets_that_are_left_to_other_programs() -> None:
    before = {"non_masquerade_cidrs": ["0.0.0.0/0"], "masquerade_cidrs": ["203.0.113.0/24"]}
    (found,) = effects(before, {**before, "skip_marks": ["0x200/0xf00"]})
    assert found == {
        "destinations": ["203.0.113.0/24"], "packets": "with mark 0x200/0xf00", "before": "node", "after": "not managed"
    }  # fmt: skip
    # Packets with a mark that both leave alone get no other treatment.
    (found,) = effects({"skip_marks": ["7"]}, {"skip_marks": ["7"], "masquerade_cidrs": ["10.5.0.0/16"]})
    assert "packets" not in found
    # Packets without a mark are left alone here.
    (found,) = effects({"skip_marks": ["0"]}, {"skip_marks": ["0"], "masquerade_cidrs": ["10.5.0.0/16"]})
    assert found["packets"] == "with other marks"


def test_packets_that_nat_does_not_see() -> None:
    options: t.Dict[str, t.Any] = {"source_cidrs": ["10.244.0.0/16"]}
    plain, dropping = (from_config(build({**options, "leaks": leaks}), IPV4) for leaks in ("count", "drop"))
    (found,) = unseen(IPV4, [plain], [dropping])
    assert (found.packets, found.before, found.after) == ("without a connection", "pod", "dropped")
    assert as_returns([found])[0]["sources"] == ["10.244.0.0/16"] and found.open_connections == 0
    assert unseen(IPV4, [dropping], [dropping]) == unseen(IPV4, [plain], []) == []


def test_a_missing_address_whose_connections_are_dropped() -> None:
    policy = build({"snat": [{"address": "192.0.2.7", "source_cidrs": ["10.244.8.0/24"]}], "snat_missing": "drop"})
    there = from_config(policy, IPV4)
    gone = from_config(policy._replace(snat=tuple(one._replace(dropped=True) for one in policy.snat)), IPV4)
    (found,) = Effects(Comparison(IPV4, [there], [gone])).effects
    assert (found.before, found.after) == ("192.0.2.7", "dropped")


def test_rules_that_cannot_be_read_are_not_known() -> None:
    after = from_config(build({"non_masquerade_cidrs": ["10.0.0.0/8"], "masq_link_local": True}), IPV4)
    found = Effects(Comparison(IPV4, [None], [after])).effects
    assert [(one.before, one.after) for one in found] == [("unknown", "node"), ("unknown", "pod")]


def test_thousands_of_ranges_are_the_largest_and_a_count() -> None:
    ranges = many_ranges(1000)
    after = {"masquerade_cidrs": [*ranges, "172.16.0.0/20"], "cidr_limit": 2000}
    (found,) = effects({}, after)
    assert len(found["destinations"]) == LIMIT and found["destinations"][0] == "172.16.0.0/20"
    assert found["destinations_omitted"] == 1001 - LIMIT
    (effect,) = compared(build({}), build(after), IPV4)
    assert line(effect).startswith("172.16.0.0/20, ") and " and 996 more: pod -> node" in line(effect)


def _effect(number: int, **more: t.Any) -> Effect:
    values = {"packets": "", "before": "pod", "after": "node", "open_connections": number, **more}
    return Effect(IPV4, ((number, number),), None, (), None, **values)


def test_lines_for_people() -> None:
    assert lines([]) == []
    assert lines([Compared(IPV4, ())]) == ["rules rewritten, no packet is treated otherwise"]
    assert lines([Compared(IPV4, (), moved=True)])[1].endswith("was not compared")
    some = tuple(map(_effect, range(LINES + 1230)))
    told = lines([Compared(IPV4, some), Compared(IPV6, ())])
    assert len(told) == LINES + 1 and told[-1] == "and 1,230 more"
    assert told[:3] == [
        "0.0.0.0/32: pod -> node, 0 open connections",
        "0.0.0.1/32: pod -> node, 1 open connection",
        "0.0.0.2/32: pod -> node, 2 open connections",
    ]
    assert line(_effect(1, open_connections=None)).endswith("open connections not counted")
    entry = {"action": "exempt", "destinations": ["203.0.113.0/24"], "out_interfaces": ["eth0"], "protocols": ["tcp"]}
    (effect,) = compared(build({}), build({"rules": [entry]}), IPV4)
    assert line(effect) == "203.0.113.0/24 over eth0 for tcp: node -> pod, open connections not counted"
    (effect,) = compared(build({"out_interfaces": ["eth0"]}), build({}), IPV4)
    assert line(effect) == (
        "0.0.0.0/0 except 10.0.0.0/8, 172.16.0.0/12, 169.254.0.0/16, 192.168.0.0/16 over all interfaces except eth0: "
        "not managed -> node, open connections not counted"
    )


def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    machine.install(monkeypatch)
    return machine


def test_check_mode_and_the_run_report_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _machine(tmp_path, monkeypatch)
    reconcile(machine.node(), build({}))
    changed = build({"masquerade_cidrs": ["10.5.0.0/16"]})
    results = [reconcile(machine.node(), changed, check=check, effects=True) for check in (True, False)]
    returned = [rules_return(result, True) for result in results]
    assert returned[0]["effects"] == returned[1]["effects"] and rules_diff(results[0]) == rules_diff(results[1])
    (found,) = returned[0]["effects"]
    assert (found["destinations"], found["before"], found["after"]) == (["10.5.0.0/16"], "pod", "node")
    assert returned[0]["effects_summary"] == ["10.5.0.0/16: pod -> node, 0 open connections"]
    assert rules_diff(results[0])["after"].endswith(
        "# what changes for packets\n10.5.0.0/16: pod -> node, 0 open connections\n"
    )
    json.dumps(returned)
    again = rules_return(reconcile(machine.node(), changed, effects=True), True)
    assert (again["effects"], again["effects_omitted"], again["effects_summary"]) == ([], 0, [])


def test_a_rewrite_that_changes_nothing_for_packets_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _machine(tmp_path, monkeypatch)
    reconcile(machine.node(), build({}))
    result = reconcile(machine.node(), build({"random_fully": False}), effects=True)
    assert result.changed
    returned = rules_return(result, True)
    assert returned["effects"] == []
    assert returned["effects_summary"] == ["rules rewritten, no packet is treated otherwise"]


def test_nothing_is_compared_that_was_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _machine(tmp_path, monkeypatch)
    monkeypatch.setattr(open_connections.conntrack, "read", None)
    assert reconcile(machine.node(), build({})).compared == ()
    assert reconcile(machine.node(), build({}), effects=True).compared == ()


def test_connections_that_cannot_be_counted_are_not_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _machine(tmp_path, monkeypatch)

    def refuse(_version: int, _look: t.Any) -> None:
        raise NodeError("the kernel refused tracked connections: Operation not supported")

    monkeypatch.setattr(open_connections.conntrack, "read", refuse)
    result = reconcile(machine.node(), build({}), effects=True)
    assert not result.errors and result.changed
    assert {effect.open_connections for one in result.compared for effect in one.effects} == {None}
    assert "ipv4: open_connections: not counted: the kernel refused tracked connections: Operation not supported" in (
        result.effect_notes
    )


@given(pairs(), engine.families, st.data())
def test_as_many_connections_are_counted_as_are_removed(
    pair: t.Tuple[Config, Config], family: str, data: t.Any
) -> None:
    """Each has one effect."""
    one, other = (from_config(config, family) for config in pair)
    comparison = Comparison(family, [one], [other])
    found = Effects(comparison)
    opened = []
    for number in range(8):
        source, destination, interface, protocol, port = data.draw(packets(pair[number % 2], family))
        service = NUMBERS.get(protocol) or {4: 1, 6: 58}[source.version]
        seen = data.draw(st.sampled_from([int(source), 1]))
        opened.append(
            (interface, Flow(int(source), int(destination), seen, service, port, False, False, b"%d" % number))
        )
    with pytest.MonkeyPatch.context() as patch:
        kernel = _Kernel(patch, opened)
        planned, counts = search(comparison, True, found)
        assert (planned.removed, kernel.removed) == (sum(counts), [])
        done, removed = search(comparison, False, found)
        assert (done.removed, removed) == (planned.removed, counts) and len(kernel.removed) == sum(counts)
        assert search(comparison, False, found, counting=True)[1] == counts


class _Kernel:
    """Connections, each with the interface by which it leaves."""

    def __init__(self, patch: pytest.MonkeyPatch, opened: t.Sequence[t.Tuple[str, Flow]]) -> None:
        self.removed: t.List[Flow] = []
        self._flows = [flow for _interface, flow in opened]
        self._by = {(flow.source, flow.destination): interface for interface, flow in opened}
        patch.setattr(open_connections.conntrack, "read", lambda _version, look: [look(one) for one in self._flows])
        patch.setattr(open_connections.conntrack, "remove", self._remove)
        patch.setattr(open_connections, "Routes", lambda _version: self)

    def _remove(self, _version: int, flows: t.Sequence[Flow]) -> int:
        self.removed += flows
        return len(flows)

    def __enter__(self) -> _Kernel:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def kind(self, _address: int) -> int:
        return UNICAST

    def preferred(self, _address: int) -> t.Optional[int]:
        return 2

    def interface(self, source: int, destination: int) -> t.Optional[str]:
        return self._by[source, destination]


def test_names_of_protocols() -> None:
    """Every protocol that a policy can name has its name in effects, in each family."""
    for family in (IPV4, IPV6):
        for name in ("tcp", "udp", "sctp", "icmp"):
            entry = {"action": "skip", "protocols": [name]}
            options: t.Dict[str, t.Any] = {"enable_ipv6": True}
            for found in effects(options, {**options, "rules": [entry]}, family):
                assert found["services"] == [name]
    assert set(PROTOCOLS) == {"tcp", "udp", "sctp", "icmp", "ipv6-icmp"}
