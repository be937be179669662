# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our table as C(nft) prints and reads it; no process is started here.

What is read is C(nft -n -s list table): numeric, so that no file on the node (/etc/protocols, rt_marks) can rename
anything, and without the counters' values. It is the same text from nft 0.9.8 to 1.1. Ranges are kept as pairs of
numbers, merged, because auto-merge rewrites them and because 10,000 network objects cost more than reading the set.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import socket
import typing as t

from .._errors import ConfigError
from .._policy import spans as intervals
from .._policy.values import (
    ALL_BITS,
    EXEMPT,
    MASQUERADE,
    PORTS_PROTOCOLS,
    SKIP,
    AddressRange,
    Mark,
    PortRange,
    Service,
    parse_address_range,
)
from .._system.ip_families import IPV4, IPV6, NFT_FAMILY
from .rule_comments import (
    COMMENT_PREFIX,
    EXEMPT_COMMENT,
    MARKS_COMMENT,
    MASQUERADE_COMMENT,
    SKIPPED_COMMENT,
    SOURCE_COMMENT,
)
from .ruleset import (
    EVERYTHING,
    SHARE_UNIT,
    Decision,
    Guard,
    Masquerade,
    Match,
    Ruleset,
    exempt_spans,
    guards,
)

TABLE = "ip_masq_agent"
SET = "exempt_ranges"
#: What the set was called when it was declared with C(type). nft 1.1.2 and later store with such a set what makes nft
#: 1.0.6 and 0.9.8 crash on most listings. A set's declaration cannot be changed, so a new set takes its place.
OLD_SET = "exempt"
#: The sources whose connections meet the rules; it is there where not all do.
SOURCES = "source_ranges"
CHAIN = "postrouting"
#: the base chain that decides before every other one, with exemption: enforce
ENFORCER = "enforce"

#: What else our sets are called: those of an entry of C(rules) or C(snat), by its number.
_NUMBERED = re.compile(r"(?:rule|snat)_[1-9][0-9]{0,3}_(?:(?:tcp|udp|sctp)_)?(sources|destinations|ports)\Z")

#: What the elements of a set are, by its name.
_ELEMENTS_OF = {SET: "daddr", SOURCES: "saddr", "destinations": "daddr", "sources": "saddr", "ports": "dport"}


_ADDRESS_FAMILY = {IPV4: socket.AF_INET, IPV6: socket.AF_INET6}
_BITS = {IPV4: 32, IPV6: 128}
_VERSION = {IPV4: 4, IPV6: 6}
_TYPES = {IPV4: "ipv4_addr", IPV6: "ipv6_addr"}
#: By value of the option jump_position, the priority of the chain; lower runs first. Source NAT of others is at 90 to
#: 110, of iptables at 100. A nat chain must be above -200 (NF_IP_PRI_CONNTRACK), so none is in front of the first, and
#: no number is higher than that of the last. Packets meet all nat chains at the place of srcnat among the other hooks
#: (nf_nat_register_fn), so nothing else moves.
PRIORITIES = {"keep": 100, "first": -199, "last": 2**31 - 1}
#: what nft calls "security"
_ENFORCER_PRIORITY = 50
_HOOK = re.compile(r"type nat hook postrouting priority (srcnat|-?[0-9]+); policy accept;\Z")
_SRCNAT = 100
_NO_PRIORITY = -(2**31)
#: the priorities that our chains may have, in the order in which they are written
_ALLOWED = {CHAIN: tuple(PRIORITIES.values()), ENFORCER: (_ENFORCER_PRIORITY,)}
_LOCAL_COMMENT = COMMENT_PREFIX + " for the node itself"
_ENTRY_COMMENT = COMMENT_PREFIX + " rules, entry %d"
_TRANSLATED_COMMENT = COMMENT_PREFIX + " snat, entry %d"
_DNAT_COMMENT = COMMENT_PREFIX + " left to the program that changed the destination"
_INDENT = "    "

_ANNOTATION = re.compile(r' comment "[^"]*"\Z')
_COUNTER = re.compile(r" ?\bcounter(?: packets [0-9]+ bytes [0-9]+)?(?= |\Z)")
_ELEMENTS = re.compile(r"elements = \{(.*)\}\Z")
#: An address, or first and last of some, with or without ports, as C(snat to) has them.
_TO_SOURCE = (
    r"(?P<address>[0-9.]+(?:-[0-9.]+)?|\[[0-9a-f:]+\](?:-\[[0-9a-f:]+\])?|[0-9a-f:]+(?:-[0-9a-f:]+)?(?= |\Z))"
    r"(?::(?P<snat_ports>[0-9]+(?:-[0-9]+)?))?"
)
_MASQUERADE = re.compile(
    r"(?:meta l4proto (?P<protocol>tcp|udp|sctp) )?(?:numgen random mod %d < (?P<share>[0-9]+) )?"
    r"(?:masquerade(?: to :(?P<ports>[0-9]+(?:-[0-9]+)?))?|snat to %s)(?P<random> fully-random)?\Z"
    % (SHARE_UNIT, _TO_SOURCE)
)
_ENTRY = re.compile(r' comment "%s rules, entry ([1-9][0-9]*)"\Z' % COMMENT_PREFIX)
_CONDITIONS = re.compile(
    r'(?:oifname "(?P<interface>[^"]*)" )?(?:ip6? saddr @(?P<sources>\w+) )?(?:ip6? daddr @(?P<destinations>\w+) )?'
    r"(?:(?P<ported>tcp|udp|sctp) dport @(?P<ports>\w+) |meta l4proto (?P<protocol>\S+) (?=return|accept|snat|masq))?"
)
_TRANSLATED = re.compile(r' comment "%s snat, entry [1-9][0-9]*"\Z' % COMMENT_PREFIX)
_PREFIXED = re.compile(r"\bsnat to ([0-9a-f.:]+/[0-9]+)(?::([0-9]+(?:-[0-9]+)?))?")
_CREATED = re.compile(r"^add set \S+ \S+ (\S+)", re.MULTILINE)
_MARKED = re.compile(r"meta mark (?:& (0x[0-9a-f]{8}) == )?(0x[0-9a-f]{8}) return\Z")
_SKIPPED = re.compile(r"(?:oifname (?:!= )?\"|ip6? saddr != @)")
_INTERFACE = re.compile(r'oifname (?:!= )?"([^"]*)"')
#: numeric to symbolic; the marks keep the form in which nft prints them
_NAMES = (
    (re.compile(r"\bfib (daddr|saddr) type 2\b"), r"fib \1 type local"),
    (re.compile(r"\bmeta l4proto 1\b"), "meta l4proto icmp"),
    (re.compile(r"\bmeta l4proto 58\b"), "meta l4proto ipv6-icmp"),
    (re.compile(r"\bmeta l4proto 6\b"), "meta l4proto tcp"),
    (re.compile(r"\bmeta l4proto 17\b"), "meta l4proto udp"),
    (re.compile(r"\bmeta l4proto 132\b"), "meta l4proto sctp"),
    (re.compile(r"\bct status 0x20\b"), "ct status dnat"),
    (re.compile(r"\bhook postrouting priority 100;"), "hook postrouting priority srcnat;"),
)

#: first and last address, as numbers
Span = t.Tuple[int, int]


class Table(t.NamedTuple):
    """What our table holds. Rules are lines as people write them, with their comments."""

    family: str
    has_set: bool
    #: merged and in order; those of the old set where there is no other
    spans: t.Tuple[Span, ...]
    #: rules by chain of ours, without the line that hooks it
    chains: t.Tuple[t.Tuple[str, t.Tuple[str, ...]], ...]
    #: what must not be there: headers of blocks and lines that we would not write
    foreign: t.Tuple[str, ...] = ()
    has_old_set: bool = False
    #: of the set of sources; none where it is not there
    sources: t.Optional[t.Tuple[Span, ...]] = None
    #: further sets with their elements, by name
    more: t.Tuple[t.Tuple[str, t.Tuple[Span, ...]], ...] = ()
    #: of the chain, one of PRIORITIES
    priority: int = _SRCNAT

    def rules(self, chain: str) -> t.Optional[t.Tuple[str, ...]]:
        """The rules of one of our chains; none where it is not there."""
        return dict(self.chains).get(chain)

    @property
    def sets(self) -> t.Dict[str, t.Tuple[Span, ...]]:
        """The elements of the sets that are there, without the old one."""
        found = {SET: self.spans} if self.has_set else {}
        if self.sources is not None:
            found[SOURCES] = self.sources
        return dict(found, **dict(self.more))

    def same_rules(self, other: Table) -> bool:
        """Whether the chains mean the same; comments and counters do not matter."""
        return self.priority == other.priority and _bare_chains(self) == _bare_chains(other)

    def means(self, other: Table) -> bool:
        """Whether no packet can tell the two apart, and nothing foreign is in either."""
        return (
            self.has_set
            and other.has_set
            and not self.foreign
            and not other.foreign
            and self.has_old_set == other.has_old_set
            and self.spans == other.spans
            and self.sources == other.sources
            and dict(self.more) == dict(other.more)
            and self.same_rules(other)
        )


def bare(rule: str) -> str:
    """A rule without its comment and its counter."""
    return _COUNTER.sub("", _ANNOTATION.sub("", rule)).strip()


def _bare_chains(table: Table) -> t.Dict[str, t.List[str]]:
    return {name: [bare(rule) for rule in rules] for name, rules in table.chains}


def _declared(name: str, family: str) -> t.Optional[t.Tuple[str, ...]]:
    """How a set of ours is declared, besides auto-merge; none where the name is not one of ours."""
    if name == OLD_SET:
        return ("type %s" % _TYPES[family], "flags interval")
    numbered = _NUMBERED.match(name)
    kind = _ELEMENTS_OF.get(numbered.group(1) if numbered else name)
    if kind is None:
        return None
    # The type of ports is the same for all protocols.
    return ("typeof %s %s" % ("tcp" if kind == "dport" else NFT_FAMILY[family], kind), "flags interval")


def from_ruleset(ruleset: Ruleset, family: str) -> Table:
    """The table that holds these rules.

    Its set of exempt ranges holds what is exempt in the end: however deep ranges are within each other, it is one
    lookup. Each entry of C(rules) has sets of its own.
    """
    nft = NFT_FAMILY[family]
    to_exempt = "%s daddr @%s" % (nft, SET)
    local = _rule("fib daddr type local", "return", _LOCAL_COMMENT)
    verdict = "accept" if ruleset.verdict == "ACCEPT" else "return"
    deciding = [decision for decision in ruleset.decisions if decision.action != SKIP]
    if not deciding and not ruleset.leading:
        return Table(family, True, (), ((CHAIN, (local,)),))
    scope = deciding[-1].match if deciding else Match()
    marked = tuple(_rule(*_guard(guard, family)) for guard in ruleset.guards if guard.mark)
    entries = _Entries(ruleset, family)
    others = tuple(_rule(matches, "return", SKIPPED_COMMENT) for matches in _skipped(ruleset, scope, family))
    exempt = exempt_spans(deciding)
    main = (_rule(to_exempt, verdict, EXEMPT_COMMENT), *entries.masqueraded("")) if deciding else ()
    chains = [(CHAIN, (local, *marked, *entries.rules(verdict), *others, *main))]
    # In the other chain the guards of the exemption would change nothing: packets that it accepts meet all others, too.
    if ruleset.verdict == "ENFORCE":
        some = exempt or any(decision.action == EXEMPT for decision in ruleset.leading)
        left = tuple(_rule(*_guard(guard, family)) for guard in ruleset.guards if some and not guard.mark)
        keep = "snat to %s saddr" % nft
        ends = (_rule(to_exempt, keep, EXEMPT_COMMENT),) if deciding else ()
        chains.append((ENFORCER, (*left, local, *marked, *entries.rules(keep, only_exempt=True), *others, *ends)))
    sources = intervals.of_networks(scope.sources) if scope.sources else None
    return Table(family, True, exempt, tuple(chains), sources=sources, more=tuple(sorted(entries.sets.items())))


class _Entries:
    """The rules of the entries of C(rules) and C(snat), and the sets that they ask."""

    def __init__(self, ruleset: Ruleset, family: str) -> None:
        self.sets: t.Dict[str, t.Tuple[Span, ...]] = {}
        self._ruleset = ruleset
        self._nft = NFT_FAMILY[family]
        self._leading = [self._conditions("rule", *one) for one in enumerate(ruleset.leading, 1)]
        self._translations = [
            (self._conditions("snat", number, one), one.address) for number, one in enumerate(ruleset.translations, 1)
        ]

    def _conditions(self, kind: str, number: int, decision: Decision) -> t.List[str]:
        """What matches the packets of an entry: each of these, with a space at the end of what is not empty."""
        match = decision.match
        addresses = ""
        for name, end, networks in (("sources", "saddr", match.sources), ("destinations", "daddr", match.destinations)):
            if networks and networks[0].prefixlen:
                addresses += "%s %s @%s " % (
                    self._nft,
                    end,
                    self._set(kind, number, name, intervals.of_networks(networks)),
                )
        services: t.Dict[str, t.List[t.Any]] = {}
        for service in match.services:
            services.setdefault(service.protocol, []).append(service.ports)
        matched = []
        for protocol, ports in services.items():
            if None in ports:
                matched.append("meta l4proto %s " % protocol)
            else:
                name = self._set(kind, number, protocol + "_ports", intervals.of(ports))
                matched.append("%s dport @%s " % (protocol, name))
        interfaces = ["oifname %s " % _interface(name) for name in match.interfaces]
        return ["".join(one) for one in itertools.product(interfaces or [""], [addresses], matched or [""])]

    def _set(self, kind: str, number: int, name: str, spans: intervals.Spans) -> str:
        full = "%s_%d_%s" % (kind, number, name)
        self.sets[full] = spans
        return full

    def rules(self, exempt: str, only_exempt: bool = False) -> t.Iterator[str]:
        """The entries of C(rules), in order.

        :param exempt: the verdict on exempt traffic.
        :param only_exempt: whether everything else is left to the other chain.
        """
        for number, (decision, conditions) in enumerate(zip(self._ruleset.leading, self._leading), 1):
            comment = _ENTRY_COMMENT % number
            for matches in conditions:
                if decision.action == MASQUERADE and not only_exempt:
                    yield from self.masqueraded(matches, decision.address, comment)
                else:
                    yield _rule(matches.strip(), exempt if decision.action == EXEMPT else "return", comment)

    def masqueraded(self, matches: str, address: t.Optional[AddressRange] = None, comment: str = "") -> t.Iterator[str]:
        """What masquerades packets that match.

        :param address: instead of that of the interface, and of those of C(snat).
        :param comment: instead of the usual ones.
        """
        if address is None:
            for number, (conditions, fixed) in enumerate(self._translations, 1):
                for more in conditions:
                    yield from self._ways(matches + more, fixed, comment or _TRANSLATED_COMMENT % number)
        yield from self._ways(matches, address, comment or MASQUERADE_COMMENT)

    def _ways(self, matches: str, address: t.Optional[AddressRange], comment: str) -> t.Iterator[str]:
        named = next((protocol for protocol in _PROTOCOLS if _asks_for(matches, protocol)), None)
        for rule in self._ruleset.masquerade:
            if named is None or rule.protocol in (None, named):
                more, verdict = _masquerade(rule._replace(protocol=None) if named else rule, address)
                yield _rule((matches + more).strip(), verdict, comment)


#: That :class:`Service` has.
_PROTOCOLS = (*PORTS_PROTOCOLS, "icmp", "ipv6-icmp")


def _asks_for(matches: str, protocol: str) -> bool:
    return ("%s dport @" % protocol) in matches or ("meta l4proto %s " % protocol) in matches


def _skipped(ruleset: Ruleset, scope: Match, family: str) -> t.Iterator[str]:
    """What matches the traffic that the decisions leave out."""
    for decision in ruleset.decisions:
        for name in decision.match.interfaces if decision.action == SKIP else ():
            yield "oifname " + _interface(name)
    if scope.sources:
        yield "%s saddr != @%s" % (NFT_FAMILY[family], SOURCES)
    if scope.interfaces:
        yield " ".join("oifname != " + _interface(name) for name in scope.interfaces)


def _interface(name: str) -> str:
    return '"%s"' % (name[:-1] + "*" if name.endswith("+") else name)


def _rule(matches: str, verdict: str, comment: str) -> str:
    return '%scounter %s comment "%s"' % (matches and matches + " ", verdict, comment)


def _guard(guard: Guard, family: str) -> t.Tuple[str, str, str]:
    if guard.dnat:
        matches, comment = "ct status dnat", _DNAT_COMMENT
    elif guard.marks:
        matches, comment = "meta mark & 0x%08x != 0x00000000" % guard.marks, MARKS_COMMENT
    elif guard.mark:
        value, mask = guard.mark
        condition = "0x%08x" % value if mask == ALL_BITS else "& 0x%08x == 0x%08x" % (mask, value)
        matches, comment = "meta mark " + condition, SKIPPED_COMMENT
    else:
        source = render_span(intervals.of_network(guard.source), family)
        matches, comment = "%s saddr %s" % (NFT_FAMILY[family], source), SOURCE_COMMENT
    return matches, "return", comment


def _masquerade(rule: Masquerade, address: t.Optional[AddressRange]) -> t.Tuple[str, str]:
    matches = ["meta l4proto " + rule.protocol] if rule.protocol else []
    if rule.share is not None:
        # Both this and xt_statistic draw from 2**31 numbers.
        matches.append("numgen random mod %d < %d" % (SHARE_UNIT, rule.share))
    verdict = "masquerade"
    if address is not None:
        verdict = _snat(str(address), "" if rule.to_ports is None else str(rule.to_ports))
    elif rule.to_ports:
        verdict += " to :%s" % (rule.to_ports,)
    return " ".join(matches), verdict + (" fully-random" if rule.random_fully else "")


def _snat(addresses: str, ports: str) -> str:
    if not ports:
        return "snat to " + addresses
    if ":" in addresses:
        addresses = "-".join("[%s]" % address for address in addresses.split("-"))
    return "snat to %s:%s" % (addresses, ports)


def _as_range(found: t.Any) -> str:
    """First and last address in place of the prefix that nft prints, and does not always read again."""
    network = ipaddress.ip_network(found.group(1))
    return _snat("%s-%s" % (network[0], network[-1]), found.group(2) or "")


def readable(listed: str) -> str:
    """What C(nft list table) printed, as nft reads it."""
    return _PREFIXED.sub(_as_range, listed)


def to_ruleset(table: Table) -> t.Optional[Ruleset]:
    """The rules that a table holds; none where they are not of our shape."""
    try:
        ruleset = _Reader(table).ruleset()
    except (ConfigError, KeyError, ValueError, OverflowError):
        return None
    made = from_ruleset(ruleset, table.family)._replace(priority=table.priority)
    return ruleset if made.means(table) else None


class _Reader:
    """Reads the chain of a table. What it makes of it is compared with the table, so it may take things for granted."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._sets = table.sets
        self._version = _VERSION[table.family]

    def ruleset(self) -> Ruleset:
        """The rules.

        :raises ConfigError, KeyError, ValueError: they are not of our shape.
        """
        table = self._table
        written = list(table.rules(CHAIN) or ())[1:]
        entries = [rule for rule in written if _ENTRY.search(rule)]
        translated = [rule for rule in written if _TRANSLATED.search(rule)]
        rules = [bare(rule) for rule in written if rule not in entries and rule not in translated]
        marked = [found for found in map(_MARKED.match, rules) if found]
        rules = rules[len(marked) :]
        skipped = list(itertools.takewhile(_SKIPPED.match, rules))
        rules = rules[len(skipped) :]
        accepts = any(bare(rule).endswith("accept") for rule in written)
        enforced = table.rules(ENFORCER) is not None
        verdict = "ENFORCE" if enforced else "ACCEPT" if accepts else "RETURN"
        sources = self._networks(SOURCES) if table.sources is not None else ()
        left_out = tuple(name for rule in skipped if "!=" not in rule for name in _read_interfaces(rule))
        scope = Match(sources, (), tuple(name for rule in skipped if "!=" in rule for name in _read_interfaces(rule)))
        decisions = [Decision(SKIP, Match(interfaces=left_out))] if left_out else []
        decisions += [Decision(EXEMPT, scope._replace(destinations=self._networks(SET)))] if table.spans else []
        decisions += [Decision(MASQUERADE, scope)] if rules else []
        leading = tuple(self._leading(entries))
        exempts = table.spans or any(decision.action == EXEMPT for decision in leading)
        marks = tuple(Guard(mark=_read_mark(*found.groups())) for found in marked)
        return Ruleset(
            decisions=tuple(decisions),
            verdict=verdict,
            masquerade=tuple(map(_read_masquerade, rules[1:])) or self._ways_of_entries(entries),
            guards=(guards(verdict, table.family) if exempts else ()) + marks,
            leading=leading,
            translations=tuple(self._translations(translated)),
        )

    def _networks(self, name: str) -> t.Tuple[t.Any, ...]:
        return tuple(intervals.networks(self._sets[name], self._version))

    def _leading(self, rules: t.Sequence[str]) -> t.Iterator[Decision]:
        """The entries of C(rules)."""

        def number(rule: str) -> str:
            return str(t.cast(t.Any, _ENTRY.search(rule)).group(1))

        for _number, group in itertools.groupby(rules, number):
            lines = [bare(rule) for rule in group]
            # What gives some packets an address of C(snat), or ports, comes before what is for all of them.
            lines = [line for line in lines if "@snat_" not in line and not _has_ports(line)]
            fixed = [line for line in lines if "snat to " in line]
            masquerading = [line for line in lines if _verdict(line).startswith("masquerade")]
            if masquerading:
                yield Decision(MASQUERADE, self._match(masquerading))
            elif fixed:
                yield Decision(MASQUERADE, self._match(fixed), _read_address(_verdict(fixed[0])))
            elif self._exempts(lines[0]):
                match = self._match(lines)
                everything = (EVERYTHING[self._table.family],)
                yield Decision(EXEMPT, match._replace(destinations=match.destinations or everything))
            else:
                yield Decision(SKIP, self._match(lines))

    def _exempts(self, line: str) -> bool:
        """Whether an entry that ends with a verdict exempts; the other chain says so where there is one."""
        verdict = _verdict(line)
        enforcer = self._table.rules(ENFORCER)
        if enforcer is None:
            # With RETURN, to exempt and to skip are the same.
            return verdict == "accept"
        conditions = line[: -len(verdict)]
        return any(_ENTRY.search(rule) and bare(rule).startswith(conditions + "snat to ip") for rule in enforcer)

    def _match(self, lines: t.Sequence[str]) -> Match:
        interfaces: t.Dict[str, None] = {}
        services: t.Dict[Service, None] = {}
        found: t.Dict[str, t.Any] = {}
        for line in lines:
            found = t.cast(t.Any, _CONDITIONS.match(line)).groupdict()
            if found["interface"] is not None:
                interfaces.update(dict.fromkeys(_read_interfaces('oifname "%s"' % found["interface"])))
            if found["ported"]:
                ranges = [PortRange(*span) for span in self._sets[found["ports"]]]
                services.update((Service(found["ported"], ports), None) for ports in ranges)
            elif found["protocol"]:
                services[Service(found["protocol"])] = None
        sources, destinations = (
            self._networks(found[name]) if found[name] else () for name in ("sources", "destinations")
        )
        return Match(sources, destinations, tuple(interfaces), tuple(services))

    def _translations(self, rules: t.Sequence[str]) -> t.Iterator[Decision]:
        """The entries of C(snat)."""
        for _comment, group in itertools.groupby(rules, lambda rule: t.cast(t.Any, _TRANSLATED.search(rule)).group()):
            lines = [bare(rule) for rule in group]
            yield Decision(MASQUERADE, self._match(lines[-1:]), _read_address(_verdict(lines[-1])))

    def _ways_of_entries(self, written: t.Sequence[str]) -> t.Tuple[Masquerade, ...]:
        """How to masquerade, where no rule masquerades everything else."""
        found: t.Dict[Masquerade, None] = {}
        for rule in map(bare, written):
            if re.search(r"\b(?:masquerade|snat to [0-9a-f\[])", rule):
                conditions = t.cast(t.Any, _CONDITIONS.match(rule))
                protocol = conditions.group("ported") or conditions.group("protocol")
                rest = rule[conditions.end() :]
                while rest.startswith(("oifname", "ip saddr", "ip6 saddr")):
                    rest = rest[t.cast(t.Any, _CONDITIONS.match(rest)).end() :]
                way = _read_masquerade(rest)
                found[way._replace(protocol=protocol) if protocol and way.to_ports else way] = None
        ways = sorted(found, key=lambda way: way.protocol is None)
        return tuple(ways) or (Masquerade(),)


def _verdict(line: str) -> str:
    """The end of a rule: what it does."""
    found = re.search(r"(?:masquerade|snat to|return\Z|accept\Z)", line)
    return line[found.start() :] if found else line


def _has_ports(line: str) -> bool:
    """Whether a rule masquerades with some ports only."""
    found = _MASQUERADE.match(_verdict(line))
    return found is not None and bool(found.group("ports") or found.group("snat_ports"))


def _read_address(text: str) -> AddressRange:
    found = _MASQUERADE.match(text)
    written = found.group("address") if found else None
    return parse_address_range((written or text).replace("[", "").replace("]", ""))


def _read_mark(mask: t.Optional[str], value: str) -> Mark:
    return Mark(int(value, 16), ALL_BITS if mask is None else int(mask, 16))


def _read_interfaces(rule: str) -> t.Iterator[str]:
    for name in _INTERFACE.findall(rule):
        yield name[:-1] + "+" if name.endswith("*") else name


def _read_masquerade(rule: str) -> Masquerade:
    """:raises ValueError: it is not a rule that masquerades."""
    found = _MASQUERADE.match(rule)
    if found is None:
        raise ValueError(rule)
    written = found.group("ports") or found.group("snat_ports")
    first, _dash, last = (written or "").partition("-")
    ports = PortRange(int(first), int(last or first)) if written else None
    share = found.group("share")
    return Masquerade(
        found.group("protocol"), ports, None if share is None else int(share), found.group("random") is not None
    )


def render_span(span: Span, family: str) -> str:
    """One span as an element: a network where it is one, else first and last address."""
    size = span[1] - span[0] + 1
    first = _address(span[0], family)
    if size & (size - 1) == 0 and span[0] % size == 0:
        length = _BITS[family] - size.bit_length() + 1
        return first if size == 1 else "%s/%d" % (first, length)
    return "%s-%s" % (first, _address(span[1], family))


def _address(number: int, family: str) -> str:
    return socket.inet_ntop(_ADDRESS_FAMILY[family], number.to_bytes(_BITS[family] // 8, "big"))


def _read_span(element: str, family: str) -> Span:
    """:raises ValueError, OSError: it is not a plain element of an interval set."""
    kind = _ADDRESS_FAMILY[family]
    first, dash, last = element.partition("-")
    address, slash, length = first.partition("/")
    start = int.from_bytes(socket.inet_pton(kind, address), "big")
    if dash:
        return start, int.from_bytes(socket.inet_pton(kind, last), "big")
    return start, start | ((1 << (_BITS[family] - int(length))) - 1 if slash else 0)


def _read_ports(element: str) -> Span:
    first, _dash, last = element.partition("-")
    return int(first), int(last or first)


def parse(text: str, family: str) -> Table:
    """What C(nft -n -s list table) has printed. Never fails: what is not understood is foreign."""
    sets: t.Dict[str, t.List[Span]] = {}
    chains: t.List[t.Tuple[str, t.Tuple[str, ...]]] = []
    foreign: t.List[str] = []
    priority = _SRCNAT
    for header, printed in _blocks(text):
        kind, _space, name = header.partition(" ")
        # The others say nothing to a packet.
        lines = [line for line in printed if not line.startswith('comment "') and line != "auto-merge"]
        declared = _declared(name, family) if kind == "set" else None
        if declared:
            sets[name] = []
            elements = [line for line in lines if line.startswith("elements = ")]
            if sorted(line for line in lines if line not in elements) != sorted(declared):
                foreign.append(header)
            for element in (element for line in elements for element in _elements(line)):
                try:
                    sets[name].append(_read_ports(element) if name.endswith("_ports") else _read_span(element, family))
                except (ValueError, OSError):
                    foreign.append("element " + element)
        elif kind == "chain" and _read_priority(lines) in _ALLOWED.get(name, ()):
            chains.append((name, tuple(lines[1:])))
            priority = _read_priority(lines) if name == CHAIN else priority
        else:
            foreign += [header] if header else lines
    order = list(_ALLOWED)
    chains.sort(key=lambda chain: order.index(chain[0]))
    spans = intervals.of(sets.get(SET, sets.get(OLD_SET, [])))
    sources = intervals.of(sets[SOURCES]) if SOURCES in sets else None
    more = tuple(sorted((name, intervals.of(found)) for name, found in sets.items() if _NUMBERED.match(name)))
    return Table(family, SET in sets, spans, tuple(chains), tuple(foreign), OLD_SET in sets, sources, more, priority)


def _hook(name: str, table: Table) -> str:
    """The line that hooks a chain of ours."""
    number = table.priority if name == CHAIN else _ENFORCER_PRIORITY
    priority = "srcnat" if number == _SRCNAT else str(number)
    return "type nat hook postrouting priority %s; policy accept;" % priority


def _read_priority(lines: t.Sequence[str]) -> int:
    """The priority in the line that hooks a chain; one that no chain has where it is not such a line."""
    found = _HOOK.match(lines[0]) if lines else None
    if found is None:
        return _NO_PRIORITY
    return _SRCNAT if found.group(1) == "srcnat" else int(found.group(1))


def _blocks(text: str) -> t.Iterator[t.Tuple[str, t.List[str]]]:
    """Headers and lines of the blocks of a table, names instead of numbers, elements on one line.

    What stands outside of any block comes under an empty header.
    """
    header: t.Optional[str] = None
    lines: t.List[str] = []
    loose: t.List[str] = []
    elements: t.List[str] = []
    for raw in text.splitlines()[1:]:
        line = raw.strip()
        if elements or (header and line.startswith("elements = {")):
            elements.append(line)
            if line.endswith("}"):
                lines.append(" ".join(elements))
                elements = []
        elif header is None:
            if line.endswith("{"):
                header, lines = line[:-1].strip(), []
            elif line not in ("", "}"):
                loose.append(line)
        elif line == "}":
            yield header, lines
            header = None
        elif line:
            lines.append(_named(line))
    yield "", loose


def _named(line: str) -> str:
    for number, name in _NAMES:
        line = number.sub(name, line)
    return readable(line)


def _elements(line: str) -> t.List[str]:
    found = _ELEMENTS.match(line)
    return [element.strip() for element in found.group(1).split(",") if element.strip()] if found else [line]


def listing(text: str, family: str) -> t.Tuple[str, ...]:
    """A printed table for people: one element a line, and names where nft printed numbers."""
    lines = ["table %s %s {" % (NFT_FAMILY[family], TABLE)]
    for header, block in _blocks(text):
        lines += [_INDENT + header + " {"] if header else []
        indent = _INDENT * (2 if header else 1)
        for line in block:
            if line.startswith("elements = {"):
                elements = [indent + _INDENT + element + "," for element in _elements(line)]
                lines += [indent + "elements = {"] + elements + [indent + "}"]
            else:
                lines.append(indent + line)
        lines += [_INDENT + "}"] if header else []
    return tuple(lines + ["}"])


def render(table: Table) -> str:
    """The whole table, as nft reads it."""
    lines = ["table %s %s {" % (NFT_FAMILY[table.family], TABLE)]
    for name, spans in table.sets.items():
        lines += ["set %s {" % name, *t.cast(t.Any, _declared(name, table.family)), "auto-merge"]
        lines += ["elements = { %s }" % _rendered_spans(name, spans, table.family)] if spans else []
        lines.append("}")
    for name, rules in table.chains:
        lines += ["chain %s {" % name, _hook(name, table)] + list(rules) + ["}"]
    return "\n".join(lines + ["}", ""])


def _rendered_spans(name: str, spans: t.Sequence[Span], family: str) -> str:
    return ", ".join(render_element(name, span, family) for span in spans)


def render_element(name: str, span: Span, family: str) -> str:
    """One span as an element of a set of ours."""
    return str(PortRange(*span)) if name.endswith("_ports") else render_span(span, family)


def change_set(table: Table, name: str, there: bool) -> t.List[str]:
    """Commands that give a set its elements. The set itself stays where it is ``there``."""
    spans = table.sets[name]
    where = "%s %s %s" % (NFT_FAMILY[table.family], TABLE, name)
    if there:
        commands = ["flush set " + where]
    else:
        commands = ["add set %s { %s; auto-merge; }" % (where, "; ".join(t.cast(t.Any, _declared(name, table.family))))]
    return commands + (["add element %s { %s }" % (where, _rendered_spans(name, spans, table.family))] if spans else [])


def created_sets(commands: str) -> t.List[str]:
    """The names of the sets that commands create."""
    return _CREATED.findall(commands)


def delete_set(family: str, name: str) -> str:
    """The command that deletes a set of our table."""
    return "delete set %s %s %s" % (NFT_FAMILY[family], TABLE, name)


def change_chains(before: Table, after: Table) -> t.List[str]:
    """Commands that give the chains their rules; a chain that is there stays hooked all the time."""
    prefix = "%s %s " % (NFT_FAMILY[after.family], TABLE)
    commands = []
    for name in _ALLOWED:
        rules = after.rules(name)
        # The priority of a chain cannot be changed. The kernel hooks a new chain before it takes the old one out.
        stays = rules is not None and before.rules(name) is not None and _hook(name, before) == _hook(name, after)
        if before.rules(name) is not None:
            commands.append("flush chain " + prefix + name)
            commands += [] if stays else ["delete chain " + prefix + name]
        if rules is not None and not stays:
            commands.append("add chain %s%s { %s }" % (prefix, name, _hook(name, after)))
        commands += ["add rule %s%s %s" % (prefix, name, rule) for rule in rules or ()]
    return commands
