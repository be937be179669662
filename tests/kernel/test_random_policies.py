# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random policies against what their documentation says of each packet (``strange.policies``), with real packets.

``IP_MASQ_RANDOM_POLICIES`` says how many policies each backend gets, ``IP_MASQ_RANDOM_SEED`` which ones. Each follows
another: what changes for packets between the two is compared with the effects that are reported, at the edges of their
ranges, and the connections that are removed with those that are counted.
``IP_MASQ_LEAK_POLICIES`` says how many get packets of all kinds that conntrack finds no connection for.
"""

from __future__ import annotations

import collections
import ipaddress
import itertools
import json
import os
import random
import re
import socket
import typing as t

import pytest
from strange import policies
from support import leak_packets
from support.modules import apply, run_module, run_modules
from support.namespaces import Namespace
from support.packet_effects import effect_of, is_in
from support.topology import ADDRESSES, Topology, serving

COUNT = int(os.environ.get("IP_MASQ_RANDOM_POLICIES", "12"))
LEAK_COUNT = int(os.environ.get("IP_MASQ_LEAK_POLICIES", "6"))
SEED = int(os.environ.get("IP_MASQ_RANDOM_SEED", "1"))
#: Packets for each policy and family; those to edges of the ranges before a change, and after it.
ASKED, EDGES = 8, 12

PORTS = (8080, 9090)
BACKENDS = {
    "iptables_nft": ("return", "accept"),
    "iptables_legacy": ("return", "accept"),
    "nftables": ("return", "accept", "enforce"),
}


class Family(t.NamedTuple):
    """What packets of one family can be."""

    pods: t.Tuple[str, ...]
    destinations: t.Tuple[str, ...]
    #: by which interface a destination is reached
    by: t.Dict[str, str]
    #: the address that is masqueraded to, by interface
    node: t.Dict[str, str]
    fixed: t.Tuple[str, ...]
    ranges: t.Tuple[str, ...]
    sources: t.Tuple[str, ...]
    bits: int


def _family(
    name: str, second: str, fixed: t.Sequence[str], ranges: t.Sequence[str], sources: t.Sequence[str]
) -> Family:
    a = ADDRESSES[name]
    away = (a.exempt[1], a.outside[1])
    destinations = (*a.exempt[:2], *a.outside)
    return Family(
        (a.pod, a.pod[:-1] + "3"),
        destinations,
        collections.defaultdict(lambda: "eth0", dict.fromkeys(away, "bond0")),
        {"eth0": a.node, "bond0": second},
        tuple(fixed),
        tuple(ranges),
        tuple(sources),
        a.bits,
    )


FAMILIES = {
    "ipv4": _family(
        "ipv4",
        "198.51.101.1",
        ("198.51.100.7", "198.51.100.8"),
        (
            "0.0.0.0/0", "10.0.0.0/8", "10.99.0.0/16", "10.99.0.1/32", "172.16.0.0/12", "172.20.0.0/24", "192.0.0.0/4",
            "203.0.113.0/24", "203.0.113.10/32", "192.0.2.0/28", "192.0.2.10/31",
        ),
        ("0.0.0.0/0", "10.244.0.0/16", "10.244.1.2/32", "10.244.1.2/31", "10.244.1.3/32", "10.7.0.0/16"),
    ),
    "ipv6": _family(
        "ipv6",
        "2001:db8:2::1",
        ("2001:db8:1::7", "2001:db8:1::8"),
        (
            "::/0", "fc00::/7", "fd00:99::/32", "fd00:99::1/128", "fc00:77::/64", "2001:db8::/32", "2001:db8:99::/64",
            "2001:db8:99::1/128", "2001:db8:77::/48",
        ),
        ("::/0", "fd00::/8", "fd00:10:244:1::2/128", "fd00:10:244:1::2/127", "fd00:10:244:1::3/128", "fd07::/16"),
    ),
}  # fmt: skip
INTERFACES = ("eth0", "eth+", "bond0", "bond*", "b+", "wlan0")

Options = t.Dict[str, t.Any]
#: family, source, destination, protocol, port
Packet = t.Tuple[Family, str, str, str, int]


def some(rng: random.Random, values: t.Sequence[t.Any], most: int, chance: float = 0.5) -> t.List[t.Any]:
    """A few of them, or as often as not none."""
    return rng.sample(values, rng.randint(1, min(most, len(values)))) if rng.random() < chance else []


def policy(rng: random.Random, exemptions: t.Sequence[str]) -> Options:
    """A policy as an operator could write it."""
    ranges = [one for family in FAMILIES.values() for one in family.ranges]
    sources = [one for family in FAMILIES.values() for one in family.sources]
    fixed = [one for family in FAMILIES.values() for one in family.fixed] + ["198.51.100.7-198.51.100.8"]
    exempt = some(rng, ranges, 6, 0.9)
    out = some(rng, INTERFACES[:4], 2, 0.3)
    options: Options = {
        "enable_ipv6": True,
        "exemption": rng.choice(exemptions),
        "random_fully": rng.random() < 0.5,
        "masq_link_local": rng.random() < 0.5,
        "non_masquerade_cidrs": exempt,
        "masquerade_cidrs": [one for one in some(rng, ranges, 5) if one not in exempt],
        "source_cidrs": some(rng, sources, 3, 0.3),
        "out_interfaces": out,
        "except_interfaces": [name for name in some(rng, INTERFACES[2:], 1, 0.3) if name.replace("*", "+") not in
                              [other.replace("*", "+") for other in out]],
        "to_ports": some(rng, ["3000-3999", "5000-5999"], 2, 0.2),
        "skip_marks": some(rng, ["0x4000/0x4000", "7"], 2, 0.2),
        "snat": [],
        "rules": [],
    }  # fmt: skip

    options["masq_link_local_ipv6"] = not options["masq_link_local"]
    options["leaks"] = rng.choice(["ignore", "count", "drop", "drop"])
    if options["leaks"] != "ignore" or options["exemption"] != "return":
        options["source_cidrs"] = some(rng, [one for one in sources if one[-2:] != "/0"], 3, 1)

    def of_family(address: str, values: t.Sequence[str]) -> t.List[str]:
        return [one for one in values if (":" in one) == (":" in address)]

    for _number in range(rng.choice([0, 0, 1, 2])):
        address = rng.choice(fixed)
        entry: Options = {"address": address, "source_cidrs": of_family(address, some(rng, sources, 2))}
        if rng.random() < 0.5:
            entry["out_interface"] = rng.choice(INTERFACES)
        options["snat"].append(entry)
    for _number in range(rng.choice([0, 0, 1, 2, 3])):
        entry = {"action": rng.choice(["exempt", "masquerade", "snat", "skip"])}
        chosen = {"sources": some(rng, sources, 2), "destinations": some(rng, ranges, 3)}
        if entry["action"] == "snat":
            entry["address"] = rng.choice(fixed)
            chosen = {name: of_family(entry["address"], values) for name, values in chosen.items()}
        entry.update(chosen, out_interfaces=some(rng, INTERFACES, 2, 0.3), protocols=some(rng, ["tcp", "udp"], 2))
        entry["ports"] = some(rng, ["8080", "9000-9100", "1-8079"], 2, 0.4)
        options["rules"].append({name: value for name, value in entry.items() if value != []})
    for number, entry in enumerate([*options["snat"], *options["rules"]]):
        if entry.get("action") not in ("exempt", "skip"):
            entry.update([{}, {"ports_mapping": "random"}, {"ports_mapping": "keep"}][number % 3])
    return options


def model(options: Options, packet: Packet) -> t.Tuple[str, ...]:
    """The addresses of which the destination may see one."""
    family, source, destination, protocol, port = packet
    interface = family.by[destination]
    promise = policies.Policy(options).promise(policies.Packet(source, destination, protocol, port, interface))
    if promise.kind == "fixed":
        return promise.addresses
    return (family.node[interface],) if promise.kind == "node" else (source,)


def is_hidden(options: Options, packet: Packet) -> bool:
    """Whether the policy hides the source of a packet, so that it must not leave with it."""
    _family, source, destination, _protocol, _port = packet
    pods = options["source_cidrs"]
    return is_in(source, pods) and not is_in(destination, pods) and source not in model(options, packet)


def ask(questions: t.Sequence[t.Tuple[str, str, str, int, int]]) -> t.List[str]:
    """The source address that each destination sees, or what went wrong."""
    answers = []
    for source, destination, protocol, port, own_port in questions:
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET, kind) as sock:
            sock.settimeout(20)
            sock.bind((source, own_port))
            try:
                sock.connect((destination, port))
                if protocol == "udp":
                    sock.send(b"?")
                answers.append(sock.recv(100).decode().strip())
            except OSError as exc:
                answers.append(str(exc))
    return answers


def words_of(effect: t.Dict[str, t.Any]) -> t.Dict[str, t.Any]:
    """An effect without its connections."""
    return {name: value for name, value in effect.items() if name != "open_connections"}


def addresses_of(word: str, packet: Packet) -> t.Tuple[str, ...]:
    """The addresses that a word of an effect means."""
    family, source, destination, _protocol, _port = packet
    if word.startswith("pod") or word == "not managed":
        return (source,)
    # Ports may follow.
    if re.split(r", ports | \(", word)[0] == "node":
        return (family.node[family.by[destination]],)
    return tuple(one for one in family.fixed if one in word)


#: Destinations to which the node does not forward, and networks of its own.
NOT_SENT = [
    ipaddress.ip_network(one)
    for one in (
        "0.0.0.0/8", "10.244.1.0/24", "127.0.0.0/8", "169.254.0.0/16", "198.51.100.0/23", "224.0.0.0/3", "::/3",
        "2001:db8:1::/64", "2001:db8:2::/64", "4000::/2", "8000::/2", "c000::/3", "e000::/4", "f000::/5", "f800::/6",
        "fd00:10:244:1::/64", "fe00::/7",
    )
]  # fmt: skip


def edges(ranges: t.Iterable[str], version: int) -> t.List[str]:
    """The first and last addresses of ranges, and those beside them, that packets can be sent to."""
    found = set()
    for network in map(ipaddress.ip_network, ranges):
        if network.version == version:
            first, last = int(network[0]), int(network[-1])
            found.update(one for one in (first - 1, first, last, last + 1) if 0 <= one < 2**network.max_prefixlen)
    kind: t.Any = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    addresses = [kind(number) for number in sorted(found)]
    return [str(one) for one in addresses if not any(one.version == net.version and one in net for net in NOT_SENT)]


def sampled(rng: random.Random, values: t.Sequence[str]) -> t.List[str]:
    """As many of them as packets are sent."""
    return rng.sample(values, min(len(values), EDGES))


def ranges_of(options: Options, effects: t.Sequence[t.Dict[str, t.Any]]) -> t.Iterator[str]:
    """All destinations that a policy names, and those of effects."""
    yield from options["non_masquerade_cidrs"]
    yield from options["masquerade_cidrs"]
    for rule in options["rules"]:
        yield from rule.get("destinations", [])
    for effect in effects:
        yield from effect["destinations"]
        yield from effect["destinations_except"]


def probe(topology: Topology, questions: t.Sequence[t.Tuple[str, str, int, int]]) -> t.List[t.Optional[str]]:
    """The source address with which a datagram to any destination comes out of the node; None: none came out."""
    wire = topology.outside.inside(socket.socket, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
    seen: t.Dict[bytes, str] = {}
    with wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        wire.settimeout(5)
        topology.pod.inside(_send, questions)
        marks = [_mark(question) for question in questions]
        try:
            while len(seen) < len(marks):
                frame, about = wire.recvfrom(65535)
                mark = frame[-len(marks[0]) :]
                # Not the answer of ICMP, which ends with it too.
                if mark in marks and about[2] != socket.PACKET_OUTGOING:
                    start, size = (12, 4) if about[1] == 0x0800 else (8, 16)
                    seen[mark] = str(ipaddress.ip_address(frame[start : start + size]))
        except TimeoutError:
            pass
    return [seen.get(mark) for mark in marks]


def _mark(question: t.Tuple[str, str, int, int]) -> bytes:
    return b"edge %05d %d" % (question[3], 6 if ":" in question[0] else 4)


def _send(questions: t.Sequence[t.Tuple[str, str, int, int]]) -> None:
    for question in questions:
        source, destination, port, own_port = question
        with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((source, own_port))
            sock.sendto(_mark(question), (destination, port))


def tracked(node: Namespace) -> t.Set[t.Tuple[str, str, int, int]]:
    """The connections of UDP that the node tracks, as their openers know them."""
    found = set()
    for name in FAMILIES:
        for line in node.run("conntrack", "-L", "-p", "udp", "-f", name).splitlines():
            source, destination, own_port, port = re.findall(r" (?:src|dst|sport|dport)=(\S+)", line)[:4]
            found.add(
                (str(ipaddress.ip_address(source)), str(ipaddress.ip_address(destination)), int(port), int(own_port))
            )
    return found


@pytest.fixture
def two_ways(topology: Topology) -> t.Iterator[Topology]:
    """A node with two interfaces to the outside, fixed addresses, and two pods."""
    node, outside, pod = topology.node, topology.outside, topology.pod
    node.run("ip", "link", "add", "bond0", "type", "veth", "peer", "name", "eth1", "netns", outside.name)
    for ns, name, end in ((node, "bond0", 1), (outside, "eth1", 2)):
        ns.run("ip", "link", "set", name, "up")
        ns.run("ip", "address", "add", "198.51.101.%d/24" % end, "dev", name)
        ns.run("ip", "address", "add", "2001:db8:2::%d/64" % end, "dev", name, "nodad")
        ns.run("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.%s.rp_filter=0" % name)
    outside.run("sysctl", "-qw", "net.ipv4.conf.eth0.rp_filter=0")
    for name, family in FAMILIES.items():
        for address in family.fixed:
            node.run("ip", "address", "add", "%s/%d" % (address, family.bits), "dev", "eth0", "preferred_lft", "0")
        pod.run("ip", "address", "add", "%s/%d" % (family.pods[1], family.bits), "dev", "eth0", "preferred_lft", "0")
        via = {"ipv4": "198.51.101.2", "ipv6": "2001:db8:2::2"}[name]
        for destination, interface in list(family.by.items()):
            if interface == "bond0":
                node.run("ip", "route", "add", destination, "via", via)
    # No connection ends by itself meanwhile.
    for name in ("udp_timeout", "tcp_timeout_time_wait", "tcp_timeout_close"):
        node.run("sysctl", "-qw", "net.netfilter.nf_conntrack_%s=3600" % name)
    served = [destination for family in FAMILIES.values() for destination in family.destinations]
    with serving(outside, PORTS[1], served):
        yield topology


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_packet_shows_what_the_policy_says(
    two_ways: Topology, backend: str, show_table: t.Callable[..., None]
) -> None:
    rng = random.Random("%d %s" % (SEED, backend))
    own_ports = itertools.cycle(range(10000, 60000))
    seen: t.Dict[str, int] = {"pod": 0, "node": 0, "fixed": 0, "strays passed": 0, "strays dropped": 0}
    seen.update({"treated otherwise": 0, "treated as before": 0, "connections kept": 0, "connections removed": 0})
    shortened = 0
    former: Options = {"non_masquerade_cidrs": [], "masquerade_cidrs": [], "rules": []}
    mac = two_ways.node.run("cat", "/sys/class/net/pods/address").strip()
    apply(two_ways.node, backend=backend, enable_ipv6=True)
    for number in range(COUNT):
        options = policy(rng, BACKENDS[backend])
        packets = [
            (
                family,
                rng.choice(family.pods),
                rng.choice(family.destinations),
                rng.choice(["tcp", "udp"]),
                rng.choice(PORTS),
            )
            for family in FAMILIES.values()
            for _packet in range(ASKED)
        ]
        options["flush_conntrack"] = "changed"
        planned = run_module(two_ways.node, check=True, backend=backend, **options)["effects"]
        ends = [
            (family, rng.choice(family.pods), destination, "udp", rng.choice(PORTS))
            for version, family in ((4, FAMILIES["ipv4"]), (6, FAMILIES["ipv6"]))
            for ranges in (ranges_of(former, []), ranges_of(options, planned))
            for destination in sampled(rng, edges(ranges, version))
        ]
        former = options
        two_ways.node.run("conntrack", "-F")
        earlier = two_ways.pod.inside(ask, [(*packet[1:], next(own_ports)) for packet in packets])
        opened = [(*packet[1:3], packet[4], next(own_ports)) for packet in ends]
        shown = probe(two_ways, opened)
        # The kernel tracks nothing of a family while no rule needs it.
        before_flush = tracked(two_ways.node)
        done, again = run_modules(two_ways.node, [{"backend": backend, **options}] * 2)
        assert not done.get("failed") and not again["changed"], (done, again, json.dumps(options))
        effects = done["effects"]
        assert [words_of(one) for one in effects] == [words_of(one) for one in planned], json.dumps(options)
        for name in FAMILIES:
            counts = [one["open_connections"] for one in effects if one["family"] == name]
            assert done["effects_omitted"] or sum(counts) == done["flushed"].get(name, 0), json.dumps(options)
        kept = tracked(two_ways.node)
        undecided = 0
        for packet, question, before in zip(ends, opened, shown):
            if question not in before_flush:
                continue
            stays = before in model(options, packet)
            told = "policy %d: connection %s that showed %s: %s" % (number, question, before, json.dumps(options))
            assert not stays or question in kept, told
            undecided += not stays and question in kept
            seen["connections kept" if question in kept else "connections removed"] += 1
        notes = " ".join(done.get("warnings", []))
        assert undecided <= sum(map(int, re.findall(r"that are left out, because [^:]*: (\d+)", notes))), notes
        answers = two_ways.pod.inside(ask, [(*packet[1:], next(own_ports)) for packet in packets])
        answers += probe(two_ways, [(*packet[1:3], packet[4], next(own_ports)) for packet in ends])
        for packet, before, answer in zip([*packets, *ends], [*earlier, *shown], answers):
            expected = model(options, packet)
            told = "policy %d: %s: %s" % (number, packet[1:], json.dumps(options))
            assert answer in expected, told
            if any(one["destinations_omitted"] or one["sources_omitted"] for one in effects):
                shortened += 1
                continue
            effect = effect_of(effects, *packet[1:], packet[0].by[packet[2]])
            if effect is None:
                assert before in expected, "%s: nothing is reported that was %s" % (told, before)
            else:
                assert before in addresses_of(effect["before"], packet), (told, effect)
                assert answer in addresses_of(effect["after"], packet), (told, effect)
            seen["treated otherwise" if effect else "treated as before"] += 1
            seen["pod" if answer == packet[1] else "fixed" if answer in packet[0].fixed else "node"] += 1
        made = [(packet, leak_packets.stray(*packet[1:])) for packet in packets]
        # From an address and to one that no policy here is about.
        out = leak_packets.seen(
            two_ways.pod, mac, two_ways.outside, [stray for _packet, stray in made], ("10.9.9.9", "10.8.8.8")
        )
        for packet, stray in made:
            dropped = options["leaks"] == "drop" and is_hidden(options, packet)
            expected_sources = set() if dropped else {packet[1]}
            told = "policy %d: without a connection: %s: %s" % (number, packet[1:], json.dumps(options))
            assert out.get(stray.number, set()) == expected_sources, told
            seen["strays dropped" if dropped else "strays passed"] += 1
    assert min(seen.values()) > 0
    show_table(
        "%s, %d policies: what packets showed" % (backend, COUNT),
        [*seen, "with shortened effects"],
        [("", list(map(str, (*seen.values(), shortened))))],
    )


#: A destination port whose packets are not tracked.
_UNTRACKED = 5353
_NOTRACK = "type filter hook prerouting priority -300;\nudp dport %d notrack\n" % _UNTRACKED


def _protocol(stray: leak_packets.Stray) -> str:
    """The protocol of a packet, as a policy names it."""
    name = stray.name.split()[0].lower()
    return "tcp" if name == "rst" else name


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_without_a_connection_shows_what_a_policy_hides(
    two_ways: Topology, backend: str, show_table: t.Callable[..., None]
) -> None:
    """All 64 combinations of flags of TCP, errors of ICMP, wrong checksums, SCTP, fragments, what is not tracked."""
    rng = random.Random("%d %s leaks" % (SEED, backend))
    node = two_ways.node
    node.run("nft", "-f", "-", stdin="table inet not_tracked {\nchain c {\n%s}\n}\n" % _NOTRACK)
    mac = node.run("cat", "/sys/class/net/pods/address").strip()
    found = {"sent": 0, "dropped": 0, "masqueraded": 0, "exempt": 0, "left alone": 0}
    for number in range(LEAK_COUNT):
        options = {**policy(rng, BACKENDS[backend]), "leaks": "drop"}
        options["source_cidrs"] = options["source_cidrs"] or ["10.244.0.0/16", "fd00:10:244::/48"]
        options["source_cidrs"] = [one for one in options["source_cidrs"] if one[-2:] != "/0"] or ["10.244.1.2/31"]
        apply(node, backend=backend, **options)
        node.run("conntrack", "-F")
        for family in FAMILIES.values():
            source, destination = rng.choice(family.pods), rng.choice(family.destinations)
            port = rng.choice((*PORTS, 5060))
            sent = [
                *leak_packets.strays(source, destination, port),
                *leak_packets.fragments(source, destination, port),
                *leak_packets.untracked(source, destination, _UNTRACKED),
            ]
            out = leak_packets.seen(two_ways.pod, mac, two_ways.outside, sent, ("10.9.9.9", "10.8.8.8"))
            for stray in sent:
                to_port = _UNTRACKED if stray.name in ("UDP", "UDP in fragments") else port
                packet = (family, source, destination, _protocol(stray), to_port)
                shown = out.get(stray.number, set())
                told = "policy %d: %s: %s: %s" % (number, stray.name, packet[1:], json.dumps(options))
                found["sent"] += 1
                if is_hidden(options, packet):
                    assert source not in shown, told
                    found["masqueraded" if shown else "dropped"] += 1
                elif source in model(options, packet):
                    assert shown == {source}, told
                    found["exempt"] += 1
                else:
                    assert shown and shown <= {source, *model(options, packet)}, told
                    found["left alone"] += 1
    assert min(found.values()) > 0
    show_table(
        "%s, %d policies: packets without a connection" % (backend, LEAK_COUNT),
        list(found),
        [("", list(map(str, found.values())))],
    )
