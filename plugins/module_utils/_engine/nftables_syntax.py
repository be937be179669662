# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our table as ``nft`` prints and reads it; no process is started here.

What is read is ``nft -n -s list table``: numeric, so that no file on the node (/etc/protocols, rt_marks) can rename
anything, and without the counters' values. It is the same text from nft 0.9.8 to 1.1. Ranges are kept as pairs of
numbers, merged, because auto-merge rewrites them and because 10,000 network objects cost more than reading the set.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import typing as t

from .._policy.values import PortRange
from .._system import intervals
from .._system.families import PROTOCOLS, Family

TABLE = "ip_masq_agent"
SET = "exempt_ranges"
#: The sources whose connections meet the rules; it is there where not all do.
SOURCES = "source_ranges"
#: Networks around the exempt ranges, asked before them where they are many.
OUTLINE = "exempt_outline"
CHAIN = "postrouting"
#: the base chain that decides before every other one, with exemption: enforce
ENFORCER = "enforce"
#: the base chain after source NAT, for packets that it did not see
LEAKS = "leaks"

#: A rule in front of those about leaks while others change; left over, it is removed.
LENIENT = 'ct state new return comment "ip-masq-agent: while rules change"'

#: At the end of the name of a set that is asked while another one changes; left over, it is foreign.
INTERIM = "_interim"

# Patterns are text: a start that compiled all of them took 2.8 % longer.
#: What else our sets are called: those of an entry of ``rules`` or ``snat``, by its number.
_NUMBERED = r"(?:rule|snat)_[1-9][0-9]{0,3}_(?:(?:tcp|udp|sctp)_)?(sources|destinations|ports)\Z"

#: What the elements of a set are, by its name.
_ELEMENTS_OF = {
    SET: "daddr",
    OUTLINE: "daddr",
    SOURCES: "saddr",
    "destinations": "daddr",
    "sources": "saddr",
    "ports": "dport",
}

#: By value of the option jump_position, the priority of the chain; lower runs first. Source NAT of others is at 90 to
#: 110, of iptables at 100. A nat chain must be above -200 (NF_IP_PRI_CONNTRACK), so none is in front of the first, and
#: no number is higher than that of the last. Packets meet all nat chains at the place of srcnat among the other hooks
#: (nf_nat_register_fn), so nothing else moves.
PRIORITIES = {"keep": 100, "first": -199, "last": 2**31 - 1}
#: what nft calls "security"
_ENFORCER_PRIORITY = 50
#: Behind that of source NAT, which all nat chains share.
_LEAKS_PRIORITY = 110
_HOOK = r"type %s hook postrouting priority (srcnat|-?[0-9]+); policy accept;\Z"
_SRCNAT = 100
_NO_PRIORITY = -(2**31)
#: the priorities that our chains may have, in the order in which they are written
_ALLOWED = {CHAIN: tuple(PRIORITIES.values()), ENFORCER: (_ENFORCER_PRIORITY,), LEAKS: (_LEAKS_PRIORITY,)}
_INDENT = "    "

_ANNOTATION = r' comment "[^"]*"\Z'
_COUNTER = r" ?\bcounter(?: packets [0-9]+ bytes [0-9]+)?(?= |\Z)"
_ELEMENTS = r"elements = \{(.*)\}\Z"
_PREFIXED = r"\bsnat to ([0-9a-f.:]+/[0-9]+)(?::([0-9]+(?:-[0-9]+)?))?"
#: Rules about interfaces and marks, and those of entries of ``rules`` and ``snat``.
_NARROWING = r'oifname |meta mark (?!& 0x[0-9a-f]{8} != )|.* entry [0-9]+"\Z'
_CREATED = r"(?m)^add set \S+ \S+ (\S+)"
#: The table, and the sets, chains and others in it.
_HEADER = r"(?m)^\t?([^\t\n].*) \{$"
#: numeric to symbolic; the marks keep the form in which nft prints them
_NAMES = (
    (r"\bfib (daddr|saddr) type 2\b", r"fib \1 type local"),
    *((r"\bmeta l4proto %d\b" % number, "meta l4proto " + name) for name, number in PROTOCOLS.items()),
    (r"\bct status 0x20\b", "ct status dnat"),
    (r"\bct status 0x8\b", "ct status confirmed"),
    (r"\bct status 0x10\b", "ct status snat"),
    (r"\bct state 0x8\b", "ct state new"),
    (r"\bhook postrouting priority 100;", "hook postrouting priority srcnat;"),
)

#: first and last address, as numbers
Span = t.Tuple[int, int]


class Table(t.NamedTuple):
    """What our table holds. Rules are lines as people write them, with their comments."""

    family: Family
    #: the elements of each set, as of ``in_order``
    sets: t.Dict[str, intervals.Spans]
    #: rules by chain of ours, without the line that hooks it
    chains: t.Tuple[t.Tuple[str, t.Tuple[str, ...]], ...]
    #: what must not be there: headers of blocks and lines that we would not write
    foreign: t.Tuple[str, ...] = ()
    #: of the chain, one of PRIORITIES
    priority: int = _SRCNAT

    def rules(self, chain: str) -> t.Optional[t.Tuple[str, ...]]:
        """Return the rules of one of our chains; None if there is no such chain."""
        return dict(self.chains).get(chain)

    @property
    def narrowed(self) -> bool:
        """Whether more decides than one set of destinations."""
        rules = (rule for _name, rules in self.chains for rule in rules)
        return any(name != SET for name in self.sets) or any(re.match(_NARROWING, rule) for rule in rules)

    def asking_others(self, names: t.Collection[str]) -> Table:
        """Return the table whose rules ask sets of interim names in place of these."""
        pattern = re.compile(r"@(%s)(?= )" % "|".join(map(re.escape, names)))
        chains = tuple(
            (chain, tuple(pattern.sub(r"@\1" + INTERIM, rule) for rule in rules)) for chain, rules in self.chains
        )
        return self._replace(chains=chains)

    @property
    def lenient(self) -> Table:
        """The table that takes no first packet of a connection for a leak."""
        chains = ((name, (LENIENT, *rules) if name == LEAKS else rules) for name, rules in self.chains)
        return self._replace(chains=tuple(chains))

    def nat_differs(self, other: Table) -> bool:
        """Return whether nat decides otherwise in another table."""
        nat = [one._replace(chains=tuple(chain for chain in one.chains if chain[0] != LEAKS)) for one in (self, other)]
        return nat[0].sets != nat[1].sets or not nat[0].same_rules(nat[1])

    def same_rules(self, other: Table) -> bool:
        """Return whether the chains mean the same; comments and counters do not matter."""
        return self.priority == other.priority and _bare_chains(self) == _bare_chains(other)

    def means(self, other: Table) -> bool:
        """Return whether no packet can tell the two apart, and nothing foreign is in either."""
        return (
            SET in self.sets
            and not self.foreign
            and not other.foreign
            and self.sets == other.sets
            and self.same_rules(other)
        )


def in_order(sets: t.Mapping[str, intervals.Spans]) -> t.Dict[str, intervals.Spans]:
    """Return sets in the order in which they are written."""
    return {name: sets[name] for name in sorted(sets, key=lambda name: (name != SET, name != SOURCES, name))}


def bare(rule: str) -> str:
    """Return a rule without its comment and its counter."""
    return re.sub(_COUNTER, "", re.sub(_ANNOTATION, "", rule)).strip()


def _bare_chains(table: Table) -> t.Dict[str, t.List[str]]:
    return {name: [bare(rule) for rule in rules] for name, rules in table.chains}


def _declared(name: str, family: Family) -> t.Optional[t.Tuple[str, ...]]:
    """Return how a set of ours is declared, besides auto-merge; None if the name is not one of ours."""
    numbered = re.match(_NUMBERED, name)
    kind = _ELEMENTS_OF.get(numbered.group(1) if numbered else name)
    if kind is None:
        return None
    # Not "type ipv4_addr": nft 1.1.2 and later store with such a set what makes nft 1.0.6 and 0.9.8 crash on most
    # listings. The type of ports is the same for all protocols.
    return ("typeof %s %s" % ("tcp" if kind == "dport" else family.nft, kind), "flags interval")


def snat_to(addresses: str, ports: str) -> str:
    """Return the verdict that gives packets other source addresses and, if there are any, ports."""
    if not ports:
        return "snat to " + addresses
    if ":" in addresses:
        addresses = "-".join("[%s]" % address for address in addresses.split("-"))
    return "snat to %s:%s" % (addresses, ports)


def _as_range(found: t.Any) -> str:
    """Return first and last address in place of the prefix that nft prints, and does not always read again."""
    network = ipaddress.ip_network(found.group(1))
    return snat_to("%s-%s" % (network[0], network[-1]), found.group(2) or "")


def readable(listed: str) -> str:
    """Turn what ``nft list table`` printed into what nft reads."""
    return re.sub(_PREFIXED, _as_range, listed)


def render_span(span: Span, family: Family) -> str:
    """Return one span as an element: a network if it is one, else first and last address."""
    size = span[1] - span[0] + 1
    first = _address(span[0], family)
    if size & (size - 1) == 0 and span[0] % size == 0:
        length = family.bits - size.bit_length() + 1
        return first if size == 1 else "%s/%d" % (first, length)
    return "%s-%s" % (first, _address(span[1], family))


def _address(number: int, family: Family) -> str:
    return socket.inet_ntop(family.number, number.to_bytes(family.size, "big"))


def _read_span(element: str, family: Family) -> Span:
    """Parse a plain element of an interval set; raise ValueError or OSError if it is not one."""
    kind = family.number
    first, dash, last = element.partition("-")
    address, slash, length = first.partition("/")
    start = int.from_bytes(socket.inet_pton(kind, address), "big")
    if dash:
        return start, int.from_bytes(socket.inet_pton(kind, last), "big")
    return start, start | ((1 << (family.bits - int(length))) - 1 if slash else 0)


def is_torn(listed: str) -> bool:
    """Return whether what ``nft list table`` printed cannot be a table: a part comes twice, or the end is missing.

    nft 1.1.3 prints parts again, without their content, and reports success, if the ruleset changes while it reads.
    """
    headers = re.findall(_HEADER, listed)
    return len(headers) != len(set(headers)) or not listed.endswith("\n}\n")


def parse(text: str, family: Family) -> Table:
    """Parse what ``nft -n -s list table`` has printed. Never fail: what is not understood is foreign."""
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
                    sets[name].append(
                        PortRange.read(element) if name.endswith("_ports") else _read_span(element, family)
                    )
                except (ValueError, OSError):
                    foreign.append("element " + element)
        elif kind == "chain" and _read_priority(name, lines) in _ALLOWED.get(name, ()):
            chains.append((name, tuple(lines[1:])))
            priority = _read_priority(name, lines) if name == CHAIN else priority
        else:
            foreign += [header] if header else lines
    order = list(_ALLOWED)
    chains.sort(key=lambda chain: order.index(chain[0]))
    merged = {name: intervals.of(spans) for name, spans in sets.items()}
    return Table(family, in_order(merged), tuple(chains), tuple(foreign), priority)


def _hook(name: str, table: Table) -> str:
    """Return the line that hooks a chain of ours."""
    number = table.priority if name == CHAIN else _ALLOWED[name][0]
    priority = "srcnat" if number == _SRCNAT else str(number)
    return "type %s hook postrouting priority %s; policy accept;" % (_kind(name), priority)


def _kind(name: str) -> str:
    """Return the type of a base chain of ours. In one of type filter there are packets without a connection."""
    return "filter" if name == LEAKS else "nat"


def _read_priority(name: str, lines: t.Sequence[str]) -> int:
    """Read the priority in the line that hooks a chain; another line gives one that no chain has."""
    found = re.match(_HOOK % _kind(name), lines[0]) if lines else None
    if found is None:
        return _NO_PRIORITY
    return _SRCNAT if found.group(1) == "srcnat" else int(found.group(1))


def _blocks(text: str) -> t.Iterator[t.Tuple[str, t.List[str]]]:
    """Return headers and lines of the blocks of a table, names instead of numbers, elements on one line.

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
        line = re.sub(number, name, line)
    return readable(line)


def _elements(line: str) -> t.List[str]:
    found = re.match(_ELEMENTS, line)
    return [element.strip() for element in found.group(1).split(",") if element.strip()] if found else [line]


def listing(text: str, family: Family) -> t.Tuple[str, ...]:
    """Return a printed table for people: one element a line, and names instead of numbers."""
    lines = ["table %s %s {" % (family.nft, TABLE)]
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
    """Return the whole table, as nft reads it."""
    lines = ["table %s %s {" % (table.family.nft, TABLE)]
    for name, spans in table.sets.items():
        lines += ["set %s {" % name, *t.cast(t.Any, _declared(name, table.family)), "auto-merge"]
        lines += ["elements = { %s }" % _rendered_spans(name, spans, table.family)] if spans else []
        lines.append("}")
    for name, rules in table.chains:
        lines += ["chain %s {" % name, _hook(name, table)] + list(rules) + ["}"]
    return "\n".join(lines + ["}", ""])


def _rendered_spans(name: str, spans: t.Sequence[Span], family: Family) -> str:
    return ", ".join(render_element(name, span, family) for span in spans)


def render_element(name: str, span: Span, family: Family) -> str:
    """Return one span as an element of a set of ours."""
    return str(PortRange(*span)) if name.endswith("_ports") else render_span(span, family)


def change_set(table: Table, name: str, there: bool = False, called: str = "") -> t.List[str]:
    """Return commands that give a set its elements. The set itself stays where it is ``there``.

    :param called: the name in place of its own.
    """
    spans = table.sets[name]
    where = "%s %s %s" % (table.family.nft, TABLE, called or name)
    if there:
        commands = ["flush set " + where]
    else:
        commands = ["add set %s { %s; auto-merge; }" % (where, "; ".join(t.cast(t.Any, _declared(name, table.family))))]
    return commands + (["add element %s { %s }" % (where, _rendered_spans(name, spans, table.family))] if spans else [])


def created_sets(commands: str) -> t.List[str]:
    """Return the names of the sets that commands create."""
    return re.findall(_CREATED, commands)


def delete_set(family: Family, name: str) -> str:
    """Return the command that deletes a set of our table."""
    return "delete set %s %s %s" % (family.nft, TABLE, name)


def change_chains(before: Table, after: Table, names: t.Iterable[str] = ()) -> t.List[str]:
    """Return commands that give the chains their rules; a chain that is there stays hooked all the time.

    :param names: of the chains; empty: all of them.
    """
    prefix = "%s %s " % (after.family.nft, TABLE)
    commands = []
    for name in names or _ALLOWED:
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
