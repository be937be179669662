# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of attachments as libcni keeps them for a container runtime, by libcni/api.go. Python 3.8."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

#: A network namespace that exists for as long as the test.
LIVE = "/proc/%d/ns/net" % os.getpid()
#: One that does not.
GONE = "/var/run/netns/cni-00000000-0000-0000-0000-000000000000"


def text(pod: str, *addresses: str, netns: str = LIVE) -> str:
    """Return the result of a pod.

    :param pod: ``namespace/name``.
    """
    namespace, _slash, name = pod.partition("/")
    data: t.Dict[str, t.Any] = {
        "kind": "cniCacheV1",
        "containerId": "a" * 64,
        "config": "e30=",
        "ifName": "eth0",
        "networkName": "cbr0",
        "netns": netns,
        "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", name]],
        "result": {
            "cniVersion": "1.0.0",
            "ips": [{"address": "%s/%d" % (one, 64 if ":" in one else 24)} for one in addresses],
        },
    }
    return json.dumps(data)


def write(folder: Path, pod: str, *addresses: str, netns: str = LIVE, written: t.Optional[float] = None) -> Path:
    """Write the result of a pod.

    :param written: when, in seconds since the epoch; None: now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("cbr0-%s-eth0" % pod.replace("/", "_"))
    path.write_text(text(pod, *addresses, netns=netns), encoding="utf-8")
    if written is not None:
        os.utime(path, (written, written))
    return path
