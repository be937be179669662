# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What status says of the units: each way in which one can be other than installed."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import unit_states, units
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import systemd
from support.units import Systemctl

FIREWALLD = "firewalld.service"
HOOK = units.FIREWALL_HOOKS[0]


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    """Units as an installation leaves them."""
    monkeypatch.setattr(systemd, "is_running", lambda: True)
    made = Systemctl(units.ENABLED_UNITS, units.STARTED_UNITS)
    made.known.update(units.SERVICES)
    return made


def found(systemctl: Systemctl) -> t.Dict[str, t.List[str]]:
    """The states by unit."""
    return {one.unit: list(one.states) for one in unit_states.find_deviations(systemctl)}


def test_nothing_is_said_of_units_as_installed(systemctl: Systemctl) -> None:
    assert found(systemctl) == {}


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
