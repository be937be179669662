# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Defaults and limits that modules and commands have in common; those of a policy are in POLICY_OPTIONS."""

from __future__ import annotations

#: Seconds to wait for the xtables lock, and for another run of the agent. The longest is longer than a program has
#: the lock, and shorter than a play should hang.
LOCK_TIMEOUT, LONGEST_LOCK_TIMEOUT = 5, 3600
#: Seconds that a resync waits for the xtables lock, however long the run that prepares it may wait: its unit has a time
#: limit, and a tick must not hang.
RESYNC_LOCK_TIMEOUT = 5

#: Of a verification: questions for each family, and seconds of CPU time; 0: no limit.
MAX_QUESTIONS, MAX_SECONDS = 100000, 60

#: Of the packet that explain sends.
PROTOCOL, PORT = "tcp", 80
