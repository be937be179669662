# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator of kubespray has to know: who else masquerades, and who has a route to pods."""

from __future__ import annotations

import typing as t

from ..module_utils._system.printable import first_of
from ._kubespray_values import DEFAULTS, Values

_ENFORCE = "set ip_masq_agent_exemption: enforce"
#: kube_network_plugin -> the interfaces of pods, as it names them
_INTERFACES = {"calico": "[cali+]", "flannel": "[cni0]", "kube-router": "[kube-bridge]"}


def remarks(values: Values, ipv6: bool, default_ranges: t.Sequence[str]) -> t.Iterator[str]:
    """Return a line for each thing to know, with the remedy.

    :param ipv6: whether the cluster has it.
    :param default_ranges: that are exempt unless the inventory lists others; empty without IPv4.
    """
    # Who lists ranges has decided which ones have a route.
    if default_ranges and not values.is_given("ip_masq_agent_non_masquerade_cidrs"):
        yield from _routes(values, first_of(default_ranges))
    yield from _masquerading(values, ipv6)
    yield from _kube_proxy(values)
    if values.is_on("kube_network_plugin_multus") and not values.is_given("ip_masq_agent_source_cidrs"):
        yield (
            "kube_network_plugin_multus: true: pods can have addresses outside kube_pods_subnet, which are not "
            "masqueraded: list their networks too in ip_masq_agent_source_cidrs, if they are to be"
        )


def _routes(values: Values, ranges: str) -> t.Iterator[str]:
    """Return whether something announces pods' addresses to the networks that are exempt by default."""
    plugin = values.get("kube_network_plugin")
    about = ROUTES.get(plugin)
    because = about(values) if about else ()
    remedy = "set ip_masq_agent_non_masquerade_cidrs to the networks of the cluster and of hosts with a route to pods"
    if about is None:
        text = "%s: whether outside hosts in %s have a route to pods is not known here: if not, %s"
        yield text % (plugin, ranges, remedy)
    elif because:
        yield (
            "%s: only nodes have a route to pods (%s). Outside hosts in %s, exempt by default, cannot answer a pod's "
            "address: before pods keep theirs, %s" % (plugin, values.settings(*because), ranges, remedy)
        )


def _calico_routes(values: Values) -> t.Sequence[str]:
    if values.texts("calico_network_backend") != ["bird"]:
        modes = [name for name in ("calico_vxlan_mode", "calico_ipip_mode") if values.texts(name) != ["Never"]]
        return ["calico_network_backend", *modes]
    # Without it, BGP is among nodes.
    return () if values.is_on("peer_with_router") else ["calico_network_backend", "peer_with_router"]


def _cilium_routes(values: Values) -> t.Sequence[str]:
    if values.is_on("cilium_enable_bgp_control_plane") or values.is_on("cilium_ip_masq_agent_enable"):
        return ()
    if values.texts("cilium_tunnel_mode") != ["disabled"]:
        return ["cilium_tunnel_mode"]
    # Otherwise the network routes pods.
    return ["cilium_auto_direct_node_routes"] if values.is_on("cilium_auto_direct_node_routes") else ()


def _kube_router_routes(values: Values) -> t.Sequence[str]:
    annotations = ("kube_router_annotations_all", "kube_router_annotations_master", "kube_router_annotations_node")
    peers = any("peer.ips" in text for name in annotations for text in values.texts(name))
    return () if peers or values.all_set("kube_router_peer_router_ips") else ["kube_router_peer_router_ips"]


#: kube_network_plugin -> the variables because of which only nodes have a route to pods; none if others have one
ROUTES: t.Dict[str, t.Callable[[Values], t.Sequence[str]]] = {
    "calico": _calico_routes,
    "cilium": _cilium_routes,
    # Its other types give routes to nodes too.
    "flannel": lambda values: ["flannel_backend_type"],
    "kube-ovn": lambda values: () if values.texts("kube_ovn_network_type") == ["vlan"] else ["kube_ovn_network_type"],
    "kube-router": _kube_router_routes,
    # Without it, the network's own gateway routes pods.
    "macvlan": lambda values: ["enable_nat_default_gateway"] if values.is_on("enable_nat_default_gateway") else (),
}


def _masquerading(values: Values, ipv6: bool) -> t.Iterator[str]:
    """Return what else masquerades pods, and the variable that ends it."""
    plugin = values.get("kube_network_plugin")
    enforced = values.get("ip_masq_agent_exemption") == "enforce"
    narrowed = values.all_set("ip_masq_agent_except_interfaces", "ip_masq_agent_out_interfaces")
    ipvs = _ipvs(values)
    if enforced and ipvs and not narrowed:
        text = "%s needs the interfaces of pods left out of ip_masq_agent_exemption: enforce: set %s"
        yield text % (ipvs, _pods_interfaces(values))
    about = PLUGINS.get(plugin)
    if about is None:
        yield "%s: whether it masquerades is not known here: run ip-masq-agent verify on a node" % plugin
    # What Cilium does in eBPF no rule of nftables sees.
    elif not enforced or plugin == "cilium":
        yield from ("%s: %s" % (plugin, text) for text in about(values, ipv6))
    if plugin == "calico" and values.is_on("calico_bpf_enabled"):
        yield (
            "calico: with calico_bpf_enabled: true, eBPF can forward pods' packets past the rules of the node (not "
            "tested): keep nat_outgoing: true until one node shows that they masquerade"
        )
    if plugin != "cilium" and values.is_on("cilium_deploy_additionally"):
        yield from ("cilium_deploy_additionally: Cilium %s" % text for text in _cilium(values, ipv6))


def _has_kube_proxy(values: Values) -> bool:
    """Return whether kubespray installs kube-proxy: not beside what replaces it."""
    plugin = values.get("kube_network_plugin")
    replaced = {
        "calico": values.is_on("calico_bpf_enabled"),
        # Cilium before 1.16 has strict in place of true.
        "cilium": values.is_on("cilium_kube_proxy_replacement")
        or "strict" in values.texts("cilium_kube_proxy_replacement"),
        "kube-router": values.is_on("kube_router_run_service_proxy"),
    }
    return not (replaced.get(plugin) or values.flag("kube_proxy_remove"))


def _ipvs(values: Values) -> str:
    """Return the setting because of which Services are in IPVS; empty if they are not."""
    # In place of a kube-proxy that is removed, kube-router has them there too.
    router = values.get("kube_network_plugin") == "kube-router"
    if router and values.is_on("kube_router_run_service_proxy"):
        return "kube_router_run_service_proxy: true"
    if (router or _has_kube_proxy(values)) and values.get("kube_proxy_mode") == "ipvs":
        return "kube_proxy_mode: ipvs, kubespray's default,"
    return ""


def _kube_proxy(values: Values) -> t.Iterator[str]:
    """Return what kube-proxy does other than by default, if it is there."""
    if not _has_kube_proxy(values):
        return
    if values.is_on("kube_proxy_masquerade_all"):
        yield (
            "kube_proxy_masquerade_all: true: behind every Service pods are seen as their node, also where they are "
            "exempt: set false, unless the network plugin needs it (macvlan)"
        )
    bit = str(DEFAULTS["kube_proxy_masquerade_bit"])
    if values.texts("kube_proxy_masquerade_bit") != [bit]:
        yield (
            "%s: ip_masq_agent_exemption: accept and enforce know bit %s alone, and can keep pods' addresses where "
            "kube-proxy needs the node's: set %s, or keep ip_masq_agent_exemption: return"
            % (values.settings("kube_proxy_masquerade_bit"), bit, bit)
        )


def _enforce(values: Values) -> str:
    """Return the variables with which exempt traffic is protected from the plugin's rules."""
    if _ipvs(values):
        return "%s and %s" % (_ENFORCE, _pods_interfaces(values))
    return _ENFORCE


def _pods_interfaces(values: Values) -> str:
    """Return the variable that names the interfaces of pods, which IPVS needs."""
    known = _INTERFACES.get(values.get("kube_network_plugin"), "[the interfaces of pods]")
    return "ip_masq_agent_except_interfaces: " + known


def _calico(values: Values, ipv6: bool) -> t.Iterator[str]:
    names = [name for name in ("nat_outgoing", *(["nat_outgoing_ipv6"] if ipv6 else [])) if values.flag(name)]
    if names:
        settings = " and ".join("%s: false" % name for name in names)
        remedy = (
            "set %s and run cluster.yml again (or one command, see docs/kubespray-live.md); or, if only nodes are to "
            "see pods, natOutgoingExclusions: IPPoolsAndHostIPs in FelixConfiguration (Calico 3.31)" % settings
        )
        yield _too(values, "its pools", remedy)


def _too(values: Values, what: str, remedy: str) -> str:
    """Return that a plugin masquerades exempt ranges too, and what ends it."""
    return "masquerades what leaves %s, exempt ranges too: %s, or %s" % (what, remedy, _enforce(values))


def _flannel(values: Values, ipv6: bool) -> t.Iterator[str]:
    yield _too(values, "its network", "start flanneld without --ip-masq, for which kubespray has no variable")


def _cilium(values: Values, ipv6: bool) -> t.Iterator[str]:
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


def _kube_router(values: Values, ipv6: bool) -> t.Iterator[str]:
    if "--enable-pod-egress=false" not in values.get("kube_router_extra_args"):
        yield _too(values, "the pods' network", "add --enable-pod-egress=false to kube_router_extra_args")


def _kube_ovn(values: Values, ipv6: bool) -> t.Iterator[str]:
    patch = """kubectl patch subnet ovn-default --type merge -p '{"spec":{"natOutgoing":false}}'"""
    yield _too(values, "its default subnet", "run %s, because kubespray has no variable for it" % patch)


def _macvlan(values: Values, ipv6: bool) -> t.Iterator[str]:
    if values.flag("enable_nat_default_gateway"):
        yield "masquerades pods: set enable_nat_default_gateway: false, or %s" % _enforce(values)


#: kube_network_plugin -> remarks
PLUGINS: t.Dict[str, t.Callable[[Values, bool], t.Iterator[str]]] = {
    "calico": _calico,
    "cilium": _cilium,
    "flannel": _flannel,
    "kube-ovn": _kube_ovn,
    "kube-router": _kube_router,
    "macvlan": _macvlan,
}
