# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of answers: held against a policy, put together by cause, and somebody named who is to blame."""

from __future__ import annotations

import ipaddress
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import actors
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import (
    DELIVERED,
    DROPPED,
    IPTABLES_NFT,
    NFTABLES,
    SENT,
    Answer,
    Question,
    Rule,
    Unseen,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import Cell
from support.node_states import route
from support.node_states import state as _state

_EXEMPT = [ipaddress.ip_network("10.0.0.0/8")]
_NODE = "198.51.100.1"

Behaviour = t.Callable[[Question], Answer]


class Oracle:
    """In place of a twin: answers as it is told to."""

    def __init__(self, behaviour: Behaviour, *rules: str) -> None:
        self.state = _state(*rules)
        self.unseen = (Unseen("ebpf", "something"),)
        self._behaviour = behaviour
        self.asked: t.List[Question] = []

    def ask(self, questions: t.Sequence[Question], explain: bool = False) -> t.List[Answer]:
        self.asked += questions
        answers = [self._behaviour(question) for question in questions]
        return answers if explain else [answer._replace(decided_by=None) for answer in answers]


def _sent(question: Question, source: t.Optional[str] = None, rule: t.Optional[Rule] = None) -> Answer:
    return Answer(
        question, SENT, source or question.source, 20000, question.destination, question.port, "eth0", decided_by=rule
    )


def _is_exempt(question: Question) -> bool:
    return ipaddress.ip_address(question.destination) in _EXEMPT[0]


def _as_declared(question: Question) -> Answer:
    return _sent(question) if _is_exempt(question) else _sent(question, _NODE)


def _verify(behaviour: Behaviour, *rules: str, limit: int = verification.LIMIT) -> verification.Report:
    return verification.verify(t.cast(t.Any, Oracle(behaviour, *rules)), verification.exempt(_EXEMPT), limit)


_CALICO = Rule(IPTABLES_NFT, "ip nat", "cali-nat-outgoing", "-A cali-nat-outgoing -j MASQUERADE")
_KUBE = Rule(IPTABLES_NFT, "ip nat", "KUBE-POSTROUTING", "-A KUBE-POSTROUTING -j MASQUERADE --random-fully")


def test_all_as_declared() -> None:
    report = _verify(_as_declared)
    assert report.conflicts == () and report.left_out == 0 and report.questions > 5
    assert report.unseen == (Unseen("ebpf", "something"),)


def test_conflict_of_one_cause() -> None:
    report = _verify(lambda question: _sent(question, _NODE, _CALICO))
    (conflict,) = report.conflicts
    assert (conflict.declared, conflict.seen, conflict.severity) == (
        verification.POD,
        verification.NODE,
        verification.ERROR,
    )
    assert conflict.owner == "Calico" and "natOutgoing" in conflict.remedy and conflict.decided_by == _CALICO
    assert [str(one) for one in ipaddress.collapse_addresses(map(ipaddress.IPv4Network, conflict.ranges))] == [
        "10.0.0.0/8"
    ]
    assert conflict.services == conflict.sources == ()


def test_pods_that_show_where_they_should_not() -> None:
    (conflict,) = _verify(_sent).conflicts
    assert (conflict.declared, conflict.seen, conflict.owner) == (verification.NODE, verification.POD, "none")
    assert "sync" in conflict.remedy


def test_another_address_is_a_conflict_on_both_sides() -> None:
    rule = Rule(NFTABLES, "ip x", "c", "snat to 192.0.2.9")
    conflicts = _verify(lambda question: _sent(question, "192.0.2.9", rule)).conflicts
    assert {(conflict.declared, conflict.seen) for conflict in conflicts} == {
        (verification.POD, "192.0.2.9"),
        (verification.NODE, "192.0.2.9"),
    }


def test_what_is_needed_is_no_conflict() -> None:
    assert _verify(lambda question: _sent(question, _NODE, _KUBE)).conflicts == ()


def test_rule_of_kube_proxy_that_lets_all_pass_hides_no_missing_rule() -> None:
    passed = _KUBE._replace(text="-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN")
    (conflict,) = _verify(lambda question: _sent(question, None, passed)).conflicts
    assert (conflict.declared, conflict.seen, conflict.owner) == (verification.NODE, verification.POD, "none")
    assert "sync" in conflict.remedy and conflict.decided_by == passed


def test_both_versions_of_ip_have_conflicts_of_their_own() -> None:
    """One rule of a table of the family inet decides about both."""
    rule = Rule(NFTABLES, "inet x", "c", "masquerade")
    oracle = Oracle(lambda question: _sent(question, _NODE, rule))
    routing = oracle.state.routing
    pods = (route("fd00:244::/64", 3), route("::/0", 2, "fd00::2"))
    oracle.state = oracle.state._replace(routing=routing._replace(routes=routing.routes + pods))
    policy = verification.exempt([*_EXEMPT, ipaddress.ip_network("fd00::/8")])
    conflicts = verification.verify(t.cast(t.Any, oracle), policy).conflicts
    families = [{ipaddress.ip_network(one).version for one in conflict.ranges} for conflict in conflicts]
    assert sorted(map(sorted, families)) == [[4], [6]]


def test_what_does_not_leave_is_no_conflict() -> None:
    assert _verify(lambda question: Answer(question, DELIVERED, question.source)).conflicts == ()
    assert _verify(lambda question: Answer(question, DROPPED)).conflicts == ()


def test_destination_behind_a_service_is_the_one_that_counts() -> None:
    """The packet goes to an exempt endpoint, whichever address it was sent to."""
    assert _verify(lambda question: _sent(question)._replace(destination="10.9.9.9")).conflicts == ()


_PLANTED = "nat -A POSTROUTING -s 10.244.1.128/25 -d 10.7.0.0/16 -p tcp -m tcp --dport 443 -j MASQUERADE"


def test_examples_where_it_concerns_only_some() -> None:
    def planted(question: Question) -> Answer:
        source, destination = map(ipaddress.ip_address, (question.source or "", question.destination))
        hit = (
            source in ipaddress.ip_network("10.244.1.128/25")
            and destination in ipaddress.ip_network("10.7.0.0/16")
            and (question.protocol, question.port) == ("tcp", 443)
        )
        return (
            _sent(question, _NODE, Rule(IPTABLES_NFT, "ip nat", "POSTROUTING", _PLANTED))
            if hit
            else (_as_declared(question))
        )

    (conflict,) = _verify(planted, _PLANTED).conflicts
    assert conflict.ranges == ("10.7.0.0/16",) and conflict.services == ("tcp/443",) and conflict.owner == "unknown"
    (source,) = conflict.sources
    assert ipaddress.ip_address(source) in ipaddress.ip_network("10.244.1.128/25")


def test_sometimes_is_a_warning() -> None:
    rule = "nat -A POSTROUTING -d 10.7.0.0/16 -m statistic --mode random --probability 0.5 -j MASQUERADE"
    turns = iter(range(100000))

    def chance(question: Question) -> Answer:
        hit = ipaddress.ip_address(question.destination) in ipaddress.ip_network("10.7.0.0/16") and next(turns) % 3 == 0
        return _sent(question, _NODE, _CALICO) if hit else _as_declared(question)

    (conflict,) = _verify(chance, rule).conflicts
    assert (conflict.severity, conflict.owner, conflict.ranges) == (verification.WARNING, "Calico", ("10.7.0.0/16",))


def test_order_that_is_not_known_is_a_warning() -> None:
    def unknown(question: Question) -> Answer:
        return _as_declared(question)._replace(alternatives=(_sent(question, _NODE, _CALICO),))

    (conflict,) = _verify(unknown).conflicts
    assert (conflict.severity, conflict.owner, conflict.seen) == (verification.WARNING, "Calico", verification.NODE)


def test_something_that_is_let_through_beside_what_was_asked() -> None:
    rules = (
        "filter -A FORWARD -d 10.7.0.0/16 -p tcp -m tcp --dport 8443 -j ACCEPT",
        "filter -A FORWARD -d 10.7.0.0/16 -j DROP",
    )

    def filtered(question: Question) -> Answer:
        if ipaddress.ip_address(question.destination) not in ipaddress.ip_network("10.0.0.0/8"):
            return _as_declared(question)
        if (question.protocol, question.port) != ("tcp", 8443):
            return Answer(question, DROPPED)
        return _sent(question, _NODE, _CALICO)

    (conflict,) = _verify(filtered, *rules).conflicts
    assert conflict.services == ("tcp/8443",) and "10.7.0.0/16" in conflict.ranges


def test_limit_is_kept_and_told() -> None:
    rules = ["nat -A POSTROUTING -d 10.%d.0.0/16 -p tcp -m tcp --dport 99 -j ACCEPT" % number for number in range(200)]
    oracle = Oracle(_as_declared, *rules)
    report = verification.verify(t.cast(t.Any, oracle), verification.exempt(_EXEMPT), 100)
    assert report.questions == len(oracle.asked) <= 100
    assert report.left_out >= 300
    # From everywhere, not from the beginning.
    assert {int(question.destination.split(".")[1]) // 50 for question in oracle.asked if _is_exempt(question)} >= {
        0,
        1,
        2,
        3,
    }


def test_spread_takes_all_where_there_is_room() -> None:
    cells = [Cell(number, number, (Question("10.0.0.1"),) * 2) for number in range(10)]
    assert verification._spread(cells, 20) == cells
    assert len(verification._spread(cells, 19)) == 9
    assert verification._spread([], 5) == []


def test_policy_for_some_pods() -> None:
    policy = verification.exempt(_EXEMPT, [ipaddress.ip_network("10.244.1.0/24")], others=None)
    assert policy.declares("10.244.1.5", "10.1.1.1", "tcp", 80) == verification.POD
    assert policy.declares("10.244.1.5", "192.0.2.1", "tcp", 80) is None
    assert policy.declares("10.244.2.5", "10.1.1.1", "tcp", 80) is None


# owners


@pytest.mark.parametrize(
    ("backend", "table", "chain", "text", "owner"),
    [
        (IPTABLES_NFT, "ip nat", "KUBE-POSTROUTING", "-j MASQUERADE", "kube-proxy"),
        (NFTABLES, "ip6 kube-proxy", "masquerading", "masquerade fully-random", "kube-proxy"),
        (NFTABLES, "ip ip_masq_agent", "postrouting", "masquerade", "ip-masq-agent of this collection"),
        (IPTABLES_NFT, "ip nat", "KUBE-ROUTER-EGRESS", "-j MASQUERADE", "kube-router"),
        (IPTABLES_NFT, "ip nat", "POSTROUTING", "-A POSTROUTING -s 172.18.0.0/16 ! -o br-f00 -j MASQUERADE", "Docker"),
        (IPTABLES_NFT, "ip nat", "POSTROUTING", "-A POSTROUTING -o eth0 -j MASQUERADE", "unknown"),
        (IPTABLES_NFT, "ip mangle", "KUBE-POSTROUTING", "-j MARK", "unknown"),
        (NFTABLES, "ip kube-proxy-by-hand", "c", "masquerade", "unknown"),
        (
            IPTABLES_NFT,
            "ip nat",
            "CNI-HOSTPORT-MASQ",
            "-m mark --mark 0x2000/0x2000 -j MASQUERADE",
            "CNI plugin portmap",
        ),
        (IPTABLES_NFT, "ip nat", "CNI-0123456789abcdef01234567", "-j MASQUERADE", "CNI plugin bridge or ptp"),
        (NFTABLES, "inet incus", "pstrt.incusbr0", "ip saddr 10.1.0.0/24 masquerade", "LXD or Incus"),
        (
            IPTABLES_NFT,
            "ip nat",
            "POSTROUTING",
            '-A POSTROUTING -s 10.1.0.0/24 -m comment --comment "generated for LXD network lxdbr0" -j MASQUERADE',
            "LXD or Incus",
        ),
    ],
)
def test_owner(backend: str, table: str, chain: str, text: str, owner: str) -> None:
    assert verification.owner(Rule(backend, table, chain, text)).name == owner


def test_owners_are_complete() -> None:
    assert {actor.name for actor in actors.ACTORS if actor.benign} == {"kube-proxy", "CNI plugin portmap"}
    for actor in (*actors.ACTORS, actors.UNKNOWN):
        assert actor.remedy and not actor.remedy.endswith(".")
        for pattern in (actor.table, actor.chain, actor.text):
            re.compile(pattern)


def test_without_a_limit_nothing_is_left_out_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_AT_A_TIME", 100)
    rules = tuple("nat -A POSTROUTING -d 10.%d.0.0/16 -j MASQUERADE" % number for number in range(0, 250, 2))
    steps: t.List[t.Tuple[int, int]] = []
    oracle = t.cast(t.Any, Oracle(_as_declared, *rules))
    report = verification.verify(oracle, verification.exempt(_EXEMPT), 0, lambda *step: steps.append(step))
    assert report.left_out == 0 and report.questions > 250
    limited = verification.verify(oracle, verification.exempt(_EXEMPT), 100)
    assert limited.questions + limited.left_out == report.questions
    assert steps[:2] == [(100, report.questions), (200, report.questions)]
    assert steps[-1] == (report.questions, report.questions)
