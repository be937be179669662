# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a twin has all that decides on its node, and says what it has not."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path
from unittest import mock

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import legacy, links, nf_tables, node_state, unseen
from support.import_collection import PRELUDE
from support.lab import carry_out, inside
from support.namespaces import Namespace
from support.random_nodes import RandomNode
from support.topology import Topology
from support.twins import build

#: How each part of the state is listed, and what a listing has that says nothing: counters, times, numbers of handles.
_LISTINGS = (
    ("nft", "-s", "list", "ruleset"),
    ("iptables-legacy-save",),
    ("ip6tables-legacy-save",),
    ("ipset", "save", "-sorted"),
    ("ip", "rule"),
    ("ip", "-6", "rule"),
    ("ip", "nexthop"),
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
    made = RandomNode(seed)
    for _attempt in range(20):
        with made.node:
            before = [_listed(argv) for argv in _LISTINGS]
            found = _differences()
            # The kernel adds routes some time after a link came up.
            if before == [_listed(argv) for argv in _LISTINGS]:
                return found
    raise AssertionError("the node keeps changing")


def _differences() -> t.List[str]:
    with build() as copy:
        holder = copy._worker._pid
        (child,) = Path("/proc/%d/task/%d/children" % (holder, holder)).read_text().split()
        there = ("nsenter", "--target", child, "--net")
        ours = ("nft", "delete", "table", "inet", "kubenode_ip_masq_twin")
        subprocess.run([*there, *ours], check=True)
        return [
            "%s:\n%s\n--- twin:\n%s" % (" ".join(argv), "\n".join(here), "\n".join(copied))
            for argv in _LISTINGS
            for here, copied in [(_listed(argv), _without_spare_ports(_listed(argv, there)))]
            if _bare(here) != _bare(copied)
        ]


def _without_spare_ports(lines: t.Sequence[str]) -> t.List[str]:
    return [line for line in lines if "twinpod" not in line]


def _bare(lines: t.Sequence[str]) -> t.List[t.List[str]]:
    """The words of each line, without what differs: the other end of a cable, the carrier of a bridge without pods."""
    words = [[word.split("@if")[0] for word in line.split() if word not in _DIFFERENT] for line in lines]
    return sorted(word for word in words if word)


@pytest.mark.parametrize("seed", range(8))
def test_copy_is_the_same_to_every_tool(seed: int) -> None:
    assert carry_out(_compare_listings, seed) == []


def _read_both_ways(seed: int) -> t.Tuple[t.Any, t.Any]:
    with RandomNode(seed).node:
        for _attempt in range(20):
            at_once = nf_tables.read()
            with mock.patch.object(nf_tables, "_MANY_RULES", 0):
                by_chain = nf_tables.read()
            # IPv6 sends packets by itself, which the rules count.
            if nf_tables.read() == at_once:
                return at_once, by_chain
    raise AssertionError("the counters do not come to rest")


@pytest.mark.parametrize("seed", range(4))
def test_rules_read_chain_by_chain_are_the_same(seed: int) -> None:
    at_once, by_chain = carry_out(_read_both_ways, seed)
    assert at_once == by_chain and any(table.rules for table in at_once)


def test_table_without_its_tool(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    topology.node.run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    topology.node.run("ipset", "create", "some", "hash:net")

    def look() -> t.Tuple[t.Any, ...]:
        found = node_state.read(run)
        return found.unseen, [one.name for one in found.sets]

    monkeypatch.setattr(legacy, "which", lambda name: None)
    missing, sets = inside(topology.node, look)
    assert [one.text for one in missing] == [
        "table ip nat of iptables-legacy: iptables-legacy-save is not on this node",
        "table ip filter of iptables-legacy: iptables-legacy-save is not on this node",
    ] or any("iptables-legacy-save is not on this node" in one.text for one in missing)
    assert sets == ["some"]


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
    found = inside(ns, lambda: unseen.read(links.read(), ()))
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
    (found,) = inside(ns, lambda: unseen.read(links.read(), ()))
    assert found.code == "ebpf" and "v0" in found.text and "tcx" in found.text


def test_not_available(tmp_path: Path) -> None:
    program = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-all")
    script = tmp_path / "ask.py"
    script.write_text(
        PRELUDE + "from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state, twin\n"
        "from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run\n"
        "print(twin.build(node_state.read(run), run))\n"
    )
    done = subprocess.run([*program, sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("NotAvailable(reason='cannot make namespaces"), done.stdout + done.stderr
    assert "CAP_SYS_ADMIN" in done.stdout
