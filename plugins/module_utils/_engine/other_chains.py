# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains of other programs that traffic meets in POSTROUTING besides the managed one.

Named are chains of other programs that a POSTROUTING of iptables jumps to, and nat chains at the hook postrouting in
other tables of nftables that managed traffic can meet. Reads, never writes, and creates no table.
"""

from __future__ import annotations

import typing as t

from .._errors import NodeError
from .._system.backend_names import VARIANTS
from .._system.families import Family
from .._system.printable import shown
from . import rule_owners
from .iptables_syntax import NAT
from .listed_chains import ListedChains
from .nftables_syntax import TABLE as MANAGED_TABLE

_EFFECT = "which may masquerade exempt traffic (its rules were not evaluated)"
_DROPS = "; its policy drops traffic that they do not translate or accept"


def find_other_chains(
    listed: ListedChains,
    families: t.Iterable[Family],
    concerns: t.Callable[[Family, str, str, bool], bool],
    leads: t.Callable[[str, Family, str], bool],
) -> t.List[str]:
    """Find such chains, one sentence each. What cannot be read is left out: other steps report that.

    :param concerns: whether managed traffic can meet a nat chain: family, table, chain, whether the table is inet.
    :param leads: whether it can in a chain of iptables: variant, family, chain.
    """
    found: t.Dict[str, None] = {}
    for family in families:
        for variant in VARIANTS:
            try:
                chains = listed.jumps(variant, family, "POSTROUTING")
            except NodeError:
                continue
            for chain in chains:
                actor = rule_owners.owner(NAT, chain)
                if not _is_expected(actor) and leads(variant, family, chain):
                    program = actor.name if actor.known else "an unknown program"
                    place = "%s, %s: POSTROUTING jumps to %s of %s" % (family, variant, shown(chain), program)
                    found["%s, %s" % (place, _EFFECT)] = None
        try:
            base_chains = [one for one in listed.nft(family) if one.hides]
        except NodeError:
            continue
        for base in base_chains:
            of_iptables = base.family != "inet" and (base.table, base.name) == (NAT, "POSTROUTING")
            mine = base.table == MANAGED_TABLE or of_iptables
            expected = mine or _is_expected(rule_owners.owner(base.table, base.name))
            if not expected and concerns(family, base.table, base.name, base.family == "inet"):
                names = (base.family, shown(base.table), shown(base.name))
                place = "table %s %s of nftables has the nat chain %s" % names
                found["%s, %s%s" % (place, _EFFECT, _DROPS if base.drops else "")] = None
    return list(found)


def _is_expected(actor: rule_owners.Owner) -> bool:
    """Return whether a program masquerades what must be masqueraded, or is one of ours."""
    return actor.benign or actor.name in rule_owners.LOCAL
