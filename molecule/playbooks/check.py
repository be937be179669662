# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between the collection's playbooks: ``check.py drift``, ``check.py drifted``, ``check.py removed``."""

from __future__ import annotations

import os
import socket
import sys

from checks import (
    AGENT,
    CONFIG,
    NATIVE,
    agent,
    check,
    check_rules,
    done,
    equal,
    eventually,
    flush,
    interval,
    ours,
    packets,
    remembered,
    sh,
    status,
    write,
)

#: What is wrong on which node.
RELEASE = socket.gethostname().rpartition("-")[2]
FLUSHED = RELEASE == "bookworm"
BROKEN = RELEASE == "trixie"


def drift() -> None:
    """Check what the playbooks left, then do damage that is not repaired."""
    check_rules("after the playbooks")
    packets("after the playbooks")
    # The first node refused the policy that came with a new interval.
    wanted = "1min" if RELEASE == "bullseye" else "5min"
    eventually("the interval: %s" % wanted, lambda: interval() == wanted, seen=interval)
    if FLUSHED:
        sh("systemctl", "stop", "ip-masq-agent.timer")
        flush()
    if BROKEN:
        write(CONFIG, '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}')
        eventually("the configuration is broken", lambda: remembered()["config_errors"] == 1)


def drifted() -> None:
    """The damage is as it was."""
    flushed = 0 if NATIVE else 1  # the jump is left, where there is one
    equal("flushed, or not", len(ours()), flushed if FLUSHED else 6)
    equal("status: exit status", agent("status").returncode, 4 if FLUSHED else 78 if BROKEN else 0)
    if BROKEN:
        check("the last valid policy is active", status()["in_sync"])


def removed() -> None:
    """Nothing is there."""
    equal("rules", ours(), [])
    check("the program is gone", not os.path.exists(AGENT))
    packets("nothing is masqueraded", {"10.99.0.1": "pod", "203.0.113.7": "pod"})


if __name__ == "__main__":
    {"drift": drift, "drifted": drifted, "removed": removed}[sys.argv[1]]()
    done()
