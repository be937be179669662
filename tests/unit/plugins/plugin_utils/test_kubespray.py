# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubespray's variables come to."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.kubenode.ip_masq.plugins.filter.kubespray import FilterModule
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._kubespray import DEFAULTS
from support.kubespray import SEEN

RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
PODS6, SERVICES6 = "fd85:ee78:d8a6:8607::1:0/112", "fd85:ee78:d8a6:8607::1000/116"


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
        "kubespray: pods 10.233.64.0/18; services 10.233.0.0/18; nodes not in the inventory; IPv6 off"
    )


def test_defaults_are_those_that_were_read_in_kubespray() -> None:
    """``ipv6_stack`` is a template of its older name there; the networks of both families are made of those of each."""
    templates = {"ipv6_stack": "enable_dual_stack_networks"}
    made = {"kube_pods_subnets", "kube_service_subnets"}
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


def test_addresses_of_nodes_are_those_of_the_inventory() -> None:
    one = {"ip": "10.3.0.1", "access_ip": "203.0.113.4", "ip6": "2001:db8::1", "main_ip": "198.51.100.1"}
    two = {"ip": "10.3.0.2", "access_ip": "203.0.113.4", "access_ip6": "2001:db8::2"}
    assert derive(one, two)["nodes"] == ["10.3.0.1/32", "203.0.113.4/32", "10.3.0.2/32"]
    both = derive(one, two, ipv6_stack=True)
    assert both["nodes"][2:] == ["2001:db8::1/128", "10.3.0.2/32", "2001:db8::2/128"]
    assert "2001:db8::1/128" in both["exempt"]


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
        ("calico", {"nat_outgoing": "false", "nat_outgoing_ipv6": True}, None),
        ("calico", {"nat_outgoing": False, "nat_outgoing_ipv6": True, "ipv6_stack": True}, "nat_outgoing_ipv6: false"),
        ("calico", {**ENFORCE, "kube_proxy_mode": "nftables"}, None),
        ("calico", {**ENFORCE, "kube_proxy_remove": True}, None),
        ("calico", {"kube_proxy_remove": "true"}, "or set ip_masq_agent_exemption: enforce$"),
        ("calico", {"kube_proxy_remove": "false"}, OR_ENFORCE % "cali+"),
        ("kube-router", {"kube_proxy_remove": True}, OR_ENFORCE % "kube-bridge"),
        ("calico", ENFORCE, IPVS + ": enforce: set ip_masq_agent_except_interfaces: [cali+]$"),
        ("calico", {**ENFORCE, "ip_masq_agent_except_interfaces": ["cali+"]}, None),
        ("calico", {**ENFORCE, "ip_masq_agent_out_interfaces": ["eth0"]}, None),
        ("calico", {}, OR_ENFORCE % "cali+"),
        ("calico", {"kube_proxy_mode": "nftables"}, "or set ip_masq_agent_exemption: enforce$"),
        ("kube-router", {}, OR_ENFORCE % "kube-bridge"),
        ("kube-ovn", {}, OR_ENFORCE % "the interfaces of pods"),
        ("kube-ovn", {"kube_proxy_mode": "iptables"}, "or set ip_masq_agent_exemption: enforce$"),
        ("macvlan", {}, OR_ENFORCE % "the interfaces of pods"),
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
    remarks = derive(kube_network_plugin=plugin, **variables)["lines"][1:]
    assert len(remarks) == (remedy is not None), remarks
    assert remedy is None or (remedy in remarks[0] + "$" and remarks[0].startswith((plugin + ": ", IPVS)))


def test_interfaces_of_pods_may_differ_from_node_to_node_but_none_may_be_without() -> None:
    one = {**ENFORCE, "ip_masq_agent_out_interfaces": ["eth0"]}
    assert derive(one, {**ENFORCE, "ip_masq_agent_except_interfaces": ["cali+"]})["lines"][1:] == []
    assert IPVS in derive(one, ENFORCE)["lines"][1]
