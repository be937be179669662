# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where arguments come from, on nodes as the distributions leave them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError, NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.distributions import find_kubelets
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.editors import Editor, EnvironmentEditor
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.host import Host, Unit
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.kubelet import (
    Kubelet,
    Place,
    Program,
    all_words,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.observe import running_words
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.service_kubelet import named_editor
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support import kubelet_distributions as made
from support.kubelet_node import KubeletNode, Service

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


def host_of(node: KubeletNode) -> Host:
    return Host(node.run, str(node.root))


def find(node: KubeletNode, **how: t.Any) -> t.List[Kubelet]:
    return find_kubelets(host_of(node), **how)


def words(node: KubeletNode, kubelet: Kubelet) -> t.List[str]:
    return all_words(kubelet, host_of(node).read)


def places(node: KubeletNode, kubelet: Kubelet, word: str = OLD) -> t.List[Place]:
    return [place for place in kubelet.places(host_of(node).read) if word in place.words]


def target(kubelet: Kubelet) -> Editor:
    editor = kubelet.target().editor
    assert editor is not None
    return editor


def test_what_systemctl_prints_is_read(node: KubeletNode) -> None:
    node.write("/etc/kubelet.d/2.env", "X=3\n")
    node.write("/etc/kubelet.d/1.env", "X=2\n")
    host = Host(lambda *_a, **_k: Outcome(0, SHOWN, ""), str(node.root))
    (unit,) = host.units(["kubelet", "k0sworker"])
    assert unit == Unit(
        name="kubelet",
        active="inactive",
        enabled="disabled",
        pid=0,
        path="/usr/bin/kubelet",
        argv=(
            "/usr/bin/kubelet",
            "$KUBELET_KUBECONFIG_ARGS",
            "$KUBELET_CONFIG_ARGS",
            "$KUBELET_KUBEADM_ARGS",
            "$KUBELET_EXTRA_ARGS",
            "--a=b",
            "c",
            "${X}",
            "$$Y",
        ),
        environment=(
            ("KUBELET_KUBECONFIG_ARGS", made.KUBECONFIG_ARGS),
            ("KUBELET_CONFIG_ARGS", "--config=/var/lib/kubelet/config.yaml"),
            ("Q", 'it\'s "a" $b'),
            ("X", "1"),
        ),
        environment_files=(made.KUBEADM_FLAGS, "/etc/default/kubelet", "/etc/kubelet.d/*.env"),
        sources=(
            "/etc/systemd/system/kubelet.service",
            "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
            "/run/systemd/system/kubelet.service.d/x.conf",
        ),
    )
    (kubelet,) = find_kubelets(host)
    assert words(node, kubelet) == [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
        "--a=b",
        "c",
        "3",
        "$Y",
    ]


def test_a_machine_without_systemd_is_an_error(node: KubeletNode) -> None:
    said = "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
    with pytest.raises(NodeError, match="systemctl show .* failed: System has not been booted"):
        find_kubelets(Host(lambda *_a, **_k: Outcome(1, "", said), str(node.root)))


@pytest.mark.parametrize("family, path", [("deb", "/etc/default/kubelet"), ("rpm", "/etc/sysconfig/kubelet")])
def test_kubeadm(node: KubeletNode, family: str, path: str) -> None:
    made.kubeadm(node, "1.30.4", 'KUBELET_EXTRA_ARGS="--v=4 %s"\n' % OLD, family=family)
    (kubelet,) = find(node)
    assert kubelet.distributions == ("kubeadm",)
    assert kubelet.program().command == (str(node.path("/usr/bin/kubelet")),)
    assert (
        words(node, kubelet)[-2:] == ["--v=4", OLD]
        and words(node, kubelet)[2] == "--config=/var/lib/kubelet/config.yaml"
    )
    (place,) = places(node, kubelet)
    assert place.where == path + ", KUBELET_EXTRA_ARGS" and place.editor is not None
    assert target(kubelet).path == path


def test_kubeadms_own_flags_are_never_edited(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4", flags="--network-plugin=cni " + OLD)
    (place,) = places(node, find(node)[0])
    assert place.editor is None
    assert "nodeRegistration.kubeletExtraArgs" in place.advice


def test_kubeadm_without_its_file_yet(node: KubeletNode) -> None:
    path = made.kubeadm(node, "1.23.17", None)
    editor = target(find(node)[0])
    assert isinstance(editor, EnvironmentEditor)
    assert (editor.path, editor.variable) == (path, "KUBELET_EXTRA_ARGS")


def test_kubeadm_with_both_files_takes_the_one_that_counts(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", None)
    node.services["kubelet"].files.append("/etc/sysconfig/kubelet")
    node.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--v=3\n")
    assert target(find(node)[0]).path == "/etc/default/kubelet"
    node.write("/etc/sysconfig/kubelet", "KUBELET_EXTRA_ARGS=--v=4\n")
    kubelet = find(node)[0]
    assert target(kubelet).path == "/etc/sysconfig/kubelet"
    assert words(node, kubelet)[-1] == "--v=4"


def test_kubeadm_with_the_variable_in_a_drop_in(node: KubeletNode) -> None:
    """As minikube does. A second assignment in the file would replace what the drop-in says."""
    made.kubeadm(node, "1.23.17", None)
    node.services["kubelet"].environment.append("KUBELET_EXTRA_ARGS=--v=3 " + OLD)
    kubelet = find(node)[0]
    assert kubelet.target().editor is None
    assert "KUBELET_EXTRA_ARGS is set in Environment= of kubelet.service" in kubelet.target().advice
    (place,) = places(node, kubelet)
    assert place.editor is None and "10-kubeadm.conf, then run systemctl daemon-reload" in place.advice


def test_kubespray(node: KubeletNode) -> None:
    made.kubespray(node, "1.30.4", OLD)
    (kubelet,) = find(node)
    assert kubelet.distributions == ("kubespray",)
    assert words(node, kubelet) == [
        "--node-ip=192.0.2.11",
        "--hostname-override=node1",
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--config=/etc/kubernetes/kubelet-config.yaml",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock",
        "--runtime-cgroups=/system.slice/containerd.service",
        OLD,
    ]
    (place,) = places(node, kubelet)
    assert place.editor is None and "kubespray variable kubelet_custom_flags" in place.advice
    assert kubelet.target().editor is None and "kubelet_custom_flags" in kubelet.target().advice


def test_kubeadm_and_kubespray_at_once(node: KubeletNode) -> None:
    path = made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=%s\n" % OLD)
    service = node.services["kubelet"]
    made.kubespray(node, "1.30.4", OLD)
    service.argv.append("$KUBELET_ARGS")
    service.files.append(made.KUBESPRAY_ENV)
    node.services["kubelet"] = service
    (kubelet,) = find(node)
    assert kubelet.distributions == ("kubeadm", "kubespray")
    assert [place.where for place in places(node, kubelet)] == [
        path + ", KUBELET_EXTRA_ARGS",
        made.KUBESPRAY_ENV + ", KUBELET_ARGS",
    ]
    assert [place.editor is not None for place in places(node, kubelet)] == [True, False]


@pytest.mark.parametrize("name, agent", [("k3s", False), ("k3s", True), ("rke2", False), ("rke2", True)])
def test_k3s_and_rke2(node: KubeletNode, name: str, agent: bool) -> None:
    dropin = made.rancher(node, "1.23.17", name, 'kubelet-arg:\n  - "network-plugin=kubenet"\n', agent)
    site = "/etc/rancher/%s/config.yaml.d/10-site.yaml" % name
    node.write(site, 'kubelet-arg+:\n- "non-masquerade-cidr=10.0.0.0/8"\n')
    (kubelet,) = find(node)
    assert kubelet.distributions == (name,)
    assert words(node, kubelet) == ["--container-runtime=remote", "--network-plugin=kubenet", OLD]
    assert places(node, kubelet)[0].editor is None
    assert "kubelet-arg in " + site in places(node, kubelet)[0].advice
    assert target(kubelet).path == dropin
    assert kubelet.program().lists_flags is False


def test_rke2_has_a_kubelet_to_ask_after_its_first_start(node: KubeletNode) -> None:
    made.rancher(node, "1.30.4", "rke2")
    node.program("/var/lib/rancher/rke2/bin/kubelet", "1.30.4")
    (kubelet,) = find(node)
    assert kubelet.program() == Program((str(node.path("/var/lib/rancher/rke2/bin/kubelet")),))


def test_k3s_with_a_later_file_that_replaces_the_list(node: KubeletNode) -> None:
    made.rancher(node, "1.23.17")
    node.write("/etc/rancher/k3s/config.yaml.d/99-last.yaml", 'kubelet-arg:\n- "v=2"\n')
    kubelet = find(node)[0]
    assert kubelet.target().editor is None and "99-last.yaml replaces the whole list" in kubelet.target().advice


def test_k3s_on_its_command_line(node: KubeletNode) -> None:
    made.rancher(node, "1.30.4")
    node.services["k3s"].argv.append("--kubelet-arg=non-masquerade-cidr=10.0.0.0/8")
    (place,) = places(node, find(node)[0])
    assert place.editor is None and "/etc/systemd/system/k3s.service" in place.advice


def test_k3s_with_docker_names_no_other_runtime(node: KubeletNode) -> None:
    made.rancher(node, "1.23.17", config="docker: true\n")
    assert words(node, find(node)[0]) == []
    made.rancher(node, "1.23.17")
    node.services["k3s"].argv.append("--docker")
    assert words(node, find(node)[0]) == []


@pytest.mark.parametrize("word", ["--disable-agent", "--disable-agent=true"])
def test_k3s_without_an_agent_has_no_kubelet(node: KubeletNode, word: str) -> None:
    made.rancher(node, "1.30.4")
    node.services["k3s"].argv.append(word)
    assert find(node) == []


def test_k0s(node: KubeletNode) -> None:
    unit = made.k0s(node, "1.30.4", "--v=2 " + OLD)
    (kubelet,) = find(node)
    assert kubelet.distributions == ("k0s",)
    (place,) = places(node, kubelet)
    assert place.editor is None and "--kubelet-extra-args in %s" % unit in place.advice
    assert kubelet.target().editor is None


def test_k0s_with_docker_names_no_other_runtime(node: KubeletNode) -> None:
    made.k0s(node, "1.23.17")
    assert words(node, find(node)[0]) == ["--container-runtime=remote"]
    for socket in (["--cri-socket=docker:unix:///run/docker.sock"], ["--cri-socket", "docker:unix:///run/docker.sock"]):
        made.k0s(node, "1.23.17")
        node.services["k0sworker"].argv += socket
        assert words(node, find(node)[0]) == []


def test_a_k0s_controller_has_a_kubelet_only_with_a_worker(node: KubeletNode) -> None:
    made.k0s(node, "1.30.4")
    node.services["k0scontroller"] = node.services.pop("k0sworker")
    assert find(node) == []
    node.services["k0scontroller"].argv.append("--enable-worker")
    assert [kubelet.distributions for kubelet in find(node)] == [("k0s",)]


def test_k0s_with_its_data_elsewhere(node: KubeletNode) -> None:
    made.k0s(node, "1.30.4")
    node.services["k0sworker"].argv.append("--data-dir=/data/k0s")
    assert find(node)[0].program().command == (str(node.path("/data/k0s/bin/kubelet")),)


def test_microk8s(node: KubeletNode) -> None:
    path = made.microk8s(node, "1.30.4", OLD + "\n")
    (kubelet,) = find(node)
    assert kubelet.distributions == ("microk8s",)
    assert kubelet.program().version == "v1.30.4"
    (place,) = places(node, kubelet)
    assert place.where == path and place.editor is not None
    assert "--eviction-hard=memory.available<100Mi,nodefs.available<1Gi,imagefs.available<1Gi" in words(node, kubelet)


def test_a_unit_of_the_operator_is_edited_only_where_named(node: KubeletNode) -> None:
    path = made.plain(node, "1.23.17", opts=OLD)
    (kubelet,) = find(node)
    assert kubelet.distributions == ("plain",)
    assert kubelet.target().editor is None and "args_file and args_variable" in kubelet.target().advice
    (place,) = places(node, kubelet)
    assert place.editor is None and "args_variable to KUBELET_OPTS" in place.advice
    (named,) = find(node, named=named_editor(path, "KUBELET_OPTS"))
    assert target(named).path == path and places(node, named)[0].editor is not None


def test_arguments_in_the_unit_itself(node: KubeletNode) -> None:
    made.plain(node, "1.30.4", "/usr/bin/kubelet --v=2 " + OLD)
    (place,) = places(node, find(node)[0])
    assert place.where == "ExecStart= of kubelet.service" and place.editor is None
    assert place.advice == "edit /etc/systemd/system/kubelet.service, then run systemctl daemon-reload"


def test_hyperkube(node: KubeletNode) -> None:
    made.plain(node, "1.17.0", "/usr/local/bin/hyperkube kubelet " + OLD)
    (kubelet,) = find(node)
    assert kubelet.program().command == (str(node.path("/usr/local/bin/hyperkube")), "kubelet")
    assert words(node, kubelet) == [OLD]


@pytest.mark.parametrize(
    "command, said",
    [
        ("/usr/bin/docker run --rm kubelet", "in a container"),
        ("/bin/sh -c kubelet", "may be a wrapper"),
        ("/opt/start-node.sh", "may be a wrapper"),
    ],
)
def test_a_wrapper_is_not_asked_unless_the_binary_is_named(node: KubeletNode, command: str, said: str) -> None:
    node.services["kubelet"] = Service(command)
    (kubelet,) = find(node)
    assert kubelet.program().command is None and said in kubelet.program().why_not
    (named,) = find(node, binary="/opt/kubelet")
    assert named.program().command == (str(node.path("/opt/kubelet")),)


def test_services_that_are_not_in_use_are_ignored(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    made.rancher(node, "1.30.4")
    node.services["k3s"].active, node.services["k3s"].enabled = "inactive", "disabled"
    assert [kubelet.unit.name for kubelet in find(node)] == ["kubelet"]
    node.services["kubelet"].active, node.services["kubelet"].enabled = "inactive", "disabled"
    assert [kubelet.unit.name for kubelet in find(node)] == ["kubelet", "k3s"]


def test_two_kubelets_at_once(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    made.microk8s(node, "1.30.4")
    assert [kubelet.distributions for kubelet in find(node)] == [("kubeadm",), ("microk8s",)]
    assert [kubelet.distributions for kubelet in find(node, distribution="microk8s")] == [("microk8s",)]


def test_a_named_unit_and_distribution(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=%s\n" % OLD)
    node.services["node-agent"] = node.services.pop("kubelet")
    assert find(node) == []
    assert find(node, unit="node-agent.service")[0].distributions == ("kubeadm",)
    (kubelet,) = find(node, unit="node-agent", distribution="plain")
    assert kubelet.distributions == ("plain",) and places(node, kubelet)[0].editor is None


@pytest.mark.parametrize(
    "path, variable, said",
    [
        ("/etc/x", "", "must be set together"),
        ("", "X", "must be set together"),
        ("etc/x", "X", "must be an absolute path"),
        ("/etc/x", "1 X", "is not a valid name"),
        ("/var/lib/kubelet/../kubelet/kubeadm-flags.env", "X", "never edited: kubeadm rewrites it"),
        ("/etc/kubernetes/kubelet.env", "KUBELET_ARGS", "never edited: .* kubelet_custom_flags"),
    ],
)
def test_invalid_places_of_arguments_are_refused(path: str, variable: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        named_editor(path, variable)


def test_the_process_of_a_service_is_found(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    host = Host(node.run, str(node.root))
    assert running_words(find(node)[0].unit, host) is None and host.processes("kubelet") == []
    node.start("kubelet")
    node.wait_healthy()
    (kubelet,) = find(node)
    words = running_words(kubelet.unit, host) or []
    assert words[-1] == "--pod-infra-container-image=registry.k8s.io/pause:3.9"
    assert host.processes("kubelet") == [kubelet.unit.pid]
