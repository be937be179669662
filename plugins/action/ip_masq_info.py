# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ip_masq_info, and return what a terminal may show."""

from __future__ import annotations

from ..plugin_utils._shown_result import ShownResult


class ActionModule(ShownResult):
    """The action plugin; Ansible finds it by this name."""
