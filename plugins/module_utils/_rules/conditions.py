# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the verification makes of conditions and actions of rules and routes. What is not listed is unknown.

The names are those of the kernel's headers and of the manual pages. docs/conditions.md is made of this table.
"""

from __future__ import annotations

import typing as t

#: Packets are divided by it, or it is carried out.
DIVIDED = "divided"
#: No tested packet can differ by it in its source address.
IRRELEVANT = "irrelevant"

#: Areas; with a name behind it, each is an object of "because of".
EXPRESSION, OBJECT, MATCH, TARGET = "the expression", "the object", "the match", "the target"
META, META_SET, CT, CT_SET, IPSET = "meta", "meta set", "ct", "ct set", "the ipset type"
RULE, ROUTE = "the selector", "the attribute"


class Row(t.NamedTuple):
    """Names that are treated alike. ``text``: how packets are divided, or why it is irrelevant."""

    names: t.Tuple[str, ...]
    result: str
    text: str


class Area(t.NamedTuple):
    """Conditions of one sort, and where their names are from."""

    title: str
    source: str
    rows: t.Tuple[Row, ...]


def _divided(names: str, text: str = "") -> Row:
    return Row(tuple(names.split()), DIVIDED, text)


def _irrelevant(names: str, text: str) -> Row:
    return Row(tuple(names.split()), IRRELEVANT, text)


_COUNTS = "it counts or reports; the packet goes on as it was"
_LATER = "it acts on packets that follow in an established connection; the first one decides the address"
_OWNED = "what is forwarded has no socket; users and groups are unknown for the node's own packets"
_CHANCE = "by chance: each choice is followed"
_TRACKED = "tracked"
_CONSTANT = "constant"
_DESTINATION = "a new destination"
_ENDS = "the packet ends"
_TABLES_H = "linux/netfilter/nf_tables.h"
_EXTENSIONS = "iptables-extensions(8)"

AREAS: t.Mapping[str, Area] = {
    EXPRESSION: Area(
        "Expressions of nf_tables",
        "nft(8), " + _TABLES_H,
        (
            _divided("meta ct objref match target", "by what is below"),
            _divided(
                "payload",
                "addresses, protocol, ports, flags of TCP, errors of ICMP; unknown: other bytes, and what is written",
            ),
            _divided("fib", "types of addresses by the routing tables; unknown: links, marks, routes"),
            _divided("cmp range byteorder immediate"),
            _divided("bitwise", "masks; unknown: shifts, and operations on two values that a packet varies"),
            _divided(
                "lookup",
                "a set that rules fill: each side is followed; unknown: such a map, elements that end by themselves",
            ),
            _divided(
                "dynset", "each side is followed: the packet goes on unless the set is full; unknown with an expression"
            ),
            _divided("numgen", _CHANCE),
            _divided("masq nat", "a new source or destination; unknown: a translation of whole networks"),
            _divided("redir", _DESTINATION + ": the node"),
            _divided("reject", _ENDS),
            _divided("notrack", "untracked, unless conntrack or a rule has decided before"),
            _irrelevant("counter last log", _COUNTS),
            _irrelevant("flow_offload", _LATER),
            _irrelevant("exthdr", "that writes an option of TCP, which no deciding rule may match; else unknown"),
        ),
    ),
    META: Area(
        "Keys of `meta`",
        _TABLES_H,
        (
            _divided("mark", _TRACKED),
            _divided("iif oif iifname oifname l4proto"),
            _divided("protocol nfproto", _CONSTANT + " for an IP version"),
            _divided("skuid skgid", _OWNED),
        ),
    ),
    META_SET: Area(
        "Keys of `meta` that rules set",
        "nft(8)",
        (
            _divided("mark", _TRACKED),
            _irrelevant("priority", "it chooses a queue of the link, after the source is decided"),
            _irrelevant("nftrace", _COUNTS),
        ),
    ),
    CT: Area(
        "Keys of `ct`",
        _TABLES_H,
        (
            _divided("state", "NEW, untracked or invalid; unknown where what is RELATED alone would break the policy"),
            _divided(
                "status", "whether the destination was translated; constant before: expected, seen-reply, assured"
            ),
            _divided("mark", _TRACKED),
            _divided("direction l3protocol", _CONSTANT),
            _divided("protocol"),
            _divided("src dst src_ip dst_ip src_ip6 dst_ip6 proto_src proto_dst", "unknown for the reply direction"),
        ),
    ),
    CT_SET: Area(
        "Keys of `ct` that rules set",
        "nft(8)",
        (
            _divided("mark", _TRACKED),
            _irrelevant("helper", _LATER),
            _irrelevant("labels eventmask", "no deciding rule may match it"),
        ),
    ),
    OBJECT: Area(
        "Objects of nf_tables",
        _TABLES_H,
        (_irrelevant("counter", _COUNTS), _irrelevant("ct_helper ct_timeout ct_expect", _LATER)),
    ),
    MATCH: Area(
        "Matches of xtables",
        _EXTENSIONS,
        (
            _divided("tcp udp sctp udplite", "ports, flags of TCP; unknown: options, chunks"),
            _divided("icmp icmp6", "errors, which begin no connection; unknown: other types"),
            _divided("multiport iprange"),
            _divided("addrtype", "types by the routing tables; unknown with a limit to an interface"),
            _divided("conntrack state", "state, protocol, original direction, status; unknown: reply, expiration"),
            _divided("physdev", "--physdev-is-bridged: no tested packet is; unknown: ports of a bridge"),
            _divided("mark connmark", _TRACKED),
            _divided("owner", _OWNED),
            _divided("socket", "none in the copy: unknown where one that matches would change a source; and its mark"),
            _divided("policy", "nothing where the node has no policies of IPsec, else unknown"),
            _divided("statistic", _CHANCE),
            _divided("recent", "--set: every packet; else by what came before: each side is followed"),
            _divided(
                "set", "unknown where rules fill the set, its entries end by themselves, or counters are compared"
            ),
            _irrelevant("comment", _COUNTS),
            _irrelevant("nfacct", "it counts; a quota of the object is not looked at"),
        ),
    ),
    TARGET: Area(
        "Targets of xtables",
        _EXTENSIONS,
        (
            _divided("ACCEPT RETURN"),
            _divided("DROP REJECT", _ENDS),
            _divided("MARK", _TRACKED),
            _divided("CONNMARK", "tracked; unknown: shifts"),
            _divided("NOTRACK CT", "untracked, unless conntrack or a rule has decided before; unknown: zones"),
            _divided("SNAT MASQUERADE", "a new source"),
            _divided("DNAT REDIRECT", _DESTINATION),
            _irrelevant("SET", "it fills a set, and a match on that set is unknown; unknown with --map-set"),
            _irrelevant("AUDIT LOG NFLOG TRACE", _COUNTS),
            _irrelevant("CHECKSUM", "no rule can match the checksum that the kernel would not count again"),
            _irrelevant("CLASSIFY", "it chooses a queue of the link, after the source is decided"),
            _irrelevant("TCPMSS", "it writes options of TCP, which no deciding rule may match"),
            _irrelevant("TTL HL", "it writes the TTL or hop limit: the packet may end, but its source stays"),
        ),
    ),
    IPSET: Area(
        "Types of ipset",
        "ipset(8)",
        (
            _divided("bitmap:ip bitmap:port hash:ip hash:net hash:net,net"),
            _divided("hash:ip,port hash:ip,port,ip hash:ip,port,net hash:net,port hash:net,port,net"),
        ),
    ),
    RULE: Area(
        "Selectors of routing rules",
        "linux/fib_rules.h",
        (
            _divided("dst src iifname suppress_prefixlen table"),
            _divided("fwmark fwmask", _TRACKED),
            _divided("l3mdev", "unknown where a link is a VRF"),
            _irrelevant("priority", "the kernel lists rules in their order"),
            _irrelevant("flow", "it gives a realm, which is unknown where a rule matches it"),
            _irrelevant("oifname", "a forwarded packet is looked up without a link, so it never matches"),
            _irrelevant("protocol", "it is the program that made the rule"),
            _irrelevant("pad", "it fills up a message"),
        ),
    ),
    ROUTE: Area(
        "Attributes of routes",
        "linux/rtnetlink.h",
        (
            _divided("dst oif table nh_id"),
            _divided("gateway via", "it decides the link, not the source"),
            _divided("priority pref", "the order of routes"),
            _divided("prefsrc", "the source that masquerading takes"),
            _divided("multipath", _CHANCE),
            _irrelevant("metrics ttl_propagate", "they limit size, speed and TTL of packets"),
            _irrelevant("flow", "it gives a realm, which is unknown where a rule matches it"),
            _irrelevant("cacheinfo expires pad", "it reports"),
        ),
    ),
}

_RESULTS = {(area, name): row.result for area, one in AREAS.items() for row in one.rows for name in row.names}


def is_irrelevant(area: str, name: str) -> bool:
    """Return whether no tested packet can differ by something in its source address."""
    return _RESULTS.get((area, name)) == IRRELEVANT


def is_known(area: str, name: str) -> bool:
    """Return whether something is listed."""
    return (area, name) in _RESULTS


def because(area: str, name: str) -> str:
    """Return the object of "because of" for something that is not understood."""
    return "%s %s" % (area, name or "without a name")
