# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for node_exporter's textfile collector, in the Prometheus text format 0.0.4."""

from __future__ import annotations

import time
import typing as t

from .._engine.policy_rules import from_config
from .._policy.policy import Config
from .._system.conntrack import Statistics
from .._version import VERSION
from . import live_metrics, repeated_repairs
from .snapshot import Listings
from .state_files import Memory, Verification, is_outdated


class Sample(t.NamedTuple):
    """What is known after one resync. Times are seconds since the epoch."""

    in_sync: bool
    last_success: t.Optional[float]
    memory: Memory
    #: the policy in effect
    config: t.Optional[Config] = None
    #: whether that is not the one of the files
    config_broken: bool = False
    listings: Listings = ()
    verification: t.Optional[Verification] = None
    connections: t.Optional[Statistics] = None
    missing_addresses: int = 0
    #: the largest share of its source ports that a destination uses, 0 to 1; None: not known
    port_share: t.Optional[float] = None


#: Name without prefix and title of a metric, and its values with their labels.
_Metric = t.Tuple[str, str, t.Sequence[t.Tuple[str, t.Any]]]


def metrics_text(sample: Sample) -> str:
    """Return the text of the metrics file."""
    lines = []
    for suffix, title, values in _metrics(sample):
        name = "ip_masq_agent_" + suffix
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += ["# HELP %s %s" % (name, title), "# TYPE %s %s" % (name, kind)]
        lines += ["%s%s %s" % (name, labels, value) for labels, value in values]
    return "\n".join(lines) + "\n"


def _metrics(sample: Sample) -> t.Iterator[_Metric]:
    memory, config, last = sample.memory, sample.config, sample.verification
    yield "in_sync", "1 if the active rules match the configuration.", _one(int(sample.in_sync))
    if sample.last_success is not None:
        title = "Time of the last successful resync."
        yield "last_success_timestamp_seconds", title, _one("%.3f" % sample.last_success)
    yield "drift_repaired_total", "Resyncs that repaired drift.", _one(memory.drift_repaired)
    title = "How often repairs were made again, because a program undid them; a repair counts for two hours."
    yield "repairs_undone", title, _repairs_undone(memory) or _one(0)
    yield "config_errors_total", "Invalid configurations that were rejected.", _one(memory.config_errors)
    title = "1 if the configuration is invalid and the last valid one is used."
    yield "config_broken", title, _one(int(sample.config_broken))
    if config is not None:
        yield from _policy(config, memory)
    title = "Fixed addresses of the policy that are not on the node."
    yield "missing_addresses", title, _one(sample.missing_addresses)
    yield from _counters(sample)
    digest = config.digest if config else ""
    labels = '{backend="%s",policy_hash="%s",version="%s"}' % (memory.backend or "", digest, VERSION)
    yield "info", "Version, backend and policy, as labels.", [(labels, 1)]
    if last is not None:
        yield "last_verification_timestamp_seconds", "Time of the last verification.", _one("%.3f" % last.time)
    if last is not None and not is_outdated(last, memory):
        title = "Causes for which traffic did not match the policy when last verified. Absent if rules changed since."
        yield "verification_conflicts", title, _one(last.conflicts)
        title = "Reasons for which not all traffic could be tested; 0: all was. Absent if rules changed since."
        yield "verification_untested", title, _one(last.untested)
    if sample.connections is not None:
        yield from _connections(sample.connections)
    if sample.port_share is not None:
        title = "Largest share of its source ports that a destination uses, 0 to 1; measured at each n-th resync."
        yield "source_ports_highest_share", title, _one("%.4f" % sample.port_share)


def _one(value: t.Any) -> t.Sequence[t.Tuple[str, t.Any]]:
    """Return a value without labels."""
    return [("", value)]


def _repairs_undone(memory: Memory) -> t.Sequence[t.Tuple[str, int]]:
    times: t.Dict[str, int] = {}
    for repair in repeated_repairs.undone(memory.repairs, time.time()):
        times[repair.program] = times.get(repair.program, 0) + repair.times - 1
    return [('{program="%s"}' % program, count) for program, count in times.items()]


def _policy(config: Config, memory: Memory) -> t.Iterator[_Metric]:
    if config.flush_conntrack != "none":
        title = "Open connections removed because a change of the rules changed their verdict."
        yield "connections_flushed_total", title, _one(memory.flushed)
    ranges = [('{family="%s"}' % family, len(from_config(config, family).exempt)) for family in config.families]
    yield "exempt_cidrs", "Exempt ranges.", ranges


def _counters(sample: Sample) -> t.Iterator[_Metric]:
    sums = live_metrics.sums((family, leaks, one.kinds, one.numbers) for family, leaks, one in sample.listings)
    titles = {
        "packets_total": "First packets of connections, by verdict; reset when the chain is rewritten.",
        "bytes_total": "Bytes of first packets of connections, by verdict; reset when the chain is rewritten.",
        "leaked_packets_total": "Packets that would show a hidden address, by what was done with them; "
        "reset when the rules are rewritten.",
    }
    for name, title in titles.items():
        values = [(labels, number) for (metric, labels), number in sums.items() if metric == name]
        if values:
            yield name, title, values


def _connections(counted: Statistics) -> t.Iterator[_Metric]:
    yield "conntrack_entries", "Connections that the kernel tracks.", _one(counted.entries)
    yield "conntrack_entries_limit", "Connections that the kernel can track.", _one(counted.limit)
    title = "Connections that could not be tracked since boot; with masquerading, in most cases no free source port."
    yield "conntrack_insert_failed_total", title, _one(counted.insert_failed)
    title = "Packets dropped since boot because connection tracking failed; in most cases the table was full."
    yield "conntrack_drops_total", title, _one(counted.drops)
