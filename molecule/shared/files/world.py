# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pod and a world outside for one node, made of network namespaces, and real packets between them.

Runs on the node as root, next to ``packets.py``.

``world.py pod NUMBER``: the namespace ``pod`` with the addresses 10.244.NUMBER.2 and fd00:10:244:NUMBER::2.
``world.py outside ADDRESS...``: the namespace ``outside`` behind the node's default route; it owns the addresses.
``world.py expect [--within SECONDS] [--protocol tcp|udp] DESTINATION=SOURCE...``: opens a new connection from the pod
to each destination and compares the source addresses seen there; ``pod`` and ``node`` stand for those two addresses.
With ``--within`` it asks until all are as expected. Prints a JSON object: ``seen`` (destination -> source),
``expected`` (the same), ``seconds`` (until the last answer). The exit status is 1 when the two differ.
``world.py down``: removes both namespaces.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import typing as t
from pathlib import Path

PACKETS = str(Path(__file__).with_name("packets.py"))
PORT = 8080
#: The node's own addresses on the link to the outside, and the outside's.
NODE = {4: "198.18.7.1", 6: "2001:db8:7::1"}
PEER = {4: "198.18.7.2", 6: "2001:db8:7::2"}
#: All pods of all nodes.
PODS = {4: "10.244.0.0/16", 6: "fd00:10:244::/48"}


def sh(*argv: str, stdin: str = "") -> str:
    """Run a program; its failure is ours."""
    return subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, check=True, text=True).stdout


def ip(*lines: str, netns: str = "") -> None:
    """Run commands of ip(8), in a namespace where one is named."""
    sh("ip", *(("-netns", netns) if netns else ()), "-batch", "-", stdin="\n".join(lines) + "\n")


def version(address: str) -> int:
    """4 or 6."""
    return 6 if ":" in address else 4


def delete(netns: str) -> None:
    """Remove a namespace with its cable."""
    if Path("/run/netns", netns).exists():
        sh("ip", "netns", "delete", netns)


def cable(netns: str, node_end: str) -> None:
    """A new namespace, and a cable from its ``eth0`` to the node's ``node_end``."""
    delete(netns)
    if Path("/sys/class/net", node_end).exists():
        ip("link delete %s" % node_end)  # the namespace's end of it may take a moment to go
    ip("netns add %s" % netns)
    ip("link add %s type veth peer name eth0 netns %s" % (node_end, netns), "link set %s up" % node_end)
    ip("link set lo up", "link set eth0 up", netns=netns)


def pod(number: int) -> None:
    """Make the pod, and the node a router."""
    cable("pod", "pods")
    for prefix, bits in (("10.244.%d." % number, 24), ("fd00:10:244:%d::" % number, 64)):
        flag = " nodad" if bits == 64 else ""
        ip("address add %s1/%d dev pods%s" % (prefix, bits, flag))
        ip(
            "address add %s2/%d dev eth0%s" % (prefix, bits, flag),
            "route add default via %s1" % prefix,
            netns="pod",
        )
    sh("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")


def outside(addresses: t.Sequence[str]) -> None:
    """Make the world outside. Pods have a route back from it, as they do where nothing is masqueraded."""
    cable("outside", "uplink")
    for family, flag, bits in ((4, "", 30), (6, " nodad", 64)):
        ip(
            "address add %s/%d dev uplink%s" % (NODE[family], bits, flag),
            "route replace default via %s dev uplink" % PEER[family],
        )
        ip(
            "address add %s/%d dev eth0%s" % (PEER[family], bits, flag),
            "route add %s via %s" % (PODS[family], NODE[family]),
            netns="outside",
        )
    ip(
        *["address add %s dev lo%s" % (each, " nodad" if version(each) == 6 else "") for each in addresses],
        netns="outside",
    )


def addresses_of(netns: str, link: str, family: int) -> t.List[str]:
    """The global addresses of a link."""
    shown = json.loads(
        sh("ip", "-netns", netns, "-json", "-%d" % family, "address", "show", "dev", link, "scope", "global")
    )
    # An address of another scope is an empty entry.
    return [entry["local"] for one in shown for entry in one.get("addr_info", ()) if entry]


def expect(wanted: t.Mapping[str, str], within: float, protocol: str) -> t.Dict[str, t.Any]:
    """Ask until the answers are as wanted or the time is over; at least once."""
    sources = {
        destination: NODE[version(destination)]
        if source == "node"
        else addresses_of("pod", "eth0", version(destination))[0]
        if source == "pod"
        else source
        for destination, source in wanted.items()
    }
    serve = ["ip", "netns", "exec", "outside", sys.executable, PACKETS, "serve", str(PORT), *wanted]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
            sys.exit("the server outside did not start: does it own %s?" % ", ".join(wanted))
        started = time.monotonic()
        while True:
            asked = ("ip", "netns", "exec", "pod", sys.executable, PACKETS, "ask", protocol, str(PORT), *wanted)
            seen = json.loads(sh(*asked))
            seconds = time.monotonic() - started
            if seen == sources or seconds >= within:
                return {"seen": seen, "expected": sources, "seconds": round(seconds, 2)}
    finally:
        server.kill()
        server.wait()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pod").add_argument("number", type=int)
    commands.add_parser("outside").add_argument("addresses", nargs="+")
    commands.add_parser("down")
    asking = commands.add_parser("expect")
    asking.add_argument("--within", type=float, default=0.0)
    asking.add_argument("--protocol", choices=("tcp", "udp"), default="tcp")
    asking.add_argument("pairs", nargs="+")
    options = parser.parse_args()
    if options.command == "pod":
        pod(options.number)
    elif options.command == "outside":
        outside(options.addresses)
    elif options.command == "down":
        delete("pod")
        delete("outside")
    else:
        wanted = dict(pair.split("=", 1) for pair in options.pairs)
        result = expect(wanted, options.within, options.protocol)
        print(json.dumps(result, sort_keys=True))
        sys.exit(result["seen"] != result["expected"])


if __name__ == "__main__":
    main()
