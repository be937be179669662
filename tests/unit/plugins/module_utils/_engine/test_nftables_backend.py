# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which transaction leads from a table to the wanted one; when nftables is chosen. Real tables: tests/kernel."""

from __future__ import annotations

import itertools
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_syntax as text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import CommitRefused, Counters, Overtaken
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backends import choose
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_backend import Nftables, State
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_ruleset import from_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Ruleset, from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support.many_ranges import many_ranges

DONE = Outcome(0, "", "")
NOTHING = Outcome(1, "", "Error: No such file or directory\nlist table ip ip_masq_agent\n")


#: A table whose set another program removed.
WITHOUT_SET = """table ip ip_masq_agent {
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		fib daddr type 2 counter return comment "ip-masq-agent: for the node itself"
		counter masquerade fully-random comment "ip-masq-agent: leaves with the address of the node"
	}
}
"""


@pytest.fixture(autouse=True)
def forty_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan with thousands of ranges takes long."""
    monkeypatch.setattr(nftables_ruleset, "_MANY", 40)


class Nft:
    """A program that answers as it is told and keeps what it was given to write."""

    def __init__(
        self,
        *listed: Outcome,
        wrote: t.Callable[[str], Outcome] = lambda _step: DONE,
        accepts: t.Callable[[str], bool] = lambda _trial: True,
    ) -> None:
        #: one after the other; the last one again and again
        self.listed = list(listed or [NOTHING])
        self.wrote = wrote
        self.accepts = accepts
        self.argv: t.List[t.List[str]] = []
        self.written: t.List[str] = []

    def run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        """In place of the collection's runner."""
        self.argv.append(list(argv))
        if "-f" not in argv:
            return self.listed.pop(0) if len(self.listed) > 1 else self.listed[0]
        if "-c" in argv:
            return DONE if self.accepts(stdin or "") else Outcome(1, "", "no")
        self.written.append(stdin or "")
        return self.wrote(stdin or "")


def wanted(**options: t.Any) -> Ruleset:
    """The IPv4 rules of a policy."""
    return from_config(build(dict(options, backend="nftables")), IPV4)


def state(**options: t.Any) -> State:
    """The table of a policy, as observed."""
    return State(text.render(from_ruleset(wanted(**options), IPV4)))


def backend(nft: t.Optional[Nft] = None, has_table: t.Optional[bool] = True) -> Nftables:
    """The backend over a stand-in."""
    return Nftables((nft or Nft()).run, IPV4, "nft", has_table=lambda _family, _name: has_table)


def test_where_the_kernel_has_no_such_table_nft_is_not_started() -> None:
    nft = Nft()
    assert backend(nft, has_table=False).observe() == State(None)
    assert nft.argv == []


@pytest.mark.parametrize("has_table", [True, None])
def test_else_nft_is_asked_and_its_answer_counts(has_table: t.Optional[bool]) -> None:
    nft = Nft()
    assert backend(nft, has_table).observe() == State(None)
    assert nft.argv == [["nft", "-n", "-s", "list", "table", "ip", "ip_masq_agent"]]


def test_a_table_that_cannot_be_read_is_an_error_not_an_absence() -> None:
    nft = Nft(Outcome(1, "", "netlink: Error: cache initialization failed: Operation not permitted\n"))
    with pytest.raises(NodeError, match="Operation not permitted"):
        backend(nft).observe()


def test_nothing_is_written_where_nothing_differs() -> None:
    plan = backend().plan(state(), wanted())
    assert (plan.actions, plan.transaction) == ((), ())
    assert plan.before == plan.after == plan.view.rules
    assert plan.view.ruleset == plan.found.ruleset == wanted()


def test_a_new_set_is_complete_before_a_rule_asks_it() -> None:
    nft = Nft()
    it = backend(nft)
    it.commit(it.plan(State(None), wanted()).transaction)
    first, second = nft.written
    assert "add element" in first and "chain" not in first and "rule" not in first
    assert "@exempt_ranges" in second and "element" not in second


@pytest.mark.parametrize(
    "after, untouched",
    [
        ({"non_masquerade_cidrs": ["10.0.0.0/8"]}, "rule"),
        ({"exemption": "enforce"}, "element"),
        ({"random_fully": False}, "element"),
        ({"to_ports": "1024-2048"}, "element"),
    ],
    ids=str,
)
def test_a_table_is_changed_in_place_and_only_where_it_differs(after: t.Dict[str, t.Any], untouched: str) -> None:
    nft = Nft()
    it = backend(nft)
    it.commit(it.plan(state(), wanted(**after)).transaction)
    (written,) = nft.written
    assert "delete" not in written
    assert untouched not in written


def test_the_enforcing_chain_goes_with_the_option() -> None:
    (written,) = backend().plan(state(exemption="enforce"), wanted()).transaction
    assert "flush chain ip ip_masq_agent enforce\ndelete chain ip ip_masq_agent enforce\n" in written


def test_what_is_foreign_goes_with_the_table() -> None:
    listed = state().listed or ""
    tampered = State(listed.replace("set exempt_ranges {", "chain mine {\n}\nset exempt_ranges {"))
    plan = backend().plan(tampered, wanted())
    assert [action.rule for action in plan.actions] == ["chain mine"]
    assert plan.transaction[0].startswith("delete table ip ip_masq_agent\ntable ip ip_masq_agent {")


def test_undo_puts_back_what_was_there_word_for_word() -> None:
    before, after = State("table ip ip_masq_agent {\n\tchain strange {\n\t}\n}\n"), state()
    assert backend().undo(after, before) == ("delete table ip ip_masq_agent\n" + (before.listed or ""),)
    assert backend().undo(after, State(None)) == ("delete table ip ip_masq_agent\n",)
    assert backend().undo(State(None), before) == (before.listed,)


def test_a_refusal_is_passed_on_in_short() -> None:
    said = Outcome(1, "", "Error: Could not process rule: Operation not supported\n" + "x" * 100000)
    nft = Nft(wrote=lambda _step: said)
    it = backend(nft)
    with pytest.raises(CommitRefused) as refusal:
        it.commit(it.plan(State(None), wanted()).transaction)
    assert len(nft.written) == 1
    assert "Operation not supported" in str(refusal.value)
    assert len(str(refusal.value)) < 700


@pytest.mark.parametrize(
    "refused, missing",
    [
        ("masquerade", "nft_masq"),
        ("fib", "nft_fib"),
        ("add chain", "nft_chain_nat"),
        ("numgen", ""),
        ("snat", ""),
        ("nothing", ""),
    ],
)
@pytest.mark.parametrize("said", ["No such file or directory", "Operation not supported"])
def test_what_the_kernel_lacks_is_named_once_it_was_tried(refused: str, missing: str, said: str) -> None:
    """What the rules do not need is not tried; where all is accepted, the kernel is not blamed."""
    refusal = Outcome(1, "", "Error: Could not process rule: %s\n" % said)
    it = backend(
        Nft(wrote=lambda step: refusal if "rule" in step else DONE, accepts=lambda trial: refused not in trial)
    )
    with pytest.raises(CommitRefused) as raised:
        it.commit(it.plan(State(None), wanted()).transaction)
    assert ("lacks a part of nf_tables that this needs (%s)" % missing in str(raised.value)) is bool(missing)
    assert ("most likely another program changed the table" in str(raised.value)) is not bool(missing)


@pytest.mark.parametrize("form", ["plain", "sources", "many ranges, enforced"])
@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_step_that_lost_its_table_is_no_refusal_of_the_kernel(form: str, refused: int) -> None:
    """Whatever the step is; nothing else is written, since nothing of ours is left."""
    there = True
    nft = Nft()

    def write(_step: str) -> Outcome:
        nonlocal there
        if len(nft.written) == refused:
            there = False
            return Outcome(1, "", "Error: Could not process rule: No such file or directory\n")
        return DONE

    nft.wrote = write
    it = Nftables(nft.run, IPV4, "nft", has_table=lambda _family, _name: there)
    transaction = it.plan(state(**FORMS["other sources and ranges"]), wanted(**FORMS[form])).transaction
    if len(transaction) < refused:
        pytest.skip("this policy takes fewer steps")
    with pytest.raises(Overtaken, match="another program removed the table ip ip_masq_agent"):
        it.commit(transaction)
    assert len(nft.written) == refused
    assert not [argv for argv in nft.argv if "-c" in argv]


def test_a_new_table_that_is_gone_before_its_chains_is_no_refusal_of_the_kernel() -> None:
    nft = Nft(wrote=lambda step: DONE if step.startswith("add table") else NOTHING)
    it = backend(nft, has_table=False)
    with pytest.raises(Overtaken):
        it.commit(it.plan(State(None), wanted()).transaction)
    assert len(nft.written) == 2


TORN = "chain postrouting {\ntype nat hook postrouting priority srcnat; policy accept;\n}\n}\n"


@pytest.mark.parametrize("torn", [1, 5])
def test_a_table_that_is_listed_in_pieces_is_listed_again(torn: int) -> None:
    whole = t.cast(str, state().listed)
    pieces = Outcome(0, whole[: -len("}\n")] + TORN, "")
    nft = Nft(*[pieces] * torn, Outcome(0, whole, ""))
    assert backend(nft).observe() == State(whole)
    assert len(nft.argv) >= torn + 1
    counted = "table ip ip_masq_agent {\nchain postrouting {\ncounter packets 5 bytes 300 masquerade\n}\n}\n"
    assert backend(Nft(*[pieces] * torn, Outcome(0, counted, ""))).counters() == Counters(0, 0, 5, 300)


def test_one_that_never_is_anything_else_is_an_error() -> None:
    for pieces in (WITHOUT_SET[: -len("}\n")] + TORN, WITHOUT_SET[: -len("}\n")], WITHOUT_SET + WITHOUT_SET, ""):
        nft = Nft(Outcome(0, pieces, ""))
        for reads in (backend(nft).observe, backend(nft).counters):
            with pytest.raises(NodeError, match="in pieces 20 times"):
                reads()
        assert len(nft.argv) == 40


def test_counters_of_a_table_that_is_gone_are_an_error() -> None:
    with pytest.raises(NodeError, match="the table ip ip_masq_agent is gone"):
        backend().counters()


def test_while_others_write_all_the_time_a_whole_table_is_taken_in_the_end() -> None:
    numbers = itertools.count()
    listed = Outcome(0, t.cast(str, state().listed), "")
    nft = Nft(listed)
    it = Nftables(nft.run, IPV4, "nft", has_table=lambda _family, _name: True, generation=lambda: next(numbers))
    found = it.observe()
    assert (found.listed, found.generation.number, len(nft.argv)) == (listed.stdout, None, 4)


@pytest.mark.parametrize(
    "before, undone",
    [(None, "delete table ip ip_masq_agent\n"), (WITHOUT_SET, "delete set ip ip_masq_agent exempt_ranges\n")],
    ids=["new table", "table without its set"],
)
def test_a_second_step_that_is_refused_takes_the_first_with_it(before: t.Optional[str], undone: str) -> None:
    nft = Nft(wrote=lambda step: Outcome(1, "", "no") if "@exempt_ranges" in step else DONE)
    it = Nftables(nft.run, IPV4, "nft", has_table=lambda _family, _name: before is not None or bool(nft.written))
    with pytest.raises(CommitRefused):
        it.commit(it.plan(State(before), wanted()).transaction)
    assert nft.written[2:] == [undone]


@pytest.mark.parametrize("status", [-11, 139, -6, 134])
def test_a_crash_of_nft_is_an_error_with_its_cause_and_remedy(status: int) -> None:
    def run(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        return Outcome(0, "nftables v1.0.6 (Lester Gooch #5)\n", "") if "--version" in argv else Outcome(status, "", "")

    it = Nftables(run, IPV4, "/usr/sbin/nft", has_table=lambda _family, _name: True)
    for fails in (it.observe, it.counters, lambda: it.commit(("add table ip ip_masq_agent\n",))):
        with pytest.raises(NodeError) as caught:
            fails()
        for part in (
            "nftables v1.0.6 crashed",
            str(status),
            "cannot be determined",
            "Upgrade nftables",
            "iptables_nft",
        ):
            assert part in str(caught.value)


def test_more_than_a_hundred_ranges_are_reported_as_a_count() -> None:
    many = ["10.%d.0.0/16" % (2 * i) for i in range(101)]
    actions = backend().plan(state(), wanted(non_masquerade_cidrs=many, cidr_limit=101)).actions
    told = [(action.action, action.rule) for action in actions]
    assert ("ranges added", "101 ranges") in told
    assert ("range removed", "172.16.0.0/12") in told


def test_counters_separate_exempt_and_masqueraded() -> None:
    listed = """table ip ip_masq_agent {
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		fib daddr type 2 counter packets 1 bytes 2 return
		ip daddr @exempt_ranges counter packets 30 bytes 1800 return
		meta l4proto 6 counter packets 400 bytes 24000 masquerade to :42
		counter packets 5 bytes 300 masquerade fully-random
	}
	chain enforce {
		meta mark & 0x00006000 != 0x00000000 counter packets 9 bytes 9 return
		ip daddr @exempt_ranges counter packets 6 bytes 360 snat to ip saddr
	}
}
"""
    nft = Nft(Outcome(0, listed, ""))
    assert backend(nft).counters() == Counters(36, 2160, 405, 24300)


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

    def test_not_where_iptables_works(self, node: t.Callable[..., Node]) -> None:
        assert choose(node("nft", *self.IPTABLES), "auto").name == "iptables_nft"

    def test_where_iptables_is_not_installed(self, node: t.Callable[..., Node]) -> None:
        found = node("nft")
        assert choose(found, "auto").name == "nftables"
        tool = found.tool("nft")
        assert tool is not None
        assert tool.version_text == "1.1.3"

    @pytest.mark.parametrize("missing", ["MASQUERADE", "addrtype", "comment"])
    def test_where_the_kernel_lacks_what_iptables_needs(self, node: t.Callable[..., Node], missing: str) -> None:
        assert choose(node("nft", *self.IPTABLES, has=lambda name: name != missing), "auto").name == "nftables"

    def test_not_where_the_kernel_lacks_it_and_nft_is_missing_too(self, node: t.Callable[..., Node]) -> None:
        assert choose(node(*self.IPTABLES, has=lambda name: False), "auto").name == "iptables_nft"

    def test_iptables_if_the_kernel_does_not_answer(self, node: t.Callable[..., Node]) -> None:
        assert choose(node("nft", *self.IPTABLES, has=lambda name: None), "auto").name == "iptables_nft"

    def test_not_where_iptables_is_asked_for(self, node: t.Callable[..., Node]) -> None:
        assert choose(node("nft", *self.IPTABLES, has=lambda name: False), "iptables_nft").name == "iptables_nft"

    def test_where_exemptions_are_to_hold(self, node: t.Callable[..., Node]) -> None:
        assert choose(node("nft", *self.IPTABLES), "auto", "enforce").name == "nftables"

    @pytest.mark.parametrize("asked", [("nftables", "return"), ("auto", "enforce")], ids=" ".join)
    def test_missing_nft_is_reported(self, node: t.Callable[..., Node], asked: t.Tuple[str, str]) -> None:
        with pytest.raises(NodeError, match="install the package nftables"):
            choose(node(*self.IPTABLES), *asked)

    def test_nothing_at_all_names_both_packages(self, node: t.Callable[..., Node]) -> None:
        with pytest.raises(NodeError, match="install the package iptables or nftables"):
            choose(node(), "auto")


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


class Steps:
    """The rules and sets of a table, as steps of a transaction change them."""

    def __init__(self, listed: str) -> None:
        table = text.parse(listed, IPV4)
        self.sets = {
            name: {text.render_element(name, span, IPV4) for span in spans} for name, spans in table.sets.items()
        }
        self.chains = {name: list(rules) for name, rules in table.chains}

    @property
    def meaning(self) -> t.Dict[str, t.List[str]]:
        """The rules with the elements of the sets in place of their names."""
        return {
            chain: [
                re.sub(r"@(\w+)", lambda found: "{ %s }" % ", ".join(sorted(self.sets[found[1]])), text.bare(rule))
                for rule in rules
            ]
            for chain, rules in self.chains.items()
        }

    def write(self, step: str) -> t.Tuple[t.Set[str], bool]:
        """Carry out a step.

        :returns: the sets whose elements it changed and that rules ask before or afterwards; whether it changed rules.
        """
        asked, before, touched = self._asked(), dict(self.chains), set()
        for line in step.splitlines():
            verb, kind, _family, _table, name, *rest = line.split(" ", 5)
            if (verb, kind) == ("add", "set"):
                assert name not in self.sets
                self.sets[name] = set()
            elif (verb, kind) == ("delete", "set"):
                del self.sets[name]
            elif (verb, kind) == ("flush", "set"):
                self.sets[name] = set()
                touched.add(name)
            elif (verb, kind) == ("add", "element"):
                self.sets[name] |= set(rest[0].strip("{} ").split(", "))
                touched.add(name)
            elif (verb, kind) == ("add", "rule"):
                self.chains[name] = [*self.chains[name], rest[0]]
            elif verb in ("add", "flush"):
                self.chains[name] = []
            else:
                del self.chains[name]
        assert self._asked() <= set(self.sets)
        return touched & (asked | self._asked()), self.chains != before

    def _asked(self) -> t.Set[str]:
        return {name for rules in self.chains.values() for rule in rules for name in re.findall(r"@(\w+)", rule)}


@pytest.mark.parametrize("new", FORMS)
@pytest.mark.parametrize("old", FORMS)
def test_at_each_step_the_old_or_the_new_policy_is_in_force(old: str, new: str) -> None:
    before = state(**FORMS[old])
    plan = backend().plan(before, wanted(**FORMS[new]))
    steps, after = Steps(t.cast(str, before.listed)), Steps(t.cast(str, state(**FORMS[new]).listed))
    in_force = [steps.meaning]
    for step in plan.transaction:
        changed, rules = steps.write(step)
        in_force.append(steps.meaning)
        # A packet on its way meets the old rules and the new elements, or those of one set and not of another.
        assert len(changed) + rules <= 1, step
    assert [meaning for meaning in in_force if meaning not in (in_force[0], after.meaning)] == []
    assert (steps.sets, steps.meaning) == (after.sets, after.meaning)


LEAKING: t.Tuple[t.Dict[str, t.Any], ...] = (
    {"leaks": "drop", "source_cidrs": ["10.244.0.0/16"]},
    {"leaks": "drop", "source_cidrs": ["10.244.0.0/16"], "non_masquerade_cidrs": ["10.0.0.0/9"]},
    {"leaks": "drop", "source_cidrs": ["10.0.0.0/8"], "rules": [{"action": "exempt", "protocols": ["udp"]}]},
    {"leaks": "count", "source_cidrs": ["10.244.0.0/16"], "exemption": "enforce"},
    {"source_cidrs": ["10.244.0.0/16"]},
    {},
)


@pytest.mark.parametrize("new", LEAKING)
@pytest.mark.parametrize("old", LEAKING)
def test_no_first_packet_is_a_leak_while_the_rules_of_nat_change(old: t.Any, new: t.Any) -> None:
    """It may have met the old rules of nat, and meets the new ones about leaks."""
    before, lenient = state(**old), text.bare(text.LENIENT)
    steps, after = Steps(t.cast(str, before.listed)), Steps(t.cast(str, state(**new).listed))
    for step in backend().plan(before, wanted(**new)).transaction:
        earlier = steps.meaning
        steps.write(step)
        leaks = [meaning.pop(text.LEAKS, None) for meaning in (earlier, steps.meaning)]
        nat = [{name: rules for name, rules in one.items() if name != text.LEAKS} for one in (earlier, steps.meaning)]
        # Later than a packet meets the new rules of nat, it does not meet old ones about leaks.
        spared = leaks[1] is None or all(rules is None or rules[0] == lenient for rules in leaks)
        assert nat[0] == nat[1] or spared, step
    assert (steps.sets, steps.meaning) == (after.sets, after.meaning)


def test_a_change_that_is_refused_takes_no_more_first_packets_for_leaks_than_before() -> None:
    before, after = state(**LEAKING[0]), wanted(**LEAKING[2])
    nft = Nft(Outcome(0, t.cast(str, before.listed), ""))
    nft.wrote = lambda _step: Outcome(1, "", "Error: out of memory\n") if len(nft.written) == 2 else DONE
    it = backend(nft)
    with pytest.raises(CommitRefused, match="out of memory"):
        it.commit(it.plan(before, after).transaction)
    steps = Steps(t.cast(str, before.listed))
    intact = steps.meaning
    steps.write(nft.written[0])
    assert steps.meaning != intact
    steps.write(nft.written[2])
    assert steps.meaning == intact and len(nft.written) == 3


def test_one_of_many_ranges_changes_without_what_is_around_them() -> None:
    before = {"non_masquerade_cidrs": MANY}
    other = {**before, "non_masquerade_cidrs": MANY[1:]}
    (step,) = backend().plan(state(**before), wanted(**other)).transaction
    assert "outline" not in step and "chain" not in step and "rule" not in step


def test_networks_around_ranges_are_not_reported_as_exempt() -> None:
    before = {"non_masquerade_cidrs": MANY}
    other = {**before, "non_masquerade_cidrs": [*MANY, "11.0.0.0/24"]}
    assert [action.rule for action in backend().plan(state(**before), wanted(**other)).actions] == [
        "11.0.0.0/24",
        "10.0.0.0/8 from set exempt_outline",
        "10.0.0.0/7 to set exempt_outline",
    ]


def test_ranges_change_with_the_rules_of_a_plain_policy_in_one_step() -> None:
    transaction = backend().plan(state(), wanted(non_masquerade_cidrs=["10.0.0.0/9"], to_ports="1024-2048")).transaction
    assert len(transaction) == 1


def test_a_later_step_that_is_refused_leaves_the_new_rules_and_says_so() -> None:
    before, after = state(**FORMS["sources"]), wanted(**FORMS["other sources and ranges"])
    it = backend(Nft(wrote=lambda step: Outcome(1, "", "Error: out of memory\n") if "flush set" in step else DONE))
    with pytest.raises(NodeError, match="out of memory.*The new rules are active") as failure:
        it.commit(it.plan(before, after).transaction)
    assert not isinstance(failure.value, CommitRefused)


def test_sets_of_a_step_that_was_interrupted_are_removed() -> None:
    before = state(**FORMS["sources"])
    listed = t.cast(str, before.listed).replace("source_ranges", "source_ranges" + text.INTERIM)
    plan = backend().plan(State(listed), wanted(**FORMS["sources"]))
    (step,) = plan.transaction
    assert step.startswith("delete table ip ip_masq_agent\n") and text.INTERIM not in step
