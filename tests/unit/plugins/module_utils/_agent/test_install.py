# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program, and the steps that put it on a node. With real systemd: molecule."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import (
    install,
    module_directory,
    program_modules,
    snapshot,
    units,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import (
    CHOSEN,
    MARK,
    METRICS_NAME,
    PACKAGED,
    Paths,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError, NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.installation import put_all, put_files
from support.private_node import private_paths
from support.units import Systemctl


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A node of our own."""
    return private_paths(tmp_path)


def tree(root: Path) -> t.Dict[str, t.Tuple[int, bytes]]:
    """Every file below a directory: its mode and its content."""
    return {
        str(path.relative_to(root)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


class TestPutFiles:
    """install.Installation.write_files"""

    def test_puts_all_in_place_with_their_modes(self, paths: Paths, tmp_path: Path) -> None:
        put = put_files(paths, "{}\n")
        found = tree(tmp_path)
        plain = {name for name in found if not name.startswith("lib/")}
        modules_dir = program_modules.modules_dir(paths)
        assert {change.path for change in put.files} == {str(tmp_path / name) for name in plain} | {modules_dir}
        modules = {str(tmp_path / name) for name in found if name not in plain and name.endswith(".py")}
        assert modules == set(module_directory.node_files(paths))
        assert found["etc/ip-masq-agent/config"] == (0o644, b"{}\n")
        assert found["sbin/ip-masq-agent"] == (0o755, program_modules.launcher(paths))
        assert found["sbin/ip-masq-agent-resync"] == (0o755, snapshot.resync_script(paths).encode())
        for name, text in units.unit_files(paths).items():
            assert found["etc/systemd/system/" + name] == (0o644, text.encode())
        assert (tmp_path / "etc/ip-masq-agent/config.d").is_dir()

    def test_what_was_changed_by_hand_is_restored(self, paths: Paths, tmp_path: Path) -> None:
        put_files(paths, "{}\n")
        before = tree(tmp_path)
        (tmp_path / "sbin/ip-masq-agent").write_bytes(b"#!/bin/sh\n")
        (tmp_path / "etc/systemd/system" / units.TIMER).unlink()
        (tmp_path / "sbin/ip-masq-agent-resync").chmod(0o644)
        put = put_files(paths, "{}\n")
        assert {os.path.basename(change.path) for change in put.files} == {
            "ip-masq-agent",
            "ip-masq-agent-resync",
            units.TIMER,
        }
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("later", ["", "elsewhere"])
    def test_metrics_do_not_stay_where_they_are_no_longer_written(
        self, paths: Paths, tmp_path: Path, later: str
    ) -> None:
        first, second = tmp_path / "first", tmp_path / later
        for folder in (first, second):
            folder.mkdir(exist_ok=True)
        before = paths._replace(metrics_dir=str(first))
        after = paths._replace(metrics_dir=str(second) if later else "")
        put_files(before, "{}\n")
        stale = first / METRICS_NAME
        stale.write_text("# of yesterday\n")
        assert put_files(before, "{}\n").files == ()
        predicted = put_files(after, "{}\n", check=True)
        assert stale.exists()
        assert put_files(after, "{}\n") == predicted
        assert install.FileChange(str(stale), "not shown\n", None) in predicted.files
        assert not stale.exists()

    def test_a_program_does_not_stay_where_it_is_no_longer_started(self, paths: Paths, tmp_path: Path) -> None:
        put_files(paths, "{}\n")
        moved = paths._replace(bin_dir=str(tmp_path / "elsewhere"))
        predicted = put_files(moved, "{}\n", check=True)
        assert os.path.exists(paths.program)
        assert put_files(moved, "{}\n") == predicted
        assert os.listdir(paths.bin_dir) == []
        assert sorted(os.listdir(moved.bin_dir)) == ["ip-masq-agent", "ip-masq-agent-resync"]
        assert module_directory.is_there(moved)

    def test_files_of_another_config_dir_stay_and_are_named(self, paths: Paths, tmp_path: Path) -> None:
        put_files(paths, "{}\n")
        put = put_files(paths._replace(config_dir=str(tmp_path / "ip-masq-agent")), "{}\n")
        assert os.path.exists(paths.config_dir + "/config")
        (note,) = put.notes
        assert note == "config_dir was %s; its files are kept and no longer read" % paths.config_dir

    def test_another_interpreter_is_a_change_that_the_diff_shows(self, paths: Paths) -> None:
        put_files(paths, "{}\n")
        (change,) = put_files(paths._replace(python="/usr/bin/python3.99"), "{}\n").files
        assert t.cast(str, change.before).startswith("#!%s " % sys.executable)
        assert t.cast(str, change.after).startswith("#!/usr/bin/python3.99 ")

    def test_what_is_no_text_is_described(self, paths: Paths) -> None:
        os.makedirs(paths.bin_dir)
        Path(paths.program).write_bytes(b"\x7fELF\x02\x00\xff")
        shown = {os.path.basename(change.path): change for change in put_files(paths, "{}\n").files}
        assert re.match("7 bytes, sha256 [0-9a-f]{64}\n$", t.cast(str, shown["ip-masq-agent"].before))

    def test_snapshot_of_the_old_program_does_not_stay(self, paths: Paths) -> None:
        Path(paths.expected).parent.mkdir(parents=True)
        Path(paths.expected).write_text("old")
        put_files(paths, "{}\n")
        assert not Path(paths.expected).exists()


class TestCheckPaths:
    """install.check_paths"""

    @pytest.mark.parametrize("place", CHOSEN)
    @pytest.mark.parametrize("hidden", ["/home", "/root", "/run/user", "/tmp", "/var/tmp"])
    def test_where_users_keep_files_is_refused(self, place: str, hidden: str) -> None:
        for path in (hidden, hidden + "/deeper"):
            with pytest.raises(
                ConfigError,
                match="^%s: %s is within %s, where users keep their files" % (place, path, hidden),
            ):
                install.check_paths(Paths(**{place: path}))
        try:
            install.check_paths(Paths(**{place: hidden + "x"}))
        except ConfigError as exc:
            # Beside /var/tmpx, modules would be in the directory of the state.
            assert "is not dedicated to the agent" in str(exc) or "modules beside bin_dir: " in str(exc)

    @pytest.mark.parametrize("place", CHOSEN)
    def test_a_link_that_leads_there_is_refused_and_the_target_named(self, place: str, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "home")
        with pytest.raises(
            ConfigError, match="^%s: .*/link/x, a symbolic link to .*/home/x, is within .*/home" % place
        ):
            install.check_paths(Paths(root=str(tmp_path), **{place: str(tmp_path / "link" / "x")}))

    @pytest.mark.parametrize("folder", [Paths().state_dir, Paths().run_dir])
    def test_what_removal_deletes_as_a_whole_is_refused(self, folder: str) -> None:
        with pytest.raises(ConfigError, match="which a removal deletes completely"):
            install.check_paths(Paths(config_dir=folder))

    def test_a_link_of_our_name_does_not_make_it_one_of_its_own(self, paths: Paths, tmp_path: Path) -> None:
        link, others = tmp_path / "srv" / "ip-masq-agent", tmp_path / "kubernetes"
        (others / "pki").mkdir(parents=True)
        link.parent.mkdir()
        link.symlink_to(others)
        with pytest.raises(ConfigError) as refused:
            install.check_paths(paths._replace(config_dir=str(link)))
        assert str(refused.value).startswith(
            "config_dir: %s, a symbolic link to %s, is not dedicated to the agent (it contains 'pki');" % (link, others)
        )
        (others / "pki").rmdir()
        install.check_paths(paths._replace(config_dir=str(link)))

    @pytest.mark.parametrize(
        "bin_dir, place", [("/var/sbin", "/var/lib/ip-masq-agent"), ("{}/linked/bin", "/var/tmp/ip-masq-agent")]
    )
    def test_modules_are_where_the_service_sees_them(self, tmp_path: Path, bin_dir: str, place: str) -> None:
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / "lib").symlink_to("/var/tmp")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(
            ConfigError, match="^modules beside bin_dir: .*%s.* is within " % place
        ):
            patch.setattr(install, "_OF_USERS", ("/var/tmp",))  # /tmp has the directory of this test
            install.check_paths(Paths(bin_dir=bin_dir.format(tmp_path)))

    def test_one_that_the_installed_agent_has_stays_good(self, paths: Paths, tmp_path: Path) -> None:
        there = paths._replace(config_dir=str(tmp_path / "policy"))
        put_files(there, "{}\n")
        (tmp_path / "policy" / "config~").touch()
        install.check_paths(there)


class TestInstalled:
    """install.find_installed"""

    def test_places_are_those_of_the_program_that_the_unit_starts(self, paths: Paths) -> None:
        assert install.find_installed(paths) == []
        put_files(paths, "{}\n")
        assert install.find_installed(paths) == [paths]
        assert install.find_installed(paths._replace(bin_dir="/no/such/place")) == [paths]

    def test_places_are_those_of_the_program_where_there_is_no_unit(self, paths: Paths) -> None:
        put_files(paths, "{}\n")
        os.unlink(os.path.join(paths.unit_dir, units.SERVICE))
        assert install.find_installed(paths._replace(config_dir="/other")) == [paths]

    def test_a_damaged_program_names_no_paths(self, paths: Paths) -> None:
        put_files(paths, "{}\n")
        Path(paths.program).write_text("#!/bin/sh\n")
        assert install.find_installed(paths) == []


@pytest.fixture
def older(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> str:
    """A node with an older release; the digest of its modules."""
    sources = {**program_modules.sources(), "_version": b"# the kubenode.ip_masq maintainers\nVERSION = '0.0.9'\n"}
    with monkeypatch.context() as patch:
        patch.setattr(program_modules, "sources", lambda: sources)
        digest = program_modules.digest.__wrapped__()
        patch.setattr(program_modules, "digest", lambda: digest)
        put_files(paths, "{}\n")
    assert digest != program_modules.digest()
    return digest


def started(paths: Paths) -> str:
    """What the launcher starts: the version in the modules that it names."""
    argv = [paths.program, "--version"]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]


class TestUpgrade:
    """install.Installation.write_files where another release is"""

    def test_the_launcher_is_switched_and_the_modules_before_stay(self, paths: Paths, older: str) -> None:
        assert started(paths) == "0.0.9"
        predicted = put_files(paths, "{}\n", check=True)
        assert started(paths) == "0.0.9"
        assert put_files(paths, "{}\n") == predicted
        assert {change.path for change in predicted.files} == {program_modules.modules_dir(paths), paths.program}
        # A run that began before loads more of them.
        assert sorted(os.listdir(paths.lib_dir)) == sorted([older, program_modules.digest()])
        assert started(paths) == VERSION
        assert put_files(paths, "{}\n") == install.InstallResult((), ())

    def test_the_next_upgrade_removes_what_was_left(self, paths: Paths, older: str) -> None:
        oldest = Path(paths.lib_dir, 64 * "0")
        Path(paths.lib_dir, older).rename(oldest)
        os.utime(paths.program, (1, 1))
        assert [change.path for change in put_files(paths, "{}\n").files if change.after is None] == [str(oldest)]
        assert os.listdir(paths.lib_dir) == [program_modules.digest()]

    @pytest.mark.parametrize("step", range(4))
    def test_stopped_at_any_step_one_of_both_starts(
        self, paths: Paths, older: str, step: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each step that changes what a start finds is a rename or a removal."""
        left = [step]

        class Stopped(Exception):
            pass

        def counted(call: t.Callable[..., None]) -> t.Callable[..., None]:
            def step(*arguments: t.Any, **options: t.Any) -> None:
                if left[0] == 0:
                    raise Stopped
                left[0] -= 1
                call(*arguments, **options)

            return step

        os.utime(paths.program, (1, 1))
        for number in range(3):
            (Path(paths.lib_dir) / ("%064x" % number)).mkdir()
        with monkeypatch.context() as patch, contextlib.suppress(Stopped):
            patch.setattr(os, "rename", counted(os.rename))
            patch.setattr(os, "rmdir", counted(os.rmdir))
            put_files(paths, "{}\n")
        assert started(paths) == ("0.0.9" if step < 2 else VERSION)
        put_files(paths, "{}\n")
        assert started(paths) == VERSION

    def test_a_damaged_module_is_put_right(self, paths: Paths) -> None:
        put_files(paths, "{}\n")
        folder = Path(program_modules.modules_dir(paths), "ip_masq_agent")
        (folder / "_version.py").write_text("VERSION = 'edited'\n")
        (folder / "_tasks" / "cli.py").unlink()
        (folder / "_errors.py").chmod(0o666)
        (folder / "_policy").chmod(0o777)
        shutil.rmtree(folder / "_system")
        (folder / "_system").symlink_to("/etc")
        predicted = put_files(paths, "{}\n", check=True)
        assert put_files(paths, "{}\n") == predicted
        assert {
            str(folder / name) for name in ("_version.py", "_tasks/cli.py", "_errors.py", "_policy", "_system")
        } <= {change.path for change in predicted.files}
        assert started(paths) == VERSION
        assert put_files(paths, "{}\n") == install.InstallResult((), ())


class TestUpdateUnits:
    """install.Installation.update_units"""

    def test_first_time_all_are_enabled_and_the_timer_runs(self, paths: Paths) -> None:
        systemctl = Systemctl()
        done = put_all(systemctl, paths)
        assert [call[0] for call in systemctl.calls] == ["enable", "daemon-reload", "start"]
        assert systemctl.enabled == set(units.ENABLED_UNITS)
        assert systemctl.active == set(units.STARTED_UNITS)
        assert [line.split(":")[0] for line in done.services[2:]] == ["enable", "start"]
        systemctl.calls.clear()
        assert put_all(systemctl, paths).services == ()
        assert systemctl.calls == []

    def test_a_unit_that_changed_is_restarted(self, paths: Paths) -> None:
        systemctl = Systemctl()
        put_all(systemctl, paths)
        systemctl.calls.clear()
        (Path(paths.unit_dir) / units.TIMER).write_text("[Timer]\n")
        put_all(systemctl, paths)
        assert systemctl.calls == [
            [
                "enable",
                "--no-reload",
                *units.ENABLED_UNITS,
            ],  # their links may be gone, of which systemd knows nothing
            ["daemon-reload"],
            ["restart", units.TIMER],
        ]

    def test_what_an_interrupted_run_has_changed_is_read(self, paths: Paths) -> None:
        """It was ended between the files and systemd: no file changes any more."""
        systemctl = Systemctl()
        put_all(systemctl, paths)
        systemctl.calls.clear()
        systemctl.changed.update((units.SERVICE, units.TIMER))
        expected = ("daemon-reload: %s, %s" % (units.SERVICE, units.TIMER), "restart: " + units.TIMER)
        assert put_all(systemctl, paths, check=True).services == expected
        assert put_all(systemctl, paths).services == expected
        assert [call[0] for call in systemctl.calls] == ["enable", "daemon-reload", "restart"]
        assert put_all(systemctl, paths).services == ()

    def test_not_enabled_means_stopped_now_and_after_a_boot(self, paths: Paths) -> None:
        systemctl = Systemctl()
        put_all(systemctl, paths)
        done = put_all(systemctl, paths, enabled=False)
        assert [line.split(":")[0] for line in done.services] == ["disable", "stop"]
        assert (systemctl.enabled, systemctl.active, systemctl.is_stale) == (set(), set(), False)
        assert put_all(systemctl, paths, enabled=False).services == ()

    def test_without_the_watch_for_edits_the_rest_is_there(self, paths: Paths) -> None:
        systemctl = Systemctl()
        systemctl.cannot_start = {units.PATH}
        done = put_all(systemctl, paths)
        assert systemctl.active == {units.TIMER}
        assert "start: ip-masq-agent.timer" in done.services
        (note,) = done.notes
        assert note.startswith("ip-masq-agent.path cannot start (result resources): edits of the configuration act at ")
        limit = Path("/proc/sys/fs/inotify/max_user_instances").read_text().strip()
        assert "raise the sysctl fs.inotify.max_user_instances (now %s)" % limit in note
        # Until it can: a note each time, and no change.
        again = put_all(systemctl, paths)
        assert (again.services, again.notes) == ((), done.notes)
        systemctl.cannot_start = set()
        assert put_all(systemctl, paths).services == ("start: ip-masq-agent.path",)

    def test_without_the_timer_it_is_an_error(self, paths: Paths) -> None:
        systemctl = Systemctl()
        systemctl.cannot_start = {units.TIMER}
        with pytest.raises(NodeError, match="systemctl start ip-masq-agent.timer ip-masq-agent.path failed"):
            put_all(systemctl, paths)

    def test_units_of_a_newer_release_go(self, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
        """A downgrade: what the newer release has more of is simulated, how it writes it down is not."""
        systemctl = Systemctl()
        real = units.unit_files
        more = ("ip-masq-agent-new.timer", "ip-masq-agent-new@.service", "ip-masq-agent-new.service")
        with monkeypatch.context() as newer:
            text = "# %s\n" % MARK
            newer.setattr(install, "unit_files", lambda there: {**real(there), **dict.fromkeys(more, text)})
            put_all(systemctl, paths)
            assert put_all(systemctl, paths) == install.InstallResult((), ())
            assert set(json.loads(Path(paths.files_list).read_text())) >= {paths.program, paths.resync}
        folder = Path(paths.unit_dir)
        (folder / "timers.target.wants").mkdir(exist_ok=True)
        links = [folder / "timers.target.wants" / name for name in (more[0], "ip-masq-agent-new@x.service")]
        for link in links:
            link.symlink_to(folder / link.name)
        # Of others: a copy of one of ours, and a file in place of one.
        copy = folder / "ip-masq-agent-lab.service"
        copy.write_text(text)
        (folder / more[2]).write_text("of others")
        systemctl.active |= {more[0], "ip-masq-agent-new@x.service"}
        systemctl.calls.clear()
        done = put_all(systemctl, paths)
        removed = {change.path for change in done.files}
        assert removed == {str(folder / name) for name in more[:2]} | set(map(str, links))
        assert "stop: ip-masq-agent-new.timer, ip-masq-agent-new@x.service" in done.services
        assert systemctl.active == set(units.STARTED_UNITS)
        assert copy.exists() and (folder / more[2]).read_text() == "of others"
        assert not any((folder / name).exists() for name in more[:2]) and not any(map(os.path.lexists, links))
        assert put_files(paths, "{}\n").files == ()

    @pytest.mark.parametrize("text", ["{", "7", "[[1]]", '["/etc/passwd"]', "\xff", "[" * 100_000], ids=range(6))
    def test_a_damaged_list_of_files_removes_none(self, paths: Paths, text: str) -> None:
        put_files(paths, "{}\n")
        Path(paths.state_dir).mkdir(parents=True)
        Path(paths.files_list).write_text(text, encoding="latin-1")
        assert put_files(paths, "{}\n").files == () and os.path.exists("/etc/passwd")


class TestPackages:
    """install.adopt_package, and units in the directories of a package and of an administrator"""

    @pytest.fixture
    def packaged(self, paths: Paths, tmp_path: Path) -> Paths:
        """Where a package has the agent, on a node that has the package."""
        made = paths._replace(bin_dir=str(tmp_path / "usr/sbin"), units=PACKAGED.units)
        put_files(made, None)
        return made

    @pytest.fixture
    def default(self, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
        """What the role asks for if nothing is chosen."""
        monkeypatch.setattr(install, "Paths", lambda: paths)
        return paths

    def test_another_place_can_be_chosen_and_one_set_of_units_is_left(
        self, default: Paths, packaged: Paths, tmp_path: Path
    ) -> None:
        chosen = default._replace(bin_dir=str(tmp_path / "opt"))
        assert install.adopt_package(chosen) == chosen
        systemctl = Systemctl(enabled=units.ENABLED_UNITS, active=units.STARTED_UNITS)
        done = put_all(systemctl, chosen)
        assert os.listdir(packaged.unit_dir) == [] and not os.path.exists(packaged.program)
        # The links of enabled units lead to where they were.
        assert [call[0] for call in systemctl.calls] == ["reenable", "daemon-reload", "restart"]
        assert "file removed: %s/%s" % (packaged.unit_dir, units.TIMER) in done.lines

    def test_what_the_role_installed_before_the_package_goes(self, default: Paths, tmp_path: Path) -> None:
        put_files(default, "{}\n")
        packaged = default._replace(bin_dir=str(tmp_path / "usr/sbin"), units=PACKAGED.units)
        elsewhere = tmp_path / "package"
        made = packaged._replace(root=str(elsewhere), bin_dir=str(elsewhere / "usr/sbin"))
        put_files(made, None)
        for folder in ("usr/sbin", "usr/lib"):
            (tmp_path / folder).parent.mkdir(exist_ok=True)
            (elsewhere / folder).rename(tmp_path / folder)
        unit = Path(packaged.unit_dir, units.SERVICE)
        unit.write_text(unit.read_text().replace(str(elsewhere), str(tmp_path)))
        mask = Path(default.unit_dir, units.PATH)
        mask.unlink()
        mask.symlink_to("/dev/null")
        assert install.adopt_package(default) == packaged
        put_files(packaged, None)
        assert os.listdir(default.unit_dir) == [units.PATH] and not os.path.exists(default.program)
        assert Path(default.config).read_text() == "{}\n"
        assert put_files(packaged, None) == install.InstallResult((), ())

    def test_a_unit_of_others_in_that_place_is_no_package(self, default: Paths) -> None:
        unit = Path(default._replace(units=PACKAGED.units).unit_dir, units.SERVICE)
        unit.parent.mkdir(parents=True)
        unit.write_text("[Service]\nExecStart=/usr/sbin/ip-masq-agent-resync\n")
        assert install.adopt_package(default) == default
        put_files(default, None)
        assert unit.exists()
