# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one packet shows, as a verification of it alone: all ways that it can take, whatever its source port is.

For a packet of the node itself some connections are tried.
"""

from __future__ import annotations

import ipaddress
import typing as t

from ..._system.families import WITH_PORTS, Family, of_address, protocol_number
from ..._system.services import pack
from ..._twin import routing
from ..._twin.node_state import NodeState
from ..._twin.twin import Twin
from ..._twin.values import NOT_TESTED, Answer, Question
from ..routing.routing_lookups import LEAVES
from ..routing.senders import Sender, example_pod
from ..ways.node_model import NodeModel
from ..ways.packet_policy import Policy
from ..ways.ways import Ways
from .asking import TIED, Asking
from .judge import Addresses, Decided, decide
from .limits import NO_LIMITS, Limits
from .verification import missing

#: How many connections of the node itself are tried.
_OF_NODE = 16

_BY_PORT_OR_CHANCE = "the source port, or chance (%d connections were tried)" % _OF_NODE
_LATE = "the time was over before all ways were found"
_BY_PATH = "the path that the kernel chooses, of a route with several"


class Explained(t.NamedTuple):
    """All answers that are possible to one question, that to any source port first.

    They differ in what becomes of the packet, its source or its link; ``depends`` is what decides between them.
    ``unknown`` is what may change the answers, and is not understood.
    """

    decided: t.Tuple[Decided, ...]
    depends: t.Tuple[str, ...] = ()
    unknown: t.Tuple[str, ...] = ()


def question(
    state: t.Optional[NodeState], destination: str, source: t.Optional[str], protocol: str, port: int
) -> Question:
    """Return the question about one destination.

    :param state: of the node; None if it cannot be read.
    :param source: an address; None: that of a pod that could be on the node, or the node itself where no route shows
        pods.
    """
    link: t.Optional[str] = None
    if state and source:
        index = routing.link_of(state.routing, source)
        link = next((link.name for link in state.links if link.index == index), None)
    elif state:
        source, link = example_pod(state, of_address(destination)) or (None, None)
    return Question(destination, source, link, protocol, port)


def explain(
    twin: Twin, policy: Policy, questions: t.Sequence[Question], limits: Limits = NO_LIMITS
) -> t.List[Explained]:
    """Ask the copy of a node about single packets of one sender.

    :raises NodeError: the copy does not answer.
    """
    addresses = Addresses(twin.state)
    models: t.Dict[Family, NodeModel] = {}
    explained = []
    for one in questions:
        answers = twin.ask([one], explain=True)
        first = list(_kinds(answers).values())
        depends = [TIED] if first[1:] else []
        why: t.Iterable[str] = ()
        left: t.Set[t.Any] = set()
        family = of_address(one.destination)
        unknown = list(missing(twin.unseen, family))
        if one.source is None or one.source in addresses:
            answers += twin.ask([one] * _OF_NODE, explain=True)
            why = [_BY_PORT_OR_CHANCE]
        elif one.interface is not None and answers[0].outcome != NOT_TESTED:
            if family not in models:
                sender = Sender(_only(one.source), one.interface)
                models[family] = NodeModel(twin.state, family, policy, sender)
            asking = Asking(twin, policy, models[family], limits)
            ways = models[family].of_pods(limits.left(), _only(one.destination), _service(one))
            about = list(asking.about(ways, explain=True))
            left = set(_kinds(answer for way, answer in about if way.is_left))
            left -= set(_kinds(answer for way, answer in about if not way.is_left))
            answers += [answer for _way, answer in about]
            why = _deciding(ways, asking)
            unknown += [_LATE if code == "time" else text for code, text, _affected in asking.missed()]
        found = _kinds(answers)
        depends += why if len(found) > len(first) else ()
        decided = tuple(decide(policy, addresses, answer, kind in left) for kind, answer in found.items())
        explained.append(Explained(decided, tuple(depends), tuple(unknown)))
    return explained


def _kinds(answers: t.Iterable[Answer]) -> t.Dict[t.Any, Answer]:
    """Return an answer of each kind; one backend of a Service is as good as another."""
    found: t.Dict[t.Any, Answer] = {}
    for answer in answers:
        for one in (answer, *answer.alternatives):
            found.setdefault((one.outcome, one.source, one.interface), one)
    return found


def _only(address: str) -> t.Tuple[t.Tuple[int, int]]:
    number = int(ipaddress.ip_address(address))
    return ((number, number),)


def _service(one: Question) -> t.Tuple[t.Tuple[int, int]]:
    protocol = protocol_number(one.protocol, of_address(one.destination))
    number = pack(protocol, one.port if protocol in WITH_PORTS else 0)
    return ((number, number),)


def _deciding(ways: Ways, asking: Asking) -> t.List[str]:
    """Return what decides which way a packet takes: rules that match the source port, or choose by chance; routes."""
    found = []
    met = [ref for way in ways.ways for refs in (way.met, *(one.met for one in way.targets)) for ref in refs]
    for ref in dict.fromkeys(met):
        for rule in asking.model.rules(ref):
            what = ["the source port"] if any(branch.match.source_port is not None for branch in rule.branches) else []
            what += (rule.history or ["chance"]) if rule.chance else []
            if what:
                found.append("%s, by the %s" % (" and ".join(what), asking.expected.place(ref)))
    if found:
        return found
    links = {way.outcome for way in ways.ways if way.chance and way.end == LEAVES}
    return [_BY_PATH] if len(links) > 1 else []
