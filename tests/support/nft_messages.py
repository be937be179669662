# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of nf_tables as the kernel tells them, made of words. Python 3.8."""

from __future__ import annotations

import ipaddress
import struct
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink, nf_tables

#: nfgen_family
INET, IP, IP6 = 1, 2, 10
PREROUTING, OUTPUT, POSTROUTING = 0, 3, 4
#: base of a payload
NETWORK, TRANSPORT = 1, 2
EQUAL, NOT_EQUAL = 0, 1
MARK, L4PROTO, IIFNAME = 3, 16, 6
#: the first register of sixteen bytes, and the n-th of four
REGISTER = 1


def small(number: int) -> int:
    """Return the register of four bytes with this number."""
    return 8 + number


def expression(name: str, *attributes: bytes) -> bytes:
    """Return one expression."""
    return netlink.nest(1, netlink.text(1, name), netlink.nest(2, *attributes))


def _word(kind: int, value: int) -> bytes:
    return netlink.network_word(kind, value)


def _value(kind: int, value: bytes) -> bytes:
    return netlink.nest(kind, netlink.attribute(1, value))


def payload(base: int, offset: int, length: int, register: int = REGISTER) -> bytes:
    """Load part of a header into a register."""
    return expression("payload", _word(1, register), _word(2, base), _word(3, offset), _word(4, length))


def meta(key: int) -> bytes:
    """Load what the kernel knows of a packet into a register."""
    return expression("meta", _word(2, key), _word(1, REGISTER))


def set_meta(key: int) -> bytes:
    """Do it the other way round."""
    return expression("meta", _word(2, key), _word(3, REGISTER))


def compare(value: bytes, operator: int = EQUAL, register: int = REGISTER) -> bytes:
    """Compare a register with a value."""
    return expression("cmp", _word(1, register), _word(2, operator), _value(3, value))


def bitwise(mask: bytes, flips: bytes) -> bytes:
    """Apply a mask to a register, and turn bits over."""
    registers = _word(1, REGISTER), _word(2, REGISTER)
    return expression("bitwise", *registers, _word(3, len(mask)), _value(4, mask), _value(5, flips))


def between(first: bytes, last: bytes, operator: int = EQUAL, register: int = REGISTER) -> bytes:
    """Test whether a register is between two values."""
    return expression("range", _word(1, register), _word(2, operator), _value(3, first), _value(4, last))


def lookup(name: str) -> bytes:
    """Look a register up in a set."""
    return expression("lookup", netlink.text(1, name), _word(2, REGISTER), _word(5, 0))


def update(name: str, register: int = REGISTER) -> bytes:
    """Add a register to a set."""
    return expression("dynset", netlink.text(1, name), _word(3, 0), _word(4, register))


def jump(chain: str) -> bytes:
    """Return a verdict that leads to a chain."""
    verdict = netlink.nest(2, _word(1, 0xFFFFFFFD), netlink.text(2, chain))
    return expression("immediate", _word(1, 0), netlink.nest(2, verdict))


def element(first: bytes, chain: t.Optional[str] = None) -> bytes:
    """Return an element of a set or map."""
    parts = [_value(1, first)] if first else []
    if chain is not None:
        parts.append(netlink.nest(2, netlink.nest(2, _word(1, 0xFFFFFFFC), netlink.text(2, chain))))
    return netlink.nest(1, *parts)


def table(
    family: int,
    name: str,
    base: t.Mapping[str, t.Tuple[str, int, int]],
    rules: t.Sequence[t.Tuple[str, t.Sequence[bytes]]] = (),
    sets: t.Optional[t.Mapping[str, t.Sequence[bytes]]] = None,
    dormant: bool = False,
) -> nf_tables.NftTable:
    """Return a table.

    :param base: type, hook and priority of the base chains.
    :param rules: the chain and the expressions of each.
    :param sets: the elements of each.
    """
    named = netlink.text(1, name)
    chains = [
        named
        + netlink.text(3, chain)
        + netlink.nest(4, _word(1, hook), netlink.attribute(2, struct.pack("!i", priority)))
        + netlink.text(7, kind)
        for chain, (kind, hook, priority) in base.items()
    ]
    chains += [named + netlink.text(3, chain) for chain in {chain for chain, _ in rules} - set(base)]
    return nf_tables.NftTable(
        family,
        name,
        named + _word(2, int(dormant)),
        tuple(chains),
        elements=tuple(
            named + netlink.text(2, one) + netlink.nest(3, *members) for one, members in (sets or {}).items()
        ),
        rules=tuple(named + netlink.text(2, chain) + netlink.nest(4, *members) for chain, members in rules),
    )


def address(text: str) -> bytes:
    """Return an address, packed."""
    return ipaddress.ip_address(text).packed


def span(network: str) -> t.Tuple[int, int]:
    """Return the first and last address of a network, as numbers."""
    found = ipaddress.ip_network(network)
    return int(found.network_address), int(found.broadcast_address)
