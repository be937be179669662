# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a change of the rules means for packets, in terms of the policy."""

from __future__ import annotations

import functools
import typing as t

from .._policy.values import EXEMPT, MASQUERADE, SKIP, AddressRange, PortRange
from .._rules.regions import count
from .._rules.rules import Names
from .._system import intervals, pod_names
from .._system.families import ICMP, ICMPV6, IPV4, IPV6, PROTOCOL_NAMES, Family
from .._system.intervals import Spans
from .._system.services import MAX_PORT, MAX_SERVICE, pack, unpack
from . import changed_packets, effect_words, range_words
from .changed_packets import DROPPED, UNKNOWN, Cell, ChangedVerdict, Comparison, Pair, Product, Rulesets, Verdicts
from .effect_words import WITHOUT_CONNECTION
from .mark_sets import MarkSet
from .masquerade_ports import Chosen
from .ruleset import DROP

#: What an effect says of packets before and after a change, beside fixed addresses.
POD, NODE, NOT_MANAGED = "pod", "node", "not managed"

#: So many effects, and ranges of one, are returned.
LIMIT = 100

#: So many lines are for people.
LINES = 20

#: What was compared, where it is not all.
_COMPARED = (
    "no packet of pods gets another source address or port; packets of Services and host ports were not compared"
)

_WORDS = {SKIP: NOT_MANAGED, EXEMPT: POD, UNKNOWN: UNKNOWN, DROPPED: DROPPED, MASQUERADE: NODE}


class Effect(t.NamedTuple):
    """Packets that get the same other treatment. No packet has two effects. A field that is None matches all."""

    family: Family
    destinations: Spans
    sources: t.Optional[Spans]
    #: ``*`` at the end means the beginning of names, ``!`` in front an exception from the entries before
    out_interfaces: t.Tuple[str, ...]
    services: t.Optional[Spans]
    #: which packets, where it is not all: their mark, or that they have no connection
    packets: str
    before: str
    after: str
    #: tracked ones that have another source address than the rules would give them now; None: not known
    open_connections: t.Optional[int] = None
    #: from how many source ports one is chosen before and after, where that differs
    ports: t.Optional[t.Tuple[int, int]] = None
    #: the networks of destinations and of sources that the rules name; empty: not known
    written: t.Tuple[range_words.Written, ...] = ()


class Compared(t.NamedTuple):
    """The effects of a change of one family, the largest first."""

    family: Family
    effects: t.Tuple[Effect, ...]
    #: whether the rules change their place among those of other programs, which is not compared
    moved: bool = False
    #: for the operator: which connections were not counted, and why
    notes: t.Tuple[str, ...] = ()
    #: whether all packets were compared, those of Services and host ports too
    complete: bool = True


class Effects:
    """The effects of a comparison, and which of them an open connection has."""

    def __init__(self, comparison: Comparison) -> None:
        self._of: t.Dict[t.Tuple[Pair, Cell], int] = {}
        # Other ports of an address that is missing before and after are no effect.
        found = [one for one in _found(comparison) if one[0].before != one[0].after or one[0].after == UNKNOWN]
        found.sort(key=lambda one: _order(one[0]))
        self.effects = [effect for effect, _product in found]
        for place, (_one, own) in enumerate(found):
            if own is not None:
                self._of.update(((own.pair, cell), place) for cell in own.cells())

    def counted(self, counts: t.Sequence[t.Optional[int]]) -> t.List[Effect]:
        """Return the effects with numbers of open connections; without numbers they are not known."""
        known = counts or [None] * len(self.effects)
        return [effect._replace(open_connections=count) for effect, count in zip(self.effects, known)]

    def place(self, pair: Pair, cell: Cell) -> t.Optional[int]:
        """Return which of the effects packets have; None if they have none."""
        return self._of.get((pair, cell))


def unseen(family: Family, before: Rulesets, after: Rulesets) -> t.List[Effect]:
    """Return the effects on packets that nat does not see."""
    first, last = ([one for one in side if one is not None] for side in (before, after))
    if not any(one.leaks == DROP for one in (*first, *last)):
        return []
    found = _found(Comparison(family, first, last, unseen=True), WITHOUT_CONNECTION)
    return sorted((one._replace(open_connections=0) for one, _product in found), key=_order)


def _found(comparison: Comparison, which: str = "") -> t.Iterator[t.Tuple[Effect, t.Optional[Product]]]:
    """Return effects, and the packets that have each if no rule leaves any of them alone because of its mark.

    :param which: of all packets.
    """
    sides = comparison.networks()
    written = tuple(range_words.Written(map(intervals.of_network, side), comparison.family) for side in sides)
    for left, marks in comparison.by_marks().items():
        packets = [which] if which else []
        packets += [_marked(marks, left)] if left or not marks.has(0) else []
        for product in comparison.products(left):
            yield _effect(comparison, product, ", ".join(packets), written), None if left else product


def _effect(
    comparison: Comparison, product: Product, packets: str, written: t.Tuple[range_words.Written, ...]
) -> Effect:
    pair = product.pair
    before, after = words(pair)
    if packets.startswith(WITHOUT_CONNECTION):
        before, after = (POD if word == NOT_MANAGED else word for word in (before, after))
    sizes = tuple(max((one.size for one in _ports(side)), default=0) for side in pair)
    return Effect(
        comparison.family,
        product.destinations,
        _spans(comparison.sources.all, product.sources),
        _interfaces(comparison, product.interfaces),
        _spans(comparison.services.all, product.services),
        packets,
        before,
        after,
        ports=(sizes[0], sizes[1]) if all(sizes) and sizes[0] != sizes[1] else None,
        written=written,
    )


def _spans(classes: t.Dict[int, Spans], chosen: t.FrozenSet[int]) -> t.Optional[Spans]:
    if len(chosen) == len(classes):
        return None
    return intervals.of(interval for one in chosen for interval in classes[one])


def _interfaces(comparison: Comparison, chosen: t.FrozenSet[int]) -> t.Tuple[str, ...]:
    """Return the interfaces of some classes, each entry after those that it is an exception from."""
    patterns = sorted(comparison.patterns, key=lambda name: (not name.endswith("+"), len(name), name))
    states: t.Dict[str, bool] = {"+": comparison.interface(changed_packets.example("+")) in chosen}
    found = []
    for pattern in patterns:
        state = comparison.interface(changed_packets.example(pattern)) in chosen
        around = max((one for one in states if Names((one,)).match(pattern)), key=len)
        if state != states[around]:
            found.append(("" if state else "!") + pattern.replace("+", "*"))
        states[pattern] = state
    return tuple(found) if found or states["+"] else ("!*",)


def words(pair: Pair) -> t.Tuple[str, str]:
    """Return what a pair says of packets before and after: with ports, or how strongly, where that is what differs."""
    before, after = _word(pair.before), _word(pair.after)
    if before == after:
        before, after = _word(pair.before, strength=True), _word(pair.after, strength=True)
    ports = [_ports(side) for side in pair]
    if all(ports) and UNKNOWN not in (before, after):
        texts = [sorted({", " + one.text for one in side if one.text}) for side in ports]
        ways = [sorted({" (%s)" % one.how for one in side if one.how}) for side in ports]
        for added in (texts, ways) if all(ways) else (texts,):
            if added[0] != added[1]:
                before, after = before + "".join(added[0]), after + "".join(added[1])
    return before, after


def _ports(verdicts: Verdicts) -> t.Set[Chosen]:
    """Return how the ports of what is masqueraded are chosen, where that is compared."""
    return {t.cast(Chosen, one.ways) for one in verdicts if one.action == MASQUERADE and one.ways}


def _word(verdicts: Verdicts, strength: bool = False) -> str:
    if any(one.action == UNKNOWN for one in verdicts):
        return UNKNOWN
    return " or ".join(sorted({_one_word(one, strength) for one in verdicts}))


def _one_word(verdict: ChangedVerdict, strength: bool) -> str:
    if verdict.address is not None and verdict.action == MASQUERADE:
        family = IPV4 if verdict.address[1] <= IPV4.highest else IPV6
        return str(AddressRange(*map(family.address, verdict.address)))
    word = _WORDS[verdict.action]
    return "%s (exemption %s)" % (word, verdict.exemption.lower()) if strength and verdict.exemption else word


def _marked(marks: MarkSet, left: int) -> str:
    return "with mark %s" % (marks.shortest(),) if left else "with other marks"


def _order(effect: Effect) -> t.Tuple[t.Any, ...]:
    """Return the place of an effect: the largest first, then those of all packets."""
    size = count(effect.destinations)
    place = (effect.packets, effect.destinations, effect.sources or ())
    return (-size, *place, effect.out_interfaces, effect.services or ())


def services_text(services: Spans, family: Family) -> t.List[str]:
    """Return services as a list; ``!`` in front of each means all but these."""
    within = listed_services(services, family)
    without = listed_services(intervals.complement(services, MAX_SERVICE), family)
    return ["!" + one for one in without] if len(without) < len(within) else within


def listed_services(services: Spans, family: Family) -> t.List[str]:
    """Return protocols, with their ports where it is some of them."""
    names = {number: "icmp" if "icmp" in name else name for number, name in PROTOCOL_NAMES.items()}
    names.pop(ICMP if family == IPV6 else ICMPV6)
    found = []
    cuts = [pack(cut) for number in names for cut in (number, number + 1)]
    for first, last in intervals.cut(services, cuts):
        (protocol, low), (last_protocol, high) = unpack(first), unpack(last)
        name = names.get(protocol)
        if name is None:
            found.append("protocol %s" % (PortRange(protocol, last_protocol),))
        elif name == "icmp" or (low <= 1 and high == MAX_PORT):
            found.append(name)
        else:
            found.append("%s/%s" % (name, PortRange(low, high)))
    return found


def as_returns(effects: t.Iterable[Effect]) -> t.List[t.Dict[str, t.Any]]:
    """Return effects as RETURN of the module ip_masq documents them."""
    found = [dict(_as_return(one)) for one in effects]
    pods = pod_names.read() if any(one["sources"] for one in found) else {}
    for one in found:
        names = pod_names.of_ranges(one["sources"], pods)
        if names:
            one["pods"] = names
    return found


@functools.lru_cache(maxsize=LIMIT)  # they are asked for as values, in words, and in the diff
def _as_return(effect: Effect) -> t.Dict[str, t.Any]:
    found = effect._asdict()
    written, ports = found.pop("written") or (None, None), found.pop("ports") or (None, None)
    for side, known in zip(("destinations", "sources"), written):
        ranges = range_words.Ranges([], [], 0)
        if found[side] is not None:
            ranges = range_words.shortest(found[side], effect.family, LIMIT, known)
        found[side], found[side + "_except"], found[side + "_omitted"] = ranges
    found["out_interfaces"] = list(effect.out_interfaces)
    found["services"] = [] if effect.services is None else services_text(effect.services, effect.family)
    found["ports_before"], found["ports_after"] = ports
    return found


def lines(compared: t.Sequence[Compared]) -> t.List[str]:
    """Return the effects for people, a line each; of many the largest, and the number of the others.

    :param compared: the families whose rules are rewritten; without one nothing is reported.
    """
    effects = [one for each in compared for one in each.effects]
    found = [effect_words.line(one) for one in as_returns(effects[:LINES])]
    if len(effects) > LINES:
        found.append("and %s more" % format(len(effects) - LINES, ","))
    if compared and not effects:
        told = "no packet is treated otherwise" if all(each.complete for each in compared) else _COMPARED
        found.append("rules rewritten, " + told)
    if any(each.moved for each in compared):
        found.append(effect_words.MOVED)
    return found


def fewer_ports(effects: t.Iterable[Effect]) -> t.Iterator[str]:
    """Return a warning for each change to fewer source ports."""
    found = {(one.family, one.ports) for one in effects if one.ports and one.ports[1] < one.ports[0]}
    for family, (before, after) in sorted(found):
        yield (
            "%s: connections get one of %s source ports in place of %s: at most %s at a time to one address and port, "
            "from each address of the node and for each protocol; further ones get no answer"
            % (family, *(format(number, ",") for number in (after, before, after)))
        )
