# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ip_masq_agent_info returns of nodes that do not exist: one, or a fleet."""

from __future__ import annotations

import copy
import typing as t

REPORT: t.Dict[str, t.Any] = {
    "version": "0.1.0",
    "in_sync": True,
    "differs": [],
    "errors": [],
    "notes": [],
    "config": {"sources": ["/etc/ip-masq-agent/config"], "problem": None},
    "policy_hash": "44136fa355b3",
    "backend": {"name": "iptables_nft", "version": "1.8.9"},
    "last_error": None,
    "last_verification": None,
    "failing": False,
    "drift_repaired": 0,
}
RULE = '-A IP-MASQ-AGENT -d 10.0.0.0/8 -m comment --comment "ip-masq-agent: exempt, keeps its address" -j RETURN'
MISSING = {"family": "ipv4", "backend": "iptables_nft", "action": "rule added", "rule": RULE}
PROBLEM = "/etc/ip-masq-agent/config: nonMasqueradeCIDRs: '10.0.0.1/8' has host bits set"


def asked(report: t.Optional[t.Mapping[str, t.Any]] = None, **found: t.Any) -> t.Dict[str, t.Any]:
    """Return what the module returns of a node that is well, but for this."""
    base = {"installed": True, "problems": [], "pending": [], "differs": [], "service_failure": ""}
    return {**base, "report": {**copy.deepcopy(REPORT), **(report or {})}, **found}


def verified(conflicts: int = 0) -> t.Dict[str, t.Any]:
    """Return a last verification, of 2026-11-21."""
    summary = "31 kinds of packets, all match the policy"
    if conflicts:
        summary = "10.8.0.0/16 sees the node's address, not the pod's own address (rule of Calico); "
        summary += "remedy: set natOutgoing: false"
    return {
        "time": 1795233600.0,
        "verified": not conflicts,
        "questions": 31,
        "conflicts": conflicts,
        "summary": summary,
    }


def large_fleet() -> t.Dict[str, t.Dict[str, t.Any]]:
    """Return 3,000 nodes, in every state: nine of ten are in sync."""
    nodes = {"node%04d.fra1.example" % number: _answer(number) for number in range(1, 3001)}
    nodes.update({"edge-%d" % number: asked({"version": "0.0.9"}) for number in (1, 2, 3, 7)})
    return nodes


def _answer(number: int) -> t.Dict[str, t.Any]:
    backend = {"name": "nftables", "version": "1.0.9"} if number % 7 == 0 else REPORT["backend"]
    own: t.Dict[str, t.Any] = {"last_verification": verified(), "backend": backend}
    own["policy_hash"] = "%012x" % (number // 100) if 2000 < number <= 2900 else REPORT["policy_hash"]
    if 31 <= number <= 42:
        return {"unreachable": True, "msg": "Failed to connect to the host via ssh: connect to host 10.4.%d.2" % number}
    if number in (77, 901, 2650):
        problem = PROBLEM.replace("10.0.0.1", "10.0.0.%d" % (number % 250))
        return asked({**own, "config": {"sources": [], "problem": problem}})
    if 700 <= number < 755:
        return asked({**own, "in_sync": False, "differs": [MISSING, MISSING]})
    if number % 97 == 0:
        lines = ["timed out after lock_timeout waiting for the xtables lock, held by kube-proxy (pid %d)" % number]
        return asked({**own, "failing": True, "last_error": {"time": 1.0, "lines": lines}})
    if number % 61 == 0:
        return asked(own, differs=["nonMasqueradeCIDRs", "resyncInterval"])
    if 1500 <= number < 1520:
        return {"installed": False}
    if 1600 <= number < 1605:
        return {"failed": False, "msg": "/bin/sh: 1: /usr/bin/python3: not found"}
    if number == 1700:
        return {"installed": True, "problems": ["ip-masq-agent status: requires root"], "pending": [], "differs": []}
    if number % 113 == 0:
        return asked(own, pending=["start: ip-masq-agent.timer"])
    if 1200 <= number < 1296:
        return asked({**own, "last_verification": verified(conflicts=1)})
    if number == 1300:
        return asked({**own, "units": {"differ": {"ip-masq-agent.timer": ["stopped"]}}}, pending=["start: it"])
    if number == 1301:
        return asked({**own, "last_verification": dict(verified(), verified=None)})
    return asked({**own, "drift_repaired": int(number % 500 == 0)})


def documented_fleet(version: str) -> t.Dict[str, t.Dict[str, t.Any]]:
    """Return the 3,000 nodes whose report is in docs/fleets.md.

    :param version: of the collection.
    """
    return {"node%04d" % number: _documented(number, version) for number in range(1, 3001)}


def documented_groups(number: int) -> t.List[str]:
    """Return the groups of one of these nodes."""
    return ["kube_node", "rack_a" if number <= 1500 else "rack_b" if number <= 2000 else "rack_c"]


def _documented(number: int, version: str) -> t.Dict[str, t.Any]:
    own: t.Dict[str, t.Any] = {"version": version, "last_verification": verified()}
    if number > 2000:
        own["policy_hash"] = "8f14e45fceff"
    if 31 <= number <= 42:
        message = "Failed to connect to the host via ssh: ssh: connect to host 10.4.31.%d port 22: Connection timed out"
        return {"unreachable": True, "msg": message % (number - 29)}
    if number in (77, 901, 2650):
        return asked({**own, "config": {"sources": [], "problem": PROBLEM}})
    if 700 <= number < 755:
        return asked({**own, "in_sync": False, "differs": [MISSING, MISSING]})
    if number >= 2997:
        written = ["file written: /usr/local/%s" % name for name in ("sbin/ip-masq-agent", "lib/ip-masq-agent/DIGEST")]
        return asked({**own, "version": "0.0.9"}, pending=written)
    if 1200 <= number < 1292:
        return asked({**own, "last_verification": verified(conflicts=1)})
    return asked(own)
