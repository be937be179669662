# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NAT rules of kube-proxy, the CNI plugin portmap and the kubelet for a few Services and a host port.

Shapes after kubernetes/kubernetes (pkg/proxy/iptables, pkg/proxy/nftables, pkg/kubelet/dockershim/network/hostport)
and containernetworking/plugins (plugins/meta/portmap). A Service whose endpoint is the pod makes hairpin connections,
when the pod opens them; one whose endpoint is an exempt address stands for a pod of another node.
"""

from __future__ import annotations

import typing as t

from .namespaces import Namespace
from .topology import ADDRESSES
from .variants import NFT_FAMILIES, Variant

#: what the pod and the world outside listen on
PORT = 8080
#: ports of the node
CLUSTER_PORT, LOCAL_PORT, HOST_PORT = 30001, 30002, 30003


class Services(t.NamedTuple):
    """Addresses of the Services of one family."""

    family: str
    #: of a Service whose endpoint is the pod
    virtual: str
    #: of a Service whose endpoint is on another node
    virtual_remote: str
    pod: str
    remote: str
    node: str
    pods: str

    def at(self, address: str, port: int = PORT) -> str:
        """Return an address and a port, as programs write them."""
        return ("[%s]:%d" if self.family == "ipv6" else "%s:%d") % (address, port)


def _services(family: str, virtual: str, virtual_remote: str) -> Services:
    a = ADDRESSES[family]
    return Services(family, virtual, virtual_remote, a.pod, a.exempt[0], a.node, a.pods)


SERVICES = {
    "ipv4": _services("ipv4", "10.96.0.10", "10.96.0.11"),
    "ipv6": _services("ipv6", "fd00:96::10", "fd00:96::11"),
}


# iptables


_MASQUERADED = (
    "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
    "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
    "-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
    "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
)


def kube_proxy_iptables(s: Services, add: str) -> t.List[str]:
    """Return the rules of kube-proxy in iptables mode.

    :param add: how its rule comes into POSTROUTING: ``-I POSTROUTING 1`` as kube-proxy does, or ``-A POSTROUTING``.
    """
    lines = [
        "-A PREROUTING -j KUBE-SERVICES",
        "-A OUTPUT -j KUBE-SERVICES",
        add + " -j KUBE-POSTROUTING",
        *_MASQUERADED,
        "-A KUBE-NODEPORTS -p tcp --dport %d -j KUBE-EXT-CLUSTER" % CLUSTER_PORT,
        "-A KUBE-NODEPORTS -p tcp --dport %d -j KUBE-EXT-LOCAL" % LOCAL_PORT,
        "-A KUBE-EXT-CLUSTER -j KUBE-MARK-MASQ",
        "-A KUBE-EXT-CLUSTER -j KUBE-SVC-REMOTE",
        "-A KUBE-EXT-LOCAL -s %s -j KUBE-SVC-POD" % s.pods,
        "-A KUBE-EXT-LOCAL -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ",
        "-A KUBE-EXT-LOCAL -m addrtype --src-type LOCAL -j KUBE-SVC-POD",
        "-A KUBE-EXT-LOCAL -j KUBE-SEP-POD",
    ]
    for name, virtual, endpoint in (("POD", s.virtual, s.pod), ("REMOTE", s.virtual_remote, s.remote)):
        lines += [
            "-A KUBE-SERVICES -d %s -p tcp --dport %d -j KUBE-SVC-%s" % (virtual, PORT, name),
            "-A KUBE-SVC-%s ! -s %s -d %s -p tcp --dport %d -j KUBE-MARK-MASQ" % (name, s.pods, virtual, PORT),
            "-A KUBE-SVC-%s -j KUBE-SEP-%s" % (name, name),
            "-A KUBE-SEP-%s -s %s -j KUBE-MARK-MASQ" % (name, endpoint),
            "-A KUBE-SEP-%s -p tcp -j DNAT --to-destination %s" % (name, s.at(endpoint)),
        ]
    lines.append("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")
    return _with_chains(lines)


def portmap_iptables(s: Services, add: str) -> t.List[str]:
    """Return the rules of portmap with its iptables backend."""
    lines = [
        "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        add + " -j CNI-HOSTPORT-MASQ",
        "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
        "-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000",
        "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports %d -j CNI-DN-POD" % HOST_PORT,
        "-A CNI-DN-POD -s %s -p tcp --dport %d -j CNI-HOSTPORT-SETMARK" % (s.pods, HOST_PORT),
    ]
    if s.family == "ipv4":
        lines.append("-A CNI-DN-POD -s 127.0.0.1/32 -p tcp --dport %d -j CNI-HOSTPORT-SETMARK" % HOST_PORT)
    lines.append("-A CNI-DN-POD -p tcp --dport %d -j DNAT --to-destination %s" % (HOST_PORT, s.at(s.pod)))
    return _with_chains(lines)


def kubelet_host_port(s: Services, add: str) -> t.List[str]:
    """Return the rules of kubenet, up to Kubernetes 1.23: loopback is masqueraded by source, without a mark."""
    lines = [
        "-A PREROUTING -m addrtype --dst-type LOCAL -j KUBE-HOSTPORTS",
        "-A OUTPUT -m addrtype --dst-type LOCAL -j KUBE-HOSTPORTS",
        "-A KUBE-HOSTPORTS -p tcp --dport %d -j KUBE-HP-POD" % HOST_PORT,
        "-A KUBE-HP-POD -s %s -j KUBE-MARK-MASQ" % s.pod,
        "-A KUBE-HP-POD -p tcp -j DNAT --to-destination %s" % s.at(s.pod),
    ]
    if s.family == "ipv4":
        lines.append(add + " -s 127.0.0.0/8 -o pods -j MASQUERADE")
    return _with_chains(lines)


def kube_proxy_ipvs(s: Services, add: str, masquerade_all: bool = False) -> t.List[str]:
    """Return the rules of kube-proxy in IPVS mode, after ``load_ipvs``.

    :param masquerade_all: what ``iptables.masqueradeAll`` of its configuration is.
    """
    cluster, node_port, local, loop_back = _ipvs_sets(s)
    lines = [
        "-A PREROUTING -j KUBE-SERVICES",
        "-A OUTPUT -j KUBE-SERVICES",
        add + " -j KUBE-POSTROUTING",
        "-A KUBE-POSTROUTING -m set --match-set %s dst,dst,src -j MASQUERADE" % loop_back,
        *_MASQUERADED,
        "-A KUBE-SERVICES %s-m set --match-set %s dst,dst -j KUBE-MARK-MASQ"
        % ("" if masquerade_all else "! -s %s " % s.pods, cluster),
        "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
        "-A KUBE-SERVICES -m set --match-set %s dst,dst -j ACCEPT" % cluster,
        "-A KUBE-NODE-PORT -p tcp -m set --match-set %s dst -j RETURN" % local,
        "-A KUBE-NODE-PORT -p tcp -m set --match-set %s dst -j KUBE-MARK-MASQ" % node_port,
    ]
    if s.family == "ipv4":
        lines.insert(0, "-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN")
    return _with_chains(lines)


def _ipvs_sets(s: Services) -> t.List[str]:
    """Return the names of the sets of kube-proxy in IPVS mode (pkg/proxy/ipvs/ipset.go)."""
    start = "KUBE-6-" if s.family == "ipv6" else "KUBE-"
    return [start + name for name in ("CLUSTER-IP", "NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "LOOP-BACK")]


def load_ipvs(node: Namespace, s: Services) -> None:
    """Make the virtual services of kube-proxy in IPVS mode, and its sets, which its rules need.

    Its addresses are on a dummy device; lo does as well.
    """
    node.run("sysctl", "-qw", "net.ipv4.vs.conntrack=1")
    for service, endpoint in (
        (s.at(s.virtual), s.pod),
        (s.at(s.virtual_remote), s.remote),
        (s.at(s.node, CLUSTER_PORT), s.remote),
        (s.at(s.node, LOCAL_PORT), s.pod),
    ):
        node.run("ipvsadm", "-A", "-t", service, "-s", "rr")
        node.run("ipvsadm", "-a", "-t", service, "-r", s.at(endpoint), "-m")
    for address in (s.virtual, s.virtual_remote):
        node.run("ip", "address", "replace", "%s/%d" % (address, 128 if ":" in address else 32), "dev", "lo")
    load_ipvs_sets(node, s)


def load_ipvs_sets(node: Namespace, s: Services) -> None:
    """Make the sets of kube-proxy in IPVS mode."""
    node.run("ipset", "restore", stdin=ipvs_sets(s))


def ipvs_sets(s: Services) -> str:
    """Return the sets of kube-proxy in IPVS mode, for ipset."""
    cluster, node_port, local, loop_back = _ipvs_sets(s)
    family = "inet6" if s.family == "ipv6" else "inet"
    lines = [
        "create %s hash:ip,port family %s" % (cluster, family),
        "create %s bitmap:port range 0-65535" % node_port,
        "create %s bitmap:port range 0-65535" % local,
        "create %s hash:ip,port,ip family %s" % (loop_back, family),
        "add %s %s,tcp:%d" % (cluster, s.virtual, PORT),
        "add %s %s,tcp:%d" % (cluster, s.virtual_remote, PORT),
        "add %s %d" % (node_port, CLUSTER_PORT),
        "add %s %d" % (node_port, LOCAL_PORT),
        "add %s %d" % (local, LOCAL_PORT),
        "add %s %s,tcp:%d,%s" % (loop_back, s.pod, PORT, s.pod),
    ]
    return "".join(line + "\n" for line in lines)


def _with_chains(lines: t.Sequence[str]) -> t.List[str]:
    """Return the lines behind declarations of the chains that they fill; a second declaration would empty a chain."""
    filled = {line.split()[1] for line in lines if line.startswith("-A ")}
    own = sorted(chain for chain in filled if "-" in chain)
    return [":%s - [0:0]" % chain for chain in own] + list(lines)


def load_iptables(node: Namespace, variant: Variant, s: Services, add: str, *shapes: t.Callable[..., t.Any]) -> None:
    """Load rules of some of the functions above, each in a transaction of its own."""
    for shape in shapes:
        variant.load(node, s.family, *shape(s, add))


# nftables


def kube_proxy_nftables(s: Services, marks_hairpin: bool) -> str:
    """Return the rules of kube-proxy in nftables mode.

    :param marks_hairpin: as up to Kubernetes 1.35. Later it recognises hairpin connections by their addresses.
    """
    ip = NFT_FAMILIES[s.family]
    names = dict(
        s._asdict(),
        ip=ip,
        addr="ipv4_addr" if s.family == "ipv4" else "ipv6_addr",
        port=PORT,
        cluster_port=CLUSTER_PORT,
        local_port=LOCAL_PORT,
        at_pod=s.at(s.pod),
        at_remote=s.at(s.remote),
        mark_pod="%s saddr %s jump mark-masq" % (ip, s.pod) if marks_hairpin else "",
        mark_remote="%s saddr %s jump mark-masq" % (ip, s.remote) if marks_hairpin else "",
        by_address="" if marks_hairpin else _BY_ADDRESS % {"ip": ip},
    )
    return _KUBE_PROXY % names


_BY_ADDRESS = "ct status dnat %(ip)s saddr . %(ip)s daddr . meta l4proto . th dport @hairpin-connections masquerade"
_KUBE_PROXY = """
table %(ip)s kube-proxy {
    set hairpin-connections {
        type %(addr)s . %(addr)s . inet_proto . inet_service
        elements = { %(pod)s . %(pod)s . tcp . %(port)d, %(remote)s . %(remote)s . tcp . %(port)d }
    }
    set nodeport-ips { type %(addr)s; elements = { %(node)s }; }
    chain mark-masq { meta mark set meta mark or 0x4000; }
    chain endpoint-pod {
        %(mark_pod)s
        meta l4proto tcp dnat to %(at_pod)s
    }
    chain endpoint-remote {
        %(mark_remote)s
        meta l4proto tcp dnat to %(at_remote)s
    }
    chain service-pod {
        %(ip)s daddr %(virtual)s tcp dport %(port)d %(ip)s saddr != %(pods)s jump mark-masq
        goto endpoint-pod
    }
    chain service-remote {
        %(ip)s daddr %(virtual_remote)s tcp dport %(port)d %(ip)s saddr != %(pods)s jump mark-masq
        goto endpoint-remote
    }
    chain external-cluster {
        jump mark-masq
        goto service-remote
    }
    chain external-local {
        %(ip)s saddr %(pods)s goto service-pod
        fib saddr type local jump mark-masq
        fib saddr type local goto service-pod
        goto endpoint-pod
    }
    map service-ips {
        type %(addr)s . inet_proto . inet_service : verdict
        elements = {
            %(virtual)s . tcp . %(port)d : goto service-pod, %(virtual_remote)s . tcp . %(port)d : goto service-remote
        }
    }
    map service-nodeports {
        type inet_proto . inet_service : verdict
        elements = { tcp . %(cluster_port)d : goto external-cluster, tcp . %(local_port)d : goto external-local }
    }
    chain services {
        %(ip)s daddr . meta l4proto . th dport vmap @service-ips
        %(ip)s daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }
    chain masquerading {
        meta mark and 0x4000 != 0 meta mark set meta mark xor 0x4000 masquerade fully-random
        %(by_address)s
    }
    set cluster-ips { type %(addr)s; elements = { %(virtual)s, %(virtual_remote)s }; }
    map no-endpoint-services { type %(addr)s . inet_proto . inet_service : verdict; }
    chain cluster-ips-check { %(ip)s daddr @cluster-ips reject comment "Reject traffic to invalid ports"; }
    chain filter-forward {
        type filter hook forward priority -110;
        ct state new %(ip)s daddr . meta l4proto . th dport vmap @no-endpoint-services
        ct state new jump cluster-ips-check
    }
    chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
    chain nat-output { type nat hook output priority -100; jump services; }
    chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
"""


def portmap_nftables(s: Services) -> str:
    """Return the rules of portmap 1.9 with its nftables backend, which marks nothing."""
    ip = NFT_FAMILIES[s.family]
    names = dict(s._asdict(), ip=ip, host_port=HOST_PORT, at_pod=s.at(s.pod), loopback="")
    if s.family == "ipv4":
        names["loopback"] = "ip saddr 127.0.0.1 ip daddr %s masquerade" % s.pod
    return _PORTMAP % names


_PORTMAP = """
table %(ip)s cni_hostport {
    comment "CNI portmap plugin"
    chain hostports { tcp dport %(host_port)d dnat to %(at_pod)s comment "3f5e"; }
    chain hostip_hostports { }
    chain hostports_all { jump hostip_hostports; jump hostports; }
    chain prerouting { type nat hook prerouting priority -100; fib daddr type local jump hostports_all; }
    chain output { type nat hook output priority -100; fib daddr type local jump hostports_all; }
    chain masquerading {
        type nat hook postrouting priority 100;
        %(ip)s saddr %(pod)s %(ip)s daddr %(pod)s masquerade comment "3f5e"
        %(loopback)s
    }
}
"""
