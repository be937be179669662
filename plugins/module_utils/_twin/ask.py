# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One question after the other is put to the twin, as a packet."""

from __future__ import annotations

import collections
import functools
import ipaddress
import itertools
import random
import typing as t

from .._system import files, netlink
from .._system.families import SCTP, TCP, UDP, WITH_PORTS, of_address, protocol_number
from .._system.netlink import Message, Netlink
from . import links, packets, routing, trace
from .cable_ends import Arrival, Outside
from .deciding_rule import Rules
from .neighbours import Neighbours
from .sockets import Sockets
from .values import DELIVERED, DROPPED, NOT_TESTED, REJECTED, SENT, Answer, Question

#: Ports that the connections come from, one after the other, so that each of one call is a new one.
_PORTS = range(20000, 60000)
#: A packet that is lost is sent once more: on a busy machine a queue of the kernel may have been full.
_ATTEMPTS = 2

#: Deletes every connection that a namespace knows: IPCTNL_MSG_CT_DELETE without saying which.
_FORGET = 1 << 8 | 2

#: What the kernel counts where routing ends a packet's way, by the name of the counter.
_COUNTERS = {
    "IPReversePathFilter": "the source address is not one that comes from there (rp_filter)",
    "InNoRoutes": "no route to the destination",
    "InAddrErrors": "an address that is not forwarded to",
    "OutNoRoutes": "no route to the destination",
    "Ip6InNoRoutes": "no route to the destination",
    "Ip6OutNoRoutes": "no route to the destination",
    "Ip6InAddrErrors": "an address that is not forwarded to",
}
#: Each line is the name of a counter and its value, or a line of names is followed by one of values.
_COUNTED = ("/proc/net/netstat", "/proc/net/snmp", "/proc/net/snmp6")


class Asker:
    """Sends packets into a twin and looks at what becomes of them. Lives in the twin's network namespace."""

    def __init__(
        self,
        outside: Outside,
        rules: Rules,
        cables: t.Mapping[int, links.Link],
        neighbours: Neighbours,
        legacy: t.Sequence[int],
    ) -> None:
        """Prepare to send packets.

        :param cables: the links of the twin, by their index there.
        :param neighbours: who is known to be behind its bridges.
        :param legacy: families in which there are tables of iptables-legacy, as numbers of nfgenmsg.
        """
        self._outside = outside
        self._rules = rules
        self._links = cables
        self._neighbours = neighbours
        self._legacy = legacy
        self._sockets = Sockets()
        self._numbers = itertools.count(random.getrandbits(31))
        self._ports = itertools.cycle(_PORTS)
        self._used: t.Set[int] = set()
        self._behind = functools.lru_cache(maxsize=None)(self._link_of)
        self._names = {link.name: index for index, link in cables.items()}
        self._own = routing.read()
        self._addresses = routing.local_addresses(self._own)
        self._answered = self._addresses | routing.anycasts(self._own)
        self._networks: t.Dict[int, t.List[t.Any]] = {}
        for one in routing.addresses(self._own):
            self._networks.setdefault(one.link, []).append(one.network)
        self._broadcasts = {"255.255.255.255", *routing.broadcasts(self._own)}

    def ask(self, questions: t.Sequence[Question], explain: bool) -> t.List[Answer]:
        """Return the answers, in order. No packet of an earlier call has used up what a translation may give.

        :param explain: whether to return the rules that decided; nor has one of this call then.
        """
        self._forget()
        if not explain:
            answers = {place: self._ask(questions[place], None) for place in _in_rounds(questions)}
            return [answers[place] for place in range(len(questions))]
        with trace.Trace(self._legacy) as heard:
            return [self._ask(question, heard) for question in questions]

    def _ask(self, question: Question, heard: t.Optional[trace.Trace]) -> Answer:
        answer = self._try(question, heard)
        for _attempt in range(_ATTEMPTS - 1):
            if answer.outcome == DROPPED:
                answer = self._try(question, heard)
        if heard is not None and answer.outcome in (DROPPED, REJECTED) and not answer.where:
            before = _counted()
            self._try(question, heard)
            answer = answer._replace(where=_reason(before))
        return answer

    def _try(self, question: Question, heard: t.Optional[trace.Trace]) -> Answer:
        """Send one packet, and see what becomes of it."""
        family = of_address(question.destination)
        protocol = protocol_number(question.protocol, family)
        self._sockets.hear(family.number, protocol)
        number = next(self._numbers) & 0x7FFFFFFF
        source_port = next(self._ports) if question.source_port is None else question.source_port
        # Of other protocols all packets may be alike to what conntrack compares.
        key = source_port if protocol in (TCP, UDP, SCTP, family.icmp) else -protocol
        if key in self._used or (self._used and heard is not None):
            self._forget()
        self._used.add(key)
        port = question.port if protocol in WITH_PORTS else 0
        self._outside.at_once()
        answer = self._send(question, protocol, source_port, port, number) or self._look(question, number)
        if heard is None:
            return answer
        steps = heard.steps(lambda data: _is_ours(data, protocol, source_port))
        return self._rules.explained(answer, steps)

    def _forget(self) -> None:
        forget_connections()
        self._used.clear()

    def _send(self, question: Question, protocol: int, source_port: int, port: int, number: int) -> t.Optional[Answer]:
        """Send the packet. Returns an answer where that is the end of it already."""
        if question.source is None or question.source in self._addresses:
            why = self._sockets.send(protocol, question.destination, source_port, port, number, question.source)
            return Answer(question, DROPPED, where=why) if why else None
        index = self._way_in(question.source, question.interface)
        if index is None:
            return Answer(question, NOT_TESTED, where="the node has no route to the source %s" % question.source)
        link = self._links[index]
        ports = (source_port, port)
        data = packets.packet(protocol, question.source, question.destination, *ports, number, question.stray)
        if link.kind != links.BRIDGE:
            bridge = self._links.get(link.master)
            behind_bridge = bridge is not None and bridge.kind == links.BRIDGE
            self._outside.inject(index, data, bridge.address if bridge and behind_bridge else link.address)
            return None
        receiver: t.Optional[bytes] = link.address
        if self._is_beside(index, question.destination):
            receiver, _port = self._neighbours.port(index, question.destination)
        sender, place = self._neighbours.port(index, question.source)
        if place is None or place not in self._links:
            # The last port of a bridge is the one for pods that do not exist.
            place = max(port for port, link in self._links.items() if link.master == index)
        self._outside.inject(place, data, receiver, sender)
        return None

    def _way_in(self, source: str, interface: t.Optional[str]) -> t.Optional[int]:
        """Return the link that a source is behind."""
        if interface is not None:
            return self._names.get(interface)
        return self._behind(source)

    def _link_of(self, source: str) -> t.Optional[int]:
        index = routing.link_of(self._own, source) or routing.link_to(source)
        return index if index in self._links else None

    def _is_beside(self, bridge: int, destination: str) -> bool:
        """Return whether a host behind a bridge reaches a destination without the node's routing."""
        address = ipaddress.ip_address(destination)
        return destination not in self._answered and any(address in one for one in self._networks.get(bridge, ()))

    def _look(self, question: Question, number: int) -> Answer:
        # A copy that a rule sends comes out before the packet itself.
        ways = (self._outside.at_last,) if self._rules.send_copies else (self._outside.at_once, self._outside.at_last)
        for arrivals in ways:
            answer = self._find(question, number, arrivals())
            if answer is not None:
                return answer
        return Answer(question, DROPPED)

    def _find(self, question: Question, number: int, arrivals: t.Sequence[Arrival]) -> t.Optional[Answer]:
        error = question.stray and question.protocol.startswith("icmp")  # which is never answered with another one
        own = question.source is None or question.source in self._addresses
        # The node hears its own broadcasts, which leave all the same.
        heard = self._sockets.received() if not (own and question.destination in self._broadcasts) else ()
        for seen in heard:
            if seen.number == number and seen.error == error:
                return _answer(question, DELIVERED, seen, None)
        for link, seen in reversed(arrivals):  # the packet itself, not its copy
            if seen.number == number and seen.error == error:
                return _answer(question, SENT, seen, self._interface(link))
        for link, seen in arrivals:
            if seen.number == number:
                return Answer(question, REJECTED, source=seen.source, interface=self._interface(link))
        return None

    def _interface(self, index: int) -> str:
        link = self._links[index]
        master = self._links.get(link.master)
        return master.name if master is not None and master.kind == links.BRIDGE else link.name


def _in_rounds(questions: t.Sequence[Question]) -> t.List[int]:
    """Return the places of questions: two that come from one port are in different rounds.

    To empty conntrack takes the kernel longer than a packet, as it walks through the connections of all namespaces.
    """
    rounds = []
    uses: t.Counter[t.Optional[int]] = collections.Counter()
    for question in questions:
        rounds.append(uses[question.source_port])
        uses[question.source_port] += question.source_port is not None
    return sorted(range(len(questions)), key=rounds.__getitem__)


def forget_connections() -> None:
    """Empty conntrack of this network namespace, which must be one of our own."""
    with Netlink(netlink.NETFILTER) as kernel:
        kernel.change([Message(_FORGET, netlink.family_head(0))], 0)


def _answer(question: Question, outcome: str, seen: packets.SeenPacket, interface: t.Optional[str]) -> Answer:
    without = seen.error or seen.protocol not in WITH_PORTS
    ports = (None, None) if without else (seen.source_port, seen.port)
    return Answer(question, outcome, seen.source, ports[0], seen.destination, ports[1], interface)


def _is_ours(data: bytes, protocol: int, source_port: int) -> bool:
    seen = packets.read(data)
    return seen is not None and seen.protocol == protocol and seen.source_port in (source_port, None)


def _counted() -> t.Dict[str, int]:
    found: t.Dict[str, int] = {}
    for path in _COUNTED:
        words = [line.split() for line in files.lines(path)]
        pairs = words if path.endswith("6") else [pair for two in zip(words[::2], words[1::2]) for pair in zip(*two)]
        found.update((name, int(value)) for name, value in pairs if name in _COUNTERS)
    return found


def _reason(before: t.Mapping[str, int]) -> str:
    """Return what routing had against a packet, by the counter that has grown."""
    after = _counted()
    for name, words in _COUNTERS.items():
        if after.get(name, 0) > before.get(name, 0):
            return "routing: " + words
    return "routing"
