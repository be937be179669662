# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who owns a rule, by the names of its table and chain and by its text; and what ends its effect, in its words."""

from __future__ import annotations

import functools
import re
import typing as t
from shlex import quote

from .._system.printable import shown


class Owner(t.NamedTuple):
    """A program that makes rules."""

    name: str
    #: what ends their effect; ``%(zone)s`` stands for what the group ``zone`` of a pattern found
    remedy: str
    #: each with a pattern for the whole name of a table, without the family, one for that of a chain, and perhaps one
    #: for a part of the rule; a space between them
    places: t.Tuple[str, ...] = ()
    #: whether they translate only what has to be translated
    benign: bool = False
    #: whether they give packets of the node itself another address of it, because the receiver cannot answer the first
    of_node: bool = False
    #: whether it keeps machines or containers of its own on a node, behind bridges whose networks it masquerades
    has_guests: bool = False

    @property
    def known(self) -> bool:
        """Return whether it is known which program it is."""
        return self.name != UNKNOWN.name


#: The program whose left-over rule the role deletes with the kubelet.
KUBENET = "kubenet"

#: Docker's bridges can have any name: none of an uplink, and none that network plugins give.
_DOCKERS = r"^DOCKER|-s \S+ ! -o (docker|br-|(?!eth|en|bond|wl|tun|wg|cni|cbr|kube)\S+ -j (MASQUERADE|SNAT))"

#: The agent of this collection, and others of its kind.
LOCAL = ("ip-masq-agent of this collection", "ip-masq-agent")

#: The first one that fits owns a rule: what has names of its own stands before what is known by its text.
OWNERS = (
    Owner(
        "kube-proxy",
        "kube-proxy masquerades Service traffic only: masqueradeAll: false and clusterCIDR in its configuration",
        (
            r"nat KUBE-(POSTROUTING|SERVICES|MARK-MASQ|NODEPORTS|NODE-PORT|LOAD-BALANCER)",
            r"nat KUBE-(SVC|SVL|SEP|FW|XLB|EXT)-[A-Z0-9]+",
            r"kube-proxy .*",
        ),
        benign=True,
    ),
    Owner(
        "ip-masq-agent of this collection",
        "the active rules differ from the configuration: ip-masq-agent sync",
        (r"ip_masq_agent .*",),
    ),
    Owner(
        "ip-masq-agent",
        "the active rules differ from the configuration: ip-masq-agent sync; if the DaemonSet ip-masq-agent runs as "
        "well, remove it: kubectl -n kube-system delete daemonset ip-masq-agent",
        (r"nat IP-MASQ(-AGENT)?|NON-MASQUERADE-DAEMON",),
    ),
    Owner(
        "Calico",
        "Calico needs the rule for packets of the node that leave through its tunnel",
        (r"nat|calico (nat-)?cali-POSTROUTING src-type LOCAL|fib saddr type local",),
        of_node=True,
    ),
    Owner(
        "Calico",
        "set natOutgoing: false in the IPPool of the pods (Tigera operator: Disabled in its Installation), or cover "
        "the range with an IPPool that has disabled: true",
        (r"nat|raw|mangle|calico ([a-z]+-)?cali-.*",),
    ),
    Owner(
        "flannel",
        "start flanneld without --ip-masq (FLANNEL_IPMASQ=false)",
        (
            r"nat FLANNEL-.*",
            r"flannel-ipv[46] .*",
            # Where iptables has no comments, nothing but their form is left.
            r"nat POSTROUTING flanneld masq|-s \S+ ! -d (224\.0\.0\.0/4|ff00::/8) -j MASQUERADE",
            r"nat POSTROUTING ! -s (\S+) -d \1 -j MASQUERADE",
        ),
    ),
    Owner(
        "Cilium",
        "let Cilium do it: ipMasqAgent.enabled=true with bpf.masquerade=true and the ranges in its ConfigMap "
        "ip-masq-agent; or enableIPv4Masquerade=false",
        (r"nat|raw|mangle (OLD_)?CILIUM_.*",),
    ),
    Owner(
        "CNI plugin portmap",
        'portmap masquerades host ports only: "snat": false in its configuration ends that',
        (r"nat|cni_hostport CNI-(HOSTPORT-.*|DN-.*|SN-.*)|masquerading|hostports|hostports_all|hostip_hostports",),
        benign=True,
    ),
    Owner(
        "CNI plugin bridge or ptp",
        'set "ipMasq": false in the configuration of the plugin in /etc/cni/net.d, and recreate the pods',
        (r"cni_plugins_masquerade .*", r"nat CNI-.*"),
    ),
    Owner(
        "kindnet",
        "start kindnetd with the range in --no-masquerade-cidr (older: environment variable NO_MASQUERADE_CIDR, before "
        "that POD_SUBNET), or replace it by another CNI",
        (r"kindnet-ipmasq .*", r"nat KIND-MASQ-AGENT"),
    ),
    Owner(
        "kube-router",
        "start kube-router with --enable-pod-egress=false",
        (r"nat KUBE-ROUTER-.*", r"nat POSTROUTING kube-router-(pod-subnets|node-ips|svip)"),
    ),
    Owner(
        "Weave Net",
        "set NO_MASQ_LOCAL=1 in the DaemonSet weave-net, or expose the network without NAT",
        (r"nat WEAVE(-.*)?",),
    ),
    Owner(
        "Kube-OVN",
        "set natOutgoing: false in the subnet of the pods: kubectl patch subnet ovn-default --type merge -p "
        '\'{"spec":{"natOutgoing":false}}\'',
        (
            r"nat OVN-(PREROUTING|POSTROUTING|OUTPUT|MASQUERADE|NAT-POLICY|NAT-PSUBNET-.*)",
            r"nat POSTROUTING --match-set ovn[46]0|kube-ovn",
            r"kube-ovn .*",
        ),
    ),
    Owner(
        "OVN-Kubernetes",
        "start ovnkube with --disable-snat-multiple-gws=true and local gateway masquerading off, or use an EgressIP "
        "(OpenShift: an EgressIP)",
        (r"nat|ovn-kubernetes OVN-KUBE-.*|ovn-kube-.*|mgmtport-.*", r"ovn-kubernetes .*"),
    ),
    Owner(
        "OpenShift SDN",
        "it has no option for that: set exemption to accept or enforce, or use an EgressIP (oc patch netnamespace)",
        (r"nat OPENSHIFT-MASQUERADE(-2)?",),
    ),
    Owner(
        "AWS VPC CNI",
        "add the range to AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS of the DaemonSet aws-node, or set "
        "AWS_VPC_K8S_CNI_EXTERNALSNAT=true there",
        (r"nat AWS-(SNAT|CONNMARK)-CHAIN-\d+", r"nat POSTROUTING AWS,? SNAT"),
    ),
    Owner(
        "kube-vip",
        "add the range to the annotation kube-vip.io/egress-denied-networks of the Service, or remove its annotation "
        "kube-vip.io/egress",
        # It writes its name in base64.
        (r"nat POSTROUTING a3ViZS12aXAK?=",),
    ),
    Owner(
        "Rancher 1",
        "give its network in the environment ranges that hold no pod; where Rancher 1 no longer runs, nothing makes "
        "these chains any more: iptables -t nat -F %(chain)s",
        (r"nat (?P<chain>CATTLE_.*)",),
    ),
    Owner(
        "Antrea",
        "set noSNAT: true in antrea-agent.conf (trafficEncapMode noEncap or hybrid), or use an Egress",
        (r"nat ANTREA-.*",),
    ),
    Owner(
        KUBENET,
        "a leftover of the kubelet's kubenet, which nobody removes: delete the rule, or let the module "
        "kubelet_masquerade do it",
        (r"nat POSTROUTING kubenet: SNAT|kubelet: SNAT",),
    ),
    Owner(
        "Docker",
        "Docker needs the rule to reach its containers from the node: with userland-proxy: false in "
        "/etc/docker/daemon.json nothing else does",
        (
            r"nat POSTROUTING -A POSTROUTING -o \S+ -m addrtype --src-type LOCAL -j MASQUERADE",
            r"docker-bridges nat-postrouting-in__.* fib saddr type local",
        ),
        of_node=True,
    ),
    Owner(
        "Docker",
        "Docker needs the rule for containers that use their own published ports",
        (r"nat POSTROUTING -s (\S+)/32 -d \1/32 -p \S+ .*-j MASQUERADE",),
        benign=True,
    ),
    Owner(
        "Docker",
        'give its bridges ranges that hold no pod ("bip", "default-address-pools" in /etc/docker/daemon.json)',
        (r"nat POSTROUTING|DOCKER(-.*)? " + _DOCKERS, r"docker-bridges .*"),
        has_guests=True,
    ),
    Owner(
        "libvirt",
        "give its network a range that holds no pod, or forward mode='route' (virsh net-edit)",
        (
            r"nat|libvirt_network LIBVIRT_.*|guest_.*",
            # before 5.1
            r"nat POSTROUTING -s (\S+) ! -d \1 -p \S+ .*--to-ports 1024-65535|-s 192\.168\.122\.0/24 ",
        ),
        has_guests=True,
    ),
    Owner(
        "podman",
        "podman masquerades what goes to published ports only: publish none",
        (r"nat NETAVARK-HOSTPORT-.*",),
        benign=True,
    ),
    Owner(
        "podman",
        "give its networks ranges that hold no pod (default_subnet in containers.conf)",
        (r"netavark .*", r"nat NETAVARK-.*|nv_.*", r"nat POSTROUTING netavark|NETAVARK"),
        has_guests=True,
    ),
    Owner(
        "firewalld",
        "remove the masquerade of the policy %(policy)s: firewall-cmd --permanent --policy %(policy)s "
        "--remove-masquerade (of a rich rule: --remove-rich-rule), then firewall-cmd --reload",
        (r"firewalld|nat (nat_)?POST_policy_(?P<policy>.+?)(_(allow|deny|log|pre|post))?",),
    ),
    Owner(
        "firewalld",
        "remove the masquerade of the zone %(zone)s: firewall-cmd --permanent --zone %(zone)s --remove-masquerade (of "
        "a rich rule: --remove-rich-rule), then firewall-cmd --reload",
        (r"firewalld|nat (nat_)?POST_(?P<zone>.+?)(_(allow|deny|log|pre|post))?",),
    ),
    Owner(
        "firewalld",
        "remove the direct rule: firewall-cmd --permanent --direct --get-all-rules shows it; --remove-rule, then "
        "firewall-cmd --reload",
        (r"firewalld|nat (nat_)?POSTROUTING_direct",),
    ),
    Owner(
        "firewalld",
        "remove the masquerade of the zone or policy: firewall-cmd --list-all-zones, --list-all-policies",
        (r"firewalld .*", r"nat POSTROUTING_(ZONES|POLICIES).*"),
    ),
    Owner("Tailscale", "tailscale set --snat-subnet-routes=false", (r"nat ts-.*",)),
    Owner(
        "NetBird",
        "turn off Masquerade of the network or route in NetBird's management (Networks, Network Routes)",
        (r"netbird .*", r"nat (?i:netbird)-.*"),
    ),
    Owner(
        "LXD or Incus",
        "set ipv4.nat and ipv6.nat of its network %(network)s to false",
        (
            r"lxd|incus pstrt\.(?P<network>.+)",
            r"nat POSTROUTING generated for (LXD|Incus) network(-\S+)? (?P<network>[^\s\"]+)",
        ),
        has_guests=True,
    ),
    Owner("LXD or Incus", "set ipv4.nat and ipv6.nat of its network to false", (r"lxd|incus .*",)),
    Owner(
        "lxc-net",
        "give it a range that holds no pod: LXC_NETWORK in /etc/default/lxc-net, then systemctl restart lxc-net",
        # With iptables, nothing but its default range is left.
        (r"lxc .*", r"nat POSTROUTING -s (10\.0\.3\.0/24) ! -d \1 -j MASQUERADE"),
        has_guests=True,
    ),
    Owner(
        "NetworkManager",
        "a connection on %(link)s has the method shared: give it a range that holds no pod (nmcli connection modify "
        "CONNECTION ipv4.addresses ADDRESS/24), or another ipv4.method",
        (r"nm-shared-(?P<link>.+) .*", r"nat POSTROUTING nm-shared-(?P<link>[^\s\"]+)"),
        has_guests=True,
    ),
    Owner(
        "systemd-networkd",
        "remove IPMasquerade= from the .network file of the link, then networkctl reload",
        (r"io\.systemd\.nat .*",),
        has_guests=True,
    ),
    Owner("ufw", "remove the rule from /etc/ufw/before.rules, then ufw reload", (r"nat ufw6?-.*",)),
    Owner(
        "NixOS",
        "take the range out of networking.nat.internalIPs, or the link out of networking.nat.internalInterfaces, then "
        "nixos-rebuild switch",
        (r"nat|nixos-nat nixos-nat-.*", r"nixos-nat .*"),
    ),
    Owner(
        "Shorewall",
        "take the range out of /etc/shorewall/snat (shorewall6/snat; old: masq), then shorewall reload",
        (r"nat .+_(masq|snat)",),
    ),
)

#: The owner of rules that no known program makes.
UNKNOWN = Owner(
    "unknown",
    "find out what makes the rule (table %(table)s, chain %(chain)s): look in /etc/ufw/before.rules, "
    "/etc/shorewall/snat, /etc/nftables.conf, /etc/iptables, units of systemd and firewall-cmd --direct "
    "--get-all-rules; if it comes back, nft monitor shows the process (iptables-legacy: records NETFILTER_CFG of "
    "auditd)",
)


def _is_in(place: str, table: str, chain: t.Optional[str]) -> bool:
    """Return whether a place is known by names alone, and is a chain; without one, whether it could be in a table."""
    table_pattern, chain_pattern, *text = place.split(" ", 2)
    if text or not re.fullmatch(table_pattern, table):
        return False
    return chain is None or re.fullmatch(chain_pattern, chain) is not None


@functools.lru_cache(maxsize=65536)  # tens of thousands of chains are asked about, several times
def keeps_guests(table: str, chain: t.Optional[str] = None) -> bool:
    """Return whether a chain belongs to a program with guests; without a chain, whether one in that table could.

    :param table: its name, without the family.
    """
    return any(_is_in(place, table, chain) for actor in OWNERS if actor.has_guests for place in actor.places)


def owns_by_name(name: str, table: str, chain: str) -> bool:
    """Return whether a chain belongs to a program by its names alone.

    :param table: its name, without the family.
    """
    named = any(_is_in(place, table, chain) for actor in OWNERS if actor.name == name for place in actor.places)
    return named and owner(table, chain).name == name


def owner(table: str, chain: str, rule: str = "") -> Owner:
    """Return who made a chain, or a rule in it, with the names of both in the remedy.

    :param table: its name, without the family.
    :param rule: as its tool lists it; without it, programs that are known by a rule's text alone are not found.
    """
    for actor in OWNERS:
        for place in actor.places:
            table_pattern, chain_pattern, *text = place.split(" ", 2)
            found = [re.fullmatch(table_pattern, table), re.fullmatch(chain_pattern, chain)]
            found += [re.search(one, "%s %s" % (chain, rule)) for one in text]
            if all(found):
                named = {name: value for one in found if one for name, value in one.groupdict().items() if value}
                names = {name: quote(shown(value)) for name, value in named.items()}
                return actor._replace(remedy=actor.remedy % names) if "%(" in actor.remedy else actor
    return UNKNOWN._replace(remedy=UNKNOWN.remedy % {"table": shown(table), "chain": shown(chain)})
