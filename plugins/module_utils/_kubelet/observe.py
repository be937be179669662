# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is found out about one kubelet, and about kubelets and cri-dockerd that no known service starts."""

from __future__ import annotations

import os
import typing as t

from .flags import FLAG, NEVER_VALUES, find_flag, last_value, runs_kubenet
from .host import Host, Unit
from .kubelet import Kubelet, Place, Target
from .probe import Probe, probe


class Observation(t.NamedTuple):
    """One kubelet, as it was found."""

    kubelet: Kubelet
    probe: Probe
    target: Target
    #: every appearance of the flag: where, and with which value
    configured: t.Tuple[t.Tuple[Place, str], ...]
    #: the value that counts, configured and in the running process; None if the flag is not given
    value: t.Optional[str]
    running_value: t.Optional[str]
    #: whether kubenet is configured, or running; None if the running process is not known
    kubenet: bool
    running_kubenet: t.Optional[bool]

    @property
    def unit(self) -> Unit:
        """Its service."""
        return self.kubelet.unit

    @property
    def name(self) -> str:
        """How messages call it."""
        return "%s (%s%s)" % (
            self.unit.name + ".service",
            " and ".join(self.kubelet.distributions),
            ", " + self.probe.version if self.probe.version else "",
        )

    @property
    def masquerades(self) -> bool:
        """Whether a kubenet rule may come back: one that is configured, or one that still runs."""
        now = self.running_kubenet and self.running_value not in NEVER_VALUES
        return bool(now) or (self.kubenet and self.value not in NEVER_VALUES)

    @property
    def restart_pending(self) -> bool:
        """Whether the running process has not seen the value that is configured."""
        seen = self.running_kubenet is None or self.running_value in NEVER_VALUES
        return self.value in NEVER_VALUES and not seen


def observe(kubelet: Kubelet, host: Host, timeout: float) -> Observation:
    """Find out about one kubelet.

    :param timeout: seconds for each question to the binary.
    :raises ConfigError: one of its argument files cannot be understood.
    :raises NodeError: one of its argument files cannot be read.
    """
    places = kubelet.places(host.read)
    words = [word for place in places for word in place.words]
    running = running_words(kubelet.unit, host)
    return Observation(
        kubelet,
        probe(kubelet.program(), host.run, timeout),
        kubelet.target(),
        tuple((place, one.value) for place in places for one in find_flag(place.words, where=place.where)),
        last_value(words, FLAG),
        last_value(running or [], FLAG),
        runs_kubenet(words),
        None if running is None else runs_kubenet(running),
    )


def running_words(unit: Unit, host: Host) -> t.Optional[t.List[str]]:
    """Return the arguments that the running process was started with; None if they are unknown."""
    argv = host.command_line(unit.pid) if unit.pid else []
    if not argv or not os.path.basename(argv[0]).startswith(("kubelet", "hyperkube")):
        return None
    return argv[1:]


def kubenet_in_cri_dockerd(host: Host) -> bool:
    """Return whether cri-dockerd runs kubenet: it still carries it, with 10.0.0.0/8 built in and no flag for it."""
    lines = [host.command_line(pid)[1:] for pid in host.processes("cri-dockerd")]
    return any(last_value(words, "network-plugin") == "kubenet" for words in lines)


def masquerading_processes(host: Host) -> t.List[int]:
    """List the running kubelets, of any service or none, that may write kubenet's rule."""
    found = []
    for pid in host.processes("kubelet"):
        words = host.command_line(pid)[1:]
        if runs_kubenet(words) and last_value(words, FLAG) not in NEVER_VALUES:
            found.append(pid)
    return found
