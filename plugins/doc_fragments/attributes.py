# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The attributes of the modules. INFO: of those that only read. HANDED: of those that the installed program runs."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
    description: Reports what would change and writes nothing.
  diff_mode:
    support: full
    description: Shows the files and rules before and after.
  idempotent:
    support: full
    description: A second run with the same options changes nothing.
  platform:
    support: full
    platforms: linux
    description: Needs root on Linux.
"""

    INFO = r"""
attributes:
  check_mode:
    support: full
    description: Changes nothing in any mode.
  diff_mode:
    support: none
    description: Changes nothing.
  idempotent:
    support: full
    description: Changes nothing.
  platform:
    support: full
    platforms: linux
    description: Needs root on Linux.
"""

    HANDED = r"""
attributes:
  action:
    support: full
    description:
      - On a node whose agent has the checksum of this collection's files, its program does the task, and the module
        is not sent. That needs Ansible's pipelining. All options and return values are the same.
"""
