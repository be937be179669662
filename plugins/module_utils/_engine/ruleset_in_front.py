# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of other programs in front of the jump, as rulesets: what they decide, our rules do not.

Evaluated are rules of POSTROUTING itself that end the walk of a packet. Rules for marked traffic (kube-proxy, portmap)
and the chains that rules lead to are left out.
"""

from __future__ import annotations

import re
import typing as t

from .._policy.values import EXEMPT, SKIP
from .._system.families import Family
from .._system.printable import shown
from .backend import Former
from .iptables_syntax import FINAL_TARGETS, PostroutingRule, parse_rule
from .other_rules import is_for_marked
from .ruleset import EVERYTHING, AnyRule, Guard, OwnRule, Ruleset
from .ruleset_of_rules import from_rules

#: A condition that is evaluated when it is inverted.
_INVERTED = r" ! (-[sdo] \S+)"


def front(before: t.Sequence[PostroutingRule], after: t.Sequence[PostroutingRule], family: Family) -> Former:
    """Return what is in front of the jump before a change and still is afterwards.

    :param before: the rules in front of it before the change. :param after: after it.
    """
    there = [rule.line for rule in after]
    rulesets, unread = [], []
    for rule in before:
        if rule.target not in FINAL_TARGETS or rule.line not in there or is_for_marked(rule):
            continue
        ruleset = _as_ruleset(rule, family)
        if ruleset is None:
            unread.append(shown(rule.line))
        else:
            rulesets.append(ruleset)
    return Former(front=tuple(rulesets), unread=tuple(unread))


def _as_ruleset(rule: PostroutingRule, family: Family) -> t.Optional[Ruleset]:
    """Return the ruleset of one rule. Return None if it has conditions that a ruleset does not have."""
    if not rule.whole or rule.unprintable:
        return None
    conditions = " ".join(["", *rule.words])
    inverted = re.findall(_INVERTED, conditions)
    skipped = [_skip(parse_rule("-A POSTROUTING %s -j RETURN" % one, family), family) for one in inverted]
    main = parse_rule("-A POSTROUTING" + re.sub(_INVERTED, "", conditions), family)
    if main is None or isinstance(main, Guard) or main.state or None in skipped:
        return None
    if main.kind in (SKIP, EXEMPT):
        # What POSTROUTING returns from meets no rule behind.
        main = main._replace(kind=EXEMPT, network=main.network or EVERYTHING[family], verdict="ACCEPT")
    return from_rules([*(one for one in skipped if one is not None), main])


def _skip(rule: t.Optional[AnyRule], family: Family) -> t.Optional[OwnRule]:
    """Return the rule that leaves the same traffic to later rules."""
    if isinstance(rule, Guard):
        return OwnRule(SKIP, source=rule.source)
    return rule and rule._replace(kind=SKIP, network=None if rule.network == EVERYTHING[family] else rule.network)
