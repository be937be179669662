# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of README and documents, typed in their order into one small cluster.

``support.documented`` says which commands other tests execute, and which none.
"""

from __future__ import annotations

import datetime
import json
import re
import select
import subprocess
import time
import typing as t
from pathlib import Path

from support import cni_results, connection_lines, documented, tracked
from support.documented import Command
from support.fleet import Fleet
from support.import_collection import ROOT
from support.namespaces import Namespace, until
from support.tracked import Tracked

#: What verify shows is a conflict.
STATUS = {"ip-masq-agent verify": 5}


class Operator:
    """A checkout, a controller with the inventory ``hosts.ini``, and the shells of two nodes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._env: t.Dict[str, str] = {}
        self._node, self._other = fleet.nodes["node1"], fleet.nodes["node2"]
        fleet.group_vars["all"].update(ansible_become=False, ip_masq_agent_kubelet=False)
        fleet.group_vars["reached"] = {"ip_masq_agent_non_masquerade_cidrs": ["10.0.0.0/8", "100.64.0.0/10"]}
        self._inventory("node1")

    def wire(self, outside: Namespace) -> None:
        """Give the first node pods, and a way out by the address that the pages show."""
        outside.run("ip", *"link add far type veth peer name eth0 netns".split(), self._node.ns.name)
        outside.run("ip", "link", "set", "far", "up")
        for command in (
            "link add cni0 type bridge",
            "address add 10.244.1.1/24 dev cni0",
            "link set cni0 up",
            "address add 198.51.100.1/24 dev eth0",
            "link set eth0 up",
            "route add default via 198.51.100.254",
        ):
            self._node.ns.run("ip", *command.split())
        self._node.ns.run("sysctl", "-q", "net.ipv4.ip_forward=1")

    def _inventory(self, *names: str) -> None:
        text = "[kube_node]\n%s\n[canary]\nnode1\n" % "\n".join(names)
        (self._fleet.folder / "hosts.ini").write_text(text)

    def prepare(self, command: Command) -> None:
        """Bring about what the page takes for granted."""
        nat = ("iptables-nft", "-t", "nat")
        if command.text.startswith("ansible kube_node "):
            self._inventory("node2")  # there are no rules yet
        elif ".report " in command.text:
            self._inventory("node1", "node2")  # the second has no agent yet
        elif " --limit @nodes" in command.text:
            assert (self._fleet.folder / "nodes").read_text() == "node2\n"
        elif command.text == "nft list table ip ip_masq_agent":
            self._other.drop_in("backend.json", '{"backend": "nftables"}')
            assert self._other.sync().returncode == 0
        elif command.text.startswith("cat "):
            self._node.drop_in(Path(command.text.split()[1]).name, command.output[0] + "\n")
        elif command.text.startswith("ip-masq-agent explain 10.99.0.1"):
            self._node.ns.run(*nat, "-N", "cali-nat-outgoing")
            self._node.ns.run(*nat, "-A", "cali-nat-outgoing", "-j", "MASQUERADE")
            self._node.ns.run(*nat, "-I", "POSTROUTING", "-j", "cali-nat-outgoing")
        elif command.text == "ip-masq-agent verify":
            self._node.ns.run(*nat, "-D", "POSTROUTING", "-j", "cali-nat-outgoing")
            self._node.ns.run(*nat, "-I", "POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
        elif " --at " in command.text:
            self._node.ns.run("mount", "-t", "tmpfs", "none", "/var/log")
            self._node.ns.inside(_log_connection)
        elif command.text.startswith("ip-masq-agent who "):
            self._web()
            self._track(("10.244.1.2", 51844, 40123))
        elif ".who " in command.text:
            self._inventory("node1", "node2")
        elif command.text == "ip-masq-agent ports":
            self._node.drop_in("ports.json", '{"toPorts": "61000-61099"}')
            assert self._node.sync().returncode == 0
            self._web()
            pods = ["10.244.1.2"] * 60 + ["10.244.1.3"] * 30
            self._track(*((pod, 40000 + number, 61000 + number) for number, pod in enumerate(pods)))
        elif " --proposed " in command.text:
            config = json.loads((self._node.config_dir / "config").read_text())
            config["masqueradeCIDRs"] = ["10.5.0.0/16"]
            self._node.at(command.text.split()[-1]).write_text(json.dumps(config))

    def _web(self) -> None:
        """A pod that was there before the last packet of connections that have their whole timeout left."""
        results = self._node.root / "var/lib/cni/results"
        cni_results.write(results, "default/web-0", "10.244.1.2", written=time.time() - 60)

    def _track(self, *opened: t.Tuple[str, int, int]) -> None:
        """Have the kernel know masqueraded connections: of which pod, from which port, and as which it is seen."""
        known = [Tracked(6, pod, port, "198.51.100.1", seen, "203.0.113.10", 443) for pod, port, seen in opened]
        tracked.insert(self._node.ns, known, seconds=432000)

    def restore(self, command: Command) -> None:
        """Undo what was brought about, where other pages take something else for granted."""
        if command.text == "ip-masq-agent ports":
            (self._node.drop_ins / "ports.json").unlink()
            self._node.ns.run("conntrack", "-F")
            assert self._node.sync().returncode == 0

    def type(self, command: str) -> t.Tuple[int, str]:
        """Run a command where it belongs.

        :returns: its exit status and its output.
        """
        program = re.sub(r"^([A-Z_]+=\S+ )*", "", command).split()[0]
        if program == "export":
            name, value = command.split()[1].split("=")
            self._env[name] = value
            return 0, ""
        if program in ("ansible", "ansible-playbook"):
            played = self._fleet.type(command, env=self._env)
            return played.rc, played.said
        if program == "make":  # which programs it would run: running them takes minutes
            return _run(command.replace("make ", "make -n ", 1), ROOT)
        if program == "tools/bench":  # likewise: its arguments are read, and nothing is measured
            return _run(command + " --help", ROOT)
        if program == ".":
            return _run(command, ROOT)
        if program == "journalctl":
            return _run(command + " --no-pager", ROOT)
        if program == "jq":
            return _run(command, self._fleet.folder)
        if command == "nft monitor trace":
            return self._trace(command), ""
        node = self._other if program == "nft" else self._node
        done = node.call("bash", "-euc", 'PATH="/usr/local/sbin:$PATH"; ' + command)
        return done.returncode, done.stdout + done.stderr

    def _trace(self, command: str) -> int:
        """It runs until it is interrupted: a traced packet is what it has to show."""
        ns = self._other.ns
        chain = "type filter hook output priority 0"
        ns.run("nft", "add table ip traced; add chain ip traced out { %s; }" % chain)
        ns.run("nft", "add rule ip traced out meta nftrace set 1")
        monitor = ns.popen(*command.split())

        def traced() -> bool:
            ns.run("bash", "-c", "echo >/dev/udp/127.0.0.1/9", check=False)
            return bool(select.select([monitor.stdout], [], [], 0.1)[0])

        try:
            until(traced, "a traced packet")
            return monitor.poll() or 0
        finally:
            monitor.terminate()
            monitor.communicate()


def _run(command: str, folder: Path) -> t.Tuple[int, str]:
    done = subprocess.run(["bash", "-euc", command], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_commands_work_and_answer_as_the_pages_show(tmp_path: Path) -> None:
    wrong = []
    with Fleet(tmp_path, {"reached": ["node1", "node2"]}) as fleet, Namespace() as outside:
        operator = Operator(fleet)
        operator.wire(outside)
        for command in documented.commands():
            if command.text in {**documented.ELSEWHERE, **documented.NOT_HERE}:
                continue
            operator.prepare(command)
            status, said = operator.type(command.text)
            operator.restore(command)
            missing = [] if command.text.startswith("ansible-playbook ") else _missing(command.output, said)
            if status != STATUS.get(command.text, 0) or missing:
                wrong.append("%s: %s: %d, lacks %s: %s" % (command.where, command.text, status, missing, said))
    assert not wrong, "\n".join(wrong)


def _log_connection() -> None:
    """Write what ulogd and the timer beside it would have written of a connection that has ended."""
    folder = Path("/var/log/ip-masq-agent")
    folder.mkdir(mode=0o700)
    began, ended = (
        int(datetime.datetime.fromisoformat("2026-11-23T%s+00:00" % at).timestamp()) for at in ("03:11:58", "03:14:20")
    )
    (folder / "connections.log").write_bytes(connection_lines.line(began, ended, **{"orig.l4.sport": 51844}))
    (folder / "pods.json").write_text(json.dumps([["10.244.1.2", "default/web-0", began - 60, began - 60, ended]]))


def _missing(shown: t.Sequence[str], said: str) -> t.List[str]:
    """The lines of a page that were not printed. (What its playbooks print is of larger clusters.)"""
    printed = _plain(said)
    return [line for line in shown if _plain(line.rstrip(".")) not in printed]


def _plain(text: str) -> str:
    """A text without what differs from run to run."""
    return re.sub(r"\d+( s| min| h)?", "0", text)
