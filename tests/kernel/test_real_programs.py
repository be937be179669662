# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of Debian as they run, started, reloaded and restarted: whose are the rules that they make?"""

from __future__ import annotations

import itertools
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import rule_owners
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing import senders
from support.namespaces import Namespace, until
from support.real_programs import CNI, HEAVY, INCUS, LIGHT, Programs
from support.unnamed_namespaces import inside

_LINKS = """link add eth0 type veth peer name world
address add 198.51.100.1/24 dev eth0
link set eth0 up
link set world up
link add cni0 type bridge
address add 10.244.1.1/24 dev cni0
link set cni0 up
"""
_OURS = """*nat
:IP-MASQ-AGENT - [0:0]
-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
-A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN
-A IP-MASQ-AGENT -j MASQUERADE --random-fully
COMMIT
"""
_OWN = "ip-masq-agent"

_FIREWALLD = (
    "firewalld --nofork >/tmp/log 2>&1 & daemon=$!; until firewall-cmd --state >/dev/null 2>&1; do sleep .2; done"
)
_NETWORKMANAGER = r"""
cat >/etc/NetworkManager/NetworkManager.conf <<'END'
[main]
plugins=keyfile
auth-polkit=false
firewall-backend=%s
[keyfile]
unmanaged-devices=interface-name:*,except:interface-name:br7
END
NetworkManager --no-daemon >/tmp/log 2>&1 &
until nmcli -t general status >/dev/null 2>&1; do sleep .2; done
"""
_SHARE = r"""
nmcli connection up shared || cat /tmp/log
ip link show p0 >/dev/null 2>&1 || ip link add p0 type veth peer name p1
ip link set p0 master br7 up && ip link set p1 up
until (nft list ruleset; iptables-save) | grep -q nm-shared; do sleep .2; done
"""
_CNI = """
export CNI_COMMAND=ADD CNI_CONTAINERID=abc CNI_NETNS=/run/netns/%(name)s CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni
echo '{"cniVersion": "0.4.0", "name": "n", "type": "bridge", "bridge": "cni7", "isGateway": true, \
"ipMasq": true, "ipMasqBackend": "iptables", "ipam": {"type": "host-local", "subnet": "10.22.0.0/24"}}' | \
/usr/lib/cni/bridge >/tmp/bridge
echo '{"cniVersion": "0.4.0", "name": "n", "type": "portmap", "backend": "iptables", "runtimeConfig": {"portMappings": \
[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}, "prevResult":' "$(cat /tmp/bridge)" '}' | \
/usr/lib/cni/portmap
"""
_ANOTHER_POD = _CNI.replace("=abc", "=abd").replace("=eth0", "=eth1")
_NETAVARK = """
echo '{"container_id": "0123456789ab", "container_name": "x", "networks": {"n": {"static_ips": ["10.88.0.2"], \
"interface_name": "eth0"}}, "network_info": {"n": {"name": "n", "id": "2f259bab93aaaaa2542ba43ef33eb990", \
"driver": "bridge", "network_interface": "pod7", "subnets": [{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}], \
"ipv6_enabled": false, "internal": false, "dns_enabled": false, "ipam_options": {"driver": "host-local"}}}}' | \
/usr/lib/podman/netavark setup /run/netns/%(name)s
"""
_UFW = r"""
grep -q '^\*nat' /etc/ufw/before.rules ||
printf '*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 10.9.0.0/24 -j MASQUERADE\nCOMMIT\n' >>/etc/ufw/before.rules
sed -i s/ENABLED=no/ENABLED=yes/ /etc/ufw/ufw.conf
/lib/ufw/ufw-init %s
"""
#: systemd-networkd waits for udev unless sysfs is read-only.
_NETWORKD = r"""
mount -o remount,ro,bind /sys
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp /etc/systemd/network
chown -R systemd-network /run/systemd/netif
printf '[NetDev]\nName=nd0\nKind=bridge\n' >/etc/systemd/network/10-nd.netdev
printf '[Match]\nName=nd0\n[Network]\nAddress=10.40.0.1/24\nIPMasquerade=ipv4\nConfigureWithoutCarrier=yes\n' \
    >/etc/systemd/network/10-nd.network
"""
_START_NETWORKD = r"""
/lib/systemd/systemd-networkd >/tmp/log 2>&1 & daemon=$!
until nft list table ip io.systemd.nat 2>/dev/null | grep -q 10.40.0; do sleep .2; done
"""
_DOCKER = r"""
mkdir -p /etc/docker /var/lib/docker /run/containerd /var/lib/containerd
for one in /var/lib/docker /run/containerd /var/lib/containerd; do mount -t tmpfs tmpfs $one; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '{"userland-proxy": false, "storage-driver": "vfs"}' >/etc/docker/daemon.json
"""
_START_DOCKER = r"""
dockerd >/tmp/log 2>&1 & daemon=$!
until grep -q 'API listen' /tmp/log; do sleep .2; done
"""
_LIBVIRT = r"""
mkdir -p /etc/libvirt /var/lib/libvirt/network /var/lib/libvirt/qemu /var/lib/libvirt/dnsmasq /run/libvirt
printf 'auth_unix_ro = "none"\nauth_unix_rw = "none"\nunix_sock_group = "root"\n' >/etc/libvirt/libvirtd.conf
printf 'libvirt-qemu:x:60:60::/:/bin/sh\nlibvirt-dnsmasq:x:61:61::/:/bin/sh\n' >>/etc/passwd
printf 'kvm:x:62:\nlibvirt-qemu:x:60:\n' >>/etc/group
cat >/tmp/network.xml <<'END'
<network><name>n7</name><bridge name="virbr7"/><forward mode="nat"/>
<ip address="10.50.0.1" netmask="255.255.255.0"/></network>
END
"""
_START_LIBVIRT = r"""
libvirtd >/tmp/log 2>&1 & daemon=$!
until virsh -c network:///system net-list >/dev/null 2>&1; do sleep .2; done
"""
_INCUS = r"""
mkdir -p /var/lib/incus /run/incus /var/log/incus /var/cache/incus
mount -t tmpfs tmpfs /var/lib/incus
mount -t cgroup2 cgroup2 /sys/fs/cgroup
printf 'incus:x:70:70::/:/bin/sh\n' >>/etc/passwd
printf 'incus:x:70:\nincus-admin:x:71:\n' >>/etc/group
export HOME=/root
"""
_START_INCUS = r"""
/usr/libexec/incus/incusd --group incus-admin >/tmp/log 2>&1 & daemon=$!
until incus info >/dev/null 2>&1; do sleep .2; done
"""
_INCUS_NETWORK = "ipv4.address=10.60.%d.1/24 ipv4.nat=true ipv6.address=none"
_SHOREWALL = r"""
cd /etc/shorewall
printf 'fw firewall\nnet ipv4\nloc ipv4\n' >zones
printf '?FORMAT 2\nnet eth0\nloc cni0\n' >interfaces
printf 'fw all ACCEPT\nloc all ACCEPT\nnet all DROP\n' >policy
printf 'MASQUERADE 10.9.0.0/16 eth0\n' >snat
sed -i s/STARTUP_ENABLED=No/STARTUP_ENABLED=Yes/ shorewall.conf
mkdir -p /var/lib/shorewall /var/lock; ln -sf /bin/true /usr/bin/logger
shorewall start 2>&1
"""


class Event(t.NamedTuple):
    """What is done, and whose rules are there then, each with words of the remedy."""

    script: str
    owners: t.Mapping[str, str]
    #: links that are not those of pods
    guests: t.Tuple[str, ...] = ()


_PUBLIC, _POLICY = "--zone public --remove-masquerade", "--policy out --remove-masquerade"
_LXC = r"printf 'USE_LXC_BRIDGE=true\nLXC_USE_NFT=%s\nLXC_BRIDGE=br9\n' >/etc/default/lxc; /usr/libexec/lxc/lxc-net "
_SHARED = {"NetworkManager": "on br7 has the method shared"}
_BY_CNI = {"CNI plugin bridge or ptp": '"ipMasq": false', "CNI plugin portmap": '"snat": false'}
_BY_LXC = {"lxc-net": "LXC_NETWORK"}
_BY_DOCKER = {"Docker": "/etc/docker/daemon.json"}
_BY_INCUS = {"LXD or Incus": "set ipv4.nat and ipv6.nat of its network "}

_CASES = {
    "firewalld-nftables": [
        Event(_FIREWALLD, {}),
        Event("firewall-cmd --zone public --add-masquerade", {"firewalld": _PUBLIC}),
        Event("firewall-cmd --runtime-to-permanent && firewall-cmd --reload", {"firewalld": _PUBLIC}),
        Event("kill $daemon; wait $daemon; " + _FIREWALLD, {"firewalld": _PUBLIC}),
        Event(
            "firewall-cmd --permanent --zone public --remove-masquerade && "
            "firewall-cmd --permanent --new-policy out && "
            "firewall-cmd --permanent --zone public --add-interface eth0 && "
            "firewall-cmd --permanent --policy out --add-ingress-zone ANY && "
            "firewall-cmd --permanent --policy out --add-egress-zone public && "
            "firewall-cmd --permanent --policy out --add-masquerade && firewall-cmd --reload",
            {"firewalld": _POLICY},
        ),
        Event(
            "firewall-cmd --permanent --delete-policy out && firewall-cmd --reload && "
            "firewall-cmd --direct --add-rule ipv4 nat POSTROUTING 0 -s 10.9.0.0/16 -j MASQUERADE",
            {"unknown": "firewall-cmd --direct --get-all-rules"},
        ),
    ],
    "firewalld-iptables": [
        Event("sed -i s/FirewallBackend=.*/FirewallBackend=iptables/ /etc/firewalld/firewalld.conf; " + _FIREWALLD, {}),
        Event("firewall-cmd --zone public --add-masquerade", {"firewalld": _PUBLIC}),
        Event("firewall-cmd --runtime-to-permanent && firewall-cmd --reload", {"firewalld": _PUBLIC}),
        Event(
            "firewall-cmd --zone public --remove-masquerade && "
            "firewall-cmd --direct --add-rule ipv4 nat POSTROUTING 0 -s 10.9.0.0/16 -j MASQUERADE",
            {"firewalld": "--direct --get-all-rules"},
        ),
    ],
    "networkmanager-nftables": [
        Event(
            _NETWORKMANAGER % "nftables" + "nmcli connection add type bridge ifname br7 con-name shared "
            "ipv4.method shared ipv4.addresses 10.42.0.1/24 ipv6.method disabled bridge.stp no" + _SHARE,
            _SHARED,
            ("br7",),
        ),
        Event("nmcli connection down shared; nmcli connection reload" + _SHARE, _SHARED, ("br7",)),
    ],
    "networkmanager-iptables": [
        Event(
            _NETWORKMANAGER % "iptables" + "nmcli connection add type bridge ifname br7 con-name shared "
            "ipv4.method shared ipv4.addresses 10.42.0.1/24 ipv6.method disabled bridge.stp no" + _SHARE,
            _SHARED,
            ("br7",),
        ),
    ],
    "lxc-net-nftables": [
        Event(_LXC % "true" + "start", _BY_LXC, ("br9",)),
        Event(_LXC % "true" + "stop; " + _LXC % "true" + "start", _BY_LXC, ("br9",)),
    ],
    "lxc-net-iptables": [Event(_LXC % "false" + "start", _BY_LXC, ("br9",))],
    "ufw": [
        Event(_UFW % "start", {"unknown": "/etc/ufw/before.rules"}),
        Event(_UFW % "force-reload", {"unknown": "/etc/ufw/before.rules"}),
        Event(_UFW % "restart", {"unknown": "/etc/ufw/before.rules"}),
    ],
    "cni-bridge-and-portmap": [Event(_CNI, _BY_CNI)],
    "cni-1.9-iptables": [Event(_CNI, _BY_CNI), Event(_ANOTHER_POD, _BY_CNI)],
    "cni-1.9-nftables": [
        Event(_CNI.replace('"iptables"', '"nftables"'), _BY_CNI),
        Event(_ANOTHER_POD.replace('"iptables"', '"nftables"'), _BY_CNI),
    ],
    "netavark": [Event(_NETAVARK, {"podman": ""}, ("pod7",))],
    "docker": [
        Event(_DOCKER + _START_DOCKER, _BY_DOCKER, ("docker0",)),
        Event("docker network create --subnet 10.30.0.0/24 two", _BY_DOCKER, ("docker0", "br-ID")),
        Event(
            "docker network create --subnet 10.31.0.0/24 -o com.docker.network.bridge.name=work three",
            _BY_DOCKER,
            ("docker0", "br-ID", "work"),
        ),
        Event("kill $daemon; wait $daemon; " + _START_DOCKER, _BY_DOCKER, ("docker0", "br-ID", "work")),
    ],
    "incus": [
        Event(_INCUS + _START_INCUS + "incus network create in7 " + _INCUS_NETWORK % 7, _BY_INCUS, ("in7",)),
        Event("incus network create in.8 " + _INCUS_NETWORK % 8, _BY_INCUS, ("in7", "in.8")),
        Event("kill $daemon; wait $daemon; " + _START_INCUS, _BY_INCUS, ("in7", "in.8")),
    ],
    "libvirt": [
        Event(
            _LIBVIRT + _START_LIBVIRT + "virsh -c network:///system net-create /tmp/network.xml",
            {"libvirt": "virsh net-edit"},
            ("virbr7",),
        ),
        Event("kill $daemon; wait $daemon; " + _START_LIBVIRT, {"libvirt": "virsh net-edit"}, ("virbr7",)),
    ],
    "networkd": [
        Event(_NETWORKD + _START_NETWORKD, {"systemd-networkd": "remove IPMasquerade="}, ("nd0",)),
        Event("kill $daemon; wait $daemon; " + _START_NETWORKD, {"systemd-networkd": "networkctl reload"}, ("nd0",)),
    ],
    "shorewall": [
        # A single rule it writes to POSTROUTING itself, without a name.
        Event(_SHOREWALL, {"unknown": "/etc/shorewall/snat"}),
        Event(
            "printf 'MASQUERADE 10.11.0.0/16 eth0\nMASQUERADE 10.13.0.0/16 eth0\n' >>snat; shorewall reload 2>&1",
            {"Shorewall": "/etc/shorewall/snat"},
        ),
        Event("shorewall restart 2>&1", {"Shorewall": "then shorewall reload"}),
    ],
}
_PACKAGES = {
    "incus": INCUS,
    **dict.fromkeys(("cni-1.9-iptables", "cni-1.9-nftables"), CNI),
    **dict.fromkeys(("docker", "libvirt", "networkd", "shorewall"), HEAVY),
}


#: Our rules come first or last, in turn: who owns a rule does not depend on those around it.
_IN_TURN = list(zip(_CASES, itertools.cycle([True, False])))


@pytest.mark.parametrize(("name", "ours_first"), _IN_TURN, ids=lambda one: {True: "first", False: "last"}.get(one, one))
def test_owners(name: str, ours_first: bool) -> None:
    with Namespace() as node, Namespace() as container:
        node.run("ip", "-batch", "-", stdin=_LINKS)
        if ours_first:
            node.run("iptables-nft-restore", "--noflush", stdin=_OURS)
        programs = Programs(node, _PACKAGES.get(name, LIGHT))
        try:
            programs.start_bus()
            for number, event in enumerate(_CASES[name]):
                programs.do(event.script.replace("%(name)s", container.name))
                # A bridge gets its address, and so its route, after its rules, or again after a restart.
                guests = [set(event.guests)] * 2
                until(lambda guests=guests: inside(node, _guests) == guests, "%s: %s" % (event.script, guests))
                if not ours_first and not number:
                    node.run("iptables-nft-restore", "--noflush", stdin=_OURS)
                found = {one: rule_owners.owner(*one) for one in programs.rules()}
                assert {one.name for one in found.values()} - {_OWN} == set(event.owners), (event.script, found)
                for actor in found.values():
                    assert event.owners.get(actor.name, "") in actor.remedy
        finally:
            programs.end()


def _guests() -> t.List[t.Set[str]]:
    """Links of guests, by all that the node has, and by the little that is read without a verification."""
    states = (node_state.read(run), senders.read_network())
    found = [{one.link for one in senders.guests(state, IPV4)} for state in states]
    return [{re.sub(r"^br-[0-9a-f]{12}$", "br-ID", link) for link in links} for links in found]
