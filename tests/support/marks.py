# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Marks that more than one file of tests uses."""

from __future__ import annotations

import pytest

from .variants import VARIANTS

#: For a test about what nftables does not have, a chain among others in a table of others; else ``variant`` is each
#: backend.
iptables_only = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))
