# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole node: two families, two variants of iptables, what is left over where, and what fails."""

from __future__ import annotations

import os
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import reconcile as reconcile_module
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import run_lock
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Result, reconcile
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6
from support import engine, random_policies
from support.machine import FAMILIES, LEGACY, NFT, Machine
from support.random_policies import CHAIN, JUMP

DUAL: t.Dict[str, t.Any] = {"enable_ipv6": True, "non_masquerade_cidrs": ["10.0.0.0/8", "fc00::/7"]}
EVERYWHERE = [(variant, family) for variant in (NFT, LEGACY) for family in FAMILIES]


def sync(machine: Machine, present: bool = True, check: bool = False, **options: t.Any) -> Result:
    return reconcile(machine.node(), build(options), present, check)


def fill(machine: Machine, variant: str, family: str, **options: t.Any) -> None:
    """Rules of ours, and some of another program, in one table."""
    ours = engine.healthy(options, family)
    machine.put(variant, family, IP_MASQ_AGENT=ours, OTHER=["-p udp -j RETURN"], POSTROUTING=["-j OTHER", JUMP])


def has_ours(machine: Machine, variant: str, family: str) -> bool:
    chains = machine.nat[variant, family].chains
    return CHAIN in chains or any(CHAIN in rule for rule in chains["POSTROUTING"])


@pytest.mark.parametrize("broken, works", [(IPV6, IPV4), (IPV4, IPV6)])
def test_a_family_that_fails_does_not_stop_the_other_and_is_not_hidden(
    machine: Machine, broken: str, works: str
) -> None:
    machine.broken.add((NFT, broken))
    done = sync(machine, **DUAL)
    random_policies.assert_holds(machine.nat[NFT, works].chains, DUAL, works)
    (error,) = done.errors
    assert error.startswith(broken + ": ") and "Operation not supported" in error
    assert done.changed and [change.family for change in done.changes] == [works]


def test_a_family_without_a_program_is_an_error_of_that_family_only(machine: Machine) -> None:
    for name in ("ip6tables-nft", "ip6tables-legacy"):
        machine.remove(name)
    done = sync(machine, **DUAL)
    (error,) = done.errors
    assert error.startswith("ipv6: ") and "install the package iptables" in error
    assert has_ours(machine, NFT, IPV4)


def test_rules_of_a_family_that_could_not_move_stay_where_they_are(machine: Machine) -> None:
    for family in FAMILIES:
        fill(machine, NFT, family, **DUAL)
    machine.broken.add((LEGACY, IPV6))
    done = sync(machine, backend=LEGACY, **DUAL)
    assert [has_ours(machine, *where) for where in EVERYWHERE] == [False, True, True, False]
    assert len(done.errors) == 1


def test_rules_in_a_dormant_table_replace_none(machine: Machine) -> None:
    fill(machine, LEGACY, IPV4)
    machine.nat[NFT, IPV4].dormant = True
    done = sync(machine, backend=NFT)
    (error,) = done.errors
    assert "table nat is dormant" in error
    assert has_ours(machine, NFT, IPV4) and has_ours(machine, LEGACY, IPV4)
    machine.nat[NFT, IPV4].dormant = False
    assert sync(machine, backend=NFT).errors == ()
    assert not has_ours(machine, LEGACY, IPV4)


def test_a_program_for_leftovers_that_does_not_work_is_a_note_and_no_error(machine: Machine) -> None:
    machine.legacy_tables[IPV4].append("nat")
    machine.broken.add((LEGACY, IPV4))
    done = sync(machine)
    assert done.errors == () and has_ours(machine, NFT, IPV4)
    (note,) = done.notes
    assert IPV4 in note and LEGACY in note
    (place,) = done.not_checked
    assert place in note


def test_a_kernel_without_ipv6_is_not_asked_about_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile_module, "has_ipv6", lambda: False)
    sync(machine)
    sync(machine, present=False)
    assert not [argv for argv in machine.asked if "ip6tables" in argv[0] and "nat" in argv]


@pytest.mark.parametrize("name", ["KUBE-POSTROUTING", "CNI-0123", "cali-POSTROUTING"])
def test_a_chain_of_another_program_is_not_an_earlier_agents_whatever_the_comment_says(
    machine: Machine, name: str
) -> None:
    jump = '-m comment --comment "ip-masq-agent: first" -j ' + name
    machine.put(NFT, IPV4, POSTROUTING=[jump])
    machine.nat[NFT, IPV4].chains[name] = ["-p udp -j RETURN"]
    sync(machine)
    assert machine.nat[NFT, IPV4].chains[name] == ["-p udp -j RETURN"]
    assert jump in machine.nat[NFT, IPV4].chains["POSTROUTING"]


def test_the_lock_is_held_while_the_kernel_is_asked_and_gone_afterwards(machine: Machine) -> None:
    seen = []
    machine.nat[NFT, IPV4].interloper = lambda: seen.append(os.path.exists(run_lock.LOCK_PATH))
    sync(machine)
    assert seen and all(seen)
    assert os.listdir(str(machine.folder)) == ["bin"]


@pytest.mark.parametrize("version, fully", [("v1.6.1", False), ("v1.6.2", True), ("v1.8.11 (legacy)", True)])
def test_fully_random_ports_only_where_iptables_knows_them(machine: Machine, version: str, fully: bool) -> None:
    machine.remove("-nft", "-legacy")
    machine.add("iptables", LEGACY, version)
    sync(machine)
    last = machine.nat[LEGACY, IPV4].chains[CHAIN][-1]
    assert last.endswith("--random-fully") is fully
    (write,) = [argv for argv in machine.asked if argv[0].endswith("-restore")]
    assert ("-w" in write) is fully, "iptables-restore knows -w from the same release"


@pytest.mark.parametrize(
    "variant, version, asks",
    [
        (LEGACY, "v1.6.0", False),
        (LEGACY, "v1.6.1", True),
        (LEGACY, "v1.8.7 (legacy)", True),
        (LEGACY, "v1.8.8 (legacy)", False),
        (NFT, "v1.8.7 (nf_tables)", False),
    ],
)
def test_old_releases_of_legacy_ask_for_the_lock_more_often_than_once_a_second(
    machine: Machine, variant: str, version: str, asks: bool
) -> None:
    machine.remove("-nft", "-legacy")
    machine.add("iptables", variant, version)
    sync(machine)
    calls = [argv for argv in machine.asked if "nat" in argv or argv[0].endswith("-restore")]
    told = ["-W" in argv and argv[argv.index("-W") + 1] == "100000" for argv in calls]
    # iptables-restore knows it one release later than iptables does.
    assert told == [asks and (version != "v1.6.1" or "nat" in argv) for argv in calls]
    assert calls


def test_a_masquerade_rule_in_another_variant_is_reported(machine: Machine) -> None:
    machine.put(LEGACY, IPV4, POSTROUTING=["-o eth1 -j MASQUERADE", "-p tcp -j ACCEPT", "-s 10.9.0.0/16 -j MASQUERADE"])
    machine.put(LEGACY, IPV6, POSTROUTING=["-o eth2 -j MASQUERADE"])
    for _again in range(2):
        remark, sourced = sync(machine, backend=NFT).remarks
        assert "of iptables_legacy also matches this traffic (-A POSTROUTING -o eth1 -j MASQUERADE)" in remark.text
        assert remark.source is None and str(sourced.source) == "10.9.0.0/16"
    assert sync(machine, present=False).remarks == ()
