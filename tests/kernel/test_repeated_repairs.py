# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What another program undoes each time is repaired each time; the journal says so seldom, and who it is."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode, reference_agent
from support.marks import iptables_only
from support.namespaces import Namespace
from support.prometheus import parse
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, PODS, VARIANTS, Variant

CHAIN = "IP-MASQ-AGENT"
JUMP = "-m addrtype ! --dst-type LOCAL -j " + CHAIN
#: What ip-masq-agent looks for at every tick, and appends where it does not find it.
ITS_JUMP = (
    '-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination '
    'traffic to our custom IP-MASQ-AGENT chain" ' + JUMP
)
#: What it writes at every tick.
ITS_CHAIN = (
    ":%s - [0:0]" % CHAIN,
    "-A %s -d 10.0.0.0/8 -j RETURN" % CHAIN,
    "-A %s -j MASQUERADE" % CHAIN,
)
#: What is logged of as many as there are in an hour: tests/unit, test_repeated_repairs.py.
TICKS = 6


def another(variant: Variant) -> Variant:
    """A variant of iptables that does not hold our rules."""
    return VARIANTS["iptables_legacy" if variant.backend == "iptables_nft" else "iptables_nft"]


def undone(node: AgentNode) -> t.Dict[t.Any, float]:
    """The samples of the metric, by their labels."""
    values = parse((node.metrics_dir / "ip_masq_agent.prom").read_text()).values
    return {labels: value for (name, labels), value in values.items() if name.endswith("repairs_undone")}


@pytest.mark.parametrize(
    "backend, way",
    [
        ("iptables_nft", "a chain"),
        ("iptables_legacy", "a chain"),
        ("iptables_legacy", "a base chain"),
        ("nftables", "a chain"),
        ("nftables", "a base chain"),
    ],
)
def test_a_chain_of_ours_to_which_others_lead_masquerades_nothing(
    topology: Topology, tmp_path: Path, backend: str, way: str
) -> None:
    """In the place that the backend does not use. It may have been removed before, as often as one likes."""
    a, ns = ADDRESSES["ipv4"], topology.node
    node = AgentNode(ns, tmp_path).synced(backend=backend)
    other = another(BACKENDS[backend])
    for _again in range(3):
        other.load(ns, "ipv4", *ITS_CHAIN)
        assert node.sync().returncode == 0
        assert other.rules(ns, "ipv4") is None
    other.load(ns, "ipv4", ":%s - [0:0]" % CHAIN, "-A %s -j MASQUERADE" % CHAIN)
    if way == "a base chain":
        ns.run("nft", "add chain ip nat another { type nat hook postrouting priority 90; }")
        ns.run("nft", "add rule ip nat another jump " + CHAIN)
    else:
        other.load(ns, "ipv4", ":ANOTHER - [0:0]", "-A ANOTHER -j " + CHAIN, "-I POSTROUTING 1 -j ANOTHER")
    assert topology.ask(*a.exempt) == dict.fromkeys(a.exempt, a.node)
    assert node.status()["in_sync"] is False
    done = node.sync()
    assert done.returncode == 0, done.stderr
    assert topology.ask(*a.exempt) == dict.fromkeys(a.exempt, a.pod)
    assert "chain emptied: -N " + CHAIN in done.stdout
    status = node.status()
    assert (status["in_sync"], status["differs"], status["not_checked"]) == (True, [], [])
    assert [note for note in status["notes"] if "chain %s is empty and stays" % CHAIN in note]
    assert node.sync().stdout == ""
    # The chain goes once nothing leads to it.
    if way == "a base chain":
        ns.run("nft", "flush chain ip nat another; delete chain ip nat another")
    else:
        other.load(ns, "ipv4", "-D POSTROUTING -j ANOTHER", "-F ANOTHER", "-X ANOTHER")
    assert node.sync().returncode == 0
    assert other.rules(ns, "ipv4") is None
    assert not [note for note in node.status()["notes"] if "is empty and stays" in note]


@pytest.mark.parametrize(
    ("variant", "policy"), [("iptables_nft", "skip_marks"), ("iptables_legacy", "accept")], indirect=["variant"]
)
def test_a_second_jump_behind_a_rule_that_changes_marks_goes_each_time(
    topology: Topology, tmp_path: Path, variant: Variant, policy: str
) -> None:
    a, ns = ADDRESSES["ipv4"], topology.node
    options: t.Dict[str, t.Any] = (
        {"exemption": "accept", "sourceCIDRs": PODS[:1]} if policy == "accept" else {"skipMarks": ["0x4000/0x4000"]}
    )
    node = AgentNode(ns, tmp_path).synced(backend=variant.backend, **options)
    ns.run(variant.tool("ipv4"), "-t", "mangle", "-A", "FORWARD", "-j", "MARK", "--set-mark", "0x4000")
    mark = "-A POSTROUTING -j MARK --set-xmark 0x0/0x4000"
    variant.load(ns, "ipv4", mark)
    # kube-proxy masquerades what it has marked. Its own rules ask for the mark.
    last = ["-A POSTROUTING -j MASQUERADE"] if policy == "accept" else []
    destination, seen = (a.exempt[0], a.node) if policy == "accept" else (a.outside[0], a.pod)
    for _again in range(4):
        variant.load(ns, "ipv4", ITS_JUMP, *last)
        assert topology.ask(destination) == {destination: a.pod if policy == "accept" else a.node}
        assert node.status()["in_sync"] is False
        assert node.sync().returncode == 0
        assert variant.jumps(ns, "ipv4") == [JUMP]
        assert topology.ask(destination) == {destination: seen}
        for line in last:
            variant.load(ns, "ipv4", line.replace("-A", "-D", 1))


@iptables_only
def test_a_second_jump_that_directly_follows_is_left_alone(
    topology: Topology, tmp_path: Path, variant: Variant
) -> None:
    """It meets what the first one let through, unchanged. The reference agent of the same policy adds it for ever."""
    a, ns = ADDRESSES["ipv4"], topology.node
    node = AgentNode(ns, tmp_path)
    node.configure(backend=variant.backend)
    node.resync()
    node.settle()
    before = topology.ask(*a.exempt, *a.outside)
    variant.load(ns, "ipv4", ITS_JUMP)
    node.resync()
    assert node.resynced.stdout + node.resynced.stderr == ""
    assert variant.jumps(ns, "ipv4") == [JUMP, JUMP]
    assert topology.ask(*a.exempt, *a.outside) == before
    status = node.status()
    assert (status["in_sync"], status["differs"], status["drift_repaired"]) == (True, [], 0)
    assert node.resync() == [], "it costs what any resync costs"
    assert node.command("remove").returncode == 0
    assert variant.jumps(ns, "ipv4") == [] and variant.rules(ns, "ipv4") is None


def test_a_reference_agent_elsewhere_is_named_and_the_journal_stays_short(
    ns: Namespace, tmp_path: Path, variant: Variant
) -> None:
    """With the same policy, on another backend or variant. With metrics on, each tick is a full one."""
    node = AgentNode(ns, tmp_path, metrics=True).synced(backend=variant.backend, nonMasqueradeCIDRs=["10.0.0.0/8"])
    assert undone(node) == {(): 0}
    other, journal = another(variant), []
    with reference_agent(ns):
        for _tick in range(TICKS):
            # It would fail if the jump of the last tick were still there.
            other.load(ns, "ipv4", "-N " + CHAIN, *ITS_CHAIN[1:], ITS_JUMP)
            done = node.sync()
            assert done.returncode == 0
            journal += (done.stdout + done.stderr).splitlines()
        assert other.rules(ns, "ipv4") is None
        shown = node.command("status")
    assert len(journal) == 3, journal
    assert "jump removed" in journal[0] and "chain removed" in journal[1]
    assert "ipv4, %s: repaired 2 times since " % other.backend in journal[2]
    assert "'/ip-masq-agent infinity'" in journal[2]
    assert undone(node) == {(("program", "ip-masq-agent"),): TICKS - 1}
    assert shown.returncode == 0
    assert "in sync; another program undoes repairs, see notes" in shown.stdout
    assert "repaired %d times since " % TICKS in shown.stdout
    status = node.status()
    (one,) = status["repairs_undone"]
    assert (one["family"], one["backend"], one["times"]) == ("ipv4", other.backend, TICKS)
    assert one["program"] == "ip-masq-agent" and one["first"] <= one["last"]
    assert status["drift_repaired"] == TICKS
    info = node.module("ip_masq_info", {"verify": False})
    assert [one["text"] for one in info["health"] if "repaired %d times" % TICKS in one["text"]]


@pytest.mark.parametrize("variant", ["nftables"], indirect=True)
def test_the_module_that_installs_the_agent_repairs_and_warns(ns: Namespace, tmp_path: Path, variant: Variant) -> None:
    node = AgentNode(ns, tmp_path, installed=False)
    options: t.Dict[str, t.Any] = {"config": {"backend": variant.backend}}
    assert not node.module("ip_masq_agent", options).get("failed")
    for again in range(3):
        variant.unhook(ns, "ipv4")
        done = node.module("ip_masq_agent", options)
        assert done["changed"] is True and variant.jumps(ns, "ipv4") == [JUMP]
        warned = [text for text in done.get("warnings", ()) if "repaired %d times" % (again + 1) in text]
        assert len(warned) == (1 if again else 0)
