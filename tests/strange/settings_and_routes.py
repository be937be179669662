# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes have besides rules: kernel settings, kinds of addresses and routes, and statements that only some use."""

from __future__ import annotations

import ipaddress
import typing as t

from . import nodes
from .programs import Program

#: Statements of nft that act on a packet and let it go on, and the hook where they may stand.
NFT = (
    ("forward", 'log prefix "x"'),
    ("forward", "counter"),
    ("prerouting", "meta priority set 1:2"),
    ("prerouting", "meta nftrace set 1"),
    ("forward", "ct label set 3"),
    ("prerouting", "ip dscp set af11"),
    ("forward", "ip ttl set 40"),
    ("forward", "tcp flags syn tcp option maxseg size set 1200"),
    ("forward", "limit rate 1000/second"),
    ("forward", "quota 10 mbytes"),
    ("prerouting", "dup to 198.51.100.254"),
    ("prerouting", "udp dport set 5353"),
    ("prerouting", "ip daddr set 203.0.113.77"),
    ("forward", "ip saddr set 192.0.2.99"),
    ("postrouting", "ip saddr set 192.0.2.99"),
    ("postrouting", "udp sport set 4005"),
    ("prerouting", "tproxy to 127.0.0.1:1080"),
    ("forward", "queue flags bypass to 7"),
    ("prerouting", 'ct helper set "none"'),
    ("forward", "ct mark set jhash ip daddr mod 4"),
    ("prerouting", "meta mark set numgen inc mod 3"),
    ("prerouting", "meta mark set ip daddr"),
    ("prerouting", "meta mark set meta mark << 2"),
    ("prerouting", "meta pkttype set host"),
    ("forward", "ct zone set 3"),
    ("forward", "notrack"),
    ("forward", "add @seen { ip daddr }"),
    ("forward", "delete @seen { ip daddr }"),
    ("forward", "meta mark set tcp dport map { 80 : 0x3, 443 : 0x10 }"),
)
#: Targets of iptables that let a packet go on, and table and chain.
XT = (
    ("mangle", "PREROUTING", "TEE --gateway 198.51.100.254"),
    ("mangle", "FORWARD", "NFLOG --nflog-group 3"),
    ("mangle", "FORWARD", "NFQUEUE --queue-num 7 --queue-bypass"),
    ("mangle", "PREROUTING", "HMARK --hmark-tuple src,dst --hmark-mod 4 --hmark-offset 1 --hmark-rnd 7"),
    ("mangle", "POSTROUTING", "CLASSIFY --set-class 1:2"),
    ("mangle", "FORWARD", "IDLETIMER --timeout 60 --label x"),
    ("mangle", "PREROUTING", "DSCP --set-dscp 4"),
    ("mangle", "PREROUTING", "TOS --set-tos 0x10"),
    ("mangle", "FORWARD", "TTL --ttl-dec 3"),
    ("mangle", "POSTROUTING", "CHECKSUM --checksum-fill"),
    ("mangle", "PREROUTING", "TPROXY --on-port 1080 --tproxy-mark 0x1/0x1"),
    ("raw", "PREROUTING", "CT --zone-orig 5"),
    ("raw", "PREROUTING", "CT --zone mark"),
    ("raw", "PREROUTING", "CT --ctevents new"),
    ("raw", "PREROUTING", "TRACE"),
    ("mangle", "FORWARD", "CONNMARK --save-mark --nfmask 0xf0 --ctmask 0xff"),
    ("mangle", "PREROUTING", "CONNMARK --set-xmark 0x3/0xf"),
    ("nat", "PREROUTING", "NETMAP --to 203.0.113.0/24"),
    ("nat", "PREROUTING", "DNAT --to-destination 203.0.113.77-203.0.113.79"),
)

REGISTER: t.List[t.Callable[[SettingsAndRoutes], None]] = []


class SettingsAndRoutes(Program):
    """A program, on a node with some of what is listed here."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed + 500000)
        #: the uplink whose other end is down
        self.dark = -1
        for feature in self.r.sample(REGISTER, self.r.randint(2, 4)):
            self.begin("settings:" + feature.__name__, self.r.random() < 0.3)
            feature(self)

    def make(self) -> None:
        super().make()
        if self.dark >= 0:
            self.outsides[self.dark].ip(["link set e%d down" % self.dark])
        for name, value in self.sysctls.items():
            try:
                self.space.sysctl({name: value})
            except OSError as exc:
                self.skipped.append("%s: %s" % (name, exc))

    def up(self) -> nodes.Uplink:
        return self.r.choice(self.uplinks)


def feature(function: t.Callable[[SettingsAndRoutes], None]) -> t.Callable[[SettingsAndRoutes], None]:
    """Add a feature."""
    REGISTER.append(function)
    return function


def _late(n: SettingsAndRoutes, *lines: str) -> None:
    for line in lines:
        n.step("ip", line + "\n", late=False)


@feature
def bridge_rules(n: SettingsAndRoutes) -> None:
    """Have packets inside of a bridge meet the rules of iptables, as most nodes of Kubernetes have it."""
    n.sysctls["bridge/bridge-nf-call-iptables"] = 1
    n.sysctls["bridge/bridge-nf-call-ip6tables"] = n.r.randint(0, 1)
    n.interest(dst="10.244.1.0/30")


@feature
def strict_reverse_path(n: SettingsAndRoutes) -> None:
    value = n.r.choice([1, 2])
    for up in n.uplinks:
        n.sysctls["ipv4/conf/%s/rp_filter" % up.name] = value
    n.sysctls["ipv4/conf/%s/rp_filter" % n.pods[0].link] = value
    n.sysctls["ipv4/conf/all/src_valid_mark"] = n.r.randint(0, 1)


@feature
def no_forwarding_of_a_pod(n: SettingsAndRoutes) -> None:
    n.sysctls["ipv4/conf/%s/forwarding" % n.pods[-1].link] = 0


@feature
def broadcasts_are_forwarded(n: SettingsAndRoutes) -> None:
    for name in ("all", *(up.name for up in n.uplinks), n.pods[0].link):
        n.sysctls["ipv4/conf/%s/bc_forwarding" % name] = 1
    n.interest(dst="198.51.100.255/32")
    n.interest(dst="198.51.100.0/32")


@feature
def loopback_is_routed(n: SettingsAndRoutes) -> None:
    n.sysctls["ipv4/conf/all/route_localnet"] = 1
    n.interest(dst="127.0.0.9/32")
    n.interest(dst="0.1.2.3/32")
    n.interest(dst="240.1.2.3/32")
    n.ipt(
        "nat",
        "-A PREROUTING -d %s -p tcp -j DNAT --to-destination 203.0.113.77" % n.r.choice(["127.0.0.0/8", "0.0.0.0/4"]),
    )


@feature
def local_accept(n: SettingsAndRoutes) -> None:
    n.sysctls["ipv4/conf/all/accept_local"] = 1
    n.sysctls["ipv4/fib_multipath_hash_policy"] = n.r.choice([0, 1, 2])
    n.sysctls["ipv4/fib_multipath_use_neigh"] = 1
    n.sysctls["netfilter/nf_conntrack_checksum"] = n.r.randint(0, 1)
    n.sysctls["ipv4/ip_forward_use_pmtu"] = 1


@feature
def routes_of_other_types(n: SettingsAndRoutes) -> None:
    for kind, device in (("local", "lo"), ("broadcast", n.up().name), ("anycast", "lo"), ("multicast", n.up().name)):
        if n.r.random() < 0.5:
            table = n.r.choice(["main", "local"])
            n.lines.append("route add %s %s dev %s table %s" % (kind, n.network(), device, table))


@feature
def second_addresses(n: SettingsAndRoutes) -> None:
    up = n.up()
    if not up.numbered:
        return
    base = up.four[0].rpartition(".")[0]
    for text, more in (
        ("%s.9/24" % base, ""),
        ("%s.10/24" % base, " preferred_lft 0"),
        ("%s.33/28" % base, " label %s:x" % up.name),
        ("203.0.112.5/24", ""),
        ("192.0.2.66/32", " scope link"),
        ("192.0.2.67/32", " scope host"),
        ("192.0.2.68 peer 192.0.77.1/32", ""),
        ("%s.200/25" % base, " noprefixroute"),
    ):
        if n.r.random() < 0.4:
            n.lines.append("addr add %s dev %s%s" % (text, up.name, more))
            up.preferred.append((nodes.EVERYWHERE, text.partition("/")[0].partition(" ")[0]))


@feature
def other_order_of_addresses(n: SettingsAndRoutes) -> None:
    """Remove the first address of the uplink, and add it again behind another one."""
    up = n.up()
    if up.numbered:
        base = up.four[0].rpartition(".")[0]
        first = n.lines[:]
        n.lines[:] = ["addr add %s.77/24 dev %s" % (base, up.name), *first]
        up.preferred.append((nodes.EVERYWHERE, "%s.77" % base))


@feature
def selectors_that_few_use(n: SettingsAndRoutes) -> None:
    for text in ("tun_id 5", "l3mdev", "realms 5/6", "protocol 99 to 9.9.9.9", "oif none0", "iif lo"):
        if n.r.random() < 0.4:
            number = n.r.randrange(300, 400)
            look = "" if text == "l3mdev" else " lookup %d" % n.r.choice([201, 254])
            n.lines.append("rule add priority %d %s%s" % (number, text, look))
    if n.r.random() < 0.4:
        n.lines.append("rule add priority 450 lookup main suppress_ifgroup %d" % n.r.choice([0, 5]))


@feature
def a_link_without_carrier(n: SettingsAndRoutes) -> None:
    """Take the carrier of a link: its routes stay, and are asked, unless the node is told to ignore them."""
    if len(n.uplinks) > 1:
        up = n.uplinks[-1]
        if n.r.random() < 0.5:
            n.sysctls["ipv4/conf/%s/ignore_routes_with_linkdown" % up.name] = 1
        n.dark = up.number


@feature
def a_link_that_is_down(n: SettingsAndRoutes) -> None:
    if len(n.uplinks) > 1:
        _late(n, "link set %s down" % n.uplinks[-1].name)


@feature
def statements_of_nft(n: SettingsAndRoutes) -> None:
    hook, statement = n.r.choice(NFT)
    what: t.Dict[str, t.Any] = {"dst": n.network()}
    n.interest(**what)
    if "udp" in statement:
        n.interest(proto="udp", **what)
    rank = n.r.choice([-310, -150, 0, 90, 150, 300])
    head = " set seen {\n  type ipv4_addr\n  size 99\n  flags dynamic\n }\n" if "@seen" in statement else ""
    asks = "  ip daddr @seen masquerade\n" if head else ""
    n.nft(
        "table ip wide%d {\n%s chain a {\n  type filter hook %s priority %d;\n  %sip daddr %s %s\n }\n"
        " chain z {\n  type nat hook postrouting priority 95;\n%s  meta mark 0x1-0x3 %s\n  ct mark 0x1-0x3 %s\n }\n}\n"
        % (len(n.steps), head, hook, rank, "meta l4proto tcp " if "tproxy" in statement else "", what["dst"], statement,
           asks, n.r.choice(["masquerade", "accept"]), n.r.choice(["snat to 192.0.2.25", "return"]))
    )  # fmt: skip


@feature
def targets_of_iptables(n: SettingsAndRoutes) -> None:
    table, chain, target = n.r.choice(XT)
    network = n.network()
    n.interest(dst=network)
    more = "-p tcp " if "TPROXY" in target else ""
    n.ipt(table, "-A %s -d %s %s-j %s" % (chain, network, more, target))
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0x1/0x7 -j %s" % n.r.choice(["MASQUERADE", "ACCEPT"]))


@feature
def rules_at_the_edge(n: SettingsAndRoutes) -> None:
    """Add chains before and behind all others: of devices, of bridges, and of ARP."""
    n.nft("table arp a {\n chain c {\n  type filter hook input priority 0;\n  accept\n }\n}\n")
    if n.r.random() < 0.5:
        n.nft(
            "table netdev out {\n chain c {\n  type filter hook egress device %s priority 0;\n"
            "  ip saddr %s ip saddr set 192.0.2.99\n }\n}\n" % (n.up().name, n.pod())
        )


@feature
def a_flowtable(n: SettingsAndRoutes) -> None:
    n.nft(
        "table ip flows {\n flowtable f {\n  hook ingress priority 0;\n  devices = { %s, %s };\n }\n"
        " chain c {\n  type filter hook forward priority 0;\n  ip protocol { tcp, udp } flow add @f\n }\n}\n"
        % (n.uplinks[0].name, n.pods[0].link)
    )


@feature
def objects_of_nft(n: SettingsAndRoutes) -> None:
    n.nft(
        "table ip objects {\n counter c { }\n limit l { rate 1000/second; }\n"
        ' ct helper h {\n  type "ftp" protocol tcp;\n }\n'
        " ct timeout o {\n  protocol tcp;\n  policy = { established : 100 };\n }\n"
        ' map m {\n  type ipv4_addr : counter\n  elements = { %s : "c" }\n }\n'
        " chain c {\n  type filter hook forward priority 0;\n  counter name ip daddr map @m\n"
        '  limit name "l" accept\n }\n}\n' % n.r.choice(n.hosts)
    )


@feature
def translation_of_many_kinds(n: SettingsAndRoutes) -> None:
    network = n.network()
    n.interest(dst=network, proto="tcp")
    statement = n.r.choice(
        [
            "meta l4proto tcp masquerade to :2000-3000",
            "snat to 192.0.2.25 persistent",
            "meta l4proto tcp snat to 192.0.2.25:4000-5000",
            "snat to 192.0.2.24-192.0.2.26",
            "snat ip prefix to ip saddr map { 10.244.0.0/16 : 198.18.0.0/16 }",
            "snat to ip daddr",
            "snat to jhash ip daddr mod 2 map { 0 : 192.0.2.25, 1 : 192.0.2.7 }",
            "snat to numgen inc mod 2 map { 0 : 192.0.2.25, 1 : 192.0.2.7 }",
            "snat to ip saddr . ip daddr map { %s . %s : 192.0.2.25 }" % (n.pod(), n.r.choice(n.hosts)),
            "snat to ip saddr map { 10.244.1.0/24 : 192.0.2.25, 10.244.9.0/24 : 192.0.2.7 }",
        ]
    )
    n.nft(
        "table ip many {\n chain c {\n  type nat hook postrouting priority 96;\n  ip daddr %s %s\n }\n}\n"
        % (network, statement)
    )


@feature
def labels_of_addresses(n: SettingsAndRoutes) -> None:
    if not n.six:
        return
    n.lines.append("addrlabel add prefix 2001:db8::/32 label 99")
    up = n.uplinks[0]
    if up.numbered:
        for text, more in (("2001:db8:0::77/64", " preferred_lft 0 valid_lft 9999"), ("fd77::1/64", "")):
            if n.r.random() < 0.6:
                n.lines.append("addr add %s dev %s%s nodad" % (text, up.name, more))
                up.preferred.append(("::/0", str(ipaddress.ip_address(text.partition("/")[0]))))
    n.interest(dst="2606:4700::/32")
