# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of connections that have ended, if it is asked for: ulogd of the distribution, with units of our own.

``log_rotation`` bounds what it takes, ``who`` reads it.
"""

from __future__ import annotations

import glob
import os
import typing as t

from .._errors import NodeError, ProgramMissingError
from .._policy.values import check_log_size
from .._system import files, systemd
from .._system.connection_log import CURRENT
from .._system.process import Runner, which
from .install import FileChange, InstallResult, existing, file_removal, is_ours, plan_change
from .paths import MARK, Paths
from .unit_control import run_steps, step_lines
from .units import LOG_SERVICE, LOG_STARTED, log_unit_files

_PLUGINS = ("ulogd_inpflow_NFCT.so", "ulogd_filter_IP2STR.so", "ulogd_output_JSON.so")
_PLUGIN_DIRECTORIES = ("/usr/lib/*/ulogd", "/usr/lib64/ulogd", "/usr/lib/ulogd")
_EVENTS = "/proc/sys/net/netfilter/nf_conntrack_events"

#: event_mask: ends alone, which the kernel tells with the beginning (nf_conntrack_timestamp).
_CONFIG = """\
# %s; local changes are overwritten.
[global]
logfile="syslog"
loglevel=7
%s
stack=ct1:NFCT,ip2str1:IP2STR,json1:JSON

[ct1]
hash_enable=0
event_mask=4
accept_proto_filter=tcp,udp,sctp
netlink_socket_buffer_size=4194304
netlink_socket_buffer_maxsize=33554432

[json1]
sync=1
timestamp=0
file="%s"
"""


def check(megabytes: int) -> None:
    """Refuse what cannot be done.

    :param megabytes: 0: no log.
    :raises IpMasqError: nothing was touched.
    """
    check_log_size(megabytes)
    if not megabytes:
        return
    find_plugins()
    if (files.read(_EVENTS) or b"").strip() == b"0":
        raise NodeError(
            "connection_log: the kernel tells no ends of connections; set the sysctl net.netfilter.nf_conntrack_events "
            "to 1; files and rules left unchanged"
        )


def find_plugins() -> t.Tuple[str, t.List[str]]:
    """Return ulogd and its plugins.

    :raises ProgramMissingError: one of them is missing.
    """
    program = which("ulogd")
    folders = [folder for pattern in _PLUGIN_DIRECTORIES for folder in sorted(glob.glob(pattern))]
    for folder in folders if program else ():
        found = [os.path.join(folder, name) for name in _PLUGINS]
        if program and all(map(os.path.isfile, found)):
            return program, found
    package = "ulogd2-json" if which("apt-get") else "ulogd"
    raise ProgramMissingError(
        "connection_log needs ulogd with its JSON output: install the package ulogd2-json (Debian, Ubuntu) or ulogd "
        "(EPEL), or set connection_log to 0; files and rules left unchanged",
        package,
    )


def update(run: Runner, paths: Paths, put: InstallResult, megabytes: int, check_only: bool = False) -> InstallResult:
    """Write configuration and units and start the log, or remove them; what was logged stays.

    :param put: what else was done.
    :returns: the same, and what was done here.
    :raises NodeError: a file cannot be written, or systemd refused a step.
    """
    if not megabytes:
        return _remove(run, paths, put, check_only)
    wanted = _files(paths, megabytes)
    changes = [change for path, text in wanted.items() for change in plan_change(path, text, 0o644)]
    units = systemd.show_units(run, ("ActiveState", "UnitFileState"), LOG_STARTED)
    disabled = [unit for unit in LOG_STARTED if units[unit].first("UnitFileState") != "enabled"]
    stopped = [unit for unit in LOG_STARTED if units[unit].first("ActiveState") != "active"]
    restarted = [unit for unit in LOG_STARTED if changes and unit not in stopped]
    if not check_only and (changes or disabled or stopped):
        files.make_directory(paths.log_dir, 0o700)
        for change in changes:
            files.make_directory(os.path.dirname(change.path), 0o755)
            files.write(change.path, wanted[change.path], 0o644)
        run_steps(run, [("enable", disabled)])
        systemd.daemon_reload(run)
        run_steps(run, [("start", stopped), ("restart", restarted)])
    lines = step_lines([("enable", disabled), ("start", stopped), ("restart", restarted)])
    return put._replace(files=(*put.files, *changes), services=(*put.services, *lines))


def _files(paths: Paths, megabytes: int) -> t.Dict[str, bytes]:
    program, plugins = find_plugins()
    wanted = {paths.log_config: config_text(paths, plugins)}
    for name, text in log_unit_files(paths, program, megabytes).items():
        wanted[os.path.join(paths.admin_unit_dir, name)] = text
    return {path: text.encode("utf-8") for path, text in wanted.items()}


def config_text(paths: Paths, plugins: t.Iterable[str]) -> str:
    """Return the configuration of ulogd."""
    named = "\n".join('plugin="%s"' % path for path in plugins)
    return _CONFIG % (MARK, named, os.path.join(paths.log_dir, CURRENT))


def installed(paths: Paths) -> t.List[str]:
    """Return the files of ours that are there."""
    units = [os.path.join(paths.admin_unit_dir, name) for name in log_unit_files(paths, "", 0)]
    return [path for path in existing([*units, paths.log_config]) if is_ours(path) and not os.path.islink(path)]


def stop(run: Runner, paths: Paths, check_only: bool) -> t.List[str]:
    """Stop and disable the units, and return what was done. Units of others with these names stay."""
    there = list(map(os.path.basename, installed(paths)))
    names = [name for name in log_unit_files(paths, "", 0) if name in there]
    if not names:
        return []
    units = systemd.show_units(run, ("ActiveState", "UnitFileState"), names)
    active = [name for name in names if units[name].first("ActiveState") in ("active", "activating")]
    enabled = [name for name in names if units[name].first("UnitFileState") == "enabled"]
    if not check_only:
        # The timer first: it would start the other one.
        run_steps(run, [("stop", list(reversed(names))), ("disable", enabled)])
    return step_lines([("stop", active), ("disable", enabled)])


def _remove(run: Runner, paths: Paths, put: InstallResult, check_only: bool) -> InstallResult:
    gone = installed(paths)
    if not gone:
        return put
    lines = stop(run, paths, check_only)
    changes: t.List[FileChange] = list(map(file_removal, gone))
    if not check_only:
        for path in gone:
            files.remove(path)
        systemd.daemon_reload(run)
        systemd.reset_failed(run, LOG_SERVICE)
    return put._replace(files=(*put.files, *changes), services=(*put.services, *lines))
