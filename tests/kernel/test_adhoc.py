# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ad hoc, as an operator types it: the installed artefact by its full name, the checkout by the short one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from support import modules
from support.import_collection import ROOT
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import NFTABLES, VARIANTS, pristine, snapshot

FULL_NAME = "kubenode.ip_masq.ip_masq"
CIDRS = "non_masquerade_cidrs=10.0.0.0/8,192.168.0.0/16"


def ansible(ns: Namespace, home: Path, module: str, arguments: str, *flags: str, checkout: bool = False) -> t.Any:
    """Run ``ansible localhost`` inside and return what it printed about the host."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    env.update(HOME=str(home), ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_LOAD_CALLBACK_PLUGINS="1")
    env.update(ANSIBLE_LOCALHOST_WARNING="False", LC_ALL="C.UTF-8")
    if not checkout:
        env["ANSIBLE_COLLECTIONS_PATH"] = str(modules.collections())
    where = ROOT if checkout else home
    program = str(Path(sys.executable).with_name("ansible"))
    done = subprocess.run(
        ns.argv("env", "-C", str(where), program, "localhost", "-c", "local", "-m", module, "-a", arguments, *flags),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (task,) = [task for play in json.loads(done.stdout)["plays"] for task in play["tasks"]]
    return task["hosts"]["localhost"]


def test_full_name_twice_in_a_fresh_namespace(topology: Topology, tmp_path: Path) -> None:
    a, node, variant = ADDRESSES["ipv4"], topology.node, NFTABLES
    arguments = "%s backend=%s" % (CIDRS, variant.backend)
    predicted = ansible(node, tmp_path, FULL_NAME, arguments, "-CD")
    assert predicted["changed"] is True
    assert pristine(snapshot(node))
    done = ansible(node, tmp_path, FULL_NAME, arguments, "-D")
    assert done["changed"] is True
    assert done["diff"] == predicted["diff"]
    exempt = variant.in_order(["169.254.0.0/16", "10.0.0.0/8", "192.168.0.0/16"])
    expected = ["-d %s -j RETURN" % cidr for cidr in exempt] + ["-j MASQUERADE --random-fully"]
    assert variant.rules(node, "ipv4") == expected
    topology.ask(*a.exempt, *a.outside)
    before = variant.counters(node, "ipv4")
    assert any("-c 0 0" not in line for line in before), "no packet was counted"
    assert ansible(node, tmp_path, FULL_NAME, arguments)["changed"] is False
    assert variant.counters(node, "ipv4") == before


@pytest.mark.parametrize(
    "arguments",
    [
        'non_masquerade_cidrs="10.0.0.0/8, 192.168.0.0/16"',
        json.dumps({"non_masquerade_cidrs": ["10.0.0.0/8,192.168.0.0/16"]}),
    ],
    ids=["with a space", "JSON, an entry with a comma"],
)
def test_all_ways_to_write_a_list_mean_the_same(ns: Namespace, tmp_path: Path, arguments: str) -> None:
    ansible(ns, tmp_path, FULL_NAME, arguments)
    assert len(VARIANTS["iptables_nft"].rules(ns, "ipv4") or []) == 4


def test_ports_can_be_written_as_the_reference_agent_s_flag(ns: Namespace, tmp_path: Path) -> None:
    ansible(ns, tmp_path, FULL_NAME, "to_ports=1024-29999,32768-65535")
    rules = VARIANTS["iptables_nft"].rules(ns, "ipv4") or []
    assert len([rule for rule in rules if "--to-ports" in rule]) == 6


def test_short_name_works_from_the_checkout(ns: Namespace, tmp_path: Path) -> None:
    assert ansible(ns, tmp_path, "ip_masq", CIDRS, "-CD", checkout=True)["changed"] is True
    assert pristine(snapshot(ns))
    assert ansible(ns, tmp_path, "ip_masq", CIDRS, checkout=True)["changed"] is True
    assert len(VARIANTS["iptables_nft"].jumps(ns, "ipv4")) == 1


def test_a_node_without_an_agent_is_inspected(topology: Topology, tmp_path: Path) -> None:
    """Beside: all that the module imports of the collection goes along to the node."""
    a, node = ADDRESSES["ipv4"], topology.node
    before = snapshot(node)
    asked = "%s destinations=%s,%s source=%s verify=true" % (CIDRS, a.exempt[0], a.outside[0], a.pod)
    found = ansible(node, tmp_path, "kubenode.ip_masq.ip_masq_info", asked, "-C")
    assert (found["changed"], found["in_sync"], found["policy"]["origin"]) == (False, False, "options")
    assert [(one["policy"], one["seen"]) for one in found["explanations"]] == [("pod", "pod"), ("node", "pod")]
    assert found["questions"] > 0 and {one["policy"] for one in found["conflicts"]} == {"node"}
    assert snapshot(node) == before
