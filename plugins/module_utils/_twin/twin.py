# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The twin of a node: a copy of its network state in namespaces of its own, which answers what becomes of a packet."""

from __future__ import annotations

import typing as t

from .._errors import NodeError
from .._system.process import Runner
from . import namespaces, sysctls
from .copy import Copies
from .node_state import NodeState
from .trace import Step
from .values import Answer, MetRule, Question, Steering, Unseen

#: Seconds that one question may take, on a machine that is very busy.
_PER_QUESTION = 1.0
_MINIMUM = 60.0


class Twin:
    """Use it in ``with``: at its end the copy is gone."""

    def __init__(self, worker: namespaces.Worker, state: NodeState, timeout: float) -> None:
        self._worker = worker
        self.state = state
        orders, unseen = worker.call("about", timeout=timeout)
        #: how many orders of chains of the same priority there are
        self.orders: int = orders
        #: what is on the node and not in here
        self.unseen: t.Tuple[Unseen, ...] = (*state.unseen, *unseen)

    def __enter__(self) -> Twin:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._worker.close()

    def ask(self, questions: t.Sequence[Question], explain: bool = False, in_turns: bool = False) -> t.List[Answer]:
        """Put questions to the twin.

        :param explain: whether to return the rules that decided.
        :param in_turns: whether each question is put in one order of chains only, the next one in the next order.
        :raises NodeError: the twin is gone, or does not answer.
        """
        patience = max(_MINIMUM, _PER_QUESTION * len(questions))
        return t.cast(t.List[Answer], self._worker.call("ask", list(questions), explain, in_turns, timeout=patience))

    def steer(self, some: t.Sequence[Steering]) -> None:
        """Take packets from some source ports past choices by chance, as far as the kernel lets us.

        :raises NodeError: the twin is gone, or does not answer.
        """
        self._worker.call("steer", list(some), timeout=_MINIMUM)

    def forget(self) -> None:
        """Forget what rules of the copy have seen: the next packets are the first ones.

        :raises NodeError: the twin is gone, or does not answer.
        """
        self._worker.call("forget", timeout=_MINIMUM)

    def rules(self, steps: t.Sequence[Step]) -> t.List[MetRule]:
        """Return rules of the node as their tools list them.

        :raises NodeError: the twin is gone, or does not answer.
        """
        return t.cast(t.List[MetRule], self._worker.call("rules", list(steps), timeout=_MINIMUM))


def build(state: NodeState, run: Runner, timeout: float = 60.0) -> Twin:
    """Make the twin of a node.

    :param state: of the node.
    :param run: starts programs, in the twin's namespaces.
    :param timeout: seconds that it may take.
    :raises NodeError: there can be none, or something went wrong on the way; nothing of the twin is left.
    """
    if sysctls.get(sysctls.LOGS_OF_ALL) == "1":
        raise NodeError(
            "net.netfilter.nf_log_all_netns is 1: rules of the twin would write into the log of the node's kernel"
        )
    worker = namespaces.Worker(lambda: Copies(state, run), timeout)
    try:
        return Twin(worker, state, timeout)
    except BaseException:
        worker.close(kill=True)
        raise
