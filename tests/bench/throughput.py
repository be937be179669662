# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node forwards of one TCP connection a second, with the option leaks at ignore and at drop.

Two nodes take turns of 50 ms, until everything is acknowledged; acknowledgements pass the node as well. Sender and
receiver run at real-time priority. Packets have 1,500 bytes, or are joined to 64 KB as GRO of a network card does. With
iptables_nft the excess is the hook in mangle; with iptables_legacy the kubelet's chain has brought it.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import termios
import time
import typing as t

from support.modules import apply
from support.namespaces import Namespace

from . import rules
from .figures import Row, Sample, Target
from .flood import undisturbed
from .inside import Inside
from .plan import Plan, say

TITLE = "forwarded throughput"

#: 0.97 of the throughput.
_TARGET = Target(1 / 0.97, of_ratio=True)
_PORT = 5001
#: Seconds of one turn, and turns in a round of the plan.
_TURN = 0.05
_TURNS = 16
#: How the pod's link hands packets over: as a network card does, or in pieces of up to 64 KB.
_PIECES = {"packets of 1,500 bytes": "1600", "pieces of 64 KB": "65536"}
_LEAKS = ("ignore", "drop")

_connections: t.Dict[str, socket.socket] = {}
_servers: t.List[socket.socket] = []


def measure(plan: Plan) -> t.Iterator[Row]:
    """The rows of this part, as they come."""
    for backend in plan.backends:
        for name, pieces in _PIECES.items():
            say("throughput: %s, %s" % (backend, name))
            ignored, dropped = _measure(plan, backend, pieces)
            yield Row("%s, leaks dropped, %s: 1 MB" % (backend, name), dropped, "leaks ignored", ignored, _TARGET)


def _measure(plan: Plan, backend: str, pieces: str) -> t.Tuple[Sample, Sample]:
    with contextlib.ExitStack() as owned:
        pod, outside = (owned.enter_context(Inside()) for _number in range(2))
        for number, leaks in enumerate(_LEAKS):
            node = owned.enter_context(Namespace())
            _wire(number, pod.ns, node, outside.ns, pieces)
            if backend != rules.NFTABLES:
                node.run(rules.iptables(backend), "-w", "5", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
            apply(node, backend=backend, **rules.guarded(leaks))
        outside.call(_serve)
        places = ["198.51.%d.2" % number for number in range(len(_LEAKS))]
        for place in places:
            pod.call(_connect, place)
            pod.call(_send, [place], 2)
        turns = pod.call(_send, places, plan.rounds * _TURNS)
        seen = {address for _place, address in outside.call(_peers)}
        pod.call(_close)
        outside.call(_stop)
    if seen != {"198.51.%d.1" % number for number in range(len(_LEAKS))}:
        raise RuntimeError("connections came from %s" % ", ".join(sorted(seen)))
    ignored, dropped = (Sample(tuple(row[number] for row in turns), "s") for number in range(len(_LEAKS)))
    return ignored, dropped


def _wire(number: int, pod: Namespace, node: Namespace, outside: Namespace, pieces: str) -> None:
    """Put a node between the pod and the world outside, on networks of its own."""
    device = "p%d" % number
    for ns, link, far, far_link in ((pod, device, node, "pods"), (node, "eth0", outside, "o%d" % number)):
        ns.run("ip", "link", "add", link, "type", "veth", "peer", "name", far_link, "netns", far.name)
    pod.run("ip", "link", "set", device, "gso_max_size", pieces)
    for ns, link, address in (
        (pod, device, "10.244.%d.2/24" % number),
        (node, "pods", "10.244.%d.1/24" % number),
        (node, "eth0", "198.51.%d.1/24" % number),
        (outside, "o%d" % number, "198.51.%d.2/24" % number),
    ):
        ns.run("ip", "address", "add", address, "dev", link)
        ns.run("ip", "link", "set", link, "up")
    pod.run("ip", "route", "add", "198.51.%d.0/24" % number, "via", "10.244.%d.1" % number)
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")


# in the processes inside


def _serve() -> None:
    """Take what comes by any connection, and forget it: before all ordinary processes, as what sends it."""
    server = socket.create_server(("0.0.0.0", _PORT))
    _servers.append(server)
    for _number in _LEAKS:
        if os.fork() == 0:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            connection, _peer = server.accept()
            while connection.recv(1 << 20, socket.MSG_TRUNC):
                pass
            os._exit(0)


def _peers() -> t.List[t.Tuple[str, str]]:
    """The two ends of each connection, as the kernel has them."""
    found = []
    with open("/proc/net/tcp", encoding="ascii") as lines:
        for line in list(lines)[1:]:
            words = line.split()
            if words[3] == "01":
                ends = (bytes.fromhex(words[place].split(":")[0])[::-1] for place in (1, 2))
                mine, other = map(socket.inet_ntoa, ends)
                found.append((mine, other))
    return found


def _stop() -> None:
    _servers.pop().close()
    for _number in _LEAKS:
        os.wait()


def _connect(address: str) -> None:
    sock = socket.create_connection((address, _PORT), 20)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    _connections[address] = sock


def _close() -> None:
    while _connections:
        _connections.popitem()[1].close()


def _send(places: t.Sequence[str], turns: int) -> t.List[t.List[float]]:
    """Send by each connection in turn. Return for each turn the seconds that 1 MB took, until it was acknowledged."""
    data = bytes(1 << 18)
    found = []
    for number in range(turns):
        row = [0.0] * len(places)
        with undisturbed():
            for index in list(range(len(places)))[:: -1 if number % 2 else 1]:
                sock = _connections[places[index]]
                started, sent = time.perf_counter(), 0
                while time.perf_counter() - started < _TURN:
                    sent += sock.send(data)
                while _waiting(sock):
                    time.sleep(0.0001)
                row[index] = (time.perf_counter() - started) / sent * 1e6
        time.sleep(_TURN)
        found.append(row)
    return found


def _waiting(sock: socket.socket) -> int:
    """How many bytes were not acknowledged."""
    size = array.array("i", [0])
    fcntl.ioctl(sock, termios.TIOCOUTQ, size)
    return size[0]
