# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of iptables-legacy, as its own tool prints and reads them.

Only tables that the kernel lists are read: to look at one that is not there makes it.
"""

from __future__ import annotations

import typing as t

from .._errors import NodeError
from .._system.families import BY_NFT
from .._system.iptables_tool import LEGACY, find_tool, legacy_tables
from .._system.node import Node
from .._system.process import Runner, which

#: seconds
_PATIENCE = 60.0


#: of the chains of each table (linux/netfilter_ipv4.h), but for those that translate sources
_PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
_SOURCE_NAT = 100


def priority(table: str, chain: str) -> int:
    """Return the priority of a builtin chain: at one hook the lowest number comes first."""
    return _SOURCE_NAT if table == "nat" and chain in ("POSTROUTING", "INPUT") else _PRIORITIES.get(table, 0)


class LegacyTable(t.NamedTuple):
    """One table. ``family`` as nft names it: ``ip``, ``ip6``; ``listing`` is what the tool prints of it."""

    family: str
    name: str
    listing: str

    def rules(self) -> t.Dict[str, t.List[str]]:
        """Return the rules of each chain as they are listed."""
        found: t.Dict[str, t.List[str]] = {}
        for line in self.listing.splitlines():
            if line.startswith(":"):
                found[line[1:].split(" ", 1)[0]] = []
            elif line.startswith("-A "):
                found.setdefault(line.split(" ", 2)[1], []).append(line)
        return found


def program(run: Runner, family: str, action: str) -> t.Optional[str]:
    """Return the path of the tool for an action, ``save`` or ``restore``; None if there is none."""
    tool = find_tool(Node(run), LEGACY, BY_NFT[family])
    return None if tool is None else which("%s-%s" % (tool.path, action))


def read(run: Runner) -> t.Tuple[t.Tuple[LegacyTable, ...], t.List[str]]:
    """Read all tables of this network namespace.

    :returns: the tables, and why others could not be read.
    """
    tables, missing = [], []
    present = [(family, name) for family, known in BY_NFT.items() for name in sorted(legacy_tables(known))]
    for family, name in present:
        what = "table %s %s of iptables-legacy" % (family, name)
        save = program(run, family, "save")
        if save is None:
            missing.append("%s: %s-legacy-save is not on this node" % (what, BY_NFT[family].iptables))
            continue
        try:
            done = run([save, "-t", name], timeout=_PATIENCE)
        except NodeError as exc:
            missing.append("%s: %s" % (what, exc))
            continue
        if done.rc != 0:
            missing.append("%s: %s ended with %d: %s" % (what, save, done.rc, done.stderr.strip()[:300]))
            continue
        tables.append(LegacyTable(family, name, done.stdout))
    return tuple(tables), missing


def write(run: Runner, tables: t.Sequence[LegacyTable]) -> t.List[str]:
    """Make the tables in this network namespace, which must be one of our own.

    :returns: what could not be made.
    """
    missing = []
    for table in tables:
        restore = program(run, table.family, "restore")
        what = "table %s %s of iptables-legacy" % (table.family, table.name)
        if restore is None:
            missing.append("%s: %s-legacy-restore is not on this node" % (what, BY_NFT[table.family].iptables))
            continue
        done = run([restore], stdin=table.listing, timeout=_PATIENCE)
        if done.rc != 0:
            missing.append("%s: %s" % (what, done.stderr.strip()[:300]))
    return missing
