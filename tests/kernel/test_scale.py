# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many ranges of our own, and many rules of others."""

from __future__ import annotations

import ipaddress
import typing as t

from support.many_ranges import many_ranges
from support.modules import apply
from support.namespaces import Namespace
from support.programs import NETLINK, Programs
from support.variants import NFTABLES, Variant

CHAIN = "IP-MASQ-AGENT"
RANGES = 10_000
RULES = 50_000

#: The chains that a run may read: ours, the one that leads to it, and those that tell which variant is in use.
READABLE = {CHAIN, "POSTROUTING", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}


def test_ten_thousand_ranges_are_one_transaction_and_then_none(
    ns: Namespace, variant: Variant, programs: Programs
) -> None:
    cidrs = many_ranges(RANGES)
    options = {"backend": variant.backend, "cidr_limit": RANGES, "non_masquerade_cidrs": cidrs, "path": programs.path}
    assert apply(ns, **options)["changed"] is True
    # The first of the two with which nftables starts makes a set that no chain asks.
    written = [NETLINK, NETLINK] if variant is NFTABLES else [variant.tool("ipv4", "-restore")]
    assert programs.writes() == written
    exempt = variant.in_order(["169.254.0.0/16", *cidrs])
    assert (variant.rules(ns, "ipv4") or [])[:-1] == ["-d %s -j RETURN" % cidr for cidr in exempt]
    before, so_far = variant.saved(ns, "ipv4"), len(programs.calls())
    assert apply(ns, **options)["changed"] is False
    assert programs.writes() == written
    if variant is NFTABLES:
        calls = [call for call in programs.calls()[so_far:] if call[0] == "nft"]
        assert calls == [["nft", "--version"]]
    assert variant.saved(ns, "ipv4") == before


def test_among_fifty_thousand_rules_of_others_only_our_chain_is_read(
    ns: Namespace, variant: Variant, programs: Programs
) -> None:
    """The programs that a run starts, and what it asks them, are the same as on an empty node."""
    options = {"backend": variant.backend, "path": programs.path}
    if variant is NFTABLES:  # whose node has no table of iptables, which is looked at for left-overs where it is there
        variant.load(ns, "ipv4", ":KUBE-SERVICES - [0:0]")
    apply(ns, **options)
    so_far = len(programs.calls())
    assert apply(ns, **options)["changed"] is False
    empty = programs.calls()[so_far:]
    variant.load(ns, "ipv4", *_services(RULES))
    so_far = len(programs.calls())
    assert apply(ns, **options)["changed"] is False
    full = programs.calls()[so_far:]
    assert full == empty
    assert full, "the stand-ins saw nothing"
    for call in full:
        assert _reads_a_known_chain_only(call), call


def _reads_a_known_chain_only(call: t.Sequence[str]) -> bool:
    if call[1:] in (["--version"], ["-V"]):
        return True
    if call[0] == "nft" or call[0].endswith(("-save", "-restore")):
        return False
    return any(flag in call and call[call.index(flag) + 1] in READABLE for flag in ("-S", "-C") if flag in call[:-1])


def _services(rules: int) -> t.Iterator[str]:
    """As kube-proxy writes them: ten rules for each Service."""
    yield ":KUBE-SERVICES - [0:0]"
    yield "-A PREROUTING -j KUBE-SERVICES"
    for number in range(rules // 10):
        chain = "KUBE-SVC-%08d" % number
        address = ipaddress.ip_address("10.96.0.0") + number
        yield ":%s - [0:0]" % chain
        yield '-A KUBE-SERVICES -d %s/32 -p tcp -m comment --comment "ns/s%d cluster IP" -m tcp --dport 80 -j %s' % (
            address,
            number,
            chain,
        )
        for endpoint in range(9):
            yield "-A %s -p tcp -m tcp -j DNAT --to-destination 10.244.%d.%d:8080" % (chain, number % 256, endpoint + 1)
