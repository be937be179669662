# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What removal takes away, and what it leaves. With real rules: tests of the kernel. With real systemd: molecule."""

from __future__ import annotations

import functools
import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import install, program_modules, removal, units
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import PACKAGED, Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import Memory, write_memory
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import saved_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import packages, systemd
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support.installation import put_files
from support.private_node import private_paths
from support.units import Systemctl

SECRET = "root:$6$salt$hash:20000:0:99999:7:::\n"


class World:
    """A node with the agent in places of its own; reconcile only remembers which chains were to go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        monkeypatch.setattr(removal, "reconcile", self._reconcile)
        self.root = root
        for folder in ("metrics", "run/systemd/system"):
            (root / folder).mkdir(parents=True)
        monkeypatch.setattr(systemd, "is_running", lambda: False)
        self.paths = private_paths(root, config_dir=str(root / "etc/policy"), metrics_dir=str(root / "metrics"))
        self.config_dir = Path(self.paths.config_dir)
        self.metrics_file = Path(self.paths.metrics_file)
        self.chains: t.List[str] = []
        self._systemctl: t.Callable[..., Outcome] = lambda *_arguments, **_more: Outcome(0, "", "")
        self._monkeypatch = monkeypatch

    def boot(self, enabled: t.Iterable[str] = (), active: t.Iterable[str] = ()) -> Systemctl:
        """Have the node run systemd, with some units enabled and active."""
        self._monkeypatch.setattr(systemd, "is_running", lambda: True)
        self._systemctl = systemctl = Systemctl(enabled, active)
        return systemctl

    def run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        """What the code under test starts programs with; no package owns anything."""
        return self._systemctl(argv, stdin, timeout) if argv[0] == "systemctl" else Outcome(0, "", "")

    def _reconcile(
        self,
        _node: Node,
        config: Config,
        present: bool,
        check: bool,
        former: t.Sequence[str],
        lock_path: str,
        effects: bool,
    ) -> Result:
        assert not present and effects and lock_path == self.paths.run_lock
        self.chains = [config.masq_chain, *former]
        return Result("iptables_nft", "1.8.9", (), (), ())

    def install(self, config: str = "{}\n") -> None:
        """What a run of the module and of the service leave."""
        put_files(self.paths, config)
        write_memory(self.paths, Memory())
        os.makedirs(self.paths.run_dir)
        Path(self.paths.due).write_text("1\n")
        self.metrics_file.write_text("ip_masq_agent_in_sync 1\n")

    def remove(self, paths: t.Optional[Paths] = None) -> install.InstallResult:
        """Predict a removal, and do it."""
        before = self.files()
        node = Node(self.run)
        predicted = removal.Removal(node, paths or self.paths, check=True).carry_out()
        assert self.files() == before
        done = removal.Removal(node, paths or self.paths).carry_out()
        assert done == predicted
        return done

    def files(self) -> t.Set[str]:
        """Every file, and every directory that may be ours."""
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if not path.is_dir() or path.name in ("policy", "config.d") or "ip-masq" in path.name
        }


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """A node without the agent."""
    return World(monkeypatch, tmp_path)


def shown(done: install.InstallResult) -> str:
    """What the diff has."""
    return "".join(change.before or "" for change in done.files)


def test_everything_installed_is_removed(world: World) -> None:
    before = world.files()
    world.install()
    (world.config_dir / "config.d" / "mine.json").write_text("{}")
    done = world.remove()
    assert world.files() == before
    assert done.notes == ()
    again = world.remove()
    assert (again.files, again.services, again.notes) == ((), (), ())


def test_files_that_bring_the_rules_back_are_named_and_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = world.root / "etc/iptables/rules.v4"
    saved.parent.mkdir(parents=True)
    saved.write_text(":OPS-MASQ - [0:0]\n")
    monkeypatch.setattr(saved_rules, "notes", functools.partial(saved_rules.notes, root=str(world.root)))
    world.install('{"masqChain": "OPS-MASQ"}\n')
    (note,) = world.remove().notes
    assert note.startswith("/etc/iptables/rules.v4 has the chain OPS-MASQ (line 1): ") and saved.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"config_dir": "/no/such/place"},
        {"bin_dir": "/no/such/place"},
        {"metrics_dir": ""},
    ],
)
def test_places_are_those_of_the_installed_program(world: World, options: t.Dict[str, str]) -> None:
    before = world.files()
    world.install()
    world.remove(world.paths._replace(**options))
    assert world.files() == before


class TestPackages:
    """Files that a package owns."""

    def test_removal_is_refused_before_anything_is_touched(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.install()
        before = world.files()
        owner = packages.Package("masq", "dpkg --remove masq")
        monkeypatch.setattr(packages, "find_owner", lambda _run, path: owner if path == world.paths.program else None)
        with pytest.raises(NodeError) as error:
            world.remove()
        assert str(error.value).startswith("%s belongs to the package masq, " % world.paths.program)
        assert "with 'dpkg --remove masq'" in str(error.value)
        assert world.files() == before and world.chains == []

    def test_a_package_without_its_program_is_a_package(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        packaged = world.paths._replace(units=PACKAGED.units)
        put_files(packaged, "{}\n")
        os.unlink(packaged.program)
        before = world.files()
        unit = os.path.join(packaged.unit_dir, units.SERVICE)
        owner = packages.Package("masq", "dpkg --remove masq")
        monkeypatch.setattr(packages, "find_owner", lambda _run, path: owner if path == unit else None)
        with pytest.raises(NodeError, match="%s belongs to the package masq" % unit):
            world.remove()
        assert world.files() == before

    def test_the_package_itself_keeps_files_and_configuration(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packages, "find_owner", lambda _run, _path: packages.Package("masq", "dpkg --remove masq"))
        put_files(world.paths, '{"masqChain": "OPS-MASQ"}\n')
        kept = world.files()
        world.install('{"masqChain": "OPS-MASQ"}\n')
        done = removal.Removal(Node(world.run), world.paths, keep_files=True).carry_out()
        assert world.files() == kept
        assert world.chains == ["OPS-MASQ"] and [change.path for change in done.files] == [str(world.metrics_file)]


class TestConfigDir:
    """Only what the agent wrote or read."""

    def test_files_of_others_stay_and_are_named(self, world: World) -> None:
        world.install()
        (world.config_dir / "config.d" / "a.json").write_text("{}")
        kept = {"ca.key": "key", "config.d/README": "read me", "config.d/.a.json.swp": "draft", "pki/sa.key": "key"}
        (world.config_dir / "pki").mkdir()
        for name, text in kept.items():
            (world.config_dir / name).write_text(text)
        done = world.remove()
        left = {str(path.relative_to(world.config_dir)) for path in world.config_dir.rglob("*") if path.is_file()}
        assert left == set(kept)
        assert sorted(done.notes) == [
            "%s kept: it contains files that the agent neither wrote nor read: ca.key, config.d, pki"
            % world.config_dir,
            "%s/config.d kept: it contains files that the agent neither wrote nor read: .a.json.swp, README"
            % world.config_dir,
        ]
        again = world.remove()
        assert (again.files, again.services, again.notes) == ((), (), ())

    def test_another_directory_than_the_agent_s_stays(self, world: World) -> None:
        empty = world.root / "etc/opt"
        empty.mkdir(parents=True)
        assert world.remove(world.paths._replace(config_dir=str(empty))).services == ()
        assert empty.is_dir()

    @pytest.mark.parametrize("link", ["config", "config.d", "config.d/a.json"])
    def test_a_link_goes_and_what_it_leads_to_stays(self, world: World, link: str) -> None:
        world.install()
        elsewhere = world.root / "elsewhere"
        path = world.config_dir / link
        if link == "config.d":
            path.rmdir()
            elsewhere.mkdir()
            (elsewhere / "a.json").write_text("{}")
        else:
            elsewhere.write_text(SECRET)
            if path.exists():
                path.unlink()
        path.symlink_to(elsewhere)
        done = world.remove(world.paths)
        assert not world.config_dir.exists()
        assert os.listdir(elsewhere) == ["a.json"] if link == "config.d" else elsewhere.read_text() == SECRET
        assert SECRET not in shown(done) and "not shown\n" in shown(done)

    def test_a_directory_that_is_a_link_goes_and_what_it_leads_to_stays(self, world: World) -> None:
        (world.root / "elsewhere").mkdir()
        world.config_dir.parent.mkdir(parents=True, exist_ok=True)
        world.config_dir.symlink_to(world.root / "elsewhere")
        world.install()
        done = world.remove()
        assert not world.config_dir.is_symlink()
        assert (world.root / "elsewhere" / "config").read_text() == "{}\n"
        assert (world.root / "elsewhere" / "config.d").is_dir()
        assert not [line for line in done.services if str(world.config_dir) in line], "a directory that is still there"

    def test_a_directory_in_a_file_s_place_stays(self, world: World) -> None:
        world.install()
        (world.config_dir / "config").unlink()
        (world.config_dir / "config" / "deeper").mkdir(parents=True)
        world.remove()
        assert (world.config_dir / "config" / "deeper").is_dir()


class TestMetrics:
    """The directory may belong to another user, who can put any file in the place of the metrics."""

    @pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
    @pytest.mark.parametrize("removed", [True, False], ids=["the agent goes", "metrics are turned off"])
    def test_what_is_in_their_place_is_neither_shown_nor_waited_for(
        self, world: World, kind: str, removed: bool
    ) -> None:
        world.install()
        secret = world.root / "shadow"
        secret.write_text(SECRET)
        world.metrics_file.unlink()
        if kind == "pipe":
            os.mkfifo(world.metrics_file)
        else:
            (os.symlink if kind == "link" else os.link)(secret, world.metrics_file)
        done = world.remove() if removed else put_files(world.paths._replace(metrics_dir=""), "{}\n")
        assert SECRET not in shown(done)
        assert secret.read_text() == SECRET and not os.path.lexists(world.metrics_file)


class TestOthers:
    """Files of other programs under our names."""

    @pytest.mark.parametrize("name", ["ip-masq-agent", "ip-masq-agent-resync"])
    def test_a_program_that_is_not_ours_stays(self, world: World, name: str) -> None:
        os.makedirs(world.paths.bin_dir)
        other = Path(world.paths.bin_dir, name)
        other.write_bytes(b"\x7fELF")
        done = world.remove()
        assert other.read_bytes() == b"\x7fELF"
        assert done.files == () and done.notes == ("%s kept: it is not a file of this collection" % other,)

    def test_files_among_the_modules_stay_and_are_named(self, world: World) -> None:
        world.install()
        folder = Path(program_modules.modules_dir(world.paths))
        theirs = [folder / "ip_masq_agent" / "notes.txt", folder.parent / "linked"]
        theirs[0].write_text("mine")
        theirs[1].symlink_to("/etc")
        done = world.remove()
        assert [path for path in folder.parent.rglob("*") if path.is_symlink() or not path.is_dir()] == theirs[::-1]
        assert done.notes == (
            "%s kept: it contains files that the agent neither wrote nor read: %s/ip_masq_agent/notes.txt, linked"
            % (folder.parent, folder.name),
        )
        assert world.remove().files == ()

    def test_a_unit_that_is_not_ours_stays_and_runs_on(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        os.makedirs(world.paths.unit_dir)
        unit = Path(world.paths.unit_dir, units.SERVICE)
        unit.write_text("[Service]\nExecStart=/opt/ip-masq-agent\n")
        there = (*units.ENABLED_UNITS, units.SERVICE)
        systemctl = world.boot(enabled=there, active=there)
        world.remove()
        assert unit.exists()
        assert systemctl.enabled == systemctl.active == {units.SERVICE}


class TestUnits:
    """Units end before the rules, and those that start the service before the service."""

    def test_nothing_can_set_the_rules_again(self, world: World) -> None:
        world.install()
        systemctl = world.boot(enabled=units.ENABLED_UNITS, active=(*units.STARTED_UNITS, units.SERVICE))
        done = world.remove()
        assert [line.split(":")[0] for line in done.services][:2] == ["stop", "disable"]
        # The timer may have started the service after it was seen to be inactive.
        triggers, service, disabled, *rest = systemctl.calls
        assert triggers[0] == service[0] == "stop" and set(triggers) >= set(units.STARTED_UNITS)
        assert units.SERVICE not in triggers and service[1:] == [units.SERVICE]
        assert disabled[0] == "disable"
        assert [call[0] for call in rest] == ["daemon-reload", "reset-failed"]
        assert (systemctl.enabled, systemctl.active, systemctl.is_stale) == (set(), set(), False)


class TestChains:
    """The rules are looked for under every name that they may have."""

    @pytest.mark.parametrize(
        "config, expected", [({"masqChain": "OPS", "toPorts": "?"}, ["OPS"]), ({"masqChain": "KUBE-X"}, []), ({}, [])]
    )
    def test_that_of_the_inventory_where_the_node_knows_none(
        self, world: World, config: t.Dict[str, t.Any], expected: t.List[str]
    ) -> None:
        removal.Removal(Node(world.run), world.paths, config=config).carry_out()
        assert world.chains == ["IP-MASQ-AGENT", *expected]
        world.install(json.dumps({"masqChain": "MINE"}))
        removal.Removal(Node(world.run), world.paths, config=config).carry_out()
        assert world.chains == ["MINE"]

    def test_that_of_the_memory_where_the_configuration_is_deleted_or_broken(self, world: World) -> None:
        for damage in (Path.unlink, lambda config: config.write_text("{")):
            world.install(json.dumps({"masqChain": "OLD"}))
            write_memory(world.paths, Memory(values={"masq_chain": "OLD"}))
            damage(world.config_dir / "config")
            world.remove()
            assert "OLD" in world.chains
