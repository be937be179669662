# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The copy of a node's network state: what the process that holds the twin does in its namespaces."""

from __future__ import annotations

import contextlib
import functools
import typing as t

from .._errors import NodeError
from .._system import ipsets, netlink, nf_tables, xtables
from .._system.process import Runner
from . import equal_priorities, history, ipvs, links, namespaces, neighbours, routing, sysctls, trace
from .ask import Asker
from .cable_ends import Outside
from .deciding_rule import Rules
from .node_state import NodeState
from .values import Answer, MetRule, Question, Steering, Unseen

#: The name of the port that every bridge of the twin has besides its own: of a pod that does not exist.
_SPARE_PORT = "twinpod%d"


class Copies:
    """One copy, or two, and every order in which the kernel of the node may run chains of the same priority.

    The first answer is that of the order in which the tables are listed, which is mostly the one in which they came.
    """

    def __init__(self, state: NodeState, run: Runner) -> None:
        self._tables = state.tables
        self._ties = equal_priorities.find(state.tables, state.legacy)
        # Tables of iptables-legacy cannot be taken out and put in again: that order needs a copy of its own.
        self._copies = [Copy(state, run, first) for first in ((False, True) if self._ties.legacy else (False,))]
        self._main = self._copies[0]

    def about(self) -> t.Tuple[int, t.List[Unseen]]:
        """Return how many orders of chains are tried, and what could not be copied."""
        return self._ties.orders, self._main.unseen

    def rules(self, steps: t.Sequence[trace.Step]) -> t.List[MetRule]:
        """Return rules of the node as their tools list them."""
        self._main.enter()
        return list(map(self._main.rules.placed, steps))

    def steer(self, some: t.Sequence[Steering]) -> None:
        """Take packets from some source ports past choices by chance, as far as the kernel lets us."""
        for copy in self._copies:
            copy.enter()
            with contextlib.suppress(netlink.KernelError):
                copy.rules.steer(some)

    def forget(self) -> None:
        """Forget what rules have seen."""
        for copy in self._copies:
            copy.enter()
            history.forget(self._tables)

    def ask(self, questions: t.Sequence[Question], explain: bool, in_turns: bool = False) -> t.List[Answer]:
        """Return the answers, in order.

        :param explain: whether to return the rules that decided.
        :param in_turns: whether each question is put in one order of chains only, the next one in the next order.
        """
        if not in_turns:
            found = [asker.ask(questions, explain) for asker in self._askers()]
            return [_with_alternatives(*each) for each in zip(*found)]
        orders = self._ties.orders
        answers: t.List[t.List[Answer]] = [[] for _question in questions]
        for turn, asker in enumerate(self._askers()):
            answers[turn::orders] = [[one] for one in asker.ask(questions[turn::orders], explain)]
        return [answer for each in answers for answer in each]

    def _askers(self) -> t.Iterator[Asker]:
        """Yield an asker for each order of chains, which are in that order until the next one is taken."""
        for copy in self._copies:
            copy.enter()
            yield copy.asker
        # The table that was made last is asked first; then each of the others is; in the end all is as it was.
        for table in self._ties.tables[:-1]:
            self._put_first(table)
            yield self._main.asker
        for table in self._ties.tables[1:]:
            self._put_first(table)

    def _put_first(self, table: nf_tables.NftTable) -> None:
        """Make the kernel run a table's chains before others of the same priority."""
        self._main.enter()
        with contextlib.suppress(netlink.KernelError):  # already reported as missing
            nf_tables.put_first(table)


def _with_alternatives(answer: Answer, *others: Answer) -> Answer:
    found = {answer.outside: answer}
    for other in others:
        found.setdefault(other.outside, other)
    return answer._replace(alternatives=tuple(found.values())[1:])


class Copy:
    """One copy: two network namespaces, one with the state of the node, and one for the far ends of its links."""

    def __init__(self, state: NodeState, run: Runner, legacy_first: bool) -> None:
        """Make the namespaces and fill them.

        :param legacy_first: whether tables of iptables-legacy come before others of the same priority.
        """
        self.unseen: t.List[Unseen] = []
        outside_network = namespaces.new_network()
        sysctls.write({"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"})
        self._network = namespaces.new_network()
        number, copied, outside = self._copy_links(state, outside_network)
        # The kernel takes up to a second until links that came up can be used; meanwhile there is other work.
        self._copy_rules(state, run, legacy_first)
        self._settle(copied)
        self._miss("address", routing.write_addresses(state.routing, number))
        self._miss("route", routing.write_routes(state.routing, number))
        known = neighbours.write(state.neighbours, number)
        families = sorted({table.family.number for table in state.legacy})
        self.rules = Rules(run, state.tables, state.legacy)
        self.asker = Asker(outside, self.rules, copied, known, families)
        self._try("trace", trace.prepare, "the rules that decide: ")

    def _copy_links(
        self, state: NodeState, network: int
    ) -> t.Tuple[t.Dict[int, int], t.Dict[int, links.Link], Outside]:
        """Copy links and settings.

        :param network: file descriptor of the one in which the far ends are to be.
        :returns: the index that each link has in the copy, the links of the copy by that, and their far ends.
        """
        sysctls.write(sysctls.OWN)  # what the kernel knows of it
        self._miss("setting", sysctls.write({k: v for k, v in state.settings.items() if sysctls.is_general(k)}))
        wanted = [*state.links, *_spare_ports(state.links)]
        number = links.make(wanted, network)
        self._miss("setting", sysctls.write({k: v for k, v in state.settings.items() if not sysctls.is_general(k)}))
        copied = {number[link.index]: link._replace(master=number.get(link.master, 0)) for link in wanted}
        asking = {index for index, link in copied.items() if link.kind == links.BRIDGE}
        asking.update(number[index] for index in links.ports(wanted))
        outside = Outside(network, _plugged(copied))
        links.switch((index for index, link in copied.items() if link.up), asking)
        addresses = {link.index: link.address for link in links.read()}
        return number, {index: link._replace(address=addresses[index]) for index, link in copied.items()}, outside

    @staticmethod
    def _settle(copied: t.Mapping[int, links.Link]) -> None:
        plugged = _plugged(copied)
        ported = {copied[index].master for index in plugged}
        links.settle([index for index in [*plugged, *ported] if index in copied and copied[index].up])

    def _copy_rules(self, state: NodeState, run: Runner, legacy_first: bool) -> None:
        self._miss("ipset", ipsets.write(state.sets))
        # Packets of the copy have other hardware addresses.
        copied = [table for table in state.tables if not nf_tables.filters_frames(table)]
        tables = [functools.partial(nf_tables.write, table) for table in copied]
        old = [functools.partial(xtables.write, table) for table in state.legacy]
        # What is registered last comes first.
        for write in tables + old if legacy_first else old + tables:
            self._try("table", write)
        self._miss("ipvs", ipvs.write(run, state.services))

    def _try(self, code: str, work: t.Callable[[], None], about: str = "") -> None:
        try:
            work()
        except NodeError as exc:
            self._miss(code, [about + str(exc)])

    def _miss(self, code: str, texts: t.Iterable[str]) -> None:
        self.unseen += [Unseen(code, text) for text in texts]

    def enter(self) -> None:
        """Move this process into the namespace with the state of the node."""
        namespaces.enter(self._network)


def _plugged(copied: t.Mapping[int, links.Link]) -> t.List[int]:
    """Return the links whose far end is connected."""
    return [index for index, link in copied.items() if link.is_cable and link.flags & links.CARRIER]


def _spare_ports(found: t.Sequence[links.Link]) -> t.Iterator[links.Link]:
    free = max(link.index for link in found) + 1
    flags = links.UP | links.CARRIER
    for bridge in found:
        if bridge.kind == links.BRIDGE:
            yield links.Link(free, _SPARE_PORT % bridge.index, "veth", flags, 1500, b"", bridge.index, 0, False, True)
            free += 1
