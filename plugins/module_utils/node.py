# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packet-filter tools this node has, and which of them Kubernetes uses here.

The choice follows kubernetes-sigs/iptables-wrappers: the chains that the kubelet leaves in the nft mangle table as a
hint, else rules in legacy tables, else nft. Nothing is created by looking: C(iptables-legacy -t nat) creates the table
that it lists, so the kernel's own list of legacy tables is asked first.
"""

from __future__ import annotations

import os
import re
import shutil
import typing as t

from .errors import NodeError
from .iptables import Iptables
from .ruleset import FAMILIES, IPV4, IPV6
from .runner import Runner, search_path

NFT = "iptables_nft"
LEGACY = "iptables_legacy"
VARIANTS = (NFT, LEGACY)

#: Chains that the kubelet keeps in the mangle table of the variant that it uses (KEP-3178).
KUBELET_HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")

#: Builtin chains by table; a rule in any of them means that a variant is in use.
_BUILTIN = {
    "nat": ("POSTROUTING", "PREROUTING", "OUTPUT", "INPUT"),
    "filter": ("FORWARD", "INPUT", "OUTPUT"),
    "mangle": ("FORWARD", "PREROUTING", "POSTROUTING", "INPUT", "OUTPUT"),
    "raw": ("PREROUTING", "OUTPUT"),
}
_COMMANDS = {IPV4: "iptables", IPV6: "ip6tables"}
_LEGACY_TABLES = {IPV4: "/proc/net/ip_tables_names", IPV6: "/proc/net/ip6_tables_names"}
_VERSION = re.compile(r"v([0-9]+(?:\.[0-9]+)+)(?: \((\w+)\))?")

#: First release with C(--random-fully) (iptables 1.6.2 release notes).
RANDOM_FULLY_SINCE = (1, 6, 2)


class Tool(t.NamedTuple):
    """One iptables program: its path, and the version it reports."""

    path: str
    version: t.Tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(str(part) for part in self.version)


class Node:
    """The tools of one node. Programs are looked up once; kernel state is asked whenever it is needed."""

    def __init__(self, run: Runner, lock_timeout: int = 5) -> None:
        self.run = run
        self.lock_timeout = lock_timeout
        self._tools: t.Dict[t.Tuple[str, str], t.Optional[Tool]] = {}

    def tool(self, variant: str, family: str) -> t.Optional[Tool]:
        """The program of a variant and family; none where the node does not have it."""
        key = (variant, family)
        if key not in self._tools:
            self._tools[key] = self._find(variant, _COMMANDS[family])
        return self._tools[key]

    def _find(self, variant: str, command: str) -> t.Optional[Tool]:
        suffix = "nft" if variant == NFT else "legacy"
        for name in ("%s-%s" % (command, suffix), command):
            path = shutil.which(name, path=search_path())
            if path is None or shutil.which(path + "-restore") is None:
                continue
            found = _VERSION.search(self.run([path, "--version"]).stdout)
            # Before 1.8 there was one variant, and no word for it.
            if found and (found.group(2) or "legacy") == ("nf_tables" if variant == NFT else "legacy"):
                return Tool(path, tuple(int(part) for part in found.group(1).split(".")))
        return None

    def backend(self, variant: str, family: str, chain: str) -> t.Optional[Iptables]:
        """A backend for one variant and family; none where the node has no tool for it."""
        tool = self.tool(variant, family)
        if tool is None:
            return None
        return Iptables(
            self.run,
            variant,
            family,
            tool.path,
            tool.version,
            chain,
            self.lock_timeout,
            table_exists=(lambda: "nat" in legacy_tables(family)) if variant == LEGACY else (lambda: True),
        )

    def choose(self, requested: str) -> str:
        """The variant to use.

        :param requested: C(auto), or a variant, which must then be there.
        :raises NodeError: the node does not have it, or has none.
        """
        installed = [variant for variant in VARIANTS if self.tool(variant, IPV4)]
        if not installed:
            raise NodeError(
                "iptables is missing on this node: install the package iptables, or set PATH so that it is found "
                "(searched %s)" % search_path()
            )
        if requested != "auto":
            if requested not in installed:
                raise NodeError(
                    "backend %s is not on this node, which has %s: install it, or set backend to auto"
                    % (requested, " and ".join(installed))
                )
            return requested
        if len(installed) == 1:
            return installed[0]
        if self._kubelet_uses_nft() or not self._legacy_in_use():
            return NFT
        return LEGACY

    def _kubelet_uses_nft(self) -> bool:
        return any(
            self._lists(tool, "mangle", hint)[0] == 0
            for tool in (self.tool(NFT, family) for family in FAMILIES)
            if tool
            for hint in KUBELET_HINTS
        )

    def _legacy_in_use(self) -> bool:
        for family in FAMILIES:
            tool = self.tool(LEGACY, family)
            for table in legacy_tables(family) if tool else ():
                for chain in _BUILTIN.get(table, ()):
                    if "\n-A " in "\n" + self._lists(tool, table, chain)[1]:
                        return True
        return False

    def _lists(self, tool: t.Optional[Tool], table: str, chain: str) -> t.Tuple[int, str]:
        assert tool is not None
        done = self.run([tool.path, "-w", str(self.lock_timeout), "-t", table, "-S", chain])
        return done.rc, done.stdout


def legacy_tables(family: str) -> t.List[str]:
    """The legacy tables that exist in this network namespace; reading the list creates none."""
    try:
        with open(_LEGACY_TABLES[family], encoding="ascii") as names:
            return names.read().split()
    except OSError:
        return []


def has_ipv6() -> bool:
    """Whether the kernel runs IPv6 at all (ipv6.disable=1 takes it away)."""
    return os.path.exists("/proc/net/if_inet6")
