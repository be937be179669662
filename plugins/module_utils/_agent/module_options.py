# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that the modules ip_masq_agent and ip_masq_agent_info have in common. It imports nothing of a node."""

from __future__ import annotations

import typing as t

ARGUMENT_SPEC: t.Dict[str, t.Dict[str, t.Any]] = {
    "config": {"type": "dict"},
    "enabled": {"type": "bool", "default": True},
    "config_dir": {"type": "path", "default": "/etc/ip-masq-agent"},
    "bin_dir": {"type": "path", "default": "/usr/local/sbin"},
    "metrics_dir": {"type": "path"},
    "python": {"type": "path"},
    "lock_timeout": {"type": "int", "default": 5},
}
