# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Move kube-proxy to nftables on random nodes: ``PYTHONPATH=tests python -m moves.run --seeds 1-200 --jobs 2``.

In each step pods and the node open connections, to everything and through Services, and send again on those that they
opened before the move; the agent is there, with its resync. Nothing may arrive with an address that it should not have.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import random
import sys
import tempfile
import traceback
import typing as t
from pathlib import Path

from strange import oracle, spaces
from strange.kube_proxy import IPTABLES, NFT_133, NFT_136
from strange.moving import Moving
from strange.run import seeds
from support.agent_node import AgentNode
from support.namespaces import Namespace

#: words of options that the config file writes in another way
_WORDS = {"cidrs": "CIDRs", "ipv6": "IPv6"}


#: Chains of two backends at one place, which disagree: the kernel does not tell which comes first. It is documented.
_TIED, _NOT_ALL = "order", 6


class _Shared(spaces.Namespace):
    """The namespace in which the agent is."""

    def __init__(self, ns: Namespace) -> None:
        if spaces.Namespace._home < 0:
            spaces.Namespace().close()
        self.fd = ns.inside(os.open, "/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class _Node(Moving):
    """A node of a seed, with an agent on it."""

    def __init__(self, seed: int, ns: Namespace) -> None:
        super().__init__(seed)
        self.ns = ns

    def _space(self) -> spaces.Namespace:
        if self.spaces:
            return super()._space()
        self.spaces.append(_Shared(self.ns))
        return self.spaces[0]


class Outcome(t.NamedTuple):
    """What one move showed."""

    seed: int
    what: str
    #: in which step which packet was treated in a wrong way, and whatever else is not as it should be
    wrong: t.List[str]
    steps: int = 0
    sent: int = 0
    seen: int = 0
    #: packets without a connection that left with the address of a pod: before the move, since
    leaks: t.Tuple[int, int] = (0, 0)
    #: of these, those that the agent counted
    counted: int = 0
    #: verifications that leave out where two chains at one place disagree
    ties: int = 0


class Move:
    """One node, from its first mode to the last."""

    def __init__(self, node: _Node, agent: AgentNode) -> None:
        self.node, self.agent = node, agent
        self.r = random.Random("move %d" % node.seed)
        self.to = self.r.choice([NFT_133, NFT_136])
        self.modes: t.Set[str] = set()
        self.wrong: t.List[str] = []
        #: of new connections: none has that of an earlier one, which the kernel would still know
        self.ports = iter(range(32768, 61000))
        self.open: t.Dict[oracle.Probe, oracle.Seen] = {}
        #: what arrives, from where to where
        self.arrive: t.Set[t.Tuple[t.Any, ...]] = set()
        self.steps = self.sent = self.seen = self.ties = 0
        #: of all since the agent's rules are there; of the last step
        self.leaked = self.leaks = self.forgotten = 0
        self.order = ""

    # What happens

    def write(self, mode: str, *versions: int) -> None:
        for version in versions or self.node.versions:
            tool, text = self.node.kube_proxy.written(mode, version)
            self._call(tool, text)
        self.modes.add(mode)

    def remove(self, mode: str, *versions: int, half: bool = False) -> None:
        for version in versions or self.node.versions:
            tool, text = self.node.kube_proxy.removed(mode, version, half)
            self._call(tool, text)
        if not versions:
            self.modes.discard(mode)

    def _call(self, tool: str, text: str) -> None:
        argv = ["nft", "-f", "-"] if tool == "nft" else [self._restore(tool), "--noflush", "-w", "5"]
        self.node.ns.run(*argv, stdin=text)

    @staticmethod
    def _restore(tool: str) -> str:
        name, _, variant = tool.partition("-")
        return "%s-%s-restore" % (name, variant or "nft")

    def damage(self) -> None:
        """Empty our rules, as a person does who cleans up behind the former mode, and let the timer repair them."""
        before = self._counted()
        backend = self.agent.status()["backend"]["name"]
        if backend == "nftables":
            self.node.ns.run("nft", "flush", "chain", "ip", "ip_masq_agent", "postrouting")
        else:
            tool = backend.replace("_", "-")
            self.node.ns.run(tool, "-w", "-t", "nat", "-F", "IP-MASQ-AGENT")
        self.agent.resync()
        self.forgotten = before - self._counted()  # those of rules that were written again

    def _counted(self) -> int:
        """Return how many packets without a connection the agent has counted."""
        families = self.agent.status()["families"].values()
        return sum((one.get("counters") or {}).get("leaked_packets") or 0 for one in families)

    # What is seen

    def look(self, step: str) -> None:
        """Open connections, and send again on those that are open."""
        self.steps += 1
        node = self.node
        probes = [one._replace(sport=next(self.ports)) for one in (*node.to_services(), *node.probes(30))]
        found = node.watch.send(probes)
        self.sent, self.seen = self.sent + len(probes), self.seen + len(found)
        for place, probe in enumerate(probes):
            seen = found.get(place)
            way = (probe.source, probe.destination, probe.protocol, probe.dport)
            if seen is None and (way in self.arrive or node.wrong(probe, seen, bool(self.modes))):
                seen = self._patiently(probe)
            lost = "lost" if seen is None and way in self.arrive else ""
            self._judge(step, probe, seen, node.wrong(probe, seen, bool(self.modes)) or lost)
            if seen and not node.service(probe):
                self.arrive.add(way)
            # kube-proxy will reject it: of no reply, it is new for ever
            direct = not self.modes and node.service(probe)
            if seen and probe.protocol == "udp" and len(self.open) < 60 and not direct:
                self.open.setdefault(probe, seen)
        old = list(self.open)
        found = node.watch.send(old)
        self.sent, self.seen = self.sent + len(old), self.seen + len(found)
        for place, probe in enumerate(old):
            seen, before = found.get(place), self.open[probe]
            self._judge(step, probe, seen, "" if seen == before else "open before as %s" % (before,))
        self._stray(step)

    def _patiently(self, probe: oracle.Probe) -> t.Optional[oracle.Seen]:
        """Send another first packet, and wait longer: the machine may be busy."""
        found = self.node.watch.send([probe._replace(sport=next(self.ports))], 2, 5)
        self.sent, self.seen = self.sent + 1, self.seen + len(found)
        return found.get(0)

    def _judge(self, step: str, probe: oracle.Probe, seen: t.Optional[oracle.Seen], wrong: str) -> None:
        if wrong:
            self.wrong.append("%s: %s: seen %s: %s" % (step, probe, seen, wrong))

    def _stray(self, step: str) -> None:
        """Send packets without a connection."""
        strays = self.node.strays()
        found = self.node.watch.send(strays)
        self.sent, self.seen = self.sent + len(strays), self.seen + len(found)
        left = [strays[place] for place, seen in found.items() if self.node.leaks(strays[place], seen)]
        self.leaks = len(left)
        self.leaked += len(left)
        options = self.node.policy.options
        within = [one for one in left if options.get("leaks") == "drop"]
        self.wrong += ["%s: leaks: %s" % (step, one) for one in within]

    def resync(self, step: str) -> None:
        """Do what the timer does, or a person."""
        how = self.r.choice(["resync", "resync", "sync"])
        if how == "resync":
            self.agent.resync()
            done = self.agent.resynced
        else:
            done = self.agent.sync()
        if done.returncode:
            self.wrong.append("%s: %s: %d %s" % (step, how, done.returncode, done.stderr or done.stdout))

    def verify(self, step: str) -> None:
        """Have the agent verify: it must say that all is tested, and that all matches."""
        done = self.agent.command("verify", "--json")
        told = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        untested = [one for one in told.get("untested", [{"code": "no result"}]) if one["code"] != _TIED]
        self.ties += len(told.get("untested", ())) - len(untested)
        conflicts = [one.get("text", one) for one in told.get("conflicts", []) if one.get("severity") == "error"]
        if done.returncode not in (0, _NOT_ALL) or told.get("verified") is False or untested or conflicts:
            shown = (told.get("summary"), untested, conflicts, done.stderr[-500:])
            self.wrong.append("%s: verify: %d %s" % (step, done.returncode, shown))
        named = [one["code"] for one in told.get("health", []) if one["code"] == "leaks"]
        if bool(named) != (bool(self.leaks) and self.node.policy.options.get("leaks") == "count"):
            self.wrong.append("%s: %d leaks, verify names %d" % (step, self.leaks, len(named)))

    # From one mode to the other

    def _actions(self) -> t.List[t.Tuple[str, t.Callable[[], None]]]:
        write, remove, to = self.write, self.remove, self.to
        both = self.node.versions
        orders: t.Dict[str, t.List[t.Tuple[str, t.Callable[[], None]]]] = {
            "removed first": [("removed", lambda: remove(IPTABLES)), ("written", lambda: write(to))],
            "written first": [("both", lambda: write(to)), ("removed", lambda: remove(IPTABLES))],
            "half": [
                ("emptied", lambda: remove(IPTABLES, half=True)),
                ("written", lambda: write(to)),
                ("removed", lambda: remove(IPTABLES)),
            ],
            "one family after the other": [
                (what % version, do)
                for version in both
                for what, do in (
                    ("both %d", lambda version=version: write(to, version)),
                    ("removed %d", lambda version=version: remove(IPTABLES, version)),
                )
            ],
        }
        self.order = self.r.choice(list(orders))
        found = orders[self.order]
        if self.order == "one family after the other":
            found = [*found, ("done", lambda: self.modes.discard(IPTABLES))]
        if self.node.seed % 4 == 0:
            found = [*found, ("back", lambda: (remove(to), write(IPTABLES))[0])]
        return found

    def go(self) -> Outcome:
        node, agent = self.node, self.agent
        node.make()
        for version in node.versions:
            self._call(*node.kube_proxy.kubelet(version))
        self.write(IPTABLES)
        agent.configure(**{_key(name): _value(value) for name, value in node.policy.options.items()})
        done = agent.sync()
        if done.returncode:
            return self._outcome(["refused: %s%s" % (done.stdout, done.stderr)])
        backend = agent.status()["backend"]["name"]
        self.look("before")
        self.verify("before")
        before = self.leaked
        actions = self._actions()
        damaged = self.r.randrange(len(actions))
        for place, (step, act) in enumerate(actions):
            act()
            self.look(step)
            if place == damaged:
                self.damage()
            self.resync(step)
            self.look(step + ", resync")
        self.verify("after")
        status = agent.status()
        if status["backend"]["name"] != backend:
            self.wrong.append("the backend %s became %s" % (backend, status["backend"]["name"]))
        counted = self._counted() + self.forgotten
        if node.policy.options.get("leaks") == "count" and counted != self.leaked:
            self.wrong.append("%d leaks, %d counted" % (self.leaked, counted))
        return self._outcome(self.wrong)._replace(leaks=(before, self.leaked - before), counted=counted, ties=self.ties)

    def _outcome(self, wrong: t.List[str]) -> Outcome:
        options = self.node.policy.options
        what = "%s %s, leaks %s, %s%s to %s, %s%s" % (
            *(options["backend"], options["exemption"], options.get("leaks", "-"), IPTABLES, self.node.variant),
            *(self.to, self.order, ", IPv6" if self.node.six else ""),
        )
        return Outcome(self.node.seed, what, wrong, self.steps, self.sent, self.seen)


def _key(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(_WORDS.get(word, word.capitalize()) for word in rest)


def _value(value: t.Any) -> t.Any:
    if isinstance(value, list):
        return [_value(one) for one in value]
    return {_key(name): _value(one) for name, one in value.items()} if isinstance(value, dict) else value


def run(seed: int) -> Outcome:
    """Move the node of a seed."""
    with tempfile.TemporaryDirectory() as folder, Namespace() as ns:
        node = _Node(seed, ns)
        try:
            return Move(node, AgentNode(ns, Path(folder), python=os.path.abspath(sys.executable))).go()
        finally:
            node.close()


def _one(seed: int) -> Outcome:
    try:
        return run(seed)
    except Exception:
        return Outcome(seed, "crashed", [traceback.format_exc()])


def main(argv: t.Optional[t.Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moves.run", description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="such as 1-200,333")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args(argv)
    total: t.Dict[str, int] = collections.Counter()
    with multiprocessing.Pool(chosen.jobs) as pool:
        for one in pool.imap(_one, seeds(chosen.seeds)):
            print("%d: %s (%s): %s" % (one.seed, "WRONG" if one.wrong else "right", one.what, one[3:]))
            for line in one.wrong[:8]:
                print("    " + line)
            sys.stdout.flush()
            total.update(nodes=1, wrong=bool(one.wrong), steps=one.steps, sent=one.sent, seen=one.seen)
            total.update(before=one.leaks[0], after=one.leaks[1], counted=one.counted, ties=one.ties)
    words = (
        "%(nodes)d nodes, %(wrong)d wrong; %(steps)d steps, %(sent)d packets sent, %(seen)d seen; of packets without a"
    )
    words += " connection, %(before)d left with a pod's address before the move, %(after)d since; %(counted)d counted;"
    words += " %(ties)d verifications without the order of two chains"
    print(words % total)
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
