# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the module kubelet_masquerade, at no cost for other modules: nothing of a node is imported."""

from __future__ import annotations

import typing as t

from .._kubelet.options import Options

ARGUMENT_SPEC: t.Dict[str, t.Dict[str, t.Any]] = {
    name: {"type": type(default).__name__, "default": default} for name, default in Options._field_defaults.items()
}
ARGUMENT_SPEC["policy"]["choices"] = ["auto", "present", "absent", "report"]
