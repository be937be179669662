# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the modules whose tasks the installed program does. It imports nothing of a node: the controller reads
them too."""

from __future__ import annotations

import typing as t

from .._system import command_defaults
from . import kubelet_options

Spec = t.Dict[str, t.Dict[str, t.Any]]

#: Of ip_masq_agent_info.
INFO: Spec = {
    "config": {"type": "dict"},
    "enabled": {"type": "bool", "default": True},
    "config_dir": {"type": "path", "default": "/etc/ip-masq-agent"},
    "bin_dir": {"type": "path", "default": "/usr/local/sbin"},
    "metrics_dir": {"type": "path"},
    "python": {"type": "path"},
    "lock_timeout": {"type": "int", "default": command_defaults.LOCK_TIMEOUT},
}
#: Of ip_masq_agent.
AGENT: Spec = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    **INFO,
    "applied_by": {"type": "str"},
    "verify": {"type": "bool", "default": False},
    "verify_before": {"type": "bool", "default": False},
    "connection_log": {"type": "int", "default": 0},
    "kubelet": {"type": "dict", "options": kubelet_options.ARGUMENT_SPEC},
}
