# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventories and playbooks in examples/, run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from netaddr import IPSet
from support.fleet import Fleet
from support.import_collection import ROOT
from support.variants import BACKENDS

EXAMPLES = ROOT / "examples"
#: folder -> hosts, backend, the exempt networks of pods and services
EXPECTED = {
    "k3s": (["agent1", "server1"], "nftables", {"10.42.0.0/16", "10.43.0.0/16"}),
    "kubeadm": (["control1", "worker1"], "iptables_nft", {"10.244.0.0/16", "10.96.0.0/12"}),
    "rke2": (["agent1", "server1"], "nftables", {"10.42.0.0/16", "10.43.0.0/16"}),
}


def test_every_example_is_run() -> None:
    # test_racks.py has that of the racks, test_pull.py that of ansible-pull, tools/test-vm the policy for SELinux.
    assert {path.name for path in EXAMPLES.iterdir()} == {*EXPECTED, "ansible-pull", "racks", "selinux"}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_does_what_it_says(tmp_path: Path, name: str) -> None:
    hosts, backend, networks = EXPECTED[name]
    inventory = ("-i", str(EXAMPLES / name / "inventory.ini"))
    with Fleet(tmp_path, {"reached": hosts}) as fleet:
        applied = fleet.play(str(EXAMPLES / name / "site.yml"), *inventory, "-e", "ip_masq_agent_verify=ignore")
        assert applied.rc == 0 and sorted(applied.recap) == hosts, applied.said
        before = applied.said.split("PLAY [Show what changes for packets]")[0]
        assert "Check the variables of all hosts" in before and '"msg": [' not in before, applied.said
        for node in fleet.nodes.values():
            assert IPSet(BACKENDS[backend].exempt(node.ns)) == IPSet(
                [*networks, "192.0.2.0/24", "10.8.0.0/16", "169.254.0.0/16"]
            )
        group = "cluster" if name == "kubeadm" else name + "_cluster"
        status = fleet.play("status", *inventory, "-e", "ip_masq_agent_hosts=" + group)
        assert status.rc == 0 and "2 nodes: 2 in sync" in status.said, status.said
