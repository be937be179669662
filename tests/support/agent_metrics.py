# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics that the agent writes. Python 3.8."""

from __future__ import annotations

import re

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.metrics import Sample, metrics_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import Verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counters
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Statistics

#: A resync that measured everything.
SAMPLE = Sample(
    in_sync=True,
    last_success=1.0,
    drift_repaired=0,
    config_errors=0,
    config_broken=False,
    exempt_cidrs={"ipv4": 1},
    counters={"ipv4": Counters()},
    repairs_undone={"unknown": 1},
    info={"version": "1", "backend": "nftables", "policy_hash": "0"},
    verification=Verification(1.0, True, 1, 0, ""),
    missing_addresses=1,
    connections=Statistics(0, 0, 0, 0),
    flushed=0,
    leaks="drop",
    port_share=0.5,
)
#: All of them, as a file.
TEXT = metrics_text(SAMPLE)
METRICS = set(re.findall(r"^# TYPE (\w+)", TEXT, re.MULTILINE))
#: The labels that some of them have, and those that Prometheus adds.
LABELS = set(re.findall(r'(\w+)="', TEXT)) | {"instance", "job"}
