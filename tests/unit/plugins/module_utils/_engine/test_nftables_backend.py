# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which transaction leads from a table to the wanted one; when nftables is chosen. Real tables: tests/kernel."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_backend, nftables_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import ActionKind
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend_choice import choose
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_backend import Nftables, TableState
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_ruleset import from_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nf_tables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support.many_ranges import many_ranges

MANY = many_ranges(40)


@pytest.fixture(autouse=True)
def forty_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan with thousands of ranges takes long."""
    monkeypatch.setattr(nftables_ruleset, "_MANY", 40)


def wanted(**options: t.Any) -> Ruleset:
    """The IPv4 rules of a policy."""
    return from_config(build(dict(options, backend="nftables")), IPV4)


def state(**options: t.Any) -> TableState:
    """The table of a policy, as observed."""
    return TableState(from_ruleset(wanted(**options), IPV4))


def backend() -> Nftables:
    """The backend of a node without nft."""
    return Nftables(lambda *_words, **_more: Outcome(1, "", ""), IPV4, None)


def kinds(plan: t.Any) -> t.List[t.Set[int]]:
    """What is done in each step."""
    return [{change.kind & 0xFF for change in step.changes} for step in plan.transaction]


def test_nothing_is_written_where_nothing_differs() -> None:
    plan = backend().plan(state(), wanted())
    assert (plan.actions, plan.transaction) == ((), ())
    assert plan.before == plan.after == plan.view.rules
    assert plan.view.ruleset == plan.found.ruleset == wanted()


def test_a_new_set_is_complete_before_a_rule_asks_it() -> None:
    first, second = kinds(backend().plan(TableState(None), wanted()))
    assert first == {nf_tables.NEW_TABLE, nf_tables.NEW_SET, nf_tables.NEW_ELEMENT}
    assert second == {nf_tables.NEW_CHAIN, nf_tables.NEW_RULE}


ELEMENTS, RULES = {nf_tables.DELETE_ELEMENT, nf_tables.NEW_ELEMENT}, {nf_tables.DELETE_RULE, nf_tables.NEW_RULE}


@pytest.mark.parametrize(
    "before, after, touched",
    [
        ({}, {"non_masquerade_cidrs": ["10.0.0.0/8"]}, ELEMENTS),
        ({}, {"exemption": "enforce"}, {*RULES, nf_tables.NEW_CHAIN}),
        ({"exemption": "enforce"}, {}, {*RULES, nf_tables.DELETE_CHAIN}),
        ({}, {"random_fully": False}, RULES),
        ({}, {"to_ports": "1024-2048"}, RULES),
        ({}, {"non_masquerade_cidrs": ["10.0.0.0/9"], "to_ports": "1024-2048"}, {*ELEMENTS, *RULES}),
        ({"non_masquerade_cidrs": MANY}, {"non_masquerade_cidrs": MANY[1:]}, ELEMENTS),
    ],
    ids=str,
)
def test_a_table_is_changed_in_place_and_only_where_it_differs(
    before: t.Dict[str, t.Any], after: t.Dict[str, t.Any], touched: t.Set[int]
) -> None:
    assert kinds(backend().plan(state(**before), wanted(**after))) == [touched]


def test_what_is_foreign_goes_with_the_table() -> None:
    table = state().listed
    assert table is not None
    plan = backend().plan(TableState(table._replace(foreign=("chain mine",))), wanted())
    assert [(action.kind, action.rule) for action in plan.actions] == [(ActionKind.FOREIGN_PART_REMOVED, "chain mine")]
    assert "    chain mine" in plan.before and "    chain mine" not in plan.after
    (step,) = plan.transaction
    assert [change.kind & 0xFF for change in step.changes[:2]] == [nf_tables.DELETE_TABLE, nf_tables.NEW_TABLE]


def test_more_than_a_hundred_ranges_are_reported_as_a_count() -> None:
    many = ["10.%d.0.0/16" % (2 * i) for i in range(101)]
    actions = backend().plan(state(), wanted(non_masquerade_cidrs=many, cidr_limit=101)).actions
    told = [(action.action, action.rule) for action in actions]
    assert ("ranges added", "101 ranges") in told
    assert ("range removed", "172.16.0.0/12") in told


def test_networks_around_ranges_are_not_reported_as_exempt() -> None:
    other = {"non_masquerade_cidrs": [*MANY, "11.0.0.0/24"]}
    assert [action.rule for action in backend().plan(state(non_masquerade_cidrs=MANY), wanted(**other)).actions] == [
        "11.0.0.0/24",
        "10.0.0.0/8 from set exempt_outline",
        "10.0.0.0/7 to set exempt_outline",
    ]


class TestChoice:
    """When ``backend: auto`` means nftables."""

    @pytest.fixture
    def node(self, tmp_path: t.Any, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., Node]:
        """Makes a node that has these programs, on a kernel that has these extensions."""

        def make(*programs: str, has: t.Callable[[str], t.Optional[bool]] = lambda name: True) -> Node:
            for name in programs:
                (tmp_path / name).touch(mode=0o755)

            def run(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
                assert argv[1:] == ["--version"] or "-S" in argv, argv
                name = argv[0].rsplit("/", 1)[1]
                says = "nftables v1.1.3 (Commodore)" if name == "nft" else "iptables v1.8.11 (nf_tables)"
                return Outcome(0, says, "") if argv[1:] == ["--version"] else Outcome(1, "", "")

            return Node(run, has_extension=lambda _family, _kind, name, _revision: has(name))

        monkeypatch.setattr(
            "ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process.search_path",
            lambda: str(tmp_path),
        )
        return make

    IPTABLES = ("iptables-nft", "iptables-nft-restore")

    @pytest.mark.parametrize(
        ("programs", "has", "asked", "chosen"),
        [
            (("nft", *IPTABLES), True, ["auto"], "iptables_nft"),
            (("nft", *IPTABLES), None, ["auto"], "iptables_nft"),  # the kernel does not answer
            (("nft", *IPTABLES), False, ["iptables_nft"], "iptables_nft"),
            (("nft", *IPTABLES), True, ["auto", "enforce"], "nftables"),
            (IPTABLES, True, ["auto", "enforce"], "nftables"),
            (IPTABLES, True, ["nftables", "return"], "nftables"),
            (("nft",), True, ["auto"], "nftables"),
            ((), True, ["auto"], "nftables"),
        ],
    )
    def test_what_is_chosen(
        self,
        node: t.Callable[..., Node],
        programs: t.Sequence[str],
        has: t.Optional[bool],
        asked: t.Sequence[str],
        chosen: str,
    ) -> None:
        assert choose(node(*programs, has=lambda name: has), *asked).name == chosen

    def test_the_version_of_nft_is_read(self, node: t.Callable[..., Node]) -> None:
        tool = node("nft").tool("nft")
        assert tool is not None and tool.version_text == "1.1.3"

    @pytest.mark.parametrize("missing", ["MASQUERADE", "addrtype", "comment"])
    def test_where_the_kernel_lacks_what_iptables_needs(self, node: t.Callable[..., Node], missing: str) -> None:
        assert choose(node("nft", *self.IPTABLES, has=lambda name: name != missing), "auto").name == "nftables"

    def test_a_kernel_without_nf_tables_is_reported(
        self, node: t.Callable[..., Node], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nftables_backend, "generation", lambda: None)
        with pytest.raises(NodeError, match="backend nftables is not available on this node: its kernel must have"):
            choose(node("nft"), "nftables")
        with pytest.raises(NodeError, match="install the package iptables"):
            choose(node("nft"), "auto")
