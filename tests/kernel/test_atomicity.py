# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Old rules or new rules, never anything between: under load, and when killed."""

from __future__ import annotations

import os
import random
import signal
import time
import typing as t

import pytest
from support.modules import ModuleRun, apply, run_modules
from support.namespaces import Namespace, until
from support.predecessors import of
from support.programs import NETLINK, Programs
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, EXEMPT_RANGES, NFTABLES, VARIANTS, Variant

CHAIN = "IP-MASQ-AGENT"
REWRITES = 30
KILLS = 10


def test_no_new_connection_is_wrong_while_the_rules_are_rewritten_many_times(
    topology: Topology, variant: Variant
) -> None:
    """Both families at once. What is exempt is so in both policies, what is outside is outside in both."""
    four, six = ADDRESSES["ipv4"], ADDRESSES["ipv6"]
    one = {
        "non_masquerade_cidrs": EXEMPT_RANGES,
        "enable_ipv6": True,
        "backend": variant.backend,
    }
    other = dict(one, non_masquerade_cidrs=["fc00::/7", "172.16.0.0/12", "10.96.0.0/11", "192.168.0.0/16", "2002::/16"])
    apply(topology.node, **one)
    stream = topology.stream(*four.exempt, *four.outside, *six.exempt, *six.outside)
    results = run_modules(topology.node, [other, one] * (REWRITES // 2))
    seen = stream.finish()
    assert [result["changed"] for result in results] == [True] * REWRITES
    expected = {}
    for a in (four, six):
        expected.update([(exempt, {a.pod}) for exempt in a.exempt] + [(outside, {a.node}) for outside in a.outside])
    assert {where: set(sources) for where, sources in seen.items()} == expected
    assert min(sum(sources.values()) for sources in seen.values()) > REWRITES


def test_exempt_destinations_stay_exempt_while_the_rules_come_and_go(topology: Topology, variant: Variant) -> None:
    """A jump to an empty or half-built chain would show here as an exempt destination that sees the node."""
    a = ADDRESSES["ipv4"]
    stream = topology.stream(*a.exempt)
    there = {"backend": variant.backend}
    results = run_modules(topology.node, [there, dict(there, state="absent")] * 20)
    seen = stream.finish()
    assert all(result["changed"] for result in results)
    assert {where: set(sources) for where, sources in seen.items()} == {exempt: {a.pod} for exempt in a.exempt}


def test_each_family_is_written_by_one_call(ns: Namespace, variant: Variant, programs: Programs) -> None:
    run = {"backend": variant.backend, "enable_ipv6": True, "path": programs.path}
    once = (
        [NETLINK, NETLINK]
        if variant is NFTABLES
        else [variant.tool("ipv6", "-restore"), variant.tool("ipv4", "-restore")]
    )
    # No packet notices the first of the two with which nftables starts: it makes a set that no chain asks.
    for calls, more in (
        (2 if variant is NFTABLES else 1, {}),
        (1, {"to_ports": ["1024-2048"]}),
        (1, {"non_masquerade_cidrs": ["10.0.0.0/8"]}),
        (1, {"state": "absent"}),
    ):
        so_far = len(programs.writes())
        assert apply(ns, **run, **more)["changed"] is True
        assert sorted(programs.writes()[so_far:]) == sorted(calls * once)
    apply(ns, **run)
    so_far = len(programs.writes())
    assert apply(ns, **run)["changed"] is False
    assert programs.writes()[so_far:] == []


#: what is there when the module starts: name -> lines for iptables-restore, or the backend of another policy
STARTS: t.Dict[str, t.Union[str, t.Sequence[str]]] = {
    "nothing": (),
    "an old policy": "same",
    "another backend's": "other",
    "two jumps": of("ipv4")["upgrade to 2.10.0, two jumps"].lines,
    "another chain": of("ipv4")["0.2.0-0.3.1"].lines,
}


@pytest.mark.parametrize("start", STARTS)
def test_killed_at_any_moment_the_old_or_the_new_rules_are_in_force(variant: Variant, start: str) -> None:
    options = {"backend": variant.backend, "to_ports": ["1024-29999", "32768-65535"]}
    with Namespace() as ns:
        _begin(ns, variant, start)
        old = _in_force(ns)
        run = ModuleRun(ns, [options])
        run.wait_until_ready()
        began = time.monotonic()
        run.results()
        whole = time.monotonic() - began
        new = _in_force(ns)
    assert new != old
    # On the way from one backend to another both are, for a while.
    right = (old, new, {**old, **new})
    dice = random.Random(start + variant.backend)
    ends = []
    for number in range(KILLS):
        with Namespace() as ns:
            _begin(ns, variant, start)
            run = ModuleRun(ns, [options])
            run.wait_until_ready()
            time.sleep(dice.uniform(0, whole))
            # One half of the kills hits the programs that the module started as well.
            victims = [run.pid] if number % 2 else [run.pid, *ns.pids()]
            for pid in victims:
                _kill(pid)
            run.results()
            until(lambda: not ns.pids(), "the programs that the killed module had started to end")
            ends.append(_in_force(ns))
            apply(ns, **options)
            assert _in_force(ns) == new
    assert [end for end in ends if end not in right] == []


def _begin(ns: Namespace, variant: Variant, start: str) -> None:
    left = STARTS[start]
    if isinstance(left, str):
        backends = list(BACKENDS)
        place = backends.index(variant.backend) + (left == "other")
        apply(ns, backend=backends[place % len(backends)], non_masquerade_cidrs=["10.9.0.0/16"])
    elif left:
        variant.load(ns, "ipv4", *left)


def _in_force(ns: Namespace) -> t.Dict[t.Tuple[str, str], t.Tuple[t.List[str], t.List[str]]]:
    """By backend and chain, where it is there: the jumps to it and its rules. A set that no chain asks is none."""
    places = [(backend, CHAIN) for backend in BACKENDS.values()]
    places += [(variant, "NON-MASQUERADE-DAEMON") for variant in VARIANTS.values()]
    rules = {(place, chain): place.rules(ns, "ipv4", chain) for place, chain in places}
    return {
        (place.backend, chain): (place.jumps(ns, "ipv4", chain), held)
        for (place, chain), held in rules.items()
        if held is not None
    }


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
