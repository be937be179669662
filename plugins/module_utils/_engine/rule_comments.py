# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The comments on managed rules, the same in every backend."""

from __future__ import annotations

COMMENT_PREFIX = "ip-masq-agent:"
EXEMPT_COMMENT = COMMENT_PREFIX + " exempt, keeps its source address"
MASQUERADE_COMMENT = COMMENT_PREFIX + " leaves with the address of the node"
MARKS_COMMENT = COMMENT_PREFIX + " Services and host ports leave as the node"
SOURCE_COMMENT = COMMENT_PREFIX + " no answer comes back to this source"
JUMP_COMMENT = COMMENT_PREFIX + " all traffic that is not for the node itself"
# Without an apostrophe, which iptables would escape.
SKIPPED_COMMENT = COMMENT_PREFIX + " outside the scope of the policy"
#: 1.0.0-rc1 wrote the second. Rules with it mean the same, and stay.
SKIPPED_COMMENTS = (SKIPPED_COMMENT, COMMENT_PREFIX + " traffic that the policy is not about")
DNAT_COMMENT = COMMENT_PREFIX + " left to the program that changed the destination"
SNAT_COMMENT = COMMENT_PREFIX + " leaves with a fixed address"
CONNECTED_COMMENT = COMMENT_PREFIX + " nat has decided about this connection"
INSIDE_COMMENT = COMMENT_PREFIX + " shows no hidden address to others"
OWN_COMMENT = COMMENT_PREFIX + " from the node itself"
LEAK_COMMENT = COMMENT_PREFIX + " would show a hidden address"
MISSING_COMMENT = COMMENT_PREFIX + " its fixed address is not on the node"
PRESENT_COMMENT = COMMENT_PREFIX + " its address is on the node"
LEAK_JUMP_COMMENT = COMMENT_PREFIX + " packets that nat does not see"
