# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which program a rule belongs to, and what ends its effect. Rules that packets meet: ``test_twin_actors``."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import rule_owners

_NAT = "nat POSTROUTING -A POSTROUTING "


@pytest.mark.parametrize(
    ("rule", "name", "remedy"),
    [
        # table, chain, rule
        ("firewalld nat_POST_public_allow", "firewalld", "--zone public --remove-masquerade"),
        ("firewalld nat_POST_public", "firewalld", "--zone public "),
        ("firewalld nat_POST_my_zone_post", "firewalld", "--zone my_zone "),
        ("nat POST_external_allow", "firewalld", "--zone external "),
        ("nat POST_policy_out-of-here_allow", "firewalld", "--policy out-of-here "),
        ("firewalld nat_POST_policy_x_pre", "firewalld", "--policy x "),
        ("nat POSTROUTING_direct", "firewalld", "--direct"),
        ("firewalld nat_POSTROUTING", "firewalld", "--list-all-zones"),
        ("nm-shared-br0 nat_postrouting", "NetworkManager", "on br0 has the method shared"),
        (
            _NAT + "-s 10.42.0.0/24 ! -d 10.42.0.0/24 -m comment --comment nm-shared-wlan0 -j MASQUERADE",
            "NetworkManager",
            "on wlan0 has",
        ),
        ("lxc postrouting", "lxc-net", "LXC_NETWORK in /etc/default/lxc-net"),
        (_NAT + "-s 10.0.3.0/24 ! -d 10.0.3.0/24 -j MASQUERADE", "lxc-net", "/etc/default/lxc-net"),
        ("incus pstrt.br.7", "LXD or Incus", "network br.7 to false"),
        (
            _NAT + '-s 10.1.1.0/24 -m comment --comment "generated for LXD network incusbr0" -j MASQUERADE',
            "LXD or Incus",
            "network incusbr0 to false",
        ),
        ("io.systemd.nat postrouting", "systemd-networkd", "IPMasquerade="),
        ("docker-bridges nat-postrouting-in__docker0 fib saddr type local masquerade", "Docker", "userland-proxy"),
        ("docker-bridges nat-postrouting-out__docker0", "Docker", "default-address-pools"),
        (_NAT + "-o br-1f -m addrtype --src-type LOCAL -j MASQUERADE", "Docker", "userland-proxy"),
        (_NAT + "-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "Docker", "default-address-pools"),
        (_NAT + "-s 10.31.0.0/24 ! -o work -j MASQUERADE", "Docker", "default-address-pools"),
        (_NAT + "-s 10.31.0.0/24 ! -o work -j SNAT --to-source 192.0.2.7", "Docker", "default-address-pools"),
        (_NAT + "-s 10.244.1.0/24 ! -o cni0 -j MASQUERADE", "unknown", "table nat, chain POSTROUTING"),
        (_NAT + "-s 10.244.0.0/16 ! -o eth1 -j MASQUERADE", "unknown", "table nat, chain POSTROUTING"),
        (
            _NAT + "-s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE",
            "Docker",
            "published ports",
        ),
        ("libvirt_network guest_nat", "libvirt", "virsh net-edit"),
        ("nat LIBVIRT_PRT", "libvirt", "virsh net-edit"),
        (_NAT + "-s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE", "libvirt", "virsh"),
        ("netavark nv_2f259bab_10_88_0_0_nm16", "podman", "containers.conf"),
        ("nat NETAVARK-1D8721804F16F", "podman", "containers.conf"),
        ("cni_plugins_masquerade masq_checks", "CNI plugin bridge or ptp", '"ipMasq": false'),
        ("nat CNI-d4f4a0f1b0a5d2d57e3fd8ea", "CNI plugin bridge or ptp", '"ipMasq": false'),
        ("nat CNI-HOSTPORT-MASQ", "CNI plugin portmap", '"snat": false'),
        ("cni_hostport masquerading", "CNI plugin portmap", '"snat": false'),
        ("nat OVN-NAT-PSUBNET-0a1b2c3d4e5f", "Kube-OVN", '"natOutgoing":false'),
        ("nat OVN-MASQUERADE", "Kube-OVN", "kubectl patch subnet"),
        ("kube-ovn nat-postrouting", "Kube-OVN", "natOutgoing"),
        ("nat OVN-KUBE-EGRESS-SVC", "OVN-Kubernetes", "--disable-snat-multiple-gws"),
        ("ovn-kubernetes ovn-kube-pod-subnet-masq", "OVN-Kubernetes", "OpenShift"),
        ("nat OPENSHIFT-MASQUERADE-2", "OpenShift SDN", "exemption"),
        ("nat AWS-SNAT-CHAIN-12", "AWS VPC CNI", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"),
        (
            _NAT + "! -d 10.0.0.0/8 -m comment --comment \"AWS, SNAT\" -j SNAT --to-source 10.0.0.7",
            "AWS VPC CNI",
            "AWS_VPC_K8S_CNI_EXTERNALSNAT=true",
        ),
        ("nat CATTLE_NAT_POSTROUTING", "Rancher 1", "iptables -t nat -F CATTLE_NAT_POSTROUTING"),
        (_NAT + '-m comment --comment "a3ViZS12aXAK=ns" -j SNAT', "kube-vip", "egress-denied-networks"),
        ("netbird netbird-rt-postrouting", "NetBird", "Masquerade"),
        ("nat netbird-rt-nat", "NetBird", "Masquerade"),
        ("nat eth0_masq", "Shorewall", "/etc/shorewall/snat"),
        ("nat eth0.7_snat", "Shorewall", "/etc/shorewall/snat"),
        ("nixos-nat post", "NixOS", "networking.nat.internalIPs"),
        ("nat nixos-nat-post", "NixOS", "networking.nat.internalIPs"),
        ("flannel-ipv6 postrtg", "flannel", "FLANNEL_IPMASQ=false"),
        (_NAT + "-s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully", "flannel", "--ip-masq"),
        (_NAT + "! -s fd00:1::/48 -d fd00:1::/48 -j MASQUERADE", "flannel", "--ip-masq"),
        ("lxd pstrt.lxdbr0", "LXD or Incus", "network lxdbr0 to false"),
        ("nat WEAVE", "Weave Net", ""),
        ("nat KIND-MASQ-AGENT", "kindnet", "POD_SUBNET"),
        ("nat ANTREA-POSTROUTING", "Antrea", ""),
        ("nat ts-postrouting", "Tailscale", "--snat-subnet-routes=false"),
        ("raw cali-PREROUTING -A cali-PREROUTING -j CT --notrack", "Calico", ""),
        ("raw CILIUM_PRE_raw -A CILIUM_PRE_raw -s 10.244.0.0/16 -j CT --notrack", "Cilium", ""),
        ("nat NETAVARK-HOSTPORT-MASQ", "podman", "published ports"),
        ("calico nat-cali-nat-outgoing", "Calico", "natOutgoing: false"),
        (
            "nat cali-POSTROUTING -A cali-POSTROUTING -o vxlan.calico -m addrtype ! --src-type LOCAL --limit-iface-out "
            "-m addrtype --src-type LOCAL -j MASQUERADE",
            "Calico",
            "tunnel",
        ),
        # Other programs might have made these.
        (_NAT + "-s 10.9.0.0/24 ! -d 10.9.0.0/24 -j MASQUERADE", "unknown", "(table nat, chain POSTROUTING)"),
        (_NAT + "! -s 10.1.0.0/16 -d 10.2.0.0/16 -j MASQUERADE", "unknown", "/etc/ufw/before.rules"),
        ("by-hand natting masquerade", "unknown", "table by-hand, chain natting"),
    ],
)  # fmt: skip
def test_owner_and_remedy(rule: str, name: str, remedy: str) -> None:
    table, chain, text = (rule + "  ").split(" ", 2)
    found = rule_owners.owner(table, chain, text.strip())
    assert (found.name, remedy in found.remedy) == (name, True), found.remedy
    assert "%(" not in found.remedy and "delete it" not in found.remedy


def test_a_name_cannot_act_on_a_terminal() -> None:
    assert "\\x1b[2J" in rule_owners.owner("nm-shared-\x1b[2J", "nat_postrouting").remedy
    assert "\\x1b[2J" in rule_owners.owner("\x1b[2J", "x").remedy


def test_a_name_in_a_command_is_one_word_of_a_shell() -> None:
    assert "-F 'CATTLE_$(reboot)'" in rule_owners.owner("nat", "CATTLE_$(reboot)").remedy
    assert "--zone 'a;b' " in rule_owners.owner("firewalld", "nat_POST_a;b").remedy
