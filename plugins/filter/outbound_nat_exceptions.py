# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: outbound_nat_exceptions
short_description: Add ranges to the OutBoundNAT exceptions of a Windows node's CNI configuration
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - On Windows nodes the network plugin translates pod addresses, by the policy C(OutBoundNAT) of its CNI configuration.
    This filter adds ranges to the exceptions of that policy, and returns the text of the configuration.
  - Every other character stays as it is, such as order, numbers, indentation, a byte order mark and line ends. A range
    that is there, or that a wider exception covers, is not added again.
  - Reads the policies of C(win-bridge), C(win-overlay), C(flannel), C(sdnbridge), C(sdnoverlay) and C(azure-vnet), with
    the list C(ExceptionList) or C(Exceptions), beside the type or in C(Settings). IPv4 and IPv6 ranges go to the policy
    of their family. A policy with C(Destinations) is not changed.
  - A configuration of another shape is refused with what was found. The role
    P(kubenode.ip_masq.ip_masq_windows#role) uses this filter on nodes.
  - Runs on the controller. It has not been run against a Windows host.
positional: cidrs, remove, add_policy
options:
  _input:
    description:
      - The text of the configuration. In ansible-core 2.18 a variable with such text becomes a mapping; pass text from
        C(b64decode) or a lookup to the filter in the same expression.
    type: str
    required: true
  cidrs:
    description: Networks in CIDR notation that must be exceptions. Text is split at commas.
    type: list
    elements: str
    required: true
  remove:
    description: Exceptions to remove, such as those of an earlier policy. Nothing else is removed.
    type: list
    elements: str
    default: []
  add_policy:
    description:
      - Whether to add an C(OutBoundNAT) policy for a family of O(cidrs) that has none. The node then translates the
        addresses of all pods for all other destinations of that family. Without it such ranges are left out.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show a CNI configuration with two more exceptions
  ansible.builtin.debug:
    msg: "{{ lookup('file', 'cni.conf', rstrip=false) | kubenode.ip_masq.outbound_nat_exceptions(cidrs) | string }}"
  vars:
    cidrs: [10.8.0.0/16, 192.0.2.0/24]
"""

RETURN = r"""
_value:
  description: The text of the configuration.
  type: str
"""

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
