# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command who: which pod is behind a connection that another host reports."""

from __future__ import annotations

import time
import typing as t

from .._errors import NodeError
from .._system import conntrack, pod_names
from .._system.conntrack import Connection
from .._system.endpoints import Endpoint


def who(seen: Endpoint, remote: t.Optional[Endpoint], protocol: str) -> t.List[str]:
    """Return who opened the connections, one line each.

    :param seen: address and port of the node, as the other side reports them.
    :param remote: address and port of the other side; None: any.
    :raises NodeError: there is no such connection, or the kernel does not tell.
    """
    found = conntrack.find(seen, remote, protocol)
    if not found:
        where = "" if remote is None else " to %s" % (remote,)
        raise NodeError("no tracked %s connection from %s%s: it may have ended" % (protocol, seen, where))
    pods, now = pod_names.read(), time.time()
    return [line(one, opener(one, pods, now)) for one in found]


def opener(one: Connection, pods: pod_names.Pods, now: float) -> t.Optional[str]:
    """Return the name of the pod that opened a connection; None if that is not certain.

    A connection stays in the table when its pod is gone, and another pod may have the address since.
    """
    pod = pods.get(one.source.address)
    return pod.name if pod and one.idle is not None and now - one.idle > pod.since else None


def line(one: Connection, pod: t.Optional[str] = None) -> str:
    """Return one connection for people.

    :param pod: the name of the pod that opened it; None: not known.
    """
    text = "%s %s -> %s" % (one.protocol, pod_names.with_name(one.source, pod), one.destination)
    if one.destination != one.remote:
        text += ", translated to %s" % (one.remote,)
    text += ", seen as %s" % (one.seen,) if one.seen != one.source else ", seen with its own address"
    zones = zip(("zone", "zone of the opener's packets", "zone of the answers"), one.zones)
    return text + "".join(", conntrack %s %d" % (name, zone) for name, zone in zones if zone)
