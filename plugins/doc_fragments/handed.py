# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a task is handed to the program that is installed on the node."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
attributes:
  action:
    support: full
    description:
      - On a node whose agent names the checksum of this collection's files, its program does the task, and the module
        is not sent. That needs Ansible's pipelining. All options and return values are the same.
      - Everywhere else the module is run, also if the program gives no answer.
"""
