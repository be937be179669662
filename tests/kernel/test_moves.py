# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kube-proxy moves to nftables on random nodes: no packet has a wrong source, and all is verified, before and after.

A few of each backend and ``exemption``, of both families. ``make test-strange`` runs as many as are asked for.
"""

from __future__ import annotations

import typing as t

import pytest
from moves import run
from strange.moving import CHOICES

#: Nodes on which something was wrong once.
WRONG_ONCE = {
    9: "the copy did not answer for the anycast address of a bridge, so IPv6 was not tested completely",
}
#: One of each backend and exemption, families in turn.
SAMPLE = [place + len(CHOICES) * (place % 2 + 2) for place in range(len(CHOICES))]


@pytest.mark.parametrize("seed", sorted([*WRONG_ONCE, *SAMPLE]))
def test_no_packet_has_a_wrong_source(seed: int, show_table: t.Callable[..., None]) -> None:
    outcome = run.run(seed)
    assert not outcome.wrong, "\n".join([outcome.what, *outcome.wrong[:8]])
    assert outcome.steps and outcome.seen
    cells = [outcome.steps, outcome.sent, outcome.seen, *outcome.leaks, outcome.counted]
    heads = ["steps", "sent", "seen", "leaks before", "since", "counted"]
    show_table("kube-proxy moves", heads, [(outcome.what, list(map(str, cells)))])


def test_each_backend_and_exemption_is_in_the_sample_with_both_families() -> None:
    nodes = [run.Moving(seed) for seed in SAMPLE]
    assert {(node.policy.options["backend"], node.policy.options["exemption"]) for node in nodes} == set(CHOICES)
    assert {node.six for node in nodes} == {True, False}
