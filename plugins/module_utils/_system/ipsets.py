# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets of ipset, read and written over netlink: the tool ``ipset`` is often in the pods alone that use them.

Attribute numbers: linux/netfilter/ipset/ip_set.h.
"""

from __future__ import annotations

import struct
import typing as t

from . import netlink
from .kernel_modules import loaded
from .netlink import Message, Netlink

_SUBSYSTEM = 6 << 8
_CREATE, _DESTROY, _LIST, _ADD = 2, 3, 7, 9
#: The protocol whose dumps contain the index of a set (Linux 4.20), and the one before.
_PROTOCOLS = (7, 6)

_PROTOCOL, _NAME, _TYPE, _REVISION, _FAMILY, _DATA, _ENTRIES, _LINE, _INDEX = 1, 2, 3, 4, 5, 7, 8, 9, 11
#: within the data of a set: what the kernel counts
_COUNTED = (24, 25, 26)  # elements, references, memory
#: within an entry: bytes, packets
_ENTRY_COUNTED = (24, 25)
_TIMEOUT = 6
#: within an entry, and within the data of a set (first and last address, mask of bits)
_ADDRESSES, _ADDRESSES_OF_SET = (1, 2, 20, 22), (1, 2, 12)
#: nfgen_family is not looked at
_HEAD = netlink.family_head(2)


class IpSet(t.NamedTuple):
    """One set: its type (``hash:net``), its header as the kernel reports it, and its entries."""

    name: str
    kind: str
    #: by which rules of iptables-nft name it to the kernel; None on kernels before 4.20
    index: t.Optional[int]  # type: ignore[assignment]
    header: bytes
    entries: t.Tuple[bytes, ...]


def read() -> t.Tuple[IpSet, ...]:
    """Read all sets of this network namespace.

    :raises NodeError: the kernel does not answer.
    """
    if not loaded("ip_set"):  # a request would load it
        return ()
    with Netlink(netlink.NETFILTER) as kernel:
        try:
            return _read(kernel, _PROTOCOLS[0])
        except netlink.KernelError:
            return _read(kernel, _PROTOCOLS[1])


def _read(kernel: Netlink, protocol: int) -> t.Tuple[IpSet, ...]:
    found: t.Dict[str, IpSet] = {}
    for message in kernel.dump(_SUBSYSTEM | _LIST, _HEAD + netlink.attribute(_PROTOCOL, bytes((protocol,))), "ipsets"):
        known = netlink.attributes(message.body[4:])
        name = netlink.name(known[_NAME])
        entries = tuple(entry for kind, entry in netlink.split(known.get(_ENTRIES, b"")) if kind == _DATA)
        if name in found:
            found[name] = found[name]._replace(entries=found[name].entries + entries)
            continue
        index = struct.unpack("!H", known[_INDEX])[0] if _INDEX in known else None
        found[name] = IpSet(name, netlink.name(known[_TYPE]), index, message.body[4:], entries)
    return tuple(found.values())


def is_timed(one: IpSet) -> bool:
    """Return whether entries of a set end by themselves."""
    return _TIMEOUT in netlink.attributes(netlink.attributes(one.header)[_DATA])


def lasting(one: IpSet) -> t.Iterator[bytes]:
    """Return the content of a set without what packets change."""
    yield repr((one.name, one.kind, one.index)).encode("utf-8", "surrogateescape")
    yield netlink.only(one.header, (_TYPE, _REVISION, _FAMILY))
    yield netlink.replace(netlink.attributes(one.header)[_DATA], dict.fromkeys(_COUNTED))
    yield from sorted(netlink.replace(entry, dict.fromkeys(_ENTRY_COUNTED)) for entry in one.entries)


def write(sets: t.Sequence[IpSet]) -> t.List[str]:
    """Make the sets, with the indices that they have on the node.

    :returns: what the kernel refused.
    """
    if not sets:
        return []
    order = list(sets)
    by_index = {one.index: one for one in sets if one.index is not None}
    if len(by_index) == len(sets):
        # The kernel gives each new set the first index that is free.
        order = [by_index.get(index) or _filler(index) for index in range(max(by_index) + 1)]
    with Netlink(netlink.NETFILTER, buffer=netlink.LARGE) as kernel:
        codes = kernel.change([_create(one) for one in order])
        refused = ["the set %s" % one.name for one, code in zip(order, codes) if code]
        names = {one.name for one in sets}
        fillers = [_named(one.name) for one in order if one.name not in names]
        kernel.change([Message(_SUBSYSTEM | _DESTROY, _HEAD + named) for named in fillers], 0)
        for one in sets:
            if any(kernel.change([_add(one, start) for start in range(0, len(one.entries), 64)], 0)):
                refused.append("entries of the set %s" % one.name)
    return refused


def _named(name: str) -> bytes:
    return netlink.attribute(_PROTOCOL, bytes((_PROTOCOLS[1],))) + netlink.text(_NAME, name)


def _filler(index: int) -> IpSet:
    kind = netlink.text(_TYPE, "hash:ip") + netlink.attribute(_REVISION, b"\0") + netlink.attribute(_FAMILY, b"\2")
    return IpSet("twin-%d" % index, "hash:ip", index, kind + netlink.nest(_DATA), ())


def _create(one: IpSet) -> Message:
    data = netlink.replace(netlink.attributes(one.header)[_DATA], dict.fromkeys(_COUNTED))
    body = _named(one.name) + netlink.only(one.header, (_TYPE, _REVISION, _FAMILY))
    return Message(_SUBSYSTEM | _CREATE, _HEAD + body + netlink.nest(_DATA, _flagged(data, _ADDRESSES_OF_SET)))


def _flagged(data: bytes, addresses: t.Container[int] = _ADDRESSES) -> bytes:
    """Return the same with the flag that the kernel requires on addresses, but does not set itself."""
    marked = {}
    for kind, nested in netlink.split(data):
        if kind in addresses:
            inner = (netlink.attribute(each | netlink.NETWORK_ORDER, value) for each, value in netlink.split(nested))
            marked[kind] = b"".join(inner)
    return netlink.replace(data, marked, netlink.NESTED)


def _add(one: IpSet, start: int) -> Message:
    entries = (netlink.nest(_DATA, _flagged(entry)) for entry in one.entries[start : start + 64])
    # For several entries the kernel requires a line number, to report which one it refuses.
    line = netlink.network_word(_LINE, start)
    return Message(_SUBSYSTEM | _ADD, _HEAD + _named(one.name) + line + netlink.nest(_ENTRIES, *entries))
