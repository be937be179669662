# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Open connections whose verdict a change of the rules has changed: found, and removed from the kernel's table.

Nat decides about the first packet of a connection; the next packet of one that was removed is a first packet again.
Removed is a connection only if the rules decide otherwise about it than before, and if it does not have the source
address yet that they would give it now. So a repair of rules that were missing for a minute removes what was opened in
that minute, and no other connection. In doubt a connection stays.
"""

from __future__ import annotations

import time
import typing as t

from .._policy import spans
from .._policy.spans import Spans
from .._policy.values import EXEMPT, LOOPBACK, MASQUERADE, PROTOCOL_NUMBERS, SKIP, Mark
from .._system import conntrack
from .._system.conntrack import Flow
from .._system.ip_families import IPV4
from .._system.routes import LOCAL, UNICAST, Routes
from .ruleset import IGNORE, SERVICE_MARKS, Decision, Masquerade, Ruleset, matches_interface

#: seconds that one run may take in one family
PATIENCE = 10.0

#: A name, or the end of one, that no interface has.
_NO_NAME = "\0"
_ALL_PROTOCOLS: t.Dict[t.Optional[int], bool] = {None: True}
_ALL: Spans = ((0, 2**128 - 1),)

#: After so many connections the clock is looked at, and so many are removed at a time.
_OFTEN = 256

#: Addresses with a port of which the verdict is kept, since most have several connections.
_REMEMBERED = 65536


class Flushed(t.NamedTuple):
    """What was removed in one family, or would be in check mode."""

    family: str
    removed: int
    #: for the operator: which limit was met, what could not be judged
    notes: t.Tuple[str, ...] = ()


class _LimitMet(Exception):
    """The time is over."""


def flush(
    family: str,
    before: t.Sequence[Ruleset],
    after: t.Optional[Ruleset],
    check: bool,
    front: t.Sequence[Ruleset] = (),
) -> Flushed:
    """Remove the open connections about which other rules have decided.

    :param before: the rules that were active, of each backend that had any. Where there were none, or none that we can
        read, nothing was masqueraded by us.
    :param after: the rules that are active now, if there are any.
    :param check: count only.
    :param front: rules of other programs, which packets meet before ours.
    :raises NodeError: the kernel does not answer.
    """
    if _same(before, after):
        return Flushed(family, 0)
    with Routes(4 if family == IPV4 else 6) as routes:
        search = _Search(family, _Judge(family, before, after, routes, front), check)
        search.run()
    return Flushed(family, search.removed, tuple(search.notes()))


def _same(before: t.Sequence[Ruleset], after: t.Optional[Ruleset]) -> bool:
    """Whether the rules decide as before about all connections. How source ports are chosen does not matter."""
    if after is None or len(before) != 1:
        return after is None and not before
    return _without_ports(after).means(_without_ports(before[0]))


def _without_ports(ruleset: Ruleset) -> Ruleset:
    """The same, without how source ports are chosen, and what becomes of packets without a connection."""

    def plain(decision: Decision) -> Decision:
        return decision if decision.how is None else decision._replace(how=_who(decision.how))

    return ruleset._replace(
        decisions=tuple(map(plain, ruleset.decisions)),
        leading=tuple(map(plain, ruleset.leading)),
        masquerade=_who(ruleset.masquerade),
        leaks=IGNORE,
        hidden=(),
        missing=(),
    )


def _who(ways: t.Sequence[Masquerade]) -> t.Tuple[Masquerade, ...]:
    """Which protocols are masqueraded. What is left to chance stays."""
    always = {way.protocol for way in ways if way.share is None}
    if None in always:
        return (Masquerade(),)
    return tuple(Masquerade(protocol) for protocol in sorted(t.cast(t.Any, always))) + tuple(
        way for way in ways if way.share is not None and way.protocol not in always
    )


class _Search:
    """Goes through the table of connections, for as long as there is time, and removes some on the way.

    What is removed does not disturb the reading: the kernel begins that part of its table again.
    """

    def __init__(self, family: str, judge: _Judge, check: bool) -> None:
        self._family = family
        self._version = 4 if family == IPV4 else 6
        self._judge = judge
        self._check = check
        self._deadline = time.monotonic() + PATIENCE
        self._read = 0
        self._unknown = 0
        self._limit_met = False
        self._found: t.Dict[bytes, Flow] = {}
        #: how many were, or would be in check mode
        self.removed = 0

    def run(self) -> None:
        """Read, and remove."""
        try:
            conntrack.read(self._version, self._collect)
            self._remove()
        except _LimitMet:
            self._limit_met = True
            self._remove()

    def _collect(self, flow: Flow) -> None:
        if self._read % _OFTEN == 0 and time.monotonic() > self._deadline:
            raise _LimitMet
        self._read += 1
        goes = self._judge.goes(flow)
        self._unknown += goes is None
        if goes:
            self._found[flow.key] = flow
            if len(self._found) == _OFTEN and not self._check:
                self._remove()

    def _remove(self) -> None:
        if self._check:
            self.removed = len(self._found)
        elif self._found:
            self.removed += conntrack.remove(self._version, list(self._found.values()))
            self._found.clear()

    def notes(self) -> t.Iterator[str]:
        """Return what was not done, for the operator."""
        if self._limit_met:
            statistics = conntrack.statistics()
            yield (
                "flush_conntrack: the limit of %d seconds was met; connections read: %d, %s: %d%s. The rest keeps its "
                "source address until it ends. To remove the connections of a pod: conntrack -D -f %s -s POD_ADDRESS"
                % (
                    PATIENCE,
                    self._read,
                    "would be removed" if self._check else "removed",
                    self.removed,
                    "" if statistics is None else ", still tracked in all families: %d" % statistics.tracked,
                    self._family,
                )
            )
        if self._unknown:
            yield (
                "flush_conntrack: connections that stay, because the interface by which they leave%s is not known: %d"
                % (
                    ", or the mark of their packets, which skip_marks asks for and the kernel does not keep with "
                    "connections," * self._judge.asks_for_marks,
                    self._unknown,
                )
            )


def unread(family: str) -> str:
    """Return the note that the rules before a change are not known."""
    return (
        "flush_conntrack: the rules before the change are not of this collection's form and count as rules that "
        "masqueraded nothing: connections that they masqueraded keep the address that they have. To remove the "
        "connections of a pod: conntrack -D -f %s -s POD_ADDRESS" % family
    )


def not_considered(rules: t.Sequence[str]) -> str:
    """Return the note that rules of other programs may have decided about connections, too."""
    return (
        "flush_conntrack: POSTROUTING rules in front of the jump may have decided about the same connections, and were "
        "not considered, because of their conditions: %s" % "; ".join(rules)
    )


class _Judge:
    """Whether a connection goes."""

    def __init__(
        self,
        family: str,
        before: t.Sequence[Ruleset],
        after: t.Optional[Ruleset],
        routes: Routes,
        front: t.Sequence[Ruleset],
    ) -> None:
        rulesets = [*front, *before, *([after] if after else [])]
        decisions = [_Decisions(ruleset) for ruleset in rulesets]
        first, last = len(front), len(front) + len(before)
        self._before, self._after = decisions[:last], decisions[:first] + decisions[last:]
        self._routes = routes
        self._guarded = any(ruleset.guards for ruleset in rulesets)
        self._marked = _marked(decisions)
        self._loopback = (spans.of_network(LOOPBACK[family]),)
        self._names = sorted({name for one in decisions for name in one.names} | {_NO_NAME})
        self._known: t.Dict[t.Tuple[int, int, int, int, int, bool], t.Optional[bool]] = {}

    @property
    def asks_for_marks(self) -> bool:
        """Whether a rule asks for marks that connections may have or not."""
        return len(self._marked) > 1

    def goes(self, flow: Flow) -> t.Optional[bool]:
        """Whether the connection is removed; none where that cannot be known."""
        if flow.related:
            return False
        parts = (flow.source, flow.destination, flow.seen, flow.protocol, flow.port, flow.redirected)
        if parts not in self._known:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            self._known[parts] = self._goes(flow)
        return self._known[parts]

    def _goes(self, flow: Flow) -> t.Optional[bool]:
        # Packets with the marks of Services and host ports are on redirected connections, or from loopback. They can be
        # left to other programs, so they are left.
        if self._guarded and (flow.redirected or spans.contains(self._loopback, flow.source)):
            return False
        changed = self._changed(flow, self._names)
        # Our rules meet nothing that stays on the node. The node's own connections are left alone.
        if changed is False or self._routes.kind(flow.destination) not in (UNICAST, 0):
            return False
        if self._routes.kind(flow.source) == LOCAL:
            return False
        if changed is None:
            interface = self._routes.interface(flow.source, flow.destination)
            changed = None if interface is None else self._changed(flow, [interface])
        return changed

    def _changed(self, flow: Flow, interfaces: t.Iterable[str]) -> t.Optional[bool]:
        """Whether it has another verdict and not the address of that; none if that depends on what is not known."""
        outcomes = {
            self._is_outdated(old, new, flow)
            for interface in interfaces
            for left in self._marked
            for old in _verdicts(self._before, left, flow, interface)
            for new in _verdicts(self._after, left, flow, interface)
        }
        return outcomes.pop() if len(outcomes) == 1 else None

    def _is_outdated(self, old: _Verdict, new: _Verdict, flow: Flow) -> bool:
        if old == new:
            return False
        translated = flow.seen != flow.source
        if new.action == MASQUERADE and new.address is not None:
            return not _is_in(flow.seen, new.address)
        # From an address that is not ours we do not conclude that we have given it.
        given = old.action == MASQUERADE and (translated if old.address is None else _is_in(flow.seen, old.address))
        if new.action == MASQUERADE:
            return not translated or (given and flow.seen != self._routes.preferred(flow.destination))
        # Only what we have masqueraded is known to get another address where we leave it to others.
        return translated and (given or new.action == EXEMPT)


class _Verdict(t.NamedTuple):
    """What a decision does with the source of a connection."""

    action: str
    #: first and last address of those with which MASQUERADE replaces it; none: that of the interface
    address: t.Optional[t.Tuple[int, int]] = None


_SKIPPED = _Verdict(SKIP)


def _is_in(address: int, span: t.Tuple[int, int]) -> bool:
    return span[0] <= address <= span[1]


class _Decisions:
    """A ruleset that is asked about thousands of connections."""

    def __init__(self, ruleset: Ruleset) -> None:
        #: to packets with these the decisions do not apply. Those of Services are on redirected connections alone.
        self.marks = {guard.mark for guard in ruleset.guards if guard.mark and not _is_of_service(guard.mark)}
        self._decisions = [
            (
                _verdict(decision, ruleset.verdict),
                spans.of_networks(decision.match.sources) or _ALL,
                spans.of_networks(decision.match.destinations) or _ALL,
                decision.match.interfaces,
                spans.of(service.span for service in decision.match.services),
                _protocols(ruleset.ways(decision)) if decision.action == MASQUERADE else _ALL_PROTOCOLS,
            )
            for decision in ruleset.expanded
        ]
        patterns = {name for decision in ruleset.expanded for name in decision.match.interfaces}
        #: one of each kind of interface that the decisions tell apart
        self.names = [name[:-1] + _NO_NAME if name.endswith("+") else name for name in patterns]

    def verdicts(self, flow: Flow, interface: str) -> t.Set[_Verdict]:
        """What the decisions can have decided about a connection, SKIP where none matches."""
        found = set()
        service = flow.protocol << 16 | flow.port
        for verdict, sources, destinations, interfaces, services, protocols in self._decisions:
            if (
                spans.contains(sources, flow.source)
                and spans.contains(destinations, flow.destination)
                and (not interfaces or any(matches_interface(name, interface) for name in interfaces))
                and (not services or spans.contains(services, service))
            ):
                applied = [protocols[number] for number in (None, flow.protocol) if number in protocols]
                if applied:
                    found.add(verdict)
                if any(applied):
                    return found
        return found | {_SKIPPED}


def _verdict(decision: Decision, exempt: str) -> _Verdict:
    if decision.action == MASQUERADE and decision.address is not None:
        return _Verdict(MASQUERADE, (int(decision.address.first), int(decision.address.last)))
    # Later rules see what RETURN exempts, as if no rule had matched.
    return _SKIPPED if decision.action == EXEMPT and exempt == "RETURN" else _Verdict(decision.action)


def _protocols(ways: t.Sequence[Masquerade]) -> t.Dict[t.Optional[int], bool]:
    """By number, the protocols of which anything is masqueraded, and whether all of it is; none means all protocols."""
    found: t.Dict[t.Optional[int], bool] = {}
    for way in ways:
        number = None if way.protocol is None else PROTOCOL_NUMBERS[way.protocol]
        found[number] = found.get(number, False) or way.share is None
    return found


def _is_of_service(mark: Mark) -> bool:
    """Whether only packets have it that kube-proxy or portmap marked."""
    return bool(mark.value) and not mark.mask & ~SERVICE_MARKS


def _marked(rulesets: t.Sequence[_Decisions]) -> t.Set[t.FrozenSet[_Decisions]]:
    """Which rulesets leave a packet alone because of its mark: each possibility.

    The kernel keeps the mark of a connection, not those of its packets, and nothing makes the two equal.
    """
    found: t.Set[t.FrozenSet[_Decisions]] = {frozenset()}
    for mark in {mark for ruleset in rulesets for mark in ruleset.marks}:
        leaving = frozenset(ruleset for ruleset in rulesets if mark in ruleset.marks)
        found |= {others | leaving for others in found}
    return found


def _verdicts(
    rulesets: t.Iterable[_Decisions], left: t.Container[_Decisions], flow: Flow, interface: str
) -> t.Set[_Verdict]:
    """What several sets of rules do together: the first one that does not leave the connection alone decides."""
    found: t.Set[_Verdict] = set()
    for decisions in rulesets:
        verdicts = {_SKIPPED} if decisions in left else decisions.verdicts(flow, interface)
        found |= verdicts - {_SKIPPED}
        if _SKIPPED not in verdicts:
            return found
    return found | {_SKIPPED}
