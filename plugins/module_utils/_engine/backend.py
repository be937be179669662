# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a backend is: the interface that ``reconcile`` drives, and the values that pass between them."""

from __future__ import annotations

import enum
import typing as t

from .._errors import NodeError
from .._policy.policy import Config
from .._system.families import Family
from .._system.node import Node, Tool
from .other_rules import Remark
from .ruleset import Ruleset


class ActionKind(enum.Enum):
    """What a plan does to one thing. The value is the text of the return value ``action``."""

    TABLE_CREATED = "table created"
    TABLE_REMOVED = "table removed"
    SET_CREATED = "set created"
    SET_REMOVED = "set removed"
    FOREIGN_PART_REMOVED = "foreign part removed"
    CHAIN_CREATED = "chain created"
    CHAIN_REWRITTEN = "unreadable chain rewritten"
    CHAIN_REMOVED = "chain removed"
    #: instead of its removal, where rules of other chains lead to it
    CHAIN_EMPTIED = "chain emptied"
    RULE_ADDED = "rule added"
    RULES_ADDED = "rules added"
    RULE_REMOVED = "rule removed"
    RULES_REMOVED = "rules removed"
    RULES_REORDERED = "rules reordered"
    RANGE_ADDED = "range added"
    RANGES_ADDED = "ranges added"
    RANGE_REMOVED = "range removed"
    RANGES_REMOVED = "ranges removed"
    JUMP_ADDED = "jump added"
    JUMP_MOVED = "jump moved"
    JUMP_REPLACED = "jump replaced"
    #: to where the option jump_position wants it
    JUMP_POSITIONED = "jump moved to its position"
    PRIORITY_CHANGED = "priority of the chain changed"
    JUMP_REMOVED = "jump removed"
    DUPLICATE_JUMP_REMOVED = "duplicate jump removed"
    EARLIER_JUMP_REMOVED = "jump of an earlier agent removed"
    EARLIER_CHAIN_REMOVED = "chain of an earlier agent removed"


class OwnedRule(t.NamedTuple):
    """A rule, and the program that made it, or ``unknown``."""

    rule: str
    program: str


class Action(t.NamedTuple):
    """One thing that a plan does, and the rule, chain or range that it is about."""

    kind: ActionKind
    rule: str
    #: another program's rule that makes it necessary, if that is known
    cause: t.Optional[OwnedRule] = None

    @property
    def action(self) -> str:
        """The text of its kind, for people and for the return values."""
        return self.kind.value


#: More actions of one kind than this are reported as a count.
_LISTED = 100


def listed(one: ActionKind, many: ActionKind, rules: t.Sequence[str], noun: str) -> t.List[Action]:
    """Return an action for each rule, or one with their number if these are too many to read.

    :param one: kind of a single action. :param many: of their sum. :param noun: what is counted.
    """
    if len(rules) > _LISTED:
        return [Action(many, "%d %s" % (len(rules), noun))]
    return [Action(one, rule) for rule in rules]


def rule_changes(before: t.Mapping[t.Any, str], after: t.Mapping[t.Any, str], noun: str) -> t.List[Action]:
    """Return an action for each rule that goes, then for each that comes; see ``listed``.

    :param before: rules by what they mean. :param noun: what is counted.
    """
    removed = [rule for meaning, rule in before.items() if meaning not in after]
    added = [rule for meaning, rule in after.items() if meaning not in before]
    return [
        *listed(ActionKind.RULE_REMOVED, ActionKind.RULES_REMOVED, removed, noun),
        *listed(ActionKind.RULE_ADDED, ActionKind.RULES_ADDED, added, noun),
    ]


class View(t.NamedTuple):
    """The managed rules and the jump to them, as their tool lists them, and what they mean."""

    rules: t.Tuple[str, ...]
    jump: t.Optional[str]
    #: None if the rules are not of our shape
    ruleset: t.Optional[Ruleset] = None
    #: those for packets that nat does not see, where they are in another table
    leaks: t.Tuple[str, ...] = ()


class Former(t.NamedTuple):
    """What decides about connections before a plan is carried out, in the order in which packets meet it."""

    #: rules of other programs, which are there before and afterwards
    front: t.Tuple[Ruleset, ...] = ()
    #: managed rules, and those of earlier agents that are removed; None: not of our shape
    rulesets: t.Tuple[t.Optional[Ruleset], ...] = ()
    #: rules of other programs in front whose conditions cannot be evaluated
    unread: t.Tuple[str, ...] = ()
    #: whether other rules of other programs come before the managed ones afterwards
    moved: bool = False


class Generation(t.NamedTuple):
    """The number of transactions that the kernel has counted; None if it is not known. And what it reported then.

    Any two are equal: states of a node are compared by what they hold.
    """

    number: t.Optional[int] = None
    reported: t.Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Generation)

    def __hash__(self) -> int:
        return 0

    def follows(self, earlier: Generation, transactions: int) -> bool:
        """Return whether exactly that many transactions came after an earlier one."""
        return earlier.number is not None and self.number == earlier.number + transactions


#: The steps of a transaction, in order, each one atomic write. Packets notice nothing of any step but the last. Empty
#: if nothing is to be written.
Transaction = t.Tuple[t.Any, ...]


class Plan(t.NamedTuple):
    """One transaction. With no actions it is empty, and nothing may be written (unchanged writes nothing)."""

    actions: t.Tuple[Action, ...]
    transaction: Transaction
    #: the managed rules and their surroundings, before and after
    before: t.Tuple[str, ...]
    after: t.Tuple[str, ...]
    #: what is active after it
    view: View
    #: what is active before it
    found: View = View((), None)
    #: what keeps the rules from being active, or could not be repaired; and what could not be examined
    problems: t.Tuple[str, ...] = ()
    notes: t.Tuple[str, ...] = ()
    #: on rules of other programs, after it, as far as the backend reads them
    remarks: t.Tuple[Remark, ...] = ()
    #: known where there are actions
    former: Former = Former()


class Counters(t.NamedTuple):
    """What the managed rules have counted. Nat sees the first packet of a connection, so packets are connections."""

    exempt_packets: int = 0
    exempt_bytes: int = 0
    masqueraded_packets: int = 0
    masqueraded_bytes: int = 0
    #: packets that nat did not see, and that would have been masqueraded
    leaked_packets: int = 0


#: What the packets are that a rule has counted.
EXEMPT, MASQUERADED, LEAKED, OTHER = "E", "M", "L", "-"
_COUNTERS = {EXEMPT: Counters._fields[:2], MASQUERADED: Counters._fields[2:4], LEAKED: Counters._fields[4:]}


class Counted(t.NamedTuple):
    """A command that lists rules with their counters, and what these count: a character for each, in their order."""

    command: t.Tuple[str, ...]
    kinds: str
    #: packets and bytes of each
    numbers: t.Tuple[t.Tuple[int, int], ...]


def total(listings: t.Iterable[Counted]) -> Counters:
    """Add what rules have counted."""
    sums = dict.fromkeys(Counters._fields, 0)
    for listing in listings:
        for kind, numbers in zip(listing.kinds, listing.numbers):
            for name, number in zip(_COUNTERS.get(kind, ()), numbers):
                sums[name] += number
    return Counters(**sums)


class CommitRefused(NodeError):
    """The kernel or its tool refused a transaction as a whole; the node is as it was."""


class PartlyRefused(NodeError):
    """The end of a transaction was refused; what comes before it is done. The message says what is active."""

    def __init__(self, text: str, rest: Transaction) -> None:
        """Describe an error in the middle of a plan.

        :param rest: what was not carried out.
        """
        super().__init__(text)
        self.rest = rest


class Overtaken(CommitRefused):
    """Another program removed what a transaction needs while it was committed. What is there is not as it was planned
    for, even if it is as it was observed: plan again."""


class Backend(t.Protocol):
    """One way to keep a ``ruleset.Ruleset`` in the kernel, for one family.

    A state is whatever the backend observes; equal states mean that neither the managed rules nor those around them
    changed.
    """

    #: of its type
    name: str
    family: Family

    def observe(self) -> t.Any:
        """Read the managed part of the kernel's state, as it was at one time; writes nothing, creates nothing.

        :raises NodeError: it cannot be read. LockHeld: nor waited for.
        """

    def plan(self, state: t.Any, wanted: t.Optional[Ruleset]) -> Plan:
        """Return the transaction from ``state`` to ``wanted``; None means that everything managed is removed.

        :raises NodeError: there is none.
        """

    def is_alone(self, before: t.Any, transaction: Transaction, now: t.Any) -> bool:
        """Return whether nothing but this transaction can have led from one observed state to the other.

        False where another program may have written as well.
        """

    def undo(self, state: t.Any, previous: t.Any) -> Transaction:
        """Return the transaction that leads from ``state`` back to ``previous``; raise NodeError if there is none."""

    def commit(self, transaction: Transaction) -> None:
        """Hand a transaction to the kernel.

        :raises CommitRefused: nothing was changed. Overtaken: by us. LockHeld: nor tried. PartlyRefused: what is less
            important was not changed.
        """

    def counted(self) -> t.List[Counted]:
        """Return what the managed rules have counted; raise NodeError if they cannot be read."""

    def fingerprint(self) -> t.List[t.List[str]]:
        """Return commands whose output stays the same, byte for byte, for as long as the state observed last does."""


class Managed(t.NamedTuple):
    """What a backend manages; fields that do not apply are ignored."""

    #: name of the managed chain
    chain: str
    #: value of the option ``jump_position``
    position: str = "keep"
    #: whether chains of earlier agents are removed as well
    adopt: bool = True
    #: other names that the managed chain may have; such chains are removed as well
    former: t.Sequence[str] = ()
    #: value of the option ``exemption``
    exemption: str = "return"
    #: whether the policy has rules for packets that nat does not see
    leaks: bool = False


class BackendType(t.Protocol):
    """One type of backend. It keeps no state: what it knows of a node, it asks the node. Listed in ``backend_choice``.

    What most types have in common stands here.
    """

    #: the value of the option ``backend``
    name: str
    #: values of the option ``exemption`` that it supports
    exemptions: t.Tuple[str, ...]
    #: verdicts of rulesets that are the same as RETURN to packets, since its chain holds no other rules
    like_return: t.Tuple[str, ...] = ()
    #: values of the option ``jump_position``, without the names of chains
    positions: t.Tuple[str, ...]
    #: what to install where the node has no program for it; empty if it needs none
    package: str = ""
    #: first version of its program that supports fully random source ports; empty: all that the node may have
    random_fully_since: t.Tuple[int, ...] = ()
    #: whether ``backend: auto`` takes it only where no other one is installed and works
    is_last_resort: bool = False
    #: why it is in use, for people
    sign: str = ""

    def is_installed(self, node: Node, family: Family) -> bool:
        """Return whether the node has its program for one family."""

    def tool(self, node: Node, family: Family) -> t.Optional[Tool]:
        """Find that program; None if the node does not have it."""

    def is_in_use(self, node: Node, used_before: t.Optional[str]) -> bool:
        """Return whether Kubernetes, or other programs, on this node use it.

        :param used_before: the name of the one that the agent on this node used the last time, where that is known.
        """
        return False

    def kernel_supports(self, node: Node) -> bool:
        """Return whether the kernel has what its rules need; true where the kernel does not answer."""
        return True

    def is_left(self, family: Family, chain: str) -> bool:
        """Return whether the managed chain is in the kernel, on a node that has no program for this backend.

        :raises NodeError: the kernel does not say.
        """
        return False

    def make(self, node: Node, family: Family, managed: Managed) -> t.Optional[Backend]:
        """Make the backend for one family; None if the node has no program for it."""

    def notes(self, config: Config) -> t.Iterator[str]:
        """Return what an operator should know about a policy in this backend, on this node."""
        return iter(())
