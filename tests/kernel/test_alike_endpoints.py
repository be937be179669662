# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A verification with one endpoint for all that are alike says what one with all endpoints says.

On each node one endpoint is special, by something that is put there at random.

``IP_MASQ_ENDPOINTS`` is the number of nodes of each kind.
"""

from __future__ import annotations

import ipaddress
import os
import random
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state, twin
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.alike_endpoints import with_fewer
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.packet_policy import Policy
from bench import kube_proxy
from strange.spaces import Namespace
from support.rule_shapes import Service
from support.twins import exempt, node_of
from support.unnamed_namespaces import carry_out

_COUNT = int(os.environ.get("IP_MASQ_ENDPOINTS", "1"))
_MODES = ("nft", "iptables-nft")
_ENDPOINTS, _OTHERS = 9, 3
_DNAT = "-A POSTROUTING -m conntrack --ctstate DNAT %s -j MASQUERADE"


class _Node:
    """A node with kube-proxy, our rules, and one endpoint that is special."""

    def __init__(self, mode: str, kind: str, number: int) -> None:
        self.chance = random.Random("%s %s %d" % (mode, kind, number))
        self.mode = mode
        # Three are pods of this node, and three of each of two others.
        pods = ["10.244.%d.%d" % (1 + place % 3, 10 + place) for place in range(_ENDPOINTS)]
        self.chance.shuffle(pods)
        self.special = self.chance.choice([one for one in pods if not one.startswith("10.244.1.")])
        self.ranges = ["10.0.0.0/8"]
        self.links: t.List[str] = []
        self.sets: t.List[str] = []
        self.rules: t.List[str] = []
        self.known = [
            Service("10.96.0.1", 80, tuple(pods), 30001),
            Service("10.96.0.2", 80, tuple(self.chance.sample(pods, _OTHERS))),
            Service("10.96.0.3", 80, tuple(pods[:1])),
        ]
        self.edit: t.Callable[[str], str] = lambda text: text
        _KINDS[kind](self)

    def make(self) -> Namespace:
        node = node_of("cbr0", "address add 10.244.1.1/24 dev cbr0", *self.links)
        node.ip(["route add 10.244.%d.0/24 via 198.51.100.%d" % (one, one) for one in (2, 3)])
        if self.sets:
            node.run(["ipset", "restore"], "\n".join(self.sets) + "\n")
        if self.mode == "nft":
            text, argv = kube_proxy.nftables(self.known), ["nft", "-f", "-"]
        else:
            text, argv = kube_proxy.iptables(self.known), ["iptables-nft-restore", "--noflush"]
        node.run(argv, self.edit(text))
        ours = ["-A POSTROUTING -d 10.0.0.0/8 -j RETURN", "-A POSTROUTING -j MASQUERADE"]
        node.run(["iptables-nft-restore", "--noflush"], "\n".join(["*nat", *self.rules, *ours, "COMMIT", ""]))
        return node

    def policy(self) -> Policy:
        networks = [ipaddress.ip_network(one) for one in self.ranges]
        return exempt(networks, [ipaddress.ip_network("10.244.1.0/24")])


def _nothing(_node: _Node) -> None:
    pass


def _masqueraded(node: _Node) -> None:
    node.rules.append(_DNAT % ("-d %s" % node.special))


def _masqueraded_range(node: _Node) -> None:
    last = ipaddress.ip_address(node.special) + node.chance.randint(0, 3)
    node.rules.append(_DNAT % ("-m iprange --dst-range %s-%s" % (node.special, last)))


def _in_set(node: _Node) -> None:
    node.sets += ["create special hash:ip", "add special " + node.special]
    node.rules.append(_DNAT % "-m set --match-set special dst")


def _routed(node: _Node) -> None:
    node.links += ["link add other type veth peer name beyond", "link set other up", "link set beyond up"]
    node.links += ["address add 203.0.113.1/24 dev other", "route add %s via 203.0.113.9" % node.special]
    node.rules.append(_DNAT % "-o other")


def _not_exempt(node: _Node) -> None:
    everything = ipaddress.ip_network("10.0.0.0/8")
    node.ranges = list(map(str, everything.address_exclude(ipaddress.ip_network(node.special))))


def _outside(node: _Node) -> None:
    first = node.known[0]
    node.known[0] = first._replace(pods=(*first.pods[:4], "203.0.113.77", *first.pods[4:]))
    node.rules.append("-A POSTROUTING -d 203.0.113.0/24 -j ACCEPT")


def _marked(node: _Node) -> None:
    """Put another mark on all packets to one endpoint, where others get one that come from there."""
    usual = "ip saddr %s jump mark-for-masquerade" if node.mode == "nft" else "-s %s/32 -m comment"
    usual %= node.special

    def edit(text: str) -> str:
        line = next(one for one in text.split("\n") if usual in one)
        if node.mode == "nft":
            text = text.replace(
                "chain mark-for", "chain special { meta mark set meta mark or 0x80000; }\nchain mark-for", 1
            )
            return text.replace(line, "jump special", 1)
        marked = line.replace("-s %s/32 " % node.special, "").replace("-j KUBE-MARK-MASQ", "-j SPECIAL")
        mark = "-A SPECIAL -j MARK --set-xmark 0x80000/0x80000"
        return text.replace("*nat\n", "*nat\n:SPECIAL - [0:0]\n%s\n" % mark).replace(line, marked, 1)

    node.edit = edit
    node.rules.append(_DNAT % "-m mark --mark 0x80000/0x80000")


def _other_port(node: _Node) -> None:
    node.edit = lambda text: text.replace("to %s:8080" % node.special, "to %s:9090" % node.special).replace(
        "--to-destination %s:8080" % node.special, "--to-destination %s:9090" % node.special
    )
    node.rules.append(_DNAT % "-p tcp --dport 9090")


def _unknown(node: _Node) -> None:
    node.rules.append(_DNAT % ("-d %s -m ttl --ttl-eq 9" % node.special))


_KINDS: t.Mapping[str, t.Callable[[_Node], None]] = {
    "nothing": _nothing,
    "masqueraded": _masqueraded,
    "masqueraded range": _masqueraded_range,
    "in a set": _in_set,
    "routed": _routed,
    "not exempt": _not_exempt,
    "outside": _outside,
    "marked": _marked,
    "other port": _other_port,
    "unknown": _unknown,
}


def _verify(state: node_state.NodeState, policy: Policy, tables: t.Any) -> verification.Report:
    with twin.build(state, run) as made:
        return verification.verify(made, policy, tables=tables)


def _compare(mode: str, kind: str, number: int) -> t.Tuple[t.List[int], t.List[verification.Report]]:
    node = _Node(mode, kind, number)
    policy = node.policy()
    with node.make():
        state = node_state.read(run)
        fewer, tables = with_fewer(state, policy)
        sizes = [sum(len(table.chains) for table in one.tables) for one in (state, fewer)]
        return sizes, [_verify(state, policy, None), _verify(fewer, policy, tables)]


@pytest.mark.parametrize("number", range(_COUNT))
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("mode", _MODES)
def test_what_is_found_with_fewer_endpoints(mode: str, kind: str, number: int) -> None:
    (before, after), (whole, fewer) = carry_out(_compare, mode, kind, number)
    assert after < before - 2 and fewer.questions <= whole.questions
    assert bool(whole.conflicts) is (kind not in ("nothing", "unknown"))
    assert bool(whole.untested) is (kind == "unknown")
    alike = [one._replace(questions=0, conflicts=tuple(sorted(one.conflicts, key=repr))) for one in (whole, fewer)]
    assert alike[0] == alike[1]
