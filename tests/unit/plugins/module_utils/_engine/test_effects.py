# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packets a change of the rules treats otherwise, against a few lines that decide about single packets."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import effect_words, open_connections
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.changed_packets import Comparison
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.effects import (
    LINES,
    Compared,
    Effect,
    Effects,
    as_returns,
    lines,
    unseen,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.masquerade_ports import chosen
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.open_connections import search
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import reconcile
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config, build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import parse_mark
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Flow
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6, PROTOCOLS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.rules_result import rules_return
from hypothesis import given
from hypothesis import strategies as st
from support import engine
from support.machine import Machine
from support.open_kernel import Kernel
from support.packet_effects import leaves_by
from support.packet_model import Packet, is_skipped, marks, model, packets, ports

NUMBERS = {"tcp": 6, "udp": 17, "sctp": 132}
#: Of kube-proxy and portmap, to which some exemptions leave packets.
SERVICE_MARKS = 0x6000
#: Packets of these have no mark that a policy skips.
PLAIN = ("", "with other marks")


def compared(one: Config, other: Config, family: str) -> t.List[Effect]:
    """The effects of a change from one policy to another."""
    rulesets = [from_config(config, family) for config in (one, other)]
    return Effects(Comparison(family, rulesets[:1], rulesets[1:], ports=chosen)).effects


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


def concerns(effect: Effect, packet: Packet, mark: int = 0, skipped: bool = False) -> bool:
    """Whether a packet has an effect.

    :param skipped: whether one of the policies leaves packets with the mark to other programs.
    """
    source, destination, interface, protocol, port = packet
    number = NUMBERS.get(protocol) or {4: 1, 6: 58}[source.version]
    return (
        _within(effect.destinations, int(destination))
        and _within(effect.sources, int(source))
        and leaves_by(interface, effect.out_interfaces)
        and _within(effect.services, number << 16 | port)
        and (not skipped if effect.packets in PLAIN else _has(effect.packets, mark))
    )


def _has(packets: str, mark: int) -> bool:
    """Whether packets that an effect names have a mark."""
    assert packets.startswith("with mark ")
    within, without = (packets[len("with mark ") :] + " except ").split(" except ")[:2]
    some, others = ([parse_mark(one) for one in part.split(", ") if one] for part in (within, without))
    return any(mark & one.mask == one.value for one in some) and all(mark & one.mask != one.value for one in others)


def said(config: Config, packet: Packet, mark: int) -> t.Tuple[str, t.Any]:
    """What a policy says of a packet, in its words, and what packets can tell of that."""
    found = "skip" if is_skipped(config, mark) else model(config, packet)
    if found == "exempt":
        return "pod", "" if config.exemption == "return" else config.exemption
    if found == "skip":
        return "not managed", ""
    if any(entry.dropped and found == "to %s" % (entry.address,) for entry in (*config.snat, *config.rules)):
        return "dropped", "dropped"
    return ("node" if found == "masquerade" else found[len("to ") :]), (found, *ports(config, packet))


def expected(one: Config, other: Config, packet: Packet, mark: int = 0) -> t.Optional[t.Tuple[str, str]]:
    """The words of the effect that a packet has; None: it has none."""
    (before, told), (after, told_after) = said(one, packet, mark), said(other, packet, mark)
    if told == told_after:
        return None
    if before == after == "pod":
        return "pod (exemption %s)" % one.exemption, "pod (exemption %s)" % other.exemption
    if isinstance(told, tuple) and isinstance(told_after, tuple):
        return tuple(  # type: ignore[return-value]
            word
            + (", ports " + ", ".join(map(str, ranges))) * bool(ranges and told[1] != told_after[1])
            + (" (ports at random)" if random else " (ports kept if free)")
            * ({told[2], told_after[2]} == {True, False})
            for word, (_found, ranges, random) in ((before, told), (after, told_after))
        )
    return before, after


def _present(config: Config) -> Config:
    """The policy, on a node that has its fixed addresses."""
    return config._replace(
        snat=tuple(entry._replace(dropped=False) for entry in config.snat),
        rules=tuple(rule._replace(dropped=False) for rule in config.rules),
    )


def _without_marks(config: Config) -> Config:
    return config._replace(skip_marks=())


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


def check_packets(one: Config, other: Config, family: str, data: t.Any) -> None:
    """Draw packets: each has one effect if the oracle says that it is treated otherwise, and else none."""
    found = compared(one, other, family)
    for number in range(6):
        packet = data.draw(packets((one, other)[number % 2], family))
        mark = data.draw(marks(one, other))
        if mark & SERVICE_MARKS and (one.exemption, other.exemption) != ("return", "return"):
            mark = 0
        # A policy that leaves a whole family alone leaves all marks alone.
        skipped = any(is_skipped(each, mark) and from_config(each, family).rules for each in (one, other))
        mine = [effect for effect in found if concerns(effect, packet, mark, skipped)]
        assert [(effect.before, effect.after) for effect in mine] == [
            words for words in [expected(one, other, packet, mark)] if words
        ], (packet, hex(mark))


@given(pairs(), engine.families, st.data())
def test_a_packet_has_one_effect_or_nothing_changes_for_it(
    pair: t.Tuple[Config, Config], family: str, data: t.Any
) -> None:
    check_packets(*pair, family, data)


@given(pairs(), engine.families, st.data())
def test_policies_that_differ_in_ports_alone(pair: t.Tuple[Config, Config], family: str, data: t.Any) -> None:
    one, other = pair[0], pair[0]._replace(random_fully=pair[1].random_fully, to_ports=pair[1].to_ports)
    check_packets(one, other, family, data)


@given(pairs(), engine.families, st.data())
def test_policies_that_differ_in_marks_alone(pair: t.Tuple[Config, Config], family: str, data: t.Any) -> None:
    check_packets(pair[0], pair[0]._replace(skip_marks=pair[1].skip_marks), family, data)


@given(pairs(), engine.families)
def test_each_corner_of_an_effect_is_treated_otherwise(pair: t.Tuple[Config, Config], family: str) -> None:
    one, other = pair
    kind: t.Any = ipaddress.IPv4Address if family == IPV4 else ipaddress.IPv6Address
    both = _without_marks(one), _without_marks(other)
    for effect in compared(*both, family)[:20]:
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
            assert expected(*both, packet) == (effect.before, effect.after), packet


@given(engine.narrow_configs, engine.families)
def test_the_same_policy_has_no_effects(config: Config, family: str) -> None:
    """Nor has another order of its ports and marks."""
    turned = config._replace(to_ports=config.to_ports[::-1], skip_marks=(*config.skip_marks[::-1], *config.skip_marks))
    assert compared(config, turned, family) == []


RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


@pytest.mark.parametrize(
    "before, after, found",
    [
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
    ],
)  # fmt: skip
def test_effects_in_the_words_of_the_policy(
    before: t.Dict[str, t.Any], after: t.Dict[str, t.Any], found: t.List[t.Dict[str, t.Any]]
) -> None:
    assert effects(before, after) == found


MARKS = {
    "a wider mask": (["0x200/0xff00"], ["0x200/0xf00"], ["with mark 0x200/0xf00 except 0x200/0xff00"]),
    "a redundant mark": (["0x200/0xf00"], ["0x200/0xf00", "0x200/0xff00", "0x1234"], []),
    "bits that overlap": (["1/1"], ["2/2"], ["with mark 0x1/0x1 except 0x2/0x2", "with mark 0x2/0x2 except 0x1/0x1"]),
    "two halves": (["0/1", "1/1"], ["0/2", "2/2"], []),
    "a half": (["0x10/0x10"], ["0x11/0x11", "0x10/0x11"], []),
    "a whole mark": (["0x7/0xf"], ["0x7/0xf", "8", "0x17"], ["with mark 0x8"]),
    "no mark": ([], ["0"], ["with mark 0x0"]),
    "the highest": (["0xffffffff"], ["0x80000000/0x80000000"], ["with mark 0x80000000/0x80000000 except 0xffffffff"]),
}


@pytest.mark.parametrize("case", MARKS)
def test_marks_are_sets_of_bits(case: str) -> None:
    before, after, found = MARKS[case]
    told = effects({"skip_marks": before}, {"skip_marks": after})
    assert sorted(one["packets"] for one in told) == found


def test_packets_that_nat_does_not_see() -> None:
    options: t.Dict[str, t.Any] = {"source_cidrs": ["10.244.0.0/16"]}
    plain, dropping = (from_config(build({**options, "leaks": leaks}), IPV4) for leaks in ("count", "drop"))
    (found,) = unseen(IPV4, [plain], [dropping])
    assert (found.packets, found.before, found.after) == ("without a connection", "pod", "dropped")
    assert as_returns([found])[0]["sources"] == ["10.244.0.0/16"] and found.open_connections == 0
    assert unseen(IPV4, [dropping], [dropping]) == unseen(IPV4, [plain], []) == []
    marked = from_config(build({**options, "leaks": "drop", "skip_marks": ["0x4000/0x4000"]}), IPV4)
    (found,) = unseen(IPV4, [dropping], [marked])
    assert (found.packets, found.before, found.after) == (
        "without a connection, with mark 0x4000/0x4000", "dropped", "pod",
    )  # fmt: skip


def _gone(config: Config) -> Config:
    """The policy, on a node that has none of its fixed addresses."""
    return config._replace(
        snat=tuple(entry._replace(dropped=True) for entry in config.snat),
        rules=tuple(rule._replace(dropped=rule.address is not None) for rule in config.rules),
    )


@given(pairs(), engine.families, st.data())
def test_packets_for_missing_addresses(pair: t.Tuple[Config, Config], family: str, data: t.Any) -> None:
    """Of packets that others may translate too, whether they leave is all that is told."""
    one, other = (_gone(side) if data.draw(st.booleans()) else side for side in pair)
    check_packets(one, other, family, data)
    found = compared(one, other, family)
    guards = [guard for side in (one, other) for guard in from_config(side, family).guards]
    if any(guard.marks for guard in guards):
        for side in (one, other):
            packet = data.draw(packets(side, family))
            mark = data.draw(marks(one, other)) | data.draw(st.sampled_from([0x2000, 0x4000, 0x6000]))
            dropped = [said(each, packet, mark)[0] == "dropped" for each in (one, other)]
            words = tuple("dropped" if one else "not managed" for one in dropped)
            mine = [effect for effect in found if concerns(effect, packet, mark, skipped=True)]
            assert [(effect.before, effect.after) for effect in mine] == [words] * (dropped[0] != dropped[1])


def test_what_is_dropped_meets_no_rule_in_front() -> None:
    """Nor does the rule in front translate it, so its open connections keep the address that they have."""
    policy = build({"snat": [{"address": "192.0.2.7", "source_cidrs": ["10.244.8.0/24"]}], "exemption": "accept"})
    front, there, gone = (
        from_config(one, IPV4) for one in (build({"non_masquerade_cidrs": []}), policy, _gone(policy))
    )
    found = Effects(Comparison(IPV4, [front, there], [front, gone])).effects
    assert [(one.packets, one.before, one.after) for one in found] == [
        ("", "node", "dropped"),
        ("with mark 0x2000/0x2000, 0x4000/0x4000", "not managed", "dropped"),
    ]
    assert not Effects(Comparison(IPV4, [front, gone], [front, gone])).effects


def test_rules_that_cannot_be_read_are_not_known() -> None:
    after = from_config(build({"non_masquerade_cidrs": ["10.0.0.0/8"], "masq_link_local": True}), IPV4)
    found = Effects(Comparison(IPV4, [None], [after])).effects
    assert [(one.before, one.after) for one in found] == [("unknown", "node"), ("unknown", "pod")]


def _effect(number: int, **more: t.Any) -> Effect:
    values = {"packets": "", "before": "pod", "after": "node", "open_connections": number, **more}
    return Effect(IPV4, ((number, number),), None, (), None, **values)


def test_lines_for_people() -> None:
    assert lines([]) == []
    assert lines([Compared(IPV4, ())]) == ["rules rewritten, no packet is treated otherwise"]
    partly = lines([Compared(IPV4, (), complete=False)])
    assert partly[0].endswith("source address or port; packets of Services and host ports were not compared")
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


PORTS = {
    "ranges": (
        {}, {"to_ports": ["50000-50001"]},
        "for tcp, udp, sctp: node -> node, ports 50000-50001 (2 source ports in place of 64,512)",
    ),
    "more ports": (
        {"to_ports": ["50000-50001"]}, {"to_ports": ["60000-60009", "50000-50001"]},
        "for tcp, udp, sctp: node, ports 50000-50001 -> node, ports 50000-50001, 60000-60009",
    ),
    "mapping": ({}, {"random_fully": False}, ": node (ports at random) -> node (ports kept if free)"),
    "both": (
        {"to_ports": ["3000-3999"]}, {"random_fully": False},
        "for tcp, udp, sctp: node, ports 3000-3999 (ports at random) -> node (ports kept if free)",
    ),
    "an entry": (
        {"rules": [{"action": "masquerade", "protocols": ["udp"]}]},
        {"rules": [{"action": "masquerade", "protocols": ["udp"], "ports_mapping": "keep"}]},
        "0.0.0.0/0 for udp: node (ports at random) -> node (ports kept if free)",
    ),
    "a single port": (
        {"to_ports": ["40000"]}, {"random_fully": False, "to_ports": ["40000"]},
        "for all services except tcp, udp, sctp: node (ports at random) -> node (ports kept if free), open",
    ),
    "with an address": (
        {}, {"to_ports": ["3000-3999"], "snat": [{"address": "192.0.2.7"}]},
        "for tcp, udp, sctp: node -> 192.0.2.7, ports 3000-3999 (1,000 source ports in place of 64,512)",
    ),
    "also of an address": (
        {"to_ports": ["3000-3999"]}, {"to_ports": ["3000-3999"], "masquerade_cidrs": ["10.5.0.0/16"]},
        "10.5.0.0/16: pod -> node, open",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PORTS)
def test_source_ports_in_words(case: str) -> None:
    before, after, text = PORTS[case]
    told = [line(effect) for effect in compared(build(before), build(after), IPV4)]
    assert [one for one in told if text in one], told


def test_fewer_ports_warn(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open connections keep their ports."""
    reconcile(machine.node(), build({}))
    opened = [Flow(10, 20, seen, 17, 53, False, False, b"%d" % seen) for seen in (1, 2, 10)]
    kernel = Kernel(monkeypatch, opened)
    changed = build({"to_ports": ["50000-50001"], "flush_conntrack": "changed"})
    result = reconcile(machine.node(), changed, effects=True)
    (found,) = rules_return(result, True)["effects"]
    assert (found["ports_before"], found["ports_after"], found["open_connections"]) == (64512, 2, 0)
    assert kernel.removed == [] and [done.removed for done in result.flushed] == [0]
    (note,) = result.effect_notes
    assert "one of 2 source ports in place of 64,512: at most 2 at a time" in note


def test_connections_that_cannot_be_counted_are_not_zero(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(_version: int) -> None:
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
    opened, interfaces = [], {}
    for number in range(8):
        source, destination, interface, protocol, port = data.draw(packets(pair[number % 2], family))
        service = NUMBERS.get(protocol) or {4: 1, 6: 58}[source.version]
        seen = data.draw(st.sampled_from([int(source), 1]))
        opened.append(Flow(int(source), int(destination), seen, service, port, False, False, b"%d" % number))
        interfaces[int(source), int(destination)] = interface
    with pytest.MonkeyPatch.context() as patch:
        kernel = Kernel(patch, opened)
        kernel.interfaces, kernel.own = interfaces, 2
        planned, counts = search(comparison, True, found)
        assert (planned.removed, kernel.removed) == (sum(counts), [])
        done, removed = search(comparison, False, found)
        assert (done.removed, removed) == (planned.removed, counts) and len(kernel.removed) == sum(counts)
        assert search(comparison, False, found, counting=True)[1] == counts


def test_names_of_protocols() -> None:
    """Every protocol that a policy can name has its name in effects, in each family."""
    for family in (IPV4, IPV6):
        for name in ("tcp", "udp", "sctp", "icmp"):
            entry = {"action": "skip", "protocols": [name]}
            options: t.Dict[str, t.Any] = {"enable_ipv6": True}
            for found in effects(options, {**options, "rules": [entry]}, family):
                assert found["services"] == [name]
    assert set(PROTOCOLS) == {"tcp", "udp", "sctp", "icmp", "ipv6-icmp"}
