# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the twin's answer is what somebody outside of the real node sees: nodes made by chance, and real packets.

``IP_MASQ_TWIN_NODES`` is the number of nodes, ``IP_MASQ_TWIN_FIRST`` the number of the first one.
"""

from __future__ import annotations

import os
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import routing
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.twin import Twin
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import (
    DELIVERED,
    SENT,
    Answer,
    Question,
)
from support.random_nodes import RandomNode, Seen, Sent
from support.twins import build
from support.unnamed_namespaces import carry_out

_COUNT = int(os.environ.get("IP_MASQ_TWIN_NODES", "40"))
_FIRST = int(os.environ.get("IP_MASQ_TWIN_FIRST", "0"))
_PACKETS = 12


def _as_seen(answer: Answer) -> t.Optional[Seen]:
    if answer.outcome not in (SENT, DELIVERED):
        return None
    place = "node"
    if answer.outcome == SENT:
        name = str(answer.interface)
        place = "up" + name[3:] if name.startswith("eth") else "pod"
    return Seen(place, str(answer.source), str(answer.destination), answer.destination_port or 0)


def _compare(seed: int) -> t.Tuple[t.List[str], t.Tuple[t.Any, ...], t.List[str]]:
    """Differences, what the twin lacks, and how the node was made."""
    made = RandomNode(seed)
    sent = made.packets(_PACKETS)
    for _attempt in range(20):
        with made.node:
            copy = build()
        differences = _differences(made, copy, sent)
        # The kernel adds routes some time after a link came up: the node that answered must be the one that was copied.
        with made.node:
            settled = routing.read() == copy.state.routing
        if settled:
            return differences, copy.unseen, made.log
    raise AssertionError("the node keeps changing")


def _differences(made: RandomNode, copy: Twin, sent: t.Sequence[Sent]) -> t.List[str]:
    questions = [Question(one.destination, one.source, None, one.protocol, one.port, one.source_port) for one in sent]
    differences = []
    with copy:
        for one, answer in zip(sent, copy.ask(questions)):
            possible = [_as_seen(each) for each in (answer, *answer.alternatives)]
            real = made.send(one, any(possible))
            if real not in possible:
                explained = copy.ask([answer.question], explain=True)
                differences.append("%s\n  real: %s\n  twin: %s\n  %s" % (one, real, possible, explained))
    return differences


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_random_node(seed: int) -> None:
    differences, unseen, log = carry_out(_compare, seed)
    assert not unseen
    assert not differences, "\n".join(differences + log)
