# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version of the collection, for the agent that leaves it."""

from __future__ import annotations

#: The same as in galaxy.yml; a test holds them together.
VERSION = "1.0.0"
