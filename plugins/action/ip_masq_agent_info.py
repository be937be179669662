# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give a task of ip_masq_agent_info to the installed program, or send the module."""

from __future__ import annotations

from ..module_utils._tasks.agent_options import INFO
from ..plugin_utils._handed_task import HandedTask


class ActionModule(HandedTask):
    """The action plugin; Ansible finds it by this name."""

    module = "ip_masq_agent_info"
    spec = INFO
    returned = (
        "changed", "differences", "differs", "installed", "notes", "pending", "problems", "report", "rules_left",
        "service_failure",
    )  # fmt: skip
