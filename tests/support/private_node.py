# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For unit tests of the agent: paths below a directory, and made-up results of reconcile. Python 3.8."""

from __future__ import annotations

import sys
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import (
    EXEMPT,
    MASQUERADED,
    Action,
    ActionKind,
    Counted,
    Plan,
    View,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import nat_jump, render_rule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Change, Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, Family

CHAIN = "IP-MASQ-AGENT"


def private_paths(root: t.Any, **chosen: str) -> Paths:
    """Return paths of an agent that are all below ``root``, unless others are chosen. Metrics are off."""
    places = {"config_dir": "%s/etc/ip-masq-agent" % root, "bin_dir": "%s/sbin" % root, "python": sys.executable}
    return Paths(root=str(root), **dict(places, **chosen))


class Kernel:
    """Stands for a backend that has counted something."""

    def __init__(self, family: Family) -> None:
        self.family = family

    def counted(self) -> t.List[Counted]:
        """Return twelve exempt connections, three masqueraded."""
        return [Counted(("/bin/true",), EXEMPT + MASQUERADED, ((12, 720), (3, 180)))]

    def fingerprint(self) -> t.List[t.List[str]]:
        """Return what to compare."""
        return [["/usr/sbin/iptables", "-S", CHAIN]]


def in_force(config: Config, family: str) -> View:
    """Return the rules that a policy leads to, as iptables lists them."""
    wanted = from_config(config, Family(family))
    return View(tuple(render_rule(CHAIN, rule) for rule in wanted.rules), nat_jump(CHAIN).line, wanted)


def reconciled(
    config: Config,
    actions: t.Sequence[str] = (),
    found: t.Optional[View] = None,
    errors: t.Sequence[str] = (),
    notes: t.Sequence[str] = (),
) -> Result:
    """Return what reconcile returns for a node that comes to this policy.

    :param actions: rules that it had to add in the first family.
    :param found: what it met there.
    """
    changes: t.List[Change] = []
    for family in FAMILIES if config.enable_ipv6 else FAMILIES[:1]:
        view = in_force(config, family)
        plan = Plan(
            actions=tuple(Action(ActionKind.RULE_ADDED, rule) for rule in actions) if not changes else (),
            transaction=(),
            before=(),
            after=view.rules + (str(view.jump),),
            view=view,
            found=found if found is not None and not changes else view,
        )
        changes.append(Change(family, "iptables_nft", plan, t.cast(t.Any, Kernel(family))))
    return Result("iptables_nft", "1.8.9", tuple(changes), tuple(errors), tuple(notes))
