# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules as values: one form for those of nft, of iptables-nft and of iptables-legacy.

A condition is one of three things: a span of a field or a test of a tracked value (packets are divided by it), nothing
(proven irrelevant: see ``conditions``), or an entry of ``Rule.unknown``. What a reader does not know is unknown.
"""

from __future__ import annotations

import typing as t

from .._system.intervals import Spans

ALL_BITS = 0xFFFFFFFF

#: Values that are tracked along a packet's way. All are 0 of a packet that comes in.
MARK = "mark"
CT_MARK = "ct mark"
#: 1 where the destination was translated
DNAT = "dnat"
#: 1 where rules keep the packet from conntrack; INVALID where conntrack makes no connection of it (0: it is NEW)
UNTRACKED = "untracked"
INVALID = 2
#: 1 where the packet begins a connection that another one has announced, so that it is RELATED and not NEW
RELATED = "related"
#: 1 where it begins a connection of TCP for conntrack and has ACK in place of SYN (nf_conntrack_tcp_loose); STRAY and
#: the flags of TCP where conntrack calls it invalid
PICKED_UP = "picked up"
STRAY = 0x100
#: Whether a condition on a socket of the node matches; to the copy none belongs that would take such packets.
BY_SOCKET = "sockets of the node that take packets of pods (socket)"
#: what of the node sends the packet: nothing of a packet that is forwarded; a socket, whose owner is the one asked for
SENT = "sent by"
SENT_BY_SOCKET, SENT_BY_OWNER = 1, 2
#: Before conntrack sees the packet: UNDECIDED, or the first rule that decided what conntrack makes of it.
DECIDED = "decided"
UNDECIDED, BY_NOTRACK, BY_TEMPLATE = 0, 1, 2


class Names(t.NamedTuple):
    """A condition about the name of a link. A ``+`` at the end of a pattern stands for any rest."""

    patterns: t.Tuple[str, ...]
    inverted: bool = False

    def match(self, name: str) -> bool:
        """Return whether a link is meant."""
        found = any(name.startswith(one[:-1]) if one.endswith("+") else name == one for one in self.patterns)
        return found != self.inverted


class Test(t.NamedTuple):
    """A condition about a tracked value: ``value & mask`` lies in ``allowed``."""

    subject: str
    mask: int
    allowed: Spans


class Match(t.NamedTuple):
    """Packets that fulfil all of these conditions; None: any.

    ``destination`` and ``service`` are those that the packet has at that place, after a translation of its
    destination; ``original_destination`` and ``original_service`` those with which it came in. A service is
    ``protocol << 16 | destination port``; the port of a protocol without ports is 0.
    """

    source: t.Optional[Spans] = None
    destination: t.Optional[Spans] = None
    service: t.Optional[Spans] = None
    source_port: t.Optional[Spans] = None
    original_destination: t.Optional[Spans] = None
    original_service: t.Optional[Spans] = None
    #: links over which the packet comes in, and over which it leaves; all of the conditions hold
    incoming: t.Tuple[Names, ...] = ()
    outgoing: t.Tuple[Names, ...] = ()
    tests: t.Tuple[Test, ...] = ()


#: Kinds of actions. What only counts, logs or annotates is CONTINUE.
CONTINUE = "continue"
ACCEPT = "accept"
#: also what answers with an error
DROP = "drop"
RETURN = "return"
JUMP = "jump"
GOTO = "goto"
#: a new source address: MASQUERADE (``local``), SNAT (``addresses``; ``origin`` SOURCE: that of the packet); ends a
#: chain of type nat
SOURCE = "source"
#: a new destination: DNAT, or (``addresses`` None, ``local``) REDIRECT
DESTINATION = "destination"
#: a tracked value is set
SET = "set"


class RuleAction(t.NamedTuple):
    """What a rule does with the packets that it matches.

    JUMP, GOTO: ``chain``. DESTINATION: ``addresses`` and ``ports`` (None: unchanged), one of which is chosen where they
    are several. SET: ``subject = (origin & keep) ^ (subject & own) ^ flip``; an ``origin`` of None is a value that is
    not known.
    """

    kind: str
    chain: str = ""
    addresses: t.Optional[Spans] = None
    ports: t.Optional[Spans] = None
    local: bool = False
    subject: str = ""
    origin: t.Optional[str] = None
    keep: int = 0
    flip: int = 0
    own: int = 0


class Branch(t.NamedTuple):
    """Some of the packets that a rule matches, and what it does with them; packets of two branches take the first."""

    match: Match
    action: RuleAction


class Rule(t.NamedTuple):
    """One step of a rule. A rule of nft that acts before its last condition is several steps with the same number.

    A packet that matches no branch goes on behind the rule; a rule without branches only counts or logs. With
    ``chance`` a packet that matches takes one of the branches by chance (or by a hash), or, unless ``exhaustive``, goes
    on; ``history`` is why, where it is no chance but what came before, each as an object of "because of". ``unknown``
    has what of the rule is not understood, each as an object of "because of": the rule may or may not
    match what its branches match. Where the last branch of such a rule is CONTINUE, something is done to the packet
    that is not understood: what becomes of it from there on is not known. So it is with a rule that cannot be read; its
    branch matches every packet.
    """

    #: from 1, in its chain
    number: int
    branches: t.Tuple[Branch, ...]
    unknown: t.Tuple[str, ...] = ()
    chance: bool = False
    exhaustive: bool = False
    history: t.Tuple[str, ...] = ()
    #: whether packets behind the first one of a connection meet it, and no first one
    later: bool = False


#: hooks of netfilter (linux/netfilter.h)
PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = range(5)


class BaseChain(t.NamedTuple):
    """A base chain: type (filter, nat, route), hook, priority, and whether its policy drops."""

    kind: str
    hook: int
    priority: int
    drops: bool = False


class RuleTable(t.NamedTuple):
    """One table as it treats packets of one family. ``chains`` has every chain, also empty ones.

    Where a rule of nft tests a value and then changes it, what it does behind the test is a chain of its own, which
    only that rule leads to: ``chain_of`` has the chain in which the rule is. Its rules have the rule's number.

    ``unknown`` is what is not understood of the table as a whole, as Rule.unknown.
    """

    #: one of ``iptables_nft``, ``iptables_legacy``, ``nftables``
    backend: str
    #: with the family in front (``ip nat``)
    title: str
    base: t.Mapping[str, BaseChain]
    chains: t.Mapping[str, t.Tuple[Rule, ...]]
    unknown: t.Tuple[str, ...] = ()


def reachable(table: RuleTable, start: str) -> t.Tuple[str, ...]:
    """Return a chain and all chains that it leads to."""
    found = {start: None}
    work = [start]
    while work:
        for rule in table.chains.get(work.pop(), ()):
            for branch in rule.branches:
                target = branch.action.chain
                if branch.action.kind in (JUMP, GOTO) and target not in found:
                    found[target] = None
                    work.append(target)
    return tuple(found)


def behind(chain: str, number: int) -> str:
    """Return the name of the chain that holds the rest of a rule."""
    return "%s\0%d" % (chain, number)


def chain_of(name: str) -> str:
    """Return the chain of the node that a chain of a RuleTable is, or belongs to."""
    return name.partition("\0")[0]


def does_unknown(rule: Rule) -> bool:
    """Return whether a rule does something that is not understood."""
    return bool(rule.unknown) and bool(rule.branches) and rule.branches[-1].action.kind == CONTINUE


class Ref(t.NamedTuple):
    """A rule: the place of its table in the list of tables, its chain, and its number in it."""

    table: int
    chain: str
    number: int
