# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the module kubelet_masquerade. It imports nothing, so that other modules can take them at no cost."""

from __future__ import annotations

import typing as t

from .._kubelet.names import DISTRIBUTIONS, POLICIES

ARGUMENT_SPEC: t.Dict[str, t.Dict[str, t.Any]] = {
    "policy": {"type": "str", "choices": list(POLICIES), "default": "auto"},
    "unit": {"type": "str", "default": ""},
    "binary": {"type": "str", "default": ""},
    "distribution": {"type": "str", "choices": ["auto"] + list(DISTRIBUTIONS), "default": "auto"},
    "args_file": {"type": "str", "default": ""},
    "args_variable": {"type": "str", "default": ""},
    "restart": {"type": "bool", "default": True},
    "healthz_url": {"type": "str", "default": ""},
    "healthz_timeout": {"type": "float", "default": 120},
    "probe_timeout": {"type": "float", "default": 10},
}
