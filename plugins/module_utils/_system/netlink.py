# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Queries to the kernel's nf_tables over netlink: read-only, and a hundred times faster than starting a program.

Message layout: linux/netlink.h, linux/netfilter/nfnetlink.h, nf_tables.h and nf_tables_compat.h. Asking may make the
kernel load the module that would answer, as any use of it does; it changes no rule, table or setting.
"""

from __future__ import annotations

import errno
import socket
import struct
import typing as t

from .._errors import NodeError
from .ip_families import IPV4, IPV6

_NETLINK_NETFILTER = 12
_REQUEST = 0x1
#: all that match, instead of one
_DUMP = 0x300
#: flag of a dump whose parts may not belong together, because another program wrote meanwhile
_INTERRUPTED = 0x10
_ERROR = 2
_DONE = 3

#: subsystem << 8 | message: NFT_MSG_GETTABLE, GETCHAIN, GETRULE, GETGEN, NFNL_MSG_COMPAT_GET
_GET_TABLE = 10 << 8 | 1
_GET_CHAIN = 10 << 8 | 4
_GET_RULE = 10 << 8 | 7
_GET_GENERATION = 10 << 8 | 16
_GET_EXTENSION = 11 << 8 | 0
_INET = "inet"
#: NFPROTO_INET is 1.
_FAMILIES = {IPV4: socket.AF_INET, IPV6: socket.AF_INET6, _INET: 1}
_NFT_FAMILIES = {IPV4: "ip", IPV6: "ip6", _INET: _INET}

#: NFTA_TABLE_NAME, NFTA_TABLE_FLAGS and NFT_TABLE_F_DORMANT
_TABLE_NAME, _TABLE_FLAGS, _DORMANT = 1, 2, 1
#: NFTA_CHAIN_*
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_TYPE = 1, 3, 4, 7
#: NFTA_HOOK_HOOKNUM and NF_INET_POST_ROUTING
_HOOK_NUMBER, _POSTROUTING = 1, 4
#: NFTA_RULE_*
_RULE_TABLE, _RULE_CHAIN, _RULE_HANDLE, _RULE_EXPRESSIONS, _RULE_POSITION = 1, 2, 3, 4, 6
#: NFTA_EXPR_*
_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2
#: By name of the expression, the attribute that holds what a rule compares with or has counted: NFTA_CMP_DATA,
#: NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS.
_VALUES = {"cmp": (3,), "counter": (1, 2)}

MATCH = 0
TARGET = 1

#: seconds; the kernel answers within the call, so this is never waited for
_PATIENCE = 5.0
#: The kernel fills at most 32 KiB of a dump at once.
_BUFFER = 65536
#: How often a dump that was interrupted is started again.
_DUMPS = 20

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
#: NLA_F_NESTED and NLA_F_NET_BYTEORDER are not part of an attribute's type.
_TYPE = 0x3FFF

Attributes = t.Dict[int, bytes]


class Expression(t.NamedTuple):
    """One step of a rule, as nf_tables carries it out."""

    name: str
    #: its attributes, without what it compares with or has counted
    data: t.Tuple[t.Tuple[int, bytes], ...]


class Rule(t.NamedTuple):
    """One rule. The handle is its own for as long as its table exists."""

    handle: int
    expressions: t.Tuple[Expression, ...]


def has_nft_table(family: str, name: str) -> t.Optional[bool]:
    """Whether nf_tables has a table of this family and name in our network namespace; none where it does not answer."""
    return _is_there(_GET_TABLE, family, [(_TABLE_NAME, _text(name))])


def has_extension(family: str, kind: int, name: str, revision: int) -> t.Optional[bool]:
    """Whether iptables-nft rules can use an xtables extension on this kernel; none where the kernel does not answer.

    This is the very question that iptables-nft asks before it uses one. C(iptables-restore --test) is no help: it never
    gets as far as the kernel.

    :param kind: MATCH or TARGET.
    """
    values = [(1, _text(name)), (2, struct.pack("!I", revision)), (3, struct.pack("!I", kind))]
    return _is_there(_GET_EXTENSION, family, values)


def is_dormant(family: str, table: str) -> bool:
    """Whether a table is there and its flag C(dormant) keeps the kernel from asking any of its chains.

    :raises NodeError: the kernel does not answer.
    """
    found = _get(_GET_TABLE, family, [(_TABLE_NAME, _text(table))])
    return found is not None and bool(_number(found.get(_TABLE_FLAGS, b"\0")) & _DORMANT)


def has_chain(family: str, table: str, name: str) -> bool:
    """Whether a chain is there.

    :raises NodeError: the kernel does not answer.
    """
    return _get(_GET_CHAIN, family, [(_CHAIN_TABLE, _text(table)), (_CHAIN_NAME, _text(name))]) is not None


def nat_postrouting_chains(family: str) -> t.List[t.Tuple[str, str, str]]:
    """All chains of type nat at the hook postrouting that traffic of a family meets.

    :returns: family (as nft calls it), table and name of each.
    :raises NodeError: the kernel will not say.
    """
    found = []
    for nft_family in (family, _INET):
        for _flags, payload in _ask(_GET_CHAIN, nft_family, [], _DUMP):
            chain = attributes(payload)
            hook = attributes(chain.get(_CHAIN_HOOK, b""))
            if string(chain.get(_CHAIN_TYPE, b"")) == "nat" and _number(hook.get(_HOOK_NUMBER, b"")) == _POSTROUTING:
                place = (_NFT_FAMILIES[nft_family], string(chain[_CHAIN_TABLE]), string(chain[_CHAIN_NAME]))
                # A dump that another program's write interrupted can repeat a chain.
                if place not in found:
                    found.append(place)
    return found


def generation() -> t.Optional[int]:
    """A number that each committed transaction raises by one, whatever table it is about (NFT_MSG_GETGEN).

    None where the kernel does not answer.
    """
    try:
        found = _get(_GET_GENERATION, IPV4, [])
    except NodeError:
        return None
    return None if found is None else _number(found[1])


def rules(family: str, table: str, name: str) -> t.List[Rule]:
    """The rules of one chain. The kernel reads no other chain for this, so other rules cost nothing.

    :raises NodeError: the kernel does not answer, or other programs wrote during each read.
    """
    wanted = [(_RULE_TABLE, _text(table)), (_RULE_CHAIN, _text(name))]
    for _attempt in range(_DUMPS):
        interrupted = False
        found: t.List[Rule] = []
        reader = _RuleReader()
        for flags, payload in _ask(_GET_RULE, family, wanted, _DUMP):
            interrupted = interrupted or bool(flags & _INTERRUPTED)
            chain, rule = reader.read(payload)
            # Old kernels know no restriction to a chain.
            if chain == name:
                found.append(rule)
        if not interrupted:
            return found
    raise NodeError("the rules of the chain %s kept changing while the kernel listed them; run again" % name)


class _RuleReader:
    """Reads rules. Those of a long chain differ in little more than handles, addresses and counters.

    So these values are cut out, and what is left is read once: 10,000 rules take a tenth of the time.
    """

    def __init__(self) -> None:
        #: by length of a message, where the values are in the last one that was read; the handle comes first
        self._values: t.Dict[int, t.List[t.Tuple[int, int]]] = {}
        self._read: t.Dict[bytes, t.Tuple[str, t.Tuple[Expression, ...]]] = {}

    def read(self, payload: bytes) -> t.Tuple[str, Rule]:
        """The name of a rule's chain, and the rule."""
        values = self._values.get(len(payload), [(0, 0)])
        read = self._read.get(_without(payload, values))
        if read is None:
            values = self._values[len(payload)] = [(0, 0)]
            read = self._parse(payload, values)
            self._read[_without(payload, values)] = read
        chain, expressions = read
        return chain, Rule(_number(payload[slice(*values[0])]), expressions)

    @staticmethod
    def _parse(payload: bytes, values: t.List[t.Tuple[int, int]]) -> t.Tuple[str, t.Tuple[Expression, ...]]:
        chain = ""
        expressions = []
        for kind, begin, end in _spans(payload, 0, len(payload)):
            if kind == _RULE_CHAIN:
                chain = string(payload[begin:end])
            elif kind == _RULE_HANDLE:
                values[0] = (begin, end)
            elif kind == _RULE_POSITION:
                values.append((begin, end))
            elif kind == _RULE_EXPRESSIONS:
                for _kind, first, last in _spans(payload, begin, end):
                    expressions.append(_expression(payload, first, last, values))
        return chain, tuple(expressions)


def _expression(payload: bytes, begin: int, end: int, values: t.List[t.Tuple[int, int]]) -> Expression:
    name = ""
    data = []
    for kind, first, last in _spans(payload, begin, end):
        if kind == _EXPRESSION_NAME:
            name = string(payload[first:last])
        elif kind == _EXPRESSION_DATA:
            for inner, start, stop in _spans(payload, first, last):
                if inner in _VALUES.get(name, ()):
                    values.append((start, stop))
                else:
                    data.append((inner, payload[start:stop]))
    return Expression(name, tuple(data))


def _without(payload: bytes, spans: t.Sequence[t.Tuple[int, int]]) -> bytes:
    pieces = []
    position = 0
    for begin, end in spans:
        pieces.append(payload[position:begin])
        position = end
    pieces.append(payload[position:])
    return b"".join(pieces)


def attributes(data: bytes) -> Attributes:
    """Netlink attributes by type; what is nested in them stays as it is."""
    return {kind: data[begin:end] for kind, begin, end in _spans(data, 0, len(data))}


def _spans(data: bytes, begin: int, end: int) -> t.Iterator[t.Tuple[int, int, int]]:
    """Type, and first and last place of the content, of each netlink attribute in a part of a message."""
    while begin + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        yield kind & _TYPE, begin + _ATTRIBUTE.size, min(begin + length, end)
        begin += max(length + 3 & ~3, _ATTRIBUTE.size)


def _text(value: str) -> bytes:
    return value.encode("ascii") + b"\0"


def string(value: bytes) -> str:
    """Text in an attribute, up to its end."""
    return value.split(b"\0")[0].decode("ascii", "backslashreplace")


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _is_there(message: int, family: str, values: t.Sequence[t.Tuple[int, bytes]]) -> t.Optional[bool]:
    try:
        return _get(message, family, values) is not None
    except NodeError:
        return None


def _get(message: int, family: str, values: t.Sequence[t.Tuple[int, bytes]]) -> t.Optional[Attributes]:
    """The attributes of the one thing that was asked for; none where it is not there.

    :raises NodeError: the kernel does not answer.
    """
    for _flags, payload in _ask(message, family, values):
        return attributes(payload)
    return None


def _ask(
    message: int, family: str, values: t.Sequence[t.Tuple[int, bytes]], flags: int = 0
) -> t.Iterator[t.Tuple[int, bytes]]:
    """Flags and attributes of each message of the answer.

    :param flags: of the request; with _DUMP there may be many messages.
    :raises NodeError: the kernel does not answer.
    """
    body = struct.pack("!BBH", _FAMILIES[family], 0, 0)
    for kind, value in values:
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + b"\0" * (-len(value) % 4)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
            kernel.settimeout(_PATIENCE)
            kernel.bind((0, 0))
            kernel.send(_HEADER.pack(_HEADER.size + len(body), message, _REQUEST | flags, 1, 0) + body)
            more = True
            while more:
                more = bool(flags & _DUMP)
                answer = kernel.recv(_BUFFER)
                position = 0
                while position < len(answer):
                    length, kind, message_flags, _sequence, _port = _HEADER.unpack_from(answer, position)
                    payload = answer[position + _HEADER.size : position + length]
                    position += length + 3 & ~3
                    if kind in (_DONE, _ERROR):
                        _check(payload)
                        return
                    yield message_flags, payload[4:]
    except OSError as exc:
        raise NodeError("the kernel did not answer a netfilter query: %s" % (exc.strerror or exc)) from None


def _check(payload: bytes) -> None:
    """:raises OSError: it is no answer. Every other error says that the thing, or all of its kind, is not there."""
    code = -struct.unpack_from("=i", payload)[0]
    if code in (errno.EPERM, errno.EACCES, errno.ENOMEM, errno.EAGAIN, errno.EINTR):
        raise OSError(code, errno.errorcode[code])
