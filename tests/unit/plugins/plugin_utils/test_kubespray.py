# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubespray's variables come to."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.kubenode.ip_masq.plugins.filter.kubespray import FilterModule
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._kubespray_values import DEFAULTS
from jinja2.exceptions import UndefinedError
from support.kubespray import SEEN

RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
PODS6, SERVICES6 = "fd85:ee78:d8a6:8607::1:0/112", "fd85:ee78:d8a6:8607::1000/116"


class Missing:
    """What ansible-core 2.19 and later have in place of a value that cannot be evaluated."""

    def __str__(self) -> str:
        raise UndefinedError("'ansible_eth1' is undefined")


def derive(*hosts: t.Mapping[str, t.Any], **variables: t.Any) -> t.Dict[str, t.Any]:
    """The result for a cluster of these hosts, one if none is given, with the variables of all."""
    names = ["n%d" % number for number in range(1, len(hosts or [{}]) + 1)]
    hostvars = {name: {**variables, **host} for name, host in zip(names, hosts or [{}])}
    return t.cast(t.Dict[str, t.Any], FilterModule().filters()["kubespray"](names, names, hostvars))


def test_an_inventory_that_sets_nothing_has_the_defaults_of_kubespray() -> None:
    found = derive()
    assert (found["pods"], found["services"], found["nodes"]) == (["10.233.64.0/18"], ["10.233.0.0/18"], [])
    assert found["exempt"] == RFC1918 and found["ipv6"] is False
    assert found["lines"][0] == (
        "kubespray: pods 10.233.64.0/18; services 10.233.0.0/18; nodes not in the inventory (set ip of n1; "
        "ansible_host is not read); IPv6 off"
    )


def test_defaults_are_those_that_were_read_in_kubespray() -> None:
    """``ipv6_stack`` is a template of its older name there; the networks of both families are made of those of each.

    ``peer_with_router`` has no default there: what reads it takes false.
    """
    templates = {"ipv6_stack": "enable_dual_stack_networks"}
    made = {"kube_pods_subnets", "kube_service_subnets", "peer_with_router"}
    ours = {name: value for name, value in DEFAULTS.items() if not name.startswith("ip_masq_agent_")}
    assert set(SEEN) == set(ours) - made - set(templates.values())
    for name, seen in SEEN.items():
        if name in templates:
            assert "%s | default(%s)" % (templates[name], str(ours[templates[name]]).lower()) in seen.value
            assert ours[name] is None
        else:
            assert ours[name] == seen.value, "%s in %s of %s" % (name, seen.file, seen.commit)
    assert {ours[name] for name in made} == {None}


def test_ports_of_services() -> None:
    assert derive()["node_port_range"] == "30000-32767"
    assert derive(kube_apiserver_node_port_range="20000-22767")["node_port_range"] == "20000-22767"


@pytest.mark.parametrize(
    "variables, pods, services, ipv6",
    [
        ({"ipv6_stack": True}, ["10.233.64.0/18", PODS6], ["10.233.0.0/18", SERVICES6], True),
        ({"enable_dual_stack_networks": True}, ["10.233.64.0/18", PODS6], ["10.233.0.0/18", SERVICES6], True),
        ({"ipv6_stack": False, "enable_dual_stack_networks": True}, ["10.233.64.0/18"], ["10.233.0.0/18"], False),
        ({"ipv4_stack": "false", "ipv6_stack": "yes"}, [PODS6], [SERVICES6], True),
        (
            {"kube_pods_subnet": "100.64.0.0/16", "kube_service_addresses": "100.65.0.0/16"},
            ["100.64.0.0/16"],
            ["100.65.0.0/16"],
            False,
        ),
        (
            {"kube_pods_subnets": "10.1.0.0/16,fd01::/112", "kube_service_subnets": "10.2.0.0/16,fd02::/112",
             "kube_pods_subnet": "10.9.0.0/16", "ipv6_stack": True},
            ["10.1.0.0/16", "fd01::/112"],
            ["10.2.0.0/16", "fd02::/112"],
            True,
        ),
        ({"kube_pods_subnet": None}, ["10.233.64.0/18"], ["10.233.0.0/18"], False),
    ],
)  # fmt: skip
def test_networks_follow_from_the_stacks(
    variables: t.Dict[str, t.Any], pods: t.List[str], services: t.List[str], ipv6: bool
) -> None:
    found = derive(**variables)
    assert (found["pods"], found["services"], found["ipv6"]) == (pods, services, ipv6)


def test_what_the_default_list_does_not_cover_is_added_to_it() -> None:
    found = derive({"ip": "203.0.113.4"}, {"ip": "203.0.113.5"}, kube_pods_subnet="100.64.0.0/16", ipv6_stack=True)
    assert found["exempt"] == [*RFC1918, "100.64.0.0/16", "203.0.113.4/31", SERVICES6, PODS6]
    reserved = derive(kube_pods_subnet="100.64.0.0/16", ip_masq_agent_nomasq_all_reserved_ranges=True)["exempt"]
    assert "240.0.0.0/4" in reserved and "100.64.0.0/16" not in reserved


def test_addresses_are_of_all_nodes_and_variables_of_those_in_the_play() -> None:
    hostvars = {"n1": {"ip": "10.3.0.1", "kube_pods_subnet": "10.1.0.0/16"}, "n2": {"ip": "10.3.0.2"}}
    found = FilterModule().filters()["kubespray"](["n1"], ["n1", "n2"], hostvars)
    assert found["nodes"] == ["10.3.0.1/32", "10.3.0.2/32"] and found["pods"] == ["10.1.0.0/16"]


@pytest.mark.parametrize(
    "hosts, message",
    [
        ([{"kube_pods_subnet": "10.233.64.1/18"}], r"kube_pods_subnet: '10.233.64.1/18' has host bits set"),
        ([{"kube_service_subnets": 5}], r"kube_service_subnets: 5 is not a list"),
        ([{"ip": "node1"}], r"ip of n1: 'node1' is not an IP address"),
        (
            [{"access_ip": "{{ ansible_eth1.ipv4.address }}"}],
            r"access_ip of n1: '{{ ansible_eth1.ipv4.address }}' has a variable or a fact that is not known. This play",
        ),
        ([{"ip": Missing()}], r"ip of n1: \"{{ 'ansible_eth1' is undefined }}\" has a variable or a fact that"),
        ([{"ipv6_stack": "perhaps"}], r"ipv6_stack: 'perhaps' is not true or false"),
        ([{"ipv4_stack": False}], r"ipv4_stack and ipv6_stack are both false: one of them is needed"),
        (
            [{"kube_pods_subnet": "10.1.0.0/16"}, {}],
            r"kube_pods_subnet differs: '10.1.0.0/16' \(n1\), '10.233.64.0/18' \(n2\): give all nodes one value, in",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_variable(hosts: t.List[t.Any], message: str) -> None:
    with pytest.raises(AnsibleFilterError, match="kubenode.ip_masq.kubespray: " + message):
        derive(*hosts)


ENFORCE = {"ip_masq_agent_exemption": "enforce"}
#: Who lists ranges gets no remark about routes.
LISTED = {"ip_masq_agent_non_masquerade_cidrs": ["10.8.0.0/16"]}
#: With kube-proxy in its mode ipvs, kubespray's default, it needs the interfaces of pods. A $ is the end of the remark.
OR_ENFORCE = "or set ip_masq_agent_exemption: enforce and ip_masq_agent_except_interfaces: [%s]$"
IPVS = "kube_proxy_mode: ipvs, kubespray's default, needs the interfaces of pods left out of ip_masq_agent_exemption"


@pytest.mark.parametrize(
    "plugin, variables, remedy",
    [
        (
            "calico",
            {},
            "set nat_outgoing: false and run cluster.yml again (or one command, see docs/kubespray-live.md)",
        ),
        ("calico", {"nat_outgoing": False}, None),
        ("calico", {"nat_outgoing": False, "nat_outgoing_ipv6": True, "ipv6_stack": True}, "nat_outgoing_ipv6: false"),
        ("calico", {**ENFORCE, "kube_proxy_mode": "nftables"}, None),
        ("calico", {**ENFORCE, "kube_proxy_remove": True}, None),
        ("calico", {"kube_proxy_remove": "true"}, "or set ip_masq_agent_exemption: enforce$"),
        ("kube-router", {"kube_proxy_remove": True}, OR_ENFORCE % "kube-bridge"),
        ("calico", ENFORCE, IPVS + ": enforce: set ip_masq_agent_except_interfaces: [cali+]$"),
        ("calico", {**ENFORCE, "ip_masq_agent_except_interfaces": ["cali+"]}, None),
        ("calico", {**ENFORCE, "ip_masq_agent_out_interfaces": ["eth0"]}, None),
        ("calico", {}, OR_ENFORCE % "cali+"),
        ("calico", {"kube_proxy_mode": "nftables"}, "or set ip_masq_agent_exemption: enforce$"),
        ("kube-ovn", {}, OR_ENFORCE % "the interfaces of pods"),
        ("flannel", {}, "set ip_masq_agent_exemption: enforce and ip_masq_agent_except_interfaces: [cni0]$"),
        ("flannel", {"kube_proxy_mode": "iptables"}, "set ip_masq_agent_exemption: enforce"),
        ("flannel", {**ENFORCE, "kube_proxy_mode": "iptables"}, None),
        ("cilium", {}, "(cilium_enable_bpf_masquerade: true, cilium_ip_masq_agent_enable: true, cilium_"),
        ("cilium", {"ipv6_stack": True}, "ipv4_masquerade: false and cilium_enable_ipv6_masquerade: false"),
        ("cilium", {"cilium_enable_bpf_masquerade": True}, "own agent do it (cilium_ip_masq_agent_enable: true"),
        ("cilium", {"cilium_ip_masq_agent_enable": True}, "do not use this collection"),
        ("cilium", {"cilium_enable_ipv4_masquerade": False}, None),
        ("kube-router", {}, "add --enable-pod-egress=false to kube_router_extra_args"),
        ("kube-router", {"kube_router_extra_args": ["--enable-pod-egress=false"]}, None),
        ("kube-ovn", {}, "kubectl patch subnet ovn-default"),
        ("macvlan", {}, "set enable_nat_default_gateway: false"),
        ("macvlan", {"enable_nat_default_gateway": False}, None),
        ("custom_cni", {}, "custom_cni: whether it masquerades is not known here: run ip-masq-agent verify"),
    ],
)
def test_a_plugin_that_masquerades_is_named_with_the_variable_that_ends_it(
    plugin: str, variables: t.Dict[str, t.Any], remedy: t.Optional[str]
) -> None:
    remarks = derive(kube_network_plugin=plugin, **LISTED, **variables)["lines"][1:]
    assert len(remarks) == (remedy is not None), remarks
    assert remedy is None or (remedy in remarks[0] + "$" and remarks[0].startswith((plugin + ": ", IPVS)))


def test_interfaces_of_pods_may_differ_from_node_to_node_but_none_may_be_without() -> None:
    one = {**ENFORCE, "ip_masq_agent_out_interfaces": ["eth0"]}
    assert derive(one, {**ENFORCE, "ip_masq_agent_except_interfaces": ["cali+"]}, **LISTED)["lines"][1:] == []
    assert IPVS in derive(one, ENFORCE, **LISTED)["lines"][1]


BIRD = {"calico_network_backend": "bird", "calico_vxlan_mode": "Never"}
IPIP = {**BIRD, "calico_ipip_mode": "Always"}
VXLAN = "calico_network_backend: vxlan, calico_vxlan_mode: Always"
OFF = {"ipv4_stack": False, "ipv6_stack": True}
UNKNOWN = (
    "whether outside hosts in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 have a route to pods is not known here: if"
)


@pytest.mark.parametrize(
    "plugin, variables, because",
    [
        ("calico", {}, VXLAN),
        # Without BIRD nothing is announced.
        ("calico", {"peer_with_router": True}, VXLAN),
        ("calico", {**IPIP, "calico_network_backend": "none"}, "calico_network_backend: none, calico_ipip"),
        ("calico", {"calico_network_backend": "{{ x }}"}, "calico_network_backend: {{ x }}, calico_vxlan_mode: Always"),
        # Among nodes only.
        ("calico", BIRD, "calico_network_backend: bird, peer_with_router: not set"),
        ("calico", {**IPIP, "peer_with_router": "no"}, "calico_network_backend: bird, peer_with_router: no"),
        ("calico", {**BIRD, "peer_with_router": "{{ x }}"}, "calico_network_backend: bird, peer_with_router: {{ x }}"),
        ("calico", {**BIRD, "peer_with_router": True}, None),
        ("calico", {**IPIP, "peer_with_router": "yes"}, None),
        ("calico", LISTED, None),
        ("calico", {"ip_masq_agent_non_masquerade_cidrs": []}, None),
        # By default no range of IPv6 outside the cluster is exempt.
        ("calico", OFF, None),
        ("flannel", {}, "flannel_backend_type: vxlan"),
        ("cilium", {}, "cilium_tunnel_mode: vxlan"),
        (
            "cilium",
            {"cilium_tunnel_mode": "disabled", "cilium_auto_direct_node_routes": True},
            "cilium_auto_direct_node_routes: true",
        ),
        ("cilium", {"cilium_tunnel_mode": "disabled"}, None),
        ("cilium", {"cilium_enable_bgp_control_plane": "true"}, None),
        ("cilium", {"cilium_ip_masq_agent_enable": True}, None),
        ("kube-ovn", {}, "kube_ovn_network_type: geneve"),
        ("kube-ovn", {"kube_ovn_network_type": "vlan"}, None),
        ("kube-router", {}, "kube_router_peer_router_ips: not set"),
        ("kube-router", {"kube_router_peer_router_ips": "10.3.0.254"}, None),
        ("kube-router", {"kube_router_annotations_node": ["kube-router.io/peer.ips=10.3.0.254"]}, None),
        ("macvlan", {}, "enable_nat_default_gateway: true"),
        *((name, {}, UNKNOWN) for name in ("cni", "custom_cni", "none", "cloud", "weave", "canal")),
    ],
)  # fmt: skip
def test_who_has_a_route_to_pods(plugin: str, variables: t.Dict[str, t.Any], because: t.Optional[str]) -> None:
    """Without one, an outside network that is exempt, as RFC 1918 is by default, cannot answer."""
    lines = derive(kube_network_plugin=plugin, **variables)["lines"][1:]
    said = [line for line in lines if "a route to pods" in line]
    assert bool(said) == (because is not None), said
    if because:
        assert said == lines[:1], "what to do first stands first"
        known = "%s: only nodes have a route to pods (%s" % (plugin, because)
        assert said[0].startswith("%s: %s" % (plugin, UNKNOWN) if because is UNKNOWN else known)
        assert "in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16" in said[0]
        assert "set ip_masq_agent_non_masquerade_cidrs to the networks of the cluster and of hosts" in said[0]


ALL, BIT = "kube_proxy_masquerade_all: true: ", "kube_proxy_masquerade_bit: 17: ip_masq_agent_exemption: accept and"
MULTUS, MORE = "kube_network_plugin_multus: true: ", "cilium_deploy_additionally: Cilium masquerades pods itself."
EBPF = "calico: with calico_bpf_enabled: true, "
CHANGED = {"kube_proxy_masquerade_all": True, "kube_proxy_masquerade_bit": 17}


@pytest.mark.parametrize(
    "variables, starts",
    [
        ({}, []),
        ({"kube_proxy_masquerade_all": False, "kube_proxy_masquerade_bit": "14"}, []),
        ({"kube_proxy_masquerade_all": "{{ kube_network_plugin == 'macvlan' }}"}, []),
        (CHANGED, [ALL, BIT]),
        ({"kube_proxy_masquerade_all": "yes", "kube_proxy_masquerade_bit": "17"}, [ALL, BIT]),
        # Without kube-proxy neither matters, and IPVS is not there.
        ({**CHANGED, **ENFORCE, "kube_proxy_remove": True}, []),
        ({**CHANGED, **ENFORCE, "calico_bpf_enabled": "True"}, [EBPF]),
        ({**CHANGED, **ENFORCE, "cilium_kube_proxy_replacement": True}, [IPVS, ALL, BIT]),
        ({**CHANGED, **ENFORCE, "kube_network_plugin": "cilium", "cilium_kube_proxy_replacement": "strict"}, []),
        ({**ENFORCE, "kube_network_plugin": "cilium", "cilium_kube_proxy_replacement": "disabled"}, [IPVS]),
        (
            {**CHANGED, **ENFORCE, "kube_network_plugin": "kube-router", "kube_router_run_service_proxy": True,
             "kube_proxy_mode": "nftables"},
            ["kube_router_run_service_proxy: true needs the interfaces of pods left out of ip_masq_agent_exemption"],
        ),
        ({"kube_network_plugin_multus": True}, [MULTUS]),
        ({"kube_network_plugin_multus": True, "ip_masq_agent_source_cidrs": []}, []),
        ({"cilium_deploy_additionally": True}, [MORE]),
        ({"kube_network_plugin": "cilium", "cilium_deploy_additionally": True}, []),
    ],
)  # fmt: skip
def test_what_else_concerns_source_addresses_is_named(variables: t.Dict[str, t.Any], starts: t.List[str]) -> None:
    quiet = {"nat_outgoing": False, **LISTED}
    if variables.get("kube_network_plugin") == "cilium":
        quiet["cilium_enable_ipv4_masquerade"] = False
    lines = derive(**quiet, **variables)["lines"][1:]
    assert len(lines) == len(starts) and all(map(str.startswith, lines, starts)), lines
