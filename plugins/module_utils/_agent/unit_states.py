# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of the agent that are not as an installation leaves them: stopped, disabled, masked, failed, missing."""

from __future__ import annotations

import typing as t

from .._errors import NodeError
from .._system import systemd
from .._system.process import Runner
from .units import ENABLED_UNITS, FIREWALL_HOOKS, FIREWALL_UNITS, SERVICES, STARTED_UNITS

_PROPERTIES = ("LoadState", "UnitFileState", "ActiveState", "Result", "ExecMainStatus", "NeedDaemonReload")

#: States of a started unit between which it changes by itself.
_STARTED = ("active", "activating", "reloading")


class UnitState(t.NamedTuple):
    """A unit, and what is wrong with it."""

    unit: str
    states: t.Tuple[str, ...]


def find_deviations(run: Runner) -> t.List[UnitState]:
    """Return the units that are not as an installation leaves them.

    :raises NodeError: systemd cannot be asked.
    """
    if not systemd.is_running():
        raise NodeError("this node was not booted with systemd")
    firewalls = [unit + ".service" for unit in FIREWALL_UNITS]
    names = tuple(dict.fromkeys((*ENABLED_UNITS, *SERVICES)))
    units = systemd.show_units(run, _PROPERTIES, [*names, *firewalls])
    hooks = [hook for hook, unit in zip(FIREWALL_HOOKS, firewalls) if units[unit].first("ActiveState") == "active"]
    started = {*STARTED_UNITS, *hooks}
    found = [UnitState(name, tuple(_states(name, units[name], name in started))) for name in names]
    return [one for one in found if one.states]


def _states(name: str, about: systemd.UnitProperties, is_started: bool) -> t.Iterator[str]:
    load, active = about.first("LoadState"), about.first("ActiveState")
    if load == "not-found":
        yield "missing"
    elif load == "masked":
        yield "masked"
    elif load != "loaded":
        yield "not loaded (%s)" % (load or "unknown")
    elif name in ENABLED_UNITS and about.first("UnitFileState") != "enabled":
        yield about.first("UnitFileState") or "disabled"
    if active == "failed":
        result = about.first("Result") or "unknown"
        status = about.first("ExecMainStatus")
        yield "failed (result %s%s)" % (result, ", exit status " + status if status not in ("", "0") else "")
    elif is_started and load != "not-found" and active not in _STARTED:
        yield "stopped"
    if about.first("NeedDaemonReload") == "yes":
        yield "changed since systemd has read it"
