# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that share no code with the product: verify is never green where a real packet breaks the promise.

STRANGE_SEEDS=1-2000 widens the run.
"""

from __future__ import annotations

import os
import typing as t

import pytest

from strange import nodes, people, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces")


def _hold(outcome: run.Outcome) -> None:
    assert outcome.kind not in (run.GREEN, run.ERROR), "\n".join(
        [outcome.summary, outcome.policy, *outcome.constructions, *outcome.broken[:5], *outcome.false_errors]
    )


@pytest.mark.parametrize("seed", run.seeds(os.environ.get("STRANGE_SEEDS", "1-30")))
def test_random_node(seed: int) -> None:
    _hold(run.run(nodes.Node(seed), "seed %d" % seed))


@pytest.mark.parametrize("name", people.NAMES)
def test_node_as_people_have_it(name: str) -> None:
    _hold(run.run(people.build(name), name))


def test_a_seed_means_one_node() -> None:
    def words(node: nodes.Node) -> t.List[t.Any]:
        return [node.steps, node.lines, node.policy.options, node.pods, [str(probe) for probe in node.probes()]]

    assert words(nodes.Node(5)) == words(nodes.Node(5))
