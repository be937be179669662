# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules of the agent and the kubelet. It imports nothing of a node: the controller reads them too."""

from __future__ import annotations

import typing as t

from .._kubelet.options import Options
from .._system import defaults_and_limits

Spec = t.Dict[str, t.Dict[str, t.Any]]

#: Of kubelet_masquerade.
KUBELET: Spec = {
    name: {"type": type(default).__name__, "default": default} for name, default in Options._field_defaults.items()
}
KUBELET["policy"]["choices"] = ["auto", "present", "absent", "report"]
#: Of ip_masq_agent_info.
INFO: Spec = {
    "config": {"type": "dict"},
    "enabled": {"type": "bool", "default": True},
    "config_dir": {"type": "path", "default": "/etc/ip-masq-agent"},
    "bin_dir": {"type": "path", "default": "/usr/local/sbin"},
    "metrics_dir": {"type": "path"},
    "python": {"type": "path"},
    "lock_timeout": {"type": "int", "default": defaults_and_limits.LOCK_TIMEOUT},
}
#: Of ip_masq_agent.
AGENT: Spec = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    **INFO,
    "applied_by": {"type": "str"},
    "verify": {"type": "bool", "default": False},
    "verify_before": {"type": "bool", "default": False},
    "connection_log": {"type": "int", "default": 0},
    "kubelet": {"type": "dict", "options": KUBELET},
}
