# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: hosts
short_description: The hosts that a playbook of this collection is for
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Returns the patterns in the variable C(ip_masq_agent_hosts), for the keyword C(hosts) of a play.
  - Fails if it is not set or matches no host, with C(--limit) taken into account; if nodes are missed because a group
    is spelled in another way; and if there is a variable C(ip_masq_agent_...) that the collection does not know.
  - Accepts everything with C(--syntax-check) and C(--list-...), because groups that an earlier play makes do not exist.
options:
  _terms:
    description:
      - None, V(unreached) for the nodes of a whole cluster that the patterns do not match, or V(hint) for a line about
        how to have no line for each host.
    type: list
    elements: str
notes:
  - Internal. Playbooks and roles of this collection call it; it may change in any release.
"""

RETURN = r"""
_raw:
  description: The patterns, names of hosts, or a line.
  type: list
  elements: str
"""

import typing as t

from ansible import constants, context
from ansible.errors import AnsibleLookupError
from ansible.inventory.manager import InventoryManager, split_host_pattern
from ansible.plugins.lookup import LookupBase

from ..plugin_utils._groups import other_spellings, unreached
from ..plugin_utils._role_variables import unknown_names

NAME = "ip_masq_agent_hosts"

SUMMARY = "kubenode.ip_masq.summary"
#: hosts, for each of which Ansible prints lines
_MANY = 20
_HINT = "for this alone, without lines for each node: ANSIBLE_STDOUT_CALLBACK=%s"


class LookupModule(LookupBase):
    """What Ansible looks for."""

    def run(
        self, terms: t.Sequence[t.Any], variables: t.Optional[t.Dict[str, t.Any]] = None, **kwargs: t.Any
    ) -> t.List[str]:
        """Return the patterns, or the nodes that they do not match.

        :raises AnsibleLookupError: it is missing or matches nothing, or a variable is not known.
        """
        variables = variables or {}
        only_shown = any(context.CLIARGS.get(name) for name in ("syntax", "listhosts", "listtasks", "listtags"))
        if NAME not in variables and (only_shown or terms):
            # ansible-lint evaluates tasks without their variables.
            return [] if terms else ["all"]
        problems = unknown_names(variables)
        if NAME not in variables:
            problems.append(
                "%s is not given: set a group or hosts on the command line, such as -e %s=kube_node" % (NAME, NAME)
            )
        if problems:
            raise AnsibleLookupError("; ".join(problems))
        patterns: t.List[str] = self._flatten([self._templar.template(variables[NAME])])
        if only_shown:
            return patterns
        groups: t.Mapping[str, t.Sequence[str]] = variables["groups"]
        manager = self._inventory(groups)
        if terms == ["hint"]:
            shown = constants.config.get_config_value("DEFAULT_STDOUT_CALLBACK", variables=variables)
            return [_HINT % SUMMARY] if len(groups["all"]) >= _MANY and shown != SUMMARY else []
        if terms:
            limited = context.CLIARGS.get("subset")
            return [] if limited else unreached(split_host_pattern(patterns), groups, _matches(manager))
        _demand_a_match(patterns, groups, manager)
        return patterns

    def _inventory(self, groups: t.Mapping[str, t.Sequence[str]]) -> InventoryManager:
        manager = InventoryManager(self._loader, parse=False)
        for group, names in groups.items():
            manager.add_group(group)
            for name in names:
                manager.add_host(name, group=group)
        return manager


def _matches(manager: InventoryManager) -> t.Callable[[str], t.Set[str]]:
    """Return the function that finds the hosts of one part of a pattern."""
    return lambda part: {host.name for host in manager.get_hosts([part])}


def _demand_a_match(patterns: t.List[str], groups: t.Mapping[str, t.Sequence[str]], manager: InventoryManager) -> None:
    """Check that the patterns leave a host, and miss none because a group is spelled in another way.

    :raises AnsibleLookupError: no host is left, or one is missed.
    """
    wanted = ",".join(patterns)
    misspelled = list(other_spellings(split_host_pattern(patterns), groups, _matches(manager)))
    if misspelled:
        raise AnsibleLookupError("%s: %s" % (NAME, "; ".join(misspelled)))
    if not manager.get_hosts(patterns):
        named = sorted(group for group, names in groups.items() if names and group not in ("all", "ungrouped"))
        raise AnsibleLookupError(
            "%s: no host of the inventory matches %r. Groups with hosts: %s"
            % (NAME, wanted, ", ".join(named) or "none")
        )
    limit = context.CLIARGS.get("subset")
    manager.subset(limit)
    if not manager.get_hosts(patterns):
        raise AnsibleLookupError("%s: no host matches both %r and --limit %s" % (NAME, wanted, limit))
