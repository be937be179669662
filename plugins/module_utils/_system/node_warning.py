# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes for the operator, as modules hand them to Ansible."""

from __future__ import annotations

import os


def named(note: str) -> str:
    """Name this node in a warning. Ansible prints warnings without a host, and equal ones of several hosts once."""
    return "%s: %s" % (os.uname().nodename, note)
