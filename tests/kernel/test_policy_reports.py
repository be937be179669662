# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources, fixed addresses and entries in what people read: diff of check mode, status, explain."""

from __future__ import annotations

import typing as t
from pathlib import Path

from support.agent_node import AgentNode
from support.modules import apply, run_module
from support.topology import ADDRESSES, Topology
from support.variants import NFTABLES, Variant, snapshot

FIXED = {"ipv4": "198.51.100.7", "ipv6": "2001:db8:1::7"}
PODS = {"ipv4": "10.244.0.0/16", "ipv6": "fd00:10:244::/48"}
EXEMPT = ["10.0.0.0/8", "172.16.0.0/12", "fc00::/7"]
#: Options of the module, whose names are understood in a config file as well.
RULES = [
    {"action": "exempt", "destinations": ["203.0.113.10/32", "2001:db8:99::1/128"], "ports": ["9090"]},
    {"action": "masquerade", "destinations": ["172.20.0.0/16", "fc00:77::/32"]},
]
SNAT = [{"address": address, "out_interface": "eth0"} for address in FIXED.values()]

#: Of a diff, what it must show of the sources, the entries and the fixed address in each family.
SHOWN = {
    "nftables": (
        "set source_ranges {", "%(pods)s,", "set rule_1_destinations {", "set rule_1_tcp_ports {", "9090,",
        "set rule_2_destinations {", '"eth0" counter snat to %(fixed)s ', "saddr != @source_ranges counter return",
    ),
    "iptables": (
        "-s %(pods)s -d ", "--dport 9090 ", "-s %(pods)s -o eth0 ", "-j SNAT --to-source %(fixed)s ",
        "-s %(pods)s -m comment",
    ),
}  # fmt: skip


def add_fixed(topology: Topology) -> None:
    """Add the fixed addresses to the node, without preferring them."""
    for address, length in zip(FIXED.values(), (24, 64)):
        topology.node.run("ip", "address", "add", "%s/%d" % (address, length), "dev", "eth0", "preferred_lft", "0")


def needles(variant: Variant) -> t.List[str]:
    """What a diff must show."""
    texts = SHOWN["nftables" if variant is NFTABLES else "iptables"]
    return [text % {"pods": PODS[family], "fixed": FIXED[family]} for text in texts for family in FIXED]


def test_check_mode_shows_what_is_new_and_changes_nothing(topology: Topology, variant: Variant) -> None:
    add_fixed(topology)
    old = {"backend": variant.backend, "enable_ipv6": True, "non_masquerade_cidrs": EXEMPT}
    new = dict(old, source_cidrs=list(PODS.values()), rules=RULES, snat=SNAT)
    apply(topology.node, **old)
    for after, there, missing in ((new, "after", "before"), (old, "before", "after")):
        held = snapshot(topology.node)
        predicted = run_module(topology.node, check=True, diff=True, **after)
        assert predicted["changed"] and snapshot(topology.node) == held
        # What changes for packets is on the side of after, and has words for both.
        diff = {side: text.partition("# what changes for packets\n")[0] for side, text in predicted["diff"].items()}
        assert [text for text in needles(variant) if text not in diff[there] or text in diff[missing]] == []
        actions = " ".join(action["rule"] for action in predicted["actions"])
        assert FIXED["ipv4"] in actions and FIXED["ipv6"] in actions and "9090" in actions
        done = apply(topology.node, diff=True, **after)
        assert [name for name in ("diff", "actions", "families") if predicted[name] != done[name]] == []
        again = run_module(topology.node, diff=True, **after)
        assert (again["changed"], again["actions"]) == (False, [])
        assert again["diff"]["before"] == again["diff"]["after"]


def test_status_and_explain_name_what_decides(topology: Topology, variant: Variant, tmp_path: Path) -> None:
    add_fixed(topology)
    node = AgentNode(topology.node, tmp_path)
    node.synced(
        backend=variant.backend,
        enableIPv6=True,
        nonMasqueradeCIDRs=EXEMPT,
        sourceCIDRs=list(PODS.values()),
        rules=RULES,
        snat=SNAT,
    )
    # A title takes 13 columns.
    rows = {line[:13].strip(): line[13:] for line in node.command("status").stdout.splitlines()}
    assert rows["sources"] == "10.244.0.0/16, fd00:10:244::/48"
    assert rows["snat"] == "198.51.100.7 by eth0, 2001:db8:1::7 by eth0"
    assert rows["policy rules"].startswith("exempt to 203.0.113.10/32, 2001:db8:99::1/128 of tcp/9090, ")
    assert rows["policy rules"].endswith(", masquerade to 172.20.0.0/16, fc00:77::/32")
    for family, a in ADDRESSES.items():
        fixed, client = FIXED[family], {"ipv4": "10.9.9.9", "ipv6": "fd00:9::9"}[family]
        native = variant is NFTABLES
        to_fixed = "snat to " + fixed if native else "-j SNAT --to-source " + fixed
        entries = ("rules, entry 1", "rules, entry 2") if native else ("--dport 9090", "-d %s" % wide(a.exempt[1]))
        for_pods = "snat, entry" if native else "-s %s" % PODS[family]
        for source, destination, port, seen, declared, decided in (
            (a.pod, a.outside[0], "9090", a.pod, "the pod's own", [entries[0]]),
            (a.pod, a.exempt[1], "80", fixed, "the address " + fixed, [entries[1], to_fixed]),
            (a.pod, a.outside[0], "80", fixed, "the address " + fixed, [for_pods, to_fixed]),
            (
                client,
                a.outside[0],
                "80",
                client,
                "nothing: this connection is outside the policy's scope",
                ["@source_ranges"] * native,
            ),
        ):
            said = node.command("explain", destination, "--source", source, "--port", port).stdout
            first, second, *more = said.splitlines()
            assert "(%s), for tcp/%s from %s" % (seen, port, source) in first, said
            assert second.startswith("policy: " + declared), said
            rule = " ".join(line for line in more if line.startswith("decided by: ip-masq-agent"))
            assert [text for text in decided if text not in rule] == [], said


def wide(address: str) -> str:
    """The range of RULES that holds an exempt destination."""
    return "fc00:77::/32" if ":" in address else "172.20.0.0/16"
