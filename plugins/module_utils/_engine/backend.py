# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a backend hands to L(reconcile): what it would do, and why a commit did not happen."""

from __future__ import annotations

import typing as t

from .._errors import NodeError
from .iptables_syntax import PostroutingRule
from .ruleset import Ruleset


class Action(t.NamedTuple):
    """One thing that a plan does, for people: C(rule added) and the rule it is about."""

    action: str
    rule: str
    #: whether it changes nothing for packets
    harmless: bool = False


class Repair(t.NamedTuple):
    """A kind of repair in one place."""

    family: str
    backend: str
    action: str


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
    #: harmless actions that the caller withheld: what they are about stays as it is
    withheld: t.Tuple[Action, ...] = ()
    #: what keeps the rules from being in force, or could not be repaired; and what could not be examined
    problems: t.Tuple[str, ...] = ()
    notes: t.Tuple[str, ...] = ()
    #: the rules of POSTROUTING before and behind the jump, after it; none without a POSTROUTING of others
    around: t.Tuple[t.Tuple[PostroutingRule, ...], t.Tuple[PostroutingRule, ...]] = ((), ())


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

    ``State`` is whatever the backend observes; equal states mean that neither our rules nor those around them moved.
    """

    name: str
    family: str

    def observe(self) -> t.Any:
        """Read our part of the kernel's state, as it was at one time; writes nothing, creates nothing.

        :raises NodeError: it cannot be read. LockHeld: nor waited for.
        """

    def plan(self, state: t.Any, wanted: t.Optional[Ruleset], withheld: t.Container[str] = ()) -> Plan:
        """The one transaction that leads from ``state`` to ``wanted``; none wants everything of ours gone.

        :param withheld: actions that are not taken where they are harmless.
        :raises NodeError: there is none.
        """

    def is_alone(self, before: t.Any, transaction: str, now: t.Any) -> bool:
        """Whether nothing but this transaction can have led from one observed state to the other.

        False where others may have written as well.
        """

    def undo(self, state: t.Any, previous: t.Any) -> str:
        """The one transaction that leads from ``state`` back to ``previous``.

        :raises NodeError: there is none.
        """

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
