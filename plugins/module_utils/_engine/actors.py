# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who owns a rule, by the names of its table and chain and by its text; and what ends its effect, in its words."""

from __future__ import annotations

import re
import typing as t


class Actor(t.NamedTuple):
    """A program that makes rules.

    ``table`` and ``chain`` are patterns for whole names, without the family; ``text`` is one for a part of the rule.
    ``benign`` is set where its rules translate only what has to be translated. ``remedy`` ends them where they are not.
    """

    name: str
    table: str
    chain: str
    remedy: str
    text: str = ""
    benign: bool = False


#: The program whose left-over rule the role deletes with the kubelet.
KUBENET = "kubenet"

#: The first one that fits owns a rule: what has names of its own stands before what is known by its text.
ACTORS = (
    Actor(
        "kube-proxy",
        r"nat",
        r"KUBE-(POSTROUTING|SERVICES|MARK-MASQ|NODEPORTS|NODE-PORT|LOAD-BALANCER|(SVC|SVL|SEP|FW|XLB|EXT)-[A-Z0-9]+)",
        "kube-proxy masquerades Service traffic only: masqueradeAll: false and clusterCIDR in its configuration",
        benign=True,
    ),
    Actor(
        "kube-proxy",
        r"kube-proxy",
        r".*",
        "kube-proxy masquerades Service traffic only: masqueradeAll: false and clusterCIDR in its configuration",
        benign=True,
    ),
    Actor(
        "ip-masq-agent of this collection",
        r"ip_masq_agent",
        r".*",
        "the active rules differ from the configuration: ip-masq-agent sync",
    ),
    Actor(
        "ip-masq-agent",
        r"nat",
        r"IP-MASQ(-AGENT)?|NON-MASQUERADE-DAEMON",
        "the active rules differ from the configuration: ip-masq-agent sync; if the DaemonSet ip-masq-agent runs as "
        "well, remove it: kubectl -n kube-system delete daemonset ip-masq-agent",
    ),
    Actor(
        "Calico",
        r"nat|calico",
        r"(nat-|filter-)?cali-.*",
        "set natOutgoing: false in the IPPool of the pods, or cover the range with an IPPool that has disabled: true",
    ),
    Actor(
        "flannel",
        r"nat|flannel-ipv[46]",
        r"FLANNEL-.*|postrtg",
        "start flanneld without --ip-masq (FLANNEL_IPMASQ=false)",
    ),
    Actor(
        "flannel",
        r"nat",
        r"POSTROUTING",
        "start flanneld without --ip-masq (FLANNEL_IPMASQ=false)",
        text=r"flanneld masq",
    ),
    Actor(
        "Cilium",
        r"nat",
        r"(OLD_)?CILIUM_.*",
        "let Cilium do it: ipMasqAgent.enabled=true with bpf.masquerade=true and the ranges in its ConfigMap "
        "ip-masq-agent; or enableIPv4Masquerade=false",
    ),
    Actor(
        "CNI plugin bridge or ptp",
        r"cni_plugins_masquerade",
        r".*",
        'set "ipMasq": false in the configuration of the plugin in /etc/cni/net.d, and recreate the pods',
    ),
    Actor(
        "CNI plugin portmap",
        r"nat|cni_hostport",
        r"CNI-(HOSTPORT-.*|DN-.*|SN-.*)|masquerading|hostports|hostports_all|hostip_hostports",
        'portmap masquerades host ports only: "snat": false in its configuration ends that',
        benign=True,
    ),
    Actor(
        "CNI plugin bridge or ptp",
        r"nat",
        r"CNI-.*",
        'set "ipMasq": false in the configuration of the plugin in /etc/cni/net.d, and recreate the pods',
    ),
    Actor(
        "kindnet",
        r"kindnet-ipmasq",
        r".*",
        "start kindnetd with the range in --no-masquerade-cidr (older: environment variable NO_MASQUERADE_CIDR)",
    ),
    Actor(
        "kindnet",
        r"nat",
        r"KIND-MASQ-AGENT",
        "start kindnetd with the range in the environment variable POD_SUBNET, or replace it by another CNI",
    ),
    Actor("kube-router", r"nat", r"KUBE-ROUTER-.*", "start kube-router with --enable-pod-egress=false"),
    Actor(
        "kube-router",
        r"nat",
        r"POSTROUTING",
        "start kube-router with --enable-pod-egress=false",
        text=r"kube-router-(pod-subnets|node-ips|svip)",
    ),
    Actor(
        "Weave Net",
        r"nat",
        r"WEAVE(-.*)?",
        "set NO_MASQ_LOCAL=1 in the DaemonSet weave-net, or expose the network without NAT",
    ),
    Actor(
        "OVN-Kubernetes",
        r"nat|ovn-kubernetes",
        r"OVN-.*|ovn-kube-.*|mgmtport-.*",
        "start ovnkube with --disable-snat-multiple-gws=true and local gateway masquerading off, or use an EgressIP",
    ),
    Actor(
        "Antrea",
        r"nat",
        r"ANTREA-.*",
        "set noSNAT: true in antrea-agent.conf (trafficEncapMode noEncap or hybrid), or use an Egress",
    ),
    Actor(
        KUBENET,
        r"nat",
        r"POSTROUTING",
        "a leftover of the kubelet's kubenet, which nobody removes: delete the rule, or let the module "
        "kubelet_masquerade do it",
        text=r"kubenet: SNAT|kubelet: SNAT",
    ),
    Actor(
        "Docker",
        r"nat",
        r"POSTROUTING|DOCKER(-.*)?",
        'give its bridges ranges that hold no pod ("bip", "default-address-pools" in /etc/docker/daemon.json)',
        text=r"! -o (docker|br-)",
    ),
    Actor(
        "Docker",
        r"docker-bridges",
        r".*",
        'give its bridges ranges that hold no pod ("bip", "default-address-pools" in /etc/docker/daemon.json)',
    ),
    Actor(
        "libvirt",
        r"nat|libvirt_network",
        r"LIBVIRT_.*|guest_.*",
        "give its network a range that holds no pod, or forward mode='route' (virsh net-edit)",
    ),
    Actor(
        "podman",
        r"nat|netavark",
        r"NETAVARK-.*|POSTROUTING|nv_.*",
        "give its networks ranges that hold no pod (default_subnet in containers.conf)",
        text=r"netavark|NETAVARK|nv_",
    ),
    Actor(
        "podman", r"netavark", r".*", "give its networks ranges that hold no pod (default_subnet in containers.conf)"
    ),
    Actor(
        "firewalld",
        r"firewalld|nat",
        r"nat_POST.*|POST_.*|POSTROUTING_(ZONES|POLICIES).*",
        "remove the masquerade of the zone: firewall-cmd --permanent --zone ZONE --remove-masquerade, then "
        "firewall-cmd --reload",
    ),
    Actor("Tailscale", r"nat", r"ts-.*", "tailscale set --snat-subnet-routes=false"),
    Actor(
        "LXD or Incus",
        r"lxd|incus|nat",
        r"pstrt\..*|.*",
        "set ipv4.nat and ipv6.nat of its network to false",
        text=r"pstrt|generated for (LXD|Incus) network",
    ),
    Actor("systemd-networkd", r"io\.systemd\.nat", r".*", "remove IPMasquerade= from the .network file of the link"),
    Actor("ufw", r"nat", r"ufw6?-.*", "remove the rule from /etc/ufw/before.rules, then ufw reload"),
)

#: The owner of rules that no known program makes.
UNKNOWN = Actor("unknown", r".*", r".*", "a rule that an administrator or an unknown program made: delete it")


def owner(table: str, chain: str, rule: str = "") -> Actor:
    """Return who made a chain, or a rule in it.

    :param table: its name, without the family.
    :param rule: as its tool lists it; without it, programs that are known by a rule's text alone are not found.
    """
    for actor in ACTORS:
        if (
            re.fullmatch(actor.table, table)
            and re.fullmatch(actor.chain, chain)
            and re.search(actor.text, "%s %s" % (chain, rule))
        ):
            return actor
    return UNKNOWN
