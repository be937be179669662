# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What earlier agents, other programs and people left behind is taken over without a gap."""

from __future__ import annotations

import typing as t

import pytest
from support.marks import iptables_only
from support.modules import apply, run_module
from support.namespaces import Namespace
from support.predecessors import ALL, Predecessor, of
from support.topology import ADDRESSES, Topology
from support.variants import VARIANTS, Variant, snapshot

CHAIN = "IP-MASQ-AGENT"
JUMP = "-m addrtype ! --dst-type LOCAL -j "
MASQUERADE = "-A %s -j MASQUERADE --random-fully" % CHAIN
EXEMPT = [
    "-A %s -d %s -j RETURN" % (CHAIN, c) for c in ("169.254.0.0/16", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
]
#: the default policy, but for its jump
BODY = [":%s - [0:0]" % CHAIN, *EXEMPT, MASQUERADE]
GOOD = "-A POSTROUTING %s%s" % (JUMP, CHAIN)
BETWEEN = "-A POSTROUTING -p udp -m mark --mark 0x9 -j RETURN"

each_predecessor = pytest.mark.parametrize("family, name", ALL, ids=lambda value: value)


@each_predecessor
@iptables_only
def test_predecessor_that_means_the_same_is_left_alone(
    topology: Topology, variant: Variant, family: str, name: str
) -> None:
    """Comments, redundant matches and notation are not meaning: neither rules nor counters are touched."""
    left: Predecessor = of(family)[name]
    a, node = ADDRESSES[family], topology.node
    variant.load(node, family, *left.lines)
    if family == "ipv6":  # so that only IPv6 is at stake
        variant.load(node, "ipv4", *of("ipv4")[name].lines)
    topology.ask(*a.exempt, *a.outside)
    before = snapshot(node)
    done = apply(node, backend=variant.backend, **left.options)
    assert (done["changed"], done["actions"]) == (False, [])
    assert snapshot(node) == before


@each_predecessor
def test_predecessor_is_replaced_once_and_without_a_gap(
    topology: Topology, variant: Variant, family: str, name: str
) -> None:
    """A new policy under the default name: what is exempt or outside before and after is so at every instant."""
    left: Predecessor = of(family)[name]
    a, node = ADDRESSES[family], topology.node
    options = {
        "backend": variant.backend,
        "enable_ipv6": family == "ipv6",
        "non_masquerade_cidrs": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]
        + (["fc00::/7", "2002::/16"] if family == "ipv6" else []),
    }
    variant.load(node, family, *left.lines)
    stream = topology.stream(*a.exempt, *a.outside)
    changed = [apply(node, **options)["changed"] for _again in range(3)]
    seen = stream.finish()
    assert changed == [True, False, False]
    assert {where: set(sources) for where, sources in seen.items()} == dict(
        [(exempt, {a.pod}) for exempt in a.exempt] + [(outside, {a.node}) for outside in a.outside]
    )
    # A second one that directly follows does nothing, and is left alone.
    assert set(variant.jumps(node, family)) == {JUMP + CHAIN}
    for other in VARIANTS.values():
        for chain in (left.chain, CHAIN):
            if (other, chain) != (variant, CHAIN):
                assert other.jumps(node, family, chain) == []
                assert other.rules(node, family, chain) is None


#: what a damaged POSTROUTING looks like: name -> lines
DAMAGED: t.Dict[str, t.List[str]] = {
    "no jump": [],
    "two jumps": [GOOD, BETWEEN, GOOD],
    "three jumps, two comments": [GOOD, GOOD.replace("-m addr", '-m comment --comment "x" -m addr'), BETWEEN, GOOD],
    "no match": ["-A POSTROUTING -j " + CHAIN],
    "match the wrong way round": ["-A POSTROUTING -m addrtype --dst-type LOCAL -j " + CHAIN],
    "match of another type": ["-A POSTROUTING -m addrtype ! --dst-type BROADCAST -j " + CHAIN],
    "match of the source": ["-A POSTROUTING -m addrtype ! --src-type LOCAL -j " + CHAIN],
    "one match too many": ["-A POSTROUTING -p tcp -m addrtype ! --dst-type LOCAL -j " + CHAIN],
    "limited to a source": ["-A POSTROUTING -s 10.9.0.0/16 -m addrtype ! --dst-type LOCAL -j " + CHAIN],
    "limited to an interface": ["-A POSTROUTING -o eth7 -m addrtype ! --dst-type LOCAL -j " + CHAIN],
    "goto": ["-A POSTROUTING -m addrtype ! --dst-type LOCAL -g " + CHAIN],
    "goto and a good jump": ["-A POSTROUTING -m addrtype ! --dst-type LOCAL -g " + CHAIN, GOOD],
    "a good jump and one without match": [GOOD, "-A POSTROUTING -j " + CHAIN],
    "behind ACCEPT": ["-A POSTROUTING -j ACCEPT", GOOD],
    "behind RETURN": ["-A POSTROUTING -j RETURN", GOOD],
    "behind ACCEPT with a comment": ['-A POSTROUTING -m comment --comment "all is well" -j ACCEPT', GOOD],
    "before and behind ACCEPT": [GOOD, "-A POSTROUTING -j ACCEPT", GOOD],
    "bad before, good behind RETURN": ["-A POSTROUTING -j " + CHAIN, "-A POSTROUTING -j RETURN", GOOD],
    "only ACCEPT": ["-A POSTROUTING -j ACCEPT"],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_jump_is_repaired_in_one_run(topology: Topology, variant: Variant, damage: str) -> None:
    a, node = ADDRESSES["ipv4"], topology.node
    foreign = ["-A POSTROUTING -s 10.88.0.0/16 -m mark --mark 0x9 -j RETURN", "-A POSTROUTING -p sctp -j ACCEPT"]
    variant.load(node, "ipv4", *BODY, foreign[0], *DAMAGED[damage], foreign[1])
    others = [line for line in variant.listing(node, "ipv4", "POSTROUTING") or [] if CHAIN not in line]
    done = apply(node, backend=variant.backend)
    assert done["changed"] is True
    assert variant.jumps(node, "ipv4") == [JUMP + CHAIN]
    assert [line for line in variant.listing(node, "ipv4", "POSTROUTING") or [] if CHAIN not in line] == others
    assert set(topology.ask(*a.outside).values()) == {a.node}
    assert set(topology.ask(*a.exempt).values()) == {a.pod}
    again = apply(node, backend=variant.backend)
    assert (again["changed"], again["actions"]) == (False, [])


@pytest.mark.parametrize(
    "before",
    [
        "-A POSTROUTING -s 10.9.0.0/16 -j RETURN",
        "-A POSTROUTING -o eth7 -j ACCEPT",
        "-A POSTROUTING -m mark --mark 0x4000/0x4000 -j ACCEPT",
        "-A POSTROUTING -p udp -j RETURN",
    ],
)
@iptables_only
def test_jump_behind_a_rule_for_some_packets_stays_where_it_is(ns: Namespace, variant: Variant, before: str) -> None:
    variant.load(ns, "ipv4", *BODY, before, GOOD)
    assert apply(ns, backend=variant.backend)["changed"] is False


#: what a damaged chain looks like: name -> its rules
BROKEN: t.Dict[str, t.List[str]] = {
    "empty": [],
    "no MASQUERADE": EXEMPT,
    "MASQUERADE first": [MASQUERADE, *EXEMPT],
    "MASQUERADE in the middle": [*EXEMPT[:2], MASQUERADE, *EXEMPT[2:]],
    "a range missing": [*EXEMPT[:-1], MASQUERADE],
    "a range too many": [*EXEMPT, "-A %s -d 203.0.113.0/24 -j RETURN" % CHAIN, MASQUERADE],
    "ACCEPT instead of RETURN": [line.replace("RETURN", "ACCEPT") for line in EXEMPT] + [MASQUERADE],
    "a LOG between": [*EXEMPT, "-A %s -d 203.0.113.0/24 -j LOG" % CHAIN, MASQUERADE],
    "SNAT in place of MASQUERADE": [*EXEMPT, "-A %s -j SNAT --to-source 198.51.100.1" % CHAIN],
    "a rule limited to a protocol": [EXEMPT[0].replace("-d", "-p tcp -d"), *EXEMPT[1:], MASQUERADE],
    "a negated range": [EXEMPT[0].replace("-d", "! -d"), *EXEMPT[1:], MASQUERADE],
    "a bare RETURN first": ["-A %s -j RETURN" % CHAIN, *EXEMPT, MASQUERADE],
    "no --random-fully": [*EXEMPT, MASQUERADE.replace(" --random-fully", "")],
    "--random in its place": [*EXEMPT, MASQUERADE.replace("--random-fully", "--random")],
    "MASQUERADE to ports": [
        *EXEMPT,
        MASQUERADE.replace("-j", "-p tcp -j").replace("DE ", "DE --to-ports 5-6 "),
        MASQUERADE,
    ],
    "a source": [*EXEMPT, MASQUERADE.replace("-j", "-s 10.0.0.0/8 -j")],
}


@pytest.mark.parametrize("damage", BROKEN)
def test_damaged_chain_is_repaired_in_one_run(ns: Namespace, variant: Variant, damage: str) -> None:
    variant.load(ns, "ipv4", BODY[0], *BROKEN[damage], GOOD)
    assert apply(ns, backend=variant.backend)["changed"] is True
    assert variant.listing(ns, "ipv4", CHAIN) is not None
    exempt = [line.split()[3] for line in EXEMPT]
    expected = ["-d %s -j RETURN" % cidr for cidr in variant.in_order(exempt)]
    assert variant.rules(ns, "ipv4") == [*expected, "-j MASQUERADE --random-fully"]
    assert variant.jumps(ns, "ipv4") == [JUMP + CHAIN]
    assert apply(ns, backend=variant.backend)["changed"] is False


#: other ways to write the default policy
SAME: t.Dict[str, t.List[str]] = {
    "notes and hosts": [EXEMPT[0].replace("-j", '-m comment --comment "mine" -j'), *EXEMPT[1:], MASQUERADE],
    "netmask": [EXEMPT[0].replace("/16", "/255.255.0.0"), *EXEMPT[1:], MASQUERADE],
    "a range written twice": [*EXEMPT, EXEMPT[1], MASQUERADE],
    "halves of a range": [
        EXEMPT[0],
        EXEMPT[1].replace("10.0.0.0/8", "10.0.0.0/9"),
        EXEMPT[1].replace("10.0.0.0/8", "10.128.0.0/9"),
        *EXEMPT[2:],
        MASQUERADE,
    ],
}


@pytest.mark.parametrize("form", SAME)
@iptables_only
def test_chain_that_means_the_same_is_not_rewritten(ns: Namespace, variant: Variant, form: str) -> None:
    variant.load(ns, "ipv4", BODY[0], *SAME[form], GOOD)
    before = snapshot(ns)
    done = run_module(ns, backend=variant.backend)
    assert (done["changed"], done["actions"]) == (False, [])
    assert snapshot(ns) == before


def test_foreign_rules_stay_byte_for_byte(ns: Namespace, variant: Variant, family: str) -> None:
    odd = "10.96.0.10/32" if family == "ipv4" else "fd00:96::a/128"
    variant.load(
        ns,
        family,
        ":KUBE-POSTROUTING - [0:0]",
        ":KUBE-SERVICES - [0:0]",
        ":KUBE-MARK-MASQ - [0:0]",
        ":IP-MASQ-AGENT-2 - [0:0]",
        '[7:420] -A PREROUTING -m comment --comment "it\'s \\"odd\\" \\\\ -j IP-MASQ-AGENT" -j KUBE-SERVICES',
        "[8:480] -A KUBE-SERVICES -d %s -p udp -m udp --dport 53 -j KUBE-MARK-MASQ" % odd,
        "[9:540] -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        "[3:180] -A POSTROUTING -j KUBE-POSTROUTING",
        "[2:120] -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "[1:60] -A KUBE-POSTROUTING -j MASQUERADE --random-fully",
        '[4:240] -A POSTROUTING -m comment --comment "-j IP-MASQ-AGENT" -s %s -j IP-MASQ-AGENT-2' % odd,
    )
    before = variant.host.saved(ns, family)
    options: t.Dict[str, t.Any] = {"backend": variant.backend, "enable_ipv6": True}
    for more in ({}, {"non_masquerade_cidrs": []}, {"to_ports": ["1024-2048"]}, {"state": "absent"}):
        assert apply(ns, **options, **more)["changed"] is True
        lines = variant.host.saved(ns, family).splitlines()
        rest = [line for line in lines if ":IP-MASQ-AGENT " not in line and "-A IP-MASQ-AGENT " not in line]
        assert "\n".join(line for line in rest if not line.endswith("-j IP-MASQ-AGENT")) == before
