# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our table as C(nft) prints and reads it; no process is started here.

What is read is C(nft -n -s list table): numeric, so that no file on the node (/etc/protocols, rt_marks) can rename
anything, and without the counters' values. It is the same text from nft 0.9.8 to 1.1. Ranges are kept as pairs of
numbers, merged, because auto-merge rewrites them and because 10,000 network objects cost more than reading the set.
"""

from __future__ import annotations

import itertools
import re
import socket
import typing as t

from .._policy import spans as intervals
from .._policy.values import ALL_BITS, Mark, PortRange
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
    EXEMPT,
    MASQUERADE,
    SHARE_UNIT,
    SKIP,
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

#: How each set is declared; auto-merge comes on top.
_DECLARED = {
    SET: {IPV4: ("typeof ip daddr", "flags interval"), IPV6: ("typeof ip6 daddr", "flags interval")},
    SOURCES: {IPV4: ("typeof ip saddr", "flags interval"), IPV6: ("typeof ip6 saddr", "flags interval")},
    OLD_SET: {IPV4: ("type ipv4_addr", "flags interval"), IPV6: ("type ipv6_addr", "flags interval")},
}
_ADDRESS_FAMILY = {IPV4: socket.AF_INET, IPV6: socket.AF_INET6}
_BITS = {IPV4: 32, IPV6: 128}
_VERSION = {IPV4: 4, IPV6: 6}
_HOOKS = {
    CHAIN: "type nat hook postrouting priority srcnat; policy accept;",
    # Lower runs first. Source NAT of others is at 90 to 110, iptables' at 100; 50 is what nft calls "security".
    ENFORCER: "type nat hook postrouting priority 50; policy accept;",
}
_LOCAL_COMMENT = COMMENT_PREFIX + " for the node itself"
_DNAT_COMMENT = COMMENT_PREFIX + " left to the program that changed the destination"
_INDENT = "    "

_ANNOTATION = re.compile(r' comment "[^"]*"\Z')
_COUNTER = re.compile(r" ?\bcounter(?: packets [0-9]+ bytes [0-9]+)?(?= |\Z)")
_ELEMENTS = re.compile(r"elements = \{(.*)\}\Z")
_MASQUERADE = re.compile(
    r"(?:meta l4proto (tcp|udp|sctp) )?(?:numgen random mod %d < ([0-9]+) )?"
    r"masquerade(?: to :([0-9]+)(?:-([0-9]+))?)?( fully-random)?\Z" % SHARE_UNIT
)
_CREATED = re.compile(r"^add set \S+ \S+ (\S+)", re.MULTILINE)
_MARKED = re.compile(r"meta mark (?:& (0x[0-9a-f]{8}) == )?(0x[0-9a-f]{8}) return\Z")
_SKIPPED = re.compile(r"(?:oifname (?:!= )?\"|ip6? saddr != @)")
_INTERFACE = re.compile(r'oifname (?:!= )?"([^"]*)"')
#: numeric to symbolic; the marks keep the form in which nft prints them
_NAMES = (
    (re.compile(r"\bfib (daddr|saddr) type 2\b"), r"fib \1 type local"),
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

    def rules(self, chain: str) -> t.Optional[t.Tuple[str, ...]]:
        """The rules of one of our chains; none where it is not there."""
        return dict(self.chains).get(chain)

    @property
    def sets(self) -> t.Dict[str, t.Tuple[Span, ...]]:
        """The elements of the sets that are there, without the old one."""
        found = {SET: self.spans} if self.has_set else {}
        return found if self.sources is None else dict(found, **{SOURCES: self.sources})

    def same_rules(self, other: Table) -> bool:
        """Whether the chains mean the same; comments and counters do not matter."""
        return _bare_chains(self) == _bare_chains(other)

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
            and self.same_rules(other)
        )


def bare(rule: str) -> str:
    """A rule without its comment and its counter."""
    return _COUNTER.sub("", _ANNOTATION.sub("", rule)).strip()


def _bare_chains(table: Table) -> t.Dict[str, t.List[str]]:
    return {name: [bare(rule) for rule in rules] for name, rules in table.chains}


def from_ruleset(ruleset: Ruleset, family: str) -> Table:
    """The table that holds these rules.

    Its set of exempt ranges holds what is exempt in the end: however deep ranges are within each other, it is one
    lookup.
    """
    nft = NFT_FAMILY[family]
    to_exempt = "%s daddr @%s" % (nft, SET)
    local = _rule("fib daddr type local", "return", _LOCAL_COMMENT)
    verdict = "accept" if ruleset.verdict == "ACCEPT" else "return"
    deciding = [decision for decision in ruleset.decisions if decision.action != SKIP]
    if not deciding:
        return Table(family, True, (), ((CHAIN, (local,)),))
    scope = deciding[-1].match
    marked = tuple(_rule(*_guard(guard, family)) for guard in ruleset.guards if guard.mark)
    others = tuple(_rule(matches, "return", SKIPPED_COMMENT) for matches in _skipped(ruleset, scope, family))
    exempt = exempt_spans(deciding)
    chains = [
        (
            CHAIN,
            (local, *marked, *others, _rule(to_exempt, verdict, EXEMPT_COMMENT))
            + tuple(_rule(*_masquerade(rule), comment=MASQUERADE_COMMENT) for rule in ruleset.masquerade),
        )
    ]
    # In the other chain the guards of the exemption would change nothing: packets that it accepts meet all other chains, too.
    if ruleset.verdict == "ENFORCE":
        left = tuple(_rule(*_guard(guard, family)) for guard in ruleset.guards if exempt and not guard.mark)
        chains.append(
            (ENFORCER, (*left, local, *marked, *others, _rule(to_exempt, "snat to %s saddr" % nft, EXEMPT_COMMENT)))
        )
    sources = intervals.of_networks(scope.sources) if scope.sources else None
    return Table(family, True, exempt, tuple(chains), sources=sources)


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


def _masquerade(rule: Masquerade) -> t.Tuple[str, str]:
    matches = ["meta l4proto " + rule.protocol] if rule.protocol else []
    if rule.share is not None:
        # Both this and xt_statistic draw from 2**31 numbers.
        matches.append("numgen random mod %d < %d" % (SHARE_UNIT, rule.share))
    verdict = "masquerade"
    if rule.to_ports:
        verdict += " to :%s" % (rule.to_ports,)
    return " ".join(matches), verdict + (" fully-random" if rule.random_fully else "")


def to_ruleset(table: Table) -> t.Optional[Ruleset]:
    """The rules that a table holds; none where they are not of our shape."""
    rules = [bare(rule) for rule in table.rules(CHAIN) or ()][1:]
    marked = [found for found in map(_MARKED.match, rules) if found]
    rules = rules[len(marked) :]
    skipped = list(itertools.takewhile(_SKIPPED.match, rules))
    rules = rules[len(skipped) :]
    enforced = table.rules(ENFORCER) is not None
    verdict = "ENFORCE" if enforced else "ACCEPT" if rules[:1] and rules[0].endswith(" accept") else "RETURN"
    found = [_MASQUERADE.match(rule) for rule in rules[1:]]
    if None in found:
        return None
    try:
        exempt = tuple(intervals.networks(table.spans, _VERSION[table.family]))
        sources = tuple(intervals.networks(table.sources or (), _VERSION[table.family]))
        left_out = tuple(name for rule in skipped if "!=" not in rule for name in _read_interfaces(rule))
        scope = Match(sources, (), tuple(name for rule in skipped if "!=" in rule for name in _read_interfaces(rule)))
        decisions = [Decision(SKIP, Match(interfaces=left_out))] if left_out else []
        decisions += [Decision(EXEMPT, scope._replace(destinations=exempt))] if exempt else []
        ruleset = Ruleset(
            decisions=(*decisions, Decision(MASQUERADE, scope)) if rules else tuple(decisions),
            verdict=verdict,
            masquerade=tuple(_read_masquerade(*match.groups()) for match in found if match),
            guards=(guards(verdict, table.family) if table.spans else ())
            + tuple(Guard(mark=_read_mark(*found.groups())) for found in marked),
        )
    except (ValueError, OverflowError):
        return None
    return ruleset if from_ruleset(ruleset, table.family).means(table) else None


def _read_mark(mask: t.Optional[str], value: str) -> Mark:
    return Mark(int(value, 16), ALL_BITS if mask is None else int(mask, 16))


def _read_interfaces(rule: str) -> t.Iterator[str]:
    for name in _INTERFACE.findall(rule):
        yield name[:-1] + "+" if name.endswith("*") else name


def _read_masquerade(
    protocol: t.Optional[str],
    share: t.Optional[str],
    first: t.Optional[str],
    last: t.Optional[str],
    random_fully: t.Optional[str],
) -> Masquerade:
    ports = PortRange(int(first), int(last or first)) if first else None
    return Masquerade(protocol, ports, None if share is None else int(share), random_fully is not None)


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


def parse(text: str, family: str) -> Table:
    """What C(nft -n -s list table) has printed. Never fails: what is not understood is foreign."""
    sets: t.Dict[str, t.List[Span]] = {}
    chains: t.List[t.Tuple[str, t.Tuple[str, ...]]] = []
    foreign: t.List[str] = []
    for header, printed in _blocks(text):
        kind, _space, name = header.partition(" ")
        # The others say nothing to a packet.
        lines = [line for line in printed if not line.startswith('comment "') and line != "auto-merge"]
        if kind == "set" and name in _DECLARED:
            sets[name] = []
            elements = [line for line in lines if line.startswith("elements = ")]
            if sorted(line for line in lines if line not in elements) != sorted(_DECLARED[name][family]):
                foreign.append(header)
            for element in (element for line in elements for element in _elements(line)):
                try:
                    sets[name].append(_read_span(element, family))
                except (ValueError, OSError):
                    foreign.append("element " + element)
        elif kind == "chain" and name in _HOOKS and lines[:1] == [_HOOKS[name]]:
            chains.append((name, tuple(lines[1:])))
        else:
            foreign += [header] if header else lines
    order = list(_HOOKS)
    chains.sort(key=lambda chain: order.index(chain[0]))
    spans = intervals.of(sets.get(SET, sets.get(OLD_SET, [])))
    sources = intervals.of(sets[SOURCES]) if SOURCES in sets else None
    return Table(family, SET in sets, spans, tuple(chains), tuple(foreign), OLD_SET in sets, sources)


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
    return line


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
        lines += ["set %s {" % name] + list(_DECLARED[name][table.family]) + ["auto-merge"]
        lines += ["elements = { %s }" % _rendered_spans(spans, table.family)] if spans else []
        lines.append("}")
    for name, rules in table.chains:
        lines += ["chain %s {" % name, _HOOKS[name]] + list(rules) + ["}"]
    return "\n".join(lines + ["}", ""])


def _rendered_spans(spans: t.Sequence[Span], family: str) -> str:
    return ", ".join(render_span(span, family) for span in spans)


def change_set(table: Table, name: str, there: bool) -> t.List[str]:
    """Commands that give a set its elements. The set itself stays where it is ``there``."""
    spans = table.sets[name]
    where = "%s %s %s" % (NFT_FAMILY[table.family], TABLE, name)
    if there:
        commands = ["flush set " + where]
    else:
        commands = ["add set %s { %s; auto-merge; }" % (where, "; ".join(_DECLARED[name][table.family]))]
    return commands + (["add element %s { %s }" % (where, _rendered_spans(spans, table.family))] if spans else [])


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
    for name, hook in _HOOKS.items():
        rules = after.rules(name)
        if before.rules(name) is not None:
            commands.append("flush chain " + prefix + name)
            commands += ["delete chain " + prefix + name] if rules is None else []
        elif rules is not None:
            commands.append("add chain %s%s { %s }" % (prefix, name, hook))
        commands += ["add rule %s%s %s" % (prefix, name, rule) for rule in rules or ()]
    return commands
