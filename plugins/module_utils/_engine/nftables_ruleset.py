# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A ruleset as our nftables table, and what a table like ours does with packets, as a ruleset."""

from __future__ import annotations

import ipaddress
import itertools
import re
import typing as t

from .._errors import ConfigError
from .._policy.values import EXEMPT, MASQUERADE, SKIP, AddressRange, Mark, PortRange, Service, parse_address_range
from .._system import intervals
from .._system.families import BY_NFT, IPV4, IPV6, PORT_PROTOCOLS, Family
from . import rule_comments as comments
from .masquerade_ports import SHARE_UNIT
from .nftables_syntax import (
    CHAIN,
    ENFORCER,
    LEAKS,
    OUTLINE,
    SET,
    SOURCES,
    ListedTable,
    bare,
    in_order,
    render_span,
    snat_to,
)
from .ruleset import (
    COUNT,
    DROP,
    EVERYTHING,
    IGNORE,
    MULTICAST,
    Decision,
    Guard,
    Masquerade,
    PolicyMatch,
    Ruleset,
    both,
    exempt_spans,
    guards_of,
)

_LOCAL, _LOCAL_COMMENT = "fib daddr type local", comments.PREFIX + " for the node itself"
_ENTRY_COMMENT = comments.PREFIX + " %s, entry %d"

#: So many exempt ranges have an outline: one lookup among 10,000 takes 0.09 of what opening a connection takes.
_MANY = 1000
#: By family, the prefix length of the networks of an outline.
_OUTLINE_LENGTH = {IPV4: 8, IPV6: 16}

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_ENTRY = r' comment "%s rules, entry [1-9][0-9]*"\Z' % comments.PREFIX
#: Each begins with what it is about, and ends with a space.
_CONDITION = r'oifname "([^"]*)" |ip6? ([sd])addr @(\w+) |meta l4proto (\S+) |(\w+) dport @(\w+) '
_RULE = (
    r'(?P<conditions>(?:oifname (?:!= )?"[^"]*" |ip6? [sd]addr (?:!= )?@\w+ |\w+ dport @\w+ |meta l4proto \S+ )*)'
    r"(?:numgen random mod %d < (?P<share>[0-9]+) )?(?P<verdict>return|accept|masquerade|snat)"
    # An address, or first and last of some, with or without ports.
    r"(?: to (?P<address>(?<=snat to )(?:[0-9.]+(?:-[0-9.]+)?|\[[0-9a-f:]+\](?:-\[[0-9a-f:]+\])?|"
    r"[0-9a-f:]+(?:-[0-9a-f:]+)?(?= |\Z)))?"
    r"(?::(?P<ports>[0-9]+(?:-[0-9]+)?))?)?(?P<random> fully-random)?\Z" % SHARE_UNIT
)
_PROTOCOL = r"(?:(\w+) dport|meta l4proto (\S+)) "
_MARKED = r"meta mark (?:& (0x[0-9a-f]{8}) == )?(0x[0-9a-f]{8}) return\Z"
_SCOPE = r'(?:ip6? saddr != @%s |(?:oifname != "[^"]*" )+)\Z' % SOURCES
_LINK = r'oifname != "([^"]*)"'
_MISSING = r"ct status snat ip6? saddr (\S+) drop\Z"
_NARROWED = r"ip6? saddr != @"


def from_ruleset(ruleset: Ruleset, family: Family) -> ListedTable:
    """Return the table that holds these rules.

    Its set of exempt ranges holds what is exempt in the end: however deep ranges are within each other, it is one
    lookup. Where they are many, most packets need none: another set has the few networks around them. Each entry of
    ``rules`` has sets of its own.
    """
    nft = family.nft
    to_exempt = "%s daddr @%s" % (nft, SET)
    # Not ``oif lo``, which takes 0.02 less: traffic to an address of the node inside a VRF leaves by the VRF's device.
    local = _rule(_LOCAL, "return", _LOCAL_COMMENT)
    verdict = "accept" if ruleset.verdict == "ACCEPT" else "return"
    deciding = [decision for decision in ruleset.decisions if decision.action != SKIP]
    if not deciding and not ruleset.leading:
        return ListedTable(family, {SET: ()}, ((CHAIN, (local,)),))
    scope = deciding[-1].match if deciding else PolicyMatch()
    marked = tuple(_rule(*_guard(guard, family)) for guard in ruleset.guards if guard.is_option)
    entries = _Entries(ruleset, family)
    others = tuple(_rule(matches, "return", comments.SKIPPED) for matches in _skipped(ruleset, scope, family))
    exempt = exempt_spans(deciding)
    outline = _outline(exempt, family)
    if outline:
        to_exempt = "%s daddr @%s %s" % (nft, OUTLINE, to_exempt)
        entries.sets[OUTLINE] = outline
    main = (_rule(to_exempt, verdict, comments.EXEMPT), *entries.masqueraded("", deciding[-1])) if deciding else ()
    chains = [(CHAIN, (local, *marked, *entries.rules(verdict), *others, *main))]
    # In the other chain the guards of the exemption would change nothing: packets that it accepts meet all others too.
    if ruleset.verdict == "ENFORCE":
        some = exempt or any(decision.action == EXEMPT for decision in ruleset.leading)
        left = tuple(_rule(*_guard(guard, family)) for guard in ruleset.guards if some and not guard.is_option)
        keep = "snat to %s saddr" % nft
        ends = (_rule(to_exempt, keep, comments.EXEMPT),) if deciding else ()
        chains.append((ENFORCER, (*left, local, *marked, *entries.rules(keep, only_exempt=True), *others, *ends)))
    if ruleset.leaks != IGNORE or ruleset.missing:
        chains.append((LEAKS, tuple(_leak_rules(ruleset, family, entries, others, to_exempt if deciding else ""))))
    sets = {SET: exempt, **entries.sets}
    if ruleset.hidden or scope.sources:
        sets[SOURCES] = intervals.of_networks(ruleset.hidden or scope.sources)
    return ListedTable(family, in_order(sets), tuple(chains))


def _leak_rules(
    ruleset: Ruleset, family: Family, entries: _Entries, others: t.Sequence[str], to_exempt: str
) -> t.Iterator[str]:
    """Return the rules of the chain behind source NAT: nat did not see what still has a hidden address there.

    Nat decides about the first packet of a connection, and so does this chain. All rules but those that find a leak are
    without a counter: each packet of the node meets them.

    :param others: what leaves out traffic, as in the other chains. :param to_exempt: empty if no list decides.
    """
    nft = family.nft
    yield 'ct status confirmed return comment "%s"' % comments.CONNECTED
    for address in sorted(ruleset.missing):
        written = render_span((int(address.first), int(address.last)), family)
        yield _rule("ct status snat %s saddr %s" % (nft, written), "drop", comments.MISSING)
    if ruleset.leaks == IGNORE:
        return
    yield 'ct status snat return comment "%s"' % comments.CONNECTED
    yield '%s saddr != @%s return comment "%s"' % (nft, SOURCES, comments.INSIDE)
    yield '%s daddr @%s return comment "%s"' % (nft, SOURCES, comments.INSIDE)
    yield '%s daddr %s return comment "%s"' % (nft, MULTICAST[family], comments.INSIDE)
    yield 'fib saddr type local return comment "%s"' % comments.OWN
    yield '%s return comment "%s"' % (_LOCAL, _LOCAL_COMMENT)
    for guard in ruleset.guards:
        if guard.is_option:
            yield _uncounted(_rule(*_guard(guard, family)))
    leak = "drop" if ruleset.leaks == DROP else "return"
    for rule in entries.rules("return", leak=leak):
        yield rule if comments.LEAK in rule else _uncounted(rule)
    for rule in others:
        if not rule.startswith("%s saddr " % nft):
            yield _uncounted(rule)
    if to_exempt:
        yield _uncounted(_rule(to_exempt, "return", comments.EXEMPT))
        yield _rule("", leak, comments.LEAK)


def _uncounted(rule: str) -> str:
    return rule.replace("counter ", "", 1)


def _outline(exempt: intervals.Spans, family: Family) -> intervals.Spans:
    """Return few networks around the exempt ranges; None if there are too few ranges, or it would keep little out."""
    if len(exempt) < _MANY:
        return ()
    outline = intervals.outline(exempt, 1 << (family.bits - _OUTLINE_LENGTH[family]))
    covered = sum(last - first + 1 for first, last in outline)
    return outline if len(outline) * 16 <= len(exempt) and covered * 2 <= 1 << family.bits else ()


class _Entries:
    """The rules of the entries of ``rules`` and ``snat``, and the sets that they ask."""

    def __init__(self, ruleset: Ruleset, family: Family) -> None:
        self.sets: t.Dict[str, intervals.Spans] = {}
        self._ruleset = ruleset
        self._nft = family.nft
        self._leading = [self._conditions("rule", *one) for one in enumerate(ruleset.leading, 1)]
        self._translations = [
            (self._conditions("snat", number, one), one) for number, one in enumerate(ruleset.translations, 1)
        ]

    def _conditions(self, kind: str, number: int, decision: Decision) -> t.List[str]:
        """Return alternatives that match the packets of an entry, each with a space at its end unless it is empty."""
        match = decision.match
        addresses = ""
        for name, end, networks in (("sources", "saddr", match.sources), ("destinations", "daddr", match.destinations)):
            if networks and networks[0].prefixlen:
                asked = self._set(kind, number, name, intervals.of_networks(networks))
                addresses += "%s %s @%s " % (self._nft, end, asked)
        services: t.Dict[str, t.List[t.Any]] = {}
        for service in match.services:
            services.setdefault(service.protocol, []).append(service.ports)
        matched = []
        for protocol, ports in services.items():
            if None in ports:
                matched.append("meta l4proto %s " % protocol)
            else:
                asked = self._set(kind, number, protocol + "_ports", intervals.of(ports))
                matched.append("%s dport @%s " % (protocol, asked))
        interfaces = ["oifname %s " % _interface(name) for name in match.interfaces]
        return ["".join(one) for one in itertools.product(interfaces or [""], [addresses], matched or [""])]

    def _set(self, kind: str, number: int, name: str, spans: intervals.Spans) -> str:
        full = "%s_%d_%s" % (kind, number, name)
        self.sets[full] = spans
        return full

    def rules(self, exempt: str, only_exempt: bool = False, leak: str = "") -> t.Iterator[str]:
        """Return the entries of ``rules``, in order.

        :param exempt: the verdict on exempt traffic.
        :param only_exempt: whether everything else is left to the other chain.
        :param leak: the verdict on what would be masqueraded, in the chain behind source NAT.
        """
        for number, (decision, conditions) in enumerate(zip(self._ruleset.leading, self._leading), 1):
            comment = _ENTRY_COMMENT % ("rules", number)
            for matches in conditions:
                if decision.action == MASQUERADE and leak:
                    yield _rule(matches.strip(), leak, comments.LEAK)
                elif decision.action == MASQUERADE and not only_exempt:
                    yield from self.masqueraded(matches, decision, comment)
                else:
                    yield _rule(matches.strip(), exempt if decision.action == EXEMPT else "return", comment)

    def masqueraded(self, matches: str, decision: Decision, comment: str = "") -> t.Iterator[str]:
        """Return the rules that masquerade packets that match, as a decision says.

        :param comment: instead of the usual ones.
        """
        if decision.address is None:
            for number, (conditions, fixed) in enumerate(self._translations, 1):
                part = fixed if decision.how is None else fixed._replace(how=decision.how)
                told = comment or _ENTRY_COMMENT % ("snat", number)
                for more in conditions:
                    yield from self._ways(matches + more, part, told)
        yield from self._ways(matches, decision, comment or comments.MASQUERADE)

    def _ways(self, matches: str, decision: Decision, comment: str) -> t.Iterator[str]:
        named = _protocol(matches)
        for rule in self._ruleset.ways(decision):
            if named is None or rule.protocol in (None, named):
                more, verdict = _masquerade(rule._replace(protocol=None) if named else rule, decision.address)
                yield _rule((matches + more).strip(), verdict, comment)


def _protocol(conditions: str) -> t.Optional[str]:
    found = re.search(_PROTOCOL, conditions)
    return found and (found[1] or found[2])


def _skipped(ruleset: Ruleset, scope: PolicyMatch, family: Family) -> t.Iterator[str]:
    """Return conditions, any of which matches traffic outside the policy's scope."""
    for decision in ruleset.decisions:
        for name in decision.match.interfaces if decision.action == SKIP else ():
            yield "oifname " + _interface(name)
    if scope.sources:
        yield "%s saddr != @%s" % (family.nft, SOURCES)
    if scope.interfaces:
        yield " ".join("oifname != " + _interface(name) for name in scope.interfaces)


def _interface(name: str) -> str:
    return '"%s"' % (name[:-1] + "*" if name.endswith("+") else name)


def _rule(matches: str, verdict: str, comment: str) -> str:
    return '%scounter %s comment "%s"' % (matches and matches + " ", verdict, comment)


def _guard(guard: Guard, family: Family) -> t.Tuple[str, str, str]:
    if guard.dnat:
        matches, comment = "ct status dnat", comments.DNAT
    elif guard.marks:
        matches, comment = "meta mark & 0x%08x != 0x00000000" % guard.marks, comments.MARKS
    elif guard.mark:
        value, mask = guard.mark
        condition = "0x%08x" % value if guard.mark == Mark(value) else "& 0x%08x == 0x%08x" % (mask, value)
        matches, comment = "meta mark " + condition, comments.SKIPPED
    else:
        source = render_span(intervals.of_network(guard.source), family)
        matches, comment = "%s saddr %s" % (family.nft, source), comments.SOURCE
    return matches, "return", comment


def _masquerade(rule: Masquerade, address: t.Optional[AddressRange]) -> t.Tuple[str, str]:
    matches = ["meta l4proto " + rule.protocol] if rule.protocol else []
    if rule.share is not None:
        # Both this and xt_statistic draw from 2**31 numbers.
        matches.append("numgen random mod %d < %d" % (SHARE_UNIT, rule.share))
    verdict = "masquerade"
    if address is not None:
        verdict = snat_to(str(address), "" if rule.to_ports is None else str(rule.to_ports))
    elif rule.to_ports:
        verdict += " to :%s" % (rule.to_ports,)
    return " ".join(matches), verdict + (" fully-random" if rule.random_fully else "")


def to_ruleset(table: ListedTable) -> t.Optional[Ruleset]:
    """Return what a table does with packets, a decision for each of its rules; None if it is not of our shape."""
    try:
        return _read(table)
    except (ConfigError, LookupError, ValueError, OverflowError):
        return None


def _read(table: ListedTable) -> Ruleset:
    """Return the same.

    :raises ConfigError, KeyError, ValueError: it is not of our shape.
    """
    local, *written = table.rules(CHAIN) or ()
    if table.foreign or bare(local) != _LOCAL + " return":
        raise ValueError(local)
    marked = list(itertools.takewhile(bool, (re.match(_MARKED, bare(rule)) for rule in written)))
    lines = [_parse(rule) for rule in written[len(marked) :]]
    enforcer = table.rules(ENFORCER)
    verdict = "ACCEPT" if any(line.verdict == "accept" for line in lines) else "RETURN"
    verdict = verdict if enforcer is None else "ENFORCE"
    kept = [bare(rule) for rule in enforcer or ()]
    scope = PolicyMatch()
    leading: t.List[Decision] = []
    decisions: t.List[Decision] = []
    for line, group in itertools.groupby(lines, lambda line: line._replace(way=_alike(line.way))):
        if "!= " in line.conditions:
            scope = _narrowed(scope, line, table)
            continue
        match = _match(table, line.conditions)
        match = None if match is None else both(match, scope)
        if match is None:
            continue
        places = leading if line.of_rules else decisions
        if line.verdict in ("masquerade", "snat"):
            places.append(Decision(MASQUERADE, match, line.address, tuple(one.way for one in group)))
        elif _is_exempt(line, verdict, kept):
            destinations = match.destinations or (EVERYTHING[table.family],)
            places.append(Decision(EXEMPT, match._replace(destinations=destinations)))
        else:
            places.append(Decision(SKIP, match))
    guards = guards_of(verdict, table.family, (*decisions, *leading))
    leaks = _leaks(table)
    return Ruleset(
        tuple(decisions),
        verdict,
        (),
        tuple(one for one in guards if enforcer is None or bare(_rule(*_guard(one, table.family))) in kept)
        + tuple(Guard(mark=_read_mark(*found.groups())) for found in marked if found),
        tuple(leading),
        leaks=leaks,
        hidden=_networks(table, SOURCES) if leaks != IGNORE else (),
        missing=tuple(_missing(table)),
    )


class _Line(t.NamedTuple):
    """A rule that returns, accepts or masquerades."""

    #: whether it is of an entry of ``rules``
    of_rules: bool
    #: with a space behind each
    conditions: str
    #: return, accept, masquerade or snat
    verdict: str
    #: of what masquerades
    way: Masquerade
    address: t.Optional[AddressRange]


def _parse(rule: str) -> _Line:
    """Parse a rule with its comment; raise ValueError if it does something else."""
    found = re.match(_RULE, bare(rule))
    if found is None:
        raise ValueError(rule)
    protocol = _protocol(found["conditions"])
    way = Masquerade(
        protocol if protocol in PORT_PROTOCOLS else None,
        PortRange.read(found["ports"]) if found["ports"] else None,
        None if found["share"] is None else int(found["share"]),
        found["random"] is not None,
    )
    address = parse_address_range(re.sub(r"[\[\]]", "", found["address"])) if found["address"] else None
    return _Line(re.search(_ENTRY, rule) is not None, found["conditions"], found["verdict"], way, address)


def _alike(way: Masquerade) -> Masquerade:
    """Return what the ways to masquerade the same packets have in common."""
    return Masquerade(random_fully=way.random_fully)


def _is_exempt(line: _Line, verdict: str, kept: t.Container[str]) -> bool:
    """Return whether a rule that ends with a verdict exempts; with RETURN, to exempt and to skip are the same."""
    if verdict == "ENFORCE":
        return any(line.conditions + "snat to %s saddr" % nft in kept for nft in BY_NFT)
    return line.verdict == "accept" or (verdict == "RETURN" and "@" + SET in line.conditions)


def _match(table: ListedTable, conditions: str) -> t.Optional[PolicyMatch]:
    """Return which packets fulfil all of some conditions; None: there are none."""
    match: t.Optional[PolicyMatch] = PolicyMatch()
    for name, side, named, protocol, ported, ports in re.findall(_CONDITION, conditions):
        networks = _networks(table, named) if named else ()
        if match is None or (named and not networks):
            return None
        if name:
            match = both(match, PolicyMatch(interfaces=(_link(name),)))
        elif ported:
            match = match._replace(services=tuple(Service(ported, PortRange(*one)) for one in table.sets[ports]))
        elif protocol:
            match = match._replace(services=(Service(protocol),))
        elif side == "s":
            match = both(match, PolicyMatch(networks))
        elif named != OUTLINE:
            match = match._replace(destinations=networks)
    return match


def _narrowed(scope: PolicyMatch, line: _Line, table: ListedTable) -> PolicyMatch:
    """Return the scope of the rules behind one that leaves what is outside of it to others."""
    if line.verdict != "return" or not re.match(_SCOPE, line.conditions):
        raise ValueError(line)
    links = tuple(map(_link, re.findall(_LINK, line.conditions)))
    return scope._replace(interfaces=links) if links else scope._replace(sources=_networks(table, SOURCES))


def _link(name: str) -> str:
    return name[:-1] + "+" if name.endswith("*") else name


def _networks(table: ListedTable, name: str) -> t.Tuple[t.Any, ...]:
    return tuple(intervals.networks(table.sets[name], table.family))


def _leaks(table: ListedTable) -> str:
    """Return what is done with packets that nat does not see."""
    rules = [bare(rule) for rule in table.rules(LEAKS) or ()]
    if not any(re.match(_NARROWED, rule) for rule in rules):
        return IGNORE
    return DROP if any(rule.endswith("drop") and not re.match(_MISSING, rule) for rule in rules) else COUNT


def _missing(table: ListedTable) -> t.Iterator[AddressRange]:
    """Return the fixed addresses with which nothing leaves."""
    for rule in table.rules(LEAKS) or ():
        found = re.match(_MISSING, bare(rule))
        if found:
            network = ipaddress.ip_network(found.group(1)) if "/" in found.group(1) else None
            yield parse_address_range(found.group(1)) if network is None else AddressRange(network[0], network[-1])


def _read_mark(mask: t.Optional[str], value: str) -> Mark:
    return Mark(*(int(number, 16) for number in (value, mask) if number))
