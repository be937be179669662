# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things lie, and the texts of units and of the resync script."""

from __future__ import annotations

import re
import shlex
import subprocess
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import snapshot, units
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import CHOSEN, Paths, choose_paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import rule_flushers
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError

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
    ["relative", "/", "//", "/with space", "/a//b", "/a/../b", "/a/..", "/./a"]
    + ["/new\nline", "/per%cent", "/dollar$", '/quo"te', "/semi;colon", "/star*", "/\u00e9"],
)
def test_a_path_that_would_have_to_be_quoted_is_refused(place: str, path: str) -> None:
    with pytest.raises(ConfigError) as error:
        choose_paths(**{place: path})
    assert str(error.value).startswith("%s: invalid path %s: " % (place, ascii(path)))


def test_an_empty_metrics_dir_means_no_metrics() -> None:
    assert choose_paths(metrics_dir="").metrics_file == ""
    with pytest.raises(ConfigError):
        choose_paths(bin_dir="")


def test_every_enabled_unit_is_there_and_can_be_enabled() -> None:
    found = read_units()
    for unit in units.ENABLED_UNITS:
        name = units.FIREWALL_TEMPLATE if unit in units.FIREWALL_HOOKS else unit
        assert ("Install", "WantedBy") in found[name], name


def test_tick_depends_on_nothing_but_its_program() -> None:
    """Each order, condition or path would be a way to keep the rules from being repaired."""
    tick = read_units()[units.SERVICE]
    assert tick["Service", "ExecStart"] == [WHERE.resync]
    assert tick["Service", "Type"] == ["oneshot"]
    assert tick["Unit", "DefaultDependencies"] == ["no"]
    allowed = {"Description", "Documentation", "DefaultDependencies", "Conflicts", "StartLimitIntervalSec", "OnFailure"}
    assert {name for section, name in tick if section == "Unit"} == allowed
    assert not [section for section, _name in tick if section == "Install"]
    named = [name for (_section, name), values in tick.items() if any("/" in value for value in values)]
    assert named == ["Documentation", "ExecStart"]
    # The next one, and what repairs after a failure, come before two resyncs are over.
    assert int(tick["Service", "TimeoutStartSec"][0]) + 4 * int(tick["Service", "TimeoutStopSec"][0]) < 60


#: Settings for which systemd builds a mount namespace (exec_needs_mount_namespace of systemd 239 to 257), which takes
#: time for each mount of the node, and fails where a path is not what it was.
_NEED_A_MOUNT_NAMESPACE = re.compile(
    r"Protect(?!Proc$|Clock$)\w+|Private\w+|\w+Paths|\w+Directory|Bind\w+|Mount\w+|TemporaryFileSystem|Root\w+"
    r"|DynamicUser|LoadCredential|NetworkNamespacePath|Ext\w+Directories"
)


@pytest.mark.parametrize("name", [name for name in units.unit_files(WHERE) if name.endswith(".service")])
def test_no_unit_needs_a_mount_namespace(name: str) -> None:
    settings = [setting for section, setting in read_units()[name] if section == "Service"]
    assert not [setting for setting in settings if _NEED_A_MOUNT_NAMESPACE.fullmatch(setting)]


@pytest.mark.parametrize("name", [units.SERVICE, units.TIMER, units.PATH])
def test_what_recurs_has_no_start_limit_and_is_started_again(name: str) -> None:
    unit = read_units()[name]
    assert unit["Unit", "StartLimitIntervalSec"] == ["0"]
    assert unit["Unit", "OnFailure"] == [units.RECOVER_SERVICE]


def test_a_failed_timer_is_started_again_and_again_and_a_stopped_one_never(tmp_path: t.Any) -> None:
    recover = read_units()[units.RECOVER_SERVICE]
    assert recover["Service", "ExecStartPre"] == ["-%s recover" % WHERE.program]
    assert recover["Service", "Restart"] == ["on-failure"]
    assert recover["Unit", "StartLimitIntervalSec"] == ["0"]
    (line,) = recover["Service", "ExecStart"]
    # systemd reads $$ as one.
    command = shlex.split(line.replace("$$", "$"))
    assert command[:2] == ["/bin/sh", "-c"]
    systemctl = tmp_path / "systemctl"
    log = tmp_path / "log"
    for failed, starts, status in (
        ("", True, 0),
        (units.TIMER, True, 0),
        (units.TIMER, False, 1),
        (units.PATH, True, 0),
    ):
        log.write_text("")
        systemctl.write_text(
            "#!/bin/sh\ncase $* in\n'--quiet is-failed %s') ;;\n*is-failed*) exit 1 ;;\n*) echo $* >>%s; %s ;;\nesac\n"
            % (failed or "none", log, "true" if starts else "false")
        )
        systemctl.chmod(0o755)
        done = subprocess.run(command, env={"PATH": "%s:/bin" % tmp_path}, check=False)
        assert (done.returncode, log.read_text()) == (status, "start %s\n" % failed if failed else "")


def test_kubelet_waits_for_the_first_sync_at_boot_for_half_a_minute_at_most() -> None:
    boot = read_units()[units.BOOT_SERVICE]
    assert boot["Unit", "Before"] == [" ".join(unit + ".service" for unit in units.KUBELET_UNITS)]
    (after,) = boot["Unit", "After"]
    assert set(after.split()) == {"network-pre.target"} | {unit + ".service" for unit in rule_flushers.FIREWALLS}
    # An order, and no requirement. The job ends whatever it waits for: systemd.unit(5).
    assert not {name for _section, name in boot} & {"RequiredBy", "Requires", "BindsTo", "Requisite"}
    assert boot["Unit", "JobTimeoutSec"] == ["30"]
    # A kubelet that starts later finds it done.
    assert boot["Service", "RemainAfterExit"] == ["yes"]
    assert boot["Service", "ExecStart"] == ["-/bin/systemctl restart " + units.SERVICE]
    # No other unit of ours has an order with a kubelet.
    assert [name for name, unit in read_units().items() if ("Unit", "Before") in unit] == [units.BOOT_SERVICE]


def test_a_restart_in_the_first_moment_is_no_failure() -> None:
    assert read_units()[units.SERVICE]["Service", "SuccessExitStatus"] == ["SIGTERM"]


@pytest.mark.parametrize("name", [name for name in units.unit_files(WHERE) if name.endswith(".service")])
def test_every_service_has_its_walls(name: str) -> None:
    unit = read_units()[name]
    for line in units._WALLS.splitlines():
        setting, _equals, value = line.partition("=")
        assert value in unit["Service", setting]
    works = name in (units.SERVICE, units.RECOVER_SERVICE)
    capabilities = {"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_DAC_OVERRIDE"} if works else set()
    assert set(unit["Service", "CapabilityBoundingSet"][0].split()) == capabilities
    families = ["AF_NETLINK AF_INET AF_INET6 AF_UNIX" if works else "AF_UNIX"]
    assert unit["Service", "RestrictAddressFamilies"] == families


def test_timer_fires_to_the_second_at_the_reference_agent_s_interval() -> None:
    timer = read_units()[units.TIMER]
    assert timer["Timer", "AccuracySec"] == ["1s"]
    assert timer["Timer", "OnUnitInactiveSec"] == ["60s"]


def test_an_edit_is_seen_in_the_config_and_in_the_drop_ins() -> None:
    path = read_units()[units.PATH]
    assert path["Path", "PathChanged"] == ["/opt/masq/etc", "/opt/masq/etc/config.d"]
    assert path["Path", "Unit"] == [units.SERVICE]
    # A restart means another run, not half of one.
    assert "trap '' TERM\n    exec /" in snapshot.resync_script(WHERE)


def test_there_is_a_hook_for_every_known_flusher() -> None:
    assert set(units.FIREWALL_HOOKS) == {
        "ip-masq-agent-firewall@%s.service" % unit
        for unit in ("firewalld", "nftables", "netfilter-persistent", "iptables", "ip6tables", "ufw")
    }


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
    assert "systemd-run --quiet --no-block --collect" in at_stop and "--property=After=%i.service" in at_stop
    assert at_stop.endswith("systemctl --no-block restart ip-masq-agent.service'")
