# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From one form of a policy to another: each connection meets the old policy or the new one, never a third.

``IP_MASQ_REWRITES`` says how often the policy changes under a flood.
"""

from __future__ import annotations

import errno
import itertools
import os
import typing as t

import pytest
from support.flood import Flood
from support.many_ranges import many_long_ranges, many_ranges
from support.modules import apply, run_module, run_modules
from support.programs import Programs
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, EXEMPT_RANGES, NFTABLES, VARIANTS, Variant

FIXED = {"ipv4": "198.51.100.7", "ipv6": "2001:db8:1::7"}
PODS = ["10.244.0.0/16", "fd00:10:244::/48"]
#: An even number. A gap of microseconds needs many, and a machine that has nothing else to do.
REWRITES = int(os.environ.get("IP_MASQ_REWRITES", "8"))
#: of each family in ADDRESSES: two exempt destinations, two others
FIRST_EXEMPT, SECOND_EXEMPT = ["10.99.0.1/32", "fd00:99::1/128"], ["172.20.0.1/32", "fc00:77::1/128"]
FIRST_OUTSIDE = ["203.0.113.10/32", "2001:db8:99::1/128"]
SOME, OTHERS = ([*many_ranges(octet=octet), *many_long_ranges(octet=octet)] for octet in (11, 12))

#: Two policies, and what these destinations see with either.
CHANGES: t.Dict[str, t.Tuple[t.Dict[str, t.Any], t.Dict[str, t.Any], str]] = {
    "sources come and go": ({}, {"source_cidrs": PODS}, "pod pod node node"),
    "entries come and go": (
        {},
        {
            "rules": [
                {"action": "masquerade", "destinations": SECOND_EXEMPT, "ports": ["1-65535"]},
                {"action": "exempt", "destinations": FIRST_OUTSIDE},
            ]
        },
        "pod pod/node node/pod node",
    ),
    "sources come with fewer ranges": (
        {},
        {"source_cidrs": ["10.7.0.0/16", "fd00:7::/64"], "non_masquerade_cidrs": ["10.0.0.0/9", "fd00::/9"]},
        "pod pod node/pod node/pod",
    ),
    "many ranges change": (
        {"non_masquerade_cidrs": [*FIRST_EXEMPT, *SOME], "cidr_limit": 5000},
        {"non_masquerade_cidrs": [*FIRST_EXEMPT, *FIRST_OUTSIDE, *OTHERS], "cidr_limit": 5000},
        "pod node pod/node node",
    ),
    "fixed addresses come and go": (
        {"to_ports": ["1024-65535"]},
        {"snat": [{"address": one} for one in FIXED.values()], "source_cidrs": PODS},
        "pod pod node/fixed node/fixed",
    ),
}


def add_fixed(topology: Topology) -> None:
    """Add the fixed addresses to the node, without preferring them."""
    for address, length in zip(FIXED.values(), (24, 64)):
        topology.node.run("ip", "address", "add", "%s/%d" % (address, length), "dev", "eth0", "preferred_lft", "0")


def expected(words: str) -> t.Dict[str, t.Set[str]]:
    """The sources that destinations may see, by the words of CHANGES."""
    found = {}
    for family, a in ADDRESSES.items():
        names = {"pod": a.pod, "node": a.node, "fixed": FIXED[family]}
        for destination, sources in zip((*a.exempt[:2], *a.outside[:2]), words.split()):
            found[destination] = {names[name] for name in sources.split("/")}
    return found


#: nftables writes each kind of change in other steps. A table of iptables is replaced as a whole, whatever changes: of
#: each change, test_a_write_that_fails_leaves_the_old_policy_or_the_new_one shows that.
FLOODED = [(NFTABLES.backend, change) for change in CHANGES] + list(zip(VARIANTS, CHANGES))


@pytest.mark.parametrize(("variant", "change"), FLOODED, indirect=["variant"])
def test_no_connection_of_a_flood_meets_a_third_policy(topology: Topology, variant: Variant, change: str) -> None:
    add_fixed(topology)
    one, other, words = CHANGES[change]
    common = {"backend": variant.backend, "enable_ipv6": True, "non_masquerade_cidrs": EXEMPT_RANGES}
    apply(topology.node, **{**common, **one})
    allowed = expected(words)
    with Flood(topology, *allowed) as flood:
        results = run_modules(topology.node, [{**common, **other}, {**common, **one}] * (REWRITES // 2))
    assert [result["changed"] for result in results] == [True] * REWRITES
    assert flood.sources == allowed, flood.seen
    assert flood.least > 1000


#: Lets one of the programs that write fail, by its number.
FAILS = (
    'n=$(($(cat "$0.count" 2>/dev/null || echo 0) + 1)); echo $n >"$0.count"; '
    'if [ $n = %d ]; then echo "Input/output error" >&2; exit 1; fi; exec "$real" "$@"'
)


def failing(failed: int) -> t.Callable[[t.List[t.Any]], t.List[t.Any]]:
    """The same of writes over netlink."""
    numbers = itertools.count(1)

    def write(changes: t.List[t.Any]) -> t.List[t.Any]:
        if next(numbers) == failed:
            raise OSError(errno.EIO, "")
        return changes

    return write


def seen(topology: Topology) -> t.Dict[str, str]:
    """What IPv4 destinations see."""
    a = ADDRESSES["ipv4"]
    return topology.ask(*a.exempt[:2], *a.outside[:2])


@pytest.mark.parametrize(
    ("variant", "change"),
    [(NFTABLES.backend, change) for change in CHANGES] + list(zip(itertools.cycle(VARIANTS), CHANGES)),
    indirect=["variant"],
)
def test_a_write_that_fails_leaves_the_old_policy_or_the_new_one(
    topology: Topology, variant: Variant, programs: Programs, change: str
) -> None:
    add_fixed(topology)
    one, other, _words = (
        {name: _ipv4(value) for name, value in part.items()} if isinstance(part, dict) else part
        for part in CHANGES[change]
    )
    common = {"backend": variant.backend, "non_masquerade_cidrs": _ipv4(EXEMPT_RANGES)}
    old, new = {**common, **one}, {**common, **other}
    apply(topology.node, **old)
    apply(topology.node, path=programs.path, **new)
    afterwards = seen(topology)
    for number, _name in enumerate(programs.writes(), 1):
        apply(topology.node, **old)
        before, saw = topology.node.run("nft", "-s", "list", "ruleset"), seen(topology)
        listed = variant.listing(topology.node, "ipv4", "IP-MASQ-AGENT")
        programs.misbehave_in_writes(FAILS % number, failing(number))
        for count in programs.path.glob("*.count"):
            count.unlink()
        result = run_module(topology.node, path=programs.path, **new)
        if not result.get("failed") or "The new rules are active" in result["msg"]:
            assert variant is NFTABLES and number > 1 and seen(topology) == afterwards
        else:
            assert "Input/output error" in result["msg"] and seen(topology) == saw
            assert variant.listing(topology.node, "ipv4", "IP-MASQ-AGENT") == listed
            assert topology.node.run("nft", "-s", "list", "ruleset") == before
        # What was left is no hindrance.
        apply(topology.node, **new)
        assert seen(topology) == afterwards
        assert not apply(topology.node, **new)["changed"]
    apply(topology.node, backend=variant.backend, state="absent")
    for backend in BACKENDS.values():
        assert backend.rules(topology.node, "ipv4") is None and backend.jumps(topology.node, "ipv4") == []
    assert "ip_masq_agent" not in topology.node.run("nft", "list", "tables")


def _ipv4(value: t.Any) -> t.Any:
    """Options without what is IPv6."""
    if isinstance(value, dict):
        return {name: _ipv4(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_ipv4(one) for one in value if ":" not in str(one if not isinstance(one, dict) else one.get("address"))]
    return value
