# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expressions of nf_tables with names for their attributes: those of linux/netfilter/nf_tables.h, in lower case."""

from __future__ import annotations

import typing as t

from . import netlink

#: of each expression, in the order of their numbers
ATTRIBUTES: t.Mapping[str, t.Tuple[str, ...]] = {
    name: tuple(attributes.split())
    for name, attributes in {
        "bitwise": "sreg dreg len mask xor op data",
        "byteorder": "sreg dreg op len size",
        "cmp": "sreg op data",
        "counter": "bytes packets",
        "ct": "dreg key direction sreg",
        "dynset": "set_name set_id op sreg_key sreg_data timeout expr pad flags expressions",
        "exthdr": "dreg type offset len flags op sreg",
        "fib": "dreg result flags",
        "hash": "sreg dreg len modulus seed offset type",
        "immediate": "dreg data",
        "lookup": "set sreg dreg set_id flags",
        "masq": "flags reg_proto_min reg_proto_max",
        "match": "name rev info",
        "meta": "dreg key sreg",
        "nat": "type family reg_addr_min reg_addr_max reg_proto_min reg_proto_max flags",
        "numgen": "dreg modulus type offset",
        "objref": "imm_type imm_name set_sreg set_name set_id",
        "osf": "dreg ttl flags",
        "payload": "dreg base offset len sreg csum_type csum_offset csum_flags",
        "range": "sreg op from_data to_data",
        "redir": "reg_proto_min reg_proto_max flags",
        "rt": "dreg key",
        "socket": "key dreg level",
        "target": "name rev info",
    }.items()
}
#: NFT_META_* and NFT_CT_*, in the order of their numbers
META_KEYS = (
    "len protocol priority mark iif oif iifname oifname iiftype oiftype skuid skgid nftrace rtclassid secmark nfproto "
    "l4proto bri_iifname bri_oifname pkttype cpu iifgroup oifgroup cgroup prandom secpath iifkind oifkind bri_iifpvid "
    "bri_iifvproto time_ns time_day time_hour sdif sdifname bri_broute bri_iifhwaddr"
).split()
CT_KEYS = (
    "state direction status mark secmark expiration helper l3protocol src dst protocol proto_src proto_dst labels pkts "
    "bytes avgpkt zone eventmask src_ip dst_ip src_ip6 dst_ip6 id"
).split()


#: NFTA_LIST_ELEM, NFTA_EXPR_NAME, NFTA_EXPR_DATA
_ELEMENT, _NAME, _DATA = 1, 1, 2

Named = t.Dict[str, bytes]


def named(name: str, data: t.Mapping[int, bytes]) -> Named:
    """Return the attributes of an expression by their names; those without a name are left out."""
    names = ATTRIBUTES.get(name, ())
    return {names[kind - 1]: value for kind, value in data.items() if 0 < kind <= len(names)}


def parse(element: bytes) -> t.Tuple[str, Named]:
    """Return the name and the attributes of an expression, as it is in the list of a rule."""
    parts = netlink.attributes(element)
    name = netlink.name(parts.get(_NAME, b""))
    return name, named(name, netlink.attributes(parts.get(_DATA, b"")))


def of_rule(expressions: bytes) -> t.Iterator[t.Tuple[str, Named]]:
    """Return the name and the attributes of each expression of a rule."""
    return (parse(element) for _kind, element in netlink.split(expressions))


def number(name: str, attribute: str) -> int:
    """Return the number of an attribute of an expression."""
    return ATTRIBUTES[name].index(attribute) + 1


_WRITERS: t.Mapping[type, t.Callable[[int, t.Any], bytes]] = {
    int: netlink.network_word,
    bytes: netlink.nest,
    str: netlink.text,
}


def expression(name: str, **values: t.Union[int, bytes, str]) -> bytes:
    """Return an expression for the list of a rule: numbers, names, and the content of what is nested."""
    attributes = (_WRITERS[type(value)](number(name, key), value) for key, value in values.items())
    return netlink.nest(_ELEMENT, netlink.text(_NAME, name), netlink.nest(_DATA, *attributes))
