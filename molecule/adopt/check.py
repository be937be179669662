# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chain of an earlier agent, and what the role makes of it. tests/kernel/test_adoption.py has all of them.

``check.py seed NAME``: makes that chain, and has it count packets. ``check.py adopted NAME``: there is one jump to one
chain that has the policy.
"""

from __future__ import annotations

import json
import sys
import typing as t

from checks import (
    BACKEND,
    HERE,
    HOST,
    NATIVE,
    OTHER,
    check,
    check_counters,
    check_rules,
    counters,
    done,
    equal,
    ours,
    packets,
    postrouting,
    status,
)
from support import predecessors

MEMORY = "/run/adopt.json"
PACKETS_IPV6 = {"fd00:99::1": "pod", "2001:db8:99::1": "node"}


def families(name: str) -> t.Dict[str, predecessors.Predecessor]:
    """The chains of one predecessor, by family."""
    found = {family: predecessors.of(family).get(name) for family in ("ipv4", "ipv6")}
    return {family: chain for family, chain in found.items() if chain is not None}


def options(name: str) -> t.Dict[str, t.Any]:
    """What the predecessor did, as options of the module. Both families' where there are two."""
    return list(families(name).values())[-1].options


def seed(name: str) -> None:
    """Make its chain as the earlier agent left it."""
    counted = {}
    for family, before in families(name).items():
        for place in (HOST, BACKEND):
            equal("%s: nothing of ours is left" % family, ours(family, place, before.chain), [])
        HOST.load(HERE, family, *before.lines)
    send(name)
    for family, before in families(name).items():
        if not NATIVE:
            counted[family] = counters(family, before.chain)
            check("%s: it has counted packets" % family, sum(counted[family]) > 0)
    with open(MEMORY, "w", encoding="utf-8") as memory:
        json.dump(counted, memory)
    done()


def send(name: str) -> None:
    """Packets, of both families where there are two."""
    packets(name)
    if "ipv6" in families(name):
        packets(name, PACKETS_IPV6)


def adopted(name: str) -> None:
    """There are the jumps that were there, one chain, the right meaning."""
    policy = options(name)
    with open(MEMORY, encoding="utf-8") as memory:
        counted = json.load(memory)
    for family, before in families(name).items():
        exempt = ("169.254.0.0/16",) + predecessors.RFC1918 if family == "ipv4" else ("fe80::/10", "fc00::/7")
        random_fully = policy.get("random_fully", True)
        jumps = sum(line.startswith("-A POSTROUTING") for line in before.lines)
        check_rules("after %s" % name, exempt, random_fully, family, before.chain, 1 if NATIVE else jumps)
        rules = [line for line in postrouting(family) if "-j KUBE-POSTROUTING" not in line]
        equal("%s: no other jump" % family, len(rules), 0 if NATIVE else jumps)
        if NATIVE:
            equal("%s: the chain is gone" % family, HOST.listing(HERE, family, before.chain), None)
        equal("%s: nothing in the other variant" % family, postrouting(family, OTHER), [])
        if not NATIVE:
            check_counters("%s, it meant the same" % family, counted[family], family, before.chain)
    send(name)
    report = status()
    equal("status", (report["exit status"], report["in_sync"]), (0, True))
    done()


if __name__ == "__main__":
    {"seed": seed, "adopted": adopted}[sys.argv[1]](sys.argv[2])
