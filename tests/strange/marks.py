# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packets carry a mark that the policy skips: only the node can tell where random programs set marks."""

from __future__ import annotations

import ipaddress
import json
import typing as t

from .spaces import Namespace

#: Just before the kernel gives packets another source address. A rule asks; nothing of the packet changes.
_TABLE = """table inet strange_marks {
 set four { type ipv4_addr . ipv4_addr; flags dynamic; size 65535; }
 set six { type ipv6_addr . ipv6_addr; flags dynamic; size 65535; }
 chain postrouting {
  type filter hook postrouting priority srcnat - 1;
  %s
 }
}
"""
_RULES = """meta mark & %(mask)s == %(value)s add @four { ip saddr . ip daddr }
  meta mark & %(mask)s == %(value)s add @six { ip6 saddr . ip6 daddr }
"""


class Marks:
    """Looks at the marks of packets. Use it in ``with``: at its end its table is gone."""

    def __init__(self, space: Namespace, skipped: t.Sequence[str]) -> None:
        """:param skipped: the option skip_marks. Without it nothing is looked at."""
        self._space = space
        self._rules = []
        for text in skipped:
            value, _, mask = text.partition("/")
            self._rules.append(_RULES % {"value": value, "mask": mask or "0xffffffff"})

    def __enter__(self) -> Marks:
        if self._rules:
            self._space.run(["nft", "-f", "-"], _TABLE % "  ".join(self._rules))
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._rules:
            self._space.run(["nft", "delete", "table", "inet", "strange_marks"])

    def destinations(self) -> t.Set[t.Tuple[str, str]]:
        """Return source and destination of the packets that carried such a mark."""
        found: t.Set[t.Tuple[str, str]] = set()
        if self._rules:
            listed = json.loads(self._space.run(["nft", "-j", "list", "table", "inet", "strange_marks"]))
            for one in listed["nftables"]:
                for element in one.get("set", {}).get("elem", ()):
                    source, destination = (str(ipaddress.ip_address(part)) for part in element["concat"])
                    found.add((source, destination))
        return found
