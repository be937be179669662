# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: kubespray
short_description: What kubespray's variables mean for the networks of a cluster
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Reads the variables of an inventory for kubespray, on the controller. The playbook C(kubenode.ip_masq.kubespray)
    makes the policy of the result.
  - Variables that are not set have kubespray's defaults. The networks are C(kube_pods_subnets), or
    C(kube_pods_subnet) and C(kube_pods_subnet_ipv6) by C(ipv4_stack) and C(ipv6_stack); likewise
    C(kube_service_subnets), or C(kube_service_addresses) and C(kube_service_addresses_ipv6). Addresses of nodes are
    C(ip), C(access_ip), C(ip6) and C(access_ip6).
  - Fails if hosts do not agree about a variable of the cluster.
positional: nodes, hostvars
options:
  _input:
    description: Names of hosts whose variables of the cluster are read.
    type: list
    elements: str
    required: true
  nodes:
    description: Names of all nodes of the cluster, for their addresses.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variable C(hostvars).
    type: dict
    required: true
requirements:
  - netaddr on the controller, which kubespray needs too
notes:
  - Internal. Playbooks and roles of this collection call it; it may change in any release.
"""

RETURN = r"""
_value:
  description:
    - C(pods), C(services) and C(nodes) are lists of networks, C(ipv6) is whether IPv6 is on.
    - C(exempt) are the ranges that are exempt by default, and what they do not cover of the cluster.
    - C(node_port_range) are the NodePorts, C(kube_apiserver_node_port_range).
    - C(lines) are for people, the networks, and how to stop the network plugin from masquerading.
  type: dict
"""

import typing as t

from ansible.errors import AnsibleFilterError
from ansible.utils.unsafe_proxy import wrap_var

from ..module_utils._errors import ConfigError
from ..plugin_utils._kubespray import derive


def kubespray(
    hosts: t.Sequence[str], nodes: t.Sequence[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]
) -> t.Dict[str, t.Any]:
    """See above.

    :raises AnsibleFilterError: a value has no meaning, or hosts do not agree about it.
    """
    try:
        found = derive(hosts, nodes, hostvars)._asdict()
    except ConfigError as exc:
        raise AnsibleFilterError("kubenode.ip_masq.kubespray: %s" % exc) from None
    # They can quote a template that could not be evaluated, and must not be taken for one.
    return {**found, "lines": wrap_var(found["lines"])}


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """Return the filters of this file."""
        return {"kubespray": kubespray}
