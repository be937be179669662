# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as people have them: network plugins, kube-proxy and firewalls by their public documentation."""

from __future__ import annotations

import random
import typing as t

from . import nodes, policies
from .kube_proxy import IPTABLES, NFT_133, NFT_136, KubeProxy, Service

SERVICES = 16


def _kube_proxy(n: nodes.Node, mode: str, affinity: bool = False) -> None:
    """Add Services with one pod on this node and one on another, and the rules of kube-proxy for them.

    :param affinity: their clients stay at one pod.
    """
    services = []
    for number in range(SERVICES):
        ends = {4: [n.pods[number % len(n.pods)].four, "10.244.2.%d" % (10 + number)]}
        node_port = 30000 + number if number % 8 == 0 else 0
        address = {4: "10.96.0.%d" % (10 + number)}
        services.append(Service("NS%06d" % number, address, "tcp", 80, 8080, node_port, ends, affinity=affinity))
    for one in (services[0], services[-1]):
        n.interest(dst=one.addresses[4] + "/32", proto="tcp", dport=80)
    n.interest(dst="198.51.100.1/32", proto="tcp", dport=30000)
    proxy = KubeProxy(services, {4: n.uplinks[0].four}, n.variant)
    n.step(*proxy.kubelet(4))
    n.step(*proxy.written(mode, 4))


def kube_proxy_iptables(n: nodes.Node) -> None:
    _kube_proxy(n, IPTABLES)


def kube_proxy_nftables(n: nodes.Node) -> None:
    _kube_proxy(n, NFT_136)


def kube_proxy_nftables_133(n: nodes.Node) -> None:
    _kube_proxy(n, NFT_133)


def session_affinity(n: nodes.Node) -> None:
    _kube_proxy(n, IPTABLES, affinity=True)


def _calico(n: nodes.Node, outgoing: bool) -> None:
    pools = "create %s hash:net family inet maxelem 1048576 -exist\n"
    names = ("cali40masq-ipam-pools", "cali40all-ipam-pools")
    n.step("ipset", "".join(pools % name for name in names) + "add cali40all-ipam-pools 10.244.0.0/16 -exist\n")
    if outgoing:
        n.step("ipset", "add cali40masq-ipam-pools 10.244.0.0/16 -exist\n")
    chains = [
        "cali-POSTROUTING",
        "cali-PREROUTING",
        "cali-OUTPUT",
        "cali-fip-dnat",
        "cali-fip-snat",
        "cali-nat-outgoing",
    ]
    rules = ["-I PREROUTING 1 -j cali-PREROUTING", "-I POSTROUTING 1 -j cali-POSTROUTING", "-I OUTPUT 1 -j cali-OUTPUT"]
    rules += ["-A cali-PREROUTING -j cali-fip-dnat", "-A cali-OUTPUT -j cali-fip-dnat"]
    rules += ["-A cali-POSTROUTING -j cali-fip-snat", "-A cali-POSTROUTING -j cali-nat-outgoing"]
    if outgoing:
        rules.append(
            "-A cali-nat-outgoing -m set --match-set cali40masq-ipam-pools src"
            " -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE --random-fully"
        )
    n.ipt("nat", *rules, chains=chains)
    marks = ["-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000", "-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch"]
    marks += ["-A cali-from-wl-dispatch -i %s -g cali-fw-%s" % (pod.link, pod.link) for pod in n.pods]
    for pod in n.pods:
        chain = "-A cali-fw-%s " % pod.link
        marks.append(chain + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
        marks.append(chain + "-m conntrack --ctstate INVALID -j DROP")
        marks.append(chain + "-p udp -m multiport --dports 4789 -j DROP")
        marks.append(chain + "-j MARK --set-xmark 0x10000/0x10000")
        marks.append(chain + "-m mark --mark 0x10000/0x10000 -j RETURN")
    marks.append("-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT")
    own = ["cali-fw-%s" % pod.link for pod in n.pods]
    n.ipt("filter", "-I FORWARD 1 -j cali-FORWARD", *marks, chains=["cali-FORWARD", "cali-from-wl-dispatch", *own])
    n.ipt(
        "raw",
        "-A PREROUTING -j cali-raw",
        "-A cali-raw -j MARK --set-xmark 0x0/0xf0000",
        "-A cali-raw -i cali+ -j MARK --set-xmark 0x40000/0x40000",
        "-A cali-raw -m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP",
        chains=["cali-raw"],
    )


def calico(n: nodes.Node) -> None:
    _calico(n, False)


def calico_nat_outgoing(n: nodes.Node) -> None:
    _calico(n, True)


def flannel(n: nodes.Node) -> None:
    own, net, chain = "10.244.1.0/24", "10.244.0.0/16", "-A FLANNEL-POSTRTG "
    n.ipt(
        "nat",
        "-A POSTROUTING -j FLANNEL-POSTRTG",
        chain + "-m mark --mark 0x4000/0x4000 -j RETURN",
        chain + "-s %s -d %s -j RETURN" % (own, net),
        chain + "-s %s -d %s -j RETURN" % (net, own),
        chain + "! -s %s -d %s -j RETURN" % (net, own),
        chain + "-s %s ! -d 224.0.0.0/4 -j MASQUERADE --random-fully" % net,
        chain + "! -s %s -d %s -j MASQUERADE --random-fully" % (net, net),
        chains=["FLANNEL-POSTRTG"],
    )
    rules = [
        "-A FORWARD -j FLANNEL-FWD",
        "-A FLANNEL-FWD -s %s -j ACCEPT" % net,
        "-A FLANNEL-FWD -d %s -j ACCEPT" % net,
    ]
    n.ipt("filter", *rules, chains=["FLANNEL-FWD"])


def cilium(n: nodes.Node) -> None:
    chain = "-A CILIUM_POST_nat "
    n.ipt(
        "nat",
        "-I POSTROUTING 1 -j CILIUM_POST_nat",
        chain + "-s 10.244.1.0/24 ! -d 10.244.0.0/16 ! -o cilium_+ -j MASQUERADE",
        chain + "-m mark --mark 0xa00/0xe00 -j ACCEPT",
        chain + "-s 127.0.0.1/32 -o cilium_host -j SNAT --to-source 10.244.1.1",
        chains=["CILIUM_POST_nat"],
    )
    n.step("ip", "rule add priority 9 fwmark 0x200/0xf00 lookup 2004\n")


def kube_router(n: nodes.Node) -> None:
    text = (
        "create kube-router-pod-subnets hash:net timeout 0 -exist\nadd kube-router-pod-subnets 10.244.0.0/16 -exist\n"
    )
    text += "create kube-router-node-ips hash:ip timeout 0 -exist\nadd kube-router-node-ips 198.51.100.1 -exist\n"
    n.step("ipset", text)
    n.ipt(
        "nat",
        "-A POSTROUTING -m set --match-set kube-router-pod-subnets src -m set ! --match-set kube-router-pod-subnets dst"
        " -m set ! --match-set kube-router-node-ips dst -j MASQUERADE --random-fully",
    )


def docker(n: nodes.Node) -> None:
    n.step("ip", "link add docker0 type bridge\naddr add 172.17.0.1/16 dev docker0\nlink set docker0 up\n")
    n.ipt(
        "nat",
        "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
        "-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
        "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "-A DOCKER -i docker0 -j RETURN",
        "-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8088 -j DNAT --to-destination 172.17.0.2:80",
        chains=["DOCKER"],
    )
    n.ipt(
        "filter",
        ":FORWARD DROP [0:0]",
        "-A FORWARD -j DOCKER-USER",
        "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A FORWARD -i docker0 -j ACCEPT",
        "-A DOCKER-USER -s 10.244.0.0/16 -j ACCEPT",
        chains=["DOCKER-USER"],
    )


def firewalld(n: nodes.Node) -> None:
    n.nft(
        "table inet firewalld {\n chain nat_POST_public {\n }\n chain nat_POST_trusted {\n }\n"
        ' chain nat_POSTROUTING_ZONES {\n  oifname "up0" goto nat_POST_public\n'
        "  goto nat_POST_trusted\n }\n"
        " chain nat_POSTROUTING {\n  type nat hook postrouting priority srcnat + 10;\n"
        "  jump nat_POSTROUTING_ZONES\n }\n"
        " chain filter_FORWARD {\n  type filter hook forward priority filter + 10;\n"
        "  ct state { established, related } accept\n  ct status dnat accept\n"
        "  ct state invalid drop\n  ip saddr 10.244.0.0/16 accept\n  reject with icmpx admin-prohibited\n }\n}\n"
    )


def portmap(n: nodes.Node) -> None:
    n.interest(dst="198.51.100.1/32", proto="tcp", dport=8080)
    pod = n.pods[0].four
    own = "-A CNI-DN-1 -s %s/32 -p tcp --dport 8080 -j CNI-HOSTPORT-SETMARK" % pod
    n.ipt(
        "nat",
        "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        "-A POSTROUTING -j CNI-HOSTPORT-MASQ",
        "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j CNI-DN-1",
        own,
        "-A CNI-DN-1 -p tcp --dport 8080 -j DNAT --to-destination %s:80" % pod,
        "-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000",
        "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
        chains=["CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ", "CNI-DN-1"],
    )


def nodelocal_dns(n: nodes.Node) -> None:
    """Add a DNS cache on the node that takes the address of the cluster's Service, and keeps it from conntrack."""
    n.step("ip", "addr add 169.254.20.10/32 dev lo\naddr add 10.96.0.10/32 dev lo\n")
    for address in ("169.254.20.10", "10.96.0.10"):
        n.interest(dst=address + "/32", proto="udp", dport=53)
        for proto in ("udp", "tcp"):
            rule = "-d %s/32 -p %s -m %s --dport 53 " % (address, proto, proto)
            n.ipt("raw", "-A PREROUTING %s-j CT --notrack" % rule, "-A OUTPUT %s-j CT --notrack" % rule)
            n.ipt("filter", "-A INPUT %s-j ACCEPT" % rule)


def bridge_plugin(n: nodes.Node) -> None:
    """Add what the CNI plugin bridge makes with ipMasq, as for a network beside the cluster's."""
    rules = []
    chains = []
    for number, pod in enumerate(n.pods):
        chain = "CNI-%024x" % (number + 7)
        chains.append(chain)
        rules.append(
            '-A POSTROUTING -s %s/32 -m comment --comment "name: \\"net\\" id: \\"a%d\\"" -j %s'
            % (pod.four, number, chain)
        )
        rules.append('-A %s -d 10.244.0.0/16 -m comment --comment "name: \\"net\\"" -j ACCEPT' % chain)
        rules.append('-A %s ! -d 224.0.0.0/4 -m comment --comment "name: \\"net\\"" -j MASQUERADE' % chain)
    n.ipt("nat", *rules, chains=chains)


def tailscale(n: nodes.Node) -> None:
    n.ipt(
        "nat",
        "-A POSTROUTING -j ts-postrouting",
        "-A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE",
        chains=["ts-postrouting"],
    )
    n.ipt(
        "filter",
        "-I FORWARD 1 -j ts-forward",
        "-A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000",
        "-A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT",
        "-A ts-forward -s 100.64.0.0/10 -o tailscale0 -j DROP",
        "-A ts-forward -o tailscale0 -j ACCEPT",
        chains=["ts-forward"],
    )
    lines = [
        "rule add priority %d fwmark 0x80000/0xff0000 lookup %s" % one for one in ((5210, "main"), (5230, "default"))
    ]
    lines += ["rule add priority 5250 fwmark 0x80000/0xff0000 unreachable", "rule add priority 5270 lookup 52"]
    n.step("ip", "\n".join(lines) + "\n")


def libvirt(n: nodes.Node) -> None:
    n.step("ip", "link add virbr0 type bridge\naddr add 192.168.122.1/24 dev virbr0\nlink set virbr0 up\n")
    net = "-A LIBVIRT_PRT -s 192.168.122.0/24 "
    n.ipt(
        "nat",
        "-A POSTROUTING -j LIBVIRT_PRT",
        net + "-d 224.0.0.0/24 -j RETURN",
        net + "-d 255.255.255.255/32 -j RETURN",
        net + "! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535",
        net + "! -d 192.168.122.0/24 -p udp -j MASQUERADE --to-ports 1024-65535",
        net + "! -d 192.168.122.0/24 -j MASQUERADE",
        chains=["LIBVIRT_PRT"],
    )
    n.ipt(
        "filter",
        "-A FORWARD -j LIBVIRT_FWI",
        "-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable",
        chains=["LIBVIRT_FWI"],
    )
    n.ipt("mangle", "-A POSTROUTING -o virbr0 -p udp -m udp --dport 68 -j CHECKSUM --checksum-fill")


def guards(n: nodes.Node) -> None:
    """Add what keeps others out: lists that grow and end by themselves, limits, logs (fail2ban, CrowdSec, ufw)."""
    n.step(
        "ipset",
        "create crowdsec-blacklists hash:net timeout 300 -exist\nadd crowdsec-blacklists 203.0.113.0/25 -exist\n",
    )
    n.ipt(
        "filter",
        "-A INPUT -m set --match-set crowdsec-blacklists src -j DROP",
        "-A INPUT -p tcp -m multiport --dports 22 -j f2b-sshd",
        "-A f2b-sshd -s 198.51.100.77/32 -j REJECT --reject-with icmp-port-unreachable",
        "-A FORWARD -m set --match-set crowdsec-blacklists src -j DROP",
        "-A FORWARD -j ufw-before-forward",
        "-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT",
        "-A ufw-before-forward -m limit --limit 3/min --limit-burst 10 -j LOG",
        chains=["f2b-sshd", "ufw-before-forward"],
    )
    n.nft(
        "table inet f2b-table {\n set addr-set-sshd {\n  type ipv4_addr\n  flags timeout\n"
        "  elements = { 198.51.100.78 timeout 600s }\n }\n"
        " chain f2b-chain {\n  type filter hook input priority filter - 1;\n"
        "  tcp dport 22 ip saddr @addr-set-sshd reject\n }\n}\n"
    )


def vxlan(n: nodes.Node) -> None:
    """Add the link over which flannel and Calico reach pods of other nodes."""
    lines = ["link add flannel.1 type vxlan id 1 local 198.51.100.1 dev up0 dstport 8472 nolearning"]
    lines += ["addr add 10.244.1.0/32 dev flannel.1", "link set flannel.1 up"]
    lines += ["route replace 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink"]
    n.step("ip", "\n".join(lines) + "\n", late=False)


def bare(n: nodes.Node) -> None:
    """Add a bridge, and no program at all."""


Part = t.Callable[[nodes.Node], None]
#: name: kind of pods' links, parts
KINDS: t.Dict[str, t.Tuple[str, t.Sequence[Part]]] = {
    "bridge": ("bridge", [bare]),
    "bridge+portmap": ("bridge", [portmap]),
    "kube-proxy-iptables": ("bridge", [kube_proxy_iptables]),
    "kube-proxy-nftables": ("bridge", [kube_proxy_nftables]),
    "calico": ("routed", [calico]),
    "calico-natOutgoing": ("routed", [calico_nat_outgoing]),
    "flannel": ("bridge", [flannel]),
    "cilium": ("routed", [cilium]),
    "kube-router": ("bridge", [kube_router]),
    "docker": ("bridge", [docker]),
    "firewalld": ("bridge", [firewalld]),
    "calico+kube-proxy-iptables": ("routed", [calico, kube_proxy_iptables, portmap]),
    "calico-natOutgoing+kube-proxy-iptables": ("routed", [calico_nat_outgoing, kube_proxy_iptables, portmap]),
    "calico+kube-proxy-nftables": ("routed", [calico, kube_proxy_nftables_133]),
    "flannel+kube-proxy-iptables+portmap": ("bridge", [flannel, kube_proxy_iptables, portmap]),
    "kube-router+docker+firewalld": ("bridge", [kube_router, docker, firewalld]),
    "bridge+portmap+kube-proxy-nftables+docker": ("bridge", [portmap, kube_proxy_nftables, docker]),
    "bridge+portmap+kube-proxy-iptables+firewalld": ("bridge", [portmap, kube_proxy_iptables, firewalld]),
    "kube-proxy-iptables+session-affinity": ("bridge", [session_affinity]),
    "calico+kube-proxy-iptables+nodelocal-dns": ("routed", [calico, kube_proxy_iptables, nodelocal_dns]),
    "flannel+vxlan+nodelocal-dns+kube-proxy-nftables": ("bridge", [flannel, vxlan, nodelocal_dns, kube_proxy_nftables]),
    "bridge-plugin+guards": ("bridge", [bridge_plugin, guards]),
    "tailscale+libvirt+guards": ("routed", [tailscale, libvirt, guards]),
}
NAMES = [
    "%s/%s/%s" % (name, backend, exemption)
    for name in KINDS
    for backend, exemption in (("iptables_nft", "return"), ("nftables", "return"), ("nftables", "enforce"))
]


def build(name: str) -> nodes.Node:
    """Return the node of a name of NAMES."""
    kind, backend, exemption = name.split("/")
    shape, parts = KINDS[kind]
    n = nodes.Node(7, 0)
    n.r = random.Random(7)
    n.six, n.shape, n.variant = False, shape, ""
    n.pods = nodes.pods(shape, 2)
    n.uplinks = [nodes.Uplink("up0", "veth", 0, True)]
    n.lines = ["route add default " + n.uplinks[0].via(), "route add 10.244.2.0/24 " + n.uplinks[0].via()]
    n.steps, n.interests, n.used, n.marks = [], [{"dst": "10.244.2.0/24"}], set(), []
    pods = {} if exemption == "return" else {"source_cidrs": ["10.244.0.0/16"]}
    options = {"non_masquerade_cidrs": ["10.0.0.0/8"], "backend": backend, "exemption": exemption}
    n.policy = policies.Policy({**options, **pods})
    for part in parts:
        n.begin(part.__name__.replace("_", "-"), False)
        part(n)
    return n
