# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says of the units, and what it is told. With real systemd: molecule."""

from __future__ import annotations

import contextlib
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import unit_control, units
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import systemd
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support.installation import put_files
from support.private_node import private_paths
from support.units import Systemctl

FIREWALLD = "firewalld.service"
HOOK = units.FIREWALL_HOOKS[0]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A node of our own."""
    return private_paths(tmp_path)


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    """Units as an installation leaves them."""
    monkeypatch.setattr(systemd, "is_running", lambda: True)
    made = Systemctl(units.ENABLED_UNITS, units.STARTED_UNITS)
    made.known.update(units.SERVICES)
    return made


def found(systemctl: Systemctl) -> t.Dict[str, t.List[str]]:
    """The states by unit."""
    return unit_control.find_deviations(systemctl)


@pytest.mark.parametrize("unit", units.STARTED_UNITS)
def test_a_stopped_unit(systemctl: Systemctl, unit: str) -> None:
    systemctl.active.discard(unit)
    assert found(systemctl) == {unit: ["stopped"]}
    systemctl.failed[unit] = 0
    assert found(systemctl) == {unit: ["failed (result exit-code)"]}


@pytest.mark.parametrize("unit", units.ENABLED_UNITS)
def test_a_unit_that_is_disabled_masked_or_missing(systemctl: Systemctl, unit: str) -> None:
    systemctl.enabled.discard(unit)
    assert found(systemctl) == {unit: ["disabled"]}
    systemctl.masked.add(unit)
    assert found(systemctl) == {unit: ["masked"]}
    systemctl.active.discard(unit)
    assert found(systemctl) == {unit: ["masked", "stopped"] if unit in units.STARTED_UNITS else ["masked"]}
    systemctl.masked.clear()
    systemctl.known.discard(unit)
    assert found(systemctl) == {unit: ["missing"]}


@pytest.mark.parametrize("unit", units.SERVICES)
def test_a_service_that_failed(systemctl: Systemctl, unit: str) -> None:
    systemctl.failed[unit] = 226
    assert found(systemctl) == {unit: ["failed (result exit-code, exit status 226)"]}


def test_the_hook_of_a_firewall_that_runs(systemctl: Systemctl) -> None:
    systemctl.known.add(FIREWALLD)
    systemctl.active.add(FIREWALLD)
    assert found(systemctl) == {HOOK: ["stopped"]}
    systemctl.active.add(HOOK)
    assert found(systemctl) == {}


def test_a_unit_that_systemd_has_not_read_again(systemctl: Systemctl) -> None:
    systemctl.changed.add(units.TIMER)
    assert found(systemctl) == {units.TIMER: ["changed since systemd has read it"]}


def test_a_node_without_systemd_says_nothing_of_units(systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "is_running", lambda: False)
    with pytest.raises(NodeError, match="not booted with systemd"):
        found(systemctl)


class TestTryService:
    """unit_control.try_service"""

    class Systemd:
        """Runs the service with a result; the journal has a line of it."""

        def __init__(self, result: str = "success", status: int = 0, run: t.Callable[[], object] = int) -> None:
            self.result, self.status, self.run = result, status, run

        def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
            if argv[1] == "restart":
                self.run()
                return Outcome(int(self.result != "success"), "", "Job failed. See systemctl status.\n")
            if argv[1] == "show":
                return Outcome(0, "Result=%s\nExecMainStatus=%d\n" % (self.result, self.status), "")
            if argv[0] == "journalctl" and argv[1] != "--sync":
                return Outcome(0, "exec: /usr/local/sbin/ip-masq-agent: not found\nFailed.\n", "")
            return Outcome(0, "", "")

    def test_the_program_runs_and_not_only_the_comparison(self, paths: Paths) -> None:
        expected = Path(paths.expected)
        expected.parent.mkdir(parents=True)
        expected.write_text("as verified")
        seen: t.List[bool] = []
        unit_control.try_service(self.Systemd(run=lambda: seen.append(expected.exists())), paths)
        assert seen == [False]

    def test_a_failure_is_reported_with_the_lines_of_the_journal(self, paths: Paths) -> None:
        with pytest.raises(NodeError) as error:
            unit_control.try_service(self.Systemd("exit-code", 127), paths)
        assert str(error.value).startswith(
            "the agent is installed, but ip-masq-agent.service fails: result exit-code, exit status 127: "
            "exec: /usr/local/sbin/ip-masq-agent: not found; Failed.. Fix the cause and run this again"
        )

    def test_metrics_that_were_not_written_are_a_failure(self, paths: Paths, tmp_path: Path) -> None:
        there = paths._replace(metrics_dir=str(tmp_path))
        Path(there.metrics_file).write_text("of yesterday")
        with pytest.raises(NodeError, match="fails: it did not write .*/ip_masq_agent.prom"):
            unit_control.try_service(self.Systemd(), there)
        unit_control.try_service(self.Systemd(run=lambda: Path(there.metrics_file).write_text("of today")), there)


class TestTimer:
    """unit_control.set_timer"""

    def test_default_needs_no_drop_in(self, paths: Paths) -> None:
        systemctl = Systemctl()
        assert unit_control.set_timer(systemctl, paths, 60 * 10**9) == []
        assert systemctl.calls == []

    def test_another_interval_is_set_once_and_taken_back(self, paths: Paths, tmp_path: Path) -> None:
        systemctl = Systemctl()
        drop_in = tmp_path / "run/systemd/system/ip-masq-agent.timer.d/interval.conf"
        assert unit_control.set_timer(systemctl, paths, 5 * 10**9, check=True) == ["timer interval set to 5s"]
        assert not drop_in.exists() and systemctl.calls == []
        assert unit_control.set_timer(systemctl, paths, 5 * 10**9) == ["timer interval set to 5s"]
        assert "OnUnitInactiveSec=5000000us" in drop_in.read_text()
        assert systemctl.calls == [["daemon-reload"], ["try-restart", "--no-block", units.TIMER]]
        assert unit_control.set_timer(systemctl, paths, 5 * 10**9) == []
        assert unit_control.set_timer(systemctl, paths, 60 * 10**9) == ["timer interval set to 60s"]
        assert not drop_in.exists()


@pytest.mark.parametrize(
    "version, is_refused",
    [
        ("systemd 237\n+PAM", True),
        ("systemd 239 (239-82.el8)\n", False),
        ("systemd 257 (257.9-1)", False),
        ("?", False),
    ],
)
def test_a_node_whose_systemd_is_too_old_is_refused(
    monkeypatch: pytest.MonkeyPatch, paths: Paths, version: str, is_refused: bool
) -> None:
    calls = []

    def runner(argv: t.Sequence[str], **_more: t.Any) -> Outcome:
        calls.append(argv)
        return Outcome(0, version, "")

    monkeypatch.setattr(systemd, "is_running", lambda: True)
    refused = pytest.raises(NodeError, match="^systemd 237 is too old .* need 239 or later; .* use the module ip_masq,")
    with refused if is_refused else contextlib.nullcontext():
        unit_control.check_systemd(runner, paths)
    assert calls == [["systemctl", "--version"]]
    put_files(paths, "{}\n")
    unit_control.check_systemd(runner, paths)  # where the agent is installed, no process is started
    assert len(calls) == 1
