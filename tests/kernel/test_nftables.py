# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is the nftables backend's own: its table, its set, and the way to it and from it."""

from __future__ import annotations

import ipaddress
import itertools
import re
import subprocess
import sys
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nf_tables, nfnetlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.netlink import Message
from support import modules
from support.modules import apply
from support.namespaces import Namespace
from support.programs import Programs
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, NFTABLES, PODS, VARIANTS, snapshot

TABLE = "ip ip_masq_agent"
DEFAULT = ["10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]


def nft(ns: Namespace, *commands: str) -> None:
    """Carry out commands of nft in one transaction."""
    ns.run("nft", "-f", "-", stdin="\n".join(commands + ("",)))


def rule(ns: Namespace, part: str) -> str:
    """The handle of the rule that holds ``part``."""
    lines = [line for line in NFTABLES.saved(ns, "ipv4").splitlines() if part in line]
    return lines[0].rsplit(" ", 1)[1]


#: What somebody does to the table; in braces, part of the rule whose handle is meant.
DAMAGE: t.Dict[str, t.Sequence[str]] = {
    "element beside another added": ["add element %s exempt_ranges { 11.0.0.0/8 }"],
    "element removed": ["delete element %s exempt_ranges { 172.16.0.0/12 }"],
    "rule removed": ["delete rule %s postrouting handle {masquerade}"],
    "rule that means something else": [
        "replace rule %s postrouting handle {@exempt_ranges} ip saddr @exempt_ranges return",
    ],
    "order changed": [
        "delete rule %s postrouting handle {masquerade}",
        "insert rule %s postrouting counter masquerade fully-random",
    ],
    "another chain": ["add chain %s mine { type nat hook postrouting priority 10; }", "add rule %s mine masquerade"],
    "another set": ['add set %s mine { type ipv4_addr; flags interval; elements = { 10.0.0.1 comment "a, b }" }; }'],
    "a map and a counter": ["add map %s m { type ipv4_addr : verdict; }", "add counter %s c"],
    "chain at another priority": [
        "delete chain %s postrouting",
        "add chain %s postrouting { type nat hook postrouting priority -5; }",
    ],
    "chain that is not hooked": [
        "flush chain %s postrouting",
        "delete chain %s postrouting",
        "add chain %s postrouting",
    ],
    "only the set left": ["delete chain %s postrouting"],
    "only the chain left": ["flush chain %s postrouting", "delete set %s exempt_ranges"],
    "set of another kind": [
        "flush chain %s postrouting",
        "delete set %s exempt_ranges",
        "add set %s exempt_ranges { typeof ip daddr; flags interval, timeout; }",
    ],
    "set of an earlier release left": ["add set %s exempt { type ipv4_addr; flags interval; auto-merge; }"],
    "nothing left but the table": ["delete table %s", "add table %s"],
    "asleep": ["add table %s { flags dormant; }"],
    "table gone": ["delete table %s"],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_repaired_in_one_run(topology: Topology, damage: str) -> None:
    a, node = ADDRESSES["ipv4"], topology.node
    apply(node, backend="nftables")
    for command in DAMAGE[damage]:
        meant = re.search(r"handle \{(.*?)\}", command)
        there = rule(node, meant.group(1)) if meant else ""
        nft(node, re.sub(r"(?<=handle )\{.*?\}", there, command).replace("%s", TABLE))
    done = apply(node, backend="nftables")
    assert done["changed"] is True
    assert done["actions"]
    assert NFTABLES.exempt(node, "ipv4") == DEFAULT
    assert NFTABLES.rules(node, "ipv4") == ["-d %s -j RETURN" % cidr for cidr in DEFAULT] + [
        "-j MASQUERADE --random-fully"
    ]
    kinds = sorted(kind for kind, _content in NFTABLES.objects(node, "ipv4"))
    assert kinds == ["chain", "rule", "rule", "rule", "set", "table"]
    assert topology.ask(a.exempt[0], a.outside[0]) == {a.exempt[0]: a.pod, a.outside[0]: a.node}
    assert apply(node, backend="nftables")["changed"] is False


SAME: t.Dict[str, t.Sequence[str]] = {
    "no comments and no counters": [
        "flush chain %s postrouting",
        "add rule %s postrouting fib daddr type local return",
        "add rule %s postrouting ip daddr @exempt_ranges return",
        "add rule %s postrouting masquerade fully-random",
    ],
    "no auto-merge, and ranges in pieces": [
        "delete table %s",
        "add table %s",
        "add set %s exempt_ranges { typeof ip daddr; flags interval; }",
        "add element %s exempt_ranges { 10.0.0.0/9, 10.128.0.0-10.255.255.255, 172.16.0.0/12, 192.168.0.0/16 }",
        "add element %s exempt_ranges { 169.254.0.0/16 }",
        "add chain %s postrouting { type nat hook postrouting priority srcnat; }",
        "add rule %s postrouting fib daddr type local return",
        "add rule %s postrouting ip daddr @exempt_ranges counter return comment mine",
        "add rule %s postrouting masquerade fully-random",
    ],
    "the chain before the set": [
        "delete table %s",
        "add table %s",
        "add chain %s postrouting { type nat hook postrouting priority 100; }",
        "add set %s exempt_ranges { typeof ip daddr; flags interval; auto-merge; }",
        "add element %s exempt_ranges { 192.168.0.0/16, 10.0.0.0/8, 172.16.0.0/12, 169.254.0.0/16 }",
        "add rule %s postrouting fib daddr type local counter return",
        "add rule %s postrouting ip daddr @exempt_ranges counter return",
        "add rule %s postrouting counter masquerade fully-random",
    ],
}


@pytest.mark.parametrize("form", SAME)
def test_a_table_that_means_the_same_is_not_touched(ns: Namespace, form: str) -> None:
    apply(ns, backend="nftables")
    nft(ns, *(command % TABLE for command in SAME[form]))
    before = NFTABLES.saved(ns, "ipv4")
    assert apply(ns, backend="nftables")["changed"] is False
    assert NFTABLES.saved(ns, "ipv4") == before


@pytest.mark.parametrize(
    "cidrs, merged",
    [
        (["10.0.0.0/9", "10.128.0.0/9"], ["10.0.0.0/8"]),
        (["10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8"], ["10.0.0.0/7"]),
        (["10.0.0.0/8", "11.0.0.0/9"], ["10.0.0.0/8", "11.0.0.0/9"]),
        (["0.0.0.0/0"], ["0.0.0.0/0"]),
        (["0.0.0.0/1", "128.0.0.0/1"], ["0.0.0.0/0"]),
        (["240.0.0.0/4", "255.255.255.255/32", "0.0.0.0/8"], ["0.0.0.0/8", "240.0.0.0/4"]),
        (["1.2.3.4/32", "1.2.3.5/32", "1.2.3.7/32"], ["1.2.3.4/31", "1.2.3.7/32"]),
        (["128.0.0.0/1"], ["128.0.0.0/1"]),
        (["::/0"], []),
        (["ffff::/16", "::/128", "8000::/1"], []),
    ],
    ids=",".join,
)
def test_adjacent_ranges_are_in_force_and_a_second_run_changes_nothing(
    ns: Namespace, cidrs: t.List[str], merged: t.List[str]
) -> None:
    options = {"backend": "nftables", "enable_ipv6": True, "masq_link_local": True, "masq_link_local_ipv6": True}
    apply(ns, non_masquerade_cidrs=cidrs, **options)
    six = ipaddress.collapse_addresses([ipaddress.ip_network(cidr) for cidr in cidrs if ":" in cidr])
    assert NFTABLES.exempt(ns, "ipv4") == merged
    assert NFTABLES.exempt(ns, "ipv6") == [str(network) for network in six]
    assert apply(ns, non_masquerade_cidrs=cidrs, **options)["changed"] is False
    # And from one such list to another, where elements grow, shrink, split and join.
    for other in (["10.0.0.0/8", "fd00::/8"], ["10.64.0.0/10", "fd80::/9"], cidrs):
        assert apply(ns, non_masquerade_cidrs=other, **options)["changed"] is True
        assert apply(ns, non_masquerade_cidrs=other, **options)["changed"] is False


def test_what_does_not_change_keeps_its_counters(topology: Topology) -> None:
    a, node = ADDRESSES["ipv4"], topology.node
    apply(node, backend="nftables")
    topology.ask(*a.exempt, *a.outside)
    before = NFTABLES.counters(node, "ipv4")
    apply(node, backend="nftables", non_masquerade_cidrs=["10.0.0.0/8", "100.64.0.0/10"])
    after = NFTABLES.counters(node, "ipv4")
    assert before[-1] == after[-1] != "-c 0 0 -j MASQUERADE --random-fully"


def flushing(marks: t.Callable[[Message], bool], times: int) -> t.Callable[[t.List[Message]], t.List[Message]]:
    """Another program flushes everything right before a step with such a change is written, so many times."""
    flushes = itertools.count(1)

    def write(changes: t.List[Message]) -> t.List[Message]:
        if any(map(marks, changes)) and next(flushes) <= times:
            subprocess.run(["nft", "flush", "ruleset"], check=True)
        return changes

    return write


def makes(kind: int) -> t.Callable[[Message], bool]:
    """Whether a change is of a kind."""
    return lambda change: change.kind & 0xFF == kind


@pytest.mark.parametrize("flushes", [1, 3])
@pytest.mark.parametrize(
    "there, step",
    [
        (False, makes(nf_tables.NEW_CHAIN)),
        (True, makes(nf_tables.DELETE_RULE)),
        (True, makes(nf_tables.NEW_SET)),
        ("sources", lambda change: b"_interim" in change.body),
    ],
    ids=["new table", "other rules", "new set", "sets of temporary names"],
)
def test_a_flush_between_two_transactions_is_no_reason_to_give_up(
    topology: Topology, programs: Programs, there: t.Any, step: t.Callable[[Message], bool], flushes: int
) -> None:
    a, node = ADDRESSES["ipv4"], topology.node
    options = {"backend": "nftables", "source_cidrs": ["10.244.0.0/16"]}
    if there:
        apply(node, **dict(options, source_cidrs=["10.7.0.0/16"] if there == "sources" else []))
        options["non_masquerade_cidrs"] = ["10.0.0.0/9", "172.16.0.0/12", "192.168.0.0/16"]
    programs.netlink.write = flushing(step, flushes)
    done = apply(node, path=programs.path, **options)
    assert done["changed"] is True
    # Those that were refused, or whose rules were flushed, were planned anew.
    assert len(programs.writes()) > flushes
    assert apply(node, **options)["changed"] is False
    assert topology.ask(a.outside[0]) == {a.outside[0]: a.node}


def test_flushes_without_end_are_named(ns: Namespace, programs: Programs) -> None:
    programs.netlink.write = flushing(makes(nf_tables.NEW_CHAIN), 1000)
    message = modules.refused(ns, path=programs.path, backend="nftables")
    assert "another program removed the table ip ip_masq_agent" in message and "Nothing was changed" in message
    assert "lacks" not in message
    assert NFTABLES.rules(ns, "ipv4") is None


def test_from_one_backend_to_any_other_nothing_stays_and_nothing_is_missing(topology: Topology) -> None:
    a, node = ADDRESSES["ipv4"], topology.node
    stream = None
    nft, legacy, native = "iptables_nft", "iptables_legacy", "nftables"
    for backend in (nft, native, legacy, native, nft, legacy, nft, legacy, nft, legacy, nft):
        assert apply(node, backend=backend, enable_ipv6=True)["changed"] is True
        for name, other in BACKENDS.items():
            for family in ("ipv4", "ipv6"):
                assert bool(other.jumps(node, family)) == (name == backend), (backend, name, family)
                assert (other.rules(node, family) is not None) == (name == backend), (backend, name, family)
        stream = stream or topology.stream(*a.exempt, *a.outside)
    assert stream is not None
    seen = stream.finish()
    assert {where: set(sources) for where, sources in seen.items()} == dict(
        [(exempt, {a.pod}) for exempt in a.exempt] + [(outside, {a.node}) for outside in a.outside]
    )


def test_ipv6_that_is_turned_off_leaves_no_table(ns: Namespace) -> None:
    apply(ns, backend="nftables", enable_ipv6=True)
    assert apply(ns, backend="nftables")["changed"] is True
    assert NFTABLES.present(ns, "ipv4")
    assert not NFTABLES.present(ns, "ipv6")


@pytest.mark.parametrize("backend", sorted(VARIANTS))
def test_a_node_that_uses_iptables_starts_nft_for_nothing(ns: Namespace, programs: Programs, backend: str) -> None:
    for _run in range(2):
        apply(ns, backend=backend, enable_ipv6=True, path=programs.path)
    assert [call for call in programs.calls() if call[0] == "nft"] == []


def test_the_kernel_says_which_extensions_and_tables_it_has(ns: Namespace) -> None:
    asked = (
        "from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.nfnetlink import *\n"
        "from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6\n"
        "print([has_extension(IPV4, TARGET, 'MASQUERADE', 0), has_extension(IPV6, MATCH, 'addrtype', 1),"
        " has_extension(IPV4, TARGET, 'NOSUCH', 0), has_extension(IPV4, MATCH, 'addrtype', 99),"
        " has_nft_table(IPV4, 'mine'), has_nft_table(IPV6, 'mine')])\n"
    )
    location = nfnetlink.__file__.split("ansible_collections")[0]
    nft(ns, "add table ip mine")
    before = snapshot(ns)
    program = "import sys; sys.path.insert(0, %r)\n%s" % (location, asked)
    assert ns.run(sys.executable, "-c", program) == "[True, True, False, False, True, False]\n"
    assert snapshot(ns) == before
    # Who may not ask gets no wrong answer.
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,+dac_read_search"]
    nobody += ["--ambient-caps=-all,+dac_read_search", sys.executable, "-c", program]
    assert ns.run(*nobody) == "[None, None, None, None, None, None]\n"


def test_a_masquerade_rule_of_iptables_is_reported_unless_exemptions_are_enforced(ns: Namespace) -> None:
    rule = "-A POSTROUTING -o eth0 -j MASQUERADE"
    VARIANTS["iptables_nft"].load(ns, "ipv4", rule, "-A POSTROUTING -p tcp -j RETURN")
    (warning,) = apply(ns, backend="nftables", source_cidrs=PODS[:1])["warnings"]
    assert "a POSTROUTING rule of iptables_nft also matches this traffic (%s)" % rule in warning
    assert not apply(ns, backend="nftables", exemption="enforce", source_cidrs=PODS[:1]).get("warnings")
