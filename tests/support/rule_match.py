# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which connections one rule of ours matches, for models that walk through a chain rule by rule."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import AnyRule, Guard
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules.rules import Names
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


def applies(
    rule: AnyRule,
    destination: Address,
    source: t.Optional[Address],
    interface: t.Optional[str],
    service: t.Optional[int] = None,
) -> bool:
    """Return whether a rule matches a connection as far as it is known; what is unknown (None) matches.

    Guards do not match: they ask for more. Nor does a rule that skips redirected connections, or an interface that is
    unknown.

    :param service: protocol and port, as ``service_number`` of the ruleset counts them.
    """
    if isinstance(rule, Guard):
        return False
    if rule.kind == "skip" and (rule.state or (rule.interface and interface is None)):
        return False
    return (
        (rule.network is None or destination in rule.network)
        and (rule.source is None or source is None or source in rule.source)
        and (rule.interface is None or interface is None or Names((rule.interface,)).match(interface))
        and (rule.service is None or service is None or intervals.contains((rule.service.span,), service))
    )
