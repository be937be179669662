# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics are what Prometheus reads: checked by a parser of its own for the text format 0.0.4."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.metrics import Sample, metrics_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counters
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
    counters=st.dictionaries(families, st.builds(Counters, counts, counts, counts, counts)),
    repairs_withheld=counts,
    other_program=st.sampled_from(["", "unknown", "ip-masq-agent"]),
)


@given(samples)
def test_any_sample_is_valid_and_complete(sample: Sample) -> None:
    metrics = parse(metrics_text(sample))
    values = metrics.values
    assert values["ip_masq_agent_in_sync", ()] == float(sample.in_sync)
    assert values["ip_masq_agent_config_broken", ()] == float(sample.config_broken)
    assert values["ip_masq_agent_drift_repaired_total", ()] == float(sample.drift_repaired)
    assert values["ip_masq_agent_config_errors_total", ()] == float(sample.config_errors)
    labels = (("program", sample.other_program),) if sample.other_program else ()
    assert values["ip_masq_agent_repairs_withheld", labels] == float(sample.repairs_withheld)
    success = values.get(("ip_masq_agent_last_success_timestamp_seconds", ()))
    assert (success is None) == (sample.last_success is None)
    assert success is None or abs(success - t.cast(float, sample.last_success)) < 0.01
    for family, count in sample.exempt_cidrs.items():
        assert values["ip_masq_agent_exempt_cidrs", (("family", family),)] == float(count)
    for family, counters in sample.counters.items():
        for name, verdict, value in (
            ("packets", "exempt", counters.exempt_packets),
            ("bytes", "exempt", counters.exempt_bytes),
            ("packets", "masqueraded", counters.masqueraded_packets),
            ("bytes", "masqueraded", counters.masqueraded_bytes),
        ):
            assert values["ip_masq_agent_%s_total" % name, (("family", family), ("verdict", verdict))] == float(value)


@given(samples)
def test_names_follow_the_conventions(sample: Sample) -> None:
    for name, kind in parse(metrics_text(sample)).types.items():
        assert re.match(r"ip_masq_agent_[a-z_]+\Z", name)
        assert name.endswith("_total") == (kind == "counter"), name
