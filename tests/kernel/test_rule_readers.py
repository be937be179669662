# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether rules mean to the readers what they mean to the kernel: real packets, and the counter of each rule."""

from __future__ import annotations

import ipaddress
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import rules, xt_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import ipsets, nf_tables, xtables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from support.actor_rules import IPTABLES, SHAPES, Shape
from support.full_policy import full_policy
from support.kernel_matches import ICMP, ICMPV6, NOT_TRACKED, REFUSED, SCTP, TCP, UDP, Judge, Probe
from support.modules import apply
from support.namespaces import Namespace

_A, _B, _C = "10.244.1.5", "10.244.1.77", "192.0.2.9"
_SERVICE, _POD, _OUT, _LOCAL = "10.96.0.10", "10.244.9.9", "203.0.113.7", "10.244.1.1"

PACKETS = [
    Probe(_A, _SERVICE, TCP, 1025, 80),
    Probe(_A, _SERVICE, TCP, 40000, 443),
    Probe(_B, _SERVICE, UDP, 1026, 53),
    Probe(_B, _POD, TCP, 1027, 8080),
    Probe(_C, _POD, UDP, 53, 4789),
    Probe(_A, _OUT, SCTP, 1028, 132),
    Probe(_B, _OUT, SCTP, 1029, 9999),
    Probe(_A, _OUT, TCP, 2001, 80),
    Probe(_A, _OUT, TCP, 2002, 80),
    Probe(_A, _OUT, UDP, 2003, 53),
    Probe(_A, _OUT, TCP, 2011, 443),
    Probe(_B, _OUT, TCP, 2012, 443),
    Probe(_A, _OUT, TCP, NOT_TRACKED, 80),
    Probe(_A, _OUT, TCP, REFUSED, 80),
    Probe(_A, _LOCAL, TCP, 1030, 30080),
    Probe(_C, "198.51.100.1", UDP, 1031, 53),
    Probe(_A, _OUT, ICMP, 9, 0),
    Probe(_A, "224.0.0.251", UDP, 5353, 5353),
    Probe("10.244.1.8", _OUT, TCP, 1032, 8443, "vx1"),
    Probe("10.244.1.9", _SERVICE, TCP, 1033, 80, "vx1"),
]
PACKETS6 = [
    Probe("fd00:1::5", "fd00:96::10", TCP, 1025, 80),
    Probe("fd00:1::5", "fd00:96::10", UDP, 1026, 53),
    Probe("fd00:1::77", "2001:db8::1", TCP, 2001, 443),
    Probe("fd00:1::77", "2001:db8::1", ICMPV6, 9, 0),
    Probe("fd00:1::5", "fd00:1::1", TCP, 1027, 30080),
    Probe("fd00:2::5", "fd00:7::9", SCTP, 1028, 132),
    Probe("fd00:2::5", "fd00:7::9", TCP, 1029, 8080, "vx1"),
    Probe("fd00:1::5", "2001:db8::1", TCP, NOT_TRACKED, 80),
]

IPTABLES_RULES = """
-s 10.244.1.5
! -s 10.244.1.0/24
-d 10.96.0.0/12
-s 10.244.1.0/26 ! -d 10.0.0.0/8
-p tcp
! -p tcp
-p 4
-p udp --dport 53
-p tcp --dport 80:443
-p tcp --sport 1024:2000
-p tcp ! --sport 2001:2100 --dport 80
-p sctp ! --dport 1:131
-p tcp --syn
-p tcp ! --syn
-p tcp --tcp-flags SYN,ACK SYN,ACK
-p tcp -m multiport --dports 80,8080,30000:32767
-p udp -m multiport --sports 53,1026
-p tcp -m multiport --ports 80,2011
-p tcp -m multiport ! --ports 80,2011
-m iprange --src-range 10.244.1.4-10.244.1.8
-m iprange ! --dst-range 10.96.0.0-203.0.113.6
-m iprange ! --src-range 10.244.1.4-10.244.1.8 --dst-range 10.0.0.0-10.255.255.255
-m mark --mark 0x4000/0x4000
-m mark ! --mark 0x4000/0x4000
-m mark --mark 0x5/0xf
-m connmark --mark 0x80/0x80
-m connmark ! --mark 0x80/0x80
-i cali1
-i cali+
! -i cali+
-m conntrack --ctstate NEW
-m conntrack ! --ctstate NEW
-m conntrack --ctstate RELATED,ESTABLISHED
-m conntrack ! --ctstate RELATED,ESTABLISHED
-m conntrack --ctstate INVALID
-m conntrack --ctstate UNTRACKED
-m conntrack --ctstate DNAT
-m conntrack ! --ctstate DNAT
-m conntrack --ctstate INVALID,DNAT
-m conntrack --ctproto tcp
-m conntrack --ctorigsrc 10.244.1.0/26
-m conntrack ! --ctorigdst 10.0.0.0/8
-m conntrack --ctorigdst 203.0.113.7 --ctorigdstport 80
-p tcp -m conntrack --ctorigsrcport 1024:1031
-m conntrack --ctdir ORIGINAL
-m conntrack --ctdir REPLY
-m conntrack --ctstatus NONE
-m conntrack --ctstatus ASSURED,CONFIRMED
-m conntrack ! --ctstatus SEEN_REPLY
-m conntrack --ctstate NEW,INVALID --ctorigdst 10.0.0.0/8
-m state --state ESTABLISHED,UNTRACKED
-m addrtype --dst-type LOCAL
-m addrtype ! --dst-type LOCAL
-m addrtype --dst-type LOCAL,MULTICAST
-m addrtype --src-type LOCAL
-m set --match-set nets src
-m set ! --match-set nets dst
-m set --match-set services dst,dst
-m set ! --match-set services dst,dst
-m set --match-set ports dst
-m set --match-set three dst,dst,src
-m comment --comment "a rule -d 1.2.3.4 -j DROP" -p udp
""".strip().splitlines()
IP6TABLES_RULES = """
-s fd00:1::/64
! -d fd00::/8
-p tcp --dport 80
-p udp
! -p ipv6-icmp
-m mark --mark 0x4000/0x4000
-m conntrack --ctstate NEW --ctorigdst fd00:96::/32
-m conntrack --ctstate UNTRACKED
-m addrtype --dst-type LOCAL
-m addrtype ! --dst-type LOCAL
-m iprange --dst-range fd00:1::-fd00:8::
-i vx+
-p tcp -m multiport --dports 443,8080
""".strip().splitlines()
_IPSETS = """create nets hash:net
add nets 10.244.1.0/26
add nets 10.96.0.0/12
create services hash:ip,port
add services 10.96.0.10,tcp:80
add services 10.96.0.10,udp:53
create ports bitmap:port range 0-65535
add ports 80
add ports 53
create three hash:ip,port,ip
add three 203.0.113.7,tcp:80,10.244.1.5
add three 10.96.0.10,tcp:443,10.244.1.5
"""

NFT_RULES = """
ip saddr 10.244.1.5
ip saddr != 10.244.1.0/24
ip daddr 10.96.0.0/12
ip daddr 10.0.0.0/8 ip saddr 10.244.1.0/26
ip daddr 10.96.0.5-10.96.0.20
ip daddr { 10.96.0.10, 203.0.113.7 }
ip daddr { 10.96.0.0/16, 203.0.113.0-203.0.113.9 }
ip daddr @nets
ip saddr != @nets
ip daddr . tcp dport { 10.96.0.10 . 80, 203.0.113.7 . 443 }
ip daddr . tcp dport != { 10.96.0.10 . 80, 203.0.113.7 . 443 }
ip saddr . ip daddr . meta l4proto { 10.244.1.5 . 10.96.0.10 . tcp, 192.0.2.9 . 10.244.9.9 . udp }
ip saddr . tcp dport @ranges
ip saddr . tcp dport != @ranges
ip saddr < 10.244.1.50
ip saddr >= 10.244.1.50
ip protocol tcp
ip protocol != { tcp, udp }
meta l4proto { tcp, udp } th dport { 53, 80 }
tcp dport != 80
tcp dport 1-442
tcp dport != 1-442
tcp dport > 443
tcp dport <= 80
tcp sport 2001-2099 tcp dport 80
udp dport 53
udp sport 53
sctp dport 132
meta mark 0x4000
meta mark != 0
meta mark & 0x4000 == 0x4000
meta mark and 0x4000 != 0
meta mark { 0x4000, 0x10 }
meta mark & 0xf { 5, 7 }
ct mark 0x80
ct mark & 0x80 == 0
ct state new
ct state != new
ct state established,related
ct state { new, untracked }
ct state invalid
ct state invalid,untracked
ct state & (new | untracked) != 0
ct direction original
ct direction reply
ct status dnat
ct status & dnat == 0
ct status seen-reply
ct protocol tcp
ct l3proto ipv4
ct original ip saddr 10.244.1.0/26
ct original ip daddr 203.0.113.7
meta l4proto tcp ct original proto-dst 80
iifname "cali1"
iifname "cali*"
iifname != "cali*"
iifname { "vx1", "eth9" }
iifname { "cali*", "eth*" }
iif cali1
iif { cali1, vx1 }
iifname . ip daddr { "cali1" . 10.96.0.10 }
fib daddr type local
fib daddr type != local
fib daddr type { local, multicast }
fib saddr type local
meta nfproto ipv4
meta nfproto ipv6
meta protocol ip
tcp flags & (syn|ack) == syn
ip daddr 10.96.0.10 tcp dport { 80, 443 } ip saddr != 10.244.1.77
th dport 80 meta l4proto tcp
@nh,128,8 10
@nh,96,32 0x0af40105
ip daddr vmap { 10.96.0.0/12 : hit, 203.0.113.7 : hit }
ip daddr . meta l4proto . th dport vmap { 10.96.0.10 . tcp . 80 : hit, 10.96.0.10 . udp . 53 : hit }
tcp dport vmap { 80 : continue, 443 : hit, 8000-9000 : hit }
tcp dport vmap { 80 : continue, 443 : return, * : hit }
meta mark vmap { 0x4000 : hit, 0x8005 : continue }
ct state vmap { new : hit, invalid : hit }
fib daddr type vmap { local : hit }
iifname vmap { "cali1" : hit }
iifname vmap { "cali*" : hit, "vx*" : continue }
meta l4proto icmp
""".strip().splitlines()
_NFT_SETS = """
    set nets { type ipv4_addr; flags interval; elements = { 10.244.1.0/26, 10.96.0.0/12 }; }
    set ranges { type ipv4_addr . inet_service; flags interval;
                 elements = { 10.244.1.0/26 . 80-443, 10.244.0.0/16 . 8000-9000 }; }
"""
NFT_RULES6 = """
ip6 saddr fd00:1::/64
ip6 daddr != fd00::/8
ip6 daddr { fd00:96::/32, 2001:db8::1 }
ip6 daddr . tcp dport { fd00:96::10 . 80 }
tcp dport 80
udp dport 53
meta l4proto ipv6-icmp
meta l4proto tcp
ct state new
ct original ip6 daddr 2001:db8::1
ct original ip6 saddr fd00:1::5
meta nfproto ipv4
meta nfproto ipv6
meta protocol ip6
ip saddr 10.244.1.5
ct l3proto ipv6
fib daddr type local
""".strip().splitlines()
#: rules that no packet here matches, or that all do
SAME = {
    "ct direction original",
    "meta nfproto ipv4",
    "meta nfproto ipv6",
    "meta protocol ip",
    "meta protocol ip6",
    "iif { cali1, vx1 }",
    "ip saddr 10.244.1.5",
    "ct l3proto ipv6",
    "ct l3proto ipv4",
    "ct state established,related",
    "ct direction reply",
    "ct status dnat",
    "ct status seen-reply",
    "fib saddr type local",
    "-p 4",
    "-p tcp ! --syn",
    "-p tcp --tcp-flags SYN,ACK SYN,ACK",
    "-m conntrack --ctstate RELATED,ESTABLISHED",
    "-m conntrack ! --ctstate RELATED,ESTABLISHED",
    "-m conntrack --ctstate DNAT",
    "-m conntrack ! --ctstate DNAT",
    "-m conntrack --ctstatus NONE",
    "-m conntrack --ctstatus ASSURED,CONFIRMED",
    "-m conntrack --ctdir REPLY",
    "-m addrtype --src-type LOCAL",
}


def _probe_table(family: str, listed: t.Sequence[str], sets: str = "") -> str:
    """Each rule with a chain of its own; a map leads to another, which counts."""
    chains = ""
    for number, text in enumerate(listed):
        if "vmap" in text:
            counted = text.replace(": hit", ": jump h%d" % number)
            chains += "    chain h%d { counter; }\n    chain p%d { %s; }\n" % (number, number, counted)
        else:
            chains += "    chain p%d { %s counter return; }\n" % (number, text)
    jumps = "".join("        jump p%d\n" % number for number in range(len(listed)))
    return (
        "table %s probe {\n%s%s"
        "    chain seen { counter; }\n"
        "    chain base {\n        type filter hook prerouting priority -100;\n%s        jump seen\n    }\n}\n"
    ) % (family, sets, chains, jumps)


def _compare(
    judge: Judge,
    table: rules.RuleTable,
    listed: t.Sequence[str],
    packets: t.Sequence[Probe],
    count: t.Callable[[], t.Dict[str, int]],
) -> None:
    """Send each packet, and compare which rules matched."""
    wrong = []
    matched: t.Dict[int, int] = dict.fromkeys(range(len(listed)), 0)
    judge.known()
    for number, text in enumerate(listed):
        unknown = [rule.unknown for rule in table.chains["p%d" % number] if rule.unknown]
        if unknown:
            wrong.append("%s: unknown: %s" % (text, unknown))
    for packet in packets:
        real = judge.send(packet, count)
        for number, text in enumerate(listed):
            name = "p%d" % number
            taken = [packet.branch(rule) for rule in table.chains[name]]
            read = any(one is not None and one.action.kind in (rules.RETURN, rules.JUMP) for one in taken)
            if "vmap" in text:
                name = "h%d" % number
                read = any(one is not None and one.action.chain == name for one in taken)
            matched[number] += name in real
            if read != (name in real):
                branches = [str(branch) for rule in table.chains["p%d" % number] for branch in rule.branches]
                wrong.append("%s: %s: kernel %s, read %s" % (text, tuple(packet), name in real, branches))
    for number, times in matched.items():
        if times in (0, len(packets)) and listed[number] not in SAME:
            wrong.append("%s: matched %d of %d packets" % (listed[number], times, len(packets)))
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def judge(ns: Namespace, version: int) -> t.Iterator[Judge]:
    made = Judge(ns, version)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("version", "family", "listed"),
    [(4, "ip", NFT_RULES), (4, "inet", NFT_RULES), (6, "ip6", NFT_RULES6), (6, "inet", NFT_RULES6)],
    ids=["ip", "inet", "ip6", "inet6"],
)
def test_nft(judge: Judge, version: int, family: str, listed: t.Sequence[str]) -> None:
    if family != "inet":  # nft refuses what is always so
        listed = [one for one in listed if not one.startswith(("meta nfproto", "meta protocol"))]
    if family == "ip6":
        listed = [one for one in listed if not one.startswith("ip ")]
    judge.node.run("nft", "-f", "-", stdin=_probe_table(family, listed, _NFT_SETS if version == 4 else ""))
    (table,) = judge.tables()
    packets = PACKETS if version == 4 else PACKETS6
    _compare(judge, table, listed, packets, lambda: judge.nft_counts(family))


def _iptables_lines(listed: t.Sequence[str]) -> str:
    lines = ["*mangle"]
    lines += [":p%d - [0:0]" % number for number in range(len(listed))]
    lines += ["-A PREROUTING -j p%d" % number for number in range(len(listed))]
    lines += ["-A PREROUTING -m comment --comment seen"]
    lines += ["-A p%d %s -j RETURN" % one for one in enumerate(listed)]
    return "\n".join([*lines, "COMMIT", ""])


@pytest.mark.parametrize("version", [4, 6])
def test_iptables(judge: Judge, version: int) -> None:
    """Both variants mean the same, and what the kernel does."""
    listed = IPTABLES_RULES if version == 4 else IP6TABLES_RULES
    packets = PACKETS if version == 4 else PACKETS6
    command = "iptables" if version == 4 else "ip6tables"
    judge.node.run("ipset", "restore", stdin=_IPSETS)
    judge.node.run(command + "-nft-restore", "-w", stdin=_iptables_lines(listed))
    (table,) = judge.tables()
    _compare(judge, table, listed, packets, judge.iptables_counts)
    judge.node.run("nft", "delete", "table", "ip" if version == 4 else "ip6", "mangle")
    judge.node.run(command + "-legacy-restore", "-w", stdin=_iptables_lines(listed))
    old = judge.legacy_table("mangle")
    for number, text in enumerate(listed):
        name = "p%d" % number
        assert [one.branches for one in old.chains[name]] == [one.branches for one in table.chains[name]], text
        assert [one.unknown for one in old.chains[name]] == [one.unknown for one in table.chains[name]], text


@pytest.mark.parametrize(
    ("version", "port", "unknown"),
    [(4, "80", False), (4, "2048", True), (4, "2304:3327", False), (6, "2048", False), (6, "32768", True)],
)
def test_only_a_port_that_reads_as_type_and_code_concerns_icmp(
    judge: Judge, version: int, port: str, unknown: bool
) -> None:
    """An echo request is 8 in IPv4, 128 in IPv6: 8 * 256 as conntrack compares it."""
    command = "iptables" if version == 4 else "ip6tables"
    rule = "-m conntrack --ctorigdstport %s" % port
    judge.node.run(command + "-nft-restore", "-w", stdin=_iptables_lines([rule]))
    (table,) = judge.tables()
    told = [each for one in table.chains["p0"] for each in one.unknown]
    assert told == (["bytes of a packet that has no ports"] if unknown else [])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda one: one.title)
def test_what_programs_of_kubernetes_write_is_understood(ns: Namespace, shape: Shape) -> None:
    judge = Judge(ns, 4)
    shape.load(ns)
    tables = judge.tables()
    if shape.backend == IPTABLES:
        ns.run("iptables-legacy-restore", "-w", "--noflush", stdin=shape.rules)
        new = [one for one in tables if one.title == "ip nat"]
        old = [judge.legacy_table("nat")] if new else []
        for one, other in zip(new, old):
            filled = {name: rules for name, rules in one.chains.items() if rules}
            for name, members in filled.items():
                told = [rule[2:] for rule in members]
                assert told == [rule[2:] for rule in other.chains[name]], name
        tables += old
    judge.close()
    assert tables
    for table in tables:
        assert not table.unknown
        for chain, members in table.chains.items():
            for rule in members:
                assert not rule.unknown, (table.title, chain, rule)


@pytest.mark.parametrize("backend", ["iptables_nft", "iptables_legacy", "nftables"])
@pytest.mark.parametrize("version", [4, 6])
def test_our_own_rules_are_understood(judge: Judge, version: int, backend: str) -> None:
    for address in ("192.0.2.7/32", "192.0.2.8/32", "192.0.2.9/32", "2001:db8::7/128"):
        judge.node.run("ip", "address", "add", address, "dev", "lo")
    apply(judge.node, **dict(full_policy(many=40), backend=backend))
    tables = [judge.legacy_table(name) for name in ("nat", "mangle")] if "legacy" in backend else judge.tables()
    unknown = [rule for table in tables for members in table.chains.values() for rule in members if rule.unknown]
    # Behind the translation of destinations only some of a connection's status is known; it lets packets pass.
    assert all(rule.unknown == ("the status of a connection",) for rule in unknown), unknown
    assert sum(map(len, (members for table in tables for members in table.chains.values()))) > 80


_ACTIONS = {
    "nat": """
-A PREROUTING -p tcp -j DNAT --to-destination 10.244.1.2:8080
-A PREROUTING -p tcp -j DNAT --to-destination 10.244.1.2-10.244.1.9
-A PREROUTING -p udp -j DNAT --to-destination :5353
-A PREROUTING -p tcp -j DNAT --to-destination 10.244.1.2:1000-2000
-A PREROUTING -p tcp -j REDIRECT --to-ports 15001
-A PREROUTING -j REDIRECT
-A PREROUTING -d 192.0.2.0/24 -j NETMAP --to 10.9.8.0/24
-A POSTROUTING -s 10.9.8.0/24 -j NETMAP --to 192.0.2.0/24
-A POSTROUTING -j SNAT --to-source 198.51.100.1
-A POSTROUTING -p tcp -j SNAT --to-source 198.51.100.1-198.51.100.3:1024-65535 --random-fully
-A POSTROUTING -j MASQUERADE --random-fully
-A POSTROUTING -p tcp -j MASQUERADE --to-ports 1024-2048
-A POSTROUTING -o eth0 -j MASQUERADE
-A POSTROUTING ! -o eth+ -j MASQUERADE
-A POSTROUTING -m statistic --mode random --probability 0.25 -j MASQUERADE
-A POSTROUTING -m statistic --mode nth --every 3 --packet 0 -j MASQUERADE
-A POSTROUTING -m devgroup --dst-group 7 -j ACCEPT
-A POSTROUTING -j LOG --log-prefix "-j MASQUERADE "
-A POSTROUTING -m owner --uid-owner 0
-A POSTROUTING -m owner --uid-owner 0 -j ACCEPT
-A POSTROUTING -m recent --rcheck --seconds 10 --name x --rsource -j RETURN
-A POSTROUTING -m limit --limit 5/min -j MASQUERADE
-A POSTROUTING -m policy --dir out --pol ipsec -j ACCEPT
-A POSTROUTING -m conntrack --ctstatus DNAT -j MASQUERADE
-A POSTROUTING -m conntrack --ctstate DNAT -j MASQUERADE
-A POSTROUTING -m conntrack --ctreplsrc 10.0.0.1 -j ACCEPT
-A POSTROUTING -m physdev --physdev-in veth1 -j MASQUERADE
-A POSTROUTING -g elsewhere
-A POSTROUTING -p icmp --icmp-type 8 -j ACCEPT
-A POSTROUTING -m length --length 1:100 -j ACCEPT
-A POSTROUTING -m set --match-set timed dst -j ACCEPT
-A POSTROUTING -m tos --tos 0x10/0x3f -j ACCEPT
""",
    "mangle": """
-A PREROUTING -j MARK --set-mark 5
-A PREROUTING -j MARK --set-mark 0x10/0xf0
-A PREROUTING -j MARK --or-mark 0x4000
-A PREROUTING -j MARK --and-mark 0xff
-A PREROUTING -j MARK --xor-mark 0x3
-A PREROUTING -j CONNMARK --save-mark
-A PREROUTING -j CONNMARK --restore-mark
-A PREROUTING -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
-A PREROUTING -j CONNMARK --save-mark --nfmask 0xff00 --ctmask 0xff00
-A PREROUTING -j CONNMARK --set-xmark 0x7/0xff
-A PREROUTING -m conntrack --ctstate NEW -j CONNMARK --set-mark 0x1
-A PREROUTING -j TOS --set-tos 0x10/0x3f
-A PREROUTING -j DSCP --set-dscp 10
-A PREROUTING -j TTL --ttl-set 64
-A PREROUTING -p tcp -j TPROXY --on-port 15001 --on-ip 127.0.0.1 --tproxy-mark 0x1/0x1
-A PREROUTING -m socket --transparent -j MARK --set-mark 1
-A PREROUTING -j TEE --gateway 10.0.0.1
-A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-A FORWARD -j CLASSIFY --set-class 1:2
-A FORWARD -j NFQUEUE --queue-num 1
-A FORWARD -j HMARK --hmark-tuple src,dst --hmark-mod 10 --hmark-offset 5 --hmark-rnd 0xfeed
-A FORWARD -m cpu --cpu 0 -j MARK --set-mark 3
-A FORWARD -m connlabel --label 1 -j MARK --set-mark 3
-A FORWARD -m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 7 -j MARK --set-mark 1
-A FORWARD -j SET --add-set nets src
-A FORWARD -p tcp -j REJECT
""",
    "raw": """
-A PREROUTING -p udp --dport 53 -j NOTRACK
-A PREROUTING -p udp --dport 53 -j CT --notrack
-A PREROUTING -i cali1 -j CT --zone 7
-A PREROUTING -i cali1 -j CT --zone mark
-A PREROUTING -p tcp --dport 21 -j CT --helper ftp
-A PREROUTING -p tcp -j TRACE
-A PREROUTING -m rpfilter --invert -j DROP
""",
}
#: What is in lines that must be unknown.
_UNKNOWN = (
    "NETMAP HMARK TEE TOS DSCP TPROXY NFQUEUE --zone devgroup cluster limit policy physdev --ctreplsrc "
    "--icmp-type length tos socket cpu connlabel rpfilter"
).split()
_TIMED = "create timed hash:ip timeout 300\n"


def test_actions_of_both_variants(ns: Namespace) -> None:
    """What iptables-nft and iptables-legacy write of one rule is read as the same."""
    judge = Judge(ns, 4)
    ns.run("ipset", "restore", stdin=_IPSETS + _TIMED)
    refused = []
    for table, text in _ACTIONS.items():
        lines = []
        for line in text.strip().splitlines():
            block = "*%s\n:elsewhere - [0:0]\n%s\nCOMMIT\n" % (table, line)
            if all(_loads(ns, command, block) for command in ("iptables-nft-restore", "iptables-legacy-restore")):
                lines.append(line)
            else:
                refused.append(line)
        block = "\n".join(["*" + table, ":elsewhere - [0:0]", *lines, "COMMIT", ""])
        ns.run("iptables-nft-restore", stdin=block)
        ns.run("iptables-legacy-restore", stdin=block)
        (new,) = (one for one in judge.tables() if one.title == "ip " + table)
        old = judge.legacy_table(table)
        for chain, members in old.chains.items():
            others = new.chains.get(chain, ())
            assert len(members) == len(others)
            for one, other in zip(members, others):
                # iptables-nft has words of nft for some matches: the reason is another one.
                assert one._replace(unknown=()) == other._replace(unknown=()), (table, chain, one, other)
                assert bool(one.unknown) == bool(other.unknown), (table, chain, one, other)
            written = [line for line in lines if line.startswith("-A %s " % chain)]
            for number, line in enumerate(written, 1):
                told = any(rule.unknown for rule in members if rule.number == number)
                assert told == (" -j " in line and not set(_UNKNOWN).isdisjoint(re.split(r"[ ,]+", line))), line
    sets = ns.inside(ipsets.read)
    assert xt_rules.filled(ns.inside(nf_tables.read), (), sets) == {"nets"}
    assert xt_rules.filled((), [ns.inside(xtables.read, IPV4, "mangle")], sets) == {"nets"}
    judge.close()
    assert len(refused) < 12, refused


def _loads(ns: Namespace, command: str, block: str) -> bool:
    argv = ("nft", "-f", "-") if command == "nft-probe" else (command,)
    try:
        ns.run(*argv, stdin=block)
    except AssertionError:
        return False
    return True


#: what a rule of nft in a chain of type nat at postrouting or prerouting is read as: unknown, chance, and its actions
_NFT_ACTIONS: t.Tuple[t.Tuple[str, str, t.Tuple[str, ...], str, t.List[t.Tuple[t.Any, ...]]], ...] = (
    ("post", "masquerade random", (), "", [("source", None, None)]),
    ("post", "snat to 198.51.100.1", (), "", [("source", "198.51.100.1", None)]),
    ("post", "snat to 198.51.100.1-198.51.100.3", (), "", [("source", "198.51.100.1-198.51.100.3", None)]),
    ("post", "snat ip to ip saddr map { 10.0.0.1 : 198.51.100.1, 10.0.0.2 : 198.51.100.2 }", (), "",
     [("source", "198.51.100.1", None), ("source", "198.51.100.2", None)]),
    ("pre", "tcp dport 80 dnat to 10.0.0.5:8080", (), "", [("destination", "10.0.0.5", 8080)]),
    ("pre", "tcp dport 80 redirect to :8080", (), "", [("destination", None, 8080)]),
    ("pre", "dnat ip to tcp dport map { 80 : 10.0.0.5, 81 : 10.0.0.6 }", (), "",
     [("destination", "10.0.0.5", None), ("destination", "10.0.0.6", None)]),
    ("pre", "dnat ip to ip daddr . tcp dport map { 10.9.0.1 . 80 : 10.0.0.5 . 8080 }", (), "",
     [("destination", "10.0.0.5", 8080)]),
    ("pre", "dnat to numgen random mod 2 map { 0 : 10.0.0.5, 1 : 10.0.0.6 }", (), "all",
     [("destination", "10.0.0.5", None), ("destination", "10.0.0.6", None)]),
    ("pre", "numgen inc mod 3 vmap { 0 : accept, 1 : drop }", (), "some", [("accept",), ("drop",)]),
    ("pre", "numgen random mod 10 vmap { 0-4 : accept, 5-9 : drop }", (), "all", [("accept",), ("drop",)]),
    ("pre", "numgen random mod 100 < 20 accept", (), "some", [("accept",)]),
    ("pre", "numgen random mod 100 < 100 accept", (), "", [("accept",)]),
    ("post", "snat to ip saddr", (), "", [("source", None, None)]),
    ("pre", "ip daddr 10.1.2.0/24 counter", (), "", []),
    ("pre", "limit rate 1/second counter log", (), "", []),
    ("pre", "limit rate 1/second accept", ("the expression limit",), "", [("accept",)]),
    ("pre", "meta skuid 0 accept", ("meta skuid",), "", [("accept",)]),
    ("pre", "fib saddr . iif oif missing drop", ("the expression fib",), "", [("drop",)]),
    ("pre", "icmp type echo-request accept", ("the type of an ICMP message",), "", [("accept",)]),
    ("pre", "ip ttl 1 accept", ("bytes of a packet",), "", [("accept",)]),
    ("pre", "meta length 100 accept", ("meta len",), "", [("accept",)]),
    ("pre", "ip daddr @fed accept", ("elements that rules add to the set fed",), "some", [("accept",)]),
    ("pre", "add @fed { ip saddr } accept", ("how full the set fed is",), "some", [("accept",)]),
    ("pre", "ip daddr @timed accept", ("elements of the set timed that end by themselves",), "", [("accept",)]),
    ("pre", "ip saddr 10.0.0.1 add @fed { ip daddr }", (), "", []),
    ("pre", "queue num 1", ("the expression queue",), "", [("continue",)]),
    ("pre", "ip daddr set 10.0.0.9", ("a rule that writes bytes of a packet",), "", [("continue",)]),
    ("pre", "meta mark set 0x5", (), "", [("set", "mark", "mark", 0, 5)]),
    ("pre", "meta mark set meta mark or 0x4000", (), "", [("set", "mark", "mark", 0xFFFFBFFF, 0x4000)]),
    ("pre", "meta mark set meta mark xor 0x4000", (), "", [("set", "mark", "mark", 0xFFFFFFFF, 0x4000)]),
    ("pre", "meta mark set meta mark and 0xff", (), "", [("set", "mark", "mark", 0xFF, 0)]),
    ("pre", "ct mark set meta mark", (), "", [("set", "ct mark", "mark", 0xFFFFFFFF, 0)]),
    ("pre", "meta mark set ct mark and 0xff", (), "", [("set", "mark", "ct mark", 0xFF, 0)]),
    ("pre", "meta mark set ip daddr map { 10.0.0.1 : 1, 10.0.0.2 : 2 }", (), "",
     [("set", "mark", None, 0, 0), ("set", "mark", None, 0, 0)]),
    ("pre", "meta mark set numgen random mod 2 map { 0 : 1, 1 : 2 }", (), "all",
     [("set", "mark", None, 0, 0), ("set", "mark", None, 0, 0)]),
    ("pre", "meta mark set tcp dport", (), "", [("set", "mark", None, 0, 0)]),
    ("pre", "notrack", (), "", []),
    ("pre", "meta mark 1 meta mark set 2 accept", (), "", [("jump",)]),
    ("pre", "ip daddr 10.0.0.1 meta mark set 2 accept", (), "", [("set", "mark", "mark", 0, 2), ("accept",)]),
    ("pre", "reject", (), "", [("drop",)]),
    ("pre", "meta priority set 1:2", (), "", []),
    ("pre", "th dport 53 accept", ("bytes of a packet that has no ports",), "", [("accept",), ("accept",)]),
)  # fmt: skip


def _plain(action: rules.RuleAction) -> t.Tuple[t.Any, ...]:
    if action.kind == rules.SET:
        return (action.kind, action.subject, action.origin, action.keep, action.flip)
    if action.kind not in (rules.SOURCE, rules.DESTINATION):
        return (action.kind,)
    addresses = None
    if action.addresses is not None:
        ((first, last),) = ([str(ipaddress.IPv4Address(one)) for one in span] for span in action.addresses)
        addresses = first if first == last else "%s-%s" % (first, last)
    return (action.kind, addresses, action.ports and action.ports[0][0])


def test_actions_of_nft(ns: Namespace) -> None:
    """What rules of nft do, chances, and what is not understood."""
    judge = Judge(ns, 4)
    header = """
    table ip probe {
        set fed { type ipv4_addr; flags dynamic; size 100; }
        set timed { type ipv4_addr; flags timeout; elements = { 10.0.0.1 timeout 1h }; }
        chain pre { type nat hook prerouting priority -100; }
        chain post { type nat hook postrouting priority 100; }
    """
    wrong = []
    refused = []
    for number, (chain, text, unknown, chance, actions) in enumerate(_NFT_ACTIONS):
        body = "    chain p%d { %s; }\n" % (number, text)
        fed = "    chain feed { add @fed { ip saddr }; }\n"
        jump = "add rule ip probe %s jump p%d\n" % (chain, number)
        if not _loads(ns, "nft-probe", header + fed + body + "}\n" + jump):
            refused.append(text)
            continue
        (table,) = judge.tables()
        found = table.chains["p%d" % number]
        ns.run("nft", "delete", "table", "ip", "probe")
        told = tuple(reason for rule in found for reason in (*rule.history, *rule.unknown))
        drawn = {(False, False): "", (True, True): "all", (True, False): "some"}[found[0].chance, found[0].exhaustive]
        done = [_plain(branch.action) for rule in found for branch in rule.branches]
        if (told, drawn, sorted(map(repr, done))) != (unknown, chance, sorted(map(repr, actions))):
            wrong.append("%s: %s %s %s" % (text, told, drawn, done))
    judge.close()
    assert not wrong, "\n".join(wrong)
    assert len(refused) < 8, refused
