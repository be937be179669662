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

import functools
import re
import struct
import typing as t

from .._system import nfnetlink
from .._system.families import IPV4, IPV6, Family
from .._system.netlink import Attributes, attributes
from .._system.nfnetlink import Expression
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
#: NFT_META_MARK, IIF, OIF, IIFNAME, OIFNAME, L4PROTO
_META = {3: "-m mark", 4: "-i", 5: "-o", 6: "-i", 7: "-o", 16: "-p"}
#: NFT_CMP_EQ, NFT_CMP_NEQ
_EQUAL = (0, 1)
#: NF_DROP, NF_ACCEPT, and NFT_RETURN, NFT_GOTO, NFT_JUMP as unsigned 32-bit numbers
_VERDICTS = {0: "-j DROP", 1: "-j ACCEPT", 2**32 - 5: "-j RETURN", 2**32 - 4: "-g", 2**32 - 3: "-j"}

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
        return [
            KernelRule(rule.handle, *_judge(rule.expressions, self._family))
            for rule in nfnetlink.rules(self._family.number, self._table, chain)
        ]

    def references(self, chain: str) -> int:
        """Return how many rules of any chain lead to a chain; 0 if it is not there."""
        return nfnetlink.references(self._family, self._table, chain)

    def generation(self) -> t.Optional[int]:
        """Return a number that each transaction of any program raises by one; None if the kernel does not answer."""
        return nfnetlink.generation()

    def is_dormant(self) -> bool:
        """Return whether the kernel asks none of the table's chains, because of its flag ``dormant``."""
        return nfnetlink.is_dormant(self._family, self._table)


@functools.lru_cache(maxsize=1024)
def _judge(expressions: t.Tuple[Expression, ...], family: Family) -> t.Tuple[t.Tuple[str, ...], bool]:
    """Return words and completeness of a rule."""
    letters, words = "", ""
    for expression in expressions:
        judge = _JUDGES.get(expression.name, _unknown)
        letter, text = judge(dict(expression.data), family)
        letters += letter
        words += " " + text
    return tuple(words.split()), re.match(_WHOLE, letters) is not None


_UNKNOWN = ("?", "")


def _unknown(_found: Attributes, _family: str) -> t.Tuple[str, str]:
    return _UNKNOWN


def _number(found: Attributes, kind: int) -> int:
    return int.from_bytes(found.get(kind, b""), "big")


def _match(found: Attributes, _family: str) -> t.Tuple[str, str]:
    # NFTA_MATCH_NAME, NFTA_MATCH_REV, NFTA_MATCH_INFO
    name = nfnetlink.string(found.get(1, b""))
    if name == "comment":
        return "M", ""
    return "M", " ".join(_OF_JUMPS.get((name, _number(found, 2), found.get(3, b"")), ("-m", name)))


def _target(found: Attributes, _family: str) -> t.Tuple[str, str]:
    # NFTA_TARGET_NAME
    return "V", "-j " + nfnetlink.string(found.get(1, b""))


def _immediate(found: Attributes, _family: str) -> t.Tuple[str, str]:
    # NFTA_IMMEDIATE_DREG, where it is not the verdict but a value for a later expression
    if _number(found, 1) != 0:
        return "N", ""
    # in NFTA_IMMEDIATE_DATA, NFTA_DATA_VERDICT: NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN
    verdict = attributes(attributes(found.get(2, b"")).get(2, b""))
    words = _VERDICTS.get(_number(verdict, 1))
    return _UNKNOWN if words is None else ("V", ("%s %s" % (words, nfnetlink.string(verdict.get(2, b"")))).strip())


def _nat(found: Attributes, _family: str) -> t.Tuple[str, str]:
    # NFTA_NAT_TYPE (NFT_NAT_SNAT)
    return ("V", "-j SNAT") if _number(found, 1) == 0 else _UNKNOWN


def _payload(found: Attributes, family: Family) -> t.Tuple[str, str]:
    # NFTA_PAYLOAD_DREG, where it is a load and no write; NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN
    if 1 in found and (_number(found, 2), _number(found, 3), _number(found, 4)) == (
        _TRANSPORT_HEADER,
        *_DESTINATION_PORT,
    ):
        return "L", "-m " + DESTINATION_PORT
    length, words = _FIELDS[family].get(_number(found, 3), (0, ""))
    if 1 not in found or _number(found, 2) != _NETWORK_HEADER or not 1 <= _number(found, 4) <= length:
        return _UNKNOWN
    return "L", words


def _meta(found: Attributes, _family: str) -> t.Tuple[str, str]:
    # NFTA_META_DREG, where it is a load and no write; NFTA_META_KEY
    words = _META.get(_number(found, 2))
    return ("L", words) if words and 1 in found else _UNKNOWN


def _bitwise(found: Attributes, _family: str) -> t.Tuple[str, str]:
    # NFTA_BITWISE_OP (NFT_BITWISE_BOOL), and in NFTA_BITWISE_XOR, NFTA_DATA_VALUE: iptables prints the mask alone
    changed = any(attributes(found.get(5, b"")).get(1, b""))
    return _UNKNOWN if changed or _number(found, 6) != 0 else ("B", "")


def _compare(found: Attributes, _family: str) -> t.Tuple[str, str]:
    # NFTA_CMP_OP
    return ("C", "") if _number(found, 2) in _EQUAL else _UNKNOWN


_JUDGES: t.Dict[str, t.Callable[[Attributes, Family], t.Tuple[str, str]]] = {
    "counter": lambda _found, _family: ("N", ""),
    "match": _match,
    "target": _target,
    "immediate": _immediate,
    "masq": lambda _found, _family: ("V", "-j MASQUERADE"),
    "nat": _nat,
    "payload": _payload,
    "meta": _meta,
    "bitwise": _bitwise,
    "cmp": _compare,
    # NFTA_RANGE_OP is where NFTA_CMP_OP is.
    "range": _compare,
}
