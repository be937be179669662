# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a new connection costs on its way through the exempt ranges.

Nodes differ only in their rules; each is a namespace with links of its own. The first UDP packet of each connection is
sent with ``sendmmsg(2)`` at real-time priority, and the kernel forwards it within that call. No destination is exempt,
so each packet passes all ranges. A quarter of each burst is sent ahead, untimed, to fill the caches. Each packet
is counted outside. Nodes of a backend take turns with each other only: a chain of 10,000 rules empties
the caches.

Peers: a node with nothing but ``MASQUERADE`` in the same backend; for ``leaks`` the same policy with ``ignore``.
1000 exceptions, 4 sources: 800 masqueraded inside exempt ranges, 200 exempt inside these. In iptables_nft,
``leaks: drop`` adds one rule with ``--ctstate INVALID,UNTRACKED`` to a packet of an open connection, and the hook,
where no other program has rules in POSTROUTING of mangle.
"""

from __future__ import annotations

import contextlib
import json
import typing as t

from support.modules import apply
from support.namespaces import Namespace

from . import flood, rules
from .figures import Row, Sample, Target
from .inside import Inside, wire
from .plan import Plan, say

TITLE = "a new connection on its way through a node that masquerades it"

_BARE_NFT = (
    "table ip bare { chain post { type nat hook postrouting priority srcnat; counter masquerade fully-random; }; }"
)
#: Counts outside what came with the node's address.
_COUNT = (
    "table ip count { chain pre { type filter hook prerouting priority raw; ip saddr 198.51.0.0/16 counter drop; }; }"
)
#: Of nftables: so many ranges at most, and the same with exceptions and sources.
_RANGES = Target(1.10, of_ratio=True)
_NARROWED = Target(1.20, of_ratio=True)
#: Of a packet of an open connection: 0.97 of the throughput.
_OPEN = Target(1.03, of_ratio=True)
_OPENED = ": a packet of an open connection"

#: Connections in one burst, and bursts between two flushes of conntrack.
_BURST = 256
_BLOCK = 10
#: Bursts in one round of the plan; each takes milliseconds only.
_BURSTS_A_ROUND = 20


class _Node(t.NamedTuple):
    name: str
    ns: Namespace
    device: str
    #: connections in one burst; fewer where each takes long
    burst: int


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part, those of a backend at once: they are measured in the same rounds.

    Each backend has rounds of its own: chains of 10,000 rules would empty the caches for the sets of another.
    """
    for backend in plan.backends:
        with contextlib.ExitStack() as owned:
            pod = owned.enter_context(Inside())
            outside = owned.enter_context(Namespace())
            outside.run("nft", "-f", "-", stdin=_COUNT)
            nodes = []
            for number, (name, policy) in enumerate(_policies(plan, backend).items()):
                say("new connections, a node with: " + name)
                ns = owned.enter_context(Namespace())
                device = wire(number, pod.ns, ns, outside)
                _rules(ns, name, backend, policy)
                size = len((policy or {}).get("non_masquerade_cidrs", ()))
                slow = backend != rules.NFTABLES and size >= 1000
                nodes.append(_Node(name, ns, device, max(_BURST * 100 // size // 4 * 4, 8) if slow else _BURST))
            for node in nodes:
                pod.call(flood.open_socket, node.device)
            times = _flood(plan, pod, nodes)
            _check(outside, nodes, len(next(iter(times.values()))))
        yield from _rows(plan, backend, times)


def _policies(plan: Plan, backend: str) -> t.Dict[str, t.Optional[t.Dict[str, t.Any]]]:
    """Return the nodes of one backend and their policies; that without one has no rules of ours."""
    found: t.Dict[str, t.Optional[t.Dict[str, t.Any]]] = {_bare(backend): None}
    found.update((_ours(backend, size), rules.policy(size)) for size in (0, *plan.sizes))
    found.update((_guarded(backend, leaks), rules.guarded(leaks)) for leaks in rules.GUARDED)
    if backend == rules.NFTABLES:
        found[_narrowed(plan, backend)] = rules.narrowed(max(plan.sizes))
    return found


def _bare(backend: str) -> str:
    return "bare MASQUERADE, " + backend


def _ours(backend: str, size: int) -> str:
    return "%s, %5d ranges" % (backend, size)


def _narrowed(plan: Plan, backend: str) -> str:
    return _ours(backend, max(plan.sizes)) + rules.NARROWED


def _guarded(backend: str, leaks: str) -> str:
    return _ours(backend, 0) + rules.GUARDED[leaks]


def _rules(ns: Namespace, name: str, backend: str, policy: t.Optional[t.Mapping[str, t.Any]]) -> None:
    """Return the rules of a node: ours, or a bare MASQUERADE."""
    if backend != rules.NFTABLES:
        # As the kubelet does on each node.
        ns.run(rules.iptables(backend), "-w", "5", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    if policy is not None:
        apply(ns, backend=backend, **policy)
    elif name == _bare(rules.NFTABLES):
        ns.run("nft", "-f", "-", stdin=_BARE_NFT)
    else:
        ns.run(
            rules.iptables(backend), "-w", "5", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE", "--random-fully"
        )


def _flood(plan: Plan, pod: Inside, nodes: t.Sequence[_Node]) -> t.Dict[str, t.List[float]]:
    order = [(node.device, node.burst) for node in nodes]
    rows: t.List[t.List[float]] = []
    open_rows: t.List[t.List[float]] = []
    blocks = max(1, plan.rounds * _BURSTS_A_ROUND // _BLOCK)
    for number in range(blocks):
        if number % 4 == 0:
            say("new connections, block %d of %d, %d nodes in turn" % (number + 1, blocks, len(nodes)))
        rows += pod.call(flood.send, order, _BLOCK, number * _BLOCK * _BURST)
        # The same once more: what was opened is open.
        open_rows += pod.call(flood.send, order, _BLOCK, number * _BLOCK * _BURST)
        for node in nodes:
            node.ns.run("conntrack", "--flush")
    found = {node.name: [row[index] for row in rows] for index, node in enumerate(nodes)}
    for index, node in enumerate(nodes):
        found[node.name + _OPENED] = [row[index] for row in open_rows]
    return found


def _check(outside: Namespace, nodes: t.Sequence[_Node], rounds: int) -> None:
    """Check that all packets got through, and left with the address that they should have.

    :raises RuntimeError: they did not.
    """
    listed = json.loads(outside.run("nft", "-j", "list", "table", "ip", "count"))["nftables"]
    seen = [
        each["counter"]["packets"]
        for rule in listed
        for each in rule.get("rule", {}).get("expr", ())
        if "counter" in each
    ]
    # Each packet is sent twice: as the first one of its connection, and as one of an open connection.
    sent = sum(2 * node.burst * rounds for node in nodes)
    if seen != [sent]:
        raise RuntimeError("%s packets came masqueraded, not %d" % (seen, sent))


def _rows(plan: Plan, backend: str, times: t.Mapping[str, t.Sequence[float]]) -> t.Iterator[Row]:
    def whole(name: str) -> Sample:
        return Sample(tuple(times[name]), "s")

    bare = _bare(backend)
    targets = {}
    if backend == rules.NFTABLES:
        targets = {_ours(backend, max(plan.sizes)): _RANGES, _narrowed(plan, backend): _NARROWED}
    ignored, dropped = (_guarded(backend, leaks) for leaks in ("ignore", "drop"))
    yield Row(dropped, whole(dropped), "leaks ignored", whole(ignored))
    limit = _OPEN if backend == rules.NFTABLES else None
    yield Row(dropped + _OPENED, whole(dropped + _OPENED), "leaks ignored", whole(ignored + _OPENED), limit)
    for name in list(times)[1:]:
        if name.endswith(_OPENED) or name in (ignored, dropped):
            continue
        yield Row(name, whole(name), "bare MASQUERADE", whole(bare), targets.get(name))
