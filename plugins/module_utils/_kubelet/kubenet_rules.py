# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Masquerading rules that kubenet left in POSTROUTING.

The kubelet appended one rule, ensured it again on every pod setup, and never deleted it (Kubernetes 1.23,
pkg/kubelet/dockershim/network/kubenet). Only a rule of exactly that shape is ever touched.
"""

from __future__ import annotations

import re
import typing as t

from .._engine.iptables_syntax import NOT_LOCAL, PostroutingRule, parse_postrouting, printed_rules, tokenise
from .._errors import NodeError
from .._system import iptables_tool
from .._system.backend_names import VARIANTS
from .._system.families import FAMILIES, Family
from .._system.node import Node

#: What kubenet wrote, and what the kubelet wrote before there was kubenet (--configure-cbr0).
COMMENTS = ("kubenet: SNAT for outbound traffic from cluster", "kubelet: SNAT outbound cluster traffic")

_SHAPE = re.compile(r"! -d [0-9A-Fa-f:.]+(?:/[0-9]{1,3})? %s -j MASQUERADE" % " ".join(NOT_LOCAL))


class Leftover(t.NamedTuple):
    """One such rule: the program that sees it, the variant, the family, and how it is printed."""

    command: str
    variant: str
    family: Family
    line: str


def is_kubenet_rule(rule: PostroutingRule) -> bool:
    """Match exactly ``! -d CIDR -m addrtype ! --dst-type LOCAL -j MASQUERADE`` with one of the comments."""
    return rule.comment in COMMENTS and _SHAPE.fullmatch(" ".join(rule.words)) is not None


def find_leftovers(node: Node) -> t.List[Leftover]:
    """Find every such rule on the node, in both variants and families.

    :raises NodeError: POSTROUTING cannot be read.
    """
    found = []
    for variant in VARIANTS:
        for family in FAMILIES:
            tool = iptables_tool.find(node, variant, family)
            if tool and tool.has_table("nat"):
                done = tool.list_chain("POSTROUTING")
                if done.rc != 0:
                    raise tool.error("cannot list POSTROUTING", done)
                rules = parse_postrouting(printed_rules(done.stdout))
                found += [Leftover(tool.path, variant, family, rule.line) for rule in rules if is_kubenet_rule(rule)]
    return found


def delete_leftovers(node: Node, leftovers: t.Sequence[Leftover]) -> None:
    """Delete exactly these rules, and verify that they are gone.

    :raises NodeError: a rule could not be deleted, or was there again at once.
    """
    for rule in leftovers:
        tool = iptables_tool.find(node, rule.variant, rule.family)
        if tool is None:
            raise NodeError("%s is no longer installed; run again" % rule.command)
        done = tool.delete(*tokenise(rule.line)[1:])
        if done.rc != 0 and rule in find_leftovers(node):
            raise tool.error("cannot delete the kubenet rule '%s'" % rule.line, done)
    back = [rule.line for rule in find_leftovers(node) if rule in leftovers] if leftovers else []
    if back:
        raise NodeError(
            "the kubenet rule '%s' was deleted and is present again; look for a kubelet or cri-dockerd with "
            "--network-plugin=kubenet on this node" % back[0]
        )
