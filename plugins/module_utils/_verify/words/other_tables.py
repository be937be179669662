# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains of other programs that packets of pods can meet: those of libvirt, Incus, podman for guests alone are none.

Named are chains of other programs that a POSTROUTING of iptables jumps to, and nat chains at the hook postrouting in
other tables of nftables, unless no rule in them is about pods. Reads, never writes, and creates no table.
"""

from __future__ import annotations

import contextlib
import functools
import typing as t

from ..._engine import rule_owners
from ..._engine.iptables_syntax import NAT
from ..._engine.listed_chains import ListedChains
from ..._engine.nftables_syntax import TABLE as MANAGED_TABLE
from ..._errors import NodeError
from ..._policy.policy import Config
from ..._rules import nft_rules, xt_tables
from ..._rules.referenced_objects import Known
from ..._rules.rules import DROP, GOTO, JUMP, MARK, SOURCE, Match, RuleTable, does_unknown
from ..._system import intervals, nf_tables
from ..._system.backend_names import IPTABLES_LEGACY, VARIANTS
from ..._system.families import Family
from ..._system.nfnetlink import NftChain
from ..._system.printable import shown
from ..routing import guest_networks, senders
from ..routing.senders import Sender

#: NFPROTO_INET
_INET = 1
#: Chains, and entries of a table of iptables-legacy, beyond which rules are not read for a note.
_MOST_CHAINS, _MOST_ENTRIES = 20, 2000

_EFFECT = "which may masquerade exempt traffic (its rules were not evaluated)"
_DROPS = "; its policy drops traffic that they do not translate or accept"


def find_other_chains(config: Config, listed: t.Optional[ListedChains] = None) -> t.List[str]:
    """Find such chains, one sentence each. What cannot be read is left out: other steps report that.

    :param listed: the chains, where others ask for them too.
    """
    listed = listed or ListedChains(base_only=True)
    found: t.List[str] = []
    for family in config.families:
        pods = functools.lru_cache(maxsize=None)(functools.partial(_senders, config, family))
        for variant in VARIANTS:
            with contextlib.suppress(NodeError):
                chains = listed.jumps(variant, family, "POSTROUTING")
                found += _jumped_to([one for one in chains if one != config.masq_chain], listed, variant, family, pods)
        with contextlib.suppress(NodeError):
            found += _hooked(listed.nft(family), family, pods)
    return list(dict.fromkeys(found))


def _jumped_to(
    chains: t.Iterable[str], listed: ListedChains, variant: str, family: Family, pods: t.Callable[[], t.List[Sender]]
) -> t.Iterator[str]:
    for chain in chains:
        actor = rule_owners.owner(NAT, chain)
        read = functools.partial(_of_iptables, listed, variant, family, chain)
        if not _is_expected(actor) and _is_about(read, chain, pods):
            program = actor.name if actor.known else "an unknown program"
            place = "%s, %s: POSTROUTING jumps to %s of %s" % (family, variant, shown(chain), program)
            yield "%s, %s" % (place, _EFFECT)


def _hooked(chains: t.Iterable[NftChain], family: Family, pods: t.Callable[[], t.List[Sender]]) -> t.Iterator[str]:
    for base in chains:
        of_iptables = base.family != "inet" and (base.table, base.name) == (NAT, "POSTROUTING")
        mine = not base.hides or base.table == MANAGED_TABLE or of_iptables
        read = functools.partial(_of_nftables, base, family)
        if not (mine or _is_expected(rule_owners.owner(base.table, base.name))) and _is_about(read, base.name, pods):
            names = (base.family, shown(base.table), shown(base.name))
            place = "table %s %s of nftables has the nat chain %s" % names
            yield "%s, %s%s" % (place, _EFFECT, _DROPS if base.drops else "")


def _is_expected(actor: rule_owners.Owner) -> bool:
    """Return whether a program masquerades what must be masqueraded, or is one of ours."""
    return actor.benign or actor.name in rule_owners.LOCAL


def _is_about(read: t.Callable[[], t.Optional[RuleTable]], chain: str, pods: t.Callable[[], t.List[Sender]]) -> bool:
    """Return whether a rule of a chain, or of one that it leads to, may translate or drop packets of pods."""
    try:
        rules = read()
        return rules is None or any(_meets(rules, chain, one, frozenset()) for one in pods())
    except NodeError:
        return True


def _of_nftables(chain: NftChain, family: Family) -> t.Optional[RuleTable]:
    """Return a chain of a hook and those that it leads to; None where that is not known."""
    number = _INET if chain.family == "inet" else family.number
    found = nf_tables.read_one(number, chain.table, [chain.name])[0]
    rules = nft_rules.read(found, Known(family)) if found else None
    return None if rules is None or rules.unknown else rules


def _of_iptables(listed: ListedChains, variant: str, family: Family, chain: str) -> t.Optional[RuleTable]:
    """Return a chain of the nat table and those that it leads to; None where too much would have to be read."""
    if variant == IPTABLES_LEGACY:
        whole = listed.legacy(family)
        return xt_tables.read(whole, Known(family)) if whole and whole.number_of_entries <= _MOST_ENTRIES else None
    found: t.List[str] = []
    wanted = [chain]
    rules: t.Optional[RuleTable] = None
    while wanted and len(found) < _MOST_CHAINS:
        found += wanted
        tables = nf_tables.read({NAT: found}.get)
        table = next((one for one in tables if one.family == family.number), None)
        rules = nft_rules.read(table, Known(family)) if table else None
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
    of_others = any(guest_networks.is_of_others(names) for names in match.outgoing)
    marked = any(test.subject == MARK and not intervals.contains(test.allowed, 0) for test in match.tests)
    comes = not pod.link or all(names.match(pod.link) for names in match.incoming)
    return pod._replace(addresses=inside) if inside and comes and not marked and not of_others else None
