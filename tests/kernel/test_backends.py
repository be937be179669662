# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variant C(backend: auto) takes, and what becomes of a chain left in the other one."""

from __future__ import annotations

import pytest
from support.modules import apply, run_module
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import VARIANTS, Variant

CHAIN = "IP-MASQ-AGENT"
NFT, LEGACY = VARIANTS["iptables_nft"], VARIANTS["iptables_legacy"]


def chosen(ns: Namespace) -> str:
    """What auto takes, after the real run."""
    name = apply(ns, backend="auto")["backend"]["name"]
    assert len(VARIANTS[name].jumps(ns, "ipv4")) == 1
    return str(name)


def test_auto_takes_nft_where_nothing_points_elsewhere(ns: Namespace) -> None:
    assert chosen(ns) == "iptables_nft"


@pytest.mark.parametrize("program", ["iptables-nft", "ip6tables-nft"])
@pytest.mark.parametrize("hint", ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"])
def test_auto_follows_the_kubelet_s_hint_in_either_family(ns: Namespace, program: str, hint: str) -> None:
    LEGACY.load(ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -j MASQUERADE")
    ns.run(program, "-t", "mangle", "-N", hint)
    assert chosen(ns) == "iptables_nft"


@pytest.mark.parametrize("table", ["nat", "filter", "mangle"])
@pytest.mark.parametrize("program", ["iptables-legacy", "ip6tables-legacy"])
def test_auto_takes_legacy_where_only_legacy_holds_rules(ns: Namespace, program: str, table: str) -> None:
    ns.run(program, "-t", table, "-A", "OUTPUT", "-m", "mark", "--mark", "7", "-j", "ACCEPT")
    assert chosen(ns) == "iptables_legacy"


def test_auto_is_not_led_astray_by_empty_legacy_tables(ns: Namespace) -> None:
    ns.run("iptables-legacy", "-t", "nat", "-S")
    assert chosen(ns) == "iptables_nft"


def test_auto_stays_with_what_it_took(ns: Namespace) -> None:
    LEGACY.load(ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -j MASQUERADE")
    assert chosen(ns) == "iptables_legacy"
    assert apply(ns, backend="auto")["changed"] is False


def other(variant: Variant) -> Variant:
    """The variant that is not this one."""
    return LEGACY if variant is NFT else NFT


def test_chain_in_the_other_variant_is_removed_and_reported(ns: Namespace, variant: Variant, family: str) -> None:
    stale = other(variant)
    stale.load(ns, family, ":FOREIGN - [0:0]", "-A POSTROUTING -s %s -j FOREIGN" % ADDRESSES[family].pods)
    foreign = stale.saved(ns, family)
    stale.load(
        ns,
        family,
        ":%s - [0:0]" % CHAIN,
        "-A %s -j MASQUERADE" % CHAIN,
        "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j " + CHAIN,
    )
    foretold = run_module(ns, check=True, diff=True, backend=variant.backend, enable_ipv6=True)
    done = apply(ns, diff=True, backend=variant.backend, enable_ipv6=True)
    assert foretold["actions"] == done["actions"]
    assert foretold["diff"] == done["diff"]
    assert stale.saved(ns, family) == foreign
    removed = [a for a in done["actions"] if a["family"] == family and "removed" in a["action"] and CHAIN in a["rule"]]
    assert removed, done["actions"]
    assert apply(ns, backend=variant.backend, enable_ipv6=True)["changed"] is False


def test_moving_between_variants_leaves_no_instant_without_masquerading(topology: Topology) -> None:
    a = ADDRESSES["ipv4"]
    apply(topology.node, backend="iptables_nft")
    stream = topology.stream(*a.exempt, *a.outside)
    for backend in ("iptables_legacy", "iptables_nft") * 3:
        assert apply(topology.node, backend=backend)["changed"] is True
    seen = stream.finish()
    assert {where: set(sources) for where, sources in seen.items()} == dict(
        [(exempt, {a.pod}) for exempt in a.exempt] + [(outside, {a.node}) for outside in a.outside]
    )


def test_the_other_variant_s_table_is_not_made(ns: Namespace) -> None:
    apply(ns, backend="iptables_nft", enable_ipv6=True)
    assert not LEGACY.present(ns, "ipv4")
    assert not LEGACY.present(ns, "ipv6")
