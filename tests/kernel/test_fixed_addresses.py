# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixed addresses that the node does not have: refused when the policy is new, survived when they go away later."""

from __future__ import annotations

import socket
import typing as t
from pathlib import Path

import pytest
from support import leak_packets
from support.agent_node import AgentNode
from support.modules import apply, refused, run_module
from support.namespaces import Namespace
from support.prometheus import parse
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, Variant, pristine, snapshot

IN_SYNC, CONFIG_BROKEN = 0, 78
FIXED = {"ipv4": "198.51.100.7", "ipv6": "2001:db8:1::7"}


def address(ns: Namespace, verb: str, family: str = "ipv4") -> None:
    """Add the fixed address to the node, or delete it."""
    length = {"ipv4": 24, "ipv6": 64}[family]
    more = ["preferred_lft", "0"] if verb == "add" else []
    ns.run("ip", "address", verb, "%s/%d" % (FIXED[family], length), "dev", "eth0", *more)


def addresses(ns: Namespace, verb: str) -> None:
    """Do so in both families."""
    for family in FIXED:
        address(ns, verb, family)


@pytest.mark.parametrize("check", [False, True])
def test_an_address_that_is_not_on_the_node_is_refused_before_anything_is_touched(
    topology: Topology, variant: Variant, check: bool
) -> None:
    before = snapshot(topology.node)
    for option, entry in (
        ("snat", {"address": FIXED["ipv4"]}),
        ("rules", {"action": "snat", "address": FIXED["ipv4"]}),
    ):
        message = run_module(topology.node, check=check, backend=variant.backend, **{option: [entry]})["msg"]
        assert message.startswith("%s: entry 1: 198.51.100.7 is not an address of this node, which has " % option)
        assert "198.51.100.1" in message and "10.244.1.1" in message
        assert "ip address add 198.51.100.7/32 dev INTERFACE" in message
    assert snapshot(topology.node) == before and pristine(before)


def test_a_node_is_not_cut_off_by_a_missing_address(topology: Topology, variant: Variant) -> None:
    """Halves of all sources are all sources too, in one entry or in two."""
    address(topology.node, "add")
    before = snapshot(topology.node)
    halves = ["0.0.0.0/1", "128.0.0.0/1"]
    for entries in ([halves], [[one] for one in halves]):
        snat = [{"address": FIXED["ipv4"], "source_cidrs": one} for one in entries]
        rules = [{"action": "snat", "address": FIXED["ipv4"], "sources": one} for one in entries]
        for option, listed in (("snat", snat), ("rules", rules)):
            given = {"backend": variant.backend, "snat_missing": "drop", option: listed}
            message = refused(topology.node, **given)
            assert message.startswith("%s: entry %d: snat_missing is drop" % (option, len(listed)))
            assert "about all sources, so the node itself would be cut off" in message
    assert snapshot(topology.node) == before


def test_one_address_of_a_range_is_enough_to_refuse_it(topology: Topology) -> None:
    address(topology.node, "add")
    assert "198.51.100.8 is not an address" in refused(topology.node, snat=[{"address": "198.51.100.7-198.51.100.8"}])


def test_a_policy_is_removed_whatever_addresses_the_node_has(topology: Topology) -> None:
    address(topology.node, "add")
    apply(topology.node, snat=[{"address": FIXED["ipv4"]}])
    address(topology.node, "delete")
    assert apply(topology.node, state="absent", snat=[{"address": FIXED["ipv4"]}])["changed"]


@pytest.fixture
def node(topology: Topology, tmp_path: Path) -> AgentNode:
    """A node with the agent, between a pod and the outside."""
    return AgentNode(topology.node, tmp_path, metrics=True)


def missing(node: AgentNode) -> float:
    """What the metric says."""
    text = (node.metrics_dir / "ip_masq_agent.prom").read_text()
    return parse(text).values["ip_masq_agent_missing_addresses", ()]


def seen(topology: Topology) -> t.List[str]:
    """Whom destinations outside see, by family."""
    found = []
    for family, a in ADDRESSES.items():
        names = {a.pod: "pod", a.node: "node", FIXED[family]: "fixed"}
        found.append(names[topology.ask(a.outside[0])[a.outside[0]]])
    return found


def test_the_last_valid_policy_stays_until_the_address_is_there(
    topology: Topology, node: AgentNode, variant: Variant
) -> None:
    node.synced(backend=variant.backend, enableIPv6=True)
    node.configure(backend=variant.backend, enableIPv6=True, snat=[{"address": one} for one in FIXED.values()])
    address(topology.node, "add")
    done = node.sync()
    assert done.returncode == CONFIG_BROKEN
    assert "snat: entry 2: 2001:db8:1::7 is not an address of this node" in done.stderr
    assert "the last valid configuration stays active" in done.stderr
    assert seen(topology) == ["node", "node"]
    status = node.status()
    assert status["in_sync"] and "2001:db8:1::7" in status["config"]["problem"]
    address(topology.node, "add", "ipv6")
    assert node.sync().returncode == IN_SYNC
    assert seen(topology) == ["fixed", "fixed"]
    status = node.status()
    assert status["config"]["problem"] is None
    assert status["previous_config"] == {"backend": variant.backend, "enableIPv6": True}


def connects(client: Namespace, destination: str, patience: float = 20.0) -> str:
    """The source address that a destination sees; empty if there is no answer."""

    def connect() -> str:
        try:
            with socket.create_connection((destination, 8080), patience) as sock:
                return sock.recv(64).decode()
        except TimeoutError:
            return ""

    return client.inside(connect)


@pytest.mark.parametrize(
    ("variant", "leaks"),
    [
        *(("nftables", leaks) for leaks in ("ignore", "count", "drop")),
        ("iptables_nft", "ignore"),
        ("iptables_nft", "drop"),
        ("iptables_legacy", "count"),
    ],
    indirect=["variant"],
)
def test_with_drop_no_other_address_is_seen_while_one_is_missing(
    topology: Topology, node: AgentNode, variant: Variant, leaks: str
) -> None:
    pods = {family: a.pods for family, a in ADDRESSES.items()}
    # A connection between two of these is new all the same.
    others = ["203.0.113.0/24", "2001:db8:99::/48"] if leaks == "count" else []
    mac = topology.node.run("cat", "/sys/class/net/pods/address").strip()
    addresses(topology.node, "add")
    node.synced(
        backend=variant.backend,
        enableIPv6=True,
        nonMasqueradeCIDRs=["10.0.0.0/8", "fc00::/7"],
        sourceCIDRs=[*pods.values(), *others],
        snat=[{"address": FIXED["ipv4"], "sourceCIDRs": [pods["ipv4"]]}],
        rules=[
            {"action": "exempt", "destinations": [ADDRESSES["ipv4"].outside[1] + "/32"]},
            {"action": "masquerade", "protocols": ["udp"], "sources": [pods["ipv6"]]},
            {"action": "snat", "address": FIXED["ipv6"], "destinations": ["2001:db8::/32"], "sources": [pods["ipv6"]]},
        ],
        snatMissing="drop",
        leaks=leaks,
    )
    assert seen(topology) == ["fixed", "fixed"]
    before = snapshot(topology.node)
    addresses(topology.node, "delete")
    done = node.sync()
    assert done.returncode == IN_SYNC and done.stderr.count("are dropped until it is back") == 2 == missing(node)
    assert node.status()["in_sync"]
    for a in ADDRESSES.values():
        assert connects(topology.pod, a.outside[0], 1.5) == ""
        new = [one for one in leak_packets.strays(a.pod, a.outside[0]) if one.name in ("TCP SYN", "TCP ACK")]
        new += leak_packets.untracked(a.pod, a.outside[0], 99) if ":" not in a.pod and not others else []
        assert leak_packets.seen(topology.pod, mac, topology.outside, new, (a.pod, a.exempt[0])) == {}
        assert connects(topology.pod, a.exempt[0]) == a.pod
        assert connects(topology.node, a.outside[0]) == a.node
    assert connects(topology.pod, ADDRESSES["ipv4"].outside[1]) == ADDRESSES["ipv4"].pod
    six = ADDRESSES["ipv6"]
    assert topology.ask(six.outside[0], protocol="udp") == {six.outside[0]: six.node}
    assert node.sync().stdout == ""
    addresses(topology.node, "add")
    assert node.resync() == ["resync"]
    assert (seen(topology), missing(node)) == (["fixed", "fixed"], 0)
    assert {name for name, text in before.items() if text} == {
        name for name, text in snapshot(topology.node).items() if text
    }
    status = node.status()
    assert not [note for note in status["notes"] if "not an address" in note]
    assert status["missing_addresses"] == [] and "lacks" not in status["verdict"]


#: As kube-proxy has it in front of our jump.
_KUBE_PROXY = (
    ":KUBE-POSTROUTING -",
    "-I POSTROUTING -j KUBE-POSTROUTING",
    "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
    "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
)
_MARKS = """table ip marks {
chain c {
type filter hook forward priority -150
ip daddr %s meta mark set 0x4000
ip daddr %s meta mark set 0x200
}
}
"""


@pytest.mark.parametrize(
    ("variant", "exemption", "leaks"),
    [
        ("iptables_nft", "return", "ignore"),
        ("iptables_nft", "accept", "count"),
        ("iptables_legacy", "return", "count"),
        ("iptables_legacy", "accept", "ignore"),
        ("nftables", "return", "ignore"),
        ("nftables", "accept", "count"),
    ],
    indirect=["variant"],
)
def test_with_drop_it_does_not_matter_who_else_would_masquerade(
    topology: Topology, node: AgentNode, variant: Variant, exemption: str, leaks: str
) -> None:
    """Also packets with kube-proxy's mark, and the node's own if the entry is about them; a skipped mark passes."""
    a = ADDRESSES["ipv4"]
    plain, (marked, skipped) = a.outside[0], (a.outside[1], a.exempt[1])
    topology.node.run("nft", "-f", "-", stdin=_MARKS % (marked, skipped))
    # With nftables our chain decides first, since it comes later to the same place.
    variant.host.load(topology.node, "ipv4", *_KUBE_PROXY)
    address(topology.node, "add")
    sources = [a.pods, "198.51.100.0/24"]
    policy = {
        "backend": variant.backend,
        "exemption": exemption,
        "leaks": leaks,
        "nonMasqueradeCIDRs": [a.exempt[0] + "/32"],
        "sourceCIDRs": sources,
        "skipMarks": ["0x200/0xf00"],
        "snat": [{"address": FIXED["ipv4"], "sourceCIDRs": sources}],
    }
    node.synced(snatMissing="drop", **policy)
    address(topology.node, "delete")
    told = node.command("sync", "--dry-run").stdout
    assert "/24: %s -> dropped, 0 open connections" % FIXED["ipv4"] in told
    # Where marks count for nothing, these packets are among the others.
    left = exemption == "accept" and variant.backend != "nftables"
    assert ("packets with mark 0x2000/0x2000, 0x4000/0x4000 except 0x200/0xf00: not managed -> dropped" in told) == left
    assert node.sync().returncode == IN_SYNC
    assert node.sync().stdout == "" and node.status()["in_sync"]
    for sender, destination in ((topology.pod, plain), (topology.pod, marked), (topology.node, plain)):
        assert connects(sender, destination, 1.0) == "", (sender, destination)
    assert connects(topology.pod, skipped) == connects(topology.pod, a.exempt[0]) == a.pod


@pytest.mark.parametrize(
    ("variant", "kept"),
    [(backend, "masquerade") for backend in BACKENDS] + [("nftables", "keep")],
    indirect=["variant"],
)
def test_an_address_that_goes_away_later(topology: Topology, node: AgentNode, variant: Variant, kept: str) -> None:
    addresses(topology.node, "add")
    rules = [{"action": "snat", "address": FIXED["ipv6"], "protocols": ["tcp"]}]
    snat = [{"address": FIXED["ipv4"]}]
    node.synced(backend=variant.backend, enableIPv6=True, snat=snat, rules=rules, snatMissing=kept)
    assert (seen(topology), missing(node)) == (["fixed", "fixed"], 0)
    addresses(topology.node, "delete")
    done = node.sync()
    assert done.returncode == IN_SYNC
    notes = [line for line in done.stderr.splitlines() if "is not an address of this node" in line]
    assert len(notes) == 2 and ("snat_missing is keep" in notes[0]) == (kept == "keep")
    assert missing(node) == 2
    status = node.status()
    assert status["in_sync"] and len([note for note in status["notes"] if "not an address" in note]) == 2
    assert sorted(status["missing_addresses"]) == sorted(FIXED.values())
    assert " and 1 more (snat_missing is %s): add " % kept in status["verdict"], status["verdict"]
    if kept == "masquerade":
        assert seen(topology) == ["node", "node"]
    else:
        assert done.stdout == ""
    # What was said once is not repeated.
    assert node.sync().stderr == ""
    addresses(topology.node, "add")
    assert node.resync() == ["resync"]
    assert (seen(topology), missing(node)) == (["fixed", "fixed"], 0)
    assert not [note for note in node.status()["notes"] if "not an address" in note]
