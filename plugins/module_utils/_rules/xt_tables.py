# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of iptables-legacy as values: what every rule can match; ``xt_rules`` reads matches and targets.

The layout of the bytes is that of linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h.
"""

from __future__ import annotations

import struct
import typing as t

from .._system import xtables
from .._system.backend_names import IPTABLES_LEGACY
from .._system.families import IPV4, IPV6
from .._system.xtables import HOOKS, priority
from . import xt_rules
from .reading import Reading, UnknownError, finished, unreadable
from .referenced_objects import Known
from .rules import GOTO, JUMP, BaseChain, Rule, RuleAction, RuleTable

_KINDS = {("nat", None): "nat", ("mangle", "OUTPUT"): "route"}
#: source, destination and their masks; links, over which a packet comes in and leaves, and theirs; protocol
_PACKETS = {IPV4: struct.Struct("=4s4s4s4s16s16s16s16sHBB"), IPV6: struct.Struct("=16s16s16s16s16s16s16s16sHxBB")}
_FRAGMENT = {IPV4: 0x1, IPV6: 0}
_GOTO = {IPV4: 0x2, IPV6: 0x4}
#: of IPv6 a flag tells that there is a protocol, of IPv4 its number
_HAS_PROTOCOL = 0x1
_NOT_INCOMING, _NOT_OUTGOING, _NOT_SOURCE, _NOT_DESTINATION, _NOT_FRAGMENT, _NOT_PROTOCOL = 1, 2, 8, 16, 32, 64


def read(
    table: xtables.XtTable, known: Known, some: t.Optional[t.Mapping[str, xtables.XtChain]] = None
) -> t.Optional[RuleTable]:
    """Return a table, or some chains of it; None if it does not see packets of this family."""
    if table.family != known.family:
        return None
    base: t.Dict[str, BaseChain] = {}
    chains: t.Dict[str, t.Tuple[Rule, ...]] = {}
    aware = False
    for name, chain in (xtables.chains(table) if some is None else some).items():
        if name in HOOKS:
            kind = _KINDS.get((table.name, None)) or _KINDS.get((table.name, name), "filter")
            base[name] = BaseChain(kind, HOOKS[name], priority(table.name, name), chain.policy == "DROP")
        rules: t.List[Rule] = []
        for number, rule in enumerate(chain.rules, 1):
            reading = Reading(known.family)
            try:
                aware = _follow(rule, reading, known) or aware
                found, more = reading.rules(name, number)
            except (ArithmeticError, IndexError, KeyError, ValueError, struct.error):
                found, more = [unreadable(number)], {}
            rules += found
            chains.update(more)
        chains[name] = tuple(rules)
    return finished(IPTABLES_LEGACY, table.title, base, chains, (), aware)


def _follow(rule: xtables.XtRule, reading: Reading, known: Known) -> bool:
    """Read a rule, and return whether its meaning depends on the hook."""
    goto = _packet(rule.packet, reading)
    aware = [xt_rules.match(reading, *one, known) for one in rule.matches]
    if rule.leads_to:
        reading.act(RuleAction(GOTO if goto else JUMP, chain=rule.leads_to))
    elif rule.target.name:
        aware.append(xt_rules.target(reading, *rule.target, known))
    return any(aware)


def _packet(data: bytes, reading: Reading) -> bool:
    """Read what every rule can match, and return whether the rule leaves its chain for good."""
    family = reading.family
    parts = _PACKETS[family].unpack_from(data)
    (source, destination, source_mask, destination_mask), links = parts[:4], parts[4:8]
    protocol, flags, inverted = parts[8:]
    for key, address, mask, bit in (
        ("source", source, source_mask, _NOT_SOURCE),
        ("destination", destination, destination_mask, _NOT_DESTINATION),
    ):
        if any(mask) or inverted & bit:
            numbers = int.from_bytes(address, "big"), int.from_bytes(mask, "big")
            try:
                reading.narrow(key, xt_rules.masked(*numbers, family.bits), bool(inverted & bit))
            except UnknownError as exc:
                reading.not_known(str(exc))
    for key, name, mask, bit in (
        ("incoming", links[0], links[2], _NOT_INCOMING),
        ("outgoing", links[1], links[3], _NOT_OUTGOING),
    ):
        if any(mask) or inverted & bit:
            reading.link(key, (_pattern(name[: len(mask.rstrip(b"\0"))]),), bool(inverted & bit))
    if protocol if family == IPV4 else flags & _HAS_PROTOCOL:
        reading.narrow("protocol", ((protocol, protocol),), bool(inverted & _NOT_PROTOCOL))
    if flags & _FRAGMENT[family] and not inverted & _NOT_FRAGMENT:  # no tested packet is one
        reading.not_known("a fragment")
    return bool(flags & _GOTO[family])


def _pattern(compared: bytes) -> str:
    """Return the name of a link, or its beginning with a plus."""
    name = compared.rstrip(b"\0").decode("utf-8", "surrogateescape")
    return name if compared.endswith(b"\0") else name + "+"
