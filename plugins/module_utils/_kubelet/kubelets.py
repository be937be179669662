# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kubelets this node runs, the places that give them arguments, and what else decides about them.

A kubelet that a unit starts itself is kubeadm's, kubespray's or the operator's own; one place may be edited at most.
Those of k3s, RKE2, k0s and MicroK8s are only searched for a flag with which they would not start.
"""

from __future__ import annotations

import itertools
import os
import re
import typing as t

from .._system.kubelet_units import KUBELET_UNITS
from .arguments import NEVER_VALUES, last_value, masquerades, runs_kubenet, search, take_out
from .environment_file import parse, split_words
from .host import Host, Unit
from .options import KUBESPRAY_ENV, MANAGED, Spot
from .probe import Probe, by_version, probe

#: Files in which kubeadm's packages let the operator put arguments (deb, rpm), and the variable.
KUBEADM_FILES = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")
KUBEADM_VARIABLE = "KUBELET_EXTRA_ARGS"

#: Distributions that start a kubelet themselves: what has the arguments for it, and the files to search.
_SEARCHED = {
    "k3s": ("kubelet-arg in %s", "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d/*.yaml"),
    "rke2": ("kubelet-arg in %s", "/etc/rancher/rke2/config.yaml", "/etc/rancher/rke2/config.yaml.d/*.yaml"),
    "k0s": ("--kubelet-extra-args in %s",),
    "microk8s": ("%s", "/var/snap/microk8s/current/args/kubelet"),
}
_RELOAD = ", then run systemctl daemon-reload"
_MICROK8S_SNAP = "/snap/microk8s/current/meta/snap.yaml"


class Place(t.NamedTuple):
    """One place that gives arguments to a kubelet: what people call it, and what they change if we may not edit it."""

    where: str
    words: t.Tuple[str, ...]
    by_hand: str
    editable: bool = False


class Kubelet(t.NamedTuple):
    """One kubelet, as it was found."""

    unit: Unit
    distribution: str
    probe: Probe
    #: the last one wins
    places: t.List[Place]
    #: the place that may be edited, also if it is still to be made
    target: t.Optional[Spot]
    #: whether the running process writes kubenet's rule
    masquerades: bool

    @property
    def name(self) -> str:
        """How messages call it."""
        return "%s (%s)" % (self.unit.name, ", ".join(filter(None, (self.distribution, self.probe.version))))

    @property
    def words(self) -> t.List[str]:
        """All arguments that are configured."""
        return [word for place in self.places for word in place.words]

    @property
    def kubenet(self) -> bool:
        """Whether kubenet is configured, and can run."""
        return runs_kubenet(self.words)

    @property
    def configured(self) -> t.List[t.Tuple[Place, str]]:
        """Every appearance of the flag: where, and with which value."""
        return [(place, value) for place in self.places for value in take_out(place.words, where=place.where)[0]]

    @property
    def restart_pending(self) -> bool:
        """Whether the process still masquerades, since a run without restart or one that was interrupted."""
        return self.masquerades and self.target is not None and last_value(self.words) in NEVER_VALUES


def find_kubelets(host: Host) -> t.List[Kubelet]:
    """Return the kubelets that this node is meant to run; stopped and disabled ones only if there is no other.

    :raises ConfigError: a file with arguments cannot be understood.
    :raises NodeError: systemd cannot be queried, or a file not be read.
    """
    names = [host.options.unit] if host.options.unit else KUBELET_UNITS
    units = [one for one in host.units(names) if _runs_kubelet(one)]
    running = host.kubelets()
    units = [one for one in units if one.in_use] or units
    return [_observe(one, host, running.get(one.pid, [])) for one in units]


def _runs_kubelet(unit: Unit) -> bool:
    """Return whether a service runs a kubelet: k3s servers without agent and k0s controllers without worker do not."""
    if unit.words[:1] == ("controller",):
        return any(word.startswith(("--enable-worker", "--single")) for word in unit.words)
    return not {"--disable-agent", "--disable-agent=true"} & set(unit.words)


def _observe(unit: Unit, host: Host, running: t.Sequence[str]) -> Kubelet:
    target, places = find_places(unit, host)
    return Kubelet(unit, _distribution(unit), _ask(unit, host), places, target, masquerades(running))


def _distribution(unit: Unit) -> str:
    program = os.path.basename(unit.path)
    if program in _SEARCHED or program == "snap":
        return program.replace("snap", "microk8s")
    if "$" + KUBEADM_VARIABLE in unit.words:
        return "kubeadm"
    return "kubespray" if KUBESPRAY_ENV in unit.environment_files else "plain"


def _ask(unit: Unit, host: Host) -> Probe:
    """Find out whether a kubelet supports the flag."""
    program = os.path.basename(unit.path)
    binary = host.options.binary
    path = binary or unit.path
    if program == "snap" and not binary:  # to ask its programs would start them
        version = re.search(r"(?m)^version:[ \"']*v?([\w.+-]+)", host.read(_MICROK8S_SNAP))
        return by_version("v" + version[1] if version else "", _MICROK8S_SNAP)
    if program == "k0s" and not binary:
        data = [word.partition("=")[2] for word in unit.words if word.startswith("--data-dir=")]
        path = (data or ["/var/lib/k0s"])[-1] + "/bin/kubelet"
    elif not binary and not program.startswith(("kubelet", "k3s", "rke2")):
        why = "%s starts %s, which may be a wrapper or a container; set the option binary to the path of the kubelet"
        return Probe(None, why=why % (unit.name, unit.path or "no program"))
    return probe(host.path(path), host.run, host.options.probe_timeout, lists_flags=program not in ("k3s", "rke2"))


def find_places(unit: Unit, host: Host) -> t.Tuple[t.Optional[Spot], t.List[Place]]:
    """Return where a kubelet may be edited, if anywhere, and every place that gives it arguments.

    :raises ConfigError: a place cannot be understood with certainty.
    """
    if _distribution(unit) in _SEARCHED:
        holder, *patterns = _SEARCHED[_distribution(unit)]
        texts = [(unit.sources, " ".join(unit.words))]
        texts += [(path, host.read(path)) for pattern in patterns for path in host.glob(pattern)]
        return None, [Place(name, search(text), holder % name) for name, text in texts]
    environment = _environment(unit, host)
    kubeadm = environment.get(KUBEADM_VARIABLE, ("", ""))[1]
    target = host.options.named or (Spot(kubeadm, KUBEADM_VARIABLE) if kubeadm in KUBEADM_FILES else None)
    places = []
    for is_variable, group in itertools.groupby(unit.words, lambda word: bool(re.match(r"\$[A-Za-z_]", word))):
        if is_variable:
            names = [word[1:] for word in group if word[1:] in environment]
            places += [_variable(unit, name, *environment[name], target=target) for name in names]
        else:
            # ${NAME} is part of a word, and one argument.
            words = [re.sub(r"\$\{(\w+)\}", lambda name: environment.get(name[1], ("",))[0], word) for word in group]
            plain = tuple(word.replace("$$", "$") for word in words)
            places.append(Place("ExecStart= of " + unit.name, plain, unit.sources + _RELOAD))
    return target, places


def _variable(unit: Unit, name: str, value: str, path: str, target: t.Optional[Spot]) -> Place:
    """Return the place that a variable is.

    :param path: its file; empty if the unit sets it.
    """
    where = "%s, %s" % (path or "Environment= of " + unit.name, name)
    by_hand = MANAGED.get(path, "%s in %s, or set args_file and args_variable to them" % (name, path))
    words = tuple(split_words(value, where))
    return Place(where, words, by_hand if path else unit.sources + _RELOAD, target == Spot(path, name))


def _environment(unit: Unit, host: Host) -> t.Dict[str, t.Tuple[str, str]]:
    """Return each variable's value and file: files override Environment= (systemd.exec(5))."""
    found = {}
    for path in unit.environment_files:
        if path in KUBEADM_FILES and "$" + KUBEADM_VARIABLE in unit.words:
            found[KUBEADM_VARIABLE] = "", path
    for word in split_words(unit.environment, "Environment= of " + unit.name):
        name, _equals, value = word.partition("=")
        found[name] = value, ""
    for pattern in unit.environment_files:
        # A file that is about to be made is asked for too.
        for path in host.glob(pattern) or [pattern]:
            found.update((one.name, (one.value, path)) for one in parse(host.read(path), path))
    return found
