# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Twins of the namespace in which a process is."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import Match
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Runner, run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state, twin
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.packet_policy import (
    NODE,
    POD,
    Policy,
    Promise,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.ways import Declared
from strange import ipv6, nodes
from strange.spaces import Namespace

#: What decides by a number that the kernel draws, or counts, for itself: a copy decides otherwise.
_CHANCE = re.compile(r"statistic|numgen|limit|quota|hash ")


def build(runner: Runner = run) -> twin.Twin:
    """Build the twin of where this process is.

    :param runner: starts programs for it.
    :raises NodeError: there is none.
    """
    return twin.build(node_state.read(runner), runner)


def exempt(networks: t.Sequence[t.Any], sources: t.Sequence[t.Any] = (), others: t.Optional[str] = NODE) -> Policy:
    """Return the usual policy: what goes to some ranges shows the pod, all else shows the node.

    :param sources: networks of pods that are meant; empty: all.
    :param others: what is said of all else.
    """
    entries = {}
    for family in FAMILIES:
        own = [one for one in sources if one.version == family.version]
        source = intervals.of_networks(own) if own else None
        ranges = intervals.of_networks(one for one in networks if one.version == family.version)
        entries[family] = (
            Declared(Match(source=source, destination=ranges), Promise(POD)),
            Declared(Match(source=source), Promise(others) if others else None),
        )
    return Policy(entries, pods=tuple(sources))


def node_of(pods: str, *lines: str) -> Namespace:
    """Make a node that forwards packets between hosts behind its links ``eth0`` and ``pods``.

    :param lines: more for ``ip -batch``.
    """
    node = Namespace()
    node.sysctl({"ipv4/ip_forward": 1})
    node.ip(["link set lo up"])
    for name in (pods, "eth0"):
        host = Namespace()
        node.ip(["link add %s type veth peer name eth0 netns %s" % (name, host.path), "link set %s up" % name])
        host.ip(["link set lo up", "link set eth0 up"])
    node.ip(["address add 198.51.100.1/24 dev eth0", "route add default via 198.51.100.2", *lines])
    return node


def strange_node(seed: int) -> nodes.Node:
    """Bring up a random node of both families whose rules do not decide by chance.

    Use it in a process of its own (``unnamed_namespaces.carry_out``), with which it ends.
    """
    made = ipv6.Ipv6(seed)
    made.steps = [one._replace(text=_adapted(one.text)) for one in made.steps]
    made.make()
    # As most nodes of Kubernetes have it: packets inside of a bridge meet the rules of iptables.
    names = ("bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables")
    made.space.sysctl({**dict.fromkeys(names, seed % 2), "ipv4/conf/all/rp_filter": seed % 3})
    if made.shape == "bridge":
        made.ipt("nat", "-A POSTROUTING -s %s -d 10.244.1.0/24 -j SNAT --to-source 192.0.2.25" % made.pods[0].four)
        for space in made.pod_spaces:
            space.ip(_beside(made))
    for late in (False, True):
        made.rules(late)
    return made


def _adapted(text: str) -> str:
    """Return rules without chance; those for packets that arrive are for packets of the node as well."""
    kept = "".join(line for line in text.splitlines(keepends=True) if not _CHANCE.search(line))
    return re.sub(r"^-A PREROUTING((?:(?! -i ).)*)$", r"\g<0>\n-A OUTPUT\1", kept, flags=re.MULTILINE)


def _beside(made: nodes.Node) -> t.List[str]:
    """Return how a pod reaches others on its bridge without the node."""
    lines = ["route add %s dev eth0" % one for one in ("10.244.1.0/24", "fd44::/64")]
    for number, pod in enumerate(made.pods):
        for address in (pod.four, pod.six):
            lines.append("neigh replace %s lladdr 02:00:00:00:0b:%02x dev eth0 nud permanent" % (address, number))
    return lines
