# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All conditions and actions of rules, routing rules, routes and links, and how the verification treats each.

What is not listed is unknown. The names are those of the kernel's headers and of the manual pages, in lower case; a
test compares them with the headers. docs/conditions.md is made of this table.
"""

from __future__ import annotations

import typing as t

#: Packets are divided by it, or it is carried out.
DIVIDED = "divided"
#: No tested packet can differ by it in its source address.
IRRELEVANT = "irrelevant"
UNKNOWN = "unknown"


class Treatment(t.NamedTuple):
    """What is made of one thing. ``text``: how it is divided, why it is irrelevant, or the object of "because of"."""

    kind: str
    text: str = ""


class Area(t.NamedTuple):
    """Things of one sort. ``source`` names the header with the prefix of its constants, or the manual page."""

    title: str
    source: str
    entries: t.Mapping[str, Treatment]


def _divided(text: str = "") -> Treatment:
    return Treatment(DIVIDED, text)


def _irrelevant(text: str) -> Treatment:
    return Treatment(IRRELEVANT, text)


def _unknown(text: str) -> Treatment:
    return Treatment(UNKNOWN, text)


_KIND = _divided("unknown where the copy of the node has links of that kind that the node has not, or the reverse")
_COUNTS = _irrelevant("it counts or reports; the packet goes on as it was")
_LATER = _irrelevant("it acts on packets that follow in an established connection; the first one decides the address")
_TOS = _irrelevant(
    "it writes the TOS or DSCP, which no deciding rule may match; unknown where a routing rule matches the TOS"
)
_TTL = _irrelevant("it writes the TTL or hop limit: the packet may end, but its source stays")
_MSS = _irrelevant("it writes options of TCP, which no deciding rule may match")
_PRIORITY = _irrelevant("it chooses a queue of the link, after the source is decided")
_SECURITY = _irrelevant("it writes a label of SELinux, which no deciding rule may match")
_COPY = _irrelevant("it sends a copy; the packet itself goes on as it was")
_RATE = "how many packets there were before"
_HEADER = "an option or extension header of a packet"
_SOCKET = _unknown("a socket that is open on the node")
_IPSEC = _unknown("IPsec")
_TIME = _unknown("the time")
_OWNER = _unknown("the user or group of the program that sends")
_CGROUP = _unknown("the control group of the program that sends")
_BRIDGE = _unknown("a port of a bridge")
_TUNNEL = _unknown("a header inside of a tunnel")
_LABEL = _unknown("a label of a connection")
_SECMARK = _unknown("a label of SELinux")
_TUPLE = "unknown for the reply direction: the addresses and ports with which answers come"

_EXPRESSIONS: t.Dict[str, Treatment] = {
    "payload": _divided("addresses, protocol, ports: read; other bytes are unknown; written: see the fields below"),
    "exthdr": _unknown(_HEADER),
    "meta": _divided("by key, below"),
    "ct": _divided("by key, below"),
    "fib": _divided("by result, below"),
    "rt": _unknown("a property of the route"),
    "socket": _SOCKET,
    "osf": _unknown("the operating system of the sender"),
    "numgen": _divided("by chance: each choice is followed"),
    "hash": _divided("by chance: each choice is followed"),
    "xfrm": _IPSEC,
    "tunnel": _unknown("a tunnel that the packet came through"),
    "lookup": _divided(
        "unknown where elements end by themselves, or rules fill the map; a set that rules fill: each side is followed"
    ),
    "dynset": _divided("the packet goes on unless the set is full: each side is followed; unknown with an expression"),
    "objref": _divided("by the type of the object, below"),
    "limit": _unknown(_RATE + " (limit)"),
    "quota": _unknown("how much was carried before (quota)"),
    "connlimit": _unknown("how many connections there are"),
    "last": _COUNTS,
    "counter": _COUNTS,
    "log": _COUNTS,
    "masq": _divided("a new source"),
    "nat": _divided("a new source or destination"),
    "redir": _divided("a new destination: the node"),
    "tproxy": _unknown("a proxy that is open on the node"),
    "queue": _unknown("a program that decides about each packet (queue)"),
    "reject": _divided("the packet ends"),
    "dup": _COPY,
    "fwd": _unknown("a packet that leaves before it is routed (fwd)"),
    "synproxy": _unknown("a proxy for TCP handshakes (synproxy)"),
    "flow_offload": _LATER,
    "notrack": _divided(
        "the packet is untracked; without effect behind conntrack, and behind a zone that a rule chose"
    ),
    "immediate": _divided("constants and verdicts"),
    "cmp": _divided(),
    "range": _divided(),
    "bitwise": _divided("masks; unknown: shifts, and operations on two values that a packet varies"),
    "byteorder": _divided(),
    "inner": _TUNNEL,
    "match": _divided("by extension of xtables, below"),
    "target": _divided("by extension of xtables, below"),
}

_VERDICTS: t.Dict[str, Treatment] = dict.fromkeys(("continue", "break", "jump", "goto", "return"), _divided())

_PAYLOAD: t.Dict[str, Treatment] = {
    "ll_header": _unknown("a hardware address or tag of a packet"),
    "network_header": _divided("addresses, protocol, version; unknown: all other bytes"),
    "transport_header": _divided("ports; unknown: all other bytes"),
    "inner_header": _unknown("bytes of a packet"),
    "tun_header": _TUNNEL,
}

_FIELDS: t.Dict[str, Treatment] = {
    "address": _unknown("a rule that writes addresses without conntrack"),
    "port": _unknown("a rule that writes ports without conntrack"),
    "protocol": _unknown("a rule that writes the protocol of a packet"),
    "tos": _TOS,
    "ttl": _TTL,
    "checksum": _irrelevant("no rule can match the checksum that the kernel would not count again"),
    "id": _irrelevant("it numbers fragments, and tested packets are none"),
    "other": _unknown("a rule that writes bytes of a packet"),
}

_META: t.Dict[str, Treatment] = {
    "len": _unknown("the length of a packet"),
    "protocol": _divided("constant for an IP version"),
    "priority": _unknown("the priority of a packet"),
    "mark": _divided("tracked"),
    "iif": _divided(),
    "oif": _divided(),
    "iifname": _divided(),
    "oifname": _divided(),
    "iiftype": _unknown("the hardware type of a link"),
    "oiftype": _unknown("the hardware type of a link"),
    "skuid": _OWNER,
    "skgid": _OWNER,
    "nftrace": _unknown("whether a packet is traced"),
    "rtclassid": _unknown("a realm of routes"),
    "secmark": _SECMARK,
    "nfproto": _divided("constant for an IP version"),
    "l4proto": _divided(),
    "bri_iifname": _BRIDGE,
    "bri_oifname": _BRIDGE,
    "pkttype": _unknown("whether a packet is a broadcast on its link"),
    "cpu": _unknown("the CPU that handles a packet"),
    "iifgroup": _divided(),
    "oifgroup": _divided(),
    "cgroup": _CGROUP,
    "prandom": _divided("by chance: each choice is followed"),
    "secpath": _IPSEC,
    "iifkind": _KIND,
    "oifkind": _KIND,
    "bri_iifpvid": _BRIDGE,
    "bri_iifvproto": _BRIDGE,
    "bri_broute": _BRIDGE,
    "bri_iifhwaddr": _BRIDGE,
    "time_ns": _TIME,
    "time_day": _TIME,
    "time_hour": _TIME,
    "sdif": _divided("constant where no link is a VRF; else unknown"),
    "sdifname": _divided("constant where no link is a VRF; else unknown"),
}

_META_SET: t.Dict[str, Treatment] = {
    "mark": _divided("tracked"),
    "priority": _PRIORITY,
    "nftrace": _COUNTS,
    "secmark": _SECURITY,
    "pkttype": _unknown("a rule that changes the type of a packet"),
    "bri_broute": _BRIDGE,
}

_CT: t.Dict[str, Treatment] = {
    "state": _divided("NEW, or by the tracked value untracked"),
    "direction": _divided("constant: original"),
    "status": _divided(
        "by the tracked value dnat; constant before translation: expected, seen-reply, assured, confirmed"
    ),
    "mark": _divided("tracked"),
    "secmark": _SECMARK,
    "expiration": _unknown("how long conntrack keeps a connection"),
    "helper": _unknown("a helper of conntrack"),
    "l3protocol": _divided("constant for an IP version"),
    "src": _divided(_TUPLE),
    "dst": _divided(_TUPLE),
    "protocol": _divided(),
    "proto_src": _divided(_TUPLE),
    "proto_dst": _divided(_TUPLE),
    "labels": _LABEL,
    "pkts": _unknown("how much a connection carried"),
    "bytes": _unknown("how much a connection carried"),
    "avgpkt": _unknown("how much a connection carried"),
    "zone": _divided("tracked"),
    "eventmask": _unknown("the events of a connection"),
    "src_ip": _divided(_TUPLE),
    "dst_ip": _divided(_TUPLE),
    "src_ip6": _divided(_TUPLE),
    "dst_ip6": _divided(_TUPLE),
    "id": _unknown("the number of a connection"),
}

_CT_SET: t.Dict[str, Treatment] = {
    "mark": _divided("tracked"),
    "zone": _divided("tracked; without effect behind conntrack, and behind a zone that a rule chose"),
    "labels": _irrelevant("no deciding rule may match the label of a connection"),
    "secmark": _SECURITY,
    "eventmask": _COUNTS,
    "helper": _LATER,
}

_FIB_RESULTS: t.Dict[str, Treatment] = {
    "oif": _unknown("the route back to the sender (fib)"),
    "oifname": _unknown("the route back to the sender (fib)"),
    "addrtype": _divided("types by the routing tables; unknown with a device or a mark"),
}

_FIB_FLAGS: t.Dict[str, Treatment] = {
    "saddr": _divided(),
    "daddr": _divided(),
    "mark": _unknown("a route by the mark of a packet (fib)"),
    "iif": _unknown("the type of an address at one link"),
    "oif": _unknown("the type of an address at one link"),
    "present": _unknown("whether there is a route (fib)"),
}

_RT: t.Dict[str, Treatment] = {
    "classid": _unknown("a realm of routes"),
    "nexthop4": _unknown("the gateway of the route"),
    "nexthop6": _unknown("the gateway of the route"),
    "tcpmss": _unknown("the MSS of the route"),
    "xfrm": _IPSEC,
}

_SOCKET_KEYS: t.Dict[str, Treatment] = dict.fromkeys(("transparent", "mark", "wildcard", "cgroupv2"), _SOCKET)

_EXTHDR: t.Dict[str, Treatment] = {
    "ipv6": _unknown(_HEADER),
    "tcpopt": _unknown(_HEADER + "; written: irrelevant, since no deciding rule may match it"),
    "ipv4": _unknown(_HEADER),
    "sctp": _unknown("a chunk of SCTP"),
    "dccp": _unknown("an option of DCCP"),
}

_NUMGEN: t.Dict[str, Treatment] = dict.fromkeys(("incremental", "random"), _divided("by chance"))
_HASH: t.Dict[str, Treatment] = dict.fromkeys(("jenkins", "sym"), _divided("by chance"))
_XFRM: t.Dict[str, Treatment] = dict.fromkeys(
    ("key_unspec", "key_daddr_ip4", "key_daddr_ip6", "key_saddr_ip4", "key_saddr_ip6", "key_reqid", "key_spi"), _IPSEC
)
_TUNNEL_KEYS: t.Dict[str, Treatment] = dict.fromkeys(("path", "id"), _unknown("a tunnel that the packet came through"))

_OBJECTS: t.Dict[str, Treatment] = {
    "unspec": _unknown("an object of no type"),
    "counter": _COUNTS,
    "quota": _EXPRESSIONS["quota"],
    "ct_helper": _LATER,
    "limit": _EXPRESSIONS["limit"],
    "connlimit": _EXPRESSIONS["connlimit"],
    "tunnel": _unknown("a rule that sends packets into a tunnel"),
    "ct_timeout": _LATER,
    "secmark": _SECURITY,
    "ct_expect": _LATER,
    "synproxy": _EXPRESSIONS["synproxy"],
}

_SET_FLAGS: t.Dict[str, Treatment] = {
    "anonymous": _divided(),
    "constant": _divided(),
    "interval": _divided(),
    "map": _divided("verdicts, addresses, ports, marks"),
    "timeout": _unknown("elements that end by themselves"),
    "eval": _divided("elements that rules add: each side is followed; unknown in a map"),
    "object": _divided("by the type of the object"),
    "concat": _divided(),
    "expr": _unknown("an expression at the elements of a set"),
}

_TABLE_FLAGS: t.Dict[str, Treatment] = {
    "dormant": _divided("the kernel skips its chains"),
    "owner": _irrelevant("it is the program that may change the table"),
    "persist": _irrelevant("the table outlives its program"),
}

_CHAIN_FLAGS: t.Dict[str, Treatment] = {
    "base": _divided(),
    "hw_offload": _irrelevant("the hardware does what the chain does"),
    "binding": _divided("a chain of one rule"),
}

_CHAIN_TYPES: t.Dict[str, Treatment] = dict.fromkeys(("filter", "nat", "route"), _divided())

_HOOKS: t.Dict[str, Treatment] = {
    "pre_routing": _divided(),
    "local_in": _divided(),
    "forward": _divided(),
    "local_out": _divided(),
    "post_routing": _divided(),
    "ingress": _unknown("a chain at the hook ingress"),
    "egress": _unknown("a chain at the hook egress"),
}

_FAMILIES: t.Dict[str, Treatment] = {
    "unspec": _irrelevant("no table has it"),
    "inet": _divided(),
    "ipv4": _divided(),
    "arp": _irrelevant("it sees no packet of IP"),
    "netdev": _unknown("a table that sees packets before any other (netdev)"),
    "bridge": _unknown("a table that sees packets inside of a bridge (bridge, ebtables)"),
    "ipv6": _divided(),
    "decnet": _irrelevant("it sees no packet of IP"),
}

_CT_ADDRESSES = _divided("state, protocol, original addresses and ports, status, direction; unknown: reply, expiration")
_PORTS = _divided("ports; unknown: flags, options, types, chunks")

_MATCHES: t.Dict[str, Treatment] = {
    "addrtype": _divided("types by the routing tables; unknown with a limit to an interface"),
    "ah": _unknown("the SPI of IPsec"),
    "bpf": _unknown("a BPF program"),
    "cgroup": _CGROUP,
    "cluster": _divided("by chance: each choice is followed"),
    "comment": _COUNTS,
    "connbytes": _unknown("how much a connection carried"),
    "connlabel": _LABEL,
    "connlimit": _unknown("how many connections there are"),
    "connmark": _divided("tracked"),
    "conntrack": _CT_ADDRESSES,
    "cpu": _unknown("the CPU that handles a packet"),
    "dccp": _unknown("a packet of DCCP"),
    "devgroup": _divided("groups of links"),
    "dscp": _unknown("the DSCP of a packet"),
    "dst": _unknown(_HEADER),
    "ecn": _unknown("the ECN of a packet"),
    "esp": _unknown("the SPI of IPsec"),
    "eui64": _unknown("the hardware address of the sender"),
    "frag": _unknown("a fragment"),
    "hashlimit": _unknown(_RATE + " (hashlimit)"),
    "hbh": _unknown(_HEADER),
    "helper": _unknown("a helper of conntrack"),
    "hl": _unknown("the hop limit of a packet"),
    "icmp": _unknown("the type of an ICMP message"),
    "icmp6": _unknown("the type of an ICMP message"),
    "ipcomp": _unknown("the SPI of IPsec"),
    "iprange": _divided(),
    "ipv6header": _unknown(_HEADER),
    "ipvs": _unknown("a virtual service of IPVS"),
    "l2tp": _TUNNEL,
    "length": _unknown("the length of a packet"),
    "limit": _unknown(_RATE + " (limit)"),
    "mac": _unknown("the hardware address of the sender"),
    "mark": _divided("tracked"),
    "mh": _unknown(_HEADER),
    "multiport": _divided(),
    "nfacct": _irrelevant("it counts; unknown where the object has a quota"),
    "osf": _unknown("the operating system of the sender"),
    "owner": _OWNER,
    "physdev": _BRIDGE,
    "pkttype": _unknown("whether a packet is a broadcast on its link"),
    "policy": _IPSEC,
    "quota": _unknown("how much was carried before (quota)"),
    "rateest": _unknown("a rate that was measured"),
    "realm": _unknown("a realm of routes"),
    "recent": _divided("--set: every packet; else by what came before: each side is followed"),
    "rpfilter": _unknown("the route back to the sender (rpfilter)"),
    "rt": _unknown(_HEADER),
    "sctp": _PORTS,
    "set": _divided("unknown where rules fill the set, its entries end by themselves, or counters are compared"),
    "socket": _divided("never where no socket is bound to the destination; else unknown: a socket of the node"),
    "srh": _unknown(_HEADER),
    "state": _divided("NEW, or by the tracked value untracked"),
    "statistic": _divided("by chance: each choice is followed"),
    "string": _unknown("the content of a packet"),
    "tcp": _PORTS,
    "tcpmss": _unknown("the MSS of a packet"),
    "time": _TIME,
    "tos": _unknown("the TOS of a packet"),
    "ttl": _unknown("the TTL of a packet"),
    "u32": _unknown("bytes of a packet"),
    "udp": _divided("ports"),
}

_TARGETS: t.Dict[str, Treatment] = {
    "ACCEPT": _divided(),
    "AUDIT": _COUNTS,
    "CHECKSUM": _irrelevant("no rule can match the checksum that the kernel would not count again"),
    "CLASSIFY": _PRIORITY,
    "CLUSTERIP": _unknown("a shared address (CLUSTERIP)"),
    "CONNMARK": _divided("tracked; a value of more than five bits of both marks is not known"),
    "CONNSECMARK": _SECURITY,
    "CT": _divided(
        "untracked and zone: tracked, of several rules the first; irrelevant: which helper, events, timeout"
    ),
    "DNAT": _divided("a new destination"),
    "DNPT": _unknown("a translation of prefixes without conntrack (DNPT)"),
    "DROP": _divided(),
    "DSCP": _TOS,
    "ECN": _MSS,
    "HL": _TTL,
    "HMARK": _divided("a mark that is not known"),
    "IDLETIMER": _COUNTS,
    "LED": _COUNTS,
    "LOG": _COUNTS,
    "MARK": _divided("tracked"),
    "MASQUERADE": _divided("a new source"),
    "NETMAP": _divided("a new source or destination"),
    "NFLOG": _COUNTS,
    "NFQUEUE": _unknown("a program that decides about each packet (NFQUEUE)"),
    "NOTRACK": _divided("tracked"),
    "QUEUE": _unknown("a program that decides about each packet (QUEUE)"),
    "RATEEST": _COUNTS,
    "REDIRECT": _divided("a new destination: the node"),
    "REJECT": _divided("the packet ends"),
    "RETURN": _divided(),
    "SECMARK": _SECURITY,
    "SET": _irrelevant("it fills a set, and a match on that set is unknown; unknown with --map-set"),
    "SNAT": _divided("a new source"),
    "SNPT": _unknown("a translation of prefixes without conntrack (SNPT)"),
    "SYNPROXY": _unknown("a proxy for TCP handshakes (SYNPROXY)"),
    "TCPMSS": _MSS,
    "TCPOPTSTRIP": _MSS,
    "TEE": _COPY,
    "TOS": _TOS,
    "TPROXY": _unknown("a proxy that is open on the node"),
    "TRACE": _COUNTS,
    "TTL": _TTL,
    "ULOG": _COUNTS,
}

_IPSETS: t.Dict[str, Treatment] = {
    "bitmap:ip": _divided(),
    "bitmap:ip,mac": _unknown("the hardware address of the sender"),
    "bitmap:port": _divided(),
    "hash:ip": _divided(),
    "hash:ip,mac": _unknown("the hardware address of the sender"),
    "hash:ip,mark": _divided(),
    "hash:ip,port": _divided(),
    "hash:ip,port,ip": _divided(),
    "hash:ip,port,net": _divided(),
    "hash:mac": _unknown("the hardware address of the sender"),
    "hash:net": _divided(),
    "hash:net,iface": _divided("unknown with ports of a bridge"),
    "hash:net,net": _divided(),
    "hash:net,port": _divided(),
    "hash:net,port,net": _divided(),
    "list:set": _divided(),
}

_NOT_OF_A_RULE = _unknown("an attribute that routing rules do not have")
#: in the order of the header: the place is the number
_RULES: t.Dict[str, Treatment] = {
    "unspec": _NOT_OF_A_RULE,
    "dst": _divided(),
    "src": _divided(),
    "iifname": _divided(),
    "goto": _divided(),
    "unused2": _NOT_OF_A_RULE,
    "priority": _irrelevant("the kernel lists rules in their order"),
    "unused3": _NOT_OF_A_RULE,
    "unused4": _NOT_OF_A_RULE,
    "unused5": _NOT_OF_A_RULE,
    "fwmark": _divided("tracked"),
    "flow": _irrelevant("it gives a realm, which is unknown where a rule matches it"),
    "tun_id": _unknown("the key of a tunnel (tun_id)"),
    "suppress_ifgroup": _unknown("the group of a link (suppress_ifgroup)"),
    "suppress_prefixlen": _divided(),
    "table": _divided(),
    "fwmask": _divided("tracked"),
    "oifname": _irrelevant("a forwarded packet is looked up without a link, so it never matches"),
    "pad": _irrelevant("it fills up a message"),
    "l3mdev": _divided("unknown where a link is a VRF"),
    "uid_range": _unknown("the user of a socket (uidrange)"),
    "protocol": _irrelevant("it is the program that made the rule"),
    "ip_proto": _divided(),
    "sport_range": _divided(),
    "dport_range": _divided(),
    "dscp": _unknown("the DSCP of a packet"),
    "flowlabel": _unknown("the flow label of a packet"),
    "flowlabel_mask": _unknown("the flow label of a packet"),
    "sport_mask": _divided(),
    "dport_mask": _divided(),
    "dscp_mask": _unknown("the DSCP of a packet"),
}

_RULE_ACTIONS: t.Dict[str, Treatment] = {
    "unspec": _irrelevant("no rule has it"),
    "to_tbl": _divided(),
    "goto": _divided(),
    "nop": _divided(),
    "res3": _unknown("an action of a routing rule"),
    "res4": _unknown("an action of a routing rule"),
    "blackhole": _divided(),
    "unreachable": _divided(),
    "prohibit": _divided(),
}

_ROUTE_TYPES: t.Dict[str, Treatment] = {
    "unspec": _irrelevant("no route has it"),
    "unicast": _divided(),
    "local": _divided(),
    "broadcast": _divided(),
    "anycast": _divided(),
    "multicast": _divided(),
    "blackhole": _divided(),
    "unreachable": _divided(),
    "prohibit": _divided(),
    "throw": _divided(),
    "nat": _unknown("a route of type nat"),
    "xresolve": _unknown("a route of type xresolve"),
}

_NOT_OF_A_ROUTE = _unknown("an attribute that routes of a node do not have")
#: in the order of the header: the place is the number
_ROUTES: t.Dict[str, Treatment] = {
    "unspec": _NOT_OF_A_ROUTE,
    "dst": _divided(),
    "src": _divided(),
    "iif": _unknown("a route of multicast"),
    "oif": _divided(),
    "gateway": _divided("it decides the link, not the source"),
    "priority": _divided("the order of routes"),
    "prefsrc": _divided("the source that masquerading takes"),
    "metrics": _irrelevant("they limit size and speed of packets"),
    "multipath": _divided("by chance: each path is followed"),
    "protoinfo": _NOT_OF_A_ROUTE,
    "flow": _irrelevant("it gives a realm, which is unknown where a rule matches it"),
    "cacheinfo": _irrelevant("it reports"),
    "session": _NOT_OF_A_ROUTE,
    "mp_algo": _NOT_OF_A_ROUTE,
    "table": _divided(),
    "mark": _NOT_OF_A_ROUTE,
    "mfc_stats": _NOT_OF_A_ROUTE,
    "via": _divided("as gateway"),
    "newdst": _unknown("a label of MPLS"),
    "pref": _divided("the order of routes of IPv6"),
    "encap_type": _unknown("a route into a tunnel (encap)"),
    "encap": _unknown("a route into a tunnel (encap)"),
    "expires": _irrelevant("it is the time that the route lasts; the route is there now"),
    "pad": _irrelevant("it fills up a message"),
    "uid": _NOT_OF_A_ROUTE,
    "ttl_propagate": _irrelevant("it decides about the TTL"),
    "ip_proto": _NOT_OF_A_ROUTE,
    "sport": _NOT_OF_A_ROUTE,
    "dport": _NOT_OF_A_ROUTE,
    "nh_id": _divided("by the nexthop"),
    "flowlabel": _NOT_OF_A_ROUTE,
}

_PLAIN = _divided("a link that carries packets as they are")
_WRAPS = _divided("a link: the packet that is wrapped has its source decided before")
_DECIDES = _unknown("a link that chooses routes or addresses by itself")

_LINKS: t.Dict[str, Treatment] = {
    "amt": _WRAPS,
    "bareudp": _WRAPS,
    "bond": _PLAIN,
    "bridge": _PLAIN,
    "can": _irrelevant("it carries no packet of IP"),
    "dsa": _PLAIN,
    "dummy": _PLAIN,
    "erspan": _WRAPS,
    "geneve": _WRAPS,
    "gre": _WRAPS,
    "gretap": _WRAPS,
    "gtp": _WRAPS,
    "hsr": _PLAIN,
    "ifb": _PLAIN,
    "ip6erspan": _WRAPS,
    "ip6gre": _WRAPS,
    "ip6gretap": _WRAPS,
    "ip6tnl": _WRAPS,
    "ipip": _WRAPS,
    "ipoib": _PLAIN,
    "ipvlan": _DECIDES,
    "ipvtap": _DECIDES,
    "lowpan": _PLAIN,
    "macsec": _WRAPS,
    "macvlan": _PLAIN,
    "macvtap": _PLAIN,
    "netdevsim": _PLAIN,
    "netkit": _DECIDES,
    "nlmon": _irrelevant("it only reports packets"),
    "pfcp": _WRAPS,
    "rmnet": _PLAIN,
    "sit": _WRAPS,
    "team": _PLAIN,
    "tun": _PLAIN,
    "vcan": _irrelevant("it carries no packet of IP"),
    "veth": _PLAIN,
    "virt_wifi": _PLAIN,
    "vlan": _PLAIN,
    "vrf": _unknown("a VRF: rules see its packets twice"),
    "vti": _IPSEC,
    "vxcan": _irrelevant("it carries no packet of IP"),
    "vxlan": _WRAPS,
    "wireguard": _WRAPS,
    "wwan": _PLAIN,
    "xfrm": _IPSEC,
}

_COPIED = _irrelevant("the copy has it, and it is the same for all packets of a way")
_SETTINGS: t.Dict[str, Treatment] = {
    "accept_local": _irrelevant("pods do not send from addresses of the node"),
    "accept_source_route": _irrelevant("tested packets have no options"),
    "disable_policy": _irrelevant("policies of IPsec are reported, if there are any"),
    "disable_xfrm": _irrelevant("policies of IPsec are reported, if there are any"),
    "forwarding": _COPIED,
    "ignore_routes_with_linkdown": _divided("routes over links without a carrier"),
    "route_localnet": _irrelevant("packets to 127.0.0.0/8 and ::1 are not tested"),
    "rp_filter": _divided(
        "by the route back to the source: whether there is one, and whether it leads over the link; a packet that is "
        "dropped breaks no promise; unknown where the route back depends on ports or a VRF"
    ),
    "src_valid_mark": _divided("whether the route back to the source depends on the mark"),
    "disable_ipv6": _COPIED,
}

EXPRESSION = "expression"
META, META_SET, CT, CT_SET, PAYLOAD, FIELD = "meta", "meta set", "ct", "ct set", "payload", "payload set"
FIB, FIB_FLAG, RT, SOCKET, EXTHDR, OBJECT, SET_FLAG = "fib", "fib flag", "rt", "socket", "exthdr", "object", "set flag"
MATCH, TARGET, IPSET, HOOK, FAMILY = "match", "target", "ipset", "hook", "family"
RULE, RULE_ACTION, ROUTE, ROUTE_TYPE, LINK = "rule", "rule action", "route", "route type", "link"

_TABLES_H = "linux/netfilter/nf_tables.h"
AREAS: t.Mapping[str, Area] = {
    EXPRESSION: Area("Expressions of nf_tables", "nft(8), " + _TABLES_H, _EXPRESSIONS),
    "verdict": Area("Verdicts of nf_tables", _TABLES_H + ": enum nft_verdicts NFT_", _VERDICTS),
    PAYLOAD: Area("Headers that `payload` reads", _TABLES_H + ": enum nft_payload_bases NFT_PAYLOAD_", _PAYLOAD),
    FIELD: Area("Fields that `payload` writes", "nft(8)", _FIELDS),
    META: Area("Keys of `meta`", _TABLES_H + ": enum nft_meta_keys NFT_META_", _META),
    META_SET: Area("Keys of `meta` that rules set", "nft(8)", _META_SET),
    CT: Area("Keys of `ct`", _TABLES_H + ": enum nft_ct_keys NFT_CT_", _CT),
    CT_SET: Area("Keys of `ct` that rules set", "nft(8)", _CT_SET),
    FIB: Area("Results of `fib`", _TABLES_H + ": enum nft_fib_result NFT_FIB_RESULT_", _FIB_RESULTS),
    FIB_FLAG: Area("What `fib` looks at", _TABLES_H + ": enum nft_fib_flags NFTA_FIB_F_", _FIB_FLAGS),
    RT: Area("Keys of `rt`", _TABLES_H + ": enum nft_rt_keys NFT_RT_", _RT),
    SOCKET: Area("Keys of `socket`", _TABLES_H + ": enum nft_socket_keys NFT_SOCKET_", _SOCKET_KEYS),
    EXTHDR: Area("What `exthdr` reads", _TABLES_H + ": enum nft_exthdr_op NFT_EXTHDR_OP_", _EXTHDR),
    "numgen": Area("Types of `numgen`", _TABLES_H + ": enum nft_ng_types NFT_NG_", _NUMGEN),
    "hash": Area("Types of `hash`", _TABLES_H + ": enum nft_hash_types NFT_HASH_", _HASH),
    "xfrm": Area("Keys of `xfrm`", _TABLES_H + ": enum nft_xfrm_keys NFT_XFRM_", _XFRM),
    "tunnel": Area("Keys of `tunnel`", _TABLES_H + ": enum nft_tunnel_keys NFT_TUNNEL_", _TUNNEL_KEYS),
    OBJECT: Area("Objects of nf_tables", _TABLES_H + ": NFT_OBJECT_", _OBJECTS),
    SET_FLAG: Area("Flags of sets", _TABLES_H + ": enum nft_set_flags NFT_SET_", _SET_FLAGS),
    "table flag": Area("Flags of tables", _TABLES_H + ": enum nft_table_flags NFT_TABLE_F_", _TABLE_FLAGS),
    "chain flag": Area("Flags of chains", _TABLES_H + ": enum nft_chain_flags NFT_CHAIN_", _CHAIN_FLAGS),
    "chain type": Area("Types of chains", "nft(8)", _CHAIN_TYPES),
    HOOK: Area("Hooks", "linux/netfilter.h: NF_INET_", _HOOKS),
    FAMILY: Area("Families of tables", "linux/netfilter.h: NFPROTO_", _FAMILIES),
    MATCH: Area("Matches of xtables", "iptables-extensions(8)", _MATCHES),
    TARGET: Area("Targets of xtables", "iptables-extensions(8)", _TARGETS),
    IPSET: Area("Types of ipset", "ipset(8)", _IPSETS),
    RULE: Area("Selectors of routing rules", "linux/fib_rules.h: FRA_", _RULES),
    RULE_ACTION: Area("Actions of routing rules", "linux/fib_rules.h: FR_ACT_", _RULE_ACTIONS),
    ROUTE: Area("Attributes of routes", "linux/rtnetlink.h: enum rtattr_type_t RTA_", _ROUTES),
    ROUTE_TYPE: Area("Types of routes", "linux/rtnetlink.h: RTN_", _ROUTE_TYPES),
    LINK: Area("Kinds of links", "ip-link(8)", _LINKS),
    "setting": Area("Settings of links in net.ipv4.conf and net.ipv6.conf", "Documentation/networking", _SETTINGS),
}


def treatment(area: str, name: str) -> Treatment:
    """Return what is made of one thing; unknown where it is not listed."""
    found = AREAS[area].entries.get(name)
    return found or _unknown("%s %s, which is not known here" % (area, name or "without a name"))


def because(area: str, name: str) -> str:
    """Return the object of "because of" for something that is not understood."""
    found = treatment(area, name)
    return found.text if found.kind == UNKNOWN else "%s %s" % (area, name)
