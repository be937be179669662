# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add ranges to the OutBoundNAT exceptions of a Windows node's CNI configuration."""

from __future__ import annotations

import typing as t

from ..module_utils._errors import ConfigError
from ..module_utils._policy.values import parse_networks, split_entries
from ..plugin_utils import _filters
from ..plugin_utils._outbound_nat import edit


def outbound_nat_exceptions(conf: t.Any, cidrs: t.Any, remove: t.Any = (), add_policy: bool = False) -> str:
    """See above.

    :raises ConfigError: the configuration or a range is refused.
    """
    if not isinstance(conf, str):
        raise ConfigError(
            "the configuration is of type %s: give its text, which a variable may not keep: filter it in the same "
            "expression as b64decode or the lookup" % type(conf).__name__
        )
    wanted, unwanted = (parse_networks(split_entries(ranges)) for ranges in (cidrs, remove))
    return edit(conf, wanted, unwanted, add_policy).text


FilterModule = _filters.plugin(outbound_nat_exceptions)
