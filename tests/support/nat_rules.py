# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of a simulated nat table, as text. Nothing here imports the code under test."""

from __future__ import annotations

import shlex
import typing as t

BUILTIN_CHAINS = ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")

Chains = t.Dict[str, t.List[str]]

#: Behind a rule: what nft has added to it, and iptables leaves out when it prints the rule, or cannot read at all.
LEFT_OUT = " [ip saddr { 192.0.2.1, 192.0.2.2 }]"
UNREADABLE = " [meta cpu 0]"


def printed(rule: str) -> str:
    """Return a rule as iptables prints it."""
    return rule.replace(LEFT_OUT, "").replace(UNREADABLE, "")


def target(rule: str) -> str:
    """Return the target of ``-j`` or ``-g``."""
    words = shlex.split(printed(rule))
    for flag in ("-j", "-g"):
        if flag in words[:-1]:
            return words[words.index(flag) + 1]
    return ""


def without_comment(rule: str) -> t.List[str]:
    """Return the words of a rule that say something to packets."""
    words = shlex.split(rule)
    while "--comment" in words:
        at = words.index("--comment")
        del words[at - 2 : at + 2]
    return words
