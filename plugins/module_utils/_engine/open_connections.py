# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Open connections whose verdict a change of the rules has changed: counted, or removed from the kernel's table.

Nat decides about the first packet of a connection; the next packet of one that was removed is a first packet again.
Removed is a connection only if the rules decide otherwise about it than before, and if it does not have the source
address yet that they would give it now. So a repair of rules that were missing for a minute removes what was opened in
that minute, and no other connection. In doubt a connection stays.
"""

from __future__ import annotations

import time
import typing as t

from .._policy.values import EXEMPT, LOOPBACK, MASQUERADE
from .._system import conntrack, intervals
from .._system.conntrack import Flow
from .._system.families import Family
from .._system.routes import LOCAL, UNICAST, Routes
from .._system.services import pack
from .changed_packets import SKIPPED, UNKNOWN, Cell, ChangedVerdict, Comparison, Verdicts
from .effects import Effects

#: seconds that one run may take in one family
PATIENCE = 10.0

#: After so many connections the clock is looked at, and so many are removed at a time.
_OFTEN = 256

#: Addresses with a port whose verdict is kept, since most have several connections.
_REMEMBERED = 65536


class Flushed(t.NamedTuple):
    """What was removed in one family, or would be in check mode."""

    family: Family
    removed: int
    #: for the operator: which limit was met, what could not be judged
    notes: t.Tuple[str, ...] = ()


def search(
    comparison: Comparison, check: bool, effects: t.Optional[Effects] = None, counting: bool = False
) -> t.Tuple[Flushed, t.Tuple[int, ...]]:
    """Remove the open connections about which a comparison says that other rules have decided.

    :param check: count only. :param counting: the same, where no option asks for more.
    :return: with how many have each of the effects.
    :raises NodeError: the kernel does not answer.
    """
    places = len(effects.effects) if effects else 0
    if not comparison.differs():
        return Flushed(comparison.family, 0), (0,) * places
    with Routes(comparison.family) as routes:
        judge = _Judge(comparison, routes, effects)
        found = _Search(comparison, judge, check or counting, places)
        found.run()
    notes = found.notes("open_connections" if counting else "flush_conntrack")
    return Flushed(comparison.family, sum(found.removed), tuple(notes)), tuple(found.removed[:places])


class _Search:
    """Goes through the table of connections, for as long as there is time, and removes some on the way.

    What is removed does not disturb the reading: the kernel begins that part of its table again.
    """

    def __init__(self, comparison: Comparison, judge: _Judge, check: bool, places: int) -> None:
        self._family = comparison.family
        self._judge = judge
        self._check = check
        self._deadline = time.monotonic() + PATIENCE
        self._read = 0
        self._unknown = 0
        self._limit_met = False
        #: by key, with the place of the effect
        self._found: t.Dict[bytes, t.Tuple[int, Flow]] = {}
        #: how many were, or would be in check mode, of each effect; the last is for those whose effect is not computed
        self.removed = [0] * (places + 1)

    def run(self) -> None:
        """Read, and remove."""
        for flow in conntrack.read(self._family):
            self._limit_met = self._read % _OFTEN == 0 and time.monotonic() > self._deadline
            if self._limit_met:
                break
            self._read += 1
            self._collect(flow)
        self._remove()

    def _collect(self, flow: Flow) -> None:
        goes = self._judge.goes(flow)
        self._unknown += goes is None
        if goes:
            place = self._judge.place(flow)
            self._found[flow.key] = (len(self.removed) - 1 if place is None else place, flow)
            if len(self._found) == _OFTEN and not self._check:
                self._remove()

    def _remove(self) -> None:
        groups: t.Dict[int, t.List[Flow]] = {}
        for place, flow in self._found.values():
            groups.setdefault(place, []).append(flow)
        for place, flows in groups.items():
            self.removed[place] += len(flows) if self._check else conntrack.remove(self._family, flows)
        self._found.clear()

    def notes(self, option: str) -> t.Iterator[str]:
        """Return what was not done, for the operator.

        :param option: what asks for it.
        """
        if self._limit_met:
            yield (
                "%s: the limit of %d seconds was met; connections read: %d, changed by the policy: %d. The others "
                "keep their source address until they end. To remove the connections of a pod: conntrack -D -f %s -s "
                "POD_ADDRESS" % (option, PATIENCE, self._read, sum(self.removed), self._family)
            )
        if self._unknown:
            mark = ", or the mark of their packets, which skip_marks matches," * self._judge.asks_for_marks
            yield (
                "%s: connections that are left out, because the interface by which they leave%s is not known: %d"
                % (option, mark, self._unknown)
            )


def unread(family: Family, rules: t.Sequence[str]) -> t.Iterator[str]:
    """Return a note about rules that may have decided about connections before a change, and are not known."""
    if rules:
        yield (
            "flush_conntrack: some rules before the change are not understood, and count as rules that masqueraded "
            "nothing: %s. To remove the connections of a pod: conntrack -D -f %s -s POD_ADDRESS"
            % ("; ".join(rules), family)
        )


class _Judge:
    """Whether a connection goes."""

    def __init__(self, comparison: Comparison, routes: Routes, effects: t.Optional[Effects]) -> None:
        self._comparison = comparison
        self._effects = effects
        self._routes = routes
        #: the bits of rules that leave a packet alone because of its mark, each possibility: the kernel keeps the mark
        #: of a connection, not those of its packets, and nothing makes the two equal
        self._left = tuple(comparison.by_marks(of_services=False))
        #: whether a rule asks for marks that connections may have or not
        self.asks_for_marks = len(self._left) > 1
        self._loopback = (intervals.of_network(LOOPBACK[comparison.family]),)
        self._known: t.Dict[t.Tuple[int, int, int, int, int, bool], t.Optional[bool]] = {}

    def goes(self, flow: Flow) -> t.Optional[bool]:
        """Return whether the connection is removed; None if that cannot be known."""
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
        if self._comparison.guarded and (flow.redirected or intervals.contains(self._loopback, flow.source)):
            return False
        changed = self._changed(flow, self._comparison.names)
        # Our rules meet nothing that stays on the node. The node's own connections are left alone.
        if changed is False or self._routes.kind(flow.destination) not in (UNICAST, 0):
            return False
        if self._routes.kind(flow.source) == LOCAL:
            return False
        if changed is None:
            interface = self._routes.interface(flow.source, flow.destination)
            changed = None if interface is None else self._changed(flow, [interface])
        return changed

    def place(self, flow: Flow) -> t.Optional[int]:
        """Return the place of the effect that a connection has, by the interface of its route if that matters."""
        if self._effects is None:
            return None
        places = [self._place(flow, name) for name in self._comparison.names]
        if len(set(places)) > 1:
            interface = self._routes.interface(flow.source, flow.destination)
            if interface is not None:
                return self._place(flow, interface)
        return next((place for place in places if place is not None), None)

    def _place(self, flow: Flow, interface: str) -> t.Optional[int]:
        cell, bits = self._cell(flow, interface)
        return t.cast(Effects, self._effects).place(self._comparison.pair(bits), cell)

    def _cell(self, flow: Flow, interface: str) -> t.Tuple[Cell, int]:
        """Return the class of a connection's packets, and the bits of all that matches them."""
        compared = self._comparison
        service = compared.services.of(pack(flow.protocol, flow.port))
        cell = Cell(compared.sources.of(flow.source), service, compared.interface(interface))
        return cell, cell.source & cell.service & cell.interface & compared.destinations.of(flow.destination)

    def _changed(self, flow: Flow, interfaces: t.Iterable[str]) -> t.Optional[bool]:
        """Return whether it has another verdict and not its address; None if that depends on what is not known."""
        outcomes = set()
        for interface in interfaces:
            _cell, bits = self._cell(flow, interface)
            for left in self._left:
                # A connection that is open has the address that is missing.
                before, after = self._comparison.pair(bits & ~left & ~self._comparison.drops)
                outcomes |= {
                    self._is_outdated(old, new, flow) for old in _as_flushed(before) for new in _as_flushed(after)
                }
        return outcomes.pop() if len(outcomes) == 1 else None

    def _is_outdated(self, old: ChangedVerdict, new: ChangedVerdict, flow: Flow) -> bool:
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


def _is_in(address: int, span: t.Tuple[int, int]) -> bool:
    return span[0] <= address <= span[1]


def _as_flushed(verdicts: Verdicts) -> t.Set[ChangedVerdict]:
    """Return verdicts as connections have them: rules that cannot be read masqueraded nothing."""
    # An open connection keeps its port.
    found = {one.applied._replace(ways=()) for one in verdicts if one.action != UNKNOWN}
    return found or {SKIPPED}
