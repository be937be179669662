# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module ip_masq_info on real rules: what it says of packets is what the other side of the node sees."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from support import cni_results, modules
from support.agent_node import reference_agent
from support.modules import Result, apply, info
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology
from support.variants import EXEMPT_RANGES, VARIANTS

_V4, _V6 = ADDRESSES["ipv4"], ADDRESSES["ipv6"]
_POLICY = {"non_masquerade_cidrs": EXEMPT_RANGES, "enable_ipv6": True}
_CALICO = (
    ":cali-nat-outgoing -",
    "-A POSTROUTING -j cali-nat-outgoing",
    "-A cali-nat-outgoing -s 10.244.1.0/24 -d 10.0.0.0/8 -j MASQUERADE",
)
_WITHOUT_NAMESPACES = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")


def _codes(result: Result) -> t.Set[str]:
    return {one["code"] for one in result["health"]}


def _listing(ns: Namespace) -> t.List[str]:
    """All rules with their counters."""
    text = ns.run("nft", "list", "ruleset") + ns.run("iptables-legacy-save") + ns.run("ip6tables-legacy-save")
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("backend", ("iptables_nft", "iptables_legacy", "nftables"))
def test_node_that_keeps_its_policy(topology: Topology, backend: str) -> None:
    node = topology.node
    apply(node, backend=backend, **_POLICY)
    before = _listing(node)
    asked = [*_V4.exempt, *_V4.outside, *_V6.exempt, *_V6.outside]
    result = info(node, backend=backend, destinations=asked, port=8080, verify=True, **_POLICY)
    assert _listing(node) == before
    assert not result.get("failed"), result["msg"]
    assert (result["changed"], result["in_sync"], result["policy"]["origin"]) == (False, True, "options")
    assert result["backend"]["name"] == backend and set(result["families"]) == {"ipv4", "ipv6"}
    assert result["conflicts"] == [] and result["questions"] > 10
    assert not _codes(result) & {"conflict", "out_of_sync", "no_copy", "incomplete"}
    for one in result["explanations"]:
        a = _V6 if ":" in one["destination"] else _V4
        declared = "pod" if one["destination"] in a.exempt else "node"
        assert (one["outcome"], one["policy"], one["seen"], one["agrees"]) == ("sent", declared, declared, True)
        assert one["decided_by"]["backend"] == backend and one["remedy"] is None and one["interface"] == "eth0"
        # And so it is.
        real = topology.ask(one["destination"])[one["destination"]]
        assert one["seen_address"] == (one["source"] if real == a.pod else real)


def test_conflict_names_the_program_and_the_remedy(topology: Topology) -> None:
    node = topology.node
    apply(node, backend="iptables_nft")
    VARIANTS["iptables_nft"].load(node, "ipv4", *_CALICO)
    exempt, outside = _V4.exempt[0], _V4.outside[0]
    result = info(node, destinations=[exempt, outside], source=_V4.pod, verify=True)
    assert topology.ask(exempt) == {exempt: _V4.node}
    assert result["policy"] == {
        "origin": "active rules",
        "exempt": {"ipv4": ["169.254.0.0/16", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]},
    }
    assert result["in_sync"] is None and "conflict" in _codes(result)
    bad, good = result["explanations"]
    assert (bad["policy"], bad["seen"], bad["seen_address"], bad["agrees"]) == ("pod", "node", _V4.node, False)
    assert bad["decided_by"]["owner"] == "Calico" and bad["decided_by"]["chain"] == "cali-nat-outgoing"
    assert "natOutgoing" in bad["remedy"]
    assert good["agrees"] is True and good["remedy"] is None
    assert {one["owner"] for one in result["conflicts"]} == {"Calico"}
    assert all(one["range"].startswith("10.") and one["severity"] == "error" for one in result["conflicts"])


def test_node_without_rules(topology: Topology) -> None:
    node = topology.node
    result = info(node, destinations=[_V4.outside[0]])
    assert result["policy"]["origin"] == "none" and _codes(result) == {"not_configured"}
    (one,) = result["explanations"]
    assert (one["outcome"], one["policy"], one["seen"], one["agrees"]) == ("sent", None, "pod", None)
    result = info(node, non_masquerade_cidrs=["10.0.0.0/8"], destinations=[_V4.outside[0]], verify=True)
    assert result["in_sync"] is False and {"out_of_sync", "conflict", "ipv6_not_managed"} <= _codes(result)
    (one,) = result["explanations"]
    assert (one["policy"], one["seen"], one["agrees"]) == ("node", "pod", False) and "sync" in one["remedy"]
    assert {(one["owner"], one["seen"]) for one in result["conflicts"]} == {("none", "pod")}
    assert node.run("nft", "list", "ruleset") == ""


def test_kube_proxy_does_not_hide_a_missing_rule(topology: Topology) -> None:
    """Its chain lets everything pass that has no mark, and so has the last word about a packet of a pod."""
    VARIANTS["iptables_nft"].load(
        topology.node,
        "ipv4",
        ":KUBE-POSTROUTING -",
        "-A POSTROUTING -j KUBE-POSTROUTING",
        "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
    )
    result = info(topology.node, non_masquerade_cidrs=["10.0.0.0/8"], verify=True)
    assert {(one["policy"], one["seen"], one["owner"]) for one in result["conflicts"]} == {("node", "pod", "none")}


def test_without_a_policy_it_says_what_it_looked_at(topology: Topology) -> None:
    node = topology.node
    place = "in iptables_nft with masq_chain IP-MASQ-AGENT"
    (finding,) = info(node, backend="iptables_nft")["health"]
    assert finding["text"] == "no policy is given, and there are no active rules " + place
    apply(node, backend="iptables_nft", **_POLICY)
    for family in ("iptables", "ip6tables"):
        node.run(family + "-nft", *"-t nat -I IP-MASQ-AGENT -m length --length 99 -j RETURN".split())
    result = info(node, backend="iptables_nft", destinations=[_V4.outside[0]])
    assert (result["policy"]["origin"], result["verified"]) == ("none", None)
    assert result["explanations"][0]["decided_by"]["owner"] == "ip-masq-agent"
    (finding,) = result["health"]
    assert finding["code"] == "not_configured"
    assert finding["text"] == "no policy is given, and the active rules %s are not of this agent's form" % place
    result = info(node, backend="iptables_nft", masq_chain="OTHER", destinations=[_V4.outside[0]])
    assert result["explanations"][0]["decided_by"]["owner"] == "ip-masq-agent"
    (finding,) = result["health"]
    assert finding["text"] == "no policy is given, and there are no active rules in iptables_nft with masq_chain OTHER"


def test_an_agent_of_another_network_namespace_is_not_this_nodes(ns: Namespace) -> None:
    with Namespace() as container:
        for place, told in ((container, []), (ns, ["other_agent"])):
            with reference_agent(place):
                # As the agent's service, which may not look at the namespaces of a process with more capabilities.
                limited = ("setpriv", "--bounding-set", "-all,+net_admin,+net_raw,+dac_override", "--inh-caps", "-all")
                for wrapper in ((), limited):
                    result = modules.run_weak(ns, wrapper, "ip_masq_info", **_POLICY)
                    assert [one["code"] for one in result["health"] if one["code"] == "other_agent"] == told, wrapper


def test_rule_that_kubenet_left(ns: Namespace) -> None:
    rule = (
        '-A POSTROUTING ! -d 10.0.0.0/8 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" '
        "-m addrtype ! --dst-type LOCAL -j MASQUERADE"
    )
    assert "kubenet_leftover" not in _codes(info(ns, **_POLICY))
    VARIANTS["iptables_nft"].load(ns, "ipv4", rule)
    (found,) = [one for one in info(ns, **_POLICY)["health"] if one["code"] == "kubenet_leftover"]
    assert found["severity"] == "warning" and "kubenet: SNAT for outbound traffic" in found["text"]
    assert "kubelet_masquerade" in found["remedy"]


def test_without_namespaces(topology: Topology) -> None:
    apply(topology.node)
    options = {"destinations": [_V4.exempt[0]], "source": _V4.pod, "verify": True}
    result = modules.run_weak(topology.node, _WITHOUT_NAMESPACES, "ip_masq_info", **options)
    (text,) = (one["text"] for one in result["health"] if one["code"] == "no_copy")
    assert "cannot make namespaces" in text and "CAP_SYS_ADMIN" in text and result["questions"] == 0
    (one,) = result["explanations"]
    assert (one["outcome"], one["policy"], one["seen"], one["agrees"]) == ("not tested", "pod", None, None)


def test_names_of_pods(topology: Topology) -> None:
    """They are beside addresses where libcni's results have them, and nothing else differs."""
    node = topology.node
    node.run("mount", "-t", "tmpfs", "none", "/var/lib")
    node.run(
        "iptables-nft-restore",
        "--noflush",
        stdin="*nat\n%s\nCOMMIT\n" % "\n".join(_CALICO).replace("-s 10.244.1.0/24", "-s %s/32" % _V4.pod),
    )
    apply(node, **_POLICY)
    asked = {"destinations": [_V4.exempt[0]], "source": _V4.pod, "verify": True}
    without = info(node, **asked, **_POLICY)
    assert not any("pod" in one for one in without["explanations"])
    assert without["conflicts"] and not any("pods" in one for one in without["conflicts"])
    assert {tuple(one["sources"]) for one in without["conflicts"]} == {(_V4.pod + "/32",)}
    node.inside(cni_results.write, Path("/var/lib/cni/results"), "default/web-0", _V4.pod)
    found = info(node, **asked, **_POLICY)
    assert found["explanations"] == [dict(one, pod="default/web-0") for one in without["explanations"]]
    assert found["conflicts"] == [dict(one, pods={_V4.pod + "/32": "default/web-0"}) for one in without["conflicts"]]


def test_name_of_the_pod_that_an_effect_concerns(topology: Topology) -> None:
    node = topology.node
    node.run("mount", "-t", "tmpfs", "none", "/var/lib")
    node.inside(cni_results.write, Path("/var/lib/cni/results"), "default/web-0", _V4.pod)
    apply(node)
    changed = apply(node, rules=[{"sources": [_V4.pod + "/32"], "action": "exempt"}], check=True)
    (effect,) = changed["effects"]
    assert effect["pods"] == {_V4.pod + "/32": "default/web-0"}
    assert " from %s/32 (default/web-0): node -> pod" % _V4.pod in changed["effects_summary"][0]


def test_a_broadcast_of_the_node_leaves(topology: Topology) -> None:
    """A server of DHCP sends them; a pod's reach the node alone."""
    node = topology.node
    apply(node, backend="iptables_nft", **_POLICY)
    for destination, seen in (("255.255.255.255", "node"), ("198.51.100.255", "node"), ("10.244.1.255", "own")):
        asked = {"destinations": [destination], "protocol": "udp", "port": 68, **_POLICY}
        (sent,) = info(node, source=_V4.node, **asked)["explanations"]
        assert (sent["outcome"], sent["seen"], sent["seen_address"]) == ("sent", seen, _V4.node)
        assert sent["agrees"] and sent["decided_by"]["chain"] == "IP-MASQ-AGENT"
        (heard,) = info(node, source=_V4.pod, **asked)["explanations"]
        assert (heard["outcome"], heard["not_understood"]) == ("delivered", [])
