# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what a change means for packets of many nodes with the limits of ip_masq_agent_confirm_effects."""

from __future__ import annotations

import typing as t

from ..module_utils._engine.effect_words import connections
from ..plugin_utils import _filters
from ..plugin_utils._fleet_effects import APPLIED, NOTHING, key_of
from ..plugin_utils._names import number_of_nodes, thousands
from ..plugin_utils._role_variables import read_limits


def effects_to_confirm(hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Any], limit: t.Any) -> t.List[str]:
    """Return what is beyond a limit of effects; nothing if they are within it.

    What is not known of a host counts as beyond, unless the host is unreachable: nothing is applied there.

    :param limit: a share of hosts with effects, a number of open connections, or a list of them.
    :raises ConfigError: it is another value.
    """
    answers = {host: hostvars[host].get(APPLIED) for host in hosts if host in hostvars}
    keys = {host: key_of(answer) for host, answer in answers.items() if not _is_unreachable(answer)}
    concerned = [host for host, key in keys.items() if key != NOTHING]
    counts = [
        effect["open_connections"]
        for host in concerned
        for effect in (answers[host]["rules"]["effects"] if keys[host] else [])
    ]
    # A host returns the largest effects only.
    all_known = None not in counts and all(key and not key.omitted for key in keys.values())
    connections_now = sum(count for count in counts if count is not None)
    found = []
    for one, share, number in read_limits(limit):
        if share is not None and len(concerned) * 100 > share * len(answers):
            found.append(
                "%s of %s have effects, more than %s" % (number_of_nodes(len(concerned)), thousands(len(answers)), one)
            )
        if number is not None and (connections_now > number or not all_known):
            told = connections(connections_now if all_known else None)
            found.append("%s, the limit is %s" % (told, thousands(number)))
    return found


def _is_unreachable(answer: t.Any) -> bool:
    return isinstance(answer, t.Mapping) and bool(answer.get("unreachable"))


FilterModule = _filters.plugin(effects_to_confirm)
