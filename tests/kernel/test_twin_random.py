# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the twin's answer is what somebody outside of the real node sees: nodes made by chance, and real packets.

``IP_MASQ_TWIN_NODES`` is the number of nodes, ``IP_MASQ_TWIN_FIRST`` the number of the first one.
"""

from __future__ import annotations

import os
import socket
import struct
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import routing
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.twin import Twin
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import SENT, Answer, Question
from strange.nodes import Node
from strange.oracle import Probe, Seen
from support.twins import build, strange_node
from support.unnamed_namespaces import carry_out

_COUNT = int(os.environ.get("IP_MASQ_TWIN_NODES", "40"))
_FIRST = int(os.environ.get("IP_MASQ_TWIN_FIRST", "0"))
_PACKETS, _OWN = 24, 8
#: Seconds without a packet after which no more are expected.
_QUIET = 0.2


class _Own:
    """Sends for a program on the node, whose source address the node chooses."""

    def __init__(self, made: Node) -> None:
        self._made = made

    def sendto(self, packet: bytes, address: t.Tuple[str, int]) -> None:
        family, start = (socket.AF_INET6, 48) if ":" in address[0] else (socket.AF_INET, 28)
        source_port, port = struct.unpack_from("!HH", packet, start - 8)
        with self._made.space:
            opened = socket.socket(family, socket.SOCK_DGRAM)
        with opened:
            opened.bind(("", source_port))
            opened.sendto(packet[start:], (address[0], port))

    def close(self) -> None:
        """As a socket."""


def _probes(made: Node) -> t.List[Probe]:
    """Packets that its rules are about, some of them from the node as well, and packets between its pods."""
    found = [one for one in made.probes() if not one.tos][:_PACKETS]
    # Where several routes are equal, it is the socket that chooses for what the node itself sends.
    own = [] if any("nexthop" in line for line in made.lines) else found[:_OWN]
    found += [one._replace(pod=len(made.pods), protocol="udp", dport=one.dport or 53) for one in own]
    addresses = [(number, text) for number, pod in enumerate(made.pods) for text in (pod.four, pod.six)]
    found += [
        Probe(number, source, destination, "udp", 40000, 53)
        for number, source in addresses
        for other, destination in addresses
        if number != other and (":" in source) == (":" in destination)
    ]
    return found


def _as_seen(made: Node, answer: Answer) -> t.Optional[Seen]:
    """What is seen of it behind a link of the node; what the node itself receives is seen by nobody."""
    if answer.outcome != SENT:
        return None
    pods = {each: "pod%d" % number for number, one in enumerate(made.pods) for each in (one.four, one.six)}
    leaves = any(answer.interface == one.name for one in made.uplinks)
    end = answer.interface if leaves else pods.get(str(answer.destination))
    return Seen(str(end), str(answer.source), str(answer.destination), answer.destination_port or 0)


def _compare(seed: int) -> t.Tuple[t.List[str], t.Tuple[t.Any, ...], t.List[str]]:
    """Differences, what the twin lacks, and how the node was made."""
    made = strange_node(seed)
    made.watch.senders.append({4: _Own(made), 6: _Own(made)})
    probes = _probes(made)
    for _attempt in range(20):
        with made.space:
            copy = build()
        differences = _differences(made, copy, probes)
        # The kernel adds routes some time after a link came up: the node that answered must be the one that was copied.
        with made.space:
            settled = routing.read() == copy.state.routing
        if settled:
            return differences, copy.unseen, made.lines + [step.text for step in made.steps]
    raise AssertionError("the node keeps changing")


def _differences(made: Node, copy: Twin, probes: t.Sequence[Probe]) -> t.List[str]:
    sources = [one.source if one.pod < len(made.pods) else None for one in probes]
    questions = [
        Question(one.destination, source, None, one.protocol, one.dport, one.sport)
        for one, source in zip(probes, sources)
    ]
    seen = made.watch.send(probes, quiet=_QUIET)
    differences = []
    with copy:
        for place, answer in enumerate(copy.ask(questions)):
            real, possible = seen.get(place), [_as_seen(made, each) for each in (answer, *answer.alternatives)]
            if real not in possible:
                explained = copy.ask([answer.question], explain=True)
                differences.append("%s\n  real: %s\n  twin: %s\n  %s" % (probes[place], real, possible, explained))
    return differences


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_random_node(seed: int) -> None:
    differences, unseen, log = carry_out(_compare, seed)
    assert not unseen
    assert not differences, "\n".join(differences + log)
