# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubespray's variables mean for a cluster: its networks, IPv6, and whether the network plugin masquerades.

kubespray's defaults are those of roles, which no play of another collection sees; ``DEFAULTS`` repeats those that
matter, as of kubespray 2.31 (roles/kubespray_defaults, roles/network_plugin). The playbook ``kubespray_variables`` sets
the role's variables from what ``derive`` returns.
"""

from __future__ import annotations

import ipaddress
import typing as t

from ansible.module_utils.parsing.convert_bool import boolean

from ..module_utils._errors import ConfigError
from ..module_utils._policy.policy import RESERVED_CIDRS, RFC1918_CIDRS
from ..module_utils._policy.values import show
from ._names import first_of, grouped, some_of
from ._networks import read_networks, uncovered

DEFAULTS: t.Dict[str, t.Any] = {
    "cilium_enable_bpf_masquerade": False,
    "cilium_enable_ipv4_masquerade": True,
    "cilium_enable_ipv6_masquerade": True,
    "cilium_ip_masq_agent_enable": False,
    "enable_dual_stack_networks": False,
    "enable_nat_default_gateway": True,
    "ip_masq_agent_except_interfaces": [],
    "ip_masq_agent_exemption": "return",
    "ip_masq_agent_nomasq_all_reserved_ranges": False,
    "ip_masq_agent_out_interfaces": [],
    "ipv4_stack": True,
    "kube_apiserver_node_port_range": "30000-32767",
    # enable_dual_stack_networks is its older name
    "ipv6_stack": None,
    "kube_network_plugin": "calico",
    # kubespray makes these of the ones below; only an operator's own are seen here.
    "kube_pods_subnets": None,
    "kube_service_subnets": None,
    "kube_pods_subnet": "10.233.64.0/18",
    "kube_pods_subnet_ipv6": "fd85:ee78:d8a6:8607::1:0000/112",
    "kube_service_addresses": "10.233.0.0/18",
    "kube_service_addresses_ipv6": "fd85:ee78:d8a6:8607::1000/116",
    "kube_proxy_mode": "ipvs",
    "kube_proxy_remove": False,
    "kube_router_extra_args": [],
    "nat_outgoing": True,
    "nat_outgoing_ipv6": False,
}

#: Addresses of a node in the inventory. Not main_ip and other facts: they are there only after kubespray ran, and the
#: policy must be the same in each run.
ADDRESSES = ("ip", "access_ip", "ip6", "access_ip6")

_ENFORCE = "set ip_masq_agent_exemption: enforce"
#: kube_network_plugin -> the interfaces of pods, as it names them
_INTERFACES = {"calico": "[cali+]", "flannel": "[cni0]", "kube-router": "[kube-bridge]"}


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
    values = _Values(hosts, hostvars)
    ipv4, ipv6 = values.flag("ipv4_stack"), values.flag("ipv6_stack", "enable_dual_stack_networks")
    if not ipv4 and not ipv6:
        raise ConfigError("ipv4_stack and ipv6_stack are both false: one of them is needed")
    suffixes = [suffix for suffix, on in (("", ipv4), ("_ipv6", ipv6)) if on]
    pods = values.networks("kube_pods_subnets", *("kube_pods_subnet" + suffix for suffix in suffixes))
    services = values.networks("kube_service_subnets", *("kube_service_addresses" + suffix for suffix in suffixes))
    addresses = [address for address in _addresses(nodes, hostvars) if ipv6 or ":" not in address]
    base = list(RESERVED_CIDRS if values.flag("ip_masq_agent_nomasq_all_reserved_ranges") else RFC1918_CIDRS)
    exempt = base + uncovered([*pods, *services, *addresses], base)
    found = (
        ", ".join(pods),
        ", ".join(services),
        first_of(addresses) or "not in the inventory",
        "on" if ipv6 else "off",
    )
    lines = ["kubespray: pods %s; services %s; nodes %s; IPv6 %s" % found, *_masquerading(values, ipv6)]
    node_ports = str(values.get("kube_apiserver_node_port_range"))
    return Cluster(pods, services, addresses, ipv6, exempt, node_ports, lines)


class _Values:
    """Values that all hosts share; one that is not set, or null, is kubespray's default."""

    def __init__(self, hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]) -> None:
        views = {host: hostvars[host] for host in hosts}
        self._given = {
            name: {host: view[name] for host, view in views.items() if view.get(name) is not None} for name in DEFAULTS
        }
        self._hosts = list(hosts)

    def get(self, name: str) -> t.Any:
        """Return one value.

        :raises ConfigError: hosts do not agree about it.
        """
        values = [self._given[name].get(host, DEFAULTS[name]) for host in self._hosts]
        shown = ("not set" if value is None else show(value) for value in values)
        alike = grouped(zip(shown, self._hosts))
        if len(alike) > 1:
            named = ", ".join("%s (%s)" % (value, some_of(hosts)) for value, hosts in alike.items())
            raise ConfigError("%s differs: %s: give all nodes one value, in group_vars/k8s_cluster" % (name, named))
        return values[0]

    def all_set(self, *names: str) -> bool:
        """Return whether each host sets one of the variables to something; hosts need not agree."""
        return all(any(self._given[name].get(host) for name in names) for host in self._hosts)

    def flag(self, *names: str) -> bool:
        """Return a boolean, of the first name that is set.

        :raises ConfigError: it is not a boolean.
        """
        for name in names:
            value = self.get(name)
            if value is not None:
                try:
                    return bool(boolean(value))
                except TypeError:
                    raise ConfigError("%s: %s is not true or false" % (name, show(value))) from None
        return False

    def networks(self, whole: str, *parts: str) -> t.List[str]:
        """Return networks of one variable, or if that is not set, of others.

        :raises ConfigError: one of them is no CIDR.
        """
        found: t.List[str] = []
        for name in parts if self.get(whole) is None else (whole,):
            value = self.get(name)
            try:
                found += read_networks(value)
            except ConfigError as exc:
                raise ConfigError("%s: %s" % (name, exc)) from None
        return found


def _addresses(nodes: t.Sequence[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.List[str]:
    found: t.Dict[str, None] = {}
    for node in nodes:
        view = hostvars[node]
        for name in ADDRESSES:
            value = view.get(name)
            if value:
                try:
                    found[str(ipaddress.ip_network(str(value)))] = None
                except ValueError:
                    raise ConfigError("%s of %s: %s is not an IP address" % (name, node, show(value))) from None
    return list(found)


def _masquerading(values: _Values, ipv6: bool) -> t.Iterator[str]:
    """Return what else masquerades pods, and the variable that ends it."""
    plugin = values.get("kube_network_plugin")
    enforced = values.get("ip_masq_agent_exemption") == "enforce"
    narrowed = values.all_set("ip_masq_agent_except_interfaces", "ip_masq_agent_out_interfaces")
    if enforced and _has_ipvs(values) and not narrowed:
        yield (
            "kube_proxy_mode: ipvs, kubespray's default, needs the interfaces of pods left out of "
            "ip_masq_agent_exemption: enforce: set %s" % _pods_interfaces(values)
        )
    about = PLUGINS.get(plugin)
    if about is None:
        yield "%s: whether it masquerades is not known here: run ip-masq-agent verify on a node" % plugin
    # What Cilium does in eBPF no rule of nftables sees.
    elif not enforced or plugin == "cilium":
        yield from ("%s: %s" % (plugin, text) for text in about(values, ipv6))


def _has_ipvs(values: _Values) -> bool:
    """Return whether Services are in IPVS. In place of a kube-proxy that is removed, kube-router has them there too."""
    if values.get("kube_network_plugin") != "kube-router" and values.flag("kube_proxy_remove"):
        return False
    return bool(values.get("kube_proxy_mode") == "ipvs")


def _enforce(values: _Values) -> str:
    """Return the variables with which exempt traffic is protected from the plugin's rules."""
    if _has_ipvs(values):
        return "%s and %s" % (_ENFORCE, _pods_interfaces(values))
    return _ENFORCE


def _pods_interfaces(values: _Values) -> str:
    """Return the variable that names the interfaces of pods, which IPVS needs."""
    known = _INTERFACES.get(values.get("kube_network_plugin"), "[the interfaces of pods]")
    return "ip_masq_agent_except_interfaces: " + known


def _calico(values: _Values, ipv6: bool) -> t.Iterator[str]:
    names = [name for name in ("nat_outgoing", *(["nat_outgoing_ipv6"] if ipv6 else [])) if values.flag(name)]
    if names:
        settings = " and ".join("%s: false" % name for name in names)
        yield (
            "masquerades what leaves its pools, exempt ranges too: set %s and run cluster.yml again (or one command, "
            "see docs/kubespray-live.md), or %s" % (settings, _enforce(values))
        )


def _flannel(values: _Values, ipv6: bool) -> t.Iterator[str]:
    yield (
        "masquerades what leaves its network, exempt ranges too. kubespray starts flanneld with --ip-masq and has no "
        "variable for it: %s" % _enforce(values)
    )


def _cilium(values: _Values, ipv6: bool) -> t.Iterator[str]:
    if values.flag("cilium_ip_masq_agent_enable"):
        yield (
            "its own agent does this (cilium_ip_masq_agent_enable: true): list the ranges in "
            "cilium_non_masquerade_cidrs, and do not use this collection"
        )
        return
    families = ("ipv4", "ipv6") if ipv6 else ("ipv4",)
    names = ["cilium_enable_%s_masquerade" % family for family in families]
    names = [name for name in names if values.flag(name)]
    if names:
        agent = "cilium_ip_masq_agent_enable: true"
        if not values.flag("cilium_enable_bpf_masquerade"):
            agent = "cilium_enable_bpf_masquerade: true, " + agent
        yield (
            "masquerades pods itself. Let its own agent do it (%s, cilium_non_masquerade_cidrs) and do not use this "
            "collection; or set %s" % (agent, " and ".join("%s: false" % name for name in names))
        )


def _kube_router(values: _Values, ipv6: bool) -> t.Iterator[str]:
    if "--enable-pod-egress=false" not in values.get("kube_router_extra_args"):
        yield (
            "masquerades what leaves the pods' network, exempt ranges too: add --enable-pod-egress=false to "
            "kube_router_extra_args, or %s" % _enforce(values)
        )


def _kube_ovn(values: _Values, ipv6: bool) -> t.Iterator[str]:
    yield (
        "masquerades what leaves its default subnet, exempt ranges too, and kubespray has no variable for it: run "
        'kubectl patch subnet ovn-default --type merge -p \'{"spec":{"natOutgoing":false}}\', or %s' % _enforce(values)
    )


def _macvlan(values: _Values, ipv6: bool) -> t.Iterator[str]:
    if values.flag("enable_nat_default_gateway"):
        yield "masquerades pods: set enable_nat_default_gateway: false, or %s" % _enforce(values)


#: kube_network_plugin -> remarks
PLUGINS: t.Dict[str, t.Callable[[_Values, bool], t.Iterator[str]]] = {
    "calico": _calico,
    "cilium": _cilium,
    "flannel": _flannel,
    "kube-ovn": _kube_ovn,
    "kube-router": _kube_router,
    "macvlan": _macvlan,
}
