# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The example inventory of racks: what packets through its nodes look like is what its README says."""

from __future__ import annotations

import contextlib
import json
import typing as t
from pathlib import Path

from support.fleet import Fleet
from support.import_collection import ROOT
from support.namespaces import Namespace
from support.topology import ask, serving

EXAMPLE = ROOT / "examples/racks"
FIXED = "192.0.2.7"
PORT = 8080


def declared() -> t.Tuple[t.List[str], t.Dict[t.Tuple[str, str], t.List[str]]]:
    """The destinations of the README, and by node and source what they see."""
    lines = (EXAMPLE / "README.md").read_text().partition("| on | ")[2].splitlines()
    head, _line, *rows = [[cell.split()[0] for cell in line.strip("| ").split(" | ")] for line in lines]
    return head[1:], {(row[0], row[1]): row[2:] for row in rows}


class Lab:
    """Clients behind nodes, and one outside behind all of them."""

    def __init__(self, owned: contextlib.ExitStack, destinations: t.Sequence[str]) -> None:
        self._owned = owned
        self._outside = owned.enter_context(Namespace())
        #: node -> the address of its interface
        self.addresses: t.Dict[str, str] = {}
        self._clients: t.Dict[t.Tuple[str, str], Namespace] = {}
        self._ip(self._outside, *("address add %s/32 dev lo" % address for address in destinations))
        owned.enter_context(serving(self._outside, PORT, destinations))

    @staticmethod
    def _ip(ns: Namespace, *lines: str) -> None:
        ns.run("ip", "-batch", "-", stdin="\n".join(lines))

    def add_node(self, name: str, node: Namespace) -> None:
        """Connect a node with the outside."""
        number = len(self.addresses)
        device, peer = "n%d" % number, "198.51.100.%d" % (4 * number + 2)
        self.addresses[name] = "198.51.100.%d" % (4 * number + 1)
        # The node has a /run of its own, in which namespaces have no names.
        self._ip(
            self._outside,
            "link add %s type veth peer name eth0 netns %s" % (device, node.name),
            "address add %s/30 dev %s" % (peer, device),
            "link set %s up" % device,
        )
        self._ip(
            node,
            "address add %s/30 dev eth0" % self.addresses[name],
            "link set eth0 up",
            "route add default via " + peer,
        )
        node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def add_client(self, name: str, node: Namespace, address: str) -> None:
        """Put a client behind a node."""
        device, gateway = "c%d" % len(self._clients), "169.254.1.1"
        client = self._clients[name, address] = self._owned.enter_context(Namespace())
        self._ip(client, "link add eth0 type veth peer name %s netns %s" % (device, node.name), "link set eth0 up")
        self._ip(
            node,
            "address add %s/32 dev %s" % (gateway, device),
            "link set %s up" % device,
            "route add %s/32 dev %s" % (address, device),
        )
        self._ip(
            client,
            "address add %s/32 dev eth0" % address,
            "route add %s/32 dev eth0" % gateway,
            "route add default via %s" % gateway,
        )
        self.route(address, name)

    def route(self, address: str, name: str) -> None:
        """Have the outside answer to an address by way of a node."""
        self._ip(self._outside, "route add %s/32 via %s" % (address, self.addresses[name]))

    def seen(self, destinations: t.Sequence[str]) -> t.Dict[t.Tuple[str, str], t.List[str]]:
        """By node and client, what the destinations see, in the words of the README."""
        found = {}
        for (node, address), client in self._clients.items():
            names = {address: "itself", self.addresses[node]: "node"}
            answers = ask(client, "tcp", PORT, *destinations)
            found[node, address] = [names.get(answers[one], answers[one]) for one in destinations]
        return found


def test_packets_through_the_racks_look_as_the_example_says(tmp_path: Path) -> None:
    destinations, expected = declared()
    names = sorted({name for name, _source in expected})
    assert len(names) == 3 and len(expected) == 8 and len(destinations) == 4
    with contextlib.ExitStack() as owned:
        fleet = owned.enter_context(Fleet(tmp_path, {"all": names}))
        lab = Lab(owned, destinations)
        for name in names:
            lab.add_node(name, fleet.nodes[name].ns)
        for name, source in expected:
            lab.add_client(name, fleet.nodes[name].ns, source)
        assert {what for seen in lab.seen(destinations).values() for what in seen} == {"itself"}, "no rules yet"
        fleet.nodes["gateway-1"].ns.run("ip", "address", "add", FIXED + "/32", "dev", "eth0")
        lab.route(FIXED, "gateway-1")
        command = (
            "ansible-playbook -i examples/racks/inventory.yml kubenode.ip_masq.apply -e ip_masq_agent_hosts=kube_node"
        )
        fleet.group_vars["all"]["ip_masq_agent_kubelet"] = False
        for backend, verify in (("iptables_nft", "fail"), ("nftables", "ignore")):
            options = {"ip_masq_agent_backend": backend, "ip_masq_agent_verify": verify}
            played = fleet.type("%s -e '%s'" % (command, json.dumps(options)), folder=ROOT)
            assert played.rc == 0 and sorted(played.recap) == names, played.said
            assert " differs: " not in played.said, "what a rack has of its own is intended"
            assert lab.seen(destinations) == expected, backend
