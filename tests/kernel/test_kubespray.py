# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks for kubespray, imported after and before kubespray's own, from a checkout and from the collection."""

from __future__ import annotations

import os
import re
import shutil
import typing as t
from pathlib import Path

from support import modules
from support.agent_node import AgentNode
from support.fleet import Fleet, Played
from support.import_collection import ROOT
from support.kubespray import site, write_checkout, write_collection, write_sample
from support.variants import BACKENDS

NFT = BACKENDS["iptables_nft"]
#: kubespray's sample inventory: it has no group k8s_cluster.
GROUPS = {"kube_control_plane": ["n1"], "etcd": ["n1", "e1"], "kube_node": ["n2", "n3"]}
#: group_vars/k8s_cluster/k8s-cluster.yml
CLUSTER = """
kube_network_plugin: calico
kube_service_addresses: 100.65.0.0/18
kube_pods_subnet: 100.64.0.0/18
kube_proxy_mode: ipvs
ipv4_stack: true
ipv6_stack: true
kube_service_addresses_ipv6: fd85:ee78:d8a6:8607::1000/116
kube_pods_subnet_ipv6: fd85:ee78:d8a6:8607::1:0000/112
"""
CONFIRMED = ("-e", "reset_confirmation=yes", "-e", "flush_iptables=true")
RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


class Kubespray:
    """An operator's inventory, with kubespray as a checkout or as a collection."""

    def __init__(self, folder: Path, fleet: Fleet, form: str) -> None:
        self._fleet, self._form = fleet, form
        self._folder = folder
        # Other tests are about these.
        fleet.group_vars["all"].update(ip_masq_agent_verify="ignore", ip_masq_agent_kubelet=False)
        variables = folder / "group_vars" / "k8s_cluster"
        variables.mkdir(parents=True)
        (variables / "k8s-cluster.yml").write_text(CLUSTER)
        (variables / "k8s-net-calico.yml").write_text("nat_outgoing: true\n")
        if form == "checkout":
            self._checkout = write_checkout(folder / "kubespray")
            self._env = {"ANSIBLE_CONFIG": str(self._checkout / "ansible.cfg")}
        else:
            write_collection(folder / "collections")
            paths = [str(folder / "collections"), str(modules.collections())]
            self._env = {"ANSIBLE_COLLECTIONS_PATH": os.pathsep.join(paths)}

    def play(self, playbook: str, ours: t.Sequence[str], *arguments: str) -> Played:
        """Run a playbook that imports these of the collection, and kubespray's ``playbook`` where ``-`` is."""
        name = "kubernetes_sigs.kubespray." + playbook.replace("-", "_")
        if self._form == "checkout":
            name = str(self._checkout / (playbook + ".yml"))
        text = self._folder / "site.yml"
        text.write_text(site(name, ours))
        return self._fleet.play(str(text), *arguments, env=self._env)

    def type(self, command: str, playbook: str, *more: str) -> Played:
        """Run a command line of docs/kubespray.md with a playbook of that page, where the inventory is kubespray's."""
        self._fleet.group_vars["all"]["ansible_become"] = False  # there may be no sudo
        (self._folder / playbook).write_text(page_example(playbook))
        inventory = self._folder / "inventory/mycluster/inventory.ini"
        inventory.parent.mkdir(parents=True, exist_ok=True)
        inventory.write_text("".join("[%s]\n%s\n" % (group, "\n".join(hosts)) for group, hosts in GROUPS.items()))
        return self._fleet.type(" ".join([command, *more]))


def page_example(name: str, page: str = "docs/kubespray.md") -> str:
    """A file that a page has, by the name in its first line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = re.findall(r"(?ms)^```yaml\n(# %s\b.*?)^```" % re.escape(name), text)
    return t.cast(str, found)


def exempt(node: AgentNode, family: str = "ipv4") -> t.List[str]:
    """The active exempt ranges, without link-local."""
    return NFT.exempt(node.ns, family)[1:]


def changed(played: Played) -> t.List[str]:
    """The nodes that the plays of this collection changed; kubespray's own play of groups always reports a change."""
    ours = played.said.partition("PLAY [Read kubespray's variables]")[2]
    return sorted(set(re.findall(r"(?m)^changed: \[(\w+)\]", ours)))


def test_a_round_with_kubespray(tmp_path: Path) -> None:
    with Fleet(tmp_path, GROUPS) as fleet:
        kubespray = Kubespray(tmp_path, fleet, "checkout")
        for number, name in enumerate(("n1", "n2", "n3"), 1):
            fleet.hosts[name].update(ip="203.0.113.%d" % (2 * number), ip6="2001:db8::%d" % (2 * number))
        n1, n2, n3 = (fleet.nodes[name] for name in ("n1", "n2", "n3"))

        made = kubespray.type(
            "ANSIBLE_CONFIG=kubespray/ansible.cfg ansible-playbook -b -i inventory/mycluster/inventory.ini site.yml",
            "site.yml",
            "--limit n1,n2",
        )
        assert made.rc == 0 and "kubespray made 100.64.0.0/18,fd85:" in made.said, made.said
        assert "kubespray: pods 100.64.0.0/18, fd85:ee78:d8a6:8607::1:0/112; services 100.65.0.0/18, " in made.said
        assert "calico: masquerades what leaves its pools, exempt ranges too: set nat_outgoing: false and " in made.said
        addresses = ["203.0.113.2/32", "203.0.113.4/32", "203.0.113.6/32"]
        assert sorted(exempt(n1)) == sorted([*RFC1918, "100.64.0.0/18", "100.65.0.0/18", *addresses])
        assert exempt(n2) == exempt(n1), "the node that the run was not for counts as well"
        assert "fd85:ee78:d8a6:8607::1:0/112" in exempt(n2, "ipv6") and "2001:db8::6/128" in exempt(n2, "ipv6")
        assert changed(made) == ["n1", "n2"] and exempt(n3) == []
        assert all(rule.startswith("-s 100.64.0.0/18 ") for rule in NFT.rules(n1.ns, "ipv4") or ["none"])

        scaled = kubespray.play("scale", ["-", "kubespray"])
        assert scaled.rc == 0 and exempt(n3) == exempt(n1), scaled.said
        assert changed(scaled) == ["n3"], scaled.said
        upgraded = kubespray.play("upgrade-cluster", ["-", "kubespray"])
        assert upgraded.rc == 0 and "kubespray made" in upgraded.said and changed(upgraded) == [], upgraded.said

        # Without kubespray's plays before it, the group k8s_cluster is not there until the playbook makes it.
        status = kubespray.play("cluster", ["kubespray_status"])
        assert status.rc == 0 and "3 nodes: 3 in sync" in status.said, status.said
        # A node that is in neither of the two groups.
        fleet.groups["calico_rr"] = ["e1"]
        status = kubespray.play("cluster", ["kubespray_status"])
        assert status.rc == 0 and "e1: not checked: not matched by ip_masq_agent_hosts" in status.said, status.said
        report = kubespray.play("cluster", ["kubespray_report"])
        assert report.rc == 0 and "4 nodes: 3 in sync, 1 not checked" in report.said, report.said
        assert "and so in no play" in (tmp_path / "ip-masq-report" / "report.html").read_text()
        del fleet.groups["calico_rr"]
        # The inventory alone has another policy: to apply that would masquerade the networks of the cluster.
        inventory = fleet.play("status", "-e", "ip_masq_agent_hosts=kube_node")
        assert inventory.failed == ["n2", "n3"], inventory.said
        for words in (
            "ip_masq_agent_source_cidrs: only on the node 100.64.0.0/18, fd85:ee78:d8a6:8607::1:0/112",
            "ip_masq_agent_enable_ipv6: true on the node, false in the inventory",
            "last applied by kubenode.ip_masq.kubespray; compare with kubenode.ip_masq.kubespray_status",
        ):
            assert words in inventory.said, inventory.said
        assert "run kubenode.ip_masq.apply" not in inventory.said

        refused = kubespray.play("reset", ["kubespray_reset", "-"])
        assert refused.rc != 0 and "The reset is not confirmed" in refused.said and exempt(n3), refused.said
        reset = kubespray.type(
            "ANSIBLE_CONFIG=kubespray/ansible.cfg ansible-playbook -b -i inventory/mycluster/inventory.ini reset.yml "
            "-e reset_confirmation=yes",
            "reset.yml",
            "-e flush_iptables=true",
        )
        assert reset.rc == 0 and "PLAY [Reset cluster]" in reset.said, reset.said
        assert "and apply the policy" not in reset.said and "Remove the agent and its rules] " in reset.said
        for node in (n1, n2, n3):
            assert node.files() == node.pristine and NFT.rules(node.ns, "ipv4") is None


def test_kubespray_as_a_collection(tmp_path: Path) -> None:
    with Fleet(tmp_path, GROUPS, {"n2": "n1", "n3": "n1", "e1": "n1"}) as fleet:
        kubespray = Kubespray(tmp_path, fleet, "collection")
        node = fleet.nodes["n1"]
        shown = kubespray.play("cluster", ["kubespray_variables"])
        assert shown.rc == 0 and "kubespray: pods 100.64.0.0/18, " in shown.said, "without the option for hosts"
        # Of a large playbook, this part alone.
        for tag in ("network", "ip_masq"):
            part = kubespray.play("cluster", ["-", "kubespray"], "--limit", "n1", "--tags", tag)
            assert part.rc == 0 and "kubespray made" not in part.said, part.said
            assert exempt(node) == [*RFC1918, "100.64.0.0/18", "100.65.0.0/18"]
        made = kubespray.play("cluster", ["-", "kubespray"], "--limit", "n1")
        assert made.rc == 0 and "kubespray made 100.64.0.0/18,fd85:" in made.said, made.said
        assert exempt(node) == [*RFC1918, "100.64.0.0/18", "100.65.0.0/18"]
        # The agent may set the rules again after kubespray's flush: removed all the same.
        reset = kubespray.play("reset", ["-", "kubespray_reset"], "--limit", "n1", *CONFIRMED)
        assert reset.rc == 0 and node.files() == node.pristine and NFT.rules(node.ns, "ipv4") is None, reset.said


def test_the_inventory_comes_before_what_is_derived(tmp_path: Path) -> None:
    with Fleet(tmp_path, GROUPS, {"n2": "n1", "n3": "n1", "e1": "n1"}) as fleet:
        kubespray = Kubespray(tmp_path, fleet, "checkout")
        fleet.group_vars["all"]["ip_masq_agent_enable_ipv6"] = False
        fleet.group_vars["kube_node"] = {"ip_masq_agent_non_masquerade_cidrs": ["100.64.0.0/18"]}
        refused = kubespray.play("cluster", ["kubespray"])
        assert refused.rc == 2 and not exempt(fleet.nodes["n1"])
        assert "fd85:ee78:d8a6:8607::1:0/112, 100.65.0.0/18, fd85:ee78:d8a6:8607::1000/116 of ip_masq_" in refused.said

        fleet.group_vars["all"].update(ip_masq_agent_enable_ipv6=False, ip_masq_agent_cluster_cidrs=["100.64.0.0/18"])
        fleet.group_vars["all"]["ip_masq_agent_non_masquerade_cidrs"] = ["100.64.0.0/10", "100.64.0.0/18"]
        del fleet.group_vars["kube_node"]
        applied = kubespray.play("cluster", ["kubespray"], "--limit", "n1")
        assert applied.rc == 0 and exempt(fleet.nodes["n1"]) == ["100.64.0.0/10"], applied.said
        assert applied.said.count("100.64.0.0/18 can be left out") == 1, "checked once in a run"
        assert NFT.rules(fleet.nodes["n1"].ns, "ipv6") is None
        # An option of an import, as of a command line.
        other = kubespray.play("cluster", ["kubespray"], "-e", "ip_masq_agent_hosts=e1", "--list-hosts")
        assert other.rc == 0 and "n2" not in other.said.replace("kube_node", ""), other.said


LIVE = "docs/kubespray-live.md"
INVENTORY = "inventory/mycluster/group_vars/k8s_cluster/"
APPLY = "ansible-playbook -b -i inventory/mycluster/inventory.ini kubenode.ip_masq.kubespray"
REMOVE = (
    "ansible-playbook -b -i inventory/mycluster/inventory.ini kubenode.ip_masq.remove "
    "-e ip_masq_agent_hosts=kube_control_plane:kube_node"
)
EXPLAIN = "ip-masq-agent explain 10.8.0.1 --source 10.233.64.9"
#: What Calico and flannel have in POSTROUTING of a kubespray cluster.
CALICO = (
    "-N cali-POSTROUTING",
    "-N cali-nat-outgoing",
    "-I POSTROUTING -j cali-POSTROUTING",
    "-A cali-POSTROUTING -j cali-nat-outgoing",
    "-A cali-nat-outgoing -s 10.233.64.0/18 ! -d 10.233.64.0/18 -j MASQUERADE",
)
FLANNEL = (
    "-N FLANNEL-POSTRTG",
    "-I POSTROUTING -j FLANNEL-POSTRTG",
    "-A FLANNEL-POSTRTG -s 10.233.64.0/18 -d 10.233.64.0/18 -j RETURN",
    "-A FLANNEL-POSTRTG -s 10.233.64.0/18 ! -d 224.0.0.0/4 -j MASQUERADE",
)


class LiveCluster:
    """A cluster with kubespray's sample variables and one node that has a pod, and what docs/kubespray-live.md does."""

    def __init__(self, folder: Path, fleet: Fleet, rules: t.Sequence[str], **changed: t.Any) -> None:
        self.kubespray = Kubespray(folder, fleet, "checkout")
        self._folder, self._fleet = folder, fleet
        shutil.rmtree(folder / "group_vars")
        write_sample(folder / "inventory/mycluster", **changed)
        del fleet.group_vars["all"]["ip_masq_agent_verify"]
        self.node = fleet.nodes["n1"]
        self.node.wire()
        self.node.ns.run("ip", "address", "add", "10.233.64.1/24", "dev", "cni0")
        for number, name in enumerate(fleet.hosts, 1):
            fleet.hosts[name]["ip"] = "10.3.0.%d" % number
        for rule in rules:
            self.rule(rule)

    def write(self, name: str, more: str = "") -> None:
        """Add variables to a file, as the page has it."""
        path = self._folder / INVENTORY / name
        there = path.read_text() if path.exists() else ""
        path.write_text(there + page_example(INVENTORY + name, LIVE) + more)

    def rule(self, rule: str, program: str = "iptables-nft") -> None:
        """Do to the node's rules what the network plugin does."""
        self.node.ns.run(program, "-t", "nat", *rule.split())

    def type(self, command: str) -> Played:
        """Run a command of the page on the controller, for the node."""
        self._fleet.group_vars["all"]["ansible_become"] = False  # there may be no sudo
        inventory = self._folder / "inventory/mycluster/inventory.ini"
        inventory.write_text("".join("[%s]\n%s\n" % (group, "\n".join(hosts)) for group, hosts in GROUPS.items()))
        played = self._fleet.type(command + " --limit n1")
        assert not (inventory.parent / "credentials").exists(), "variables that are none of ours were evaluated"
        return played

    def explain(self, command: str = EXPLAIN) -> str:
        """Run the page's question on the node."""
        done = self.node.call("bash", "-euc", 'PATH="/usr/local/sbin:$PATH"; ' + command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_gone(self) -> bool:
        """Whether nothing of the agent is left on the node."""
        rules = [NFT.rules(self.node.ns, family) for family in ("ipv4", "ipv6")]
        return self.node.files() == self.node.pristine and rules == [None, None]


def test_calico_on_a_live_cluster_step_by_step(tmp_path: Path) -> None:
    with Fleet(tmp_path, GROUPS, {"n2": "n1", "n3": "n1", "e1": "n1"}) as fleet:
        cluster = LiveCluster(tmp_path, fleet, CALICO)
        cluster.write("ip_masq.yml")
        preview = cluster.type(
            "ansible-playbook -b -i inventory/mycluster/inventory.ini kubenode.ip_masq.kubespray -CD"
        )
        assert preview.rc == 0 and exempt(cluster.node) == [], preview.said
        applied = cluster.type(APPLY)
        assert applied.rc == 0, applied.said
        assert exempt(cluster.node) == ["10.233.0.0/17", "10.3.0.0/24", "10.8.0.0/16"]
        assert "set nat_outgoing: false" in applied.said and "(rule of Calico)" in applied.said, applied.said
        before = cluster.explain()
        assert "sees the node's address" in before and "decided by: Calico" in before, before
        assert "natOutgoing: false" in before
        # What Felix does after the patch of the pool.
        cluster.rule("-F cali-nat-outgoing")
        assert "sees the pod's own address (10.233.64.9)" in cluster.explain()
        # The variables that keep it: the playbook has nothing to remark, and changes nothing.
        cluster.write("k8s-net-calico.yml")
        again = cluster.type(APPLY)
        assert again.rc == 0 and "nat_outgoing" not in again.said and changed(again) == [], again.said
        cluster.rule(CALICO[-1])
        removed = cluster.type(REMOVE)
        assert removed.rc == 0 and cluster.is_gone(), removed.said


def test_flannel_on_a_live_cluster_step_by_step(tmp_path: Path) -> None:
    with Fleet(tmp_path, GROUPS, {"n2": "n1", "n3": "n1", "e1": "n1"}) as fleet:
        cluster = LiveCluster(tmp_path, fleet, FLANNEL, kube_network_plugin="flannel")
        cluster.write("ip_masq.yml")
        cluster.write("ip_masq_flannel.yml")
        applied = cluster.type(APPLY)
        assert applied.rc == 0 and "flannel: masquerades" not in applied.said and "ipvs" not in applied.said, (
            applied.said
        )
        assert "sees the pod's own address (10.233.64.9)" in cluster.explain()
        # The way back, and the other way to begin: without the variable flannel decides.
        (tmp_path / INVENTORY / "ip_masq_flannel.yml").unlink()
        weaker = cluster.type(APPLY)
        assert weaker.rc == 0 and "flannel: masquerades" in weaker.said, weaker.said
        assert "decided by: flannel" in cluster.explain()
        # The other way: flanneld without --ip-masq, which leaves no rules behind or whose rules were flushed.
        cluster.rule("-F FLANNEL-POSTRTG")
        assert "sees the pod's own address (10.233.64.9)" in cluster.explain()
        # Back from there: cluster.yml, after which flanneld sets its rules again.
        made = cluster.kubespray.play("cluster", ["-"], "-i", str(tmp_path / "inventory/mycluster"), "--limit", "n1")
        assert made.rc == 0 and "with flannel" in made.said, made.said
        cluster.rule(FLANNEL[-1])
        assert "decided by: flannel" in cluster.explain()
        removed = cluster.type(REMOVE)
        assert removed.rc == 0 and cluster.is_gone(), removed.said
        assert "-j MASQUERADE" in cluster.node.ns.run("iptables-nft", "-t", "nat", "-S", "FLANNEL-POSTRTG")
