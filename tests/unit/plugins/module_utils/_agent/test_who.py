# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of the command who, and when a connection has the name of a pod."""

from __future__ import annotations

import math
import random
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.who import line, opener
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import pod_names
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Connection, Zones
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.endpoints import Endpoint
from support import cni_results


def test_line_says_what_was_translated() -> None:
    pod, service, backend = Endpoint("10.244.1.2", 4000), Endpoint("10.96.0.1", 443), Endpoint("192.0.2.9", 6443)
    assert line(Connection("tcp", pod, service, pod, backend)) == (
        "tcp 10.244.1.2:4000 -> 10.96.0.1:443, translated to 192.0.2.9:6443, seen with its own address"
    )


@pytest.mark.parametrize(
    ("zones", "end"),
    [
        (Zones(), ""),
        (Zones(both=5), ", conntrack zone 5"),
        (Zones(original=5), ", conntrack zone of the opener's packets 5"),
        (Zones(reply=7), ", conntrack zone of the answers 7"),
    ],
)
def test_line_names_zones(zones: Zones, end: str) -> None:
    pod, remote = Endpoint("10.244.1.2", 4000), Endpoint("203.0.113.10", 443)
    shown = line(Connection("tcp", pod, remote, Endpoint("198.51.100.1", 4000), remote, zones))
    assert shown == "tcp 10.244.1.2:4000 -> 203.0.113.10:443, seen as 198.51.100.1:4000" + end


def _from(address: str, idle: t.Optional[int]) -> Connection:
    pod, remote = Endpoint(address, 4000), Endpoint("203.0.113.10", 443)
    return Connection("tcp", pod, remote, Endpoint("198.51.100.1", 4000), remote, idle=idle)


def test_line_names_the_pod() -> None:
    assert line(_from("10.244.1.2", 0), "default/web") == (
        "tcp 10.244.1.2:4000 (default/web) -> 203.0.113.10:443, seen as 198.51.100.1:4000"
    )


@pytest.mark.parametrize(
    ("idle", "name"), [(0, "default/web"), (9, "default/web"), (10, None), (11, None), (None, None)]
)
def test_connection_without_packets_since_the_pod_has_the_address(idle: t.Optional[int], name: t.Optional[str]) -> None:
    pods = {"10.244.1.2": pod_names.Pod("default/web", 1000.0)}
    assert opener(_from("10.244.1.2", idle), pods, 1010.0) == name
    assert opener(_from("10.244.1.3", idle), pods, 1010.0) is None


class _Replay:
    """Pods that come and go on a node, in a time of its own, with the directory in which libcni keeps their results."""

    def __init__(self, folder: Path, begin: float, chance: random.Random) -> None:
        self._folder, self.now, self._chance = folder, begin, chance
        self.alive: t.Dict[str, str] = {}
        self._named: t.Optional[t.Dict[str, pod_names.Pod]] = None

    def start(self, pod: str, address: str) -> None:
        """Attach a pod."""
        cni_results.write(self._folder, pod, address, written=self.now)
        self.alive[address] = pod
        self._named = None

    def end(self, address: str) -> None:
        """End a pod; its result sometimes stays."""
        pod = self.alive.pop(address)
        path = cni_results.write(self._folder, pod, address, netns=cni_results.GONE)
        if self._chance.random() < 0.5:
            path.unlink()
        self._named = None

    def pods(self) -> t.Dict[str, pod_names.Pod]:
        """What is on the disk now."""
        if self._named is None:
            self._named = pod_names.read([str(self._folder)])
        return self._named


def test_ten_thousand_flows_of_pods_with_reused_addresses(tmp_path: Path) -> None:
    """No flow has the name of another pod than its own, and those of pods that live have one."""
    chance = random.Random(32)
    replay = _Replay(tmp_path, 4e9, chance)
    addresses = ["10.244.1.%d" % number for number in range(2, 32)]
    waiting = ["default/pod-%d" % number for number in range(200)]
    #: pod, address, time of the last packet
    flows: t.List[t.Tuple[str, str, float]] = []
    asked = wrong = named = living = 0
    while asked < 10000:
        replay.now += chance.random() * 0.2
        free = [one for one in addresses if one not in replay.alive]
        if free and waiting and chance.random() < 0.2:
            replay.start(waiting.pop(0), chance.choice(free))
        elif replay.alive and chance.random() < 0.1:
            address = chance.choice(sorted(replay.alive))
            waiting.append(replay.alive[address])
            replay.end(address)
        elif replay.alive:
            address = chance.choice(sorted(replay.alive))
            flows.append((replay.alive[address], address, replay.now))
            replay.now += 0.001
        for pod, address, last in chance.sample(flows[-500:], min(2, len(flows))):
            # The kernel counts whole seconds.
            name = opener(_from(address, math.ceil(replay.now - last)), replay.pods(), replay.now)
            asked += 1
            wrong += name not in (None, pod)
            named += name == pod
            since = replay.pods()[address].since if address in replay.alive else math.inf
            living += replay.alive.get(address) == pod and last > since + 1
    assert wrong == 0
    assert named >= living > 2000
