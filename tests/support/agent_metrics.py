# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics that the agent writes. Python 3.8."""

from __future__ import annotations

import re
import time

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.metrics import Sample, metrics_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.repeated_repairs import Repeated
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import Memory, Verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counted
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Statistics

#: A resync that measured everything.
SAMPLE = Sample(
    in_sync=True,
    last_success=1.0,
    memory=Memory(repairs=(Repeated("ipv4", "nftables", "", 0, time.time(), time.time(), 2, 0.0, "unknown"),)),
    config=build({"flush_conntrack": "changed"}),
    listings=[("ipv4", "drop", Counted((), "", ()))],
    verification=Verification(1.0, True, 1, 0, ""),
    missing_addresses=1,
    connections=Statistics(0, 0, 0, 0),
    port_share=0.5,
)
#: All of them, as a file.
TEXT = metrics_text(SAMPLE)
METRICS = set(re.findall(r"^# TYPE (\w+)", TEXT, re.MULTILINE))
#: The labels that some of them have, and those that Prometheus adds.
LABELS = set(re.findall(r'(\w+)="', TEXT)) | {"instance", "job"}
