# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of other programs in POSTROUTING that match exempt traffic too, and its policy. Reads, never writes.

Looked at are the POSTROUTING chains of iptables, in both variants, whichever backend holds the managed rules. Chains
that these rules jump to, and native tables that other programs made with nft, are not looked at.
"""

from __future__ import annotations

import contextlib
import ipaddress
import typing as t

from .._policy.values import Network
from .._system.printable import shown
from .iptables_syntax import NAT, PostroutingRule, conditions
from .rule_owners import owner

_NAT_TARGETS = ("MASQUERADE", "SNAT")
_VERDICTS = ("ACCEPT", "RETURN")
_DROPS = (
    "the policy of %s is DROP: traffic that no rule translates or accepts is dropped there. Set the policy to ACCEPT "
    "unless it is intended"
)
_REMARK = "a POSTROUTING rule %s also matches this traffic (%s%s): %s. A verification names the program and the remedy"


class Remark(t.NamedTuple):
    """What a rule does to managed traffic; with a source, if pods have an address of it."""

    text: str
    source: t.Optional[Network] = None


def remarks(
    postrouting: t.Sequence[PostroutingRule], jump: int, policy: str, exemption: str, backend: str = ""
) -> t.Iterator[Remark]:
    """Return what the rules of one POSTROUTING do to traffic that the managed chain decides about as well.

    Rules for marked traffic (kube-proxy, portmap), and those that Docker needs for its own containers and packets of
    the node, are left out: they are needed, or do not match the pods' traffic. Rules for all other marks do match it,
    and rules for a source do if pods have it.

    :param jump: index of the jump to the managed chain; negative if there is none.
    :param policy: of POSTROUTING, as iptables prints it.
    :param exemption: with ``return``, exempt traffic goes on to the rules after the jump.
    :param backend: whose POSTROUTING it is, if not that of the jump: exempt traffic meets it, unless enforced.
    """
    if policy == "DROP":
        yield Remark(_DROPS % ("POSTROUTING of " + backend if backend else "POSTROUTING"))
    for index, rule in enumerate(postrouting):
        if rule.target not in _NAT_TARGETS + _VERDICTS or is_for_marked(rule) or _is_needed(rule):
            continue
        before = jump < 0 or index < jump
        where = "of " + backend if backend else "%s the jump" % ("before" if before else "after")
        if rule.target in _NAT_TARGETS and (exemption != "enforce" if backend else before or exemption == "return"):
            effect = "it can masquerade exempt traffic"
        elif rule.target in _VERDICTS and before and not backend:
            effect = "matching traffic bypasses the managed chain"
        else:
            continue
        hidden = "" if rule.whole or rule.unprintable else "; it has conditions that iptables does not print"
        yield Remark(_REMARK % (where, shown(rule.line), hidden, effect), _source(rule))


def _is_needed(rule: PostroutingRule) -> bool:
    actor = owner(NAT, "POSTROUTING", rule.line)
    return actor.benign or actor.of_node


def _source(rule: PostroutingRule) -> t.Optional[Network]:
    """Return the source that a rule is for; None if it is for many, or for one that is no network."""
    for before, word, value in zip(("",) + rule.words, rule.words, rule.words[1:]):
        if word == "-s" and before != "!":
            with contextlib.suppress(ValueError):
                return ipaddress.ip_network(value)
    return None


def is_for_marked(rule: PostroutingRule) -> bool:
    """Return whether a rule matches marked traffic only, or no one can tell which marks it asks for."""
    words = rule.words
    if "--mark" not in words:
        # What iptables does not print may be anything.
        return "-m mark" in conditions(words)
    return any(
        word == "--mark" and _needs_mark(value, before == "!")
        for before, word, value in zip(("",) + words, words, words[1:])
    )


def _needs_mark(mark: str, inverted: bool) -> bool:
    """Return whether the condition excludes packets without a mark."""
    try:
        return (int(mark.partition("/")[0], 0) == 0) == inverted
    except ValueError:
        return True
