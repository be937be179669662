# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel holds, read by the tests' own eyes: one small reader per backend of the module."""

from __future__ import annotations

import shlex
import typing as t

from .namespaces import Namespace

FAMILIES = ("ipv4", "ipv6")
#: Files that list the tables which iptables-legacy has made in a namespace.
_LEGACY_TABLES = {"ipv4": "/proc/net/ip_tables_names", "ipv6": "/proc/net/ip6_tables_names"}


def meaning(line: str) -> str:
    """A rule as ``iptables -S`` prints it, without its chain and comment, and with its probability rounded."""
    words = shlex.split(line)
    if words[:1] == ["-A"]:
        words = words[2:]
    kept: t.List[str] = []
    index = 0
    while index < len(words):
        if words[index : index + 3] == ["-m", "comment", "--comment"]:
            index += 4
        elif words[index] == "--probability":
            kept += [words[index], "%.8f" % float(words[index + 1])]
            index += 2
        else:
            kept.append(words[index])
            index += 1
    return " ".join(kept)


class Variant:
    """One variant of iptables: its programs, and what it holds in a namespace."""

    def __init__(self, backend: str) -> None:
        """:param backend: the name that the module's option C(backend) knows."""
        self.backend = backend
        self._suffix = {"iptables_nft": "-nft", "iptables_legacy": "-legacy"}[backend]

    def __repr__(self) -> str:
        return self.backend

    def tool(self, family: str, what: str = "") -> str:
        """The program's name; ``what`` is empty, ``-save`` or ``-restore``."""
        return ("iptables" if family == "ipv4" else "ip6tables") + self._suffix + what

    def present(self, ns: Namespace, family: str) -> bool:
        """Whether a nat table exists. Looks in a way that does not create it."""
        if self.backend == "iptables_legacy":
            return "nat" in ns.read(_LEGACY_TABLES[family]).split()
        return "table %s nat" % {"ipv4": "ip", "ipv6": "ip6"}[family] in ns.run("nft", "list", "tables").splitlines()

    def listing(self, ns: Namespace, family: str, chain: str) -> t.Optional[t.List[str]]:
        """The rules of a chain as ``iptables -S`` prints them; nothing where the chain does not exist."""
        if not self.present(ns, family):
            return None
        out = ns.run(self.tool(family), "-w", "-t", "nat", "-S", chain, check=False).splitlines()
        return [line for line in out if line.startswith("-A ")] if out else None

    def rules(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.Optional[t.List[str]]:
        """What the rules of a chain mean; nothing where the chain does not exist."""
        lines = self.listing(ns, family, chain)
        return None if lines is None else [meaning(line) for line in lines]

    def jumps(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.List[str]:
        """What the rules of POSTROUTING that lead to a chain mean."""
        found = self.rules(ns, family, "POSTROUTING") or []
        return [rule for rule in found if rule.split()[-2:] in (["-j", chain], ["-g", chain])]

    def counters(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.List[str]:
        """The rules of a chain with their packet and byte counters."""
        out = ns.run(self.tool(family), "-w", "-t", "nat", "-v", "-S", chain)
        return [line for line in out.splitlines() if line.startswith("-A ")]

    def saved(self, ns: Namespace, family: str) -> str:
        """The whole nat table with all counters, comments of the program itself left out."""
        if not self.present(ns, family):
            return ""
        out = ns.run(self.tool(family, "-save"), "-c", "-t", "nat")
        return "\n".join(line for line in out.splitlines() if not line.startswith("#"))

    def load(self, ns: Namespace, family: str, *lines: str) -> None:
        """Add to the nat table: ``:CHAIN - [0:0]`` and ``-A``/``-I``/``-D`` lines, in one transaction."""
        text = "\n".join(("*nat",) + lines + ("COMMIT", ""))
        ns.run(self.tool(family, "-restore"), "-w", "--noflush", "--counters", stdin=text)


VARIANTS = {name: Variant(name) for name in ("iptables_nft", "iptables_legacy")}


def snapshot(ns: Namespace) -> t.Dict[str, str]:
    """All that any variant holds in the nat tables of both families, counters and all, and every nft table there is."""
    found = {"nft": ns.run("nft", "list", "tables")}
    for family, path in _LEGACY_TABLES.items():
        found["legacy tables " + family] = ns.read(path)
        for variant in VARIANTS.values():
            found["%s %s" % (variant, family)] = variant.saved(ns, family)
    return found


def pristine(found: t.Mapping[str, str]) -> bool:
    """Whether a snapshot shows a namespace in which not even an empty table exists."""
    return not any(text.strip() for text in found.values())
