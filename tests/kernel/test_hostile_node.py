# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node whose names act on a terminal: of chains, comments, links, files, pods. No output has them as they are.

What a node that is not ours at all could answer: ``test_shown_result``.
"""

from __future__ import annotations

import json
import time
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nf_tables
from support import cni_results
from support import nft_messages as messages
from support.agent_node import AgentNode
from support.fleet import Fleet
from support.unnamed_namespaces import inside

NODES = ("-e", "ip_masq_agent_hosts=kube_node")
#: Clears the screen, goes back to the beginning of the line, rings, begins a sequence in one character, turns text.
EVIL = "\x1b[2J\r\x07\x9b2J\u202e"
#: The name of a link has no white space.
LINK = "e\x1b[2J\x07\x9b"
SHOWN = "\\x1b[2J"
SEEN = "198.51.100.1:40123"
_TRACKED = (
    "conntrack -I -p tcp -s 10.245.1.2 --sport 51844 -d 203.0.113.10 --dport 443 -r 203.0.113.10 --reply-port-src 443 "
    "-q 198.51.100.1 --reply-port-dst 40123 --state ESTABLISHED -t 431990 -u ASSURED,SEEN_REPLY"
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    """Two nodes with the agent, a rule of another program, and pods behind a link, all with such names."""
    with Fleet(tmp_path_factory.mktemp("hostile"), {"kube_node": ["n1", "n2"]}) as made:
        made.group_vars["all"]["ip_masq_agent_source_cidrs"] = []
        for node in made.nodes.values():
            _make_hostile(node)
        yield made


def _make_hostile(node: AgentNode) -> None:
    node.wire()
    batch = f"link add {LINK} type bridge\naddress add 10.245.1.1/24 dev {LINK}\nlink set {LINK} up\n"
    node.ns.run("ip", "-batch", "-", stdin=batch)
    node.ns.run(*"ip address add 198.51.100.1/32 dev lo".split())
    assert node.module("ip_masq_agent", {"config": {}})["changed"]
    comment = ("-m", "comment", "--comment", EVIL)
    node.ns.run(*"iptables-nft -t nat -I POSTROUTING -d 10.9.0.0/16 -j MASQUERADE".split(), *comment)
    node.ns.run(*"iptables-nft -t nat -I POSTROUTING -j MASQUERADE -o".split(), LINK)
    inside(node.ns, _write_table)
    node.ns.run(*_TRACKED.split())
    cni_results.write(node.at("/var/lib/cni/results"), "default/" + EVIL, "10.245.1.2", written=time.time() - 60)


def _write_table() -> None:
    """Write a table of nft with names that its own program would refuse."""
    to_range = (messages.payload(messages.NETWORK, 16, 2), messages.compare(b"\x0a\x08"), messages.expression("masq"))
    base = {EVIL: ("nat", messages.POSTROUTING, 90)}
    nf_tables.write(messages.table(messages.IP, EVIL, base, [(EVIL, to_range)]))


def _clean(said: str) -> None:
    acting = [line for line in said.split("\n") if not line.replace("\t", "").isprintable()]
    assert not acting


def test_the_agent(fleet: Fleet) -> None:
    node = fleet.nodes["n1"]
    drop_in = node.drop_in("%s.json" % EVIL, "{}")
    for words in (
        "sync",
        "verify",
        "verify --json",
        "status",
        "status --json",
        "explain 10.8.0.1",
        "explain 10.8.0.1 --json",
        "who " + SEEN,
        "ports",
        "metrics",
    ):
        done = node.call(node.paths.program, *words.split())
        _clean(done.stdout + done.stderr)
        if words in ("verify", "status"):
            assert done.returncode == 5 and SHOWN in done.stdout, done.stdout + done.stderr
    drop_in.write_text(json.dumps({"nonMasqueradeCIDRs": [EVIL]}))
    for word in ("sync", "status"):
        done = node.call(node.paths.program, word)
        _clean(done.stdout + done.stderr)
        assert done.returncode == 78 and SHOWN in done.stdout + done.stderr
    drop_in.unlink()
    assert node.call(node.paths.program, "sync").returncode == 0


@pytest.mark.parametrize("callback", ["default", "kubenode.ip_masq.summary"])
def test_playbooks(fleet: Fleet, callback: str) -> None:
    """The configuration of one of the nodes is broken."""
    for name, config in (("n1", {}), ("n2", {"nonMasqueradeCIDRs": [EVIL]})):
        node = fleet.nodes[name]
        node.call(node.paths.program, "verify")
        node.drop_in("%s.json" % EVIL, json.dumps(config))
    env = {"ANSIBLE_STDOUT_CALLBACK": callback, "ANSIBLE_NOCOLOR": "1"}
    told = []
    for arguments in (
        ("status",),
        ("report",),
        ("who", "-e", "ip_masq_address=" + SEEN),
        ("apply", "-CD", "-e", "ip_masq_agent_verify=before"),
        ("apply", "-CD", "-e", "ip_masq_agent_non_masquerade_cidrs=['10.0.0.0/9']"),
        ("remove", "-CD"),
    ):
        told.append(fleet.play(*arguments, *NODES, env=env).said)
        _clean(told[-1])
    lines = told[0].splitlines()
    for state in ("n1: conflicts", "n2: broken config"):
        assert any(state in line and SHOWN in line for line in lines), told[0]
    for path in (fleet.folder / "ip-masq-report").iterdir():
        _clean(path.read_bytes().decode().replace("\r\n", "\n"))
