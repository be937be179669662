# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of programs that live on Kubernetes nodes, in the shape in which each makes them, by backend.

The pods are those of ``topology``: 10.244.1.0/24 on this node, 10.244.0.0/16 in the cluster.
"""

from __future__ import annotations

import typing as t

from .namespaces import Namespace

IPTABLES = "iptables"
NFT = "nft"


class Shape(t.NamedTuple):
    """What one program makes. ``owner`` is who is to blame where it translates what is exempt; None: it must not be.

    ``rules`` are texts for iptables-restore --noflush, or for nft -f; ``sets`` for ipset restore.
    """

    name: str
    backend: str
    owner: t.Optional[str]
    rules: str
    sets: str = ""

    @property
    def title(self) -> str:
        """For the name of a test."""
        return "%s-%s" % (self.name, self.backend)

    def load(self, node: Namespace, variant: str = "nft") -> None:
        """Make it on a node, rules of iptables with this variant."""
        node.run("ipset", "restore", stdin=self.sets)
        if self.backend == NFT:
            node.run("nft", "-f", "-", stdin=self.rules)
        else:
            node.run("iptables-%s-restore" % variant, "--noflush", stdin=self.rules)


_KUBE_PROXY_IPTABLES = """*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-EXT-V2OKYYMBY3REGZOG - [0:0]
:KUBE-SVC-V2OKYYMBY3REGZOG - [0:0]
:KUBE-SEP-OP4AXEAS4OXHBEQX - [0:0]
:KUBE-SEP-Z5CRRG26P4MKTFIZ - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING 1 -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-EXT-V2OKYYMBY3REGZOG -m comment --comment "masquerade traffic for default/web" -j KUBE-MARK-MASQ
-A KUBE-EXT-V2OKYYMBY3REGZOG -j KUBE-SVC-V2OKYYMBY3REGZOG
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web" -m tcp --dport 30080 -j KUBE-EXT-V2OKYYMBY3REGZOG
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-OP4AXEAS4OXHBEQX -s 10.244.1.2/32 -m comment --comment "default/web" -j KUBE-MARK-MASQ
-A KUBE-SEP-OP4AXEAS4OXHBEQX -p tcp -m comment --comment "default/web" -m tcp -j DNAT --to-destination 10.244.1.2:8080
-A KUBE-SEP-Z5CRRG26P4MKTFIZ -s 10.244.2.7/32 -m comment --comment "default/web" -j KUBE-MARK-MASQ
-A KUBE-SEP-Z5CRRG26P4MKTFIZ -p tcp -m comment --comment "default/web" -m tcp -j DNAT --to-destination 10.244.2.7:8080
-A KUBE-SERVICES -d 10.96.140.7/32 -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 80 \
-j KUBE-SVC-V2OKYYMBY3REGZOG
-A KUBE-SERVICES -d 192.168.50.1/32 -p tcp -m comment --comment "default/web loadbalancer IP" -m tcp --dport 80 \
-j KUBE-EXT-V2OKYYMBY3REGZOG
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-V2OKYYMBY3REGZOG ! -s 10.244.0.0/16 -d 10.96.140.7/32 -p tcp -m comment --comment "default/web cluster IP" \
-m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-V2OKYYMBY3REGZOG -m comment --comment "default/web -> 10.244.1.2:8080" -m statistic --mode random \
--probability 0.50000000000 -j KUBE-SEP-OP4AXEAS4OXHBEQX
-A KUBE-SVC-V2OKYYMBY3REGZOG -m comment --comment "default/web -> 10.244.2.7:8080" -j KUBE-SEP-Z5CRRG26P4MKTFIZ
COMMIT
""".replace(" -m nfacct --nfacct-name ct_state_invalid_dropped_pkts", "")

_KUBE_PROXY_IPVS = """*nat
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING 1 -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade purpose" \
-m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" \
-m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE --random-fully
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-SERVICES ! -s 10.244.0.0/16 -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" \
-m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
"""
_KUBE_PROXY_IPVS_SETS = """create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536
create KUBE-LOOP-BACK hash:ip,port,ip family inet hashsize 1024 maxelem 65536
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
add KUBE-CLUSTER-IP 10.96.140.7,tcp:80
add KUBE-LOOP-BACK 10.244.1.2,tcp:8080,10.244.1.2
add KUBE-NODE-PORT-TCP 30080
"""

_KUBE_PROXY_NFT = """table ip kube-proxy {
    comment "rules for kube-proxy"
    set cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; elements = { 10.96.140.7 }; }
    set nodeport-ips { type ipv4_addr; comment "IPs that accept NodePort traffic"; elements = { 198.51.100.1 }; }
    map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
    map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
    map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
    chain reject-chain {
        reject
    }
    chain mark-for-masquerade {
        meta mark set meta mark | 0x4000
    }
    chain masquerading {
        meta mark & 0x4000 == 0 return
        meta mark set meta mark ^ 0x4000
        masquerade fully-random
    }
    chain endpoint-OP4AXEAS-default/web/tcp/http__10.244.1.2/8080 {
        ip saddr 10.244.1.2 jump mark-for-masquerade
        meta l4proto tcp dnat to 10.244.1.2:8080
    }
    chain endpoint-Z5CRRG26-default/web/tcp/http__10.244.2.7/8080 {
        ip saddr 10.244.2.7 jump mark-for-masquerade
        meta l4proto tcp dnat to 10.244.2.7:8080
    }
    chain service-V2OKYYMB-default/web/tcp/http {
        ip daddr 10.96.140.7 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
        numgen random mod 2 vmap { 0 : goto endpoint-OP4AXEAS-default/web/tcp/http__10.244.1.2/8080, \
1 : goto endpoint-Z5CRRG26-default/web/tcp/http__10.244.2.7/8080 }
    }
    chain external-V2OKYYMB-default/web/tcp/http {
        jump mark-for-masquerade
        goto service-V2OKYYMB-default/web/tcp/http
    }
    map service-ips {
        type ipv4_addr . inet_proto . inet_service : verdict
        comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"
        elements = { 10.96.140.7 . tcp . 80 : goto service-V2OKYYMB-default/web/tcp/http, \
192.168.50.1 . tcp . 80 : goto external-V2OKYYMB-default/web/tcp/http }
    }
    map service-nodeports {
        type inet_proto . inet_service : verdict
        comment "NodePort traffic"
        elements = { tcp . 30080 : goto external-V2OKYYMB-default/web/tcp/http }
    }
    chain cluster-ips-check {
        ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
    }
    chain services {
        ip daddr . meta l4proto . th dport vmap @service-ips
        ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }
    chain service-endpoints-check {
        ip daddr . meta l4proto . th dport vmap @no-endpoint-services
    }
    chain filter-forward {
        type filter hook forward priority -110; policy accept;
        ct state new jump service-endpoints-check
        ct state new jump cluster-ips-check
    }
    chain nat-prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        jump services
    }
    chain nat-output {
        type nat hook output priority -100; policy accept;
        jump services
    }
    chain nat-postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        jump masquerading
    }
}
"""

_CALICO_SETS = """create cali40masq-ipam-pools hash:net family inet hashsize 1024 maxelem 1048576
create cali40all-ipam-pools hash:net family inet hashsize 1024 maxelem 1048576
add cali40masq-ipam-pools 10.244.0.0/16
add cali40all-ipam-pools 10.244.0.0/16
"""

SHAPES = (
    Shape("kube-proxy", IPTABLES, None, _KUBE_PROXY_IPTABLES),
    Shape("kube-proxy-ipvs", IPTABLES, None, _KUBE_PROXY_IPVS, _KUBE_PROXY_IPVS_SETS),
    Shape("kube-proxy", NFT, None, _KUBE_PROXY_NFT),
    Shape("calico", IPTABLES, "Calico", """*nat
:cali-POSTROUTING - [0:0]
:cali-fip-snat - [0:0]
:cali-nat-outgoing - [0:0]
-I POSTROUTING 1 -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
-A cali-POSTROUTING -m comment --comment "cali:Z-c7XtVd2Bq7s_hA" -j cali-fip-snat
-A cali-POSTROUTING -m comment --comment "cali:nYKhEzDlr11Jccal" -j cali-nat-outgoing
-A cali-nat-outgoing -m comment --comment "cali:flqWnvo8yq4ULQLa" -m set --match-set cali40masq-ipam-pools src \
-m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE --random-fully
COMMIT
""", _CALICO_SETS),
    Shape("calico", NFT, "Calico", """table ip calico {
    set cali40all-ipam-pools { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 }; }
    set cali40masq-ipam-pools { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 }; }
    chain nat-cali-nat-outgoing {
        ip saddr @cali40masq-ipam-pools ip daddr != @cali40all-ipam-pools counter masquerade fully-random \
comment "cali:Dw4T8UWPnCLxRJiI;"
    }
    chain nat-cali-POSTROUTING {
        counter jump nat-cali-nat-outgoing comment "cali:nYKhEzDlr11Jccal;"
    }
    chain nat-POSTROUTING {
        type nat hook postrouting priority srcnat; policy accept;
        counter jump nat-cali-POSTROUTING comment "cali:O3lYWMrLQYEMJtB5;"
    }
}
"""),
    Shape("flannel", IPTABLES, "flannel", """*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" \
-j MASQUERADE --random-fully
COMMIT
"""),
    Shape("flannel-before-0.20", IPTABLES, "flannel", """*nat
-A POSTROUTING -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
"""),
    Shape("flannel", NFT, "flannel", """table ip flannel-ipv4 {
    comment "rules for flannel-ipv4"
    chain postrtg {
        comment "chain to manage traffic masquerading by flannel"
        type nat hook postrouting priority srcnat; policy accept;
        meta mark 0x00004000 return
        ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
        ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
        ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
        ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
        ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
    }
}
"""),
    Shape("cilium", IPTABLES, "Cilium", """*nat
:CILIUM_POST_nat - [0:0]
-I POSTROUTING 1 -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
-A CILIUM_POST_nat -s 10.244.1.0/24 -m set --match-set cilium_node_set_v4 dst \
-m comment --comment "exclude traffic to cluster nodes from masquerade" -j ACCEPT
-A CILIUM_POST_nat -s 10.244.1.0/24 ! -d 10.244.0.0/16 ! -o cilium_+ \
-m comment --comment "cilium masquerade non-cluster" -j MASQUERADE
-A CILIUM_POST_nat -m mark --mark 0xa00/0xe00 \
-m comment --comment "exclude proxy return traffic from masquerade" -j ACCEPT
COMMIT
""", "create cilium_node_set_v4 hash:ip\nadd cilium_node_set_v4 198.51.100.1\n"),
    Shape("cni-ipmasq", IPTABLES, "CNI plugin bridge or ptp", """*nat
:CNI-d4f4a0f1b0a5d2d57e3fd8ea - [0:0]
-A POSTROUTING -s 10.244.1.2/32 -m comment --comment "name: \\"mynet\\" id: \\"3f5e\\"" -j CNI-d4f4a0f1b0a5d2d57e3fd8ea
-A CNI-d4f4a0f1b0a5d2d57e3fd8ea -d 10.244.1.0/24 -m comment --comment "name: \\"mynet\\" id: \\"3f5e\\"" -j ACCEPT
-A CNI-d4f4a0f1b0a5d2d57e3fd8ea ! -d 224.0.0.0/4 -m comment --comment "name: \\"mynet\\" id: \\"3f5e\\"" -j MASQUERADE
COMMIT
"""),
    Shape("cni-ipmasq", NFT, "CNI plugin bridge or ptp", """table inet cni_plugins_masquerade {
    comment "Masquerading for plugins from github.com/containernetworking/plugins"
    chain masq_checks {
        comment "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"
        ip saddr 10.244.1.2 ip daddr != 10.244.1.0/24 masquerade \
comment "6fd94d501e58f0aa, net: mynet, if: eth0, id: 3f5e"
    }
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        ip daddr 224.0.0.0/4 return
        ip6 daddr ff00::/8 return
        goto masq_checks
    }
}
"""),
    Shape("portmap", IPTABLES, None, """*nat
:CNI-DN-d4f4a0f1b0a5d2d57e3fd - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-I POSTROUTING 1 -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-DN-d4f4a0f1b0a5d2d57e3fd -s 10.244.1.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-d4f4a0f1b0a5d2d57e3fd -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-d4f4a0f1b0a5d2d57e3fd -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.1.2:80
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"cbr0\\" id: \\"3f5e\\"" -m multiport --dports 8080 \
-j CNI-DN-d4f4a0f1b0a5d2d57e3fd
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
COMMIT
"""),
    Shape("portmap", NFT, None, """table ip cni_hostport {
    comment "CNI portmap plugin"
    chain hostports {
        ip protocol tcp th dport 8080 dnat ip to 10.244.1.2:80 comment "6fd94d501e58f0aa"
    }
    chain masquerading {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 10.244.1.2 ip daddr 10.244.1.2 masquerade comment "6fd94d501e58f0aa"
        ip saddr 127.0.0.1 ip daddr 10.244.1.2 masquerade comment "6fd94d501e58f0aa"
    }
    chain input {
        type nat hook prerouting priority dstnat; policy accept;
        fib daddr type local jump hostports
    }
}
"""),
    Shape("kube-router", IPTABLES, "kube-router", """*nat
-A POSTROUTING -m set --match-set kube-router-pod-subnets src -m set ! --match-set kube-router-pod-subnets dst \
-m set ! --match-set kube-router-node-ips dst -j MASQUERADE --random-fully
COMMIT
""",
        """create kube-router-pod-subnets hash:net
create kube-router-node-ips hash:ip
add kube-router-pod-subnets 10.244.0.0/16
add kube-router-node-ips 198.51.100.1
"""),
    Shape("weave", IPTABLES, "Weave Net", """*nat
:WEAVE - [0:0]
-A POSTROUTING -j WEAVE
-A WEAVE -m set --match-set weaver-no-masq-local dst -m comment --comment "Prevent SNAT to locally running containers" \
-j RETURN
-A WEAVE -s 10.244.0.0/16 -d 224.0.0.0/4 -j RETURN
-A WEAVE ! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE
-A WEAVE -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE
COMMIT
""", "create weaver-no-masq-local hash:ip comment\n"),
    Shape("kindnet-before-nft", IPTABLES, "kindnet", """*nat
:KIND-MASQ-AGENT - [0:0]
-A POSTROUTING -m addrtype ! --dst-type LOCAL -m comment --comment "kind-masq-agent: ensure nat POSTROUTING directs \
all non-LOCAL destination traffic to our custom KIND-MASQ-AGENT chain" -j KIND-MASQ-AGENT
-A KIND-MASQ-AGENT -d 10.244.0.0/16 -m comment --comment "kind-masq-agent: local traffic is not subject to MASQUERADE" \
-j RETURN
-A KIND-MASQ-AGENT -m comment --comment "kind-masq-agent: outbound traffic is subject to MASQUERADE (must be last in \
chain)" -j MASQUERADE
COMMIT
"""),
    Shape("kindnet", NFT, "kindnet", """table inet kindnet-ipmasq {
    set noMasqV4 { type ipv4_addr; flags interval; auto-merge; elements = { 10.244.0.0/16 }; }
    set noMasqV6 { type ipv6_addr; flags interval; auto-merge; }
    chain postrouting {
        type nat hook postrouting priority srcnat - 10; policy accept;
        ct state established,related accept
        fib daddr type local accept
        ip daddr @noMasqV4 accept
        ip6 daddr @noMasqV6 accept
        meta nfproto ipv4 counter masquerade
    }
}
"""),
    Shape("docker-beside-pods", IPTABLES, None, """*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
COMMIT
"""),
    Shape("docker-over-pods", IPTABLES, "Docker", """*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 10.244.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
COMMIT
"""),
    Shape("docker-over-pods", NFT, "Docker", """table ip docker-bridges {
    chain nat-postrouting-out__docker0 {
        oifname != "docker0" ip saddr 10.244.0.0/16 counter masquerade comment "MASQUERADE"
    }
    chain nat-POSTROUTING {
        type nat hook postrouting priority srcnat; policy accept;
        jump nat-postrouting-out__docker0
    }
}
"""),
    Shape("libvirt-beside-pods", IPTABLES, None, """*nat
:LIBVIRT_PRT - [0:0]
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-A LIBVIRT_PRT -s 192.168.122.0/24 -d 255.255.255.255/32 -j RETURN
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p udp -j MASQUERADE --to-ports 1024-65535
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
COMMIT
"""),
    Shape("libvirt-over-pods", NFT, "libvirt", """table ip libvirt_network {
    chain guest_nat {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 10.244.1.0/24 ip daddr 224.0.0.0/24 counter return
        ip saddr 10.244.1.0/24 ip daddr 255.255.255.255 counter return
        meta l4proto tcp ip saddr 10.244.1.0/24 ip daddr != 10.244.1.0/24 counter masquerade to :1024-65535
        meta l4proto udp ip saddr 10.244.1.0/24 ip daddr != 10.244.1.0/24 counter masquerade to :1024-65535
        ip saddr 10.244.1.0/24 ip daddr != 10.244.1.0/24 counter masquerade
    }
}
"""),
    Shape("firewalld", IPTABLES, "firewalld", """*nat
:POSTROUTING_ZONES - [0:0]
:POST_public - [0:0]
:POST_public_allow - [0:0]
-A POSTROUTING -j POSTROUTING_ZONES
-A POSTROUTING_ZONES -o eth0 -g POST_public
-A POSTROUTING_ZONES -g POST_public
-A POST_public -j POST_public_allow
-A POST_public_allow ! -o lo -j MASQUERADE
COMMIT
"""),
    Shape("firewalld", NFT, "firewalld", """table inet firewalld {
    chain nat_POST_public_allow {
        meta nfproto ipv4 oifname != "lo" masquerade
    }
    chain nat_POST_public {
        jump nat_POST_public_allow
    }
    chain nat_POSTROUTING_ZONES {
        oifname "eth0" goto nat_POST_public
        goto nat_POST_public
    }
    chain nat_POSTROUTING {
        type nat hook postrouting priority srcnat + 10; policy accept;
        jump nat_POSTROUTING_ZONES
    }
}
"""),
    Shape("ovn-kubernetes", NFT, "OVN-Kubernetes", """table inet ovn-kubernetes {
    chain ovn-kube-pod-subnet-masq {
        ip saddr 10.244.1.0/24 masquerade
    }
    chain ovn-kube-local-gw-masq {
        comment "OVN local gateway masquerade"
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 169.254.0.1 masquerade
        jump ovn-kube-pod-subnet-masq
    }
}
"""),
    Shape("ovn-kubernetes", IPTABLES, "OVN-Kubernetes", """*nat
:OVN-KUBE-EGRESS-SVC - [0:0]
-A POSTROUTING -j OVN-KUBE-EGRESS-SVC
-A OVN-KUBE-EGRESS-SVC -m mark --mark 0x3f0 -m comment --comment DoNotSNAT -j RETURN
-A OVN-KUBE-EGRESS-SVC -s 10.244.1.2/32 -m comment --comment default/some-service -j SNAT --to-source 198.51.100.1
COMMIT
"""),
    Shape("antrea", IPTABLES, "Antrea", """*nat
:ANTREA-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "Antrea: jump to Antrea postrouting rules" -j ANTREA-POSTROUTING
-A ANTREA-POSTROUTING -s 10.244.1.0/24 ! -o antrea-gw0 \
-m comment --comment "Antrea: masquerade Pod to external packets" \
-m set ! --match-set ANTREA-POD-IP dst -j MASQUERADE --random-fully
COMMIT
""", "create ANTREA-POD-IP hash:net\nadd ANTREA-POD-IP 10.244.0.0/16\n"),
    Shape("kubenet", IPTABLES, "kubenet", """*nat
-A POSTROUTING ! -d 10.0.0.0/8 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" \
-m addrtype ! --dst-type LOCAL -j MASQUERADE
COMMIT
"""),
    Shape("podman-beside-pods", NFT, None, """table inet netavark {
    chain nv_2f259bab_10_88_0_0_nm16 {
        ip daddr 10.88.0.0/16 accept
        ip daddr != 224.0.0.0/4 masquerade
    }
    chain POSTROUTING {
        type nat hook postrouting priority srcnat; policy accept;
        meta mark & 0x00002000 == 0x00002000 masquerade
        ip saddr 10.88.0.0/16 jump nv_2f259bab_10_88_0_0_nm16
    }
}
"""),
    Shape("tailscale", IPTABLES, None, """*nat
:ts-postrouting - [0:0]
-A POSTROUTING -j ts-postrouting
-A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE
COMMIT
"""),
    Shape("lxd-over-pods", NFT, "LXD or Incus", """table inet lxd {
    chain pstrt.lxdbr0 {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 10.244.1.0/24 ip daddr != 10.244.1.0/24 masquerade
    }
}
"""),
    Shape("systemd-networkd", NFT, "systemd-networkd", """table ip io.systemd.nat {
    set masq_saddr { type ipv4_addr; flags interval; elements = { 10.244.1.0/24 }; }
    chain postrouting {
        type nat hook postrouting priority srcnat + 1; policy accept;
        ip saddr @masq_saddr masquerade
    }
}
"""),
    Shape("go-agent", IPTABLES, "ip-masq-agent", """*nat
:IP-MASQ - [0:0]
-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic \
to our custom IP-MASQ chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ
-A IP-MASQ -d 10.0.0.0/8 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN
-A IP-MASQ -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" \
-j MASQUERADE
COMMIT
"""),
    Shape("a-person", IPTABLES, "unknown", """*nat
-A POSTROUTING -o eth0 -j MASQUERADE
COMMIT
"""),
    Shape("a-person", NFT, "unknown", """table ip nat-by-hand {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "eth0" masquerade
    }
}
"""),
)  # fmt: skip
