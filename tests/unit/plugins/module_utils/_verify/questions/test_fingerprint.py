# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes the fingerprint of a node; tests/kernel/test_verify_again.py does it on a node."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import Match
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import xtables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.ipsets import IpSet
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.neighbours import Neighbours
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.node_state import NodeState
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import Unseen
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions.fingerprint import fingerprint
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.packet_policy import (
    NODE,
    Policy,
    Promise,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.ways import Declared
from support import nft_messages as nft
from support import rule_shapes as shapes


def _legacy(name: str) -> t.Tuple[xtables.XtTable, ...]:
    """A table that has the name of an extension."""
    return (xtables.XtTable(IPV4, "nat", 0, (), 0, name.encode().ljust(29, b"\0")),)


def _ipset(*attributes: bytes) -> t.Tuple[IpSet, ...]:
    return (IpSet("s", "hash:ip", 0, shapes.netlink.nest(7, *attributes), ()),)


_POLICY = Policy({IPV4: (Declared(Match(), Promise(NODE)),)})
_STATE = NodeState(
    links=shapes.LINKS,
    routing=shapes.routing(),
    neighbours=Neighbours({}, {}),
    settings={"ipv4/conf/all/forwarding": "1"},
    sets=_ipset(),
    tables=(),
    legacy=(),
    services="",
    unseen=(),
)
#: Something else for each part of a state.
_OTHERS: t.Dict[str, t.Any] = {
    "links": shapes.LINKS[:-1],
    "routing": shapes.routing(2),
    "neighbours": Neighbours({}, {b"\2\0\0\0\0\1": 3}),
    "settings": {"ipv4/conf/all/forwarding": "0"},
    "sets": (),
    "tables": (nft.table(nft.IP, "t", {"c": ("nat", 4, 100)}),),
    "services": "-A -t 10.96.0.1:443 -s rr\n",
    "unseen": (Unseen("ebpf", "a program"),),
}


@pytest.mark.parametrize("part", _OTHERS)
def test_every_part_of_a_state_counts(part: str) -> None:
    changed = _STATE._replace(**{part: _OTHERS[part]})
    assert None is not fingerprint(_STATE, _POLICY, "1") != fingerprint(changed, _POLICY, "1") is not None


def test_policy_and_program_count() -> None:
    marks = {
        fingerprint(_STATE, _POLICY, "1"),
        fingerprint(_STATE, _POLICY, "2"),
        fingerprint(_STATE, Policy({IPV4: (Declared(Match(), None),)}), "1"),
        fingerprint(_STATE, _POLICY._replace(pods=(nft.span("10.0.0.0/8"),)), "1"),
    }
    assert len(marks) == 4


@pytest.mark.parametrize("rules, same", [([("c", [nft.update("s")])], True), ([], False)])
def test_elements_count_unless_rules_add_them(rules: t.Any, same: bool) -> None:
    marks = set()
    for address in ("192.0.2.1", "192.0.2.2"):
        table = nft.table(nft.IP, "t", {}, rules, {"s": [nft.element(nft.address(address))]})
        flags = nft.netlink.network_word(3, 0x20)  # NFT_SET_EVAL: rules may add elements
        table = table._replace(sets=(nft.netlink.text(1, "t") + nft.netlink.text(2, "s") + flags,))
        marks.add(fingerprint(_STATE._replace(tables=(table,)), _POLICY, "1"))
    assert len(marks) == (1 if same else 2)


@pytest.mark.parametrize(
    "timed",
    [
        {"legacy": _legacy("time")},
        {"sets": _ipset(shapes.netlink.network_word(6, 60))},
    ],
)
def test_what_time_changes_has_none(timed: t.Dict[str, t.Any]) -> None:
    assert fingerprint(_STATE._replace(**timed), _POLICY, "1") is None
