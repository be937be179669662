# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that got the agent from what tools/dist builds, and the module later. The .deb with systemd: molecule."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import program_modules, units
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import PACKAGED, Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.agent_node import AgentNode
from support.import_collection import ROOT
from support.namespaces import Namespace
from support.variants import BACKENDS, pristine, snapshot

NFT = BACKENDS["iptables_nft"]
MODULE = "ip_masq_agent"
TARBALL = Paths()
CONFIG = {"nonMasqueradeCIDRs": ["10.1.0.0/16"], "backend": "iptables_nft"}
CONFIG_TEXT = '{\n  "nonMasqueradeCIDRs": [\n    "10.1.0.0/16"\n  ],\n  "backend": "iptables_nft"\n}\n'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tools/dist builds."""
    output = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / "tools/dist", "--output", output], stdout=subprocess.PIPE, check=True)
    return output


@pytest.fixture
def node(ns: Namespace, tmp_path: Path) -> AgentNode:
    """A node on which nothing is installed yet."""
    return AgentNode(ns, tmp_path, installed=False)


def only(folder: Path, pattern: str) -> Path:
    """The file of that name."""
    (path,) = folder.glob(pattern)
    return path


def rpm(node: AgentNode, *arguments: t.Union[str, Path]) -> subprocess.CompletedProcess[str]:
    """Run rpm on the node. Its scripts find the node's systemctl, and nothing is written elsewhere."""
    # The database is where it is on a node with rpm; Debian's rpm has it in the home directory.
    node.at("/etc/rpm").mkdir(exist_ok=True)
    node.at("/etc/rpm/macros").write_text(
        "%%_dbpath /var/lib/rpm\n%%_install_script_path %s:/usr/sbin:/usr/bin:/sbin:/bin\n" % node.path
    )
    return node.call("rpm", *arguments)


def install(node: AgentNode, package: Path, how: str = "--install") -> None:
    """Install the package; what it depends on comes from Debian's packages here."""
    done = rpm(node, how, "--force-debian", "--nodeps", package)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def log(node: AgentNode) -> t.List[str]:
    """What systemctl was told, since the last time."""
    path = node.systemd / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    return lines


def files(node: AgentNode) -> t.Set[str]:
    """What came to the node since it was made, without rpm's database and settings, and without the licence."""
    ignored = ("var/lib/rpm", "etc/rpm", "usr/share/licenses")
    return {path for path in node.files() - node.pristine if not path.startswith(ignored)}


def configure(node: AgentNode, paths: Paths = TARBALL) -> None:
    """Write what the module would, and let the timer start the service."""
    (node.config_dir / "config").write_text(CONFIG_TEXT)
    node.run_dir.mkdir(mode=0o700)  # by systemd
    done = node.call(paths.resync)
    assert done.returncode == 0, done.stderr


def unpack(node: AgentNode, built: Path) -> None:
    """Unpack the tarball on the node."""
    done = node.call("tar", "-xf", only(built, "ip-masq-agent-*.tar.gz"), "-C", "/")
    assert done.returncode == 0, done.stderr


def test_module_adopts_the_tarball(node: AgentNode, built: Path) -> None:
    unpack(node, built)
    assert pristine(snapshot(node.ns)) and not (node.config_dir / "config").exists()
    configure(node)
    before = snapshot(node.ns)
    adopted = node.module(MODULE, {"config": CONFIG})
    assert adopted["files"] == [] and not adopted["rules"]["actions"], adopted
    # A tarball has no compiled code; the module adds what its own Python can use, if that is the agent's.
    own = os.path.realpath(sys.executable) == os.path.realpath(TARBALL.python)
    assert bool(list(node.at(modules_dir(TARBALL)).rglob("cli.cpython-*.pyc"))) == own
    assert snapshot(node.ns) == before
    # The systemctl of this test does not read the links that enable units; molecule/package does it with a real one.
    assert [line.split(":")[0] for line in adopted["services"]] == ["enable", "start"]


def modules_dir(paths: Paths) -> str:
    """The directory of the modules of this release."""
    return "%s/%s" % (paths.lib_dir, program_modules.digest())


def read_only(done: t.Mapping[str, t.Any]) -> t.List[str]:
    """The files of which a warning says that they are kept because they are on a read-only file system."""
    return re.findall(r"(\S+) kept: its file system is read-only", "\n".join(done.get("warnings", ())))


class TestReadOnly:
    """``/usr`` is read-only, and has the agent."""

    @pytest.fixture
    def node(self, node: AgentNode, built: Path) -> AgentNode:
        """A node of an image."""
        unpack(node, built)
        ours = "/usr /usr/local/sbin /usr/local/lib"
        node.ns.run("sh", "-ec", "mount --rbind /usr /usr; for i in %s; do mount -o remount,bind,ro $i; done" % ours)
        configure(node)
        return node

    def test_agent_repairs_and_reports(self, node: AgentNode) -> None:
        before = snapshot(node.ns)
        node.ns.run("iptables", "-t", "nat", "-F", "IP-MASQ-AGENT")
        done = node.call(node.paths.resync)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert snapshot(node.ns) == before
        status = node.call(node.paths.program, "status", "--json")
        report = json.loads(status.stdout)
        assert report["in_sync"] and [note.partition(":")[0] for note in report["notes"]] == ["source_cidrs is not set"]

    def test_module_adopts_it_and_writes_elsewhere(self, node: AgentNode) -> None:
        timer = "/etc/systemd/system/" + units.TIMER
        node.at(timer).write_text("[Timer]\n")
        adopted = node.module(MODULE, {"config": CONFIG})
        assert adopted["files"] == [timer] and not read_only(adopted), adopted

    @pytest.mark.parametrize("check", [True, False], ids=["check", "apply"])
    def test_another_program_is_refused_before_anything_is_touched(self, node: AgentNode, check: bool) -> None:
        before = snapshot(node.ns), files(node), node.files()
        options = {"config": {**CONFIG, "masqLinkLocal": True}, "metrics_dir": "/var/lib/node_exporter"}
        refused = node.module(MODULE, options, check=check)
        assert refused["failed"] and refused["msg"] == (
            "cannot write /usr/local/sbin/ip-masq-agent: its file system is read-only; files and rules left unchanged. "
            "Use an image with version %s of the agent and the same paths, make it writable, or, for programs, set "
            "bin_dir to a directory that can be written" % VERSION
        )
        assert (snapshot(node.ns), files(node), node.files()) == before
        asked = node.module(MODULE + "_info", {"metrics_dir": "/var/lib/node_exporter"})
        assert asked["problems"] == [] and "file written: /usr/local/sbin/ip-masq-agent" in asked["pending"], asked
        assert (node.config_dir / "config").read_text() == CONFIG_TEXT

    def test_another_bin_dir_can_be_used(self, node: AgentNode) -> None:
        moved = node.module(MODULE, {"config": CONFIG, "bin_dir": "/var/lib/sbin"})
        assert not moved.get("failed") and "/var/lib/sbin/ip-masq-agent" in moved["files"], moved
        image = ["/usr/local/sbin/ip-masq-agent-resync", "/usr/local/sbin/ip-masq-agent", modules_dir(TARBALL)]
        assert read_only(moved) == image
        again = node.module(MODULE, {"config": CONFIG, "bin_dir": "/var/lib/sbin"})
        assert again["files"] == [] and not read_only(again), again

    def test_removal_leaves_what_the_image_has(self, node: AgentNode) -> None:
        removed = node.module(MODULE, {"state": "absent"})
        assert removed["changed"] and not removed.get("failed"), removed
        left = {"usr/local/sbin/ip-masq-agent", "usr/local/sbin/ip-masq-agent-resync"}
        # The systemctl of this test does not remove the links that enable units.
        modules = modules_dir(TARBALL).lstrip("/")
        assert NFT.rules(node.ns, "ipv4") is None
        stayed = {name for name in files(node) if ".wants" not in name and not name.startswith("usr/local/lib")}
        assert stayed == left and node.at(modules).exists()
        assert {path.lstrip("/") for path in read_only(removed)} == {*left, modules}
        again = node.module(MODULE, {"state": "absent"})
        assert not again["changed"] and not again.get("failed"), again


#: Puts a layer over the node's /usr that takes what packages write.
_LAYER = """
mkdir -p "$1/usr" "$1/../layer"
mount -t overlay -o "lowerdir=/usr,upperdir=$1/usr,workdir=$1/../layer" node /usr
mount --bind "$1/usr/local/sbin" /usr/local/sbin
mount --rbind "$1/usr/local/lib" /usr/local/lib
"""
UNIT_DIR = PACKAGED.unit_dir
UNITS_LIST = "/usr/share/ip-masq-agent/units"


class TestRpm:
    """The .rpm, with a systemctl that records."""

    @pytest.fixture
    def package(self, built: Path) -> Path:
        """The file."""
        return only(built, "*.rpm")

    @pytest.fixture
    def node(self, node: AgentNode) -> AgentNode:
        """A node on which a package can write to /usr."""
        node.ns.run("sh", "-euc", _LAYER, "sh", str(node.root))
        return node

    def test_module_adopts_it_without_a_change(self, node: AgentNode, package: Path) -> None:
        install(node, package)
        assert pristine(snapshot(node.ns)) and not (node.config_dir / "config").exists()
        assert {path.stem for path in node.systemd.glob("*.enabled")} == {*units.ENABLED_UNITS}
        assert {path.stem for path in node.systemd.glob("*.active")} == {*units.STARTED_UNITS}
        configure(node, PACKAGED)
        before = snapshot(node.ns), files(node)
        adopted = node.ansible("kubenode.ip_masq." + MODULE, {"config": CONFIG})
        assert not adopted["changed"] and adopted["files"] == adopted["services"] == [], adopted
        assert (snapshot(node.ns), files(node)) == before
        assert not [name for name in files(node) if name.startswith(("usr/local", "etc/systemd"))]
        asked = node.module(MODULE + "_info", {"config": CONFIG})
        assert (asked["installed"], asked["pending"], asked["problems"]) == (True, [], []), asked

    def test_removal_is_left_to_the_package(self, node: AgentNode, package: Path) -> None:
        install(node, package)
        configure(node, PACKAGED)
        before = snapshot(node.ns), files(node)
        refused = node.module(MODULE, {"state": "absent"})
        assert refused["failed"] and refused["msg"] == (
            "/usr/sbin/ip-masq-agent belongs to the package ip-masq-agent, which owns the agent's files; remove "
            "the package, rules included, with 'rpm --erase ip-masq-agent', and run this again to remove the "
            "configuration"
        )
        assert node.call(PACKAGED.program, "remove", HOME=str(node.root.parent)).returncode == 1
        assert (snapshot(node.ns), files(node)) == before
        done = rpm(node, "--erase", "ip-masq-agent")
        assert done.returncode == 0, done.stderr
        assert NFT.rules(node.ns, "ipv4") is None and NFT.listing(node.ns, "ipv4", "POSTROUTING") == []
        assert not list(node.systemd.glob("*.enabled")) and not list(node.systemd.glob("*.active"))
        assert files(node) == {"etc/ip-masq-agent", "etc/ip-masq-agent/config"}
        removed = node.module(MODULE, {"state": "absent"})
        assert removed["changed"] and not removed.get("failed"), removed
        assert files(node) == set()

    def test_without_its_interpreter_it_stays_until_the_rules_can_be_removed(
        self, node: AgentNode, package: Path
    ) -> None:
        install(node, package)
        configure(node, PACKAGED)
        before = snapshot(node.ns)
        active = sorted(node.systemd.glob("*.active"))
        node.ns.run("mv", "/usr/bin/python3", "/usr/bin/python3.away")
        log(node)
        done = rpm(node, "--erase", "ip-masq-agent")
        assert done.returncode != 0
        assert "rules are still active" in done.stderr and "the interpreter is /usr/bin/python3" in done.stderr
        # It stays as a whole: what repaired the rules does so again, and what was stopped stays stopped.
        assert [line.split()[0] for line in log(node)] == ["stop", "stop", "start"]
        assert sorted(node.systemd.glob("*.active")) == active and snapshot(node.ns) == before
        assert rpm(node, "--query", "ip-masq-agent").returncode == 0 and node.at(PACKAGED.program).exists()
        node.ns.run("mv", "/usr/bin/python3.away", "/usr/bin/python3")
        assert rpm(node, "--erase", "ip-masq-agent").returncode == 0
        assert NFT.rules(node.ns, "ipv4") is None and not node.at(PACKAGED.program).exists()

    def test_one_that_never_had_rules_can_always_be_removed(self, node: AgentNode, package: Path) -> None:
        install(node, package)
        node.ns.run("mv", "/usr/bin/python3", "/usr/bin/python3.away")
        done = rpm(node, "--erase", "ip-masq-agent")
        node.ns.run("mv", "/usr/bin/python3.away", "/usr/bin/python3")
        assert done.returncode == 0 and not node.at(PACKAGED.program).exists(), done.stderr

    def test_an_upgrade_keeps_the_rules_and_what_was_disabled(self, node: AgentNode, package: Path) -> None:
        install(node, package)
        configure(node, PACKAGED)
        before = snapshot(node.ns)
        assert node.expected()
        (node.systemd / (units.PATH + ".enabled")).unlink()
        log(node)
        install(node, package, "--reinstall")
        # Of those that stay enabled, a newer version may have new links.
        kept = [unit for unit in units.ENABLED_UNITS if unit != units.PATH]
        restarted = ["try-restart " + unit for unit in units.STARTED_UNITS]
        assert log(node) == ["enable " + " ".join(kept), "daemon-reload ", *restarted]
        assert not (node.systemd / (units.PATH + ".enabled")).exists()
        assert snapshot(node.ns) == before and not node.expected()

    def test_an_upgrade_enables_the_units_that_are_new(self, node: AgentNode, package: Path) -> None:
        install(node, package)
        hook, other = units.FIREWALL_HOOKS[1:3]
        for unit in (units.PATH, hook, other):
            (node.systemd / (unit + ".enabled")).unlink()
        (node.systemd / (units.PATH + ".active")).unlink()
        (node.systemd / "nftables.service.active").touch()
        known = node.at(UNITS_LIST).read_text().replace(units.PATH + "\n", "").replace(hook + "\n", "")
        node.at(UNITS_LIST).write_text(known)
        install(node, package, "--reinstall")
        enabled = {path.stem for path in node.systemd.glob("*.enabled")}
        assert enabled == {*units.ENABLED_UNITS} - {other}
        active = {path.stem for path in node.systemd.glob("*.active")}
        assert active == {*units.STARTED_UNITS, hook, "nftables.service"}

    def test_an_agent_of_the_role_stays_in_force_until_the_role_is_applied(
        self, node: AgentNode, package: Path
    ) -> None:
        node.module(MODULE, {"config": CONFIG})
        before = snapshot(node.ns), {path.name for path in node.systemd.iterdir()}
        done = rpm(node, "--install", "--force-debian", "--nodeps", package)
        assert done.returncode == 0 and "units and rules left unchanged" in done.stderr, done
        assert (snapshot(node.ns), {path.name for path in node.systemd.iterdir()}) == before
        adopted = node.module(MODULE, {"config": CONFIG})
        assert adopted["changed"] and not adopted["rules"]["actions"], adopted
        assert not [name for name in files(node) if name.startswith(("usr/local", "etc/systemd"))]
        assert not node.module(MODULE, {"config": CONFIG})["changed"]
        assert snapshot(node.ns) == before[0]

    def test_it_does_not_remove_rules_of_another_installation(self, node: AgentNode, package: Path) -> None:
        node.module(MODULE, {"config": CONFIG})
        before = snapshot(node.ns), files(node), {path.name for path in node.systemd.iterdir()}
        rpm(node, "--install", "--force-debian", "--nodeps", package)
        done = rpm(node, "--erase", "ip-masq-agent")
        assert done.returncode == 0 and "units and rules left unchanged" in done.stderr, done
        assert (snapshot(node.ns), files(node), {path.name for path in node.systemd.iterdir()}) == before

    def test_module_that_replaces_its_files_says_so(self, node: AgentNode, package: Path) -> None:
        install(node, package)
        configure(node, PACKAGED)
        timer = "%s/%s" % (UNIT_DIR, units.TIMER)
        node.at(timer).write_text("[Timer]\n")
        done = node.module(MODULE, {"config": CONFIG})
        assert done["files"] == [timer]
        assert "files of the package ip-masq-agent are replaced" in str(done["warnings"])
        edited = node.module(MODULE, {"config": {**CONFIG, "masqLinkLocal": True}})
        assert edited["files"] == ["/etc/ip-masq-agent/config"] and "package" not in str(edited.get("warnings"))

    def test_a_chosen_bin_dir_takes_the_place_of_the_package(self, node: AgentNode, package: Path) -> None:
        install(node, package)
        configure(node, PACKAGED)
        moved = node.module(MODULE, {"config": CONFIG, "bin_dir": "/var/lib/sbin"})
        assert "files of the package ip-masq-agent are replaced" in str(moved["warnings"]), moved
        assert not [name for name in files(node) if name.startswith(("usr/sbin", "usr/lib"))]
        assert not node.module(MODULE, {"config": CONFIG, "bin_dir": "/var/lib/sbin"})["changed"]
