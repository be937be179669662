# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy comes out as the rules that the reference agent makes of it, and packets meet them."""

from __future__ import annotations

import typing as t

import pytest
from support.marks import iptables_only
from support.modules import apply
from support.namespaces import Namespace
from support.programs import Programs, is_restore
from support.topology import ADDRESSES, Topology
from support.variants import NFTABLES, Variant

CHAIN = "IP-MASQ-AGENT"
JUMP = "-m addrtype ! --dst-type LOCAL -j " + CHAIN
RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
MIXED = ["10.244.0.0/16", "fc00::/7"]
LINK_LOCAL = {"ipv4": "169.254.0.0/16", "ipv6": "fe80::/10"}


def returns(*cidrs: str) -> t.List[str]:
    """One RETURN per range."""
    return ["-d %s -j RETURN" % cidr for cidr in cidrs]


#: name -> (family, options, ranges that are exempt, in order)
CASES: t.Dict[str, t.Tuple[str, t.Dict[str, t.Any], t.List[str]]] = {
    "v4 empty list": ("ipv4", {"non_masquerade_cidrs": []}, ["169.254.0.0/16"]),
    "v4 default": ("ipv4", {}, ["169.254.0.0/16"] + RFC1918),
    "v4 own list keeps its order": (
        "ipv4",
        {"non_masquerade_cidrs": ["192.168.0.0/16", "10.1.2.3/32", "10.244.0.0/16"]},
        ["169.254.0.0/16", "192.168.0.0/16", "10.1.2.3/32", "10.244.0.0/16"],
    ),
    "v4 of a mixed list": (
        "ipv4",
        {"non_masquerade_cidrs": MIXED, "enable_ipv6": True},
        ["169.254.0.0/16", "10.244.0.0/16"],
    ),
    "v4 link-local masqueraded": ("ipv4", {"masq_link_local": True}, RFC1918),
    "v4 link-local and empty list": ("ipv4", {"masq_link_local": True, "non_masquerade_cidrs": []}, []),
    "v6 default": ("ipv6", {"enable_ipv6": True}, ["fe80::/10"]),
    "v6 empty list": ("ipv6", {"enable_ipv6": True, "non_masquerade_cidrs": []}, ["fe80::/10"]),
    "v6 of a mixed list": ("ipv6", {"enable_ipv6": True, "non_masquerade_cidrs": MIXED}, ["fe80::/10", "fc00::/7"]),
    "v6 link-local masqueraded": (
        "ipv6",
        {"enable_ipv6": True, "masq_link_local_ipv6": True, "non_masquerade_cidrs": []},
        [],
    ),
    "v6 keeps link-local when v4 does not": (
        "ipv6",
        {"enable_ipv6": True, "masq_link_local": True},
        ["fe80::/10"],
    ),
}


@pytest.fixture
def old_iptables(programs: Programs) -> Programs:
    """Firewall programs that do not know --random-fully, as before 1.6.2."""
    programs.misbehave(
        lambda name: name != "nft" and not name.endswith("-save"),
        'case "$*" in *--version*|*-V*) "$real" "$@" | sed "s/v1[.][0-9.]*/v1.6.1/"; exit;; esac\n'
        'case "$*" in *random-fully*) echo "unknown option \\"--random-fully\\"" >&2; exit 2;; esac\n'
        'case "$*" in *-h*) "$real" "$@" | sed "/random-fully/d"; exit;; esac\n'
        'exec "$real" "$@"',
    )
    programs.misbehave(
        is_restore,
        'case "$*" in *--version*|*-V*) "$real" "$@" | sed "s/v1[.][0-9.]*/v1.6.1/"; exit;; esac\n'
        "text=$(cat; echo x)\n"
        'case "$text" in *random-fully*) echo "unknown option \\"--random-fully\\"" >&2; exit 2;; esac\n'
        'printf "%s" "${text%x}" | "$real" "$@"',
    )
    return programs


@pytest.mark.parametrize("case", CASES)
def test_policy_becomes_these_rules_in_this_order(ns: Namespace, variant: Variant, case: str) -> None:
    family, options, exempt = CASES[case]
    done = apply(ns, backend=variant.backend, **options)
    assert variant.rules(ns, family) == returns(*variant.in_order(exempt)) + ["-j MASQUERADE --random-fully"]
    assert variant.jumps(ns, family) == [JUMP]
    assert done["changed"] is True


@pytest.mark.parametrize("wanted", [True, False], ids=["random-fully on", "random-fully off"])
def test_ports_are_random_where_the_program_can(
    ns: Namespace, variant: Variant, wanted: bool, family: str, old_iptables: Programs
) -> None:
    options = {"backend": variant.backend, "enable_ipv6": True, "random_fully": wanted, "non_masquerade_cidrs": []}
    for path, known in ((old_iptables.path, variant is NFTABLES), (None, True)):
        apply(ns, path=path, **options)
        random = " --random-fully" if wanted and known else ""
        assert variant.rules(ns, family) == [*returns(LINK_LOCAL[family]), "-j MASQUERADE" + random]
        assert variant.jumps(ns, family) == [JUMP]


def test_without_enable_ipv6_no_ipv6_table_appears(ns: Namespace, variant: Variant) -> None:
    apply(ns, backend=variant.backend)
    assert not variant.present(ns, "ipv6")


@pytest.mark.parametrize(
    "ranges, shares",
    [
        (["42"], [None]),
        (["42-44"], [None]),
        (["1024-29999", "32768-65535"], [0.469292562840114, None]),
        (["1024-29999", "32768-49151", "61000-65535"], [0.5807279140612474, 0.7831739961759082, None]),
    ],
    ids=lambda value: ",".join(map(str, value)),
)
def test_to_ports_share_connections_by_the_size_of_the_ranges(
    ns: Namespace, variant: Variant, family: str, ranges: t.List[str], shares: t.List[t.Optional[float]]
) -> None:
    options = {"backend": variant.backend, "enable_ipv6": True, "non_masquerade_cidrs": [], "to_ports": ranges}
    apply(ns, **options)
    expected = returns(LINK_LOCAL[family])
    for protocol in ("tcp", "udp", "sctp"):
        for ports, share in zip(ranges, shares):
            words = ["-p", protocol]
            words += [] if share is None else ["-m statistic --mode random --probability %.8f" % share]
            words += ["-j MASQUERADE --to-ports", ports, "--random-fully"]
            expected.append(" ".join(words))
    assert variant.rules(ns, family) == expected + ["-j MASQUERADE --random-fully"]
    assert apply(ns, **options)["changed"] is False


def test_the_node_s_own_traffic_is_masqueraded_too_unless_the_destination_is_exempt(
    topology: Topology, variant: Variant, family: str
) -> None:
    """A BGP speaker that uses a loopback address: its peers must be exempt."""
    a = ADDRESSES[family]
    loopback, (peer, other) = a.pods.replace("0/24", "99").replace("::/64", "::99"), a.outside
    # nodad: without it the kernel checks an address of IPv6 first, some time after the command.
    topology.node.run("ip", "address", "add", loopback, "dev", "lo", *(["nodad"] if family == "ipv6" else []))
    topology.node.run("ip", "route", "replace", "default", "via", a.peer, "src", loopback)
    apply(topology.node, backend=variant.backend, enable_ipv6=True, non_masquerade_cidrs=[])
    assert topology.ask(peer, other, client=topology.node) == {peer: a.node, other: a.node}
    exempt = [peer + ("/32" if family == "ipv4" else "/128")]
    apply(topology.node, backend=variant.backend, enable_ipv6=True, non_masquerade_cidrs=exempt)
    assert topology.ask(peer, other, client=topology.node) == {peer: loopback, other: a.node}


@iptables_only
def test_any_chain_name_that_is_allowed_works(ns: Namespace, variant: Variant) -> None:
    name = "my_own.masq-chain-28-letters"
    assert len(name) == 28
    apply(ns, backend=variant.backend, masq_chain=name)
    assert variant.jumps(ns, "ipv4", name) == ["-m addrtype ! --dst-type LOCAL -j " + name]
    assert apply(ns, backend=variant.backend, masq_chain=name)["changed"] is False


@iptables_only
def test_a_new_chain_name_leaves_nothing_under_the_old_one(ns: Namespace, variant: Variant) -> None:
    apply(ns, backend=variant.backend, masq_chain="FIRST")
    apply(ns, backend=variant.backend, masq_chain="SECOND")
    assert variant.jumps(ns, "ipv4", "FIRST") == []
    assert variant.rules(ns, "ipv4", "FIRST") is None
    assert len(variant.jumps(ns, "ipv4", "SECOND")) == 1
