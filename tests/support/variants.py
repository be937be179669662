# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel holds, read by the tests' own eyes: one small reader per backend of the module.

All of them return it as iptables prints it, so that a test can be written once for all backends.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import typing as t

if t.TYPE_CHECKING:
    from .namespaces import Namespace

FAMILIES = ("ipv4", "ipv6")
#: Files that list the tables which iptables-legacy has made in a namespace.
_LEGACY_TABLES = {"ipv4": "/proc/net/ip_tables_names", "ipv6": "/proc/net/ip6_tables_names"}


def meaning(line: str) -> str:
    """Return a rule as ``iptables -S`` prints it, without its chain and comment, and with its probability rounded."""
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


NFT_FAMILIES = {"ipv4": "ip", "ipv6": "ip6"}
_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}


class Variant:
    """One variant of iptables: its programs, and what it holds in a namespace."""

    def __init__(self, backend: str) -> None:
        """Describe a variant.

        :param backend: the name that the module's option ``backend`` knows.
        """
        self.backend = backend
        #: the variant of iptables that the node uses for everything else
        self.host = self
        self._suffix = {"iptables_nft": "-nft", "iptables_legacy": "-legacy"}[backend]

    def in_order(self, cidrs: t.Sequence[str]) -> t.List[str]:
        """Return the order in which ``rules`` lists exempt ranges that were given in this one."""
        return list(cidrs)

    def version(self, ns: Namespace) -> str:
        """Return what its program says of itself."""
        return ns.run(self.tool("ipv4"), "--version").split()[1].lstrip("v")

    def __repr__(self) -> str:
        return self.backend

    def tool(self, family: str, what: str = "") -> str:
        """Return the program's name; ``what`` is empty, ``-save`` or ``-restore``."""
        return ("iptables" if family == "ipv4" else "ip6tables") + self._suffix + what

    def present(self, ns: Namespace, family: str) -> bool:
        """Return whether a nat table exists. Looks in a way that does not create it."""
        if self.backend == "iptables_legacy":
            return "nat" in ns.read(_LEGACY_TABLES[family]).split()
        return "table %s nat" % NFT_FAMILIES[family] in ns.run("nft", "list", "tables").splitlines()

    def listing(self, ns: Namespace, family: str, chain: str) -> t.Optional[t.List[str]]:
        """Return the rules of a chain as ``iptables -S`` prints them; empty if the chain does not exist."""
        if not self.present(ns, family):
            return None
        out = ns.run(self.tool(family), "-w", "-t", "nat", "-S", chain, check=False).splitlines()
        return [line for line in out if line.startswith("-A ")] if out else None

    def rules(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.Optional[t.List[str]]:
        """Return what the rules of a chain mean; empty if the chain does not exist."""
        lines = self.listing(ns, family, chain)
        return None if lines is None else [meaning(line) for line in lines]

    def exempt(self, ns: Namespace, family: str = "ipv4") -> t.List[str]:
        """Return the exempt ranges of our rules, in order."""
        found = [re.search(r"-d (\S+) .*RETURN", rule) for rule in self.rules(ns, family) or []]
        return [one.group(1) for one in found if one]

    def jumps(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.List[str]:
        """Return what the rules of POSTROUTING that lead to a chain mean."""
        found = self.rules(ns, family, "POSTROUTING") or []
        return [rule for rule in found if rule.split()[-2:] in (["-j", chain], ["-g", chain])]

    def counters(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.List[str]:
        """Return the rules of a chain with their packet and byte counters."""
        out = ns.run(self.tool(family), "-w", "-t", "nat", "-v", "-S", chain)
        return [line for line in out.splitlines() if line.startswith("-A ")]

    def saved(self, ns: Namespace, family: str) -> str:
        """Return the whole nat table with all counters, comments of the program itself left out."""
        if not self.present(ns, family):
            return ""
        out = ns.run(self.tool(family, "-save"), "-c", "-t", "nat")
        return "\n".join(line for line in out.splitlines() if not line.startswith("#"))

    def lose(self, ns: Namespace, family: str, cidr: str) -> None:
        """Take an exempt range out of our rules."""
        number = (self.rules(ns, family) or []).index("-d %s -j RETURN" % cidr) + 1
        ns.run(self.tool(family), "-w", "-t", "nat", "-D", "IP-MASQ-AGENT", str(number))

    def unhook(self, ns: Namespace, family: str) -> None:
        """Let no packet reach our rules any more."""
        ns.run(self.tool(family), "-w", "-t", "nat", "-F", "POSTROUTING")

    def load(self, ns: Namespace, family: str, *lines: str) -> None:
        """Add to the nat table: ``:CHAIN - [0:0]`` and ``-A``/``-I``/``-D`` lines, in one transaction."""
        text = "\n".join(("*nat",) + lines + ("COMMIT", ""))
        ns.run(self.tool(family, "-restore"), "-w", "--noflush", "--counters", stdin=text)


class Nftables(Variant):
    """The table that the module makes with nft, read as JSON and returned as iptables prints rules.

    Chains of other names, and what is loaded, are those of a variant of iptables.
    """

    def __init__(self, host: str = "iptables_nft") -> None:
        super().__init__(host)
        self.backend = "nftables"
        self.host = Variant(host)

    def in_order(self, cidrs: t.Sequence[str]) -> t.List[str]:
        networks = [ipaddress.ip_network(cidr) for cidr in cidrs]
        return [str(network) for network in ipaddress.collapse_addresses(networks)]  # type: ignore[type-var]

    def present(self, ns: Namespace, family: str) -> bool:
        return "table %s ip_masq_agent" % NFT_FAMILIES[family] in ns.run("nft", "list", "tables").splitlines()

    def objects(self, ns: Namespace, family: str) -> t.List[t.Tuple[str, t.Dict[str, t.Any]]]:
        """Return all that the table holds: kind and content of each object."""
        if not self.present(ns, family):
            return []
        listed = json.loads(ns.run("nft", "-j", "list", "table", NFT_FAMILIES[family], "ip_masq_agent"))["nftables"]
        return [item for found in listed for item in found.items() if item[0] != "metainfo"]

    @staticmethod
    def _elements(objects: t.Sequence[t.Tuple[str, t.Dict[str, t.Any]]]) -> t.List[str]:
        """Return the elements of the set, as networks."""
        ranges = [
            element
            for kind, content in objects
            if kind == "set" and content["name"] == "exempt_ranges"
            for element in content.get("elem", [])
        ]
        return [network for element in ranges for network in _as_networks(element)]

    def listing(self, ns: Namespace, family: str, chain: str) -> t.Optional[t.List[str]]:
        if chain != "IP-MASQ-AGENT":
            return self.host.listing(ns, family, chain)
        rules = self._told(ns, family)
        return None if rules is None else [rule for rule, _packets in rules]

    def _told(self, ns: Namespace, family: str) -> t.Optional[t.List[t.Tuple[str, int]]]:
        """Return each rule as iptables prints it, and its packets; empty if no chain is hooked into postrouting."""
        objects = self.objects(ns, family)
        hooked = [c for kind, c in objects if kind == "chain" and (c.get("hook"), c["name"]) == ("postrouting",) * 2]
        if not hooked:
            return None
        assert (hooked[0]["type"], hooked[0]["prio"], hooked[0]["policy"]) == ("nat", 100, "accept")
        exempt = self._elements(objects)
        told: t.List[t.Tuple[str, int]] = []
        for kind, content in objects:
            if kind == "rule" and content["chain"] == "postrouting":
                counted = next((e["counter"]["packets"] for e in content["expr"] if "counter" in e), 0)
                for text in self._tell(content["expr"], exempt):
                    told.append((text, counted))
        return told

    @staticmethod
    def _tell(expressions: t.Sequence[t.Dict[str, t.Any]], exempt: t.Sequence[str]) -> t.List[str]:
        words: t.List[str] = []
        ranges: t.Sequence[str] = [""]
        for expression in expressions:
            ((kind, content),) = expression.items()
            left = content.get("left", {}) if kind == "match" else {}
            if "fib" in left:
                words += ["-m addrtype --dst-type LOCAL"]
            elif left.get("payload", {}).get("field") == "saddr":
                words += ["!"] * (content["op"] == "!=") + ["-s", str(content["right"])]
            elif "payload" in left:
                right = content["right"]
                ranges = [
                    "-d %s " % network for network in (exempt if right == "@exempt_ranges" else [json.dumps(right)])
                ]
            elif "meta" in left:
                words += ["-p", _PROTOCOLS.get(content["right"], content["right"])]
            elif "numgen" in left:
                share = content["right"] / (left["numgen"]["mod"] % 2**32)
                words.append("-m statistic --mode random --probability %.8f" % share)
            elif kind in ("return", "accept"):
                words += ["-j", kind.upper()]
            elif kind == "masquerade":
                words.append("-j MASQUERADE")
                port = (content or {}).get("port")
                if port is not None:
                    words += ["--to-ports", "%d-%d" % tuple(port["range"]) if isinstance(port, dict) else str(port)]
                if "fully-random" in str((content or {}).get("flags")):
                    words.append("--random-fully")
            elif kind != "counter":
                words.append(repr(expression))
        return [network + " ".join(words) for network in ranges]

    def rules(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.Optional[t.List[str]]:
        if chain != "IP-MASQ-AGENT":
            return self.host.rules(ns, family, chain)
        found = self.listing(ns, family, chain)
        return found and [rule for rule in found if "LOCAL" not in rule]

    def jumps(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.List[str]:
        """Return the hook, told as the jump that it stands for."""
        if chain != "IP-MASQ-AGENT":
            return self.host.jumps(ns, family, chain)
        first = (self.listing(ns, family, chain) or [""])[0]
        return (
            ["-m addrtype ! --dst-type LOCAL -j " + chain] if first == "-m addrtype --dst-type LOCAL -j RETURN" else []
        )

    def counters(self, ns: Namespace, family: str, chain: str = "IP-MASQ-AGENT") -> t.List[str]:
        if chain != "IP-MASQ-AGENT":
            return self.host.counters(ns, family, chain)
        return ["-c %d 0 %s" % (packets, rule) for rule, packets in self._told(ns, family) or []]

    def saved(self, ns: Namespace, family: str) -> str:
        """Return the table with all counters and handles: made anew, it has others."""
        if not self.present(ns, family):
            return ""
        return ns.run("nft", "-a", "list", "table", NFT_FAMILIES[family], "ip_masq_agent")

    def lose(self, ns: Namespace, family: str, cidr: str) -> None:
        ns.run("nft", "delete element %s ip_masq_agent exempt_ranges { %s }" % (NFT_FAMILIES[family], cidr))

    def unhook(self, ns: Namespace, family: str) -> None:
        chain = "chain %s ip_masq_agent postrouting" % NFT_FAMILIES[family]
        ns.run("nft", "flush %s; delete %s" % (chain, chain))

    def version(self, ns: Namespace) -> str:
        return ns.run("nft", "--version").split()[1].lstrip("v")


def _as_networks(element: t.Any) -> t.List[str]:
    if isinstance(element, str):
        return [str(ipaddress.ip_network(element))]
    if "prefix" in element:
        return ["%(addr)s/%(len)d" % element["prefix"]]
    first, last = map(ipaddress.ip_address, element["range"])
    return [str(network) for network in ipaddress.summarize_address_range(first, last)]


VARIANTS = {name: Variant(name) for name in ("iptables_nft", "iptables_legacy")}
NFTABLES = Nftables()
#: all that can hold our rules
BACKENDS: t.Dict[str, Variant] = dict(VARIANTS, nftables=NFTABLES)


def snapshot(ns: Namespace) -> t.Dict[str, str]:
    """Return all that any variant holds in the nat tables of both families, with counters, and every nft table."""
    found = {"nft": ns.run("nft", "list", "tables")}
    for family, path in _LEGACY_TABLES.items():
        found["legacy tables " + family] = ns.read(path)
        for variant in BACKENDS.values():
            found["%s %s" % (variant, family)] = variant.saved(ns, family)
    return found


def pristine(found: t.Mapping[str, str]) -> bool:
    """Return whether a snapshot shows a namespace in which not even an empty table exists."""
    return not any(text.strip() for text in found.values())


#: Ranges for the option non_masquerade_cidrs: in them are the exempt addresses of ``topology``.
EXEMPT_RANGES = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]

#: Of the pods of ``topology``, which ``exemption`` accept and enforce need.
PODS = ["10.244.0.0/16", "fd00:10:244::/48"]

#: Every backend with each exemption that it has.
EXEMPTIONS = (
    ("iptables_nft", "return"),
    ("iptables_nft", "accept"),
    ("iptables_legacy", "return"),
    ("iptables_legacy", "accept"),
    ("nftables", "return"),
    ("nftables", "accept"),
    ("nftables", "enforce"),
)
