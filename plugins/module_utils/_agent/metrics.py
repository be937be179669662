# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for node_exporter's textfile collector, in the Prometheus text format 0.0.4."""

from __future__ import annotations

import typing as t

from .._engine.backend import Counters
from .._system.conntrack import Statistics
from .memory import Verification


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
    connections: t.Optional[Statistics] = None
    missing_addresses: int = 0
    #: connections removed after changes of the rules; None if that is not asked for
    flushed: t.Optional[int] = None
    #: what is done with packets that nat does not see; empty where there are no rules for them
    leaks: str = ""
    #: the largest share of its source ports that a destination uses, 0 to 1; None: not known
    port_share: t.Optional[float] = None


def metrics_text(sample: Sample) -> str:
    """Return the text of the metrics file."""
    families = sorted(sample.counters)
    lines = _metric("in_sync", "gauge", "1 if the active rules match the configuration.", [("", int(sample.in_sync))])
    if sample.last_success is not None:
        lines += _metric(
            "last_success_timestamp_seconds",
            "gauge",
            "Time of the last successful resync.",
            [("", "%.3f" % sample.last_success)],
        )
    lines += _metric("drift_repaired_total", "counter", "Resyncs that repaired drift.", [("", sample.drift_repaired)])
    lines += _metric(
        "repairs_undone",
        "gauge",
        "How often repairs were made again, because a program undid them; a repair counts for two hours.",
        [('{program="%s"}' % one, count) for one, count in sorted(sample.repairs_undone.items())] or [("", 0)],
    )
    if sample.flushed is not None:
        title = "Open connections removed because a change of the rules changed their verdict."
        lines += _metric("connections_flushed_total", "counter", title, [("", sample.flushed)])
    lines += _metric(
        "config_errors_total", "counter", "Invalid configurations that were rejected.", [("", sample.config_errors)]
    )
    lines += _metric(
        "config_broken",
        "gauge",
        "1 if the configuration is invalid and the last valid one is used.",
        [("", int(sample.config_broken))],
    )
    lines += _metric(
        "exempt_cidrs",
        "gauge",
        "Exempt ranges.",
        [('{family="%s"}' % family, count) for family, count in sorted(sample.exempt_cidrs.items())],
    )
    lines += _metric(
        "missing_addresses",
        "gauge",
        "Fixed addresses of the policy that are not on the node.",
        [("", sample.missing_addresses)],
    )
    for name, title, field in (
        ("packets", "First packets of connections", 0),
        ("bytes", "Bytes of first packets of connections", 1),
    ):
        lines += _metric(
            name + "_total",
            "counter",
            title + ", by verdict; reset when the chain is rewritten.",
            [
                ('{family="%s",verdict="%s"}' % (family, verdict), sample.counters[family][offset + field])
                for family in families
                for offset, verdict in ((0, "exempt"), (2, "masqueraded"))
            ],
        )
    if sample.leaks:
        title = (
            "Packets that would show a hidden address, by what was done with them; reset when the rules are rewritten."
        )
        values = [
            ('{family="%s",action="%s"}' % (family, sample.leaks), sample.counters[family].leaked_packets)
            for family in families
        ]
        lines += _metric("leaked_packets_total", "counter", title, values)
    if sample.info:
        labels = ",".join('%s="%s"' % one for one in sorted(sample.info.items()))
        lines += _metric("info", "gauge", "Version, backend and policy, as labels.", [("{%s}" % labels, 1)])
    if sample.verification is not None:
        lines += _verification_lines(sample.verification)
    if sample.connections is not None:
        lines += _connection_lines(sample.connections)
    if sample.port_share is not None:
        title = "Largest share of its source ports that a destination uses, 0 to 1; measured at each n-th resync."
        lines += _metric("source_ports_highest_share", "gauge", title, [("", "%.4f" % sample.port_share)])
    return "\n".join(lines) + "\n"


def _verification_lines(last: Verification) -> t.Iterator[str]:
    yield from _metric(
        "last_verification_timestamp_seconds", "gauge", "Time of the last verification.", [("", "%.3f" % last.time)]
    )
    title = "Causes for which traffic did not match the policy in the last verification."
    yield from _metric("verification_conflicts", "gauge", title, [("", last.conflicts)])
    title = "Reasons for which the last verification could not test all traffic; 0: it tested all."
    yield from _metric("verification_untested", "gauge", title, [("", last.untested)])


def _connection_lines(connections: Statistics) -> t.Iterator[str]:
    for name, kind, title, value in (
        ("conntrack_entries", "gauge", "Connections that the kernel tracks.", connections.tracked),
        ("conntrack_entries_limit", "gauge", "Connections that the kernel can track.", connections.limit),
        (
            "conntrack_insert_failed_total",
            "counter",
            "Connections that could not be tracked since boot; with masquerading, in most cases no free source port.",
            connections.insert_failed,
        ),
        (
            "conntrack_drops_total",
            "counter",
            "Packets dropped since boot because connection tracking failed; in most cases the table was full.",
            connections.drops,
        ),
    ):
        yield from _metric(name, kind, title, [("", value)])


def _metric(name: str, kind: str, title: str, values: t.Sequence[t.Tuple[str, t.Any]]) -> t.List[str]:
    name = "ip_masq_agent_" + name
    return ["# HELP %s %s" % (name, title), "# TYPE %s %s" % (name, kind)] + [
        "%s%s %s" % (name, labels, value) for labels, value in values
    ]
