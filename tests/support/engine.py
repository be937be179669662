# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Code under test beside ``random_policies``: policies as its values, its iptables backend over a simulated table."""

from __future__ import annotations

import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Managed
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.changed_packets import Comparison, same_meaning
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_backend import Iptables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import render_rule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.masquerade_ports import chosen
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, Family
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.iptables_tool import IptablesTool
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Tool

from . import random_policies
from .nat import Nat

configs = random_policies.policies.map(build)
narrow_configs = random_policies.narrow_policies.map(build)
families = random_policies.families.map(Family)


def ruleset(policy: random_policies.Policy, family: str = IPV4) -> Ruleset:
    """Return what a policy asks for."""
    return from_config(build(policy), Family(family))


def same(one: t.Optional[Ruleset], other: t.Optional[Ruleset]) -> bool:
    """Return whether no packet can tell two rulesets apart; None is like no other."""
    return one is not None and other is not None and same_meaning(one, other)


def alike(one: Ruleset, other: Ruleset, family: Family) -> bool:
    """Return whether packets are treated alike; ways to masquerade that none of them gets to do not count."""
    beside = [(set(each.guards), each.leaks, set(each.hidden), set(each.missing)) for each in (one, other)]
    return beside[0] == beside[1] and not Comparison(family, [one], [other], ports=chosen).products()


def wanted(world: random_policies.World) -> Ruleset:
    """Return what the policy of a world asks for."""
    return ruleset(world.policy, world.family)


def healthy(policy: random_policies.Policy, family: str = IPV4) -> t.List[str]:
    """Return the rules of a chain as we write it."""
    prefix = "-A %s " % random_policies.CHAIN
    return [render_rule(random_policies.CHAIN, rule)[len(prefix) :] for rule in ruleset(policy, family).rules]


def random_worlds(predecessors: bool = True) -> t.Any:
    """Return the strategy ``random_policies.worlds`` with chains that the code under test has written."""
    return random_policies.worlds(healthy, predecessors)


class _Iptables(IptablesTool):
    """Iptables in a network namespace, real or simulated, in which there is a nat table and no other."""

    def has_table(self, name: str) -> bool:
        return name == "nat"


def iptables(run: t.Any, variant: str, family: str, path: str) -> IptablesTool:
    """Return the collection's iptables tool, over a runner."""
    return _Iptables(run, variant, Family(family), Tool(path, (1, 8, 9)), lock_timeout=5)


def backend(nat: Nat, family: str = IPV4, adopt: bool = True, position: str = "keep") -> Iptables:
    """Return the backend under test on a simulated table."""
    command = Family(family).iptables
    # In place of NftNat.
    kernel: t.Tuple[t.Any, t.Any] = (nat, nat.mangle) if nat.variant == "iptables_nft" else (None, None)
    return Iptables(
        iptables(nat.run, nat.variant, family, "/usr/sbin/" + command),
        Managed(random_policies.CHAIN, position, adopt),
        *kernel,
    )
