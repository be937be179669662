# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real connections of TCP, one after the other, from the pod to the world outside: opened, answered and closed."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t

from .topology import Topology

PORT = 81
_SERVER = """
import selectors, socket, sys
chosen = selectors.DefaultSelector()
for address in sys.argv[2:]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, int(sys.argv[1])), family=family, backlog=512)
    chosen.register(server, selectors.EVENT_READ)
chosen.register(sys.stdin, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _events in chosen.select():
        if key.fileobj is sys.stdin:
            sys.exit()
        connection, peer = key.fileobj.accept()
        with connection:
            connection.settimeout(20)
            try:
                if connection.recv(64):
                    connection.sendall(peer[0].encode())
            except OSError:
                pass
"""
_CLIENT = """
import collections, json, select, socket, sys
# Ends when standard input does.
seen, failed, number = collections.Counter(), collections.Counter(), 0
addresses = sys.argv[2:]
print("ready", flush=True)
while number % 50 or not select.select([sys.stdin], [], [], 0)[0]:
    number += 1
    address = addresses[number % len(addresses)]
    try:
        with socket.create_connection((address, int(sys.argv[1])), 20) as connection:
            connection.sendall(b"who am I?")
            seen[address + " " + connection.recv(64).decode()] += 1
            connection.recv(64)
    except OSError as exc:
        failed[address + " " + str(exc)] += 1
print(json.dumps([seen, failed]))
"""


class Talk:
    """Connections to each destination for as long as ``with`` lasts.

    Afterwards ``seen`` holds for each destination how often it saw which source address, ``failed`` what went wrong.
    """

    def __init__(self, topology: Topology, *destinations: str) -> None:
        self._topology = topology
        self._destinations = destinations
        self.seen: t.Dict[str, t.Dict[str, int]] = {one: {} for one in destinations}
        self.failed: t.Dict[str, int] = {}

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(number for seen in self.seen.values() for number in seen.values()) + sum(self.failed.values())

    def __enter__(self) -> Talk:
        # The pod closes second, so that the ports that wait for late packets are those outside.
        self._server = self._topology.outside.popen(sys.executable, "-c", _SERVER, str(PORT), *self._destinations)
        self._client: t.Optional[subprocess.Popen[str]] = None
        assert self._server.stdout is not None and self._server.stdout.readline() == "ready\n"
        self._client = self._topology.pod.popen(sys.executable, "-c", _CLIENT, str(PORT), *self._destinations)
        assert self._client.stdout is not None and self._client.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._client is not None:
            told, _errors = self._client.communicate()
            found, self.failed = json.loads(told)
            for words, number in found.items():
                destination, source = words.split(" ")
                self.seen[destination][source] = number
        self._server.communicate()
