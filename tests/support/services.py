# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NAT rules of kube-proxy, the CNI plugin portmap and the kubelet for a few Services and a host port.

Shapes after kubernetes/kubernetes (pkg/proxy/iptables, pkg/proxy/nftables, pkg/kubelet/dockershim/network/hostport)
and containernetworking/plugins (plugins/meta/portmap). A Service whose endpoint is the pod makes hairpin connections,
when the pod opens them; one whose endpoint is an exempt address stands for a pod of another node.
"""

from __future__ import annotations

import re
import typing as t

from strange import kube_proxy

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


def _written(s: Services, mode: str) -> str:
    """Return what kube-proxy writes for both Services in a mode, on a node without a pod of the one with Local."""
    version = 6 if s.family == "ipv6" else 4
    known = [
        kube_proxy.Service("POD", {version: s.virtual}, "tcp", PORT, PORT, LOCAL_PORT, {version: [s.pod]}, local=True),
        kube_proxy.Service(
            "REMOTE", {version: s.virtual_remote}, "tcp", PORT, PORT, CLUSTER_PORT, {version: [s.remote]}
        ),
    ]
    text = kube_proxy.KubeProxy(known, {version: [s.node]}).written(mode, version)[1]
    return text.replace(kube_proxy.PODS[version], s.pods)


# iptables


def kube_proxy_iptables(s: Services, add: str) -> t.List[str]:
    """Return the rules of kube-proxy in iptables mode.

    :param add: how its rule comes into POSTROUTING: ``-I POSTROUTING 1`` as kube-proxy does, or ``-A POSTROUTING``.
    """
    (nat,) = re.findall(r"(?s)^\*nat\n(.*?)^COMMIT", _written(s, kube_proxy.IPTABLES), re.MULTILINE)
    return [*nat.replace("-I POSTROUTING 1 ", add + " ").splitlines(), "-A KUBE-EXT-POD -j KUBE-SEP-POD0"]


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
        "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
        "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
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
    local = "add rule %s kube-proxy external-POD-ns/svc/tcp/p%d meta l4proto tcp dnat to %s\n"
    table = _written(s, kube_proxy.NFT_133 if marks_hairpin else kube_proxy.NFT_136)
    return table + local % (NFT_FAMILIES[s.family], PORT, s.at(s.pod))


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
