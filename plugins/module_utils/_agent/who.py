# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command who: which pod is behind a connection that another host reports, now or at a time of the log."""

from __future__ import annotations

import math
import os
import time
import typing as t

from .._connection_log import coverage, pod_history
from .._connection_log.moments import Moment, parse_moment, show_moment
from .._connection_log.search import search
from .._errors import NodeError
from .._system import conntrack, pod_names
from .._system.conntrack import Connection
from .._system.endpoints import Endpoint, parse_endpoints
from .paths import Paths


class WhoRequest(t.NamedTuple):
    """Which connections are meant."""

    #: address and port of the node, as the other side reports them
    seen: Endpoint
    #: address and port of the other side; None: any
    remote: t.Optional[Endpoint]
    protocol: str
    #: when they were open; None: now
    at: t.Optional[Moment]

    def __str__(self) -> str:
        to = "" if self.remote is None else " to %s" % (self.remote,)
        return "%s connection from %s%s" % (self.protocol, self.seen, to)


def request(seen: str, remote: t.Optional[str], protocol: str, at: t.Optional[str] = None) -> WhoRequest:
    """Parse the arguments of the command.

    :raises ConfigError: one of them is not valid.
    """
    return WhoRequest(*parse_endpoints(seen, remote), protocol, None if at is None else parse_moment(at))


def who(paths: Paths, asked: WhoRequest) -> t.List[str]:
    """Return who opened the connections, one line each; of those of the log also what it covers.

    :raises NodeError: there is no such connection, or neither the kernel nor a log has it.
    """
    return _now(asked) if asked.at is None else _then(paths, asked, asked.at)


def _now(asked: WhoRequest) -> t.List[str]:
    found = conntrack.find(asked.seen, asked.remote, asked.protocol)
    if not found:
        raise NodeError("no tracked %s: it may have ended" % (asked,))
    pods, now = pod_names.read(), time.time()
    return [line(one, opener(one, pods, now)) for one in found]


def _then(paths: Paths, asked: WhoRequest, at: Moment) -> t.List[str]:
    if not os.path.isdir(paths.log_dir):
        raise NodeError("connections are not logged on this node: see the role's variable ip_masq_agent_connection_log")
    twice = coverage.came_twice(paths.log_dir, at)
    found = search(paths.log_dir, asked.seen, asked.remote, asked.protocol, at, twice)
    held = pod_history.read(paths.log_dir)
    not_read, now = "", time.time()
    try:
        still_open = conntrack.find(asked.seen, asked.remote, asked.protocol)
    except NodeError as exc:
        still_open, not_read = [], "; open connections not read: %s" % exc
    # One that began later than now began before the clock was set back.
    meant = [one for one in still_open if one.began is None or one.began < at.end or one.began > now]
    lines = [_logged_line(one, held) for one in [*found.connections, *meant]]
    about = "; ".join(coverage.describe(paths.log_dir, found, at)) + not_read
    if not lines:
        raise NodeError("no logged %s at %s: %s" % (asked, show_moment(at.start), about))
    return [*lines, about]


def _logged_line(one: Connection, held: t.Iterable[pod_history.HeldAddress]) -> str:
    name, began = None, "an unknown time"
    if one.began is not None:
        name, began = pod_history.name_at(held, one.source.address, one.began), show_moment(one.began)
    times = "open since %s" % began if one.ended == math.inf else "from %s to %s" % (began, show_moment(one.ended))
    return "%s, %s" % (line(one, name), times)


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
