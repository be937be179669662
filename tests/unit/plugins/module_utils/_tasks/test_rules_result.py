# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules return of a run."""

from __future__ import annotations

import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Action, ActionKind, Plan, View
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Change, Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.rules_result import rules_diff, rules_return

NONE = View((), None)


def change(family: str, backend: str, view: View = NONE, **parts: t.Any) -> Change:
    """A change of which only what matters is set."""
    plan = Plan(**{"actions": (), "transaction": (), "before": (), "after": (), **parts, "view": view})
    return Change(family, backend, plan, t.cast(t.Any, None))


RULES = change(
    "ipv4",
    "iptables_nft",
    View(("-A C -j MASQUERADE",), "-A POSTROUTING -j C"),
    actions=(Action(ActionKind.CHAIN_CREATED, "-N C"), Action(ActionKind.JUMP_ADDED, "-A POSTROUTING -j C")),
    before=("-A POSTROUTING -s 10.88.0.0/16 -j X",),
    after=("-N C", "-A C -j MASQUERADE", "-A POSTROUTING -s 10.88.0.0/16 -j X", "-A POSTROUTING -j C"),
)
STALE = change(
    "ipv4", "iptables_legacy", actions=(Action(ActionKind.CHAIN_REMOVED, "-N C"),), before=("-N C", "-A C -j RETURN")
)
RESULT = Result("iptables_nft", "1.8.9", (RULES, STALE), (), ())


def test_active_rules_are_returned_by_family_without_left_overs() -> None:
    told = rules_return(RESULT, present=True)
    assert told["backend"] == {"name": "iptables_nft", "version": "1.8.9"}
    assert told["families"] == {"ipv4": {"rules": ["-A C -j MASQUERADE"], "jump": "-A POSTROUTING -j C"}}


def test_nothing_is_in_force_after_a_removal() -> None:
    assert rules_return(RESULT, present=False)["families"] == {}


def test_every_action_is_reported_in_order() -> None:
    assert rules_return(RESULT, present=True)["actions"] == [
        {"family": "ipv4", "backend": "iptables_nft", "action": "chain created", "rule": "-N C"},
        {"family": "ipv4", "backend": "iptables_nft", "action": "jump added", "rule": "-A POSTROUTING -j C"},
        {"family": "ipv4", "backend": "iptables_legacy", "action": "chain removed", "rule": "-N C"},
    ]


def test_diff_has_a_heading_for_each_family_and_backend() -> None:
    assert rules_diff(RESULT) == {
        "before": "# ipv4, iptables_nft\n-A POSTROUTING -s 10.88.0.0/16 -j X\n"
        "# ipv4, iptables_legacy\n-N C\n-A C -j RETURN\n",
        "after": "# ipv4, iptables_nft\n-N C\n-A C -j MASQUERADE\n-A POSTROUTING -s 10.88.0.0/16 -j X\n"
        "-A POSTROUTING -j C\n# ipv4, iptables_legacy\n",
    }


def test_a_run_without_changes_reports_none() -> None:
    quiet = Result("iptables_nft", "1.8.9", (), (), ())
    assert rules_return(quiet, present=True)["actions"] == []
    assert rules_diff(quiet) == {"before": "", "after": ""}
