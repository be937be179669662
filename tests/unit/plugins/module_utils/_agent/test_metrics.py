# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics are what Prometheus reads: checked by a parser of its own for the text format 0.0.4."""

from __future__ import annotations

import re
import time
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import repeated_repairs, state_files
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.metrics import Sample, metrics_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counted
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Statistics
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from hypothesis import given
from hypothesis import strategies as st
from support.prometheus import parse

counts = st.integers(0, 2**63)
now = time.time()
programs = st.sampled_from(["unknown", "ip-masq-agent", "CNI plugin bridge or ptp"])
repairs = programs.map(lambda one: repeated_repairs.Repeated("", "", "", 0, now, now, 3, now, one))
listings = st.tuples(st.sampled_from(["ignore", "count", "drop"]), st.tuples(*[st.tuples(counts, counts)] * 4))
samples = st.builds(
    Sample,
    in_sync=st.booleans(),
    last_success=st.none() | st.floats(0, 4e9),
    memory=st.builds(
        state_files.Memory()._replace,
        drift_repaired=counts,
        config_errors=counts,
        flushed=counts,
        last_change=st.none() | st.builds(state_files.Event, st.floats(0, 4e9), st.just(("",))),
        repairs=st.lists(repairs, max_size=3).map(tuple),
        backend=st.none() | st.from_regex(r"[a-z_]+", fullmatch=True),
    ),
    config=st.sampled_from([None, build({"enable_ipv6": True}), build({"flush_conntrack": "changed"})]),
    config_broken=st.booleans(),
    listings=st.lists(listings, max_size=2).map(
        lambda found: [(name, leaks, Counted((), "E-ML", one)) for name, (leaks, one) in zip(("ipv4", "ipv6"), found)]
    ),
    verification=st.none()
    | st.builds(
        state_files.Verification, st.floats(0, 4e9), st.none() | st.booleans(), counts, counts, st.text(), counts
    ),
    connections=st.none() | st.builds(Statistics, counts, counts, counts, counts, counts),
    port_share=st.none() | st.floats(0, 1),
)


@given(samples)
def test_any_sample_is_valid_and_complete(sample: Sample) -> None:
    metrics = parse(metrics_text(sample))
    values = metrics.values
    assert values["ip_masq_agent_in_sync", ()] == float(sample.in_sync)
    assert values["ip_masq_agent_config_broken", ()] == float(sample.config_broken)
    memory = sample.memory
    assert values["ip_masq_agent_drift_repaired_total", ()] == float(memory.drift_repaired)
    assert values["ip_masq_agent_config_errors_total", ()] == float(memory.config_errors)
    undone = {labels: value for (name, labels), value in values.items() if name == "ip_masq_agent_repairs_undone"}
    found = [one.program for one in memory.repairs]
    assert undone == ({(("program", one),): 2.0 * found.count(one) for one in found} or {(): 0.0})
    success = values.get(("ip_masq_agent_last_success_timestamp_seconds", ()))
    assert (success is None) == (sample.last_success is None)
    assert success is None or abs(success - t.cast(float, sample.last_success)) < 0.01
    config = sample.config
    for family in config.families if config else ():
        assert values["ip_masq_agent_exempt_cidrs", (("family", family),)] > 0.0
    leaked = {labels: value for (name, labels), value in values.items() if name == "ip_masq_agent_leaked_packets_total"}
    assert leaked == {
        (("action", leaks), ("family", family)): float(one.numbers[3][0])
        for family, leaks, one in sample.listings
        if leaks != "ignore"
    }
    for family, _leaks, one in sample.listings:
        for verdict, numbers in (("exempt", one.numbers[0]), ("masqueraded", one.numbers[2])):
            for name, number in zip(("packets", "bytes"), numbers):
                labels = (("family", family), ("verdict", verdict))
                assert values["ip_masq_agent_%s_total" % name, labels] == float(number)
    flushed = values.get(("ip_masq_agent_connections_flushed_total", ()))
    assert flushed == (float(memory.flushed) if config and config.flush_conntrack != "none" else None)
    infos = [dict(labels) for name, labels in values if name == "ip_masq_agent_info"]
    digest = config.digest if config else ""
    assert infos == [{"backend": memory.backend or "", "policy_hash": digest, "version": VERSION}]
    last = sample.verification
    conflicts = values.get(("ip_masq_agent_verification_conflicts", ()))
    known = None if last is None or state_files.is_outdated(last, memory) else last
    assert conflicts == (None if known is None else float(known.conflicts))
    untested = values.get(("ip_masq_agent_verification_untested", ()))
    assert untested == (None if known is None else float(known.untested))
    assert (("ip_masq_agent_last_verification_timestamp_seconds", ()) in values) == (last is not None)
    for name, field in (
        ("conntrack_entries", "entries"),
        ("conntrack_entries_limit", "limit"),
        ("conntrack_insert_failed_total", "insert_failed"),
        ("conntrack_drops_total", "drops"),
    ):
        shown = values.get(("ip_masq_agent_" + name, ()))
        assert shown == (None if sample.connections is None else float(getattr(sample.connections, field)))


@given(samples)
def test_names_follow_the_conventions(sample: Sample) -> None:
    for name, kind in parse(metrics_text(sample)).types.items():
        assert re.match(r"ip_masq_agent_[a-z_]+\Z", name)
        assert name.endswith("_total") == (kind == "counter"), name
