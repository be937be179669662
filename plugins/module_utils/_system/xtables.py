# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of iptables-legacy as the kernel holds them, read and written without its tool.

Matches and targets are the structures that iptables-nft keeps in its expressions. Layout of the rest:
linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import re
import socket
import struct
import typing as t

from . import libc
from .families import BY_NUMBER, IPV4, IPV6, Family
from .netlink import ATTEMPTS, KernelError, name

_GET_INFO, _GET_ENTRIES, _SET_REPLACE = 64, 65, 64
_INFO = struct.Struct("@32sI5I5III")
#: What is in front of the entries, which are aligned as numbers of 64 bits are.
_WANTED = struct.Struct("@32sI0Q")
_REPLACE = struct.Struct("@32sIII5I5IIP0Q")
_COUNTERS = 16
_TARGET_AND_NEXT = struct.Struct("=HH")
_NAME_LENGTH = 29
_EXTENSION = struct.Struct("=H%dsB" % _NAME_LENGTH)
_VERDICT = struct.Struct("=i")
_ERROR = "ERROR"
#: struct xt_error_target at the head of a chain ends with the name, in so many bytes
_CHAIN_HEAD = rb"ERROR\0{25}([^\0]+)\0"
_ERROR_NAME = 32
#: NF_DROP, NF_ACCEPT, NF_QUEUE, XT_RETURN
_VERDICTS = {-1: "DROP", -2: "ACCEPT", -4: "QUEUE", -5: "RETURN"}
#: in the order of their hooks
CHAINS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
#: hooks of netfilter (linux/netfilter.h) by the chain of iptables that hangs on them
HOOKS = {chain: hook for hook, chain in enumerate(CHAINS)}
#: of the chains of each table (linux/netfilter_ipv4.h), but for those that translate sources
_PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
_SOURCE_NAT = 100
TABLES = frozenset(_PRIORITIES)


def is_table_of_nft(family: int, table: str) -> bool:
    """Return whether a table of nf_tables has a name and a family (AF_*) of those that iptables-nft makes."""
    return family in BY_NUMBER and table in TABLES


class _Layout(t.NamedTuple):
    """Sizes of one family: struct ipt_ip or ip6t_ip6, and with what follows it a whole entry without its matches."""

    level: int
    packet: int
    head: int
    #: where the two offsets of the target and of the next entry are
    offsets: int


def _layout(level: int, packet: int) -> _Layout:
    return _Layout(level, packet, struct.calcsize("@%dsIHHIQQ" % packet), packet + 4)


_LAYOUTS = {IPV4: _layout(socket.IPPROTO_IP, 84), IPV6: _layout(socket.IPPROTO_IPV6, 136)}


class XtTable(t.NamedTuple):
    """One table. ``hooks`` is a mask; ``places`` are where the chains of hooks begin, and where their policies are."""

    family: Family
    name: str
    hooks: int
    places: t.Tuple[int, ...]
    number_of_entries: int
    entries: bytes

    @property
    def title(self) -> str:
        """Its family and name, as nft writes them."""
        return "%s %s" % (self.family.nft, self.name)


def priority(table: str, chain: str) -> int:
    """Return the priority of a builtin chain: at one hook the lowest number comes first."""
    return _SOURCE_NAT if table == "nat" and chain in ("POSTROUTING", "INPUT") else _PRIORITIES.get(table, 0)


class Extension(t.NamedTuple):
    """A match or a target."""

    name: str
    revision: int = 0
    info: bytes = b""


class XtRule(t.NamedTuple):
    """One rule: ``packet`` is struct ipt_ip or ip6t_ip6.

    The target of a rule that leads to a chain, or does nothing, has no name; verdicts have the names of iptables.
    """

    packet: bytes
    matches: t.Tuple[Extension, ...]
    target: Extension
    leads_to: str = ""


class XtChain(t.NamedTuple):
    """Rules of a chain, and what becomes of a packet behind them."""

    rules: t.List[XtRule]
    policy: str


def read(family: Family, table: str) -> XtTable:
    """Read a table of this network namespace. One that does not exist is made.

    :raises KernelError: the kernel refuses.
    """
    with _socket(family, table) as opened:
        for _attempt in range(ATTEMPTS):
            _name, hooks, *places, number, size = _info(opened, family, table)
            with contextlib.suppress(BlockingIOError):  # it was changed since
                wanted = _WANTED.pack(table.encode(), size) + bytes(size)
                found = _ask(opened, family, _GET_ENTRIES, wanted)
                return XtTable(family, table, hooks, tuple(places), number, found[_WANTED.size :])
        raise BlockingIOError(errno.EAGAIN, "")


def write(table: XtTable) -> None:
    """Put a table in place of the one in this network namespace.

    :raises KernelError: the kernel refuses; nothing was changed.
    """
    with _socket(table.family, table.name) as opened:
        before = _info(opened, table.family, table.name)[-2]
        counters = ctypes.create_string_buffer(before * _COUNTERS)
        head = (table.name.encode(), table.hooks, table.number_of_entries, len(table.entries), *table.places, before)
        data = _REPLACE.pack(*head, ctypes.addressof(counters)) + table.entries
        opened.setsockopt(_LAYOUTS[table.family].level, _SET_REPLACE, data)


@contextlib.contextmanager
def _socket(family: Family, table: str) -> t.Iterator[socket.socket]:
    try:
        with socket.socket(family.number, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as opened:
            yield opened
    except OSError as exc:
        raise KernelError(exc.errno or 0, "table %s %s of iptables-legacy" % (family.nft, table)) from None


def _info(opened: socket.socket, family: Family, table: str) -> t.Tuple[t.Any, ...]:
    return _INFO.unpack(_ask(opened, family, _GET_INFO, table.encode().ljust(_INFO.size, b"\0")))


def _ask(opened: socket.socket, family: Family, option: int, asked: bytes) -> bytes:
    """Return what the kernel writes over a question. ``socket.getsockopt`` reads no more than 1024 bytes."""
    data = ctypes.create_string_buffer(asked, len(asked))
    size = ctypes.byref(ctypes.c_uint(len(asked)))
    libc.call("getsockopt", opened.fileno(), _LAYOUTS[family].level, option, data, size)
    return data.raw


def chains(
    table: XtTable, starts: t.Container[str] = CHAINS, wanted: t.Optional[t.Container[str]] = None
) -> t.Dict[str, XtChain]:
    """Return the chains of hooks, and those that they lead to; no other rule is looked at.

    :param starts: of the hooks.
    :param wanted: those that rules may lead to; None: all of them.
    :raises ValueError: it is not laid out like a table.
    """
    layout = _LAYOUTS[table.family]
    found: t.Dict[str, XtChain] = {}
    work = [one for one in _hooked(table) if one[0] in starts]
    while work:
        chain, first, last = work.pop()
        if chain in found:
            continue
        rules = []
        for begin, at_target, end in _entries(table, layout, first):
            if begin > last or _extension(table.entries, at_target).name == _ERROR:
                break
            rules.append((end, _rule(table, layout, begin, at_target)))
        found[chain] = _chain(table, rules)
        leading = (one for one in found[chain].rules if one.leads_to and (wanted is None or one.leads_to in wanted))
        work += ((one.leads_to, _VERDICT.unpack_from(one.target.info)[0], len(table.entries)) for one in leading)
    return found


def _hooked(table: XtTable) -> t.List[t.Tuple[str, int, int]]:
    """Return the chains of hooks, where they begin, and where their policies are."""
    places = zip(CHAINS, table.places, table.places[len(CHAINS) :])
    return [place for hook, place in enumerate(places) if table.hooks >> hook & 1]


def used_chains(table: XtTable) -> t.List[str]:
    """Return the chains of hooks that have rules."""
    return [chain for chain, first, last in _hooked(table) if first != last]


def chain_names(table: XtTable) -> t.Set[str]:
    """Return the chains of a table beside those of hooks: much faster than to look at each rule."""
    return {one.decode("ascii", "backslashreplace") for one in re.findall(_CHAIN_HEAD, table.entries)}


def jumps(table: XtTable, chain: str) -> t.List[str]:
    """Return the chains that rules of the chain of a hook lead to; no other rule is looked at."""
    return [rule.leads_to for one in chains(table, (chain,), ()).values() for rule in one.rules if rule.leads_to]


def _rule(table: XtTable, layout: _Layout, begin: int, at_target: int) -> XtRule:
    matches = tuple(_matches(table.entries, begin + layout.head, at_target))
    return XtRule(table.entries[begin : begin + layout.packet], matches, _extension(table.entries, at_target))


def _chain(table: XtTable, rules: t.Sequence[t.Tuple[int, XtRule]]) -> XtChain:
    """Return a chain from its rules, and where each ends: the last one is the policy."""
    return XtChain([_leading(table, rule, end) for end, rule in rules[:-1]], _leading(table, rules[-1][1]).target.name)


def _entries(table: XtTable, layout: _Layout, begin: int = 0) -> t.Iterator[t.Tuple[int, int, int]]:
    """Return where each entry, and its target, begins, and where it ends."""
    size = len(table.entries)
    while begin < size:
        target, length = _TARGET_AND_NEXT.unpack_from(table.entries, begin + layout.offsets)
        if length < layout.head:
            raise ValueError("an entry without a size")
        yield begin, begin + target, begin + length
        begin += length


def _matches(data: bytes, begin: int, end: int) -> t.Iterator[Extension]:
    while begin < end:
        yield _extension(data, begin)
        length = _EXTENSION.unpack_from(data, begin)[0]
        if length < _EXTENSION.size:
            raise ValueError("a match without a size")
        begin += length


def _extension(data: bytes, begin: int) -> Extension:
    length, named, revision = _EXTENSION.unpack_from(data, begin)
    return Extension(name(named), revision, data[begin + _EXTENSION.size : begin + length])


def has(table: XtTable, extension: str) -> bool:
    """Return whether a rule has a match or target of that name: much faster than to look at each."""
    return extension.encode().ljust(_NAME_LENGTH, b"\0") in table.entries


def _leading(table: XtTable, rule: XtRule, end: int = 0) -> XtRule:
    """Return a rule with its verdict, or the chain that it leads to; ``end``: where the next one begins."""
    if rule.target.name:
        return rule
    place = _VERDICT.unpack_from(rule.target.info)[0]
    if place == end:
        return rule
    if place < 0:
        return rule._replace(target=Extension(_VERDICTS[place]))
    return rule._replace(leads_to=name(table.entries[place - _ERROR_NAME : place]))


def lasting(table: XtTable) -> t.Iterator[bytes]:
    """Return the content of a table without what packets change: its counters."""
    head = _LAYOUTS[table.family].head
    yield repr(table._replace(entries=b"")).encode()
    for begin, _target, end in _entries(table, _LAYOUTS[table.family]):
        yield table.entries[begin : begin + head - _COUNTERS]
        yield table.entries[begin + head : end]
