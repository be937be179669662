# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where arguments come from, on nodes as the distributions leave them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.host import Host
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.kubelets import Kubelet, Place, find_kubelets
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.probe import Probe
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support import kubelet_distributions as made
from support.kubelet_node import KubeletNode, Service, make_options

OLD = "--non-masquerade-cidr=10.0.0.0/8"

# Printed by systemd 257; systemd 247 prints the same.
SHOWN = r"""MainPID=0
ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS --a=b c ${X} $$Y ; ignore_errors=yes ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf" KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml "Q=it's \"a\" \$b" X=1
EnvironmentFiles=/var/lib/kubelet/kubeadm-flags.env (ignore_errors=yes)
EnvironmentFiles=/etc/default/kubelet (ignore_errors=yes)
EnvironmentFiles=/etc/kubelet.d/*.env (ignore_errors=no)
Id=kubelet.service
LoadState=loaded
ActiveState=inactive
FragmentPath=/etc/systemd/system/kubelet.service
DropInPaths=/etc/systemd/system/kubelet.service.d/10-kubeadm.conf /run/systemd/system/kubelet.service.d/x.conf
UnitFileState=disabled
NeedDaemonReload=no

MainPID=0
Environment=
Id=k0sworker.service
LoadState=not-found
ActiveState=inactive
FragmentPath=
DropInPaths=
UnitFileState=
NeedDaemonReload=no
"""  # noqa: E501


@pytest.fixture
def node(tmp_path: Path) -> t.Iterator[KubeletNode]:
    made_node = KubeletNode(tmp_path)
    yield made_node
    made_node.close()


def host_of(node: KubeletNode, **options: t.Any) -> Host:
    return Host(node.run, make_options(**options), str(node.root))


def find(node: KubeletNode, **options: t.Any) -> t.List[Kubelet]:
    return find_kubelets(host_of(node, **options))


def places(kubelet: Kubelet, word: str = OLD) -> t.List[Place]:
    return [place for place in kubelet.places if word in place.words]


def test_what_systemctl_prints_is_read(node: KubeletNode) -> None:
    node.write("/etc/kubelet.d/2.env", "X=3\n")
    node.write("/etc/kubelet.d/1.env", "X=2\n")
    host = Host(lambda *_a, **_k: Outcome(0, SHOWN, ""), make_options(), str(node.root))
    (kubelet,) = find_kubelets(host)
    assert kubelet.words == [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
        "--a=b",
        "c",
        "3",
        "$Y",
    ]


@pytest.mark.parametrize("family, path", [("deb", "/etc/default/kubelet"), ("rpm", "/etc/sysconfig/kubelet")])
def test_kubeadm(node: KubeletNode, family: str, path: str) -> None:
    made.kubeadm(node, "1.30.4", 'KUBELET_EXTRA_ARGS="--v=4 %s"\n' % OLD, family=family)
    (kubelet,) = find(node)
    assert (kubelet.distribution, kubelet.probe) == ("kubeadm", Probe(False, "v1.30.4"))
    assert kubelet.words[-2:] == ["--v=4", OLD] and kubelet.words[2] == "--config=/var/lib/kubelet/config.yaml"
    (place,) = places(kubelet)
    assert place.where == path + ", KUBELET_EXTRA_ARGS" and place.editable
    assert kubelet.target == (path, "KUBELET_EXTRA_ARGS")


def test_kubeadm_with_both_files_takes_the_one_that_counts(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", None)
    node.services["kubelet"].files.append("/etc/sysconfig/kubelet")
    node.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--v=3\n")
    assert find(node)[0].target == ("/etc/default/kubelet", "KUBELET_EXTRA_ARGS")
    node.write("/etc/sysconfig/kubelet", "KUBELET_EXTRA_ARGS=--v=4\n")
    (kubelet,) = find(node)
    assert kubelet.target == ("/etc/sysconfig/kubelet", "KUBELET_EXTRA_ARGS")
    assert kubelet.words[-1] == "--v=4"


def test_kubeadm_with_the_variable_in_a_drop_in(node: KubeletNode) -> None:
    """As minikube does. A second assignment in the file would replace what the drop-in says."""
    made.kubeadm(node, "1.23.17", None)
    node.services["kubelet"].environment.append("KUBELET_EXTRA_ARGS=--v=3 " + OLD)
    (kubelet,) = find(node)
    (place,) = places(kubelet)
    assert kubelet.target is None and not place.editable
    assert place.where == "Environment= of kubelet.service, KUBELET_EXTRA_ARGS"
    assert "10-kubeadm.conf, then run systemctl daemon-reload" in place.by_hand


@pytest.mark.parametrize("name, agent", [("k3s", False), ("k3s", True), ("rke2", False), ("rke2", True)])
def test_k3s_and_rke2(node: KubeletNode, name: str, agent: bool) -> None:
    made.rancher(node, "1.30.4", name, 'kubelet-arg:\n  - "v=3"\n', agent)
    site = "/etc/rancher/%s/config.yaml.d/10-site.yaml" % name
    node.write(site, 'kubelet-arg+:\n- "non-masquerade-cidr=10.0.0.0/8"\n')
    (kubelet,) = find(node)
    assert kubelet.distribution == name and kubelet.target is None
    assert (kubelet.probe.supported, kubelet.probe.version[:7]) == (False, "v1.30.4")
    (place,) = places(kubelet)
    assert (place.where, place.by_hand, place.editable) == (site, "kubelet-arg in " + site, False)


def test_k3s_on_its_command_line(node: KubeletNode) -> None:
    made.rancher(node, "1.30.4")
    node.services["k3s"].argv.append("--kubelet-arg=non-masquerade-cidr=10.0.0.0/8")
    (place,) = places(find(node)[0])
    assert place.by_hand == "kubelet-arg in /etc/systemd/system/k3s.service"


@pytest.mark.parametrize("word", ["--disable-agent", "--disable-agent=true"])
def test_k3s_without_an_agent_has_no_kubelet(node: KubeletNode, word: str) -> None:
    made.rancher(node, "1.30.4")
    node.services["k3s"].argv.append(word)
    assert find(node) == []


@pytest.mark.parametrize("data", ["", "--data-dir=/data/k0s"])
def test_k0s(node: KubeletNode, data: str) -> None:
    unit = made.k0s(node, "1.30.4", "--v=2 " + OLD, data)
    (kubelet,) = find(node)
    assert kubelet.distribution == "k0s" and kubelet.target is None
    assert kubelet.probe == Probe(False, "v1.30.4")
    (place,) = places(kubelet)
    assert place.by_hand == "--kubelet-extra-args in " + unit and not place.editable


def test_a_k0s_controller_has_a_kubelet_only_with_a_worker(node: KubeletNode) -> None:
    made.k0s(node, "1.30.4")
    node.services["k0scontroller"] = node.services.pop("k0sworker")
    node.services["k0scontroller"].argv[1] = "controller"
    assert find(node) == []
    node.services["k0scontroller"].argv.append("--enable-worker")
    assert [kubelet.distribution for kubelet in find(node)] == ["k0s"]


def test_microk8s(node: KubeletNode) -> None:
    path = made.microk8s(node, "1.30.4", OLD + "\n")
    (kubelet,) = find(node)
    assert kubelet.distribution == "microk8s" and kubelet.target is None
    assert kubelet.probe == Probe(False, "v1.30.4")
    (place,) = places(kubelet)
    assert (place.where, place.by_hand, place.editable) == (path, path, False)


def test_arguments_in_the_unit_itself(node: KubeletNode) -> None:
    made.plain(node, "1.30.4", "/usr/bin/kubelet --v=2 " + OLD)
    (place,) = places(find(node)[0])
    assert place.where == "ExecStart= of kubelet.service" and not place.editable
    assert place.by_hand == "/etc/systemd/system/kubelet.service, then run systemctl daemon-reload"


@pytest.mark.parametrize(
    "command",
    ["/usr/bin/docker run --rm kubelet", "/bin/sh -c kubelet", "/opt/start-node.sh", "/opt/hyperkube kubelet"],
)
def test_a_wrapper_is_not_asked_unless_the_binary_is_named(node: KubeletNode, command: str) -> None:
    node.services["kubelet"] = Service(command)
    (kubelet,) = find(node)
    assert kubelet.probe.supported is None and "may be a wrapper or a container" in kubelet.probe.why
    node.program("/opt/kubelet", "1.23.17")
    (named,) = find(node, binary="/opt/kubelet")
    assert named.probe == Probe(True, "v1.23.17")


def test_services_that_are_not_in_use_are_ignored(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    made.rancher(node, "1.30.4")
    node.services["k3s"].active, node.services["k3s"].enabled = "inactive", "disabled"
    assert [kubelet.unit.name for kubelet in find(node)] == ["kubelet.service"]
    node.services["kubelet"].active, node.services["kubelet"].enabled = "inactive", "disabled"
    assert [kubelet.unit.name for kubelet in find(node)] == ["kubelet.service", "k3s.service"]


def test_a_named_unit(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    node.services["node-agent"] = node.services.pop("kubelet")
    assert find(node) == []
    assert find(node, unit="node-agent.service")[0].distribution == "kubeadm"
    made.rancher(node, "1.30.4")
    node.services["k3s-second"] = node.services.pop("k3s")
    assert find(node, unit="k3s-second")[0].distribution == "k3s"


def test_the_process_of_a_service_is_found(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", flags="--network-plugin=kubenet")
    assert host_of(node).kubelets() == {} and not find(node)[0].masquerades
    node.start("kubelet")
    node.wait_healthy()
    (kubelet,) = find(node)
    assert list(host_of(node).kubelets()) == [kubelet.unit.pid] and kubelet.masquerades
