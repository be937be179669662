# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which open connections a change of the rules removes, and when it stops. Real connections: tests/kernel."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import open_connections, ruleset_in_front
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.changed_packets import Comparison
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import parse_postrouting
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.open_connections import Flushed, search
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import reconcile
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import (
    Guard,
    PolicyMatch,
    Ruleset,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Flow
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, PROTOCOLS, Family
from hypothesis import given
from hypothesis import strategies as st
from support import engine, random_policies
from support.machine import Machine
from support.open_kernel import Kernel
from support.rule_match import applies

NODE, POD = "198.51.100.1", "10.244.1.2"


def number(address: str) -> int:
    """An address as conntrack has it."""
    return int(ipaddress.ip_address(address))


def flow(destination: str, source: str = POD, seen: str = "", **more: t.Any) -> Flow:
    """A connection of a pod that keeps its address, unless another one is seen."""
    known: t.Dict[str, t.Any] = {"protocol": 6, "port": 443, "redirected": False, "related": False}
    known = {**known, "key": repr((source, destination, seen, more)).encode(), **more}
    return Flow(number(source), number(destination), number(seen or source), **known)


def flush(
    family: Family,
    before: t.Sequence[Ruleset],
    after: t.Optional[Ruleset],
    check: bool,
    front: t.Sequence[Ruleset] = (),
) -> Flushed:
    """Remove connections after a change of rules; those in front are there before and after it."""
    return search(Comparison(family, [*front, *before], [*front, *([after] if after else [])]), check)[0]


def rules(**options: t.Any) -> Ruleset:
    """The IPv4 rules of a policy."""
    return from_config(build(options), IPV4)


def model(ruleset: t.Optional[Ruleset], one: Flow, version: int, interface: str, mark: int) -> t.Tuple[str, t.Any]:
    """What becomes of a connection: rule by rule, as iptables would do it."""
    kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    service = one.protocol << 16 | one.port
    for rule in ruleset.rules if ruleset else ():
        if isinstance(rule, Guard):
            if rule.mark and mark & rule.mark.mask == rule.mark.value:
                return "left", None
        elif applies(rule, kind(one.destination), kind(one.source), interface, service):
            if rule.way is not None:
                # What a share does not take, a later rule does.
                if rule.way.share is None and PROTOCOLS.get(rule.way.protocol or "", one.protocol) == one.protocol:
                    return "masquerade", rule.address
            elif rule.verdict != "RETURN":
                return "exempt", None
            else:
                return "left", None
    return "left", None


def goes(old: t.Tuple[str, t.Any], new: t.Tuple[str, t.Any], one: Flow, own: int) -> bool:
    """The definition."""

    def seen_as(fixed: t.Any) -> bool:
        return one.seen in map(int, fixed.addresses())

    (was, former), (now, fixed) = old, new
    if old == new:
        return False
    if fixed is not None:
        return not seen_as(fixed)
    translated = one.seen != one.source
    given = seen_as(former) if former is not None else was == "masquerade" and translated
    if now == "masquerade":
        return not translated or (given and one.seen != own)
    return translated and (given or now == "exempt")


octets = st.sampled_from([10, 11, 172, 192])
ends = st.builds(lambda first, rest: (first << 24) | rest, octets, st.integers(0, 2**24 - 1))
services = st.sampled_from([(6, 80), (6, 83), (17, 82), (132, 81), (1, 0), (58, 0), (47, 0)])
#: with these and no others, the marks of support.random_policies are told apart, besides those of Services
MARKS = (
    *(top | middle | low for top in (0, 1 << 31) for middle in (0, 0x200, 0x1200, 0x8200) for low in (0, 1, 7, 8, 16)),
    0xFFFF0000,
)
FIXED = {4: (number("192.0.2.7"), number("192.0.2.9")), 6: (number("2001:db8::7"), number("2001:db8::9"))}


@given(
    st.none() | engine.narrow_configs,
    st.none() | engine.narrow_configs,
    st.lists(st.tuples(ends, ends, services, st.integers(0, 3)), min_size=1, max_size=8),
    st.sampled_from(["eth0", "eth1", "bond0", "wlan0"]),
    engine.families,
)
def test_any_two_policies_and_connections(
    before: t.Any,
    after: t.Any,
    opened: t.List[t.Tuple[int, int, t.Tuple[int, int], int]],
    interface: str,
    family: str,
) -> None:
    version, shift = (4, 0) if family == IPV4 else (6, 96)
    old, new = (config and from_config(config, family) for config in (before, after))
    flows = [
        Flow(
            source << shift,
            to << shift,
            (source << shift, (source << shift) + 1, *FIXED[version])[seen],
            *service,
            False,
            False,
            b"%d" % index,
        )
        for index, (source, to, service, seen) in enumerate(opened)
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel = Kernel(monkeypatch, flows, interface)
        kernel.own = FIXED[version][1]
        done = flush(family, [old] if old else [], new, check=False)
    outcomes = [
        {
            goes(model(old, one, version, interface, mark), model(new, one, version, interface, mark), one, kernel.own)
            for mark in MARKS
        }
        for one in flows
    ]
    assert kernel.removed == [one for one, found in zip(flows, outcomes) if found == {True}]
    assert done.removed == len(kernel.removed)
    if any(len(found) == 2 for found in outcomes):
        assert "the mark of their packets, which skip_marks matches" in done.notes[0]
    elif not any(config and config.skip_marks for config in (before, after)):
        assert not done.notes


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
    assert flush(IPV4, [before] if before else [], after, check=False) == (IPV4, 0, ())
    assert not kernel.removed, what


def test_every_condition_of_rules_is_considered() -> None:
    """Whoever adds one has to say here whether connections tell it."""
    assert PolicyMatch._fields == ("sources", "destinations", "interfaces", "services")
    # No connection has packets that nat does not see.
    assert set(Guard._fields) == {"marks", "source", "dnat", "mark", "unseen_own"}


def test_fixed_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has the right address if it has one of the range, or that of the interface where none is fixed."""
    right, wrong = flow(OUTSIDE, seen="198.51.100.8"), flow(OUTSIDE, seen=NODE)
    other = rules(snat=[{"address": "198.51.100.20"}])
    fixed = rules(snat=[{"address": "198.51.100.7-198.51.100.9"}])
    for before, after, removed in (
        (PLAIN, fixed, [wrong]),
        (fixed, PLAIN, [right]),
        (other, fixed, [wrong]),
        (None, fixed, [wrong]),
        (fixed, None, [right]),
        (fixed, rules(source_cidrs=["192.0.2.0/24"]), [right]),
        (fixed, fixed, []),
    ):
        kernel = Kernel(monkeypatch, [right, wrong])
        flush(IPV4, [before] if before else [], after, check=False)
        assert kernel.removed == removed
    # The address that was fixed is the one of the interface too.
    kernel = Kernel(monkeypatch, [right])
    kernel.own = right.seen
    assert flush(IPV4, [fixed], PLAIN, check=False).removed == 0


@pytest.mark.parametrize("check", [True, False])
def test_time_limit_while_reading(monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    """What was found until then is removed, and the note has the figures and a command."""
    kernel = Kernel(monkeypatch, [flow(EXEMPT, key=b"%d" % n) for n in range(1000)])

    def slow(_version: int) -> t.Iterator[Flow]:
        for one in kernel.flows:
            kernel.clock += 0.015
            yield one

    monkeypatch.setattr(open_connections.conntrack, "read", slow)
    done = flush(IPV4, [PLAIN], NARROW, check=check)
    assert (done.removed, len(kernel.removed)) == (768, 0 if check else 768)
    assert done.notes == (
        "flush_conntrack: the limit of 10 seconds was met; connections read: 768, changed by the policy: 768. The "
        "others keep their source address until they end. To remove the connections of a pod: conntrack -D -f ipv4 -s "
        "POD_ADDRESS",
    )


def test_connections_are_removed_while_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are, and the kernel may show some twice, also those that were removed."""
    keys = [*range(30000), *range(29990, 30005)]
    kernel = Kernel(monkeypatch, [flow(EXEMPT, key=b"%d" % n) for n in keys])
    reads: t.List[int] = []
    remove = kernel.remove

    def counting(_version: int) -> t.Iterator[Flow]:
        for one in kernel.flows:
            reads.append(len(kernel.removed))
            yield one

    def once(version: int, flows: t.Sequence[Flow]) -> int:
        return remove(version, [one for one in flows if one not in kernel.removed[-300:]])

    monkeypatch.setattr(open_connections.conntrack, "read", counting)
    monkeypatch.setattr(open_connections.conntrack, "remove", once)
    assert flush(IPV4, [PLAIN], NARROW, check=True) == (IPV4, 30005, ())
    assert flush(IPV4, [PLAIN], NARROW, check=False) == (IPV4, 30005, ())
    assert reads[-1] >= 29000, "nothing was removed while connections were read"
    assert len(set(kernel.removed)) == len(kernel.removed) == 30005


def test_rules_are_applied_where_connections_cannot_be_read(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    def refuse(_version: int) -> None:
        raise NodeError("the kernel refused tracked connections: Operation not supported")

    Kernel(monkeypatch, [])
    monkeypatch.setattr(open_connections.conntrack, "read", refuse)
    done = reconcile(machine.node(), build({"flush_conntrack": "changed"}))
    assert done.errors == (
        "ipv4: flush_conntrack: open connections were not examined: the kernel refused tracked connections: Operation "
        "not supported",
    )
    assert done.changed and machine.nat["iptables_nft", IPV4].chains["POSTROUTING"]
    again = reconcile(machine.node(), build({"flush_conntrack": "changed"}))
    assert not again.errors and not again.changed and not again.flushed


def test_what_rules_in_front_decide_ours_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges, sources and interfaces, also inverted ones."""
    lines = {
        "-s 10.244.0.0/16 -j MASQUERADE": True,
        "! -s 10.244.0.0/16 -j MASQUERADE": False,
        "-s 10.244.0.0/16 ! -d 10.0.0.0/8 -j MASQUERADE": False,
        "! -d 192.168.0.0/16 ! -o cni0 -j MASQUERADE --random-fully": True,
        "! -o eth0 -j SNAT --to-source 192.0.2.1": False,
        "-o eth0 -j ACCEPT": True,
        "-d 10.99.0.0/16 -j RETURN": True,
        "-p tcp -m tcp --dport 443 -j RETURN": True,
        "-p udp -j RETURN": False,
        "-d 10.99.0.1/32 ! -s 192.0.2.0/24 -j ACCEPT": True,
        "-m addrtype ! --dst-type LOCAL -j RETURN": True,
    }
    for line, decides in lines.items():
        rules_in_front = parse_postrouting(["-A POSTROUTING " + line])
        known = ruleset_in_front.front(rules_in_front, rules_in_front, IPV4)
        assert not known.unread and len(known.front) == 1, line
        kernel = Kernel(monkeypatch, [flow(EXEMPT)])
        done = flush(IPV4, [PLAIN], NARROW, check=False, front=known.front)
        assert (done.removed, bool(kernel.removed)) == ((0, False) if decides else (1, True)), line


def test_rules_in_front_that_cannot_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named are those that can decide about unmarked traffic; chains are not followed."""
    lines = (
        "-m set --match-set pods src -j MASQUERADE",
        "-m conntrack --ctstate DNAT -j MASQUERADE",
        "-j NETMAP --to 192.0.2.0/24",
        "-m mark --mark 0x4000/0x4000 -j MASQUERADE",
        "-j KUBE-POSTROUTING",
        "-m conntrack --ctstate DNAT -j RETURN",
    )
    rules_in_front = parse_postrouting(["-A POSTROUTING " + line for line in lines])
    known = ruleset_in_front.front(rules_in_front, rules_in_front, IPV4)
    assert not known.front
    assert known.unread == tuple("-A POSTROUTING " + lines[number] for number in (0, 1, 2, 5))
    # What is not there before and afterwards is not common.
    assert not ruleset_in_front.front(rules_in_front, rules_in_front[3:5], IPV4).unread


def _flushed(machine: Machine, monkeypatch: pytest.MonkeyPatch, flows: t.Sequence[Flow], **options: t.Any) -> t.Any:
    """Have a policy with ``flush_conntrack``, and return the result and the destinations of what was removed."""
    kernel = Kernel(monkeypatch, flows)
    done = reconcile(machine.node(), build({"flush_conntrack": "changed", **options}))
    assert done.changed and not done.errors
    return done, [str(ipaddress.ip_address(one.destination)) for one in kernel.removed]


@pytest.mark.parametrize("backend", ["iptables_nft", "iptables_legacy"])
def test_rules_that_are_not_read_are_reported(monkeypatch: pytest.MonkeyPatch, machine: Machine, backend: str) -> None:
    reconcile(machine.node(), build({"backend": backend}))
    nat = machine.nat[backend, IPV4]
    opened = [flow(EXEMPT, seen=NODE), flow(OUTSIDE), flow("10.1.1.1")]
    note = (
        "ipv4: flush_conntrack: some rules before the change are not understood, and count as rules that masqueraded "
        "nothing: the managed ones. To remove the connections of a pod: conntrack -D -f ipv4 -s POD_ADDRESS"
    )
    nat.chains[random_policies.CHAIN].insert(0, "-p tcp -m tcp --tcp-flags SYN SYN -j RETURN")
    done, removed = _flushed(machine, monkeypatch, opened, backend=backend)
    assert removed == [OUTSIDE] and note in done.notes
    # A chain that only some packets meet is not known, either.
    nat.chains["POSTROUTING"] = ["-p tcp -j " + random_policies.CHAIN]
    done, removed = _flushed(machine, monkeypatch, opened, backend=backend)
    assert removed == [OUTSIDE] and note in done.notes
    # What decided nothing is known.
    for rules_before in ([], ["-j " + random_policies.CHAIN]):
        nat.chains["POSTROUTING"] = list(rules_before)
        nat.chains[random_policies.CHAIN] = []
        done, removed = _flushed(machine, monkeypatch, opened, backend=backend)
        assert removed == [OUTSIDE] and note not in done.notes


def test_rules_in_front_of_the_jump_are_considered(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """If they are there before and afterwards."""
    options: t.Dict[str, t.Any] = {"backend": "iptables_nft", "jump_position": "last"}
    reconcile(machine.node(), build(options))
    postrouting = machine.nat["iptables_nft", IPV4].chains["POSTROUTING"]
    postrouting.insert(0, "-d 10.99.0.0/24 -j ACCEPT")
    postrouting.insert(1, "-m set --match-set pods src -j ACCEPT")
    opened = [flow("10.99.0.1"), flow("10.99.1.1")]
    done, removed = _flushed(machine, monkeypatch, opened, masquerade_cidrs=["10.99.0.0/16"], **options)
    assert removed == ["10.99.1.1"]
    (note,) = [note for note in done.notes if "flush_conntrack" in note]
    assert note == (
        "ipv4: flush_conntrack: some rules before the change are not understood, and count as rules that masqueraded "
        "nothing: -A POSTROUTING -m set --match-set pods src -j ACCEPT. To remove the connections of a pod: conntrack "
        "-D -f ipv4 -s POD_ADDRESS"
    )
