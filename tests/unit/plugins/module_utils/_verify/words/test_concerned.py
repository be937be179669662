# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which policy gets which note on which node; a sane one gets none."""

from __future__ import annotations

import ipaddress
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import fixed_source_ports
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.local_ports import LocalPorts
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.node_state import NodeState
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.words import concerned
from support.node_states import state
from support.rule_shapes import address, route

PODS = {"source_cidrs": ["10.244.0.0/16"]}
#: Docker and a bridge of pods; a pod has an address of RFC 6598, or of RFC 1918 beside it; IPv6 pods.
BRIDGE = state()
SHARED = state([route("100.64.1.0/24", 10)])
SIX = state([route("fd00:10:244:1::/64", 3)])
#: Calico: a route for each pod, and its block.
CALICO = state([route("10.245.0.%d/32" % one, 10 + one % 2) for one in range(1, 9)])
BARE = BRIDGE._replace(
    routing=BRIDGE.routing._replace(
        addresses=(address("198.51.100.1/24", 2),), routes=(route("0.0.0.0/0", 2, "198.51.100.2"),)
    )
)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_source_ports, "udp_servers", lambda: (67, 5353))
    monkeypatch.setattr(fixed_source_ports, "nfs_servers", lambda: (ipaddress.ip_address("203.0.113.9"),))


def _notes(policy: t.Mapping[str, t.Any], node: NodeState) -> t.List[str]:
    config = build(policy)
    found = [*concerned.concerns(config, node), *concerned.ipv6_not_managed(config.families, node)]
    return ["%s: %s: %s" % (one.code, one.text, one.remedy) for one in found]


@pytest.mark.parametrize("node", [BRIDGE, CALICO, BARE], ids=["bridge", "calico", "bare"])
@pytest.mark.parametrize(
    "policy",
    [
        PODS,
        dict(PODS, exemption="enforce"),
        dict(PODS, non_masquerade_cidrs=["10.0.0.0/8"]),
        dict(PODS, non_masquerade_cidrs=["10.244.0.0/16", "10.245.0.0/16"], leaks="drop"),
        {"source_cidrs": ["10.244.0.0/16", "fd00:10:244::/48"], "enable_ipv6": True},
        dict(PODS, masquerade_cidrs=["10.20.0.0/16"]),
        dict(PODS, to_ports="auto"),
        dict(PODS, rules=[{"action": "masquerade", "protocols": ["udp"], "ports": [53]}]),
        dict(PODS, non_masquerade_cidrs=[], rules=[{"action": "exempt", "destinations": ["10.0.0.0/8"]}]),
        dict(PODS, non_masquerade_cidrs=[], out_interfaces=["eth0"]),
        dict(PODS, non_masquerade_cidrs=[], except_interfaces=["cni0", "cali+"]),
        {"non_masquerade_cidrs": ["0.0.0.0/0"], "masq_link_local": False},
    ],
)
def test_a_sane_policy_gets_none(policy: t.Dict[str, t.Any], node: NodeState) -> None:
    assert _notes(policy, node) == []


@pytest.mark.parametrize(
    "policy, node, wanted",
    [
        # Public issue 65 of ip-masq-agent: the list is empty.
        (dict(PODS, non_masquerade_cidrs=[]), BRIDGE, [r"pods_not_exempt: .*\(10\.244\.1\.0/24\)"]),
        (dict(PODS, non_masquerade_cidrs=["10.96.0.0/12"]), BRIDGE, ["pods_not_exempt: .*10.244.1.0/24"]),
        (dict(PODS, masquerade_cidrs=["10.244.0.0/16"]), BRIDGE, ["pods_not_exempt: .*10.244.1.0/24"]),
        ({"source_cidrs": ["100.64.0.0/10"]}, SHARED, ["pods_not_exempt: .*100.64.1.0/24"]),
        ({"source_cidrs": ["100.64.0.0/10"], "nomasq_all_reserved_ranges": True}, SHARED, []),
        ({"source_cidrs": ["10.245.0.0/16"], "non_masquerade_cidrs": []}, CALICO, ["pods_not_exempt: .*10.245.0"]),
        # IPv6 that nothing manages.
        (PODS, SIX, ["ipv6_not_managed: .*set enable_ipv6"]),
        (
            {"source_cidrs": ["10.244.0.0/16", "fd00:10::/32"], "enable_ipv6": True},
            SIX,
            ["pods_not_exempt: .*fd00:10:244:1::/64"],
        ),
        (
            {
                "source_cidrs": ["10.244.0.0/16", "fd00:10::/32"],
                "non_masquerade_cidrs": ["10.0.0.0/8", "fd00::/8"],
                "enable_ipv6": True,
            },
            SIX,
            [],
        ),
        # The node itself, and guests of others.
        (
            {},
            BRIDGE,
            [
                r"all_sources: source_cidrs is not set: the policy also concerns the node itself and docker0 "
                r"\(172\.17\.0\.0/16\); verify does not test .* guests; its UDP servers on 67, 5353 send from .*: "
                r"set source_cidrs to the networks of pods \(routes of this node show 10\.244\.1\.0/24\)$"
            ],
        ),
        ({}, BARE, [r"all_sources: [^(]*the node itself; .*to the networks of pods$"]),
        ({"random_fully": False}, BARE, [r"all_sources: [^;]*the node itself: set"]),
        ({"to_ports": "auto"}, BARE, ["NFS servers that want a port below 1024 refuse it: 203.0.113.9"]),
        ({"to_ports": ["512-1023"]}, BARE, ["itself; its UDP servers on 67, 5353 send from other ports: set"]),
        ({"to_ports": "auto", "non_masquerade_cidrs": ["203.0.113.0/24"]}, BARE, ["send from other ports: set"]),
        ({"out_interfaces": ["eth0"]}, BRIDGE, ["all_sources: "]),
        ({"non_masquerade_cidrs": []}, BRIDGE, ["pods_not_exempt: ", "all_sources: "]),
    ],
)
def test_what_a_policy_concerns(policy: t.Dict[str, t.Any], node: NodeState, wanted: t.List[str]) -> None:
    found = _notes(policy, node)
    assert len(found) == len(wanted) and all(map(re.search, wanted, found)), found


@pytest.mark.parametrize("exemption", ["accept", "enforce"])
@pytest.mark.parametrize(
    "policy, reason",
    [
        (
            {},
            "mode source_cidrs is not set: set mode source_cidrs to the networks of pods (routes of this node show 10",
        ),
        ({"out_interfaces": ["eth0"]}, "mode source_cidrs is not set: set"),
        ({"except_interfaces": ["cni0"]}, "mode source_cidrs is not set: set"),
        ({"source_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}, "mode source_cidrs has every IPv4 address: set"),
        (
            {"source_cidrs": ["10.244.0.0/16", "::/0"], "enable_ipv6": True},
            "mode source_cidrs has every IPv6 address: set",
        ),
    ],
)
def test_addresses_of_unknown_sources_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, exemption: str, policy: t.Dict[str, t.Any], reason: str
) -> None:
    monkeypatch.setattr(node_state, "read_network", lambda _wanted: BRIDGE)
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        concerned.require_pods(build(dict(policy, exemption=exemption)), lambda name: "mode " + name)
    assert str(caught.value).startswith("mode exemption: %s also keeps" % exemption)
    concerned.require_pods(build(dict(policy, exemption="return")))
    concerned.require_pods(build(dict(PODS, exemption=exemption)))


_UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  1: 00000000:0043 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0
  2: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0
  3: 00000000:12B5 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0 0
  4: 0A0A0A0A:0044 01010101:0043 01 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0
  5: 00000000:CA6C 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0 0
"""
_UDP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue
  1: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000
  2: 00000000000000000000000000000000:14E9 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000
"""
_MOUNTS = """\
nas:/a /a nfs4 rw,vers=4.2,proto=tcp,clientaddr=198.51.100.1,addr=203.0.113.9 0 0
nas:/b /b nfs rw,mountaddr=203.0.113.7,addr=203.0.113.9,mountproto=udp 0 0
proc /proc proc rw 0 0
six:/ /c nfs4 rw,addr=2001:db8::9 0 0
odd:/ /d nfs4 rw,addr=abc 0 0
odd
"""


def test_programs_whose_peers_ask_for_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    files = {"/proc/net/udp": _UDP, "/proc/net/udp6": _UDP6, "/proc/mounts": _MOUNTS}
    monkeypatch.setattr(fixed_source_ports.files, "lines", lambda path: files[path].splitlines())
    monkeypatch.setattr(fixed_source_ports, "read_local_ports", lambda: LocalPorts(32768, 60999))
    assert fixed_source_ports.udp_servers() == (67, 5353)
    assert list(map(str, fixed_source_ports.nfs_servers())) == ["203.0.113.9", "2001:db8::9"]
