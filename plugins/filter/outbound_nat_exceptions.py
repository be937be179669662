# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add ranges to the OutBoundNAT exceptions of a Windows node's CNI configuration."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._errors import ConfigError
from ..module_utils._policy.values import parse_networks, split_entries
from ..plugin_utils._outbound_nat import edit

_NAME = "kubenode.ip_masq.outbound_nat_exceptions"


def outbound_nat_exceptions(conf: t.Any, cidrs: t.Any, remove: t.Any = (), add_policy: bool = False) -> str:
    """See above.

    :raises AnsibleFilterError: the configuration or a range is refused.
    """
    if not isinstance(conf, str):
        raise AnsibleFilterError(
            "%s: the configuration is of type %s: give its text, which a variable may not keep: filter it in the same "
            "expression as b64decode or the lookup" % (_NAME, type(conf).__name__)
        )
    try:
        wanted, unwanted = (parse_networks(split_entries(ranges)) for ranges in (cidrs, remove))
        return edit(conf, wanted, unwanted, add_policy).text
    except ConfigError as exc:
        raise AnsibleFilterError("%s: %s" % (_NAME, exc)) from None


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """Return the filters of this file."""
        return {"outbound_nat_exceptions": outbound_nat_exceptions}
