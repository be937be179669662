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
from support.programs import Programs, is_restore
from support.topology import ADDRESSES, Topology
from support.variants import Variant

CHAIN = "IP-MASQ-AGENT"
REWRITES = 200
KILLS = 20


def test_no_new_connection_is_wrong_while_the_rules_are_rewritten_hundreds_of_times(
    topology: Topology, variant: Variant
) -> None:
    """Both families at once. What is exempt is so in both policies, what is outside is outside in both."""
    four, six = ADDRESSES["ipv4"], ADDRESSES["ipv6"]
    one = {
        "non_masquerade_cidrs": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"],
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
    results = run_modules(topology.node, [there, dict(there, state="absent")] * 50)
    seen = stream.finish()
    assert all(result["changed"] for result in results)
    assert {where: set(sources) for where, sources in seen.items()} == {exempt: {a.pod} for exempt in a.exempt}


def test_each_family_is_written_by_one_call(ns: Namespace, variant: Variant, programs: Programs) -> None:
    run = {"backend": variant.backend, "enable_ipv6": True, "path": programs.path}
    for more in ({}, {"to_ports": ["1024-2048"]}, {"state": "absent"}):
        so_far = len(_writes(programs))
        assert apply(ns, **run, **more)["changed"] is True
        assert sorted(_writes(programs)[so_far:]) == [
            variant.tool("ipv6", "-restore"),
            variant.tool("ipv4", "-restore"),
        ]
    apply(ns, **run)
    so_far = len(_writes(programs))
    assert apply(ns, **run)["changed"] is False
    assert _writes(programs)[so_far:] == []


def _writes(programs: Programs) -> t.List[str]:
    """The names of the programs that were told to write, in order."""
    options = {"-A", "-I", "-D", "-R", "-N", "-X", "-F", "-P", "-E", "-Z"}
    return [call[0] for call in programs.calls() if is_restore(call[0]) or options & set(call) or call[0] == "nft"]


#: what is there when the module starts: name -> lines for iptables-restore
STARTS: t.Dict[str, t.Sequence[str]] = {
    "nothing": (),
    "an old policy": (
        ":%s - [0:0]" % CHAIN,
        "-A %s -d 10.9.0.0/16 -j RETURN" % CHAIN,
        "-A %s -j MASQUERADE" % CHAIN,
        "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j %s" % CHAIN,
    ),
    "two jumps": of("ipv4")["upgrade to 2.10.0, two jumps"].lines,
    "another chain": of("ipv4")["0.2.0-0.3.1"].lines,
}


@pytest.mark.parametrize("start", STARTS)
def test_killed_at_any_moment_the_old_or_the_new_rules_are_in_force(variant: Variant, start: str) -> None:
    options = {"backend": variant.backend, "to_ports": ["1024-29999", "32768-65535"]}
    with Namespace() as ns:
        _begin(ns, variant, start)
        old = _state(ns, variant)
        run = ModuleRun(ns, [options])
        run.wait_until_ready()
        began = time.monotonic()
        run.results()
        whole = time.monotonic() - began
        new = _state(ns, variant)
    assert new != old
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
            ends.append(_state(ns, variant))
    assert [end for end in ends if end not in (old, new)] == []


def _begin(ns: Namespace, variant: Variant, start: str) -> None:
    if STARTS[start]:
        variant.load(ns, "ipv4", *STARTS[start])


def _state(ns: Namespace, variant: Variant) -> t.List[t.Optional[t.List[str]]]:
    """All that counts for a packet; a table that was made but holds no rule is none."""
    chains = (CHAIN, "NON-MASQUERADE-DAEMON")
    return [variant.rules(ns, "ipv4", chain) for chain in chains] + [variant.rules(ns, "ipv4", "POSTROUTING") or []]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
