# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rule while it is read, whichever tool wrote it: conditions one after the other, and what it does."""

from __future__ import annotations

import functools
import typing as t

from .._system import intervals
from .._system.families import IPV4, IPV6, WITH_PORTS, Family
from .._system.intervals import Spans
from .._system.services import MAX_PORT, MAX_PROTOCOL, pack, span
from .rules import (
    ALL_BITS,
    BY_TEMPLATE,
    CONTINUE,
    CT_MARK,
    DECIDED,
    DNAT,
    GOTO,
    INVALID,
    JUMP,
    OUTPUT,
    PICKED_UP,
    PREROUTING,
    RELATED,
    RETURN,
    SENT,
    SENT_BY_OWNER,
    SENT_BY_SOCKET,
    SET,
    STRAY,
    UNDECIDED,
    UNTRACKED,
    BaseChain,
    Branch,
    Match,
    Names,
    Rule,
    RuleAction,
    RuleTable,
    Test,
    behind,
    does_unknown,
    reachable,
)

#: Conditions that all hold: spans by the name of a field, or by (tracked value, mask) for tests; tuples of Names by
#: ``incoming`` and ``outgoing``. The value of a map for these packets has a key that begins with ``@``.
Conditions = t.Dict[t.Any, t.Any]
#: What a statement does: the same for all packets, or, in a map, what it does with those of some conditions.
Acts = t.Union[RuleAction, t.Callable[[Conditions], RuleAction]]

LINKS = ("incoming", "outgoing")
UNREADABLE = "it cannot be read"
#: type, hook and priority at which conntrack sees packets
_CONNTRACK = -200
_LATE = "a rule that acts on conntrack, in a chain before and after it"
_EARLY = "what conntrack knows, matched before it sees the packet"
_BEHIND_FIRST = "what packets behind the first one of a connection meet"
_TESTED_AND_CHANGED = "a value that the rule tests and changes"
#: echo requests of ICMP
_NO_PORTS = "bytes of a packet that has no ports"


class UnknownError(Exception):
    """What is read is not understood; the text is an object of "because of"."""


def joined(alternatives: t.List[Conditions]) -> t.List[Conditions]:
    """Unite alternative conditions, if all are about the same field."""
    keys = {key for one in alternatives for key in one}
    if len(keys) != 1 or not all(alternatives) or keys & set(LINKS):
        return alternatives
    (key,) = keys
    return [{key: intervals.of(span for one in alternatives for span in one[key])}]


class Statement(t.NamedTuple):
    """Something that a rule does, and for which packets."""

    alternatives: t.List[Conditions]
    exclusions: t.Tuple[Conditions, ...]
    unknown: t.Tuple[str, ...]
    chance: bool
    exhaustive: bool
    history: t.Tuple[str, ...]
    acts: Acts


#: the highest of values that are no numbers of 32 bits
_TOPS = {
    UNTRACKED: INVALID,
    DNAT: 1,
    RELATED: 1,
    PICKED_UP: STRAY | 0xFF,
    SENT: SENT_BY_SOCKET | SENT_BY_OWNER,
    DECIDED: BY_TEMPLATE,
}


def top_of(subject: str, mask: int) -> int:
    """Return the highest value that a tracked value can have under a mask."""
    return min(mask, _TOPS.get(subject, ALL_BITS))


def both(one: Conditions, other: Conditions) -> t.Optional[Conditions]:
    """Return the conditions of both; None: no packet fulfils them."""
    found = dict(one)
    for key, value in other.items():
        before = found.get(key)
        if key in LINKS:
            found[key] = value if before is None else before + tuple(one for one in value if one not in before)
            continue
        if key[0] == "@":
            found[key] = value
            continue
        found[key] = value if before is None else intervals.intersection(before, value)
        if not found[key]:
            return None
    return found


class Reading:
    """Conditions of a rule, and what it does.

    A packet fulfils one of the ``alternatives``, and none of the ``exclusions``.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.alternatives: t.List[Conditions] = [{}]
        #: those of packets behind the first one of a connection, where it fulfils none itself
        self.later: t.List[Conditions] = []
        #: what becomes of those
        self.later_rules: t.List[Rule] = []
        self.exclusions: t.Tuple[Conditions, ...] = ()
        self.unknown: t.Tuple[str, ...] = ()
        self.chance = False
        self.exhaustive = False
        self.history: t.Tuple[str, ...] = ()
        self.statements: t.List[Statement] = []
        self.over = False

    # conditions

    def top(self, key: t.Any) -> int:
        """Return the highest value of a field or of a tracked value."""
        if isinstance(key, tuple):
            return top_of(*key)
        if key == "protocol":
            return MAX_PROTOCOL
        return MAX_PORT if key.endswith("port") else self.family.highest

    def narrow(self, key: t.Any, value: t.Any, inverted: bool = False) -> None:
        """Add a condition about one field: spans."""
        if inverted:
            value = intervals.complement(value, self.top(key))
        found = []
        for one in self.alternatives:
            before = one.get(key)
            allowed = value if before is None else intervals.intersection(before, value)
            if allowed:
                narrowed = dict(one)
                narrowed[key] = allowed
                found.append(narrowed)
        self.alternatives = found

    def test(self, subject: str, mask: int, allowed: Spans, inverted: bool = False) -> None:
        """Add a condition about a tracked value."""
        self.narrow((subject, mask), allowed, inverted)

    def link(self, key: str, patterns: t.Sequence[str], inverted: bool = False) -> None:
        """Add a condition about a link."""
        self.all_of({key: (Names(tuple(patterns), inverted),)})

    def all_of(self, conditions: Conditions) -> None:
        """Add conditions that all hold."""
        merged = (both(one, conditions) for one in self.alternatives)
        self.alternatives = [one for one in merged if one is not None]

    def any_of(self, alternatives: t.Sequence[Conditions], inverted: bool = False) -> None:
        """Add alternative conditions, or, inverted, conditions that must not hold."""
        if inverted:
            self._none_of(alternatives)
            return
        keys = {key for one in alternatives for key in one}
        if len(keys) == 1 and len(alternatives) > 1 and all(alternatives):
            (key,) = keys
            joined = self._joined(key, alternatives)
            if joined is not None:
                self.all_of({key: joined})
                return
        if len(self.alternatives) == 1 and not self.alternatives[0]:
            self.alternatives = [one for one in alternatives if all(one.values())]
            return
        merged = (both(one, other) for one in self.alternatives for other in alternatives)
        self.alternatives = [one for one in merged if one is not None]

    def of_connection(self, alternatives: t.Sequence[Conditions], inverted: bool = False) -> None:
        """Add conditions as ``any_of`` does, about what conntrack knows: packets that follow may fulfil them."""
        before = self.alternatives
        self.any_of(alternatives, inverted)
        if not self.alternatives:
            self.later = self.later or before

    @staticmethod
    def _joined(key: t.Any, alternatives: t.Sequence[Conditions]) -> t.Any:
        """Return one condition that stands for several about the same; None if there is none."""
        if key in LINKS:
            return joined_names([one[key] for one in alternatives])
        if key[0] == "@":
            return None
        return intervals.of(span for one in alternatives for span in one[key])

    def _none_of(self, alternatives: t.Sequence[Conditions]) -> None:
        alternatives = [one for one in alternatives if all(one.values())]
        if not alternatives:
            return
        keys = {key for one in alternatives for key in one}
        if not all(alternatives):
            self.alternatives = []
        elif len(keys) == 1:
            (key,) = keys
            if key in LINKS:
                joined = joined_names([one[key] for one in alternatives])
                if joined is None:
                    self.exclusions += tuple(alternatives)
                else:
                    self.all_of({key: (joined[0]._replace(inverted=not joined[0].inverted),)})
            else:
                union = intervals.of(span for one in alternatives for span in one[key])
                self.narrow(key, union, True)
        elif len(alternatives) == 1:
            found, passed = [], {}  # type: t.List[Conditions], Conditions
            for key, value in alternatives[0].items():
                found.append(dict(passed))
                found[-1][key] = self._inverse(key, value)
                passed = dict(passed)
                passed[key] = value
            self.any_of(found)
        else:
            self.exclusions += tuple(alternatives)

    def _inverse(self, key: t.Any, value: t.Any) -> t.Any:
        if key in LINKS:
            if len(value) > 1:
                raise UnknownError("several conditions about one link, inverted")
            return (value[0]._replace(inverted=not value[0].inverted),)
        return intervals.complement(value, self.top(key))

    def never(self) -> None:
        """Match no packet."""
        self.alternatives = []

    def not_known(self, reason: str) -> None:
        """Add a condition that is not understood."""
        if reason not in self.unknown:
            self.unknown += (reason,)

    def by_history(self, reason: str) -> None:
        """Add a condition that a packet fulfils or not by what came before."""
        self.chance = True
        if reason not in self.history:
            self.history += (reason,)

    # what it does

    def act(self, acts: Acts) -> None:
        """Do something with the packets that fulfil the conditions so far."""
        if isinstance(acts, RuleAction) and acts.chain and not self.alternatives and self.later:
            self.act_later(acts)
        exhaustive = self.exhaustive and not self.history
        self.statements.append(
            Statement(self.alternatives, self.exclusions, self.unknown, self.chance, exhaustive, self.history, acts)
        )

    def decide(self, how: int, *actions: t.Any) -> None:
        """Tell conntrack what to make of the packet, if no rule has done so before."""
        before = self.alternatives
        self.test(DECIDED, ALL_BITS, ((UNDECIDED, UNDECIDED),))
        for action in (*actions, RuleAction(SET, subject=DECIDED, origin=DECIDED, flip=how)):
            self.act(action)
        self.alternatives = before

    def act_unknown(self, reason: str) -> None:
        """Do something that is not understood."""
        before = self.unknown
        self.not_known(reason)
        self.act(RuleAction(CONTINUE))
        self.unknown = before
        first = self.alternatives
        wider = [{key: one[key] for key in one if key[0] != CT_MARK} for one in first or self.later]
        if wider != first:
            self.act_later(_NOTHING, wider, (reason,))

    def act_later(
        self, action: RuleAction, alternatives: t.Sequence[Conditions] = (), unknown: t.Tuple[str, ...] = ()
    ) -> None:
        """Do something with packets behind the first one of a connection alone."""
        matches = map(match_of, alternatives or [{}])
        branches = tuple(Branch(match, action) for match in matches if match is not None)
        self.later_rules.append(Rule(0, branches, unknown, later=True))

    def rules(self, chain: str, number: int) -> t.Tuple[t.List[Rule], t.Dict[str, t.Tuple[Rule, ...]]]:
        """Return what was read as rules, and chains that only they lead to."""
        found, behind_them = self._rules(chain, number)
        return [*(rule._replace(number=number) for rule in self.later_rules), *found], behind_them

    def _rules(self, chain: str, number: int) -> t.Tuple[t.List[Rule], t.Dict[str, t.Tuple[Rule, ...]]]:
        statements = self.statements
        if not statements:
            return [Rule(number, ())], {}
        if len(statements) > 1 and _conflict(statements):
            rest = self._rest(statements)
            if rest is not None:
                name = behind(chain, number)
                steps = tuple(Rule(number, (Branch(Match(), action),)) for action in rest)
                kind = GOTO if rest[-1].kind in (RETURN, GOTO) else JUMP
                first = statements[0]._replace(acts=RuleAction(kind, chain=name))
                return self._rule(first, number), {name: steps}
            unknown = (*statements[0].unknown, _TESTED_AND_CHANGED)
            statements = [
                one._replace(unknown=unknown, chance=False, exhaustive=False, history=()) for one in statements
            ]
        return [rule for one in statements for rule in self._rule(one, number)], {}

    @staticmethod
    def _rest(statements: t.Sequence[Statement]) -> t.Optional[t.List[RuleAction]]:
        first = statements[0]
        if any(one.alternatives is not first.alternatives or one[1:6] != first[1:6] for one in statements):
            return None
        acts = [one.acts for one in statements]
        return t.cast(t.List[RuleAction], acts) if all(isinstance(one, RuleAction) for one in acts) else None

    def _rule(self, one: Statement, number: int) -> t.List[Rule]:
        if one.chance and one.exclusions:
            one = one._replace(unknown=(*one.unknown, "a choice by chance among packets outside of a set"))
        if any(not _PORTS.isdisjoint(each) and self._without_ports(each) for each in one.exclusions):
            open_to = (self._without_ports(dict(each, port=())) for each in one.alternatives)
            if any(each is not None for each in open_to) and not all("protocol" in each for each in one.exclusions):
                one = one._replace(unknown=(*one.unknown, _NO_PORTS))
        branches: t.List[Branch] = []
        for excluded in one.exclusions:
            match = match_of(excluded)
            if match is not None:
                branches.append(Branch(match, _NOTHING))
        first = len(branches)
        without: t.List[Branch] = []
        fixed = one.acts if isinstance(one.acts, RuleAction) else None
        ported = False
        for conditions in one.alternatives:
            match = match_of(conditions)
            action = fixed or t.cast(t.Callable[[Conditions], RuleAction], one.acts)(conditions)
            if match is not None:
                branches.append(Branch(match, action))
            if not _PORTS.isdisjoint(conditions):
                ported = True
                rest = self._without_ports(conditions)
                if rest is not None:
                    (branches if self._portless(conditions)[1] else without).append(Branch(rest, action))
        if len(branches) == first and not without:
            return [Rule(number, ())]
        does_unknown = fixed is not None and fixed.kind == CONTINUE
        if not does_unknown and all(branch.action == _NOTHING for branch in branches):
            branches = []
        unknown = one.unknown if branches else ()
        found = [Rule(number, tuple(branches), unknown, one.chance, one.exhaustive, one.history)]
        if ported and without:
            found.append(Rule(number, tuple(without), (*one.unknown, _NO_PORTS)))
        return found

    def _portless(self, conditions: Conditions) -> t.Tuple[Spans, bool]:
        """Return the protocols without ports that conditions about ports may mean, and whether they mean all."""
        allowed, port = conditions.get("protocol"), conditions.get("original_port")
        found: t.List[t.Tuple[int, int]] = []
        certain = _PORTS.intersection(conditions) == {"original_port"}
        for protocols, tuples in _tuples_without_ports(self.family):
            meant = protocols if allowed is None else intervals.intersection(protocols, allowed)
            if meant and (port is None or intervals.intersection(port, tuples)):
                found += meant
                certain = certain and port is not None and not intervals.difference(tuples, port)
        return intervals.of(found), certain

    def _without_ports(self, conditions: Conditions) -> t.Optional[Match]:
        """Return what a condition about ports means for a packet that has none there."""
        protocols, _certain = self._portless(conditions)
        if not protocols:
            return None
        rest = {key: value for key, value in conditions.items() if key not in _PORTS}
        rest["protocol"] = protocols
        return match_of(rest)


def joined_names(values: t.Sequence[t.Tuple[Names, ...]]) -> t.Optional[t.Tuple[Names, ...]]:
    """Return one condition about alternative names; None if there is none."""
    if all(len(one) == 1 and not one[0].inverted for one in values):
        return (Names(tuple(dict.fromkeys(pattern for one in values for pattern in one[0].patterns))),)
    return values[0] if len(values) == 1 and len(values[0]) == 1 else None


def _conflict(statements: t.Sequence[Statement]) -> bool:
    """Return whether a statement changes what a later one tests again, or a choice by chance would be made twice."""
    if statements[0].chance:
        return True
    for place, one in enumerate(statements, 1):
        if isinstance(one.acts, RuleAction) and one.acts.kind != SET:
            continue
        subject = one.acts.subject if isinstance(one.acts, RuleAction) else None
        for later in statements[place:]:
            for conditions in (*later.alternatives, *later.exclusions):
                if any(isinstance(key, tuple) and subject in (None, key[0]) for key in conditions):
                    return True
    return False


_NOTHING = RuleAction(CONTINUE)
#: Conditions about ports. Of other protocols, rules compare other bytes of the packet, or of conntrack's tuple.
_PORTS = frozenset(("port", "source_port", "original_port"))
#: Type and code, as conntrack's tuple has them, of the ICMP messages that begin a connection; any code (the kernel's
#: nf_conntrack_proto_icmp.c: echo, timestamp, information, address mask; nf_conntrack_proto_icmpv6.c: echo, node).
_ICMP_TUPLES = {
    IPV4: tuple((kind << 8, kind << 8 | 0xFF) for kind in (8, 13, 15, 17)),
    IPV6: tuple((kind << 8, kind << 8 | 0xFF) for kind in (128, 139)),
}


@functools.lru_cache(maxsize=2)
def _tuples_without_ports(family: Family) -> t.Tuple[t.Tuple[Spans, Spans], ...]:
    """Return protocols without ports, and what conntrack's tuple may have in place of the destination port."""
    icmp = ((family.icmp, family.icmp),)
    others = intervals.complement(intervals.of([*icmp, *((one, one) for one in WITH_PORTS)]), MAX_PROTOCOL)
    return (icmp, _ICMP_TUPLES[family]), (others, ((0, 0),))


_services: t.Dict[t.Tuple[t.Optional[Spans], Spans], Spans] = {}


def service_of(protocol: t.Optional[Spans], port: t.Optional[Spans], ported: bool) -> t.Optional[Spans]:
    """Return protocols and ports as services; None: any.

    :param ported: only protocols with ports are meant.
    """
    if port is None and not ported:
        return None if protocol is None else tuple((pack(first), pack(last, MAX_PORT)) for first, last in protocol)
    ports = ((0, MAX_PORT),) if port is None else port
    known = _services.get((protocol, ports))
    if known is None:
        meant = [one for one in WITH_PORTS if protocol is None or intervals.contains(protocol, one)]
        known = intervals.of(span(one, *part) for one in meant for part in ports)
        if len(_services) > 20000:
            _services.clear()
        _services[(protocol, ports)] = known
    return known


_EMPTY = Match()


def match_of(conditions: Conditions) -> t.Optional[Match]:
    """Return conditions as a Match; None: no tested packet fulfils them."""
    if not conditions:
        return _EMPTY
    get = conditions.get
    protocol, port, original_port = get("protocol"), get("port"), get("original_port")
    source_port = get("source_port")
    service = original = None
    if protocol is not None or port is not None or source_port is not None or original_port is not None:
        service = service_of(protocol, port, source_port is not None or original_port is not None)
        if service == ():
            return None
        if original_port is not None:
            original = service_of(protocol, original_port, True)
    tests: t.List[Test] = []
    for key, value in conditions.items():
        if isinstance(key, tuple) and value != ((0, top_of(*key)),):
            tests.append(Test(key[0], key[1], value))
    if len(tests) > 1:
        tests.sort()
    return Match(
        get("source"),
        get("destination"),
        service,
        source_port,
        get("original_destination"),
        original,
        get("incoming", ()),
        get("outgoing", ()),
        tuple(tests),
    )


def unreadable(number: int) -> Rule:
    """Return a rule that cannot be read: it may do anything."""
    return Rule(number, (Branch(_EMPTY, _NOTHING),), (UNREADABLE,))


# tables


def finished(
    backend: str,
    title: str,
    base: t.Mapping[str, BaseChain],
    chains: t.Dict[str, t.Tuple[Rule, ...]],
    unknown: t.Sequence[str] = (),
    aware: bool = False,
) -> RuleTable:
    """Return a table of the rules that were read.

    :param aware: whether a rule has an action or a condition whose meaning depends on the hook.
    """
    table = RuleTable(backend, title, base, chains, tuple(dict.fromkeys(unknown)))
    for name, members in chains.items():
        if any(rule.later for rule in members):
            first = (_met_later(table, rule) for rule in members if rule.later)
            chains[name] = (*first, *(rule for rule in members if not rule.later))
    if not aware:
        return table
    early: t.Dict[str, t.Set[bool]] = {}
    for start, known in base.items():
        for name in reachable(table, start):
            early.setdefault(name, set()).add(known.hook in (PREROUTING, OUTPUT) and known.priority < _CONNTRACK)
    placed = {name: tuple(_place(rule, early.get(name, set())) for rule in members) for name, members in chains.items()}
    return table._replace(chains=placed)


def _met_later(table: RuleTable, rule: Rule) -> Rule:
    """Return a rule that no first packet meets as one that every packet may meet; or nothing if it only leads on.

    It stands in front, as first packets may end at what those behind them pass.
    """
    if does_unknown(rule):
        return rule
    led = {name for branch in rule.branches if branch.action.chain for name in reachable(table, branch.action.chain)}
    unknown = any(does_unknown(one) for name in led for one in table.chains.get(name, ()))
    return Rule(rule.number, (Branch(_EMPTY, _NOTHING),) if unknown else (), (_BEHIND_FIRST,) if unknown else ())


_CONNTRACK_VALUES = frozenset((UNTRACKED, RELATED, "ct mark", "dnat"))


def _place(rule: Rule, early: t.Set[bool]) -> Rule:
    """Return a rule as it is at the hooks from which its chain is reached."""
    if early == {False} and any(test.subject == DECIDED for branch in rule.branches for test in branch.match.tests):
        return rule._replace(branches=(), unknown=())  # conntrack has seen the packet
    branches = []
    unknown = rule.unknown
    for branch in rule.branches:
        match, action = branch
        if action.kind == SET and action.subject in (UNTRACKED, DECIDED):
            if early == {False}:
                action = _NOTHING  # conntrack has seen the packet
            elif len(early) > 1:
                unknown += (_LATE,)
        elif action.kind == SET and action.subject == "ct mark" and early == {True}:
            action = _NOTHING  # there is no connection yet
        if True in early and any(one.subject in _CONNTRACK_VALUES for one in match.tests):
            unknown += (_EARLY,)
        branches.append(Branch(match, action))
    if all(branch.action == _NOTHING for branch in branches) and not (rule.unknown and branches == list(rule.branches)):
        branches, unknown = [], ()
    return rule._replace(branches=tuple(branches), unknown=tuple(dict.fromkeys(unknown)))
