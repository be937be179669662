# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes into the twin and what comes out of it, as values.

The way of the data through this package::

    node_state.read --> State --> twin.build --> Twin --> ask(Question) --> Answer --> verify --> Conflict
     (the node)                (namespaces)     (packets, traces)                    (declaration, rule_owners)

Callers outside of this package::

    state = node_state.read(run)
    made = twin.build(state, run)                       # raises NodeError with the reason if there can be none
    with made:
        answers = made.ask([Question("10.20.0.5", "10.244.1.7", port=443)], explain=True)
        report = verification.verify(made, promises.policy_of(rulesets))
"""

from __future__ import annotations

import typing as t

from .._system import defaults_and_limits

#: What became of a packet: it left over a link, the node itself received it, it was answered with an error, or it is
#: gone; or there was no way to send it.
SENT = "sent"
DELIVERED = "delivered"
REJECTED = "rejected"
DROPPED = "dropped"
NOT_TESTED = "not tested"

#: Names of protocols that people can ask about.
QUESTION_PROTOCOLS = ("icmp", "icmpv6", "sctp", "tcp", "udp")


class Unseen(t.NamedTuple):
    """Something on the node that the twin does not have, and that can make an answer wrong. ``code`` is stable."""

    code: str
    text: str


class Question(t.NamedTuple):
    """One packet that opens a connection.

    ``source`` is an address whose route names the link that it comes from, unless ``interface`` does; None and the
    node's own addresses mean the node itself. ``protocol`` is one of QUESTION_PROTOCOLS, or a number; ``port`` is that
    of the destination, and without meaning for a protocol that has none.
    """

    destination: str
    source: t.Optional[str] = None
    interface: t.Optional[str] = None
    protocol: str = "tcp"
    port: int = defaults_and_limits.PORT
    source_port: t.Optional[int] = None
    #: of a packet that conntrack calls invalid, the flags of TCP and STRAY; of ICMP an error of no connection
    stray: int = 0


class Steering(t.NamedTuple):
    """What takes packets from a source port past a choice by chance, to the chain that one of its rules leads to.

    ``number`` is the first rule of the chain that chooses, from 1; ``returns``: whether packets may come back.
    """

    family: int
    table: str
    chain: str
    number: int
    leads_to: str
    returns: bool
    port: int


class MetRule(t.NamedTuple):
    """A rule that a packet met. ``table`` has the family in front (``ip nat``); ``text`` is how its tool lists it."""

    backend: str
    table: str
    chain: str
    text: str


class Answer(t.NamedTuple):
    """What became of the packet of a question, and as whose packet the receiver saw it.

    ``interface`` is the link over which it left. ``decided_by`` is the rule that gave it its source address, or, where
    it kept its own, the last rule in a chain of type nat that let it pass; ``passed`` are all of these. With
    ``untracked`` it is the rule that keeps the packet from conntrack, so that no chain of type nat sees it.
    Rules are there only if they were requested. ``where`` is the place in which it was lost.
    ``alternatives`` are other possible answers, because the node does not report in which order its kernel asks chains
    of the same priority.
    """

    question: Question
    outcome: str
    source: t.Optional[str] = None
    source_port: t.Optional[int] = None
    destination: t.Optional[str] = None
    destination_port: t.Optional[int] = None
    interface: t.Optional[str] = None
    where: str = ""
    decided_by: t.Optional[MetRule] = None
    passed: t.Tuple[MetRule, ...] = ()
    alternatives: t.Tuple[Answer, ...] = ()
    untracked: bool = False

    @property
    def outside(self) -> t.Tuple[t.Any, ...]:
        """What a host outside can see of it."""
        return (self.outcome, self.source, self.destination, self.destination_port, self.interface)
