# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option leaks: what the world outside sees of packets that have no connection, with real packets.

``IP_MASQ_LEAK_FLIPS`` says how often the policy changes while connections are opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import typing as t
from pathlib import Path

import pytest
from support import leak_packets
from support.agent_node import AgentNode
from support.flood import Flood
from support.leak_packets import Stray
from support.marks import halved
from support.modules import apply, run_module, run_modules
from support.namespaces import Namespace
from support.programs import Programs, is_restore
from support.prometheus import parse
from support.topology import ADDRESSES, Addresses, Topology
from support.variants import NFT_FAMILIES, VARIANTS, Nftables, Variant, snapshot

FLIPS = int(os.environ.get("IP_MASQ_LEAK_FLIPS", "9"))
PODS = ["10.244.0.0/16", "fd00:10:244::/48"]
EXEMPT = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]
POLICY: t.Dict[str, t.Any] = {"enable_ipv6": True, "non_masquerade_cidrs": EXEMPT, "source_cidrs": PODS}
COMMENT = "ip-masq-agent: would show a hidden address"
#: A destination port whose packets are not tracked.
UNTRACKED = 5353
_NOTRACK = (
    """
table inet not_tracked {
    chain prerouting { type filter hook prerouting priority -300; udp dport %d notrack; }
}
"""
    % UNTRACKED
)


class World:
    """The topology, in which a pod sends packets of its own making."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.mac = topology.node.run("cat", "/sys/class/net/pods/address").strip()

    def seen(self, packets: t.Sequence[Stray], passing: t.Tuple[str, str] = ("", "")) -> t.Dict[str, t.Set[str]]:
        """By the names of packets that came out, the source addresses that the world outside saw."""
        a = ADDRESSES["ipv6" if ":" in packets[0].source else "ipv4"]
        passing = passing if passing[0] else (a.pod, a.exempt[-1])
        found = leak_packets.seen(self.topology.pod, self.mac, self.topology.outside, packets, passing)
        return {one.name: found[one.number] for one in packets if one.number in found}

    def leaked(self, packets: t.Sequence[Stray]) -> t.Set[str]:
        """The names of packets that came out with the source that they were sent with."""
        seen = self.seen(packets)
        return {one.name for one in packets if one.source in seen.get(one.name, ())}


@pytest.fixture
def world(topology: Topology) -> World:
    """A pod with packets of its own making."""
    return World(topology)


def leak_rules(ns: Namespace, variant: Variant, family: str) -> t.List[t.Tuple[str, int]]:
    """What rules about leaks do, and their packets, read without the code under test."""
    if isinstance(variant, Nftables):
        listed = ns.run("nft", "list", "table", NFT_FAMILIES[family], "ip_masq_agent", check=False)
        pattern = r'counter packets (\d+) bytes \d+ (drop|return) comment "%s"' % COMMENT
        return [(verdict, int(packets)) for packets, verdict in re.findall(pattern, listed)]
    listed = ns.run(variant.tool(family, "-save"), "-c", "-t", "mangle")
    pattern = r'\[(\d+):\d+\] -A \S+ .*"%s" -j (DROP|RETURN)' % COMMENT
    return [(verdict.lower(), int(packets)) for packets, verdict in re.findall(pattern, listed)]


def counted(ns: Namespace, variant: Variant, family: str) -> int:
    """The packets that rules about leaks have counted."""
    return sum(packets for _verdict, packets in leak_rules(ns, variant, family))


def everything(a: Addresses, destination: str) -> t.List[Stray]:
    """Packets of all kinds from the pod."""
    return [
        *leak_packets.strays(a.pod, destination),
        *leak_packets.fragments(a.pod, destination),
        *leak_packets.untracked(a.pod, destination, UNTRACKED),
    ]


def test_what_nat_does_not_see_leaves_as_the_option_says(world: World, variant: Variant, family: str) -> None:
    a, node = ADDRESSES[family], world.topology.node
    node.run("nft", "-f", "-", stdin=_NOTRACK)
    named: t.Dict[str, t.Set[str]] = {}
    for leaks in ("ignore", "count", "drop"):
        apply(node, backend=variant.backend, leaks=leaks, **POLICY)
        packets = everything(a, a.outside[0])
        seen = world.seen(packets)
        named[leaks] = {name for name, sources in seen.items() if a.pod in sources}
        assert set.union(*seen.values()) <= {a.pod, a.node}
        assert not any(len(sources) > 1 for sources in seen.values())
        exempt = everything(a, a.exempt[0])
        assert world.leaked(exempt) == {one.name for one in exempt}
        if leaks != "ignore":
            assert counted(node, variant, family) == len(named["ignore"])
    assert {"TCP RST", "TCP SYN+ACK", "TCP FIN+ACK", "TCP with a wrong checksum", "SCTP data", "RST in fragments",
            "UDP", "UDP in fragments"} < named["ignore"]  # fmt: skip
    assert "TCP SYN" not in named["ignore"] and named["count"] == named["ignore"]
    assert named["drop"] == set() and set(seen) == {one.name for one in packets} - named["ignore"]


def test_only_what_would_leave_hidden_is_dropped(world: World, variant: Variant, family: str) -> None:
    a, node = ADDRESSES[family], world.topology.node
    other = "10.77.0.2" if family == "ipv4" else "fd07::2"
    masqueraded = a.outside[0]
    host = masqueraded + ("/32" if family == "ipv4" else "/128")

    def drops(source: str = a.pod, destination: str = masqueraded, **options: t.Any) -> bool:
        """Whether a packet is dropped with this policy."""
        apply(node, backend=variant.backend, leaks="drop", **{**POLICY, **options})
        last = a.exempt[-1] if "non_masquerade_cidrs" not in options else masqueraded
        packets = [one for one in leak_packets.strays(source, destination) if one.name == "TCP RST"]
        seen = world.seen(packets, (other, last))
        assert set(seen) <= {"TCP RST"} and seen.get("TCP RST", {source}) == {source}
        return not seen

    assert drops()
    assert not drops(source=other)
    assert not drops(destination=a.exempt[0])
    assert drops(destination=a.exempt[0], non_masquerade_cidrs=["10.250.0.0/16"])
    # Its pods are to be hidden, and it is a destination that is not exempt.
    assert not drops(non_masquerade_cidrs=["10.250.0.0/16"], source_cidrs=[*PODS, host])
    assert not drops(out_interfaces=["bond0"]) and drops(out_interfaces=["eth+"])
    assert not drops(except_interfaces=["eth0"]) and drops(except_interfaces=["bond0"])
    assert not drops(skip_marks=["0"]) and drops(skip_marks=["7"])
    for action in ("exempt", "skip"):
        assert not drops(rules=[{"action": action, "destinations": [host]}])
        assert not drops(rules=[{"action": action, "protocols": ["tcp"]}])
        assert drops(rules=[{"action": action, "ports": ["10"]}])
        assert not drops(rules=[{"action": action, "ports": ["9"]}])
    exempted = {"action": "masquerade", "destinations": [a.exempt[0] + host[len(masqueraded) :]]}
    assert drops(destination=a.exempt[0], rules=[exempted])
    assert not drops(source=other, destination=a.exempt[0], rules=[exempted])
    assert drops(masquerade_cidrs=[host], non_masquerade_cidrs=["0.0.0.0/0", "::/0"])
    for exemption in ("accept", "enforce") if variant.backend == "nftables" else ("accept",):
        assert drops(exemption=exemption) and not drops(destination=a.exempt[0], exemption=exemption)


def test_the_node_itself_is_never_cut_off(world: World, variant: Variant, family: str) -> None:
    """Its addresses may be in the ranges of the pods."""
    a, node = ADDRESSES[family], world.topology.node
    options = {**POLICY, "non_masquerade_cidrs": [], "source_cidrs": [*PODS, "198.51.100.0/24", "2001:db8:1::/64"]}
    apply(node, backend=variant.backend, leaks="drop", **options)
    assert world.topology.ask(a.outside[0], client=node) == {a.outside[0]: a.node}
    # To a port that nobody serves, so that the answer is an ICMP error or a RST of the node.
    assert world.topology.ask(a.gateway)[a.gateway].endswith("Connection refused")


@contextlib.contextmanager
def another_way(topology: Topology, family: str) -> t.Iterator[None]:
    """Packets from outside reach the pod past the node, and its answers leave by the node."""
    a = ADDRESSES[family]
    pod, outside = topology.pod, topology.outside
    six = family == "ipv6"
    outside.run("ip", "link", "add", "past", "type", "veth", "peer", "name", "past", "netns", pod.name)
    for ns in (pod, outside):
        ns.run("ip", "link", "set", "past", "up")
        for name in ("all", "past", "eth0"):
            ns.run("sysctl", "-qw", "net.ipv4.conf.%s.rp_filter=0" % name)
    ends = ("fd00:5::1", "fd00:5::2") if six else ("10.5.0.1", "10.5.0.2")
    for ns, address in zip((pod, outside), ends):
        ns.run("ip", "address", "add", address + ("/64" if six else "/24"), "dev", "past", *(["nodad"] * six))
    outside.run("ip", "route", "replace", a.pod + ("/128" if six else "/32"), "via", ends[0], "dev", "past")
    yield


@pytest.mark.parametrize("leaks", ["ignore", "count", "drop"])
def test_answers_of_pods_that_are_reached_past_the_node(
    topology: Topology, variant: Variant, family: str, leaks: str
) -> None:
    a = ADDRESSES[family]
    apply(topology.node, backend=variant.backend, leaks=leaks, **POLICY)
    kind = socket.AF_INET6 if family == "ipv6" else socket.AF_INET

    def listening() -> socket.socket:
        return socket.create_server((a.pod, 80), family=kind)

    def connect(source: str, patience: float) -> bool:
        with socket.socket(kind, socket.SOCK_STREAM) as sock:
            sock.settimeout(patience)
            sock.bind((source, 0))
            try:
                sock.connect((a.pod, 80))
            except TimeoutError:
                return False
            return True

    with another_way(topology, family), topology.pod.inside(listening):
        assert topology.outside.inside(connect, a.exempt[0], 20.0)
        before = counted(topology.node, variant, family) if leaks != "ignore" else 0
        reached = topology.outside.inside(connect, a.outside[0], 1.5 if leaks == "drop" else 20.0)
        assert reached == (leaks != "drop")
        if leaks != "ignore":
            assert counted(topology.node, variant, family) > before == 0


def test_a_first_packet_that_another_program_keeps_is_a_leak_too(world: World, family: str) -> None:
    """With nftables alone; iptables looks before nat decides."""
    a, node = ADDRESSES[family], world.topology.node
    nft = NFT_FAMILIES[family]
    node.run("nft", "-f", "-", stdin="""
        table %s keeper {
            chain c { type nat hook postrouting priority 50; %s daddr %s snat to %s saddr; }
        }
    """ % (nft, nft, a.outside[0], nft))  # fmt: skip
    for leaks, leaked in (("ignore", {"TCP SYN", "TCP ACK"}), ("count", {"TCP SYN", "TCP ACK"}), ("drop", set())):
        apply(node, backend="nftables", leaks=leaks, **POLICY)
        packets = [one for one in leak_packets.strays(a.pod, a.outside[0]) if one.name in ("TCP SYN", "TCP ACK")]
        assert world.leaked(packets) == leaked


FLIPPED: t.Tuple[t.Dict[str, t.Any], ...] = (
    {"leaks": "drop"},
    {"leaks": "drop", "non_masquerade_cidrs": [*EXEMPT, "203.0.113.0/24", "2001:db8:99::/64"]},
    {"leaks": "drop", "rules": [{"action": "exempt", "destinations": ["203.0.113.10/32"]}]},
    {"leaks": "count", "non_masquerade_cidrs": ["10.99.0.0/16"]},
    {"leaks": "drop", "source_cidrs": ["10.0.0.0/8", "fd00::/16"]},
    {},
    {"leaks": "drop", "out_interfaces": ["eth0"], "exemption": "accept"},
    {"leaks": "drop", "non_masquerade_cidrs": ["0.0.0.0/0", "::/0"]},
)


def test_no_connection_is_disturbed_while_policies_change(topology: Topology, variant: Variant) -> None:
    """New connections pass the node, all of them, and what is open goes on."""
    node, a, b = topology.node, ADDRESSES["ipv4"], ADDRESSES["ipv6"]
    apply(node, backend=variant.backend, **{**POLICY, **FLIPPED[0]})
    # In front of all rules about leaks, and behind them.
    node.run("nft", "-f", "-", stdin="""
        table inet around {
            counter before { }
            counter after { }
            chain before { type filter hook forward priority 300; meta l4proto { tcp, udp } counter name before; }
            chain after { type filter hook postrouting priority 500; meta l4proto { tcp, udp } counter name after; }
        }
    """)  # fmt: skip

    def around(name: str) -> int:
        found = re.search(r"packets (\d+)", node.run("nft", "list", "counter", "inet", "around", name))
        assert found is not None
        return int(found.group(1))

    opened = [_open(topology, one) for one in (a.outside[1], b.outside[1], a.exempt[1], b.exempt[1])]
    assert [there.getpeername()[0] for _here, there in opened] == [a.node, b.node, a.pod, b.pod]
    destinations = (a.outside[0], b.outside[0], a.exempt[0], b.exempt[0])
    talk = topology.talk(*destinations)
    with Flood(topology, *destinations) as flood:
        runs = [{**POLICY, **FLIPPED[number % len(FLIPPED)], "backend": variant.backend} for number in range(FLIPS)]
        for start in range(0, FLIPS, 5):
            for done in run_modules(node, runs[start : start + 5]):
                assert not done.get("failed"), done
            for one, other in (pair[::turn] for pair in opened for turn in (1, -1)):
                one.send(b"goes on")
                assert other.recv(64) == b"goes on"
    talked = talk.finish()
    assert around("before") == around("after")
    opened_tcp = sum(number for seen in talked.values() for number in seen.values())
    assert flood.least > 1000 and opened_tcp > 100
    for one, pod in ((a, a.pod), (b, b.pod)):
        assert set(talked[one.outside[0]]) <= {pod, one.node} and set(talked[one.exempt[0]]) <= {pod, one.node}


def _open(topology: Topology, destination: str) -> t.Tuple[socket.socket, socket.socket]:
    """The two ends of a connection of the pod that stays open."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with topology.outside.inside(lambda: socket.create_server((destination, 80), family=family)) as server:
        here = topology.pod.inside(lambda: socket.create_connection((destination, 80), 20))
        there, _sender = server.accept()
    there.settimeout(20)
    return here, there


def states(ns: Namespace) -> t.Dict[str, str]:
    """All rules of a node, mangle too, without counters."""
    found = dict(snapshot(ns))
    for suffix in ("-nft", "-legacy"):
        for command in ("iptables", "ip6tables"):
            name = command + suffix
            path = "/proc/net/%s_names" % command.replace("tables", "_tables")
            if suffix == "-nft" or "mangle" in ns.read(path).split():
                found[name] = ns.run(name, "-w", "-t", "mangle", "-S")
    return found


_JUMP = "-m conntrack --ctstate INVALID,UNTRACKED -m addrtype ! --src-type LOCAL ! --dst-type LOCAL -j".split()
_JUMP.append("IP-MASQ-AGENT")


def _damages(variant: Variant, family: str) -> t.Dict[str, t.List[t.List[str]]]:
    """Ways to damage the rules about leaks, each a few commands."""
    if isinstance(variant, Nftables):
        table = "%s ip_masq_agent" % NFT_FAMILIES[family]
        commands = {
            "flushed": ["flush chain %s leaks" % table],
            "deleted": ["flush chain %s leaks" % table, "delete chain %s leaks" % table],
            "a rule in front": ["insert rule %s leaks accept" % table],
            "another hook": [
                "flush chain %s leaks" % table,
                "delete chain %s leaks" % table,
                "add chain %s leaks { type filter hook forward priority 110; }" % table,
            ],
        }
        return {name: [["nft", command] for command in lines] for name, lines in commands.items()}
    tool = [variant.tool(family), "-w", "-t", "mangle"]
    jump = [*tool, "-D", "POSTROUTING", "1"]
    return {
        "flushed": [[*tool, "-F", "IP-MASQ-AGENT"]],
        "POSTROUTING flushed": [[*tool, "-F", "POSTROUTING"]],
        "deleted": [[*tool, "-F"], [*tool, "-X", "IP-MASQ-AGENT"]],
        "a rule in front": [[*tool, "-I", "IP-MASQ-AGENT", "-j", "ACCEPT"]],
        "a rule gone": [[*tool, "-D", "IP-MASQ-AGENT", "1"]],
        "a jump for all packets": [[*tool, "-I", "POSTROUTING", "-j", "IP-MASQ-AGENT"]],
        "another jump": [jump, [*tool, "-A", "POSTROUTING", "-p", "tcp", "-j", "IP-MASQ-AGENT"]],
        "a second jump": [[*tool, "-I", "POSTROUTING", "2", *_JUMP]],
        "unreachable": [[*tool, "-I", "POSTROUTING", "-j", "ACCEPT"]],
    }


@halved(("leaks",), ("count",), ("drop",))
def test_idempotent_checked_repaired_and_removed(ns: Namespace, variant: Variant, family: str, leaks: str) -> None:
    options = {**POLICY, "backend": variant.backend, "leaks": leaks}
    plain = {**POLICY, "backend": variant.backend}
    first = states(ns)
    planned = run_module(ns, check=True, diff=True, **options)
    assert planned["changed"] and states(ns) == first
    done = apply(ns, diff=True, **options)
    assert (done["actions"], done["diff"]) == (planned["actions"], planned["diff"])
    assert COMMENT in done["diff"]["after"] and COMMENT not in done["diff"]["before"]
    assert any(COMMENT in rule for rule in done["families"][family]["rules"])
    assert [verdict for verdict, _packets in leak_rules(ns, variant, family)] == [
        "drop" if leaks == "drop" else "return"
    ]
    good = states(ns)
    assert not apply(ns, **options)["changed"] and states(ns) == good
    for name, commands in _damages(variant, family).items():
        for command in commands:
            ns.run(*command)
        damaged = states(ns)
        assert run_module(ns, check=True, **options)["changed"] and states(ns) == damaged, name
        assert apply(ns, **options)["changed"], name
        if name != "unreachable":
            assert _without_handles(states(ns)) == _without_handles(good), name
        assert not apply(ns, **options)["changed"], name
    assert apply(ns, **plain)["changed"] and not apply(ns, **plain)["changed"]
    assert leak_rules(ns, variant, family) == []
    assert "IP-MASQ-AGENT" not in _mangle(states(ns))
    apply(ns, **options)
    if not isinstance(variant, Nftables):
        apply(ns, masq_chain="OTHER", **options)
        assert "-N OTHER" in _mangle(states(ns))
    other = "nftables" if not isinstance(variant, Nftables) else "iptables_nft"
    apply(ns, **{**options, "backend": other, "masq_chain": "OTHER"})
    if not isinstance(variant, Nftables):
        assert "OTHER" not in _mangle(states(ns)) or variant.backend == other
    done = apply(ns, state="absent", masq_chain="OTHER")
    assert done["changed"] and "masq" not in "".join(states(ns).values()).lower()
    assert not apply(ns, state="absent", masq_chain="OTHER")["changed"]


def test_rules_that_iptables_cannot_print_keep_from_nothing(ns: Namespace, family: str) -> None:
    options = {**POLICY, "backend": "iptables_nft", "leaks": "drop"}
    apply(ns, **options)
    chain = "%s mangle POSTROUTING" % NFT_FAMILIES[family]
    ns.run("nft", "add rule %s meta mark { 7, 9 } counter" % chain)
    assert not apply(ns, **options)["changed"]
    ns.run("nft", "flush chain %s" % chain)
    ns.run("nft", "add rule %s meta mark { 7, 9 } counter" % chain)
    done = apply(ns, **options)
    assert [action["action"] for action in done["actions"]] == ["jump added"]
    assert not apply(ns, **options)["changed"]
    assert "meta mark { 0x00000007, 0x00000009 }" in ns.run("nft", "list chain %s" % chain)


def _mangle(found: t.Mapping[str, str]) -> str:
    return "".join(text for name, text in found.items() if name.endswith(("-nft", "-legacy")))


def _without_handles(found: t.Mapping[str, str]) -> t.Dict[str, str]:
    plain = {name: re.sub(r" # handle \d+|\bpackets \d+ bytes \d+|\[\d+:\d+\]", "", one) for name, one in found.items()}
    return {**plain, "nft": "\n".join(sorted(plain["nft"].split("\n")))}


def _packets(text: str) -> t.Dict[t.Tuple[str, str], float]:
    return {
        (dict(labels)["family"], dict(labels)["action"]): value
        for (name, labels), value in parse(text).values.items()
        if name == "ip_masq_agent_leaked_packets_total"
    }


def test_the_agent_keeps_shows_and_counts(world: World, variant: Variant, family: str, tmp_path: Path) -> None:
    a = ADDRESSES[family]
    node = AgentNode(world.topology.node, tmp_path, metrics=True)
    keys = {"backend": variant.backend, "enableIPv6": True, "nonMasqueradeCIDRs": EXEMPT, "sourceCIDRs": PODS}
    node.synced(**keys)
    prom = node.metrics_dir / "ip_masq_agent.prom"
    assert _packets(prom.read_text()) == {} and "leaks" not in node.command("status").stdout
    node.configure(leaks="drop", **keys)
    before = node.status()
    assert not before["in_sync"] and before["families"][family]["counters"]["leaked_packets"] == 0
    assert node.sync().returncode == 0
    packets = [one for one in leak_packets.strays(a.pod, a.outside[0]) if one.name in ("TCP RST", "TCP SYN+ACK")]
    assert world.leaked(packets) == set()
    assert node.sync().returncode == 0
    assert _packets(prom.read_text())[family, "drop"] == 2
    status = node.status()
    assert status["families"][family]["counters"]["leaked_packets"] == 2 and status["config"]["leaks"] == "drop"
    shown = node.command("status").stdout
    assert "leaks        drop\n" in shown and "leaked packets: 2 dropped" in shown
    for command in _damages(variant, family)["deleted"]:
        world.topology.node.run(*command)
    assert not node.status()["in_sync"]
    assert node.sync().returncode == 0
    packets = [one for one in leak_packets.strays(a.pod, a.outside[0]) if one.name == "TCP RST"]
    assert world.leaked(packets) == set() and node.status()["in_sync"]


def test_between_syncs_the_script_sees_damage(topology: Topology, variant: Variant, tmp_path: Path) -> None:
    node = AgentNode(topology.node, tmp_path)
    node.configure(backend=variant.backend, sourceCIDRs=PODS[:1], leaks="drop")
    node.settle()
    assert node.resync() == []
    for command in _damages(variant, "ipv4")["flushed"]:
        topology.node.run(*command)
    assert node.resync() != []
    node.settle()
    assert node.resync() == []
    assert [verdict for verdict, _packets in leak_rules(topology.node, variant, "ipv4")] == ["drop"]


#: What iptables-restore says of the second table where the kernel has no xt_conntrack.
_NO_MANGLE = (
    'text=$(cat); case "$text" in *"*mangle"*) echo "iptables-restore: line 2 failed:'
    ' Extension conntrack revision 0 not supported, missing kernel module?" >&2; exit 1;; esac;'
    ' printf "%s\\n" "$text" | "$real" "$@"'
)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_refused_table_mangle_leaves_the_rules_of_nat_and_is_named(
    ns: Namespace, variant: Variant, family: str, tmp_path: Path
) -> None:
    node = AgentNode(ns, tmp_path)
    programs = Programs(tmp_path)
    keys = {"backend": variant.backend, "enableIPv6": True, "sourceCIDRs": PODS}

    def nat() -> t.List[str]:
        return ns.run(variant.tool(family), "-t", "nat", "-S").splitlines()

    def sync() -> t.Tuple[int, str, t.List[str]]:
        before = len(programs.calls())
        done = node.command("sync", PATH="%s:%s:%s" % (programs.path, node.path, os.environ["PATH"]))
        written = [call[0] for call in programs.calls()[before:] if is_restore(call[0])]
        return done.returncode, done.stdout + done.stderr, written

    node.configure(leaks="drop", nonMasqueradeCIDRs=["10.0.0.0/8", "fd00::/8"], **keys)
    assert sync()[0] == 0
    wanted = nat()
    node.configure(**keys)
    assert sync()[0] == 0 and nat() != wanted
    node.configure(leaks="drop", nonMasqueradeCIDRs=["10.0.0.0/8", "fd00::/8"], **keys)
    programs.misbehave(is_restore, _NO_MANGLE)
    status, said, _written = sync()
    assert status == 1 and nat() == wanted
    for words in (family, "Extension conntrack", "The rules of nat are active; those about leaks (table mangle)"):
        assert words in said
    assert "rules added" in said or "rule added" in said, "what was written is told"
    report = node.status()
    assert not report["in_sync"] and report["failing"] and "mangle" in "".join(report["last_error"]["lines"])
    # Again: only what is missing is tried, once for each family.
    status, said, written = sync()
    assert status == 1 and len(written) == 2 and nat() == wanted and "The rules of nat are active" in said
    # The kernel has the module now, and the timer starts the next resync.
    assert leak_rules(ns, variant, family) == []
    assert node.resync() != [] and nat() == wanted
    assert node.status()["in_sync"] and leak_rules(ns, variant, family) != []
    assert sync()[2] == []


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_removal_goes_on_where_the_table_mangle_is_refused(
    ns: Namespace, variant: Variant, family: str, tmp_path: Path
) -> None:
    apply(ns, **{**POLICY, "backend": variant.backend, "leaks": "drop"})
    programs = Programs(tmp_path)
    programs.misbehave(is_restore, _NO_MANGLE)
    removed = run_module(ns, state="absent", path=programs.path)
    assert removed["failed"] and "table mangle" in removed["msg"]
    assert "MASQUERADE" not in ns.run(variant.tool(family), "-t", "nat", "-S")
    assert apply(ns, state="absent")["changed"] and not apply(ns, state="absent")["changed"]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_refusal_that_does_not_last_is_no_error(ns: Namespace, variant: Variant, tmp_path: Path) -> None:
    """As when another program writes to the table mangle at the same moment."""
    programs = Programs(tmp_path)
    once = 'if [ -e %s ]; then exec "$real" "$@"; fi; ' % (tmp_path / "refused")
    programs.misbehave(is_restore, once + _NO_MANGLE.replace("exit 1", "touch %s; exit 1" % (tmp_path / "refused")))
    options = {"backend": variant.backend, "leaks": "drop", "source_cidrs": PODS[:1]}
    assert apply(ns, path=programs.path, **options)["changed"] and (tmp_path / "refused").exists()
    assert not apply(ns, **options)["changed"]


def test_effects_are_those_of_the_change_alone(ns: Namespace, variant: Variant) -> None:
    """The rules about leaks are in another table than those that decide about connections."""
    pods = ["10.244.0.0/16", "10.245.0.0/16"]
    policy: t.Dict[str, t.Any] = {"backend": variant.backend, "non_masquerade_cidrs": ["0.0.0.0/0"]}
    policy = {**policy, "masquerade_cidrs": ["192.0.2.0/24"], "source_cidrs": pods, "skip_marks": ["0x1/0x1"]}
    more = {**policy, "masquerade_cidrs": ["192.0.2.0/24", "203.0.113.0/24"]}
    steps: t.List[t.Tuple[t.Dict[str, t.Any], t.Set[t.Tuple[str, ...]]]] = [
        ({**policy, "leaks": "count"}, set()),
        ({**policy, "leaks": "drop"}, {("192.0.2.0/24", "without a connection", "pod", "dropped")}),
        (
            {**more, "leaks": "drop"},
            {
                ("203.0.113.0/24", "", "pod", "node"),
                ("203.0.113.0/24", "without a connection", "pod", "dropped"),
            },
        ),
        (more, {(one, "without a connection", "dropped", "pod") for one in ("192.0.2.0/24", "203.0.113.0/24")}),
    ]
    apply(ns, **policy)
    for options, expected in steps:
        effects = apply(ns, **options)["effects"]
        found = {
            (network, *(effect[key] for key in ("packets", "before", "after")))
            for effect in effects
            for network in effect["destinations"]
        }
        assert found == expected, options
