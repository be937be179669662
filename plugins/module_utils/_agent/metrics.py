# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for node_exporter's textfile collector, in the Prometheus text format 0.0.4."""

from __future__ import annotations

import typing as t

from .._engine.backend import Counters


class Sample(t.NamedTuple):
    """What one resync found. Times are seconds since the epoch."""

    in_sync: bool
    last_success: t.Optional[float]
    drift_repaired: int
    config_errors: int
    config_broken: bool
    exempt_cidrs: t.Dict[str, int]
    counters: t.Dict[str, Counters]
    repairs_withheld: int = 0


def render(sample: Sample) -> str:
    """The text of the metrics file."""
    families = sorted(sample.counters)
    lines = _metric("in_sync", "gauge", "1 if the rules in force are those declared.", [("", int(sample.in_sync))])
    if sample.last_success is not None:
        lines += _metric(
            "last_success_timestamp_seconds",
            "gauge",
            "When a resync last ended well.",
            [("", "%.3f" % sample.last_success)],
        )
    lines += _metric(
        "drift_repaired_total", "counter", "Resyncs that had to mend rules.", [("", sample.drift_repaired)]
    )
    lines += _metric(
        "repairs_withheld",
        "gauge",
        "Differences that change nothing for packets and are left, because another program brings them back.",
        [("", sample.repairs_withheld)],
    )
    lines += _metric("config_errors_total", "counter", "Configurations refused.", [("", sample.config_errors)])
    lines += _metric(
        "config_broken", "gauge", "1 while the last good policy stands in.", [("", int(sample.config_broken))]
    )
    lines += _metric(
        "exempt_cidrs",
        "gauge",
        "Ranges that are not masqueraded.",
        [('{family="%s"}' % family, count) for family, count in sorted(sample.exempt_cidrs.items())],
    )
    for name, title, field in (
        ("packets", "First packets of connections", 0),
        ("bytes", "Bytes of first packets of connections", 1),
    ):
        lines += _metric(
            name + "_total",
            "counter",
            title + ", by verdict; a rewritten chain counts from zero.",
            [
                ('{family="%s",verdict="%s"}' % (family, verdict), sample.counters[family][offset + field])
                for family in families
                for offset, verdict in ((0, "exempt"), (2, "masqueraded"))
            ],
        )
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, title: str, values: t.Sequence[t.Tuple[str, t.Any]]) -> t.List[str]:
    name = "ip_masq_agent_" + name
    return ["# HELP %s %s" % (name, title), "# TYPE %s %s" % (name, kind)] + [
        "%s%s %s" % (name, labels, value) for labels, value in values
    ]
