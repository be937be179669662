# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nft writes into the nat table of iptables-nft, where iptables prints it in part, wrongly, or not at all."""

from __future__ import annotations

import re
import sys
import typing as t

import pytest
from support.import_collection import location
from support.marks import iptables_only
from support.modules import apply, run_module
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, NFT_FAMILIES, Variant, snapshot

CHAIN = "IP-MASQ-AGENT"
NFT = BACKENDS["iptables_nft"]
OPTIONS: t.Dict[str, t.Any] = {"backend": NFT.backend}
EXEMPT = ["-d %s -j RETURN" % c for c in ("169.254.0.0/16", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
RULES = EXEMPT + ["-j MASQUERADE --random-fully"]
JUMP = "-m addrtype ! --dst-type LOCAL -j " + CHAIN

#: Printed as ``-d 10.0.0.0/8 -j RETURN``, and something else.
LIKE_OURS = {
    "a set": "ip saddr { 192.0.2.1, 192.0.2.2 } ip daddr 10.0.0.0/8 counter return",
    "another comparison": "ip daddr & 255.0.0.0 > 10.0.0.0 counter return",
    "the field twice": "ip daddr 203.0.0.0/8 ip daddr 10.0.0.0/8 counter return",
    "a write": "ip daddr 10.0.0.0/8 ip dscp set 1 counter return",
}
#: iptables ends with an error, or crashes, in some releases at least.
UNREADABLE = {
    "cpu": "meta cpu 0 return",
    "masquerade": "ip saddr 192.0.2.7 masquerade",
    "crash": "tcp flags != syn return",
}


def nft(ns: Namespace, *commands: str) -> str:
    """Run commands of nft in one transaction."""
    return ns.run("nft", "-f", "-", stdin="".join(command + "\n" for command in commands))


def handle(ns: Namespace, chain: str, rule: str) -> str:
    """The handle of the first rule of a chain whose text as nft lists it contains this."""
    listed = ns.run("nft", "-a", "list", "chain", "ip", "nat", chain).splitlines()
    return next(line for line in listed if rule in line).split()[-1]


def rules(ns: Namespace) -> t.List[str]:
    """Our rules, as the kernel tells them: no set, nothing that only nft can express."""
    listed = ns.run("nft", "-s", "list", "chain", "ip", "nat", CHAIN)
    assert not [line for line in listed.splitlines() if "{ " in line or "meta cpu" in line], listed
    return NFT.rules(ns, "ipv4") or []


@pytest.mark.parametrize("kind", LIKE_OURS)
def test_a_rule_that_is_only_printed_like_ours_is_replaced(topology: Topology, kind: str) -> None:
    a, ns = ADDRESSES["ipv4"], topology.node
    apply(ns, **OPTIONS)
    ours = handle(ns, CHAIN, "ip daddr 10.0.0.0/8")
    nft(ns, "replace rule ip nat %s handle %s %s" % (CHAIN, ours, LIKE_OURS[kind]))
    assert NFT.rules(ns, "ipv4") == RULES, "iptables prints it as it is: nothing is tested here"
    before = snapshot(ns)
    predicted = run_module(ns, check=True, **OPTIONS)
    assert snapshot(ns) == before
    done = apply(ns, **OPTIONS)
    assert predicted["actions"] == done["actions"]
    assert [action["action"] for action in done["actions"]] == ["unreadable chain rewritten"]
    assert rules(ns) == RULES
    assert set(topology.ask(*a.exempt).values()) == {a.pod}
    assert apply(ns, **OPTIONS)["changed"] is False


@pytest.mark.parametrize("kind", UNREADABLE)
def test_our_chain_is_rewritten_where_iptables_cannot_read_it(ns: Namespace, kind: str) -> None:
    apply(ns, **OPTIONS)
    nft(ns, "insert rule ip nat %s %s" % (CHAIN, UNREADABLE[kind]))
    done = apply(ns, **OPTIONS)
    assert done["changed"] is True
    assert rules(ns) == RULES and NFT.jumps(ns, "ipv4") == [JUMP]
    assert apply(ns, **OPTIONS)["changed"] is False


@pytest.mark.parametrize("kind", UNREADABLE)
class TestUnreadablePostrouting:
    """Another program's rule keeps iptables from reading POSTROUTING."""

    @pytest.fixture
    def node(self, ns: Namespace, kind: str) -> Namespace:
        """A nat table with such a rule."""
        NFT.load(ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -j ACCEPT")
        nft(ns, "add rule ip nat POSTROUTING " + UNREADABLE[kind])
        return ns

    @staticmethod
    def jumps(ns: Namespace) -> t.List[int]:
        """Where in POSTROUTING the jumps to our chain are."""
        listed = ns.run("nft", "list", "chain", "ip", "nat", "POSTROUTING").splitlines()[3:-2]
        return [number for number, line in enumerate(listed, 1) if line.endswith("jump " + CHAIN)]

    def test_rules_are_set_and_the_jump_is_appended(self, node: Namespace) -> None:
        done = apply(node, **OPTIONS)
        assert done["changed"] is True
        assert rules(node) == RULES
        assert self.jumps(node) == [3]
        again = apply(node, **OPTIONS)
        assert again["changed"] is False

    def test_damage_is_repaired(self, node: Namespace) -> None:
        apply(node, **OPTIONS)
        NFT.lose(node, "ipv4", "10.0.0.0/8")
        assert apply(node, **OPTIONS)["changed"] is True
        assert rules(node) == RULES
        nft(node, "delete rule ip nat POSTROUTING handle " + handle(node, "POSTROUTING", "jump " + CHAIN))
        assert apply(node, **OPTIONS)["changed"] is True
        assert self.jumps(node) == [3]
        node.run("iptables-nft", "-t", "nat", "-F")
        assert apply(node, **OPTIONS)["changed"] is True
        assert rules(node) == RULES and NFT.jumps(node, "ipv4") == [JUMP]

    def test_a_jump_behind_a_rule_for_everything_is_moved_before_it(self, node: Namespace) -> None:
        apply(node, **OPTIONS)
        nft(node, "insert rule ip nat POSTROUTING counter masquerade")
        assert apply(node, **OPTIONS)["changed"] is True
        assert self.jumps(node)[0] == 1
        assert apply(node, **OPTIONS)["changed"] is False

    def test_removal_succeeds_or_names_the_command_that_is_missing(self, node: Namespace) -> None:
        apply(node, **OPTIONS)
        done = run_module(node, state="absent")
        if done.get("failed"):
            command = re.search(r"Delete it: (nft delete rule ip nat POSTROUTING handle [0-9]+)", done["msg"])
            assert command is not None, done["msg"]
            node.run(*command.group(1).split())
            apply(node, state="absent")
        assert NFT.rules(node, "ipv4") is None
        assert self.jumps(node) == []


def test_an_unreadable_postrouting_is_reported_with_the_command_that_shows_it(ns: Namespace) -> None:
    NFT.load(ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -j ACCEPT")
    nft(ns, "add rule ip nat POSTROUTING fib daddr type broadcast return")
    for _again in range(2):
        (note,) = [warning for warning in apply(ns, **OPTIONS)["warnings"] if "cannot print" in warning]
        assert "nft -a list chain ip nat POSTROUTING" in note


def test_a_jump_with_other_conditions_that_cannot_be_deleted_is_an_error_with_the_command(ns: Namespace) -> None:
    apply(ns, **OPTIONS)
    nft(ns, "add rule ip nat POSTROUTING fib daddr type broadcast return", "add rule ip nat POSTROUTING jump " + CHAIN)
    message = run_module(ns, **OPTIONS)["msg"]
    command = re.search(r"Delete it: (nft delete rule ip nat POSTROUTING handle [0-9]+)", message)
    assert command is not None, message
    ns.run(*command.group(1).split())
    assert apply(ns, **OPTIONS)["changed"] is False


@pytest.mark.parametrize("kind", ["ip saddr { 203.0.113.1, 203.0.113.2 }", "meta l4proto { udp, sctp }"])
def test_a_rule_that_is_only_printed_as_a_bare_verdict_does_not_move_our_jump(ns: Namespace, kind: str) -> None:
    apply(ns, **OPTIONS)
    nft(ns, "insert rule ip nat POSTROUTING %s counter accept" % kind)
    assert NFT.rules(ns, "ipv4", "POSTROUTING") == ["-j ACCEPT", JUMP], "iptables prints it as it is"
    before = snapshot(ns)
    done = apply(ns, **OPTIONS)
    assert done["changed"] is False
    assert snapshot(ns) == before
    (warning,) = [text for text in done["warnings"] if "bypasses the managed chain" in text]
    assert "conditions that iptables does not print" in warning


@pytest.mark.parametrize("family", NFT_FAMILIES)
def test_a_dormant_table_is_an_error_that_says_how_to_wake_it(ns: Namespace, family: str) -> None:
    options = dict(OPTIONS, enable_ipv6=True)
    apply(ns, **options)
    nft(ns, "add table %s nat { flags dormant; }" % NFT_FAMILIES[family])
    NFT.lose(ns, family, {"ipv4": "10.0.0.0/8", "ipv6": "fe80::/10"}[family])
    done = run_module(ns, **options)
    assert done["failed"] is True and done["changed"] is True, "rules are kept for the time when it is awake"
    assert "%s: table nat is dormant" % family in done["msg"]
    assert run_module(ns, check=True, **options)["failed"] is True
    command = re.search(r"Activate it: (.*)\Z", done["msg"])
    assert command is not None
    ns.run(*command.group(1).split())
    assert "dormant" not in ns.run("nft", "list", "ruleset")
    assert apply(ns, **options)["changed"] is False


@iptables_only
class TestLineEnds:
    """Comments of other programs' rules hold line ends, and what looks like a rule."""

    @pytest.fixture(autouse=True)
    def policy(self, ns: Namespace, variant: Variant) -> None:
        """The node has the default one."""
        apply(ns, backend=variant.backend)

    @pytest.mark.parametrize("end", ["\n", "\f", "\x0b", "\x1c", "\x85", "\u2028", "\r"])
    def test_a_comment_is_no_jump(self, ns: Namespace, variant: Variant, end: str) -> None:
        variant.unhook(ns, "ipv4")
        comment = end.join(("harmless", "-A POSTROUTING " + JUMP, "as well"))
        self.add(ns, variant, comment, "-d", "203.0.113.7/32", "-j", "ACCEPT")
        assert apply(ns, backend=variant.backend)["changed"] is True
        assert len(self.listed(ns, variant)) == 2
        assert apply(ns, backend=variant.backend)["changed"] is False

    def test_a_good_jump_with_such_a_comment_is_left_alone(self, ns: Namespace, variant: Variant) -> None:
        variant.unhook(ns, "ipv4")
        self.add(ns, variant, "two\nlines", *JUMP.split())
        assert apply(ns, backend=variant.backend)["changed"] is False

    def test_what_iptables_restore_cannot_name_is_named_with_the_command(self, ns: Namespace, variant: Variant) -> None:
        """And the second line of the comment is not carried out."""
        self.add(ns, variant, "two\n-A POSTROUTING -j ACCEPT", "-j", CHAIN)
        done = run_module(ns, backend=variant.backend)
        assert done["failed"] is True and done["changed"] is False
        assert len(self.listed(ns, variant)) == 2
        command = re.search(r"Delete it: (.*)\Z", done["msg"])
        assert command is not None
        ns.run(*command.group(1).split())
        assert apply(ns, backend=variant.backend)["changed"] is False
        assert len(self.listed(ns, variant)) == 1

    def test_a_jump_of_ours_with_bytes_that_are_no_text_is_deleted(self, ns: Namespace, variant: Variant) -> None:
        self.add(ns, variant, "latin-1: \udce9", "-j", CHAIN)
        assert apply(ns, backend=variant.backend)["changed"] is True
        assert len(self.listed(ns, variant)) == 1

    @staticmethod
    def add(ns: Namespace, variant: Variant, comment: str, *rule: str) -> None:
        """Append a rule to POSTROUTING."""
        words = ["-t", "nat", "-A", "POSTROUTING", *rule[:-2], "-m", "comment", "--comment", comment, *rule[-2:]]
        ns.run(variant.tool("ipv4"), "-w", *words)

    @staticmethod
    def listed(ns: Namespace, variant: Variant) -> t.List[str]:
        """The targets of the rules of POSTROUTING."""
        tool = variant.tool("ipv4")
        shown = ns.run("sh", "-c", "%s -w -t nat -L POSTROUTING -n --line-numbers | tr -d '\\351'" % tool)
        return [line for line in shown.splitlines() if re.match(r"[0-9]+ ", line)]


def test_the_kernel_is_asked_for_one_chain_only(ns: Namespace) -> None:
    """Its answer is as long on a node with 5,000 rules of others as on an empty one."""
    apply(ns, **OPTIONS)
    others = [":OTHER-%d - [0:0]" % n for n in range(500)]
    others += ["-A OTHER-%d -p tcp -j RETURN" % (n % 500) for n in range(5000)]
    NFT.load(ns, "ipv4", *others)
    program = (
        "import sys; sys.path.insert(0, %r)\n"
        "from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nfnetlink as n\n"
        "body = n.netlink.family_head(2) + n.text(n.nf_tables.TABLE, 'nat') + n.text(n.nf_tables.RULE_CHAIN, %r)\n"
        "print(len(n._dump(n._GET_RULE, body, 'rules')), len(n.rules(2, 'nat', %r)))\n"
    ) % (str(location()).split("ansible_collections")[0], CHAIN, CHAIN)
    assert ns.run(sys.executable, "-c", program).split() == [str(len(RULES))] * 2
