# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packets stand for a way through a node: the middle of its largest region, and a random one."""

from __future__ import annotations

import random
import typing as t

from ..._rules import regions
from ..._rules.regions import Region
from ..._system.families import PORT_PROTOCOLS, PROTOCOL_NAMES, PROTOCOLS
from ..._system.intervals import Spans
from ..._system.services import MAX_PORT, unpack
from ..._twin.values import Question
from ..ways.node_model import NodeModel
from ..ways.ways import Way, Ways

#: How often another random packet is taken, if it is one that was sent already.
_ATTEMPTS = 4
#: Of so many random packets one is of a protocol that seldom has connections, where a way has both.
_SELDOM = 4
#: Two verifications of one node send the same packets.
_SEED = 20240229

#: protocols with a name and ports in questions
NAMED = tuple(PROTOCOLS[name] for name in PORT_PROTOCOLS)
ALL_PORTS: Spans = ((0, MAX_PORT),)


class ChosenPackets:
    """Chooses packets for the ways of one family."""

    def __init__(self, model: NodeModel) -> None:
        self._model = model
        self._random = random.Random(_SEED)  # noqa: S311 (no secret)

    def of(self, way: Way, found: Ways, attempt: int, times: int) -> t.List[Question]:
        """Return a packet from the middle of a way's largest region, and random ones of any region.

        A packet of a pod to itself passes the node only if a Service translates it: without that, one to another.

        :param attempt: with another number than 0 they do not depend on how many were chosen before.
        :param times: how many random ones.
        """
        chance = random.Random("%d %r" % (attempt, way.met)) if attempt else self._random  # noqa: S311 (no secret)
        choose = regions.packet if way.targets else regions.packet_to_another
        usual, seldom = self._by_protocol([part for part in way.regions if choose(part)])
        if not usual and not seldom:
            return []
        largest = max(usual or seldom, key=regions.size)
        chosen = [(largest, choose(largest))]
        for _time in range(times):
            parts = seldom if not usual or (seldom and not chance.randrange(_SELDOM)) else usual
            for _attempt in range(_ATTEMPTS):
                part = chance.choice(parts)
                another = choose(part, chance)
                if another != chosen[0][1]:
                    chosen.append((part, another))
                    break
        return [
            self.question(one, part, self._model.link_of(found, way, one.source))
            for part, one in chosen
            if one is not None
        ]

    def _by_protocol(self, parts: t.Sequence[Region]) -> t.Tuple[t.List[Region], t.List[Region]]:
        """Return regions divided by what most connections of pods are, and everything else."""
        usual = [part._replace(service=regions.meet(part.service, self._model.usual)) for part in parts]
        seldom = [part._replace(service=regions.minus(part.service, self._model.usual)) for part in parts]
        return [part for part in usual if part.service], [part for part in seldom if part.service]

    def question(self, packet: regions.Packet, part: Region, link: t.Optional[str]) -> Question:
        """Return a packet of a region as a question.

        :param link: over which it comes in; None: the node itself sends it.
        """
        protocol, port = unpack(packet.service)
        icmp = protocol == self._model.family.icmp
        name = "icmp" if icmp else PROTOCOL_NAMES[protocol] if protocol in NAMED else str(protocol)
        return Question(
            destination=str(self._model.family.address(packet.destination)),
            source=str(self._model.family.address(packet.source)),
            interface=link,
            protocol=name,
            port=port,
            source_port=None if part.source_port == ALL_PORTS else packet.source_port,
        )
