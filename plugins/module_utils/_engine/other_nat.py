# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of other programs in POSTROUTING that match exempt traffic too. Reads, never writes.

Looked at are the POSTROUTING chains of iptables, in both variants, whichever backend holds the managed rules. Chains
that these rules jump to, and native tables that other programs made with nft, are not looked at.
"""

from __future__ import annotations

import typing as t

from .backend import OtherRule
from .iptables_syntax import PostroutingRule, conditions, shown

_NAT_TARGETS = ("MASQUERADE", "SNAT")
_VERDICTS = ("ACCEPT", "RETURN")


def other_rules(postrouting: t.Sequence[PostroutingRule], jump: int) -> t.Tuple[OtherRule, ...]:
    """The rules of one POSTROUTING that decide about traffic which the managed chain decides about as well.

    Rules for marked traffic (kube-proxy, portmap) and for a source of their own (container bridges) are left out: they
    are needed, or do not match the pods' traffic.

    :param jump: index of the jump to the managed chain; negative where there is none.
    """
    return tuple(
        OtherRule(
            shown(rule.line),
            masquerades=rule.target in _NAT_TARGETS,
            before=jump < 0 or index < jump,
            partial=not rule.whole and not rule.unprintable,
        )
        for index, rule in enumerate(postrouting)
        if rule.target in _NAT_TARGETS + _VERDICTS and _is_general(rule)
    )


def _is_general(rule: PostroutingRule) -> bool:
    return "--mark" not in rule.words and not {"-m mark", "-s"} & set(conditions(rule.words))


def remarks(rules: t.Iterable[OtherRule], exemption: str) -> t.Iterator[str]:
    """What rules in the same POSTROUTING as the jump do to managed traffic.

    :param exemption: with C(return), exempt traffic goes on to the rules after the jump.
    """
    for rule in rules:
        where = "before" if rule.before else "after"
        if rule.masquerades and (rule.before or exemption == "return"):
            yield _remark("a POSTROUTING rule %s the jump" % where, rule, "it can masquerade exempt traffic")
        elif rule.before and not rule.masquerades:
            yield _remark("a POSTROUTING rule before the jump", rule, "matching traffic bypasses the managed chain")


def remarks_elsewhere(rules: t.Iterable[OtherRule], backend: str, exemption: str) -> t.Iterator[str]:
    """What rules in POSTROUTING of another backend do to exempt traffic: it meets them too, unless enforced."""
    for rule in rules:
        if rule.masquerades and exemption != "enforce":
            yield _remark("a POSTROUTING rule of %s" % backend, rule, "it can masquerade exempt traffic")


def _remark(subject: str, rule: OtherRule, effect: str) -> str:
    hidden = "; it has conditions that iptables does not print" if rule.partial else ""
    return "%s also matches this traffic (%s%s): %s. Remove the rule unless it is intended" % (
        subject,
        rule.rule,
        hidden,
        effect,
    )
