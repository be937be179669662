# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook report against nodes in namespaces."""

from __future__ import annotations

import csv
import io
import json
import re
import typing as t
from pathlib import Path

import pytest
from support.fleet import Fleet, Played
from support.variants import BACKENDS

NODES = ("-e", "ip_masq_agent_hosts=kube_node")
SUMMARY = {"ANSIBLE_STDOUT_CALLBACK": "kubenode.ip_masq.summary"}
NFT = BACKENDS["iptables_nft"]
#: What is no text in Jinja, HTML and spreadsheets, as a node can send it.
HOSTILE = "{{ 7 * 7 }}<script>"
FILES = ("report.json", "report.csv", "report.html")
#: The states of the fleet's nodes, worst first.
STATES = [
    ("unreachable", ["n4"]),
    ("not installed", ["n5"]),
    ("broken config", ["n3"]),
    ("not in sync", ["n2"]),
    ("conflicts", ["n6"]),
    ("in sync", ["n1"]),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    """A node in each of ``STATES``."""
    names = ["n%d" % number for number in range(1, 7)]
    with Fleet(tmp_path_factory.mktemp("report"), {"kube_node": names}, {"n4": "n1"}) as made:
        made.hosts["n4"] = {"ansible_host": "127.0.0.1", "ansible_port": 1}
        # What applies to nodes must not apply to the controller.
        made.group_vars["all"]["ansible_become_method"] = "no.such.method"
        made.nodes["n1"].wire()
        made.nodes["n6"].wire()
        other = ("-t", "nat", "-I", "POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
        made.nodes["n6"].ns.run("iptables-nft", *other)
        made.install("n1", "n2", "n3", "n6")
        NFT.lose(made.nodes["n2"].ns, "ipv4", "10.0.0.0/8")
        made.nodes["n3"].configure(nonMasqueradeCIDRs=[HOSTILE])
        yield made


def reported(fleet: Fleet, *arguments: str, **env: str) -> Played:
    """A run of the playbook; it does not fail for what it finds."""
    played = fleet.play("report", *NODES, *arguments, env={**SUMMARY, **env})
    assert played.rc == 0, played.said
    return played


def test_every_node_is_in_the_table_and_in_the_files(fleet: Fleet) -> None:
    before = {name: node.files() for name, node in fleet.nodes.items()}
    played = reported(fleet)
    lines = [line for line in played.said.splitlines() if line]
    print("\n".join(lines))
    assert len(lines) <= 30
    rows = re.findall(r"(?m)^(\S[a-z ]*?) +1  (n\d)$", played.said)
    assert [(state, [host]) for state, host in rows][: len(STATES)] == STATES
    assert "6 nodes: 1 in sync, 1 unreachable, 1 not installed, 1 broken config, 1 not in sync, 1 conflicts" in lines
    assert lines[-1] == "6 hosts: 0 changed, 0 failed, 1 unreachable"
    assert {name: node.files() for name, node in fleet.nodes.items()} == before

    folder = fleet.folder / "ip-masq-report"
    assert "report.json, report.csv, report.html: %s" % folder in lines
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES), "and no temporary file"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    text = {name: (folder / name).read_bytes().decode("utf-8") for name in FILES}
    data = json.loads(text["report.json"])
    assert [(one["state"], one["hosts"]) for one in data["states"]] == STATES
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", data["generated"])
    found = {one["host"]: one for one in data["hosts"]}
    assert HOSTILE in found["n3"]["findings"][0]["reason"], "as the node sent it"
    assert "10.8.0.0/16 sees the node's address, not the pod's own address" in found["n6"]["findings"][0]["reason"]
    assert found["n1"]["traits"]["policy"] == [fleet.nodes["n1"].status()["policy_hash"]]
    (policy,) = data["policies"]
    assert policy["hosts"] == ["n1", "n2", "n3", "n6"] and "10.0.0.0/8" in policy["options"]["non_masquerade_cidrs"]
    rows_of_csv = list(csv.DictReader(io.StringIO(text["report.csv"], newline="")))
    assert [row["host"] for row in rows_of_csv] == [host for _state, hosts in STATES for host in hosts]
    assert text["report.csv"].count("\n") == 7
    assert text["report.html"].startswith("<!DOCTYPE html>") and text["report.html"].endswith("</html>\n")
    assert "<script" not in text["report.html"] and "{{ 7 * 7 }}&lt;script&gt;" in text["report.html"]


def test_a_folder_that_the_operator_names_keeps_its_mode(fleet: Fleet, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    (tmp_path / "report.csv").write_text("of yesterday")
    # The first host, on which tasks run that run once, is one that is not reachable.
    played = reported(
        fleet,
        "-e",
        "ip_masq_agent_report_dir=%s" % tmp_path,
        "--limit",
        "n4,n2",
        "--diff",
        "-e",
        "ip_masq_agent_serial=1",
    )
    assert "2 nodes: 1 unreachable, 1 not in sync" in played.said and "<table" not in played.said
    assert tmp_path.stat().st_mode & 0o777 == 0o711
    assert (tmp_path / "report.csv").read_text().splitlines()[0].startswith("host,state,reason,")
    assert (tmp_path / "report.csv").stat().st_mode & 0o777 == 0o600


def test_check_mode_prints_and_writes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    played = reported(fleet, "--check", "-e", "ip_masq_agent_report_dir=%s" % folder, "--limit", "n4")
    assert "1 node: 1 unreachable" in played.said and "no file is written in check mode" in played.said
    assert not folder.exists()


def test_strategy_free_prints_one_table(fleet: Fleet) -> None:
    played = reported(fleet, "--limit", "n1,n2", ANSIBLE_STRATEGY="free")
    assert played.said.count("2 nodes: 1 in sync, 1 not in sync") == 1, played.said


def test_a_folder_that_cannot_be_made_is_an_error_before_any_node_is_queried(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    played = fleet.play("report", *NODES, "-e", "ip_masq_agent_report_dir=%s/file/x" % tmp_path)
    assert played.rc == 2 and "PLAY [Query the nodes]" not in played.said, played.said
