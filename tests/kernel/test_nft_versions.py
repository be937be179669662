# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One kernel, several versions of nft: containers bring their own. Each reads what we write, and none is needed."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from support.full_policy import full_policy
from support.modules import apply, run_module
from support.namespaces import Namespace
from support.program_versions import Nft
from support.programs import Programs
from support.variants import PODS

Nfts = t.Dict[str, Nft]

#: What kube-proxy, Calico and others run.
LISTINGS = ("list ruleset", "-j list ruleset", "list tables", "list sets", "list chains")
#: A policy that uses everything that a table of ours can hold.
FULL = full_policy(
    backend="nftables",
    exemption="enforce",
    snat=[
        {"address": "192.0.2.7", "source_cidrs": ["10.244.0.0/16", "10.7.0.0/16"]},
        {"address": "192.0.2.8-192.0.2.9", "out_interface": "bond*"},
        {"address": "192.0.2.7-192.0.2.9"},
        {"address": "2001:db8::7", "source_cidrs": ["fd00::/16"], "out_interface": "eth0"},
        {"address": "2001:db8::8-2001:db8::9"},
    ],
)
ADDRESSES_OF_SNAT = [
    *("192.0.2.%d/32" % number for number in (7, 8, 9)),
    *("2001:db8::%d/128" % number for number in (7, 8, 9)),
]
#: The same, without ranges that nft prints as prefixes, which it does not always read again.
RESTORED = dict(FULL, snat=[one for one in FULL["snat"] if "-" not in one["address"]])
#: A set of another program, in the form that older versions cannot read when a newer one wrote it.
FOREIGN = "table ip other { set s { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 }; }; }\n"
OLDER = ("bullseye", "bookworm")


def test_each_version_reads_what_we_write_and_restores_it(nfts: Nfts) -> None:
    """Text and JSON; and a table that nft has put back from what it listed is in sync."""
    texts = set()
    with Namespace() as ns:
        for address in ADDRESSES_OF_SNAT:
            ns.run("ip", "address", "add", address, "dev", "lo")
        for nft in nfts.values():
            apply(ns, **FULL)
            listed = [nft.call(ns, *listing.split()) for listing in LISTINGS]
            json.loads(listed[LISTINGS.index("-j list ruleset")].stdout)
            assert [done.returncode for done in listed] == [0] * len(LISTINGS), nft.version
            texts.add(nft.call(ns, "-n", "-s", "list", "ruleset").stdout)
            apply(ns, **RESTORED)
            nft.write(ns, "flush ruleset\n" + nft.call(ns, "-n", "-s", "list", "ruleset").stdout)
            again = run_module(ns, check=True, **RESTORED)
            assert again.get("msg", again["changed"]) is False, nft.version
            ns.run("nft", "flush", "ruleset")
    assert len(texts) == 1


def test_the_older_versions_cannot_read_a_set_that_a_newer_one_made(nfts: Nfts) -> None:
    """Else these tests would prove nothing."""
    with Namespace() as ns:
        nfts["trixie"].write(ns, FOREIGN)
        found = {release: nft.call(ns, "list", "sets").returncode for release, nft in nfts.items()}
    assert found == {"bullseye": -11, "bookworm": -11, "trixie": 0, "sid": 0}


@pytest.mark.parametrize("release", OLDER)
def test_where_nft_crashes_rules_are_made_changed_repaired_and_removed(ns: Namespace, nfts: Nfts, release: str) -> None:
    path, newer = nfts[release].path, nfts["trixie"]
    newer.write(ns, FOREIGN)
    _life(ns, newer, path)
    assert "ip_masq_agent" not in newer.call(ns, "list", "tables").stdout


#: A program in place of nft that is of no use.
USELESS = {"fails": "exit 1\n", "crashes": "kill -SEGV $$\n", "is no program": "exit 127\n"}


@pytest.mark.parametrize("how", USELESS)
def test_no_nft_is_needed(ns: Namespace, nfts: Nfts, programs: Programs, how: str) -> None:
    programs.misbehave(lambda name: name == "nft", USELESS[how])
    _life(ns, nfts["trixie"], programs.path)
    assert {call[1] for call in programs.calls() if call[0] == "nft"} <= {"--version"}


def test_an_nft_that_hangs_delays_no_repair(ns: Namespace, programs: Programs) -> None:
    programs.misbehave(lambda name: name == "nft", "exec sleep 1000\n")
    assert apply(ns, path=programs.path, backend="nftables")["backend"] == {"name": "nftables", "version": ""}


def _life(ns: Namespace, nft: Nft, path: Path) -> None:
    """Make, change, damage, repair and remove the rules with the programs of a path.

    :param nft: a version that works, for what the test does.
    """
    for options in (
        {"exemption": "enforce", "source_cidrs": PODS[:1]},
        {"non_masquerade_cidrs": ["10.0.0.0/8"]},
        {"enable_ipv6": True},
    ):
        assert apply(ns, path=path, backend="nftables", **options)["changed"] is True
        assert apply(ns, path=path, backend="nftables", **options)["changed"] is False
    nft.write(ns, "flush chain ip ip_masq_agent postrouting\nadd element ip ip_masq_agent exempt_ranges { 1.2.3.4 }\n")
    assert apply(ns, path=path, backend="nftables", enable_ipv6=True)["changed"] is True
    assert apply(ns, path=path, backend="nftables", enable_ipv6=True)["changed"] is False
    assert apply(ns, path=path, backend="iptables_nft", enable_ipv6=True)["changed"] is True
    assert apply(ns, path=path, backend="nftables")["changed"] is True
    assert apply(ns, path=path, state="absent")["changed"] is True
