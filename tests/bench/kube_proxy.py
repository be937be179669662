# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node with pods, and the rules of kube-proxy for many Services, in the words of its tools. Runs inside a namespace.

Shapes after kubernetes/kubernetes (pkg/proxy/iptables, pkg/proxy/nftables). The endpoints of each Service are spread
over the nodes of a cluster; some Services have a NodePort as well.
"""

from __future__ import annotations

import subprocess
import typing as t

from support.rule_shapes import CLUSTER, NODE, Service, services

from . import meter, rules

NODES = 40
PODS = 30


def make_node() -> None:
    """Make the links and routes of a node with pods behind a bridge, one of a cluster."""
    lines = [
        "link set lo up",
        "link add eth0 type veth peer name outside",
        "link add cbr0 type bridge",
        "address add %s/24 dev eth0" % NODE,
        "address add 10.244.1.1/24 dev cbr0",
        "link set eth0 up",
        "link set outside up",
        "link set cbr0 up",
    ]
    for number in range(PODS):
        lines += [
            "link add veth%d type veth peer name pod%d" % (number, number),
            "link set veth%d master cbr0 up" % number,
            "link set pod%d up" % number,
        ]
    lines.append("route add default via 198.51.100.254")
    lines += ["route add 10.244.%d.0/24 via 198.51.100.%d" % (node, node) for node in range(2, NODES + 1)]
    subprocess.run(["ip", "-batch", "-"], env=meter.ENV, input="\n".join(lines) + "\n", text=True, check=True)
    subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], env=meter.ENV, check=True)


def load(mode: str, count: int, node_ports: int, endpoints: int = 2) -> None:
    """Load the rules of so many Services.

    :param mode: of kube-proxy: NFT and LEGACY are its mode iptables, with the tool of that name.
    """
    known = services(count, node_ports, endpoints, NODES)
    if mode == rules.NFTABLES:
        argv, text = [rules.program("nft"), "-f", "-"], nftables(known)
    else:
        argv, text = [rules.iptables(mode, "-restore"), "-w", "5", "--noflush"], iptables(known)
    subprocess.run(argv, env=meter.ENV, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def iptables(known: t.Sequence[Service]) -> str:
    """Return the rules of the mode iptables, for iptables-restore."""
    mark = "MARK --set-xmark 0x4000/0x4000"
    chains = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"]
    listed: t.List[str] = []
    ports: t.List[str] = []
    members: t.List[str] = []
    for number, one in enumerate(known):
        name, said = "%016d" % number, '-m comment --comment "default/service-%d:http' % number
        service = "KUBE-SVC-" + name
        match = "-d %s/32 -p tcp %s cluster IP" % (one.address, said) + '" -m tcp --dport %d' % one.port
        chains.append(service)
        listed.append("-A KUBE-SERVICES %s -j %s" % (match, service))
        members.append("-A %s ! -s %s %s -j KUBE-MARK-MASQ" % (service, CLUSTER, match))
        for place, pod in enumerate(one.pods):
            end = "KUBE-SEP-%014d%02d" % (number, place)
            left = len(one.pods) - place
            chance = "" if left == 1 else " -m statistic --mode random --probability %.11f" % (1 / left)
            chains.append(end)
            members.append('-A %s %s -> %s:8080"%s -j %s' % (service, said, pod, chance, end))
            members.append('-A %s -s %s/32 %s" -j KUBE-MARK-MASQ' % (end, pod, said))
            members.append('-A %s -p tcp %s" -m tcp -j DNAT --to-destination %s:8080' % (end, said, pod))
        if one.node_port:
            outer = "KUBE-EXT-" + name
            chains.append(outer)
            ports.append('-A KUBE-NODEPORTS -p tcp %s" -m tcp --dport %d -j %s' % (said, one.node_port, outer))
            members += ['-A %s %s" -j KUBE-MARK-MASQ' % (outer, said), "-A %s -j %s" % (outer, service)]
    fixed = [
        "-A PREROUTING -j KUBE-SERVICES",
        "-A OUTPUT -j KUBE-SERVICES",
        "-A POSTROUTING -j KUBE-POSTROUTING",
        "-A KUBE-MARK-MASQ -j " + mark,
        "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
        "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
    ]
    listed.append("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")
    nat = ["*nat", *(":%s - [0:0]" % chain for chain in chains), *fixed, *listed, *ports, *members, "COMMIT"]
    return "\n".join([*_FILTER, *nat, ""])


_FILTER = (
    "*filter",
    ":KUBE-FIREWALL - [0:0]",
    ":KUBE-FORWARD - [0:0]",
    "-A FORWARD -j KUBE-FORWARD",
    "-A OUTPUT -j KUBE-FIREWALL",
    "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
    "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
    "-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
    "-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "COMMIT",
)


def nftables(known: t.Sequence[Service]) -> str:
    """Return the rules of the mode nftables, for nft."""
    listed: t.List[str] = []
    ports: t.List[str] = []
    chains: t.List[str] = []

    def chain(name: str, *lines: str) -> str:
        chains.append("chain %s {\n%s\n}" % (name, "\n".join(lines)))
        return name

    for number, one in enumerate(known):
        title = "default/service-%d/tcp/http" % number
        ends: t.List[str] = []
        for pod in one.pods:
            end = "endpoint-%08X-%s__%s/8080" % (number, title, pod)
            chain(end, "ip saddr %s jump mark-for-masquerade" % pod, "meta l4proto tcp dnat to %s:8080" % pod)
            ends.append("%d : goto %s" % (len(ends), end))
        service = chain(
            "service-%08X-%s" % (number, title),
            "ip daddr %s tcp dport %d ip saddr != %s jump mark-for-masquerade" % (one.address, one.port, CLUSTER),
            "numgen random mod %d vmap { %s }" % (len(ends), ", ".join(ends)),
        )
        listed.append("%s . tcp . %d : goto %s" % (one.address, one.port, service))
        if one.node_port:
            outer = chain("external-%08X-%s" % (number, title), "jump mark-for-masquerade", "goto " + service)
            ports.append("tcp . %d : goto %s" % (one.node_port, outer))
    nodeports = "elements = { %s }" % ", ".join(ports) if ports else ""
    return _TABLE % (NODE, "\n".join(chains), ", ".join(listed), nodeports)


_TABLE = """
table ip kube-proxy {
    set nodeport-ips { type ipv4_addr; elements = { %s }; }
    chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
    %s
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { %s }; }
    map service-nodeports { type inet_proto . inet_service : verdict; %s; }
    chain services {
        ip daddr . meta l4proto . th dport vmap @service-ips
        ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }
    chain masquerading {
        meta mark and 0x4000 == 0 return
        meta mark set meta mark xor 0x4000
        masquerade fully-random
    }
    chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
    chain nat-output { type nat hook output priority -100; jump services; }
    chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
"""
