# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a twin has all that decides on its node, and says what it has not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path
from unittest import mock

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import iptables_tool, netlink, nf_tables, xtables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.netlink import KernelError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import (
    legacy,
    links,
    namespaces,
    not_copied,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.twin import Twin
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import Question
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.twins import build, strange_node
from support.unnamed_namespaces import carry_out, inside

#: How each part of the state is listed, and what a listing has that says nothing: counters, times, numbers of handles.
_LISTINGS = (
    ("nft", "-s", "list", "ruleset"),
    ("iptables-legacy-save",),
    ("ip6tables-legacy-save",),
    ("ipset", "save", "-sorted"),
    ("ip", "rule"),
    ("ip", "-6", "rule"),
    ("ip", "addrlabel"),
    ("ip", "route", "show", "table", "all"),
    ("ip", "-6", "route", "show", "table", "all"),
    ("ip", "-o", "-4", "address"),
    ("ip", "-o", "-6", "address"),
)


_DIFFERENT = ("linkdown", "nodad", "tentative")


def _listed(argv: t.Sequence[str], prefix: t.Sequence[str] = ()) -> t.List[str]:
    done = subprocess.run([*prefix, *argv], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("#", ":"))]
    return sorted(lines) if argv[0].startswith("ip") else lines


def _compare_listings(seed: int) -> t.List[str]:
    made = strange_node(seed)
    for _attempt in range(20):
        with made.space:
            before = [_listed(argv) for argv in _LISTINGS]
            found = _differences()
            # The kernel adds routes some time after a link came up.
            if before == [_listed(argv) for argv in _LISTINGS]:
                return found
    raise AssertionError("the node keeps changing")


def _differences() -> t.List[str]:
    with build() as copy:
        there = _way_into(copy)
        ours = ("nft", "delete", "table", "inet", "kubenode_ip_masq_twin")
        subprocess.run([*there, *ours], check=True)
        return [
            "%s:\n%s\n--- twin:\n%s" % (" ".join(argv), "\n".join(here), "\n".join(copied))
            for argv in _LISTINGS
            for here, copied in [(_listed(argv), _without_spare_ports(_listed(argv, there)))]
            if _bare(here) != _bare(copied)
        ]


def _way_into(copy: Twin) -> t.Tuple[str, ...]:
    """The command line in front of a program that is to run in a copy."""
    holder = copy._worker._pid
    (child,) = Path("/proc/%d/task/%d/children" % (holder, holder)).read_text().split()
    return ("nsenter", "--target", child, "--net")


def _without_spare_ports(lines: t.Sequence[str]) -> t.List[str]:
    return [line for line in lines if "twinpod" not in line]


def _bare(lines: t.Sequence[str]) -> t.List[t.List[str]]:
    """The words of each line, without what differs: the other end of a cable, the carrier of a bridge without pods, and
    nexthops that are objects of their own: the copy has what they lead to.
    """
    plain = [re.sub(r"\bnhid [0-9]+ ?", "", line) for line in lines]
    words = [[word.split("@if")[0] for word in line.split() if word not in _DIFFERENT] for line in plain]
    return sorted(word for word in words if word)


@pytest.mark.parametrize("seed", range(8))
def test_copy_is_the_same_to_every_tool(seed: int) -> None:
    assert carry_out(_compare_listings, seed) == []


#: What nft can write that a copy has to have: for a table each, the hook of its chain, what else it has, and rules.
_NFT_TABLES = """
filter forward 0 | set s { type ipv4_addr; size 65535; flags dynamic; } | ip protocol tcp add @s { ip saddr ct count
  over 20 } drop
filter forward 0 | set s { type ipv4_addr; size 65535; flags dynamic,timeout; timeout 60s; } | update @s { ip saddr
  limit rate 10/second } accept
filter forward 0 | set s { type ipv4_addr; size 65535; flags dynamic; } | add @s { ip saddr } accept
filter forward 0 | set s { type ipv4_addr; size 65535; flags dynamic; elements = { 1.2.3.4 limit rate 10/second } }
  | add @s { ip saddr limit rate 10/second } accept
filter forward 0 | set s { type ipv4_addr; flags timeout; elements={1.2.3.4 timeout 1h} } | ip saddr @s accept
filter forward 0 | set s { type ipv4_addr; counter; elements={1.2.3.4} } | ip saddr @s accept
nat postrouting 0 | map m { type ipv4_addr : ipv4_addr; flags interval; elements={10.0.0.0/8 : 1.2.3.4} } | snat to
  ip saddr map @m
filter postrouting 0 | map m { type ipv4_addr : mark; flags dynamic,timeout; size 100; timeout 1h; } | update @m {
  ip saddr : 0x5 }
filter forward 0 | quota q { over 10 mbytes } | quota name "q" drop
filter forward 0 | counter k {}; map m { type ipv4_addr : counter; elements={1.2.3.4 : "k"} } | counter name ip
  saddr map @m
filter forward 0 | limit l { rate 10/second } | limit name "l" accept
filter prerouting 0 | ct helper h { type "ftp" protocol tcp; } | tcp dport 21 ct helper set "h"
filter forward 0 | synproxy s { mss 1460; wscale 7; } | tcp flags syn synproxy name "s"
filter forward 0 | flags dormant | accept
filter forward 0 | set s { type ipv4_addr; size 100; flags dynamic; counter; quota over 5 mbytes; } | add @s { ip
  saddr } accept
filter forward 0 | set s { type ipv4_addr . inet_service; size 100; flags dynamic; limit rate 5/second; } | add @s {
  ip saddr . tcp dport } accept
filter prerouting -150 | | meta l4proto tcp socket transparent 1 meta mark set 1 accept
filter prerouting -150 | | osf name "Linux" accept
filter forward 0 | | rt classid 5 accept; rt nexthop 1.2.3.4 accept
nat prerouting -100 | chain s1 {}; chain s2 {} | numgen random mod 2 vmap { 0: goto s1, 1: goto s2 }; dnat to jhash
  ip saddr . tcp sport mod 2 map { 0: 10.0.0.1, 1: 10.0.0.2 }
filter forward 0 | | meta mark set symhash mod 8 offset 100
filter prerouting 0 | | fib daddr type local accept; fib saddr . iif oif missing drop; fib daddr . mark . iif type
  != local drop
filter prerouting 0 | | ct mark set 5; ct zone set 3; ct label set 5; ct event set new
filter forward 0 | | ct mark set meta mark; meta mark set ct mark; ct original ip saddr 1.2.3.4 accept; meta l4proto
  tcp ct reply proto-dst 80 accept; ct bytes > 100 accept; ct status dnat accept
filter forward 0 | | tcp option maxseg size set rt mtu; tcp option maxseg size 500 accept; ip option lsrr exists
  drop
filter prerouting 0 | | dup to 10.0.0.9 device lo
filter forward 0 | | reject with icmp type admin-prohibited; meta l4proto tcp reject with tcp reset
filter forward 0 | | log prefix "x" group 3; meter m { ip saddr ct count over 5 } drop
nat postrouting 100 | | meta l4proto tcp snat to 10.0.0.1-10.0.0.9:1000-2000 random,persistent; meta l4proto udp
  masquerade to :1000-2000 fully-random; snat ip prefix to ip saddr map { 10.1.0.0/24 : 192.168.1.0/24 }
nat prerouting -100 | | tcp dport 80 redirect to :8080; tcp dport 81 dnat to 10.0.0.1:81
filter prerouting -150 | | tcp dport 80 tproxy to 127.0.0.1:50080 meta mark set 1 accept
filter prerouting -300 | | udp dport 53 notrack
filter forward 0 | set s { type ipv4_addr . inet_proto . inet_service; flags interval; elements = { 10.0.0.0/8 . tcp
  . 80-90 } } | ip daddr . meta l4proto . th dport @s accept
filter forward 0 | map m { type ipv4_addr : verdict; flags interval; elements = { 10.0.0.0/8 : accept, * : drop } }
  | ip daddr vmap @m
filter forward 0 | set s { type ifname; elements = { "eth0", "cali1" } } | iifname @s accept; iifname "wl*" drop;
  iif lo accept; meta iifgroup 5 accept; meta iifkind "veth" accept
filter forward 0 | set s { type ifname; flags interval; elements = { "eth*", "cali*" } } | iifname @s accept
filter forward 0 | | meta nftrace set 1
filter forward 0 | | ip dscp set cs1; ip ttl set 5; ip saddr set 1.2.3.4; tcp dport set 99
filter forward 0 | | counter
filter forward 0 | | ipsec in reqid 1 accept; rt ipsec exists accept
filter forward 0 | set s { typeof ip daddr; flags interval; auto-merge; elements = { 10.0.0.0/8 }; } | ip daddr @s
  accept comment "y"
route output -150 | | meta mark set 1
filter forward 0 | | meta hour "10:00"-"12:00" accept; meta day Monday accept; meta cpu 1 accept; meta skuid 5
  accept; meta cgroup 5 accept; meta length 100 accept; meta random < 100 accept
"""


def _nft_tables() -> t.Iterator[str]:
    for number, line in enumerate(_NFT_TABLES.strip().replace("\n ", "").splitlines()):
        hook, defined, rules = (part.strip() for part in line.split("|"))
        base = "type %s hook %s priority %s" % tuple(hook.split())
        yield "table ip t%d {\n%s\nchain c { %s; %s; }\n}" % (number, defined, base, rules)
    yield "table netdev n { chain c { type filter hook ingress device lo priority 0; accept; }; }"


def test_every_expression_is_copied(ns: Namespace) -> None:
    """One expression that the kernel refuses would leave out its whole table."""
    ns.run("ip", "link", "set", "lo", "up")
    ns.run("nft", "-f", "-", stdin="\n".join(_nft_tables()))

    def compare() -> t.List[str]:
        with build() as copy:
            assert [one.text for one in copy.unseen] == []
        return _differences()

    assert inside(ns, compare) == []


def _unseen() -> t.List[str]:
    with build() as copy:
        return [one.text for one in copy.unseen]


@pytest.mark.parametrize(
    "change", ["add prefix 2001:db8:5::/48 label 77", "del prefix 2002::/16 label 2"], ids=["added", "removed"]
)
def test_other_labels_of_addresses_are_reported(ns: Namespace, change: str) -> None:
    ns.run("ip", "addrlabel", *change.split())
    assert inside(ns, _unseen) == ["some address labels of IPv6"]


def test_a_table_that_cannot_be_copied_is_reported(ns: Namespace) -> None:
    ns.run("nft", "-f", "-", stdin="table ip t { chain c { reset tcp option sack-perm; }; }")
    assert inside(ns, _unseen) == ["the kernel refused table ip t: Invalid argument"]


def _contents() -> t.List[nf_tables.NftTable]:
    """All tables, as values that can be compared."""
    fields = ("chains", "objects", "flowtables", "sets", "elements", "rules")
    return [one._replace(**{name: tuple(getattr(one, name)) for name in fields}) for one in nf_tables.read()]


def _read_both_ways(seed: int) -> t.Tuple[t.Any, t.Any]:
    with strange_node(seed).space:
        for _attempt in range(20):
            at_once = _contents()
            with mock.patch.object(nf_tables, "_MANY_RULES", 0):
                by_chain = _contents()
            # IPv6 sends packets by itself, which the rules count.
            if _contents() == at_once:
                return at_once, by_chain
    raise AssertionError("the counters do not come to rest")


@pytest.mark.parametrize("seed", range(4))
def test_rules_read_chain_by_chain_are_the_same(seed: int) -> None:
    at_once, by_chain = carry_out(_read_both_ways, seed)
    assert at_once == by_chain and any(table.rules for table in at_once)


def test_tables_without_their_tools(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy needs none; without them rules have no words."""
    topology.node.run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "SNAT", "--to-source", "192.0.2.9")
    topology.node.run("ipset", "create", "some", "hash:net")
    monkeypatch.setattr(iptables_tool, "find", lambda *_asked: None)

    def ask() -> t.Tuple[t.Any, t.Any]:
        with build() as copy:
            (answer,) = copy.ask([Question("203.0.113.7", ADDRESSES["ipv4"].pod)], explain=True)
            return copy.state, answer

    state, answer = inside(topology.node, ask)
    assert (state.unseen, [one.name for one in state.sets], answer.source) == ((), ["some"], "192.0.2.9")
    assert answer.decided_by.text == "rule 1 of chain POSTROUTING"


def test_legacy_table_that_the_kernel_refuses_leaves_what_was_there(ns: Namespace) -> None:
    ns.run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    before = ns.run("iptables-legacy", "-t", "nat", "-S")

    def write() -> None:
        (table,), _missing = legacy.read()
        xtables.write(table._replace(entries=table.entries.replace(b"MASQUERADE", b"MISQUERADE")))

    with pytest.raises(AssertionError, match="KernelError: the kernel refused table ip nat of iptables-legacy: "):
        inside(ns, write)
    assert ns.run("iptables-legacy", "-t", "nat", "-S") == before


def test_looking_makes_no_table(ns: Namespace) -> None:
    inside(ns, lambda: build().__exit__())
    assert ns.read("/proc/net/ip_tables_names") == ns.read("/proc/net/ip6_tables_names") == ""
    assert ns.run("nft", "list", "tables") == ""


def test_programs_in_the_kernel(ns: Namespace) -> None:
    ns.run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    ns.run("tc", "qdisc", "add", "dev", "v0", "clsact")
    ns.run("tc", "qdisc", "add", "dev", "v1", "ingress")
    ns.run("tc", "filter", "add", "dev", "v0", "egress", "bpf", "da", "bytecode", "1,6 0 0 4294967295,")
    ns.run(
        "ip", "xfrm", "policy", "add", "src", "10.0.0.0/8", "dst", "10.1.0.0/16", "dir", "out",
        "tmpl", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "mode", "tunnel",
    )  # fmt: skip
    found = inside(ns, lambda: not_copied.read(links.read(), ()))
    assert [one.code for one in found] == ["ebpf", "ipsec"]
    assert "v0" in found[0].text and "that leave" in found[0].text


_LOAD_PROGRAM = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack("=BBhi", 0xb7, 0, 0, -1) + struct.pack("=BBhi", 0x95, 0, 0, 0))
words = ctypes.create_string_buffer(b"GPL")
load = struct.pack("=IIQQIIQ", 3, 2, ctypes.addressof(code), ctypes.addressof(words), 0, 0, 0)
load = ctypes.create_string_buffer(load.ljust(128, b"\\0"))
program = libc.syscall(321, 5, load, 128)
assert program >= 0, ctypes.get_errno()
attach = ctypes.create_string_buffer(struct.pack("=IIII", int(sys.argv[1]), program, 47, 0).ljust(128, b"\\0"))
assert libc.syscall(321, 8, attach, 128) == 0, ctypes.get_errno()
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the test loads its program by a number of x86-64")
def test_tcx_program(ns: Namespace) -> None:
    ns.run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    index = ns.read("/sys/class/net/v0/ifindex").strip() or ns.run("ip", "-o", "link", "show", "v0").split(":")[0]
    ns.run(sys.executable, "-c", _LOAD_PROGRAM, index)
    (found,) = inside(ns, lambda: not_copied.read(links.read(), ()))
    assert found.code == "ebpf" and "v0" in found.text and "tcx" in found.text


def _many_rules() -> str:
    """More rules than one transaction makes, each with a set without name, in chains that lead to each other."""
    chains = "".join(
        "chain c%d { %s; jump d; }\n"
        % (number, "; ".join("ip daddr { 10.%d.%d.1, 10.%d.%d.2 } counter" % ((number, one) * 2) for one in range(250)))
        for number in range(5)
    )
    base = "chain b { type nat hook postrouting priority 0; ip daddr vmap @m; }\n"
    elements = ", ".join("192.0.2.%d : goto c%d" % (number, number) for number in range(5))
    named = "map m { type ipv4_addr : verdict; elements = { %s }; }" % elements
    return "table ip many {\n%s\nchain d { }\n%s%s }" % (named, chains, base)


@pytest.mark.parametrize(
    "drawn",
    ["2 vmap { 0 : accept, 1 : drop }", "3 vmap { 0 : accept, 2 : drop }", "2 map { 0 : 7, 1 : 9 }"],
)
def test_a_map_of_numbers_is_read_whole(ns: Namespace, drawn: str) -> None:
    """Asked for by number; where one is missing in between, all are asked for."""
    chance = "meta mark set numgen random mod %s" if " map " in drawn else "numgen random mod %s"
    chain = "chain c {\ntype filter hook forward priority 0;\n%s\n}" % (chance % drawn)
    ns.run("nft", "-f", "-", stdin="table ip t {\n%s\n}\n" % chain)

    def read() -> t.Tuple[t.Any, t.Any]:
        by_number = nf_tables.read()
        with mock.patch.object(nf_tables, "_NUMBERED", 0):
            return by_number, nf_tables.read()

    by_number, at_once = (_elements(tables) for tables in inside(ns, read))
    assert by_number == at_once and len(by_number) == 2
    assert inside(ns, _differences) == []


def _elements(tables: t.Sequence[nf_tables.NftTable]) -> t.List[bytes]:
    (table,) = tables
    listed = [netlink.attributes(body).get(nf_tables.ELEMENTS, b"") for body in table.elements]
    return sorted(whole for one in listed for _kind, _value, whole in netlink.pieces(one))


def test_table_of_several_transactions_is_copied(ns: Namespace) -> None:
    ns.run("nft", "-f", "-", stdin=_many_rules())
    assert inside(ns, _differences) == []


def test_table_that_the_kernel_refuses_leaves_nothing(ns: Namespace) -> None:
    ns.run("nft", "-f", "-", stdin=_many_rules())

    def write() -> bytes:
        (table,) = nf_tables.read()
        broken = [rule.replace(b"lookup\0", b"lookpu\0") if n == 1200 else rule for n, rule in enumerate(table.rules)]
        with namespaces.within(_new_network()):
            with pytest.raises(KernelError):
                nf_tables.write(table._replace(rules=tuple(broken)))
            return subprocess.run(["nft", "list", "tables"], capture_output=True, check=True).stdout

    assert inside(ns, write) == b""


def _new_network() -> int:
    here = namespaces.this_network()
    there = namespaces.new_network()
    namespaces.enter(here)
    return there


def test_packets_are_traced_only_while_somebody_listens(topology: Topology) -> None:
    """iptables-legacy walks through its whole table for each rule that a traced packet matches."""
    question = Question("203.0.113.7", ADDRESSES["ipv4"].pod, port=80)

    def is_asleep(copy: Twin) -> bool:
        argv = [*_way_into(copy), "nft", "list", "table", "inet", "kubenode_ip_masq_twin"]
        return "flags dormant" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def ask() -> t.Tuple[bool, ...]:
        with build() as copy:
            before = is_asleep(copy)
            (plain,) = copy.ask([question])
            (explained,) = copy.ask([question], explain=True)
            return before, plain.decided_by is None, explained.decided_by is not None, is_asleep(copy)

    topology.node.run("nft", "add table ip one; add chain ip one c { type nat hook postrouting priority 100; }")
    topology.node.run("nft", "add rule ip one c counter masquerade")
    assert inside(topology.node, ask) == (True, True, True, True)
