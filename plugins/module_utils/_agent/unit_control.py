# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units of the agent, as systemd has them: which are stopped, disabled or failed; start them, set the timer."""

from __future__ import annotations

import contextlib
import os
import time
import typing as t

from .._engine.rule_flushers import FIREWALLS
from .._errors import NodeError
from .._system import files, systemd
from .._system.limited import limited
from .._system.process import Runner
from . import snapshot
from .paths import Paths
from .units import (
    ENABLED_UNITS,
    FIREWALL_HOOKS,
    LEAST_SYSTEMD,
    PATH,
    SERVICE,
    SERVICES,
    STARTED_UNITS,
    TIMER,
    interval_drop_in,
    interval_text,
)

_PROPERTIES = ("LoadState", "UnitFileState", "ActiveState", "Result", "ExecMainStatus", "NeedDaemonReload")

#: States of a started unit between which it changes by itself.
_STARTED = ("active", "activating", "reloading")

#: Seconds for one run of the service: the rest of a run in progress, then its own time limits.
_SERVICE_TIMEOUT = 180.0

#: Seconds for the directory of the timer's settings to answer.
_PATIENCE = 5.0

_WITHOUT_WATCH = (
    "%s cannot start (result %s): edits of the configuration act at the next resync, not at once. If root has used up "
    "its inotify instances, raise the sysctl fs.inotify.max_user_instances (now %s); each resync starts the unit again"
)

#: A verb of systemctl, and units.
Step = t.Tuple[str, t.Sequence[str]]


def check_systemd(run: Runner, paths: Paths) -> None:
    """Refuse a node without systemd, and one on which it is too old for the units, if they are not there yet.

    :raises NodeError: nothing was touched.
    """
    if not systemd.is_running():
        raise NodeError(
            "this node was not booted with systemd, which the agent's timer requires; use the module ip_masq, which "
            "only sets the rules"
        )
    # An unchanged node is spared the process.
    if not os.path.exists(os.path.join(paths.unit_dir, SERVICE)):
        release = systemd.release(run)
        if release is not None and release < LEAST_SYSTEMD:
            raise NodeError(
                "systemd %d is too old for the agent's units, which need %d or later; files and rules left unchanged; "
                "upgrade the node, or use the module ip_masq, which only sets the rules" % (release, LEAST_SYSTEMD)
            )


def find_deviations(run: Runner) -> t.Dict[str, t.List[str]]:
    """Return what is wrong with the units that are not as an installation leaves them.

    :raises NodeError: systemd cannot be queried.
    """
    if not systemd.is_running():
        raise NodeError("this node was not booted with systemd")
    firewalls = [unit + ".service" for unit in FIREWALLS]
    names = tuple(dict.fromkeys((*ENABLED_UNITS, *SERVICES)))
    units = systemd.show_units(run, _PROPERTIES, [*names, *firewalls])
    hooks = [hook for hook, unit in zip(FIREWALL_HOOKS, firewalls) if units[unit].first("ActiveState") == "active"]
    started = {*STARTED_UNITS, *hooks}
    found = {name: list(_states(name, units[name], name in started)) for name in names}
    return {name: states for name, states in found.items() if states}


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


def start_units(run: Runner, starts: t.Sequence[Step]) -> t.Tuple[t.List[Step], t.List[str]]:
    """Start or restart units; without the watch for edits, if only that cannot start.

    :returns: what was done, and notes.
    :raises NodeError: another unit cannot start.
    """
    done: t.List[Step] = []
    notes = []
    for verb, units in starts:
        try:
            run_steps(run, [(verb, units)])
        except NodeError:
            about = systemd.show_units(run, ("ActiveState", "Result"), units)
            if [unit for unit in units if about[unit].first("ActiveState") != "active"] != [PATH]:
                raise
            notes.append(_WITHOUT_WATCH % (PATH, about[PATH].first("Result"), _inotify_instances()))
            done.append((verb, [unit for unit in units if unit != PATH]))
        else:
            done.append((verb, units))
    return done, notes


def _inotify_instances() -> str:
    with contextlib.suppress(NodeError, ValueError):
        return "%d" % int(files.read("/proc/sys/fs/inotify/max_user_instances") or b"")
    return "unknown"


def stop_units(run: Runner, names: t.Sequence[str], last: t.Container[str], check: bool) -> t.List[str]:
    """Stop and disable units.

    :param last: those that others start, and that are stopped after these.
    :returns: what was done, a line each.
    :raises NodeError: systemd refused a step.
    """
    units = systemd.show_units(run, ("LoadState", "UnitFileState", "ActiveState"), names)
    active = [unit for unit, about in units.items() if about.first("ActiveState") in ("active", "activating")]
    enabled = [unit for unit, about in units.items() if about.first("UnitFileState") == "enabled"]
    # What was inactive may have been started since.
    to_stop = [unit for unit, about in units.items() if about.first("LoadState") == "loaded" or unit in active]
    if not check:
        first, then = ([unit for unit in to_stop if (unit in last) == late] for late in (False, True))
        run_steps(run, [("stop", first), ("stop", then), ("disable", enabled)])
    return step_lines([("stop", active), ("disable", enabled)])


def run_steps(run: Runner, steps: t.Iterable[Step]) -> None:
    """Run systemctl once for each verb that has units. After enable and disable, the caller has systemd reload once.

    :raises NodeError: systemd refused a step.
    """
    for verb, units in steps:
        if units:
            options = ["--no-reload"] if verb in ("enable", "reenable", "disable") else []
            systemd.systemctl(run, verb, *options, *units)


def step_lines(steps: t.Iterable[Step]) -> t.List[str]:
    """Report steps: a line for each that has units."""
    return ["%s: %s" % (verb, ", ".join(units)) for verb, units in steps if units]


def set_timer(run: Runner, paths: Paths, interval: int, check: bool = False) -> t.List[str]:
    """Set the interval of the timer (nanoseconds).

    :returns: what was done, a line if anything.
    :raises NodeError: systemd refused, or a directory does not answer.
    """
    path, wanted = interval_drop_in(paths), interval_text(interval)

    def write() -> bool:
        differs = files.read(path) != wanted
        if differs and not check:
            if wanted is None:
                files.remove(path)
            else:
                files.write(path, wanted, 0o644, folder=0o755)
        return differs

    differs = t.cast(bool, limited(write, _PATIENCE, "use %s" % path))
    if differs and not check:
        systemd.daemon_reload(run)
        # Without a wait: the service that the timer starts may be the caller.
        systemd.systemctl(run, "try-restart", "--no-block", TIMER)
    return ["timer interval set to %gs" % (interval / 1e9)] if differs else []


def try_service(run: Runner, paths: Paths) -> None:
    """Run the agent's service once, behind its walls, and check that it worked.

    :raises NodeError: it did not; with the lines of the journal.
    """
    # Without the snapshot the agent runs, and not only the resync script.
    snapshot.discard(paths)
    before, started = _stamp(paths.metrics_file), time.time()
    run(["systemctl", "restart", SERVICE], timeout=_SERVICE_TIMEOUT)
    problem = systemd.last_failure(run, SERVICE)
    if not problem and paths.metrics_file and _stamp(paths.metrics_file) == before:
        problem = "it did not write %s" % paths.metrics_file
    if problem:
        lines = systemd.journal(run, SERVICE, started)
        raise NodeError(
            "the agent is installed, but %s fails: %s%s. Fix the cause and run this again; see also "
            "'systemctl status %s'" % (SERVICE, problem, ": " + "; ".join(lines) if lines else "", SERVICE)
        )


def _stamp(path: str) -> t.Optional[t.Tuple[int, int]]:
    """Return a value that differs after a file was replaced."""
    about = files.status(path)
    return (about.st_ino, about.st_mtime_ns) if about else None
