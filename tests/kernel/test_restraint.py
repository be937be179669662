# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reference agent beside ours, with the same policy: it adds a jump at every tick, and no packet cares."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.marks import iptables_only
from support.modules import apply
from support.namespaces import Namespace, until
from support.prometheus import parse
from support.variants import VARIANTS, Variant

CHAIN = "IP-MASQ-AGENT"
JUMP = "-m addrtype ! --dst-type LOCAL -j " + CHAIN
#: What ip-masq-agent looks for at every tick, and appends where it does not find it.
ITS_JUMP = (
    '-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination '
    'traffic to our custom IP-MASQ-AGENT chain" ' + JUMP
)
MOST = 3


@pytest.fixture
def node(ns: Namespace, tmp_path: Path, variant: Variant) -> AgentNode:
    """A node in sync."""
    made = AgentNode(ns, tmp_path)
    made.configure(backend=variant.backend)
    made.resync()
    made.settle()
    return made


def tick(node: AgentNode, variant: Variant) -> None:
    """What the other agent does once a minute."""
    if len(variant.jumps(node.ns, "ipv4")) < 2:
        variant.load(node.ns, "ipv4", ITS_JUMP)


def fight(node: AgentNode, variant: Variant) -> None:
    """As many ticks as ours repairs, and one more."""
    for repaired in range(1, MOST + 1):
        tick(node, variant)
        assert node.resync() == ["sync"]
        assert "duplicate jump removed" in node.resynced.stdout
        assert variant.jumps(node.ns, "ipv4") == [JUMP]
        assert node.status()["drift_repaired"] == repaired
    tick(node, variant)
    assert node.resync() == ["sync"]


@iptables_only
def test_a_second_jump_stays_after_a_few_removals_and_is_reported_once(node: AgentNode, variant: Variant) -> None:
    fight(node, variant)
    assert node.resynced.returncode == 0
    assert variant.jumps(node.ns, "ipv4") == [JUMP, JUMP]
    assert "not repaired again" in node.resynced.stdout + node.resynced.stderr
    status = node.status()
    assert (status["in_sync"], status["drift_repaired"], status["differs"]) == (True, MOST, [])
    (left,) = status["withheld"]
    assert (left["family"], left["backend"], left["action"]) == ("ipv4", variant.backend, "duplicate jump removed")
    (note,) = [note for note in status["notes"] if "not repaired again" in note]
    assert "our custom IP-MASQ-AGENT chain" in note and "changes nothing for packets" in note
    shown = node.command("status")
    assert shown.returncode == 0 and note in shown.stdout
    assert "differences without effect on packets: 1" in shown.stdout
    # From here on a resync costs what it costs on any node, and says nothing.
    assert node.resync() == []
    assert node.sync().stdout + node.sync().stderr == ""


@iptables_only
def test_what_changes_packets_is_repaired_all_the_time(node: AgentNode, variant: Variant) -> None:
    fight(node, variant)
    for _again in range(MOST + 1):
        variant.lose(node.ns, "ipv4", "10.0.0.0/8")
        assert node.resync() == ["sync"]
        assert "-d 10.0.0.0/8 -j RETURN" in (variant.rules(node.ns, "ipv4") or [])
        assert variant.jumps(node.ns, "ipv4") == [JUMP, JUMP]
    for _again in range(MOST + 1):
        variant.load(node.ns, "ipv4", "-A POSTROUTING -j " + CHAIN)
        assert node.resync() == ["sync"]
        assert variant.jumps(node.ns, "ipv4") == [JUMP, JUMP]
    variant.unhook(node.ns, "ipv4")
    assert node.resync() == ["sync"]
    assert variant.jumps(node.ns, "ipv4") == [JUMP]


@iptables_only
def test_after_an_hour_it_is_tried_again(node: AgentNode, variant: Variant) -> None:
    fight(node, variant)
    state = json.loads(node.state_file.read_text())
    state["harmless"] = [[seconds - 3600, repair] for seconds, repair in state["harmless"]]
    node.state_file.write_text(json.dumps(state))
    assert node.sync().returncode == 0
    assert variant.jumps(node.ns, "ipv4") == [JUMP]


@iptables_only
def test_a_module_without_a_memory_repairs(node: AgentNode, variant: Variant) -> None:
    fight(node, variant)
    assert apply(node.ns, backend=variant.backend)["changed"] is True
    assert variant.jumps(node.ns, "ipv4") == [JUMP]


def test_the_other_program_is_reported(ns: Namespace, tmp_path: Path) -> None:
    variant = VARIANTS["iptables_nft"]
    node = AgentNode(ns, tmp_path, metrics=True)
    node.configure(backend=variant.backend)
    node.resync()
    fight(node, variant)
    assert "no running ip-masq-agent was found" in " ".join(node.status()["notes"])
    assert _withheld(node) == {(("program", "unknown"),): 1}
    daemon = ns.popen("bash", "-c", "exec -a /ip-masq-agent sleep infinity")
    try:
        until(lambda: _name(daemon.pid) == b"/ip-masq-agent", "the process to have its name")
        assert "the running process '/ip-masq-agent infinity'" in " ".join(node.status()["notes"])
        assert "/ip-masq-agent infinity" in node.command("status").stdout
        assert node.sync().returncode == 0
    finally:
        daemon.kill()
        daemon.communicate()
    assert _withheld(node) == {(("program", "ip-masq-agent"),): 1}
    assert _metrics(node)["ip_masq_agent_in_sync", ()] == 1


def _metrics(node: AgentNode) -> t.Dict[t.Any, float]:
    return parse((node.metrics_dir / "ip_masq_agent.prom").read_text()).values


def _withheld(node: AgentNode) -> t.Dict[t.Any, float]:
    return {labels: count for (name, labels), count in _metrics(node).items() if name.endswith("repairs_withheld")}


def _name(pid: int) -> bytes:
    return Path("/proc/%d/cmdline" % pid).read_bytes().split(b"\0")[0]


@iptables_only
def test_the_module_that_installs_the_agent_does_as_the_agent_does(
    ns: Namespace, tmp_path: Path, variant: Variant
) -> None:
    node = AgentNode(ns, tmp_path, installed=False)
    options: t.Dict[str, t.Any] = {"config": {"backend": variant.backend}}
    assert not node.module("ip_masq_agent", options).get("failed")
    for _repaired in range(MOST):
        tick(node, variant)
        assert node.module("ip_masq_agent", options)["changed"] is True
    tick(node, variant)
    for check in (True, False):
        done = node.module("ip_masq_agent", options, check=check)
        assert done["changed"] is False
        assert any("not repaired again" in warning for warning in done["warnings"])
