# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of our own: a network namespace with private files, and a process in it that does as told."""

from __future__ import annotations

import json
import multiprocessing
import signal
import traceback
import typing as t

from support.namespaces import Namespace

_FORK = multiprocessing.get_context("fork")

#: What the agent keeps on a node, and the reference agent's configuration: of this node only, and gone with it. The
#: namespace has a /run of its own already.
_PRIVATE = """
for place in /etc /var/lib; do
    layers=/run/layers$place
    mkdir -p $layers/upper $layers/work
    mount -t overlay -o lowerdir=$place,upperdir=$layers/upper,workdir=$layers/work overlay $place
done
"""


class Inside:
    """Use it in ``with``; nothing is left behind."""

    def __init__(self) -> None:
        self.ns = Namespace()
        try:
            self.ns.run("sh", "-ec", _PRIVATE)
            self._here, there = _FORK.Pipe()
            self._process = _FORK.Process(target=_serve, args=(self.ns, there), daemon=True)
            self._process.start()
            there.close()
        except BaseException:
            self.ns.delete()
            raise

    def __enter__(self) -> Inside:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._here.close()
        self.ns.delete()
        self._process.join()

    def call(self, what: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
        """Have the process inside call a function of a module, and return what it returned.

        :raises RuntimeError: it raised an exception; the message has the traceback.
        """
        self._here.send((what, arguments))
        done, returned = self._here.recv()
        if not done:
            raise RuntimeError(returned)
        return returned


def _serve(ns: Namespace, pipe: t.Any) -> None:
    # Control-C is for the one who tells us what to do; it ends us when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ns.enter()
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, what(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def wire(number: int, pod: Namespace, node: Namespace, outside: Namespace) -> str:
    """Put a node between the pod and the world outside, on networks of its own. Return the pod's device for it."""
    device, other, network = "p%d" % number, "o%d" % number, "198.51.%d." % number
    for ns, link, far, far_link in ((pod, device, node, "pods"), (node, "eth0", outside, other)):
        ns.run("ip", "link", "add", link, "type", "veth", "peer", "name", far_link, "netns", far.name)

    def mac(ns: Namespace, link: str) -> str:
        return str(json.loads(ns.run("ip", "-json", "link", "show", "dev", link))[0]["address"])

    # Neighbours are known: nobody has to answer.
    pod_gateway = "10.244.%d.1" % number
    for ns, link, address, neighbour, known, route in (
        (pod, device, "10.244.%d.2" % number, pod_gateway, mac(node, "pods"), "default metric %d" % (number + 1)),
        (node, "pods", pod_gateway, "", "", ""),
        (node, "eth0", network + "1", network + "2", mac(outside, other), "default"),
        (outside, other, network + "2", "", "", ""),
    ):
        lines = ["link set %s up" % link, "address add %s/24 dev %s" % (address, link)]
        if neighbour:
            lines += ["neighbour add %s lladdr %s dev %s" % (neighbour, known, link)]
            lines += ["route add %s via %s dev %s" % (route, neighbour, link)]
        ns.run("ip", "-batch", "-", stdin="\n".join(lines))
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    return device
