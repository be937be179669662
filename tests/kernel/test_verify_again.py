# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the last result of ``verify`` is used again, when packets are sent anew, and if the policy changes meanwhile."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import verify
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import inspection
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.inspection import request
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions.verification import no_progress
from support.modules import apply
from support.private_node import private_paths
from support.topology import ADDRESSES, Topology
from support.unnamed_namespaces import inside

_A = ADDRESSES["ipv4"]


class Agent:
    """An agent on the node of a topology; what it does not need of its files is not there."""

    def __init__(self, topology: Topology, root: Path, backend: str = "iptables_nft") -> None:
        self.node = topology.node
        self.backend = backend
        self.paths = private_paths(root)
        self.configure("10.0.0.0/8")
        Path(self.paths.program).parent.mkdir(parents=True)
        Path(self.paths.program).write_text("this program")

    def configure(self, *exempt: str) -> None:
        """Give it a policy, and the node its rules."""
        policy = {"nonMasqueradeCIDRs": exempt, "backend": self.backend}
        Path(self.paths.config).parent.mkdir(parents=True, exist_ok=True)
        Path(self.paths.config).write_text(json.dumps(policy))
        apply(self.node, backend=self.backend, non_masquerade_cidrs=list(exempt))

    def verify(self, if_changed: bool = True) -> t.Dict[str, t.Any]:
        """The result of the command."""
        return t.cast(t.Dict[str, t.Any], inside(self.node, self._verify, if_changed))

    def _verify(self, if_changed: bool) -> t.Dict[str, t.Any]:
        wanted = request([], verify=True)
        done = verify.verify(Node(run), self.paths, wanted, True, no_progress, if_changed)
        return t.cast(t.Dict[str, t.Any], json.loads("\n".join(done.lines)))

    def asks_anew(self) -> bool:
        """Whether it sends packets although it need not where nothing has changed."""
        before = json.loads(Path(self.paths.verification_file).read_text())["time"]
        found = self.verify()
        again = found["tested_at"] == before
        assert again == ("nothing that they depend on has changed since" in found["summary"])
        return not again


@pytest.mark.parametrize("backend", ["iptables_nft", "iptables_legacy", "nftables"])
def test_nothing_is_asked_again_until_something_changes(topology: Topology, tmp_path: Path, backend: str) -> None:
    agent = Agent(topology, tmp_path, backend)
    counted = "table ip count { counter c { }; set s { type ipv4_addr; size 99; flags dynamic; }; chain c { %s; }; }"
    hook = "type filter hook forward priority 0; counter; counter name c; add @s { ip saddr }"
    agent.node.run("nft", "-f", "-", stdin=counted % hook)
    first = agent.verify()
    assert first["verified"] is True, first
    assert not agent.asks_anew()
    # Packets are counted, and fill the set.
    assert topology.ask(_A.outside[0]) == {_A.outside[0]: _A.node}
    assert "elements" in agent.node.run("nft", "list", "set", "ip", "count", "s")
    assert not agent.asks_anew()
    # An operator who asks gets an answer of now.
    assert agent.verify(if_changed=False)["tested_at"] > first["tested_at"]
    assert not agent.asks_anew()


#: Each changes something that a result can depend on.
_CHANGES = (
    "nft add table ip other",
    "nft add chain ip other c { type filter hook forward priority 5; }",
    "nft add rule ip other c ip daddr 198.51.100.77 accept",
    "nft add set ip other s { type ipv4_addr; }",
    "nft add element ip other s { 192.0.2.77 }",
    "iptables-legacy -t mangle -A FORWARD -d 198.51.100.78 -j ACCEPT",
    "ipset create other hash:net",
    "ipset add other 192.0.2.0/28",
    "ip link add other type veth peer name another",
    "ip address add 192.0.2.201/32 dev other",
    "ip link set other up",
    "ip link set another up",
    "ip route add 192.0.2.64/28 dev other",
    "ip rule add from 192.0.2.9 table 99 priority 99",
    "sysctl -qw net.ipv4.conf.other.rp_filter=2",
)


def test_every_change_is_noticed(topology: Topology, tmp_path: Path) -> None:
    agent = Agent(topology, tmp_path)
    assert agent.verify()["verified"] is True
    for change in _CHANGES:
        agent.node.run(*change.split())
        assert (change, agent.asks_anew()) == (change, True)
        # The kernel notices some changes of a link a moment later.
        assert any(not agent.asks_anew() for _attempt in range(10)), change
    agent.configure("10.0.0.0/8", "198.18.0.0/15")
    assert agent.asks_anew()
    Path(agent.paths.program).write_text("another program")
    assert agent.asks_anew()
    assert not agent.asks_anew()


@pytest.mark.parametrize(
    "timed",
    [
        "set s { type ipv4_addr; flags timeout; }",
        'chain c { type filter hook forward priority 0; meta hour "12:00"-"13:00" accept; }',
    ],
)
def test_what_time_changes_is_asked_anew(topology: Topology, tmp_path: Path, timed: str) -> None:
    agent = Agent(topology, tmp_path)
    agent.node.run("nft", "-f", "-", stdin="table ip timed { %s; }\n" % timed)
    agent.verify()
    assert agent.asks_anew()


def test_conflict_is_asked_anew(topology: Topology, tmp_path: Path) -> None:
    agent = Agent(topology, tmp_path)
    agent.node.run("iptables-nft", "-t", "nat", "-I", "POSTROUTING", "-d", _A.exempt[0], "-j", "MASQUERADE")
    assert agent.verify()["verified"] is False
    assert agent.asks_anew()


def test_incomplete_result_is_asked_anew(topology: Topology, tmp_path: Path) -> None:
    agent = Agent(topology, tmp_path)
    rule = ("POSTROUTING", "-d", _A.exempt[0], "-m", "ttl", "--ttl-eq", "5", "-j", "MASQUERADE")
    agent.node.run("iptables-nft", "-t", "nat", "-I", *rule)
    assert agent.verify()["verified"] is None
    assert agent.asks_anew()


@pytest.mark.parametrize(("changes", "verified"), ((0, False), (1, True), (inspection._READINGS, None)))
def test_a_policy_that_is_applied_meanwhile_is_no_conflict(topology: Topology, changes: int, verified: object) -> None:
    """Packets are sent again then; if it never ends, they are not tested."""
    options = {"backend": "iptables_nft", "non_masquerade_cidrs": ["10.0.0.0/8"]}
    apply(topology.node, **options)
    applied, edited = (
        inspection.ComparedPolicy(inspection.FROM_AGENT, build(one))
        for one in (options, dict(options, non_masquerade_cidrs=["172.16.0.0/12"]))
    )
    # Of each verification the first two are those of its reading.
    chosen = iter([edited, edited, applied] * changes)
    rest = applied if changes else edited
    found = inside(
        topology.node,
        lambda: inspection.inspect(Node(run), lambda: next(chosen, rest), request((), verify=True)),
    )
    assert (found["verified"], bool(found["conflicts"])) == (verified, not changes), found["summary"]
    assert any(inspection._CHANGING in one["text"] for one in found["health"]) == (verified is None)
