# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics are what Prometheus reads: checked by a parser of its own for the text format 0.0.4."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.metrics import Sample, metrics_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import Verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counters
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Statistics
from hypothesis import given
from hypothesis import strategies as st
from support.prometheus import parse

families = st.sampled_from(["ipv4", "ipv6"])
counts = st.integers(0, 2**63)
samples = st.builds(
    Sample,
    in_sync=st.booleans(),
    last_success=st.none() | st.floats(0, 4e9),
    drift_repaired=counts,
    config_errors=counts,
    config_broken=st.booleans(),
    exempt_cidrs=st.dictionaries(families, counts),
    counters=st.dictionaries(families, st.builds(Counters, counts, counts, counts, counts, counts)),
    repairs_undone=st.dictionaries(st.sampled_from(["unknown", "ip-masq-agent", "CNI plugin bridge or ptp"]), counts),
    info=st.dictionaries(
        st.sampled_from(["version", "backend", "policy_hash"]), st.from_regex(r"[a-z0-9._-]+", fullmatch=True)
    ),
    verification=st.none()
    | st.builds(Verification, st.floats(0, 4e9), st.none() | st.booleans(), counts, counts, st.text(), counts),
    outdated=st.booleans(),
    connections=st.none() | st.builds(Statistics, counts, counts, counts, counts, counts),
    flushed=st.none() | counts,
    leaks=st.sampled_from(["", "count", "drop"]),
    port_share=st.none() | st.floats(0, 1),
)


@given(samples)
def test_any_sample_is_valid_and_complete(sample: Sample) -> None:
    metrics = parse(metrics_text(sample))
    values = metrics.values
    assert values["ip_masq_agent_in_sync", ()] == float(sample.in_sync)
    assert values["ip_masq_agent_config_broken", ()] == float(sample.config_broken)
    assert values["ip_masq_agent_drift_repaired_total", ()] == float(sample.drift_repaired)
    assert values["ip_masq_agent_config_errors_total", ()] == float(sample.config_errors)
    undone = {labels: value for (name, labels), value in values.items() if name == "ip_masq_agent_repairs_undone"}
    expected = {(("program", program),): float(count) for program, count in sample.repairs_undone.items()}
    assert undone == (expected or {(): 0.0})
    success = values.get(("ip_masq_agent_last_success_timestamp_seconds", ()))
    assert (success is None) == (sample.last_success is None)
    assert success is None or abs(success - t.cast(float, sample.last_success)) < 0.01
    for family, count in sample.exempt_cidrs.items():
        assert values["ip_masq_agent_exempt_cidrs", (("family", family),)] == float(count)
    leaked = {labels: value for (name, labels), value in values.items() if name == "ip_masq_agent_leaked_packets_total"}
    assert leaked == {
        (("action", sample.leaks), ("family", family)): float(counters.leaked_packets)
        for family, counters in sample.counters.items()
        if sample.leaks
    }
    for family, counters in sample.counters.items():
        for name, verdict, value in (
            ("packets", "exempt", counters.exempt_packets),
            ("bytes", "exempt", counters.exempt_bytes),
            ("packets", "masqueraded", counters.masqueraded_packets),
            ("bytes", "masqueraded", counters.masqueraded_bytes),
        ):
            labels = (("family", family), ("verdict", verdict))
            assert values["ip_masq_agent_%s_total" % name, labels] == float(value)
    flushed = values.get(("ip_masq_agent_connections_flushed_total", ()))
    assert flushed == (None if sample.flushed is None else float(sample.flushed))
    infos = [labels for name, labels in values if name == "ip_masq_agent_info"]
    assert infos == ([tuple(sorted(sample.info.items()))] if sample.info else [])
    last = sample.verification
    conflicts = values.get(("ip_masq_agent_verification_conflicts", ()))
    known = None if sample.outdated else last
    assert conflicts == (None if known is None else float(known.conflicts))
    untested = values.get(("ip_masq_agent_verification_untested", ()))
    assert untested == (None if known is None else float(known.untested))
    assert (("ip_masq_agent_last_verification_timestamp_seconds", ()) in values) == (last is not None)
    for name, field in (
        ("conntrack_entries", "tracked"),
        ("conntrack_entries_limit", "limit"),
        ("conntrack_insert_failed_total", "insert_failed"),
        ("conntrack_drops_total", "drops"),
    ):
        told = values.get(("ip_masq_agent_" + name, ()))
        assert told == (None if sample.connections is None else float(getattr(sample.connections, field)))


@given(samples)
def test_names_follow_the_conventions(sample: Sample) -> None:
    for name, kind in parse(metrics_text(sample)).types.items():
        assert re.match(r"ip_masq_agent_[a-z_]+\Z", name)
        assert name.endswith("_total") == (kind == "counter"), name
