# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else decides about source addresses in POSTROUTING, and what that does to our promise. Reads, never writes."""

from __future__ import annotations

import typing as t

from .backend import Plan
from .iptables_syntax import PostroutingRule, conditions, shown

_NAT_TARGETS = ("MASQUERADE", "SNAT")
_VERDICTS = ("ACCEPT", "RETURN")


def postrouting_remarks(plan: Plan, accepts: bool) -> t.Iterator[str]:
    """Rules of POSTROUTING that take traffic from our chain, or masquerade what it exempts.

    Marked traffic (kube-proxy, portmap) and rules for a source of their own (container bridges) are not remarked on:
    they are needed, or do not meet the pods.

    :param plan: of an iptables backend; what it leads to is looked at.
    :param accepts: whether exempt traffic meets no later rule.
    """
    before, behind = plan.around
    for rule in before:
        if _concerns_us(rule) and rule.target in _NAT_TARGETS:
            yield _remark(rule, "before", "it can masquerade what you exempt")
        elif _concerns_us(rule) and rule.target in _VERDICTS:
            yield _remark(rule, "before", "what it matches never reaches our chain")
    for rule in behind:
        if _concerns_us(rule) and rule.target in _NAT_TARGETS and not accepts:
            yield _remark(rule, "behind", "it can masquerade what you exempt")


def _concerns_us(rule: PostroutingRule) -> bool:
    return "--mark" not in rule.words and not {"-m mark", "-s"} & set(conditions(rule.words))


def _remark(rule: PostroutingRule, where: str, effect: str) -> str:
    hidden = "" if rule.whole or rule.unprintable else "; it has conditions that iptables does not print"
    return (
        "a rule %s our jump in POSTROUTING decides about the same traffic (%s%s): %s. Remove it if it is not meant"
        % (
            where,
            shown(rule.line),
            hidden,
            effect,
        )
    )
