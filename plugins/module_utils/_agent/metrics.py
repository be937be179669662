# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for node_exporter's textfile collector, in the Prometheus text format 0.0.4."""

from __future__ import annotations

import typing as t

from .._engine.backend import Counters
from .._system.conntrack import Statistics
from .state_files import Verification


class Sample(t.NamedTuple):
    """What one resync measured. Times are seconds since the epoch."""

    in_sync: bool
    last_success: t.Optional[float]
    drift_repaired: int
    config_errors: int
    config_broken: bool
    exempt_cidrs: t.Dict[str, int]
    counters: t.Dict[str, Counters]
    #: by program that undoes them, how often repairs were made again
    repairs_undone: t.Mapping[str, int] = {}
    #: labels of the metric info, by name
    info: t.Mapping[str, str] = {}
    verification: t.Optional[Verification] = None
    #: whether the rules have changed since
    outdated: bool = False
    connections: t.Optional[Statistics] = None
    missing_addresses: int = 0
    #: connections removed after changes of the rules; None if that is not wanted
    flushed: t.Optional[int] = None
    #: what is done with packets that nat does not see; empty if there are no rules for them
    leaks: str = ""
    #: the largest share of its source ports that a destination uses, 0 to 1; None: not known
    port_share: t.Optional[float] = None


#: Name without prefix, kind and title of a metric, and its values with their labels.
_Metric = t.Tuple[str, str, str, t.Sequence[t.Tuple[str, t.Any]]]


def metrics_text(sample: Sample) -> str:
    """Return the text of the metrics file."""
    lines = []
    for suffix, kind, title, values in _metrics(sample):
        name = "ip_masq_agent_" + suffix
        lines += ["# HELP %s %s" % (name, title), "# TYPE %s %s" % (name, kind)]
        lines += ["%s%s %s" % (name, labels, value) for labels, value in values]
    return "\n".join(lines) + "\n"


def _metrics(sample: Sample) -> t.Iterator[_Metric]:
    yield "in_sync", "gauge", "1 if the active rules match the configuration.", _one(int(sample.in_sync))
    if sample.last_success is not None:
        title = "Time of the last successful resync."
        yield "last_success_timestamp_seconds", "gauge", title, _one("%.3f" % sample.last_success)
    yield "drift_repaired_total", "counter", "Resyncs that repaired drift.", _one(sample.drift_repaired)
    title = "How often repairs were made again, because a program undid them; a repair counts for two hours."
    undone = [('{program="%s"}' % one, count) for one, count in sorted(sample.repairs_undone.items())]
    yield "repairs_undone", "gauge", title, undone or _one(0)
    if sample.flushed is not None:
        title = "Open connections removed because a change of the rules changed their verdict."
        yield "connections_flushed_total", "counter", title, _one(sample.flushed)
    yield "config_errors_total", "counter", "Invalid configurations that were rejected.", _one(sample.config_errors)
    title = "1 if the configuration is invalid and the last valid one is used."
    yield "config_broken", "gauge", title, _one(int(sample.config_broken))
    ranges = [('{family="%s"}' % family, count) for family, count in sorted(sample.exempt_cidrs.items())]
    yield "exempt_cidrs", "gauge", "Exempt ranges.", ranges
    title = "Fixed addresses of the policy that are not on the node."
    yield "missing_addresses", "gauge", title, _one(sample.missing_addresses)
    yield from _counters(sample)
    if sample.info:
        labels = ",".join('%s="%s"' % one for one in sorted(sample.info.items()))
        yield "info", "gauge", "Version, backend and policy, as labels.", [("{%s}" % labels, 1)]
    last = sample.verification
    if last is not None:
        title = "Time of the last verification."
        yield "last_verification_timestamp_seconds", "gauge", title, _one("%.3f" % last.time)
    if last is not None and not sample.outdated:
        title = "Causes for which traffic did not match the policy when last verified. Absent if rules changed since."
        yield "verification_conflicts", "gauge", title, _one(last.conflicts)
        title = "Reasons for which not all traffic could be tested; 0: all was. Absent if rules changed since."
        yield "verification_untested", "gauge", title, _one(last.untested)
    if sample.connections is not None:
        yield from _connections(sample.connections)
    if sample.port_share is not None:
        title = "Largest share of its source ports that a destination uses, 0 to 1; measured at each n-th resync."
        yield "source_ports_highest_share", "gauge", title, _one("%.4f" % sample.port_share)


def _one(value: t.Any) -> t.Sequence[t.Tuple[str, t.Any]]:
    """Return a value without labels."""
    return [("", value)]


def _counters(sample: Sample) -> t.Iterator[_Metric]:
    counted = sorted(sample.counters.items())
    titles = {"packets": "First packets of connections", "bytes": "Bytes of first packets of connections"}
    for name, title in titles.items():
        values = [
            ('{family="%s",verdict="%s"}' % (family, verdict), getattr(counters, "%s_%s" % (verdict, name)))
            for family, counters in counted
            for verdict in ("exempt", "masqueraded")
        ]
        yield name + "_total", "counter", title + ", by verdict; reset when the chain is rewritten.", values
    if sample.leaks:
        title = (
            "Packets that would show a hidden address, by what was done with them; reset when the rules are rewritten."
        )
        values = [
            ('{family="%s",action="%s"}' % (family, sample.leaks), counters.leaked_packets)
            for family, counters in counted
        ]
        yield "leaked_packets_total", "counter", title, values


def _connections(counted: Statistics) -> t.Iterator[_Metric]:
    yield "conntrack_entries", "gauge", "Connections that the kernel tracks.", _one(counted.tracked)
    yield "conntrack_entries_limit", "gauge", "Connections that the kernel can track.", _one(counted.limit)
    title = "Connections that could not be tracked since boot; with masquerading, in most cases no free source port."
    yield "conntrack_insert_failed_total", "counter", title, _one(counted.insert_failed)
    title = "Packets dropped since boot because connection tracking failed; in most cases the table was full."
    yield "conntrack_drops_total", "counter", title, _one(counted.drops)
