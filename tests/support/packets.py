# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real packets: a server that says who asked, and clients that ask. Run as a program inside a namespace.

``packets.py serve PORT ADDRESS...``: answers each TCP connection and UDP datagram with the sender's address.
``packets.py ask tcp|udp PORT DESTINATION...``: prints a JSON object, destination -> source address seen there. A
destination is an address, or ADDRESS@PORT.
``packets.py stream PORT DESTINATION...``: opens TCP connections in turn until told to stop by the end of its standard
input, then prints a JSON object, destination -> {source address seen there: how often}. Each ends with a reset;
``packets.py talk`` does the same with connections that end in order.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
import typing as t

#: Seconds until an unanswered packet counts as lost; long, because the machine may be busy.
PATIENCE = 20.0
#: Seconds between two connections of a stream; short beside the milliseconds that a rewrite of the rules takes, long
#: enough to leave the processor to whoever rewrites them.
PAUSE = 0.0005
#: Close with a reset, so that a stream of connections does not leave thousands in TIME_WAIT.
_RESET = struct.pack("ii", 1, 0)


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def bound(kind: int, address: str, port: int) -> socket.socket:
    """Open a socket at an address."""
    sock = socket.socket(_family(address), kind)
    sock.settimeout(PATIENCE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    return sock


def listen(port: int, addresses: t.Sequence[str]) -> t.List[socket.socket]:
    """Open the sockets of a server. UDP has one per address, so that the answer comes from the address asked."""
    sockets = []
    for address in addresses:
        tcp = bound(socket.SOCK_STREAM, address, port)
        tcp.listen(512)
        sockets += [tcp, bound(socket.SOCK_DGRAM, address, port)]
    return sockets


def answer(sockets: t.Sequence[socket.socket]) -> None:
    """Answer for ever."""
    wait = selectors.DefaultSelector()
    for sock in sockets:
        wait.register(sock, selectors.EVENT_READ)
    while True:
        for key, _events in wait.select():
            sock = t.cast(socket.socket, key.fileobj)
            if sock.type == socket.SOCK_DGRAM:
                sender = sock.recvfrom(64)[1]
                sock.sendto(sender[0].encode(), sender)
            else:
                peer, sender = sock.accept()
                with peer:
                    peer.sendall(sender[0].encode())


def ask(protocol: str, port: int, destination: str, in_order: bool = False) -> str:
    """Return the source address that ``destination`` saw, or what went wrong.

    :param in_order: whether a connection of TCP ends with FIN, that of the server first.
    """
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    address, _at, own_port = destination.partition("@")
    with socket.socket(_family(address), kind) as sock:
        sock.settimeout(PATIENCE)
        try:
            sock.connect((address, int(own_port or port)))
            if protocol != "tcp":
                sock.send(b"?")
            elif not in_order:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            seen = sock.recv(64).decode()
            if in_order:
                sock.recv(64)
            return seen
        except OSError as exc:
            return "error: %s" % exc


def stream(port: int, destinations: t.Sequence[str], in_order: bool) -> t.Dict[str, t.Dict[str, int]]:
    """Ask the destinations in turn until standard input ends. Print ``ready`` after the first round."""
    seen: t.Dict[str, t.Dict[str, int]] = {destination: {} for destination in destinations}
    stop = selectors.DefaultSelector()
    stop.register(sys.stdin, selectors.EVENT_READ)
    first = True
    while not stop.select(timeout=0):
        for destination in destinations:
            source = ask("tcp", port, destination, in_order)
            seen[destination][source] = seen[destination].get(source, 0) + 1
            time.sleep(PAUSE)
        if first:
            print("ready", flush=True)
            first = False
    return seen


def main(argv: t.Sequence[str]) -> None:
    """Do what the command line says."""
    if argv[0] == "serve":
        sockets = listen(int(argv[1]), argv[2:])
        print("ready", flush=True)
        answer(sockets)
    elif argv[0] == "ask":
        print(json.dumps({destination: ask(argv[1], int(argv[2]), destination) for destination in argv[3:]}))
    else:
        print(json.dumps(stream(int(argv[1]), argv[2:], argv[0] == "talk")))


if __name__ == "__main__":
    main(sys.argv[1:])
