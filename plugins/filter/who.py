# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pod of many nodes is behind a connection."""

from __future__ import annotations

import typing as t

from ..module_utils._errors import ConfigError
from ..plugin_utils import _filters
from ..plugin_utils._fleet_who import Hostvars, ask, reply


def who(
    hosts: t.Sequence[str],
    hostvars: Hostvars,
    address: t.Any,
    to: t.Any = None,
    protocol: t.Any = "tcp",
    at: t.Any = None,
) -> t.Dict[str, t.Any]:
    """See the documentation."""
    problem, seen = "", ""
    arguments: t.List[str] = []
    try:
        seen, arguments = ask(address, to, protocol, at)
    except ConfigError as exc:
        problem = str(exc)
    return {"problem": problem, "address": seen, "arguments": arguments, **reply(seen, hosts, hostvars)}


FilterModule = _filters.plugin(who)
