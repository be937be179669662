# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things lie, and the texts of units and of the resync script."""

from __future__ import annotations

import configparser
import subprocess
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import (
    snapshot,
    units,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import (
    CHOSEN,
    Paths,
    choose_paths,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import parse_duration

WHERE = choose_paths(
    config_dir="/opt/masq/etc",
    bin_dir="/opt/masq/bin",
    metrics_dir="/var/lib/metrics",
    python="/opt/python3.12/bin/python",
)


class Unit(t.Dict[t.Tuple[str, str], t.List[str]]):
    """The settings of a unit by section and name; systemd lets a name come more than once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        section = ""
        for line in text.splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            elif line and not line.startswith("#"):
                name, equals, value = line.partition("=")
                assert equals and section, line
                self.setdefault((section, name), []).append(value)


def read_units(paths: Paths = WHERE) -> t.Dict[str, Unit]:
    """All units, read."""
    return {name: Unit(text) for name, text in units.unit_files(paths).items()}


@pytest.mark.parametrize("place", CHOSEN)
@pytest.mark.parametrize(
    "path",
    [
        "relative",
        "/",
        "//",
        "/with space",
        "/a//b",
        "/a/../b",
        "/a/..",
        "/a/.",
        "/./a",
        "/a/./b",
        "/new\nline",
        "/per%cent",
        "/dollar$",
        '/quo"te',
        "/semi;colon",
        "/star*",
        "/\u00e9",
    ],
)
def test_a_path_that_would_have_to_be_quoted_is_refused(place: str, path: str) -> None:
    with pytest.raises(ConfigError) as error:
        choose_paths(**{place: path})
    assert str(error.value).startswith("%s: invalid path %s: " % (place, ascii(path)))


@pytest.mark.parametrize("place", CHOSEN)
def test_a_slash_at_the_end_means_nothing(place: str) -> None:
    assert choose_paths(**{place: "/opt/masq/"}) == choose_paths(**{place: "/opt/masq"})


def test_an_empty_metrics_dir_means_no_metrics() -> None:
    assert choose_paths(metrics_dir="").metrics_file == ""
    with pytest.raises(ConfigError):
        choose_paths(bin_dir="")


def test_places_follow_from_the_directories() -> None:
    assert WHERE.program == "/opt/masq/bin/ip-masq-agent"
    assert WHERE.lib_dir == "/opt/masq/lib/ip-masq-agent"
    assert WHERE.resync == "/opt/masq/bin/ip-masq-agent-resync"
    assert WHERE.metrics_file == "/var/lib/metrics/ip_masq_agent.prom"


def test_every_fixed_path_is_below_the_root() -> None:
    fixed = [name for name in vars(Paths) if isinstance(vars(Paths)[name], property) and name not in _OF_CHOSEN]
    assert {"unit_dir", "state_file", "run_lock"} <= set(fixed)
    for name in fixed:
        assert getattr(Paths(root="/else/where"), name) == "/else/where" + getattr(Paths(), name), name


#: They follow from the chosen paths; and NamedTuple makes a property of each field before Python 3.8.
_OF_CHOSEN = {"program", "lib_dir", "resync", "config", "drop_ins", "log_config", "metrics_file", *Paths._fields}


def test_no_placeholder_is_left_in_any_text() -> None:
    for text in units.unit_files(WHERE).values():
        assert "{" not in text and "}" not in text
    script = snapshot.resync_script(WHERE)
    for name in ("config", "drop_ins", "expected", "commands", "due", "last_sync", "program"):
        assert "{%s}" % name not in script


def test_every_enabled_unit_is_there_and_can_be_enabled() -> None:
    found = read_units()
    for unit in units.ENABLED_UNITS:
        name = units.FIREWALL_TEMPLATE if unit in units.FIREWALL_HOOKS else unit
        assert ("Install", "WantedBy") in found[name], name


def test_service_runs_the_resync_script_after_the_firewalls() -> None:
    service = read_units()[units.SERVICE]
    assert service["Service", "ExecStart"] == [WHERE.resync]
    assert service["Service", "Type"] == ["oneshot"]
    (after,) = service["Unit", "After"]
    before = {"network-pre.target", units.PREPARE_SERVICE} | {unit + ".service" for unit in units.FIREWALL_UNITS}
    assert set(after.split()) == before


def test_service_runs_once_there_is_a_configuration_or_the_agent_has_run() -> None:
    unit = read_units(WHERE)[units.SERVICE]
    assert [name for section, name in unit if "Condition" in name] == ["ConditionPathExistsGlob"]
    # "|": one of them is enough
    assert unit["Unit", "ConditionPathExistsGlob"] == [
        "|/opt/masq/etc/config",
        "|/opt/masq/etc/config.d/*.json",
        "|/opt/masq/etc/config.d/*.yaml",
        "|/opt/masq/etc/config.d/*.yml",
        "|/var/lib/ip-masq-agent/state.json",
        "|/run/ip-masq-agent/state.json",
    ]


def test_kubelet_starts_after_the_first_sync_whatever_came_of_it() -> None:
    service = read_units()[units.SERVICE]
    (before,) = service["Unit", "Before"]
    assert {"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"} <= set(
        before.split()
    )
    # An order, and no requirement; nor is it long.
    assert not {name for _section, name in service} & {"RequiredBy", "Requires", "BindsTo", "Requisite"}
    assert service["Install", "WantedBy"] == ["multi-user.target"]
    seconds = [int(service["Service", name][0]) for name in ("TimeoutStartSec", "TimeoutStopSec")]
    assert sum(seconds) <= 120


def test_every_unit_that_is_known_to_run_a_kubelet_waits() -> None:
    from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet import distributions

    assert set(units.KUBELET_UNITS) == set(distributions._UNITS)


def test_what_has_no_priority_reaches_the_journal_too() -> None:
    service = read_units()[units.SERVICE]
    assert service["Service", "SyslogLevel"] == service["Service", "LogLevelMax"] == ["notice"]


def test_a_restart_in_the_first_moment_is_no_failure() -> None:
    assert read_units()[units.SERVICE]["Service", "SuccessExitStatus"] == ["SIGTERM"]


def test_service_may_write_where_it_must() -> None:
    paths_ = ["-/var/lib/ip-masq-agent", "-/run/ip-masq-agent", "-/run/xtables.lock"]
    assert read_units(choose_paths())[units.SERVICE]["Service", "ReadWritePaths"] == [" ".join(paths_)]
    assert read_units()[units.SERVICE]["Service", "ReadWritePaths"] == [" ".join([*paths_, "-/var/lib/metrics"])]


#: Settings for which systemd makes, or changes the mode of, a directory on a disk. A full, read-only or missing one,
#: or a file in its place, then ends the service before its program starts.
_NEED_A_DISK = {
    *("StateDirectory", "RuntimeDirectory", "CacheDirectory", "LogsDirectory", "ConfigurationDirectory"),
    *("PrivateTmp", "PrivateDevices", "TemporaryFileSystem", "BindPaths", "BindReadOnlyPaths", "MountImages"),
    *("WorkingDirectory", "RootDirectory", "EnvironmentFile", "LoadCredential", "StandardOutput", "StandardInput"),
}


@pytest.mark.parametrize("name", units.unit_files(WHERE))
def test_no_disk_keeps_a_unit_from_starting(name: str) -> None:
    unit = read_units()[name]
    assert not {setting for _section, setting in unit} & _NEED_A_DISK
    for setting in ("ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths"):
        for path in " ".join(unit.get(("Service", setting), [])).split():
            assert path.startswith("-") or path == "/run", (setting, path)


@pytest.mark.parametrize("name", [name for name in units.unit_files(WHERE) if name.endswith(".service")])
def test_every_service_has_its_walls(name: str) -> None:
    unit = read_units()[name]
    for line in units._WALLS.splitlines():
        setting, _equals, value = line.partition("=")
        assert value in unit["Service", setting]
    assert unit["Service", "ProtectSystem"] == ["full" if name == units.PREPARE_SERVICE else "strict"]
    capabilities = set(unit["Service", "CapabilityBoundingSet"][0].split())
    assert capabilities <= {"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_DAC_OVERRIDE", "CAP_SYS_MODULE"}
    # Modules are loaded by one of them, which has no network.
    loads = name == units.PREPARE_SERVICE
    assert ("CAP_SYS_MODULE" in capabilities) == loads
    assert (unit["Service", "ProtectKernelModules"][-1] == "no") == loads
    if name != units.SERVICE:
        assert unit["Service", "RestrictAddressFamilies"] == ["AF_UNIX"]


def test_each_run_has_what_is_missing_prepared_and_the_timer_set_without_a_watch() -> None:
    found = read_units()
    assert found[units.SERVICE]["Unit", "Wants"] == [units.PREPARE_SERVICE + " " + units.INTERVAL_SERVICE]
    prepare, interval = found[units.PREPARE_SERVICE], found[units.INTERVAL_SERVICE]
    # "|": one of them is enough
    assert prepare["Unit", "ConditionPathIsDirectory"] == ["|!/run/ip-masq-agent", "|!/var/lib/ip-masq-agent"]
    assert prepare["Unit", "ConditionPathExists"] == ["|!/run/xtables.lock"]
    assert interval["Unit", "ConditionPathExists"] == [WHERE.interval_file]
    assert interval["Unit", "After"] == [units.SERVICE]
    for unit in (prepare, interval):
        assert unit["Unit", "StartLimitIntervalSec"] == ["0"]
        assert ("Install", "WantedBy") not in unit
    assert all(line.startswith("-") for line in prepare["Service", "ExecStart"])
    assert [name for name in found if name.endswith(".path")] == [units.PATH]


def test_preparation_makes_what_is_missing_and_touches_nothing_else(tmp_path: t.Any) -> None:
    lines = read_units(Paths(root=str(tmp_path)))[units.PREPARE_SERVICE]["Service", "ExecStart"]
    command = lines[0][1:].replace("/run/xtables.lock", str(tmp_path / "lock"))
    for _again in range(2):
        # The second time the lock is there, which is no error for the unit.
        subprocess.run(["sh", "-c", "umask 0; " + command], check=False, stderr=subprocess.DEVNULL)
        for folder in ("run/ip-masq-agent", "var/lib/ip-masq-agent"):
            assert (tmp_path / folder).stat().st_mode & 0o7777 == 0o700
        assert (tmp_path / "lock").stat().st_mode & 0o7777 == 0o600
        assert (tmp_path / "lock").read_text() == ""
    (tmp_path / "lock").write_text("of others")
    subprocess.run(["sh", "-c", command], check=False, stderr=subprocess.DEVNULL)
    assert (tmp_path / "lock").read_text() == "of others"
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    subprocess.run(["sh", "-c", command], check=False, stderr=subprocess.DEVNULL)
    assert not (tmp_path / "victim").exists()


def test_the_lock_file_gets_its_label_where_selinux_is_enabled(tmp_path: t.Any) -> None:
    line = read_units()[units.PREPARE_SERVICE]["Service", "ExecStart"][1]
    assert line.startswith("-+/bin/sh ")  # in a sandbox restorecon takes SELinux for disabled
    (tmp_path / "restorecon").write_text('#!/bin/sh\necho "$@" >>%s/labelled\n' % tmp_path)
    (tmp_path / "restorecon").chmod(0o755)
    command = line[2:].replace("/sys/fs/selinux/enforce", str(tmp_path / "enforce"))
    for enabled in (False, True):
        if enabled:
            (tmp_path / "enforce").touch()
        subprocess.run(["sh", "-c", command], env={"PATH": "%s:/bin" % tmp_path}, check=True)
        assert (tmp_path / "labelled").exists() == enabled
    assert (tmp_path / "labelled").read_text() == "/run/xtables.lock\n"


def test_timer_fires_to_the_second_at_the_reference_agent_s_interval() -> None:
    timer = read_units()[units.TIMER]
    assert timer["Timer", "AccuracySec"] == ["1s"]
    assert timer["Timer", "OnUnitInactiveSec"] == ["60s"]


def test_an_edit_is_seen_in_the_config_and_in_the_drop_ins() -> None:
    path, edit = read_units()[units.PATH], read_units()[units.EDIT_SERVICE]
    assert path["Path", "PathChanged"] == ["/opt/masq/etc", "/opt/masq/etc/config.d"]
    assert path["Path", "Unit"] == [units.EDIT_SERVICE]
    # A start would be swallowed by a sync under way, which may have read the files before the edit.
    assert edit["Service", "ExecStart"] == ["/bin/systemctl --no-block restart " + units.SERVICE]
    # Each resync starts the watch again where it could not start.
    assert path["Install", "WantedBy"] == ["paths.target " + units.SERVICE]
    assert "trap '' TERM\n    exec /" in snapshot.resync_script(WHERE)


def test_hook_follows_start_restart_and_reload_of_a_firewall() -> None:
    hook = read_units()[units.FIREWALL_TEMPLATE]
    for name in ("After", "PartOf", "ReloadPropagatedFrom"):
        assert hook["Unit", name] == ["%i.service"]
    assert hook["Install", "WantedBy"] == ["%i.service"]
    assert hook["Service", "ExecStart"] == hook["Service", "ExecReload"]
    at_once, when_firewalld_answers = hook["Service", "ExecStart"]
    assert at_once == "/bin/systemctl --no-block restart ip-masq-agent.service"
    assert "test %i = firewalld && firewall-cmd --state && " in when_firewalld_answers
    # firewalld and nftables remove all rules when they stop. molecule/resync stops them.
    (at_stop,) = hook["Service", "ExecStop"]
    assert "systemctl --no-block restart ip-masq-agent" in at_stop


def test_there_is_a_hook_for_every_known_flusher() -> None:
    assert set(units.FIREWALL_HOOKS) == {
        "ip-masq-agent-firewall@%s.service" % unit
        for unit in ("firewalld", "nftables", "netfilter-persistent", "iptables", "ip6tables", "ufw")
    }


@pytest.mark.parametrize(
    "interval, microseconds",
    [
        ("1s", 1_000_000),
        ("1500ms", 1_500_000),
        ("1h30m", 5_400_000_000),
        ("1.0000005s", 1_000_000),
    ],
)
def test_interval_is_set_in_a_drop_in_that_systemd_reads(interval: str, microseconds: int) -> None:
    assert units.interval_drop_in(WHERE) == "/run/systemd/system/ip-masq-agent.timer.d/interval.conf"
    # The empty value takes away the one in the timer itself.
    text = units.interval_text(parse_duration(interval)) or b""
    assert Unit(text.decode("utf-8"))["Timer", "OnUnitInactiveSec"] == ["", "%dus" % microseconds]
    assert units.interval_text(parse_duration("60s")) is None


@pytest.mark.parametrize("shell", ["sh", "bash --posix"])
def test_resync_script_is_one_that_a_shell_reads(tmp_path: t.Any, shell: str) -> None:
    path = tmp_path / "resync"
    path.write_text(snapshot.resync_script(WHERE))
    done = subprocess.run([*shell.split(), "-n", str(path)], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_units_are_read_by_others_too() -> None:
    for name, text in units.unit_files(choose_paths()).items():
        reader = configparser.ConfigParser(strict=False, interpolation=None)
        reader.optionxform = str  # type: ignore[assignment,method-assign]
        reader.read_string(text, name)
        assert reader["Unit"]["Description"]
