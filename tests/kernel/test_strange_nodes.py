# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random nodes that share no code with the product: what verify says is held against real packets.

A few of each sort, and each one that was wrong once. ``make test-strange`` runs as many as are asked for.
"""

from __future__ import annotations

import typing as t

import pytest
from strange import nodes, programs, realistic, run, strange

#: Nodes on which verify was wrong once.
WRONG_ONCE = {
    "84": "a rule that writes addresses behind the translation was not looked at",
    "177": "a conflict named services and source ports that the rule does not hit",
    "277": "the same with pods",
    "283": "the same with an entry of a map",
    "334": "the same with a zone of conntrack",
    "416": "which of two chains is asked first decides about a choice by chance",
    "431": "packets of which no order decides were judged together with others",
    "settings:5": "a mark from a hash counted as 0",
    "program:6": "a conflict named destinations that a mark does not mean",
    "ipv6:30185": "packets between pods were not asked where the packets chosen were from a pod to itself",
    "ipv6:30285": "pods were asked behind a link as well to which only a wider route leads",
    "program:30216": "an untracking rule counted behind a rule that had chosen a zone",
    "20214": "the copy of a macvlan is of another kind, which a rule of nft asked for",
    "program:20745": "a translation to the destination that a packet has already is no status dnat",
    "program:60010": "a condition on the port of a connection was taken for one that ICMP never meets",
    "program:89": "a conflict was said to hit all source ports",
}
#: Nodes on which verify was right, and this comparison was not.
MISJUDGED_ONCE = {
    "ipv6:30093": "a preferred source of IPv4 was taken for one of IPv6 as well",
    "ipv6:30096": "a mark that a random program sets, and the policy skips, was not seen",
}
#: Those with the most constructions that none of the others has.
RANDOM = (
    *("31", "46", "56", "77", "119", "124", "134", "151", "498"),
    *("settings:7", "settings:10", "settings:166", "program:10", "program:11", "ipv6:10", "ipv6:11"),
)
#: Every sort of realistic node, the backends in turn.
REALISTIC = [name for place, name in enumerate(realistic.NAMES) if place % 3 == place // 3 % 3]


def _hold(what: str) -> run.Outcome:
    outcome = run.run(run.node(what), what)
    assert outcome.kind not in run.WRONG, "\n".join(
        [outcome.summary, outcome.policy, *outcome.constructions, *outcome.broken[:5], *outcome.false_errors]
    )
    return outcome


@pytest.mark.parametrize("what", [*WRONG_ONCE, *MISJUDGED_ONCE])
def test_node_that_was_wrong_once(what: str) -> None:
    _hold(what)


@pytest.mark.parametrize("what", RANDOM)
def test_random_node(what: str) -> None:
    _hold(what)


@pytest.mark.parametrize("what", REALISTIC)
def test_node_as_people_have_it_is_tested_completely(what: str) -> None:
    outcome = _hold(what)
    assert outcome.kind == run.RIGHT, (outcome.summary, outcome.note)


def test_random_nodes_have_constructions_of_each_sort() -> None:
    assert {what.partition(":")[0] for what in RANDOM} > set(run.SORTS)
    used = {name for what in RANDOM for name in run.node(what).used}
    assert {"program:xt", "program:xt-legacy", "program:nft", "program:routes"} <= used
    assert {name.partition(":")[0] for name in used} >= {"xt", "nft", "rule", "settings"}
    assert len(used & set(strange.REGISTER)) > 15


@pytest.mark.parametrize("make", [nodes.Node, programs.Program])
def test_a_seed_means_one_node(make: t.Callable[[int], nodes.Node]) -> None:
    def words(node: nodes.Node) -> t.List[t.Any]:
        return [node.steps, node.lines, node.policy.options, node.pods, [str(probe) for probe in node.probes()]]

    assert words(make(5)) == words(make(5))
