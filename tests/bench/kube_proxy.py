# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node with pods, and the rules of kube-proxy for many Services, in the words of its tools. Runs inside a namespace.

The endpoints of each Service are spread over the nodes of a cluster; some Services have a NodePort as well.
"""

from __future__ import annotations

import subprocess
import typing as t

from strange import kube_proxy
from support.rule_shapes import NODE, Service, services

from . import meter, rules

NODES = 40
PODS = 30


def make_node() -> None:
    """Make the links and routes of a node with pods behind a bridge, one of a cluster."""
    lines = [
        "link set lo up",
        "link add eth0 type veth peer name outside",
        "link add cbr0 type bridge",
        "address add %s/24 dev eth0" % NODE,
        "address add 10.244.1.1/24 dev cbr0",
        "link set eth0 up",
        "link set outside up",
        "link set cbr0 up",
    ]
    for number in range(PODS):
        lines += [
            "link add veth%d type veth peer name pod%d" % (number, number),
            "link set veth%d master cbr0 up" % number,
            "link set pod%d up" % number,
        ]
    lines.append("route add default via 198.51.100.254")
    lines += ["route add 10.244.%d.0/24 via 198.51.100.%d" % (node, node) for node in range(2, NODES + 1)]
    subprocess.run(["ip", "-batch", "-"], env=meter.ENV, input="\n".join(lines) + "\n", text=True, check=True)
    subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], env=meter.ENV, check=True)


def load(mode: str, count: int, node_ports: int, endpoints: int = 2) -> None:
    """Load the rules of so many Services.

    :param mode: of kube-proxy: NFT and LEGACY are its mode iptables, with the tool of that name.
    """
    known = services(count, node_ports, endpoints, NODES)
    if mode == rules.NFTABLES:
        argv, text = [rules.program("nft"), "-f", "-"], nftables(known)
    else:
        argv, text = [rules.iptables(mode, "-restore"), "-w", "5", "--noflush"], iptables(known)
    subprocess.run(argv, env=meter.ENV, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def iptables(known: t.Sequence[Service]) -> str:
    """Return the rules of the mode iptables, for iptables-restore."""
    return _kube_proxy(known).written(kube_proxy.IPTABLES, 4)[1]


def nftables(known: t.Sequence[Service]) -> str:
    """Return the rules of the mode nftables, for nft."""
    return _kube_proxy(known).written(kube_proxy.NFT_133, 4)[1]


def _kube_proxy(known: t.Sequence[Service]) -> kube_proxy.KubeProxy:
    services = [
        kube_proxy.Service("S%06d" % number, {4: one.address}, "tcp", one.port, 8080, one.node_port, {4: one.pods})
        for number, one in enumerate(known)
    ]
    return kube_proxy.KubeProxy(services, {4: [NODE]})
