# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics after a resync that found nothing to do: those of the last sync, with what changes without one.

It runs at each such resync, and loads little: a start of Python takes 12 ms, and to load ``typing`` alone 17 more.
"""

from __future__ import annotations

import os
import time

from .._errors import NodeError
from .._system import conntrack_counts, shared_directory
from .._system.counter_listing import numbers
from .._system.limited import limited

#: Seconds for the directory of the metrics to answer.
_PATIENCE = 5.0

#: What each counted packet belongs to, by the characters of ``backend.Counted.kinds``: the labels of the two metrics.
_VERDICTS = {"E": "exempt", "M": "masqueraded"}

#: Counters that each family has, whatever its rules are.
_NOTHING = (("E", (0, 0)), ("M", (0, 0)), ("L", (0, 0)))

TYPE_CHECKING = False
if TYPE_CHECKING:
    # To load it takes 17 ms, more than a start of Python.
    from collections.abc import Iterable, Sequence


def update(run_dir: str, metrics_dir: str, name: str) -> str:
    """Write the metrics anew.

    :param run_dir: has the metrics of the last sync, and how to read what has been counted since.
    :returns: why the metrics are not written; empty if they are.
    """
    try:
        with open(os.path.join(run_dir, "metrics"), encoding="utf-8") as last:
            text = last.read()
        with open(os.path.join(run_dir, "counted"), encoding="utf-8") as listings:
            lines = [line.split() for line in listings]
        counted = [(family, action, kinds, numbers(_output(command))) for family, action, kinds, *command in lines]
        values = {"ip_masq_agent_%s%s" % metric: str(number) for metric, number in sums(counted).items()}
        values.update(_connections())
        values["ip_masq_agent_last_success_timestamp_seconds"] = "%.3f" % time.time()
        write(metrics_dir, name, _with_values(text, values))
    except (NodeError, OSError, ValueError, IndexError) as exc:
        return "metrics not written: %s" % exc
    return ""


def write(metrics_dir: str, name: str, text: str) -> None:
    """Write the metrics; raise NodeError if they cannot be written in time."""
    content = text.encode("utf-8")
    limited(lambda: shared_directory.write(metrics_dir, name, content), _PATIENCE, "write to %s" % metrics_dir)


def _with_values(text: str, values: dict[str, str]) -> str:
    lines = []
    for line in text.splitlines():
        metric, _space, value = line.rpartition(" ")
        lines.append("%s %s\n" % (metric, values.get(metric, value)))
    return "".join(lines)


def sums(
    counted: Iterable[tuple[str, str, str, Sequence[tuple[int, int]]]],
) -> dict[tuple[str, str], int]:
    """Add what rules have counted, by metric and labels.

    :param counted: of each listing its family, the action on leaks, the kinds of its counters, and their numbers.
    """
    values: dict[tuple[str, str], int] = {}

    def add(metric: str, labels: str, number: int) -> None:
        values[metric, labels] = values.get((metric, labels), 0) + number

    for family, action, kinds, counters in counted:
        for kind, (packets, size) in (*_NOTHING, *zip(kinds, counters)):
            if kind in _VERDICTS:
                labels = '{family="%s",verdict="%s"}' % (family, _VERDICTS[kind])
                add("packets_total", labels, packets)
                add("bytes_total", labels, size)
            elif kind == "L" and action != "ignore":
                add("leaked_packets_total", '{family="%s",action="%s"}' % (family, action), packets)
    return values


def _output(command: list[str]) -> str:
    """Return what a command prints. The module subprocess takes as long to load as a start of Python."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writing, 1)
            os.execve(command[0], command, dict(os.environ, LC_ALL="C"))  # noqa: S606 - there is no shell
        finally:
            os._exit(127)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="surrogateescape") as out:
        text = out.read()
    if os.waitpid(child, 0)[1] != 0:
        raise NodeError("%s failed" % " ".join(command))
    return text


def _connections() -> dict[str, str]:
    counts = conntrack_counts.read()
    if counts is None:
        return {}
    tracked, limit, failed, drops, _early = counts
    names = ("entries", "entries_limit", "insert_failed_total", "drops_total")
    values = zip(names, (tracked, limit, failed, drops))
    return {"ip_masq_agent_conntrack_" + name: str(value) for name, value in values}
