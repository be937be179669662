# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the commands explain and verify print, and what verify stores."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import explain, verify
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import Match
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import NOT_TESTED, Answer
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import inspection
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import explanation, judge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.packet_policy import (
    POD,
    Policy,
    Promise,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.ways import Declared
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.words import explanations
from support.private_node import private_paths

_RULE = {
    "backend": "iptables_nft",
    "table": "ip nat",
    "chain": "cali-nat-outgoing",
    "rule": "-A cali-nat-outgoing -j MASQUERADE",
    "owner": "Calico",
}
_EXPLAINED = {
    "destination": "10.9.9.9",
    "source": "10.244.1.2",
    "protocol": "tcp",
    "port": 443,
    "outcome": "sent",
    "policy": "pod",
    "seen": "node",
    "seen_address": "192.0.2.1",
    "interface": "eth0",
    "agrees": False,
    "decided_by": _RULE,
    "dropped_by": None,
    "remedy": "set natOutgoing to false",
    "alternatives": [],
    "depends_on": [],
    "not_understood": [],
}
_CONFLICT = {
    "range": "10.0.0.0/8",
    "policy": "pod",
    "seen": "node",
    "decided_by": _RULE,
    "owner": "Calico",
    "severity": "error",
    "remedy": "set natOutgoing to false",
    "services": ["tcp/443"],
    "sources": [],
}
_FOUND: t.Dict[str, t.Any] = {
    "policy": {"origin": "agent", "exempt": {"ipv4": ["10.0.0.0/8"]}},
    "explanations": [],
    "conflicts": [],
    "questions": 9,
    "questions_left_out": 0,
    "untested": [],
    "limits": [],
    "health": [],
    "verified": True,
    "summary": "9 kinds of packets, all match the policy",
}


class Agent:
    """The commands on a node about which this is known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, paths: Paths) -> None:
        self._monkeypatch = monkeypatch
        self.paths = paths

    def finds(self, **changes: t.Any) -> None:
        """Have a node of which this is found."""
        for command in (explain, verify):
            self._monkeypatch.setattr(command, "choose_policy", lambda *_: None)
        self._monkeypatch.setattr(inspection, "inspect", lambda *_: dict(_FOUND, **changes))

    def explain(self, as_json: bool = False) -> t.List[str]:
        """What the command explain prints."""
        wanted = inspection.request(["10.9.9.9"], None, "tcp", 443)
        return explain.explain(t.cast(t.Any, None), self.paths, wanted, as_json)

    def verify(self, as_json: bool = False) -> verify.Output:
        """The outcome of the command verify."""
        wanted = inspection.request([], verify=True)
        return verify.verify(t.cast(t.Any, None), self.paths, wanted, as_json, lambda _asked, _all: None)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Agent:
    return Agent(monkeypatch, private_paths(tmp_path))


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, "10.9.9.9 sees the node's address (192.0.2.1), for tcp/443 from 10.244.1.2"),
        ({"seen": "pod", "seen_address": "10.244.1.2"}, "10.9.9.9 sees the pod's own address (10.244.1.2)"),
        ({"seen": "192.0.2.7", "seen_address": "192.0.2.7"}, "10.9.9.9 sees another address (192.0.2.7)"),
        ({"outcome": "dropped", "seen": None}, "10.9.9.9 is not reached: the packet is dropped"),
        ({"outcome": "delivered", "seen": None}, "10.9.9.9 is an address of the node"),
        ({"outcome": "not tested", "seen": None}, "10.9.9.9 was not tested, for tcp/443 from 10.244.1.2"),
        ({"source": None}, "10.9.9.9 sees the node's address (192.0.2.1), for tcp/443 from the node itself"),
        ({"protocol": "icmp"}, "10.9.9.9 sees the node's address (192.0.2.1), for icmp from 10.244.1.2"),
    ],
)
def test_explanation_begins_with_the_answer(agent: Agent, changes: t.Dict[str, t.Any], first: str) -> None:
    agent.finds(explanations=[dict(_EXPLAINED, **changes)])
    assert agent.explain()[0].startswith(first)


def test_explanation_names_rule_and_remedy(agent: Agent) -> None:
    agent.finds(explanations=[_EXPLAINED])
    assert agent.explain()[1:] == [
        "policy: the pod's own address",
        "decided by: Calico, iptables_nft, table ip nat, chain cali-nat-outgoing: -A cali-nat-outgoing -j MASQUERADE",
        "interface: eth0",
        "remedy: set natOutgoing to false",
    ]
    assert json.loads("\n".join(agent.explain(True))) == dict(_EXPLAINED, health=[], limits=[])


def test_name_of_a_pod_is_beside_its_address(agent: Agent) -> None:
    named = dict(_EXPLAINED, pod="default/web")
    network = dict(_CONFLICT, sources=["10.244.1.2/32", "10.244.1.4/31"], pods={"10.244.1.2/32": "default/web"})
    agent.finds(explanations=[named], conflicts=[network], verified=False)
    assert agent.explain()[0].endswith(", for tcp/443 from 10.244.1.2 (default/web)")
    assert json.loads("\n".join(agent.explain(True)))["pod"] == "default/web"
    assert "  only from: 10.244.1.2/32 (default/web), 10.244.1.4/31" in agent.verify().lines
    assert json.loads("\n".join(agent.verify(True).lines))["conflicts"] == [network]


def test_explanation_lists_all_answers_and_what_decides(agent: Agent) -> None:
    other = dict(_EXPLAINED, seen="pod", seen_address="10.244.1.2", interface="eth1", decided_by=None)
    agent.finds(explanations=[dict(_EXPLAINED, alternatives=[other], depends_on=["x"], not_understood=["y"])])
    assert agent.explain()[4:7] == [
        "also possible: sees the pod's own address (10.244.1.2), over eth1",
        "depends on: x",
        "not understood: y",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agrees": True}, "policy: the pod's own address; the translation is intended"),
        ({"policy": None}, "policy: nothing: this connection is outside the policy's scope"),
        ({"policy": None, "source": "192.0.2.1"}, "policy: nothing: this connection is outside the policy's scope"),
        ({"policy": None, "destination": "fd00::1"}, "policy: nothing: IPv6 is not managed (enableIPv6 is off)"),
    ],
)
def test_explanation_shows_the_policy(agent: Agent, changes: t.Dict[str, t.Any], said: str) -> None:
    agent.finds(explanations=[dict(_EXPLAINED, **changes)])
    assert agent.explain()[1].startswith(said)


@pytest.mark.parametrize(("source", "said"), [("10.244.1.2", " from 10.244.1.2"), (None, "")])
def test_without_a_copy_only_the_policy_is_shown(agent: Agent, source: t.Optional[str], said: str) -> None:
    policy = Policy({IPV4: (Declared(Match(), Promise(POD)),)})
    health = [{"code": "no_copy", "severity": "warning", "text": "packets were not tested: x", "remedy": "be root"}]
    answer = Answer(explanation.question(None, "10.9.9.9", source, "tcp", 80), NOT_TESTED)
    one = explanations.explanation(policy, explanation.Explained((judge.Decided(answer),)))
    agent.finds(explanations=[one], health=health)
    assert agent.explain() == [
        "10.9.9.9 was not tested, for tcp/80" + said,
        *(["policy: the pod's own address"] if source else []),
        "warning: packets were not tested: x; remedy: be root",
    ]


@pytest.mark.parametrize(
    ("origin", "managed", "destination", "named"),
    [
        ("active rules", ["ipv6"], "10.9.9.9", "IPv4"),
        ("active rules", ["ipv4"], "fd00::1", "IPv6"),
        ("none", [], "10.9.9.9", "IPv4"),
        ("none", [], "fd00::1", "IPv6"),
    ],
)
def test_explanation_without_a_policy_names_the_family_that_was_asked_about(
    agent: Agent, origin: str, managed: t.List[str], destination: str, named: str
) -> None:
    policy = {"origin": origin, "exempt": {family: [] for family in managed}}
    agent.finds(policy=policy, explanations=[dict(_EXPLAINED, policy=None, destination=destination)])
    said = "policy: nothing: no policy is given, and no rules of this agent's form were found for " + named
    assert agent.explain()[1] == said


def test_conflict_names_rule_services_and_remedy(agent: Agent) -> None:
    limit = {"code": "tc_ebpf", "text": "eBPF programs on eth0"}
    agent.finds(verified=False, conflicts=[dict(_CONFLICT, range="11.9.0.0/16"), _CONFLICT], limits=[limit])
    assert agent.verify().lines[1:] == [
        "error: 10.0.0.0/8, 11.9.0.0/16 see the node's address, not the pod's own address (rule of Calico); "
        "remedy: set natOutgoing to false",
        "  iptables_nft, table ip nat, chain cali-nat-outgoing: -A cali-nat-outgoing -j MASQUERADE",
        "  only: tcp/443",
        "not in the copy: eBPF programs on eth0",
    ]


def test_what_the_copy_lacks_is_listed_once(agent: Agent) -> None:
    limit = {"code": "tc_ebpf", "text": "eBPF programs on eth0"}
    reason = {"code": "tc_ebpf", "text": "not in the copy: eBPF programs on eth0", "ranges": []}
    agent.finds(verified=None, summary="not tested", untested=[reason], limits=[limit])
    assert agent.verify().lines == ["not tested", "not tested: not in the copy: eBPF programs on eth0"]
