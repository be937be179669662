# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verification does not know is said, and never counted as traffic that matches the policy."""

from __future__ import annotations

import ipaddress
import sys
import typing as t

import pytest
from support.modules import apply, info
from support.namespaces import Namespace
from support.topology import ADDRESSES, Topology

_EXEMPT = ADDRESSES["ipv4"].exempt[0]
_HIDDEN = ADDRESSES["ipv4"].outside[0]
_OPTIONS: t.Dict[str, t.Any] = {"backend": "iptables_nft"}


@pytest.fixture
def node(topology: Topology) -> Namespace:
    """A node with the default policy."""
    apply(topology.node, **_OPTIONS)
    return topology.node


def _verify(node: Namespace, **options: t.Any) -> t.Dict[str, t.Any]:
    return info(node, **{**_OPTIONS, **options}, verify=True)


def test_a_condition_that_is_not_understood_is_named_with_its_rule_and_destinations(node: Namespace) -> None:
    assert _verify(node, non_masquerade_cidrs=["10.0.0.0/8"])["untested"] == []
    rule = ("POSTROUTING", "-d", _EXEMPT, "-m", "ttl", "--ttl-eq", "5", "-j", "MASQUERADE")
    node.run("iptables-nft", "-t", "nat", "-I", *rule)
    found = _verify(node)
    assert found["verified"] is None and "; not tested: " in found["summary"]
    (one,) = found["untested"]
    assert (one["code"], one["ranges"]) == ("unknown_rule", [_EXEMPT + "/32"])
    assert "--ttl-eq 5" in one["text"] and "because of the match ttl" in one["text"]


def test_a_rule_with_such_a_condition_that_only_counts_is_no_reason(node: Namespace) -> None:
    node.run("iptables-nft", "-t", "nat", "-I", "POSTROUTING", "-m", "ttl", "--ttl-eq", "63")
    assert _verify(node)["untested"] == []


def test_a_node_without_pods_is_not_tested(ns: Namespace) -> None:
    apply(ns, backend="iptables_nft")
    found = _verify(ns, backend="iptables_nft")
    assert found["verified"] is None and [one["code"] for one in found["untested"]] == ["no_pods"]
    assert "--pod-cidrs" in found["summary"]


@pytest.mark.parametrize(
    "known", ("neighbour add 100.64.0.9 lladdr 02:00:00:00:00:02 dev pods", "link set pods arp off")
)
def test_a_route_out_of_a_port_of_a_bridge_leads_to_known_neighbours_alone(node: Namespace, known: str) -> None:
    pods = ADDRESSES["ipv4"].gateway + "/24"
    lines = ["link add cni0 up type bridge", "link set pods master cni0", "address del %s dev pods" % pods]
    lines += ["address add %s dev cni0" % pods, "route add 100.64.0.0/10 dev pods"]
    node.run("ip", "-batch", "-", stdin="\n".join(lines))
    found = _verify(node)
    assert (found["verified"], found["untested"]) == (True, []), found["summary"]
    node.run("ip", *known.split())
    found = _verify(node)
    assert [one["ranges"] for one in found["untested"]] == [["100.64.0.0/10"]], found["untested"]
    assert found["untested"][0]["text"].endswith("its neighbours at pods, a port of a bridge: route over the bridge")
    assert not [one for one in found["conflicts"] if one["severity"] == "error"], found["conflicts"]


def test_questions_beyond_the_limit_are_not_tested(node: Namespace) -> None:
    found = _verify(node, max_questions=2)
    assert found["verified"] is None and [one["code"] for one in found["untested"]] == ["limit"]
    assert found["questions"] == 2 and found["questions_left_out"] > 0


def test_an_address_of_a_link_that_has_none_is_a_conflict(node: Namespace) -> None:
    """On an unnumbered link MASQUERADE takes an address of another one, here of the pods' link."""
    before = _verify(node)
    assert before["verified"] is True, before["summary"]
    uplink = node.run("ip", "-o", "-4", "address", "show", "to", ADDRESSES["ipv4"].node).split()[1]
    routes = node.run("ip", "route", "show", "default").split()
    node.run("ip", "address", "flush", "dev", uplink)
    node.run("ip", "route", "add", "default", "via", routes[2], "dev", uplink, "onlink")
    found = _verify(node)
    assert found["verified"] is False, found["summary"]
    assert any(uplink in one["remedy"] and "snat" in one["remedy"] for one in found["conflicts"]), found["conflicts"]


def test_a_rule_that_writes_addresses_behind_the_translation_is_named(node: Namespace) -> None:
    rule = "ip daddr %s ip saddr set 192.0.2.200" % _EXEMPT
    node.run("nft", "add table ip late { chain c { type filter hook postrouting priority 300; %s; }; }" % rule)
    found = _verify(node)
    assert found["verified"] is not True, found["summary"]
    assert ["unknown_rule", [_EXEMPT + "/32"]] in [[one["code"], one["ranges"]] for one in found["untested"]]


def test_a_conflict_says_no_more_than_was_seen(node: Namespace) -> None:
    """One rule that hits one service of one range, and all services of another, is two conflicts."""
    other = ADDRESSES["ipv4"].exempt[1]
    elements = "%s . 443, %s . 0-65535" % (_EXEMPT, other)
    rule = "ip daddr . tcp dport { %s } masquerade" % elements
    node.run("nft", "add table ip other { chain c { type nat hook postrouting priority 90; %s; }; }" % rule)
    found = _verify(node)
    assert sorted((one["range"], one["services"]) for one in found["conflicts"]) == sorted(
        [(_EXEMPT + "/32", ["tcp/443"]), (other + "/32", ["tcp"])]
    )


def test_a_conflict_of_some_source_ports_says_which(node: Namespace) -> None:
    rule = ("POSTROUTING", "-d", _EXEMPT, "-p", "udp", "--sport", "4000:4010", "-j", "MASQUERADE")
    node.run("iptables-nft", "-t", "nat", "-I", *rule)
    (found,) = _verify(node)["conflicts"]
    assert (found["range"], found["services"]) == (_EXEMPT + "/32", ["udp from port 4000-4010"])


def test_what_a_filter_seldom_lets_pass_is_tested(node: Namespace) -> None:
    """A drop breaks no promise; the others leave, and two verifications of a node have one answer."""
    node.run("iptables-nft", "-t", "nat", "-I", "POSTROUTING", "-d", _EXEMPT, "-j", "MASQUERADE")
    rule = "-m statistic --mode random --probability 0.98 -j DROP"
    node.run("iptables-nft", "-A", "FORWARD", *rule.split())
    first, again = (_verify(node) for _time in range(2))
    assert [(one["range"], one["severity"]) for one in first["conflicts"]] == [(_EXEMPT + "/32", "error")]
    assert first == again


@pytest.mark.parametrize("addresses", ("198.51.100.0-198.51.100.1", "198.51.100.1-198.51.100.2"))
def test_a_hash_over_addresses_of_which_one_is_the_nodes_is_a_conflict(node: Namespace, addresses: str) -> None:
    rule = "-t nat -I POSTROUTING -d 203.0.113.0/24 -j SNAT --to-source %s" % addresses
    node.run("iptables-nft", *rule.split())
    (found,) = _verify(node)["conflicts"]
    assert (found["range"], found["severity"]) == ("203.0.113.0/24", "warning")
    assert found["seen"] in addresses.split("-") and found["seen"] != "198.51.100.1"


_MASQUERADED = "iptables-nft -t nat -I POSTROUTING -d %s -j MASQUERADE" % _EXEMPT
_LATE = "type nat hook postrouting priority 90; ip daddr %s" % _EXEMPT
#: Rules about what a pod can choose, and the services that they hit.
CHOSEN: t.Mapping[str, t.Tuple[t.Tuple[str, ...], t.List[str]]] = {
    "GRE": ((_MASQUERADED + " -p gre",), ["protocol 47"]),
    "UDP-Lite": ((_MASQUERADED + " -p udplite",), ["protocol 136"]),
    "a number": ((_MASQUERADED + " -p 253",), ["protocol 253"]),
    "an entry of ipset": (
        (
            "ipset create some hash:ip,port",
            "ipset add some %s,gre:0" % _EXEMPT,
            "iptables-nft -t nat -I POSTROUTING -m set --match-set some dst,dst -j MASQUERADE",
        ),
        ["protocol 47"],
    ),
    "port 0": ((_MASQUERADED + " -p tcp --dport 0",), ["tcp/0"]),
    "from port 0": ((_MASQUERADED + " -p udp --sport 0",), ["udp from port 0"]),
    "the first packets of a connection": ((_MASQUERADED + " -m conntrack --ctstate NEW",), []),
    "SYN": ((_MASQUERADED + " -p tcp --syn",), ["tcp"]),
    "all others": (
        ("nft add table ip o { chain c { %s ip protocol 2-255 ip protocol != { tcp, udp } masquerade; }; }" % _LATE,),
        ["protocol 2-5", "protocol 7-16", "protocol 18-57", "protocol 59-131", "sctp", "protocol 133-255"],
    ),
}


def _carry_out(node: Namespace, commands: t.Iterable[str]) -> None:
    for command in commands:
        program, _space, rest = command.partition(" ")
        node.run(program, *([rest] if program == "nft" else rest.split()))


@pytest.mark.parametrize("chosen", CHOSEN)
def test_what_a_pod_can_choose_is_no_constant(node: Namespace, chosen: str) -> None:
    commands, services = CHOSEN[chosen]
    _carry_out(node, commands)
    (found,) = _verify(node)["conflicts"]
    assert (found["range"], found["services"], found["severity"]) == (_EXEMPT + "/32", services, "error")


_MAP = "map d { type ipv4_addr : mark; flags dynamic; size 100; }"
_FILLS = "chain f { type filter hook prerouting priority -200; ip daddr %s udp dport 9 add @d { ip daddr : 0x77 }; }"
_MARKS = "chain g { type filter hook prerouting priority -150; meta mark set ip daddr map @d; }"
_EARLY = "type filter hook prerouting priority -150;"
_INGRESS = "type filter hook ingress device pods priority 0;"
_HIDES = "chain c { type nat hook postrouting priority 90; meta mark 0x77 masquerade; }"
_FOLLOWS = "iptables-nft -t mangle -A PREROUTING "
_BEHIND = "type filter hook postrouting priority 150;"
_OTHER = "ip saddr set 192.0.2.200"
UNSEEN = {
    "RELATED": ("iptables-nft -t nat -I POSTROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",),
    "ct state": ("nft add table ip o { chain c { %s ct state related masquerade; }; }" % _LATE,),
    "without SYN": (_MASQUERADED + " -p tcp ! --syn",),
    "flags": ("nft add table ip o { chain c { %s tcp flags & (syn|ack) == ack masquerade; }; }" % _LATE,),
    "a map that rules fill": ("nft add table ip o { %s; %s; %s; %s; }" % (_MAP, _FILLS % _EXEMPT, _MARKS, _HIDES),),
    "a copy": ("iptables-nft -t mangle -A POSTROUTING -d %s -j TEE --gateway 198.51.100.9" % _EXEMPT,),
    "a copy of nft": ("nft add table ip o { chain c { %s dup to 198.51.100.9; }; }" % _LATE.replace("nat", "filter"),),
    "a copy of what is masqueraded": (
        "iptables-nft -t mangle -A FORWARD -d %s -j TEE --gateway 198.51.100.9" % _HIDDEN,
    ),
    "a copy of all": ("nft add table ip o { chain c { %s dup to 198.51.100.9; }; }" % _EARLY,),
    "a copy from the link": ("nft add table netdev o { chain c { %s dup to eth0; }; }" % _INGRESS,),
    "a copy of what follows": (_FOLLOWS + "-m conntrack --ctstate ESTABLISHED -j TEE --gateway 198.51.100.9",),
    "a copy of marked connections": (
        "iptables-nft -t mangle -A POSTROUTING -j CONNMARK --set-mark 1",
        _FOLLOWS + "-m connmark --mark 1 -j TEE --gateway 198.51.100.9",
    ),
    "a chain of what follows": (
        "iptables-nft -t mangle -N X",
        "iptables-nft -t mangle -A X -j TEE --gateway 198.51.100.9",
        _FOLLOWS + "-m conntrack --ctstate ESTABLISHED -j X",
    ),
    "what follows, by status": ("nft add table ip o { chain c { %s ct status seen-reply %s; }; }" % (_BEHIND, _OTHER),),
    "what follows, behind what accepts": (
        "nft add table ip o { chain x { %s; }; chain c { %s ct state vmap { new : accept, established : jump x }; }; }"
        % (_OTHER, _BEHIND),
    ),
    "a rate": (_MASQUERADED + " -m limit --limit 1/hour",),
    "a rate of nft": ("nft add table ip o { chain c { %s limit rate 1/hour masquerade; }; }" % _LATE,),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_what_no_packet_of_the_copy_shows_is_named_and_accuses_nobody(node: Namespace, what: str) -> None:
    _carry_out(node, UNSEEN[what])
    found = _verify(node)
    assert found["verified"] is None and found["conflicts"] == [], found["summary"]
    assert {one["code"] for one in found["untested"]} == {"unknown_rule"}


_ALONE = "iptables-nft -P FORWARD DROP"
FILTERS = {
    "a rate": ("iptables-nft -A FORWARD -p tcp --syn -m limit --limit 100/s -j ACCEPT", _ALONE),
    "messages": ("iptables-nft -A FORWARD -p icmp --icmp-type echo-request -j ACCEPT", _ALONE),
    "errors": ("iptables-nft -A FORWARD -p icmp --icmp-type 3/4 -j ACCEPT", _ALONE),
    "errors of nft": (
        "nft add table inet f { chain c { type filter hook forward priority 0; policy drop; "
        "meta l4proto tcp accept; icmp type { destination-unreachable, time-exceeded } accept; }; }",
    ),
    "bridged": ("iptables-nft -A FORWARD -m physdev --physdev-is-bridged -j ACCEPT", _ALONE),
    "a chain of what follows": (
        "iptables-nft -N X",
        "iptables-nft -A X -j ACCEPT",
        "iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j X",
    ),
    "owner": ("iptables-nft -A OUTPUT -m owner --uid-owner 0 -j ACCEPT", "iptables-nft -P OUTPUT DROP"),
    "RELATED": ("iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", _ALONE),
    "rpfilter": (
        "iptables-nft -t raw -A PREROUTING -m rpfilter --validmark --invert -j DROP",
        "ip route add blackhole 10.244.1.64/26 proto 80",
    ),
}


@pytest.mark.parametrize("what", FILTERS)
def test_what_only_lets_packets_pass_or_not_leaves_nothing_untested(node: Namespace, what: str) -> None:
    _carry_out(node, FILTERS[what])
    found = _verify(node)
    assert found["verified"] is True and found["untested"] == [], found["summary"]


def test_what_others_have_announced_accuses_no_range_that_is_kept(node: Namespace) -> None:
    """kindnet begins its chain with what belongs to other connections. Our rules, behind it, treat that rightly."""
    rules = "ct state established,related accept; ip daddr %s accept; masquerade" % _EXEMPT
    node.run("nft", "add table ip o { chain c { type nat hook postrouting priority 90; %s; }; }" % rules)
    found = _verify(node)
    assert found["verified"] is False, found["summary"]
    ranges = [ipaddress.ip_network(one["range"]) for one in found["conflicts"]]
    assert ranges and not any(ipaddress.ip_address(_EXEMPT) in one for one in ranges), ranges
    assert found["untested"] == []


_OUTSIDE = ADDRESSES["ipv4"].outside[0]
_RESTORE = "iptables-nft -t mangle -A PREROUTING -j CONNMARK --restore-mark --nfmask 0x%x --ctmask 0x%x"
_SAVE = "iptables-nft -t mangle -A PREROUTING -j CONNMARK --save-mark --nfmask 0x%x --ctmask 0x%x"
_HALF = "iptables-nft -t mangle -A PREROUTING -m mark --mark 0x0/0x3f00 -m statistic --mode random --probability 0.5 "
_SOCKET = "iptables-nft -t mangle -A PREROUTING -m socket --transparent -j MARK --set-mark 0x200"
_TO_SOCKET = ("ip rule add pref 9 fwmark 0x200/0xf00 lookup 2004", "ip route add local default dev lo table 2004")
_BRIDGE = 'nft add table bridge b { chain c { type filter hook prerouting priority -300; iifname "pods" %s; }; }'
#: What programs write on nodes of which everything can be tested, and what of the kind breaks the policy.
WRITTEN: t.Mapping[str, t.Tuple[t.Tuple[str, ...], t.Tuple[str, ...]]] = {
    "a part of a mark restored (AWS VPC CNI)": (
        (_RESTORE % (0x80, 0x80), "ip rule add pref 1024 fwmark 0x80/0x80 lookup main"),
        (
            "iptables-nft -t mangle -A PREROUTING -d %s -j CONNMARK --set-xmark 0x81/0x81" % _EXEMPT,
            "iptables-nft -t mangle -A PREROUTING -j MARK --set-mark 0x2",
            _RESTORE % (0x80, 0x80),
            _MASQUERADED + " -m mark --mark 0x82",
        ),
    ),
    "a part of a mark saved": (
        (_RESTORE % (0x3F00, 0x3F00), _HALF + "-j MARK --set-xmark 0x200/0x3f00", _SAVE % (0x3F00, 0x3F00)),
        (
            "iptables-nft -t mangle -A PREROUTING -j MARK --set-mark 0x205",
            _SAVE % (0xF00, 0x3F00),
            _MASQUERADED + " -m connmark --mark 0x200",
        ),
    ),
    "IPsec (strongSwan)": (
        ("iptables-nft -t nat -I POSTROUTING -o eth0 -m policy --dir out --pol ipsec -j ACCEPT",),
        (_MASQUERADED + " -m policy --dir out --pol none",),
    ),
    "the socket that sends (Istio)": (
        (_MASQUERADED + " -s 10.244.0.0/16 -p tcp -m owner --socket-exists",),
        (_MASQUERADED + " -p tcp -m owner ! --socket-exists",),
    ),
    "the user that sends": (
        ("nft add table ip o { chain c { %s ip saddr 10.244.0.0/16 meta skuid != 7 masquerade; }; }" % _LATE,),
        (_MASQUERADED + " -s 10.244.0.0/16 -m owner ! --uid-owner 7",),
    ),
    "hardware addresses (CNI bridge)": (
        (_BRIDGE % "ether saddr != 02:00:00:00:00:77 drop",),
        (_BRIDGE % "ether saddr != 02:00:00:00:00:77 drop", _MASQUERADED),
    ),
    "sockets (Cilium)": ((_SOCKET, *_TO_SOCKET), (_MASQUERADED,)),
    "TCP without SYN (Kube-OVN)": (
        (
            "iptables-nft -t nat -N OVN",
            "iptables-nft -t nat -I POSTROUTING -j OVN",
            "iptables-nft -t nat -A OVN -p tcp --tcp-flags SYN NONE -m conntrack --ctstate NEW -j RETURN",
            "iptables-nft -t nat -A OVN -d %s -j MASQUERADE" % _OUTSIDE,
        ),
        (
            "iptables-nft -t nat -I POSTROUTING -p tcp ! --tcp-flags SYN NONE -m conntrack --ctstate NEW "
            "-d %s -j MASQUERADE" % _EXEMPT,
        ),
    ),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_what_programs_write_is_tested_and_what_of_it_breaks_the_policy_is_found(
    topology: Topology, node: Namespace, what: str
) -> None:
    written, breaking = WRITTEN[what]
    _carry_out(node, written)
    found = _verify(node)
    assert (found["verified"], found["untested"], found["limits"]) == (True, [], []), found["summary"]
    assert topology.ask(_EXEMPT)[_EXEMPT] == ADDRESSES["ipv4"].pod
    _carry_out(node, breaking)
    found = _verify(node)
    assert {one["range"] for one in found["conflicts"]} == {_EXEMPT + "/32"}, found["summary"]
    assert found["untested"] == []
    assert topology.ask(_EXEMPT)[_EXEMPT] == ADDRESSES["ipv4"].node


#: Binds a socket to an address of another host.
_BOUND = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.setsockopt(0, 19, 1); s.bind((%r, 8080)); "


def test_a_socket_that_has_packets_masqueraded_is_named(topology: Topology, node: Namespace) -> None:
    _carry_out(node, [_SOCKET, _MASQUERADED + " -m mark --mark 0x200"])
    assert topology.ask(_EXEMPT, protocol="udp")[_EXEMPT] == ADDRESSES["ipv4"].pod
    code = _BOUND % _EXEMPT + "print('bound', flush=True); sys.stdin.read()"
    with node.popen(sys.executable, "-c", code) as process:
        assert process.stdout is not None and process.stdout.readline() == "bound\n"
        assert topology.ask(_EXEMPT, protocol="udp")[_EXEMPT] == ADDRESSES["ipv4"].node
        found = _verify(node)
        process.terminate()
    assert found["verified"] is None and found["conflicts"] == [], found["summary"]
    (one,) = found["untested"]
    assert one["ranges"] == [_EXEMPT + "/32"] and "socket" in one["text"]


def test_what_policies_of_ipsec_match_is_not_tested(node: Namespace) -> None:
    selected = "ip xfrm policy add src 10.244.1.0/24 dst 10.99.0.0/16 dir out tmpl src 198.51.100.1 dst 198.51.100.2"
    _carry_out(node, [selected + " proto esp mode tunnel", *WRITTEN["IPsec (strongSwan)"][0]])
    found = _verify(node)
    assert found["verified"] is None and found["conflicts"] == [], found["summary"]
    assert {one["code"] for one in found["untested"]} == {"ipsec", "unknown_rule"}


@pytest.mark.parametrize("changes", ["meta mark set 7", "ip daddr %s drop" % _EXEMPT])
def test_a_table_inside_of_a_bridge_that_does_more_is_named(node: Namespace, changes: str) -> None:
    _carry_out(node, [_BRIDGE % changes])
    found = _verify(node)
    assert found["verified"] is None and ["bridge b" in one["text"] for one in found["untested"]] == [True]


@pytest.mark.parametrize("backend", ["iptables_nft", "nftables"])
@pytest.mark.parametrize("rules", ["absent", "of another form"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_a_family_without_a_policy_is_named(topology: Topology, backend: str, rules: str, family: str) -> None:
    """Where the active rules are the policy, and those of one family are not of our form."""
    apply(topology.node, backend=backend, enable_ipv6=True)
    program, nft = ("iptables-nft", "ip") if family == "ipv4" else ("ip6tables-nft", "ip6")
    broken = {
        ("iptables_nft", "absent"): program + " -t nat -F IP-MASQ-AGENT",
        ("iptables_nft", "of another form"): "nft insert rule %s nat IP-MASQ-AGENT ip ttl 63 return" % nft,
        ("nftables", "absent"): "nft delete table %s ip_masq_agent" % nft,
        ("nftables", "of another form"): "nft insert rule %s ip_masq_agent postrouting tcp dport 80 return" % nft,
    }
    _carry_out(
        topology.node,
        [broken[backend, rules].replace("ip6 nat IP-MASQ-AGENT ip ttl", "ip6 nat IP-MASQ-AGENT ip6 hoplimit")],
    )
    found = _verify(topology.node, backend=backend)
    assert found["verified"] is None or (family, rules) == ("ipv6", "absent"), found["summary"]


def test_ipv6_behind_an_authentication_header_is_a_protocol(topology: Topology) -> None:
    """Conntrack sees the UDP inside, so its first packet meets rules about the protocol 51."""
    apply(topology.node, backend="iptables_nft", enable_ipv6=True)
    _carry_out(topology.node, ["ip6tables-nft -t nat -I POSTROUTING -p ah -j ACCEPT"])
    found = _verify(topology.node)
    assert {tuple(one["services"]) for one in found["conflicts"]} == {("protocol 51",)}


@pytest.mark.parametrize("range_of", ["0.0.0.0/8", "::/96", "::ffff:0:0/96"])
def test_ranges_that_seem_closed_are_tested(topology: Topology, range_of: str) -> None:
    apply(topology.node, backend="iptables_nft", enable_ipv6=True)
    program = "ip6tables-nft" if ":" in range_of else "iptables-nft"
    _carry_out(topology.node, ["%s -t nat -I POSTROUTING -d %s -j ACCEPT" % (program, range_of)])
    assert _verify(topology.node)["verified"] is False


def test_a_set_with_a_mask_is_copied(node: Namespace) -> None:
    made = ["create net hash:ip netmask 24", "add net 10.99.0.77", "create bits hash:ip bitmask 255.255.0.255"]
    _carry_out(node, ["ipset " + line for line in made])
    _carry_out(node, [_MASQUERADED.replace("-d " + _EXEMPT, "-m set --match-set net dst")])
    (found,) = _verify(node)["conflicts"]
    assert found["range"] == "10.99.0.0/24"


@pytest.mark.parametrize("hashed", ["iptables", "nft"])
def test_a_mark_from_a_hash_is_not_known(node: Namespace, hashed: str) -> None:
    """One of many packets has the mark for which a rule masquerades."""
    if hashed == "nft":
        rule = "ip daddr %s meta mark set jhash ip saddr . tcp dport mod 4000" % _EXEMPT
        node.run("nft", "add table ip m { chain c { type filter hook prerouting priority -150; %s; }; }" % rule)
    else:
        target = "HMARK --hmark-tuple src,dst,dport --hmark-mod 4000 --hmark-offset 1 --hmark-rnd 7"
        node.run("iptables-nft", *("-t mangle -A PREROUTING -d %s -p tcp -j %s" % (_EXEMPT, target)).split())
    node.run("iptables-nft", *"-t nat -I POSTROUTING -m mark --mark 0x5 -j MASQUERADE".split())
    found = _verify(node)
    assert found["verified"] is not True, found["summary"]
    assert [_EXEMPT + "/32"] in [one["ranges"] for one in found["untested"]], found["untested"]
