# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubespray's variables mean for a cluster: its networks, IPv6, and what else an operator has to know.

The playbook ``kubespray_variables`` sets the role's variables from what ``derive`` returns.
"""

from __future__ import annotations

import ipaddress
import typing as t

from ..module_utils._errors import ConfigError
from ..module_utils._policy.policy import RESERVED_CIDRS, RFC1918_CIDRS
from ..module_utils._policy.values import show
from ..module_utils._system.printable import first_of
from ._kubespray_remarks import remarks
from ._kubespray_values import Values, is_template, readable
from ._names import some_of
from ._networks import uncovered

#: Addresses of a node in the inventory. Not main_ip and other facts: they are there only after kubespray ran, and the
#: policy must be the same in each run.
ADDRESSES = ("ip", "access_ip", "ip6", "access_ip6")


class Cluster(t.NamedTuple):
    """What the variables come to; networks are in CIDR notation."""

    pods: t.List[str]
    services: t.List[str]
    #: of all nodes, one network for each address
    nodes: t.List[str]
    ipv6: bool
    #: the default list plus cluster networks it does not cover
    exempt: t.List[str]
    #: of Services
    node_port_range: str
    #: for people: the networks, and what else masquerades
    lines: t.List[str]


def derive(hosts: t.Sequence[str], nodes: t.Sequence[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]) -> Cluster:
    """Read the variables.

    :param hosts: that have the variables of the cluster.
    :param nodes: that have addresses: those and all others of the cluster.
    :param hostvars: the variables of each host, templated.
    :raises ConfigError: a value has no meaning, or hosts do not agree about it.
    """
    values = Values(hosts, hostvars)
    ipv4, ipv6 = values.flag("ipv4_stack"), values.flag("ipv6_stack", "enable_dual_stack_networks")
    if not ipv4 and not ipv6:
        raise ConfigError("ipv4_stack and ipv6_stack are both false: one of them is needed")
    suffixes = [suffix for suffix, on in (("", ipv4), ("_ipv6", ipv6)) if on]
    pods = values.networks("kube_pods_subnets", *("kube_pods_subnet" + suffix for suffix in suffixes))
    services = values.networks("kube_service_subnets", *("kube_service_addresses" + suffix for suffix in suffixes))
    given = {node: [one for one in _addresses(node, hostvars) if ipv6 or ":" not in one] for node in nodes}
    addresses = list(dict.fromkeys(address for some in given.values() for address in some))
    base = list(RESERVED_CIDRS if values.flag("ip_masq_agent_nomasq_all_reserved_ranges") else RFC1918_CIDRS)
    exempt = base + uncovered([*pods, *services, *addresses], base)
    without = [node for node, some in given.items() if not some]
    found = (
        ", ".join(pods),
        ", ".join(services),
        first_of(addresses) or "not in the inventory",
        " (set %s of %s; ansible_host is not read)" % ("ip" if ipv4 else "ip6", some_of(without)) if without else "",
        "on" if ipv6 else "off",
    )
    lines = ["kubespray: pods %s; services %s; nodes %s%s; IPv6 %s" % found]
    lines += remarks(values, ipv6, base if ipv4 else ())
    node_ports = str(values.get("kube_apiserver_node_port_range"))
    return Cluster(pods, services, addresses, ipv6, exempt, node_ports, lines)


def _addresses(node: str, hostvars: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.Iterator[str]:
    """Return the addresses that the inventory has for a node, as networks.

    :raises ConfigError: one of them is none.
    """
    for name in ADDRESSES:
        value = readable(hostvars[node].get(name))
        if is_template(value):
            raise ConfigError(
                "%s of %s: %s has a variable or a fact that is not known. This playbook gathers no facts: write the "
                "address, or run it behind kubespray's plays, or behind ansible.builtin.setup, on all nodes"
                % (name, node, show(value))
            )
        if value:
            try:
                yield str(ipaddress.ip_network(str(value)))
            except ValueError:
                raise ConfigError("%s of %s: %s is not an IP address" % (name, node, show(value))) from None
