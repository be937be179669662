# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel holds in the nat table of iptables-nft, in iptables' words as far as it has some.

iptables-nft prints of a rule what it has words for. The rest is left out without a message (measured with 1.8.7, 1.8.9
and 1.8.11: set lookups, comparisons other than equal, the first of two conditions on the same field; in 1.8.7 every
match that iptables knows as an extension), or ends the listing with an error or a crash. Only the kernel's own list of
expressions shows whether what was printed is complete.
"""

from __future__ import annotations

import contextlib
import re
import struct
import typing as t

from .._rules.nft_sets import value, verdict
from .._rules.rules import ACCEPT, DROP, GOTO, JUMP, RETURN
from .._system import netlink, nfnetlink
from .._system.families import IPV4, IPV6, Family
from .._system.netlink import number
from .._system.nfnetlink import NftRule
from .._system.nft_expressions import META_KEYS, Named, of_rule
from .iptables_syntax import (
    DESTINATION_PORT,
    LEAK_STATES,
    NAT,
    NOT_LOCAL,
    OWN,
    PASSING,
    conditions,
    conntrack,
    rule_conditions,
)

#: Fields of the network header by offset and greatest length (RFC 791, RFC 8200). A shorter length is a prefix.
_FIELDS = {IPV4: {9: (1, "-p"), 12: (4, "-s"), 16: (4, "-d")}, IPV6: {6: (1, "-p"), 8: (16, "-s"), 24: (16, "-d")}}
#: NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
#: Offset and length of the destination port in the headers of tcp, udp and sctp.
_DESTINATION_PORT = (2, 2)
_META = {"mark": "-m mark", "iif": "-i", "oif": "-o", "iifname": "-i", "oifname": "-o", "l4proto": "-p"}
#: NFT_CMP_EQ, NFT_CMP_NEQ
_EQUAL = (0, 1)
_VERDICTS = {DROP: "-j DROP", ACCEPT: "-j ACCEPT", RETURN: "-j RETURN", GOTO: "-g", JUMP: "-j"}
#: By the first letters of an expression's name, its bytes in front of what a rule compares with or has counted: rules
#: of a long chain differ in nothing else.
_HEADS = {b"cmp\0": 32, b"coun": 16}

#: What our jumps and rules match, by name, revision and data: struct xt_addrtype_info_v1 has sources and destinations
#: (RTN_LOCAL is bit 2) and what is inverted; struct xt_conntrack_mtinfo3 has XT_CONNTRACK_STATE, and INVALID, NEW and
#: UNTRACKED as the bits 0, 3 and 8.
_OF_JUMPS = {
    ("addrtype", 1, struct.pack("=HHI", 0, 1 << 2, 2)): NOT_LOCAL,
    ("addrtype", 1, struct.pack("=HHI", 1 << 2, 1 << 2, 3)): PASSING,
    ("addrtype", 1, struct.pack("=HHI", 1 << 2, 0, 0)): OWN,
    ("conntrack", 3, struct.pack("=146xHHH16x", 1, 0, 0x101)): conntrack(LEAK_STATES[False]),
    ("conntrack", 3, struct.pack("=146xHHH16x", 1, 0, 0x109)): conntrack(LEAK_STATES[True]),
}

# Patterns are text: a start that compiled all of them took 2.8 % longer.
#: Expressions by letter: load, bitwise, compare, match, verdict, nothing to a packet.
_WHOLE = r"(?:LB?C|[MN])*V?N*\Z"


class KernelRule(t.NamedTuple):
    """One rule. The handle is its own for as long as the table exists."""

    handle: int
    #: matches and target as iptables prints them, without comments, and without values except those of our jump
    words: t.Tuple[str, ...]
    #: whether nothing is left out
    complete: bool


def holds_no_more(held: t.Sequence[KernelRule], printed: t.Sequence[str]) -> bool:
    """Return whether the rules of a chain are those that iptables printed, with nothing left out."""
    return len(held) == len(printed) and all(
        rule.complete and rule_conditions(line) == conditions(rule.words) for line, rule in zip(printed, held)
    )


class NftNat:
    """What the kernel says of one family's table. Nothing is created by asking.

    :raises NodeError: from all methods but ``generation``: the kernel does not answer.
    """

    def __init__(self, family: Family, table: str = NAT) -> None:
        self._family = family
        self._table = table

    def rules(self, chain: str) -> t.Optional[t.List[KernelRule]]:
        """Read the rules of a chain; None if there is no such chain."""
        if not nfnetlink.has_chain(self._family, self._table, chain):
            return None
        return list(_judged(nfnetlink.rules(self._family.number, self._table, chain), self._family))

    def references(self, chain: str) -> int:
        """Return how many rules of any chain lead to a chain; 0 if it is not there."""
        return nfnetlink.references(self._family, self._table, chain)

    def generation(self) -> t.Optional[int]:
        """Return a number that each transaction of any program raises by one; None if the kernel does not answer."""
        return nfnetlink.generation()

    def is_dormant(self) -> bool:
        """Return whether the kernel asks none of the table's chains, because of its flag ``dormant``."""
        return nfnetlink.is_dormant(self._family, self._table)


def _judged(rules: t.Iterable[NftRule], family: Family) -> t.Iterator[KernelRule]:
    """Judge rules; those that differ in nothing but what they compare with or have counted are judged once."""
    layouts: t.Dict[int, t.List[slice]] = {}
    known: t.Dict[bytes, t.Tuple[t.Tuple[str, ...], bool]] = {}
    for handle, expressions in rules:
        key = b"".join([expressions[part] for part in layouts.get(len(expressions), [slice(None)])])
        if key not in known:
            layouts[len(expressions)] = layout = list(_layout(expressions))
            key = b"".join([expressions[part] for part in layout])
            known[key] = _judge(expressions, family)
        yield KernelRule(handle, *known[key])


def _layout(expressions: bytes) -> t.Iterator[slice]:
    """Return the parts of a rule without what it compares with or has counted."""
    start = place = 0
    for _kind, element, whole in netlink.pieces(expressions):
        head = _HEADS.get(element[4:8])
        if head:
            yield slice(start, place + head)
            start = place + len(whole)
        place += len(whole)
    yield slice(start, place)


def _judge(expressions: bytes, family: Family) -> t.Tuple[t.Tuple[str, ...], bool]:
    """Return words and completeness of a rule."""
    letters, words = "", ""
    for name, data in of_rule(expressions):
        judge = _JUDGES.get(name)
        letter, text = _payload(data, family) if name == "payload" else judge(data) if judge else _UNKNOWN
        letters += letter
        words += " " + text
    return tuple(words.split()), re.match(_WHOLE, letters) is not None


_UNKNOWN = ("?", "")


def _match(data: Named) -> t.Tuple[str, str]:
    name = netlink.name(data.get("name", b""))
    if name == "comment":
        return "M", ""
    return "M", " ".join(_OF_JUMPS.get((name, number(data.get("rev")), data.get("info", b"")), ("-m", name)))


def _target(data: Named) -> t.Tuple[str, str]:
    return "V", "-j " + netlink.name(data.get("name", b""))


def _immediate(data: Named) -> t.Tuple[str, str]:
    if number(data.get("dreg")) != 0:  # no verdict, but a value for a later expression
        return "N", ""
    with contextlib.suppress(KeyError):
        action = verdict(data["data"])
        if action is not None:
            return "V", ("%s %s" % (_VERDICTS[action.kind], action.chain)).strip()
    return _UNKNOWN


def _nat(data: Named) -> t.Tuple[str, str]:
    # NFT_NAT_SNAT
    return ("V", "-j SNAT") if number(data.get("type")) == 0 else _UNKNOWN


def _payload(data: Named, family: Family) -> t.Tuple[str, str]:
    base, offset, size = (number(data.get(key)) for key in ("base", "offset", "len"))
    if "dreg" in data and (base, offset, size) == (_TRANSPORT_HEADER, *_DESTINATION_PORT):
        return "L", "-m " + DESTINATION_PORT
    length, words = _FIELDS[family].get(offset, (0, ""))
    if "dreg" not in data or base != _NETWORK_HEADER or not 1 <= size <= length:
        return _UNKNOWN
    return "L", words


def _meta(data: Named) -> t.Tuple[str, str]:
    key = number(data.get("key"))
    words = _META.get(META_KEYS[key]) if key < len(META_KEYS) else None
    return ("L", words) if words and "dreg" in data else _UNKNOWN


def _bitwise(data: Named) -> t.Tuple[str, str]:
    # iptables prints the mask alone
    return _UNKNOWN if any(value(data.get("xor"))) or number(data.get("op")) else ("B", "")


def _compare(data: Named) -> t.Tuple[str, str]:
    return ("C", "") if number(data.get("op")) in _EQUAL else _UNKNOWN


_JUDGES: t.Mapping[str, t.Callable[[Named], t.Tuple[str, str]]] = {
    "counter": lambda _data: ("N", ""),
    "match": _match,
    "target": _target,
    "immediate": _immediate,
    "masq": lambda _data: ("V", "-j MASQUERADE"),
    "nat": _nat,
    "meta": _meta,
    "bitwise": _bitwise,
    "cmp": _compare,
    "range": _compare,
}
