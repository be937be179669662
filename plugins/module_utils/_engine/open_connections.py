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
from .._system import conntrack
from .._system.conntrack import Flow
from .._system.ip_families import IPV4
from .._system.routes import LOCAL, UNICAST, Routes
from .ruleset import EXEMPT, LOOPBACK, MASQUERADE, SKIP, Ruleset, matches_interface

#: Limits of one run in one family: connections, and seconds.
MOST = 10000
PATIENCE = 10.0

#: The fields of a decision's match that can be known of a connection that is open, and those of guards that say which
#: connections can have one.
_KNOWN = ("sources", "destinations", "interfaces")
_TOLD = ("marks", "source", "dnat", "interface")

#: A name, or the end of one, that no interface has.
_NO_NAME = "\0"
_ALL: Spans = ((0, 2**128 - 1),)

#: How often, in connections, the clock is looked at.
_OFTEN = 256

#: Pairs of addresses of which the verdict is kept, since most have several connections.
_REMEMBERED = 65536


class Flushed(t.NamedTuple):
    """What was removed in one family, or would be in check mode."""

    family: str
    removed: int
    #: for the operator: which limit was met, what could not be judged
    notes: t.Tuple[str, ...] = ()


class _LimitMet(Exception):
    """Enough was read."""


def flush(family: str, before: t.Sequence[Ruleset], after: t.Optional[Ruleset], check: bool) -> Flushed:
    """Remove the open connections about which other rules have decided.

    :param before: the rules that were active, of each backend that had any. Where there were none, or none that we can
        read, nothing was masqueraded by us.
    :param after: the rules that are active now, if there are any.
    :param check: count only.
    :raises NodeError: the kernel does not answer.
    """
    if _same(before, after):
        return Flushed(family, 0)
    version = 4 if family == IPV4 else 6
    deadline = time.monotonic() + PATIENCE
    with Routes(version) as routes:
        search = _Search(_Judge(family, before, after, routes), deadline)
        search.run(version)
    found = list(search.found.values())
    removed = len(found) if check else 0
    for start in range(0, 0 if check else len(found), _OFTEN):
        if time.monotonic() > deadline:
            search.limit = "%d seconds" % PATIENCE
            break
        removed += conntrack.remove(version, found[start : start + _OFTEN])
    return Flushed(family, removed, tuple(search.notes()))


def _same(before: t.Sequence[Ruleset], after: t.Optional[Ruleset]) -> bool:
    """Whether the rules decide as before about all connections. How source ports are chosen does not matter."""
    if after is None or len(before) != 1:
        return after is None and not before
    return after.means(before[0]._replace(masquerade=after.masquerade))


class _Search:
    """Goes through the table of connections, for as long as the limits allow."""

    def __init__(self, judge: _Judge, deadline: float) -> None:
        self._judge = judge
        self._deadline = deadline
        self._read = 0
        self._unknown = 0
        self.found: t.Dict[bytes, Flow] = {}
        #: the limit that was met, in words
        self.limit = ""

    def run(self, version: int) -> None:
        try:
            conntrack.read(version, self._collect)
        except _LimitMet:
            pass

    def _collect(self, flow: Flow) -> None:
        self._read += 1
        if self._read % _OFTEN == 0 and time.monotonic() > self._deadline:
            self.limit = "%d seconds" % PATIENCE
            raise _LimitMet
        goes = self._judge.goes(flow)
        self._unknown += goes is None
        if goes:
            if len(self.found) == MOST:
                self.limit = "%d connections" % MOST
                raise _LimitMet
            self.found[flow.key] = flow

    def notes(self) -> t.Iterator[str]:
        if self.limit:
            yield (
                "flush_conntrack: the limit of %s was met (%d connections read); other connections whose verdict "
                "changed keep their source address until they end, or until conntrack -D removes them"
                % (self.limit, self._read)
            )
        if self._unknown:
            yield (
                "flush_conntrack: %d connections were left alone, because the interface by which they leave, or what "
                "else the rules ask for, is not known" % self._unknown
            )


class _Judge:
    """Whether a connection goes."""

    def __init__(self, family: str, before: t.Sequence[Ruleset], after: t.Optional[Ruleset], routes: Routes) -> None:
        rulesets = [*before, *([after] if after else [])]
        decisions = [_Decisions(ruleset) for ruleset in rulesets]
        self._before, self._after = decisions[: len(before)], decisions[len(before) :]
        self._routes = routes
        guards = [guard for ruleset in rulesets for guard in ruleset.guards]
        self._guarded = bool(guards)
        self._marked = any(value for guard in guards for name, value in guard._asdict().items() if name not in _TOLD)
        self._loopback = (spans.of_network(LOOPBACK[family]),)
        self._names = sorted({name for one in decisions for name in one.names} | {_NO_NAME})
        self._known: t.Dict[t.Tuple[int, int, int, bool], t.Optional[bool]] = {}

    def goes(self, flow: Flow) -> t.Optional[bool]:
        """Whether the connection is removed; none where that cannot be known."""
        if flow.related:
            return False
        parts = (flow.source, flow.destination, flow.seen, flow.redirected)
        if parts not in self._known:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            self._known[parts] = self._goes(flow)
        return self._known[parts]

    def _goes(self, flow: Flow) -> t.Optional[bool]:
        # What has a guard is told by marks, which connections do not have: those of Services and host ports are on
        # redirected ones. It can be left to other programs, so it is left.
        if self._guarded and (flow.redirected or spans.contains(self._loopback, flow.source)):
            return False
        changed = self._changed(flow, self._names)
        # Our rules meet nothing that stays on the node, and masquerading changes no address of its own.
        if changed is False or self._routes.kind(flow.destination) not in (UNICAST, 0):
            return False
        if self._routes.kind(flow.source) == LOCAL:
            return False
        if changed is None:
            interface = self._routes.interface(flow.source, flow.destination)
            changed = None if interface is None else self._changed(flow, [interface])
        return None if changed and self._marked else changed

    def _changed(self, flow: Flow, interfaces: t.Iterable[str]) -> t.Optional[bool]:
        """Whether it has another verdict and not the address of that; none if that depends on what is not known."""
        outcomes = {
            _is_outdated(old, new, flow.seen != flow.source)
            for interface in interfaces
            for old in _verdicts(self._before, flow, interface)
            for new in _verdicts(self._after, flow, interface)
        }
        return outcomes.pop() if len(outcomes) == 1 else None


def _is_outdated(old: str, new: str, translated: bool) -> bool:
    if new == MASQUERADE:
        return old != new and not translated
    # Only what we have masqueraded is known to get another address where we leave it to others.
    return translated and (old == MASQUERADE or (new == EXEMPT and old != new))


class _Decisions:
    """A ruleset that is asked about thousands of connections."""

    def __init__(self, ruleset: Ruleset) -> None:
        # Later rules see what RETURN exempts, as if no rule had matched.
        exempt = SKIP if ruleset.verdict == "RETURN" else EXEMPT
        self._decisions = [
            (
                exempt if decision.action == EXEMPT else decision.action,
                spans.of_networks(decision.match.sources) or _ALL,
                spans.of_networks(decision.match.destinations) or _ALL,
                decision.match.interfaces,
                any(value for name, value in decision.match._asdict().items() if name not in _KNOWN),
            )
            for decision in ruleset.decisions
        ]
        patterns = [name for decision in ruleset.decisions for name in decision.match.interfaces]
        #: one of each kind of interface that the decisions tell apart
        self.names = [name[:-1] + _NO_NAME if name.endswith("+") else name for name in patterns]

    def verdicts(self, flow: Flow, interface: str) -> t.Set[str]:
        """What the decisions can have decided about a connection, SKIP where none matches."""
        found = set()
        for action, sources, destinations, interfaces, asks_more in self._decisions:
            if (
                spans.contains(sources, flow.source)
                and spans.contains(destinations, flow.destination)
                and (not interfaces or any(matches_interface(name, interface) for name in interfaces))
            ):
                found.add(action)
                if not asks_more:
                    return found
        return found | {SKIP}


def _verdicts(rulesets: t.Iterable[_Decisions], flow: Flow, interface: str) -> t.Set[str]:
    """What several sets of rules do together: the first one that does not leave the connection alone decides."""
    found: t.Set[str] = set()
    for decisions in rulesets:
        verdicts = decisions.verdicts(flow, interface)
        found |= verdicts - {SKIP}
        if SKIP not in verdicts:
            return found
    return found | {SKIP}
