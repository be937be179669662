# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of networks that other networks do not cover."""

from __future__ import annotations

import typing as t

from ..module_utils._policy.policy import RESERVED_CIDRS, RFC1918_CIDRS
from ..plugin_utils import _filters
from ..plugin_utils import _networks as sets


def uncovered(networks: t.Any, covering: t.Any = None, reserved: bool = False) -> t.List[str]:
    """Return the parts of ``networks`` that are in none of ``covering``; without those, of the default list.

    :raises ConfigError: an entry is no CIDR, or netaddr is missing.
    """
    if covering is None:
        covering = list(RESERVED_CIDRS if reserved else RFC1918_CIDRS)
    return sets.uncovered(networks, covering)


FilterModule = _filters.plugin(uncovered)
