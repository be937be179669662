# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One inventory with Linux and Windows nodes: the playbook of docs/windows.md."""

from __future__ import annotations

import re
from pathlib import Path

from support.fleet import Fleet
from support.import_collection import ROOT
from support.variants import BACKENDS
from support.windows_node import WindowsNodes

GOLDEN = ROOT / "tests/unit/plugins/filter/outbound_nat"
NFT = BACKENDS["iptables_nft"]


def playbook() -> str:
    """The example of the documentation."""
    text = (ROOT / "docs" / "windows.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^```yaml\n(# nodes\.yml\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found


def test_one_policy_for_linux_and_windows_nodes(tmp_path: Path) -> None:
    """In check mode nothing is written anywhere; without it, each node gets the policy in its own way."""
    play = tmp_path / "nodes.yml"
    play.write_text(playbook())
    windows = WindowsNodes(tmp_path / "windows", "w1")
    conf = windows.folders["w1"] / "10-flannel.conf"
    before, after = ((GOLDEN / ("flannel_sdnoverlay.%s.json" % when)).read_bytes() for when in ("before", "after"))
    conf.write_bytes(before)
    with Fleet(tmp_path, {"kube_node": ["n1"]}) as fleet:
        node = fleet.nodes["n1"]
        fleet.hosts["w1"] = windows.hosts["w1"]
        fleet.groups["kube_node"].append("w1")
        fleet.groups["windows"] = ["w1"]
        fleet.group_vars["all"].update(ansible_become=False, ip_masq_agent_verify="ignore")
        fleet.group_vars["kube_node"] = {"ip_masq_agent_non_masquerade_cidrs": ["10.8.0.0/16", "192.0.2.0/24"]}
        (tmp_path / "hosts.ini").write_text("[kube_node]\nn1\nw1\n")
        env = {"ANSIBLE_COLLECTIONS_PATH": windows.collections_path()}

        checked = fleet.type("ansible-playbook nodes.yml -i hosts.ini -e ip_masq_windows_write=true -CD", env=env)
        assert checked.rc == 0, checked.said
        assert {host: counts["changed"] for host, counts in checked.recap.items()} == {"n1": 1, "w1": 1}
        assert "delegate.AdditionalArgs[0].Value.Settings.Exceptions: add 10.8.0.0/16, 192.0.2.0/24" in checked.said
        assert NFT.rules(node.ns, "ipv4") is None and node.files() == node.pristine
        assert list(windows.folders["w1"].iterdir()) == [conf] and conf.read_bytes() == before

        # One Windows node is written; then Linux is applied, and Windows reported.
        written = fleet.type(
            "ansible-playbook nodes.yml -i hosts.ini -e ip_masq_windows_write=true --limit 'windows[0]'", env=env
        )
        assert written.rc == 0 and sorted(written.recap) == ["w1"], written.said
        assert conf.read_bytes() == after and NFT.rules(node.ns, "ipv4") is None
        applied = fleet.type("ansible-playbook nodes.yml -i hosts.ini", env=env)
        assert applied.rc == 0, applied.said
        exempt = NFT.exempt(node.ns)
        assert exempt[1:] == ["10.8.0.0/16", "192.0.2.0/24"]
        again = fleet.play(str(play), "-e", "ip_masq_windows_write=true", env=env)
        assert [counts["changed"] for counts in again.recap.values()] == [0, 0], again.said

        # Of the role for Windows a Linux node skips everything: its collection is not even read there.
        alone = fleet.play(str(play), "--limit", "n1", env={})
        assert alone.rc == 0 and "ansible.windows" not in alone.said, alone.said
