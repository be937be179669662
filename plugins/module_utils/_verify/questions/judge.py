# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what a destination sees of a packet with the policy, and name the rule that caused it.

The result of a whole verification is in ``words.verdict``.
"""

from __future__ import annotations

import ipaddress
import typing as t

from ..._engine import rule_owners
from ..._system import intervals
from ..._system.families import IPV6, Family, of_address
from ..._system.intervals import Spans
from ..._twin import routing
from ..._twin.node_state import NodeState
from ..._twin.values import DROPPED, REJECTED, SENT, Answer, MetRule
from ..ways.packet_policy import NODE, OWN, POD, Policy, Promise
from .leftovers import Leftovers

_VRF = "vrf"
#: the owner where no rule is to blame
NOBODY = "none"


class Addresses:
    """The addresses of a node: on which link each is, and which of them count as the node's for what leaves."""

    def __init__(self, state: NodeState) -> None:
        self.leftovers = Leftovers(state)
        self._links = {link.index: link for link in state.links}
        self._by_name = {link.name: link for link in state.links}
        self._of_link: t.Dict[int, t.Dict[str, None]] = {}
        self._links_of: t.Dict[str, t.List[str]] = {}
        for one in routing.addresses(state.routing):
            self._of_link.setdefault(one.link, {})[str(one.address)] = None
            if one.link in self._links:
                self._links_of.setdefault(str(one.address), []).append(self._links[one.link].name)
        self._preferred: t.Dict[int, t.List[t.Tuple[t.Any, str]]] = {}
        for destination, index, source in routing.preferred_sources(state.routing):
            self._preferred.setdefault(index, []).append((destination, source))

    def __contains__(self, address: t.Optional[str]) -> bool:
        return address in self._links_of

    def spans(self, family: Family) -> Spans:
        """Return the addresses of a family."""
        numbers = (int(ipaddress.ip_address(one)) for one in self._links_of if of_address(one) == family)
        return intervals.of((number, number) for number in numbers)

    @property
    def has_global_ipv6(self) -> bool:
        """Return whether a link has an address of IPv6 that is not of the link or the host alone."""
        found = (ipaddress.ip_address(address) for address in self._links_of if of_address(address) == IPV6)
        return any(not one.is_link_local and not one.is_loopback for one in found)

    def link_of(self, address: str) -> str:
        """Return the names of the links that have an address."""
        return " and ".join(self._links_of.get(address, ()))

    def is_of(self, address: str, interface: t.Optional[str], destination: str) -> bool:
        """Return whether an address is one of the node for what leaves over a link to a destination.

        It is if the link has it (or the VRF that the link is a port of), or if a route over that link prefers it.
        """
        link = self._by_name.get(interface or "")
        if link is None:
            return False
        own = dict(self._of_link.get(link.index, {}))
        master = self._links.get(link.master)
        if master is not None and master.kind == _VRF:
            own.update(self._of_link.get(master.index, {}))
        if address in own:
            return True
        receiver = ipaddress.ip_address(destination)
        return any(source == address and receiver in network for network, source in self._preferred.get(link.index, ()))


class Verdict(t.NamedTuple):
    """A packet that left the node: the policy's address (None: out of scope), and what the destination sees.

    ``seen`` is POD, NODE, or another address; ``link`` is the one that has this address, if any has.
    """

    promise: t.Optional[Promise]
    seen: str
    link: str = ""
    #: whether its destination was translated on the way, as that of a Service is
    translated: bool = False

    @property
    def agrees(self) -> bool:
        """Return whether the packet matches the policy."""
        if self.promise is None:
            return True
        if self.promise.address is not None:
            return self.seen == str(self.promise)
        return self.seen == self.promise.kind


def judge(policy: Policy, addresses: Addresses, answer: Answer, left: bool = False) -> t.Optional[Verdict]:
    """Compare an answer with a policy. Return None if the packet did not leave the node.

    A packet of the node itself keeps its address where that of a pod is kept; else any address of the node will do, or
    the fixed one.

    :param left: whether the policy leaves the packet to other programs, whichever rules it met.
    """
    if answer.outcome != SENT or answer.source is None or answer.destination is None:
        return None
    question = answer.question
    port = question.port if answer.destination_port is None else answer.destination_port
    translated = (answer.destination, port) != (question.destination, question.port)
    own = question.source in addresses
    # Only through a Service does a pod reach itself over the node, and it is answered only as another host.
    meant = not translated if own else answer.destination != question.source
    promise: t.Optional[Promise] = None
    if question.source is not None and meant and not left and not any(map(policy.leaves, answer.passed)):
        promise = policy.promise(question.source, answer.destination, question.protocol, port, answer.interface)
    seen, link = _seen(promise, addresses, answer, own or question.source is None)
    if own and promise is not None:
        promise = Promise(OWN) if promise.kind == POD else promise
        if answer.source == question.source and promise != Promise(NODE) and seen != str(promise):
            seen = OWN
    return Verdict(promise, seen, link, translated)


def _seen(promise: t.Optional[Promise], addresses: Addresses, answer: Answer, of_node: bool) -> t.Tuple[str, str]:
    source, destination = t.cast(str, answer.source), t.cast(str, answer.destination)
    if source not in addresses:
        return (POD, "") if source == answer.question.source else (source, "")
    fixed = promise and promise.address
    if fixed is not None and int(fixed.first) <= int(ipaddress.ip_address(source)) <= int(fixed.last):
        return str(promise), addresses.link_of(source)
    # Where the pod's own address was promised, it does not matter which one of the node it is.
    hidden = of_node or promise is None or promise.kind == POD
    if hidden or addresses.is_of(source, answer.interface, destination):
        return NODE, addresses.link_of(source)
    return source, addresses.link_of(source)


def is_silent(answer: Answer) -> bool:
    """Return whether nothing of a packet left the node, although it was sent."""
    return answer.outcome in (DROPPED, REJECTED)


class Blame(t.NamedTuple):
    """Who made the rule that decided against a policy, and what ends its effect."""

    owner: str
    remedy: str


class Decided(t.NamedTuple):
    """An answer, what it is beside the policy (None: nothing left), and the cause if it does not agree."""

    answer: Answer
    verdict: t.Optional[Verdict] = None
    cause: t.Optional[Blame] = None


def decide(policy: Policy, addresses: Addresses, answer: Answer, left: bool = False) -> Decided:
    """Compare an answer with a policy, and find out who is to blame.

    :param answer: with the rules that decided.
    :param left: as for ``judge``.
    """
    verdict = judge(policy, addresses, answer, left)
    return Decided(answer, verdict, None if verdict is None or verdict.agrees else _blame(verdict, answer, addresses))


def owner(rule: MetRule) -> rule_owners.Owner:
    """Return who made a rule."""
    return rule_owners.owner(rule.table.partition(" ")[2], rule.chain, rule.text)


def _blame(verdict: Verdict, answer: Answer, addresses: Addresses) -> t.Optional[Blame]:
    """Return the cause of a verdict that does not agree; None if a rule translates only what has to be translated."""
    rule = answer.decided_by
    if rule is not None and answer.untracked:
        return Blame(owner(rule).name, _UNTRACKED)
    actor = owner(rule) if rule is not None else None
    masqueraded = rule is not None and "masq" in rule.text.lower()
    if masqueraded and verdict.link and verdict.seen not in (POD, NODE) and verdict.promise is not None:
        if verdict.promise == Promise(NODE):
            name = actor.name if actor is not None else NOBODY
            return Blame(name, _OTHER_LINK % (answer.interface, answer.source, verdict.link))
    if actor is not None and actor.benign:
        if verdict.translated and verdict.seen != POD:
            return None
        if verdict.seen in (POD, OWN):
            actor = None  # it only let the packet pass; the rule that is missing is another one
        else:
            return Blame(actor.name, _MARKED % actor.name)
    if actor is None or rule is None:
        return Blame(NOBODY, _NO_RULE)
    if actor.of_node and verdict.promise == Promise(OWN) and verdict.seen == NODE:
        return None
    if verdict.translated and not actor.known:
        return Blame(actor.name, _SERVICE)
    promised = verdict.promise.kind if verdict.promise is not None else ""
    other = _OTHER_POLICY.get((promised, verdict.seen), "") if not actor.known else ""
    return Blame(actor.name, actor.remedy + other + addresses.leftovers.remedy(rule, actor))


def passed(rule: t.Optional[MetRule]) -> Blame:
    """Return the cause where packets without a connection leave although the policy drops them.

    :param rule: that lets them pass; None if none does.
    """
    return Blame(NOBODY, _NO_CHAIN) if rule is None else Blame(owner(rule).name, _BEFORE)


_UNTRACKED = (
    "the rule keeps packets from connection tracking, so no rule of NAT sees them: narrow it, or set leaks to drop"
)
_NO_CHAIN = "no rule drops packets without a connection: ip-masq-agent sync"
_BEFORE = "the rule lets packets without a connection pass before the rules about leaks: narrow it"
_NO_RULE = "no rule translates the source address: ip-masq-agent sync; a rule that exempts more may come before it"
_OTHER_LINK = (
    "the link %s has no address that MASQUERADE could take, and it took %s of %s: set snat to an address of the host "
    "that other hosts can reach"
)
_MARKED = "packets that are no Service traffic carry the mark for which %s masquerades: find the rule that sets it"
_SERVICE = "the rule changes connections to a Service: find out whether the Service needs it before you narrow it"
#: How an operator can keep a rule, by the address of the policy and the one that is seen.
_OTHER_POLICY = {
    (POD, NODE): "; or masquerade the range in the policy",
    (NODE, POD): "; or exempt the range in the policy",
}
