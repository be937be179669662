# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The config file of a host, from the role's variables."""

from __future__ import annotations

DOCUMENTATION = r"""
name: config
short_description: The config file that follows from the role's variables
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Returns the keys and values of the agent's config file for the host of the task, from the variables of the role
    P(kubenode.ip_masq.ip_masq_agent#role). The values are not checked here.
options: {}
notes:
  - Internal. Playbooks and roles of this collection call it; it may change in any release.
"""

RETURN = r"""
_raw:
  description: One mapping, by the keys of the config file.
  type: list
  elements: dict
"""

import typing as t

from ansible.plugins.lookup import LookupBase

from ..module_utils._policy.policy import POLICY_OPTIONS
from ..plugin_utils._role_variables import PREFIX, config_file_keys, decrypted


class LookupModule(LookupBase):
    """What Ansible looks for."""

    def run(
        self, terms: t.Sequence[t.Any], variables: t.Optional[t.Dict[str, t.Any]] = None, **kwargs: t.Any
    ) -> t.List[t.Dict[str, t.Any]]:
        """Return the mapping."""
        variables = variables or {}
        # In a mapping, because ansible-core 2.19 and later refuse `omit` on its own.
        templated: t.Dict[str, t.Any] = {}
        for name in (PREFIX + option.name for option in POLICY_OPTIONS):
            if name in variables:
                templated.update(decrypted(self._templar.template({name: variables[name]})))
        return [config_file_keys({name: value for name, value in templated.items() if value != variables.get("omit")})]
