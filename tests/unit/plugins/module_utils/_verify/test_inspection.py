# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked for is checked, policies become statements about packets, and ranges are looked over."""

from __future__ import annotations

import ipaddress
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.backend_names import IPTABLES_NFT
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4, IPV6
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import (
    DROPPED,
    SENT,
    Answer,
    MetRule,
    Question,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import inspection
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import judge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions.explanation import Explained
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways import packet_policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.words import explanations, health, verdict
from support.node_states import state

_POD, _NODE, _EXEMPT, _OUTSIDE = "10.244.1.2", "198.51.100.1", "10.9.9.9", "203.0.113.1"
_POLICY = packet_policy.policy_of({IPV4: from_config(build({}), IPV4)})


def test_request_in_one_form() -> None:
    asked = inspection.request(["FD00::0:1"], "fd00:0::2", "udp", 53, True, 7)
    assert asked == (("fd00::1",), "fd00::2", "udp", 53, True, 7, 60, ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["10.0.0.0/8"], None, "tcp", 80, False), "without a prefix length"),
        (([""], None, "tcp", 80, False), "destinations: '' is not an IP address"),
        ((["10.0.0.1"], "fd00::1", "tcp", 80, False), "10.0.0.1 is not of the IP version of the source fd00::1"),
        (([], None, "gre", 80, False), "protocol: gre is unknown: use icmp"),
        (([], None, "tcp", 65536, False), "port: 65536 is outside 1-65535"),
        (([], None, "tcp", 80, True, -1), "max_questions: -1 is negative: .*, or 0 for none"),
    ],
)
def test_request_refused(arguments: t.Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inspection.request(*arguments)


def test_policy_of_a_family_that_is_not_managed_is_empty() -> None:
    assert str(_POLICY.promise(_POD, _EXEMPT, "tcp", 80)) == "pod"
    assert str(_POLICY.promise(_POD, "169.254.1.1", "tcp", 80)) == "pod"
    assert str(_POLICY.promise(_POD, _OUTSIDE, "udp", 53)) == "node"
    assert _POLICY.promise("fd00::1", "2001:db8::1", "tcp", 80) is None
    both = build({"enable_ipv6": True, "non_masquerade_cidrs": ["fd00::/8"], "masq_link_local": True})
    policy = packet_policy.policy_of({family: from_config(both, family) for family in (IPV4, IPV6)})
    assert str(policy.promise("fd00::1", "fd00:1::1", "tcp", 80)) == "pod"
    assert str(policy.promise("fd00::1", "2001:db8::1", "tcp", 80)) == "node"
    assert str(policy.promise(_POD, "169.254.1.1", "tcp", 80)) == "node"


def test_policy_of_some_sources_and_interfaces_is_silent_on_others() -> None:
    options = {
        "masquerade_cidrs": ["10.1.0.0/16"],
        "source_cidrs": ["10.244.0.0/16"],
        "except_interfaces": ["cni+"],
        "out_interfaces": ["eth0", "cni0"],
    }
    policy = packet_policy.policy_of({IPV4: from_config(build(options), IPV4)})
    assert str(policy.promise(_POD, _EXEMPT, "tcp", 80, "eth0")) == "pod"
    assert str(policy.promise(_POD, _EXEMPT, "tcp", 80)) == "pod"
    assert str(policy.promise(_POD, "10.1.2.3", "tcp", 80, "eth0")) == "node"
    assert str(policy.promise(_POD, _OUTSIDE, "tcp", 80, "eth0")) == "node"
    for source, interface in (("10.9.1.1", "eth0"), (_POD, "eth1"), (_POD, "cni0")):
        assert policy.promise(source, _OUTSIDE, "tcp", 80, interface) is None


def _explained(destination: str, source: str, chain: str) -> t.Dict[str, t.Any]:
    rule = MetRule(IPTABLES_NFT, "ip nat", chain, "-A %s -j MASQUERADE" % chain)
    service = "10.244.9.9" if chain.startswith("KUBE") and source == _NODE else destination
    answer = Answer(Question(destination, _POD), SENT, source, 1, service, 80, "eth0", decided_by=rule)
    return _said(answer)


def _said(answer: Answer) -> t.Dict[str, t.Any]:
    decided = judge.decide(_POLICY, judge.Addresses(state()), answer)
    return explanations.explanation(_POLICY, Explained((decided,)))


@pytest.mark.parametrize(
    ("destination", "source", "chain", "seen", "agrees", "owner", "remedy"),
    [
        (_OUTSIDE, _NODE, "IP-MASQ-AGENT", "node", True, "ip-masq-agent", None),
        (_EXEMPT, _POD, "IP-MASQ-AGENT", "pod", True, "ip-masq-agent", None),
        (_EXEMPT, _NODE, "cali-nat-outgoing", "node", False, "Calico", "natOutgoing"),
        (_EXEMPT, _NODE, "KUBE-POSTROUTING", "node", True, "kube-proxy", None),
        (_OUTSIDE, _POD, "KUBE-POSTROUTING", "pod", False, "kube-proxy", "sync"),
        (_OUTSIDE, "192.0.2.7", "mine", "192.0.2.7", False, "unknown", "table nat, chain"),
        (_OUTSIDE, _POD, "mine", "pod", False, "unknown", "auditd); or exempt the range in the policy"),
        (_EXEMPT, _NODE, "mine", "node", False, "unknown", "auditd); or masquerade the range in the policy"),
    ],
)
def test_explanation(
    destination: str, source: str, chain: str, seen: str, agrees: bool, owner: str, remedy: t.Optional[str]
) -> None:
    found = _explained(destination, source, chain)
    assert (found["seen"], found["seen_address"], found["agrees"]) == (seen, source, agrees)
    assert found["decided_by"]["owner"] == owner
    assert found["remedy"] is None if remedy is None else remedy in found["remedy"]
    assert source != "192.0.2.7" or found["remedy"].endswith("auditd)")


def _conflict(declared: str, seen: str, owner: str, **more: t.Any) -> t.Dict[str, t.Any]:
    rule = None if owner == "none" else {"rule": "-A c -j MASQUERADE"}
    known = {"policy": declared, "seen": seen, "owner": owner, "decided_by": rule, "severity": "error"}
    return {"range": "10.8.0.0/16", **known, "services": [], "sources": [], "remedy": "do it", **more}


@pytest.mark.parametrize(
    ("conflicts", "lines"),
    [
        ([], []),
        ([_conflict("pod", "node", "Calico"), _conflict("pod", "node", "Calico", range="10.9.0.0/16")],
         ["10.8.0.0/15 sees the node's address, not the pod's own address (rule of Calico); remedy: do it"]),
        ([_conflict("pod", "192.0.2.7", "unknown", severity="warning", sources=["10.244.1.0/25"], services=["tcp/80"])],
         ["10.8.0.0/16 sometimes sees 192.0.2.7, not the pod's own address (rule of an unknown program: -A c -j "
          "MASQUERADE); only: tcp/80; "
          "only from: 10.244.1.0/25; remedy: do it"]),
        ([_conflict("node", "pod", "Calico"), _conflict("node", "pod", "none", decided_by={"rule": "-j RETURN"})],
         ["10.8.0.0/16 sees the pod's own address, not the node's address (rule of Calico); remedy: do it",
          "10.8.0.0/16 sees the pod's own address, not the node's address (no rule); remedy: do it"]),
    ],
)  # fmt: skip
def test_what_is_undone_is_told_with_the_remedy(
    conflicts: t.Sequence[t.Dict[str, t.Any]], lines: t.Sequence[str]
) -> None:
    assert explanations.undone(conflicts) == lines


def test_conflicts_are_told_in_the_ranges_of_the_policy() -> None:
    ruleset = from_config(build({"masquerade_cidrs": ["10.3.0.0/24", "10.8.0.0/16", "10.233.0.0/17"]}), IPV4)
    left = intervals.difference(
        intervals.of_networks(ruleset.decisions[1].match.destinations),
        intervals.of_networks(ruleset.decisions[0].match.destinations),
    )
    ranges = [str(one) for one in intervals.networks(left, IPV4) if str(one) != "169.254.0.0/16"]
    pods = list(map(str, ipaddress.ip_network("10.244.0.0/16").address_exclude(ipaddress.ip_network("10.244.9.9/32"))))
    conflicts = [_conflict("pod", "node", "Calico", range=one, sources=pods) for one in ranges]
    assert explanations.undone(conflicts, list(ruleset.networks[0])) == [
        "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 except 10.3.0.0/24, 10.8.0.0/16, 10.233.0.0/17 see the node's "
        "address, not the pod's own address (rule of Calico); only from: 10.244.0.0/16 except 10.244.9.9/32; "
        "remedy: do it"
    ]


def test_packet_that_does_not_leave_neither_agrees_nor_disagrees() -> None:
    answer = Answer(Question(_EXEMPT, _POD), DROPPED, where="rule in table ip filter")
    found = _said(answer)
    assert (found["outcome"], found["policy"], found["seen"], found["agrees"]) == (DROPPED, "pod", None, None)
    assert found["dropped_by"] == "rule in table ip filter"


@pytest.mark.parametrize(
    ("cidrs", "codes"),
    [
        ([], ["nothing_exempt"]),
        (["10.0.0.0/8", "192.168.0.0/16"], []),
        (["10.1.0.0/16", "192.168.0.0/16", "10.0.0.0/8"], ["overlapping_ranges"]),
        (["0.0.0.0/0", "10.0.0.0/8"], ["everything_exempt", "overlapping_ranges"]),
    ],
)
def test_ranges(cidrs: t.List[str], codes: t.List[str]) -> None:
    config = build({"non_masquerade_cidrs": cidrs})
    assert [one.code for one in health.range_health(config.non_masquerade_cidrs)] == codes


_RULESETS = {IPV4: from_config(build({}), IPV4)}
_CONFLICT = {
    "range": "10.8.0.0/16", "policy": "pod", "seen": "node", "decided_by": None, "owner": "none", "severity": "error",
    "remedy": "sync", "services": [], "sources": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "verified", "summary"),
    [
        ({}, True, "10 kinds of packets, all match the policy"),
        ({"untested": [{"text": "x"}]}, None, "10 kinds of packets match the policy; not tested: x"),
        (
            {"untested": [{"text": "x"}, {"text": "y"}]},
            None,
            "10 kinds of packets match the policy; not tested: x (and 1 more reason)",
        ),
        (
            {"conflicts": [_CONFLICT], "untested": [{"text": "x"}]},
            False,
            "10.8.0.0/16 sees the node's address, not the pod's own address (no rule); remedy: sync",
        ),
    ],
)
def test_summary_never_says_more_than_was_tested(
    changes: t.Dict[str, t.Any], verified: t.Optional[bool], summary: str
) -> None:
    found = dict({"questions": 10, "conflicts": [], "untested": []}, **changes)
    said = verdict.verdict(_RULESETS, [], found)
    assert said[0] is verified and said[1].startswith(summary)
    assert verdict.verdict({}, [], found) == (None, "not verified: there is no policy")


@pytest.mark.parametrize(
    ("leaks", "missed", "summary"),
    [
        ("ignore", [], "10 kinds of packets, all match the policy"),
        ("count", [], "10 kinds of packets match the policy; packets of no connection leave with the pod's address, "
         "and are counted: set leaks to drop"),
        ("drop", [], "10 kinds of packets match the policy; packets of no connection leave with the pod's address: "
         "add the networks of these pods to source_cidrs"),
        ("count", [{"text": "x"}], "10 kinds of packets match the policy; not tested: x; packets of no connection "
         "leave with the pod's address, and are counted: set leaks to drop"),
    ],
)  # fmt: skip
def test_summary_has_packets_without_a_connection_where_leaks_is_set(
    leaks: str, missed: t.List[t.Dict[str, str]], summary: str
) -> None:
    config = build({"leaks": leaks, "source_cidrs": ["10.244.0.0/16"]})
    rulesets = {IPV4: from_config(config, IPV4)}
    found = {"questions": 10, "conflicts": [], "untested": missed}
    findings = list(inspection._leak_health(packet_policy.policy_of(rulesets), True))
    said = verdict.verdict(rulesets, findings, found)
    assert said == (None if missed else True, summary)
    assert not list(inspection._leak_health(packet_policy.policy_of(rulesets), False))
