# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From one table to another, step by step: what is in force after each step is the old policy or the new one."""

from __future__ import annotations

import errno
import itertools
import re
import subprocess
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_changes, nftables_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_syntax as text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import CommitRefused, Counters, total
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_backend import Nftables, TableState
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.nft_sets import Sets
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink, nf_tables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, Family
from hypothesis import given, settings
from hypothesis import strategies as st
from strange.spaces import Namespace
from support import engine
from support.many_ranges import many_ranges

MANY = many_ranges(40)
#: Policies of different forms: each leads to each.
FORMS: t.Dict[str, t.Dict[str, t.Any]] = {
    "plain": {},
    "other ranges": {"non_masquerade_cidrs": ["10.0.0.0/9"]},
    "sources": {"source_cidrs": ["10.244.0.0/16"]},
    "other sources and ranges": {"source_cidrs": ["10.7.0.0/16"], "non_masquerade_cidrs": ["10.0.0.0/9"]},
    "an interface and other ranges": {"out_interfaces": ["eth0"], "non_masquerade_cidrs": ["10.0.0.0/10"]},
    "a mark and other ranges": {"skip_marks": ["0x7"], "non_masquerade_cidrs": ["10.0.0.0/11"]},
    "an entry": {"rules": [{"action": "exempt", "destinations": ["203.0.113.10/32"]}]},
    "another entry before it": {
        "rules": [
            {"action": "masquerade", "destinations": ["172.20.0.1/32"], "ports": [80]},
            {"action": "exempt", "destinations": ["203.0.113.10/32"]},
        ]
    },
    "a protocol and other ranges": {
        "rules": [{"action": "exempt", "protocols": ["tcp"]}],
        "non_masquerade_cidrs": ["10.0.0.0/12"],
    },
    "enforce": {"exemption": "enforce", "source_cidrs": ["10.8.0.0/16"], "masquerade_cidrs": ["10.9.0.0/16"]},
    "snat": {"snat": [{"address": "192.0.2.7", "source_cidrs": ["10.244.0.0/24"]}]},
    "many ranges": {"non_masquerade_cidrs": MANY},
    "many ranges, others": {"non_masquerade_cidrs": [*MANY[1:], "11.0.0.0/24"]},
    "many ranges, enforced": {"non_masquerade_cidrs": MANY, "exemption": "enforce"},
}
LEAKING: t.Tuple[t.Dict[str, t.Any], ...] = (
    {"leaks": "drop", "source_cidrs": ["10.244.0.0/16"]},
    {"leaks": "drop", "source_cidrs": ["10.244.0.0/16"], "non_masquerade_cidrs": ["10.0.0.0/9"]},
    {"leaks": "drop", "source_cidrs": ["10.0.0.0/8"], "rules": [{"action": "exempt", "protocols": ["udp"]}]},
    {"leaks": "count", "source_cidrs": ["10.244.0.0/16"], "exemption": "enforce"},
    {"source_cidrs": ["10.244.0.0/16"]},
    {},
)
Meaning = t.Dict[str, t.List[str]]


@pytest.fixture(autouse=True)
def forty_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan with thousands of ranges takes long."""
    monkeypatch.setattr(nftables_ruleset, "_MANY", 40)


def wanted(**options: t.Any) -> Ruleset:
    """The IPv4 rules of a policy."""
    return from_config(build(dict(options, backend="nftables")), IPV4)


def backend() -> Nftables:
    """The backend, without nft."""
    return Nftables(_no_program, IPV4, None)


def _no_program(*_words: t.Any, **_more: t.Any) -> t.Any:
    raise AssertionError("a program is started")


def make(**options: t.Any) -> TableState:
    """Have the table of a policy, and return it as observed."""
    it = backend()
    it.commit(it.plan(it.observe(), wanted(**options)).transaction)
    return it.observe()


def listed(state: TableState) -> text.ListedTable:
    """The table that is there."""
    assert state.listed is not None
    return state.listed


def sets() -> t.Dict[str, t.Tuple[t.Tuple[bytes, bytes], ...]]:
    """The elements of all sets that are there, also of those with names for a while, which are foreign."""
    table, _generation = nf_tables.read_one(IPV4.number, text.TABLE, text.CHAINS)
    assert table is not None
    read = Sets(table)
    names = [netlink.name(netlink.attributes(body)[nf_tables.SET_NAME]) for body in table.sets]
    return {name: tuple(sorted((one.first or b"", one.last) for one in read.of(name).elements)) for name in names}


def meaning() -> Meaning:
    """The rules that are there with the elements of the sets in place of their names."""
    elements = sets()
    return {
        chain: [re.sub(r"@(\w+)", lambda found: repr(elements[found[1]]), text.bare(rule)) for rule in rules]
        for chain, rules in listed(backend().observe()).chains
    }


def step(changes: t.Sequence[t.Any]) -> t.Tuple[Meaning, int]:
    """Carry out one step. Return what is in force, and how many asked sets, and the rules, it has changed."""
    before, elements = listed(backend().observe()), sets()
    nf_tables.transact(changes, "a step")
    after, now = listed(backend().observe()), sets()
    asked = set(re.findall(r"@(\w+)", repr(before.chains) + repr(after.chains)))
    changed = [name for name in asked & set(elements) & set(now) if elements[name] != now[name]]
    return meaning(), len(changed) + (not before.same_rules(after))


def refusing(number: int) -> t.Callable[..., None]:
    """Write, but for one transaction."""
    transact, numbers = nf_tables.transact, itertools.count(1)

    def write(changes: t.Any, what: str) -> None:
        if next(numbers) == number:
            raise netlink.KernelError(errno.ENOMEM, what)
        transact(changes, what)

    return write


@pytest.mark.parametrize("new", FORMS)
@pytest.mark.parametrize("old", FORMS)
def test_at_each_step_the_old_or_the_new_policy_is_in_force(old: str, new: str) -> None:
    with Namespace():
        after = (make(**FORMS[new]), meaning())[1]
        before = make(**FORMS[old])
        in_force = [meaning()]
        for one in backend().plan(before, wanted(**FORMS[new])).transaction:
            seen, changed = step(one.changes)
            in_force.append(seen)
            # A packet on its way meets the old rules and the new elements, or those of one set and not of another.
            assert changed <= 1
        assert [found for found in in_force if found not in (in_force[0], after)] == []
        assert in_force[-1] == after and listed(backend().observe()).foreign == ()


@pytest.mark.parametrize("new", LEAKING)
@pytest.mark.parametrize("old", LEAKING)
def test_no_first_packet_is_a_leak_while_the_rules_of_nat_change(old: t.Any, new: t.Any) -> None:
    """It may have met the old rules of nat, and meets the new ones about leaks."""
    lenient = text.bare(text.LENIENT)
    with Namespace():
        after = (make(**new), meaning())[1]
        before = make(**old)
        now = meaning()
        for one in backend().plan(before, wanted(**new)).transaction:
            earlier, (now, _changed) = now, step(one.changes)
            leaks = [found.get(text.LEAKS) for found in (earlier, now)]
            nat = [{name: rules for name, rules in found.items() if name != text.LEAKS} for found in (earlier, now)]
            # Later than a packet meets the new rules of nat, it does not meet old ones about leaks.
            spared = leaks[1] is None or all(rules is None or rules[0] == lenient for rules in leaks)
            assert nat[0] == nat[1] or spared
        assert now == after


@pytest.mark.parametrize("old", [None, FORMS["sources"], LEAKING[0], LEAKING[2]], ids=str)
@pytest.mark.parametrize("new", [FORMS["other sources and ranges"], FORMS["plain"], LEAKING[2], LEAKING[3]], ids=str)
def test_a_step_that_is_refused_leaves_the_old_policy_or_says_that_the_new_one_is_active(
    old: t.Any, new: t.Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for refused in itertools.count(1):
        with Namespace():
            after = (make(**new), meaning())[1]
            nf_tables.transact(backend().plan(backend().observe(), None).transaction[0].changes, "the table")
            before = make(**old) if old is not None else backend().observe()
            it = backend()
            transaction = it.plan(before, wanted(**new)).transaction
            if refused > len(transaction):
                break
            with monkeypatch.context() as patched, pytest.raises(NodeError, match="Cannot allocate memory") as failure:
                patched.setattr(nf_tables, "transact", refusing(refused))
                it.commit(transaction)
            if not isinstance(failure.value, CommitRefused):
                assert refused > 1 and "The new rules are active, in a temporary form" in str(failure.value)
                found = meaning()
                if text.LEAKS in found and found[text.LEAKS][0] == text.bare(text.LENIENT):
                    del found[text.LEAKS][0]
                assert found == after
            else:
                assert refused < 3 and it.observe() == before


@pytest.mark.parametrize("old", [None, *FORMS], ids=str)
def test_undo_puts_back_what_was_there(old: t.Optional[str]) -> None:
    with Namespace():
        before = make(**FORMS[old]) if old else backend().observe()
        after = make(**FORMS["other sources and ranges"])
        it = backend()
        it.commit(it.undo(after, before))
        assert it.observe() == before


def test_sets_of_a_step_that_was_interrupted_are_removed() -> None:
    with Namespace():
        before = make(**FORMS["sources"])
        for one in backend().plan(before, wanted(**FORMS["other sources and ranges"])).transaction[:2]:
            nf_tables.transact(one.changes, "a step")
        assert listed(backend().observe()).foreign
        assert make(**FORMS["other sources and ranges"]).listed is not None
        assert listed(backend().observe()).foreign == ()


def test_without_a_table_there_are_no_counters() -> None:
    with Namespace():
        with pytest.raises(NodeError, match="the table ip ip_masq_agent is gone"):
            backend().counted()
        make(exemption="enforce")
        (counted,) = backend().counted()
        assert (counted.kinds, total([counted])) == ("-EM---" + "-E", Counters())


def nft(*words: str, stdin: str = "") -> str:
    """Run nft, and return what it prints."""
    return subprocess.run(["nft", *words], input=stdin, check=True, stdout=subprocess.PIPE, text=True).stdout


exemptions = st.sampled_from(["return", "accept", "enforce"])
policies = st.builds(lambda config, exemption: config._replace(exemption=exemption), engine.configs, exemptions)


@settings(max_examples=40)
@given(policies, engine.families)
def test_nft_makes_and_shows_the_same_table(config: t.Any, family: Family) -> None:
    """What we write is what nft writes that reads our listing, as far as nft shows it, and it is read as the same."""
    table = nftables_ruleset.from_ruleset(from_config(config, family), family)
    with Namespace():
        shown, rules = [], []
        for make_it in (
            lambda: nf_tables.transact(nftables_changes.make_all(table), "the table"),
            lambda: nft("-f", "-", stdin="\n".join([*text.listing(table), ""])),
        ):
            make_it()
            shown.append(nft("-s", "list", "table", family.nft, text.TABLE))
            made, _generation = nf_tables.read_one(family.number, text.TABLE, text.CHAINS)
            assert made is not None and nftables_changes.listed(made, family).means(table)
            # Of a prefix of whole bytes nft loads these alone.
            rules.append(
                [
                    netlink.attributes(body)[nf_tables.RULE_EXPRESSIONS]
                    for body, (_chain, rule) in zip(made.rules, nftables_changes.rules_of(made.rules, family))
                    if not re.search(r"addr [0-9a-f.:]+/[0-9]+", rule.rule)
                ]
            )
            nft("delete", "table", family.nft, text.TABLE)
        assert shown[0] == shown[1]
        assert rules[0] == rules[1]
