# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as the distributions leave them: their units, and their files as they write them."""

from __future__ import annotations

import typing as t

from .kubelet_node import KubeletNode, Service

KUBEADM_FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
KUBESPRAY_ENV = "/etc/kubernetes/kubelet.env"
MICROK8S_ARGS = "/var/snap/microk8s/current/args/kubelet"

KUBECONFIG_ARGS = (
    "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
)

_KUBEADM_ENVIRONMENT = (
    "KUBELET_KUBECONFIG_ARGS=" + KUBECONFIG_ARGS,
    "KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml",
)
_KUBEADM_COMMAND = (
    "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS"
)
_KUBELET_ENV = """KUBELET_LOG_LEVEL="--v=2"
KUBELET_ADDRESS="--node-ip=192.0.2.11"
KUBELET_HOSTNAME="--hostname-override=node1"



KUBELET_ARGS="--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \\
--config=/etc/kubernetes/kubelet-config.yaml \\
--kubeconfig=/etc/kubernetes/kubelet.conf \\
--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock \\
--runtime-cgroups=/system.slice/containerd.service \\
 %s"
KUBELET_CLOUDPROVIDER=""

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
_MICROK8S = """--kubeconfig=${SNAP_DATA}/credentials/kubelet.config
--cert-dir=${SNAP_DATA}/certs
--client-ca-file=${SNAP_DATA}/certs/ca.crt
--anonymous-auth=false
--root-dir=${SNAP_COMMON}/var/lib/kubelet
--fail-swap-on=false
--eviction-hard="memory.available<100Mi,nodefs.available<1Gi,imagefs.available<1Gi"
--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock
"""


def kubeadm(
    node: KubeletNode,
    version: str,
    extra: t.Union[None, str, bytes] = "KUBELET_EXTRA_ARGS=\n",
    flags: str = "",
    family: str = "deb",
    **behaviour: t.Any,
) -> str:
    """Lay out kubeadm's packages. Return the file in which the operator puts arguments.

    :param extra: that file; None if there is none.
    :param flags: added to kubeadm-flags.env.
    :param family: ``deb`` or ``rpm``.
    """
    mine = {"deb": "/etc/default/kubelet", "rpm": "/etc/sysconfig/kubelet"}[family]
    usual = "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock"
    node.write(
        KUBEADM_FLAGS,
        'KUBELET_KUBEADM_ARGS="%s --pod-infra-container-image=registry.k8s.io/pause:3.9"\n' % (flags or usual),
    )
    if extra is not None:
        node.write(mine, extra)
    node.program("/usr/bin/kubelet", version, **behaviour)
    node.services["kubelet"] = Service(
        _KUBEADM_COMMAND,
        environment=_KUBEADM_ENVIRONMENT,
        files=[KUBEADM_FLAGS, mine],
        fragment="/lib/systemd/system/kubelet.service",
        dropins="/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
    )
    return mine


def kubespray(node: KubeletNode, version: str, custom: str = "", **behaviour: t.Any) -> str:
    """Lay out kubespray's own unit.

    :param custom: kubelet_custom_flags, joined.
    """
    node.write(KUBESPRAY_ENV, _KUBELET_ENV % custom, 0o640)
    node.program("/usr/local/bin/kubelet", version, **behaviour)
    node.services["kubelet"] = Service(
        "/usr/local/bin/kubelet $KUBE_LOGTOSTDERR $KUBE_LOG_LEVEL $KUBELET_API_SERVER $KUBELET_ADDRESS $KUBELET_PORT "
        "$KUBELET_HOSTNAME $KUBELET_ARGS $DOCKER_SOCKET $KUBELET_NETWORK_PLUGIN $KUBELET_VOLUME_PLUGIN "
        "$KUBELET_CLOUDPROVIDER",
        files=[KUBESPRAY_ENV],
        fragment="/etc/systemd/system/kubelet.service",
    )
    return KUBESPRAY_ENV


def rancher(
    node: KubeletNode,
    version: str,
    name: str = "k3s",
    config: str = "write-kubeconfig-mode: '0644'\n",
    agent: bool = False,
) -> str:
    """Lay out k3s or RKE2. Return its configuration file.

    :param name: ``k3s`` or ``rke2``.
    """
    directory = "/etc/rancher/" + name
    node.write(directory + "/config.yaml", config, 0o600)
    suffix = "+%s1" % (name if name == "k3s" else "rke2r")
    node.program("/usr/local/bin/" + name, version + suffix, inside=name)
    role = "agent" if agent else "server"
    unit = {"k3s": "k3s-agent" if agent else "k3s", "rke2": "rke2-" + role}[name]
    node.services[unit] = Service(
        "/usr/local/bin/%s %s" % (name, role),
        files=["/etc/default/" + unit, "/etc/sysconfig/" + unit, "/etc/systemd/system/%s.service.env" % unit],
        fragment="/etc/systemd/system/%s.service" % unit,
    )
    return directory + "/config.yaml"


def k0s(node: KubeletNode, version: str, extra: str = "", data: str = "") -> str:
    """Lay out a k0s worker. Return its unit file.

    :param extra: what stands behind --kubelet-extra-args=.
    :param data: --data-dir=, if it is not the usual one.
    """
    node.program((data.partition("=")[2] or "/var/lib/k0s") + "/bin/kubelet", version)
    command = "/usr/local/bin/k0s worker --token-file=/etc/k0s/token %s" % data
    command += " --kubelet-extra-args=" + extra if extra else ""
    node.services["k0sworker"] = Service(command, fragment="/etc/systemd/system/k0sworker.service")
    return "/etc/systemd/system/k0sworker.service"


def microk8s(node: KubeletNode, version: str, extra: str = "") -> str:
    """Lay out MicroK8s, with ``current`` a link as snapd makes it. Return its file of arguments."""
    node.write("/var/snap/microk8s/7180/args/kubelet", _MICROK8S + extra, 0o660)
    node.path("/var/snap/microk8s/current").symlink_to("7180")
    node.write("/snap/microk8s/current/meta/snap.yaml", "name: microk8s\nversion: v%s\nsummary: Kubernetes\n" % version)
    node.services["snap.microk8s.daemon-kubelite"] = Service(
        "/usr/bin/snap run microk8s.daemon-kubelite",
        files=["/etc/environment"],
        fragment="/etc/systemd/system/snap.microk8s.daemon-kubelite.service",
    )
    return MICROK8S_ARGS


def plain(
    node: KubeletNode, version: str, command: str = "/usr/bin/kubelet --v=2 $KUBELET_OPTS", opts: str = ""
) -> str:
    """Lay out a unit of the operator's own. Return its environment file."""
    node.write("/etc/kubelet.conf", 'KUBELET_OPTS="%s"\n' % opts)
    node.program(command.split()[0], version)
    node.services["kubelet"] = Service(
        command, files=["/etc/kubelet.conf"], fragment="/etc/systemd/system/kubelet.service"
    )
    return "/etc/kubelet.conf"
