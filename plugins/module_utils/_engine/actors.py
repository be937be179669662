# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who owns a rule, by the names of its table and chain and by its text; and what ends its effect, in its words."""

from __future__ import annotations

import re
import typing as t


class Actor(t.NamedTuple):
    """A program that makes rules."""

    name: str
    #: what ends their effect
    remedy: str
    #: patterns for whole names of a table, without the family, and a chain, perhaps with one for a part of the rule
    places: t.Tuple[t.Tuple[str, ...], ...] = ()
    #: whether they translate only what has to be translated
    benign: bool = False


#: The program whose left-over rule the role deletes with the kubelet.
KUBENET = "kubenet"

#: The first one that fits owns a rule: what has names of its own stands before what is known by its text.
ACTORS = (
    Actor(
        "kube-proxy",
        "kube-proxy masquerades Service traffic only: masqueradeAll: false and clusterCIDR in its configuration",
        (
            (
                r"nat",
                r"KUBE-(POSTROUTING|SERVICES|MARK-MASQ|NODEPORTS|NODE-PORT|LOAD-BALANCER|(SVC|SVL|SEP|FW|XLB|EXT)-[A-Z0-9]+)",
            ),
            (r"kube-proxy", r".*"),
        ),
        benign=True,
    ),
    Actor(
        "ip-masq-agent of this collection",
        "the active rules differ from the configuration: ip-masq-agent sync",
        ((r"ip_masq_agent", r".*"),),
    ),
    Actor(
        "ip-masq-agent",
        "the active rules differ from the configuration: ip-masq-agent sync; if the DaemonSet ip-masq-agent runs as "
        "well, remove it: kubectl -n kube-system delete daemonset ip-masq-agent",
        ((r"nat", r"IP-MASQ(-AGENT)?|NON-MASQUERADE-DAEMON"),),
    ),
    Actor(
        "Calico",
        "set natOutgoing: false in the IPPool of the pods (Tigera operator: Disabled in its Installation), or cover "
        "the range with an IPPool that has disabled: true",
        ((r"nat|calico", r"(nat-|filter-)?cali-.*"),),
    ),
    Actor(
        "flannel",
        "start flanneld without --ip-masq (FLANNEL_IPMASQ=false)",
        ((r"nat|flannel-ipv[46]", r"FLANNEL-.*|postrtg"), (r"nat", r"POSTROUTING", r"flanneld masq")),
    ),
    Actor(
        "Cilium",
        "let Cilium do it: ipMasqAgent.enabled=true with bpf.masquerade=true and the ranges in its ConfigMap "
        "ip-masq-agent; or enableIPv4Masquerade=false",
        ((r"nat", r"(OLD_)?CILIUM_.*"),),
    ),
    Actor(
        "CNI plugin portmap",
        'portmap masquerades host ports only: "snat": false in its configuration ends that',
        (
            (
                r"nat|cni_hostport",
                r"CNI-(HOSTPORT-.*|DN-.*|SN-.*)|masquerading|hostports|hostports_all|hostip_hostports",
            ),
        ),
        benign=True,
    ),
    Actor(
        "CNI plugin bridge or ptp",
        'set "ipMasq": false in the configuration of the plugin in /etc/cni/net.d, and recreate the pods',
        ((r"cni_plugins_masquerade", r".*"), (r"nat", r"CNI-.*")),
    ),
    Actor(
        "kindnet",
        "start kindnetd with the range in --no-masquerade-cidr (older: environment variable NO_MASQUERADE_CIDR)",
        ((r"kindnet-ipmasq", r".*"),),
    ),
    Actor(
        "kindnet",
        "start kindnetd with the range in the environment variable POD_SUBNET, or replace it by another CNI",
        ((r"nat", r"KIND-MASQ-AGENT"),),
    ),
    Actor(
        "kube-router",
        "start kube-router with --enable-pod-egress=false",
        ((r"nat", r"KUBE-ROUTER-.*"), (r"nat", r"POSTROUTING", r"kube-router-(pod-subnets|node-ips|svip)")),
    ),
    Actor(
        "Weave Net",
        "set NO_MASQ_LOCAL=1 in the DaemonSet weave-net, or expose the network without NAT",
        ((r"nat", r"WEAVE(-.*)?"),),
    ),
    Actor(
        "OVN-Kubernetes",
        "start ovnkube with --disable-snat-multiple-gws=true and local gateway masquerading off, or use an EgressIP",
        ((r"nat|ovn-kubernetes", r"OVN-.*|ovn-kube-.*|mgmtport-.*"),),
    ),
    Actor(
        "Antrea",
        "set noSNAT: true in antrea-agent.conf (trafficEncapMode noEncap or hybrid), or use an Egress",
        ((r"nat", r"ANTREA-.*"),),
    ),
    Actor(
        KUBENET,
        "a leftover of the kubelet's kubenet, which nobody removes: delete the rule, or let the module "
        "kubelet_masquerade do it",
        ((r"nat", r"POSTROUTING", r"kubenet: SNAT|kubelet: SNAT"),),
    ),
    Actor(
        "Docker",
        'give its bridges ranges that hold no pod ("bip", "default-address-pools" in /etc/docker/daemon.json)',
        ((r"nat", r"POSTROUTING|DOCKER(-.*)?", r"! -o (docker|br-)"), (r"docker-bridges", r".*")),
    ),
    Actor(
        "libvirt",
        "give its network a range that holds no pod, or forward mode='route' (virsh net-edit)",
        ((r"nat|libvirt_network", r"LIBVIRT_.*|guest_.*"),),
    ),
    Actor(
        "podman",
        "give its networks ranges that hold no pod (default_subnet in containers.conf)",
        ((r"nat|netavark", r"NETAVARK-.*|POSTROUTING|nv_.*", r"netavark|NETAVARK|nv_"), (r"netavark", r".*")),
    ),
    Actor(
        "firewalld",
        "remove the masquerade of the zone: firewall-cmd --permanent --zone ZONE --remove-masquerade, then "
        "firewall-cmd --reload",
        ((r"firewalld|nat", r"nat_POST.*|POST_.*|POSTROUTING_(ZONES|POLICIES).*"),),
    ),
    Actor("Tailscale", "tailscale set --snat-subnet-routes=false", ((r"nat", r"ts-.*"),)),
    Actor(
        "LXD or Incus",
        "set ipv4.nat and ipv6.nat of its network to false",
        ((r"lxd|incus|nat", r"pstrt\..*|.*", r"pstrt|generated for (LXD|Incus) network"),),
    ),
    Actor(
        "systemd-networkd", "remove IPMasquerade= from the .network file of the link", ((r"io\.systemd\.nat", r".*"),)
    ),
    Actor("ufw", "remove the rule from /etc/ufw/before.rules, then ufw reload", ((r"nat", r"ufw6?-.*"),)),
)

#: The owner of rules that no known program makes.
UNKNOWN = Actor("unknown", "a rule that an administrator or an unknown program made: delete it")


def owner(table: str, chain: str, rule: str = "") -> Actor:
    """Return who made a chain, or a rule in it.

    :param table: its name, without the family.
    :param rule: as its tool lists it; without it, programs that are known by a rule's text alone are not found.
    """
    for actor in ACTORS:
        for table_pattern, chain_pattern, *text in actor.places:
            named = re.fullmatch(table_pattern, table) and re.fullmatch(chain_pattern, chain)
            if named and all(re.search(one, "%s %s" % (chain, rule)) for one in text):
                return actor
    return UNKNOWN
