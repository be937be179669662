# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks for kubespray with the ansible-core that runs this; ``tests/kernel/test_kubespray.py`` has their cases.

Each release of kubespray requires one series of ansible-core, and the kernel tests run with the oldest or newest only.
"""

from __future__ import annotations

import re
from pathlib import Path

from support.fleet import Fleet
from support.kubespray import site, write_checkout, write_sample
from support.variants import BACKENDS

NFT = BACKENDS["iptables_nft"]
#: What is imported, before and behind kubespray's own playbook, and what is printed then.
STEPS = (
    ("cluster", ("kubespray_variables",), "kubespray: pods 10.233.64.0/18; services 10.233.0.0/18; "),
    ("cluster", ("kubespray_variables",), "calico: only nodes have a route to pods (calico_network_backend: {{ "),
    ("cluster", ("-", "kubespray"), "kubespray made 10.233.64.0/18 10.233.0.0/18 with calico"),
    ("cluster", ("kubespray_status",), '"1 node: 1 in sync"'),
    ("reset", ("kubespray_reset", "-"), "PLAY [Reset cluster]"),
)


def test_kubespray(tmp_path: Path) -> None:
    """Variables, cluster.yml and apply, status, and reset, with the variables of kubespray's sample inventory."""
    checkout = write_checkout(tmp_path / "kubespray")
    write_sample(tmp_path)
    # The callback that kubespray enables has deprecated methods.
    env = {
        "ANSIBLE_CONFIG": str(checkout / "ansible.cfg"),
        "ANSIBLE_DEPRECATION_WARNINGS": "True",
        "ANSIBLE_CALLBACKS_ENABLED": "ansible.builtin.default",
    }
    with Fleet(tmp_path, {"kube_control_plane": ["n1"], "etcd": ["n1"], "kube_node": ["n1"]}) as fleet:
        fleet.group_vars["all"].update(ip_masq_agent_verify="ignore", ip_masq_agent_kubelet=False)
        # It cannot be evaluated, and only remarks are about it: shown, and not evaluated again.
        fleet.group_vars["all"]["calico_network_backend"] = "{{ not_there }}"
        node = fleet.nodes["n1"]
        for playbook, ours, printed in STEPS:
            text = tmp_path / "site.yml"
            text.write_text(site(str(checkout / (playbook + ".yml")), ours))
            played = fleet.play(str(text), "-e", "reset_confirmation=yes", env=env)
            assert played.rc == 0 and printed in played.said, played.said
            assert not re.search(r"DEPRECATION|Traceback|\[ERROR\]", played.said), played.said
            applied = ours != ("kubespray_variables",) and playbook != "reset"
            assert (NFT.rules(node.ns, "ipv4") is not None) == applied
        assert node.files() == node.pristine
        assert not (tmp_path / "credentials").exists(), "variables that are none of ours were evaluated"
