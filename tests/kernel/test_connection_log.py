# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections that have ended, logged by the distribution's ulogd with our configuration: who opened them."""

from __future__ import annotations

import datetime
import functools
import json
import re
import shutil
import subprocess
import time
import typing as t
from pathlib import Path

import pytest
from support import cni_results
from support.agent_node import AgentNode
from support.import_collection import make_importable
from support.modules import apply
from support.namespaces import Namespace, until
from support.topology import ADDRESSES, Topology

make_importable()

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.units import LOG_SERVICE  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.who import request, who  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log import rotation, ulogd  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("ulogd"), reason="needs ulogd (Debian: ulogd2-json)")

_LOG = Path("/var/log/ip-masq-agent/connections.log")
_RESULTS = Path("/var/lib/cni/results")


class _Node:
    """A node that logs, until its namespace ends."""

    def __init__(self, topology: Topology, folder: Path) -> None:
        self.topology = topology
        self._folder = folder
        for path in ("/var/lib", "/var/log"):
            topology.node.run("mount", "-t", "tmpfs", "none", path)
        topology.node.run("sysctl", "-qw", "net.netfilter.nf_conntrack_timestamp=1")
        apply(topology.node, enable_ipv6=True)
        self._ulogd: t.Optional[subprocess.Popen[str]] = None

    def start(self) -> None:
        """Start ulogd as the unit does."""
        self.keep(starting=True)
        config = self._folder / "ulogd.conf"
        config.write_text(ulogd.config_text("", str(_LOG.parent), ulogd.find_plugins()[1]), encoding="utf-8")
        self._ulogd = self.topology.node.popen("ulogd", "-c", str(config))
        until(self._listens, "ulogd listens")

    def stop(self) -> None:
        """End ulogd."""
        assert self._ulogd is not None
        self._ulogd.terminate()
        self._ulogd.wait()

    def _listens(self) -> bool:
        # The columns: protocol 12 is netfilter, 4 the group of ended connections.
        rows = [line.split() for line in self.topology.node.read("/proc/net/netlink").splitlines()[1:]]
        return any(row[1] == "12" and int(row[3], 16) & 4 for row in rows)

    def keep(self, starting: bool = False, megabytes: int = 1) -> None:
        """Do what the timer does."""

        def systemctl(*_arguments: t.Any, **_options: t.Any) -> Outcome:
            return Outcome(0, "MainPID=%d\n" % (self._ulogd.pid if self._ulogd else 0), "")

        self.topology.node.inside(rotation.keep, systemctl, LOG_SERVICE, str(_LOG.parent), megabytes << 20, starting)

    def pod(self, name: str, **options: t.Any) -> None:
        """Give the pod's addresses to a pod of this name alone."""
        for path in self.topology.node.inside(lambda: list(_RESULTS.glob("*"))):
            self.topology.node.inside(path.unlink)
        pods = [a.pod for a in ADDRESSES.values()]
        self.topology.node.inside(cni_results.write, _RESULTS, name, *pods, **options)

    def lines(self) -> t.List[str]:
        """Return the lines of the log."""
        return self.topology.node.inside(lambda: _LOG.read_text(encoding="utf-8") if _LOG.exists() else "").splitlines()

    def connect(self, family: str, protocol: str) -> t.Tuple[str, str, str]:
        """Open a connection and have the kernel forget it.

        :returns: both ends as the other side saw them, and the second in which it began.
        """
        a, number = ADDRESSES[family], len(self.lines())
        assert self.topology.ask(a.outside[0], protocol=protocol) == {a.outside[0]: a.node}
        which = ("-f", family, "-p", protocol, "--orig-src", a.pod)
        listed = self.topology.node.run("conntrack", "-L", *which)
        ports = re.findall(r"[sd]port=([0-9]+)", listed)
        assert len(ports) == 4, listed
        self.topology.node.run("conntrack", "-D", *which)
        until(lambda: len(self.lines()) > number, "a line in the log")
        began = json.loads(self.lines()[-1])["flow.start.sec"]
        return _written(a.node, ports[3]), _written(a.outside[0], ports[1]), _written_time(began)

    def who(self, seen: str, remote: t.Optional[str], at: str, protocol: str = "tcp") -> t.List[str]:
        """Return the answer."""
        return self.topology.node.inside(who, Paths(), request(seen, remote, protocol, at))


@pytest.fixture
def node(topology: Topology, tmp_path: Path) -> _Node:
    return _Node(topology, tmp_path)


def _written(address: str, port: str) -> str:
    return ("[%s]:%s" if ":" in address else "%s:%s") % (address, port)


def _written_time(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _an_hour_ago() -> str:
    return _written_time(time.time() - 3600)


@pytest.mark.parametrize("family", ("ipv4", "ipv6"))
@pytest.mark.parametrize("protocol", ("tcp", "udp"))
def test_pod_that_is_gone(node: _Node, family: str, protocol: str) -> None:
    """The pod that opened a connection is named after another one has its address."""
    node.pod("default/web-0")
    node.start()
    seen, remote, at = node.connect(family, protocol)
    node.keep()
    node.pod("default/other")
    node.keep()
    answer = node.who(seen, remote, at, protocol)
    a = ADDRESSES[family]
    opener, rest = re.escape(_written(a.pod, "")), re.escape("-> %s, seen as %s, from " % (remote, seen))
    assert re.fullmatch(r"%s %s\d+ \(default/web-0\) %s\S+Z to \S+Z" % (protocol, opener, rest), answer[0]), answer
    assert len(answer) == 2 and answer[1].startswith("the log has connections that ended from "), answer
    with pytest.raises(NodeError, match="no logged"):
        node.who(seen, remote, _an_hour_ago(), protocol)
    with pytest.raises(NodeError, match="no logged"):
        node.who(seen, _written(a.outside[1], "8080"), at, protocol)


def test_name_that_is_not_certain(node: _Node) -> None:
    """Without a look at the pods after the connection began, or with one that came later, there is the address."""
    node.start()
    seen, remote, at = node.connect("ipv4", "tcp")
    assert node.who(seen, remote, at)[0].startswith("tcp 10.244.1.2:")
    node.pod("default/late")
    node.keep()
    assert "(" not in node.who(seen, remote, at)[0]


def test_connection_that_is_open(node: _Node) -> None:
    node.pod("default/web-0")
    node.start()
    a = ADDRESSES["ipv4"]
    assert node.topology.ask(a.outside[0]) == {a.outside[0]: a.node}
    node.keep()
    listed = node.topology.node.run("conntrack", "-L", "-p", "tcp", "--orig-src", a.pod)
    seen = _written(a.node, re.findall(r"dport=([0-9]+)", listed)[1])
    answer = node.who(seen, None, _written_time(time.time()))
    assert re.search(r"\(default/web-0\) -> .*, open since \S+Z$", answer[0]), answer
    assert answer[1].startswith("the log has no connection that ended; "), answer
    with pytest.raises(NodeError, match="the log has no connection that ended"):
        node.who(seen, None, _an_hour_ago())


def test_rotated_log(node: _Node) -> None:
    """ulogd goes on in a new file, and what it wrote before is found, compressed too, until the limit is reached."""
    node.start()
    first = node.connect("ipv4", "tcp")
    line = node.lines()[0]
    node.topology.node.inside(functools.partial(_append, (line.replace('"203.0.113.10"', '"192.0.2.77"') + "\n") * 200))
    node.keep()
    assert not node.lines(), "rotated"
    second = node.connect("ipv4", "tcp")
    assert len(node.lines()) == 1
    names = _names(node)
    assert len(names) == 1 and names[0].endswith(".log"), names
    for rounds in range(2):
        assert " -> %s, " % first[1] in node.who(*first)[0], rounds
        assert " -> %s, " % second[1] in node.who(*second)[0], rounds
        node.keep()
        assert [name[-7:] for name in _names(node)] == [".log.gz"]
    node.keep(megabytes=0)
    node.keep(megabytes=0)
    assert not _names(node)
    with pytest.raises(NodeError, match="no logged"):
        node.who(*first)


def _append(text: str) -> None:
    with _LOG.open("a", encoding="utf-8") as log:
        log.write(text)


def _names(node: _Node) -> t.List[str]:
    return sorted(path.name for path in node.topology.node.inside(lambda: list(_LOG.parent.glob("connections-*"))))


def test_interruption_is_named(node: _Node) -> None:
    node.start()
    node.connect("ipv4", "tcp")
    node.keep()
    node.stop()
    a = ADDRESSES["ipv4"]
    assert node.topology.ask(a.outside[0]) == {a.outside[0]: a.node}
    node.topology.node.run("conntrack", "-D", "-p", "tcp")
    node.start()
    about = node.who(*node.connect("ipv4", "tcp"))[-1]
    assert "it misses those that began before " in about
    assert re.search(r"it misses those that began or ended from \S+Z to \S+Z", about), about


class TestModule:
    """ip_masq_agent with connection_log; systemctl is a stand-in (molecule has systemd)."""

    UNITS = ("ip-masq-agent-log.service", "ip-masq-agent-log-keep.timer")
    FILES = (
        "/etc/ip-masq-agent/ulogd.conf",
        "/etc/systemd/system/ip-masq-agent-log-keep.service",
        "/etc/systemd/system/ip-masq-agent-log-keep.timer",
        "/etc/systemd/system/ip-masq-agent-log.service",
    )

    @pytest.fixture
    def bare(self, ns: Namespace, tmp_path: Path) -> AgentNode:
        """A node on which nothing is installed yet."""
        ns.run("mount", "-t", "tmpfs", "none", "/var/log")
        return AgentNode(ns, tmp_path, installed=False)

    def ours(self, node: AgentNode) -> t.List[str]:
        """Return the files of the log that are there."""
        return [path for path in self.FILES if node.at(path).exists()]

    def active(self, node: AgentNode) -> t.List[str]:
        """Return its units that are enabled and active."""
        return [
            unit for unit in self.UNITS if all((node.systemd / (unit + s)).exists() for s in (".enabled", ".active"))
        ]

    def run(self, node: AgentNode, check: bool = False, **options: t.Any) -> t.Dict[str, t.Any]:
        return node.module("ip_masq_agent", options, check=check, diff=True)

    def test_from_nothing_to_nothing(self, bare: AgentNode) -> None:
        predicted = self.run(bare, check=True, config={}, connection_log=64)
        assert self.ours(bare) == self.active(bare) == []
        done = self.run(bare, config={}, connection_log=64)
        assert not done.get("failed"), done
        for key in ("files", "services", "diff"):
            assert predicted[key] == done[key], key
        assert self.ours(bare) == list(self.FILES) and self.active(bare) == list(self.UNITS)
        again = self.run(bare, config={}, connection_log=64)
        assert not again["changed"], again
        larger = self.run(bare, config={}, connection_log=128)
        assert "restart: %s" % ", ".join(self.UNITS) in larger["services"], larger
        assert "LimitFSIZE=64M" in bare.at(self.FILES[-1]).read_text()
        log = bare.ns.run("find", "/var/log/ip-masq-agent", "-printf", "%m %U ").split()
        assert log == ["700", "0"]
        bare.ns.run("touch", "/var/log/ip-masq-agent/connections.log")
        ended = self.run(bare, config={})
        assert ended["changed"] and self.ours(bare) == self.active(bare) == []
        assert bare.ns.run("ls", "/var/log/ip-masq-agent") == "connections.log\n", "what was logged stays"
        assert not self.run(bare, config={})["changed"]
        self.run(bare, config={}, connection_log=64)
        removed = self.run(bare, state="absent")
        assert "directory removed: /var/log/ip-masq-agent" in removed["services"]
        assert sorted(bare.files() - bare.pristine) == [] and self.active(bare) == []

    def test_files_of_others_stay(self, bare: AgentNode) -> None:
        self.run(bare, config={})
        unit = bare.at(self.FILES[-1])
        unit.write_text("[Service]\nExecStart=/bin/true\n")
        assert not self.run(bare, config={})["changed"]
        self.run(bare, state="absent")
        assert unit.exists()

    @pytest.mark.parametrize(
        ("missing", "message"),
        [
            ("plugins", "connection_log needs ulogd with its JSON output: install the package ulogd2-json (Debian, "),
            ("events", "set the sysctl net.netfilter.nf_conntrack_events to 1"),
            ("size", "connection_log: 5 is not a number of megabytes from 16 to 1048576, or 0 for no log"),
        ],
    )
    def test_what_cannot_be_touches_nothing(self, bare: AgentNode, missing: str, message: str) -> None:
        if missing == "plugins":
            folder = str(Path(ulogd.find_plugins()[1][0]).parent)
            bare.ns.run("mount", "-t", "tmpfs", "none", folder)
        elif missing == "events":
            bare.ns.run("sysctl", "-qw", "net.netfilter.nf_conntrack_events=0")
        done = self.run(bare, config={}, connection_log=5 if missing == "size" else 64)
        assert done["failed"] and message in done["msg"], done
        assert done.get("missing_package") == ("ulogd2-json" if missing == "plugins" else None)
        assert sorted(bare.files() - bare.pristine) == []
