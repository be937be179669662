# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node forwards of one open UDP connection, with the option leaks at ignore and at drop.

Linux forwards a packet over veth within the call that sends it, on the CPU of the sender, which stays on one: the time
of the call is the time of the whole way, and only the rules differ. (With TCP, acknowledgements and what the second CPU
does decide.) Nodes take turns of some milliseconds; no packet may be lost. Packets have 1,500 bytes, or are joined to
64 KB as GRO of a network card does. Any chain at the hook costs something, so single packets (1.2 us each, without a
driver) cannot meet the target. With iptables_legacy the kubelet's chain has brought the hook.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import typing as t

from support.modules import apply
from support.namespaces import Namespace

from . import rules
from .figures import Row, Sample, Target
from .flood import undisturbed
from .inside import Inside, wire
from .plan import Plan, say

TITLE = "forwarded throughput"

#: 0.97 of the throughput.
_TARGET = Target(1 / 0.97, of_ratio=True)
_PORT = 5001
#: udp(7): the kernel makes packets of so many bytes of what one call sends.
_UDP_SEGMENT, _PAYLOAD, _SEGMENTS = 103, 1472, 44
_MEGABYTE = 1e6 / (_PAYLOAD * _SEGMENTS)
#: Calls in one turn, and turns in a round of the plan.
_CALLS, _TURNS = 50, 40
#: How the pod's link hands packets over: as a network card does, or in pieces of up to 64 KB.
_PIECES = {"packets of 1,500 bytes": "1600", "pieces of 64 KB": "65536"}
_IGNORED, _DROPPED = _NODES = range(2)
_sockets: t.List[socket.socket] = []


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part."""
    for backend in plan.backends:
        for name, pieces in _PIECES.items():
            say("throughput: %s, %s" % (backend, name))
            found = _measure(plan, backend, pieces)
            yield Row(
                "%s, leaks dropped, %s: 1 MB" % (backend, name),
                found[_DROPPED],
                "leaks ignored",
                found[_IGNORED],
                _TARGET,
            )


def _measure(plan: Plan, backend: str, pieces: str) -> t.List[Sample]:
    with contextlib.ExitStack() as owned:
        pod, outside = (owned.enter_context(Inside()) for _number in range(2))
        for number in _NODES:
            node = owned.enter_context(Namespace())
            device = wire(number, pod.ns, node, outside.ns)
            pod.ns.run("ip", "link", "set", device, "gso_max_size", pieces)
            pod.ns.run("ip", "route", "add", "198.51.%d.0/24" % number, "via", "10.244.%d.1" % number)
            if backend != rules.NFTABLES:
                node.run(rules.iptables(backend), "-w", "5", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
            apply(node, backend=backend, **rules.guarded("drop" if number == _DROPPED else "ignore"))
        outside.call(_listen)
        pod.call(_connect)
        seen = outside.call(_answer)
        if seen != ["198.51.%d.1" % number for number in _NODES]:
            raise RuntimeError("packets came from %s" % ", ".join(seen))
        before = outside.call(_received)
        turns = pod.call(_send, plan.rounds * _TURNS)
        came = outside.call(_received) - before
    sent = len(turns) * len(_NODES) * _CALLS * _SEGMENTS
    if pieces == _PIECES["packets of 1,500 bytes"] and came < sent:
        raise RuntimeError("%d packets of %d came" % (came, sent))
    return [Sample(tuple(row[number] for row in turns), "s") for number in _NODES]


# in the processes inside


def _socket(own: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(20)
    sock.bind((own, _PORT))
    _sockets.append(sock)
    return sock


def _listen() -> None:
    for number in _NODES:
        _socket("198.51.%d.2" % number)


def _connect() -> None:
    for number in _NODES:
        sock = _socket("10.244.%d.2" % number)
        sock.connect(("198.51.%d.2" % number, _PORT))
        sock.send(b"x")


def _answer() -> t.List[str]:
    """Answer each connection, take nothing more of it, and return whom it seems to come from."""
    peers = []
    for sock in _sockets:
        _data, peer = sock.recvfrom(1)
        sock.sendto(b"x", peer)
        peers.append(peer[0])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    return peers


def _received() -> int:
    """Return how many packets came over all links."""
    with open("/proc/net/dev", encoding="ascii") as lines:
        return sum(int(line.split()[2]) for line in list(lines)[2:])


def _send(turns: int) -> t.List[t.List[float]]:
    """Send by each connection in turn. Return for each turn the seconds for 1 MB, by connection."""
    data = bytes(_PAYLOAD * _SEGMENTS)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for sock in _sockets:
        sock.recv(1)  # now the connection is open
        sock.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _PAYLOAD)
    found = []
    for number in range(turns):
        row = [0.0] * len(_sockets)
        with undisturbed():
            for index in list(range(len(_sockets)))[:: -1 if number % 2 else 1]:
                send = _sockets[index].send
                started = time.perf_counter()
                for _number in range(_CALLS):
                    send(data)
                row[index] = (time.perf_counter() - started) / _CALLS * _MEGABYTE
        time.sleep(0.001)
        found.append(row)
    return found
