# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The comments on managed rules, the same in every backend."""

from __future__ import annotations

PREFIX = "ip-masq-agent:"
EXEMPT = PREFIX + " exempt, keeps its source address"
MASQUERADE = PREFIX + " leaves with the address of the node"
MARKS = PREFIX + " Services and host ports leave as the node"
SOURCE = PREFIX + " no answer comes back to this source"
JUMP = PREFIX + " all traffic that is not for the node itself"
# Without an apostrophe, which iptables would escape.
SKIPPED = PREFIX + " outside the scope of the policy"
DNAT = PREFIX + " left to the program that changed the destination"
SNAT = PREFIX + " leaves with a fixed address"
CONNECTED = PREFIX + " nat has decided about this connection"
INSIDE = PREFIX + " shows no hidden address to others"
OWN = PREFIX + " from the node itself"
LEAK = PREFIX + " would show a hidden address"
MISSING = PREFIX + " its fixed address is not on the node"
PRESENT = PREFIX + " its address is on the node"
LEAK_JUMP = PREFIX + " packets that nat does not see"
