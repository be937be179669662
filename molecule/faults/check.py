# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sample of the faults of ``make test-faults``: one of each class."""

from __future__ import annotations

import os

from checks import check, done, packets
from faults import on_node
from faults.node import Node

os.chdir("/")
for outcome in on_node.outcomes(Node(os.environ["IP_MASQ_AGENT_BACKEND"]), on_node.SAMPLE):
    check("%s, %s: %s" % (outcome.kind, outcome.name, outcome.says), outcome.good, outcome.details)
packets("after all faults")
done()
