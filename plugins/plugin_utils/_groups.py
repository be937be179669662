# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that a pattern of hosts misses: those of a group whose name has another spelling, and others of the cluster."""

from __future__ import annotations

import re
import typing as t

from ._names import some_of

#: Groups of kubespray whose hosts are nodes, by their plain names. kubespray's plays group hosts of older names
#: anew, for the run.
_NODES = {
    "k8scluster": "k8s_cluster",
    "kubecontrolplane": "kube_control_plane",
    "kubemaster": "kube_control_plane",
    "kubenode": "kube_node",
    "calicorr": "calico_rr",
}
#: Names that kubespray itself takes for those of today.
_OLD = ("calico-rr", "k8s-cluster", "kube-master", "kube-node")
#: A pattern with all of one of these is for the whole cluster.
_WHOLE = ({"k8s_cluster"}, {"kube_control_plane", "kube_node"})

#: The hosts that one part of a pattern matches.
Match = t.Callable[[str], t.Collection[str]]
Groups = t.Mapping[str, t.Sequence[str]]


def other_spellings(parts: t.Sequence[str], groups: Groups, match: Match) -> t.Iterator[str]:
    """Return a message for each part of a pattern whose hosts are in a group of another spelling, or of an older name.

    :param parts: of the pattern, as Ansible splits it.
    :param groups: names of hosts by group.
    """
    named, reached = _mentioned(parts, match)
    for part in parts:
        if part[:1] in "!&":
            continue
        found = match(part)
        for group, hosts in groups.items():
            if group in named or _known(group) != _known(part):
                continue
            missed = set(hosts) - reached
            # Other groups may have similar names on purpose.
            if (missed and (group in _OLD or not found)) or (hosts and group in _OLD and not found):
                lacking = "%r does not match all nodes" if found else "no host of the inventory matches %r"
                names = some_of(sorted(missed or hosts))
                yield "%s: the group %s has %s: %s" % (lacking % part, group, names, _one_name(group))


def unreached(parts: t.Sequence[str], groups: Groups, match: Match) -> t.List[str]:
    """Return the nodes of kubespray's groups that a pattern for the whole cluster does not name."""
    _names, reached = _mentioned(parts, match)
    known = {_known(part) for part in parts}
    if not any(whole <= known for whole in _WHOLE):
        return []
    nodes = (host for group, hosts in groups.items() if _known(group) in _NODES.values() for host in hosts)
    return [host for host in dict.fromkeys(nodes) if host not in reached]


def _mentioned(parts: t.Sequence[str], match: Match) -> t.Tuple[t.Set[str], t.Set[str]]:
    """Return the names in a pattern and their hosts, also of those that it excludes: that is on purpose."""
    names = {part.lstrip("!&") for part in parts}
    return names, {host for name in names for host in match(name)}


def _one_name(group: str) -> str:
    """Return how a group and a pattern get the same name."""
    known = _known(group)
    if known in _NODES.values() and known != group:
        return "rename it to " + known
    return "write " + group


def _known(name: str) -> str:
    """Return a name without what spellings differ in; of kubespray's groups the name of today."""
    plain = re.sub(r"[-_. ]|\[[^\]]*\]$", "", name).lower()
    plain = plain[:-1] if plain.endswith("s") else plain
    return _NODES.get(plain, plain)
