# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What removal must take away, and what it must leave.

``check.py others``: rules of other programs, in every variant and family. ``check.py leftovers``: rules of ours where
the installed agent has none. ``check.py removed``, ``check.py by_hand``: after and during removal.
"""

from __future__ import annotations

import os
import sys

from checks import (
    AGENT,
    BACKEND,
    CHAIN,
    HERE,
    HOST,
    LEGACY,
    OTHER,
    PLACES,
    agent,
    check,
    check_rules,
    done,
    equal,
    in_sync,
    ours,
    packets,
    sh,
)

METRICS_DIR = "/var/lib/node_exporter"
FAMILIES = {"ipv4": ("ip", "10.9.0.0/16", "10.8.0.0/16"), "ipv6": ("ip6", "fd00:9::/64", "fd00:8::/64")}


def others() -> None:
    """Create other programs' rules, one with a chain whose name is similar to ours, and the directory for metrics."""
    os.makedirs(METRICS_DIR)
    if not LEGACY:
        # As the kubelet says that this node uses nft. Without it, rules in legacy tables mean that it does not.
        sh("iptables-nft", "-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
    for variant in (HOST, OTHER):
        for family, (_word, first, second) in FAMILIES.items():
            variant.load(
                HERE,
                family,
                ":IP-MASQ-AGENT-2 - [0:0]",
                "-A IP-MASQ-AGENT-2 -d %s -j RETURN" % second,
                "-A POSTROUTING -s %s -j MASQUERADE" % first,
                "-A POSTROUTING -s %s -m comment --comment of-others -j IP-MASQ-AGENT-2" % second,
            )
    sh("nft", "-f", "-", stdin="table inet others { set addresses { type ipv4_addr; elements = { 192.0.2.1 }; }; }\n")
    check("other programs' rules are there", True)
    done()


def leftovers() -> None:
    """Our rules in the backends that the agent does not use, of times when it used those."""
    check("everything is installed: in sync", in_sync())
    check_rules("installed")
    check("metrics are written", os.listdir(METRICS_DIR))
    lines = [":%s - [0:0]", "-A %s -j MASQUERADE", "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j %s"]
    table = "table %s ip_masq_agent { chain postrouting { type nat hook postrouting priority 100; masquerade; }; }\n"
    for family, (word, _first, _second) in FAMILIES.items():
        check("%s: installed" % family, ours(family))
        for variant in {HOST, OTHER} - {BACKEND}:
            variant.load(HERE, family, *(line % CHAIN for line in [*lines, "-A POSTROUTING -j %s"]))
        if BACKEND is HOST:
            sh("nft", "-f", "-", stdin=table % word)
    done()


def removed() -> None:
    """Nobody masquerades any more."""
    for family in FAMILIES:
        for place in PLACES:
            equal("%s, %s: nothing of ours" % (family, place), ours(family, place), [])
    packets("nothing is masqueraded", dict.fromkeys(("10.99.0.1", "203.0.113.7", "2001:db8:99::1"), "pod"))
    done()


def by_hand() -> None:
    """The agent removes itself."""
    packets("before", {"10.99.0.1": "pod", "203.0.113.7": "node", "2001:db8:99::1": "node"})
    done_ = agent("remove")
    equal("ip-masq-agent remove: exit status", (done_.returncode, done_.stderr), (0, ""))
    check("it reports what it removed", "file removed: " + AGENT in done_.stdout, done_.stdout)
    check("it is removed", not os.path.exists(AGENT))
    packets("after", {"10.99.0.1": "pod", "203.0.113.7": "pod", "2001:db8:99::1": "pod"})
    done()


if __name__ == "__main__":
    {"others": others, "leftovers": leftovers, "removed": removed, "by_hand": by_hand}[sys.argv[1]]()
