# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our table as the kernel holds it: changes for one transaction, and what is read back. ``nft`` has no part in it.

Every release of nft reads what is written here. Sets have a type and nothing more: what nft 1.1.2 and later note beside
it makes nft 1.0.6 and 0.9.8 crash.
"""

from __future__ import annotations

import struct
import typing as t

from .._rules.nft_sets import ELEMENT_FLAGS, INTERVAL, INTERVAL_END, KEY, VALUE, Sets
from .._system import intervals, netlink, nf_tables
from .._system.families import Family
from .._system.intervals import Spans
from .._system.netlink import Message, attribute, attributes, nest, network_word, number, text
from .._system.nf_tables import NftTable, base_chains, change
from .._system.nfnetlink import string
from .nftables_encoding import Decoded, decode, encode
from .nftables_syntax import (
    CHAIN,
    CHAINS,
    TABLE,
    ListedTable,
    Span,
    in_order,
    is_ours,
    is_port_set,
    is_set,
    kind_of,
    priority_of,
    split_comment,
)

#: NFTA_LIST_ELEM
_ELEMENT = 1
#: The types of nft (include/datatype.h): addresses by their size, and services.
_ADDRESS_TYPES, _SERVICE_TYPE = {4: 7, 16: 8}, 13
#: What nft notes at a set (libnftnl/udata.h), in the byte order of the machine: keys are in network order; elements
#: that touch are united.
_SET_NOTES = b"".join(struct.pack("=BBI", kind, 4, value) for kind, value in ((0, 2), (2, 1)))
#: NFTNL_UDATA_RULE_COMMENT
_COMMENT = 0
#: An attribute has at most 64 KiB.
_ELEMENTS_AT_A_TIME = 500


def _set_key(called: str, family: Family) -> t.Tuple[int, int]:
    """Return the type of the keys of a set of ours, and their size."""
    return (_SERVICE_TYPE, 2) if is_port_set(called) else (_ADDRESS_TYPES[family.size], family.size)


def _elements(spans: t.Sequence[Span], size: int) -> t.Iterator[bytes]:
    """Return the elements of an interval set: where each interval begins, and the first number behind it."""
    end = network_word(ELEMENT_FLAGS, INTERVAL_END)
    for first, last in spans:
        yield nest(_ELEMENT, nest(KEY, attribute(VALUE, first.to_bytes(size, "big"))))
        if last < (1 << 8 * size) - 1:
            yield nest(_ELEMENT, nest(KEY, attribute(VALUE, (last + 1).to_bytes(size, "big"))), end)


def make_table(family: Family) -> Message:
    """Return the change that makes our table, if it is not there."""
    return change(nf_tables.NEW_TABLE, family.number, TABLE)


def delete_set(family: Family, called: str) -> Message:
    """Return the change that removes a set."""
    return change(nf_tables.DELETE_SET, family.number, TABLE, text(nf_tables.SET_NAME, called))


def change_set(table: ListedTable, called: str, there: bool = False, suffix: str = "") -> t.List[Message]:
    """Return the changes that give a set its elements. The set itself stays where it is ``there``.

    :param suffix: of the name that it gets.
    """
    family = table.family.number
    named = text(nf_tables.SET_NAME, called + suffix)
    kind, size = _set_key(called, table.family)
    if there:
        messages = [change(nf_tables.DELETE_ELEMENT, family, TABLE, named)]
    else:
        declared = (
            named,
            network_word(nf_tables.SET_FLAGS, INTERVAL),
            network_word(nf_tables.SET_KEY_TYPE, kind),
            network_word(nf_tables.SET_KEY_LENGTH, size),
            network_word(nf_tables.SET_ID, 1 + list(table.sets).index(called)),
            attribute(nf_tables.SET_COMMENTS, _SET_NOTES),
        )
        messages = [change(nf_tables.NEW_SET, family, TABLE, *declared)]
    spans = table.sets[called]
    for start in range(0, len(spans), _ELEMENTS_AT_A_TIME):
        some = nest(nf_tables.ELEMENTS, *_elements(spans[start : start + _ELEMENTS_AT_A_TIME], size))
        messages.append(change(nf_tables.NEW_ELEMENT, family, TABLE, named, some))
    return messages


def _new_rule(family: int, chain: str, rule: str) -> Message:
    words, comment = split_comment(rule)
    parts = [nest(nf_tables.RULE_EXPRESSIONS, encode(words))]
    if comment:
        noted = comment.encode() + b"\0"
        parts.append(attribute(nf_tables.RULE_COMMENTS, bytes([_COMMENT, len(noted)]) + noted))
    return nf_tables.new_rule(family, TABLE, chain, *parts)


def change_chains(before: ListedTable, after: ListedTable, names: t.Iterable[str] = CHAINS) -> t.List[Message]:
    """Return the changes that give the chains their rules; a chain that is there stays hooked all the time."""
    family = after.family.number
    messages: t.List[Message] = []
    for chain in names:
        rules = after.rules(chain)
        # The priority of a chain cannot be changed. The kernel hooks a new chain before it takes the old one out.
        hook, had = (priority_of(chain, table.priority) for table in (after, before))
        stays = rules is not None and before.rules(chain) is not None and hook == had
        if before.rules(chain) is not None:
            messages.append(change(nf_tables.DELETE_RULE, family, TABLE, text(nf_tables.RULE_CHAIN, chain)))
            if not stays:
                messages.append(change(nf_tables.DELETE_CHAIN, family, TABLE, text(nf_tables.CHAIN_NAME, chain)))
        if rules is not None and not stays:
            messages.append(nf_tables.new_chain(family, TABLE, chain, kind_of(chain), nf_tables.POSTROUTING, hook))
        messages += [_new_rule(family, chain, rule) for rule in rules or ()]
    return messages


def make_all(table: ListedTable) -> t.List[Message]:
    """Return the changes that make our table with all that it holds."""
    messages = [make_table(table.family)]
    for called in table.sets:
        messages += change_set(table, called)
    return messages + change_chains(table._replace(chains=()), table)


def rules_of(bodies: t.Iterable[bytes], family: Family) -> t.Iterator[t.Tuple[str, Decoded]]:
    """Return chain and rule of each rule with its comment, in the order in which nft lists them."""
    for body in bodies:
        known = attributes(body)
        decoded = decode(known.get(nf_tables.RULE_EXPRESSIONS, b""), family)
        comment = _comment(known.get(nf_tables.RULE_COMMENTS, b""))
        rule = '%s comment "%s"' % (decoded.rule, comment) if comment else decoded.rule
        yield string(known[nf_tables.RULE_CHAIN]), decoded._replace(rule=rule)


def _comment(noted: bytes) -> str:
    while len(noted) > 2:
        kind, length = noted[0], noted[1]
        if kind == _COMMENT:
            return string(noted[2 : 2 + length])
        noted = noted[2 + length :]
    return ""


def listed(table: NftTable, family: Family) -> ListedTable:
    """Return what a table holds. What we would not write is foreign."""
    foreign: t.List[str] = []
    flags = number(attributes(table.table).get(nf_tables.TABLE_FLAGS))
    if flags:
        foreign.append("flags dormant" if flags == nf_tables.DORMANT else "flags 0x%x" % flags)
    sets = {}
    read = Sets(table)
    for known in map(attributes, table.sets):
        called = string(known[nf_tables.SET_NAME])
        spans = _spans(read, called, known, family)
        if spans is None:
            foreign.append("%s %s" % ("map" if number(known.get(nf_tables.SET_FLAGS)) & 0x8 else "set", called))
        else:
            sets[called] = spans
    rules: t.Dict[str, t.List[str]] = {}
    for chain, rule in rules_of(table.rules, family):
        rules.setdefault(chain, []).append(rule.rule)
    hooked = {chain.name: chain for chain in base_chains(table)}
    priority = hooked[CHAIN].priority if CHAIN in hooked else priority_of(CHAIN)
    chains = []
    for called in (string(attributes(body)[nf_tables.CHAIN_NAME]) for body in table.chains):
        if called in hooked and is_ours(hooked[called]):
            chains.append((called, tuple(rules.get(called, ()))))
        else:
            foreign.append("chain " + called)
    for known in map(attributes, table.objects):
        kind = number(known.get(nf_tables.OBJECT_TYPE))
        title = nf_tables.OBJECTS[kind].replace("_", " ") if kind < len(nf_tables.OBJECTS) else "object"
        foreign.append("%s %s" % (title, string(known[2])))
    foreign += ["flowtable " + string(attributes(body)[2]) for body in table.flowtables]
    chains.sort(key=lambda chain: CHAINS.index(chain[0]))
    return ListedTable(family, in_order(sets), tuple(chains), tuple(foreign), priority)


def _spans(read: Sets, called: str, known: netlink.Attributes, family: Family) -> t.Optional[Spans]:
    """Return the elements of a set of ours; None if it is none."""
    size = number(known.get(nf_tables.SET_KEY_LENGTH))
    if not is_set(called) or (number(known.get(nf_tables.SET_FLAGS)), size) != (INTERVAL, _set_key(called, family)[1]):
        return None
    found = read.of(called)
    if found.unknown or any(one.first is None for one in found.elements):
        return None
    return intervals.of((number(one.first), number(one.last)) for one in found.elements)
