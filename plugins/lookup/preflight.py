# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight
short_description: Check the policies of several hosts before a node is touched
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Checks on the controller the variables C(ip_masq_agent_...) of several hosts at once. The role
    P(kubenode.ip_masq.ip_masq_agent#role) and the playbooks use it before they touch a node.
  - Errors are unknown names, values that are refused, and networks of C(ip_masq_agent_cluster_cidrs) that would be
    masqueraded. Remarks are those of O(kubenode.ip_masq.ip_masq_agent#role:main:ip_masq_agent_preflight).
  - A value of the play or the role applies to every host, otherwise the value that the inventory has for the host.
options:
  _terms:
    description: Names of hosts.
    type: list
    elements: str
    required: true
  remarks:
    description: V(warn) lists remarks if there are no errors, V(fail) makes them errors, V(ignore) does not look.
    type: str
    choices: [warn, fail, ignore]
    default: warn
requirements:
  - netaddr on the controller, for C(ip_masq_agent_cluster_cidrs) and for remarks about ranges
notes:
  - Internal. Playbooks and roles of this collection call it; it may change in any release.
"""

RETURN = r"""
_raw:
  description: One mapping. C(lines) has a message for each error or remark, C(failed) is whether there are errors.
  type: list
  elements: dict
"""

import contextlib
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

from ..plugin_utils._names import some_of
from ..plugin_utils._role_variables import Checked, check_values, decrypted, is_public, role_defaults, unknown_names
from ..plugin_utils._suspicious_policies import advice


class LookupModule(LookupBase):
    """What Ansible looks for."""

    def run(
        self, terms: t.Sequence[t.Any], variables: t.Optional[t.Dict[str, t.Any]] = None, **kwargs: t.Any
    ) -> t.List[t.Dict[str, t.Any]]:
        """Return the mapping."""
        self.set_options(var_options=variables, direct=kwargs)
        variables = variables or {}
        hosts = self._flatten(terms)
        concerned: t.Dict[str, t.List[str]] = {}
        policies: t.Dict[str, Checked] = {}
        seen: t.Dict[str, Checked] = {}
        views = _Views(variables)
        for host in hosts:
            view = views.of(host)
            values, errors = self._templated(views.given(host, view), view)
            key = repr(sorted(values.items()))
            if key not in seen:
                seen[key] = check_values(values)
            policies[host] = seen[key]
            for error in (*errors, *unknown_names(view), *seen[key].errors):
                concerned.setdefault(error, []).append(host)
        remarks = self.get_option("remarks")
        failed = bool(concerned)
        if not failed and remarks != "ignore":
            for remark, names in advice(policies, variables.get("groups", {})):
                concerned.setdefault(remark, []).extend(names)
            failed = bool(concerned) and remarks == "fail"
        lines = [
            line if len(names) == len(hosts) else "%s (%s)" % (line, some_of(names))
            for line, names in concerned.items()
        ]
        return [{"lines": lines, "failed": failed}]

    def _templated(
        self, values: t.Mapping[str, t.Any], view: t.Dict[str, t.Any]
    ) -> t.Tuple[t.Dict[str, t.Any], t.List[str]]:
        """Return the values as the host's tasks see them, and what cannot be templated."""
        templar = self._templar.copy_with_new_env(available_variables=view)
        templated: t.Dict[str, t.Any] = {}
        errors = []
        for name, value in values.items():
            try:
                # In a mapping, because ansible-core 2.19 and later refuse `omit` on its own.
                templated.update(decrypted(templar.template({name: value})))
            except AnsibleError as exc:
                # Behind the first line Ansible shows the place in its own files where the value is used.
                errors.append("%s: %s" % (name, str(exc).partition("\n")[0]))
        return {name: value for name, value in templated.items() if value != view.get("omit")}, errors


class _Views:
    """The variables of each host of a play, found in those that one of them sees.

    Ansible hands a lookup the variables of one host; ``hostvars`` has what the inventory and facts say of each, and
    neither the play's variables nor the role's. What this host sees and its ``hostvars`` do not explain is the play's,
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
            if name != "vars" and not (name in explained and _equal(value, explained[name]))
        }

    def of(self, host: str) -> t.Dict[str, t.Any]:
        """Return one host's variables, not templated."""
        return {**self._defaults, **self._hostvars.raw_get(host), **self._of_play}

    def given(self, host: str, view: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
        """Return the role's variables that are set for one host: templating all takes seconds for a fleet."""
        names = {*self._hostvars.raw_get(host), *self._of_play}
        return {name: view[name] for name in names if is_public(name)}


def _equal(one: t.Any, other: t.Any) -> bool:
    """Compare two values. Text of a vault without its password cannot be compared, and counts as the same."""
    with contextlib.suppress(AnsibleError):
        return bool(one is other or one == other)
    return True
