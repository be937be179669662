# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook who against nodes in namespaces: which pod of a fleet is behind a connection."""

from __future__ import annotations

import time
import typing as t
from pathlib import Path

import pytest
from support import cni_results
from support.connection_lines import line
from support.fleet import Fleet, Played

NODES = ("-e", "ip_masq_agent_hosts=kube_node")
SUMMARY = {"ANSIBLE_STDOUT_CALLBACK": "kubenode.ip_masq.summary"}
SEEN, TO = "198.51.100.1:40123", "203.0.113.10:443"
LINE = "tcp 10.244.1.2:51844 (default/web-0) -> %s, seen as %s" % (TO, SEEN)
#: A connection of a pod, as the kernel tracks it behind masquerading.
_TRACKED = (
    "conntrack -I -p tcp -s 10.244.1.2 --sport 51844 -d 203.0.113.10 --dport 443 -r 203.0.113.10 --reply-port-src 443 "
    "-q 198.51.100.1 --reply-port-dst 40123 --state ESTABLISHED -t 431990 -u ASSURED,SEEN_REPLY"
)
#: Hosts of the fleet beside the nodes that differ.
_MANY = ["node%03d" % number for number in range(1, 98)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    """100 hosts: ``n1`` has the address and the connection, ``n2`` and all others have neither, ``n3`` no agent."""
    same = dict.fromkeys(_MANY, "n2")
    groups = {"kube_node": ["n1", "n2", "n3"], "many": [*_MANY, "n1", "n2", "n3"]}
    with Fleet(tmp_path_factory.mktemp("who"), groups, same) as made:
        made.group_vars["all"]["ansible_pipelining"] = True
        made.install("n1", "n2")
        node = made.nodes["n1"]
        node.ns.run(*"ip address add 198.51.100.1/32 dev lo".split())
        node.ns.run(*_TRACKED.split())
        cni_results.write(node.at("/var/lib/cni/results"), "default/web-0", "10.244.1.2", written=time.time() - 60)
        made.nodes["n2"].ns.run(*"ip address add 192.0.2.2/32 dev lo".split())
        made.nodes["n3"].ns.run(*"ip address add 192.0.2.3/32 dev lo".split())
        yield made


def _ask(fleet: Fleet, *arguments: str, seen: t.Optional[str] = SEEN) -> t.Tuple[Played, t.List[str]]:
    """Run the playbook, and return what it printed before Ansible's count."""
    given = () if seen is None else ("-e", "ip_masq_address=" + seen)
    played = fleet.play("who", *NODES, *given, *arguments, env=SUMMARY)
    lines = [line for line in played.said.splitlines() if line and not line.startswith("[")]
    return played, [line for line in lines if " unreachable" not in line]


def test_only_the_node_with_the_address_is_asked(fleet: Fleet) -> None:
    before = {name: fleet.calls(name) for name in fleet.nodes}
    played, lines = _ask(fleet, "-e", "ip_masq_to=" + TO)
    assert played.rc == 0 and lines == ["n1: " + LINE], played.said
    calls = {name: fleet.calls(name) - before[name] for name in fleet.nodes}
    assert calls == {"n1": 2, "n2": 1, "n3": 1}


@pytest.mark.parametrize(
    ("seen", "arguments", "answer"),
    [
        (SEEN, ("-e", "ip_masq_protocol=udp"), "n1 has 198.51.100.1: no tracked udp connection from " + SEEN),
        ("192.0.2.3:1", (), "n3 has 192.0.2.3: "),
    ],
)
def test_no_answer(fleet: Fleet, seen: str, arguments: t.Tuple[str, ...], answer: str) -> None:
    played, _lines = _ask(fleet, *arguments, seen=seen)
    assert played.rc == 2 and answer in played.said, played.said


def test_with_many_hosts_the_output_of_ansible_says_how_to_have_the_answer_alone(fleet: Fleet) -> None:
    played = fleet.play("who", *NODES, "-e", "ip_masq_address=" + SEEN)
    assert "for this alone, without lines for each node: ANSIBLE_STDOUT_CALLBACK=" in played.said, played.said


def test_connection_that_was_logged(fleet: Fleet) -> None:
    logged = line(1795403518, 1795403660, 40124, **{"orig.l4.sport": 51845}).decode("ascii")
    node = fleet.nodes["n1"].ns
    node.run("mount", "-t", "tmpfs", "none", "/var/log")
    node.run("mkdir", "/var/log/ip-masq-agent")
    node.run("tee", "/var/log/ip-masq-agent/connections.log", stdin=logged)
    played, lines = _ask(fleet, "-e", "ip_masq_at=2026-11-23T03:12", seen="198.51.100.1:40124")
    assert played.rc == 0, played.said
    assert lines[0] == (
        "n1: tcp 10.244.1.2:51845 -> 203.0.113.10:443, seen as 198.51.100.1:40124, from 2026-11-23T03:11:58Z to "
        "2026-11-23T03:14:20Z"
    )
    played, lines = _ask(fleet, "-e", "ip_masq_at=2026-11-23T04:12", seen="198.51.100.1:40124")
    assert played.rc == 2 and "no logged tcp connection" in played.said, played.said


def test_several_nodes_have_the_address(fleet: Fleet) -> None:
    other = fleet.nodes["n2"].ns
    other.run(*"ip address add 198.51.100.1/32 dev lo".split())
    try:
        played, lines = _ask(fleet, "--check")
    finally:
        other.run(*"ip address delete 198.51.100.1/32 dev lo".split())
    assert played.rc == 0 and lines == ["n1: " + LINE, "2 nodes have 198.51.100.1: n[1-2]"], played.said


def test_a_host_that_cannot_be_reached_hides_no_other(fleet: Fleet) -> None:
    fleet.hosts["n2"], reached = {"ansible_host": "127.0.0.1", "ansible_port": 1}, fleet.hosts["n2"]
    try:
        found, lines = _ask(fleet)
        missed, _lines = _ask(fleet, seen="192.0.2.9:1")
    finally:
        fleet.hosts["n2"] = reached
    assert found.rc == 0 and lines == ["n1: " + LINE], found.said
    assert "no node has 192.0.2.9: 2 nodes searched; 1 node did not answer: n2" in missed.said


@pytest.mark.parametrize(
    ("seen", "arguments", "problem"),
    [
        (None, (), "ip_masq_address is not given"),
        ("$(touch${IFS}x):1", (), "is not an address with a port"),
    ],
)
def test_a_bad_question_touches_no_host(
    fleet: Fleet, seen: t.Optional[str], arguments: t.Tuple[str, ...], problem: str
) -> None:
    before = {name: fleet.calls(name) for name in fleet.nodes}
    played, _lines = _ask(fleet, *arguments, seen=seen)
    assert played.rc == 2 and problem in played.said, played.said
    assert {name: fleet.calls(name) for name in fleet.nodes} == before


def test_100_hosts_beside_ping(fleet: Fleet, tmp_path: Path) -> None:
    """Of a host without the address no more is asked than by the module ping, and most often less."""
    ping = tmp_path / "ping.yml"
    ping.write_text("- hosts: many\n  gather_facts: false\n  tasks:\n    - ansible.builtin.ping:\n")
    calls = {}
    for name, run in {"ping": (str(ping),), "who": ("who", "-e", "ip_masq_address=" + SEEN)}.items():
        before = fleet.calls("n2")
        played = fleet.play(*run, "-e", "ip_masq_agent_hosts=many", env={**SUMMARY, "ANSIBLE_FORKS": "10"})
        assert played.rc == 0, played.said
        calls[name] = fleet.calls("n2") - before
    assert "n1: " + LINE in played.said and "without lines for each node" not in played.said
    assert calls["who"] == 98 and calls["ping"] >= 98
