# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else decides about source addresses in POSTROUTING, and what that does to our promise. Reads, never writes."""

from __future__ import annotations

import typing as t

from .iptables_text import parse_postrouting
from .plan import Plan

_NAT_TARGETS = ("MASQUERADE", "SNAT")
_VERDICTS = ("ACCEPT", "RETURN")


def postrouting_remarks(plan: Plan, accepts: bool) -> t.Iterator[str]:
    """Rules of POSTROUTING that take traffic from our chain, or masquerade what it exempts.

    Marked traffic (kube-proxy, portmap) and rules for a source of their own (container bridges) are not remarked on:
    they are needed, or do not meet the pods.

    :param plan: of an iptables backend; what it leads to is looked at.
    :param accepts: whether exempt traffic meets no later rule.
    """
    before = True
    for rule in parse_postrouting(line for line in plan.after if line.startswith("-A POSTROUTING ")):
        if rule.line == plan.view.jump:
            before = False
        elif "--mark" in rule.words or "-s" in rule.words:
            continue
        elif rule.target in _NAT_TARGETS and (before or not accepts):
            yield _remark(rule.line, before, "it can masquerade what you exempt")
        elif rule.target in _VERDICTS and before:
            yield _remark(rule.line, before, "what it matches never reaches our chain")


def _remark(line: str, before: bool, effect: str) -> str:
    return "a rule %s our jump in POSTROUTING decides about the same traffic (%s): %s. Remove it if it is not meant" % (
        "before" if before else "behind",
        line,
        effect,
    )
