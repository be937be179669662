# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The backends that there are, and which of them a node uses. A new backend is one module, and one line here.

``backend: auto`` follows kubernetes-sigs/iptables-wrappers: the chains that the kubelet leaves in the nft mangle table
as a hint, else rules in legacy tables, else nft. Where iptables cannot work, because it is not installed or its kernel
modules are not, nftables is the choice.
"""

from __future__ import annotations

import typing as t

from .._errors import NodeError, ProgramMissingError
from .._system import iptables_tool
from .._system.backend_names import IPTABLES_LEGACY, IPTABLES_NFT
from .._system.families import IPV4
from .._system.node import Node
from .._system.process import search_path, which
from .backend import BackendType
from .iptables_legacy import IptablesLegacy
from .iptables_nft import IptablesNft
from .nftables_backend import NFT, NftablesType

#: In order of preference. The names after ``auto`` in the policy's option ``backend`` are these.
BACKENDS: t.Tuple[BackendType, ...] = (IptablesNft(), IptablesLegacy(), NftablesType())

#: Seconds for all that is looked at beside the rules that are wanted: programs that are not used may hang, and a resync
#: has a time limit.
PATIENCE = 10.0

#: The programs that they look for. Which of them a node has decides what is chosen, and what can be looked through.
PROGRAMS = (*iptables_tool.PROGRAMS, NFT)


def installed_programs() -> t.List[t.Optional[str]]:
    """Return the path of each of the programs; None for one that the node does not have."""
    return [which(name) for name in PROGRAMS]


def choose(
    node: Node,
    requested: str,
    exemption: str = "return",
    used_before: t.Optional[str] = None,
    position: str = "keep",
) -> BackendType:
    """Choose the backend to use on a node.

    :param requested: ``auto``, or a backend, which must then be available.
    :param exemption: value of the option; a backend that does not support it is no choice.
    :param position: value of the option ``jump_position``; likewise.
    :param used_before: the backend that the agent on this node used the last time, where it remembers.
    :raises ProgramMissingError: none is available.
    :raises NodeError: none supports the options.
    """
    fit = [kind for kind in BACKENDS if _fits(kind, exemption, position)]
    able = [kind for kind in fit if requested in ("auto", kind.name)]
    available = [kind for kind in able if _is_available(node, kind, kind.name in (requested, used_before))]
    if not available:
        needs = [] if exemption == "return" else ["exemption %s" % exemption]
        needs += [] if position == "keep" else ["jump_position %s" % position]
        raise _unavailable(node, requested, " and ".join(needs), fit)
    regular = [kind for kind in available if not kind.is_last_resort] or available
    chosen = regular[0]
    if len(regular) > 1:
        chosen = next((kind for kind in regular if _is_in_use(node, kind, used_before)), chosen)
    # The first use of legacy loads its modules. A kernel that lacks what iptables-nft needs lacks legacy's too.
    if requested == "auto" and chosen.name in (IPTABLES_NFT, used_before):
        others = [kind for kind in available if kind is not chosen and kind.name != IPTABLES_LEGACY]
        chosen = next((kind for kind in (chosen, *others) if kind.kernel_supports(node)), chosen)
    return chosen


def move(
    node: Node, requested: str, exemption: str, used_before: t.Optional[str], position: str, chosen: BackendType
) -> str:
    """Return which backend a node had before, and why it has another one now; empty if it has the same.

    :param chosen: what ``choose`` returned for the same.
    """
    before = next((kind for kind in BACKENDS if kind.name == used_before), chosen)
    if requested != "auto" or before is chosen:
        return ""
    if not _fits(before, exemption, position):
        why = "the policy needs it"
    elif not _is_available(node, before, False):
        why = "the node no longer has the program of %s" % before.name
    elif not chosen.is_last_resort and _is_in_use(node, chosen, used_before):
        why = chosen.sign
    else:
        why = "the node has its program now" if before.is_last_resort else "the kernel no longer has %s" % before.name
    return "backend auto: from %s to %s: %s" % (before.name, chosen.name, why)


def _fits(kind: BackendType, exemption: str, position: str) -> bool:
    """Return whether a backend supports these options."""
    return exemption in kind.exemptions and position.partition(":")[0] in kind.positions


def _is_available(node: Node, kind: BackendType, needed: bool) -> bool:
    """Return whether a node has what a backend needs.

    :raises NodeError: it cannot be known, and this backend is needed: a program that is slow is no reason to move.
    """
    try:
        return kind.is_installed(node, IPV4)
    except NodeError:
        if needed:
            raise
        return False


def _is_in_use(node: Node, kind: BackendType, used_before: t.Optional[str]) -> bool:
    """Return whether a backend is in use; one that does not answer is, if it was the last time."""
    try:
        return kind.is_in_use(node.within(PATIENCE), used_before)
    except NodeError:
        return kind.name == used_before


def _unavailable(node: Node, requested: str, purpose: str, fit: t.Sequence[BackendType]) -> NodeError:
    """Return why there is no choice, and what to install.

    :param purpose: options that not all backends support. :param fit: backends that support them.
    """
    able = [kind for kind in fit if requested in ("auto", kind.name)]
    if not able:
        return NodeError("backend %s does not support %s: set backend to auto" % (requested, purpose))
    wanted = " or ".join(dict.fromkeys(kind.package for kind in able if kind.package))
    remedy = "install the package " + wanted if wanted else "its kernel must have nf_tables"
    if requested == "auto":
        missing = "no backend is available on this node" + (purpose and " for " + purpose)
    else:
        missing = "backend %s is not available on this node" % requested
        others = [kind.name for kind in fit if _is_available(node, kind, False)]
        remedy += ", or set backend to auto (available: %s)" % ", ".join(others) if others else ""
    if not wanted:
        return NodeError("%s: %s" % (missing, remedy))
    return ProgramMissingError("%s: %s (searched %s)" % (missing, remedy, search_path()), able[0].package)
