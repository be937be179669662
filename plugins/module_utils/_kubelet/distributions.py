# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kubelets this node runs, by the distributions of Kubernetes that are known here."""

from __future__ import annotations

import re
import typing as t

from .editors import DropInEditor, EnvironmentEditor, LinesEditor
from .flags import search_yaml
from .host import Host, Unit, unit_name
from .kubelet import Kubelet, Place, Program, Reader, Target
from .names import SERVICE_DISTRIBUTIONS
from .service_kubelet import ServiceKubelet

#: The services that are looked for, with the distribution of their name; empty if the unit's content decides.
_UNITS = {
    "kubelet": "",
    "k3s": "k3s",
    "k3s-agent": "k3s",
    "rke2-server": "rke2",
    "rke2-agent": "rke2",
    "k0sworker": "k0s",
    "k0scontroller": "k0s",
    "snap.microk8s.daemon-kubelite": "microk8s",
    "snap.microk8s.daemon-kubelet": "microk8s",
}

MICROK8S_ARGS = "/var/snap/microk8s/current/args/kubelet"
MICROK8S_SNAP = "/snap/microk8s/current/meta/snap.yaml"

#: The name of our drop-in sorts late, and only ``.yaml`` files are read.
RANCHER_DROPIN = "config.yaml.d/90-ip-masq.yaml"

#: First release that reads drop-ins and lets them append to a list.
RANCHER_DROPINS_SINCE = (1, 21)

#: What k3s, RKE2 and k0s give to their kubelet up to Kubernetes 1.23, unless it is to use docker.
_REMOTE_RUNTIME = "--container-runtime=remote"

_SNAP_VERSION = re.compile(r"^version:\s*[\"']?(v?\d+\.\d+\.\d+\S*?)[\"']?\s*$", re.MULTILINE)
_DOCKER_SOCKET = re.compile(r"--cri-socket[= ]docker:")
_DOCKER = re.compile(r"^docker:\s*true\b", re.MULTILINE)
_KUBELET_ARG = re.compile(r"^[\"']?kubelet-arg[\"']?\s*:", re.MULTILINE)


class RancherKubelet:
    """k3s and RKE2: one program, configured by a YAML file and drop-ins. See ``Kubelet``.

    :param name: ``k3s`` or ``rke2``.
    :param binary: the program to ask instead of the unit's.
    """

    def __init__(self, unit: Unit, host: Host, name: str, binary: str = "") -> None:
        self.unit = unit
        self.distributions = (name,)
        self._host = host
        self._binary = binary
        self._directory = "/etc/rancher/" + name
        self._own = "%s/%s" % (self._directory, RANCHER_DROPIN)

    def program(self) -> Program:
        if self._binary:
            return Program((self._host.path(self._binary),))
        unpacked = "/var/lib/rancher/rke2/bin/kubelet"
        if self.distributions == ("rke2",) and self._host.exists(unpacked):
            return Program((self._host.path(unpacked),))
        # The kubelet is inside this program, which has no command to list the kubelet's flags.
        return Program((self._host.path(self.unit.path),), lists_flags=False)

    def target(self) -> Target:
        for path in reversed(self._files()):
            if path > self._own and _KUBELET_ARG.search(self._host.read(path) or ""):
                return Target(None, "%s replaces the whole list kubelet-arg: use kubelet-arg+ there" % path)
        return Target(DropInEditor(self._own), since=RANCHER_DROPINS_SINCE)

    def _files(self) -> t.List[str]:
        return ["%s/config.yaml" % self._directory] + self._host.glob("%s/config.yaml.d/*.yaml" % self._directory)

    def places(self, read: Reader) -> t.List[Place]:
        docker = "--docker" in self.unit.argv or any(_DOCKER.search(read(path) or "") for path in self._files())
        found = [Place("defaults of %s" % self.distributions[0], () if docker else (_REMOTE_RUNTIME,))]
        # The drop-in may be about to be made, so it is asked for whether it is there or not.
        for path in sorted(set(self._files()) | {self._own}, key=lambda one: (one.count("/"), one)):
            editor = DropInEditor(path) if path == self._own else None
            advice = "remove it from kubelet-arg in %s" % path
            found.append(Place("%s, kubelet-arg" % path, tuple(search_yaml(read(path) or "")), editor, advice))
        words = tuple(search_yaml(" ".join(self.unit.argv)))
        advice = "remove --kubelet-arg from %s" % self.unit.source_names
        found.append(Place("ExecStart= of %s.service" % self.unit.name, words, None, advice))
        return [place for place in found if place.words or place.editor]


class K0sKubelet:
    """k0s: the kubelet's arguments are one argument of k0s, in the unit. See ``Kubelet``.

    :param binary: the program to ask instead of the one in k0s.
    """

    distributions = ("k0s",)

    def __init__(self, unit: Unit, host: Host, binary: str = "") -> None:
        self.unit = unit
        self._host = host
        self._binary = binary

    def program(self) -> Program:
        option = "--data-dir="
        data = next((word[len(option) :] for word in self.unit.argv if word.startswith(option)), "/var/lib/k0s")
        return Program((self._host.path(self._binary or data + "/bin/kubelet"),))

    def target(self) -> Target:
        return Target(None, "add it to --kubelet-extra-args in %s" % self.unit.source_names)

    def places(self, read: Reader) -> t.List[Place]:
        argv = " ".join(self.unit.argv)
        advice = "remove it from --kubelet-extra-args in %s (k0s install %s --force --kubelet-extra-args=...)" % (
            self.unit.source_names,
            "controller" if self.unit.name == "k0scontroller" else "worker",
        )
        where = "--kubelet-extra-args in %s.service" % self.unit.name
        return [
            Place("defaults of k0s", () if _DOCKER_SOCKET.search(argv) else (_REMOTE_RUNTIME,)),
            Place(where, tuple(search_yaml(argv)), None, advice),
        ]


class MicroK8sKubelet:
    """MicroK8s: a snap with one file of arguments. To ask its programs would start them. See ``Kubelet``."""

    distributions = ("microk8s",)

    def __init__(self, unit: Unit, host: Host) -> None:
        self.unit = unit
        self._host = host

    def program(self) -> Program:
        found = _SNAP_VERSION.search(self._host.read(MICROK8S_SNAP) or "")
        if found is None:
            return Program(None, "%s contains no version" % MICROK8S_SNAP)
        return Program(version="v" + found.group(1).lstrip("v"))

    def target(self) -> Target:
        return Target(LinesEditor(MICROK8S_ARGS))

    def places(self, read: Reader) -> t.List[Place]:
        editor = LinesEditor(MICROK8S_ARGS)
        return [Place(MICROK8S_ARGS, tuple(editor.words(read(MICROK8S_ARGS))), editor)]


def find_kubelets(
    host: Host,
    unit: str = "",
    binary: str = "",
    distribution: str = "auto",
    named: t.Optional[EnvironmentEditor] = None,
) -> t.List[Kubelet]:
    """Return the kubelets that this node is meant to run; stopped and disabled ones only if there is no other.

    :param unit: look at this service only.
    :param binary: ask this program instead of the unit's.
    :param distribution: look only for this one, or take the unit for it.
    :param named: where a unit of the operator's own takes arguments from.
    :raises NodeError: systemd cannot be queried.
    """
    units = [one for one in host.units([unit_name(unit)] if unit else list(_UNITS)) if _runs_kubelet(one)]
    units = [one for one in units if one.in_use] or units
    kubelets = [_kubelet(one, host, binary, _kind(one, distribution, bool(unit)), named) for one in units]
    return [one for one in kubelets if distribution == "auto" or distribution in one.distributions]


def _runs_kubelet(unit: Unit) -> bool:
    """Return whether a service runs a kubelet: k3s servers without agent and k0s controllers without worker do not."""
    if unit.name == "k0scontroller":
        return any(word.startswith(("--enable-worker", "--single")) for word in unit.argv)
    return not any(word in ("--disable-agent", "--disable-agent=true") for word in unit.argv)


def _kind(unit: Unit, distribution: str, chosen: bool) -> str:
    """Return what to take a unit for; empty if the unit itself has to tell.

    :param chosen: whether the operator named the unit.
    """
    usual = _UNITS.get(unit.name, "")
    # A unit that the operator names may be anything; of the others only the plain kubelet.service.
    taken = distribution != "auto" and (chosen or (not usual and distribution in SERVICE_DISTRIBUTIONS))
    return distribution if taken else usual


def _kubelet(unit: Unit, host: Host, binary: str, kind: str, named: t.Optional[EnvironmentEditor]) -> Kubelet:
    if kind in ("k3s", "rke2"):
        return RancherKubelet(unit, host, kind, binary)
    if kind == "k0s":
        return K0sKubelet(unit, host, binary)
    if kind == "microk8s":
        return MicroK8sKubelet(unit, host)
    return ServiceKubelet(unit, host, binary, kind, named)
