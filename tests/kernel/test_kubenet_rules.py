# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kubenet's rule in a real nat table: written by a running stand-in kubelet, deleted for good, and nothing else."""

from __future__ import annotations

import contextlib
import json
import sys
import typing as t
from pathlib import Path

import pytest
from support.import_collection import ROOT
from support.kubelet_node import KubeletNode
from support.marks import iptables_only
from support.modules import apply
from support.namespaces import Namespace
from support.variants import Variant

COMMENTS = ("kubenet: SNAT for outbound traffic from cluster", "kubelet: SNAT outbound cluster traffic")
CIDRS = {"ipv4": "10.0.0.0/8", "ipv6": "fd00::/8"}
OTHERS = {
    "ipv4": ["-A POSTROUTING ! -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE"],
    "ipv6": ["-A POSTROUTING ! -d fd00::/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE"],
}

#: Runs inside the namespace: a node below a directory, a kubelet on it, and the module's own code.
_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from support.import_collection import make_importable
make_importable()
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.manage import manage_kubelets
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.kubelet_result import as_return
from support import kubelet_distributions as made
from support.kubelet_node import KubeletNode, make_options
import urllib.request

node = KubeletNode(Path(sys.argv[2]))
node.passes = lambda program: True
version, flags, iptables, check = sys.argv[3:7]
if version:
    made.kubeadm(node, version, flags=flags, iptables=iptables)
    node.start("kubelet")
    node.wait_healthy()
try:
    reports = []
    for number in range(2):
        options = make_options(healthz_url=node.healthz)
        report = manage_kubelets(options, node.run, bool(check), str(node.root))
        returned = as_return(report)
        reports.append([returned["changed"], report.failure, report.decision, returned["actions"]])
        if version:
            node.start("kubelet")
            node.wait_healthy()
            urllib.request.urlopen(node.healthz.replace("healthz", "setup-pod")).close()
finally:
    node.close()
print(json.dumps(reports))
"""


def go(
    ns: Namespace, root: Path, version: str = "", flags: str = "", iptables: str = "", check: bool = False
) -> t.List[t.Any]:
    """Two runs of the module, with a restart of the kubelet and a new pod after each."""
    arguments = [str(ROOT / "tests"), str(root), version, flags, iptables, "yes" if check else ""]
    out = ns.run(sys.executable, "-c", _PROGRAM, *arguments)
    return t.cast(t.List[t.Any], json.loads(out))


@iptables_only
@pytest.mark.parametrize("comment", COMMENTS)
def test_exactly_the_leftover_is_deleted(
    ns: Namespace, variant: Variant, family: str, tmp_path: Path, comment: str
) -> None:
    rule = '-A POSTROUTING -m comment --comment "%s" -m addrtype ! --dst-type LOCAL ! -d %s -j MASQUERADE' % (
        comment,
        CIDRS[family],
    )
    variant.load(ns, family, rule, *OTHERS[family], rule)
    before = variant.listing(ns, family, "POSTROUTING") or []
    assert len(before) == 3
    dry = go(ns, tmp_path, check=True)
    assert dry[0] == dry[1] and dry[0][0] and variant.listing(ns, family, "POSTROUTING") == before
    first, second = go(ns, tmp_path)
    assert first[0] is True and first[3] == dry[0][3] and len(first[3]) == 2
    assert second[0] is False and second[3] == []
    assert variant.listing(ns, family, "POSTROUTING") == before[1:2]


def test_looking_makes_no_legacy_table(ns: Namespace, tmp_path: Path) -> None:
    go(ns, tmp_path)
    assert ns.read("/proc/net/ip_tables_names").split() == []


def test_rules_of_any_backend_and_kubenets_deletion_leave_each_other_alone(
    ns: Namespace, variant: Variant, tmp_path: Path
) -> None:
    assert apply(ns, backend=variant.backend)["changed"] is True
    ours = variant.rules(ns, "ipv4")
    first, second = go(ns, tmp_path, "1.23.17", "--network-plugin=kubenet", variant.host.tool("ipv4"))
    assert first[1] == "" and [action.split()[0] for action in first[3]] == ["edited", "restarted", "deleted"]
    assert second[0] is False
    assert ours and variant.rules(ns, "ipv4") == ours
    assert not [line for line in variant.host.listing(ns, "ipv4", "POSTROUTING") or [] if "kubenet" in line]
    assert apply(ns, backend=variant.backend)["changed"] is False


@pytest.mark.parametrize("elsewhere, decision", [(False, "unknown"), (True, "no_kubelet")])
def test_a_kubelet_whose_network_is_another_is_not_the_node_s(
    ns: Namespace, tmp_path: Path, elsewhere: bool, decision: str
) -> None:
    with contextlib.ExitStack() as owned:
        node = KubeletNode(tmp_path)
        owned.callback(node.close)
        node.program("/usr/bin/kubelet", "1.23.17")
        its = owned.enter_context(Namespace()) if elsewhere else ns
        its.inside(node.start_stray, "/usr/bin/kubelet", "--network-plugin=kubenet")
        (first, _second) = go(ns, tmp_path)
    assert first[2:] == [decision, []]
