# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: uncovered
short_description: The parts of networks that other networks do not cover
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Subtracts networks from networks, on the controller. An empty result means that all of the input is covered.
  - Both lists are read by the collection's own CIDR grammar first, so an invalid entry has the same message everywhere.
    Text is split at commas, on its own and as an entry.
positional: covering, reserved
options:
  _input:
    description: Networks in CIDR notation, such as those of the pods and the services.
    type: list
    elements: str
    required: true
  covering:
    description:
      - Networks in CIDR notation that should cover them, such as the ranges that are not masqueraded.
      - If not set, the ranges that M(kubenode.ip_masq.ip_masq) does not masquerade by default.
    type: list
    elements: str
  reserved:
    description:
      - Whether that default is all reserved ranges, as with
        O(kubenode.ip_masq.ip_masq#module:nomasq_all_reserved_ranges).
    type: bool
    default: false
requirements:
  - netaddr on the controller
"""

EXAMPLES = r"""
- name: Check that pods and services are not masqueraded
  ansible.builtin.assert:
    that: cluster_cidrs | kubenode.ip_masq.uncovered(['10.0.0.0/8']) == []
  vars:
    cluster_cidrs: [10.233.64.0/18, 10.233.0.0/18]
"""

RETURN = r"""
_value:
  description: The parts that are not covered, merged and sorted.
  type: list
  elements: str
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._errors import ConfigError
from ..module_utils._policy.policy import RESERVED_CIDRS, RFC1918_CIDRS
from ..plugin_utils import _networks as sets


def uncovered(networks: t.Any, covering: t.Any = None, reserved: bool = False) -> t.List[str]:
    """Return the parts of ``networks`` that are in none of ``covering``; without those, of the default list.

    :raises AnsibleFilterError: an entry is no CIDR, or netaddr is missing.
    """
    if covering is None:
        covering = list(RESERVED_CIDRS if reserved else RFC1918_CIDRS)
    try:
        return sets.uncovered(networks, covering)
    except ConfigError as exc:
        raise AnsibleFilterError("kubenode.ip_masq.uncovered: %s" % exc) from None


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """Return the filters of this file."""
        return {"uncovered": uncovered}
