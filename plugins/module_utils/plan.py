# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a backend hands to L(reconcile): what it would do, and why a commit did not happen."""

from __future__ import annotations

import typing as t

from .errors import NodeError
from .ruleset import Ruleset


class Action(t.NamedTuple):
    """One thing that a plan does, for people: C(rule added) and the rule it is about."""

    action: str
    rule: str


class View(t.NamedTuple):
    """The rules of our chain and the jump to it, as their tool lists them, and what they mean."""

    rules: t.Tuple[str, ...]
    jump: t.Optional[str]
    #: none where the rules are not of our shape
    ruleset: t.Optional[Ruleset] = None


class Plan(t.NamedTuple):
    """One transaction. With no actions it is empty, and nothing may be written (promise 2)."""

    actions: t.Tuple[Action, ...]
    #: input for the tool that commits it
    transaction: str
    #: our part of the node's state and its surroundings, before and after
    before: t.Tuple[str, ...]
    after: t.Tuple[str, ...]
    #: what is in force after it
    view: View
    #: what is in force before it
    found: View = View((), None)


class Counters(t.NamedTuple):
    """What our rules have counted. The nat table sees the first packet of a connection, so packets are connections."""

    exempt_packets: int = 0
    exempt_bytes: int = 0
    masqueraded_packets: int = 0
    masqueraded_bytes: int = 0

    def plus(self, other: Counters) -> Counters:
        """Both together."""
        return Counters(*(mine + theirs for mine, theirs in zip(self, other)))


class CommitRefused(NodeError):
    """The kernel or its tool refused a transaction as a whole; the node is as it was."""


class LockHeld(NodeError):
    """Somebody held a lock for longer than we may wait; the node is as it was."""


class Backend(t.Protocol):
    """One way to keep a :class:`~.ruleset.Ruleset` in the kernel, for one family.

    ``State`` is whatever the backend observes; two equal states mean that nothing moved in between.
    """

    name: str
    family: str

    def observe(self) -> t.Any:
        """Read our part of the kernel's state; writes nothing, creates nothing.

        :raises NodeError: it cannot be read. LockHeld: nor waited for.
        """

    def plan(self, state: t.Any, wanted: t.Optional[Ruleset]) -> Plan:
        """The one transaction that leads from ``state`` to ``wanted``; none wants everything of ours gone."""

    def undo(self, state: t.Any, previous: t.Any) -> str:
        """The one transaction that leads from ``state`` back to ``previous``."""

    def commit(self, transaction: str) -> None:
        """Hand one transaction to the kernel.

        :raises CommitRefused: nothing was changed. LockHeld: nor tried.
        """

    def counters(self) -> Counters:
        """What the rules of our chain have counted.

        :raises NodeError: they cannot be read.
        """

    def fingerprint(self) -> t.List[t.List[str]]:
        """Programs whose output stays the same, byte for byte, for as long as our part of the kernel's state does."""
