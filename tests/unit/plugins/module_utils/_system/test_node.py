# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variant of iptables a node's Kubernetes uses, found out without making anything."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import backend_choice
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.iptables_tool import find_tool
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Tool
from support.machine import LEGACY, NFT, Machine

IN_USE = "-j KUBE-SERVICES"


def test_a_hint_in_legacy_is_no_hint_for_nft(machine: Machine) -> None:
    machine.legacy_tables[IPV4] = ["mangle"]
    machine.elsewhere[LEGACY, IPV4, "mangle", "KUBE-IPTABLES-HINT"] = []
    machine.elsewhere[LEGACY, IPV4, "mangle", "OUTPUT"] = [IN_USE]
    assert machine.choose("auto") == LEGACY


@pytest.mark.parametrize("gone, left", [("-nft", LEGACY), ("-legacy", NFT)])
def test_the_only_variant_there_is_is_taken(machine: Machine, gone: str, left: str) -> None:
    machine.remove(gone)
    machine.elsewhere[NFT, IPV4, "mangle", "KUBE-IPTABLES-HINT"] = []
    machine.legacy_tables[IPV4] = ["filter"]
    machine.elsewhere[LEGACY, IPV4, "filter", "INPUT"] = [IN_USE]
    assert machine.choose("auto") == left


@pytest.mark.parametrize(
    "version, variant, number",
    [
        ("v1.8.7 (nf_tables)", NFT, (1, 8, 7)),
        ("v1.8.11 (legacy)", LEGACY, (1, 8, 11)),
        ("v1.6.1", LEGACY, (1, 6, 1)),
        ("v1.4.21", LEGACY, (1, 4, 21)),
    ],
)
def test_a_plain_iptables_is_what_it_says_it_is(machine: Machine, version: str, variant: str, number: object) -> None:
    machine.remove("-nft", "-legacy")
    machine.add("iptables", variant, version)
    assert machine.choose("auto") == variant
    tool = find_tool(machine.node(), variant, IPV4)
    assert tool is not None and tool.version == number
    assert tool.version_text == version.split()[0][1:]
    assert find_tool(machine.node(), {NFT: LEGACY, LEGACY: NFT}[variant], IPV4) is None


def test_a_program_of_the_other_variant_is_not_used_for_its_name(machine: Machine) -> None:
    machine.remove("-legacy")
    machine.add("iptables-legacy", NFT)
    assert find_tool(machine.node(), LEGACY, IPV4) is None


@pytest.mark.parametrize("asked_for", [NFT, LEGACY])
def test_a_variant_asked_for_is_taken_whatever_kubernetes_uses(machine: Machine, asked_for: str) -> None:
    machine.elsewhere[NFT, IPV4, "mangle", "KUBE-IPTABLES-HINT"] = []
    assert machine.choose(asked_for) == asked_for


def test_a_variant_asked_for_and_not_there_is_refused_with_what_there_is(machine: Machine) -> None:
    machine.remove("-legacy")
    with pytest.raises(
        NodeError,
        match=r"backend iptables_legacy is not available .*backend to auto \(available: iptables_nft, nftables\)",
    ):
        machine.choose(LEGACY)


@pytest.mark.parametrize("asked_for", [NFT, LEGACY])
def test_no_iptables_at_all_is_refused_saying_what_to_install(machine: Machine, asked_for: str) -> None:
    machine.remove("-nft", "-legacy")
    with pytest.raises(NodeError, match="install"):
        machine.choose(asked_for)
    assert machine.asked == []


def test_places_beside_a_chain_need_iptables(machine: Machine) -> None:
    for requested, position in (("auto", "before:X"), (NFT, "after:X"), ("auto", "first")):
        assert backend_choice.choose(machine.node(), requested, position=position).name == NFT
    machine.remove("-nft", "-legacy")
    (machine.bin / "nft").touch(mode=0o755)
    assert backend_choice.choose(machine.node(), "auto", position="last").name == "nftables"
    with pytest.raises(NodeError) as refused:
        backend_choice.choose(machine.node(), "auto", position="before:X")
    assert str(refused.value).startswith(
        "no backend is available on this node for jump_position before:X: install the package iptables (searched "
    )


def test_one_file_that_is_several_programs_is_asked_for_each(machine: Machine) -> None:
    """As a launcher is, to which all names of a directory lead."""
    (machine.bin / "launcher").write_text("")
    (machine.bin / "launcher").chmod(0o755)
    for name in ("iptables-nft", "iptables-legacy"):
        (machine.bin / name).unlink()
        (machine.bin / name).symlink_to("launcher")
    node = machine.node()
    assert [t.cast(Tool, node.tool(name)).variant for name in ("iptables-nft", "iptables-legacy")] == [
        "nf_tables",
        "legacy",
    ]
