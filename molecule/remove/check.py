# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What removal must take away, and what it must leave.

C(check.py others): rules of other programs, in every variant and family. C(check.py leftovers): rules of ours where the
agent that is installed has none. C(check.py removed), C(check.py by_hand): after and during removal.
"""

from __future__ import annotations

import os
import sys

from checks import (
    AGENT,
    CHAIN,
    LEGACY,
    OTHER_VARIANT,
    VARIANT,
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
VARIANTS = (VARIANT, OTHER_VARIANT)
FAMILIES = {"iptables": ("ip", "10.9.0.0/16", "10.8.0.0/16"), "ip6tables": ("ip6", "fd00:9::/64", "fd00:8::/64")}


def restore(command: str, variant: str, *lines: str) -> None:
    """Add rules to a nat table."""
    sh("%s-%s-restore" % (command, variant), "-w", "--noflush", stdin="\n".join(["*nat", *lines, "COMMIT", ""]))


def others() -> None:
    """Somebody else's rules, one with a chain whose name is much like ours; and the place for metrics."""
    os.makedirs(METRICS_DIR)
    if not LEGACY:
        # As the kubelet says that this node uses nft. Without it, rules in legacy tables mean that it does not.
        sh("iptables-nft", "-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
    for variant in VARIANTS:
        for command, (_family, first, second) in FAMILIES.items():
            restore(
                command,
                variant,
                ":IP-MASQ-AGENT-2 - [0:0]",
                "-A IP-MASQ-AGENT-2 -d %s -j RETURN" % second,
                "-A POSTROUTING -s %s -j MASQUERADE" % first,
                "-A POSTROUTING -s %s -m comment --comment of-others -j IP-MASQ-AGENT-2" % second,
            )
    sh("nft", "-f", "-", stdin="table inet others { set addresses { type ipv4_addr; elements = { 192.0.2.1 }; }; }\n")
    check("rules of others are there", True)
    done()


def leftovers() -> None:
    """Our rules in the other variant, and an nftables table, of times when the agent used those."""
    check("everything is installed: in sync", in_sync())
    check_rules("installed")
    check("metrics are written", os.listdir(METRICS_DIR))
    for command, (family, _first, _second) in FAMILIES.items():
        check("%s: installed" % command, ours(command))
        restore(
            command,
            OTHER_VARIANT,
            ":%s - [0:0]" % CHAIN,
            "-A %s -j MASQUERADE" % CHAIN,
            "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j %s" % CHAIN,
            "-A POSTROUTING -j %s" % CHAIN,
        )
        table = (
            "table %s ip_masq_agent { chain postrouting { type nat hook postrouting priority 100; masquerade; }; }\n"
        )
        sh("nft", "-f", "-", stdin=table % family)
    done()


def removed() -> None:
    """Nobody masquerades any more."""
    for command in FAMILIES:
        for variant in VARIANTS:
            equal("%s-%s holds nothing of ours" % (command, variant), ours(command, variant), [])
    packets("nothing is masqueraded", dict.fromkeys(("10.99.0.1", "203.0.113.7", "2001:db8:99::1"), "pod"))
    done()


def by_hand() -> None:
    """The agent removes itself."""
    packets("before", {"10.99.0.1": "pod", "203.0.113.7": "node", "2001:db8:99::1": "node"})
    done_ = agent("remove")
    equal("ip-masq-agent remove: exit status", (done_.returncode, done_.stderr), (0, ""))
    check("it says what it removed", "file removed: " + AGENT in done_.stdout, done_.stdout)
    check("it is gone", not os.path.exists(AGENT))
    packets("after", {"10.99.0.1": "pod", "203.0.113.7": "pod", "2001:db8:99::1": "pod"})
    done()


if __name__ == "__main__":
    {"others": others, "leftovers": leftovers, "removed": removed, "by_hand": by_hand}[sys.argv[1]]()
