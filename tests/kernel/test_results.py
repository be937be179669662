# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module tells: changed, backend, rules, actions, diff; check mode tells the same and does nothing."""

from __future__ import annotations

import typing as t

import pytest
from support.modules import apply, run_module
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, NFT_FAMILIES, NFTABLES, VARIANTS, Variant, pristine, snapshot

CHAIN = "IP-MASQ-AGENT"
JUMP = '-A POSTROUTING -m addrtype ! --dst-type LOCAL -m comment --comment "ip-masq-agent: by hand" -j ' + CHAIN
#: starting points for a run: name -> lines for iptables-restore
STARTS: t.Dict[str, t.Sequence[str]] = {
    "nothing": (),
    "an old policy": (":%s - [0:0]" % CHAIN, "-A %s -d 10.9.0.0/16 -j RETURN" % CHAIN, JUMP),
    "two jumps": (":%s - [0:0]" % CHAIN, "-A %s -j MASQUERADE" % CHAIN, "-A POSTROUTING -j " + CHAIN, JUMP),
    "among others": (
        ":KUBE-POSTROUTING - [0:0]",
        "-A POSTROUTING -j KUBE-POSTROUTING",
        "-A POSTROUTING -s 10.88.0.0/16 -j MASQUERADE",
    ),
}
#: policies whose canonical form is hard to foresee
POLICIES: t.Dict[str, t.Dict[str, t.Any]] = {
    "default": {},
    "awkward": {
        "non_masquerade_cidrs": ["10.1.2.3/32", "192.168.0.0/16", "fd00::1/128", "fc00:0:0:0::/8"],
        "to_ports": ["1024-29999", "32768-49151", "61000-65535"],
        "enable_ipv6": True,
    },
    "absent": {"state": "absent"},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("start", STARTS)
def test_check_mode_predicts_the_run_and_changes_nothing(
    ns: Namespace, variant: Variant, start: str, policy: str
) -> None:
    if STARTS[start]:
        variant.load(ns, "ipv4", *STARTS[start])
    options = dict(POLICIES[policy], backend=variant.backend)
    before = snapshot(ns)
    predicted = run_module(ns, check=True, diff=True, **options)
    assert snapshot(ns) == before
    done = run_module(ns, diff=True, **options)
    assert not done.get("failed"), done
    for key in ("changed", "diff", "actions", "families", "backend"):
        assert predicted[key] == done[key], key
    again = run_module(ns, diff=True, **options)
    assert again["changed"] is False
    assert again["actions"] == []
    assert again["diff"]["before"] == again["diff"]["after"]
    # Behind it stands what has been removed elsewhere, which is nothing new now.
    assert done["diff"]["after"].startswith(again["diff"]["after"])


def test_families_hold_the_rules_and_the_jump_in_force(ns: Namespace, variant: Variant, family: str) -> None:
    done = apply(ns, backend=variant.backend, **POLICIES["awkward"])
    told = done["families"][family]
    if variant is NFTABLES:
        listed = ns.run("nft", "-s", "list", "table", NFT_FAMILIES[family], "ip_masq_agent")
        # A line each for the elements of the set, so that a diff shows which came and went.
        assert " ".join(told["rules"]).replace(",", " ").split() == listed.replace(",", " ").split()
        assert told["jump"] is None
    else:
        assert told["rules"] == variant.listing(ns, family, CHAIN)
        assert [told["jump"]] == variant.listing(ns, family, "POSTROUTING")
    again = apply(ns, backend=variant.backend, **POLICIES["awkward"])
    assert again["families"] == done["families"]


def test_backend_and_version_are_named(ns: Namespace, variant: Variant) -> None:
    backend = apply(ns, backend=variant.backend)["backend"]
    assert backend["name"] == variant.backend
    assert backend["version"].lstrip("v").split()[0] == variant.version(ns)


def test_actions_name_each_rule_that_came_or_went(ns: Namespace, variant: Variant) -> None:
    first = apply(ns, backend=variant.backend, non_masquerade_cidrs=["10.0.0.0/8", "172.16.0.0/12"])
    text = repr(first["actions"])
    words = ("fib daddr type local", "masquerade") if variant is NFTABLES else ("! --dst-type LOCAL", "MASQUERADE")
    for needle in ("169.254.0.0/16", "10.0.0.0/8", "172.16.0.0/12", *words):
        assert needle in text
    second = apply(ns, backend=variant.backend, non_masquerade_cidrs=["10.0.0.0/8", "192.168.0.0/16"])
    told = {(a["family"], a["action"], a["rule"]) for a in second["actions"]}
    assert all(family == "ipv4" for family, _action, _rule in told)
    assert [rule for _f, action, rule in told if "added" in action and "192.168.0.0/16" in rule]
    assert [rule for _f, action, rule in told if "removed" in action and "172.16.0.0/12" in rule]
    assert not [rule for _f, _action, rule in told if "10.0.0.0/8" in rule]


def test_unchanged_run_keeps_the_packet_counters(topology: Topology, variant: Variant, family: str) -> None:
    a = ADDRESSES[family]
    options = {"backend": variant.backend, "enable_ipv6": True, "non_masquerade_cidrs": ["10.0.0.0/8", "fc00::/7"]}
    apply(topology.node, **options)
    topology.ask(*a.exempt, *a.outside)
    before = variant.counters(topology.node, family)
    assert [line for line in before if "MASQUERADE" in line and "-c 0 0" not in line], "no packet was counted"
    for _again in range(2):
        done = apply(topology.node, **options)
        assert (done["changed"], done["actions"]) == (False, [])
    assert variant.counters(topology.node, family) == before
    exempt = [line for line in before if "MASQUERADE" not in line]
    assert [line for line in exempt if "-c 0 0" not in line], "no exempt packet was counted"


class TestAbsent:
    """``state: absent``."""

    @pytest.mark.parametrize("backend", ["auto", *BACKENDS])
    def test_removes_chains_and_all_jumps_in_every_variant_and_family(self, ns: Namespace, backend: str) -> None:
        before = {}
        for variant in VARIANTS.values():
            for family in ("ipv4", "ipv6"):
                variant.load(ns, family, ":FOREIGN - [0:0]", "-A POSTROUTING -m mark --mark 0x7 -j FOREIGN")
                before[variant, family] = variant.saved(ns, family)
                jumps = ("-I POSTROUTING 1 -j " + CHAIN, JUMP, JUMP, "-A POSTROUTING -s 10.0.0.0/8 -g " + CHAIN)
                if family == "ipv6":
                    jumps = jumps[:3]
                variant.load(ns, family, ":%s - [0:0]" % CHAIN, "-A %s -j MASQUERADE" % CHAIN, *jumps)
        for family in ("ip", "ip6"):
            ns.run("nft", "add", "table", family, "ip_masq_agent")
        done = apply(ns, state="absent", backend=backend)
        assert done["changed"] is True
        assert not any(NFTABLES.present(ns, family) for family in ("ipv4", "ipv6"))
        for (variant, family), saved in before.items():
            assert variant.saved(ns, family) == saved, (variant, family)
        again = apply(ns, state="absent", backend=backend)
        assert (again["changed"], again["actions"]) == (False, [])

    @pytest.mark.parametrize("backend", ["auto", *BACKENDS])
    def test_makes_nothing_where_nothing_is(self, ns: Namespace, backend: str) -> None:
        assert apply(ns, state="absent", backend=backend)["changed"] is False
        assert pristine(snapshot(ns))
