# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node before and after a boot: ``check.py before``, ``check.py after``, ``check.py packets``."""

from __future__ import annotations

import json
import os
import socket
import sys

from checks import (
    BOOT_SERVICE,
    CONFIG,
    JUMP,
    LEGACY,
    NATIVE,
    SERVICE,
    TIMER,
    agent,
    check,
    check_rules,
    done,
    equal,
    eventually,
    interval,
    ours,
    packets,
    remembered,
    sh,
    shown,
    status,
    write,
)

FIREWALL = "netfilter-persistent.service" if LEGACY else "nftables.service"
#: The first outlives a boot, the second does not.
MEMORY = "/var/lib/before-the-boot.json"
MARK = "/run/before-the-boot"
#: One node has a broken configuration when it boots.
BROKEN = socket.gethostname().endswith("trixie")
UNITS = (TIMER, "ip-masq-agent.path")
#: What the stand-ins of prepare.yml write.
KUBELET_SAW = "/var/lib/kubelet-saw"
MODPROBE_CALLS = "/var/lib/modprobe-calls"


def before() -> None:
    """What there is before."""
    check_rules("before the boot")
    packets("before the boot")
    eventually("the timer's interval", lambda: interval() == "45s", seen=interval)
    if BROKEN:
        write(CONFIG, '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}')
        eventually("the configuration is broken", lambda: remembered()["config_errors"] == 1)
    with open(MARK, "w", encoding="utf-8"):
        pass
    with open(MEMORY, "w", encoding="utf-8") as memory:
        json.dump({"rules": ours(), "repaired": remembered()["drift_repaired"]}, memory)


def after() -> None:
    """What there is after, with nobody but systemd to bring it back."""
    check("the node was booted", not os.path.exists(MARK))
    with open(MEMORY, encoding="utf-8") as handle:
        memory = json.load(handle)
    eventually("the rules are back", lambda: ours() == memory["rules"], seen=lambda: str(ours()))
    check_rules("after the boot")
    for unit in UNITS:
        equal("%s is active" % unit, shown(unit, "ActiveState")["ActiveState"], "active")
    # Its drop-in lay in /run: the first sync brought it back.
    eventually("the timer's interval", lambda: interval() == "45s", seen=interval)
    report = status()
    equal("in sync", report["in_sync"], True)
    if BROKEN:
        equal("the last valid policy outlived the boot: exit status", report["exit status"], 78)
        check("status names the problem", "10.0.0.1/8" in agent("status").stdout)

    # Had the first sync come before the firewall's unit, its rules would have been lost, and put back once more.
    equal("the rules were put back once", remembered()["drift_repaired"], memory["repaired"] + 1)
    equal("%s ran" % FIREWALL, shown(FIREWALL, "ActiveState")["ActiveState"], "active")
    check("the sync of the boot is ordered after it", FIREWALL in shown(BOOT_SERVICE, "After")["After"].split())
    check("and before the kubelet", "kubelet.service" in shown(BOOT_SERVICE, "Before")["Before"].split())

    equal("the kubelet runs", shown("kubelet.service", "ActiveState")["ActiveState"], "active")
    saw = read(KUBELET_SAW)
    ours_ = "table ip ip_masq_agent {" if NATIVE else JUMP.replace("-m addrtype ! --dst-type LOCAL ", "")
    check("the rules were there when the kubelet started", ours_ in saw, saw)
    needs = shown("kubelet.service", "Requires", "Wants", "BindsTo", "Requisite")
    check("the kubelet needs nothing of ours", "ip-masq-agent" not in " ".join(needs.values()), needs)
    for unit in (SERVICE, *UNITS, "ip-masq-agent-firewall@%s" % FIREWALL):
        needs = shown(unit, "After", "Requires", "Wants", "RequiredBy", "WantedBy", "Conflicts")
        check("%s needs nothing of the kubelet" % unit, "kubelet" not in " ".join(needs.values()), needs)
    log = sh("journalctl", "--boot", "--no-pager", "--quiet", "--output=cat", "_PID=1")
    check("no unit was dropped for an ordering cycle", "ordering cycle" not in log, log)

    equal("modules that are there are not loaded", read(MODPROBE_CALLS), "")
    equal("no unit failed but for the broken configuration", failed_units(), [SERVICE] if BROKEN else [])


def read(path: str) -> str:
    """What a file holds; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""


def failed_units() -> list[str]:
    """Units that systemd calls failed."""
    lines = sh("systemctl", "list-units", "--failed", "--plain", "--no-legend").splitlines()
    return [line.split()[0] for line in lines]


if __name__ == "__main__":
    if sys.argv[1] == "before":
        before()
    elif sys.argv[1] == "after":
        after()
    else:
        packets("after the boot")
    done()
