# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Strange constructions of other programs, each with a name, in front of, behind or beside our rules."""

from __future__ import annotations

import typing as t

Node = t.Any

#: Conditions of iptables in POSTROUTING: text, and what probes try.
XT: t.Dict[str, t.Tuple[str, t.Dict[str, t.Any]]] = {
    "tcp-ports": ("-p tcp -m multiport --dports 8443,9100:9110", {"proto": "tcp", "dport": 9105}),
    "udp-port": ("-p udp --dport 5353", {"proto": "udp", "dport": 5353}),
    "sctp": ("-p sctp", {"proto": "sctp"}),
    "sctp-port": ("-p sctp --dport 3868", {"proto": "sctp", "dport": 3868}),
    "icmp": ("-p icmp --icmp-type echo-request", {"proto": "icmp"}),
    "sport": ("-p udp --sport 4000:4010", {"proto": "udp", "sport": 4005}),
    "syn": ("-p tcp --syn", {"proto": "tcp"}),
    "tcp-flags-none": ("-p tcp --tcp-flags ALL NONE", {"proto": "tcp"}),
    "tcp-option": ("-p tcp --tcp-option 8", {"proto": "tcp"}),
    "tcpmss": ("-p tcp -m tcpmss --mss 1400:1500", {"proto": "tcp"}),
    "ctstate-new": ("-m conntrack --ctstate NEW", {}),
    "ctstate-established": ("-m conntrack --ctstate ESTABLISHED,RELATED", {}),
    "ctproto": ("-m conntrack --ctproto udp", {"proto": "udp"}),
    "ctorigsrc": ("-m conntrack --ctorigsrc {pod}", {}),
    "ctorigdst": ("-m conntrack --ctorigdst {dst}", {"dst": "{dst}"}),
    "ctorigdstport": ("-m conntrack --ctproto tcp --ctorigdstport 443", {"proto": "tcp", "dport": 443}),
    "ctorigsrcport": ("-m conntrack --ctproto udp --ctorigsrcport 4005", {"proto": "udp", "sport": 4005}),
    "ctreplsrc": ("-m conntrack --ctreplsrc {dst}", {"dst": "{dst}"}),
    "ctrepldst": ("-m conntrack --ctrepldst {pod}", {}),
    "ctstatus-none": ("-m conntrack --ctstatus NONE", {}),
    "ctstatus-dnat": ("-m conntrack --ctstate DNAT", {}),
    "ctdir": ("-m conntrack --ctdir ORIGINAL", {}),
    "connbytes": ("-m connbytes --connbytes 0:100000 --connbytes-dir both --connbytes-mode bytes", {}),
    "connlimit": ("-m connlimit --connlimit-upto 3", {}),
    "ttl": ("-m ttl --ttl-eq 63", {}),
    "ttl-gt": ("-m ttl --ttl-gt 64", {}),
    "dscp": ("-m dscp --dscp 4", {"tos": 0x10}),
    "tos": ("-m tos --tos 0x10/0x3f", {"tos": 0x10}),
    "ecn": ("-m ecn --ecn-ip-ect 1", {"tos": 0x01}),
    "length": ("-m length --length 60", {"proto": "tcp"}),
    "length-small": ("-m length --length 0:50", {"proto": "udp"}),
    "limit": ("-m limit --limit 1/s --limit-burst 3", {}),
    "hashlimit": (
        "-m hashlimit --hashlimit-upto 5/s --hashlimit-burst 2 --hashlimit-mode srcip --hashlimit-name h",
        {},
    ),
    "recent": ("-m recent --name seen --set", {}),
    "quota": ("-m quota --quota 100000", {}),
    "statistic-nth": ("-m statistic --mode nth --every 2 --packet 0", {}),
    "statistic-random": ("-m statistic --mode random --probability 0.5", {}),
    "time": ("-m time --timestart 00:00 --timestop 23:59:59", {}),
    "time-year": ("-m time --datestart 2036-01-01", {}),
    "string": ('-m string --algo bm --string "strange"', {"proto": "udp"}),
    "u32": ('-m u32 --u32 "6&0xFF=0x11"', {"proto": "udp"}),
    "bpf": ('-m bpf --bytecode "4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0"', {"proto": "tcp"}),
    "addrtype": ("-m addrtype --dst-type UNICAST", {}),
    "addrtype-src": ("-m addrtype ! --src-type LOCAL", {}),
    "addrtype-limit": ("-m addrtype ! --dst-type LOCAL --limit-iface-out", {}),
    "iprange": ("-m iprange --src-range 10.244.1.2-10.244.1.3", {}),
    "iprange-dst": ("-m iprange --dst-range 203.0.113.5-203.0.113.12", {"dst": "203.0.113.0/28"}),
    "owner": ("-m owner --uid-owner 0", {}),
    "not-owner": ("-m owner ! --uid-owner 0", {}),
    "pkttype": ("-m pkttype --pkt-type unicast", {}),
    "cpu": ("-m cpu --cpu 0", {}),
    "realm": ("-m realm --realm 0", {}),
    "policy": ("-m policy --dir out --pol none", {}),
    "cluster": ("-m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 7", {}),
    "mark-none": ("-m mark --mark 0", {}),
    "connmark-none": ("-m connmark --mark 0", {}),
    "connlabel-none": ("-m connlabel ! --label 5", {}),
    "out": ("-o {up}", {}),
    "out-wild": ("-o up+", {}),
    "not-out": ("! -o cni0", {}),
    "helper": ('-m helper --helper "ftp"', {"proto": "tcp"}),
    "fragment": ("-f", {}),
    "source": ("-s {pod}", {}),
    "source-dest": ("-s 10.244.0.0/16 -d {dst}", {"dst": "{dst}"}),
    "not-dest": ("! -d {dst}", {"dst": "{dst}"}),
    "physdev": ("-m physdev ! --physdev-is-bridged", {}),
}

#: Conditions of nft in a chain of type nat at postrouting.
NFT: t.Dict[str, t.Tuple[str, t.Dict[str, t.Any]]] = {
    "state": ("ct state new", {}),
    "untracked": ("ct state untracked", {}),
    "zone": ("ct zone 0", {}),
    "label": ("ct label != 5", {}),
    "ctmark": ("ct mark 0", {}),
    "ctstatus": ("ct status & dnat == 0", {}),
    "ctorig-saddr": ("ct original ip saddr {pod}", {}),
    "ctorig-daddr": ("ct original ip daddr {dst}", {"dst": "{dst}"}),
    "ctreply-saddr": ("ct reply ip saddr {dst}", {"dst": "{dst}"}),
    "ctreply-daddr": ("ct reply ip daddr {pod}", {}),
    "ctproto": ("ct protocol udp", {"proto": "udp"}),
    "ct-proto-dst": ("ct protocol tcp ct original proto-dst 443", {"proto": "tcp", "dport": 443}),
    "ct-proto-src": ("ct original protocol udp ct original proto-src 4005", {"proto": "udp", "sport": 4005}),
    "direction": ("ct direction original", {}),
    "expiration": ("ct expiration > 1s", {}),
    "bytes": ("ct bytes < 100000", {}),
    "ct-count": ("ct count 3", {}),
    "fib-type": ("fib daddr type unicast", {}),
    "numgen-inc": ("numgen inc mod 2 0", {}),
    "numgen-random": ("numgen random mod 2 0", {}),
    "jhash": ("jhash ip saddr . ip daddr mod 2 0", {}),
    "symhash": ("symhash mod 2 0", {}),
    "dscp": ("ip dscp 4", {"tos": 0x10}),
    "length": ("meta length 60", {"proto": "tcp"}),
    "ip-length": ("ip length < 50", {"proto": "udp"}),
    "ttl": ("ip ttl 63", {}),
    "id": ("ip id != 0", {}),
    "frag-off": ("ip frag-off & 0x4000 != 0", {}),
    "option": ("ip option rr missing", {}),
    "tcp-option": ("tcp option maxseg size 1460", {"proto": "tcp"}),
    "tcp-sack": ("tcp option sack-perm exists", {"proto": "tcp"}),
    "tcp-flags": ("tcp flags syn", {"proto": "tcp"}),
    "tcp-window": ("tcp window > 60000", {"proto": "tcp"}),
    "raw-payload": ("meta l4proto tcp @th,16,16 8443", {"proto": "tcp", "dport": 8443}),
    "raw-network": ("@nh,96,32 {podhex}", {}),
    "sctp": ("sctp dport 3868", {"proto": "sctp", "dport": 3868}),
    "sctp-any": ("meta l4proto sctp", {"proto": "sctp"}),
    "icmp": ("icmp type echo-request", {"proto": "icmp"}),
    "udp-sport": ("udp sport 4000-4010", {"proto": "udp", "sport": 4005}),
    "random": ("meta random < 2147483648", {}),
    "hour": ('meta hour "00:00"-"23:59"', {}),
    "time": ('meta time > "2036-01-01 10:00:00"', {}),
    "iifgroup": ("oifgroup 0", {}),
    "oifkind": ('meta oifkind "veth"', {}),
    "oif-wild": ('oifname "up*"', {}),
    "oif": ('oifname "{up}"', {}),
    "priority": ("meta priority 0", {}),
    "pkttype": ("meta pkttype unicast", {}),
    "cpu": ("meta cpu 0", {}),
    "skuid": ("meta skuid 0", {}),
    "rtclassid": ("rt classid 0", {}),
    "nexthop": ("rt nexthop {gw}", {}),
    "mtu": ("rt mtu > 1000", {}),
    "ipsec": ("rt ipsec missing", {}),
    "limit": ("limit rate 1/second burst 3 packets", {}),
    "quota": ("quota 5 kbytes", {}),
    "mark": ("meta mark 0", {}),
    "anonymous-set": ("ip daddr { 10.99.7.0/24, 203.0.113.9 }", {"dst": "10.99.7.0/24"}),
    "concat": ("ip daddr . tcp dport { 203.0.113.0/24 . 440-450 }", {"dst": "203.0.113.9/32", "proto": "tcp"}),
    "dest": ("ip daddr {dst}", {"dst": "{dst}"}),
    "source": ("ip saddr {pod} ip daddr != 224.0.0.0/4", {}),
}

REGISTER: t.Dict[str, t.Callable[[Node], None]] = {}


def strange(function: t.Callable[[Node], None]) -> t.Callable[[Node], None]:
    """Give a construction its name."""
    REGISTER[function.__name__.replace("_", "-")] = function
    return function


def target(n: Node) -> str:
    """Return a target of iptables that changes what is seen."""
    choice: str = n.r.choices(
        [
            "MASQUERADE",
            "SNAT --to-source 192.0.2.25",
            "SNAT --to-source 198.51.100.77-198.51.100.80",
            "MASQUERADE --random",
            "ACCEPT",
            "RETURN",
        ],
        [6, 2, 1, 1, 2, 1],
    )[0]
    return choice


def verdict(n: Node) -> str:
    """Return a statement of nft that does."""
    actions = ["masquerade", "snat to 192.0.2.25", "masquerade random", "accept", "return"]
    choice: str = n.r.choices(actions, [6, 2, 1, 2, 1])[0]
    return choice


def priority(n: Node) -> int:
    found: int = n.r.choice([-150, 0, 40, 90, 99, 100, 101, 110, 200])
    return found


def fill(n: Node, text: str, what: t.Mapping[str, t.Any]) -> t.Tuple[str, t.Dict[str, t.Any]]:
    """Put values of the node into a condition, and let probes try them."""
    pod = n.pod()
    values = {
        "{pod}": pod,
        "{podhex}": "0x%02x%02x%02x%02x" % tuple(int(part) for part in pod.split(".")),
        "{up}": n.r.choice(n.uplinks).name,
        "{gw}": n.uplinks[0].gateway,
        "{dst}": n.dst(),
    }
    for name, value in values.items():
        text = text.replace(name, value)
    found = {key: values.get(value, value) if isinstance(value, str) else value for key, value in what.items()}
    if found:
        n.interest(**found)
    return text, found


def scope(n: Node, what: t.Mapping[str, t.Any]) -> str:
    """Return another condition on the destination, or none, as iptables writes it."""
    if "dst" in what or n.r.random() < 0.5:
        return ""
    found = n.dst(**what)
    return "-d %s " % found


def nat_chain(n: Node, rules: t.Sequence[str], head: str = "", hook: str = "", table: str = "ip") -> None:
    hook = hook or "type nat hook postrouting priority %d" % priority(n)
    name = "other%d" % len(n.steps)
    n.nft("table %s %s {\n%s\n chain post {\n  %s;\n  %s\n }\n}\n" % (table, name, head, hook, "\n  ".join(rules)))


def condition_xt(n: Node) -> None:
    """Add one rule of iptables with one strange condition."""
    name = n.r.choice(sorted(XT))
    n.begin("xt:" + name, n.late)
    text, what = fill(n, *XT[name])
    found = scope(n, what)
    rule = "%s%s -j %s" % (found, text, target(n))
    if n.r.random() < 0.3:
        chain = "STRANGE-%d" % len(n.steps)
        n.ipt(
            "nat",
            "-A POSTROUTING %s %s" % (n.r.choice(["-j", "-g"]), chain),
            "-A %s %s" % (chain, rule),
            chains=[chain],
        )
    else:
        n.ipt("nat", "-A POSTROUTING " + rule)


def condition_nft(n: Node) -> None:
    """Add one rule of nft with one strange condition."""
    name = n.r.choice(sorted(NFT))
    n.begin("nft:" + name, n.late)
    text, what = fill(n, *NFT[name])
    found = scope(n, what).replace("-d ", "ip daddr ")
    nat_chain(n, ["%s%s %s" % (found, text, verdict(n))])


def add(n: Node) -> None:
    """Add one construction to a node."""
    n.begin("", n.r.random() < 0.4)
    kind = n.r.random()
    if kind < 0.3:
        condition_xt(n)
    elif kind < 0.55:
        condition_nft(n)
    else:
        name = n.r.choice(sorted(REGISTER))
        n.begin(name, n.late)
        REGISTER[name](n)


@strange
def narrow_tcp(n: Node) -> None:
    n.ipt(
        "nat",
        "-A POSTROUTING -s %s/32 -d %s -p tcp --dport 8443 -j MASQUERADE" % (n.pod(), n.dst(proto="tcp", dport=8443)),
    )


@strange
def ipset_ip(n: Node) -> None:
    one = n.host()
    n.step("ipset", "create hosts hash:ip -exist\nadd hosts %s -exist\n" % one, late=False)
    n.ipt("nat", "-A POSTROUTING -m set --match-set hosts dst -j " + target(n))


@strange
def ipset_net(n: Node) -> None:
    n.step("ipset", "create nets hash:net -exist\nadd nets %s -exist\n" % n.dst(), late=False)
    n.ipt("nat", "-A POSTROUTING -m set %s--match-set nets dst -j %s" % (n.r.choice(["", "! "]), target(n)))


@strange
def ipset_ip_port(n: Node) -> None:
    one = n.host(proto="tcp", dport=443)
    n.step("ipset", "create pairs hash:ip,port -exist\nadd pairs %s,tcp:443 -exist\n" % one, late=False)
    n.ipt("nat", "-A POSTROUTING -m set --match-set pairs dst,dst -j " + target(n))


@strange
def ipset_timeout(n: Node) -> None:
    n.step("ipset", "create aged hash:ip timeout 600 -exist\nadd aged %s -exist\n" % n.host(), late=False)
    n.ipt("nat", "-A POSTROUTING -m set --match-set aged dst -j " + target(n))


@strange
def ipset_dynamic(n: Node) -> None:
    found = n.dst()
    n.step("ipset", "create grown hash:ip timeout 600 -exist\n", late=False)
    n.ipt("mangle", "-A FORWARD -d %s -j SET --add-set grown dst" % found)
    n.ipt("nat", "-A POSTROUTING -m set --match-set grown dst -j " + target(n))


@strange
def nft_named_set(n: Node) -> None:
    head = " set s {\n  typeof ip daddr\n  flags interval\n  elements = { %s }\n }" % n.dst()
    nat_chain(n, ["ip daddr @s " + verdict(n)], head)


@strange
def nft_timeout_set(n: Node) -> None:
    head = " set s {\n  typeof ip daddr\n  flags timeout\n  elements = { %s timeout 10m }\n }" % n.host()
    nat_chain(n, ["ip daddr @s " + verdict(n)], head)


@strange
def nft_vmap(n: Node) -> None:
    head = " chain m {\n  masquerade\n }\n chain a {\n  accept\n }"
    one, two = n.host(), n.dst(proto="tcp", dport=443)
    rule = "ip daddr . meta l4proto vmap { %s . tcp : jump m, %s . udp : goto a }" % (one, one)
    nat_chain(n, [rule, "ip daddr %s tcp dport vmap { 443 : jump m, 80 : goto a }" % two], head)


@strange
def nft_snat_map(n: Node) -> None:
    nat_chain(n, ["snat to ip saddr map { %s : 192.0.2.25 }" % n.pod()])


@strange
def nft_snat_concat(n: Node) -> None:
    one = n.host(proto="tcp", dport=443)
    nat_chain(n, ["meta l4proto tcp snat to ip daddr . tcp dport map { %s . 443 : 192.0.2.25 }" % one])


@strange
def nft_snat_prefix(n: Node) -> None:
    nat_chain(n, ["ip daddr %s snat ip prefix to ip saddr map { 10.244.1.0/24 : 198.51.100.0/24 }" % n.dst()])


@strange
def nft_conn_limit(n: Node) -> None:
    head = " set many {\n  type ipv4_addr\n  size 1000\n  flags dynamic\n }"
    found = n.dst()
    nat_chain(
        n,
        ["ip daddr %s add @many { ip saddr ct count over 20 } accept" % found, "ip daddr %s masquerade" % found],
        head,
    )


@strange
def nft_filter_conn_limit(n: Node) -> None:
    found = n.dst()
    head = " set many {\n  type ipv4_addr\n  size 1000\n  flags dynamic\n }\n"
    head += " chain p {\n  type nat hook postrouting priority 90;\n"
    head += "  ip daddr %s %s\n }" % (found, verdict(n))
    nat_chain(
        n, ["ct state new add @many { ip saddr ct count over 500 } drop"], head, "type filter hook forward priority 0"
    )


@strange
def nft_update_set(n: Node) -> None:
    head = " set seen {\n  type ipv4_addr\n  size 1000\n  flags dynamic,timeout\n  timeout 10m\n }\n"
    head += (
        " chain learn {\n  type filter hook forward priority 0;\n  ip daddr %s update @seen { ip daddr }\n }" % n.dst()
    )
    nat_chain(n, ["ip daddr @seen " + verdict(n)], head)


@strange
def nft_meter(n: Node) -> None:
    nat_chain(n, ["ip daddr %s meter m { ip saddr limit rate 100/second } %s" % (n.dst(), verdict(n))])


@strange
def nft_counter_object(n: Node) -> None:
    head = " counter c { }\n limit l { rate 1/second; }\n quota q { 100 mbytes; }"
    nat_chain(n, ["ip daddr %s counter name c limit name l quota name q %s" % (n.dst(), verdict(n))], head)


@strange
def nft_drop_policy(n: Node) -> None:
    nat_chain(n, ["ip daddr %s accept" % n.dst(), "ip saddr %s masquerade" % n.pod(), "accept"])


@strange
def nft_dormant(n: Node) -> None:
    nat_chain(n, ["masquerade"], " flags dormant")


@strange
def nft_inet(n: Node) -> None:
    nat_chain(n, ["meta nfproto ipv4 ip daddr %s %s" % (n.dst(), verdict(n))], table="inet")


@strange
def nft_tie(n: Node) -> None:
    found = n.dst()
    nat_chain(n, ["ip daddr %s masquerade" % found], hook="type nat hook postrouting priority 100")
    nat_chain(n, ["ip daddr %s snat to 192.0.2.25" % found], hook="type nat hook postrouting priority 100")


@strange
def nft_accept_first(n: Node) -> None:
    nat_chain(n, ["ip daddr %s accept" % n.dst()], hook="type nat hook postrouting priority 40")


@strange
def nft_identity(n: Node) -> None:
    nat_chain(n, ["ip daddr %s snat to ip saddr" % n.dst()], hook="type nat hook postrouting priority 20")


@strange
def nft_mark_map(n: Node) -> None:
    head = " chain pre {\n  type filter hook prerouting priority mangle;\n"
    head += "  meta mark set ip saddr map { %s : 0x11 }\n }" % n.pod()
    nat_chain(n, ["meta mark 0x11 ip daddr %s %s" % (n.dst(), verdict(n))], head)


@strange
def nft_fib_mark(n: Node) -> None:
    head = " chain pre {\n  type filter hook prerouting priority mangle;\n"
    head += "  fib daddr oifname %s fib saddr . iif oif exists meta mark set 0x12\n }" % n.r.choice(n.uplinks).name
    nat_chain(n, ["meta mark 0x12 ip daddr %s %s" % (n.dst(), verdict(n))], head)


@strange
def nft_label(n: Node) -> None:
    head = " chain pre {\n  type filter hook prerouting priority mangle;\n  ip daddr %s ct label set 7\n }" % n.dst()
    nat_chain(n, ["ct label 7 " + verdict(n)], head)


@strange
def nft_notrack(n: Node) -> None:
    hook = "type filter hook prerouting priority raw"
    nat_chain(n, ["ip daddr %s notrack" % n.dst()], hook=hook)


@strange
def nft_zone(n: Node) -> None:
    head = " chain pre {\n  type filter hook prerouting priority raw;\n  ip daddr %s ct zone set 9\n }" % n.dst()
    nat_chain(n, ["ct zone 9 " + verdict(n)], head)


@strange
def nft_ingress(n: Node) -> None:
    device = n.uplinks[0].name
    n.nft(
        "table netdev edge {\n chain in {\n  type filter hook ingress device %s priority 0;\n"
        "  ip saddr 10.0.0.9 drop\n }\n}\n" % device
    )


@strange
def nft_ingress_rewrite(n: Node) -> None:
    device = n.pods[0].link if n.shape != "bridge" else "vp0"
    n.nft(
        "table netdev edge {\n chain in {\n  type filter hook ingress device %s priority 0;\n"
        "  ip daddr %s meta mark set 0x77\n }\n}\n" % (device, n.dst(src=0))
    )
    nat_chain(n, ["meta mark 0x77 masquerade"])


@strange
def nft_bridge(n: Node) -> None:
    n.nft(
        "table bridge br {\n chain in {\n  type filter hook prerouting priority -300;\n"
        "  ip daddr %s meta mark set 0x78\n }\n}\n" % n.dst()
    )
    nat_chain(n, ["meta mark 0x78 masquerade"])


@strange
def ebtables_mark(n: Node) -> None:
    found = n.dst().partition("/")[0]
    n.step("ebtables", "ebtables-nft -t nat -A PREROUTING -p IPv4 --ip-dst %s -j mark --mark-set 0x79" % found)
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0x79 -j MASQUERADE")
    n.interest(dst=found + "/32")


@strange
def mark_mangle(n: Node) -> None:
    n.ipt("mangle", "-A PREROUTING -d %s -j MARK --set-xmark 0x5/0xff" % n.dst())
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0x5/0xff -j " + target(n))


@strange
def mark_forward(n: Node) -> None:
    n.ipt("mangle", "-A FORWARD -s %s -p tcp --dport 443 -j MARK --set-mark 0x6" % n.pod())
    n.interest(proto="tcp", dport=443)
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0x6 -j " + target(n))


@strange
def connmark(n: Node) -> None:
    n.ipt(
        "mangle",
        "-A PREROUTING -d %s -j CONNMARK --set-mark 0x8" % n.dst(),
        "-A POSTROUTING -j CONNMARK --restore-mark",
    )
    n.ipt("nat", "-A POSTROUTING -m connmark --mark 0x8 -j " + target(n))


@strange
def connmark_restore(n: Node) -> None:
    rules = ["-A PREROUTING -d %s -j MARK --set-mark 0x9" % n.dst(), "-A PREROUTING -j CONNMARK --save-mark"]
    n.ipt("mangle", *rules, "-A PREROUTING -j MARK --set-mark 0", "-A FORWARD -j CONNMARK --restore-mark")
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0x9 -j " + target(n))


@strange
def notrack(n: Node) -> None:
    n.ipt("raw", "-A PREROUTING -d %s -j CT --notrack" % n.dst())


@strange
def notrack_port(n: Node) -> None:
    n.ipt("raw", "-A PREROUTING -p udp --dport 53 -j CT --notrack")
    n.interest(proto="udp", dport=53)


@strange
def zone(n: Node) -> None:
    n.ipt("raw", "-A PREROUTING -s %s -j CT --zone 5" % n.pod())
    nat_chain(n, ["ct zone 5 ip daddr %s %s" % (n.dst(), verdict(n))])


@strange
def netmap(n: Node) -> None:
    n.ipt("nat", "-A POSTROUTING -s 10.244.1.0/24 -d %s -j NETMAP --to 198.51.100.0/24" % n.dst())


@strange
def masquerade_ports(n: Node) -> None:
    n.ipt("nat", "-A POSTROUTING -d %s -p tcp -j MASQUERADE --to-ports 2000-3000" % n.dst(proto="tcp"))


@strange
def redirect(n: Node) -> None:
    n.ipt("nat", "-A PREROUTING -d %s -p tcp --dport 80 -j REDIRECT --to-ports 3128" % n.dst(proto="tcp", dport=80))


@strange
def dnat(n: Node) -> None:
    one, two = n.host(proto="tcp", dport=80), n.host()
    n.ipt("nat", "-A PREROUTING -d %s -p tcp --dport 80 -j DNAT --to-destination %s:8080" % (one, two))


@strange
def dnat_masquerade(n: Node) -> None:
    one, two = n.host(proto="tcp", dport=80), n.host()
    n.ipt("nat", "-A PREROUTING -d %s -p tcp --dport 80 -j DNAT --to-destination %s" % (one, two))
    n.ipt("nat", "-A POSTROUTING -d %s -j %s" % (two, target(n)))


@strange
def dnat_statistic(n: Node) -> None:
    one = n.host(proto="tcp", dport=80)
    rules = ["-A SVC -m statistic --mode random --probability 0.5 -p tcp -j DNAT --to-destination 10.244.2.3:80"]
    rules += ["-A SVC -p tcp -j DNAT --to-destination 10.244.3.3:80"]
    n.ipt("nat", "-A PREROUTING -d %s -p tcp --dport 80 -j SVC" % one, *rules, chains=["SVC"])


@strange
def dnat_numgen(n: Node) -> None:
    one = n.host(proto="tcp", dport=443)
    rule = "ip daddr %s tcp dport 443 dnat to numgen random mod 2 map { 0 : 10.244.2.3, 1 : 203.0.113.77 }" % one
    nat_chain(n, [rule], hook="type nat hook prerouting priority dstnat")


@strange
def dnat_jhash(n: Node) -> None:
    one = n.host(proto="udp", dport=53)
    rule = "ip daddr %s udp dport 53 dnat to jhash ip saddr mod 2 map { 0 : 10.244.2.3, 1 : 203.0.113.77 }" % one
    nat_chain(n, [rule], hook="type nat hook prerouting priority dstnat")


@strange
def hairpin(n: Node) -> None:
    pod = n.pod()
    n.ipt("nat", "-A POSTROUTING -s %s/32 -d %s/32 -j MASQUERADE" % (pod, pod))


@strange
def accept_front(n: Node) -> None:
    n.ipt("nat", "-A POSTROUTING -s %s -d %s -j ACCEPT" % (n.pod(), n.dst()))


@strange
def goto_front(n: Node) -> None:
    n.ipt("nat", "-A POSTROUTING -d %s -g AWAY" % n.dst(), "-A AWAY -p tcp -j RETURN", chains=["AWAY"])


@strange
def all_return_then_masquerade(n: Node) -> None:
    n.ipt("nat", "-A POSTROUTING ! -s 10.244.0.0/16 -j RETURN", "-A POSTROUTING -p udp -j MASQUERADE")


@strange
def drop_forward(n: Node) -> None:
    n.ipt("filter", "-A FORWARD -d %s -j DROP" % n.dst())


@strange
def drop_policy(n: Node) -> None:
    n.ipt(
        "filter",
        ":FORWARD DROP [0:0]",
        "-A FORWARD -s 10.244.0.0/16 -p tcp -j ACCEPT",
        "-A FORWARD -d 10.0.0.0/8 -j ACCEPT",
    )


@strange
def ttl_set(n: Node) -> None:
    n.ipt("mangle", "-A PREROUTING -d %s -j TTL --ttl-set 40" % n.dst())
    n.ipt("nat", "-A POSTROUTING -m ttl --ttl-lt 50 -j " + target(n))


@strange
def dscp_set(n: Node) -> None:
    n.ipt("mangle", "-A PREROUTING -d %s -p udp -j DSCP --set-dscp 9" % n.dst(proto="udp"))
    n.ipt("nat", "-A POSTROUTING -m dscp --dscp 9 -j " + target(n))


@strange
def mac_mark(n: Node) -> None:
    n.ipt("mangle", "-A PREROUTING -m mac --mac-source 02:00:00:00:0b:00 -j MARK --set-mark 0xa")
    n.interest(src=0)
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0xa -j " + target(n))


@strange
def rpfilter_mark(n: Node) -> None:
    n.ipt("mangle", "-A PREROUTING -m rpfilter -j MARK --set-mark 0xb")
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0xb -d %s -j %s" % (n.dst(), target(n)))


@strange
def in_mark(n: Node) -> None:
    n.ipt("mangle", "-A FORWARD -i %s -j MARK --set-mark 0xc" % n.pods[0].link)
    n.interest(src=0)
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0xc -d %s -j %s" % (n.dst(src=0), target(n)))


@strange
def input_snat(n: Node) -> None:
    nat_chain(n, ["snat to 192.0.2.25"], hook="type nat hook input priority 100")


@strange
def stateless_saddr(n: Node) -> None:
    nat_chain(n, ["ip daddr %s ip saddr set 192.0.2.200" % n.dst()], hook="type filter hook postrouting priority 300")


@strange
def six_masquerade(n: Node) -> None:
    if n.six:
        found = "fd10:7::/64"
        n.interest(dst=found)
        n.ipt("nat", "-A POSTROUTING -d %s -j MASQUERADE" % found, six=True)


@strange
def skip_mark(n: Node) -> None:
    found = n.host()
    n.marks.append((found, 0x200))
    n.ipt("mangle", "-A PREROUTING -d %s -j MARK --set-xmark 0x200/0xf00" % found)
    n.ipt("nat", "-A POSTROUTING -m mark --mark 0x200/0xf00 -j SNAT --to-source 192.0.2.25")
