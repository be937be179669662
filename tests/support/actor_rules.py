# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of programs that live on Kubernetes nodes, in the shape in which each makes them, by backend.

Each has a form that the others have not: which program a name belongs to, ``test_rule_owners`` lists, and Debian's
programs run in ``test_real_programs``.

The pods are those of ``topology``: 10.244.1.0/24 on this node, 10.244.0.0/16 in the cluster.
"""

from __future__ import annotations

import typing as t

from . import services
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


_IPV4 = services.SERVICES["ipv4"]


def _nat(shape: t.Callable[..., t.List[str]]) -> str:
    """Return rules of ``services`` for iptables-restore."""
    return "\n".join(["*nat", *shape(_IPV4, "-I POSTROUTING 1"), "COMMIT", ""])


_CALICO_SETS = """create cali40masq-ipam-pools hash:net family inet hashsize 1024 maxelem 1048576
create cali40all-ipam-pools hash:net family inet hashsize 1024 maxelem 1048576
add cali40masq-ipam-pools 10.244.0.0/16
add cali40all-ipam-pools 10.244.0.0/16
"""

SHAPES = (
    Shape("kube-proxy", IPTABLES, None, _nat(services.kube_proxy_iptables)),
    Shape("kube-proxy-ipvs", IPTABLES, None, _nat(services.kube_proxy_ipvs), services.ipvs_sets(_IPV4)),
    Shape("kube-proxy", NFT, None, services.kube_proxy_nftables(_IPV4, True)),
    Shape("portmap", IPTABLES, None, _nat(services.portmap_iptables)),
    Shape("portmap", NFT, None, services.portmap_nftables(_IPV4)),
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
    Shape("kube-ovn-before-1.9", IPTABLES, "Kube-OVN", """*nat
-A POSTROUTING -m set --match-set ovn40subnets-nat src -m set ! --match-set ovn40subnets dst -j MASQUERADE
COMMIT
""",
        """create ovn40subnets hash:net
create ovn40subnets-nat hash:net
add ovn40subnets 10.244.0.0/16
add ovn40subnets-nat 10.244.0.0/16
"""),
    Shape("kube-ovn", NFT, "Kube-OVN", """table ip kube-ovn {
    set subnets { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 }; }
    set nat-subnets { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 }; }
    chain nat-policy {
    }
    chain nat-postrouting {
        type nat hook postrouting priority srcnat + 10; policy accept;
        ip saddr @subnets ip daddr @subnets masquerade fully-random comment "nat-subnet-between"
        jump nat-policy comment "nat-policy"
        ip saddr @nat-subnets ip daddr != @subnets masquerade fully-random comment "nat-default"
    }
}
"""),
    Shape("aws-vpc-cni", IPTABLES, "AWS VPC CNI", """*nat
:AWS-SNAT-CHAIN-0 - [0:0]
-A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
-A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL \
-j SNAT --to-source 198.51.100.1 --random-fully
COMMIT
"""),
    Shape("openshift-sdn", IPTABLES, "OpenShift SDN", """*nat
:OPENSHIFT-MASQUERADE - [0:0]
:OPENSHIFT-MASQUERADE-2 - [0:0]
-A POSTROUTING -m comment --comment "rules for masquerading OpenShift traffic" -j OPENSHIFT-MASQUERADE
-A OPENSHIFT-MASQUERADE -s 10.244.0.0/16 -m comment --comment "masquerade pod-to-external traffic" \
-j OPENSHIFT-MASQUERADE-2
-A OPENSHIFT-MASQUERADE-2 -d 10.244.0.0/16 -m comment --comment "masquerade pod-to-external traffic" -j RETURN
-A OPENSHIFT-MASQUERADE-2 -j MASQUERADE
COMMIT
"""),
    Shape("netbird-beside-pods", NFT, None, """table ip netbird {
    chain netbird-rt-postrouting {
        type nat hook postrouting priority srcnat - 1; policy accept;
        meta mark 0x0001bd21 oifname != "lo" counter masquerade
        meta mark 0x0001bd22 oifname "wt0" counter masquerade
    }
}
"""),
    Shape("lxc-net-beside-pods", IPTABLES, None, """*nat
-A POSTROUTING -s 10.0.3.0/24 ! -d 10.0.3.0/24 -j MASQUERADE
COMMIT
"""),
    Shape("docker-without-userland-proxy", IPTABLES, None, """*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -o docker0 -m addrtype --src-type LOCAL -j MASQUERADE
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE
-A DOCKER -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
COMMIT
"""),
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
