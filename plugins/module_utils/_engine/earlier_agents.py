# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains of earlier agents, such as the Go daemon ip-masq-agent, by the jumps to them."""

from __future__ import annotations

from . import rule_comments
from .iptables_syntax import PostroutingRule

#: v0.2-0.3 of ip-masq-agent, its later default, GCE's scripts.
_CHAINS = ("NON-MASQUERADE-DAEMON", "IP-MASQ-AGENT", "IP-MASQ")


def has_jump(rule: PostroutingRule) -> bool:
    """Return whether a rule is the jump of one."""
    # Some releases of ip-masq-agent put literal quotes around the comment.
    return rule.target in _CHAINS or rule.comment.lstrip('"').startswith(rule_comments.PREFIX)
