# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The service that logs connections that have ended, if it is wanted: install it, remove it."""

from __future__ import annotations

import os
import typing as t

from .._connection_log import ulogd
from .._policy.values import check_log_size
from .._system import files, systemd
from .._system.process import Runner
from .install import Installation, existing, file_removal, is_ours, plan_change
from .paths import MARK, Paths
from .unit_control import run_steps, step_lines, stop_units
from .units import LOG_KEEP_SERVICE, LOG_SERVICE, LOG_STARTED, log_unit_files


def check(megabytes: int) -> None:
    """Refuse what cannot be done.

    :param megabytes: 0: no log.
    :raises IpMasqError: nothing was touched.
    """
    check_log_size(megabytes)
    if megabytes:
        ulogd.check()


def update(installation: Installation, megabytes: int) -> None:
    """Write configuration and units and start the log, or remove them; what was logged stays.

    :raises NodeError: a file cannot be written, or systemd refused a step.
    """
    if not megabytes:
        _remove(installation)
        return
    run, paths = installation.run, installation.paths
    wanted = _files(paths, megabytes)
    changes = [change for path, text in wanted.items() for change in plan_change(path, text, 0o644)]
    units = systemd.show_units(run, ("ActiveState", "UnitFileState"), LOG_STARTED)
    disabled = [unit for unit in LOG_STARTED if units[unit].first("UnitFileState") != "enabled"]
    stopped = [unit for unit in LOG_STARTED if units[unit].first("ActiveState") != "active"]
    restarted = [unit for unit in LOG_STARTED if changes and unit not in stopped]
    if not installation.check and (changes or disabled or stopped):
        files.make_directory(paths.log_dir, 0o700)
        for change in changes:
            files.write(change.path, wanted[change.path], 0o644, folder=0o755)
        run_steps(run, [("enable", disabled)])
        systemd.daemon_reload(run)
        run_steps(run, [("start", stopped), ("restart", restarted)])
    installation.files += changes
    installation.services += step_lines([("enable", disabled), ("start", stopped), ("restart", restarted)])


def _files(paths: Paths, megabytes: int) -> t.Dict[str, bytes]:
    program, plugins = ulogd.find_plugins()
    wanted = {paths.log_config: ulogd.config_text(MARK, paths.log_dir, plugins)}
    for name, text in log_unit_files(paths, program, megabytes).items():
        wanted[os.path.join(paths.admin_unit_dir, name)] = text
    return {path: text.encode("utf-8") for path, text in wanted.items()}


def installed(paths: Paths) -> t.List[str]:
    """Return the files of ours that are there."""
    units = [os.path.join(paths.admin_unit_dir, name) for name in log_unit_files(paths, "", 0)]
    return [path for path in existing([*units, paths.log_config]) if is_ours(path) and not os.path.islink(path)]


def stop(run: Runner, paths: Paths, check_only: bool) -> t.List[str]:
    """Stop and disable the units, and return what was done. Units of others with these names stay."""
    names = [os.path.basename(path) for path in installed(paths) if path != paths.log_config]
    return stop_units(run, names, (LOG_SERVICE, LOG_KEEP_SERVICE), check_only) if names else []


def _remove(installation: Installation) -> None:
    run, paths, check_only = installation.run, installation.paths, installation.check
    gone = installed(paths)
    if gone:
        installation.services += stop(run, paths, check_only)
        installation.files += map(file_removal, gone)
        if not check_only:
            for path in gone:
                files.remove(path)
            systemd.daemon_reload(run)
            systemd.reset_failed(run, LOG_SERVICE)
