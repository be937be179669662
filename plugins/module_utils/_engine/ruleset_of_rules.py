# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of a chain, as they were read, as the ruleset that they came from."""

from __future__ import annotations

import itertools
import typing as t

from .._policy.values import EXEMPT, MASQUERADE, SKIP, AddressRange, Service
from .ruleset import (
    COUNT,
    DROP,
    FIRST,
    IGNORE,
    LEAK,
    MULTICAST,
    AnyRule,
    Decision,
    Guard,
    Masquerade,
    OwnRule,
    PolicyMatch,
    Ruleset,
    in_front,
)


def from_rules(rules: t.Sequence[AnyRule]) -> t.Optional[Ruleset]:
    """Return the ruleset of these rules; None if they are not of our shape: such a chain is replaced.

    Our shape is guards, then what is skipped, exempt (with one verdict) or masqueraded. Behind rules that masquerade
    everything there are only others that masquerade: no packet meets these, as where an entry of ``snat`` without
    conditions comes before others.
    """
    leading = tuple(itertools.takewhile(lambda rule: isinstance(rule, Guard), rules))
    rest = [rule for rule in rules[len(leading) :] if isinstance(rule, OwnRule)]
    if len(leading) + len(rest) < len(rules) or any(rule.kind in (LEAK, FIRST) for rule in rest):
        return None
    if any(rule.state for rule in rest):
        accepted = _without_redirected(rest)
        if accepted is None:
            return None
        leading, rest = (Guard(dnat=True), *leading), accepted
    verdicts = {rule.verdict for rule in rest if rule.kind == EXEMPT}
    if len(verdicts) > 1:
        return None
    decisions: t.List[Decision] = []
    over = False
    for place, group in itertools.groupby(rest, _place):
        over = over or bool(decisions and decisions[-1].match == PolicyMatch() and _takes_all(decisions[-1].how or ()))
        if over and place.kind != MASQUERADE:
            return None
        match = PolicyMatch(
            _listed(place.source), _listed(place.network), _listed(place.interface), _listed(place.service)
        )
        if place.kind == MASQUERADE:
            how = tuple(rule.way for rule in group if rule.way is not None)
            decisions.append(Decision(MASQUERADE, match, place.address, how))
        else:
            decisions += [Decision(place.kind, match._replace(destinations=_listed(rule.network))) for rule in group]
    ways = {decision.how for decision in decisions if decision.how is not None}
    if len(ways) == 1:
        decisions = [decision._replace(how=None) for decision in decisions]
    return Ruleset(
        decisions=tuple(_united(decisions)),
        verdict=verdicts.pop() if verdicts else "RETURN",
        masquerade=ways.pop() if len(ways) == 1 else (),
        guards=t.cast(t.Tuple[Guard, ...], leading),
    )


def leak_fields(rules: t.Sequence[t.Optional[AnyRule]], nat: t.Sequence[t.Optional[AnyRule]]) -> t.Dict[str, t.Any]:
    """Return what ``Ruleset.leak_rules`` tell of their ruleset: the fields leaks, hidden and missing.

    :param nat: its other rules, which have the addresses. :param rules: None is one that is not of our shape.
    """
    own = [rule for rule in rules if isinstance(rule, OwnRule)]
    verdicts = {rule.verdict for rule in own if rule.kind == LEAK}
    skipped = [rule.network for rule in own if rule._replace(state="") == OwnRule(SKIP, rule.network)]
    end = next((place for place, network in enumerate(skipped) if network in MULTICAST.values()), 0)
    first: t.Dict[OwnRule, str] = {}
    for rule in own:
        # No packet gets to what an earlier rule has said of all the same packets.
        if rule.kind == FIRST and _matched(rule._replace(service=None)) not in first:
            first.setdefault(_matched(rule), rule.verdict)
    addresses: t.Dict[OwnRule, t.Optional[AddressRange]] = {}
    for other in nat:
        if isinstance(other, OwnRule) and other.way is not None:
            # Of a rule that masquerades, a service without ports is read as the protocol of its way.
            protocol = Service(other.way.protocol) if other.way.protocol else None
            addresses.setdefault(_matched(other._replace(service=other.service or protocol)), other.address)
    dropped = [addresses.get(match) for match, verdict in first.items() if verdict == "DROP"]
    return {
        "leaks": DROP if "DROP" in verdicts else COUNT if verdicts else IGNORE,
        "hidden": tuple(skipped[:end]),
        "missing": tuple(dict.fromkeys(address for address in dropped if address is not None)),
    }


def _matched(rule: OwnRule) -> OwnRule:
    """Return what a rule says of the packets that it is about."""
    return OwnRule("", rule.network, rule.source, rule.interface, rule.service)


def _without_redirected(rules: t.List[OwnRule]) -> t.Optional[t.List[OwnRule]]:
    """Return the rules without those that leave redirected connections to later rules.

    Return None unless one is directly in front of each rule that accepts, for the same traffic, and nowhere else.
    """
    kept = [rule for rule in rules if not rule.state]
    expected = [one for rule in kept for one in ([in_front(rule)] * (rule.verdict == "ACCEPT") + [rule])]
    return kept if expected == rules else None


def _takes_all(ways: t.Sequence[Masquerade]) -> bool:
    return any(way.protocol is None and way.share is None for way in ways)


def _place(rule: OwnRule) -> OwnRule:
    """Return what the rules of one place have in common: exempt ranges, or the ways to masquerade the same traffic."""
    if rule.way is None:
        return rule._replace(network=None)
    # No decision maps some ports at random and keeps others.
    return rule._replace(way=Masquerade(random_fully=rule.way.random_fully))


def _united(decisions: t.Sequence[Decision]) -> t.Iterator[Decision]:
    """Unite decisions that follow each other and differ in nothing but the destination."""

    def common(decision: Decision) -> t.Tuple[Decision, bool]:
        return decision._replace(match=decision.match._replace(destinations=())), not decision.match.destinations

    for (decision, _everywhere), group in itertools.groupby(decisions, common):
        networks = tuple(network for one in group for network in one.match.destinations)
        yield decision._replace(match=decision.match._replace(destinations=networks))


def _listed(value: t.Any) -> t.Tuple[t.Any, ...]:
    return () if value is None else (value,)
