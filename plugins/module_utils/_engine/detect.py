# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packet-filter tools this node has, which of them work here, and which Kubernetes uses.

The choice follows kubernetes-sigs/iptables-wrappers: the chains that the kubelet leaves in the nft mangle table as a
hint, else rules in legacy tables, else nft. Where the agent remembers that it used legacy, a node whose legacy tables
somebody has emptied stays with legacy. Nothing is created by looking: C(iptables-legacy -t nat) creates the table that
it lists, so the kernel's own list of legacy tables is asked first. Where iptables cannot work, because it is not
installed or its kernel modules are not, nftables is the choice.
"""

from __future__ import annotations

import os
import re
import shutil
import typing as t

from .._errors import NodeError
from .._system.netlink import MATCH, TARGET, has_extension
from .._system.process import Runner, search_path
from .backend import Backend
from .iptables_backend import LEGACY, NFT, Iptables, wait_for_lock
from .nat_table import NftNat
from .nftables_backend import NAME as NFTABLES
from .nftables_backend import Nftables
from .ruleset import FAMILIES, IPV4, IPV6

#: of iptables
VARIANTS = (NFT, LEGACY)
BACKENDS = VARIANTS + (NFTABLES,)

#: Chains that the kubelet keeps in the mangle table of the variant that it uses (KEP-3178).
KUBELET_HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")

#: Builtin chains by table; a rule in any of them means that a variant is in use.
_BUILTIN = {
    "nat": ("POSTROUTING", "PREROUTING", "OUTPUT", "INPUT"),
    "filter": ("FORWARD", "INPUT", "OUTPUT"),
    "mangle": ("FORWARD", "PREROUTING", "POSTROUTING", "INPUT", "OUTPUT"),
    "raw": ("PREROUTING", "OUTPUT"),
    "security": ("FORWARD", "INPUT", "OUTPUT"),
}
_COMMANDS = {IPV4: "iptables", IPV6: "ip6tables"}
_LEGACY_TABLES = {IPV4: "/proc/net/ip_tables_names", IPV6: "/proc/net/ip6_tables_names"}
_VERSION = re.compile(r"v([0-9]+(?:\.[0-9]+)+)(?: \((\w+)\))?")

#: What all rules of ours are made of in iptables-nft (seen in 1.8.7 to 1.8.11). RHEL 10 images without
#: kernel-modules-extra lack them.
_EXTENSIONS = ((TARGET, "MASQUERADE", 0), (MATCH, "addrtype", 1), (MATCH, "comment", 0))

#: First release with C(--random-fully) (iptables 1.6.2 release notes).
RANDOM_FULLY_SINCE = (1, 6, 2)


class Tool(t.NamedTuple):
    """One program: its path, and the version it reports."""

    path: str
    version: t.Tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(str(part) for part in self.version)


class Node:
    """The tools of one node. Programs are looked up once; kernel state is asked whenever it is needed."""

    def __init__(
        self,
        run: Runner,
        lock_timeout: int = 5,
        has_extension: t.Callable[[str, int, str, int], t.Optional[bool]] = has_extension,
    ) -> None:
        """:param has_extension: as :func:`~.netlink.has_extension`."""
        self.run = run
        self.lock_timeout = lock_timeout
        self._has_extension = has_extension
        self._tools: t.Dict[t.Tuple[str, str], t.Optional[Tool]] = {}

    def tool(self, variant: str, family: str) -> t.Optional[Tool]:
        """The program of a backend and family; none where the node does not have it."""
        key = (variant, family)
        if key not in self._tools:
            self._tools[key] = self._find_nft() if variant == NFTABLES else self._find(variant, _COMMANDS[family])
        return self._tools[key]

    def _find_nft(self) -> t.Optional[Tool]:
        path = _which("nft")
        if path is None:
            return None
        found = _VERSION.search(self.run([path, "--version"]).stdout)
        return Tool(path, tuple(int(part) for part in found.group(1).split(".")) if found else ())

    def _find(self, variant: str, command: str) -> t.Optional[Tool]:
        suffix = "nft" if variant == NFT else "legacy"
        for name in ("%s-%s" % (command, suffix), command):
            path = _which(name)
            if path is None or shutil.which(path + "-restore") is None:
                continue
            found = _VERSION.search(self.run([path, "--version"]).stdout)
            # Before 1.8 there was one variant, and no word for it.
            if found and (found.group(2) or "legacy") == ("nf_tables" if variant == NFT else "legacy"):
                return Tool(path, tuple(int(part) for part in found.group(1).split(".")))
        return None

    def backend(
        self, variant: str, family: str, chain: str, adopt: bool = True, former: t.Sequence[str] = ()
    ) -> t.Optional[Backend]:
        """A backend for one family; none where the node has no tool for it.

        :param chain: its name in iptables.
        :param adopt: whether chains of earlier agents go as well.
        :param former: other names that our chain may have; such chains go as well.
        """
        if variant == NFTABLES:
            path = _which("nft")
            return None if path is None else Nftables(self.run, family, path)
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
            adopt,
            table_exists=lambda: variant == NFT or "nat" in legacy_tables(family),
            former=former,
            kernel=NftNat(family) if variant == NFT else None,
        )

    def knows_random_fully(self, variant: str, family: str) -> bool:
        """Whether a backend's program can ask for fully random source ports."""
        tool = self.tool(variant, family)
        return variant == NFTABLES or (tool is not None and tool.version >= RANDOM_FULLY_SINCE)

    def choose(self, requested: str, exemption: str = "return", used_before: t.Optional[str] = None) -> str:
        """The backend to use.

        :param requested: C(auto), or a backend, which must then be there.
        :param exemption: C(enforce) leaves nftables only.
        :param used_before: the backend that the agent on this node used the last time, where it remembers.
        :raises NodeError: the node does not have it, or has none.
        """
        if requested == NFTABLES or exemption == "enforce":
            if _which("nft") is None:
                asked = "exemption enforce" if exemption == "enforce" else "backend nftables"
                raise NodeError("%s needs nft, which is not on this node: install the package nftables" % asked)
            return NFTABLES
        installed = [variant for variant in VARIANTS if self.tool(variant, IPV4)]
        if requested != "auto":
            if requested not in installed:
                have = installed + ([NFTABLES] if _which("nft") else [])
                raise NodeError(
                    "backend %s is not on this node, which has %s: install it, or set backend to auto"
                    % (requested, " and ".join(have) or "neither iptables nor nft")
                )
            return requested
        if not installed:
            if _which("nft"):
                return NFTABLES
            raise NodeError(
                "iptables is missing on this node, and so is nft: install the package iptables or nftables, or set "
                "PATH so that they are found (searched %s)" % search_path()
            )
        chosen = installed[0]
        if len(installed) == 2 and not self._kubelet_uses_nft():
            if used_before == LEGACY or self._legacy_in_use():
                chosen = LEGACY
        if chosen == NFT and _which("nft") and not self._nft_variant_works():
            return NFTABLES
        return chosen

    def _nft_variant_works(self) -> bool:
        return all(self._has_extension(IPV4, *extension) is not False for extension in _EXTENSIONS)

    def _kubelet_uses_nft(self) -> bool:
        return any(
            self._lists(NFT, tool, "mangle", hint)[0] == 0
            for tool in (self.tool(NFT, family) for family in FAMILIES)
            if tool
            for hint in KUBELET_HINTS
        )

    def _legacy_in_use(self) -> bool:
        for family in FAMILIES:
            tool = self.tool(LEGACY, family)
            if tool is None:
                continue
            for table in legacy_tables(family):
                for chain in _BUILTIN.get(table, ()):
                    if "\n-A " in "\n" + self._lists(LEGACY, tool, table, chain)[1]:
                        return True
        return False

    def _lists(self, variant: str, tool: Tool, table: str, chain: str) -> t.Tuple[int, str]:
        wait = wait_for_lock(self.lock_timeout, variant, tool.version)
        done = self.run([tool.path] + wait + ["-t", table, "-S", chain])
        return done.rc, done.stdout


def _which(name: str) -> t.Optional[str]:
    return shutil.which(name, path=search_path())


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
