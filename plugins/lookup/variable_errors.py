# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: variable_errors
short_description: Errors in the variables of the role ip_masq_agent
version_added: 0.1.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Checks on the controller the variables C(ip_masq_agent_...) of several hosts at once. The role
    P(kubenode.ip_masq.ip_masq_agent#role) and the playbooks use it before they touch a node.
  - Reports unknown names, with the nearest known one; values that the argument specification refuses; and values that
    the grammar of the policy refuses, by the name of the variable. The policy is not checked with
    C(ip_masq_agent_state=absent).
  - A value of the play or the role applies to every host, otherwise the value that the inventory has for the host.
    Equal policies of many hosts are checked once.
options:
  _terms:
    description: Names of hosts.
    type: list
    elements: str
    required: true
requirements:
  - netaddr on the controller, if C(ip_masq_agent_cluster_cidrs) is set
"""

EXAMPLES = r"""
- name: Refuse invalid variables of any host of the play, before a node is touched
  ansible.builtin.assert:
    that: query('kubenode.ip_masq.variable_errors', *ansible_play_hosts_all) | length == 0
    quiet: true
  run_once: true
"""

RETURN = r"""
_raw:
  description: A message for each error, with the hosts that have it unless all have it.
  type: list
  elements: str
"""

import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

from ..plugin_utils.names import some_of
from ..plugin_utils.role_variables import is_public, role_defaults, unknown_names, value_errors


class LookupModule(LookupBase):
    """What Ansible looks for."""

    def run(
        self, terms: t.Sequence[t.Any], variables: t.Optional[t.Dict[str, t.Any]] = None, **kwargs: t.Any
    ) -> t.List[str]:
        """The messages."""
        variables = variables or {}
        hosts = self._flatten(terms)
        concerned: t.Dict[str, t.List[str]] = {}
        seen: t.Dict[str, t.List[str]] = {}
        views = _Views(variables)
        for host in hosts:
            view = views.of(host)
            values, errors = self._templated(views.given(view), view)
            policy = repr(sorted(values.items()))
            if policy not in seen:
                seen[policy] = unknown_names(values) + value_errors(values)
            for error in errors + seen[policy]:
                concerned.setdefault(error, []).append(host)
        return [
            error if len(names) == len(hosts) else "%s (%s)" % (error, some_of(names))
            for error, names in concerned.items()
        ]

    def _templated(
        self, values: t.Mapping[str, t.Any], view: t.Dict[str, t.Any]
    ) -> t.Tuple[t.Dict[str, t.Any], t.List[str]]:
        """The values as the host's tasks see them, and what cannot be templated."""
        templar = self._templar.copy_with_new_env(available_variables=view)
        templated: t.Dict[str, t.Any] = {}
        errors = []
        for name, value in values.items():
            try:
                # In a mapping, because ansible-core 2.19 and later refuse `omit` on its own.
                templated.update(templar.template({name: value}))
            except AnsibleError as exc:
                errors.append("%s: %s" % (name, exc))
        return {name: value for name, value in templated.items() if value != view.get("omit")}, errors


class _Views:
    """The variables of each host of a play, told from those that one of them sees.

    Ansible hands a lookup the variables of one host; C(hostvars) has what the inventory and facts say of each, and
    neither the play's variables nor the role's. What this host sees and its C(hostvars) do not explain is the play's,
    and so every host's. A role's default is not: it gives way to the inventory.
    """

    def __init__(self, variables: t.Dict[str, t.Any]) -> None:
        self._hostvars = variables["hostvars"]
        self._defaults = role_defaults()
        here = self._hostvars.raw_get(variables["inventory_hostname"])
        explained = {**self._defaults, **here}
        self._of_play = {
            name: value
            for name, value in variables.items()
            if name != "vars" and not (name in explained and value == explained[name])
        }

    def of(self, host: str) -> t.Dict[str, t.Any]:
        """One host's variables, not templated."""
        return {**self._defaults, **self._hostvars.raw_get(host), **self._of_play}

    def given(self, view: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
        """The role's variables of one host that are not at their defaults: templating all takes seconds for a fleet."""
        return {
            name: value
            for name, value in view.items()
            if is_public(name) and not (name in self._defaults and value == self._defaults[name])
        }
