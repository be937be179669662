# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command who: which pod is behind a connection that another host reports, now or at a time of the log."""

from __future__ import annotations

import os
import time
import typing as t

from .._errors import NodeError
from .._system import connection_log, conntrack, pod_history, pod_names
from .._system.connection_log import MOST_FOUND, Ended, Found
from .._system.conntrack import Connection
from .._system.endpoints import Endpoint
from .._system.moments import Moment, show_moment
from .log_rotation import gaps
from .paths import Paths

#: Interruptions of the log that an answer names, the last ones.
_SHOWN_GAPS = 5


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


def who_at(paths: Paths, seen: Endpoint, remote: t.Optional[Endpoint], protocol: str, at: Moment) -> t.List[str]:
    """Return who had opened the connections that were open at a moment, one line each, and what the log covers.

    :raises NodeError: none is known, or there is no log.
    """
    if not os.path.isdir(paths.log_dir):
        raise NodeError("connections are not logged on this node: see the role's variable ip_masq_agent_connection_log")
    found = connection_log.search(paths.log_dir, seen, remote, protocol, at)
    held = pod_history.read(paths.pod_history)
    lines = [_ended_line(one, held) for one in found.connections]
    not_read = ""
    try:
        still_open = conntrack.find(seen, remote, protocol)
    except NodeError as exc:
        still_open, not_read = [], "; open connections not read: %s" % exc
    for one in still_open:
        if one.began is None or one.began < at.end:
            name = None if one.began is None else pod_history.name_at(held, one.source.address, one.began)
            lines.append("%s, open since %s" % (line(one, name), _shown(one.began)))
    about = "; ".join(_coverage(paths, found, at)) + not_read
    if not lines:
        where = "" if remote is None else " to %s" % (remote,)
        raise NodeError(
            "no logged %s connection from %s%s at %s: %s" % (protocol, seen, where, show_moment(at.start), about)
        )
    return [*lines, about]


def _ended_line(one: Ended, held: t.Iterable[pod_history.Held]) -> str:
    name = None if one.began is None else pod_history.name_at(held, one.connection.source.address, one.began)
    return "%s, from %s to %s" % (line(one.connection, name), _shown(one.began), show_moment(one.ended))


def _shown(moment: t.Optional[float]) -> str:
    return "an unknown time" if moment is None else show_moment(moment)


def _coverage(paths: Paths, found: Found, at: Moment) -> t.Iterator[str]:
    """Return what the log covers, and what it does not know."""
    runs = gaps(paths)
    if found.first is None or found.last is None:
        yield "the log has no connection"
    else:
        last = found.last if runs is None else max(found.last, runs[1])
        yield "the log has connections that ended from %s to %s" % (show_moment(found.first), show_moment(last))
        if at.end <= found.first or at.start > last:
            yield "of %s it knows only connections that were still open then" % show_moment(at.start)
    if runs is None:
        yield "when it was interrupted is not known"
    else:
        gone = [gap for gap in runs[0] if found.first is None or gap[1] > found.first]
        earlier = [gap for gap in runs[0] if gap not in gone][-1:]
        for before, after in (earlier + gone)[-_SHOWN_GAPS:]:
            if before is None:
                yield "it misses those that began before %s" % show_moment(after)
            else:
                yield "it misses those that began or ended from %s to %s" % (show_moment(before), show_moment(after))
    if not found.is_complete:
        yield "there are more than %d, or not all of the log was read" % MOST_FOUND
    if found.damaged or found.damaged_files:
        yield "not readable: %d lines, %d files" % (found.damaged, found.damaged_files)


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
