# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What rules mean, whichever tool wrote them."""

from __future__ import annotations

import struct
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import spans
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import ipsets
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.legacy import LegacyTable
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import (
    ipset_matches,
    legacy_matches,
    nft_matches,
    xt_matches,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.matches import (
    Branch,
    Match,
    Rule,
    any_of,
    both,
    matches_name,
)
from hypothesis import given
from hypothesis import strategies as st
from support import nft_messages as nft
from support.nft_messages import address, span

TCP, UDP, ICMP = ((6, 6),), ((17, 17),), ((1, 1),)


# conditions

_SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(spans.of)
_MATCHES = st.tuples(st.none() | _SPANS, st.none() | _SPANS).map(lambda pair: Match(*pair))


def _means(match: Match, source: int, destination: int) -> bool:
    return all(
        allowed is None or spans.contains(allowed, number)
        for allowed, number in ((match.source, source), (match.destination, destination))
    )


@given(_MATCHES, _MATCHES)
def test_both(one: Match, other: Match) -> None:
    found = both(one, other)
    for source in range(10):
        for destination in range(10):
            assert _means(found, source, destination) == (
                _means(one, source, destination) and _means(other, source, destination)
            )


@given(st.lists(_SPANS.map(lambda one: Match(destination=one)), min_size=1, max_size=4), st.booleans())
def test_any_of_one_field(matches: t.List[Match], inverted: bool) -> None:
    (found,) = any_of(matches, inverted, 4)
    for number in range(10):
        assert _means(found, 0, number) == (any(_means(match, 0, number) for match in matches) != inverted)


@given(st.lists(_MATCHES, max_size=4))
def test_any_of_several_fields_loses_nothing(matches: t.List[Match]) -> None:
    found = any_of(matches, False, 4)
    for source in range(10):
        for destination in range(10):
            if any(_means(match, source, destination) for match in matches):
                assert any(_means(match, source, destination) for match in found)


def test_service_is_protocol_and_port() -> None:
    assert Match().service is None
    assert Match(protocol=TCP).service == ((6 << 16, 6 << 16 | 0xFFFF),)
    assert Match(protocol=TCP, port=((80, 90),)).service == ((6 << 16 | 80, 6 << 16 | 90),)
    without = Match(port=((53, 53),)).service
    assert without is not None and (17 << 16 | 53, 17 << 16 | 53) in without and (6 << 16 | 53, 6 << 16 | 53) in without


def test_names_of_links() -> None:
    assert matches_name("eth0", "eth0") and not matches_name("eth0", "eth01")
    assert matches_name("cali+", "cali123") and matches_name("+", "any") and not matches_name("cali+", "eth0")


# rules of iptables-legacy


def _legacy(*lines: str, sets: t.Sequence[ipsets.IpSet] = (), family: str = "ip") -> t.List[Rule]:
    chains = sorted({line.split()[1] for line in lines} | {"POSTROUTING"})
    listing = "\n".join(["*nat", *(":%s - [0:0]" % chain for chain in chains), *lines, "COMMIT"])
    table = legacy_matches.read(LegacyTable(family, "nat", listing), sets)
    assert table.base["POSTROUTING"] == ("nat", 4, 100)
    return list(table.rules)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("-s 10.0.0.0/8", Match(source=(span("10.0.0.0/8"),))),
        ("! -d 0.0.0.0/1", Match(destination=(span("128.0.0.0/1"),))),
        ("-p tcp -m tcp --dport 80:90", Match(protocol=TCP, port=((80, 90),))),
        ("-p tcp -m tcp ! --dport 80", Match(protocol=TCP, port=((0, 79), (81, 65535)))),
        ("-p udp -m udp --sport 1024:", Match(protocol=UDP, source_port=((1024, 65535),))),
        ("-p tcp -m multiport --dports 22,80,443:444", Match(protocol=TCP, port=((22, 22), (80, 80), (443, 444)))),
        ("! -p tcp", Match(protocol=((0, 5), (7, 255)))),
        ("-p icmp -m icmp --icmp-type 8", Match(protocol=ICMP)),
        ("-m iprange --dst-range 10.0.0.1-10.0.0.9", Match(destination=((0x0A000001, 0x0A000009),))),
        ('-m comment --comment "not -d 1.2.3.4/32 at all"', Match()),
        ("-m addrtype ! --dst-type LOCAL", Match()),
    ],
)
def test_legacy_words(words: str, match: Match) -> None:
    (rule,) = _legacy("-A POSTROUTING %s -j MASQUERADE" % words)
    assert rule.branches == (Branch(match),)
    assert not rule.features


def test_legacy_rest() -> None:
    lines = (
        "-A POSTROUTING -i cali+ -m mark --mark 0x4000/0x4000 -g MINE",
        "-A MINE -m owner --uid-owner 0 -m statistic --mode random --probability 0.5 -j MARK --set-xmark 0x10/0xf0",
        "-A MINE -p tcp -m multiport ! --ports 80 -j CT --notrack",
        "-A MINE -p 47 -m length --length 1000 -j NFQUEUE --queue-num 1",
        "-A MINE -p mystery -j CONNMARK --restore-mark",
    )
    rules = {rule.features or number: rule for number, rule in enumerate(_legacy(*lines))}
    assert len(rules) == len(lines)
    by_line = list(_legacy(*lines))
    gated = next(rule for rule in by_line if rule.chain == "POSTROUTING")
    assert (gated.marks_tested, gated.interfaces, gated.branches[0].chain) == (0x4000, ("cali+",), "MINE")
    marking, untracked, queued, connection = (rule for rule in by_line if rule.chain == "MINE")
    assert marking.features == {"owner", "statistic"} and marking.marks_set == 0xF0
    assert untracked.untracked and len(untracked.branches) == 2
    assert queued.features == {"length", "queue"} and queued.branches[0].match.protocol == ((47, 47),)
    assert connection.features == {"payload"} and connection.marks_set == 0xFFFFFFFF


# rules of nf_tables


def _nft(*expressions: bytes, version: int = 4, family: int = nft.IP, **sets: t.Sequence[bytes]) -> t.List[Rule]:
    table = nft.table(
        family, "t", {"c": ("nat", nft.POSTROUTING, 90)}, [("c", expressions)], t.cast(t.Any, sets) or None
    )
    found = nft_matches.read(table, (), version)
    assert found is not None and found.base == {"c": ("nat", 4, 90)}
    return list(found.rules)


def _one(*expressions: bytes, **options: t.Any) -> Match:
    (rule,) = _nft(*expressions, **options)
    ((match, chain),) = rule.branches
    assert chain is None
    return match


DADDR, SADDR = nft.payload(nft.NETWORK, 16, 4), nft.payload(nft.NETWORK, 12, 4)
DPORT = nft.payload(nft.TRANSPORT, 2, 2)


@pytest.mark.parametrize(
    ("expressions", "match"),
    [
        ([DADDR, nft.compare(address("10.1.2.3"))], Match(destination=(span("10.1.2.3/32"),))),
        ([DADDR, nft.compare(address("0.0.0.0"), nft.NOT_EQUAL)], Match(destination=((1, (1 << 32) - 1),))),
        # a prefix of whole bytes is loaded in part
        ([nft.payload(nft.NETWORK, 16, 2), nft.compare(b"\x0a\x01")], Match(destination=(span("10.1.0.0/16"),))),
        (
            [SADDR, nft.bitwise(b"\xff\xf0\0\0", bytes(4)), nft.compare(address("172.16.0.0"))],
            Match(source=(span("172.16.0.0/12"),)),
        ),
        (
            [DADDR, nft.between(address("10.0.0.1"), address("10.0.0.9"))],
            Match(destination=((0x0A000001, 0x0A000009),)),
        ),
        ([nft.meta(nft.L4PROTO), nft.compare(b"\x06")], Match(protocol=TCP)),
        ([DPORT, nft.compare(b"\0\x50")], Match(port=((80, 80),))),
        ([DPORT, nft.compare(b"\0\x64", nft.LESS_OR_EQUAL)], Match(port=((0, 100),))),
        ([DPORT, nft.compare(b"\0\x64", nft.GREATER)], Match(port=((101, 65535),))),
        ([DPORT, nft.compare(b"\0\x64", nft.LESS)], Match(port=((0, 99),))),
        # source and destination in one load, as newer releases of nft do
        (
            [nft.payload(nft.NETWORK, 12, 8), nft.compare(address("10.0.0.1") + address("10.0.0.2"))],
            Match(source=(span("10.0.0.1/32"),), destination=(span("10.0.0.2/32"),)),
        ),
        # type and code of ICMP stand where others have ports
        (
            [nft.meta(nft.L4PROTO), nft.compare(b"\x01"), nft.payload(nft.TRANSPORT, 0, 2), nft.compare(b"\x08\0")],
            Match(protocol=ICMP),
        ),
    ],
)
def test_nft_expressions(expressions: t.List[bytes], match: Match) -> None:
    assert _one(*expressions) == match


def test_nft_versions() -> None:
    only_v4 = [nft.meta(nft.NFPROTO), nft.compare(b"\x02"), DADDR, nft.compare(address("10.0.0.1"))]
    assert _one(*only_v4, family=nft.INET).destination == (span("10.0.0.1/32"),)
    assert _nft(*only_v4, family=nft.INET, version=6) == []
    only_v6 = [nft.payload(nft.NETWORK, 24, 8), nft.compare(address("fd00:1::")[:8])]
    assert _one(*only_v6, family=nft.IP6, version=6).destination == (span("fd00:1::/64"),)
    assert nft_matches.read(nft.table(nft.IP6, "t", {}), (), 4) is None


def _intervals(*networks: str) -> t.List[bytes]:
    """Elements of a set with intervals: where each begins, and where it is over."""
    found = []
    for network in networks:
        first, last = span(network)
        found += [nft.element(first.to_bytes(4, "big")), nft.element((last + 1).to_bytes(4, "big"), end=True)]
    return found


def test_nft_sets() -> None:
    members = _intervals("10.0.0.0/8", "192.168.1.0/24")
    assert _one(DADDR, nft.lookup("s"), s=members).destination == (span("10.0.0.0/8"), span("192.168.1.0/24"))
    outside = _one(DADDR, nft.lookup("s", inverted=True), s=members).destination
    assert outside == spans.complement((span("10.0.0.0/8"), span("192.168.1.0/24")), (1 << 32) - 1)
    last = [nft.element(address("224.0.0.0"))]  # an interval to the end of the address space has no end
    assert _one(DADDR, nft.lookup("s"), s=[*members, *last, nft.element(address("0.0.0.0"), end=True)]).destination == (
        span("10.0.0.0/8"),
        span("192.168.1.0/24"),
        (224 << 24, (1 << 32) - 1),
    )


def test_nft_map_of_services() -> None:
    """address . protocol . port : verdict, as kube-proxy has it."""
    key = [
        nft.payload(nft.NETWORK, 16, 4, nft.small(0)),
        nft.meta(nft.L4PROTO, nft.small(1)),
        nft.payload(nft.TRANSPORT, 2, 2, nft.small(2)),
        nft.lookup("m", register=nft.small(0)),
    ]
    members = [
        nft.element(address("10.96.0.1") + b"\x06\0\0\0" + b"\x01\xbb\0\0", chain="one"),
        nft.element(b"", chain="rest"),
    ]
    (rule,) = _nft(*key, m=members)
    service = Match(destination=(span("10.96.0.1/32"),), protocol=TCP, port=((443, 443),))
    assert sorted(rule.branches, key=lambda branch: str(branch.chain)) == [
        Branch(service, "one"),
        Branch(Match(), "rest"),
    ]


def test_nft_intervals_in_several_fields() -> None:
    key = [
        nft.payload(nft.NETWORK, 16, 4, nft.small(0)),
        nft.payload(nft.TRANSPORT, 2, 2, nft.small(1)),
        nft.lookup("s", register=nft.small(0)),
    ]
    member = nft.element(address("10.0.0.0") + b"\0\x01\0\0", address("10.255.255.255") + b"\x04\0\0\0")
    assert _one(*key, s=[member]) == Match(destination=(span("10.0.0.0/8"),), port=((1, 1024),))


def test_nft_marks_jumps_and_features() -> None:
    (rule,) = _nft(nft.meta(nft.MARK), nft.bitwise(b"\0\x40\0\0", bytes(4)), nft.compare(b"\0\x40\0\0"), nft.jump("x"))
    assert (rule.marks_tested, rule.branches) == (0x4000, (Branch(Match(), "x"),))
    (rule,) = _nft(nft.meta(nft.MARK), nft.bitwise(b"\xef\xff\xff\xff", b"\x10\0\0\0"), nft.set_meta(nft.MARK))
    assert (rule.marks_set, rule.marks_tested) == (0x10, 0)
    (rule,) = _nft(nft.meta(nft.SKUID), nft.compare(bytes(4)), nft.expression("numgen"), nft.expression("notrack"))
    assert rule.features == {"owner", "numgen"} and rule.untracked
    (rule,) = _nft(nft.meta(nft.IIFNAME), nft.compare(b"cali"), nft.expression("mystery"))
    assert rule.interfaces == ("cali+",) and rule.features == {"mystery"}
    (rule,) = _nft(nft.meta(nft.IIFNAME), nft.compare(b"eth0".ljust(16, b"\0")))
    assert rule.interfaces == ("eth0",)


@given(st.binary(max_size=60))
def test_nft_damage_is_no_trap(data: bytes) -> None:
    for name in ("payload", "cmp", "lookup", "bitwise", "range", "meta", "immediate"):
        try:
            _nft(nft.expression(name, data))
        except (IndexError, KeyError, struct.error, TypeError, ValueError):
            pass


# extensions of xtables


def test_extensions() -> None:
    def read(name: str, info: bytes, version: int = 4) -> t.Optional[t.List[Match]]:
        return xt_matches.read(name, info, version, ())

    assert read("tcp", struct.pack("=HHHHBBBB", 0, 65535, 80, 90, 0, 0, 0, 0)) == [Match(port=((80, 90),))]
    assert read("tcp", struct.pack("=HHHHBBBB", 0, 65535, 80, 80, 0, 0, 0, 2)) == [Match(port=((0, 79), (81, 65535)))]
    assert read("udp", struct.pack("=HHHHB", 53, 53, 0, 65535, 0)) == [Match(source_port=((53, 53),))]
    ports = struct.pack("=15H", 22, 443, 444, *([0] * 12))
    multiport = bytes((1, 3)) + ports + bytes((0, 1, 0)) + bytes(12) + b"\0"
    assert read("multiport", multiport) == [Match(port=((22, 22), (443, 444)))]
    bounds = b"".join(address(one).ljust(16, b"\0") for one in ("0.0.0.0", "0.0.0.0", "10.0.0.1", "10.0.0.9"))
    assert read("iprange", bounds + b"\x02") == [Match(destination=((0x0A000001, 0x0A000009),))]
    sctp = struct.pack("=HHHH", 80, 80, 0, 0) + bytes(52) + struct.pack("=II", 2, 0)
    assert read("sctp", sctp) == [Match(port=((80, 80),))]
    assert read("comment", bytes(256)) == [Match()]
    assert read("mystery", b"") is None


# sets of ipset


def _set(kind: str, *entries: bytes, name: str = "s", index: int = 0, header: bytes = b"") -> ipsets.IpSet:
    return ipsets.IpSet(name, kind, index, netlink.nest(7, header), tuple(entries))


def _ip(kind: int, text: str) -> bytes:
    return netlink.nest(kind, netlink.attribute(1, address(text)))


def test_sets_of_ipset() -> None:
    net = _set("hash:net", _ip(1, "10.0.0.0") + netlink.attribute(3, b"\x08"), name="nets")
    assert ipset_matches.read(net, [False], ()) == [Match(destination=(span("10.0.0.0/8"),))]
    assert ipset_matches.read(net, [True], ()) == [Match(source=(span("10.0.0.0/8"),))]
    port = netlink.attribute(4, b"\0\x50") + netlink.attribute(7, b"\x06")
    three = _set("hash:ip,port,ip", _ip(1, "10.0.0.1") + port + _ip(20, "10.0.0.2"))
    assert ipset_matches.read(three, [False, False, True], ()) == [
        Match(destination=(span("10.0.0.1/32"),), source=(span("10.0.0.2/32"),), port=((80, 80),), protocol=TCP)
    ]
    ports = _set("bitmap:port", netlink.attribute(4, b"\0\x16"))
    assert ipset_matches.read(ports, [False], ()) == [Match(port=((22, 22),), protocol=TCP)]
    masked = _set("hash:ip", _ip(1, "10.1.2.0"), header=netlink.attribute(20, b"\x18"))
    assert ipset_matches.read(masked, [False], ()) == [Match(destination=(span("10.1.2.0/24"),))]
    ranged = _set("bitmap:ip", _ip(1, "10.0.0.1") + _ip(2, "10.0.0.9"))
    assert ipset_matches.read(ranged, [False], ()) == [Match(destination=((0x0A000001, 0x0A000009),))]
    of_sets = _set("list:set", netlink.text(18, "nets"))
    assert ipset_matches.read(of_sets, [False], (net,)) == ipset_matches.read(net, [False], ())


def test_rules_with_sets() -> None:
    net = _set("hash:net", _ip(1, "10.0.0.0") + netlink.attribute(3, b"\x08"), name="nets", index=3)
    (rule,) = _legacy("-A POSTROUTING -m set ! --match-set nets dst -j MASQUERADE", sets=[net])
    outside = spans.complement((span("10.0.0.0/8"),), (1 << 32) - 1)
    assert rule.branches == (Branch(Match(destination=outside)),)
    assert xt_matches.read("set", struct.pack("=HBB", 3, 1, 1), 4, [net]) == [Match(destination=outside)]
    assert xt_matches.read("set", struct.pack("=HBB", 3, 1, 2), 4, [net]) == [Match(source=(span("10.0.0.0/8"),))]
    assert xt_matches.read("set", struct.pack("=HBB", 4, 1, 2), 4, [net]) is None
