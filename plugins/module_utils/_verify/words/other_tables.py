# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains of other programs that packets of pods can meet: those of libvirt, Incus, podman for guests alone are none."""

from __future__ import annotations

import functools
import typing as t

from ..._engine import other_chains
from ..._engine.iptables_syntax import NAT
from ..._engine.listed_chains import ListedChains
from ..._errors import NodeError
from ..._policy.policy import Config
from ..._rules import nft_rules, xt_tables
from ..._rules.referenced_objects import Known
from ..._rules.rules import DROP, GOTO, JUMP, MARK, SOURCE, Match, RuleTable, does_unknown
from ..._system import intervals, netlink, nf_tables, nfnetlink
from ..._system.backend_names import IPTABLES_LEGACY
from ..._system.families import Family
from ..routing import senders
from ..routing.senders import Sender

#: NFPROTO_INET
_INET = 1
#: Chains, and entries of a table of iptables-legacy, beyond which rules are not read for a note.
_MOST_CHAINS, _MOST_ENTRIES = 20, 2000


def find_other_chains(config: Config, listed: t.Optional[ListedChains] = None) -> t.List[str]:
    """Return what ``other_chains.find_other_chains`` does, without nat chains in which no rule is about pods.

    :param listed: the chains, where others ask for them too.
    """
    pods = functools.lru_cache(maxsize=None)(functools.partial(_senders, config))

    def concerns(family: Family, table: str, chain: str, inet: bool) -> bool:
        try:
            found = nf_tables.read_one(_INET if inet else family.number, table, [chain])[0]
            rules = nft_rules.read(found, Known(family)) if found else None
            return bool(rules is None or rules.unknown or _concerns(rules, chain, pods(family)))
        except NodeError:
            return True

    def leads(variant: str, family: Family, chain: str) -> bool:
        if chain == config.masq_chain:
            return False
        try:
            rules = _of_iptables(known, variant, family, chain)
            return rules is None or _concerns(rules, chain, pods(family))
        except NodeError:
            return True

    known = listed or ListedChains(base_only=True)
    return other_chains.find_other_chains(known, config.families, concerns, leads)


def _of_iptables(listed: ListedChains, variant: str, family: Family, chain: str) -> t.Optional[RuleTable]:
    """Return a chain of the nat table and those that it leads to; None where too much would have to be read."""
    if variant == IPTABLES_LEGACY:
        whole = listed.legacy(family)
        return xt_tables.read(whole, Known(family)) if whole and whole.number_of_entries <= _MOST_ENTRIES else None
    named = netlink.text(nf_tables.TABLE, NAT)
    found: t.List[str] = []
    bodies: t.List[bytes] = []
    wanted = [chain]
    rules: t.Optional[RuleTable] = None
    while wanted and len(found) < _MOST_CHAINS:
        for one in wanted:
            place = named + netlink.text(nf_tables.RULE_CHAIN, one)
            for rule in nfnetlink.rules(family.number, NAT, one):
                bodies.append(place + netlink.attribute(nf_tables.RULE_EXPRESSIONS, rule.expressions))
        found += wanted
        chains = tuple(named + netlink.text(nf_tables.CHAIN_NAME, one) for one in found)
        table = nf_tables.NftTable(family.number, NAT, named, chains, rules=tuple(bodies))
        rules = nft_rules.read(table, Known(family))
        if rules is None or rules.unknown:
            return None
        actions = (branch.action for some in rules.chains.values() for rule in some for branch in rule.branches)
        leads = dict.fromkeys(one.chain for one in actions if one.kind in (JUMP, GOTO))
        wanted = [one for one in leads if one not in rules.chains]
    return None if wanted else rules


def _senders(config: Config, family: Family) -> t.List[Sender]:
    """Return the pods that the policy is about; without a link where the routes of the node do not show it.

    :raises NodeError: the routes cannot be read.
    """
    found = senders.senders(senders.read_network(), family, config.source_cidrs)
    mine = [one for one in config.source_cidrs if one.version == family.version]
    return found or [Sender(intervals.of_networks(mine) if mine else ((0, family.highest),), "")]


def _concerns(table: RuleTable, chain: str, pods: t.Sequence[Sender]) -> bool:
    """Return whether a rule of a chain, or of one that it leads to, may translate or drop packets of pods."""
    return any(_meets(table, chain, one, frozenset()) for one in pods)


def _meets(table: RuleTable, chain: str, pod: Sender, above: t.FrozenSet[str]) -> bool:
    if chain in table.base and table.base[chain].drops:
        return True
    for rule in table.chains.get(chain, ()):
        for branch in rule.branches:
            inside = _matched(branch.match, pod)
            if inside is None:
                continue
            kind, target = branch.action.kind, branch.action.chain
            if kind in (SOURCE, DROP) or does_unknown(rule):
                return True
            if kind in (JUMP, GOTO) and target not in above and _meets(table, target, inside, above | {chain}):
                return True
    return False


def _matched(match: Match, pod: Sender) -> t.Optional[Sender]:
    """Return the pods that a match can be about; None if there are none, or it asks for a mark or for their bridge."""
    inside = pod.addresses if match.source is None else intervals.intersection(pod.addresses, match.source)
    of_others = any(senders.is_of_others(names) for names in match.outgoing)
    marked = any(test.subject == MARK and not intervals.contains(test.allowed, 0) for test in match.tests)
    comes = not pod.link or all(names.match(pod.link) for names in match.incoming)
    return pod._replace(addresses=inside) if inside and comes and not marked and not of_others else None
