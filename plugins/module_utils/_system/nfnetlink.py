# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel answers by itself, read-only and a hundred times faster than a program could.

Message layout: linux/netfilter/nfnetlink.h, nf_tables.h and nf_tables_compat.h. Asking may make the
kernel load the module that would answer, as any use of it does; it changes no rule, table or setting. Functions
raise NodeError if the kernel does not answer, unless None says so.
"""

from __future__ import annotations

import contextlib
import struct
import typing as t

from .._errors import NodeError
from . import netlink, nf_tables
from .families import Family
from .netlink import NETFILTER, Attributes, Message, Netlink, attributes, network_word, text

#: subsystem << 8 | message: NFNL_MSG_COMPAT_GET, and those of nf_tables
_GET_EXTENSION = 11 << 8 | 0
_GET_TABLE = nf_tables.SUBSYSTEM | nf_tables.GET_TABLE
_GET_CHAIN = nf_tables.SUBSYSTEM | nf_tables.GET_CHAIN
_GET_RULE = nf_tables.SUBSYSTEM | nf_tables.GET_RULE
#: how the attribute begins that base chains alone have
_TYPE_HEAD = struct.pack("=H", nf_tables.CHAIN_TYPE)
#: NFPROTO_INET
_INET = 1
MATCH = 0
TARGET = 1

#: How often a dump that was interrupted is started again.
_DUMPS = 20


class NftRule(t.NamedTuple):
    """One rule. The handle is its own for as long as its table exists."""

    handle: int
    expressions: bytes


def has_nft_table(family: Family, name: str) -> t.Optional[bool]:
    """Return whether our network namespace has a table of this family and name; None if the kernel does not say."""
    return _is_there(_GET_TABLE, family, text(nf_tables.TABLE, name))


def has_extension(family: Family, kind: int, name: str, revision: int) -> t.Optional[bool]:
    """Return whether iptables-nft rules can use an xtables extension on this kernel; None if the kernel does not say.

    iptables-nft sends the same request before it uses one. ``iptables-restore --test`` is no help: it
    never gets as far as the kernel.

    :param kind: MATCH or TARGET.
    """
    values = text(1, name) + network_word(2, revision) + network_word(3, kind)
    return _is_there(_GET_EXTENSION, family, values)


def is_dormant(family: Family, table: str) -> bool:
    """Return whether a table is there and its flag ``dormant`` keeps the kernel from asking any of its chains."""
    found = _get(_GET_TABLE, family, text(nf_tables.TABLE, table))
    return found is not None and bool(netlink.number(found.get(nf_tables.TABLE_FLAGS)) & nf_tables.DORMANT)


def has_chain(family: Family, table: str, name: str) -> bool:
    """Return whether a chain is there."""
    return _chain(family, table, name) is not None


class NftChain(t.NamedTuple):
    """A chain. The family is what nft calls it."""

    family: str
    table: str
    name: str
    #: whether the kernel itself asks it
    is_base: bool
    #: whether it is of type nat at the hook postrouting
    hides: bool
    #: whether its policy drops what its rules do not decide about
    drops: bool


def references(family: Family, table: str, name: str) -> int:
    """Return how many rules lead to a chain; 0 if it is not there."""
    found = _chain(family, table, name)
    if found is None:
        return 0
    # The kernel counts the rules in the chain as well.
    return max(netlink.number(found.get(nf_tables.CHAIN_USE, b"\0")) - len(rules(family.number, table, name)), 0)


def _chain(family: Family, table: str, name: str) -> t.Optional[Attributes]:
    return _get(_GET_CHAIN, family, text(nf_tables.TABLE, table) + text(nf_tables.CHAIN_NAME, name))


def chains(family: Family, base_only: bool = False) -> t.List[NftChain]:
    """List all chains that traffic of a family can meet.

    :param base_only: whether others may be left out, of which kube-proxy has tens of thousands.
    """
    found = []
    for protocol, nft_family in ((family.number, family.nft), (_INET, "inet")):
        for message in _dump(_GET_CHAIN, netlink.family_head(protocol), "the chains of nf_tables"):
            if base_only and _TYPE_HEAD not in message.body:
                continue
            chain = attributes(message.body[4:])
            base = nf_tables.base_chain(chain)
            hides = base is not None and (base.kind, base.hook) == ("nat", nf_tables.POSTROUTING)
            names = string(chain[nf_tables.TABLE]), string(chain[nf_tables.CHAIN_NAME])
            found.append(NftChain(nft_family, *names, base is not None, hides, base is not None and base.drops))
    return found


def generation() -> t.Optional[int]:
    """Return a number that each committed transaction raises by one, whatever table it is about (NFT_MSG_GETGEN).

    None if the kernel does not say.
    """
    with contextlib.suppress(NodeError), Netlink(NETFILTER) as kernel:
        return nf_tables.generation_of(kernel)
    return None


def rules(family: int, table: str, name: str) -> t.List[NftRule]:
    """Read the rules of one chain. The kernel reads no other chain for this, so other rules cost nothing.

    :param family: its number (nfgen_family).
    :raises NodeError: the kernel does not answer, or others wrote each time while it was reading.
    """
    body = netlink.family_head(family) + text(nf_tables.TABLE, table) + text(nf_tables.RULE_CHAIN, name)
    read = (attributes(message.body[4:]) for message in _dump(_GET_RULE, body, "the rules of the chain %s" % name))
    return [
        NftRule(netlink.number(rule[nf_tables.RULE_HANDLE]), rule.get(nf_tables.RULE_EXPRESSIONS, b"")) for rule in read
    ]


def string(value: bytes) -> str:
    """Return text in an attribute, for people: bytes that are not ASCII are escaped."""
    return value.split(b"\0")[0].decode("ascii", "backslashreplace")


def _is_there(kind: int, family: Family, values: bytes) -> t.Optional[bool]:
    with contextlib.suppress(NodeError):
        return _get(kind, family, values) is not None
    return None


def _get(kind: int, family: Family, values: bytes) -> t.Optional[Attributes]:
    """Get the attributes of one object; None if it does not exist."""
    body = netlink.family_head(family.number) + values
    with netlink.ignoring(), Netlink(NETFILTER) as kernel:
        return attributes(kernel.ask(kind, body, "a question about netfilter").body[4:])
    return None


def _dump(kind: int, body: bytes, what: str) -> t.List[Message]:
    """Dump all objects that match."""
    with netlink.ignoring(), Netlink(NETFILTER) as kernel:
        return kernel.dump(kind, body, what, _DUMPS)
    return []
