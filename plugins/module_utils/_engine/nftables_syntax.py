# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our table in the words of ``nft``: what it is made of, and how people see it. Neither nft nor the kernel is asked.

Ranges are kept as pairs of numbers, merged, because 10,000 network objects cost more than reading the set.
"""

from __future__ import annotations

import re
import socket
import typing as t

from .._policy.values import PortRange
from .._system import intervals
from .._system.families import Family
from .._system.nf_tables import POSTROUTING, NftBaseChain

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

#: By value of the option jump_position, the priority of the chain; lower runs first. Source NAT of others is at 90 to
#: 110, of iptables at 100. A nat chain must be above -200 (NF_IP_PRI_CONNTRACK), so none is in front of the first, and
#: no number is higher than that of the last. Packets meet all nat chains at the place of srcnat among the other hooks
#: (nf_nat_register_fn), so nothing else moves.
PRIORITIES = {"keep": 100, "first": -199, "last": 2**31 - 1}
#: what nft calls "security"
_ENFORCER_PRIORITY = 50
#: Behind that of source NAT, which all nat chains share.
_LEAKS_PRIORITY = 110
_SRCNAT = 100
#: the priorities that our chains may have, in the order in which they are written
_ALLOWED = {CHAIN: tuple(PRIORITIES.values()), ENFORCER: (_ENFORCER_PRIORITY,), LEAKS: (_LEAKS_PRIORITY,)}
CHAINS = tuple(_ALLOWED)
_INDENT = "    "

_COUNTER = r" ?\bcounter(?: packets [0-9]+ bytes [0-9]+)?(?= |\Z)"
#: Rules about interfaces and marks, and those of entries of ``rules`` and ``snat``.
_NARROWING = r'oifname |meta mark (?!& 0x[0-9a-f]{8} != )|.* entry [0-9]+"\Z'
#: first and last address, as numbers
Span = t.Tuple[int, int]


class ListedTable(t.NamedTuple):
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

    def asking_others(self, names: t.Collection[str]) -> ListedTable:
        """Return the table whose rules ask sets of interim names in place of these."""
        pattern = re.compile(r"@(%s)(?= )" % "|".join(map(re.escape, names)))
        chains = tuple(
            (chain, tuple(pattern.sub(r"@\1" + INTERIM, rule) for rule in rules)) for chain, rules in self.chains
        )
        return self._replace(chains=chains)

    @property
    def lenient(self) -> ListedTable:
        """The table that takes no first packet of a connection for a leak."""
        chains = ((name, (LENIENT, *rules) if name == LEAKS else rules) for name, rules in self.chains)
        return self._replace(chains=tuple(chains))

    def nat_differs(self, other: ListedTable) -> bool:
        """Return whether nat decides otherwise in another table."""
        nat = [one._replace(chains=tuple(chain for chain in one.chains if chain[0] != LEAKS)) for one in (self, other)]
        return nat[0].sets != nat[1].sets or not nat[0].same_rules(nat[1])

    def same_rules(self, other: ListedTable) -> bool:
        """Return whether the chains mean the same; comments and counters do not matter."""
        return self.priority == other.priority and _bare_chains(self) == _bare_chains(other)

    def means(self, other: ListedTable) -> bool:
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
    return re.sub(_COUNTER, "", split_comment(rule)[0]).strip()


def split_comment(rule: str) -> t.Tuple[str, str]:
    """Return a rule and its comment."""
    words, _quote, comment = rule.partition(' comment "')
    return words, comment[:-1]


def _bare_chains(table: ListedTable) -> t.Dict[str, t.List[str]]:
    return {name: [bare(rule) for rule in rules] for name, rules in table.chains}


def is_set(name: str) -> bool:
    """Return whether a set of ours may have this name."""
    return name in (SET, OUTLINE, SOURCES) or re.match(_NUMBERED, name) is not None


def is_port_set(name: str) -> bool:
    """Return whether a set of ours holds ports; the others hold addresses."""
    return name.endswith("_ports")


def snat_to(addresses: str, ports: str) -> str:
    """Return the verdict that gives packets other source addresses and, if there are any, ports."""
    if not ports:
        return "snat to " + addresses
    if ":" in addresses:
        addresses = "-".join("[%s]" % address for address in addresses.split("-"))
    return "snat to %s:%s" % (addresses, ports)


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


def kind_of(chain: str) -> str:
    """Return the type of a base chain of ours. In one of type filter there are packets without a connection."""
    return "filter" if chain == LEAKS else "nat"


def priority_of(chain: str, main: int = _SRCNAT) -> int:
    """Return the priority of a base chain of ours.

    :param main: that of the chain which decides about most packets.
    """
    return main if chain == CHAIN else _ALLOWED[chain][0]


def is_ours(chain: NftBaseChain) -> bool:
    """Return whether we would hook a chain like this."""
    hooked = (chain.kind, chain.hook) == (kind_of(chain.name), POSTROUTING)
    return hooked and not chain.drops and chain.priority in _ALLOWED.get(chain.name, ())


def listing(table: ListedTable) -> t.Tuple[str, ...]:
    """Return a table for people, as nft prints and reads it: one element a line."""
    lines = ["table %s %s {" % (table.family.nft, TABLE)]

    def block(header: str, *content: str) -> None:
        lines.extend([_INDENT + header + " {", *(_INDENT * 2 + line for line in content), _INDENT + "}"])

    for name, spans in table.sets.items():
        kind = "inet_service" if is_port_set(name) else table.family + "_addr"
        elements = [_INDENT + render_element(name, span, table.family) + "," for span in spans]
        written = ["elements = {", *elements, "}"] if elements else []
        block("set " + name, "type " + kind, "flags interval", "auto-merge", *written)
    for name, rules in table.chains:
        number = priority_of(name, table.priority)
        priority = "srcnat" if number == _SRCNAT else str(number)
        hook = "type %s hook postrouting priority %s; policy accept;" % (kind_of(name), priority)
        block("chain " + name, hook, *rules)
    return (*lines, *(_INDENT + part for part in table.foreign), "}")


def render_element(name: str, span: Span, family: Family) -> str:
    """Return one span as an element of a set of ours."""
    return str(PortRange(*span)) if name.endswith("_ports") else render_span(span, family)
