# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which backend ``backend: auto`` takes, and what becomes of chains left in other ones."""

from __future__ import annotations

import pytest
from support.modules import apply, run_module
from support.namespaces import Namespace
from support.topology import ADDRESSES
from support.variants import BACKENDS, VARIANTS, Variant

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


@pytest.mark.parametrize("chain", [CHAIN, "IP-MASQ"], ids=["ours", "an earlier agent's"])
@pytest.mark.parametrize(
    "variant, stale", [(b, v) for b in BACKENDS.values() for v in VARIANTS.values() if b is not v], ids=str
)
def test_chain_in_another_variant_is_removed_and_reported(
    ns: Namespace, variant: Variant, stale: Variant, chain: str, family: str
) -> None:
    stale.load(ns, family, ":FOREIGN - [0:0]", "-A POSTROUTING -s %s -j FOREIGN" % ADDRESSES[family].pods)
    foreign = stale.saved(ns, family)
    stale.load(
        ns,
        family,
        ":%s - [0:0]" % chain,
        "-A %s -j MASQUERADE" % chain,
        "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j " + chain,
    )
    predicted = run_module(ns, check=True, diff=True, backend=variant.backend, enable_ipv6=True)
    done = apply(ns, diff=True, backend=variant.backend, enable_ipv6=True)
    assert predicted["actions"] == done["actions"]
    assert predicted["diff"] == done["diff"]
    assert stale.saved(ns, family) == foreign
    gone = [action for action in done["actions"] if action["family"] == family and "removed" in action["action"]]
    assert [action["rule"].split()[-1] for action in gone] == [chain, chain]
    assert apply(ns, backend=variant.backend, enable_ipv6=True)["changed"] is False


def test_the_other_variant_s_table_is_not_made(ns: Namespace) -> None:
    apply(ns, backend="iptables_nft", enable_ipv6=True)
    assert not LEGACY.present(ns, "ipv4")
    assert not LEGACY.present(ns, "ipv6")
